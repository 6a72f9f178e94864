/* SPDX-License-Identifier: Apache-2.0 */
/* conn with a key: two connections in one loop, or one with a peer that the test plays. */

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "common/key/secret.h"
#include "common/mem.h"
#include "proto/frame.h"
#include "tests/rig/conn.h"
#include "tests/rig/unit.h"

static const struct key wrong = {.bytes = "another key of as many bytes....", .uid = KEY_OWN};
static struct key of_user;

static void send_bye(struct side *s, const char *text) {
  struct msg m;
  msg_init(&m, MSG_BYE);
  m.bye.text = text;
  conn_send(&s->conn, &m);
}

static void begin_pair(struct side *server, const struct conn_callbacks *cb, struct side *client,
                       const struct key *key) {
  int fds[2];
  pair_tcp(AF_INET, "127.0.0.1", fds);
  client->key = key;
  begin(server, cb, true, true, fds[0]);
  begin(client, &callbacks, false, true, fds[1]);
}

/* A client's message may be sent at once: it waits for the channel. */
UNIT_TEST_WITH(test_messages_both_ways, set_up, tear_down) {
  const struct key *keys[] = {&rig_key, &of_user};
  for (int i = 0; i < 2; i++) {
    struct side server = {0}, client = {0};
    begin_pair(&server, &keyed, &client, keys[i]);
    send_bye(&client, "early");
    send_bye(&client, "too");
    spin();
    assert_true(server.conn.uid == keys[i]->uid);
    assert_int_equal(server.conn.channel.state, CHANNEL_IS_SEALED);
    refused(&server, "no");
    send_bye(&client, "late");
    spin();
    assert_null(server.conn.in.data); /* an idle connection holds no buffer */
    assert_null(server.conn.wire.data);
    assert_null(client.conn.early.data);
    finish(&client, -1, "msg:no closed");
    finish(&server, -1, "native msg:early msg:too msg:late end:0:closed by the peer closed");
  }
}

/* Messages of one record, and of records behind it. */
UNIT_TEST_WITH(test_pauses, set_up, tear_down) {
  struct side server = {.on_msg = PAUSE}, client = {0};
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  begin_pair(&server, &keyed, &client, &rig_key);
  spin();
  bye(&b, "one");
  bye(&b, "two");
  conn_send_bytes(&client.conn, bytes_create(b.data, b.len));
  send_bye(&client, "three");
  for (size_t n = 1; n <= 4; n++) {
    spin();
    assert_int_equal(server.n_msgs, n);
    if (n == 2) send_bye(&client, "four");
    conn_resume(&server.conn);
  }
  spin();
  assert_null(server.conn.in.data);
  assert_null(server.conn.wire.data);
  finish(&client, -1, "closed");
  finish(&server, -1, "native msg:one msg:two msg:three msg:four end:0:closed by the peer closed");
}

static int allowed;

static bool may_take(struct conn *c, enum msg_type type) {
  return allowed-- > 0;
}

/* A message that waits, and records behind it that are whole, halved, or still in the kernel. */
UNIT_TEST_WITH(test_messages_that_wait, set_up, tear_down) {
  struct conn_callbacks cb = keyed;
  struct side server = {0}, client = {0};
  cb.may_take = may_take;
  begin_pair(&server, &cb, &client, &of_user);
  allowed = 1;
  for (int i = 0; i < 3; i++) send_bye(&client, i == 0 ? "one" : i == 1 ? "two" : "three");
  spin();
  send_bye(&client, "four");
  spin();
  assert_string_equal(buf_text(&server.log), "native msg:one");
  allowed = 2;
  conn_resume(&server.conn);
  spin();
  assert_string_equal(buf_text(&server.log), "native msg:one msg:two msg:three");
  refused(&server, "no"); /* it can write meanwhile */
  allowed = 1;
  conn_resume(&server.conn);
  spin();
  finish(&client, -1, "msg:no closed");
  finish(&server, -1, "native msg:one msg:two msg:three msg:four end:0:closed by the peer closed");
}

