/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv: what a worker sees, with an agent, without one, and when the agent goes. */

#include "tests/rig/sdk.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/buf.h"
#include "tests/rig/unit.h"

/* ----------------------------------------------------------------- alone */

UNIT_TEST(test_alone) {
  struct rdzv *r;
  unsetenv("RDZV_AGENT_SOCKET");
  assert_int_equal(rdzv_init(&r, 0), 0);
  assert_true(rdzv_alone(r));
  assert_string_equal(rdzv_version(), RDZV_VERSION);
  assert_int_equal(rdzv_rank(r), 0);
  assert_int_equal(rdzv_world_size(r), 1);
  assert_int_equal(rdzv_local_world_size(r), 1);
  assert_int_equal(rdzv_node_count(r), 1);
  assert_int_equal(rdzv_round(r), 0);
  assert_string_equal(rdzv_run_id(r), "");
  assert_string_equal(rdzv_head_addr(r), "127.0.0.1");
  assert_int_equal(rdzv_progress(r, 1, 2, 0.5, 10), 0);
  assert_int_equal(rdzv_can_checkpoint(r), 0);
  assert_int_equal(rdzv_requested(r), 0);
  assert_int_equal(rdzv_checkpointed(r, 1), 0);
  int mine = 42, all = 0;
  for (int i = 0; i < 3; i++) { /* a name may be used again */
    assert_int_equal(rdzv_exchange(r, "name", &mine, sizeof(mine), &all, sizeof(all), 0), 0);
    assert_int_equal(all, 42);
    assert_int_equal(rdzv_barrier(r, "name", 0), 0);
  }
  assert_int_equal(rdzv_done(r), 0);
  rdzv_finish(r);
  rdzv_finish(NULL);
}

static void check_init(int code, const char *sentence) {
  struct rdzv *r = NULL;
  assert_int_equal(rdzv_init(&r, 50), code);
  assert_null(r);
  if (!strstr(rdzv_error(NULL), sentence)) fail_msg("\"%s\" does not say \"%s\"", rdzv_error(NULL), sentence);
}

UNIT_TEST(test_no_agent) {
  setenv("RDZV_ROUND", "4", 1);
  setenv("RDZV_LOCAL_RANK", "0", 1);
  setenv("RDZV_AGENT_SOCKET", "@rdzv-nobody-is-here", 1);
  check_init(-ECONNREFUSED, "no agent answers at RDZV_AGENT_SOCKET=@rdzv-nobody-is-here");
  setenv("RDZV_AGENT_SOCKET", "/no/such/socket", 1);
  check_init(-ENOENT, "/no/such/socket");
  char name[300];
  memset(name, 'x', sizeof(name));
  name[299] = '\0';
  setenv("RDZV_AGENT_SOCKET", name, 1);
  check_init(-EINVAL, "a path or @name");
  unsetenv("RDZV_AGENT_SOCKET");
}

UNIT_TEST(test_bad_environment) {
  struct sdk_rig d;
  sdk_rig_open(&d, 1, 2);
  unsetenv("RDZV_ROUND");
  check_init(-EINVAL, "RDZV_ROUND is not");
  const char *const bad[] = {"", "x", "-1", "4x", "99999999999", " 4"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    setenv("RDZV_ROUND", bad[i], 1);
    check_init(-EINVAL, "which is not a number");
  }
  setenv("RDZV_ROUND", "4", 1);
  check_init(-ETIMEDOUT, "did not answer"); /* nobody pumps */
  sdk_rig_close(&d);
}

/* ------------------------------------------------------------- who am I */

static int part_who_am_i(struct rdzv *r) {
  return rdzv_rank(r) == 1 + rdzv_local_rank(r) && rdzv_world_size(r) == 7 && rdzv_local_world_size(r) == 3 &&
         rdzv_node_rank(r) == 1 && rdzv_node_count(r) == 2 && rdzv_round(r) == ROUND && rdzv_restart_count(r) == 3 &&
         !strcmp(rdzv_run_id(r), "job") && !strcmp(rdzv_incarnation(r), "0123") &&
         !strcmp(rdzv_head_addr(r), "127.0.0.1") && !strcmp(rdzv_node_addr(r), "127.0.0.2") && !rdzv_alone(r);
}

