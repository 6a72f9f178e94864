#ifndef AGENT_RESOLVE_H
#define AGENT_RESOLVE_H

/* From an endpoint to addresses, without blocking the loop and without ever asking for the name of an
 * address. */

#include <stdbool.h>
#include <uv.h>
#include "common/endpoint.h"
#include "common/err.h"
#include "proto/msg.h"

enum { ADDRESSES_MAX = 16 };

union address {
  struct sockaddr sa;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
};

struct addresses {
  size_t n;
  union address v[ADDRESSES_MAX];
};

/* e NULL: found, `found` is valid in the call. */
typedef void (*resolve_fn)(void *ctx, const struct addresses *found, const struct err *e);

struct resolve_words {
  const char *where;  /* the name stood: "in --endpoint", "of SLURM_STEP_NODELIST=gpu[1-2]" */
  const char *remedy; /* where nobody knows it: "give --endpoint HOST:PORT, the same to all agents" */
};

#define RESOLVE_REMEDY "check its spelling, or give a numeric address"

struct resolve;
/* A numeric host is answered inside the call, without a thread, and NULL is returned; else fn is called once
 * from the loop. `words` are for the sentence, and must outlive the request. */
struct resolve *resolve_start(uv_loop_t *loop, const struct endpoint *ep, const struct resolve_words *words,
                              resolve_fn fn, void *ctx);
void resolve_cancel(struct resolve *r); /* fn is not called any more; NULL is fine */

bool address_is_local(const union address *a);                     /* one of this machine's own */
void address_text(const union address *a, char out[ADDR_MAX + 1]); /* numeric, no port */
socklen_t address_size(const union address *a);

#endif
