/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of kernels that ThreadSanitizer watches, in place of the stand-in's queues.
 *
 * Each thread of a block is a fiber of ThreadSanitizer: it sees as many threads as the grid has, and only the order that
 * this file declares. Which thread really runs first does not matter, so one run finds a race.
 *
 *   launch    Everything before it comes before all its threads, and these before everything after it.
 *   barrier   __syncthreads is a release by all threads of the block, then an acquire by all of them.
 *   fence     What comes before a __threadfence is ordered before an atomic operation behind it, and an atomic operation
 *             before what comes behind a later fence of its thread. So blocks are ordered only by fence, atomic
 *             operation, atomic operation, fence.
 *   blocks    Not ordered. A block has shared memory of its own, which is a thread_local of a real thread.
 *
 * There are three such threads, so block 3 follows block 0. Grids of more than BLOCKS_MAX blocks run only their first
 * ones: kernels that loop over their grid then leave values unset, which no race depends on, and the count of a kernel
 * with a last block stays where it is.
 *
 * ThreadSanitizer of clang, and of gcc from 13 on, tells 255 threads apart and confuses more of them. There several
 * threads of a block share a fiber of ThreadSanitizer: 76 for each block, in an order that separates neighbours.
 *
 * This file is not instrumented: ThreadSanitizer sees neither its variables nor its switches. */

#include "tests/fakegpu/race_block.h"

#include "tests/fakegpu/fake.h"
#include "tests/fakegpu/fake_fiber.h"

#include <pthread.h>
#include <sanitizer/tsan_interface.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SLOTS = 3, THREADS_MAX = 256, BLOCKS_MAX = 12, STACK = 128 << 10, ATOMICS_MAX = 16, NAMES_MAX = 128 };
#if defined(__clang__) || __GNUC__ >= 13
enum { FIBERS = 76 };
#else
enum { FIBERS = THREADS_MAX };
#endif
enum { NO_SYNC = 1 }; /* __tsan_switch_to_fiber_no_sync */

struct fiber {
  struct fiber_context at;
  char *stack;
  void *tsan;
  unsigned thread;
  bool waits, done;
  bool read[ATOMICS_MAX]; /* since its last fence */
  bool fenced;
  char fence; /* what it had done at its last fence */
};

struct slot {
  pthread_t thread;
  sem_t go, done;
  struct fiber fibers[THREADS_MAX];
  struct fiber_context home;
  void *home_tsan;
  unsigned block, phase; /* phase: barriers of the block so far */
  char barrier[2], end;  /* of even and of odd phases: a thread that goes on must not see what others did since */
};

/* An address of atomic operations. Its fiber carries what a fence has released to `order`. */
struct atomic {
  const void *at;
  void *tsan;
  char order;
};

/* A barrier or a fence. */
struct site {
  const char *file;
  int line;
  bool skip;
};

struct fake_index fake_thread, fake_block, fake_block_size, fake_grid;

static struct slot slots[SLOTS];
static struct atomic atomics[ATOMICS_MAX];
static struct slot *slot;
static struct fiber *current;
static char launches[2];
static unsigned launch;
static void (*thread_body)(void *ctx);
static void *thread_ctx;
static const char *kernels[NAMES_MAX];
static struct site sites[NAMES_MAX];
static const char *skip_file;
static int skip_line;

void fake_die(const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  vfprintf(stderr, format, ap);
  va_end(ap);
  fputc('\n', stderr);
  exit(3);
}

/* ThreadSanitizer watches strcmp and others of libc, so threads do not use them. */
static bool ends_with(const char *text, const char *end) {
  const char *a = text, *b = end;
  while (*a) a++;
  while (*b) b++;
  while (a > text && b > end && a[-1] == b[-1]) a--, b--;
  return b == end && (a == text || a[-1] == '/');
}

static const struct site *site_of(const char *file, int line) {
  int i = 0;
  while (i < NAMES_MAX && sites[i].file && (sites[i].file != file || sites[i].line != line)) i++;
  if (i == NAMES_MAX) fake_die("more than %d barriers", NAMES_MAX);
  if (!sites[i].file)
    sites[i] = (struct site){file, line, skip_file && line == skip_line && ends_with(file, skip_file)};
  return &sites[i];
}

static void note_kernel(const char *name) {
  int i = 0;
  while (i < NAMES_MAX && kernels[i] && kernels[i] != name) i++;
  if (i == NAMES_MAX) fake_die("more than %d kernels", NAMES_MAX);
  kernels[i] = name;
}

void race_print(void) {
  for (int i = 0; i < NAMES_MAX && kernels[i]; i++) printf("kernel %s\n", kernels[i]);
  for (int i = 0; i < NAMES_MAX && sites[i].file; i++) printf("site %s:%d\n", sites[i].file, sites[i].line);
}

/* Threads. */

static void leave(struct fiber *f) {
  struct slot *s = slot;
  __tsan_switch_to_fiber(s->home_tsan, NO_SYNC);
  fake_switch(&f->at, &s->home);
}

static void enter(struct fiber *f) {
  current = f;
  fake_thread.x = f->thread;
  f->waits = false;
  __tsan_switch_to_fiber(f->tsan, NO_SYNC);
  fake_switch(&slot->home, &f->at);
}

