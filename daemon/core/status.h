/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_STATUS_H
#define DAEMON_CORE_STATUS_H

/* rdzvctl's view of the jobs: status.c. Pure. */

#include "daemon/core/core.h"
#include "daemon/job/drain.h"
#include "proto/frame.h"

void status_put_name(struct buf *out, const char *s); /* escaped */
bool status_sees_drain(const struct core *c, int64_t uid, const struct drain *d);
struct status_question {
  int64_t uid;    /* of the asker, who sees jobs that control_may allows */
  int64_t owner;  /* of the jobs; -1: any */
  const char *id; /* of the jobs; "": any */
};
/* All jobs that the asker may see and means. whole: with nodes and verdicts. Returns the number of jobs.
 * If *out is longer than STATUS_MAX afterwards, it is cut short and must not be sent. */
enum { STATUS_MAX = FRAME_MAX_TO_AGENT - 65536 };
size_t status_jobs_text(const struct core *c, const struct status_question *q, bool whole, struct buf *out);
/* The same as JSON, in pieces: jobs and nodes may come and go between two of them. */
struct status_walk {
  struct status_question q;
  size_t n;            /* jobs so far */
  uint64_t job, node;  /* the serial of the last job that was begun; its last node */
  bool begun, is_open; /* is_open: that job may have more nodes */
  bool history;        /* few jobs are shown: with how each came forward */
};
/* Appends at least `budget` bytes, if there is as much. False: it is complete, or longer than STATUS_MAX. */
bool status_more(struct status_walk *w, const struct core *c, size_t budget, struct buf *out);

#endif
