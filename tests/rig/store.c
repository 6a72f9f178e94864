/* SPDX-License-Identifier: Apache-2.0 */
/* A poll loop around c10d_session: what the real driver does with libuv, without its care for bad clients. */

#include "tests/rig/store.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/buf.h"
#include "proto/c10d_session.h"
#include "tests/rig/unit.h"

enum { CLIENTS_MAX = 64, READ_MAX = 262144, OUT_SOFT = 1048576 };

struct client {
  int fd; /* -1: free */
  struct c10d_session session;
  struct buf in, out;
  size_t sent;
  bool ended;
};

static struct {
  int listener, wake[2]; /* closing wake[1] ends it */
  struct store *store;
  struct client clients[CLIENTS_MAX];
  atomic_uint crawl;
  pthread_t thread;
  bool runs;
} server;

static size_t at_most(size_t n) {
  unsigned crawl = atomic_load(&server.crawl);
  return crawl && crawl < n ? crawl : n;
}

static void hang_up(struct client *c) {
  close(c->fd);
  c->fd = -1;
  c10d_session_finish(&c->session, 0);
  buf_finish(&c->in);
  buf_finish(&c->out);
}

static void take(int fd) {
  int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  fcntl(fd, F_SETFL, O_NONBLOCK);
  for (struct client *c = server.clients; c < server.clients + CLIENTS_MAX; c++) {
    if (c->fd >= 0) continue;
    *c = (struct client){.fd = fd};
    c10d_session_init(&c->session, server.store, c);
    return;
  }
  close(fd);
}

static void answer_released(void) {
  for (struct store_client *s; (s = store_next_released(server.store));) {
    struct client *c = store_client_owner(s);
    c10d_session_released(&c->session, &c->out);
  }
}

static void feed(struct client *c) {
  struct err e = ERR_INIT;
  size_t used = 0;
  if (c->in.len && !c->ended && c10d_session_feed(&c->session, c->in.data, c->in.len, &used, &c->out, OUT_SOFT, &e))
    c->ended = true;
  buf_consume(&c->in, used);
  answer_released();
}

/* False: the client is gone. */
static bool hear(struct client *c) {
  ssize_t n = recv(c->fd, buf_reserve(&c->in, READ_MAX), at_most(READ_MAX), 0);
  if (n > 0) buf_commit(&c->in, (size_t)n);
  return n > 0;
}

static bool tell(struct client *c) {
  ssize_t n = c->out.len ? send(c->fd, c->out.data, at_most(c->out.len), MSG_NOSIGNAL) : 0;
  if (n > 0) buf_consume(&c->out, (size_t)n);
  feed(c); /* there is room again */
  return !c->ended || c->out.len;
}

static void turn(const struct pollfd *p) {
  for (int i = 0; i < CLIENTS_MAX; i++) {
    struct client *c = &server.clients[i];
    if (c->fd < 0 || !p[i].revents) continue;
    bool lives = true;
    if (p[i].revents & POLLOUT) lives = tell(c);
    if (lives && p[i].revents & ~POLLOUT) {
      lives = hear(c);
      feed(c);
    }
    if (!lives || (c->ended && !c->out.len)) hang_up(c);
  }
}

static void *serve(void *arg) {
  struct pollfd p[CLIENTS_MAX + 2];
  for (;;) {
    for (int i = 0; i < CLIENTS_MAX; i++) {
      const struct client *c = &server.clients[i];
      p[i] = (struct pollfd){.fd = c->fd, .events = (short)(POLLIN | (c->out.len ? POLLOUT : 0))};
    }
    p[CLIENTS_MAX] = (struct pollfd){.fd = server.listener, .events = POLLIN};
    p[CLIENTS_MAX + 1] = (struct pollfd){.fd = server.wake[0], .events = POLLIN};
    poll(p, CLIENTS_MAX + 2, -1);
    if (p[CLIENTS_MAX + 1].revents) return NULL;
    turn(p);
    if (p[CLIENTS_MAX].revents) take(accept(server.listener, NULL, NULL));
  }
}

uint16_t store_thread_start(void) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof(a);
  for (int i = 0; i < CLIENTS_MAX; i++) server.clients[i] = (struct client){.fd = -1};
  atomic_store(&server.crawl, 0);
  server.store = store_create(&(struct store_config){.seed = 7});
  server.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(server.listener, (struct sockaddr *)&a, sizeof(a)), 0);
  assert_int_equal(getsockname(server.listener, (struct sockaddr *)&a, &len), 0);
  assert_int_equal(listen(server.listener, 64), 0);
  assert_int_equal(pipe2(server.wake, O_CLOEXEC), 0);
  pthread_create(&server.thread, NULL, serve, NULL);
  server.runs = true;
  return ntohs(a.sin_port);
}

void store_thread_crawl(unsigned bytes) {
  atomic_store(&server.crawl, bytes);
}

void store_thread_stop(void) {
  if (!server.runs) return;
  server.runs = false;
  close(server.wake[1]);
  pthread_join(server.thread, NULL);
  close(server.wake[0]);
  close(server.listener);
  for (int i = 0; i < CLIENTS_MAX; i++)
    if (server.clients[i].fd >= 0) hang_up(&server.clients[i]);
  store_destroy(server.store);
}
