/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_HOST_FINDER_H
#define DAEMON_SERVER_HOST_FINDER_H

/* Which of the hosts that jobs wait for a refused peer came from. A peer with another key never says who it is, so its
 * address is compared with those of the hosts. */

#include <uv.h>
#include "daemon/core/core.h"

enum {
  HOST_FINDER_ADDRS_MAX = 64,  /* that are asked about at once; further ones are forgotten */
  HOST_FINDER_HOSTS_MAX = 64,  /* names that are looked up for them, of all jobs in turn */
  HOST_FINDER_EVERY_MS = 5000, /* between two series of lookups: a stranger causes them */
};

/* host: "" if the address is none of theirs. */
typedef void (*host_finder_fn)(void *ctx, const char *host, const char *addr);

struct host_finder;
struct host_finder *host_finder_create(uv_loop_t *loop, const struct core *core, host_finder_fn fn, void *ctx);
void host_finder_add(struct host_finder *t, const char *addr); /* numeric. fn is never called in here */
/* fn is not called any more. The memory is freed once the loop has closed the handles. NULL is fine. */
void host_finder_close(struct host_finder *t);

#endif
