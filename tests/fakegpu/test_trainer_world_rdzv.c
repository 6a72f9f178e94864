/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv's stand-in for test_trainer_world.c: what a trainer calls of rdzv.h, on a page that all ranks and their parent
 * share. The linker takes these functions instead of the library's.
 *
 * It also sees what the trainer does. rdzv_init finds the trainer around its argument, and the device's operations are
 * then called through this file. Behind each step it queues a copy of the weights, before the mark of the step. So when
 * the trainer reports that step, the weights as they were behind it are known, however far the device is by then. */

#include "tests/fakegpu/test_trainer_world.h"

#include "agent/trainer/run/trainer.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAMES_MAX = 64 };

struct rdzv {
  struct place *my;
  struct trainer *t;
  const volatile sig_atomic_t *interrupt;
  uint32_t round;
  struct {
    char text[STORE_KEY];
    unsigned calls;
  } names[NAMES_MAX];
  int n_names;
  uint64_t random;
  const struct compute_ops *real;
  struct compute_ops ops;
  struct compute_buf *weights[SLOTS_MAX + 1]; /* behind the step of each slot, and one more */
  char error[256], run_id[32], incarnation[32];
};

static struct rdzv self;

static int fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail(int code, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  vsnprintf(self.error, sizeof self.error, format, ap);
  va_end(ap);
  return code;
}

