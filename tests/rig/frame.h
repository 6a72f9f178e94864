/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_FRAME_H
#define TESTS_RIG_FRAME_H

#include "proto/frame.h"

/* Appends the frame. */
static inline void frame_put(struct buf *out, const struct frame *f) {
  char header[FRAME_HEADER_SIZE];
  frame_put_header(header, f);
  buf_append(out, header, sizeof(header));
  if (f->json_len) buf_append(out, f->json, f->json_len);
  if (f->raw_len) buf_append(out, f->raw, f->raw_len);
}

#endif