UNIT_TEST_WITH(test_refusals, set_up, tear_down) {
  struct side server = {.on_end = CLOSE_FLUSHED}, client = {0};
  begin_pair(&server, &keyed, &client, &wrong);
  spin();
  assert_int_equal(client.conn.refusal, CHANNEL_WRONG_KEY);
  assert_int_equal(client.conn.refusal_key, CHANNEL_SOURCE_HOME);
  finish(&client, -1, "end:-13:its key is another one closed");
  finish(&server, -1, "end:-13:its key is not the key of this daemon closed");

  struct side keyless = {.on_end = CLOSE_FLUSHED}, second = {0};
  begin_pair(&keyless, &callbacks, &second, &rig_key);
  spin();
  assert_int_equal(second.conn.refusal, CHANNEL_NO_KEY);
  finish(&second, -1, "end:-13:it refuses the channel closed");
  finish(&keyless, -1, "end:-13:it has a key, and this daemon has none (--insecure) closed");
}

/* What a client and a server say, for the tests that play one of them. */
static void record(struct buf *opening, struct channel *client, const struct key *key) {
  static uint8_t random[NOISE_KEY];
  random[1]++; /* the low bits of the first byte do not count */
  channel_open(client, key, random, opening);
}

static void take_from_server(struct channel *client, int fd) {
  SCOPED(buf_finish) struct buf answer = BUF_INIT;
  size_t used;
  enum channel_status status;
  enum channel_source source;
  get(fd, &answer);
  assert_int_equal(channel_take_answer(client, answer.data, answer.len, &used, &status, &source), 1);
}

static int serve_keyed(struct side *s) {
  int fds[2];
  pair_unix(fds);
  begin(s, &keyed, true, false, fds[0]);
  return fds[1];
}

static void put_sealed(struct channel *client, struct buf *wire, const char *text) {
  SCOPED(buf_finish) struct buf frame = BUF_INIT;
  bye(&frame, text);
  channel_seal(client, frame.data, frame.len, wire);
}

UNIT_TEST_WITH(test_split_at_every_byte, set_up, tear_down) {
  for (size_t at = 0; at < CHANNEL_OPENING_SIZE + 90; at++) {
    struct side s = {0};
    struct channel client = {.secret = NULL};
    SCOPED(buf_finish) struct buf out = BUF_INIT;
    int fd = serve_keyed(&s);
    record(&out, &client, &rig_key);
    size_t first = at < out.len ? at : out.len;
    if (first) put(fd, out.data, first);
    spin();
    if (first < out.len) put(fd, out.data + first, out.len - first);
    spin();
    take_from_server(&client, fd);
    buf_clear(&out);
    put_sealed(&client, &out, "one");
    put_sealed(&client, &out, "two");
    first = at >= CHANNEL_OPENING_SIZE ? at - CHANNEL_OPENING_SIZE : out.len;
    if (first > out.len) first = out.len;
    if (first) put(fd, out.data, first);
    spin();
    if (first < out.len) put(fd, out.data + first, out.len - first);
    spin();
    assert_null(s.conn.wire.data);
    finish(&s, fd, "native msg:one msg:two closed");
    channel_finish(&client);
  }
}

UNIT_TEST_WITH(test_one_frame_in_many_records, set_up, tear_down) {
  struct side s = {0};
  struct channel client = {.secret = NULL};
  SCOPED(buf_finish) struct buf out = BUF_INIT, frame = BUF_INIT;
  int fd = serve_keyed(&s);
  record(&out, &client, &rig_key);
  put(fd, out.data, out.len);
  spin();
  take_from_server(&client, fd);
  buf_clear(&out);
  bye(&frame, "in pieces");
  for (size_t i = 0; i < frame.len; i++) channel_seal(&client, frame.data + i, 1, &out);
  put(fd, out.data, out.len);
  spin();
  finish(&s, fd, "native msg:in pieces closed");
  channel_finish(&client);
}

/* Everything that a client said, said again: the opening is answered once. */
UNIT_TEST_WITH(test_a_replayed_connection_is_refused, set_up, tear_down) {
  struct side s = {0}, again = {.on_end = CLOSE_FLUSHED};
  struct channel client = {.secret = NULL};
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  int fd = serve_keyed(&s);
  record(&out, &client, &rig_key);
  put(fd, out.data, out.len);
  spin();
  take_from_server(&client, fd);
  put_sealed(&client, &out, "once");
  put(fd, out.data + CHANNEL_OPENING_SIZE, out.len - CHANNEL_OPENING_SIZE);
  spin();
  finish(&s, fd, "native msg:once closed");
  fd = serve_keyed(&again);
  put(fd, out.data, out.len);
  spin();
  finish(&again, fd, "end:-13:its key is not the key of this daemon closed");
  channel_finish(&client);
}

