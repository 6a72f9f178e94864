/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's connections.
 *
 *   accept -> limits -> first bytes -> c10d: the descriptor goes to the common store's server
 *                                   -> native: a channel -> GREETING -> messages go up -> identified (by the owner)
 *                                   -> HTTP: one request, one answer (daemon/server/http.c), closed
 *                                   -> anything else: closed
 *
 * Every way out but the owner's own ends in one log line that names the peer. Lines about unidentified peers go through
 * rations_log, because a stranger can cause them, and so do those about peers of users who have a share.
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
 * Unidentified connections wait in two rooms (daemon/server/waiting_room.h): strangers, then those that speak our frames.
 * The order in a room is that of the deadlines. So there is no timer per connection: the server asks for the first
 * deadline and calls peers_expire. A stranger whose last bytes are still on their way out, such as an answer over HTTP,
 * stays until its descriptor is closed, so the limits hold for it too.
 *
 * An identified peer that sends too much is not read from for a moment (peers_pause). Such peers are in a room of their
 * own, whose order is that of their deadlines too. Their bytes wait in the kernel, so the peer is slowed down.
 *
 * A newcomer is never refused for the sake of connections that have said nothing: at a limit, the one gives way that
 * waiting_room.h names. Strangers give way first. Only identified connections keep a newcomer out, and root's rdzvctl has
 * room beyond that. */

#include "daemon/server/peers.h"

#include <errno.h>
#include <netinet/in.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "common/deadline.h"
#include "common/exit_codes.h"
#include "common/key/munge.h"
#include "common/key/secret.h"
#include "common/map.h"
#include "common/mem.h"
#include "common/net/acceptor.h"
#include "common/net/socket.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/system/rationed_log.h"
#include "common/system/user.h"
#include "daemon/server/asker.h"
#include "daemon/server/control_socket.h"
#include "daemon/server/munge_keys.h"
#include "daemon/server/waiting_room.h"
#include "proto/munge_ask.h"

enum { FIRST_BYTES = 4096 };

/* A connection whose protocol is not known yet. */
struct arrival {
  uv_poll_t poll; /* first */
  struct peer *peer;
  int fd;
};

struct peer {
  struct newcomer newcomer; /* first; in a waiting room, or paused */
  struct arrival *arrival;  /* NULL: conn is in use */
  struct conn conn;
  struct peers *peers;
  uint64_t id; /* 0: has no place in the table (yet, or no longer) */
  char *name;  /* "10.0.0.1:4242", later what the owner calls it */
  bool local, identified, framed;
  struct buf first;   /* arrival: the bytes that have come */
  struct buf request; /* HTTP, MUNGE: the bytes so far */
  size_t request_seen;
  bool http;
  bool asked;                  /* local: its one question */
  uint64_t greeted_ms;         /* when GREETING was sent, whose ticket is for a day */
  struct munge_request *munge; /* waits for an answer; NULL: none */
  struct answer *answer;       /* a document is made or read; NULL: none */
  int64_t uid;                 /* of the key, or of the process at the control socket; -1: unknown */
  struct newcomer turn;        /* waits for its turn */
  bool its_turn;               /* to have one message taken */
  char where[64];   /* limits count under this name: an address, an IPv6 network, a user of the control socket */
  char account[32]; /* the user of the key; "": unknown */
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
  struct waiting_room unrecognized, framed; /* the two rooms */
  struct waiting_room paused;               /* identified ones that are not read from */
  struct waiting_room keyless, keyed;       /* those that wait for their turn */
  uv_idle_t turns;
  size_t n_identified, user_bytes;
  uint64_t weighed_ms, weighed_users_ms; /* when they were counted last */
  bool closed;
  struct rations rations; /* of lines about addresses, which strangers cause */
  struct rations known;   /* of lines about users who have a share */
  struct c10d_server *store;
  const struct key *key; /* NULL: --insecure */
  enum channel_source key_source;
  struct answers *answers;
  struct munge_keys *munge; /* NULL: --insecure */
  bool munge_works;         /* as far as is known */
  bool munge_looked;        /* whether munged answers here */
  struct ephemeral *ephemeral;
  struct key *tickets; /* NULL: --insecure */
};

/* A line about a peer, rationed: a stranger can cause it. */
#define say(p, level, ...) rations_log(&(p)->peers->rations, peer_source(p), boot_ms(), level, __VA_ARGS__)

static void peer_arrive(struct peer *p); /* its first bytes have come, and it is its turn */
static const struct conn_callbacks peer_conn_callbacks;
static const struct acceptor_callbacks peers_acceptor_callbacks;

static const char *peer_source(const struct peer *p) {
  return p->account[0] ? p->account : p->where;
}

/* The table -------------------------------------------------------------------------------------------------------- */

static struct peer **slot_of(const struct peers *ps, uint64_t id) {
  return &ps->slots[id & (ps->n_slots - 1)];
}

static struct peer *find(const struct peers *ps, uint64_t id) {
  struct peer *p = ps->n_slots ? *slot_of(ps, id) : NULL;
  return p && p->id == id ? p : NULL;
}

static void peer_take_slot(struct peer *p) {
  struct peers *ps = p->peers;
  if (2 * ps->n_open >= ps->n_slots) {
    /* Numbers that differ in a small table differ in a larger one. */
    struct peer **old = ps->slots;
    size_t n = ps->n_slots;
    ps->n_slots = n ? 2 * n : 64;
    ps->slots = xcalloc(ps->n_slots, sizeof(*ps->slots));
    for (size_t i = 0; i < n; i++)
      if (old[i]) *slot_of(ps, old[i]->id) = old[i];
    free(old);
  }
  do p->id = ++ps->serial;
  while (*slot_of(ps, p->id));
  *slot_of(ps, p->id) = p;
  ps->n_open++;
}

