/* The daemon's connections.
 *
 *   accept -> limits -> first bytes -> native: CHALLENGE -> messages go up -> identified (by the owner)
 *                                   -> c10d: to the common store's server  -> HTTP: one request, one answer (daemon/http.c), closed
 *                                   -> anything else: closed
 *
 * Every way out but the owner's own ends in one log line that names the peer. Lines about peers that have not said who
 * they are go through addresses_log, because those are the ones that a stranger can make us write.
 *
 * Connections are numbered in the order of their accepts. The table that finds them is indexed by the number's low bits and at
 * most half full; a number whose place is taken is passed over, so there are no collisions to resolve, and a number that an
 * effect still carries after its connection is gone finds nobody.
 *
 * What speaks PyTorch's protocol is handed over as a descriptor of its own with the bytes that were read; our handle of it is closed. So is, when
 * its time is over, a connection that says nothing, where the store's server takes it for the silent second one of a PyTorch 1.13 client; only
 * that server knows the first.
 *
 * Unidentified connections stand in a list in the order of their accepts, which is that of their deadlines. There is
 * no timer per connection: the server asks for the first deadline and calls peers_expire. Who speaks HTTP stays in it until the request is
 * answered: so slow clients, and many of one address, have the limits that are there already.
 */

#include "daemon/server/peers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/rations.h"
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/mem.h"
#include "daemon/server/control_socket.h"
#include "daemon/server/http.h"

enum { NONCE_BYTES = 32, SHOWN_BYTES = 32, SHOWN_REQUEST = 120 };

struct peer {
  struct conn conn;
  struct peers *peers;
  struct peer *prev, *next; /* in the list of unidentified ones */
  uint64_t id;              /* 0: has no place in the table (yet, or any more) */
  uint64_t accepted_ms;
  char *name; /* "10.0.0.1:4242", later what the owner calls it */
  bool local, identified, native, listed;
  struct buf request; /* HTTP: what has come of it */
  size_t request_seen;
  bool http;
  bool asked;    /* local: its one question */
  uid_t uid;     /* local */
  char user[32]; /* local: what limits are counted under */
  char addr[ADDR_MAX + 1], local_addr[ADDR_MAX + 1];
};

struct listening {
  union {
    uv_handle_t handle;
    uv_stream_t stream;
    uv_tcp_t tcp;
    uv_pipe_t pipe;
  };
  struct peers *peers;
  struct listening *next;
  bool local;
};

struct peers {
  uv_loop_t *loop;
  struct peers_callbacks cb;
  void *ctx;
  struct listening *listening;
  struct peer **slots;
  size_t n_slots; /* a power of two */
  size_t n_open, max, undecided;
  uint64_t serial;
  struct peer *first, *last; /* unidentified */
  struct addresses addresses;
  struct c10d_server *store;
};

#define say(p, level, ...) addresses_log(&(p)->peers->addresses, where(p), monotonic_ms(), level, __VA_ARGS__)

/* What limits are counted under. */
static const char *where(const struct peer *p) {
  return p->local ? p->user : p->addr;
}

/* The table ----------------------------------------------------------------------------------------------------- */

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

static void list_unidentified(struct peer *p) {
  struct peers *ps = p->peers;
  bool is_first = !ps->first;
  p->prev = ps->last;
  *(ps->last ? &ps->last->next : &ps->first) = p;
  ps->last = p;
  p->listed = true;
  addresses_count(&ps->addresses, where(p), 1);
  if (is_first) ps->cb.on_deadline(ps->ctx);
}

static void unlist(struct peer *p) {
  if (!p->listed) return;
  struct peers *ps = p->peers;
  *(p->prev ? &p->prev->next : &ps->first) = p->next;
  *(p->next ? &p->next->prev : &ps->last) = p->prev;
  p->prev = p->next = NULL;
  p->listed = false;
  addresses_count(&ps->addresses, where(p), -1);
  if (p->native) ps->undecided--;
}

