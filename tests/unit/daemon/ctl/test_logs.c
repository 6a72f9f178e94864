/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl logs: which question follows which answer. */

#include "daemon/ctl/logs.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "proto/worker_line.h"
#include "tests/rig/unit.h"

struct bench {
  struct ctl_logs *l;
  uint64_t now_ms;
  struct buf out, err, notes;
  struct logs_step step;
};

static void open_bench(struct bench *b, struct ctl_logs_options o) {
  *b = (struct bench){.now_ms = 1000};
  o.job = "j";
  b->l = ctl_logs_create(&o);
}

static void close_bench(struct bench *b) {
  ctl_logs_destroy(b->l);
  buf_finish(&b->out);
  buf_finish(&b->err);
  buf_finish(&b->notes);
}

static void next(struct bench *b, enum logs_step_kind kind) {
  b->step = ctl_logs_next(b->l, b->now_ms);
  buf_clear(&b->notes);
  while (ctl_logs_note(b->l, &b->notes)) buf_putc(&b->notes, '|');
  const char *why = b->step.kind == LOGS_END ? b->step.text : NULL;
  if (b->step.kind != kind) fail_msg("step %d instead of %d: %s", b->step.kind, kind, why ? why : "");
}

static void fetch(struct bench *b, const char *agent, int64_t from) {
  next(b, LOGS_FETCH);
  assert_string_equal(b->step.agent, agent);
  assert_int_equal(b->step.from, from);
}

/* The end, and its sentence. */
static void ends(struct bench *b, int code, const char *says) {
  next(b, LOGS_END);
  assert_int_equal(b->step.code, code);
  const char *text = b->step.text ? b->step.text : "";
  if (!strstr(text, says)) fail_msg("\"%s\" without \"%s\"", text, says);
}

static void list(struct bench *b, const char *state, int round, const char *members, const char *more) {
  struct buf text = BUF_INIT;
  buf_printf(&text, "{\"jobs\":[{\"job\":\"j\",\"state\":\"%s\",\"round\":%d,\"world_size\":4%s,\"members\":[%s]}]}\n",
             state, round, more, members);
  ctl_logs_on_list(b->l, text.data, text.len, b->now_ms);
  buf_finish(&text);
}
#define MEMBER(id, first) "{\"agent\":\"" id "\",\"host\":\"h" id "\",\"first_rank\":" first ",\"workers\":2}"

struct said {
  const char *text; /* NULL: nothing */
  int64_t next, round;
  bool more, lost, over;
};

static void lines(struct bench *b, struct said s) {
  struct buf raw = BUF_INIT;
  struct msg m;
  msg_init(&m, MSG_CONTROL_REPLY);
  if (s.text)
    worker_line_put(&raw, &(struct worker_line){.rank = 1,
                                                .prefix = "[1] ",
                                                .prefix_len = 4,
                                                .text = s.text,
                                                .text_len = strlen(s.text),
                                                .is_err = s.text[0] == 'E'});
  m.control_reply.next = s.next;
  m.control_reply.round = s.round ? s.round : 1;
  m.control_reply.more = s.more;
  m.control_reply.lost = s.lost;
  m.control_reply.over = s.over;
  m.raw = buf_text(&raw);
  m.raw_len = raw.len;
  buf_clear(&b->out);
  buf_clear(&b->err);
  ctl_logs_on_lines(b->l, &m, b->now_ms, &b->out, &b->err);
  buf_finish(&raw);
}

UNIT_TEST(test_all_nodes_once) {
  struct bench b;
  open_bench(&b, (struct ctl_logs_options){.rank = -1, .tail = 7});
  next(&b, LOGS_LIST);
  list(&b, "running", 1, MEMBER("a", "0") "," MEMBER("b", "2"), "");
  fetch(&b, "a", 0);
  assert_int_equal(b.step.tail, 7);
  assert_int_equal(b.step.wait_ms, 0);
  lines(&b, (struct said){.text = "one", .next = 5, .more = true});
  assert_string_equal(buf_text(&b.out), "[1] one\n");
  fetch(&b, "a", 5);
  assert_int_equal(b.step.tail, -1); /* it counts once */
  lines(&b, (struct said){.text = "Error", .next = 6});
  assert_string_equal(buf_text(&b.out), "");
  assert_string_equal(buf_text(&b.err), "[1] Error\n");
  fetch(&b, "b", 0);
  lines(&b, (struct said){.next = 1, .lost = true});
  ends(&b, EXIT_CODE_OK, "");
  close_bench(&b);
}

