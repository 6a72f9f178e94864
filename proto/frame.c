/* SPDX-License-Identifier: Apache-2.0 */
/* Frames separate messages; the first bytes of a connection tell its protocol.
 *
 * One length covers the whole body, so a reader knows after 16 bytes how much to wait for, and never looks into an
 * unfinished message. The length is compared with the caller's limit before anything is added to it or allocated for it:
 * a peer that claims 4 GiB is refused by its header alone. The codec refuses unknown types.
 *
 * frame_detect tells the protocols of the one port apart by the fewest bytes. It asks for more only while the bytes are
 * a proper beginning of one of them. A first byte of 0 to 11 is an operation in the old numbering of PyTorch's TCPStore;
 * 0 also begins the new handshake, and its magic number decides. */

#include "proto/frame.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

const char frame_preface[FRAME_PREFACE_SIZE] = {'R', 'D', 'Z', 'V', FRAME_VERSION, 0, 0, 0};

/* 1: data begins with word; 0: it may, with more bytes; -1: it does not. */
static int begins_with(const void *data, size_t len, const char *word, size_t n) {
  if (memcmp(data, word, len < n ? len : n) != 0) return -1;
  return len >= n;
}

enum frame_protocol frame_detect(const void *data, size_t len) {
  if (len == 0) return FRAME_PROTOCOL_MORE;
  int r = begins_with(data, len, frame_preface, 4); /* this side also refuses other versions by name */
  if (r >= 0) return r ? FRAME_PROTOCOL_RDZV : FRAME_PROTOCOL_MORE;
  r = begins_with(data, len, "\x00\xce\xf7\x85\x3c", 5);
  if (r >= 0) return r ? FRAME_PROTOCOL_C10D : FRAME_PROTOCOL_MORE;
  if (*(const unsigned char *)data <= 11) return FRAME_PROTOCOL_C10D_OLD;
  static const char *const methods[] = {"GET ", "HEAD ", "POST ", "PUT ", "DELETE ", "OPTIONS "};
  for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
    if ((r = begins_with(data, len, methods[i], strlen(methods[i]))) >= 0)
      return r ? FRAME_PROTOCOL_HTTP : FRAME_PROTOCOL_MORE;
  return FRAME_PROTOCOL_UNKNOWN;
}

const char *frame_protocol_name(enum frame_protocol p) {
  switch (p) {
  case FRAME_PROTOCOL_UNKNOWN: return "unknown";
  case FRAME_PROTOCOL_MORE: return "undecided";
  case FRAME_PROTOCOL_RDZV: return "rdzv";
  case FRAME_PROTOCOL_MUNGE: return "a question for a key by MUNGE";
  case FRAME_PROTOCOL_C10D: return "c10d";
  case FRAME_PROTOCOL_C10D_OLD: return "c10d (old numbering)";
  case FRAME_PROTOCOL_HTTP: return "HTTP";
  }
  return "?";
}

int frame_parse(const char *data, size_t len, size_t max_body, struct frame *f, size_t *size, struct err *e) {
  *size = FRAME_HEADER_SIZE;
  if (len < FRAME_HEADER_SIZE) return 0;
  uint32_t body = le32_get(data), json = le32_get(data + 12);
  if (body > max_body)
    return err_set(e, -EMSGSIZE, "a frame of %u bytes is longer than the %zu allowed here", body, max_body);
  if (json > body)
    return err_set(e, -EPROTO, "a frame's JSON (%u bytes) is longer than the frame (%u bytes)", json, body);
  *size += body;
  if (len < *size) return 0;
  *f = (struct frame){
      .type = le16_get(data + 4),
      .flags = le16_get(data + 6),
      .id = le32_get(data + 8),
      .json = data + FRAME_HEADER_SIZE,
      .json_len = json,
      .raw = data + FRAME_HEADER_SIZE + json,
      .raw_len = body - json,
  };
  return 1;
}

void frame_put_header(char at[FRAME_HEADER_SIZE], const struct frame *f) {
  assert(f->json_len <= UINT32_MAX && f->raw_len <= UINT32_MAX - f->json_len);
  le32_put(at, (uint32_t)(f->json_len + f->raw_len));
  le16_put(at + 4, f->type);
  le16_put(at + 6, f->flags);
  le32_put(at + 8, f->id);
  le32_put(at + 12, (uint32_t)f->json_len);
}
