/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's connections.
 *
 *   accept -> limits -> first bytes -> c10d: the descriptor goes to the common store's server
 *                                   -> native: a channel -> GREETING -> messages go up -> identified (by the owner)
 *                                   -> HTTP: one request, one answer (daemon/server/http.c), closed
 *                                   -> anything else: closed
 *
 * Every way out but the owner's own ends in one log line that names the peer. Lines about unidentified peers go through
 * rations_log, because a stranger can cause them.
 *
 * A peer shows whose key it has when it opens its channel. The daemon's own key stands for the daemon's user. Each other
 * user's key is derived from it, so none is stored. With --insecure connections are plain, and nobody is known.
 *
 * Connections are numbered in the order of their accepts. The table that finds them is indexed by the number's low bits
 * and at most half full. A number with an occupied slot is skipped, so there are no collisions, and an effect for a
 * closed connection finds nothing.
 *
 * Until its first bytes have shown the protocol a connection is only a descriptor, so that of a PyTorch client can be
 * handed over with the bytes that were read. A silent connection is handed over at its deadline if the store's server
 * takes it for the silent second one of a PyTorch 1.13 client; only that server knows the first. Every other connection
 * becomes a struct conn, which looks at the bytes again.
 *
 * Unidentified connections wait in two rooms (daemon/server/newcomers.h): strangers, then those that speak our frames.
 * The order in a room is that of the deadlines. So there is no timer per connection: the server asks for the first
 * deadline and calls peers_expire. A stranger whose last bytes are still on their way out, such as an answer over HTTP,
 * stays until its descriptor is closed, so the limits hold for it too.
 *
 * A newcomer is never refused for the sake of connections that have said nothing: at a limit, the one gives way that
 * newcomers.h names. Strangers give way first. Only identified connections keep a newcomer out, and root's rdzvctl has
 * room beyond that. */

#include "daemon/server/peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "common/system/rations.h"
#include "daemon/server/control_socket.h"
#include "daemon/server/munge_desk.h"
#include "daemon/server/newcomers.h"
#include "proto/acceptor.h"
#include "proto/munge_ask.h"
#include "proto/socket.h"

enum { SHOWN_BYTES = 32, SHOWN_REQUEST = 120, FIRST_BYTES = 4096 };

/* A connection whose protocol is not known yet. */
struct arrival {
  uv_poll_t poll; /* first */
  struct peer *peer;
  int fd;
};

struct peer {
  struct newcomer newcomer; /* first; in a waiting room */
  struct arrival *arrival;  /* NULL: conn is in use */
  struct conn conn;
  struct peers *peers;
  uint64_t id; /* 0: has no place in the table (yet, or no longer) */
  char *name;  /* "10.0.0.1:4242", later what the owner calls it */
  bool local, identified, native;
  struct buf first;   /* arrival: the bytes that have come */
  struct buf request; /* HTTP, MUNGE: the bytes so far */
  size_t request_seen;
  bool http;
  bool asked;                  /* local: its one question */
  struct munge_request *munge; /* waits for an answer; NULL: none */
  int64_t uid;                 /* of the key, or of the process at the control socket; -1: unknown */
  char user[32];               /* local: limits count per user */
  struct ipaddr ip;
  uint16_t port;
  char addr[INET6_ADDRSTRLEN], local_addr[INET6_ADDRSTRLEN];
};

struct peers {
  uv_loop_t *loop;
  struct peers_callbacks cb;
  void *ctx;
  struct acceptor acceptor;
  struct peer **slots;
  size_t n_slots; /* a power of two */
  size_t n_open, max;
  size_t n_held; /* descriptors: n_open, and those that are being closed */
  uint64_t serial;
  struct newcomers strangers, natives; /* the two rooms */
  uint64_t weighed_ms;                 /* when weigh() ran last */
  bool closed;
  struct rations rations;
  struct c10d_server *store;
  const struct key *key; /* NULL: --insecure */
  enum channel_source key_source;
  struct munge_desk *munge; /* NULL: --insecure */
  struct ephemeral *ephemeral;
};

#define say(p, level, ...) rations_log(&(p)->peers->rations, where(p), monotonic_ms(), level, __VA_ARGS__)

/* Limits are counted under this name. */
static const char *where(const struct peer *p) {
  return p->local ? p->user : p->addr;
}