static void pause_us(long us) {
  nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* Events. ---------------------------------------------------------------------------------------------------------- */

static void happen(struct event *ev) {
  if (__atomic_exchange_n(&ev->fired, true, __ATOMIC_ACQ_REL)) return;
  bool mine = ev->kind <= EVENT_STALL && ev->delay_ms == 0;
  if (!mine) {
    __atomic_store_n(&ev->due_ms, world_now_ms() + ev->delay_ms, __ATOMIC_RELEASE);
    return;
  }
  if (ev->kind == EVENT_KILL) kill(getpid(), SIGKILL);
  if (ev->kind == EVENT_EXIT) _exit(71);
  self.my->hung_ms = world_now_ms();
  self.my->hung = true;
  if (ev->kind == EVENT_HANG) raise(SIGSTOP);
  for (;;) pause();
}

static void watch_device(void);

/* Something may happen here. */
static void point(void) {
  struct plan *p = &page->plan;
  watch_device();
  self.my->points++;
  for (int i = 0; i < p->n_events; i++) {
    struct event *ev = &p->events[i];
    if (ev->place != own_place || ev->fired || self.round < ev->round || ev->kind == EVENT_FAIL) continue;
    if (ev->point ? self.my->points >= ev->point : self.my->step >= ev->step) happen(ev);
  }
  if (p->jitter && world_random(&self.random, (uint64_t)p->jitter) == 0)
    pause_us((long)world_random(&self.random, 2000));
}

/* The weights. ----------------------------------------------------------------------------------------------------- */

static struct span copy_of_weights(int i) {
  return span_of(self.weights[i], 0, model_params_span(&self.t->model).n);
}

static int queue_copy(int i, struct err *e) {
  struct compute *c = self.t->c;
  size_t n = model_params_span(&self.t->model).n;
  int rc = self.weights[i] ? 0 : self.real->alloc(c, COMPUTE_STAGE, n, &self.weights[i], e);
  return rc ? rc : self.real->copy(c, copy_of_weights(i), model_params_span(&self.t->model), e);
}

static uint32_t copied_weights(int i) {
  struct span s = copy_of_weights(i);
  return ckpt_crc(self.real->host(self.t->c, s), s.n * sizeof(float));
}

static bool same(double x, double y) {
  return (isnan(x) && isnan(y)) || !(x < y || x > y);
}

/* Where the undisturbed run had these weights. */
static const char *describe_weights(uint32_t weights, char out[64]) {
  snprintf(out, 64, "%08x, of no step of it", weights);
  for (int k = 0; k <= STEPS_MAX; k++)
    if (reference->steps[k].known && reference->steps[k].weights == weights) snprintf(out, 64, "those of step %d", k);
  return out;
}

/* loss NULL: it is not known here. */
static void judge(const char *what, uint64_t step, uint32_t weights, const double *loss) {
  struct reference *r = reference;
  if (step > STEPS_MAX) return world_fail("step %llu is reported", (unsigned long long)step);
  page_lock();
  if (page->plan.learn && !r->steps[step].known) {
    r->steps[step].known = true;
    r->steps[step].weights = weights;
    if (loss) r->steps[step].loss = *loss;
  }
  bool known = r->steps[step].known;
  uint32_t want = r->steps[step].weights;
  double want_loss = r->steps[step].loss;
  page_unlock();
  unsigned long long at = step;
  char text[64];
  if (!known) return world_fail("rank %d %s step %llu, which the undisturbed run never did", self.my->rank, what, at);
  if (want != weights)
    return world_fail("rank %d (place %d, round %u) %s step %llu with other weights than the undisturbed run: %s",
                      self.my->rank, own_place, self.round, what, at, describe_weights(weights, text));
  if (loss && !same(*loss, want_loss))
    world_fail("rank %d (place %d, round %u) %s step %llu with loss %.9g; the undisturbed run has %.9g", self.my->rank,
               own_place, self.round, what, at, *loss, want_loss);
}

/* The device's operations. ----------------------------------------------------------------------------------------- */

static int watched_record(struct compute *c, struct compute_mark *mark, struct err *e) {
  struct slots *s = &self.t->slots;
  int rc = 0;
  point();
  for (int i = 0; i < s->n && rc == 0; i++)
    if (mark == &s->v[i].mark) rc = queue_copy(i, e);
  return rc ? rc : self.real->record(c, mark, e);
}

static int watched_done(struct compute *c, struct compute_mark mark, struct err *e) {
  point();
  return self.real->done(c, mark, e);
}

static void watched_block(struct compute *c, bool on) {
  point();
  self.real->block_updates(c, on);
  point();
}

/* A flipped bit, behind all that is queued. */
static int flip(struct compute *c, struct span s, struct err *e) {
  struct compute_buf *stage;
  struct compute_mark mark;
  struct span word = span_of(s.buf, s.at + s.n / 2, 1);
  int rc = self.real->alloc(c, COMPUTE_STAGE, 1, &stage, e);
  if (rc == 0) rc = self.real->copy(c, span_of(stage, 0, 1), word, e);
  if (rc == 0) rc = self.real->record(c, &mark, e);
  if (rc == 0) rc = compute_wait(c, mark, STORE_WAIT_MS, e);
  if (rc) return rc;
  uint32_t bits;
  float *at = self.real->host(c, span_of(stage, 0, 1));
  memcpy(&bits, at, sizeof bits);
  bits ^= 1u << 5;
  memcpy(at, &bits, sizeof bits);
  rc = self.real->copy(c, word, span_of(stage, 0, 1), e);
  if (rc == 0) rc = self.real->record(c, &mark, e);
  if (rc == 0) rc = compute_wait(c, mark, STORE_WAIT_MS, e);
  self.real->free(c, stage);
  return rc;
}

static int watched_checksum(struct compute *c, struct span s, struct span out, struct err *e) {
  const struct plan *p = &page->plan;
  struct compute_buf *wanted = p->flip_gradients ? self.t->model.grads : self.t->model.params;
  bool due = p->flip_step && self.t->queued.step >= p->flip_step && own_place == p->flip_place && s.buf == wanted;
  if (due && !__atomic_exchange_n(&page->flipped, true, __ATOMIC_ACQ_REL)) {
    int rc = flip(c, s, e);
    if (rc) return rc;
  }
  return self.real->checksum(c, s, out, e);
}

static void watched_destroy(struct compute *c) {
  for (int i = 0; i <= SLOTS_MAX; i++)
    if (self.weights[i]) self.real->free(c, self.weights[i]);
  self.real->destroy(c);
}

static void watch_device(void) {
  struct compute *c = self.t->c;
  if (!c || c->ops == &self.ops) return;
  self.real = c->ops;
  self.ops = *c->ops;
  self.ops.record = watched_record;
  self.ops.done = watched_done;
  self.ops.destroy = watched_destroy;
  self.ops.checksum = watched_checksum;
  if (self.ops.block_updates) self.ops.block_updates = watched_block;
  c->ops = &self.ops;
}

/* The agent. ------------------------------------------------------------------------------------------------------- */

int rdzv_init(struct rdzv **out, int timeout_ms) {
  self.my = &page->places[own_place];
  self.t = (struct trainer *)((char *)out - offsetof(struct trainer, rdzv));
  self.round = __atomic_load_n(&self.my->round, __ATOMIC_ACQUIRE);
  self.random = page->plan.seed * 1000 + (uint64_t)getpid();
  snprintf(self.run_id, sizeof self.run_id, "world");
  snprintf(self.incarnation, sizeof self.incarnation, "life%04u", page->life);
  *out = &self;
  return 0;
}

void rdzv_finish(struct rdzv *r) {}

void rdzv_set_interrupt(struct rdzv *r, const volatile sig_atomic_t *flag) {
  self.interrupt = flag;
}

/* Of a call that waits. */
static int check_interrupt(const char *call) {
  return self.interrupt && *self.interrupt ? fail(-EINTR, "%s: interrupted", call) : 0;
}

const char *rdzv_error(const struct rdzv *r) {
  return self.error;
}

int rdzv_rank(const struct rdzv *r) {
  return self.my->rank;
}
int rdzv_world_size(const struct rdzv *r) {
  return page->world;
}
int rdzv_local_rank(const struct rdzv *r) {
  return own_place;
}
uint32_t rdzv_round(const struct rdzv *r) {
  return self.round;
}
const char *rdzv_run_id(const struct rdzv *r) {
  return self.run_id;
}
const char *rdzv_incarnation(const struct rdzv *r) {
  return self.incarnation;
}
const char *rdzv_node_addr(const struct rdzv *r) {
  return "127.0.0.1";
}
bool rdzv_alone(const struct rdzv *r) {
  return false;
}
uint64_t rdzv_saved_step(const struct rdzv *r) {
  return self.my->saved;
}

unsigned rdzv_requested(struct rdzv *r) {
  point();
  return __atomic_load_n(&self.my->requested, __ATOMIC_ACQUIRE);
}

int rdzv_progress(struct rdzv *r, uint64_t step, uint64_t of, double loss, double samples_per_second) {
  const struct slots *s = &self.t->slots;
  int i = (int)((s->popped - 1) % (uint64_t)s->n);
  if (s->v[i].after.step != step)
    world_fail("rank %d reports step %llu, but its slot has step %llu", self.my->rank, (unsigned long long)step,
               (unsigned long long)s->v[i].after.step);
  judge("reported", step, copied_weights(i), &loss);
  self.my->step = step;
  point();
  return 0;
}

/* No step is queued: the weights themselves are looked at. */
int rdzv_resumed(struct rdzv *r, uint64_t step) {
  struct compute_mark mark;
  struct err e = ERR_INIT;
  uint64_t end = world_now_ms() + STORE_WAIT_MS;
  point();
  int rc = queue_copy(SLOTS_MAX, &e), done = 0;
  if (rc == 0) rc = self.real->record(self.t->c, &mark, &e);
  while (rc == 0 && (done = self.real->done(self.t->c, mark, &e)) == 0 && world_now_ms() < end) pause_us(200);
  if (rc || done < 0) return 0; /* the device has failed, and its owner will say so */
  if (done == 0)
    world_fail("rank %d begins round %u with a device that is not idle", self.my->rank, self.round);
  else
    judge("begins behind", step, copied_weights(SLOTS_MAX), NULL);
  self.my->step = step;
  return 0;
}

int rdzv_can_checkpoint(struct rdzv *r) {
  self.my->can_checkpoint = true;
  return 0;
}

int rdzv_checkpointed(struct rdzv *r, uint64_t step) {
  page_lock();
  self.my->requested &= ~(unsigned)RDZV_CHECKPOINT;
  page_unlock();
  return 0;
}

int rdzv_saved(struct rdzv *r, uint64_t step) {
  point();
  self.my->saved = step;
  return 0;
}

int rdzv_saving(struct rdzv *r, bool on) {
  point();
  return 0;
}

int rdzv_done(struct rdzv *r) {
  point();
  page_lock();
  self.my->done = true;
  page_unlock();
  return 0;
}

int rdzv_can_rejoin(struct rdzv *r) {
  point();
  page_lock();
  self.my->can_rejoin = true;
  page_unlock();
  return 0;
}

int rdzv_rejoin(struct rdzv *r, const char *reason, int timeout_ms) {
  struct place *my = self.my;
  uint64_t end = world_now_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);
  point();
  if (!my->can_rejoin || my->done) return fail(-EINVAL, "rejoin: not offered, or done");
  page_lock();
  if (!my->parked && my->round == self.round) {
    snprintf(my->reason, sizeof my->reason, "%s", reason ? reason : "");
    my->parked_ms = world_now_ms();
    my->parked = true;
  }
  page_unlock();
  while (__atomic_load_n(&my->round, __ATOMIC_ACQUIRE) == self.round) {
    if (__atomic_load_n(&my->requested, __ATOMIC_ACQUIRE) & RDZV_STOP)
      return fail(-ECANCELED, "rejoin: the agent asks this worker to stop");
    if (check_interrupt("rejoin")) return -EINTR;
    if (world_now_ms() >= end) return fail(-ETIMEDOUT, "rejoin: no next round within %d ms", timeout_ms);
    pause_us(500);
  }
  self.round = my->round;
  self.n_names = 0;
  my->points = 0;
  return 0;
}

