/* SPDX-License-Identifier: Apache-2.0 */
/* A native connection over libuv. How it can fail comes first:
 *
 *   the peer closes                      on_end, code 0; in the middle of a message: -ECONNRESET
 *   reset, timeout (TCP_USER_TIMEOUT)    on_end from the read callback, with libuv's code
 *   not a frame or message               on_end, -EPROTO or -EMSGSIZE; writing still works, so the owner may send the reason
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
 * Writing tries the socket first (one system call, without a delay by the loop), and queues the rest: one small request
 * per message with a reference to its bytes.
 *
 * A lease is a few heartbeats long, so lost packets must be sent again soon, not after pauses that double. Linux does
 * that for thin streams (TCP_THIN_LINEAR_TIMEOUTS), but never under BBR, for which a thin stream is always in its first
 * slow start. Since Linux 6.15 the pauses can be limited (TCP_RTO_MAX_MS). Congestion control does not matter for such
 * thin streams, so they use Reno, which every kernel has. With a fifth of all packets lost, nodes under BBR were silent
 * for four seconds every few minutes.
 *
 * conn_close_flushed cannot simply close: closing a socket with unread input makes the kernel send a reset, which
 * overtakes the bytes that were just written. It shuts down writing, drops input, and closes at the peer's end or the
 * deadline. */

#include "proto/conn.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "common/mem.h"
#include "proto/frame.h"
#include "proto/socket.h"

enum { SHOWN_MAX = 40 };
enum { RETRANSMIT_MAX_MS = 1000 }; /* the least that the kernel accepts */
#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44
#endif

struct write {
  uv_write_t req;
  struct conn *conn;
  struct bytes *bytes;
  size_t len; /* the part of bytes that was queued */
};

/* No message is passed to the owner after the first of these. */
static bool is_deaf(const struct conn *c) {
  return c->closing || c->flushing || c->ended || c->foreign;
}

/* Ending ----------------------------------------------------------------------------------------------------------- */

static void end(struct conn *c, int code, const char *reason) {
  if (is_deaf(c)) return;
  c->ended = true;
  c->end_code = code;
  if (reason != c->end_reason) snprintf(c->end_reason, sizeof(c->end_reason), "%s", reason);
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
  snprintf(c->end_reason, sizeof(c->end_reason), "%s", reason);
  c->end_turns = 1; /* idle handles run before the poll of their turn: the second turn is behind one poll */
  if (!is_deaf(c)) uv_idle_start(&c->end_later, on_end_later);
}

static const char *code_text(int code) {
  if (code == UV_ECONNRESET || code == UV_EPIPE) return "reset by the peer";
  if (code == UV_ETIMEDOUT) return "the peer's machine does not answer";
  return uv_strerror(code);
}

/* Closing ---------------------------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *h) {
  struct conn *c = h->data;
  if (--c->open_handles > 0) return;
  buf_finish(&c->in);
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
  size_t most = c->max_body + FRAME_HEADER_SIZE, room = most > c->in.len ? most - c->in.len : 1;
  if (room > CONN_READ_CHUNK) room = CONN_READ_CHUNK;
  *buf = uv_buf_init(buf_reserve(&c->in, room), (unsigned)room);
}

static void on_read_dropped(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
  struct conn *c = s->data;
  buf_clear(&c->in);
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

/* Server side. True: the preface was there, and *at is behind it. */
static bool take_preface(struct conn *c, size_t *at) {
  enum frame_protocol p = frame_detect(c->in.data, c->in.len);
  if (p == FRAME_PROTOCOL_MORE) return false;
  if (p != FRAME_PROTOCOL_NATIVE) {
    uv_read_stop(&c->stream); /* the owner may start it again */
    end_foreign(c, p);
    return false;
  }
  if (c->in.len < FRAME_PREFACE_SIZE) return false;
  unsigned version = le16_get(c->in.data + 4);
  if (version != FRAME_VERSION) {
    char why[96];
    snprintf(why, sizeof(why), "speaks version %u of the frames, this side speaks %d", version, FRAME_VERSION);
    c->other_version = version;
    end(c, -EPROTO, why);
    return false;
  }
  *at = FRAME_PREFACE_SIZE;
  c->preface_seen = true;
  if (c->cb->on_native) c->cb->on_native(c);
  return true;
}