UNIT_TEST_WITH(test_a_changed_record_ends_the_connection, set_up, tear_down) {
  struct side s = {0};
  struct channel client = {.secret = NULL};
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  int fd = serve_keyed(&s);
  record(&out, &client, &rig_key);
  put(fd, out.data, out.len);
  spin();
  take_from_server(&client, fd);
  buf_clear(&out);
  put_sealed(&client, &out, "one");
  put_sealed(&client, &out, "two");
  out.data[out.len - 1] = (char)(out.data[out.len - 1] ^ 1);
  put(fd, out.data, out.len);
  spin();
  finish(&s, fd, "native msg:one end:-74:a record was changed on its way, or came twice closed");
  channel_finish(&client);
}

/* Tickets. --------------------------------------------------------------------------------------------------------- */

/* That of the channel between the two, as a daemon sends it in GREETING. */
static struct channel_ticket *make_ticket(const struct channel *daemon, const struct channel *client, time_t issued) {
  static uint8_t random[CHANNEL_TICKET_RANDOM];
  char text[CHANNEL_TICKET_TEXT + 1];
  struct key tickets;
  random[0]++;
  key_of_tickets(&rig_key, &tickets);
  channel_put_ticket(daemon, &tickets, (uint32_t)issued, random, text);
  return channel_take_ticket(client, text);
}

/* A connection whose ticket is for the next one. */
static struct channel_ticket *get_ticket(const struct key *key, time_t issued) {
  struct side server = {0}, client = {0};
  begin_pair(&server, &keyed, &client, key);
  spin();
  struct channel_ticket *ticket = make_ticket(&server.conn.channel, &client.conn.channel, issued);
  assert_non_null(ticket);
  finish(&client, -1, "closed");
  finish(&server, -1, "native end:0:closed by the peer closed");
  return ticket;
}

UNIT_TEST_WITH(test_a_ticket_opens_the_next_connection, set_up, tear_down) {
  const struct key *keys[] = {&rig_key, &of_user};
  for (int i = 0; i < 2; i++) {
    struct channel_ticket *ticket = get_ticket(keys[i], time(NULL));
    for (int again = 0; again < 3; again++) { /* and that one the next */
      struct side server = {0}, client = {.ticket = ticket};
      begin_pair(&server, &keyed, &client, &wrong); /* the key is not used */
      send_bye(&client, "early");
      spin();
      assert_true(server.conn.uid == keys[i]->uid);
      refused(&server, "no");
      send_bye(&client, "late");
      spin();
      secret_free(ticket);
      ticket = make_ticket(&server.conn.channel, &client.conn.channel, time(NULL));
      finish(&client, -1, "msg:no closed");
      finish(&server, -1, "native msg:early msg:late end:0:closed by the peer closed");
    }
    secret_free(ticket);
  }
}

static void check_refused_ticket(struct channel_ticket *ticket) {
  struct side server = {.on_end = CLOSE_FLUSHED}, client = {.ticket = ticket};
  begin_pair(&server, &keyed, &client, &rig_key);
  spin();
  assert_int_equal(client.conn.refusal, CHANNEL_WRONG_KEY);
  finish(&client, -1, "end:-13:its key is another one closed");
  finish(&server, -1,
         "end:-13:its ticket is too old, used, or not of this daemon; it may come back with its key closed");
  secret_free(ticket);
}

UNIT_TEST_WITH(test_tickets_that_are_refused, set_up, tear_down) {
  check_refused_ticket(get_ticket(&rig_key, time(NULL) - CHANNEL_TICKET_S));
  struct channel_ticket *ticket = get_ticket(&rig_key, time(NULL));
  ticket->ticket[CHANNEL_TICKET_SIZE - 1] ^= 1;
  check_refused_ticket(ticket);
  ticket = get_ticket(&rig_key, time(NULL));
  ticket->secret[0] ^= 1;
  check_refused_ticket(ticket);
  ticket = get_ticket(&of_user, time(NULL));
  ticket->uid = 1001; /* the rig knows no such user */
  struct side server = {.on_end = CLOSE_FLUSHED}, client = {.ticket = ticket};
  begin_pair(&server, &keyed, &client, &rig_key);
  spin();
  assert_int_equal(client.conn.refusal, CHANNEL_BUSY);
  finish(&client, -1, "end:-13:it refuses the channel closed");
  finish(&server, -1, "end:-13:it cannot be served now closed");
  secret_free(ticket);
  ticket = get_ticket(&of_user, time(NULL));
  ticket->uid = UINT32_MAX; /* the daemon's own */
  check_refused_ticket(ticket);
  ticket = get_ticket(&rig_key, time(NULL));
  ticket->uid = 1000;
  check_refused_ticket(ticket);
}

