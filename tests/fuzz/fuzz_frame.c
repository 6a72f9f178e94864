/* SPDX-License-Identifier: Apache-2.0 */
/* frame_detect and frame_parse over any bytes, as a connection calls them: frame after frame until one is not whole. */

#include <stdlib.h>
#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  const char *at = (const char *)data, *end = at + len;
  struct frame f;
  size_t size;
  if (!frame_protocol_name(frame_detect(at, len))) abort();
  while (frame_parse(at, (size_t)(end - at), FRAME_MAX_UNIDENTIFIED, &f, &size, NULL) == 1) {
    if (f.json != at + FRAME_HEADER_SIZE || f.raw + f.raw_len != at + size || at + size > end) abort();
    at += size;
  }
  return 0;
}
