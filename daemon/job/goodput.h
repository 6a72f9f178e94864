/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_GOODPUT_H
#define DAEMON_JOB_GOODPUT_H

/* What a job's time went to, how it came forward, and what failed: for status, metrics, events and the page. Pure.
 *
 * Read an account for a while, and its buckets grow. Only `productive` may shrink, when work turns out to be lost, to
 * have waited for a checkpoint, or (at a job's first reported step) to have been the start. Their sum never shrinks. */

#include "daemon/goodput/history.h"
#include "daemon/goodput/ledger.h"
#include "daemon/job/job.h"

/* The account as of now, the running period included. waited_for borrows from j, until its next event. */
void job_goodput(const struct job *j, uint64_t now_ms, struct goodput *out);
/* How a job comes forward. Every view shows this, and none computes it again. */
struct job_progress {
  enum judgement judgement; /* the worst of its nodes; COUNT: no node runs and reports steps */
  size_t nodes;             /* in the round */
  size_t in_judgement[JUDGEMENT_COUNT];
  size_t away;               /* not connected, so nothing is known of their progress */
  uint64_t age_ms;           /* since the last step of the worker that has made none for longest */
  int64_t step, of;          /* of the node that is furthest behind; -1, 0: unknown */
  int64_t last_step;         /* between rounds, and after the end: the last one that was known; otherwise step */
  double samples_per_second; /* of the nodes that are not late */
  bool has_speed;            /* a node reports it */
  int64_t left_ms;           /* until the last step; -1: unknown, as while a node is late */
  struct pace pace;
  const struct member *behind;            /* of the late nodes, the furthest behind; NULL: none is late */
  int64_t behind_step, behind_local_rank; /* local rank -1: all of its workers */
};
void job_progress(const struct job *j, uint64_t now_ms, struct job_progress *out);
/* What a person must know about it, without a full stop; nothing if no node is late. */
void job_progress_sentence(const struct job *j, uint64_t now_ms, const struct job_progress *p, struct buf *out);
struct pace job_pace(const struct job *j);
/* COUNT: it does not run, has reported no step, or is away. */
enum judgement member_judge(const struct member *m, const struct pace *p, uint64_t age_ms);
/* Oldest first; 0: no step was reported. They borrow from j, until its next event. */
size_t job_history(const struct job *j, const struct history_point **points);
uint64_t job_round_began_wall_ms(const struct job *j, uint64_t now_ms); /* the current or last one */
uint64_t job_failures(const struct job *j, enum cause cause); /* settled rounds, since this daemon knows the job */
uint64_t job_restarts(const struct job *j);                   /* rounds after its first one, as far as is known */

#endif
