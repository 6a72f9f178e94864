/* SPDX-License-Identifier: Apache-2.0 */
/* A native connection over libuv: its beginning, its end, what comes in, and what goes out. How it can
 * fail comes first:
 *
 *   the peer closes                      on_end, code 0; in the middle of a message: -ECONNRESET
 *   reset, timeout (TCP_USER_TIMEOUT)    on_end from the read callback, with libuv's code
 *   not a frame or message               on_end, -EPROTO or -EMSGSIZE; writing still works, so the owner may send the reason
 *   no channel: another key, or none     on_end, -EACCES; a server has sent its refusal
 *   a record was changed, or replayed    on_end, -EBADMSG
 *   first bytes of another protocol      on_foreign, else on_end
 *   a write fails, or CONN_QUEUE_MAX     the connection is `broken`: later sends are dropped, on_end comes from the loop
 *
 * A failed write is reported late on purpose. conn_send meets it in the middle of a push to thousands of peers, and the
 * owner must not find its tables changed when the call returns. And a peer that closed may have sent the reason, which
 * still waits in our socket. So end_later, an idle handle, lets the loop poll once more. If reading finds the end
 * itself, its reason is the better one and is reported.
 *
 * Reading never holds more than one frame of max_body: the buffer grows as bytes come, not as a header claims, and the
 * rest of a read is less than one frame. An idle connection holds no buffer, since the daemon has ten thousand. Frames
 * are taken from the buffer by an offset and dropped together at the end. Any callback may close the connection; the
 * memory stays until on_closed, so checking its flags is enough.
 *
 * In a channel bytes are read into `wire`, record by record unsealed into `in`, and there they are frames as in a plain
 * connection. A message to many peers is encoded once and sealed for each.
 *
 * A lease is a few heartbeats long, so lost packets must be sent again soon, not after pauses that double. Linux does
 * that for thin streams (TCP_THIN_LINEAR_TIMEOUTS), but never under BBR, for which a thin stream is always in its first
 * slow start. Since Linux 6.15 the pauses can be limited (TCP_RTO_MAX_MS). Congestion control does not matter for such
 * thin streams, so they use Reno, which every kernel has.
 *
 * conn_close_flushed cannot simply close: closing a socket with unread input makes the kernel send a reset, which
 * overtakes the bytes that were just written. It shuts down writing, drops input, and closes at the peer's end or the
 * deadline. */

#include "common/net/conn.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include "common/mem.h"
#include "common/net/socket.h"
#include "proto/frame.h"

enum { SHOWN_MAX = 40 };
enum { RETRANSMIT_MAX_MS = 1000 }; /* the least that the kernel accepts */
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

/* No message is passed to the owner after the first of these. */
static bool is_deaf(const struct conn *c) {
  return c->closing || c->flushing || c->ended || c->foreign;
}

/* Ending ----------------------------------------------------------------------------------------------------------- */

static void keep_reason(struct conn *c, const char *reason) {
  if (reason == c->end_reason) return;
  free(c->end_reason);
  c->end_reason = xasprintf("%.255s", reason);
}

static void end(struct conn *c, int code, const char *reason) {
  if (is_deaf(c)) return;
  c->ended = true;
  c->end_code = code;
  keep_reason(c, reason);
  uv_idle_stop(&c->end_later);
  uv_read_stop(&c->stream);
  c->cb->on_end(c, code, c->end_reason);
}

static void on_end_later(uv_idle_t *idle) {
  struct conn *c = idle->data;
  if (c->end_turns-- > 0) return;
  uv_idle_stop(idle);
  end(c, c->end_code, c->end_reason);
}

/* Writing is over. The owner learns it when the loop has had a chance to read the peer's last message. */
static void break_off(struct conn *c, int code, const char *reason) {
  if (c->broken || c->closing) return;
  c->broken = true;
  if (c->ended) return;
  c->end_code = code;
  keep_reason(c, reason);
  c->end_turns = 1; /* idle handles run before the poll of their turn: the second turn is behind one poll */
  if (!is_deaf(c)) uv_idle_start(&c->end_later, on_end_later);
}

static const char *code_text(int code) {
  if (code == UV_ECONNRESET || code == UV_EPIPE) return "reset by the peer";
  if (code == UV_ETIMEDOUT) return "the peer's machine does not answer";
  return uv_strerror(code);
}

/* Writing ------------------------------------------------------------------------------------------------------------- */