/* The table -------------------------------------------------------------------------------------------------------- */

static struct peer **slot_of(const struct peers *ps, uint64_t id) {
  return &ps->slots[id & (ps->n_slots - 1)];
}

static struct peer *find(const struct peers *ps, uint64_t id) {
  struct peer *p = ps->n_slots ? *slot_of(ps, id) : NULL;
  return p && p->id == id ? p : NULL;
}

/* Numbers that differ in a small table differ in a larger one. */
static void grow_table(struct peers *ps) {
  struct peer **old = ps->slots;
  size_t n = ps->n_slots;
  ps->n_slots = n ? 2 * n : 64;
  ps->slots = xcalloc(ps->n_slots, sizeof(*ps->slots));
  for (size_t i = 0; i < n; i++)
    if (old[i]) *slot_of(ps, old[i]->id) = old[i];
  free(old);
}

static void take_slot(struct peer *p) {
  struct peers *ps = p->peers;
  if (2 * ps->n_open >= ps->n_slots) grow_table(ps);
  do p->id = ++ps->serial;
  while (*slot_of(ps, p->id));
  *slot_of(ps, p->id) = p;
  ps->n_open++;
}

static void leave_slot(struct peer *p) {
  if (!p->id) return;
  *slot_of(p->peers, p->id) = NULL;
  p->peers->n_open--;
  p->id = 0;
}

/* The waiting rooms ------------------------------------------------------------------------------------------------ */

static struct peer *peer_of(struct newcomer *n) {
  return (struct peer *)n;
}

/* Whether those who wait could hold more bytes than they may. */
static bool is_crowded(const struct peers *ps) {
  return ps->strangers.count + ps->natives.count > PEERS_UNIDENTIFIED_BYTES / FRAME_MAX_UNIDENTIFIED;
}

static void enter_room(struct peer *p, struct newcomers *room) {
  struct peers *ps = p->peers;
  uint64_t before = peers_deadline(ps);
  newcomers_enter(room, &p->newcomer, where(p), monotonic_ms());
  if (peers_deadline(ps) < before) ps->cb.on_deadline(ps->ctx);
}

static void leave_room(struct peer *p) {
  newcomers_leave(p->native ? &p->peers->natives : &p->peers->strangers, &p->newcomer);
}

/* Its descriptor is closed, or the store's. */
static void free_peer(struct peer *p) {
  leave_room(p);
  p->peers->n_held--;
  buf_finish(&p->first);
  buf_finish(&p->request);
  free(p->name);
  free(p);
}

static void on_arrival_closed(uv_handle_t *handle) {
  struct arrival *a = (struct arrival *)handle;
  if (a->peer) free_peer(a->peer);
  free(a);
}

/* Its descriptor, which libuv polls no more. */
static int end_arrival(struct peer *p) {
  struct arrival *a = p->arrival;
  p->arrival = NULL;
  a->peer = NULL;
  uv_close((uv_handle_t *)&a->poll, on_arrival_closed);
  return a->fd;
}

/* The end of a connection: out of the table at once, freed when libuv has let go of it. */
static void drop(struct peer *p, bool flush) {
  leave_room(p);
  leave_slot(p);
  if (p->munge) munge_desk_cancel(p->munge);
  p->munge = NULL;
  p->native = false;
  if (p->arrival) {
    uv_close((uv_handle_t *)&p->arrival->poll, on_arrival_closed);
    close(p->arrival->fd);
    peers_resume(p->peers);
  } else if (!flush)
    conn_close(&p->conn);
  else {
    conn_close_flushed(&p->conn);
    if (!p->identified) enter_room(p, &p->peers->strangers); /* until it is closed */
  }
}

static struct peer_info info_of(const struct peer *p) {
  return (struct peer_info){.id = p->id,
                            .peer_addr = p->addr,
                            .local_addr = p->local_addr,
                            .name = p->name,
                            .local = p->local,
                            .uid = p->uid};
}

static void drop_and_tell(struct peer *p, bool flush) {
  struct peer_info info = info_of(p);
  drop(p, flush);
  p->peers->cb.on_gone(p->peers->ctx, &info);
}

/* Callbacks of a connection ---------------------------------------------------------------------------------------- */

