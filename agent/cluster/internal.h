/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_CLUSTER_INTERNAL_H
#define AGENT_CLUSTER_INTERNAL_H

/* A row of the table in cluster.c: one scheduler or launcher that knows its own variables. For the rows and their
 * tests.
 *
 * A row sets facts. A fact that an earlier row set stays, so a row need not check whether it is set. */

#include "agent/cluster/cluster.h"

struct row {
  struct cluster *c;
  const struct cluster_site *site;
};

/* Called once each, in the order of the table. A row does nothing if its scheduler is absent. */
void cluster_read_launcher(struct row *r);
void cluster_read_cloud(struct row *r);
void cluster_read_slurm(struct row *r);
void cluster_read_pbs(struct row *r);
void cluster_read_sge(struct row *r);
void cluster_read_lsf(struct row *r);
void cluster_read_k8s(struct row *r);

/* Reading. --------------------------------------------------------------------------------------------------------- */

/* The variable's value; NULL: unset or empty. */
const char *row_variable(const struct row *r, const char *name);
/* The variable as a number. False: unset, or invalid (with a warning). */
bool row_number(struct row *r, const char *name, int64_t min, int64_t max, int64_t *v);
/* Counts as Slurm writes them: "2(x3),1" is 2, 2, 2, 1, each in [1, CLUSTER_SLOTS_MAX]. A heap array of *n counts;
 * NULL: unset, or invalid (with a warning). */
int64_t *row_counts(struct row *r, const char *name, size_t *n);
/* Length of the list in the variable, separated by commas or blanks; 0: unset. */
int64_t row_list_length(const struct row *r, const char *name);
/* The text of the file that the variable names, the caller's. NULL: unset, or unreadable (with a warning,
 * unless quiet). */
char *row_file(struct row *r, const char *name, bool quiet);
/* Pid of the nearest ancestor named `comm` (as in /proc/PID/stat: at most 15 characters); 0: none. */
int64_t row_ancestor(const struct row *r, const char *comm);
/* The word after `option` on that process's command line; false: there is none, or it is too long. */
bool row_argument(const struct row *r, int64_t pid, const char *option, char *out, size_t size);
/* Adds a sentence, without a full stop, to the warnings. The caller escapes foreign bytes. */
void row_warn(struct row *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, about a variable: "NAME=value WHY". The value is escaped and shortened. */
void row_warn_of(struct row *r, const char *name, const char *why);

/* Facts. ----------------------------------------------------------------------------------------------------------- */

/* The source of a fact: variables, separated by blanks; set ones are shown with their values. Text in parentheses is
 * shown as it is: "(the pid of its proxy)". */
void row_set_number(struct row *r, struct cluster_fact *f, int64_t v, const char *variables);
void row_set_text(struct row *r, struct cluster_fact *f, const char *text, const char *variables);
/* Sets the fact from one variable. False: unset or invalid. */
bool row_take_number(struct row *r, struct cluster_fact *f, const char *name, int64_t min, int64_t max);
/* Sets the job to "KIND-ID" or "KIND-ID.PART" (part may be NULL); warns if it is not a valid name. */
void row_set_job(struct row *r, const char *kind, const char *id, const char *part, const char *variables);
/* The same for an element of an array (task NULL: it is none), with the port if both are numbers. variables: those of
 * both. */
void row_set_array_job(struct row *r, const char *kind, const char *id, const char *task, const char *variables);
/* The port of a job with a numeric id; other ports derive from the job's name. */
void row_set_port(struct row *r, int64_t job, int64_t step, const char *variables);

/* Whether a SLURM_STEP_ID, or NULL, is that of a step of srun, not of a batch script or a shell. */
bool cluster_is_step(const char *id);

/* A list of hosts that a row builds and hands over. */
struct row_hosts {
  struct cluster_host *v;
  size_t n, cap;
  struct map *at; /* name -> index + 1, while building */
};
/* Adds a host, or slots to a known one. -EINVAL, -E2BIG and a sentence. */
int row_hosts_add(struct row_hosts *h, const char *name, size_t len, int64_t slots, struct err *e);
/* Adds a compressed list, with `slots` each. */
int row_hosts_add_list(struct row_hosts *h, const char *list, int64_t slots, struct err *e);
/* Index of this machine, with or without its domain; -1: absent. */
int64_t row_hosts_find(const struct row_hosts *h, const char *host);
/* Sets hosts, nodes and first_host unless set, and takes h over. An empty list sets nothing. */
void row_set_hosts(struct row *r, struct row_hosts *h, const char *variables);
void row_hosts_drop(struct row_hosts *h);

/* Lists of hosts as PBS, Grid Engine and LSF write them, in files and variables (lists.c). ------------------------- */

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
