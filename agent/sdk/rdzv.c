/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv, the worker's side: a context's begin and end, its identity, its progress, the agent's requests,
 * checkpoints.
 *
 * The library uses libc only, and of this project only rdzv*.[ch], wire.h and the store's protocol (proto/c10d), so
 * these files can be compiled into any program. It has no thread, no signal handler, no timer, and nothing that runs at
 * exit: a program that does not call it is never interrupted.
 *
 * Progress is sent at most every 20 ms, since a training step may take microseconds; the first and the last step are
 * sent at once. A report that was held back is sent by the first call after that time, at the latest by rdzv_done or
 * rdzv_finish. Reports of several threads meet behind the lock: the last one counts. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  PROGRESS_EVERY_MS = 20,
  SAME_REQUEST_MS = 1000, /* after a checkpoint: a request for it that comes late */
};

const char *rdzv_version(void) {
  return RDZV_VERSION;
}

/* Beginning -------------------------------------------------------------------------------------------------------- */

static int parse_env_u32(struct rdzv *r, const char *name, uint32_t *value) {
  const char *text = getenv(name);
  char *end = NULL;
  errno = 0;
  unsigned long v = text ? strtoul(text, &end, 10) : 0;
  if (!text || text[0] < '0' || text[0] > '9' || *end || errno || v > UINT32_MAX)
    return rdzv_fail(r, -EINVAL,
                     "RDZV_AGENT_SOCKET is set, but %s is %s%s%s: start this program through rdzv-agent, or unset "
                     "RDZV_AGENT_SOCKET",
                     name, text ? "\"" : "", text ? text : "not", text ? "\", which is not a number" : "");
  *value = (uint32_t)v;
  return 0;
}

int rdzv_take_welcome(struct rdzv *r, size_t size) {
  if (size < sizeof(r->is))
    return rdzv_fail(r, -EPROTO,
                     "the agent's answer has %zu bytes, expected %zu: agent and librdzv are of different versions",
                     size, sizeof(r->is));
  r->is = r->record.welcome;
  r->is.run_id[sizeof(r->is.run_id) - 1] = r->is.incarnation[sizeof(r->is.incarnation) - 1] = '\0';
  r->is.head_addr[sizeof(r->is.head_addr) - 1] = r->is.node_addr[sizeof(r->is.node_addr) - 1] = '\0';
  r->requested = r->is.requested;
  r->checkpoints.asked = r->is.checkpoint;
  if (r->is.rank >= r->is.world_size || r->is.world_size > INT32_MAX)
    return rdzv_fail(r, -EPROTO, "the agent reports rank %u of %u", r->is.rank, r->is.world_size);
  return 0;
}

static int say_hello(struct rdzv *r, uint64_t deadline) {
  struct sdk_hello hello = {.head = rdzv_head_of(SDK_HELLO), .release = RDZV_VERSION};
  int rc = parse_env_u32(r, "RDZV_ROUND", &hello.round);
  if (!rc) rc = parse_env_u32(r, "RDZV_LOCAL_RANK", &hello.local_rank);
  if (rc) return rc;
  /* An error is ignored: an agent that refuses may have closed already, and its sentence is there to read. */
  send(r->fd, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL);
  for (;;) {
    size_t size = 0;
    int type = rdzv_await(r, &size, deadline);
    if (type == -ETIMEDOUT) return rdzv_fail(r, -ETIMEDOUT, "the agent did not answer in time");
    if (type < 0) return rdzv_lost(r, "hello to the agent");
    if (type == SDK_WELCOME) return rdzv_take_welcome(r, size);
  }
}

int rdzv_init(struct rdzv **out, int timeout_ms) {
  const char *name = getenv("RDZV_AGENT_SOCKET");
  static atomic_uint last;
  struct rdzv *r = calloc(1, sizeof(*r));
  if (!r) return rdzv_fail(NULL, -ENOMEM, "out of memory");
  r->number = atomic_fetch_add(&last, 1) + 1;
  r->fd = r->conn.fd = -1;
  r->pid = getpid();
  r->forks = rdzv_forks();
  pthread_mutex_init(&r->shared.lock, NULL);
  int rc = 0;
  if (!name || !*name) {
    r->alone = true;
    r->is.world_size = r->is.local_world_size = r->is.node_count = 1;
    snprintf(r->is.head_addr, sizeof(r->is.head_addr), "127.0.0.1");
    snprintf(r->is.node_addr, sizeof(r->is.node_addr), "127.0.0.1");
  } else {
    uint64_t deadline = rdzv_deadline_in(timeout_ms);
    rc = rdzv_connect_agent(r, name, deadline);
    if (!rc) rc = say_hello(r, deadline);
  }
  if (!rc) return *out = r, 0;
  char text[RDZV_TEXT_MAX];
  snprintf(text, sizeof(text), "%s", rdzv_error(r));
  rdzv_finish(r);
  return rdzv_fail(NULL, rc, "%s", text);
}

