/* SPDX-License-Identifier: Apache-2.0 */
/* A grid as a loop over blocks, in any order, and a block's threads as fibers that meet at __syncthreads.
 *
 * A fiber runs thread after thread until one comes to a barrier. It then stays with that thread, and the next fiber
 * runs the rest. So kernels without barriers cost one function call per thread. When all threads are at the barrier or
 * at their end they continue, forwards or backwards at random, and a reduction without a barrier gets other numbers. If
 * only some threads of a block come to a barrier, the program reports it and ends.
 *
 * Stacks are mapped once and kept. The sanitizers are informed of each switch, because they would take a fiber's stack
 * for a wild pointer. */

#include "tests/fakegpu/fake.h"
#include "tests/fakegpu/fake_fiber.h"

#include <stdlib.h>
#include <sys/mman.h>

#ifdef FAKE_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

enum { FIBERS_MAX = 1024, STACK = 128 << 10 };

struct fiber {
  struct fiber_context at;
  char *stack;
  unsigned thread;
  bool busy; /* at a barrier */
};

struct fake_index fake_thread, fake_block, fake_block_size, fake_grid;

static struct fiber fibers[FIBERS_MAX];
static struct fiber_context home;
static struct fiber *current;
static unsigned next_thread;
static bool backwards;
static void (*thread_body)(void *ctx);
static void *thread_ctx;
#ifdef FAKE_ASAN
static const void *home_stack;
static size_t home_size;
#endif

static void leave_fiber(struct fiber *f) {
#ifdef FAKE_ASAN
  void *save;
  __sanitizer_start_switch_fiber(&save, home_stack, home_size);
#endif
  fake_switch(&f->at, &home);
#ifdef FAKE_ASAN
  __sanitizer_finish_switch_fiber(save, &home_stack, &home_size);
#endif
}

static void fiber_main(void) {
#ifdef FAKE_ASAN
  __sanitizer_finish_switch_fiber(NULL, &home_stack, &home_size);
#endif
  struct fiber *f = current;
  for (;;) {
    while (next_thread < fake_block_size.x) {
      unsigned t = next_thread++;
      fake_thread.x = f->thread = backwards ? fake_block_size.x - 1 - t : t;
      thread_body(thread_ctx);
    }
    leave_fiber(f);
  }
}

static void enter_fiber(struct fiber *f) {
  current = f;
  if (!f->stack) {
    f->stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (f->stack == MAP_FAILED) fake_die("no memory for a fiber's stack");
    fake_fiber_init(&f->at, f->stack, STACK, fiber_main);
  }
#ifdef FAKE_ASAN
  void *save;
  __sanitizer_start_switch_fiber(&save, f->stack, STACK);
#endif
  fake_switch(&home, &f->at);
#ifdef FAKE_ASAN
  __sanitizer_finish_switch_fiber(save, NULL, NULL);
#endif
  current = NULL;
}

void fake_sync_threads(void) {
  struct fiber *f = current;
  f->busy = true;
  leave_fiber(f);
  fake_thread.x = f->thread;
}

/* Runs all threads up to their next barrier or their end. Returns how many are at a barrier. */
static unsigned run_phase(unsigned waiting) {
  unsigned at_barrier = 0;
  bool down = fake_random(2);
  for (unsigned k = 0; k < waiting; k++) {
    struct fiber *f = &fibers[down ? waiting - 1 - k : k];
    f->busy = false;
    enter_fiber(f);
    at_barrier += f->busy;
  }
  for (unsigned k = waiting; next_thread < fake_block_size.x; k++) {
    enter_fiber(&fibers[k]);
    at_barrier += fibers[k].busy;
  }
  return at_barrier;
}

static void run_block(void) {
  next_thread = 0;
  backwards = fake_random(2);
  unsigned waiting = run_phase(0);
  while (waiting) {
    if (waiting != fake_block_size.x)
      fake_die("%u of %u threads of a block came to __syncthreads", waiting, fake_block_size.x);
    waiting = run_phase(waiting);
  }
}

enum { MIXED_MAX = 4096 };

/* The blocks' order: any, or of a big grid forwards or backwards. */
static unsigned *mixed_blocks(unsigned grid) {
  unsigned *order = grid <= MIXED_MAX ? malloc(grid * sizeof *order) : NULL;
  for (unsigned b = 0; order && b < grid; b++) {
    unsigned at = (unsigned)fake_random(b + 1);
    order[b] = order[at];
    order[at] = b;
  }
  return order;
}

void fake_grid_run(unsigned grid, unsigned block, void (*body)(void *ctx), void *ctx) {
  if (block > FIBERS_MAX) fake_die("%u threads in a block", block);
  thread_body = body;
  thread_ctx = ctx;
  fake_grid = (struct fake_index){grid, 1, 1};
  fake_block_size = (struct fake_index){block, 1, 1};
  fake_thread = fake_block = (struct fake_index){0, 0, 0};
  bool down = fake_random(2);
  unsigned *order = mixed_blocks(grid);
  for (unsigned b = 0; b < grid; b++) {
    fake_block.x = order ? order[b] : down ? grid - 1 - b : b;
    run_block();
  }
  free(order);
}
