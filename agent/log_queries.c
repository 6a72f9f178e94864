/* SPDX-License-Identifier: Apache-2.0 */
/* A question that finds no line waits for one, at most as long as it says. A timer looks at waiting questions now and
 * then. So lines that come together go together, and the relay's thread need not know of questions.
 *
 * The last lines of a job are often the ones that matter. A follower has no question out while its last answer travels.
 * So an agent that was asked a short while ago does not exit at once. It stays until each follower has read that nothing
 * is left, a second at most. Followers have no names: their rank and the line that they ask for next tell them apart. */

#include "agent/log_queries.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/loop.h"

struct waiting_question {
  struct fetch_log ask;
  uint64_t until_ms;
};

struct follower {
  int64_t rank, next;
  uint64_t asked_ms; /* 0: the place is free */
  bool done;         /* since the end: it was told that nothing is left */
};

struct log_queries {
  struct log_queries_options o;
  uv_timer_t timer;
  struct waiting_question v[LOG_QUERIES_MAX];
  size_t n;
  struct follower followers[LOG_QUERIES_FOLLOWERS];
  uint64_t end_ms; /* 0: not yet */
};

/* Of that question; a new one takes the place of the one that has not asked for longest. */
static struct follower *find_follower(struct log_queries *d, const struct fetch_log *ask) {
  struct follower *oldest = &d->followers[0];
  for (size_t i = 0; i < LOG_QUERIES_FOLLOWERS; i++) {
    struct follower *f = &d->followers[i];
    if (f->asked_ms && f->rank == ask->rank && f->next == ask->from) return f;
    if (f->asked_ms < oldest->asked_ms) oldest = f;
  }
  *oldest = (struct follower){.rank = ask->rank, .next = ask->from};
  return oldest;
}

/* False: no line has come yet, and `always` is not set. */
static bool answer(struct log_queries *d, const struct fetch_log *ask, bool always) {
  const struct recent_question q = {.rank = ask->rank,
                                    .tail = ask->tail,
                                    .from = (uint64_t)ask->from,
                                    .from_round = (uint32_t)ask->from_round,
                                    .max = LOG_ANSWER_MAX};
  struct recent_answer a;
  struct buf lines = BUF_INIT;
  relay_recent(d->o.relay, &q, &lines, &a);
  bool now = always || lines.len > 0;
  if (now) {
    struct msg m;
    msg_init(&m, MSG_LOG);
    m.log.serial = ask->serial;
    m.log.next = (int64_t)a.next;
    m.log.more = a.more;
    m.log.lost = a.lost;
    m.raw = buf_text(&lines);
    m.raw_len = lines.len;
    d->o.send(d->o.ctx, &m);
    struct follower *f = ask->wait_ms > 0 ? find_follower(d, ask) : NULL;
    if (f) f->next = m.log.next;
    if (f) f->done = d->end_ms && !a.more;
  }
  buf_finish(&lines);
  return now;
}

static void on_timer(uv_timer_t *timer) {
  struct log_queries *d = timer->data;
  uint64_t now = monotonic_ms();
  size_t kept = 0;
  for (size_t i = 0; i < d->n; i++)
    if (!answer(d, &d->v[i].ask, now >= d->v[i].until_ms)) d->v[kept++] = d->v[i];
  d->n = kept;
  if (d->n == 0) uv_timer_stop(timer);
}

void log_queries_ask(struct log_queries *d, const struct fetch_log *ask) {
  uint64_t now = monotonic_ms();
  if (ask->wait_ms > 0) find_follower(d, ask)->asked_ms = now;
  /* A tail counts the lines that are here. */
  bool may_wait = ask->wait_ms > 0 && ask->tail < 0 && d->n < LOG_QUERIES_MAX && !d->end_ms;
  if (!answer(d, ask, !may_wait)) {
    d->v[d->n++] = (struct waiting_question){.ask = *ask, .until_ms = now + (uint64_t)ask->wait_ms};
    uint64_t every = ask->wait_ms < LOG_QUERIES_LOOK_MS ? (uint64_t)ask->wait_ms : LOG_QUERIES_LOOK_MS;
    if (!uv_is_active((uv_handle_t *)&d->timer)) uv_timer_start(&d->timer, on_timer, every, LOG_QUERIES_LOOK_MS);
  }
}

void log_queries_forget(struct log_queries *d) {
  d->n = 0;
  memset(d->followers, 0, sizeof(d->followers));
  uv_timer_stop(&d->timer);
}

void log_queries_end(struct log_queries *d) {
  if (d->end_ms) return;
  d->end_ms = monotonic_ms();
  for (size_t i = 0; i < d->n; i++) answer(d, &d->v[i].ask, true);
  d->n = 0;
  uv_timer_stop(&d->timer);
}

bool log_queries_is_followed(const struct log_queries *d) {
  bool followed = false;
  for (size_t i = 0; i < LOG_QUERIES_FOLLOWERS; i++) {
    const struct follower *f = &d->followers[i];
    followed = followed || (f->asked_ms && !f->done && d->end_ms < f->asked_ms + LOG_QUERIES_FOLLOW_MS);
  }
  return followed && monotonic_ms() < d->end_ms + LOG_QUERIES_STAY_MS;
}

struct log_queries *log_queries_create(const struct log_queries_options *o) {
  struct log_queries *d = xcalloc(1, sizeof(*d));
  d->o = *o;
  uv_timer_init(o->loop, &d->timer);
  d->timer.data = d;
  return d;
}

void log_queries_destroy(struct log_queries *d) {
  if (d) uv_close((uv_handle_t *)&d->timer, loop_free);
}