static void peer_leave_slot(struct peer *p) {
  if (!p->id) return;
  *slot_of(p->peers, p->id) = NULL;
  p->peers->n_open--;
  p->peers->n_identified -= p->identified;
  p->id = 0;
}

/* The half of its line. At the control socket the kernel names the user. */
static struct waiting_room *half_of(const struct peer *p) {
  return p->account[0] || p->local ? &p->peers->keyed : &p->peers->keyless;
}

/* The waiting rooms ------------------------------------------------------------------------------------------------ */

static struct peer *peer_of(struct newcomer *n) {
  return (struct peer *)n;
}

static bool peer_is_paused(const struct peer *p) {
  return p->identified && p->newcomer.source;
}

static void peer_enter_room(struct peer *p, struct waiting_room *room) {
  struct peers *ps = p->peers;
  uint64_t before = peers_deadline(ps);
  room_enter(room, &p->newcomer, p->where, boot_ms());
  if (peers_deadline(ps) < before) ps->cb.on_deadline(ps->ctx);
}

static void peer_leave_room(struct peer *p) {
  struct peers *ps = p->peers;
  room_leave(p->identified ? &ps->paused : p->framed ? &ps->framed : &ps->unrecognized, &p->newcomer);
}

static void peer_free(struct peer *p) {
  peer_leave_room(p);
  p->peers->n_held--;
  buf_wipe(&p->first);
  buf_wipe(&p->request);
  free(p->name);
  free(p);
}

static void on_arrival_closed(uv_handle_t *handle) {
  struct arrival *a = (struct arrival *)handle;
  if (a->peer) peer_free(a->peer);
  free(a);
}

/* Returns its descriptor, which libuv polls no more. */
static int end_arrival(struct peer *p) {
  struct arrival *a = p->arrival;
  p->arrival = NULL;
  a->peer = NULL;
  uv_close((uv_handle_t *)&a->poll, on_arrival_closed);
  return a->fd;
}

/* The end of a connection: out of the table at once, freed when libuv has let go of it. */
static void peer_drop(struct peer *p, bool flush) {
  peer_leave_room(p);
  peer_leave_slot(p);
  room_leave(half_of(p), &p->turn);
  if (p->munge) munge_keys_cancel(p->munge);
  p->munge = NULL;
  if (p->answer) answer_cancel(p->answer);
  p->answer = NULL;
  p->framed = false;
  if (p->arrival) {
    uv_close((uv_handle_t *)&p->arrival->poll, on_arrival_closed);
    close(p->arrival->fd);
    peers_resume(p->peers);
  } else if (!flush) {
    conn_close(&p->conn);
  } else {
    conn_close_flushed(&p->conn);
    if (!p->identified) peer_enter_room(p, &p->peers->unrecognized); /* until it is closed */
  }
}

static struct peer_info peer_info_of(const struct peer *p) {
  return (struct peer_info){.id = p->id,
                            .peer_addr = p->addr,
                            .local_addr = p->local_addr,
                            .name = p->name,
                            .local = p->local,
                            .uid = p->uid};
}

static void peer_drop_and_tell(struct peer *p, bool flush) {
  struct peer_info info = peer_info_of(p);
  peer_drop(p, flush);
  p->peers->cb.on_gone(p->peers->ctx, &info);
}

/* Closes the one that gives way, for the reason in `why`. False: there is none. */
static bool peer_push_out(struct newcomer *n, const char *why) {
  if (!n) return false;
  struct peer *p = peer_of(n);
  if (p->id) {
    say(p, LOG_WARN, "%s: closed to make room: %s", p->name, why);
    peer_drop_and_tell(p, false);
  } else { /* its answer is on its way out */
    peer_leave_room(p);
    conn_close(&p->conn);
  }
  return true;
}

/* Memory ------------------------------------------------------------------------------------------------------------ */

/* How much memory connections hold: what has come of unfinished messages, and what the peer has not read.
 *
 * One connection may hold much, but many of them together may not. Unidentified ones count together, and those who began
 * long ago give way. Identified ones count by user, so nobody can make the daemon the kernel's choice when memory runs
 * out; those who hold more than their part of the user's share give way. Nothing is counted while there are so few
 * connections that it could not matter. */
static bool is_crowded(const struct peers *ps) {
  return ps->unrecognized.count + ps->framed.count > PEERS_UNIDENTIFIED_BYTES / FRAME_MAX_UNIDENTIFIED;
}

static bool users_may_be_heavy(const struct peers *ps) {
  return ps->n_identified > ps->user_bytes / (CONN_QUEUE_MAX + FRAME_MAX_TO_DAEMON);
}

static size_t bytes_of(const struct peer *p) {
  return p->first.cap + p->request.cap + (p->arrival ? 0 : p->conn.wire.cap + p->conn.in.cap);
}

struct load {
  size_t bytes, n;
};

static size_t load_of(const struct peer *p) {
  return bytes_of(p) + p->conn.queued;
}

/* It is identified, and neither root nor the daemon's user, who have no limits but the daemon's. */
static bool peer_has_share(const struct peer *p) {
  return p->identified && p->uid != 0 && p->uid != (int64_t)geteuid();
}

/* Without keys nobody is known: an address stands for its users. */
static struct load *load_of_user(struct map *loads, const struct peer *p) {
  const void *key = p->uid >= 0 ? (const void *)&p->uid : p->addr;
  size_t len = p->uid >= 0 ? sizeof(p->uid) : sizeof(p->addr);
  struct load *l = map_get_n(loads, key, len);
  if (l) return l;
  l = xcalloc(1, sizeof(*l));
  map_put_n(loads, key, len, l);
  return l;
}

