/* SPDX-License-Identifier: Apache-2.0 */
/* One record: 8 bytes of name, then in the machine's byte order: version u32, count u32, bytes of text u32, lasting
 * u32, a checksum u32; then the text or the ids. The name is first, so output of a library that prints to stdout is
 * detected by its first byte; the checksum detects later output. */

#include "agent/nccl/record.h"

#include <errno.h>
#include <string.h>

struct head {
  char name[8];
  uint32_t version, count, text, lasting, sum;
};
static const char name[8] = {'R', 'D', 'Z', 'V', 'N', 'C', 'C', 'L'};
_Static_assert(sizeof(struct head) <= 64, "NCCL_RECORD_MAX has 64 bytes for it");

/* FNV-1a. */
static uint32_t add_up(uint32_t sum, const void *data, size_t n) {
  const uint8_t *p = data;
  for (size_t i = 0; i < n; i++) sum = (sum ^ p[i]) * 16777619u;
  return sum;
}

/* The checksum of all but itself. */
static uint32_t sum_of(struct head h, const void *body, size_t size) {
  h.sum = 0;
  return add_up(add_up(2166136261u, &h, sizeof h), body, size);
}

static void put_record(struct buf *out, struct head h, const void *body, size_t size) {
  memcpy(h.name, name, sizeof h.name);
  h.sum = sum_of(h, body, size);
  buf_append(out, &h, sizeof h);
  buf_append(out, body, size);
}

void nccl_record_put(struct buf *out, int64_t version, const void *ids, uint32_t count) {
  put_record(out, (struct head){.version = (uint32_t)version, .count = count}, ids, (size_t)count * NCCL_ID_SIZE);
}

void nccl_record_put_failure(struct buf *out, const char *text, bool lasting) {
  if (!text[0]) text = "it did not say why";
  size_t n = strlen(text);
  if (n > REASON_MAX) n = REASON_MAX;
  put_record(out, (struct head){.text = (uint32_t)n, .lasting = lasting}, text, n);
}

static int no_record(struct err *e) {
  return err_set(e, -EPROTO, "rdzv-nccl sent an invalid answer");
}

static bool is_sound(const struct head *h, uint32_t count) {
  if (h->text) return h->text <= REASON_MAX && !h->count && !h->version;
  return h->count == count && h->version > 0 && h->version <= NCCL_VERSION_LIMIT;
}

int nccl_record_parse(const void *data, size_t len, uint32_t count, int64_t *version, const void **ids, struct err *e) {
  struct head h;
  const uint8_t *body = (const uint8_t *)data + sizeof h;
  if (memcmp(data, name, len < sizeof name ? len : sizeof name) != 0) return no_record(e);
  if (len < sizeof h) return 0;
  memcpy(&h, data, sizeof h);
  if (!is_sound(&h, count)) return no_record(e);
  size_t size = h.text ? h.text : (size_t)h.count * NCCL_ID_SIZE;
  if (len < sizeof h + size) return 0;
  if (len > sizeof h + size || sum_of(h, body, size) != h.sum) return no_record(e);
  if (h.text) return err_set(e, h.lasting ? -ENOENT : -EIO, "%.*s", (int)h.text, (const char *)body);
  *version = h.version;
  *ids = body;
  return 1;
}
