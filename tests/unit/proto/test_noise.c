/* SPDX-License-Identifier: Apache-2.0 */
/* noise: public test vectors, whole connections as an independent implementation has them, and keys of low order. */

#include "proto/noise.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include "common/key/secret.h"
#include "proto/channel.h"
#include "tests/rig/unit.h"
#include "tests/unit/proto/noise_vectors.inc"

enum { ROOM = 1024 };

static size_t hex(const char *text, uint8_t out[ROOM]) {
  size_t n;
  assert_int_equal(sodium_hex2bin(out, ROOM, text, strlen(text), NULL, &n, NULL), 0);
  return n;
}

static void check_bytes(const uint8_t *got, const char *expected, size_t len) {
  uint8_t bytes[ROOM];
  assert_int_equal(hex(expected, bytes), len);
  assert_memory_equal(got, bytes, len);
}

static void set_ephemeral(struct noise_ephemeral *e, const char *secret) {
  uint8_t bytes[ROOM];
  assert_int_equal(hex(secret, bytes), NOISE_KEY);
  noise_ephemeral_set(e, bytes);
}

static void check_vector(const struct noise_vector *v) {
  uint8_t psk[ROOM], prologue[ROOM], one[ROOM], two[ROOM], out[ROOM], plain[ROOM], sealed[ROOM];
  struct noise_ephemeral e, r;
  struct noise_open open;
  struct noise_session client, server;
  size_t prologue_len = hex(v->prologue, prologue);
  hex(v->psk, psk);
  set_ephemeral(&e, v->init_ephemeral);
  set_ephemeral(&r, v->resp_ephemeral);
  size_t n = hex(v->messages[0].payload, one), m = hex(v->messages[1].payload, two);
  noise_begin(&open, psk, prologue, prologue_len, &e, one, n, sealed);
  check_bytes(sealed, v->messages[0].ciphertext, n + NOISE_OVERHEAD);
  assert_int_equal(
      noise_answer(psk, prologue, prologue_len, &r, sealed, n + NOISE_OVERHEAD, plain, two, m, out, &server), 0);
  assert_memory_equal(plain, one, n);
  check_bytes(out, v->messages[1].ciphertext, m + NOISE_OVERHEAD);
  assert_int_equal(noise_finish(&open, out, m + NOISE_OVERHEAD, plain, &client), 0);
  assert_memory_equal(plain, two, m);
  for (int i = 2; i < v->count; i++) {
    n = hex(v->messages[i].payload, one);
    noise_seal(i % 2 ? &server : &client, one, n, sealed);
    check_bytes(sealed, v->messages[i].ciphertext, n + NOISE_TAG);
    assert_int_equal(noise_unseal(i % 2 ? &client : &server, sealed, n + NOISE_TAG, plain), 0);
    assert_memory_equal(plain, one, n);
  }
}

UNIT_TEST(test_public_vectors) {
  for (size_t i = 0; i < sizeof noise_vectors / sizeof *noise_vectors; i++) check_vector(&noise_vectors[i]);
}

static struct channel_ticket *take_ticket(const struct channel *client, const struct channel *daemon,
                                          const struct key *tickets, const char *expected) {
  char text[CHANNEL_TICKET_TEXT + 1];
  channel_put_ticket(daemon, tickets, TICKET_ISSUED_S, ticket_random, text);
  assert_string_equal(text, expected);
  return channel_take_ticket(client, text);
}

/* The connection after that of client and daemon. */
static void check_resumption(const struct channel_vector *v, const struct noise_ephemeral *e,
                             const struct channel *client, const struct channel *daemon) {
  struct channel again = {.secret = NULL}, over = {.secret = NULL};
  SCOPED(buf_finish) struct buf opening = BUF_INIT, answer = BUF_INIT, wire = BUF_INIT;
  struct key own, tickets;
  size_t used;
  enum channel_status status;
  enum channel_source source;
  assert_int_equal(key_parse(own_key, strlen(own_key), &own, NULL), 0);
  key_of_tickets(&own, &tickets);
  struct channel_ticket *ticket = take_ticket(client, daemon, &tickets, v->ticket);
  channel_resume(&again, ticket, &opening);
  assert_int_equal(opening.len, CHANNEL_RESUMING_SIZE);
  check_bytes((uint8_t *)opening.data, v->resuming, opening.len);
  assert_int_equal(
      channel_accept_ticket(&over, &tickets, e, TICKET_ISSUED_S, CHANNEL_SOURCE_FILE, opening.data, &answer), 0);
  check_bytes((uint8_t *)answer.data, v->resumed, CHANNEL_ANSWER_SIZE);
  assert_int_equal(channel_take_answer(&again, answer.data, answer.len, &used, &status, &source), 1);
  channel_seal(&again, "again", 5, &wire);
  check_bytes((uint8_t *)wire.data, v->again, wire.len);
  secret_free(ticket);
  secret_free(take_ticket(&again, &over, &tickets, v->next_ticket));
  channel_finish(&again);
  channel_finish(&over);
}

