/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_RESOLVE_H
#define AGENT_LINK_RESOLVE_H

/* From an endpoint to addresses, without blocking the loop. Never asks for the name of an address. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "common/endpoint.h"
#include "common/err.h"
#include "common/net/socket.h"
#include "proto/msg.h"

enum { ADDRESSES_MAX = 16 };

struct address_list {
  size_t n;
  union socket_address v[ADDRESSES_MAX];
};

/* e NULL: `found` is valid in the call. */
typedef void (*resolve_fn)(void *ctx, const struct address_list *found, const struct err *e);

struct resolve_words {
  const char *where;  /* where the name came from: "in --endpoint", "of SLURM_STEP_NODELIST=gpu[1-2]" */
  const char *remedy; /* advice for an unknown name: "give --endpoint HOST:PORT, the same to all agents" */
};

#define RESOLVE_REMEDY "check its spelling, or give a numeric address"

struct resolve;
/* For a numeric host, calls fn and then returns NULL, without a thread. Otherwise fn is called once from the
 * loop. `words` are part of error messages and must outlive the request. */
struct resolve *resolve_start(uv_loop_t *loop, const struct endpoint *ep, const struct resolve_words *words,
                              resolve_fn fn, void *ctx);
void resolve_cancel(struct resolve *r); /* fn is no longer called; NULL is fine */

void address_text(const union socket_address *a, char out[ADDR_MAX + 1]); /* numeric, no port */

/* Addresses of names, before there is a loop: --local-addr and --endpoint. */

/* Resolves `name`: `out` becomes the address at which other nodes reach this one; "": the name has only loopback
 * addresses (as a machine's own name has on Debian). A numeric address is returned as it is. */
int own_addr_find(const char *name, char out[ADDR_MAX + 1], struct err *e);
/* Whether an address of `name` is this machine's; true if unknown. */
bool own_addr_is(const char *name);

#endif