/* The greeting of another server helps a person more than the error that it is as a frame. */
static void end_malformed(struct conn *c, int code, size_t at, bool framed, const struct err *e) {
  struct buf why = BUF_INIT;
  if (!c->heard) buf_puts(&why, "does not seem to be rdzv: ");
  if (c->heard || framed || c->incoming != TO_AGENT) {
    buf_puts(&why, e->text);
  } else {
    buf_puts(&why, "it begins with ");
    show(&why, c->in.data + at, c->in.len - at);
  }
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
  bool framed = rc > 0;
  if (framed) rc = msg_decode(&f, c->incoming, &m, &e);
  if (rc < 0) {
    end_malformed(c, rc, *at, framed, &e);
    return false;
  }
  *at += size;
  c->heard = true;
  c->cb->on_msg(c, &m);
  msg_finish(&m);
  return true;
}

static void take_all(struct conn *c) {
  size_t at = 0;
  if (c->preface_seen || take_preface(c, &at))
    while (!is_deaf(c) && take_message(c, &at)) {
    }
  buf_consume(&c->in, at);
  if (c->in.len == 0 || is_deaf(c)) buf_finish(&c->in);
}

static void end_of_stream(struct conn *c, ssize_t code) {
  if (code != UV_EOF)
    end(c, (int)code, code_text((int)code));
  else if (c->in.len > 0)
    end(c, -ECONNRESET, "closed by the peer in the middle of a message");
  else
    end(c, 0, "closed by the peer");
}

void conn_feed(struct conn *c, const char *data, size_t len) {
  buf_append(&c->in, data, len);
  take_all(c);
}

static void on_read(uv_stream_t *s, ssize_t n, const uv_buf_t *buf) {
  struct conn *c = s->data;
  if (n < 0) {
    end_of_stream(c, n);
    return;
  }
  if (n > 0) {
    buf_commit(&c->in, (size_t)n);
    take_all(c);
  } else if (c->in.len == 0) {
    buf_finish(&c->in);
  }
}

/* Writing ---------------------------------------------------------------------------------------------------------- */

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

void conn_send_bytes(struct conn *c, struct bytes *b) {
  if (c->closing || c->flushing || c->broken) {
    bytes_unref(b);
    return;
  }
  assert(c->started);
  assert(b->len <= CONN_QUEUE_MAX);
  uv_buf_t all = uv_buf_init(b->data, (unsigned)b->len);
  int n = c->queued ? UV_EAGAIN : uv_try_write(&c->stream, &all, 1);
  if (n < 0 && n != UV_EAGAIN) {
    bytes_unref(b);
    break_off(c, n, code_text(n));
  } else if (n >= 0 && (size_t)n == b->len) {
    bytes_unref(b);
  } else {
    queue_write(c, b, n > 0 ? (size_t)n : 0);
  }
}

void conn_send(struct conn *c, const struct msg *m) {
  if (c->closing || c->flushing || c->broken) return;
  conn_send_bytes(c, msg_bytes(m));
}

/* Beginning -------------------------------------------------------------------------------------------------------- */

static void init(struct conn *c, uv_loop_t *loop, const struct conn_callbacks *cb, void *owner, bool server) {
  c->cb = cb;
  c->owner = owner;
  c->incoming = server ? TO_DAEMON : TO_AGENT;
  c->preface_seen = !server;
  c->max_body = FRAME_MAX_UNIDENTIFIED;
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

int conn_start(struct conn *c, unsigned user_timeout_ms, struct err *e) {
  assert(!c->started && !c->closing);
  int rc = c->handle.type == UV_TCP ? set_tcp_options(c, user_timeout_ms) : 0;
  if (rc) return err_sys(e, rc, "cannot set the options of a connection");
  rc = uv_read_start(&c->stream, on_alloc, on_read);
  if (rc) return err_sys(e, rc, "cannot read from a connection");
  c->started = true;
  if (c->incoming == TO_AGENT) conn_send_bytes(c, bytes_create(frame_preface, sizeof(frame_preface)));
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