/* The rank moves to another node with the next round: what the old one has left comes first. */
UNIT_TEST(test_a_rank_through_rounds) {
  struct bench b;
  open_bench(&b, (struct ctl_logs_options){.rank = 1, .tail = -1, .follow = true});
  next(&b, LOGS_LIST);
  list(&b, "running", 1, MEMBER("a", "0") "," MEMBER("b", "2"), "");
  fetch(&b, "a", 0);
  assert_int_equal(b.step.wait_ms, LOGS_WAIT_MS); /* the only one: it waits there */
  lines(&b, (struct said){.text = "one", .next = 5});
  assert_string_equal(buf_text(&b.out), "one\n"); /* no prefix */
  fetch(&b, "a", 5);
  lines(&b, (struct said){.next = 6, .round = 2});
  next(&b, LOGS_LIST);
  list(&b, "running", 2, MEMBER("a", "2") "," MEMBER("b", "0"), "");
  fetch(&b, "a", 6); /* its last lines */
  lines(&b, (struct said){.text = "last", .next = 8, .round = 2});
  fetch(&b, "b", 0);
  lines(&b, (struct said){.text = "two", .next = 4, .round = 2});
  for (int i = 0; i < 3; i++) {
    fetch(&b, "b", 4);
    lines(&b, (struct said){.next = 4, .round = 2});
  }
  /* A node that comes later tells of its round alone. */
  b.now_ms += 60000;
  next(&b, LOGS_LIST);
  list(&b, "running", 3, MEMBER("c", "0") "," MEMBER("b", "2"), "");
  fetch(&b, "b", 4);
  lines(&b, (struct said){.next = 4, .round = 3});
  fetch(&b, "c", 0);
  assert_int_equal(b.step.from_round, 3);
  /* The end. */
  lines(&b, (struct said){.text = "bye", .next = 9, .round = 3, .over = true});
  fetch(&b, "c", 9);
  lines(&b, (struct said){.next = 9, .round = 3, .over = true});
  next(&b, LOGS_LIST);
  list(&b, "ended", 3, "", ",\"outcome\":\"failed\",\"code\":9");
  ends(&b, EXIT_CODE_OK, "job j is over: failed with exit code 9");
  close_bench(&b);
}

UNIT_TEST(test_several_followed) {
  struct bench b;
  open_bench(&b, (struct ctl_logs_options){.rank = -1, .tail = -1, .follow = true});
  next(&b, LOGS_LIST);
  list(&b, "running", 1, MEMBER("a", "0") "," MEMBER("b", "2"), "");
  fetch(&b, "a", 0);
  assert_int_equal(b.step.wait_ms, 1);
  lines(&b, (struct said){.text = "one", .next = 5});
  fetch(&b, "b", 0);
  lines(&b, (struct said){.next = 1});
  fetch(&b, "a", 5); /* at once, since one had something */
  lines(&b, (struct said){.next = 5});
  fetch(&b, "b", 1);
  lines(&b, (struct said){.next = 1});
  next(&b, LOGS_PAUSE);
  fetch(&b, "a", 5);
  ctl_logs_on_failure(b.l, 1, "node ha does not answer", true, b.now_ms);
  next(&b, LOGS_LIST); /* perhaps the job is over */
  assert_string_equal(buf_text(&b.notes), "");
  list(&b, "running", 1, MEMBER("a", "0") "," MEMBER("b", "2"), "");
  fetch(&b, "b", 1);
  assert_string_equal(buf_text(&b.notes), "node ha does not answer|");
  lines(&b, (struct said){.next = 1});
  next(&b, LOGS_PAUSE);
  fetch(&b, "b", 1); /* the other one is left alone for a while */
  lines(&b, (struct said){.next = 1});
  b.now_ms += LOGS_AWAY_MS;
  next(&b, LOGS_LIST);
  list(&b, "running", 1, MEMBER("a", "0") "," MEMBER("b", "2"), "");
  fetch(&b, "a", 5);
  ctl_logs_on_failure(b.l, 1, "node ha does not answer", true, b.now_ms);
  fetch(&b, "b", 1);
  assert_string_equal(buf_text(&b.notes), ""); /* it was said */
  lines(&b, (struct said){.text = "x", .next = 90, .lost = true});
  next(&b, LOGS_FETCH);
  assert_string_equal(buf_text(&b.notes),
                      "node hb: lines are missing here: its workers wrote faster than they were read|");
  close_bench(&b);
}

