/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL and PyTorch answer about a hang. The first byte chooses the reader. What follows from an answer fits into a
 * message, and a second reading says the same. */

#include <stdlib.h>
#include <string.h>
#include "agent/hang/flight.h"
#include "agent/hang/ras.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void put(const struct ras_finding *f, struct buf *out) {
  if (f->n_silent_named > RAS_NAMED_MAX || f->n_behind_named > RAS_NAMED_MAX) abort();
  if ((int64_t)f->n_behind_named > f->n_behind || f->waiting < 0 || f->n_silent < 0) abort();
  ras_sentence(f, 4, out);
  for (size_t i = 0; i < out->len; i++)
    if ((unsigned char)out->data[i] < 0x20 || out->data[i] == 0x7f) abort();
}

static void read_ras(const char *text, size_t len) {
  static struct ras_finding f, again;
  struct err e = ERR_INIT;
  int rc = ras_parse_json(text, len, &f, &e);
  if ((rc != 0) != (e.text[0] != '\0') || ras_parse_json(text, len, &again, NULL) != rc) abort();
  if (rc) return;
  struct buf first = BUF_INIT, second = BUF_INIT;
  put(&f, &first);
  put(&again, &second);
  if (strcmp(buf_text(&first), buf_text(&second)) != 0) abort();
  buf_finish(&first);
  buf_finish(&second);
}

static void talk(const char *text, size_t len) {
  struct buf out = BUF_INIT;
  struct ras_talk t;
  ras_begin(&t, &out);
  for (size_t at = 0, n; at < len; at += n) { /* in pieces of 1 to 7 bytes */
    n = 1 + at % 7 < len - at ? 1 + at % 7 : len - at;
    if (ras_feed(&t, text + at, n, &out, NULL)) break;
  }
  if (out.len > 200 || t.in.len > RAS_JSON_MAX) abort();
  ras_finish(&t);
  buf_finish(&out);
}

static void read_flight(const char *text, size_t len) {
  static struct flights all;
  struct flight f = {.n = 0};
  struct slice body;
  struct err e = ERR_INIT;
  struct msg m;
  if (flight_unwrap(text, len, &body, NULL) > 0 && (body.data < text || body.data + body.len > text + len)) abort();
  if (flight_parse(&f, text, len, &e) != 0 && !e.text[0]) abort();
  all.n = 0;
  for (int64_t rank = 0; rank < 3; rank++) flights_add(&all, rank, &f);
  msg_init(&m, MSG_EVIDENCE);
  m.evidence.incarnation = "a";
  m.evidence.round = 1;
  m.evidence.collectives = all.v;
  m.evidence.n_collectives = all.n;
  struct buf out = BUF_INIT;
  msg_encode(&out, &m); /* asserts the bounds */
  collectives_sentence(all.v, all.n, "", &out);
  buf_finish(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  if (len < 1) return 0;
  char *text = malloc(len); /* so that a sanitizer sees its end */
  memcpy(text, data + 1, len - 1);
  switch (data[0]) {
  case 'j': read_ras(text, len - 1); break;
  case 'c': talk(text, len - 1); break;
  default: read_flight(text, len - 1);
  }
  free(text);
  return 0;
}