static void peers_weigh(struct peers *ps, uint64_t now) {
  if (is_crowded(ps) && now >= ps->weighed_ms + PEERS_WEIGH_MS) {
    ps->weighed_ms = now;
    struct waiting_room *const rooms[] = {&ps->unrecognized, &ps->framed};
    size_t sum = 0;
    for (int i = 0; i < 2; i++)
      for (struct newcomer *n = rooms[i]->oldest; n; n = n->newer) sum += bytes_of(peer_of(n));
    for (int i = 0; i < 2; i++)
      for (struct newcomer *n = rooms[i]->oldest, *newer; n && sum > PEERS_UNIDENTIFIED_BYTES; n = newer) {
        const struct peer *p = peer_of(n);
        size_t bytes = bytes_of(p);
        newer = n->newer;
        if (bytes == 0 || (p->arrival && p->turn.source)) continue; /* its turn comes, and its bytes are few */
        sum -= bytes;
        peer_push_out(n, "unfinished messages of unidentified connections take too much memory");
      }
  }
  if (users_may_be_heavy(ps) && now >= ps->weighed_users_ms + PEERS_WEIGH_USERS_MS) {
    ps->weighed_users_ms = now;
    struct map loads;
    map_init(&loads, ps->serial);
    for (size_t i = 0; i < ps->n_slots; i++) {
      struct peer *p = ps->slots[i];
      if (!p || !peer_has_share(p)) continue;
      struct load *l = load_of_user(&loads, p);
      l->bytes += load_of(p);
      l->n++;
    }
    /* If all of a user hold more than may be, some hold more than their part. Without these the rest is light enough. */
    for (size_t i = 0; i < ps->n_slots; i++) {
      struct peer *p = ps->slots[i];
      if (!p || !peer_has_share(p)) continue;
      struct load *l = load_of_user(&loads, p);
      size_t bytes = load_of(p), most = ps->user_bytes;
      if (l->bytes <= most || bytes <= most / l->n) continue;
      l->bytes -= bytes;
      say(p, LOG_WARN,
          "%s: closed: it holds %zu MiB of messages that are unfinished or that it does not read, and its %s %zu MiB",
          p->name, bytes >> 20, p->uid >= 0 ? "user" : "address", (l->bytes + bytes) >> 20);
      peer_drop_and_tell(p, false);
    }
    map_finish_all(&loads);
  }
}

/* Turns ------------------------------------------------------------------------------------------------------------- */

/* The daemon has one thread. What it does for a peer that it does not know yet is done in turn: the first bytes of a
 * connection with its opening, and each message before the peer has said who it is. So is each HELLO, because it costs
 * more than other messages.
 *
 *   first bytes, or such a message -> the line of the peer's source -> its turn -> peer_arrive, or conn_resume
 *
 * A stranger stands in the line of its address, and a peer that has shown a key in that of its user. One peer of each
 * line is served before the next one of any. So a user with thousands of connections costs each of the others the time
 * of one of them. There may be as many strangers' lines as addresses. So these are one half, and the users' lines the
 * other: each half has every second turn.
 *
 * There is no number of peers a second that would be too many. Ten thousand agents of one user that come back at once
 * are served as fast as the daemon can, as long as nobody else waits. A turn of the loop serves the lines for
 * PEERS_TURN_US, and then looks at the sockets, where new ones and known agents wait. A job needs about ten turns of
 * the loop to start. */
static bool serve(struct newcomer *n) {
  if (!n) return false;
  struct peer *p = (struct peer *)((char *)n - offsetof(struct peer, turn));
  room_leave(half_of(p), &p->turn);
  if (p->arrival) {
    peer_arrive(p);
    return true;
  }
  p->its_turn = true;
  if (!peer_is_paused(p)) conn_resume(&p->conn); /* else it goes on at the end of its pause */
  return true;
}

/* While the idle handle is active, the loop does not sleep. */
static void on_turn(uv_idle_t *idle) {
  struct peers *ps = idle->data;
  uint64_t end = uv_hrtime() + PEERS_TURN_US * 1000ull;
  bool served = true;
  while (served && uv_hrtime() < end) {
    served = serve(room_next(&ps->keyless));
    served = serve(room_next(&ps->keyed)) || served;
  }
  if (!served) uv_idle_stop(idle);
}

/* Its turn comes in a later turn of the loop: peer_arrive, or conn_resume. */
static void peer_wait(struct peer *p) {
  struct peers *ps = p->peers;
  room_enter(half_of(p), &p->turn, peer_source(p), boot_ms());
  uv_idle_start(&ps->turns, on_turn);
}

static bool peer_may_take(struct conn *c, enum msg_type type) {
  struct peer *p = c->owner;
  bool may = p->its_turn || (p->identified && type != MSG_HELLO);
  p->its_turn = false;
  if (!may && !p->turn.source) peer_wait(p); /* it may be in line: its pause has ended */
  return may;
}

/* One question and one answer, in bytes that are not our frames ----------------------------------------------------- */

enum { SHOWN_REQUEST = 120 };

/* MUNGE ------------------------------------------------------------------------------------------------------------ */

static void on_munge(void *ctx, enum channel_status status, const char *bytes, size_t len) {
  struct peer *p = ctx;
  struct buf answer = BUF_INIT;
  p->munge = NULL;
  if (status == CHANNEL_MUNGE) p->peers->munge_works = true;
  if (status == CHANNEL_MUNGE_REFUSED || status == CHANNEL_BUSY)
    say(p, LOG_WARN, "%s: gets no key: %.*s", p->name, (int)len, bytes);
  munge_ask_answer(&answer, status, p->peers->key_source, bytes, len);
  conn_send_bytes(&p->conn, bytes_create(answer.data, answer.len));
  buf_finish(&answer);
  peer_drop(p, true);
}