static bool is_taken(const struct channel_ticket *ticket) {
  struct side server = {.on_end = CLOSE_FLUSHED, .quiet = true}, client = {.ticket = ticket, .quiet = true};
  begin_pair(&server, &keyed, &client, &rig_key);
  spin();
  bool taken = client.conn.channel.state == CHANNEL_IS_SEALED;
  finish(&client, -1, "");
  finish(&server, -1, "");
  return taken;
}

/* Unless the server has a new ephemeral key by chance. */
UNIT_TEST_WITH(test_a_used_ticket_is_refused, set_up, tear_down) {
  bool refused = false;
  for (int i = 0; i < 20 && !refused; i++) {
    struct channel_ticket *ticket = get_ticket(&rig_key, time(NULL));
    assert_true(is_taken(ticket));
    refused = !is_taken(ticket);
    secret_free(ticket);
  }
  assert_true(refused);
}

UNIT_TEST_WITH(test_a_resumed_opening_split_at_every_byte, set_up, tear_down) {
  for (size_t at = 0; at <= CHANNEL_RESUMING_SIZE; at++) {
    struct side s = {0};
    struct channel client = {.secret = NULL};
    struct channel_ticket *ticket = get_ticket(&rig_key, time(NULL));
    SCOPED(buf_finish) struct buf out = BUF_INIT;
    int fd = serve_keyed(&s);
    channel_resume(&client, ticket, &out);
    if (at) put(fd, out.data, at);
    spin();
    if (at < out.len) put(fd, out.data + at, out.len - at);
    spin();
    take_from_server(&client, fd);
    buf_clear(&out);
    put_sealed(&client, &out, "one");
    put(fd, out.data, out.len);
    spin();
    finish(&s, fd, "native msg:one closed");
    secret_free(ticket);
    channel_finish(&client);
  }
}

/* Another program at the daemon's port. */
static void check_squatter(const char *says, size_t len, const char *expected) {
  int fds[2];
  struct side client = {.key = &rig_key};
  pair_unix(fds);
  begin(&client, &callbacks, false, false, fds[0]);
  put(fds[1], says, len);
  spin();
  finish(&client, fds[1], expected);
}

UNIT_TEST_WITH(test_squatters, set_up, tear_down) {
  char answer[CHANNEL_ANSWER_SIZE] = "RDZV\x01";
  check_squatter("SSH-2.0-x\r\n", 11, "end:-71:does not seem to be rdzv: it begins with \"SSH-2.0-x\\r\\n\" closed");
  check_squatter(answer, sizeof answer,
                 "end:-74:it answers without the key: another program listens there, or changes what is sent closed");
  check_squatter("RDZV\x01\0\1", 8, "end:-13:its key is another one closed");
}

UNIT_TEST_WITH(test_a_knock_is_not_sealed, set_up, tear_down) {
  int fds[2];
  struct side client = {.key = &rig_key};
  SCOPED(buf_finish) struct buf got = BUF_INIT;
  pair_unix(fds);
  begin(&client, &callbacks, false, false, fds[0]);
  conn_knock(&client.conn);
  spin();
  get(fds[1], &got);
  assert_int_equal(got.len, CHANNEL_OPENING_SIZE + 4);
  assert_memory_equal(got.data + CHANNEL_OPENING_SIZE, "\r\n\r\n", 4);
  finish(&client, fds[1], "closed");
}

UNIT_TEST_WITH(test_other_kinds, set_up, tear_down) {
  struct side munge = {.on_foreign = TAKE_OVER}, unknown = {0}, plain = {0};
  int fd = serve_keyed(&munge);
  put(fd, "RDZV\1\0\2\0more", 12);
  spin();
  finish(&munge, fd, "foreign:a question for a key by MUNGE:12 closed");
  fd = serve_keyed(&unknown);
  put(fd, "RDZV\1\0\4\0", 8);
  spin();
  finish(&unknown, fd, "end:-71:opens a connection in a way that this side does not know closed");
  fd = serve_keyed(&plain);
  put(fd, frame_preface, FRAME_PREFACE_SIZE);
  spin();
  assert_int_equal(plain.conn.channel.state, CHANNEL_IS_PLAIN); /* the owner refuses it */
  finish(&plain, fd, "native closed");
}

int main(void) {
  key_derive(&rig_key, 1000, &of_user);
  return unit_run(NULL, NULL);
}
