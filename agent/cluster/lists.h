#ifndef AGENT_CLUSTER_LISTS_H
#define AGENT_CLUSTER_LISTS_H

/* Lists of hosts as PBS, Grid Engine and LSF write them, in files and in variables. For the rows of agent/cluster. Pure. */

#include "agent/cluster/internal.h"

enum list_form {
  LIST_LINES, /* "gpu1", a line for each slot: PBS_NODEFILE. A number behind the name is its slots, and whatever else stands there
               * is not read: "gpu1 8 all.q@gpu1 UNDEFINED", PE_HOSTFILE */
  LIST_WORDS, /* "gpu1 gpu1 gpu2", a word for each slot: LSB_HOSTS */
  LIST_PAIRS, /* "gpu1 4 gpu2 4": LSB_MCPU_HOSTS */
};

/* Adds the hosts of a text to *h, which has none yet: each once, as it was first written, with its slots added up. A name
 * without a domain is the first one that has any; case does not count; lines may end in CRLF, and empty ones are skipped. -EINVAL for what is no list,
 * or is empty, -E2BIG beyond a limit of cluster.h, with a sentence that names the line; *h is then empty. */
int list_read(struct row_hosts *h, enum list_form form, const char *text, struct err *e);

/* The same from the file that a variable names, and from the variable itself. False, and *h is empty: it is unset, or it is
 * no list, which is warned of. */
bool list_from_file(struct row *r, const char *name, enum list_form form, struct row_hosts *h);
bool list_from_variable(struct row *r, const char *name, enum list_form form, struct row_hosts *h);
/* From a file that may be there or not, of which nothing is said where it is not; a wrong one is warned of. */
bool list_from_path(struct row *r, const char *path, enum list_form form, struct row_hosts *h);

/* Slots of all hosts together, and of those in front of host `i`. */
int64_t list_slots(const struct row_hosts *h);
int64_t list_slots_before(const struct row_hosts *h, size_t i);

#endif