static void take_question(struct peer *p) {
  struct slice credential;
  int rc = munge_ask_find(p->request.data, p->request.len, &credential);
  if (rc == 0) return;
  uv_read_stop(&p->conn.stream);
  if (rc < 0)
    on_munge(p, CHANNEL_MUNGE_REFUSED, munge_ask_malformed, strlen(munge_ask_malformed));
  else
    p->munge = munge_keys_ask(p->peers->munge, p->where, credential.data, credential.len, on_munge, p);
}

/* HTTP ------------------------------------------------------------------------------------------------------------- */

static void answer_http(struct peer *p, const struct http_answer *a, bool head, const char *text) {
  struct buf bytes = BUF_INIT;
  uv_read_stop(&p->conn.stream);
  http_put_answer(&bytes, a, head, text);
  conn_send_bytes(&p->conn, bytes_create(bytes.data, bytes.len));
  buf_finish(&bytes);
  peer_drop(p, true);
}

/* Probes come every few seconds, and pages look twice a second, so only a refusal is worth a line. */
static void log_http(struct peer *p, const struct http_request *r, enum http_status status, const char *text) {
  struct buf line = BUF_INIT;
  buf_put_escaped(&line, r->line, r->line_len, SHOWN_REQUEST);
  if (status < HTTP_BAD_REQUEST)
    log_debug("%s: HTTP: \"%s\" is answered with %d", p->name, buf_text(&line), (int)status);
  else
    say(p, LOG_INFO, "%s: HTTP: \"%s\" is answered with %d, %.*s", p->name, buf_text(&line), (int)status,
        (int)strcspn(text, "\n"), text);
  buf_finish(&line);
}

static void on_document_progress(void *ctx) {
  struct peer *p = ctx;
  peer_leave_room(p);
  peer_enter_room(p, &p->peers->unrecognized);
}

static void on_document_end(void *ctx, int status) {
  struct peer *p = ctx;
  p->answer = NULL;
  if (status < 0) log_debug("%s: HTTP: did not read the answer: %s", p->name, uv_strerror(status));
  peer_drop(p, status == 0);
}

static void take_request(struct peer *p) {
  static const struct answer_callbacks callbacks = {on_document_progress, on_document_end};
  struct err e = ERR_INIT;
  struct http_request r;
  struct answer_document document = {.more = NULL};
  struct buf text = BUF_INIT;
  uv_os_fd_t fd = -1;
  struct http_answer a = {.status = http_parse(p->request.data, p->request.len, &p->request_seen, &r)};
  if (a.status == HTTP_MORE) return;
  if (a.status == HTTP_OK) {
    uv_fileno(&p->conn.handle, &fd);
    p->peers->cb.on_request(p->peers->ctx, fd, &r, &a, &text, &document);
  } else {
    buf_printf(&text, "%s\n", r.why);
  }
  if (document.more) {
    uv_read_stop(&p->conn.stream);
    p->answer = answers_begin(p->peers->answers, &p->conn.stream, &document, &callbacks, p, &e);
    if (!p->answer) {
      a = (struct http_answer){.status = HTTP_UNAVAILABLE};
      buf_printf(&text, "%s\n", e.text);
    }
  }
  if (p->answer) {
    log_http(p, &r, HTTP_OK, "");
    on_document_progress(p);
  } else {
    log_http(p, &r, a.status, buf_text(&text));
    answer_http(p, &a, r.head, buf_text(&text));
  }
  explicit_bzero(p->request.data, p->request.len); /* a token may be in it */
  explicit_bzero(r.basic, sizeof(r.basic));
  buf_finish(&text);
}

/* A token may be in it: no copy stays where it was read, or in memory that the request has outgrown. */
static void append_request(struct peer *p, const char *data, size_t n) {
  struct buf whole = BUF_INIT;
  if (p->request.cap < p->request.len + n + 1) {
    buf_reserve(&whole, p->request.len + n > HTTP_HEAD_MAX / 8 ? HTTP_HEAD_MAX + n : HTTP_HEAD_MAX / 8);
    buf_append(&whole, p->request.data, p->request.len);
    buf_wipe(&p->request);
    p->request = whole;
  }
  buf_append(&p->request, data, n);
}

/* Both. ------------------------------------------------------------------------------------------------------------ */

static void on_request_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  static char room[HTTP_HEAD_MAX]; /* copied before the next read */
  *out = uv_buf_init(room, sizeof(room));
}

static void on_question_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct peer *p = ((struct conn *)stream->data)->owner;
  if (n < 0) {
    if (p->http) log_debug("%s: HTTP: closed before its request was complete: %s", p->name, uv_strerror((int)n));
    peer_drop(p, false);
  } else if (n > 0) {
    append_request(p, b->base, (size_t)n);
    explicit_bzero(b->base, (size_t)n);
    (p->http ? take_request : take_question)(p);
  }
}

/* Our frames, and the bytes of those that do not speak them --------------------------------------------------------- */

enum { SHOWN_BYTES = 32 };

_Static_assert((int)TICKET_TEXT_MAX == (int)CHANNEL_TICKET_TEXT, "GREETING has room for a ticket");

static void send_greeting(struct peer *p) {
  struct conn *c = &p->conn;
  char ticket[CHANNEL_TICKET_TEXT + 1];
  uint8_t random[CHANNEL_TICKET_RANDOM];
  struct msg m;
  msg_init(&m, MSG_GREETING);
  m.greeting.version = PROTO_VERSION;
  m.greeting.oldest = PROTO_OLDEST;
  m.greeting.features = features_words();
  m.greeting.release = RDZV_VERSION;
  if (c->channel.state == CHANNEL_IS_SEALED) {
    randombytes_buf(random, sizeof(random));
    channel_put_ticket(&c->channel, p->peers->tickets, (uint32_t)time(NULL), random, ticket);
    m.greeting.ticket = ticket;
  }
  p->greeted_ms = boot_ms();
  conn_send(c, &m);
}

