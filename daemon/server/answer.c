/* SPDX-License-Identifier: Apache-2.0 */
/* Long answers over HTTP.
 *
 *   begin -> queue: one piece of the first one in each turn of the loop; if it is not whole, it is the last one again
 *         -> whole: head and body are written, ANSWER_WRITE bytes at once -> on_end
 *
 * The idle handle makes the pieces. While it is active the loop polls without waiting, so messages are read and written
 * between two pieces. libuv writes what the socket accepts and keeps the rest, a part of the body that it does not copy.
 * A cancelled answer may be one that libuv still holds; then it is freed by the callback of its write. */

#include "daemon/server/answer.h"

#include <errno.h>
#include <stdlib.h>
#include "common/mem.h"

struct answer {
  struct answers *all; /* NULL: cancelled */
  struct answer *next; /* in the queue */
  struct answer_document document;
  struct answer_callbacks cb;
  void *ctx;
  uv_stream_t *stream;
  uv_write_t write;
  struct buf head, body;
  size_t sent; /* bytes of the body */
};

struct answers {
  uv_idle_t idle;
  struct answer *first, *last;      /* the queue: those that are being made */
  struct answer *open[ANSWERS_MAX]; /* in no order */
  size_t n_open;
  bool closed;
};

static void on_idle(uv_idle_t *idle);

static void enqueue(struct answers *as, struct answer *a) {
  a->next = NULL;
  if (as->last)
    as->last->next = a;
  else
    as->first = a;
  as->last = a;
  uv_idle_start(&as->idle, on_idle);
}

static void dequeue(struct answers *as, struct answer *a) {
  struct answer **at = &as->first, *before = NULL;
  for (; *at && *at != a; at = &(*at)->next) before = *at;
  if (!*at) return;
  *at = a->next;
  if (as->last == a) as->last = before;
  if (!as->first) uv_idle_stop(&as->idle);
}

static void free_answer(struct answer *a) {
  buf_finish(&a->head);
  buf_finish(&a->body);
  free(a);
}

/* It counts no more, and nobody is called. */
static void leave(struct answer *a) {
  struct answers *as = a->all;
  dequeue(as, a);
  for (size_t i = 0; i < as->n_open; i++)
    if (as->open[i] == a) {
      as->open[i] = as->open[--as->n_open];
      break;
    }
  a->all = NULL;
  if (a->document.destroy) a->document.destroy(a->document.source);
}

static void end(struct answer *a, int status) {
  struct answer_callbacks cb = a->cb;
  void *ctx = a->ctx;
  leave(a);
  free_answer(a);
  cb.on_end(ctx, status);
}

void answer_cancel(struct answer *a) {
  bool is_written = a->write.data != NULL;
  leave(a);
  if (!is_written) free_answer(a);
}

static void on_written(uv_write_t *write, int status);

static void write_part(struct answer *a) {
  size_t left = a->body.len - a->sent;
  size_t n = left < ANSWER_WRITE ? left : ANSWER_WRITE;
  uv_buf_t parts[2] = {uv_buf_init(a->head.data, (unsigned)a->head.len),
                       uv_buf_init(a->body.data ? a->body.data + a->sent : NULL, (unsigned)n)};
  bool has_head = a->head.len > 0;
  a->sent += n;
  a->write.data = a;
  int rc = uv_write(&a->write, a->stream, has_head ? parts : parts + 1, has_head && n ? 2 : 1, on_written);
  if (rc == 0) return;
  a->write.data = NULL;
  end(a, rc);
}

static void on_written(uv_write_t *write, int status) {
  struct answer *a = write->data;
  a->write.data = NULL;
  if (!a->all) {
    free_answer(a);
    return;
  }
  buf_finish(&a->head);
  if (status < 0 || a->sent == a->body.len) {
    end(a, status);
    return;
  }
  a->cb.on_progress(a->ctx);
  if (a->all) write_part(a);
}

static void on_idle(uv_idle_t *idle) {
  struct answers *as = idle->data;
  struct answer *a = as->first;
  dequeue(as, a);
  if (a->document.more(a->document.source, &a->body)) {
    enqueue(as, a);
    return;
  }
  a->document.put_head(a->document.source, &a->head, &a->body);
  write_part(a);
}

struct answer *answers_begin(struct answers *as, uv_stream_t *stream, const struct answer_document *document,
                             const struct answer_callbacks *cb, void *ctx, struct err *e) {
  int of_user = 0;
  for (size_t i = 0; i < as->n_open; i++) of_user += as->open[i]->document.uid == document->uid;
  int rc = 0;
  if (as->closed)
    rc = err_set(e, -ESHUTDOWN, "this daemon is stopping");
  else if (of_user >= ANSWERS_USER_MAX)
    rc = err_set(e, -EAGAIN, "%d answers for uid %lld are being made or read; ask again when one is complete", of_user,
                 (long long)document->uid);
  else if (as->n_open == ANSWERS_MAX)
    rc = err_set(e, -EAGAIN, "%d answers are being made or read; ask again when one is complete", ANSWERS_MAX);
  if (rc < 0) {
    if (document->destroy) document->destroy(document->source);
    return NULL;
  }
  struct answer *a = xcalloc(1, sizeof(*a));
  int room = ANSWER_WRITE; /* or the kernel takes megabytes, in one copy, and the deadline begins behind them */
  uv_send_buffer_size((uv_handle_t *)stream, &room);
  a->all = as;
  a->document = *document;
  a->cb = *cb;
  a->ctx = ctx;
  a->stream = stream;
  as->open[as->n_open++] = a;
  enqueue(as, a);
  return a;
}

struct answers *answers_create(uv_loop_t *loop) {
  struct answers *as = xcalloc(1, sizeof(*as));
  uv_idle_init(loop, &as->idle);
  as->idle.data = as;
  return as;
}

void answers_close(struct answers *as) {
  if (!as || as->closed) return;
  as->closed = true;
  uv_close((uv_handle_t *)&as->idle, NULL);
}

void answers_destroy(struct answers *as) {
  free(as);
}