/* The store. ------------------------------------------------------------------------------------------------------- */

/* Holds the lock. */
static int check_round(const char *call) {
  if (self.my->parked) {
    page_unlock();
    world_fail("rank %d uses the store (%s) while it waits for the next round", self.my->rank, call);
    page_lock();
  }
  if (page->round != self.round) return fail(-ECONNRESET, "%s: the round is over", call);
  if ((self.my->requested & RDZV_REJOIN) && self.my->can_rejoin)
    return fail(-ECANCELED, "%s: the round is ending; rdzv_rejoin waits for the next one", call);
  return 0;
}

/* Holds the lock. NULL: there is none, and it is not to be made. */
static struct stored *find(const char *key, bool make) {
  for (int i = 0; i < page->n_stored; i++)
    if (strcmp(page->store[i].key, key) == 0) return &page->store[i];
  if (!make) return NULL;
  if (page->n_stored == STORE_KEYS || strlen(key) >= STORE_KEY) {
    fprintf(stderr, "world: the store has no room for %s\n", key);
    abort();
  }
  struct stored *s = &page->store[page->n_stored++];
  memset(s, 0, sizeof *s);
  snprintf(s->key, sizeof s->key, "%s", key);
  return s;
}

int rdzv_store_append(struct rdzv *r, const char *key, const void *data, size_t size, int timeout_ms) {
  point();
  page_lock();
  int rc = check_round("append");
  struct stored *s = rc ? NULL : find(key, true);
  if (s && s->size + size <= STORE_VALUE) {
    memcpy(s->value + s->size, data, size);
    s->size += (uint32_t)size;
  }
  page_unlock();
  return rc;
}

