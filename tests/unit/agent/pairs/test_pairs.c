/* SPDX-License-Identifier: Apache-2.0 */
/* pairs: two agents on this machine's loopback, with strangers at the port and ends that vanish. */

#include "agent/pairs/pairs.h"

#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "tests/rig/unit.h"

enum { SERIAL = 7, LIMIT_MS = 3000, PATIENCE_MS = 20000 };

struct side {
  struct pairs *pairs;
  int n; /* answers */
  int64_t port, bytes;
  char secret[PAIR_SECRET_HEX + 1], text[REASON_MAX + 1], lacks[REASON_MAX + 1];
  struct paired last;
};

static uv_loop_t loop;

static void on_send(void *ctx, const struct msg *m) {
  struct side *s = ctx;
  assert_int_equal(m->type, MSG_PAIRED);
  assert_int_equal(m->paired.serial, SERIAL);
  s->n++;
  s->last = m->paired;
  if (m->paired.port) snprintf(s->secret, sizeof s->secret, "%s", m->paired.secret);
  if (m->paired.port) s->port = m->paired.port;
  snprintf(s->lacks, sizeof s->lacks, "%s", m->paired.lacks);
  snprintf(s->text, sizeof s->text, "%s", m->paired.text);
}

static void open_side(struct side *s) {
  *s = (struct side){.port = 0};
  s->pairs = pairs_create(&(struct pairs_options){.loop = &loop, .send = on_send, .ctx = s});
}

static void ask(struct side *s, int64_t port, const char *secret) {
  pairs_ask(s->pairs, &(struct pair_msg){.serial = SERIAL,
                                         .addr = "127.0.0.1",
                                         .port = port,
                                         .secret = secret,
                                         .bytes = 1 << 20,
                                         .limit_ms = LIMIT_MS});
}

/* Until the side has answered so often. */
static void await(struct side *s, int n) {
  uint64_t end_ms = monotonic_ms() + PATIENCE_MS;
  while (s->n < n && monotonic_ms() < end_ms) uv_run(&loop, UV_RUN_ONCE);
  assert_int_equal(s->n, n);
}

/* Nothing of an exchange is left: the loop ends by itself. */
static void close_all(struct side *a, struct side *b) {
  pairs_destroy(a->pairs);
  pairs_destroy(b->pairs);
  assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
  assert_int_equal(uv_loop_close(&loop), 0);
}

static void open_both(struct side *a, struct side *b) {
  assert_int_equal(uv_loop_init(&loop), 0);
  open_side(a);
  open_side(b);
  ask(a, 0, "");
  assert_int_equal(a->n, 1);
  assert_true(a->port > 0 && strlen(a->secret) == PAIR_SECRET_HEX);
}

UNIT_TEST(test_two_agents) {
  struct side a, b;
  open_both(&a, &b);
  ask(&b, a.port, a.secret);
  await(&b, 1);
  assert_string_equal(b.text, "");
  assert_true(b.last.bytes > 0 && b.last.out_us > 0 && b.last.in_us > 0 && b.last.rtt_us > 0);
  assert_int_equal(a.n, 1); /* the one that listens has nothing more to say */
  close_all(&a, &b);
}

/* Asked for an exchange over NCCL, the one that listens opens a port, and the one that connects says no. */
UNIT_TEST(test_no_gpu) {
  struct side a, b;
  char ids[2 * NCCL_ID_SIZE + 1];
  struct pair_msg over_nccl = {.serial = SERIAL,
                               .addr = "127.0.0.1",
                               .secret = "",
                               .ids = "",
                               .bytes = 1 << 20,
                               .limit_ms = LIMIT_MS,
                               .gpus = 1};
  assert_int_equal(uv_loop_init(&loop), 0);
  open_side(&a);
  open_side(&b);
  pairs_ask(a.pairs, &over_nccl);
  assert_int_equal(a.n, 1);
  assert_string_equal(a.lacks, "its agent knows no GPU of its workers");
  memset(ids, 'a', sizeof ids - 1);
  ids[sizeof ids - 1] = '\0';
  over_nccl.ids = ids;
  pairs_ask(b.pairs, &over_nccl);
  assert_int_equal(b.n, 1);
  assert_string_equal(b.lacks, "its agent knows no GPU of its workers");
  assert_int_equal(b.last.port, 0);
  ask(&b, a.port, a.secret);
  await(&b, 2);
  assert_true(b.last.bytes > 0);
  close_all(&a, &b);
}

/* A program in place of rdzv-nccl, which hangs. */
static char folder[] = "/tmp/rdzv-pairs-XXXXXX";
static char pid_file[64];

static int count_one_gpu(void *ctx, struct buf *why) {
  return 1;
}

static void on_last_word(void *ctx, const struct msg *m) {
  FILE *f = fopen(pid_file, "r");
  long pid = 0;
  assert_non_null(f);
  assert_int_equal(fscanf(f, "%ld", &pid), 1);
  fclose(f);
  assert_int_equal(kill((pid_t)pid, 0), -1);
  on_send(ctx, m);
}

