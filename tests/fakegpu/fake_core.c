/* SPDX-License-Identifier: Apache-2.0 */
/* The core of the stand-in for a GPU: queues of work that is done late, in any order that the program allows.
 *
 * Stricter than a device:
 *  - Nothing is done before the program waits or polls. A poll makes a little random progress (FAKEGPU_SEED), in a
 *    random stream. So a missing wait for an event shows as NaN or old values, with some seed.
 *  - A queued copy reads host memory when it is done, so a stage that is reused too early shows.
 *  - FAKEGPU_FAIL=name:count[,name:count] makes the count-th call of a function fail. "kernel" is the execution of one,
 *    and its failure makes every later call fail, as on a device.
 * If nobody polls for 50 ms the device continues by itself, slowly, because other processes may need its part in a
 * collective while this one is busy. FAKEGPU_ALONE=0 turns that off.
 *
 * It cannot show speed, races of threads within a kernel (they run one after the other, in a random order between
 * barriers), faults of alignment, or what a GPU compiler makes of the code. */

#include "tests/fakegpu/fake.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ALONE_MS = 50, INJECTIONS_MAX = 8 };

struct injection {
  char name[64];
  long left;
};

static pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_t alone;
static bool started, alone_runs, stopping;
static uint64_t seed, touched; /* touched: calls so far */
static struct injection injections[INJECTIONS_MAX];
static cudaError_t fault, last;
struct CUstream_st *fake_streams;

void fake_say(const char *format, ...) {
  char text[512];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  fprintf(stderr, "fakegpu: %s\n", text);
}

void fake_die(const char *format, ...) {
  char text[512];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  fprintf(stderr, "fakegpu: %s\n", text);
  abort();
}

static bool step(void);

static void *go_on_alone(void *arg) {
  uint64_t seen = 0;
  struct timespec pause = {.tv_nsec = ALONE_MS * 1000000L};
  for (;;) {
    nanosleep(&pause, NULL);
    pthread_mutex_lock(&mutex);
    bool stop = stopping;
    pause.tv_nsec = ALONE_MS * 1000000L;
    if (!stop && seen == touched) {
      for (int i = 0; i < 20 && step(); i++) {
      }
      pause.tv_nsec = 2000000L;
    }
    seen = touched;
    pthread_mutex_unlock(&mutex);
    if (stop) return NULL;
  }
}

static void start(void) {
  started = true;
  const char *text = getenv("FAKEGPU_SEED");
  seed = text ? strtoull(text, NULL, 10) : 1;
  text = getenv("FAKEGPU_FAIL");
  for (int i = 0; text && *text && i < INJECTIONS_MAX; i++) {
    struct injection *j = &injections[i];
    if (sscanf(text, "%63[^:]:%ld", j->name, &j->left) != 2) fake_die("FAKEGPU_FAIL=%s: not name:count", text);
    text = strchr(text, ',');
    text += text != NULL;
  }
  text = getenv("FAKEGPU_ALONE");
  alone_runs = !(text && *text == '0') && pthread_create(&alone, NULL, go_on_alone, NULL) == 0;
}

__attribute__((destructor)) static void stop(void) {
  if (!started) return;
  pthread_mutex_lock(&mutex);
  stopping = true;
  pthread_mutex_unlock(&mutex);
  if (alone_runs) pthread_join(alone, NULL);
  int streams = 0;
  for (struct CUstream_st *s = fake_streams; s; s = s->next) streams += !s->destroyed;
  if (streams) fake_say("left over: %d streams", streams);
  fake_memory_report();
}

void fake_lock(void) {
  pthread_mutex_lock(&mutex);
  if (!started) start();
  touched++;
}

void fake_unlock(void) {
  pthread_mutex_unlock(&mutex);
}

uint64_t fake_random(uint64_t below) {
  uint64_t x = seed += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) % below;
}

double fake_now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

bool fake_injected(const char *name) {
  for (int i = 0; i < INJECTIONS_MAX; i++)
    if (injections[i].left > 0 && strcmp(injections[i].name, name) == 0) return --injections[i].left == 0;
  return false;
}

static cudaError_t injected_error(const char *name) {
  return strstr(name, "Alloc") || strstr(name, "Malloc") ? cudaErrorMemoryAllocation : cudaErrorUnknown;
}

bool fake_enter(const char *name, cudaError_t *rc) {
  fake_lock();
  *rc = fault;
  if (!fault && fake_injected(name)) *rc = injected_error(name);
  if (*rc == cudaSuccess) return true;
  fake_leave(*rc);
  return false;
}