static void send_greeting(struct conn *c) {
  struct msg m;
  msg_init(&m, MSG_GREETING);
  m.greeting.version = PROTO_VERSION;
  conn_send(c, &m);
}

/* The key of a user; the daemon's own may have been made for a user, too. */
static enum channel_status on_opening(struct conn *c, int64_t uid, struct conn_terms *t) {
  const struct peer *p = c->owner;
  const struct key *own = p->peers->key;
  if (!own || p->local) return CHANNEL_NO_KEY;
  t->source = p->peers->key_source;
  t->ephemeral = p->peers->ephemeral;
  if (uid == own->uid)
    t->key = *own;
  else if (own->uid == KEY_OWN)
    key_derive(own, (uint32_t)uid, &t->key);
  else
    return CHANNEL_WRONG_KEY;
  return CHANNEL_OK;
}

static void send_refused(struct peer *p, int code, const char *text) {
  struct msg m;
  msg_init(&m, MSG_REFUSED);
  m.refused.code = code;
  m.refused.text = text;
  conn_send(&p->conn, &m);
}

static void refuse_plain(struct peer *p) {
  say(p, LOG_WARN, "%s: refused: it has no key (--insecure)", p->name);
  send_greeting(&p->conn);
  send_refused(p, EXIT_CODE_REFUSED, "this rdzvd has a key, and serves nobody without it: leave --insecure out");
  drop_and_tell(p, true);
}

static void on_native(struct conn *c) {
  struct peer *p = c->owner;
  bool sealed = c->channel.state == CHANNEL_IS_SEALED;
  if (p->peers->key && !p->local && !sealed) {
    refuse_plain(p);
    return;
  }
  if (sealed) p->uid = c->uid == p->peers->key->uid ? (int64_t)geteuid() : c->uid;
  leave_room(p);
  p->native = true;
  enter_room(p, &p->peers->natives);
  send_greeting(c);
}

/* MUNGE ------------------------------------------------------------------------------------------------------------ */

static void on_munge(void *ctx, enum channel_status status, const char *bytes, size_t len) {
  struct peer *p = ctx;
  struct buf answer = BUF_INIT;
  p->munge = NULL;
  if (status == CHANNEL_MUNGE_REFUSED) say(p, LOG_WARN, "%s: gets no key: %.*s", p->name, (int)len, bytes);
  munge_ask_answer(&answer, status, p->peers->key_source, bytes, len);
  conn_send_bytes(&p->conn, bytes_create(answer.data, answer.len));
  buf_finish(&answer);
  drop(p, true);
}

static void take_question(struct peer *p) {
  struct slice credential;
  int rc = munge_ask_find(p->request.data, p->request.len, &credential);
  if (rc == 0) return;
  uv_read_stop(&p->conn.stream);
  if (rc < 0)
    on_munge(p, CHANNEL_MUNGE_REFUSED, munge_ask_malformed, strlen(munge_ask_malformed));
  else
    p->munge = munge_desk_ask(p->peers->munge, credential.data, credential.len, on_munge, p);
}

static void on_question_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct peer *p = ((struct conn *)stream->data)->owner;
  if (n < 0) {
    drop(p, false);
  } else if (n > 0) {
    buf_append(&p->request, b->base, (size_t)n);
    take_question(p);
  }
}

static void on_request_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out);

static void begin_munge(struct peer *p, const char *data, size_t len) {
  if (!p->peers->munge) {
    on_munge(p, CHANNEL_NO_KEY, NULL, 0);
    return;
  }
  buf_append(&p->request, data, len);
  if (uv_read_start(&p->conn.stream, on_request_alloc, on_question_read) != 0)
    drop(p, false);
  else
    take_question(p);
}

static void on_msg(struct conn *c, struct msg *m) {
  struct peer *p = c->owner;
  log_debug("%s: %s", p->name, msg_name(m->type));
  if (p->local && m->type != MSG_CONTROL) {
    say(p, LOG_WARN, "%s: %s refused: the control socket is for rdzvctl", p->name, msg_name(m->type));
    send_refused(p, EXIT_CODE_USAGE, "this is the daemon's control socket, for rdzvctl; agents connect to its port");
    drop(p, true);
    return;
  }
  if (p->asked) return; /* one question is one turn of the loop: a thousand in one packet would be one turn too */
  p->asked = p->local;
  struct peer_info info = info_of(p);
  p->peers->cb.on_msg(p->peers->ctx, &info, m);
}

