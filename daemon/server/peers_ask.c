/* SPDX-License-Identifier: Apache-2.0 */
/* Peers that ask one question and get one answer, in bytes that are not our frames. */

#include <string.h>
#include "daemon/server/peers_internal.h"
#include "proto/munge_ask.h"

enum { SHOWN_REQUEST = 120 };

static void on_request_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  static char room[HTTP_HEAD_MAX]; /* copied before the next read */
  *out = uv_buf_init(room, sizeof(room));
}

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

static void on_question_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct peer *p = ((struct conn *)stream->data)->owner;
  if (n < 0) {
    peer_drop(p, false);
  } else if (n > 0) {
    buf_append(&p->request, b->base, (size_t)n);
    take_question(p);
  }
}

void peer_begin_munge(struct peer *p, const char *data, size_t len) {
  if (!p->peers->munge) {
    on_munge(p, CHANNEL_NO_KEY, NULL, 0);
    return;
  }
  buf_append(&p->request, data, len);
  if (uv_read_start(&p->conn.stream, on_request_alloc, on_question_read) != 0)
    peer_drop(p, false);
  else
    take_question(p);
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

static void on_request_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct peer *p = ((struct conn *)stream->data)->owner;
  if (n < 0) {
    log_debug("%s: HTTP: closed before its request was complete: %s", p->name, uv_strerror((int)n));
    peer_drop(p, false);
  } else if (n > 0) {
    append_request(p, b->base, (size_t)n);
    explicit_bzero(b->base, (size_t)n);
    take_request(p);
  }
}

void peer_begin_http(struct peer *p, const char *data, size_t len) {
  p->http = true;
  append_request(p, data, len);
  if (uv_read_start(&p->conn.stream, on_request_alloc, on_request_read) != 0)
    peer_drop(p, false);
  else
    take_request(p);
}

void peer_expire_http(struct peer *p) {
  if (p->answer) {
    say(p, LOG_INFO, "%s: HTTP: closed: it did not read the answer for %d s", p->name, PEERS_IDENTIFY_MS / 1000);
    peer_drop(p, false);
    return;
  }
  answer_http(p, &(struct http_answer){.status = HTTP_REQUEST_TIMEOUT}, false, "this request is incomplete\n");
}