/* A process that was forked sends nothing, and does not touch the lock: another thread of its parent may hold it. */
void rdzv_finish(struct rdzv *r) {
  if (!r) return;
  bool ours = !rdzv_is_foreign(r);
  if (ours && r->fd >= 0) rdzv_flush_progress(r, 0);
  if (ours)
    rdzv_conn_finish(r);
  else
    rdzv_conn_reset(r);
  rdzv_alone_destroy(r->store);
  rdzv_names_free(r);
  if (r->fd >= 0) close(r->fd);
  if (ours) pthread_mutex_destroy(&r->shared.lock);
  free(r);
}

void rdzv_set_interrupt(struct rdzv *r, const volatile sig_atomic_t *flag) {
  r->interrupt = flag;
}

/* Identity. -------------------------------------------------------------------------------------------------------- */

int rdzv_rank(const struct rdzv *r) {
  return (int)r->is.rank;
}
int rdzv_world_size(const struct rdzv *r) {
  return (int)r->is.world_size;
}
int rdzv_local_rank(const struct rdzv *r) {
  return (int)r->is.local_rank;
}
int rdzv_local_world_size(const struct rdzv *r) {
  return (int)r->is.local_world_size;
}
int rdzv_node_rank(const struct rdzv *r) {
  return (int)r->is.node_rank;
}
int rdzv_node_count(const struct rdzv *r) {
  return (int)r->is.node_count;
}
uint32_t rdzv_round(const struct rdzv *r) {
  return r->is.round;
}
uint32_t rdzv_restart_count(const struct rdzv *r) {
  return r->is.restart_count;
}
const char *rdzv_run_id(const struct rdzv *r) {
  return r->is.run_id;
}
const char *rdzv_incarnation(const struct rdzv *r) {
  return r->is.incarnation;
}
const char *rdzv_head_addr(const struct rdzv *r) {
  return r->is.head_addr;
}
const char *rdzv_node_addr(const struct rdzv *r) {
  return r->is.node_addr;
}
int rdzv_store_port(const struct rdzv *r) {
  return r->alone ? 0 : (int)(r->is.store_port & 0xffff);
}
int rdzv_fd(const struct rdzv *r) {
  return r->fd;
}
bool rdzv_alone(const struct rdzv *r) {
  return r->alone;
}

/* Checkpoints ------------------------------------------------------------------------------------------------------ */

/* Requests for a checkpoint: one request leads to one checkpoint, on all ranks.
 *
 * The agent numbers its requests, and a request stands until its number is answered. rdzv_checkpointed answers the
 * number that rdzv_requested has shown. So a checkpoint that was under way before the program saw the request does not
 * count.
 *
 * With several ranks that is not enough. All are asked, but not at the same instant, and all write a checkpoint as soon
 * as the first rank shares the request. A slower rank has then written its checkpoint before its own request comes, and
 * would make all ranks write a second one. So a request that comes right after a reported checkpoint is answered by
 * that checkpoint and not shown. "Right after" means within a second, or until the program calls rdzv_requested for the
 * first time: a step may take longer than a second, and everything done in between belongs to one step. */

static int send_answer(struct rdzv *r, uint64_t deadline) {
  struct rdzv_checkpoints *c = &r->checkpoints;
  struct sdk_checkpointed answer = {.head = rdzv_head_of(SDK_CHECKPOINTED), .checkpoint = c->answered, .step = c->step};
  int rc = rdzv_send_record(r, &answer, sizeof(answer), deadline);
  c->due = rc == -ETIMEDOUT;
  return rc;
}

/* RDZV_CHECKPOINT or 0. */
static unsigned checkpoint_bit(struct rdzv *r) {
  struct rdzv_checkpoints *c = &r->checkpoints;
  if (!c->can) return 0;
  if (c->asked != c->shown && c->asked != c->answered && c->told_ms &&
      (c->fresh || rdzv_now_ms() - c->told_ms < SAME_REQUEST_MS)) {
    c->shown = c->answered = c->asked;
    c->due = true;
  }
  c->fresh = false;
  c->shown = c->asked;
  if (c->due) send_answer(r, 0);
  return c->shown != c->answered ? RDZV_CHECKPOINT : 0;
}

int rdzv_can_checkpoint(struct rdzv *r) {
  struct sdk_head can = rdzv_head_of(SDK_CAN_CHECKPOINT);
  int rc = r->checkpoints.can ? 0 : rdzv_tell(r, &can, sizeof(can), "can checkpoint");
  if (rc == 0) r->checkpoints.can = !r->alone;
  return rc;
}

int rdzv_checkpointed(struct rdzv *r, uint64_t step) {
  struct rdzv_checkpoints *c = &r->checkpoints;
  if (r->alone) return 0;
  if (rdzv_is_foreign(r)) return rdzv_lost(r, "checkpointed");
  c->step = step;
  c->told_ms = rdzv_now_ms();
  c->fresh = true;
  if (c->shown == c->answered) return 0; /* the request has not come here yet, but it will */
  c->answered = c->shown;
  return rdzv_sent(r, send_answer(r, rdzv_deadline_in(RDZV_LAST_MS)), "checkpointed");
}