/* HTTP ------------------------------------------------------------------------------------------------------------- */

static void answer_http(struct peer *p, enum http_status status, bool head, const char *text) {
  struct buf answer = BUF_INIT;
  uv_read_stop(&p->conn.stream);
  http_put_answer(&answer, status, head, text);
  conn_send_bytes(&p->conn, bytes_create(answer.data, answer.len));
  buf_finish(&answer);
  drop(p, true);
}

/* Probes come every few seconds, so only an answer other than 200 is worth a line. */
static void log_http(struct peer *p, const struct http_request *r, enum http_status status, const char *text) {
  struct buf line = BUF_INIT;
  buf_put_escaped(&line, r->line, r->line_len, SHOWN_REQUEST);
  if (status == HTTP_OK)
    log_debug("%s: HTTP: \"%s\" is answered with %d", p->name, buf_text(&line), (int)status);
  else
    say(p, LOG_INFO, "%s: HTTP: \"%s\" is answered with %d, %.*s", p->name, buf_text(&line), (int)status,
        (int)strcspn(text, "\n"), text);
  buf_finish(&line);
}

static void take_request(struct peer *p) {
  struct http_request r;
  struct buf text = BUF_INIT;
  uv_os_fd_t fd = -1;
  enum http_status status = http_parse(p->request.data, p->request.len, &p->request_seen, &r);
  if (status == HTTP_MORE) return;
  if (status == HTTP_OK) {
    uv_fileno(&p->conn.handle, &fd);
    status = p->peers->cb.on_request(p->peers->ctx, fd, &r, &text);
  } else {
    buf_printf(&text, "%s\n", r.why);
  }
  log_http(p, &r, status, buf_text(&text));
  answer_http(p, status, r.head, buf_text(&text));
  explicit_bzero(p->request.data, p->request.len); /* a token may be in it */
  buf_finish(&text);
}

static void on_request_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  static char room[HTTP_HEAD_MAX]; /* copied before the next read */
  *out = uv_buf_init(room, sizeof(room));
}

static void on_request_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct peer *p = ((struct conn *)stream->data)->owner;
  if (n < 0) {
    log_debug("%s: HTTP: closed before its request was complete: %s", p->name, uv_strerror((int)n));
    drop(p, false);
  } else if (n > 0) {
    buf_append(&p->request, b->base, (size_t)n);
    take_request(p);
  }
}

static void begin_http(struct peer *p, const char *data, size_t len) {
  p->http = true;
  buf_append(&p->request, data, len);
  if (uv_read_start(&p->conn.stream, on_request_alloc, on_request_read) != 0)
    drop(p, false);
  else
    take_request(p);
}

/* The store -------------------------------------------------------------------------------------------------------- */

/* Its clients never say who they are, so they must leave room. */
static int check_store(const struct peers *ps, struct err *e) {
  if (!ps->store)
    return err_set(e, -EPROTONOSUPPORT,
                   "it is a client of PyTorch's TCPStore (torchrun?), and this rdzvd serves none: start rdzvd with "
                   "--c10d, or rdzv-agent instead of torchrun");
  size_t n = c10d_server_connections(ps->store);
  if (2 * n < ps->max) return 0;
  return err_set(e, -EMFILE, "the common store has %zu connections already, which is its half of the limit (ulimit -n)",
                 n);
}

static void hand_over(struct peer *p) {
  struct err e = ERR_INIT;
  leave_slot(p);
  int fd = end_arrival(p);
  if (check_store(p->peers, &e) < 0) {
    close(fd);
    peers_resume(p->peers);
  } else {
    log_debug("%s: is a client of the common store", p->name);
    c10d_server_adopt(p->peers->store, fd, &p->ip, p->port, p->first.data, p->first.len, &e);
  }
  if (e.code < 0) say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
  free_peer(p);
}

static bool is_silent(const struct peer *p) {
  return p->arrival && p->first.len == 0;
}

