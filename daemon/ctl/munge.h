/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_MUNGE_H
#define DAEMON_CTL_MUNGE_H

/* Asks a daemon of another machine for this user's key by MUNGE. The user whose daemon is trusted (--munge-user) is
 * looked up first, in the loop's thread pool: the user database may be slow, or hang. */

#include <stdbool.h>
#include <sys/socket.h>
#include <uv.h>
#include "common/net/munge_fetch.h"

struct ctl_munge {
  /* Private. Zero at first. */
  uv_loop_t *loop;
  const char *user;
  union socket_address daemon;
  munge_fetch_fn fn;
  void *ctx;
  uv_work_t lookup;
  bool looking, known;
  int64_t trusted;
  struct err error; /* of the lookup */
  struct munge_fetch *fetch;
};

/* Calls fn once; inside this call only if the pool refuses. user: --munge-user, borrowed; NULL: not given. The pool
 * runs. m must live as long as the process. */
void ctl_munge_ask(struct ctl_munge *m, uv_loop_t *loop, const char *user, const struct sockaddr_storage *daemon,
                   munge_fetch_fn fn, void *ctx);
/* fn is not called any more. Without a question: does nothing. */
void ctl_munge_cancel(struct ctl_munge *m);
/* Whether the error says that no daemon can be reached at that address. */
bool ctl_munge_unreachable(const struct err *e);

#endif
