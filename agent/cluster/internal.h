#ifndef AGENT_CLUSTER_INTERNAL_H
#define AGENT_CLUSTER_INTERNAL_H

/* A row of the table in cluster.c: one scheduler or launcher, which knows its own variables. For the rows and their tests.
 *
 * A row reads what it likes and sets facts. A fact that an earlier row has set stays as it is, so a row need not look whether it is
 * set; it may, where its own reading depends on it (a step of Slurm's is only a helper of mpirun's where r->c->launcher is set). */

#include "agent/cluster/cluster.h"

struct row {
  struct cluster *c;
  const struct cluster_site *site;
};

/* Each is called once, in the order of the table, and does nothing where its scheduler is not here. */
void cluster_read_open_mpi(struct row *r);
void cluster_read_hydra(struct row *r);
void cluster_read_slurm(struct row *r);
void cluster_read_pbs(struct row *r);
void cluster_read_sge(struct row *r);
void cluster_read_lsf(struct row *r);
void cluster_read_k8s(struct row *r);
void cluster_read_mpiruns_host(struct row *r); /* the last one: where mpirun itself runs */

/* Reading. --------------------------------------------------------------------------------------------------------- */

/* The variable's value; NULL: unset or empty. */
const char *row_variable(const struct row *r, const char *name);
/* The variable as a number. False: unset; or it makes no sense, which is warned of. */
bool row_number(struct row *r, const char *name, int64_t min, int64_t max, int64_t *v);
/* Counts as Slurm writes them, "2(x3),1" is 2, 2, 2, 1, each in [1, CLUSTER_SLOTS_MAX]: an array on the heap, their number in *n. NULL: unset;
 * or no such list, which is warned of. */
int64_t *row_counts(struct row *r, const char *name, size_t *n);
/* How many elements the list in the variable has, parted by commas or blanks; 0: unset. */
int64_t row_list_length(const struct row *r, const char *name);
/* The file that the variable names, as a string of the caller's. NULL: unset; or it cannot be read, which is warned of. */
char *row_file(struct row *r, const char *name);
/* The same, of a file that may be there or not. */
char *row_file_quietly(const struct row *r, const char *name);
/* The pid of the nearest process above this one that is called `comm` (as /proc/PID/stat has it: at most 15 characters);
 * 0: none. */
int64_t row_ancestor(const struct row *r, const char *comm);
/* The word behind `option` on that process's command line; false: it has none, or one that does not fit. */
bool row_argument(const struct row *r, int64_t pid, const char *option, char *out, size_t size);
/* Adds a sentence (without full stop) to the warnings; a peer's bytes are the caller's to escape. */
void row_warn(struct row *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same, about a variable: "NAME=value WHY". The value is escaped and shortened. */
void row_warn_of(struct row *r, const char *name, const char *why);

/* Facts. ----------------------------------------------------------------------------------------------------------- */

/* Where a fact is concluded from, for the calls below: variables, parted by blanks; those that are set are told with their values.
 * What stands in parentheses is told as it stands, without them: "(the pid of its proxy)". */
void row_set_number(struct row *r, struct cluster_fact *f, int64_t v, const char *variables);
void row_set_text(struct row *r, struct cluster_fact *f, const char *text, const char *variables);
/* The fact from the one variable that has it. False: unset or no sense. */
bool row_take_number(struct row *r, struct cluster_fact *f, const char *name, int64_t min, int64_t max);
/* "KIND-ID" or "KIND-ID.PART" (part may be NULL), if it fits and is a word; else warns. */
void row_set_job(struct row *r, const char *kind, const char *id, const char *part, const char *variables);
/* The port of a job that is known by numbers; of others it is made of the job's name. */
void row_set_port(struct row *r, int64_t job, int64_t step, const char *variables);

/* Lists of hosts. A row builds one and hands it over. */
struct row_hosts {
  struct cluster_host *v;
  size_t n, cap;
  struct map *at; /* name -> index + 1, while it is built */
};
/* A host with its slots; one that is there already has them added. -EINVAL, -E2BIG and a sentence. */
int row_hosts_add(struct row_hosts *h, const char *name, size_t len, int64_t slots, struct err *e);
/* All of a compressed list, with `slots` each. */
int row_hosts_add_list(struct row_hosts *h, const char *list, int64_t slots, struct err *e);
/* Index of this machine in it, by its whole name or without the domain; -1: it is not there. */
int64_t row_hosts_find(const struct row_hosts *h, const char *host);
/* Sets hosts, nodes and first_host where none are set, and takes h over in any case. An empty one sets nothing. */
void row_set_hosts(struct row *r, struct row_hosts *h, const char *variables);
void row_hosts_drop(struct row_hosts *h);

#endif
