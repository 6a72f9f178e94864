/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_DATA_IDX_H
#define AGENT_TRAINER_DATA_IDX_H

/* The header of an IDX file (the format of MNIST): 00 00 <type> <dimensions>, then one big-endian 32-bit size per
 * dimension. The first size is the number of items. Only unsigned bytes are supported. Pure. */

#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum { IDX_DIMS_MAX = 4, IDX_HEADER_MAX = 4 + 4 * IDX_DIMS_MAX, IDX_ITEM_MAX = 1 << 20 };
#define IDX_BYTES_MAX (UINT64_C(1) << 36)

struct idx_header {
  unsigned dims;
  uint32_t size[IDX_DIMS_MAX];
  size_t header_bytes;
  uint64_t items;      /* size[0] */
  uint64_t item_bytes; /* product of the others; 1 with one dimension */
};

/* Length of a header that starts with these 4 bytes, or -EINVAL with a message. */
int idx_header_length(const uint8_t first[4], size_t *length, struct err *e);
/* Parses the whole header; len is at least what idx_header_length returned. items and item_bytes are at least 1 and
 * within the limits. */
int idx_header_parse(const uint8_t *data, size_t len, struct idx_header *h, struct err *e);

#endif