static void fiber_main(void) {
  struct fiber *f = current;
  for (;;) {
    __tsan_acquire(&launches[launch % 2]);
    __tsan_acquire(&slot->end);
    thread_body(thread_ctx);
    __tsan_release(&launches[(launch + 1) % 2]);
    __tsan_release(&slot->end);
    f->done = true;
    leave(f);
  }
}

static void run_block(void) {
  unsigned n = fake_block_size.x, waiting = n;
  fake_block.x = slot->block;
  for (unsigned t = 0; t < n; t++) slot->fibers[t].done = slot->fibers[t].fenced = false;
  while (waiting > 0) {
    waiting = 0;
    for (unsigned t = 0; t < n; t++) {
      enter(&slot->fibers[t]);
      waiting += slot->fibers[t].waits;
    }
    slot->phase++;
    if (waiting && waiting != n) fake_die("%u of %u threads of a block came to __syncthreads", waiting, n);
  }
}

static void await(sem_t *s) {
  while (sem_wait(s)) {
  }
}

__attribute__((noreturn)) static void *slot_main(void *arg) {
  struct slot *s = arg;
  s->home_tsan = __tsan_get_current_fiber();
  __tsan_release(&launches[0]); /* its thread_local memory is fresh */
  sem_post(&s->done);
  for (;;) {
    await(&s->go);
    run_block();
    sem_post(&s->done);
  }
}

void race_start(const char *skip) {
  const char *colon = skip ? strrchr(skip, ':') : NULL;
  if (skip && !colon) fake_die("%s: not FILE:LINE", skip);
  if (colon) {
    skip_file = strndup(skip, (size_t)(colon - skip));
    skip_line = atoi(colon + 1);
  }
  for (int i = 0; i < ATOMICS_MAX; i++) atomics[i].tsan = __tsan_create_fiber(0);
  for (int i = 0; i < SLOTS; i++) {
    struct slot *s = &slots[i];
    void *fibers[FIBERS];
    for (int k = 0; k < FIBERS; k++) fibers[k] = __tsan_create_fiber(0);
    for (unsigned t = 0; t < THREADS_MAX; t++) {
      struct fiber *f = &s->fibers[t];
      f->thread = t;
      f->tsan = fibers[(t * 37 + t / 16) % FIBERS];
      f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (f->stack == MAP_FAILED) fake_die("no memory for a fiber's stack");
      fake_fiber_init(&f->at, f->stack, STACK, fiber_main);
    }
    sem_init(&s->go, 0, 0);
    sem_init(&s->done, 0, 0);
    if (pthread_create(&s->thread, NULL, slot_main, s)) fake_die("no thread");
    await(&s->done);
  }
}

int fake_launch(const char *name, unsigned grid, unsigned block, cudaStream_t stream, void (*body)(void *ctx),
                void *ctx, void (*destroy)(void *ctx)) {
  if (grid == 0 || block == 0 || block > THREADS_MAX)
    fake_die("%s: a grid of %u blocks of %u threads", name, grid, block);
  note_kernel(name);
  fake_grid.x = grid;
  fake_block_size.x = block;
  thread_body = body;
  thread_ctx = ctx;
  __tsan_release(&launches[launch % 2]);
  for (unsigned b = 0; b < grid && b < BLOCKS_MAX; b++) {
    slot = &slots[b % SLOTS];
    slot->block = b;
    sem_post(&slot->go);
    await(&slot->done);
  }
  launch++;
  __tsan_acquire(&launches[launch % 2]);
  destroy(ctx);
  return 0;
}

/* Order. */

void race_barrier(const char *file, int line) {
  struct fiber *f = current;
  bool skip = site_of(file, line)->skip;
  char *order = &slot->barrier[slot->phase % 2];
  if (!skip) __tsan_release(order);
  f->waits = true;
  leave(f);
  if (!skip) __tsan_acquire(order);
}

static struct atomic *atomic_of(const void *at) {
  for (int i = 0; i < ATOMICS_MAX; i++) {
    if (!atomics[i].at) atomics[i].at = at;
    if (atomics[i].at == at) return &atomics[i];
  }
  fake_die("more than %d addresses of atomic operations", ATOMICS_MAX);
}

void race_fence(const char *file, int line) {
  struct fiber *f = current;
  if (site_of(file, line)->skip) return;
  for (int i = 0; i < ATOMICS_MAX; i++)
    if (f->read[i]) __tsan_acquire(&atomics[i].order);
  memset(f->read, 0, sizeof f->read);
  __tsan_release(&f->fence);
  f->fenced = true;
}

/* Only what came before the fence goes to the others, so it goes by another fiber. */
void race_atomic_begin(const void *at) {
  struct fiber *f = current;
  struct atomic *a = atomic_of(at);
  if (!f->fenced) return;
  __tsan_switch_to_fiber(a->tsan, NO_SYNC);
  __tsan_acquire(&f->fence);
  __tsan_release(&a->order);
  __tsan_switch_to_fiber(f->tsan, NO_SYNC);
}

void race_atomic_end(const void *at) {
  current->read[atomic_of(at) - atomics] = true;
}

/* What else kernels.cu asks of CUDA. */
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *kernel) {
  memset(attr, 0, sizeof *attr);
  return cudaSuccess;
}
