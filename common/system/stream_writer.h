/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_STREAM_WRITER_H
#define COMMON_SYSTEM_STREAM_WRITER_H

/* Writes texts to a stream of libuv, in order, from memory that it owns. */

#include <stdbool.h>
#include <uv.h>
#include "common/buf.h"

struct outlet {
  uv_stream_t *stream;        /* the owner closes it; its data is the owner's */
  void (*on_sent)(void *ctx); /* a text has left memory, written or not; NULL: not needed */
  void *ctx;
  bool broken; /* a write failed: later texts are dropped */
};

/* Takes the text, and wipes it once it is written or dropped. */
void outlet_send(struct outlet *o, struct buf *text);
size_t outlet_waits(const struct outlet *o); /* bytes that are not written yet */

#endif