int rdzv_store_try_get(struct rdzv *r, const char *key, char **value, size_t *size, int timeout_ms) {
  point();
  page_lock();
  int rc = check_round("try_get");
  struct stored *s = rc ? NULL : find(key, false);
  if (rc == 0 && !s) rc = fail(-ENOENT, "try_get: no such key");
  if (s) {
    *size = s->size;
    *value = malloc(s->size + 1);
    memcpy(*value, s->value, s->size);
    (*value)[s->size] = 0;
  }
  page_unlock();
  return rc;
}

static unsigned count_call(const char *name) {
  for (int i = 0; i < self.n_names; i++)
    if (strcmp(self.names[i].text, name) == 0) return ++self.names[i].calls;
  if (self.n_names == NAMES_MAX) abort();
  snprintf(self.names[self.n_names].text, STORE_KEY, "%s", name);
  return self.names[self.n_names++].calls = 0;
}

static void name_missing(uint32_t here, int timeout_ms) {
  char text[64] = "";
  for (int i = 0; i < page->world; i++)
    if (!(here >> i & 1)) snprintf(text + strlen(text), sizeof text - strlen(text), " %d", i);
  fail(-ETIMEDOUT, "exchange: ranks%s did not come within %d ms", text, timeout_ms);
}

int rdzv_exchange(struct rdzv *r, const char *name, const void *mine, size_t size, void *all, size_t capacity,
                  int timeout_ms) {
  char key[STORE_KEY];
  int limit = timeout_ms < STORE_WAIT_MS ? timeout_ms : STORE_WAIT_MS, world = page->world;
  uint64_t end = world_now_ms() + (uint64_t)limit;
  uint32_t everybody = (1u << world) - 1, here = 0;
  point();
  if (size * (size_t)world > STORE_VALUE || size * (size_t)world > capacity) abort();
  snprintf(key, sizeof key, "exchange/%.60s/%u", name, count_call(name));
  page_lock();
  int rc = check_round("exchange");
  struct stored *s = rc ? NULL : find(key, true);
  if (s && s->size && s->size != size) rc = fail(-EINVAL, "exchange: another rank gave another size");
  if (rc == 0) {
    s->size = (uint32_t)size;
    memcpy(s->value + (size_t)self.my->rank * size, mine, size);
    s->here |= 1u << self.my->rank;
  }
  while (rc == 0 && (here = s->here) != everybody) {
    page_unlock();
    pause_us(300);
    page_lock();
    rc = check_round("exchange");
    if (rc == 0) rc = check_interrupt("exchange");
    if (rc == 0 && world_now_ms() >= end) {
      name_missing(here, limit);
      rc = -ETIMEDOUT;
    }
  }
  if (rc == 0) memcpy(all, s->value, size * (size_t)world);
  page_unlock();
  point();
  return rc;
}