/* A whole connection as it is on the wire; the answer comes from a daemon whose key is in a file. */
static void check_channel(const struct channel_vector *v) {
  uint8_t bytes[ROOM], random[ROOM];
  struct channel client = {.secret = NULL}, daemon = {.secret = NULL};
  struct noise_ephemeral r;
  SCOPED(buf_finish) struct buf opening = BUF_INIT, answer = BUF_INIT, wire = BUF_INIT, got = BUF_INIT;
  struct err e = ERR_INIT;
  struct key key;
  size_t used;
  enum channel_status status;
  enum channel_source source;
  assert_int_equal(key_parse(v->key, strlen(v->key), &key, NULL), 0);
  hex(noise_vectors[0].init_ephemeral, random);
  set_ephemeral(&r, noise_vectors[0].resp_ephemeral);
  channel_open(&client, &key, random, &opening);
  check_bytes((uint8_t *)opening.data, v->opening, CHANNEL_OPENING_SIZE);
  assert_true(channel_opening_uid(opening.data) == key.uid);
  assert_int_equal(channel_accept(&daemon, &key, &r, CHANNEL_SOURCE_FILE, opening.data, &answer), 0);
  check_bytes((uint8_t *)answer.data, v->answer, CHANNEL_ANSWER_SIZE);
  assert_int_equal(channel_take_answer(&client, answer.data, answer.len, &used, &status, &source), 1);
  for (int i = 0; i < v->count; i++) {
    size_t n = hex(v->records[i].payload, bytes);
    channel_seal(i % 2 ? &daemon : &client, bytes, n, &wire);
    check_bytes((uint8_t *)wire.data, v->records[i].ciphertext, wire.len);
    assert_int_equal(channel_unseal(i % 2 ? &client : &daemon, wire.data, wire.len, &used, &got, &e), 1);
    assert_memory_equal(got.data, bytes, n);
    buf_clear(&wire);
    buf_clear(&got);
  }
  if (v == channel_vectors) {
    for (int i = 2; i < 299; i++) channel_seal(&client, "", 1, &wire);
    buf_clear(&wire);
    channel_seal(&client, "x", 1, &wire);
    check_bytes((uint8_t *)wire.data, record_299, wire.len);
  }
  check_resumption(v, &r, &client, &daemon);
  channel_finish(&client);
  channel_finish(&daemon);
}

UNIT_TEST(test_channels_of_an_independent_client) {
  for (size_t i = 0; i < sizeof channel_vectors / sizeof *channel_vectors; i++) check_channel(&channel_vectors[i]);
}

/* A peer with the key, but without a secret of its own: the shared point would be zero. */
UNIT_TEST(test_public_keys_of_low_order_are_refused) {
  uint8_t psk[NOISE_KEY] = {1}, in[ROOM], out[ROOM], plain[1];
  struct noise_ephemeral zero = {.public = {0}}, e;
  struct noise_open open;
  struct noise_session s;
  uint8_t secret[NOISE_KEY] = {7};
  noise_ephemeral_set(&e, secret);
  noise_begin(&open, psk, "", 0, &zero, NULL, 0, in);
  assert_int_equal(noise_answer(psk, "", 0, &e, in, NOISE_OVERHEAD, plain, NULL, 0, out, &s), -EBADMSG);
  assert_int_equal(noise_answer(psk, "", 0, &e, in, NOISE_OVERHEAD - 1, plain, NULL, 0, out, &s), -EBADMSG);
  assert_int_equal(noise_finish(&open, in, NOISE_OVERHEAD - 1, plain, &s), -EBADMSG);
  memset(in, 0, NOISE_KEY);
  assert_int_equal(noise_finish(&open, in, NOISE_OVERHEAD, plain, &s), -EBADMSG);
}
