/* SPDX-License-Identifier: Apache-2.0 */
/* channel, ephemeral: opening, answering, refusing, records; every byte on the way changed. */

#include "proto/channel.h"

#include <errno.h>
#include <string.h>
#include "common/key/secret.h"
#include "proto/frame.h"
#include "tests/rig/unit.h"

static const struct key own = {.bytes = "a key of thirty-two bytes: 31...", .uid = KEY_OWN};
static const struct key user = {.bytes = "another key of as many bytes....", .uid = 1000};
static const uint8_t random_client[NOISE_KEY] = "client's ephemeral secret ......",
                     random_daemon[NOISE_KEY] = "daemon's";

struct both {
  struct channel client, daemon;
  struct buf opening, answer;
  struct noise_ephemeral ephemeral;
};

static void begin(struct both *b, const struct key *key) {
  *b = (struct both){.client.secret = NULL};
  noise_ephemeral_set(&b->ephemeral, random_daemon);
  channel_open(&b->client, key, random_client, &b->opening);
}

static void finish(struct both *b) {
  channel_finish(&b->client);
  channel_finish(&b->daemon);
  buf_finish(&b->opening);
  buf_finish(&b->answer);
}

static int take(struct both *b, size_t *used, enum channel_status *status, enum channel_source *source) {
  return channel_take_answer(&b->client, b->answer.data, b->answer.len, used, status, source);
}

static void connect_both(struct both *b) {
  size_t used;
  enum channel_status status;
  enum channel_source source;
  begin(b, &own);
  assert_int_equal(channel_accept(&b->daemon, &own, &b->ephemeral, CHANNEL_SOURCE_HOME, b->opening.data, &b->answer),
                   0);
  assert_int_equal(take(b, &used, &status, &source), 1);
}

UNIT_TEST(test_an_opening_is_answered) {
  struct both b;
  size_t used = 0;
  enum channel_status status = CHANNEL_BUSY;
  enum channel_source source = CHANNEL_SOURCE_OTHER;
  begin(&b, &user);
  assert_int_equal(b.opening.len, CHANNEL_OPENING_SIZE);
  assert_int_equal(frame_detect(b.opening.data, b.opening.len), FRAME_PROTOCOL_RDZV);
  assert_int_equal(channel_kind_of(b.opening.data), CHANNEL_KIND_SEALED);
  assert_true(channel_opening_uid(b.opening.data) == 1000);
  assert_int_equal(channel_accept(&b.daemon, &user, &b.ephemeral, CHANNEL_SOURCE_HOME, b.opening.data, &b.answer), 0);
  assert_int_equal(b.answer.len, CHANNEL_ANSWER_SIZE);
  for (size_t n = 0; n < b.answer.len; n++)
    assert_int_equal(channel_take_answer(&b.client, b.answer.data, n, &used, &status, &source), 0);
  assert_int_equal(take(&b, &used, &status, &source), 1);
  assert_int_equal(used, CHANNEL_ANSWER_SIZE);
  assert_int_equal(source, CHANNEL_SOURCE_HOME);
  assert_int_equal(b.client.state, CHANNEL_IS_SEALED);
  finish(&b);
  assert_int_equal(b.client.state, CHANNEL_IS_PLAIN);
}

UNIT_TEST(test_a_daemons_own_key_has_no_uid) {
  struct both b;
  begin(&b, &own);
  assert_true(channel_opening_uid(b.opening.data) == KEY_OWN);
  b.opening.data[6] = 4;
  assert_int_equal(channel_kind_of(b.opening.data), -EPROTO);
  finish(&b);
}

UNIT_TEST(test_each_changed_byte_of_an_opening_is_refused) {
  struct both b;
  begin(&b, &own);
  for (size_t i = 0; i < b.opening.len; i++)
    for (int bit = 0; bit < 8; bit++) {
      b.opening.data[i] = (char)(b.opening.data[i] ^ (1 << bit));
      assert_int_equal(channel_accept(&b.daemon, &own, &b.ephemeral, 0, b.opening.data, &b.answer), -EBADMSG);
      assert_int_equal(b.answer.len, 0);
      assert_null(b.daemon.secret);
      b.opening.data[i] = (char)(b.opening.data[i] ^ (1 << bit));
    }
  assert_int_equal(channel_accept(&b.daemon, &user, &b.ephemeral, 0, b.opening.data, &b.answer), -EBADMSG);
  assert_int_equal(channel_accept(&b.daemon, &own, &b.ephemeral, 0, b.opening.data, &b.answer), 0);
  finish(&b);
}

