/* SPDX-License-Identifier: Apache-2.0 */
/* NETLINK_SOCK_DIAG finds one connection by its four numbers, as the kernel itself would for a packet: it costs two
 * system calls, however many connections the machine has. The kernel answers inside the sendto, so the answer is there
 * when that returns, and no deadline is needed.
 *
 * "No such connection" and "no such interface" are the same error, ENOENT, because tcp_diag may be a module that this
 * kernel lacks. So a listening socket of our own is looked up once. If it is not found the tables of /proc/self/net are
 * read, which takes longer the more connections there are. (ProcSubset=pid of systemd hides /proc/net, and not these.)
 *
 * A connection without an inode belongs to no process: the process has closed it, or it waits to be accepted. The
 * kernel then says uid 0, which must not be believed. A lookup also finds a listening socket on the same port, which is
 * another socket than the one that was asked for. */

#include "common/system/socket_owner.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STATE_SYN_SENT = 2, STATE_TIME_WAIT = 6, STATE_LISTEN = 10, ANSWERS_MAX = 8, LINE_MAX_OF_TABLE = 512 };

struct request {
  struct nlmsghdr head;
  struct inet_diag_req_v2 body;
};

struct found {
  int64_t uid;
  unsigned long inode;
  unsigned state;
};

/* Netlink. --------------------------------------------------------------------------------------------------------- */

/* 0, -ENOENT, or an error of the interface. */
static int read_answer(struct socket_owners *o, struct found *out) {
  union {
    struct nlmsghdr head;
    char room[4096];
  } in;
  for (int i = 0; i < ANSWERS_MAX; i++) {
    ssize_t n = recv(o->netlink, &in, sizeof in, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if ((size_t)n < sizeof in.head || in.head.nlmsg_len > (size_t)n || in.head.nlmsg_seq != o->seq) continue;
    if (in.head.nlmsg_type == NLMSG_ERROR) {
      const struct nlmsgerr *error = NLMSG_DATA(&in.head);
      return in.head.nlmsg_len >= NLMSG_LENGTH(sizeof *error) && error->error < 0 ? error->error : -EPROTO;
    }
    const struct inet_diag_msg *m = NLMSG_DATA(&in.head);
    if (in.head.nlmsg_type != SOCK_DIAG_BY_FAMILY || in.head.nlmsg_len < NLMSG_LENGTH(sizeof *m)) return -EPROTO;
    *out = (struct found){.uid = m->idiag_uid, .inode = m->idiag_inode, .state = m->idiag_state};
    return 0;
  }
  return -EPROTO;
}

static int ask_kernel(struct socket_owners *o, const struct socket_end *from, const struct socket_end *to,
                      struct found *out) {
  struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
  struct request r = {.head = {.nlmsg_len = sizeof r,
                               .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                               .nlmsg_flags = NLM_F_REQUEST,
                               .nlmsg_seq = ++o->seq},
                      .body = {.sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0U}};
  struct inet_diag_sockid *id = &r.body.id;
  r.body.sdiag_family = from->addr.family == 4 ? AF_INET : AF_INET6;
  id->idiag_sport = htons(from->port);
  id->idiag_dport = htons(to->port);
  memcpy(id->idiag_src, from->addr.bytes, sizeof from->addr.bytes);
  memcpy(id->idiag_dst, to->addr.bytes, sizeof to->addr.bytes);
  id->idiag_cookie[0] = id->idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  ssize_t n = sendto(o->netlink, &r, sizeof r, MSG_DONTWAIT, (struct sockaddr *)&kernel, sizeof kernel);
  return n < 0 ? -errno : read_answer(o, out);
}

/* The tables. ------------------------------------------------------------------------------------------------------ */

/* As the tables print it: words of 32 bits, each in this machine's order. */
static void table_text(const struct socket_end *end, bool v6, char out[48]) {
  uint8_t bytes[16] = {[10] = 0xff, [11] = 0xff};
  size_t n = v6 ? 16 : 4, at = 0;
  memcpy(bytes + (v6 && end->addr.family == 4 ? 12 : 0), end->addr.bytes, end->addr.family == 4 ? 4 : 16);
  for (size_t i = 0; i < n; i += 4) {
    uint32_t word;
    memcpy(&word, bytes + i, sizeof word);
    at += (size_t)snprintf(out + at, 48 - at, "%08X", word);
  }
  snprintf(out + at, 48 - at, ":%04X", end->port);
}

/* 0, -ENOENT, or -EIO: the table cannot be read. */
static int search_table(const char *path, bool v6, const struct socket_end *from, const struct socket_end *to,
                        struct found *out) {
  char want_from[48], want_to[48], line[LINE_MAX_OF_TABLE];
  FILE *f = fopen(path, "re");
  if (!f && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) return -ENOENT; /* others can cause that */
  if (!f) return -EIO;
  int rc = -ENOENT;
  table_text(from, v6, want_from);
  table_text(to, v6, want_to);
  while (rc && fgets(line, sizeof line, f)) {
    char is_from[48], is_to[48];
    unsigned state, uid;
    unsigned long inode;
    if (sscanf(line, " %*d: %47s %47s %x %*s %*s %*s %u %*s %lu", is_from, is_to, &state, &uid, &inode) != 5) continue;
    if (strcmp(is_from, want_from) != 0 || strcmp(is_to, want_to) != 0) continue;
    *out = (struct found){.uid = uid, .inode = inode, .state = state};
    rc = 0;
  }
  fclose(f);
  return rc;
}

/* An IPv4 connection is in the other table if its process has a dual-stack socket. */
static int search_tables(const struct socket_end *from, const struct socket_end *to, struct found *out) {
  int v4 = from->addr.family == 4 ? search_table("/proc/self/net/tcp", false, from, to, out) : -ENOENT;
  if (v4 == 0) return 0;
  int v6 = search_table("/proc/self/net/tcp6", true, from, to, out);
  return v6 == -EIO && from->addr.family == 4 ? v4 : v6;
}

/* Both. ------------------------------------------------------------------------------------------------------------ */

/* Whether the kernel finds a listening socket of ours. */
static bool finds_own(struct socket_owners *o) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  struct socket_end own = {.addr = {.family = 4, .bytes = {127, 0, 0, 1}}}, none = {.addr = {.family = 4}};
  struct found found = {.inode = 0};
  socklen_t len = sizeof a;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool ok = fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0 &&
            getsockname(fd, (struct sockaddr *)&a, &len) == 0;
  own.port = ntohs(a.sin_port);
  ok = ok && ask_kernel(o, &own, &none, &found) == 0 && found.state == STATE_LISTEN;
  if (fd >= 0) close(fd);
  return ok;
}