int rdzv_nccl_ids(struct rdzv *r, void *ids, size_t max, int *n, int *nccl_version, int timeout_ms) {
  uint64_t end = world_now_ms() + STORE_WAIT_MS;
  point();
  if (!page->minted) return fail(-ENOTSUP, "nccl ids: this job has none");
  for (;;) {
    page_lock();
    int rc = check_round("nccl ids");
    bool there = rc == 0 && page->ids_round == self.round;
    if (there) memcpy(ids, page->ids, sizeof page->ids);
    page_unlock();
    if (rc) return rc;
    if (there) break;
    if (check_interrupt("nccl ids")) return -EINTR;
    if (world_now_ms() >= end) return fail(-ETIMEDOUT, "nccl ids: they did not come");
    pause_us(300);
  }
  *n = 1;
  *nccl_version = self.t->gpu->nccl_version();
  return 0;
}

int rdzv_nccl_up(struct rdzv *r) {
  const char *algorithms = getenv("NCCL_ALGO");
  point();
  if (page->plan.variant == VARIANT_DETERMINISTIC && (!algorithms || !strstr(algorithms, "^NVLS")))
    world_fail("--deterministic lets NCCL use NVLS: NCCL_ALGO is %s", algorithms ? algorithms : "not set");
  return 0;
}