/* What a connection sends. The socket is tried first (one system call, without a delay by the loop). The rest is queued:
 * one small request per message, with a reference to its bytes. In a channel each message is sealed into bytes of its
 * own. */

struct write {
  uv_write_t req;
  struct conn *conn;
  struct bytes *bytes;
  size_t len; /* the part of bytes that was queued */
};

static void on_written(uv_write_t *req, int status) {
  struct write *w = (struct write *)req; /* req is its first member */
  struct conn *c = w->conn;
  c->queued -= w->len;
  bytes_unref(w->bytes);
  free(w);
  if (status < 0 && status != UV_ECANCELED) break_off(c, status, code_text(status));
}

/* Queues b[from..) in libuv. Takes the reference. */
static void queue_write(struct conn *c, struct bytes *b, size_t from) {
  size_t len = b->len - from;
  if (len > CONN_QUEUE_MAX - c->queued) {
    char why[64];
    snprintf(why, sizeof(why), "does not read: %d MiB queued", CONN_QUEUE_MAX / (1024 * 1024));
    bytes_unref(b);
    break_off(c, -ENOBUFS, why);
    return;
  }
  struct write *w = xmalloc(sizeof(*w));
  w->conn = c;
  w->bytes = b;
  w->len = len;
  uv_buf_t part = uv_buf_init(b->data + from, (unsigned)len);
  int rc = uv_write(&w->req, &c->stream, &part, 1, on_written);
  if (rc == 0) {
    c->queued += len;
    return;
  }
  bytes_unref(b);
  free(w);
  break_off(c, rc, code_text(rc));
}

/* Writes what the socket takes now. Returns how much; -1: the connection is broken. */
static ssize_t try_now(struct conn *c, const char *data, size_t len) {
  uv_buf_t all = {.base = (char *)(uintptr_t)data, .len = len}; /* libuv only reads it */
  int n = c->queued ? UV_EAGAIN : uv_try_write(&c->stream, &all, 1);
  if (n >= 0) return n;
  if (n == UV_EAGAIN) return 0;
  break_off(c, n, code_text(n));
  return -1;
}

/* Bytes as they go over the wire. */
static void write_now(struct conn *c, const char *data, size_t len) {
  ssize_t n = try_now(c, data, len);
  if (n >= 0 && (size_t)n < len) queue_write(c, bytes_create(data + n, len - (size_t)n), 0);
}

/* The answer to the opening goes with the first record: one system call less, and one packet. */
static void send_sealed(struct conn *c, const char *data, size_t len) {
  struct buf out = c->early;
  c->early = (struct buf)BUF_INIT;
  channel_seal(&c->channel, data, len, &out);
  write_now(c, out.data, out.len);
  buf_finish(&out);
}

static void keep_early(struct conn *c, const char *data, size_t len) {
  if (len > CONN_QUEUE_MAX - c->early.len)
    break_off(c, -ENOBUFS, "does not open its channel");
  else
    buf_append(&c->early, data, len);
}

void conn_send_bytes(struct conn *c, struct bytes *b) {
  if (c->closing || c->flushing || c->broken || (c->heard && !msg_is_known(b, c->features))) {
    bytes_unref(b);
    return;
  }
  assert(c->started);
  assert(b->len <= CONN_QUEUE_MAX);
  if (c->channel.state != CHANNEL_IS_PLAIN) {
    (c->channel.state == CHANNEL_IS_SEALED ? send_sealed : keep_early)(c, b->data, b->len);
    bytes_unref(b);
    return;
  }
  ssize_t n = try_now(c, b->data, b->len);
  if (n < 0 || (size_t)n == b->len)
    bytes_unref(b);
  else
    queue_write(c, b, (size_t)n);
}

void conn_send(struct conn *c, const struct msg *m) {
  if (c->closing || c->flushing || c->broken) return;
  conn_send_bytes(c, msg_bytes(m));
}

void conn_knock(struct conn *c) {
  if (c->started && !c->closing && !c->flushing && !c->broken) write_now(c, "\r\n\r\n", 4);
}