UNIT_TEST(test_each_changed_byte_of_an_answer_is_refused) {
  struct both b;
  size_t used;
  enum channel_status status;
  enum channel_source source;
  begin(&b, &own);
  channel_accept(&b.daemon, &own, &b.ephemeral, 0, b.opening.data, &b.answer);
  for (size_t i = 0; i < b.answer.len; i++) {
    b.answer.data[i] = (char)(b.answer.data[i] ^ 0x10);
    int rc = take(&b, &used, &status, &source);
    if (i < 6) assert_int_equal(rc, -EPROTO);
    if (i == 6) assert_int_equal(rc, -EPROTO); /* status 16 */
    if (i >= CHANNEL_HEADER_SIZE) assert_int_equal(rc, -EBADMSG);
    if (i != 7) assert_int_equal(b.client.state, CHANNEL_IS_OPENING);
    if (i != 7) b.answer.data[i] = (char)(b.answer.data[i] ^ 0x10);
    if (i == 7) { /* the source is advice */
      assert_int_equal(rc, 1);
      assert_int_equal(source, CHANNEL_SOURCE_OTHER);
      finish(&b);
      begin(&b, &own);
      channel_accept(&b.daemon, &own, &b.ephemeral, 0, b.opening.data, &b.answer);
    }
  }
  finish(&b);
}

UNIT_TEST(test_refusals) {
  for (enum channel_status told = CHANNEL_WRONG_KEY; told < CHANNEL_STATUS_COUNT; told++) {
    struct both b;
    size_t used;
    enum channel_status status;
    enum channel_source source;
    begin(&b, &own);
    channel_put_header(&b.answer, told, CHANNEL_SOURCE_FILE);
    assert_int_equal(b.answer.len, CHANNEL_HEADER_SIZE);
    assert_int_equal(take(&b, &used, &status, &source), -EACCES);
    assert_int_equal(status, told);
    assert_int_equal(source, CHANNEL_SOURCE_FILE);
    finish(&b);
  }
}

static void send(struct channel *from, struct channel *to, const char *data, size_t len, struct buf *got) {
  SCOPED(buf_finish) struct buf wire = BUF_INIT;
  struct err e = ERR_INIT;
  channel_seal(from, data, len, &wire);
  assert_int_equal(wire.len, channel_sealed_size(len));
  for (size_t at = 0, used; at < wire.len; at += used)
    assert_int_equal(channel_unseal(to, wire.data + at, wire.len - at, &used, got, &e), 1);
}

UNIT_TEST(test_records_of_all_sizes_both_ways) {
  static const size_t sizes[] = {
      0, 1, 15, 16, 17, CHANNEL_PLAIN_MAX - 1, CHANNEL_PLAIN_MAX, CHANNEL_PLAIN_MAX + 1, 5 * CHANNEL_PLAIN_MAX + 3};
  static char data[6 * CHANNEL_PLAIN_MAX];
  struct both b;
  for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7 + i / 251);
  connect_both(&b);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int way = 0; way < 2; way++) {
      SCOPED(buf_finish) struct buf got = BUF_INIT;
      send(way ? &b.client : &b.daemon, way ? &b.daemon : &b.client, data, sizes[i], &got);
      assert_int_equal(got.len, sizes[i]);
      assert_true(sizes[i] == 0 || memcmp(got.data, data, sizes[i]) == 0);
    }
  finish(&b);
}

UNIT_TEST(test_changed_replayed_and_reordered_records_are_refused) {
  struct both b;
  SCOPED(buf_finish) struct buf one = BUF_INIT, two = BUF_INIT, got = BUF_INIT;
  struct err e = ERR_INIT;
  size_t used = 0;
  connect_both(&b);
  channel_seal(&b.client, "first", 5, &one);
  channel_seal(&b.client, "second", 6, &two);
  assert_int_equal(channel_unseal(&b.daemon, two.data, two.len, &used, &got, &e), -EBADMSG);
  for (size_t i = 0; i < one.len; i++) {
    one.data[i] = (char)(one.data[i] ^ 1);
    int rc = channel_unseal(&b.daemon, one.data, one.len, &used, &got, &e);
    assert_true(rc == -EBADMSG || rc == -EMSGSIZE || (rc == 0 && i < 2)); /* a longer one is waited for */
    one.data[i] = (char)(one.data[i] ^ 1);
  }
  for (size_t n = 0; n < one.len; n++) assert_int_equal(channel_unseal(&b.daemon, one.data, n, &used, &got, &e), 0);
  assert_int_equal(got.len, 0);
  assert_int_equal(channel_unseal(&b.daemon, one.data, one.len, &used, &got, &e), 1);
  assert_string_equal(buf_text(&got), "first");
  assert_int_equal(channel_unseal(&b.daemon, one.data, one.len, &used, &got, &e), -EBADMSG);
  assert_string_equal(e.text, "a record was changed on its way, or came twice");
  assert_int_equal(channel_unseal(&b.client, two.data, two.len, &used, &got, &e), -EBADMSG); /* reflected */
  finish(&b);
}

