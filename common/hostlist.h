#ifndef COMMON_HOSTLIST_H
#define COMMON_HOSTLIST_H

/* Lists of hosts as Slurm writes them: "gpu[001-016,20],login1", "r[1-2]n[01-04]-ib". Pure. */

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

/* Appends every name with its NUL to *names, in the order of the list, one that stands there twice twice; *n: how many. -EINVAL for what
 * is no list, -E2BIG beyond a limit, with a sentence; *names is then as before. */
int hostlist_expand(const char *text, struct buf *names, size_t *n, struct err *e);

/* The reverse, for people: appends the names sorted, each once, runs of numbers in brackets: "gpu[003,007-009],login1". At most `max`
 * bytes, never a part of a name. How many of the n names (those given twice counted twice) it tells. What a peer made up is escaped. */
size_t hostlist_compress(const char *const *names, size_t n, size_t max, struct buf *out);

/* Length of a host's name without its domain; all of it where it is an address: "gpu1.example.org" is 4. */
size_t hostlist_short(const char *name);

#endif
