/* SPDX-License-Identifier: Apache-2.0 */
/* A record's length stands in front of it, and so do the lengths of a Summary and of each of its values. So the sizes
 * are computed first, and then everything is written once, in order. */

#include "agent/sdk/rdzv_tfevents.h"

#include <errno.h>
#include <string.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
enum { RECORD_HEAD = 12, RECORD_TAIL = 4 };
enum { EVENT_WALL_TIME = 1, EVENT_STEP = 2, EVENT_FILE_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };

uint32_t rdzv_crc32c(const void *data, size_t n) {
  const unsigned char *p = data;
  uint32_t crc = 0xffffffff;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

/* A file may hold the crc of its own records, so they are changed. */
static uint32_t masked_crc(const void *data, size_t n) {
  uint32_t crc = rdzv_crc32c(data, n);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Fields. ---------------------------------------------------------------------------------------------------------- */

static size_t varint_size(uint64_t v) {
  size_t n = 1;
  while (v >>= 7) n++;
  return n;
}

static unsigned char *put_varint(unsigned char *p, uint64_t v) {
  for (; v > 0x7f; v >>= 7) *p++ = (unsigned char)(v | 0x80);
  *p++ = (unsigned char)v;
  return p;
}

static unsigned char *put_little(unsigned char *p, uint64_t v, size_t n) {
  for (size_t i = 0; i < n; i++) *p++ = (unsigned char)(v >> 8 * i);
  return p;
}

/* All our field numbers are below 16: a key is one byte. */
static unsigned char *put_key(unsigned char *p, unsigned field, unsigned type) {
  *p++ = (unsigned char)(field << 3 | type);
  return p;
}

static size_t bytes_size(size_t n) {
  return 1 + varint_size(n) + n;
}

static unsigned char *put_head(unsigned char *p, unsigned field, size_t n) {
  return put_varint(put_key(p, field, BYTES), n);
}

static unsigned char *put_bytes(unsigned char *p, unsigned field, const void *data, size_t n) {
  p = put_head(p, field, n);
  memcpy(p, data, n);
  return p + n;
}

static unsigned char *put_double(unsigned char *p, unsigned field, double v) {
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  return put_little(put_key(p, field, FIXED64), bits, 8);
}

static unsigned char *put_float(unsigned char *p, unsigned field, float v) {
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  return put_little(put_key(p, field, FIXED32), bits, 4);
}

/* Events. ---------------------------------------------------------------------------------------------------------- */

static size_t event_size(int64_t step, size_t what) {
  /* A number that is 0 is left out. */
  return 9 + (step ? 1 + varint_size((uint64_t)step) : 0) + what;
}

/* Room for a record around an Event of that size; returns the place of the Event. NULL: no memory. */
static unsigned char *begin_record(struct rdzv_bytes *out, size_t size, double wall_time, int64_t step) {
  unsigned char *p = (unsigned char *)rdzv_bytes_reserve(out, RECORD_HEAD + size + RECORD_TAIL);
  if (!p) return NULL;
  unsigned char *event = put_little(p, size, 8);
  event = put_little(event, masked_crc(p, 8), 4);
  event = put_double(event, EVENT_WALL_TIME, wall_time);
  return step ? put_varint(put_key(event, EVENT_STEP, VARINT), (uint64_t)step) : event;
}

static int end_record(struct rdzv_bytes *out, size_t size) {
  unsigned char *event = (unsigned char *)out->data + out->len + RECORD_HEAD;
  put_little(event + size, masked_crc(event, size), 4);
  out->len += RECORD_HEAD + size + RECORD_TAIL;
  return 0;
}

int rdzv_tfevents_version(struct rdzv_bytes *out, double wall_time) {
  static const char version[] = "brain.Event:2";
  size_t n = sizeof version - 1, size = event_size(0, bytes_size(n));
  unsigned char *p = begin_record(out, size, wall_time, 0);
  if (!p) return -ENOMEM;
  put_bytes(p, EVENT_FILE_VERSION, version, n);
  return end_record(out, size);
}

int rdzv_tfevents_start(struct rdzv_bytes *out, double wall_time, int64_t step) {
  static const unsigned char log[] = {SESSION_STATUS << 3 | VARINT, SESSION_START};
  size_t size = event_size(step, bytes_size(sizeof log));
  unsigned char *p = begin_record(out, size, wall_time, step);
  if (!p) return -ENOMEM;
  put_bytes(p, EVENT_SESSION_LOG, log, sizeof log);
  return end_record(out, size);
}

static size_t value_size(const char *tag) {
  return bytes_size(strlen(tag)) + 5;
}

int rdzv_tfevents_scalars(struct rdzv_bytes *out, double wall_time, int64_t step, const char *const *tags,
                          const double *values, size_t n) {
  size_t summary = 0;
  for (size_t i = 0; i < n; i++) summary += bytes_size(value_size(tags[i]));
  size_t size = event_size(step, bytes_size(summary));
  unsigned char *p = begin_record(out, size, wall_time, step);
  if (!p) return -ENOMEM;
  p = put_head(p, EVENT_SUMMARY, summary);
  for (size_t i = 0; i < n; i++) {
    p = put_head(p, SUMMARY_VALUE, value_size(tags[i]));
    p = put_bytes(p, VALUE_TAG, tags[i], strlen(tags[i]));
    p = put_float(p, VALUE_SIMPLE, (float)values[i]);
  }
  return end_record(out, size);
}