/* True: it is the store's now. Else it is polled no more. */
static bool hand_over_silent(struct peer *p) {
  if (!p->peers->store || !is_silent(p)) return false;
  uv_poll_stop(&p->arrival->poll);
  if (!c10d_server_adopt_silent(p->peers->store, p->arrival->fd, &p->ip, p->port)) return false;
  leave_slot(p);
  end_arrival(p);
  free_peer(p);
  return true;
}

/* First bytes ------------------------------------------------------------------------------------------------------ */

/* The stream is ours afterwards in any case. */
static bool on_foreign(struct conn *c, enum frame_protocol protocol, const char *data, size_t len) {
  struct peer *p = c->owner;
  if (protocol == FRAME_PROTOCOL_HTTP && !p->local) {
    begin_http(p, data, len);
    return true;
  }
  if (protocol == FRAME_PROTOCOL_MUNGE && !p->local) {
    begin_munge(p, data, len);
    return true;
  }
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, data, len, SHOWN_BYTES);
  say(p, LOG_WARN, "%s: closed: it speaks an unknown protocol, which begins with \"%s\"", p->name, buf_text(&shown));
  buf_finish(&shown);
  drop(p, false);
  return true;
}

/* GREETING has our version, and its layout is the same in all versions (PROTOCOL.md 11): the peer can name both. */
static void refuse_version(struct peer *p) {
  char text[160];
  snprintf(text, sizeof(text),
           "it speaks version %u of the frames, this rdzvd speaks version %d; use the same version of rdzv on "
           "all nodes",
           p->conn.other_version, FRAME_VERSION);
  send_greeting(&p->conn);
  send_refused(p, EXIT_CODE_REFUSED, text);
}

/* It speaks our frames, but its message is wrong. Another attempt would not help it, so it gets the reason. */
static void refuse_malformed(struct peer *p, const char *reason) {
  char text[400];
  snprintf(text, sizeof(text), "the daemon does not understand this peer: %s", reason);
  send_refused(p, EXIT_CODE_REFUSED, text);
}

static void on_end(struct conn *c, int code, const char *reason) {
  struct peer *p = c->owner;
  bool malformed = code == -EPROTO || code == -EMSGSIZE, refused = code == -EACCES || code == -EBADMSG;
  if (p->identified)
    log_line(malformed || refused ? LOG_WARN
             : code < 0           ? LOG_INFO
                                  : LOG_DEBUG,
             "%s: connection closed: %s", p->name, reason);
  else
    say(p, malformed || refused ? LOG_WARN : LOG_DEBUG, "%s: %s: %s", p->name, refused ? "refused" : "closed", reason);
  if (p->conn.other_version)
    refuse_version(p);
  else if (malformed && p->native && !p->identified)
    refuse_malformed(p, reason);
  drop_and_tell(p, malformed || refused);
}

static void on_closed(struct conn *c) {
  struct peer *p = c->owner;
  peers_resume(p->peers);
  free_peer(p);
}

static const struct conn_callbacks peer_callbacks = {.on_msg = on_msg,
                                                     .on_opening = on_opening,
                                                     .on_native = on_native,
                                                     .on_foreign = on_foreign,
                                                     .on_end = on_end,
                                                     .on_closed = on_closed};

/* Accepting -------------------------------------------------------------------------------------------------------- */

static void name_peer(struct peer *p, int fd) {
  struct ipaddr local;
  uint16_t port;
  socket_local(fd, &local, &port);
  socket_format(&local, p->local_addr);
  socket_format(&p->ip, p->addr);
  p->name = xasprintf(p->ip.family == 6 ? "[%s]:%d" : "%s:%d", p->addr, p->port);
}

/* Any user may connect: each request is checked later. */
static int name_local(struct peer *p, int fd, struct err *e) {
  pid_t pid = 0;
  uid_t uid = (uid_t)-1;
  int rc = control_socket_peer(fd, &pid, &uid, e);
  p->uid = rc < 0 ? -1 : (int64_t)uid;
  snprintf(p->user, sizeof(p->user), "control socket, uid %u", (unsigned)uid);
  p->name = xasprintf("control socket (pid %d, uid %u)", (int)pid, (unsigned)uid);
  return rc;
}

static bool is_administrator(const struct peer *p) {
  return p->local && (p->uid == 0 || p->uid == (int64_t)geteuid());
}

