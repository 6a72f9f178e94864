/* SPDX-License-Identifier: Apache-2.0 */
/* One turn of the loop accepts up to ACCEPTOR_PER_TURN connections per socket, so that a storm of them leaves time for
 * those that exist.
 *
 * Connection options are set on the listening socket, from which Linux copies them: an accept costs one system call.
 * When descriptors run out the sockets are not polled, since they would stay readable and the loop would spin. A
 * second, or acceptor_resume after a close, ends the pause; until then the kernel's backlog holds the newcomers. */

#include "common/net/acceptor.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/net/socket.h"

struct acceptor_socket {
  uv_poll_t poll; /* first */
  struct acceptor *acceptor;
  struct acceptor_socket *next;
  int fd;
  bool local;
};

static void on_readable(uv_poll_t *poll, int status, int events);

static void on_pause_end(uv_timer_t *timer) {
  acceptor_resume(timer->data);
}

/* 1: a connection was taken off the queue; 0: there is none; else a negative errno. */
static int accept_one(struct acceptor_socket *l) {
  union socket_address from = {.room = {0}};
  socklen_t len = sizeof(from);
  int fd = accept4(l->fd, &from.any, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return errno == EAGAIN ? 0 : errno == EINTR || errno == ECONNABORTED || errno == EPROTO ? 1 : -errno;
  struct ipaddr peer;
  uint16_t port;
  socket_address_read(&from, &peer, &port);
  l->acceptor->cb->on_accept(l->acceptor->ctx, fd, l->local, &peer, port);
  return 1;
}

static void on_readable(uv_poll_t *poll, int status, int events) {
  struct acceptor_socket *l = (struct acceptor_socket *)poll;
  struct acceptor *a = l->acceptor;
  int rc = 1;
  for (int i = 0; i < ACCEPTOR_PER_TURN && rc > 0 && !uv_is_closing((uv_handle_t *)poll); i++) rc = accept_one(l);
  if (rc >= 0) return;
  for (struct acceptor_socket *each = a->sockets; each; each = each->next) uv_poll_stop(&each->poll);
  a->paused = true;
  uv_timer_start(&a->timer, on_pause_end, ACCEPTOR_PAUSE_MS, 0);
  a->cb->on_pause(a->ctx, rc);
}

void acceptor_init(struct acceptor *a, uv_loop_t *loop, const struct acceptor_callbacks *cb, void *ctx) {
  *a = (struct acceptor){.loop = loop, .cb = cb, .ctx = ctx, .open_handles = 1};
  uv_timer_init(loop, &a->timer);
  a->timer.data = a;
}

int acceptor_listen(struct acceptor *a, int fd, bool local, unsigned user_timeout_ms, struct err *e) {
  struct acceptor_socket *l = xcalloc(1, sizeof(*l));
  int rc = uv_poll_init(a->loop, &l->poll, fd);
  if (rc < 0) {
    free(l);
    close(fd);
    return err_sys(e, rc, "cannot poll the listening socket");
  }
  l->acceptor = a;
  l->fd = fd;
  l->local = local;
  l->next = a->sockets;
  a->sockets = l;
  a->open_handles++;
  socket_set_options(fd, user_timeout_ms); /* a unix socket has none of them */
  if (listen(fd, SOCKET_BACKLOG) < 0) return err_sys(e, -errno, "cannot listen");
  rc = a->paused ? 0 : uv_poll_start(&l->poll, UV_READABLE, on_readable);
  return rc < 0 ? err_sys(e, rc, "cannot poll the listening socket") : 0;
}

void acceptor_resume(struct acceptor *a) {
  if (!a->paused) return;
  a->paused = false;
  uv_timer_stop(&a->timer);
  for (struct acceptor_socket *l = a->sockets; l; l = l->next) uv_poll_start(&l->poll, UV_READABLE, on_readable);
}

static void handle_closed(struct acceptor *a) {
  if (--a->open_handles == 0) a->cb->on_closed(a->ctx);
}

static void on_socket_closed(uv_handle_t *handle) {
  struct acceptor_socket *l = (struct acceptor_socket *)handle;
  struct acceptor *a = l->acceptor;
  free(l);
  handle_closed(a);
}

static void on_timer_closed(uv_handle_t *handle) {
  handle_closed(handle->data);
}

void acceptor_shut(struct acceptor *a) {
  while (a->sockets) {
    struct acceptor_socket *l = a->sockets;
    a->sockets = l->next;
    uv_close((uv_handle_t *)&l->poll, on_socket_closed);
    close(l->fd);
  }
}

void acceptor_close(struct acceptor *a) {
  acceptor_shut(a);
  uv_close((uv_handle_t *)&a->timer, on_timer_closed);
}
