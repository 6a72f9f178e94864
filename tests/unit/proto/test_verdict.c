/* SPDX-License-Identifier: Apache-2.0 */
/* verdict: one golden sentence per cause and per thing that may be unknown, and the weights. */

#include "proto/msg.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static struct verdict worker(enum cause cause) {
  struct verdict v;
  verdict_init(&v);
  v.cause = cause;
  v.round = 2;
  v.node_rank = 1;
  v.rank = 3;
  v.local_rank = 1;
  v.host = "node1";
  v.pid = 4711;
  v.step = 120;
  v.of = 500;
  return v;
}

static void check(const struct verdict *v, const char *expected) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  verdict_sentence(v, &b);
  assert_string_equal(buf_text(&b), expected);
}

UNIT_TEST(test_worker_signal) {
  struct verdict v = worker(CAUSE_WORKER_SIGNAL);
  v.signal = SIGSEGV;
  v.code = 139;
  v.core = true;
  v.text = "last\nlines";
  check(&v, "rank 3 (local 1) on node1, pid 4711, was killed by SIGSEGV (signal 11), core dumped, after step "
            "120 of 500");
  v.core = false;
  v.signal = 77;
  v.of = 0;
  check(&v, "rank 3 (local 1) on node1, pid 4711, was killed by signal 77, after step 120");
  v.step = -1;
  v.pid = 0;
  v.signal = SIGKILL;
  v.echoes = 1;
  check(&v, "rank 3 (local 1) on node1 was killed by SIGKILL (signal 9); 1 other worker died with it or after it");
  v.host = "";
  v.local_rank = -1;
  v.echoes = 7;
  check(&v, "rank 3 on node 1 was killed by SIGKILL (signal 9); 7 other workers died with it or after it");
  v.rank = v.node_rank = -1;
  v.slow = "rank 5 (n1, local 1) was slow for 60 s, which cost 2 s";
  check(&v,
        "a worker was killed by SIGKILL (signal 9); 7 other workers died with it or after it; rank 5 (n1, local 1) was "
        "slow for 60 s, which cost 2 s");
  v.slow = "";
  v.echoes = 0;
  check(&v, "a worker was killed by SIGKILL (signal 9)");
}

UNIT_TEST(test_xid) {
  struct verdict v = worker(CAUSE_WORKER_EXIT);
  v.code = 1;
  v.error = "RuntimeError: CUDA error";
  v.xid = 79;
  check(&v, "rank 3 (local 1) on node1, pid 4711, exited with code 1: RuntimeError: CUDA error, after step 120 of 500; "
            "its GPU reported XID 79 (GPU has fallen off the bus)");
  v.xid = 31;
  v.error = "";
  check(&v, "rank 3 (local 1) on node1, pid 4711, exited with code 1, after step 120 of 500; its GPU reported XID 31 "
            "(GPU memory page fault, most often the application's own doing)");
}

UNIT_TEST(test_lasting) {
  static const struct {
    enum lasting lasting;
    const char *words;
  } rows[] = {
      {LASTING_NO, ""},
      {LASTING_USAGE, ", a usage error that a restart would repeat"},
      {LASTING_TRAINER, ", a usage error that a restart would repeat"},
      {LASTING_SYNTAX, ", a syntax error that a restart would repeat"},
      {LASTING_IMPORT, ", a failed import that a restart would repeat"},
      {LASTING_SCRIPT, ", a missing script or module that a restart would repeat"},
      {LASTING_COMMAND, ", an unusable command that a restart would repeat"},
      {LASTING_WORKER, ", a final failure by its own account"},
      {LASTING_NCCL, ""}, /* of another cause */
      {LASTING_RESULT, ", a result that failed validation"},
  };
  assert_int_equal(sizeof rows / sizeof *rows, LASTING_COUNT);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct verdict v = worker(CAUSE_WORKER_EXIT);
    char want[200];
    v.code = 1;
    v.step = -1;
    v.error = "E: x";
    v.lasting = rows[i].lasting;
    snprintf(want, sizeof want, "rank 3 (local 1) on node1, pid 4711, exited with code 1%s: E: x", rows[i].words);
    check(&v, want);
  }
  struct verdict v = worker(CAUSE_WORKER_EXEC);
  v.pid = 0;
  v.step = -1;
  v.lasting = LASTING_COMMAND;
  v.text = "no such file";
  check(&v, "rank 3 (local 1) on node1 could not be started, an unusable command that a restart would repeat: no such "
            "file");
}

