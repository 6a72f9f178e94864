/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_CHAIN_H
#define COMMON_CHAIN_H

/* Lists whose members hold their own links: a chain of neighbours, closed to a ring. The head of a list is one of them.
 * A member that is in no list is alone, and may be removed again. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chain {
  struct chain *prev, *next;
};

static inline void chain_init(struct chain *l) {
  l->prev = l->next = l;
}

static inline bool chain_is_alone(const struct chain *l) {
  return l->next == l;
}

static inline void chain_append(struct chain *head, struct chain *l) {
  l->prev = head->prev;
  l->next = head;
  head->prev->next = l;
  head->prev = l;
}

static inline void chain_remove(struct chain *l) {
  l->prev->next = l->next;
  l->next->prev = l->prev;
  chain_init(l);
}

#define CHAIN_ENTRY(l, type, member)    ((type *)((uintptr_t)(l)-offsetof(type, member)))
/* The first member of a list; NULL: it is empty. */
#define CHAIN_FIRST(head, type, member) (chain_is_alone(head) ? NULL : CHAIN_ENTRY((head)->next, type, member))

#endif