UNIT_TEST(test_lengths_of_records_are_bounded) {
  struct both b;
  struct buf got = BUF_INIT;
  size_t used;
  connect_both(&b);
  for (size_t n = 0; n <= 65535; n++) {
    char head[2];
    struct err e = ERR_INIT;
    le16_put(head, (uint16_t)n);
    bool valid = n > NOISE_TAG && n <= CHANNEL_RECORD_MAX;
    assert_int_equal(channel_unseal(&b.daemon, head, 2, &used, &got, &e), valid ? 0 : -EMSGSIZE);
  }
  finish(&b);
}

/* Tickets. --------------------------------------------------------------------------------------------------------- */

enum { ISSUED_S = 1700000000 };
static const uint8_t ticket_random[CHANNEL_TICKET_RANDOM] = "12345678";
static struct key tickets;

/* Opens a channel, takes its ticket, and writes the opening of the one that resumes it. */
static void begin_resumed(struct both *b, uint32_t issued_s) {
  char text[CHANNEL_TICKET_TEXT + 1];
  key_of_tickets(&own, &tickets);
  connect_both(b);
  channel_put_ticket(&b->daemon, &tickets, issued_s, ticket_random, text);
  struct channel_ticket *t = channel_take_ticket(&b->client, text);
  finish(b);
  *b = (struct both){.ephemeral = b->ephemeral};
  channel_resume(&b->client, t, &b->opening);
  secret_free(t);
}

static int accept_ticket(struct both *b, const struct key *key, uint32_t now_s) {
  return channel_accept_ticket(&b->daemon, key, &b->ephemeral, now_s, CHANNEL_SOURCE_HOME, b->opening.data, &b->answer);
}

UNIT_TEST(test_a_channel_resumes_another) {
  struct both b;
  SCOPED(buf_finish) struct buf got = BUF_INIT;
  size_t used = 0;
  enum channel_status status;
  enum channel_source source;
  begin_resumed(&b, ISSUED_S);
  assert_int_equal(b.opening.len, CHANNEL_RESUMING_SIZE);
  assert_int_equal(channel_kind_of(b.opening.data), CHANNEL_KIND_RESUMED);
  assert_int_equal(channel_opening_size(CHANNEL_KIND_RESUMED), CHANNEL_RESUMING_SIZE);
  assert_true(channel_opening_uid(b.opening.data) == KEY_OWN);
  assert_memory_equal(channel_opening_mark(b.opening.data), ticket_random, 8);
  assert_int_equal(accept_ticket(&b, &tickets, ISSUED_S), 0);
  assert_int_equal(b.answer.len, CHANNEL_ANSWER_SIZE);
  for (size_t n = 0; n < b.answer.len; n++)
    assert_int_equal(channel_take_answer(&b.client, b.answer.data, n, &used, &status, &source), 0);
  assert_int_equal(take(&b, &used, &status, &source), 1);
  assert_int_equal(source, CHANNEL_SOURCE_HOME);
  send(&b.client, &b.daemon, "there", 5, &got);
  send(&b.daemon, &b.client, " and back", 9, &got);
  assert_string_equal(buf_text(&got), "there and back");
  finish(&b);
}

UNIT_TEST(test_each_changed_byte_of_a_resumed_opening_is_refused) {
  struct both b;
  struct key other;
  begin_resumed(&b, ISSUED_S);
  for (size_t i = 0; i < b.opening.len; i++)
    for (int bit = 0; bit < 8; bit++) {
      b.opening.data[i] = (char)(b.opening.data[i] ^ (1 << bit));
      assert_int_equal(accept_ticket(&b, &tickets, ISSUED_S), -EBADMSG);
      assert_int_equal(b.answer.len, 0);
      assert_null(b.daemon.secret);
      b.opening.data[i] = (char)(b.opening.data[i] ^ (1 << bit));
    }
  key_of_tickets(&user, &other);
  assert_int_equal(accept_ticket(&b, &other, ISSUED_S), -EBADMSG);
  assert_int_equal(accept_ticket(&b, &own, ISSUED_S), -EBADMSG);
  assert_int_equal(accept_ticket(&b, &tickets, ISSUED_S), 0);
  finish(&b);
}

UNIT_TEST(test_each_changed_byte_of_a_resumed_answer_is_refused) {
  struct both b;
  size_t used;
  enum channel_status status;
  enum channel_source source;
  begin_resumed(&b, ISSUED_S);
  assert_int_equal(accept_ticket(&b, &tickets, ISSUED_S), 0);
  for (size_t i = CHANNEL_HEADER_SIZE; i < b.answer.len; i++) {
    b.answer.data[i] = (char)(b.answer.data[i] ^ 0x10);
    assert_int_equal(take(&b, &used, &status, &source), -EBADMSG);
    assert_int_equal(b.client.state, CHANNEL_IS_OPENING);
    b.answer.data[i] = (char)(b.answer.data[i] ^ 0x10);
  }
  assert_int_equal(take(&b, &used, &status, &source), 1);
  finish(&b);
}