UNIT_TEST(test_worker_exit) {
  struct verdict v = worker(CAUSE_WORKER_EXIT);
  v.code = 7;
  v.text = "Traceback";
  check(&v, "rank 3 (local 1) on node1, pid 4711, exited with code 7, after step 120 of 500");
  v.step = 0;
  v.of = 0;
  check(&v, "rank 3 (local 1) on node1, pid 4711, exited with code 7, after step 0");
  v.error = "ValueError: \"boom\"\n\x1b[31mof two lines\n";
  v.echoes = 1;
  check(&v, "rank 3 (local 1) on node1, pid 4711, exited with code 7: ValueError: \"boom\"\\n\\x1b[31mof two "
            "lines, "
            "after step 0; 1 other worker died with it or after it");
}

UNIT_TEST(test_worker_hung) {
  struct verdict v = worker(CAUSE_WORKER_HUNG);
  v.idle_ms = 61240;
  v.state = "T";
  v.text = "its process is stopped, as by SIGSTOP; rank 2 stopped 1.1 s later";
  v.echoes = 1;
  check(&v, "rank 3 (local 1) on node1, pid 4711, made no progress for 61.2 s, after step 120 of 500: its "
            "process is stopped, as by SIGSTOP; rank 2 stopped 1.1 s later; 1 other worker died with it or "
            "after it");
}

UNIT_TEST(test_worker_exec) {
  struct verdict v = worker(CAUSE_WORKER_EXEC);
  v.pid = 0;
  v.step = -1;
  v.code = 127;
  v.error = "not shown: it never ran";
  v.text = "\"pyhton\": not found in PATH\n";
  check(&v, "rank 3 (local 1) on node1 could not be started: \"pyhton\": not found in PATH");
}

UNIT_TEST(test_device) {
  struct verdict v = worker(CAUSE_DEVICE_HELD);
  v.pid = 0;
  v.step = -1;
  v.device = "2, GPU-8f";
  v.text = "pid 7 holds 5 MiB";
  check(&v, "rank 3 (local 1) on node1, device 2, GPU-8f, was not started: pid 7 holds 5 MiB");
  v = worker(CAUSE_WORKER_EXIT);
  v.code = 7;
  v.device = "GPU-8f";
  check(&v, "rank 3 (local 1) on node1, device GPU-8f, pid 4711, exited with code 7, after step 120 of 500");
}

UNIT_TEST(test_node_lost) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_NODE_LOST;
  v.node_rank = 2;
  v.host = "node3";
  v.text = "silent for 5.0 s";
  check(&v, "node 2 (node3) was lost: silent for 5.0 s");
  v.text = "";
  v.host = "";
  check(&v, "node 2 was lost");
  v.node_rank = -1;
  v.host = "node3";
  check(&v, "a node (node3) was lost");
}

UNIT_TEST(test_node_leaving) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_NODE_LEAVING;
  v.node_rank = 0;
  v.host = "node0";
  v.signal = SIGTERM;
  check(&v, "node 0 (node0) left, asked to by SIGTERM (signal 15)");
  v.signal = 0;
  v.text = "drained";
  check(&v, "node 0 (node0) left: drained");
}

UNIT_TEST(test_others) {
  struct verdict v;
  verdict_init(&v);
  check(&v, "the cause is unknown");
  v.cause = CAUSE_OPERATOR;
  check(&v, "an operator stopped the job");
  v.text = "rdzvctl stop by uid 1000";
  check(&v, "an operator stopped the job: rdzvctl stop by uid 1000");
  v.cause = CAUSE_JOIN_TIMEOUT;
  v.text = "2 of 3 nodes came within 60 s; node2 is missing";
  check(&v, "too few nodes joined in time: 2 of 3 nodes came within 60 s; node2 is missing");
}

/* A cause that came with an unknown word. */
UNIT_TEST(test_a_cause_of_a_later_release) {
  struct verdict v = worker(CAUSE_OTHER);
  v.text = "the GPU melted";
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  verdict_sentence(&v, &out);
  assert_non_null(strstr(buf_text(&out), "rank 3 (local 1) on node1"));
  assert_non_null(strstr(buf_text(&out), " failed by a cause that only a later release of rdzv knows: the GPU melted"));
  v.rank = -1;
  check(&v, "the GPU melted");
  v.text = "";
  check(&v, "the cause is unknown");
}

