/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_NET_ACCEPTOR_H
#define COMMON_NET_ACCEPTOR_H

/* Listening sockets on a libuv loop: each connection is accepted once and handed to the owner as a descriptor. The
 * daemon's port, its control socket and a store's port are served by it.
 *
 * The owner embeds struct acceptor. on_closed comes when the loop has closed all handles; the memory must stay until
 * then. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "common/endpoint.h"
#include "common/err.h"

enum {
  ACCEPTOR_PAUSE_MS = 1000, /* without descriptors */
  ACCEPTOR_PER_TURN = 256,  /* connections accepted per listening socket in one turn of the loop */
};

struct acceptor_callbacks {
  /* fd becomes the owner's: non-blocking, close-on-exec, with the options of acceptor_listen. `local`: as
   * acceptor_listen was told for this socket; peer is without an address then. */
  void (*on_accept)(void *ctx, int fd, bool local, const struct ipaddr *peer, uint16_t port);
  /* accept failed, in most cases for lack of descriptors (-EMFILE, -ENFILE). Nothing is accepted for ACCEPTOR_PAUSE_MS,
   * or until acceptor_resume. */
  void (*on_pause)(void *ctx, int code);
  void (*on_closed)(void *ctx);
};

struct acceptor {
  uv_loop_t *loop;
  const struct acceptor_callbacks *cb;
  void *ctx;
  struct acceptor_socket *sockets;
  uv_timer_t timer; /* the end of a pause */
  bool paused;
  int open_handles;
};

void acceptor_init(struct acceptor *a, uv_loop_t *loop, const struct acceptor_callbacks *cb, void *ctx);
/* Accepts on a bound socket, which becomes the acceptor's in case of an error too. Its connections get the options of
 * socket_set_options. `local`: it is a unix socket. */
int acceptor_listen(struct acceptor *a, int fd, bool local, unsigned user_timeout_ms, struct err *e);
/* A descriptor was closed: accepts again at once if that is paused. */
void acceptor_resume(struct acceptor *a);
/* Closes the listening sockets. */
void acceptor_shut(struct acceptor *a);
/* Closes everything, then on_closed. Once. */
void acceptor_close(struct acceptor *a);

#endif