/* The number of seconds has 32 bits, and goes on behind the last. */
UNIT_TEST(test_a_ticket_lives_for_a_day) {
  static const uint32_t issues[] = {ISSUED_S, UINT32_MAX - 5, 5};
  for (size_t i = 0; i < sizeof issues / sizeof *issues; i++) {
    static const struct {
      int64_t age_s;
      int rc;
    } cases[] = {{0, 0},
                 {CHANNEL_TICKET_S - 1, 0},
                 {CHANNEL_TICKET_S, -EBADMSG},
                 {-CHANNEL_TICKET_S, 0},
                 {-CHANNEL_TICKET_S - 1, -EBADMSG},
                 {1000 * (int64_t)CHANNEL_TICKET_S, -EBADMSG}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
      struct both b;
      begin_resumed(&b, issues[i]);
      assert_int_equal(accept_ticket(&b, &tickets, (uint32_t)(issues[i] + cases[k].age_s)), cases[k].rc);
      finish(&b);
    }
  }
}

/* Whoever repeats an opening to a daemon with another ephemeral key gets other keys, and does not know them. */
UNIT_TEST(test_a_repeated_ticket_opens_what_its_repeater_cannot_use) {
  struct both b, again;
  SCOPED(buf_finish) struct buf record = BUF_INIT, got = BUF_INIT;
  struct err e = ERR_INIT;
  size_t used;
  enum channel_status status;
  enum channel_source source;
  begin_resumed(&b, ISSUED_S);
  again = (struct both){.opening = b.opening};
  noise_ephemeral_set(&again.ephemeral, random_client);
  assert_int_equal(accept_ticket(&b, &tickets, ISSUED_S), 0);
  assert_int_equal(accept_ticket(&again, &tickets, ISSUED_S), 0);
  assert_int_equal(take(&b, &used, &status, &source), 1);
  channel_seal(&b.client, "recorded", 8, &record);
  assert_int_equal(channel_unseal(&again.daemon, record.data, record.len, &used, &got, &e), -EBADMSG);
  assert_int_equal(channel_unseal(&b.daemon, record.data, record.len, &used, &got, &e), 1);
  buf_clear(&record);
  channel_seal(&again.daemon, "unread", 6, &record);
  assert_int_equal(channel_unseal(&b.client, record.data, record.len, &used, &got, &e), -EBADMSG);
  again.opening = (struct buf)BUF_INIT;
  finish(&again);
  finish(&b);
}

UNIT_TEST(test_texts_that_are_no_tickets) {
  struct both b;
  char text[CHANNEL_TICKET_TEXT + 3] = "";
  connect_both(&b);
  assert_null(channel_take_ticket(&b.client, ""));
  memset(text, 'a', CHANNEL_TICKET_TEXT + 2);
  assert_null(channel_take_ticket(&b.client, text));
  text[CHANNEL_TICKET_TEXT] = '\0';
  struct channel_ticket *t = channel_take_ticket(&b.client, text);
  assert_non_null(t);
  secret_free(t);
  text[7] = '-';
  assert_null(channel_take_ticket(&b.client, text));
  text[7] = 'a';
  text[CHANNEL_TICKET_TEXT - 1] = '\0';
  assert_null(channel_take_ticket(&b.client, text));
  finish(&b);
  assert_null(channel_take_ticket(&b.client, text)); /* plain */
}

UNIT_TEST(test_an_ephemeral_key_answers_each_opening_once) {
  struct ephemeral *e = ephemeral_create();
  uint8_t mark[NOISE_KEY] = {0};
  assert_true(ephemeral_is_old(e, 5000));
  ephemeral_renew(e, random_daemon, 5000);
  assert_false(ephemeral_is_old(e, 5000 + EPHEMERAL_MS - 1));
  assert_true(ephemeral_is_old(e, 5000 + EPHEMERAL_MS));
  for (int i = 0; i < EPHEMERAL_OPENINGS; i++) {
    assert_false(ephemeral_is_old(e, 5001));
    le32_put(mark, (uint32_t)i * 8192); /* all collide */
    assert_true(ephemeral_note(e, mark));
    assert_false(ephemeral_note(e, mark));
  }
  assert_true(ephemeral_is_old(e, 5001));
  ephemeral_renew(e, random_client, 5001);
  assert_true(ephemeral_note(e, mark));
  ephemeral_destroy(e);
  ephemeral_destroy(NULL);
}