/* Closing ---------------------------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *h) {
  struct conn *c = h->data;
  if (--c->open_handles > 0) return;
  channel_finish(&c->channel);
  free(c->end_reason);
  buf_wipe(&c->in);
  buf_finish(&c->wire);
  buf_finish(&c->early);
  c->cb->on_closed(c);
}

void conn_close(struct conn *c) {
  if (c->closing) return;
  c->closing = true;
  uv_close(&c->handle, on_handle_closed);
  uv_close((uv_handle_t *)&c->flush_timer, on_handle_closed);
  uv_close((uv_handle_t *)&c->end_later, on_handle_closed);
}

static void on_flush_timeout(uv_timer_t *t) {
  conn_close(t->data);
}

static void on_shutdown(uv_shutdown_t *req, int status) {
  struct conn *c = req->data;
  c->all_sent = true;
  if (status < 0 || c->peer_ended) conn_close(c);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf) {
  struct conn *c = h->data;
  if (c->channel.state != CHANNEL_IS_PLAIN) {
    *buf = uv_buf_init(buf_reserve(&c->wire, CONN_READ_CHUNK), CONN_READ_CHUNK);
    return;
  }
  size_t most = c->max_body + FRAME_HEADER_SIZE, room = most > c->in.len ? most - c->in.len : 1;
  if (room > CONN_READ_CHUNK) room = CONN_READ_CHUNK;
  *buf = uv_buf_init(buf_reserve(&c->in, room), (unsigned)room);
}

static void on_read_dropped(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
  struct conn *c = s->data;
  buf_clear(&c->in);
  buf_clear(&c->wire);
  if (n == UV_EOF) c->peer_ended = true; /* it may have closed one direction only, and still read */
  if ((n < 0 && n != UV_EOF) || (c->peer_ended && c->all_sent)) conn_close(c);
}

void conn_close_flushed(struct conn *c) {
  if (c->closing || c->flushing) return;
  uv_idle_stop(&c->end_later);
  if (!c->started || c->broken) {
    conn_close(c);
    return;
  }
  c->flushing = true;
  c->shutdown.data = c;
  uv_read_stop(&c->stream);
  if (uv_shutdown(&c->shutdown, &c->stream, on_shutdown) != 0 ||
      uv_read_start(&c->stream, on_alloc, on_read_dropped) != 0) {
    conn_close(c);
    return;
  }
  uv_timer_start(&c->flush_timer, on_flush_timeout, CONN_CLOSE_FLUSH_MS, 0);
}

/* Reading ---------------------------------------------------------------------------------------------------------- */

static void show(struct buf *out, const char *data, size_t len) {
  buf_putc(out, '"');
  buf_put_escaped(out, data, len, SHOWN_MAX);
  buf_putc(out, '"');
}

static void end_foreign(struct conn *c, enum frame_protocol p) {
  if (c->cb->on_foreign && c->cb->on_foreign(c, p, c->in.data, c->in.len)) {
    c->foreign = true;
    return;
  }
  struct buf why = BUF_INIT;
  if (p == FRAME_PROTOCOL_UNKNOWN) {
    buf_puts(&why, "speaks a protocol that is not served here; it begins with ");
    show(&why, c->in.data, c->in.len);
  } else {
    buf_printf(&why, "speaks %s, which is not served here", frame_protocol_name(p));
  }
  end(c, -EPROTO, buf_text(&why));
  buf_finish(&why);
}

static int accept_by(struct conn *c, const struct conn_terms *t, enum channel_kind kind, struct buf *answer) {
  const struct noise_ephemeral *e = ephemeral_key(t->ephemeral);
  if (kind == CHANNEL_KIND_SEALED) return channel_accept(&c->channel, &t->key, e, t->source, c->in.data, answer);
  if (!t->tickets) return -EBADMSG;
  return channel_accept_ticket(&c->channel, t->tickets, e, (uint32_t)time(NULL), t->source, c->in.data, answer);
}

/* Checks a whole opening. The order keeps strangers cheap: their opening fails before any Diffie-Hellman. */
static enum channel_status accept_opening(struct conn *c, enum channel_kind kind, struct buf *answer) {
  struct conn_terms t = {.source = CHANNEL_SOURCE_OTHER};
  int64_t uid = channel_opening_uid(c->in.data);
  enum channel_status status = c->cb->on_opening ? c->cb->on_opening(c, uid, &t) : CHANNEL_NO_KEY;
  if (status == CHANNEL_OK) {
    if (ephemeral_is_old(t.ephemeral, uv_now(c->handle.loop))) {
      uint8_t random[NOISE_KEY];
      randombytes_buf(random, sizeof(random));
      ephemeral_renew(t.ephemeral, random, uv_now(c->handle.loop));
      sodium_memzero(random, sizeof(random));
    }
    if (accept_by(c, &t, kind, answer) < 0) {
      status = CHANNEL_WRONG_KEY;
    } else if (!ephemeral_note(t.ephemeral, channel_opening_mark(c->in.data))) { /* a replay */
      channel_finish(&c->channel);
      buf_clear(answer);
      status = CHANNEL_WRONG_KEY;
    }
  }
  if (status == CHANNEL_OK)
    c->uid = uid;
  else
    channel_put_header(answer, status, t.source);
  key_wipe(&t.key);
  return status;
}