/* A daemon that restarts is waited for, but not forever. */
UNIT_TEST(test_daemon_away) {
  struct bench b;
  open_bench(&b, (struct ctl_logs_options){.rank = -1, .tail = -1, .follow = true});
  next(&b, LOGS_LIST);
  list(&b, "running", 1, MEMBER("a", "0"), "");
  fetch(&b, "a", 0);
  ctl_logs_on_failure(b.l, EXIT_CODE_NO_DAEMON, "nobody listens", false, b.now_ms);
  next(&b, LOGS_PAUSE);
  assert_string_equal(buf_text(&b.notes), "nobody listens; trying again|");
  next(&b, LOGS_LIST);
  list(&b, "running", 1, MEMBER("a", "0"), "");
  fetch(&b, "a", 0);
  for (uint64_t from = b.now_ms; b.now_ms < from + LOGS_DAEMON_AWAY_MS; b.now_ms += 1000) {
    ctl_logs_on_failure(b.l, EXIT_CODE_NO_DAEMON, "nobody listens", false, b.now_ms);
    next(&b, LOGS_PAUSE);
    next(&b, LOGS_LIST);
  }
  ctl_logs_on_failure(b.l, EXIT_CODE_NO_DAEMON, "nobody listens", false, b.now_ms);
  ends(&b, EXIT_CODE_NO_DAEMON, "nobody listens; gave up after 30 s");
  close_bench(&b);
}

UNIT_TEST(test_mistakes) {
  struct bench b;
  static const struct {
    const char *json;
    int code;
    const char *says;
  } t[] = {
      {"{\"jobs\":[{\"job\":\"j\",\"moved_to\":\"h:1\"}]}", 1, "job j has moved to the daemon on h:1"},
      {"{\"jobs\":[{},{}]}", EXIT_CODE_USAGE, "choose one with --user"},
      {"what", EXIT_CODE_NO_DAEMON, "is not understood"},
      {"{\"jobs\":[{\"state\":\"running\",\"round\":1,\"world_size\":4,\"members\":[]}]}", 1, "its ranks are 0 to 3"},
      {"{\"jobs\":[{\"state\":\"ended\",\"outcome\":\"success\",\"code\":0,\"members\":[7,{\"agent\":8}]}]}", 1,
       "job j is over: success with exit code 0; its agents, which had the lines, are gone"},
      {"{\"jobs\":[{\"state\":\"forming\",\"members\":[]}]}", 1, "no node of job j is here now"},
  };
  for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
    open_bench(&b, (struct ctl_logs_options){.rank = 4, .tail = -1});
    next(&b, LOGS_LIST);
    ctl_logs_on_list(b.l, t[i].json, strlen(t[i].json), 1000);
    ends(&b, t[i].code, t[i].says);
    close_bench(&b);
  }
  open_bench(&b, (struct ctl_logs_options){.rank = -1, .tail = -1, .follow = true});
  next(&b, LOGS_LIST);
  ctl_logs_on_failure(b.l, 1, "no job has the id j", true, b.now_ms);
  ends(&b, 1, "no job has the id j");
  close_bench(&b);
  open_bench(&b, (struct ctl_logs_options){.rank = -1, .tail = -1});
  next(&b, LOGS_LIST);
  list(&b, "running", 1, MEMBER("a", "0"), "");
  fetch(&b, "a", 0);
  struct msg m; /* bytes that are no lines */
  msg_init(&m, MSG_CONTROL_REPLY);
  m.raw = "\xff\xff\xff";
  m.raw_len = 3;
  ctl_logs_on_lines(b.l, &m, b.now_ms, &b.out, &b.err);
  ends(&b, EXIT_CODE_NO_DAEMON, "node ha: 3 bytes are too few for a worker's line");
  close_bench(&b);
}

/* A user who reads much is slowed down, and nothing is lost. */
UNIT_TEST(test_pause) {
  struct bench b;
  struct msg m;
  open_bench(&b, (struct ctl_logs_options){.rank = -1, .tail = -1});
  next(&b, LOGS_LIST);
  list(&b, "running", 1, MEMBER("a", "0"), "");
  fetch(&b, "a", 0);
  lines(&b, (struct said){.text = "one", .next = 5, .more = true});
  fetch(&b, "a", 5);
  msg_init(&m, MSG_CONTROL_REPLY);
  m.control_reply.pause_ms = 1500;
  ctl_logs_on_lines(b.l, &m, b.now_ms, &b.out, &b.err);
  next(&b, LOGS_PAUSE);
  assert_int_equal(b.step.pause_ms, 1500);
  fetch(&b, "a", 5);
  close_bench(&b);
}
