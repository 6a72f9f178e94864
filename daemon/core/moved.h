/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_MOVED_H
#define DAEMON_CORE_MOVED_H

/* Jobs that are with another daemon, as node rank 0 of each one says in FORWARD. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/map.h"
#include "daemon/job/accounts.h"
#include "proto/msg.h"

enum {
  MOVED_KEEP_MS = 15000, /* since the last FORWARD, which comes every 5 s */
  MOVED_MAX = 4096,      /* of all users; of one: ACCOUNT_MOVED_MAX */
};

struct moved_job {
  struct moved_job *next;  /* of the same id */
  struct account *account; /* NULL: without limits */
  int64_t uid;             /* as of a job */
  bool own_key;
  char id[JOB_ID_MAX + 1], incarnation[INCARNATION_MAX + 1], origin[INCARNATION_MAX + 1];
  int64_t round, term;
  char daemon[DAEMON_ID_MAX + 1], host[HOST_MAX + 1], addr[ADDR_MAX + 1];
  int64_t port;
  uint64_t until_ms;
};

struct moved_jobs {
  struct map by_id; /* id -> the first struct moved_job of it */
  size_t n;
  uint64_t next_ms; /* none expires before; UINT64_MAX: there is none */
};

struct buf;
struct core;
struct core_event;

void moved_init(struct moved_jobs *all, uint64_t seed);
void moved_finish(struct core *c);
/* FORWARD. The connection is closed, behind MOVED if an older run of the job goes on elsewhere. */
void core_forward(struct core *c, const struct core_event *ev);
/* HELLO. True: its job is elsewhere, and MOVED was sent. */
bool core_sent_on(struct core *c, const struct core_event *ev);
/* This daemon is in charge of that job again, and keeps its nodes. */
bool moved_is_over(const struct core *c, const struct moved_job *m);
void moved_expire(struct core *c, uint64_t now_ms);
/* "gpu2 (10.0.0.2:29400)", for people. */
void moved_put_place(const struct moved_job *m, struct buf *out);

#endif