UNIT_TEST(test_who_am_i) {
  struct sdk_rig d;
  struct player p[3];
  sdk_rig_open(&d, 3, 7);
  drive(&d, p, 3, part_who_am_i, NULL);
  for (int i = 0; i < 3; i++) assert_int_equal(p[i].result, 1);
  assert_int_equal(d.hellos, 3);
  assert_int_equal(d.troubles, 0);
  sdk_rig_close(&d);
}

static int part_nothing(struct rdzv *r) {
  return 0;
}

static void check_refused(struct sdk_rig *d, int code, const char *sentence) {
  struct player p;
  drive(d, &p, 1, part_nothing, NULL);
  if (!strstr(p.text, sentence)) fail_msg("\"%s\" does not say \"%s\"", p.text, sentence);
  assert_int_equal(p.result, code);
}

UNIT_TEST(test_other_rounds_are_refused) {
  struct sdk_rig d;
  sdk_rig_open(&d, 1, 2);
  setenv("RDZV_ROUND", "3", 1);
  check_refused(&d, -ESTALE, "round 3 is over");
  assert_non_null(strstr(d.trouble, "round 3 is over, it was refused"));
  setenv("RDZV_ROUND", "5", 1);
  check_refused(&d, -ESTALE, "round 5 has not begun");
  setenv("RDZV_ROUND", "4", 1);
  sdk_server_close_round(d.s);
  check_refused(&d, -ESTALE, "round 4 is over");
  sdk_rig_close(&d);
}

UNIT_TEST(test_unknown_local_rank) {
  struct sdk_rig d;
  struct player p[2];
  sdk_rig_open(&d, 1, 2);
  drive(&d, p, 2, part_nothing, NULL);
  assert_int_equal(p[0].result, 0);
  assert_int_equal(p[1].result, -EPROTO);
  assert_non_null(strstr(p[1].text, "local rank 1, but there are 1 workers"));
  sdk_rig_close(&d);
}

/* ------------------------------------------------- progress and requests */

static int part_progress(struct rdzv *r) {
  for (uint64_t step = 41; step <= 50000; step++)
    if (rdzv_progress(r, step, 0, (double)NAN, (double)rdzv_local_rank(r))) return -1;
  return rdzv_done(r);
}

UNIT_TEST(test_progress) {
  struct sdk_rig d;
  struct player p[2];
  sdk_rig_open(&d, 2, 7);
  drive(&d, p, 2, part_progress, NULL);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(p[i].result, 0);
    assert_int_equal(d.progress[i].step, 50000); /* the last one always arrives */
    assert_int_equal(d.resumed_step[i], 40);     /* as the first one tells, whatever is read of them */
    assert_true(isnan(d.progress[i].loss));
    assert_true(d.progress[i].samples_per_second == (double)i);
  }
  assert_true(d.progresses < 1000); /* sampled on the way */
  assert_int_equal(d.dones, 2);
  sdk_rig_close(&d);
}

static int part_until_asked(struct rdzv *r) {
  unsigned bits;
  rdzv_can_checkpoint(r); /* else the round is over already, which is what the first look tells */
  while (!((bits = rdzv_requested(r)) & RDZV_STOP)) poll(NULL, 0, 1);
  return (int)bits;
}

static void ask_checkpoint_and_stop(struct sdk_rig *d) {
  if (d->hellos == 2) sdk_server_request(d->s, NULL, 0, 1);
  if (d->hellos == 2) sdk_server_request(d->s, NULL, RDZV_STOP, 1);
}

UNIT_TEST(test_requests) {
  struct sdk_rig d;
  struct player p[2];
  sdk_rig_open(&d, 2, 7);
  drive(&d, p, 2, part_until_asked, ask_checkpoint_and_stop);
  for (int i = 0; i < 2; i++) assert_int_equal(p[i].result, RDZV_CHECKPOINT | RDZV_STOP);
  drive(&d, p, 1, part_until_asked, NULL); /* who comes later is told in WELCOME */
  assert_int_equal(p[0].result, RDZV_CHECKPOINT | RDZV_STOP);
  sdk_rig_close(&d);
}

