/* SPDX-License-Identifier: Apache-2.0 */
/* Checks each number of an IDX header against a named limit before it is used. data.c checks that the file is as long
 * as its header announces. */

#include "agent/trainer/data/data.h"

#include <errno.h>

enum { TYPE_UBYTE = 0x08 };

int idx_header_length(const uint8_t first[4], size_t *length, struct err *e) {
  if (first[0] != 0 || first[1] != 0)
    return err_set(e, -EINVAL, "not an IDX file: it begins with %02x %02x, not with 00 00", first[0], first[1]);
  if (first[2] != TYPE_UBYTE)
    return err_set(e, -EINVAL, "holds values of type 0x%02x; only unsigned bytes (0x08) are supported", first[2]);
  if (first[3] < 1 || first[3] > IDX_DIMS_MAX)
    return err_set(e, -EINVAL, "has %u dimensions; 1 to %d are supported", first[3], IDX_DIMS_MAX);
  *length = 4 + 4 * (size_t)first[3];
  return 0;
}

int idx_header_parse(const uint8_t *data, size_t len, struct idx_header *h, struct err *e) {
  size_t length = 0;
  if (len < 4) return err_set(e, -EINVAL, "ends within the first 4 bytes of its header");
  int rc = idx_header_length(data, &length, e);
  if (rc) return rc;
  if (len < length) return err_set(e, -EINVAL, "ends within its header of %zu bytes", length);
  struct idx_header out = {.dims = data[3], .header_bytes = length, .item_bytes = 1};
  for (unsigned i = 0; i < out.dims; i++) {
    const uint8_t *p = data + 4 + 4 * i;
    out.size[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
    if (out.size[i] == 0) return err_set(e, -EINVAL, "has size 0 in dimension %u", i);
    if (i > 0) out.item_bytes *= out.size[i];
    if (out.item_bytes > IDX_ITEM_MAX) return err_set(e, -EINVAL, "has more than %d values per item", IDX_ITEM_MAX);
  }
  out.items = out.size[0];
  if (out.items > IDX_BYTES_MAX / out.item_bytes)
    return err_set(e, -EINVAL, "has %llu items of %llu bytes; the limit is %llu GB in total",
                   (unsigned long long)out.items, (unsigned long long)out.item_bytes,
                   (unsigned long long)(IDX_BYTES_MAX >> 30));
  *h = out;
  return 0;
}