/* The answer says that the GPUs are free, so it comes when no helper is there any more. */
UNIT_TEST(test_the_answer_follows_the_death_of_the_helper) {
  struct side a;
  char path[PATH_MAX], program[64];
  assert_non_null(mkdtemp(folder));
  snprintf(pid_file, sizeof pid_file, "%s/pid", folder);
  snprintf(program, sizeof program, "%s/rdzv-nccl", folder);
  snprintf(path, sizeof path, "%s:%s", folder, getenv("PATH"));
  assert_int_equal(setenv("PATH", path, 1), 0);
  FILE *f = fopen(program, "w");
  assert_non_null(f);
  fprintf(f, "#!/bin/sh\necho $$ >%s\nexec sleep 1000\n", pid_file);
  fclose(f);
  assert_int_equal(chmod(program, 0700), 0);
  assert_int_equal(uv_loop_init(&loop), 0);
  a = (struct side){.port = 0};
  a.pairs = pairs_create(
      &(struct pairs_options){.loop = &loop, .count_gpus = count_one_gpu, .send = on_last_word, .ctx = &a});
  pairs_ask(a.pairs, &(struct pair_msg){.serial = SERIAL,
                                        .addr = "127.0.0.1",
                                        .secret = "",
                                        .ids = "aa",
                                        .bytes = 1 << 20,
                                        .limit_ms = 1000,
                                        .gpus = 1});
  await(&a, 1);
  assert_string_equal(a.text, "nothing came over NCCL in 1.0 s");
  pairs_destroy(a.pairs);
  assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
  assert_int_equal(uv_loop_close(&loop), 0);
  assert_int_equal(unlink(program) | unlink(pid_file) | rmdir(folder), 0);
}

static int connect_stranger(int64_t port) {
  struct sockaddr_in to = {
      .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
  return fd;
}

/* Some are silent, some speak, and they are more than the port has room for. */
UNIT_TEST(test_strangers_do_not_disturb) {
  struct side a, b;
  int strangers[3 * PAIRS_PEERS_MAX];
  open_both(&a, &b);
  for (int i = 0; i < 3 * PAIRS_PEERS_MAX; i++) {
    strangers[i] = connect_stranger(a.port);
    if (i % 2) assert_int_equal(write(strangers[i], "SSH-2.0-OpenSSH_9.2p1 Debian\r\n", 30), 30);
    uv_run(&loop, UV_RUN_NOWAIT);
  }
  ask(&b, a.port, a.secret);
  await(&b, 1);
  assert_string_equal(b.text, "");
  assert_true(b.last.bytes > 0);
  for (int i = 0; i < 3 * PAIRS_PEERS_MAX; i++) close(strangers[i]);
  close_all(&a, &b);
}

UNIT_TEST(test_a_wrong_secret) {
  struct side a, b;
  open_both(&a, &b);
  char wrong[PAIR_SECRET_HEX + 1];
  memset(wrong, '0', PAIR_SECRET_HEX);
  wrong[PAIR_SECRET_HEX] = '\0';
  ask(&b, a.port, wrong);
  await(&b, 1);
  assert_non_null(strstr(b.text, "connection lost: "));
  ask(&b, a.port, a.secret); /* the port still waits for the right one */
  await(&b, 2);
  assert_string_equal(b.text, "");
  ask(&b, a.port, "12");
  assert_int_equal(b.n, 3);
  assert_string_equal(b.text, "the daemon's secret is not one");
  close_all(&a, &b);
}

UNIT_TEST(test_nobody_listens) {
  struct side a, b;
  open_both(&a, &b);
  pairs_stop(a.pairs);
  for (int i = 0; i < 10; i++) uv_run(&loop, UV_RUN_NOWAIT);
  ask(&b, a.port, a.secret);
  await(&b, 1);
  assert_string_equal(b.text, "no connection: connection refused");
  close_all(&a, &b);
}

/* It is there, and never says a word: the time is over. */
UNIT_TEST(test_a_silent_peer) {
  struct side a, b;
  open_both(&a, &b);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof at;
  assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
  assert_int_equal(listen(fd, 1), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
  ask(&b, ntohs(at.sin_port), a.secret);
  await(&b, 1);
  assert_string_equal(b.text, "next to nothing came in 3.0 s");
  close(fd);
  close_all(&a, &b);
}

/* The connection to the daemon is gone in the middle of an exchange, or the next one is asked for. */
UNIT_TEST(test_it_ends_in_the_middle) {
  struct side a, b;
  open_both(&a, &b);
  ask(&b, a.port, a.secret);
  uv_run(&loop, UV_RUN_ONCE);
  pairs_stop(a.pairs);
  await(&b, 1);
  assert_non_null(strstr(b.text, "connection lost: "));
  ask(&a, 0, "");
  ask(&b, a.port, a.secret);
  uv_run(&loop, UV_RUN_ONCE);
  ask(&b, 0, ""); /* it listens instead, and says nothing of the other one */
  assert_int_equal(b.n, 2);
  assert_true(b.last.port > 0);
  close_all(&a, &b);
}
