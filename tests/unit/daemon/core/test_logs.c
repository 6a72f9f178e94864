/* SPDX-License-Identifier: Apache-2.0 */
/* core: the questions of rdzvctl logs. */

#include "daemon/core/internal.h"

#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/core.h"
#include "tests/rig/unit.h"

static uint64_t next_conn = 9000;

/* Asks as that user over the control socket. Returns the connection. */
static uint64_t ask(struct rig *r, int64_t uid, const char *agent, int64_t from, int64_t wait_ms) {
  struct msg m;
  uint64_t conn = next_conn++;
  msg_init(&m, MSG_CONTROL);
  m.id = 7;
  m.control.verb = "logs";
  m.control.job = "job";
  m.control.rank = 1;
  m.control.agent = agent;
  m.control.from = from;
  m.control.wait_ms = wait_ms;
  rig_event(
      r, &(struct core_event){
             .kind = CORE_MSG, .conn = conn, .msg = &m, .peer_addr = "", .local_addr = "", .local = true, .uid = uid});
  return conn;
}

static void answer(struct rig *r, uint64_t conn, int64_t serial, const char *raw, size_t len) {
  struct msg m;
  msg_init(&m, MSG_LOG);
  m.log.serial = serial;
  m.log.next = 12;
  m.log.more = m.log.lost = true;
  m.raw = raw;
  m.raw_len = len;
  rig_msg(r, conn, &m, "10.0.0.1", "10.0.0.9");
}

static bool is_closed(const struct rig *r, uint64_t conn) {
  for (size_t i = 0; i < r->n_closed; i++)
    if (r->closed[i] == conn) return true;
  return false;
}

static void check_failure(struct rig *r, uint64_t conn, int code, const char *says) {
  const struct msg *m = rig_last(r, conn, MSG_CONTROL_REPLY);
  assert_non_null(m);
  assert_int_equal(m->control_reply.code, code);
  char text[512] = "";
  assert_true(m->raw_len < sizeof text);
  memcpy(text, m->raw, m->raw_len);
  if (!strstr(text, says)) fail_msg("\"%s\" without \"%s\"", text, says);
  assert_true(is_closed(r, conn));
}

static void begin(struct rig *r, struct node n[2]) {
  rig_open(r, 1);
  for (int i = 0; i < 2; i++) {
    node_init(r, &n[i], i);
    n[i].uid = n[i].key_uid = 1000;
    node_join(r, &n[i]);
  }
  for (int i = 0; i < 2; i++) node_started(r, &n[i]);
  rig_forget(r);
}

RIG_TEST(test_question_and_answer) {
  begin(r, n);
  uint64_t conn = ask(r, 1000, n[1].agent, 5, 500);
  assert_int_equal(rig_count(r, n[0].conn, MSG_FETCH_LOG), 0);
  const struct msg *m = rig_last(r, n[1].conn, MSG_FETCH_LOG);
  assert_non_null(m);
  assert_int_equal(m->fetch_log.rank, 1);
  assert_int_equal(m->fetch_log.from, 5);
  assert_int_equal(m->fetch_log.wait_ms, 500);
  assert_int_equal(m->fetch_log.tail, -1);
  assert_true(core_is_followed(r->core));
  int64_t serial = m->fetch_log.serial;
  answer(r, n[0].conn, serial, "lies", 4); /* another node's */
  answer(r, n[1].conn, serial + 1, "lies", 4);
  assert_int_equal(rig_count(r, conn, MSG_CONTROL_REPLY), 0);
  answer(r, n[1].conn, serial, "a\0line", 6);
  m = rig_last(r, conn, MSG_CONTROL_REPLY);
  assert_non_null(m);
  assert_int_equal(m->id, 7);
  assert_int_equal(m->control_reply.code, 0);
  assert_int_equal(m->control_reply.next, 12);
  assert_int_equal(m->control_reply.round, 1);
  assert_true(m->control_reply.more && m->control_reply.lost && !m->control_reply.over);
  assert_int_equal(m->raw_len, 6);
  assert_memory_equal(m->raw, "a\0line", 6);
  assert_true(is_closed(r, conn));
  answer(r, n[1].conn, serial, "again", 5); /* nobody waits for it */
  assert_int_equal(rig_count(r, conn, MSG_CONTROL_REPLY), 1);
  assert_true(core_is_followed(r->core));
  rig_live(r, CORE_LOGS_FOLLOWED_MS + 1);
  assert_false(core_is_followed(r->core));
}