static enum channel_status on_opening(struct conn *c, int64_t uid, struct conn_terms *t) {
  const struct peer *p = c->owner;
  const struct key *own = p->peers->key;
  if (!own || p->local) return CHANNEL_NO_KEY;
  t->source = p->peers->key_source;
  t->ephemeral = p->peers->ephemeral;
  t->tickets = p->peers->tickets;
  return asker_key(own, uid, &t->key) ? CHANNEL_OK : CHANNEL_WRONG_KEY;
}

static void send_refused(struct peer *p, int code, const char *text) {
  struct msg m;
  msg_init(&m, MSG_REFUSED);
  m.refused.code = code;
  m.refused.text = text;
  conn_send(&p->conn, &m);
}

static void turn_away(struct peer *p) {
  if (p->peers->cb.on_turned_away) p->peers->cb.on_turned_away(p->peers->ctx, p->addr);
}

/* It speaks our frames: it gets a GREETING, and time to say who it is. */
static void peer_begin_framed(struct peer *p) {
  peer_leave_room(p);
  p->framed = true;
  peer_enter_room(p, &p->peers->framed);
  send_greeting(p);
}

static void on_preface(struct conn *c) {
  struct peer *p = c->owner;
  const struct key *own = p->peers->key;
  bool sealed = c->channel.state == CHANNEL_IS_SEALED;
  if (own && !p->local && !sealed) {
    say(p, LOG_WARN, "%s: refused: it has no key (--insecure)", p->name);
    send_greeting(p);
    send_refused(p, EXIT_CODE_REFUSED, "this rdzvd has a key, and serves nobody without it: leave --insecure out");
    turn_away(p);
    peer_drop_and_tell(p, true);
    return;
  }
  if (own && sealed) {
    p->uid = c->uid == own->uid ? (int64_t)geteuid() : c->uid;
    snprintf(p->account, sizeof(p->account), "uid %lld", (long long)p->uid);
  }
  peer_begin_framed(p);
}

static void on_msg(struct conn *c, struct msg *m) {
  struct peer *p = c->owner;
  log_debug("%s: %s", p->name, msg_name(m->type));
  if (p->local && m->type != MSG_CONTROL) {
    say(p, LOG_WARN, "%s: %s refused: the control socket is for rdzvctl", p->name, msg_name(m->type));
    send_refused(p, EXIT_CODE_USAGE, "this is the daemon's control socket, for rdzvctl; agents connect to its port");
    peer_drop(p, true);
    return;
  }
  if (p->asked) return; /* one question is one turn of the loop: a thousand in one packet would be one turn too */
  p->asked = p->local;
  /* An agent that has been here for days can still come back with a ticket. */
  if (p->identified && boot_ms() - p->greeted_ms >= 1000ull * CHANNEL_TICKET_S / 2) send_greeting(p);
  struct peer_info info = peer_info_of(p);
  p->peers->cb.on_msg(p->peers->ctx, &info, m);
}

/* The stream is ours afterwards in any case. */
static bool on_foreign(struct conn *c, enum frame_protocol protocol, const char *data, size_t len) {
  struct peer *p = c->owner;
  p->http = protocol == FRAME_PROTOCOL_HTTP && !p->local;
  if (p->http || (protocol == FRAME_PROTOCOL_MUNGE && !p->local)) {
    if (!p->http && !p->peers->munge) {
      on_munge(p, CHANNEL_NO_KEY, NULL, 0);
      return true;
    }
    append_request(p, data, len);
    if (uv_read_start(&p->conn.stream, on_request_alloc, on_question_read) != 0)
      peer_drop(p, false);
    else
      (p->http ? take_request : take_question)(p);
    return true;
  }
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, data, len, SHOWN_BYTES);
  say(p, LOG_WARN, "%s: closed: it speaks an unknown protocol, which begins with \"%s\"", p->name, buf_text(&shown));
  buf_finish(&shown);
  peer_drop(p, false);
  return true;
}

/* munged is looked for once, when the first key is refused: most daemons never need it. */
static bool munge_works(struct peers *ps) {
  if (!ps->munge_looked) ps->munge_works = ps->munge_works || (ps->key && munge_expected(monotonic_ms()));
  ps->munge_looked = true;
  return ps->munge_works;
}

static void on_end(struct conn *c, int code, const char *reason) {
  struct peer *p = c->owner;
  bool malformed = code == -EPROTO || code == -EMSGSIZE, refused = code == -EACCES || code == -EBADMSG;
  if (p->identified) {
    enum log_level level = malformed || refused ? LOG_WARN : code < 0 ? LOG_INFO : LOG_DEBUG;
    if (peer_has_share(p))
      rations_log(&p->peers->known, peer_source(p), boot_ms(), level, "%s: connection closed: %s", p->name, reason);
    else
      log_line(level, "%s: connection closed: %s", p->name, reason);
  } else {
    /* Where MUNGE works, users come with keys of their own first, and then ask for the right one. */
    enum log_level level = malformed || refused ? LOG_WARN : LOG_DEBUG;
    if (code == -EACCES && munge_works(p->peers)) level = LOG_INFO;
    say(p, level, "%s: %s: %s", p->name, refused ? "refused" : "closed", reason);
  }
  if (p->conn.other_version) {
    /* GREETING has our versions, and its layout is the same in all of them (PROTOCOL.md 11): the peer can name both. */
    char text[160];
    snprintf(text, sizeof(text),
             "it speaks version %u of the frames, and this rdzvd " RDZV_VERSION " version %d: upgrade rdzv where it is "
             "older",
             p->conn.other_version, FRAME_VERSION);
    send_greeting(p);
    send_refused(p, EXIT_CODE_REFUSED, text);
  } else if (malformed && p->framed && !p->identified) {
    /* It speaks our frames, but its message is wrong. Another attempt would not help it, so it gets the reason. */
    char text[400];
    snprintf(text, sizeof(text), "the daemon does not understand this peer: %s", reason);
    send_refused(p, EXIT_CODE_REFUSED, text);
  }
  if (code == -EACCES && !p->local && !p->identified) turn_away(p);
  peer_drop_and_tell(p, malformed || refused);
}

