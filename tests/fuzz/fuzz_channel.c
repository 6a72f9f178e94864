/* SPDX-License-Identifier: Apache-2.0 */
/* The secure channel from both ends. The first byte of an input chooses what the rest is:
 *
 *   'o'  an opening        'O'  what is XORed over a valid opening
 *   't'  one with a ticket 'T'  what is XORed over a valid one
 *   'a'  an answer         'A'  what is XORed over a valid answer     'B' over one to a ticket
 *   'r'  records           's'  bytes that the key's holder seals: u16 bytes in each seal beyond 64, u16 which bit to flip
 *
 * Keys and ephemerals are fixed, so an input means the same each time, and what is sealed reaches the parser of frames
 * and messages. Nothing that was changed is accepted, and nothing is given out behind it. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/key/secret.h"
#include "common/mem.h"
#include "proto/channel.h"
#include "proto/frame.h"
#include "proto/msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static const struct key own = {{1, 2, 3}, KEY_OWN};
static const uint8_t client_random[NOISE_KEY] = {4, 5}, daemon_random[NOISE_KEY] = {6, 7};

static const uint8_t ticket_random[CHANNEL_TICKET_RANDOM] = {8};
enum { NOW_S = 1700000000 };

static void establish(struct channel *client, struct channel *daemon, enum channel_kind kind, struct buf *answer);

static void check(bool holds) {
  if (!holds) abort();
}

/* Exactly as large as what is there, so that a read behind its end is seen. */
static char *exact_copy(const char *data, size_t len) {
  char *copy = xmalloc(len ? len : 1);
  if (len) memcpy(copy, data, len);
  return copy;
}

/* The opening of a client with a valid key, over which `change` is XORed. */
static void open_changed(struct channel *client, const uint8_t *change, size_t len, struct buf *out) {
  channel_open(client, &own, client_random, out);
  check(out->len == CHANNEL_OPENING_SIZE);
  for (size_t i = 0; i < len && i < out->len; i++) out->data[i] = (char)(out->data[i] ^ change[i]);
}

/* The same of a client with a ticket. */
static void resume_changed(struct channel *client, const uint8_t *change, size_t len, struct buf *out) {
  struct channel daemon = {0};
  struct buf answer = BUF_INIT;
  struct key tickets;
  char text[CHANNEL_TICKET_TEXT + 1];
  size_t used;
  enum channel_status status;
  enum channel_source source;
  establish(client, &daemon, CHANNEL_KIND_SEALED, &answer);
  check(channel_take_answer(client, answer.data, answer.len, &used, &status, &source) == 1);
  key_of_tickets(&own, &tickets);
  channel_put_ticket(&daemon, &tickets, NOW_S, ticket_random, text);
  struct channel_ticket *t = channel_take_ticket(client, text);
  channel_finish(client);
  channel_finish(&daemon);
  channel_resume(client, t, out);
  secret_free(t);
  check(out->len == CHANNEL_RESUMING_SIZE);
  for (size_t i = 0; i < len && i < out->len; i++) out->data[i] = (char)(out->data[i] ^ change[i]);
  buf_finish(&answer);
}

/* What the daemon does with an opening of this kind: looks at the uid, derives the key, checks it. */
static int accept(struct channel *daemon, enum channel_kind kind, const char *opening, struct buf *answer) {
  struct noise_ephemeral e;
  struct key key = own;
  noise_ephemeral_set(&e, daemon_random);
  if (channel_kind_of(opening) != (int)kind) return -EPROTO;
  int64_t uid = channel_opening_uid(opening);
  check(uid == KEY_OWN || (uid >= 0 && uid < UINT32_MAX));
  if (kind == CHANNEL_KIND_RESUMED)
    key_of_tickets(&own, &key);
  else if (uid != KEY_OWN)
    key_derive(&own, (uint32_t)uid, &key);
  int rc = kind == CHANNEL_KIND_RESUMED
               ? channel_accept_ticket(daemon, &key, &e, NOW_S, CHANNEL_SOURCE_FILE, opening, answer)
               : channel_accept(daemon, &key, &e, CHANNEL_SOURCE_FILE, opening, answer);
  check(rc == 0 ? answer->len == CHANNEL_ANSWER_SIZE : answer->len == 0 && daemon->state == CHANNEL_IS_PLAIN);
  return rc;
}