UNIT_TEST(test_what_a_peer_wrote_is_escaped) {
  struct verdict v = worker(CAUSE_WORKER_EXIT);
  v.host = "no\x1b[31mde\n";
  v.code = 1;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  verdict_sentence(&v, &b);
  for (size_t i = 0; i < b.len; i++) assert_true((unsigned char)b.data[i] >= 0x20);
  buf_clear(&b);
  char text[1000]; /* longer than is shown; two-byte characters, so that the cut falls into one */
  memset(text, 'x', 1);
  for (size_t i = 1; i + 2 < sizeof(text); i += 2) memcpy(text + i, "\xc3\xa9", 2);
  text[sizeof(text) - 1 - (sizeof(text) % 2 == 0)] = '\0';
  v.cause = CAUSE_NODE_LOST;
  v.host = "n";
  v.text = text;
  verdict_sentence(&v, &b);
  assert_non_null(strstr(b.data, "\xc3\xa9..."));
  assert_null(strstr(b.data, "\\x"));
  assert_true(b.len < 500);
}

UNIT_TEST(test_signal_names) {
  assert_string_equal(signal_name(SIGKILL), "SIGKILL");
  assert_string_equal(signal_name(SIGHUP), "SIGHUP");
  assert_string_equal(signal_name(SIGSYS), "SIGSYS");
  for (int s = 1; s <= 31; s++) assert_non_null(signal_name(s));
  static const int none[] = {-1, 0, 32, 77, 127, 1000000};
  for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) assert_null(signal_name(none[i]));
}

static bool outweighs(enum cause a, uint64_t at, enum cause b, uint64_t bt) {
  struct verdict v, w;
  verdict_init(&v);
  verdict_init(&w);
  v.cause = a;
  w.cause = b;
  return verdict_outweighs(&v, at, &w, bt);
}

UNIT_TEST(test_weight) {
  static const enum cause order[][2] = {
      {CAUSE_OPERATOR, CAUSE_OPERATOR},           {CAUSE_NODE_LOST, CAUSE_NODE_LEAVING},
      {CAUSE_WORKER_SIGNAL, CAUSE_WORKER_SIGNAL}, {CAUSE_WORKER_EXEC, CAUSE_WORKER_EXIT},
      {CAUSE_JOIN_TIMEOUT, CAUSE_JOIN_TIMEOUT},   {CAUSE_NONE, CAUSE_NONE},
  };
  enum { N = sizeof(order) / sizeof(order[0]) };
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      for (int k = 0; k < 4; k++) {
        enum cause a = order[i][k & 1], b = order[j][k >> 1];
        bool none = a == CAUSE_NONE;
        assert_int_equal(outweighs(a, 5, b, 9), i < j || (i == j && !none)); /* a is earlier */
        assert_int_equal(outweighs(a, 9, b, 5), i < j);
        assert_int_equal(outweighs(a, 7, b, 7), i < j); /* neither outweighs its equal */
      }
}

/* Of two hangs the stopped process, then the one in the kernel's hands, then the lower step, then the earlier. */
UNIT_TEST(test_weight_of_hangs) {
  static const struct {
    const char *state;
    int64_t step;
    uint64_t at;
  } order[] = {{"t", 9, 9}, {"D", 9, 9}, {"S", 3, 8}, {"R", 5, 5}, {"", 5, 6}};
  enum { N = sizeof(order) / sizeof(order[0]) };
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      struct verdict a = worker(CAUSE_WORKER_HUNG), b = worker(CAUSE_WORKER_HUNG);
      a.state = order[i].state;
      a.step = order[i].step;
      b.state = order[j].state;
      b.step = order[j].step;
      assert_int_equal(verdict_outweighs(&a, order[i].at, &b, order[j].at), i < j);
    }
  struct verdict a = worker(CAUSE_WORKER_HUNG), b = worker(CAUSE_WORKER_SIGNAL);
  a.state = "T";
  b.step = -1;
  assert_false(verdict_outweighs(&a, 7, &b, 5)); /* a death is compared by time alone */
  assert_true(verdict_outweighs(&a, 5, &b, 7));
  b = a;
  b.step = -1; /* it has told none: by time */
  assert_true(verdict_outweighs(&b, 5, &a, 7));
  assert_false(verdict_outweighs(&b, 7, &a, 5));
}
