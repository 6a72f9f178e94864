/* A grid as a loop over blocks, and a block's threads as fibers that meet at __syncthreads.
 *
 * A fiber takes thread after thread as long as none of them comes to a barrier; one that does stays with its thread, and the next fiber
 * goes on with the rest. So kernels without barriers cost one function call per thread. When all threads are at the barrier or at
 * their end they go on, forwards or backwards by chance: a reduction that forgets a barrier gets other numbers. That only a part of a block
 * comes to a barrier is an error that is told, and ends the program.
 *
 * Stacks are mapped once and kept. The sanitizers are told of each switch, else they would take a fiber's stack for a wild pointer. On x86-64 the
 * switch is our own: swapcontext asks the kernel for the signal mask, and under ASan wipes a whole stack, each time. */

#include "tests/fakegpu/fake.h"

#include <stdlib.h>
#include <sys/mman.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#ifdef FAKE_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

enum { FIBERS_MAX = 1024, STACK = 128 << 10 };

#ifdef __x86_64__
/* What the compiler expects to be kept goes to the stack; the rest is the stack pointer. */
struct place {
  void **sp;
};
void fake_switch(struct place *from, const struct place *to);
__asm__(".text\n"
        ".globl fake_switch\n"
        ".hidden fake_switch\n"
        ".type fake_switch, @function\n"
        "fake_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq (%rsi), %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size fake_switch, . - fake_switch\n");

static void place_init(struct place *p, char *stack, size_t size, void (*entry)(void)) {
  p->sp =
      (void **)(void *)(stack + size) - 8; /* six registers, where to return to, and one for the alignment */
  p->sp[6] = (void *)entry;
}
#else
struct place {
  ucontext_t at;
};

static void fake_switch(struct place *from, const struct place *to) {
  swapcontext(&from->at, &to->at);
}

static void place_init(struct place *p, char *stack, size_t size, void (*entry)(void)) {
  getcontext(&p->at);
  p->at.uc_stack.ss_sp = stack;
  p->at.uc_stack.ss_size = size;
  p->at.uc_link = NULL;
  makecontext(&p->at, entry, 0);
}
#endif

struct fiber {
  struct place at;
  char *stack;
  unsigned thread;
  bool busy; /* at a barrier */
};

struct fake_index fake_thread, fake_block, fake_block_size, fake_grid;

static struct fiber fibers[FIBERS_MAX];
static struct place home;
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
    place_init(&f->at, f->stack, STACK, fiber_main);
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

/* All threads up to their next barrier or their end. How many are at a barrier. */
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

void fake_grid_run(unsigned grid, unsigned block, void (*body)(void *ctx), void *ctx) {
  if (block > FIBERS_MAX) fake_die("%u threads in a block", block);
  thread_body = body;
  thread_ctx = ctx;
  fake_grid = (struct fake_index){grid, 1, 1};
  fake_block_size = (struct fake_index){block, 1, 1};
  fake_thread = fake_block = (struct fake_index){0, 0, 0};
  bool down = fake_random(2);
  for (unsigned b = 0; b < grid; b++) {
    fake_block.x = down ? grid - 1 - b : b;
    run_block();
  }
}