static void fuzz_opening(enum channel_kind kind, const uint8_t *data, size_t len, bool valid) {
  struct channel client = {0}, daemon = {0};
  struct buf opening = BUF_INIT, sent = BUF_INIT, answer = BUF_INIT;
  size_t size = channel_opening_size(kind);
  void (*put)(struct channel *, const uint8_t *, size_t, struct buf *) =
      kind == CHANNEL_KIND_RESUMED ? resume_changed : open_changed;
  put(&client, NULL, 0, &opening);
  channel_finish(&client);
  if (valid)
    put(&client, data, len, &sent);
  else
    buf_append(&sent, data, len);
  if (sent.len >= size) {
    int rc = accept(&daemon, kind, sent.data, &answer);
    check((rc == 0) == (memcmp(sent.data, opening.data, size) == 0));
  }
  channel_finish(&client);
  channel_finish(&daemon);
  buf_finish(&opening);
  buf_finish(&sent);
  buf_finish(&answer);
}

/* Both ends of a channel; the client has yet to take the answer. */
static void establish(struct channel *client, struct channel *daemon, enum channel_kind kind, struct buf *answer) {
  struct buf opening = BUF_INIT;
  (kind == CHANNEL_KIND_RESUMED ? resume_changed : open_changed)(client, NULL, 0, &opening);
  check(accept(daemon, kind, opening.data, answer) == 0);
  buf_finish(&opening);
}

static void fuzz_answer(enum channel_kind kind, const uint8_t *data, size_t len, bool valid) {
  struct channel client = {0}, daemon = {0};
  struct buf right = BUF_INIT, got = BUF_INIT;
  establish(&client, &daemon, kind, &right);
  buf_append(&got, valid ? right.data : (const char *)data, valid ? right.len : len);
  for (size_t i = 0; valid && i < len && i < got.len; i++) got.data[i] = (char)(got.data[i] ^ data[i]);
  int rc = 0;
  for (size_t n = 0; n <= got.len && rc == 0; n++) { /* as its bytes come */
    char *part = exact_copy(got.data, n);
    size_t used = 0;
    enum channel_status status = CHANNEL_OK;
    enum channel_source source = CHANNEL_SOURCE_OTHER;
    rc = channel_take_answer(&client, part, n, &used, &status, &source);
    check(rc == 0 || rc == 1 || rc == -EPROTO || rc == -EACCES || rc == -EBADMSG);
    check(status < CHANNEL_STATUS_COUNT && source < CHANNEL_SOURCE_COUNT);
    if (rc == 1) check(used == CHANNEL_ANSWER_SIZE && client.state == CHANNEL_IS_SEALED && status == CHANNEL_OK);
    if (rc != 1) check(client.state == CHANNEL_IS_OPENING);
    if (rc == -EACCES) check(status != CHANNEL_OK);
    free(part);
  }
  /* All but the last byte of the header, the key's source, is vouched for, if only because it must be OK. */
  bool same = got.len >= right.len && memcmp(got.data, right.data, CHANNEL_HEADER_SIZE - 1) == 0 &&
              memcmp(got.data + CHANNEL_HEADER_SIZE, right.data + CHANNEL_HEADER_SIZE, NOISE_OVERHEAD) == 0;
  check((rc == 1) == same);
  channel_finish(&client);
  channel_finish(&daemon);
  buf_finish(&right);
  buf_finish(&got);
}