void socket_owners_init(struct socket_owners *o) {
  *o = (struct socket_owners){.netlink = -1};
}

void socket_owners_close(struct socket_owners *o) {
  if (o->netlink >= 0) close(o->netlink);
  o->netlink = -1;
}

/* One that is only dialing is not the one that somebody has accepted, though it has its numbers. */
static bool is_connection(unsigned state) {
  return state != STATE_SYN_SENT && state != STATE_TIME_WAIT && state != STATE_LISTEN;
}

enum socket_owner_answer socket_owner_find(struct socket_owners *o, const struct socket_end *from,
                                           const struct socket_end *to, struct socket_owner *out) {
  struct found found = {.inode = 0};
  if (!from->addr.family || from->addr.family != to->addr.family) return SOCKET_OWNER_GONE;
  if (!o->asked) {
    o->asked = true;
    o->netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
    if (o->netlink >= 0 && !finds_own(o)) socket_owners_close(o);
  }
  int rc = o->netlink >= 0 ? ask_kernel(o, from, to, &found) : -EIO;
  if (rc && rc != -ENOENT) rc = search_tables(from, to, &found);
  if (rc == -ENOENT) return SOCKET_OWNER_GONE;
  if (rc) return SOCKET_OWNER_UNKNOWN;
  if (!found.inode || !is_connection(found.state)) return SOCKET_OWNER_GONE;
  *out = (struct socket_owner){.uid = found.uid, .inode = found.inode};
  return SOCKET_OWNER_FOUND;
}

bool socket_owner_process(const struct socket_owner *owner, struct port_holder *h) {
  return port_holder_of(owner->inode, owner->uid, h);
}