/* To other users the job does not exist. */
RIG_TEST(test_who_may) {
  begin(r, n);
  check_failure(r, ask(r, 1001, n[0].agent, 0, 0), 1, "no job of yours has the id job");
  assert_int_equal(rig_count(r, n[0].conn, MSG_FETCH_LOG), 0);
  ask(r, 0, n[0].agent, 0, 0);
  ask(r, 1000, n[0].agent, 0, 0);
  assert_int_equal(rig_count(r, n[0].conn, MSG_FETCH_LOG), 2);
  check_failure(r, ask(r, 1000, "ab", 0, 0), 1, "is not connected to this daemon now");
  check_failure(r, ask(r, 1000, "", 0, 0), 1, "is not connected to this daemon now");
}

RIG_TEST(test_no_answer) {
  begin(r, n);
  uint64_t conn = ask(r, 0, n[0].agent, 0, 1000);
  rig_live(r, 1000 + CORE_LOGS_ANSWER_MS - 10);
  assert_int_equal(rig_count(r, conn, MSG_CONTROL_REPLY), 0);
  rig_live(r, 20);
  check_failure(r, conn, 1, "node n0 does not answer");
  conn = ask(r, 0, n[0].agent, 0, 1000);
  rig_closed(r, n[0].conn);
  check_failure(r, conn, 1, "node n0 is not connected any more");
  conn = ask(r, 0, n[1].agent, 0, 1000);
  int64_t serial = rig_last(r, n[1].conn, MSG_FETCH_LOG)->fetch_log.serial;
  rig_closed(r, conn); /* the asker goes */
  answer(r, n[1].conn, serial, "x", 1);
  assert_int_equal(rig_count(r, conn, MSG_CONTROL_REPLY), 0);
  conn = ask(r, 0, n[1].agent, 0, 1000);
  serial = rig_last(r, n[1].conn, MSG_FETCH_LOG)->fetch_log.serial;
  static char much[LOG_ANSWER_MAX + 1];
  answer(r, n[1].conn, serial, much, sizeof much);
  check_failure(r, conn, 1, "has sent more lines than were asked for");
}

/* One user may not take the daemon: neither by many questions, nor by long answers. */
RIG_TEST(test_limits) {
  static char piece[LOG_ANSWER_MAX];
  begin(r, n);
  uint64_t first = ask(r, 1000, n[0].agent, 0, 1000);
  for (int i = 1; i < CORE_LOGS_USER_MAX; i++) ask(r, 1000, n[0].agent, 0, 1000);
  check_failure(r, ask(r, 1000, n[0].agent, 0, 1000), EXIT_CODE_REFUSED,
                "too many rdzvctl logs run at this daemon: 16");
  for (int i = CORE_LOGS_USER_MAX; i < CORE_LOGS_MAX; i++) ask(r, 0, n[0].agent, 0, 1000);
  check_failure(r, ask(r, 0, n[0].agent, 0, 1000), EXIT_CODE_REFUSED, "at most 256");
  rig_closed(r, first);
  ask(r, 0, n[0].agent, 0, 1000); /* there is room again */
  rig_live(r, 1000 + CORE_LOGS_ANSWER_MS);
  rig_forget(r);
  uint64_t conn = 0;
  for (int i = 0; i < 1000; i++) {
    conn = ask(r, 1000, n[1].agent, 0, 0);
    const struct msg *m = rig_last(r, conn, MSG_CONTROL_REPLY);
    if (m) break;
    answer(r, n[1].conn, rig_last(r, n[1].conn, MSG_FETCH_LOG)->fetch_log.serial, piece, sizeof piece);
  }
  const struct msg *m = rig_last(r, conn, MSG_CONTROL_REPLY);
  assert_int_equal(m->control_reply.code, 0);
  assert_in_range(m->control_reply.pause_ms, CORE_ANSWERS_AHEAD_MS, 60000);
  assert_int_equal(m->raw_len, 0);
  assert_non_null(n[1].conn); /* it was not blamed for its answers */
  assert_int_equal(rig_count(r, n[1].conn, MSG_REFUSED), 0);
  ask(r, 0, n[1].agent, 0, 0); /* root has no such limit */
}
