/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_DRAIN_H
#define DAEMON_JOB_DRAIN_H

/* Drained hosts: their nodes are left out of rounds. The jobs of a daemon share one list (struct jobs); a job asks
 * it, and each member carries a flag. Pure. */

#include "common/buf.h"
#include "proto/msg.h"

struct job;
struct jobs;

struct drain {
  char *host, *by;                       /* by: for people, "root"; both owned by the list */
  int64_t uid;                           /* it holds for this user's jobs; -1 without an incarnation: for all */
  char incarnation[INCARNATION_MAX + 1]; /* it holds for this incarnation of that user's job alone; "": for each */
  uint64_t wall_ms;
  bool force; /* it ends rounds even if the job cannot go on */
  struct drain *next;
};

/* The list. */
const struct drain *jobs_first_drain(const struct jobs *jobs, const char *host); /* of its chain; NULL: none */
size_t jobs_drains_of(const struct jobs *jobs, int64_t uid); /* how many drains of this user there are */
/* Adds a copy of `like`, saves it, and ends or forms rounds accordingly. If it is in the list already, only its
 * force can change. false: the list is full. */
bool jobs_drain(struct jobs *jobs, const struct drain *like, uint64_t now_ms);
/* Removes the host's drains that have the uid and the incarnation of `like`; NULL: all of them. Returns how many. */
size_t jobs_undrain(struct jobs *jobs, const char *host, const struct drain *like, uint64_t now_ms);
/* Of an incarnation that is gone; saves nothing. */
void jobs_drop_drains(struct jobs *jobs, int64_t uid, const char *incarnation);
void jobs_finish_drains(struct jobs *jobs);
void jobs_drain_lines(const struct jobs *jobs, struct buf *out); /* for the state file */
bool jobs_load_drain(struct jobs *jobs, const void *json);       /* a json_t; false: the line is invalid */
void drain_text(const struct drain *d, struct buf *out);         /* for its agents */

/* A job's part. */
bool drain_holds(const struct drain *d, const struct job *j);
const struct drain *job_drain_of(const struct job *j, const char *host); /* one that holds; NULL: none */
/* STARTING, RUNNING: ends the round if a node of it is drained and the round may be ended for that. */
void job_end_for_drains(struct job *j, uint64_t now_ms);
bool job_is_ended_for_drains(const struct job *j);               /* or would be, if it were not being ended already */
void job_drop_drains(struct job *j);                             /* its own, when it is over */
void job_move_drains(struct job *j);                             /* from its former incarnation to this one */
size_t job_nodes_without(const struct job *j, const char *host); /* that could join */
bool job_could_go_on_without(const struct job *j, const char *host);
bool job_works_on(const struct job *j, const char *host); /* workers of the round run there, or are being started */
bool job_has_finished_ones(const struct job *j); /* nodes of the round have finished, and are not to start again */

/* --exclude-after: counts a charged failure on the host. Returns the host if it is excluded now, otherwise "". */
const char *job_note_failure(struct job *j, const char *host, uint64_t now_ms);

#endif