cudaError_t fake_leave(cudaError_t rc) {
  if (rc != cudaSuccess && rc != cudaErrorNotReady) last = rc;
  fake_unlock();
  return rc;
}

void fake_set_last(cudaError_t rc) {
  last = rc;
}

cudaError_t fake_take_last(bool clear) {
  cudaError_t rc = fault ? fault : last;
  if (clear) last = cudaSuccess;
  return rc;
}

void fake_fault(cudaError_t rc) {
  fault = rc;
}

void fake_work_drop(struct fake_work *w) {
  if (--w->refs == 0) w->destroy(w);
}

struct CUstream_st *fake_stream_of(cudaStream_t s) {
  static struct CUstream_st null_stream;
  if (s && s != cudaStreamLegacy && s != cudaStreamPerThread) return s;
  if (!null_stream.tail) null_stream.tail = &null_stream.head;
  return &null_stream;
}

cudaError_t fake_queue(struct CUstream_st *s, struct fake_work *w) {
  if (s->destroyed) fake_die("%s on a stream that was destroyed", w->name);
  if (s->capture) return fake_capture_add(s, w, NULL);
  struct fake_op *op = malloc(sizeof *op);
  *op = (struct fake_op){.w = w};
  *s->tail = op;
  s->tail = &op->next;
  if (s != fake_stream_of(NULL)) return cudaSuccess;
  if (fake_captures) {
    fake_captures_invalidate();
    return cudaErrorStreamCaptureImplicit;
  }
  /* The null stream comes after everything queued in streams that may block, and is done at once. */
  for (struct CUstream_st *each = fake_streams; each; each = each->next)
    if (!(each->flags & cudaStreamNonBlocking)) fake_drain(each);
  fake_drain(s);
  return cudaSuccess;
}

/* Runs the head of one stream. true: something was done. */
static bool run_head(struct CUstream_st *s) {
  struct fake_op *op = s->head;
  if (!op) return false;
  fake_memory_open(true);
  enum fake_ran ran = fault ? FAKE_DONE : op->w->run(op->w, &op->state);
  fake_memory_open(false);
  if (ran != FAKE_DONE) return ran == FAKE_MOVED;
  s->head = op->next;
  if (!s->head) s->tail = &s->head;
  fake_work_drop(op->w);
  free(op);
  return true;
}

void fake_stream_reap(void) {
  for (struct CUstream_st **p = &fake_streams; *p;) {
    struct CUstream_st *s = *p;
    if (s->destroyed && !s->head) {
      *p = s->next;
      free(s->deps.v);
      free(s);
    } else
      p = &s->next;
  }
}

/* Runs one piece of work of a random stream that has any. */
static bool step(void) {
  size_t n = 0;
  for (struct CUstream_st *s = fake_streams; s; s = s->next) n += s->head != NULL;
  size_t from = n ? (size_t)fake_random(n) : 0;
  for (size_t k = 0; k < n; k++) {
    size_t want = (from + k) % n, i = 0;
    for (struct CUstream_st *s = fake_streams; s; s = s->next)
      if (s->head && i++ == want) {
        if (run_head(s)) {
          fake_stream_reap();
          return true;
        }
        break;
      }
  }
  return fake_stream_of(NULL)->head && run_head(fake_stream_of(NULL));
}

void fake_poll(void) {
  uint64_t most = fake_random(6) ? 12 : 1000; /* mostly little, now and then much */
  for (uint64_t i = fake_random(most); i > 0 && step(); i--) {
  }
}

static bool somebody_else_is_awaited(void) {
  for (struct CUstream_st *s = fake_streams; s; s = s->next)
    if (s->head && s->head->w->outside) return true;
  return fake_stream_of(NULL)->head != NULL;
}

void fake_until(bool (*holds)(void *ctx), void *ctx) {
  while (!holds(ctx)) {
    if (step()) continue;
    if (holds(ctx)) return;
    if (!somebody_else_is_awaited()) fake_die("this wait can never end: what it is for has not been queued");
    fake_unlock();
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    fake_lock();
  }
}

static bool empty(void *ctx) {
  struct CUstream_st *s = ctx;
  return !s->head;
}

void fake_drain(struct CUstream_st *s) {
  fake_until(empty, s);
}

static bool all_empty(void *ctx) {
  for (struct CUstream_st *s = fake_streams; s; s = s->next)
    if (s->head) return false;
  return true;
}

void fake_drain_all(void) {
  fake_until(all_empty, NULL);
  fake_stream_reap();
}