/* Of one source, without those that have said who they are. */
static size_t max_of_source(const struct peer *p) {
  size_t quarter = p->peers->max / 4;
  if (p->local && !is_administrator(p)) return PEERS_PER_USER_MAX;
  if (quarter < PEERS_PER_ADDRESS_MIN) return PEERS_PER_ADDRESS_MIN;
  return quarter < PEERS_PER_ADDRESS_MAX ? quarter : PEERS_PER_ADDRESS_MAX;
}

/* Of all. A user cannot take the last places from the administrator. */
static size_t max_of_all(const struct peer *p) {
  size_t more = !p->local ? 0 : is_administrator(p) ? PEERS_CONTROL_MORE : PEERS_CONTROL_MORE / 2;
  return p->peers->max + more;
}

static size_t count_all(const struct peers *ps) {
  return ps->n_held + (ps->store ? c10d_server_connections(ps->store) : 0);
}

/* Closes the one that gives way, for the reason in `why`. False: there is none. */
static bool push_out(struct newcomer *n, const char *why) {
  if (!n) return false;
  struct peer *p = peer_of(n);
  if (p->id) {
    say(p, LOG_WARN, "%s: closed to make room: %s", p->name, why);
    drop_and_tell(p, false);
  } else { /* its answer is on its way out */
    leave_room(p);
    conn_close(&p->conn);
  }
  return true;
}

static void make_room_of_source(const struct peer *p) {
  struct peers *ps = p->peers;
  size_t max = max_of_source(p);
  char why[96];
  snprintf(why, sizeof(why), "%zu connections of this %s have not said who they are", max,
           p->local ? "user" : "address");
  while (newcomers_of(&ps->strangers, where(p)) + newcomers_of(&ps->natives, where(p)) >= max)
    if (!push_out(newcomers_oldest_of(&ps->strangers, where(p)), why))
      push_out(newcomers_oldest_of(&ps->natives, where(p)), why);
}

static int make_room(const struct peer *p, struct err *e) {
  struct peers *ps = p->peers;
  size_t max = max_of_all(p);
  char why[96];
  make_room_of_source(p);
  if (ps->closed) return err_sys(e, -ESHUTDOWN, "this daemon is stopping");
  if (count_all(ps) <= max) return 0; /* with p */
  snprintf(why, sizeof(why), "there are %zu connections, which is the limit (ulimit -n)", max);
  if (push_out(newcomers_crowded_out(&ps->strangers), why) || push_out(newcomers_crowded_out(&ps->natives), why))
    return 0;
  return err_set(e, -EMFILE, "there are %zu connections already, which is the limit (ulimit -n)", max);
}

/* The connection becomes a struct conn. fd is its own, or closed. */
static int open_conn(struct peer *p, int fd, struct err *e) {
  if (p->local)
    conn_init_pipe(&p->conn, p->peers->loop, &peer_callbacks, p, true);
  else
    conn_init_tcp(&p->conn, p->peers->loop, &peer_callbacks, p, true);
  int rc = p->local ? uv_pipe_open(&p->conn.pipe, fd) : uv_tcp_open(&p->conn.tcp, fd);
  if (rc == 0) return conn_start(&p->conn, PEERS_IDENTIFY_MS, e);
  close(fd);
  return err_sys(e, rc, "cannot open a connection");
}

/* With a status below 0 libuv polls the descriptor no more: what has come must decide now, or the connection ends. */
static void on_first_bytes(uv_poll_t *poll, int status, int events) {
  struct peer *p = ((struct arrival *)poll)->peer;
  enum frame_protocol protocol = FRAME_PROTOCOL_MORE;
  while (protocol == FRAME_PROTOCOL_MORE) {
    char data[FIRST_BYTES];
    ssize_t n = recv(p->arrival->fd, data, sizeof(data), MSG_DONTWAIT);
    bool nothing = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (nothing && status >= 0) return;
    if (n <= 0) {
      const char *why = n == 0 ? "closed by the peer" : nothing ? "its socket has failed" : strerror(errno);
      say(p, LOG_DEBUG, "%s: closed: %s", p->name, why);
      drop_and_tell(p, false);
      return;
    }
    buf_append(&p->first, data, (size_t)n);
    protocol = frame_detect(p->first.data, p->first.len);
    if (protocol == FRAME_PROTOCOL_MORE && status >= 0) return;
  }
  if (protocol == FRAME_PROTOCOL_C10D || protocol == FRAME_PROTOCOL_C10D_OLD) {
    hand_over(p);
    return;
  }
  struct err e = ERR_INIT;
  struct buf first = p->first;
  p->first = (struct buf)BUF_INIT;
  if (open_conn(p, end_arrival(p), &e) < 0) {
    say(p, LOG_WARN, "%s: closed: %s", p->name, e.text);
    drop_and_tell(p, false);
  } else {
    conn_feed(&p->conn, first.data, first.len);
  }
  buf_finish(&first);
}

