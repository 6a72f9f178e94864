/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_HOSTLIST_H
#define COMMON_HOSTLIST_H

/* Lists of hosts in the form of Slurm: "gpu[001-016,20],login1", "r[1-2]n[01-04]-ib". Pure. */

#include <stddef.h>
#include "common/buf.h"
#include "common/err.h"

enum {
  HOSTLIST_NAMES_MAX = 65536,
  HOSTLIST_NAME_MAX = 255,
  HOSTLIST_BYTES_MAX = 4 * 1024 * 1024, /* all names together */
  HOSTLIST_BRACKETS_MAX = 8,            /* of one name */
  HOSTLIST_DIGITS_MAX = 9,              /* of one number in brackets */
};

/* Appends every name with its NUL to *names, in the order of the list and as often as it is listed; *n: how many.
 * -EINVAL: not a list; -E2BIG: beyond a limit; both with a sentence, and *names is as before. */
int hostlist_expand(const char *text, struct buf *names, size_t *n, struct err *e);

/* The reverse, for people: appends the names sorted, each once, with runs of numbers in brackets:
 * "gpu[003,007-009],login1". At most `max` bytes, and never part of a name. Returns how many of the n names are shown,
 * repeated ones counted. Names from a peer are escaped. */
size_t hostlist_compress(const char *const *names, size_t n, size_t max, struct buf *out);

/* The length of a host's name without its domain, or of all of it if it is an address: 4 for "gpu1.example.org". */
size_t hostlist_short(const char *name);

#endif
