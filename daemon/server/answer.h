/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_ANSWER_H
#define DAEMON_SERVER_ANSWER_H

/* Long answers over HTTP. A document is made in pieces, one piece of one document in each turn of the loop. So ten
 * scrapers at once delay a heartbeat no longer than one does.
 *
 * A document is whole before its first byte is sent. Its length is in its head, so a reader notices if the rest is lost.
 * A slow reader does not stretch the time that the document describes. The owner limits the length of a document, and
 * these limits hold their number. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "common/buf.h"
#include "common/err.h"

enum {
  ANSWERS_USER_MAX = 8,      /* documents of one user that are made or sent at once; */
  ANSWERS_MAX = 64,          /* of all users */
  ANSWER_WRITE = 128 * 1024, /* bytes that are written at once; the reader's deadline is for each of these */
};

struct answers;
struct answer;

/* The owner is called until destroy, and never inside answers_begin or answer_cancel but for destroy. */
struct answer_document {
  int64_t uid; /* of the user who asks */
  void *source;
  /* Appends the next piece, which may be empty, in at most a few milliseconds. False: the body is whole. */
  bool (*more)(void *source, struct buf *body);
  /* Puts the head for the whole body. It may clear the body: HEAD, 304, a body that is too long. */
  void (*put_head)(void *source, struct buf *head, struct buf *body);
  void (*destroy)(void *source);
};

struct answer_callbacks {
  void (*on_progress)(void *ctx);        /* the reader has accepted a part: its deadline begins again */
  void (*on_end)(void *ctx, int status); /* the last callback: 0: everything is written; else a negative errno */
};

struct answers *answers_create(uv_loop_t *loop);
void answers_close(struct answers *as);   /* when every answer is cancelled or has ended; NULL: nothing */
void answers_destroy(struct answers *as); /* after answers_close, when the loop has nothing left to do */

/* Makes the document, and writes it to `stream`, which stays the caller's. On an error the document is destroyed, and
 * *e says which limit is reached. */
struct answer *answers_begin(struct answers *as, uv_stream_t *stream, const struct answer_document *document,
                             const struct answer_callbacks *cb, void *ctx, struct err *e);
/* Ends it without another callback. Bytes that libuv holds already may still be written, until the stream is closed. */
void answer_cancel(struct answer *a);

#endif