static void take_opening(struct conn *c, enum channel_kind kind) {
  struct buf answer = BUF_INIT;
  if (c->in.len < channel_opening_size(kind)) return;
  enum channel_status status = accept_opening(c, kind, &answer);
  if (status != CHANNEL_OK) {
    write_now(c, answer.data, answer.len);
    buf_finish(&answer);
    end(c, -EACCES,
        status == CHANNEL_WRONG_KEY && kind == CHANNEL_KIND_RESUMED
            ? "its ticket is too old, used, or not of this daemon; it may come back with its key"
        : status == CHANNEL_WRONG_KEY ? "its key is not the key of this daemon"
        : status == CHANNEL_NO_KEY    ? "it has a key, and this daemon has none (--insecure)"
                                      : "it cannot be served now");
    return;
  }
  c->preface_seen = true;
  /* Reading goes on with a channel; what has come behind the opening belongs to it. */
  buf_append(&c->wire, c->in.data + channel_opening_size(kind), c->in.len - channel_opening_size(kind));
  buf_finish(&c->in);
  c->early = answer;
  if (c->cb->on_preface) c->cb->on_preface(c);
  if (c->early.len && !c->closing && !c->flushing) send_sealed(c, NULL, 0); /* nothing went with it */
}

/* Server side. True: a plain preface was there, and *at is behind it. */
static bool take_preface(struct conn *c, size_t *at) {
  enum frame_protocol p = frame_detect(c->in.data, c->in.len);
  if (p == FRAME_PROTOCOL_MORE) return false;
  if (p == FRAME_PROTOCOL_RDZV) {
    if (c->in.len < FRAME_PREFACE_SIZE) return false;
    unsigned version = le16_get(c->in.data + 4);
    int kind = channel_kind_of(c->in.data);
    if (version != FRAME_VERSION) {
      char why[96];
      snprintf(why, sizeof(why), "speaks version %u of the frames, this side speaks %d", version, FRAME_VERSION);
      c->other_version = version;
      end(c, -EPROTO, why);
      return false;
    }
    if (kind < 0) {
      end(c, -EPROTO, "opens a connection in a way that this side does not know");
      return false;
    }
    if (kind == CHANNEL_KIND_SEALED || kind == CHANNEL_KIND_RESUMED) {
      take_opening(c, (enum channel_kind)kind);
      return false;
    }
    if (kind == CHANNEL_KIND_MUNGE) p = FRAME_PROTOCOL_MUNGE;
  }
  if (p != FRAME_PROTOCOL_RDZV) {
    uv_read_stop(&c->stream); /* the owner may start it again */
    end_foreign(c, p);
    return false;
  }
  *at = FRAME_PREFACE_SIZE;
  c->preface_seen = true;
  if (c->cb->on_preface) c->cb->on_preface(c);
  return true;
}

/* The greeting of another server helps a person more than the error that it is as a frame. */
static void end_unlike(struct conn *c, int code, const char *data, size_t len) {
  struct buf why = BUF_INIT;
  buf_puts(&why, "does not seem to be rdzv: it begins with ");
  show(&why, data, len);
  end(c, code, buf_text(&why));
  buf_finish(&why);
}

static void end_malformed(struct conn *c, int code, size_t at, bool framed, const struct err *e) {
  if (!c->heard && !framed && c->incoming == TO_AGENT) {
    end_unlike(c, code, c->in.data + at, c->in.len - at);
    return;
  }
  struct buf why = BUF_INIT;
  if (!c->heard) buf_puts(&why, "does not seem to be rdzv: ");
  buf_puts(&why, e->text);
  end(c, code, buf_text(&why));
  buf_finish(&why);
}

