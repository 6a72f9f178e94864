/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fakegpu/fake_fiber.h"

#ifdef __x86_64__
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

void fake_fiber_init(struct fiber_context *p, char *stack, size_t size, void (*entry)(void)) {
  p->sp = (void **)(void *)(stack + size) - 8; /* six registers, where to return to, and one for the alignment */
  p->sp[6] = (void *)entry;
}
#else
void fake_switch(struct fiber_context *from, const struct fiber_context *to) {
  swapcontext(&from->at, &to->at);
}

void fake_fiber_init(struct fiber_context *p, char *stack, size_t size, void (*entry)(void)) {
  getcontext(&p->at);
  p->at.uc_stack.ss_sp = stack;
  p->at.uc_stack.ss_size = size;
  p->at.uc_link = NULL;
  makecontext(&p->at, entry, 0);
}
#endif
