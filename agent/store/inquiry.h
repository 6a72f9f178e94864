/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_INQUIRY_H
#define AGENT_STORE_INQUIRY_H

/* The connections from other nodes to the round's store that wait until the agents of those nodes have said whose they
 * are. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/endpoint.h"
#include "common/err.h"
#include "proto/msg.h"

enum { INQUIRY_AGAIN_MS = 1000 }; /* a question without an answer is repeated: a connection may have swallowed it */

struct inquiry;

struct inquiry *inquiry_create(uint64_t seed);
void inquiry_destroy(struct inquiry *q);

void inquiry_add(struct inquiry *q, uint64_t id, const char *addr, uint16_t port);
/* It needs no answer any more. False: it has none. */
bool inquiry_drop(struct inquiry *q, uint64_t id);
/* All questions are to be asked again: the daemon has not got them, or has lost the answers. */
void inquiry_repeat(struct inquiry *q);

/* The next question that is due: how many connections it is about, at most OWNERS_MAX; 0: none is due. Questions are
 * OWNERS_EVERY_MS apart. The strings in `out` are valid until the next call of any function here. */
size_t inquiry_next(struct inquiry *q, uint64_t now_ms, struct store_caller *out, int64_t *serial);
uint64_t inquiry_deadline(const struct inquiry *q); /* when inquiry_next has something; UINT64_MAX: never */

struct inquiry_callbacks {
  void (*admit)(void *ctx, uint64_t id);
  /* By its address alone: its node cannot tell. */
  void (*admit_unknown)(void *ctx, uint64_t id, const char *host);
  /* `other`: another user's, as the agent of that host sees it; NULL: it is gone. */
  void (*refuse)(void *ctx, uint64_t id, const struct store_owner *other, const char *host);
};
/* An answer about a connection counts once; one yes is enough, and the last no refuses it. Answers to an earlier
 * question than the last one about it do not count. */
void inquiry_answer(struct inquiry *q, const struct owners *owners, const struct inquiry_callbacks *cb, void *ctx);

/* The connections from this node about which another agent asks, until this agent answers. Pure. */

enum { REPLIES_MAX = 16384 }; /* as many as a store lets wait; it asks again about those that are left out */

struct reply {
  int64_t id, asked; /* as in FIND_OWNERS */
  struct ipaddr from, to;
  uint16_t from_port, to_port;
};

struct replies;

struct replies *replies_create(uint64_t seed);
void replies_destroy(struct replies *r); /* NULL is fine */

void replies_add(struct replies *r, const struct find_owners *ask);
void replies_clear(struct replies *r); /* drops all: no agent waits for these answers any more */

/* The next answer that is due: how many connections it is about, at most OWNERS_MAX; 0: none is due. Answers are
 * OWNERS_EVERY_MS apart. *serial: of the last question among them. */
size_t replies_next(struct replies *r, uint64_t now_ms, struct reply *out, int64_t *serial);
uint64_t replies_deadline(const struct replies *r); /* when replies_next has something; UINT64_MAX: never */

#endif