int rdzv_saved(struct rdzv *r, uint64_t step) {
  struct sdk_step saved = {.head = rdzv_head_of(SDK_SAVED), .step = step};
  return rdzv_tell(r, &saved, sizeof(saved), "saved");
}

int rdzv_saving(struct rdzv *r, bool on) {
  struct sdk_number saving = {.head = rdzv_head_of(SDK_SAVING), .number = on};
  if (r->alone) return 0;
  if (rdzv_is_foreign(r)) return rdzv_lost(r, "saving"); /* progress has a lock */
  uint64_t deadline = rdzv_deadline_in(RDZV_LAST_MS);
  if (on) rdzv_flush_progress(r, deadline); /* a save may take minutes */
  return rdzv_sent(r, rdzv_send_record(r, &saving, sizeof(saving), deadline), "saving");
}

int rdzv_resumed(struct rdzv *r, uint64_t step) {
  struct sdk_step resumed = {.head = rdzv_head_of(SDK_RESUMED), .step = step};
  return rdzv_tell(r, &resumed, sizeof(resumed), "resumed");
}

int rdzv_waited(struct rdzv *r, uint64_t collectives, uint64_t waited_us) {
  enum { ALL_RANKS = 1 }; /* the numbers of NCCL's communicators are hashes */
  struct sdk_pace pace = {.head = rdzv_head_of(SDK_PACE),
                          .group = ALL_RANKS,
                          .rank = r->is.rank,
                          .size = r->is.world_size,
                          .collectives = collectives,
                          .waited_us = waited_us};
  return rdzv_tell(r, &pace, sizeof(pace), "waited");
}

uint64_t rdzv_saved_step(const struct rdzv *r) {
  return r->is.saved_step;
}

/* Progress and requests -------------------------------------------------------------------------------------------- */

/* With the lock. No room: the agent has enough to read, and a later report replaces this one. */
static int send_progress(struct rdzv *r) {
  struct rdzv_shared *s = &r->shared;
  s->progress_sent_ms = rdzv_now_ms();
  int rc = rdzv_send_locked(r, &s->progress, sizeof(s->progress));
  s->progress_held = rc != 0;
  return rc == -EAGAIN ? 0 : rc;
}

static bool is_progress_due(const struct rdzv_shared *s) {
  return s->progress_held && (!s->progress_sent_ms || s->progress.step == s->progress.of ||
                              rdzv_now_ms() - s->progress_sent_ms >= PROGRESS_EVERY_MS);
}

int rdzv_progress(struct rdzv *r, uint64_t step, uint64_t of, double loss, double samples_per_second) {
  struct rdzv_shared *s = &r->shared;
  int rc = 0;
  if (r->alone) return 0;
  if (rdzv_is_foreign(r)) return rdzv_lost(r, "progress");
  pthread_mutex_lock(&s->lock);
  if (!s->parked) {
    s->progress = (struct sdk_progress){.head = rdzv_head_of(SDK_PROGRESS),
                                        .step = step,
                                        .of = of,
                                        .loss = loss,
                                        .samples_per_second = samples_per_second};
    s->progress_held = true;
    if (s->gone || is_progress_due(s)) rc = send_progress(r);
  }
  pthread_mutex_unlock(&s->lock);
  return rc ? rdzv_lost(r, "progress") : 0;
}

int rdzv_flush_progress(struct rdzv *r, uint64_t deadline) {
  pthread_mutex_lock(&r->shared.lock);
  struct sdk_progress last = r->shared.progress;
  bool held = r->shared.progress_held;
  r->shared.progress_held = false;
  pthread_mutex_unlock(&r->shared.lock);
  return held ? rdzv_send_record(r, &last, sizeof(last), deadline) : 0;
}

void rdzv_set_parked(struct rdzv *r, bool parked) {
  pthread_mutex_lock(&r->shared.lock);
  r->parked = r->shared.parked = parked;
  r->shared.progress_sent_ms = 0;
  pthread_mutex_unlock(&r->shared.lock);
}

unsigned rdzv_requested(struct rdzv *r) {
  if (r->alone) return 0;
  if (rdzv_is_foreign(r)) return RDZV_STOP | RDZV_LOST;
  pthread_mutex_lock(&r->shared.lock);
  if (is_progress_due(&r->shared)) send_progress(r);
  pthread_mutex_unlock(&r->shared.lock);
  int rc = rdzv_hear(r);
  unsigned bits = r->can_rejoin ? r->requested : r->requested & ~(unsigned)RDZV_REJOIN;
  return rc < 0 ? bits | RDZV_STOP | RDZV_LOST : bits | checkpoint_bit(r);
}

int rdzv_done(struct rdzv *r) {
  if (r->alone) return 0;
  if (rdzv_is_foreign(r)) return rdzv_lost(r, "done");
  uint64_t deadline = rdzv_deadline_in(RDZV_LAST_MS);
  rdzv_flush_progress(r, deadline);
  r->can_rejoin = false;
  struct sdk_head done = rdzv_head_of(SDK_DONE);
  return rdzv_sent(r, rdzv_send_record(r, &done, sizeof(done), deadline), "done");
}