/* The end of a connection: out of the table at once, freed when libuv has let go of it. */
static void drop(struct peer *p, bool flush) {
  unlist(p);
  leave_slot(p);
  if (flush)
    conn_close_flushed(&p->conn);
  else
    conn_close(&p->conn);
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

/* Callbacks of a connection --------------------------------------------------------------------------------------- */

static void on_native(struct conn *c) {
  struct peer *p = c->owner;
  p->native = true;
  if (p->listed) p->peers->undecided++;
  unsigned char nonce[NONCE_BYTES];
  char hex[2 * NONCE_BYTES + 1];
  if (getrandom(nonce, sizeof(nonce), 0) != sizeof(nonce)) memset(nonce, 0, sizeof(nonce));
  for (size_t i = 0; i < sizeof(nonce); i++) snprintf(hex + 2 * i, 3, "%02x", nonce[i]);
  struct msg m;
  msg_init(&m, MSG_CHALLENGE);
  m.challenge.version = PROTO_VERSION;
  m.challenge.nonce = hex;
  m.challenge.auth = "none";
  conn_send(c, &m);
}

static void send_refused(struct peer *p, int code, const char *text) {
  struct msg m;
  msg_init(&m, MSG_REFUSED);
  m.refused.code = code;
  m.refused.text = text;
  conn_send(&p->conn, &m);
}

static void on_msg(struct conn *c, struct msg *m) {
  struct peer *p = c->owner;
  log_debug("%s: %s", p->name, msg_name(m->type));
  if (p->local && m->type != MSG_CONTROL) {
    say(p, LOG_WARN, "%s: %s refused: the control socket is for rdzvctl", p->name, msg_name(m->type));
    send_refused(p, EXIT_CODE_USAGE,
                 "this is the daemon's control socket, for rdzvctl; agents connect to its port");
    drop(p, true);
    return;
  }
  if (p->asked)
    return; /* one question is one turn of the loop: a thousand in one packet would be one turn too */
  p->asked = p->local;
  struct peer_info info = info_of(p);
  p->peers->cb.on_msg(p->peers->ctx, &info, m);
}

/* HTTP ----------------------------------------------------------------------------------------------------------- */

static void answer_http(struct peer *p, enum http_status status, bool head, const char *text) {
  struct buf answer = BUF_INIT;
  uv_read_stop(&p->conn.stream);
  http_put_answer(&answer, status, head, text);
  conn_send_bytes(&p->conn, bytes_create(answer.data, answer.len));
  buf_finish(&answer);
  drop(p, true);
}

/* Probes come every few seconds: what they are told is worth a line where it is not what they hope for. */
static void log_http(struct peer *p, const struct http_request *r, enum http_status status,
                     const char *text) {
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
  struct buf text = BUF_INIT, trouble = BUF_INIT;
  enum http_status status = http_parse(p->request.data, p->request.len, &p->request_seen, &r);
  if (status == HTTP_MORE) return;
  if (status == HTTP_OK) {
    p->peers->cb.get_trouble(p->peers->ctx, &trouble);
    status = http_route(&r, trouble.len ? buf_text(&trouble) : NULL, &text);
  } else {
    buf_printf(&text, "%s\n", r.why);
  }
  log_http(p, &r, status, buf_text(&text));
  answer_http(p, status, r.head, buf_text(&text));
  buf_finish(&text);
  buf_finish(&trouble);
}

static void on_request_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  static char room[HTTP_HEAD_MAX]; /* copied before the next read */
  *out = uv_buf_init(room, sizeof(room));
}

static void on_request_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct peer *p = ((struct conn *)stream->data)->owner;
  if (n < 0) {
    log_debug("%s: HTTP: gone before its request was whole: %s", p->name, uv_strerror((int)n));
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

/* The store ------------------------------------------------------------------------------------------------------ */

/* A descriptor that outlives our handle. */
static int copy_descriptor(const struct peer *p) {
  uv_os_fd_t fd;
  int rc = uv_fileno(&p->conn.handle, &fd);
  if (rc < 0) return rc;
  int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  return copy < 0 ? -errno : copy;
}

static void hand_over(struct peer *p, const char *data, size_t len) {
  struct err e = ERR_INIT;
  int fd = p->peers->store ? copy_descriptor(p) : -EPROTONOSUPPORT;
  if (fd < 0) err_sys(&e, fd, "cannot hand it to the common store");
  unlist(p);
  if (fd >= 0) log_debug("%s: is a client of the common store", p->name);
  if (fd < 0 || c10d_server_adopt(p->peers->store, fd, data, len, &e) < 0)
    say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
  drop(p, false);
}

/* True: it is the store's now. */
static bool hand_over_silent(struct peer *p) {
  if (!p->peers->store || p->local || p->native || p->http || p->conn.in.len > 0) return false;
  int fd = copy_descriptor(p);
  if (fd < 0) return false;
  if (c10d_server_adopt_silent(p->peers->store, fd)) {
    drop(p, false);
    return true;
  }
  close(fd);
  return false;
}

/* First bytes ---------------------------------------------------------------------------------------------------- */

/* The stream is ours afterwards in any case. */
static bool on_foreign(struct conn *c, enum frame_protocol protocol, const char *data, size_t len) {
  struct peer *p = c->owner;
  if (protocol == FRAME_PROTOCOL_HTTP && !p->local) {
    begin_http(p, data, len);
    return true;
  }
  if (!p->local && (protocol == FRAME_PROTOCOL_C10D || protocol == FRAME_PROTOCOL_C10D_OLD)) {
    hand_over(p, data, len);
    return true;
  }
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, data, len, SHOWN_BYTES);
  say(p, LOG_WARN, "%s: closed: its first bytes are no protocol of ours: \"%s\"", p->name, buf_text(&shown));
  buf_finish(&shown);
  drop(p, false);
  return true;
}

