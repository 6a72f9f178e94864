/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKEGPU_FAKE_FIBER_H
#define TESTS_FAKEGPU_FAKE_FIBER_H

/* A switch between stacks. On x86-64 it is our own: swapcontext asks the kernel for the signal mask each time, and under
 * ASan it wipes a whole stack. */

#include <stddef.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

struct fiber_context {
#ifdef __x86_64__
  void **sp; /* the registers that the compiler expects to keep are on the stack */
#else
  ucontext_t at;
#endif
};

void fake_switch(struct fiber_context *from, const struct fiber_context *to);
/* The first switch to it calls `entry`, which never returns. */
void fake_fiber_init(struct fiber_context *p, char *stack, size_t size, void (*entry)(void));

#endif
