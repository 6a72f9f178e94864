/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_CLUSTER_LISTS_H
#define AGENT_CLUSTER_LISTS_H

/* Lists of hosts as PBS, Grid Engine and LSF write them, in files and variables. For the rows. Pure. */

#include "agent/cluster/internal.h"

enum list_form {
  /* "gpu1", one line per slot: PBS_NODEFILE. A number after the name is its slots; the rest is skipped: PE_HOSTFILE */
  LIST_LINES,
  LIST_WORDS, /* "gpu1 gpu1 gpu2", a word for each slot: LSB_HOSTS */
  LIST_PAIRS, /* "gpu1 4 gpu2 4": LSB_MCPU_HOSTS */
};

/* Adds the hosts of a text to the empty list *h: each once, as first written, with its slots added up. A name without
 * a domain equals the first one with any; case is ignored; lines may end in CRLF; empty lines are skipped. -EINVAL for
 * an invalid or empty list, -E2BIG beyond a limit of cluster.h, with a sentence that names the line; *h is then empty.
 */
int list_read(struct row_hosts *h, enum list_form form, const char *text, struct err *e);

/* The same from the file that a variable names, and from the variable. False, with *h empty: unset, or invalid (with a
 * warning). */
bool list_from_file(struct row *r, const char *name, enum list_form form, struct row_hosts *h);
bool list_from_variable(struct row *r, const char *name, enum list_form form, struct row_hosts *h);
/* From a file that may be missing; an invalid one is warned of. */
bool list_from_path(struct row *r, const char *path, enum list_form form, struct row_hosts *h);

/* Slots of all hosts, and of those before host `i`. */
int64_t list_slots(const struct row_hosts *h);
int64_t list_slots_before(const struct row_hosts *h, size_t i);

#endif