/* In case of an error fd is the caller's. */
static int begin_arrival(struct peer *p, int fd, struct err *e) {
  struct arrival *a = xcalloc(1, sizeof(*a));
  int rc = uv_poll_init(p->peers->loop, &a->poll, fd);
  if (rc < 0) {
    free(a);
    return err_sys(e, rc, "cannot poll a connection");
  }
  a->peer = p;
  a->fd = fd;
  p->arrival = a;
  rc = uv_poll_start(&a->poll, UV_READABLE, on_first_bytes);
  if (rc == 0) return 0;
  end_arrival(p);
  return err_sys(e, rc, "cannot poll a connection");
}

static void on_accept(void *ctx, int fd, bool local, const struct ipaddr *ip, uint16_t port) {
  struct peer *p = xcalloc(1, sizeof(*p));
  struct err e = ERR_INIT;
  p->peers = ctx;
  p->local = local;
  p->uid = -1;
  p->ip = *ip;
  p->port = port;
  p->peers->n_held++;
  if (!p->local) name_peer(p, fd);
  int rc = p->local ? name_local(p, fd, &e) : 0;
  if (rc == 0) rc = make_room(p, &e);
  if (rc == 0 && !p->local) rc = begin_arrival(p, fd, &e);
  if (rc < 0) {
    say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
    close(fd);
    free_peer(p);
    return;
  }
  take_slot(p);
  enter_room(p, &p->peers->strangers);
  if (p->local && open_conn(p, fd, &e) < 0) {
    say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
    drop(p, false);
    return;
  }
  log_debug("%s: is connection %llu", p->name, (unsigned long long)p->id);
}

static void on_accept_pause(void *ctx, int code) {
  struct peers *ps = ctx;
  rations_log(&ps->rations, "accept", monotonic_ms(), LOG_ERROR, "accept: %s", strerror(-code));
}

static void on_acceptor_closed(void *ctx) {}

int peers_listen(struct peers *ps, int fd, bool control, struct err *e) {
  return acceptor_listen(&ps->acceptor, fd, control, C10D_USER_TIMEOUT_MS, e);
}

/* For the owner ---------------------------------------------------------------------------------------------------- */

static const struct acceptor_callbacks acceptor_callbacks = {on_accept, on_accept_pause, on_acceptor_closed};

struct peers *peers_create(const struct peers_options *o) {
  struct peers *ps = xcalloc(1, sizeof(*ps));
  ps->loop = o->loop;
  ps->cb = *o->cb;
  ps->ctx = o->ctx;
  ps->max = o->max < PEERS_MAX ? o->max : PEERS_MAX;
  ps->key = o->key;
  ps->key_source = o->key_source;
  ps->ephemeral = ephemeral_create();
  if (o->key) ps->munge = munge_desk_create(o->loop, o->key);
  acceptor_init(&ps->acceptor, o->loop, &acceptor_callbacks, ps);
  rations_init(&ps->rations, o->seed);
  newcomers_init(&ps->strangers, o->seed);
  newcomers_init(&ps->natives, o->seed);
  return ps;
}

void peers_destroy(struct peers *ps) {
  if (!ps) return;
  rations_finish(&ps->rations);
  ephemeral_destroy(ps->ephemeral);
  newcomers_finish(&ps->strangers);
  newcomers_finish(&ps->natives);
  free(ps->slots);
  free(ps);
}

void peers_set_store(struct peers *ps, struct c10d_server *store) {
  ps->store = store;
}

void peers_resume(struct peers *ps) {
  acceptor_resume(&ps->acceptor);
}

