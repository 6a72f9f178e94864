/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_REPLIES_H
#define AGENT_STORE_REPLIES_H

/* The connections from this node about which another agent asks, until this agent answers. Pure. */

#include <stddef.h>
#include <stdint.h>
#include "common/endpoint.h"
#include "proto/msg.h"

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