static int part_lost_agent(struct rdzv *r) {
  if (part_until_asked(r) != (RDZV_STOP | RDZV_LOST)) return 1;
  if (rdzv_progress(r, 1, 1, 0, 0) != -ESTALE) return 2;
  if (rdzv_store_set(r, "k", "v", 1, 1000) != -ESTALE) return 3;
  if (rdzv_barrier(r, "b", 1000) != -ESTALE) return 4;
  return rdzv_done(r);
}

static void end_when_here(struct sdk_rig *d) {
  if (d->hellos == 1) sdk_server_close_round(d->s);
}

UNIT_TEST(test_a_closed_round_reads_as_stop) {
  struct sdk_rig d;
  struct player p;
  sdk_rig_open(&d, 1, 7);
  drive(&d, &p, 1, part_lost_agent, end_when_here);
  assert_int_equal(p.result, -ESTALE);
  assert_string_equal(p.text, "done: round 4 is over");
  sdk_rig_close(&d);
}

/* ----------------------------------------------------------- a bad agent */

struct lie {
  int listener;
  const void *answers[3];
  size_t sizes[3]; /* sent after HELLO, one after the other; then it closes, or */
  bool stays;      /* until the worker goes */
};

static void *play_liar(void *arg) {
  const struct lie *l = arg;
  struct sdk_hello hello;
  int fd = accept(l->listener, NULL, NULL);
  if (recv(fd, &hello, sizeof(hello), 0) < 0) return NULL;
  for (int i = 0; i < 3 && l->sizes[i]; i++) send(fd, l->answers[i], l->sizes[i], MSG_NOSIGNAL);
  if (l->stays && recv(fd, &hello, sizeof(hello), 0) > 0) return NULL;
  close(fd);
  return NULL;
}

/* Connects to an agent that says these things: the code of rdzv_init, or else of what comes after it. */
static int ask_liar(struct lie l, char text[512]) {
  char name[64];
  pthread_t thread;
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  int n = snprintf(name, sizeof(name), "@rdzv-liar-%d", (int)getpid());
  memcpy(addr.sun_path + 1, name + 1, (size_t)n - 1);
  l.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_int_equal(
      bind(l.listener, (struct sockaddr *)&addr, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)n)), 0);
  assert_int_equal(listen(l.listener, 1), 0);
  setenv("RDZV_AGENT_SOCKET", name, 1);
  setenv("RDZV_ROUND", "4", 1);
  setenv("RDZV_LOCAL_RANK", "0", 1);
  pthread_create(&thread, NULL, play_liar, &l);
  struct rdzv *r = NULL;
  int rc = rdzv_init(&r, PATIENCE_MS);
  while (rc == 0 && !l.stays && !(rdzv_requested(r) & RDZV_STOP)) poll(NULL, 0, 1); /* until it is gone */
  if (rc == 0) rc = rdzv_barrier(r, "b", PATIENCE_MS);
  snprintf(text, 512, "%s", rdzv_error(r));
  rdzv_finish(r);
  pthread_join(thread, NULL);
  close(l.listener);
  unsetenv("RDZV_AGENT_SOCKET");
  return rc;
}

static void check_lie(struct lie l, int code, const char *sentence) {
  char text[512];
  int rc = ask_liar(l, text);
  if (rc != code || !strstr(text, sentence)) fail_msg("%d \"%s\", expected %d \"%s\"", rc, text, code, sentence);
}

static struct sdk_head head(uint16_t type) {
  return (struct sdk_head){.magic = SDK_MAGIC, .version = SDK_VERSION, .type = type};
}

UNIT_TEST(test_damaged_welcome) {
  struct sdk_welcome w = {.head = head(SDK_WELCOME), .world_size = 2, .round = 4}, bad = w;
  check_lie((struct lie){0}, -EPIPE, "the agent is gone");
  check_lie((struct lie){.answers = {"x"}, .sizes = {1}}, -EPROTO,
            "RDZV_AGENT_SOCKET does not lead to an rdzv-agent: the answer is not of its protocol; start");
  check_lie((struct lie){.answers = {&w}, .sizes = {sizeof(w) - 4}}, -EPROTO, "different versions");
  bad = w;
  bad.rank = 2;
  check_lie((struct lie){.answers = {&bad}, .sizes = {sizeof(bad)}}, -EPROTO, "rank 2 of 2");
}