static void on_closed(struct conn *c) {
  struct peer *p = c->owner;
  peers_resume(p->peers);
  peer_free(p);
}

static const struct conn_callbacks peer_conn_callbacks = {.on_msg = on_msg,
                                                          .may_take = peer_may_take,
                                                          .on_opening = on_opening,
                                                          .on_preface = on_preface,
                                                          .on_foreign = on_foreign,
                                                          .on_end = on_end,
                                                          .on_closed = on_closed};

/* From accept to the first bytes: a connection gets a name and a place, or is refused. Its first bytes show where it
 * belongs. */

/* Names and limits ------------------------------------------------------------------------------------------------- */

static bool is_administrator(const struct peer *p) {
  return p->local && (p->uid == 0 || p->uid == (int64_t)geteuid());
}

static int make_room(const struct peer *p, struct err *e) {
  struct peers *ps = p->peers;
  /* A user cannot take the last places from the administrator. */
  size_t more = !p->local ? 0 : is_administrator(p) ? PEERS_CONTROL_MORE : PEERS_CONTROL_MORE / 2;
  size_t max = p->peers->max + more;
  char why[96], too_many[96];
  /* Of one source, without those that have said who they are. */
  size_t most = p->peers->max / 4;
  if (most < PEERS_PER_ADDRESS_MIN) most = PEERS_PER_ADDRESS_MIN;
  if (most > PEERS_PER_ADDRESS_MAX) most = PEERS_PER_ADDRESS_MAX;
  if (p->local && !is_administrator(p)) most = PEERS_PER_USER_MAX;
  snprintf(too_many, sizeof(too_many), "%zu connections of this %s have not said who they are", most,
           p->local            ? "user"
           : p->ip.family == 6 ? "network"
                               : "address");
  while (room_of(&ps->unrecognized, p->where) + room_of(&ps->framed, p->where) >= most)
    if (!peer_push_out(room_oldest_of(&ps->unrecognized, p->where), too_many))
      peer_push_out(room_oldest_of(&ps->framed, p->where), too_many);
  if (ps->closed) return err_sys(e, -ESHUTDOWN, "this daemon is stopping");
  if (ps->n_held + (ps->store ? c10d_server_connections(ps->store) : 0) <= max) return 0; /* with p */
  snprintf(why, sizeof(why), "there are %zu connections, which is the limit (ulimit -n)", max);
  if (peer_push_out(room_crowded_out(&ps->unrecognized), why) || peer_push_out(room_crowded_out(&ps->framed), why))
    return 0;
  return err_set(e, -EMFILE, "there are %zu connections already, which is the limit (ulimit -n)", max);
}

/* Arrivals --------------------------------------------------------------------------------------------------------- */

static bool peer_is_silent(const struct peer *p) {
  return p->arrival && p->first.len == 0;
}

/* True: it is the store's now. Else it is polled no more. */
static bool peer_hand_over_silent(struct peer *p) {
  if (!p->peers->store || !peer_is_silent(p)) return false;
  uv_poll_stop(&p->arrival->poll);
  if (!c10d_server_adopt_silent(p->peers->store, p->arrival->fd, &p->ip, p->port)) return false;
  peer_leave_slot(p);
  end_arrival(p);
  peer_free(p);
  return true;
}

/* First bytes ------------------------------------------------------------------------------------------------------ */

/* The connection becomes a struct conn. fd is its own, or closed. */
static int open_conn(struct peer *p, int fd, struct err *e) {
  if (p->local)
    conn_init_pipe(&p->conn, p->peers->loop, &peer_conn_callbacks, p, true);
  else
    conn_init_tcp(&p->conn, p->peers->loop, &peer_conn_callbacks, p, true);
  int rc = p->local ? uv_pipe_open(&p->conn.pipe, fd) : uv_tcp_open(&p->conn.tcp, fd);
  if (rc == 0) return conn_start(&p->conn, PEERS_IDENTIFY_MS, e);
  close(fd);
  return err_sys(e, rc, "cannot open a connection");
}

/* With a status below 0 libuv polls the descriptor no more: what has come must decide, or the connection ends. */
static void on_first_bytes(uv_poll_t *poll, int status, int events) {
  struct peer *p = ((struct arrival *)poll)->peer;
  enum frame_protocol protocol = FRAME_PROTOCOL_MORE;
  if (p->turn.source) { /* more has come while it waits for its turn */
    uv_poll_stop(poll);
    return;
  }
  while (protocol == FRAME_PROTOCOL_MORE) {
    char data[FIRST_BYTES];
    ssize_t n = recv(p->arrival->fd, data, sizeof(data), MSG_DONTWAIT);
    bool nothing = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (nothing && status >= 0) return;
    if (n <= 0) {
      const char *why = n == 0 ? "closed by the peer" : nothing ? "its socket has failed" : strerror(errno);
      say(p, LOG_DEBUG, "%s: closed: %s", p->name, why);
      peer_drop_and_tell(p, false);
      return;
    }
    buf_append(&p->first, data, (size_t)n);
    explicit_bzero(data, (size_t)n);
    protocol = frame_detect(p->first.data, p->first.len);
    if (protocol == FRAME_PROTOCOL_MORE && status >= 0) return;
  }
  peer_wait(p);
}

