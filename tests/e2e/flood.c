/* SPDX-License-Identifier: Apache-2.0 */
/* A user who wants the daemon's one thread: opens channels with the key of RDZV_KEY and sends HELLOs that are refused,
 * on many connections, as fast as they are answered. A line on stdin is answered with how many were; its end ends this.
 *
 * With a wrong key it is the opening that is refused.
 *
 * usage: flood PORT ADDRESSES CONNECTIONS */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/mem.h"
#include "proto/channel.h"
#include "proto/msg.h"

enum { EVENTS = 256 };

struct caller {
  int fd;
  size_t got;
  uint32_t address;
  struct channel channel;
  char answer[CHANNEL_ANSWER_SIZE];
};

static struct key key;
static uint16_t port;
static int polled;
static struct buf hello;
static unsigned long long answered;

static void make_hello(void) {
  struct msg m;
  msg_init(&m, MSG_HELLO);
  m.hello.version = PROTO_VERSION;
  m.hello.agent = "0123456789abcdef";
  m.hello.job = "flood";
  m.hello.host = "flood";
  m.hello.pid = 1;
  m.hello.workers = 1;
  m.hello.want_rank = 7; /* of one node: refused */
  m.hello.settings.min_nodes = m.hello.settings.max_nodes = 1;
  m.hello.settings.lease_ms = 5000;
  msg_encode(&hello, &m);
}

static void dial(struct caller *c) {
  const struct linger at_once = {.l_onoff = 1};
  const int no_port_yet = 1;
  struct sockaddr_in from = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(c->address)};
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
  c->got = 0;
  c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)); /* no port waits in TIME_WAIT */
  setsockopt(c->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &no_port_yet, sizeof(no_port_yet));
  if (c->fd < 0 || bind(c->fd, (const struct sockaddr *)&from, sizeof(from)) != 0 ||
      (connect(c->fd, (const struct sockaddr *)&to, sizeof(to)) != 0 && errno != EINPROGRESS)) {
    perror("flood");
    exit(1);
  }
  epoll_ctl(polled, EPOLL_CTL_ADD, c->fd, &(struct epoll_event){.events = EPOLLOUT, .data.ptr = c});
}

static void redial(struct caller *c) {
  close(c->fd);
  channel_finish(&c->channel);
  dial(c);
}

static void open_channel(struct caller *c) {
  uint8_t random[NOISE_KEY];
  struct buf opening = BUF_INIT;
  randombytes_buf(random, sizeof(random));
  channel_open(&c->channel, &key, random, &opening);
  if (send(c->fd, opening.data, opening.len, MSG_NOSIGNAL) < 0)
    redial(c);
  else
    epoll_ctl(polled, EPOLL_CTL_MOD, c->fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = c});
  buf_finish(&opening);
}

static void say_hello(struct caller *c) {
  size_t used;
  enum channel_status status;
  enum channel_source source;
  struct buf sealed = BUF_INIT;
  if (channel_take_answer(&c->channel, c->answer, c->got, &used, &status, &source) != 1) {
    redial(c);
    return;
  }
  channel_seal(&c->channel, hello.data, hello.len, &sealed);
  if (send(c->fd, sealed.data, sealed.len, MSG_NOSIGNAL) < 0) redial(c);
  buf_finish(&sealed);
}

/* The answer to the opening, then GREETING and REFUSED, which nobody reads, then the end. */
static void take(struct caller *c) {
  char rest[4096];
  bool open = c->got == sizeof(c->answer);
  ssize_t n =
      open ? recv(c->fd, rest, sizeof(rest), 0) : recv(c->fd, c->answer + c->got, sizeof(c->answer) - c->got, 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) {
    answered += open || c->got > 0;
    redial(c);
    return;
  }
  if (open) return;
  c->got += (size_t)n;
  if (c->got == sizeof(c->answer)) say_hello(c);
}

int main(int argc, char **argv) {
  const char *text = getenv("RDZV_KEY");
  if (argc != 4 || !text || key_parse(text, strlen(text), &key, NULL) < 0 || sodium_init() < 0) return 64;
  uint32_t addresses = (uint32_t)atoi(argv[2]), n = (uint32_t)atoi(argv[3]);
  port = (uint16_t)atoi(argv[1]);
  polled = epoll_create1(EPOLL_CLOEXEC);
  make_hello();
  struct caller *callers = xcalloc(n, sizeof(*callers));
  for (uint32_t i = 0; i < n; i++) {
    callers[i].address = 0x7f080001 + i % addresses; /* 127.8.0.1 */
    dial(&callers[i]);
  }
  epoll_ctl(polled, EPOLL_CTL_ADD, STDIN_FILENO, &(struct epoll_event){.events = EPOLLIN});
  for (;;) {
    struct epoll_event events[EVENTS];
    int found = epoll_wait(polled, events, EVENTS, -1);
    for (int i = 0; i < found; i++) {
      struct caller *c = events[i].data.ptr;
      if (!c) {
        char line[64];
        if (read(STDIN_FILENO, line, sizeof(line)) <= 0) return 0;
        printf("%llu\n", answered);
        fflush(stdout);
        continue;
      }
      if (events[i].events & EPOLLOUT)
        open_channel(c);
      else
        take(c);
    }
  }
}