bool peers_silent_beside(const struct peers *ps, const struct ipaddr *addr) {
  uint64_t now = monotonic_ms();
  for (struct newcomer *n = ps->strangers.oldest; n && now - n->since_ms >= C10D_SETTLE_MS; n = n->newer) {
    const struct peer *p = peer_of(n);
    if (is_silent(p) && ipaddr_compare(&p->ip, addr) == 0) return true;
  }
  return false;
}

void peers_send(struct peers *ps, uint64_t id, struct bytes *b) {
  struct peer *p = find(ps, id);
  if (p)
    conn_send_bytes(&p->conn, b);
  else
    bytes_unref(b);
}

void peers_close(struct peers *ps, uint64_t id) {
  struct peer *p = find(ps, id);
  if (p) drop(p, true);
}

void peers_identify(struct peers *ps, uint64_t id, const char *name, unsigned user_timeout_ms) {
  struct peer *p = find(ps, id);
  if (!p) return;
  log_debug("%s: is %s", p->name, name);
  leave_room(p);
  p->identified = true;
  free(p->name);
  p->name = xstrdup(name);
  p->conn.max_body = FRAME_MAX_TO_DAEMON;
  conn_set_user_timeout(&p->conn, user_timeout_ms);
}

size_t peers_undecided(const struct peers *ps) {
  return ps->natives.count;
}

uint64_t peers_deadline(const struct peers *ps) {
  const struct newcomer *const oldest[] = {ps->strangers.oldest, ps->natives.oldest};
  uint64_t at = is_crowded(ps) ? ps->weighed_ms + PEERS_WEIGH_MS : UINT64_MAX;
  for (int i = 0; i < 2; i++)
    if (oldest[i]) at = earliest(at, oldest[i]->since_ms + PEERS_IDENTIFY_MS);
  return at;
}

static size_t bytes_of(const struct peer *p) {
  return p->first.cap + p->request.cap + (p->arrival ? 0 : p->conn.wire.cap + p->conn.in.cap);
}

static size_t bytes_in(const struct newcomers *room) {
  size_t sum = 0;
  for (struct newcomer *n = room->oldest; n; n = n->newer) sum += bytes_of(peer_of(n));
  return sum;
}

/* An unfinished message may be long, but many of them together may not. Those who began long ago give way. */
static void weigh(struct peers *ps, uint64_t now) {
  struct newcomers *const rooms[] = {&ps->strangers, &ps->natives};
  size_t sum = bytes_in(rooms[0]) + bytes_in(rooms[1]);
  ps->weighed_ms = now;
  for (int i = 0; i < 2; i++)
    for (struct newcomer *n = rooms[i]->oldest, *newer; n && sum > PEERS_UNIDENTIFIED_BYTES; n = newer) {
      size_t bytes = bytes_of(peer_of(n));
      newer = n->newer;
      if (bytes == 0) continue;
      sum -= bytes;
      push_out(n, "unfinished messages of unidentified connections take too much memory");
    }
}

void peers_expire(struct peers *ps, uint64_t now) {
  if (is_crowded(ps) && now >= ps->weighed_ms + PEERS_WEIGH_MS) weigh(ps, now);
  while (now >= peers_deadline(ps)) {
    /* each branch takes it out of its room, or gives it a later deadline */
    bool native =
        !ps->strangers.oldest || (ps->natives.oldest && ps->natives.oldest->since_ms < ps->strangers.oldest->since_ms);
    struct peer *p = peer_of(native ? ps->natives.oldest : ps->strangers.oldest);
    if (!p->id) { /* its answer is on its way out */
      leave_room(p);
      conn_close(&p->conn);
      continue;
    }
    if (hand_over_silent(p)) continue;
    if (p->http) {
      answer_http(p, HTTP_REQUEST_TIMEOUT, false, "this request is incomplete\n");
      continue;
    }
    say(p, LOG_WARN, "%s: closed: %s within %d s", p->name,
        p->native ? "it did not say who it is" : "it sent nothing that rdzvd understands", PEERS_IDENTIFY_MS / 1000);
    drop_and_tell(p, false);
  }
}

void peers_close_all(struct peers *ps) {
  ps->store = NULL;
  ps->closed = true;
  acceptor_close(&ps->acceptor);
  for (size_t i = 0; i < ps->n_slots; i++)
    if (ps->slots[i]) drop(ps->slots[i], true);
  munge_desk_destroy(ps->munge);
  ps->munge = NULL;
}