static void peer_arrive(struct peer *p) {
  enum frame_protocol protocol = frame_detect(p->first.data, p->first.len);
  if (protocol == FRAME_PROTOCOL_C10D || protocol == FRAME_PROTOCOL_C10D_OLD) {
    /* The store's clients never say who they are, so they must leave room. */
    const struct peers *ps = p->peers;
    struct err e = ERR_INIT;
    peer_leave_slot(p);
    int fd = end_arrival(p);
    size_t n = ps->store ? c10d_server_connections(ps->store) : 0;
    if (!ps->store)
      err_set(&e, -EPROTONOSUPPORT,
              "it is a client of PyTorch's TCPStore (torchrun?), and this rdzvd serves none: start rdzvd with "
              "--c10d, or rdzv-agent instead of torchrun");
    else if (2 * n >= ps->max)
      err_set(&e, -EMFILE, "the common store has %zu connections already, which is its half of the limit (ulimit -n)",
              n);
    if (e.code) {
      close(fd);
      peers_resume(p->peers);
    } else {
      log_debug("%s: is a client of the common store", p->name);
      c10d_server_adopt(ps->store, fd, &p->ip, p->port, p->first.data, p->first.len, &e);
    }
    if (e.code < 0) say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
    peer_free(p);
    return;
  }
  struct err e = ERR_INIT;
  struct buf first = p->first;
  p->first = (struct buf)BUF_INIT;
  if (open_conn(p, end_arrival(p), &e) < 0) {
    say(p, LOG_WARN, "%s: closed: %s", p->name, e.text);
    peer_drop_and_tell(p, false);
  } else {
    conn_feed(&p->conn, first.data, first.len);
  }
  buf_wipe(&first);
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

int peers_adopt(struct peers *ps, int fd, const char *addr, struct err *e) {
  struct sockaddr_storage other = {.ss_family = AF_UNSPEC};
  socklen_t len = sizeof other;
  if (getpeername(fd, (struct sockaddr *)&other, &len) < 0 || other.ss_family != AF_UNIX) {
    close(fd);
    return err_set(e, -ENOTSOCK, "it must be a connected unix socket");
  }
  struct peer *p = xcalloc(1, sizeof(*p));
  p->peers = ps;
  p->uid = ps->key ? (int64_t)geteuid() : -1;
  snprintf(p->addr, sizeof(p->addr), "%s", addr);
  snprintf(p->where, sizeof(p->where), "the agent's socket");
  snprintf(p->local_addr, sizeof(p->local_addr), "%s", addr);
  p->name = xstrdup("the agent that started this daemon");
  ps->n_held++;
  peer_take_slot(p);
  peer_enter_room(p, &ps->unrecognized);
  conn_init_pipe(&p->conn, ps->loop, &peer_conn_callbacks, p, true);
  conn_skip_preface(&p->conn);
  int rc = uv_pipe_open(&p->conn.pipe, fd);
  if (rc) {
    close(fd);
    err_sys(e, rc, "it cannot be opened");
  }
  if (rc == 0) rc = conn_start(&p->conn, PEERS_IDENTIFY_MS, e);
  if (rc)
    peer_drop(p, false);
  else
    peer_begin_framed(p);
  return rc;
}

/* Accepting -------------------------------------------------------------------------------------------------------- */

static void on_accept(void *ctx, int fd, bool local, const struct ipaddr *ip, uint16_t port) {
  struct peer *p = xcalloc(1, sizeof(*p));
  struct err e = ERR_INIT;
  p->peers = ctx;
  p->local = local;
  p->uid = -1;
  p->ip = *ip;
  p->port = port;
  p->peers->n_held++;
  if (!p->local) {
    struct ipaddr ours, network = ipaddr_network(ip);
    uint16_t our_port;
    char text[INET6_ADDRSTRLEN];
    socket_local(fd, &ours, &our_port);
    socket_format(&ours, p->local_addr);
    socket_format(ip, p->addr);
    p->name = xasprintf(ip->family == 6 ? "[%s]:%d" : "%s:%d", p->addr, port);
    socket_format(&network, text);
    snprintf(p->where, sizeof(p->where), network.family == 6 ? "%s/64" : "%s", text);
  }
  int rc = 0;
  if (p->local) { /* any user may connect: each request is checked later */
    pid_t pid = 0;
    uid_t uid = (uid_t)-1;
    rc = control_socket_peer(fd, &pid, &uid, &e);
    if (rc == 0 && user_is_known(uid)) p->uid = (int64_t)uid;
    snprintf(p->where, sizeof(p->where), "control socket, uid %u", (unsigned)uid);
    p->name = xasprintf("control socket (pid %d, uid %u)", (int)pid, (unsigned)uid);
  }
  if (rc == 0) rc = make_room(p, &e);
  if (rc == 0 && !p->local) rc = begin_arrival(p, fd, &e);
  if (rc < 0) {
    say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
    close(fd);
    peer_free(p);
    return;
  }
  peer_take_slot(p);
  peer_enter_room(p, &p->peers->unrecognized);
  if (p->local && open_conn(p, fd, &e) < 0) {
    say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
    peer_drop(p, false);
    return;
  }
  log_debug("%s: is connection %llu", p->name, (unsigned long long)p->id);
}

static void on_accept_pause(void *ctx, int code) {
  struct peers *ps = ctx;
  rations_log(&ps->rations, "accept", boot_ms(), LOG_ERROR, "accept: %s", strerror(-code));
}

static void on_acceptor_closed(void *ctx) {}

static const struct acceptor_callbacks peers_acceptor_callbacks = {on_accept, on_accept_pause, on_acceptor_closed};

int peers_listen(struct peers *ps, int fd, bool control, struct err *e) {
  return acceptor_listen(&ps->acceptor, fd, control, C10D_USER_TIMEOUT_MS, e);
}

/* For the owner ---------------------------------------------------------------------------------------------------- */

struct peers *peers_create(const struct peers_options *o) {
  struct peers *ps = xcalloc(1, sizeof(*ps));
  ps->loop = o->loop;
  ps->cb = *o->cb;
  ps->ctx = o->ctx;
  ps->max = o->max < PEERS_MAX ? o->max : PEERS_MAX;
  ps->user_bytes = o->user_bytes ? o->user_bytes : PEERS_USER_BYTES;
  ps->key = o->key;
  ps->key_source = o->key_source;
  ps->ephemeral = ephemeral_create();
  ps->answers = answers_create(o->loop);
  if (o->key) {
    ps->munge = munge_keys_create(o->loop, o->key, o->seed);
    ps->tickets = secret_alloc();
    key_of_tickets(o->key, ps->tickets);
  }
  acceptor_init(&ps->acceptor, o->loop, &peers_acceptor_callbacks, ps);
  rations_init(&ps->rations, o->seed);
  rations_init(&ps->known, o->seed);
  struct waiting_room *const rooms[] = {&ps->unrecognized, &ps->framed, &ps->paused, &ps->keyless, &ps->keyed};
  for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) room_init(rooms[i], o->seed);
  uv_idle_init(o->loop, &ps->turns);
  ps->turns.data = ps;
  return ps;
}

