/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/munge_ask.h"

#include <errno.h>
#include <string.h>
#include "proto/frame.h"

enum { LENGTH_SIZE = 4, LAST_WORD_AT = 6 }; /* of the preface: the kind; of the header: status and source */

void munge_ask_put(struct buf *out, const char *credential, size_t len) {
  char head[CHANNEL_PREFACE_SIZE + LENGTH_SIZE];
  memcpy(head, frame_preface, CHANNEL_PREFACE_SIZE);
  le16_put(head + LAST_WORD_AT, CHANNEL_KIND_MUNGE);
  le32_put(head + CHANNEL_PREFACE_SIZE, (uint32_t)len);
  buf_append(out, head, sizeof(head));
  buf_append(out, credential, len);
}

const char munge_ask_malformed[] = "this is not a MUNGE credential";

int munge_ask_find(const char *data, size_t len, struct slice *credential) {
  const size_t head = CHANNEL_PREFACE_SIZE + LENGTH_SIZE;
  if (len < head) return 0;
  uint32_t n = le32_get(data + CHANNEL_PREFACE_SIZE);
  if (n == 0 || n > MUNGE_ASK_BODY_MAX) return -EPROTO;
  *credential = (struct slice){data + head, n};
  return len - head >= n;
}

void munge_ask_answer(struct buf *out, enum channel_status status, enum channel_source source, const char *bytes,
                      size_t len) {
  char n[LENGTH_SIZE];
  channel_put_header(out, status, source);
  if (!len) return;
  le32_put(n, (uint32_t)len);
  buf_append(out, n, sizeof(n));
  buf_append(out, bytes, len);
}

static int foreign(struct err *e) {
  return err_set(e, -EPROTO, "the program that listens there is no rdzvd, or one of another version");
}

/* The length and the bytes behind the header. As munge_ask_take. */
static int take_body(const char *data, size_t len, struct slice *body, struct err *e) {
  if (len < LENGTH_SIZE) return 0;
  uint32_t n = le32_get(data);
  if (n == 0 || n > MUNGE_ASK_BODY_MAX) return foreign(e);
  *body = (struct slice){data + LENGTH_SIZE, n};
  return len - LENGTH_SIZE >= n;
}

static int take_sentence(const struct slice *sentence, int code, struct err *e) {
  struct buf text = BUF_INIT;
  buf_put_plain(&text, sentence->data, sentence->len, sentence->len);
  int rc = err_set(e, code, "%s", buf_text(&text));
  buf_finish(&text);
  return rc;
}

int munge_ask_take(const char *data, size_t len, struct slice *credential, struct err *e) {
  struct slice body;
  size_t n = len < LAST_WORD_AT ? len : LAST_WORD_AT;
  if (memcmp(data, frame_preface, n) != 0) return foreign(e);
  if (len < CHANNEL_HEADER_SIZE) return 0;
  int status = (unsigned char)data[LAST_WORD_AT];
  switch (status) {
  case CHANNEL_NO_KEY: return err_set(e, -ENOKEY, "rdzvd runs with --insecure and has no key to give");
  case CHANNEL_NO_MUNGE: return err_set(e, -ENOENT, "no munged runs on rdzvd's machine");
  case CHANNEL_MUNGE:
  case CHANNEL_MUNGE_REFUSED:
  case CHANNEL_BUSY: break;
  default: return foreign(e);
  }
  int rc = take_body(data + CHANNEL_HEADER_SIZE, len - CHANNEL_HEADER_SIZE, &body, e);
  if (rc > 0 && status == CHANNEL_MUNGE_REFUSED) return take_sentence(&body, -EACCES, e);
  if (rc > 0 && status == CHANNEL_BUSY) return take_sentence(&body, -EAGAIN, e);
  if (rc > 0) *credential = body;
  return rc;
}