/* Passes on one message at c->in[*at]. False: more bytes are needed, or the owner wants no more. */
static bool take_message(struct conn *c, size_t *at) {
  struct frame f;
  struct msg m;
  struct err e = ERR_INIT;
  size_t size;
  int rc = frame_parse(c->in.data + *at, c->in.len - *at, c->max_body, &f, &size, &e);
  if (rc == 0) return false;
  if (rc > 0 && c->cb->may_take && !c->cb->may_take(c, (enum msg_type)f.type)) {
    conn_pause(c); /* the message stays in c->in */
    return false;
  }
  bool framed = rc > 0;
  if (framed) rc = msg_decode(&f, c->incoming, &m, &e);
  if (rc < 0) {
    end_malformed(c, rc, *at, framed, &e);
    return false;
  }
  *at += size;
  c->heard = true;
  if (m.type == MSG_GREETING) c->features = features_of(m.greeting.features);
  if (m.type == MSG_HELLO) c->features = features_of(m.hello.features);
  c->cb->on_msg(c, &m);
  msg_finish(&m);
  return true;
}

static void take_frames(struct conn *c) {
  size_t at = 0;
  if (c->preface_seen || take_preface(c, &at))
    while (!is_deaf(c) && !c->paused && take_message(c, &at)) {
    }
  buf_consume(&c->in, at);
  if (is_deaf(c)) buf_wipe(&c->in); /* a request over HTTP may have a token */
  if (c->in.len == 0) buf_finish(&c->in);
}

/* Client side. True: the channel is open, and *at is behind the answer. */
static bool take_answer(struct conn *c, size_t *at) {
  int rc = channel_take_answer(&c->channel, c->wire.data, c->wire.len, at, &c->refusal, &c->refusal_key);
  if (rc < 0) {
    if (rc == -EACCES)
      end(c, rc, c->refusal == CHANNEL_WRONG_KEY ? "its key is another one" : "it refuses the channel");
    else if (rc == -EBADMSG)
      end(c, rc, "it answers without the key: another program listens there, or changes what is sent");
    else
      end_unlike(c, -EPROTO, c->wire.data, c->wire.len);
  }
  if (rc <= 0) return false;
  struct buf early = c->early;
  c->early = (struct buf)BUF_INIT;
  if (early.len) send_sealed(c, early.data, early.len);
  buf_finish(&early);
  return true;
}

static void take_records(struct conn *c) {
  size_t at = 0, used = 0;
  struct err e = ERR_INIT;
  if (c->channel.state == CHANNEL_IS_OPENING && !take_answer(c, &at)) return;
  while (!is_deaf(c) && !c->paused) {
    int rc = channel_unseal(&c->channel, c->wire.data + at, c->wire.len - at, &used, &c->in, &e);
    if (rc < 0) end(c, rc, e.text);
    if (rc <= 0) break;
    at += used;
    take_frames(c);
  }
  buf_consume(&c->wire, at);
  if (c->wire.len == 0 || is_deaf(c)) buf_finish(&c->wire);
}

static void take_all(struct conn *c) {
  if (c->channel.state == CHANNEL_IS_PLAIN) take_frames(c);
  if (c->channel.state != CHANNEL_IS_PLAIN && c->wire.len && !is_deaf(c)) take_records(c);
}

static struct buf *read_buffer(struct conn *c) {
  return c->channel.state == CHANNEL_IS_PLAIN ? &c->in : &c->wire;
}

void conn_feed(struct conn *c, const char *data, size_t len) {
  buf_append(read_buffer(c), data, len);
  take_all(c);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
  struct conn *c = s->data;
  if (n < 0) {
    if (n != UV_EOF)
      end(c, (int)n, code_text((int)n));
    else if (c->in.len > 0 || c->wire.len > 0)
      end(c, -ECONNRESET, "closed by the peer in the middle of a message");
    else
      end(c, 0, "closed by the peer");
    return;
  }
  if (n > 0) {
    buf_commit(read_buffer(c), (size_t)n);
    take_all(c);
  } else if (read_buffer(c)->len == 0) {
    buf_finish(read_buffer(c));
  }
}

void conn_pause(struct conn *c) {
  if (is_deaf(c)) return;
  c->paused = true;
  uv_read_stop(&c->stream);
}

/* Whole messages may wait in `in`, and behind them sealed records in `wire`. */
void conn_resume(struct conn *c) {
  if (!c->paused) return;
  c->paused = false;
  if (c->in.len && !is_deaf(c)) take_frames(c);
  if (c->wire.len && !is_deaf(c) && !c->paused) take_records(c);
  if (is_deaf(c) || c->paused) return;
  int rc = uv_read_start(&c->stream, on_alloc, on_read);
  if (rc) end(c, rc, code_text(rc));
}

