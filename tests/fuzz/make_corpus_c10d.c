/* SPDX-License-Identifier: Apache-2.0 */
/* The seeds of fuzz_c10d: every op in every numbering, conversations of several clients, and what is over a limit.
 * Its records are a byte for who and what, a byte for a length, and so many bytes. */

#include <stdio.h>
#include <string.h>
#include "proto/c10d.h"
#include "tests/fuzz/make_corpus.h"

enum { ARRIVES = 0, ANSWERED_LITTLE = 8, GOES = 12 };

static struct buf story;
static enum c10d_dialect dialect;

static void record(int who_and_what, const void *data, size_t len) {
  buf_putc(&story, (char)who_and_what);
  buf_putc(&story, (char)len);
  buf_append(&story, data, len);
}

static void say(int who, struct c10d_request r) {
  char data[256];
  size_t len = c10d_encode(dialect, &r, data, sizeof(data));
  if (len > 0 && len <= sizeof(data) - 1) record(who, data, len);
}

static void greet(int who) {
  say(who, (struct c10d_request){.op = C10D_VALIDATE, .number = C10D_VALIDATE_MAGIC});
}

static struct slice text(const char *s) {
  return (struct slice){s, strlen(s)};
}

static void end(const char *name) {
  corpus_save("c10d", name, &story);
  buf_clear(&story);
}

static void key(int who, enum c10d_op op, const char *name, const char *value, int64_t number) {
  say(who, (struct c10d_request){.op = op, .key = text(name), .value = text(value), .number = number});
}

static void keys(int who, enum c10d_op op, const char *a, const char *b) {
  struct slice names[] = {text(a), text(b)}, values[] = {text("1"), text("")};
  say(who, (struct c10d_request){.op = op, .count = 2, .keys = names, .values = values});
}

static void compare_set(int who, const char *name, const char *expected, const char *desired) {
  say(who, (struct c10d_request){
               .op = C10D_COMPARE_SET, .key = text(name), .expected = text(expected), .value = text(desired)});
}

static void every_op(const char *name) {
  for (enum c10d_op op = 0; op < C10D_OP_COUNT; op++) {
    if (op == C10D_VALIDATE && dialect == C10D_SINCE_2_2)
      greet(0);
    else if (op == C10D_CHECK || op == C10D_WAIT || op == C10D_MULTI_GET || op == C10D_MULTI_SET)
      keys(0, op, "/k", "/none");
    else if (op == C10D_COMPARE_SET)
      compare_set(0, "/k", "", "new");
    else
      key(0, op, op == C10D_ADD || op == C10D_BARRIER ? "/n" : "/k", "value", 2);
  }
  end(name);
}

static void waits(void) {
  for (int who = 0; who < 3; who++) greet(who);
  keys(0, C10D_WAIT, "/a", "/a");
  keys(1, C10D_WAIT, "/a", "/q");
  keys(2, C10D_WAIT, "/q", "/q");
  key(2, C10D_QUEUE_PUSH, "/q", "element", 0);
  key(0, C10D_SET, "/a", "", 0);
  key(1, C10D_QUEUE_POP, "/q", "", 0);
  keys(0, C10D_WAIT, "/b", "/c");
  record(GOES, "", 0);
  say(1, (struct c10d_request){.op = C10D_CANCEL_WAIT});
  end("waits");
  for (int who = 0; who < 3; who++) greet(who);
  for (int who = 0; who < 3; who++) key(who, C10D_BARRIER, "/b", "", 3);
  key(0, C10D_BARRIER, "/c", "", 3);
  key(1, C10D_SET, "/c", "text", 0);
  key(1, C10D_BARRIER, "/c", "", 3);
  end("barrier");
}

static void sessions(void) {
  greet(0);
  greet(1);
  compare_set(0, "/s.job", "", "state");
  key(0, C10D_SET, "/s.job.7/addr", "host", 0);
  keys(1, C10D_WAIT, "/s.job.7", "/s.job.7/x");
  key(0, C10D_QUEUE_PUSH, "/s.job/q", "element", 0);
  record(GOES, "", 0);
  greet(0);
  record(GOES | 1, "", 0);
  compare_set(0, "/s.job", "", "again");
  record(GOES, "", 0);
  record(GOES, "", 0);
  record(GOES, "", 0);
  end("sessions");
}

static void limits(void) {
  char name[64];
  greet(0);
  for (int i = 0; i < 50; i++) {
    snprintf(name, sizeof(name), "/%d", i);
    key(0, C10D_SET, name, "x", 0);
  }
  end("many-keys");
  greet(0);
  memset(name, 'v', sizeof(name));
  name[sizeof(name) - 1] = '\0';
  for (int i = 0; i < 6; i++) key(0, C10D_APPEND, "/a", name, 0);
  end("append");
  greet(0);
  for (int i = 0; i < 12; i++) keys(0, C10D_WAIT, "/a", "/b");
  end("many-waits");
  greet(0);
  static const char huge[] = "\x0b\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0k\xff\xff\xff\xff\xff\xff\xff\xff";
  record(0, huge, sizeof(huge) - 1);
  end("length-all-ones");
  greet(0);
  key(0, C10D_SET, "/n", " 9223372036854775807x", 0);
  key(0, C10D_ADD, "/n", "", 1);
  key(0, C10D_ADD, "/n", "", -1);
  end("add-wraps");
}

static void cuts(void) {
  static const char split[] = "\x00\xce\xf7\x85\x3c\x0d"
                              "abcd\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/a";
  for (size_t i = 0; i < sizeof(split) - 1; i++) record(ARRIVES, &split[i], 1);
  end("byte-by-byte");
  greet(0);
  for (int i = 0; i < 5; i++) key(ANSWERED_LITTLE, C10D_GET, "/k", "", 0);
  end("answered-little");
  record(0, "GET / HTTP/1.1\r\n\r\n", 18);
  record(1, "\0\xce\xf7\x85\x3d", 5);
  record(2, "\x0c", 1);
  end("strangers");
}

void corpus_save_c10d(void) {
  dialect = C10D_2_1;
  every_op("ops-2.1");
  dialect = C10D_1_13;
  record(GOES, "", 0); /* whoever comes next has a companion, or the one after */
  record(GOES, "", 0);
  every_op("ops-1.13");
  dialect = C10D_SINCE_2_2;
  every_op("ops");
  waits();
  sessions();
  limits();
  cuts();
  buf_finish(&story);
}
