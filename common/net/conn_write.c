/* SPDX-License-Identifier: Apache-2.0 */
/* What a connection sends. The socket is tried first (one system call, without a delay by the loop). The rest is queued:
 * one small request per message, with a reference to its bytes. In a channel each message is sealed into bytes of its
 * own. */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include "common/mem.h"
#include "common/net/conn_internal.h"

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
  if (status < 0 && status != UV_ECANCELED) conn_break_off(c, status, conn_code_text(status));
}

/* Queues b[from..) in libuv. Takes the reference. */
static void queue_write(struct conn *c, struct bytes *b, size_t from) {
  size_t len = b->len - from;
  if (len > CONN_QUEUE_MAX - c->queued) {
    char why[64];
    snprintf(why, sizeof(why), "does not read: %d MiB queued", CONN_QUEUE_MAX / (1024 * 1024));
    bytes_unref(b);
    conn_break_off(c, -ENOBUFS, why);
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
  conn_break_off(c, rc, conn_code_text(rc));
}

/* Writes what the socket takes now. Returns how much; -1: the connection is broken. */
static ssize_t try_now(struct conn *c, const char *data, size_t len) {
  uv_buf_t all = {.base = (char *)(uintptr_t)data, .len = len}; /* libuv only reads it */
  int n = c->queued ? UV_EAGAIN : uv_try_write(&c->stream, &all, 1);
  if (n >= 0) return n;
  if (n == UV_EAGAIN) return 0;
  conn_break_off(c, n, conn_code_text(n));
  return -1;
}

/* Bytes of ours, as they go over the wire. */
void conn_write_now(struct conn *c, const char *data, size_t len) {
  ssize_t n = try_now(c, data, len);
  if (n >= 0 && (size_t)n < len) queue_write(c, bytes_create(data + n, len - (size_t)n), 0);
}

/* The answer to the opening goes with the first record: one system call less, and one packet. */
void conn_send_sealed(struct conn *c, const char *data, size_t len) {
  struct buf out = c->early;
  c->early = (struct buf)BUF_INIT;
  channel_seal(&c->channel, data, len, &out);
  conn_write_now(c, out.data, out.len);
  buf_finish(&out);
}

static void keep_early(struct conn *c, const char *data, size_t len) {
  if (len > CONN_QUEUE_MAX - c->early.len)
    conn_break_off(c, -ENOBUFS, "does not open its channel");
  else
    buf_append(&c->early, data, len);
}

void conn_send_bytes(struct conn *c, struct bytes *b) {
  if (c->closing || c->flushing || c->broken) {
    bytes_unref(b);
    return;
  }
  assert(c->started);
  assert(b->len <= CONN_QUEUE_MAX);
  if (c->channel.state != CHANNEL_IS_PLAIN) {
    (c->channel.state == CHANNEL_IS_SEALED ? conn_send_sealed : keep_early)(c, b->data, b->len);
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
  if (c->started && !c->closing && !c->flushing && !c->broken) conn_write_now(c, "\r\n\r\n", 4);
}