/* It speaks our frames, but what it said is wrong: trying again would not help it, so it is told why. */
static void refuse_malformed(struct peer *p, const char *reason) {
  char text[400];
  snprintf(text, sizeof(text), "the daemon does not understand this peer: %s", reason);
  send_refused(p, EXIT_CODE_REFUSED, text);
}

static void on_end(struct conn *c, int code, const char *reason) {
  struct peer *p = c->owner;
  bool malformed = code == -EPROTO || code == -EMSGSIZE;
  if (p->identified)
    log_line(malformed  ? LOG_WARN
             : code < 0 ? LOG_INFO
                        : LOG_DEBUG,
             "%s: connection closed: %s", p->name, reason);
  else
    say(p, malformed ? LOG_WARN : LOG_DEBUG, "%s: closed: %s", p->name, reason);
  if (malformed && p->native && !p->identified) refuse_malformed(p, reason);
  drop_and_tell(p, malformed);
}

static void on_closed(struct conn *c) {
  struct peer *p = c->owner;
  buf_finish(&p->request);
  free(p->name);
  free(p);
}

static const struct conn_callbacks peer_callbacks = {.on_msg = on_msg,
                                                     .on_native = on_native,
                                                     .on_foreign = on_foreign,
                                                     .on_end = on_end,
                                                     .on_closed = on_closed};

/* Accepting ------------------------------------------------------------------------------------------------------ */

static void name_peer(struct peer *p) {
  uint16_t port;
  conn_addresses(&p->conn, p->addr, p->local_addr, &port);
  bool v6 = strchr(p->addr, ':');
  p->name = xasprintf(v6 ? "[%s]:%d" : "%s:%d", p->addr, port);
}

/* Anybody may come: what he may is decided when he asks. */
static int name_local(struct peer *p, struct err *e) {
  uv_os_fd_t fd;
  pid_t pid = 0;
  int rc = uv_fileno(&p->conn.handle, &fd);
  if (rc == 0) rc = control_socket_peer(fd, &pid, &p->uid, e);
  snprintf(p->user, sizeof(p->user), "control socket, uid %u", (unsigned)p->uid);
  p->name = xasprintf("control socket (pid %d, uid %u)", (int)pid, (unsigned)p->uid);
  return rc;
}

static size_t max_unidentified(const struct peers *ps) {
  size_t quarter = ps->max / 4;
  if (quarter < PEERS_PER_ADDRESS_MIN) return PEERS_PER_ADDRESS_MIN;
  return quarter < PEERS_PER_ADDRESS_MAX ? quarter : PEERS_PER_ADDRESS_MAX;
}

static int check_limits(struct peer *p, struct err *e) {
  struct peers *ps = p->peers;
  size_t foreign = ps->store ? c10d_server_connections(ps->store) : 0;
  if (ps->n_open + foreign >= ps->max)
    return err_set(e, -EMFILE, "there are %zu connections already, which is the limit (ulimit -n)", ps->max);
  bool stranger = p->local && p->uid != 0 && p->uid != geteuid();
  size_t max = stranger ? PEERS_PER_USER_MAX : max_unidentified(ps);
  if (addresses_unidentified(&ps->addresses, where(p)) < max) return 0;
  if (p->local) return err_set(e, -EMFILE, "this user has %zu connections already", max);
  return err_set(e, -EMFILE, "%zu connections of this address have not said who they are", max);
}

static int admit(struct peer *p, struct err *e) {
  if (!p->local) name_peer(p);
  int rc = p->local ? name_local(p, e) : 0;
  if (rc == 0) rc = check_limits(p, e);
  if (rc < 0) return rc;
  p->accepted_ms = monotonic_ms();
  take_slot(p);
  list_unidentified(p);
  return conn_start(&p->conn, PEERS_IDENTIFY_MS, e);
}

