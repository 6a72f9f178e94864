/* SPDX-License-Identifier: Apache-2.0 */
/* Whole frames to messages. What decodes must encode, decode again, and encode to the same bytes. */

#include <stdlib.h>
#include <string.h>
#include "proto/msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  struct frame f;
  struct msg m = {0}, again = {0};
  struct buf one = BUF_INIT, two = BUF_INIT;
  size_t size;
  if (frame_parse((const char *)data, len, FRAME_MAX_TO_DAEMON, &f, &size, NULL) != 1) return 0;
  enum msg_direction to = msg_direction((enum msg_type)f.type);
  if (msg_decode(&f, to, &m, NULL) != 0) return 0;
  msg_encode(&one, &m);
  if (frame_parse(one.data, one.len, FRAME_MAX_TO_AGENT, &f, &size, NULL) != 1) abort();
  if (msg_decode(&f, to, &again, NULL) != 0) abort();
  msg_encode(&two, &again);
  if (one.len != two.len || memcmp(one.data, two.data, one.len) != 0) abort();
  msg_finish(&m), msg_finish(&again), buf_finish(&one), buf_finish(&two);
  return 0;
}