/* Whatever an agent of another version answers, the sentence names both versions: a WELCOME of any size, a refusal. */
UNIT_TEST(test_other_versions) {
  struct sdk_welcome w = {.head = head(SDK_WELCOME), .world_size = 2, .round = 4};
  struct sdk_refused f = {.head = head(SDK_REFUSED), .code = -EPROTO, .text = "in words of its time"};
  char sentence[300];
  for (int other = SDK_VERSION - 1; other <= SDK_VERSION + 1; other += 2) {
    w.head.version = f.head.version = (uint16_t)other;
    snprintf(sentence, sizeof(sentence),
             "hello to the agent: librdzv " RDZV_VERSION " speaks version %d of the workers' protocol, and this "
             "rdzv-agent version %d; use librdzv and rdzv-agent of one release",
             SDK_VERSION, other);
    check_lie((struct lie){.answers = {&w}, .sizes = {sizeof(w)}}, -EPROTO, sentence);
    check_lie((struct lie){.answers = {&w}, .sizes = {sizeof(w.head)}}, -EPROTO, sentence);
    check_lie((struct lie){.answers = {&f}, .sizes = {sizeof(f)}}, -EPROTO, sentence);
  }
}

UNIT_TEST(test_damage_after_welcome) {
  struct sdk_welcome w = {.head = head(SDK_WELCOME), .world_size = 2, .round = 4};
  struct sdk_refused f = {.head = head(SDK_REFUSED), .code = -ESTALE, .text = "round 4 is over"};
  struct sdk_request q = {.head = head(SDK_REQUEST), .checkpoint = 1};
  memset(w.run_id, 'x', sizeof(w.run_id)); /* no end: must not be read past */
  check_lie((struct lie){.answers = {&w, &q}, .sizes = {sizeof(w), sizeof(q)}}, -EPIPE, "the agent is gone");
  check_lie((struct lie){.answers = {&w, &f}, .sizes = {sizeof(w), sizeof(f)}}, -ESTALE,
            "barrier \"b\": round 4 is over");
  memset(f.text, 'x', sizeof(f.text));
  f.code = 7; /* no error at all */
  check_lie((struct lie){.answers = {&w, &q, &f}, .sizes = {sizeof(w), sizeof(q), sizeof(f)}}, -EPROTO, "xxxx");
  check_lie((struct lie){.answers = {&w, &f}, .sizes = {sizeof(w), sizeof(f) - 1}}, -EPIPE, "the agent is gone");
  q.head.magic = 0;
  check_lie((struct lie){.answers = {&w, &q}, .sizes = {sizeof(w), sizeof(q)}}, -EPROTO,
            "does not lead to an rdzv-agent");
  w.head_addr[0] = 'x'; /* no address, with a port */
  w.store_port = 1;
  check_lie((struct lie){.answers = {&w}, .sizes = {sizeof(w)}, .stays = true}, -EPROTO,
            "the agent reports that the store is at \"x\"");
}

/* ------------------------------------------------------------ the comment */

static char *read_file(const char *path) {
  struct buf b = BUF_INIT;
  FILE *f = fopen(path, "r");
  if (!f) fail_msg("%s: %s", path, strerror(errno));
  size_t n;
  while ((n = fread(buf_reserve(&b, 65536), 1, 65536, f)) > 0) buf_commit(&b, n);
  fclose(f);
  buf_puts(&b, "");
  return buf_steal(&b);
}

/* The worker in rdzv.h's comment is the program that is compiled. */
UNIT_TEST(test_comment_is_the_example) {
  char *header = read_file(SOURCE_ROOT "/agent/sdk/rdzv.h"), *example = read_file(SOURCE_ROOT "/agent/sdk/example.c"),
       *save = NULL;
  struct buf comment = BUF_INIT;
  for (char *line = strtok_r(example, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
    buf_printf(&comment, " *     %s\n", line);
  if (!strstr(header, buf_text(&comment))) fail_msg("rdzv.h does not show\n%s", comment.data);
  buf_finish(&comment);
  free(header);
  free(example);
}

int main(void) {
  alarm(100);
  return unit_run(NULL, NULL);
}