static void on_connection(uv_stream_t *stream, int status) {
  struct listening *l = (struct listening *)stream;
  if (status < 0) {
    addresses_log(&l->peers->addresses, "accept", monotonic_ms(), LOG_ERROR, "accept: %s",
                  uv_strerror(status));
    return;
  }
  struct peer *p = xcalloc(1, sizeof(*p));
  p->peers = l->peers;
  p->local = l->local;
  if (l->local)
    conn_init_pipe(&p->conn, l->peers->loop, &peer_callbacks, p, true);
  else
    conn_init_tcp(&p->conn, l->peers->loop, &peer_callbacks, p, true);
  struct err e = ERR_INIT;
  if (uv_accept(stream, &p->conn.stream) < 0) {
    drop(p, false);
  } else if (admit(p, &e) < 0) {
    say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
    drop(p, false);
  } else {
    log_debug("%s: is connection %llu", p->name, (unsigned long long)p->id);
  }
}

int peers_listen(struct peers *ps, int fd, bool local, struct err *e) {
  struct listening *l = xcalloc(1, sizeof(*l));
  l->peers = ps;
  l->local = local;
  l->next = ps->listening;
  ps->listening = l;
  int rc = local ? uv_pipe_init(ps->loop, &l->pipe, 0) : uv_tcp_init(ps->loop, &l->tcp);
  if (rc == 0) rc = local ? uv_pipe_open(&l->pipe, fd) : uv_tcp_open(&l->tcp, fd);
  if (rc == 0) rc = uv_listen(&l->stream, PEERS_BACKLOG, on_connection);
  return rc < 0 ? err_sys(e, rc, "cannot listen") : 0;
}

/* For the owner -------------------------------------------------------------------------------------------------- */

struct peers *peers_create(uv_loop_t *loop, size_t max, uint64_t seed, const struct peers_callbacks *cb,
                           void *ctx) {
  struct peers *ps = xcalloc(1, sizeof(*ps));
  ps->loop = loop;
  ps->cb = *cb;
  ps->ctx = ctx;
  ps->max = max < PEERS_MAX ? max : PEERS_MAX;
  addresses_init(&ps->addresses, seed);
  return ps;
}

void peers_destroy(struct peers *ps) {
  if (!ps) return;
  addresses_finish(&ps->addresses);
  free(ps->slots);
  free(ps);
}

void peers_set_store(struct peers *ps, struct c10d_server *store) {
  ps->store = store;
}

bool peers_silent_beside(const struct peers *ps, const struct ipaddr *addr) {
  uint64_t now = monotonic_ms();
  for (const struct peer *p = ps->first; p && now - p->accepted_ms >= C10D_SETTLE_MS; p = p->next) {
    if (p->local || p->native || p->http || p->conn.in.len > 0) continue;
    struct ipaddr own = ipaddr_parse(p->addr);
    if (ipaddr_compare(&own, addr) == 0) return true;
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
  unlist(p);
  p->identified = true;
  free(p->name);
  p->name = xstrdup(name);
  p->conn.max_body = FRAME_MAX_TO_DAEMON;
  conn_set_user_timeout(&p->conn, user_timeout_ms);
}

size_t peers_undecided(const struct peers *ps) {
  return ps->undecided;
}

uint64_t peers_deadline(const struct peers *ps) {
  return ps->first ? ps->first->accepted_ms + PEERS_IDENTIFY_MS : UINT64_MAX;
}

void peers_expire(struct peers *ps, uint64_t now) {
  while (now >= peers_deadline(ps)) {
    struct peer *p = ps->first;
    if (hand_over_silent(p)) continue;
    if (p->http) {
      answer_http(p, HTTP_REQUEST_TIMEOUT, false, "this request did not come to its end\n");
      continue;
    }
    say(p, LOG_WARN, "%s: closed: %s within %d s", p->name,
        p->native ? "it did not say who it is" : "it said nothing we understand", PEERS_IDENTIFY_MS / 1000);
    drop_and_tell(p, false);
  }
}

static void on_listening_closed(uv_handle_t *handle) {
  free(handle);
}

void peers_close_all(struct peers *ps) {
  ps->store = NULL;
  for (struct listening *l = ps->listening, *next; l; l = next) {
    next = l->next;
    uv_close(&l->handle, on_listening_closed);
  }
  ps->listening = NULL;
  for (size_t i = 0; i < ps->n_slots; i++)
    if (ps->slots[i]) drop(ps->slots[i], true);
}