void peers_destroy(struct peers *ps) {
  if (!ps) return;
  rations_finish(&ps->rations);
  rations_finish(&ps->known);
  ephemeral_destroy(ps->ephemeral);
  secret_free(ps->tickets);
  answers_destroy(ps->answers);
  struct waiting_room *const rooms[] = {&ps->unrecognized, &ps->framed, &ps->paused, &ps->keyless, &ps->keyed};
  for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) room_finish(rooms[i]);
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
  uint64_t now = boot_ms();
  for (struct newcomer *n = ps->unrecognized.oldest; n && now - n->since_ms >= C10D_SETTLE_MS; n = n->newer) {
    const struct peer *p = peer_of(n);
    if (peer_is_silent(p) && ipaddr_compare(&p->ip, addr) == 0) return true;
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
  if (p) peer_drop(p, true);
}

void peers_identify(struct peers *ps, uint64_t id, const char *name, unsigned user_timeout_ms) {
  struct peer *p = find(ps, id);
  if (!p) return;
  log_debug("%s: is %s", p->name, name);
  if (!p->identified) peer_leave_room(p);
  uint64_t before = peers_deadline(ps);
  ps->n_identified += !p->identified;
  p->identified = true;
  if (peers_deadline(ps) < before) ps->cb.on_deadline(ps->ctx);
  free(p->name);
  p->name = xstrdup(name);
  p->conn.max_body = FRAME_MAX_TO_DAEMON;
  conn_set_user_timeout(&p->conn, user_timeout_ms);
}

void peers_pause(struct peers *ps, uint64_t id) {
  struct peer *p = find(ps, id);
  if (!p || !p->identified || peer_is_paused(p)) return;
  conn_pause(&p->conn);
  peer_enter_room(p, &ps->paused);
}

size_t peers_undecided(const struct peers *ps) {
  return ps->framed.count;
}

uint64_t peers_deadline(const struct peers *ps) {
  const struct newcomer *const oldest[] = {ps->unrecognized.oldest, ps->framed.oldest};
  uint64_t at = is_crowded(ps) ? ps->weighed_ms + PEERS_WEIGH_MS : UINT64_MAX;
  if (users_may_be_heavy(ps)) at = earliest(at, ps->weighed_users_ms + PEERS_WEIGH_USERS_MS);
  for (int i = 0; i < 2; i++)
    if (oldest[i]) at = earliest(at, oldest[i]->since_ms + PEERS_IDENTIFY_MS);
  return ps->paused.oldest ? earliest(at, ps->paused.oldest->since_ms + PEERS_PAUSE_MS) : at;
}

void peers_expire(struct peers *ps, uint64_t now) {
  peers_weigh(ps, now);
  for (struct newcomer *n; (n = ps->paused.oldest) && now >= n->since_ms + PEERS_PAUSE_MS;) {
    peer_leave_room(peer_of(n));
    conn_resume(&peer_of(n)->conn);
  }
  while (now >= peers_deadline(ps)) {
    /* each branch takes it out of its room, or gives it a later deadline */
    bool framed = !ps->unrecognized.oldest ||
                  (ps->framed.oldest && ps->framed.oldest->since_ms < ps->unrecognized.oldest->since_ms);
    struct peer *p = peer_of(framed ? ps->framed.oldest : ps->unrecognized.oldest);
    if (!p->id) { /* its answer is on its way out */
      peer_leave_room(p);
      conn_close(&p->conn);
      continue;
    }
    if (peer_hand_over_silent(p)) continue;
    if (p->answer) {
      say(p, LOG_INFO, "%s: HTTP: closed: it did not read the answer for %d s", p->name, PEERS_IDENTIFY_MS / 1000);
      peer_drop(p, false);
      continue;
    }
    if (p->http) {
      answer_http(p, &(struct http_answer){.status = HTTP_REQUEST_TIMEOUT}, false, "this request is incomplete\n");
      continue;
    }
    say(p, LOG_WARN, "%s: closed: %s within %d s", p->name,
        p->turn.source ? "its turn did not come"
        : p->framed    ? "it did not say who it is"
                       : "it sent nothing that rdzvd understands",
        PEERS_IDENTIFY_MS / 1000);
    peer_drop_and_tell(p, false);
  }
}

void peers_close_all(struct peers *ps) {
  ps->store = NULL;
  ps->closed = true;
  acceptor_close(&ps->acceptor);
  for (size_t i = 0; i < ps->n_slots; i++)
    if (ps->slots[i]) peer_drop(ps->slots[i], true);
  answers_close(ps->answers);
  uv_close((uv_handle_t *)&ps->turns, NULL);
  munge_keys_destroy(ps->munge);
  ps->munge = NULL;
}