/* Reads all records. 0: more are needed; else the error. */
static int unseal_all(struct channel *c, const struct buf *wire, struct buf *out, size_t *at) {
  for (*at = 0;;) {
    struct err e = ERR_INIT;
    size_t used = 0, had = out->len;
    char *rest = exact_copy(wire->len ? wire->data + *at : NULL, wire->len - *at);
    int rc = channel_unseal(c, rest, wire->len - *at, &used, out, &e);
    free(rest);
    check(rc == 1 ? used > NOISE_TAG && used <= wire->len - *at && out->len > had : out->len == had);
    if (rc < 0) check(rc == -EMSGSIZE || rc == -EBADMSG);
    if (rc < 0) check(e.text[0] != '\0');
    if (rc != 1) return rc;
    *at += used;
  }
}

static void fuzz_records(const uint8_t *data, size_t len) {
  struct channel client = {0}, daemon = {0};
  struct buf answer = BUF_INIT, wire = BUF_INIT, out = BUF_INIT;
  establish(&client, &daemon, CHANNEL_KIND_SEALED, &answer);
  buf_append(&wire, data, len);
  size_t at;
  unseal_all(&daemon, &wire, &out, &at);
  check(at == 0 && out.len == 0); /* nobody without the key makes a record */
  channel_finish(&client);
  channel_finish(&daemon);
  buf_finish(&answer);
  buf_finish(&wire);
  buf_finish(&out);
}

static void parse_frames(const struct buf *b) {
  struct frame f;
  size_t size;
  const char *at = b->data, *end = b->len ? at + b->len : at;
  while (at < end && frame_parse(at, (size_t)(end - at), FRAME_MAX_UNIDENTIFIED, &f, &size, NULL) == 1) {
    struct msg m = {0};
    if (msg_decode(&f, TO_DAEMON, &m, NULL) == 0) msg_finish(&m);
    at += size;
  }
}

static void fuzz_sealed(const uint8_t *data, size_t len) {
  if (len < 4) return;
  size_t piece = 64 + le16_get(data), flip = le16_get(data + 2), at;
  struct buf plain = BUF_INIT, wire = BUF_INIT, out = BUF_INIT, answer = BUF_INIT;
  struct channel client = {0}, daemon = {0};
  establish(&client, &daemon, CHANNEL_KIND_SEALED, &answer);
  enum channel_status status;
  enum channel_source source;
  check(channel_take_answer(&client, answer.data, answer.len, &at, &status, &source) == 1);
  buf_append(&plain, data + 4, len - 4);
  for (size_t i = 0; i < plain.len; i += piece)
    channel_seal(&client, plain.data + i, plain.len - i < piece ? plain.len - i : piece, &wire);
  bool flipped = flip / 8 < wire.len && flip != UINT16_MAX;
  if (flipped) wire.data[flip / 8] = (char)(wire.data[flip / 8] ^ 1 << flip % 8);
  int rc = unseal_all(&daemon, &wire, &out, &at);
  check(out.len <= plain.len && (out.len == 0 || memcmp(out.data, plain.data, out.len) == 0));
  if (flipped)
    check(at <= flip / 8);
  else
    check(rc == 0 && out.len == plain.len);
  parse_frames(&out);
  channel_finish(&client);
  channel_finish(&daemon);
  buf_finish(&plain);
  buf_finish(&wire);
  buf_finish(&out);
  buf_finish(&answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  if (len == 0) return 0;
  uint8_t mode = *data++;
  len--;
  if (mode == 'o' || mode == 'O') fuzz_opening(CHANNEL_KIND_SEALED, data, len, mode == 'O');
  if (mode == 't' || mode == 'T') fuzz_opening(CHANNEL_KIND_RESUMED, data, len, mode == 'T');
  if (mode == 'a' || mode == 'A') fuzz_answer(CHANNEL_KIND_SEALED, data, len, mode == 'A');
  if (mode == 'B') fuzz_answer(CHANNEL_KIND_RESUMED, data, len, true);
  if (mode == 'r') fuzz_records(data, len);
  if (mode == 's') fuzz_sealed(data, len);
  return 0;
}