/* Beginning -------------------------------------------------------------------------------------------------------- */

static void init(struct conn *c, uv_loop_t *loop, const struct conn_callbacks *cb, void *owner, bool server) {
  c->cb = cb;
  c->owner = owner;
  c->incoming = server ? TO_DAEMON : TO_AGENT;
  c->preface_seen = !server;
  c->max_body = FRAME_MAX_UNIDENTIFIED;
  c->uid = KEY_OWN;
  uv_timer_init(loop, &c->flush_timer);
  uv_idle_init(loop, &c->end_later);
  c->handle.data = c->flush_timer.data = c->end_later.data = c;
  c->open_handles = 3;
}

void conn_init_tcp(struct conn *c, uv_loop_t *loop, const struct conn_callbacks *cb, void *owner, bool server) {
  memset(c, 0, sizeof(*c));
  uv_tcp_init(loop, &c->tcp);
  init(c, loop, cb, owner, server);
}

void conn_init_pipe(struct conn *c, uv_loop_t *loop, const struct conn_callbacks *cb, void *owner, bool server) {
  memset(c, 0, sizeof(*c));
  uv_pipe_init(loop, &c->pipe, 0);
  init(c, loop, cb, owner, server);
}

/* The connection works without the options of retransmission: a kernel may not know them, or its administrator may
 * forbid them. */
static int set_tcp_options(const struct conn *c, unsigned user_timeout_ms) {
  static const char reno[] = "reno";
  static const int linear = 1, max_ms = RETRANSMIT_MAX_MS;
  uv_os_fd_t fd;
  int rc = uv_fileno(&c->handle, &fd);
  if (rc) return rc;
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof(reno) - 1);
  setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &linear, sizeof(linear));
  setsockopt(fd, IPPROTO_TCP, TCP_RTO_MAX_MS, &max_ms, sizeof(max_ms));
  return socket_set_options(fd, user_timeout_ms);
}

void conn_use_key(struct conn *c, const struct key *key) {
  c->key = key;
}

void conn_use_ticket(struct conn *c, const struct channel_ticket *ticket) {
  c->ticket = ticket;
}

void conn_skip_preface(struct conn *c) {
  assert(!c->started && !c->key);
  c->preface_skipped = c->preface_seen = true;
}

int conn_start(struct conn *c, unsigned user_timeout_ms, struct err *e) {
  assert(!c->started && !c->closing);
  int rc = c->handle.type == UV_TCP ? set_tcp_options(c, user_timeout_ms) : 0;
  if (rc) return err_sys(e, rc, "cannot set the options of a connection");
  rc = uv_read_start(&c->stream, on_alloc, on_read);
  if (rc) return err_sys(e, rc, "cannot read from a connection");
  c->started = true;
  if (c->incoming == TO_AGENT && c->key) {
    struct buf opening = BUF_INIT;
    uint8_t random[NOISE_KEY];
    if (c->ticket) {
      channel_resume(&c->channel, c->ticket, &opening);
    } else {
      randombytes_buf(random, sizeof(random));
      channel_open(&c->channel, c->key, random, &opening);
      sodium_memzero(random, sizeof(random));
    }
    c->key = NULL;
    c->ticket = NULL;
    write_now(c, opening.data, opening.len);
    buf_finish(&opening);
  } else if (c->incoming == TO_AGENT && !c->preface_skipped) {
    write_now(c, frame_preface, sizeof(frame_preface));
  }
  return 0;
}

void conn_set_user_timeout(struct conn *c, unsigned ms) {
  uv_os_fd_t fd;
  if (c->closing || c->handle.type != UV_TCP || uv_fileno(&c->handle, &fd)) return;
  /* The same call worked in conn_start. It fails only if the connection is gone, which reading reports. */
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof(ms));
}

void conn_addresses(const struct conn *c, char peer[ADDR_MAX + 1], char local[ADDR_MAX + 1], uint16_t *peer_port) {
  uv_os_fd_t fd;
  struct ipaddr addr = {0};
  uint16_t port;
  peer[0] = local[0] = '\0';
  *peer_port = 0;
  if (c->handle.type != UV_TCP || uv_fileno(&c->handle, &fd)) return;
  socket_peer(fd, &addr, peer_port);
  socket_format(&addr, peer);
  socket_local(fd, &addr, &port);
  socket_format(&addr, local);
}
