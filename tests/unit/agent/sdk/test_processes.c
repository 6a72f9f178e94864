/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv in a process that was forked, in one that called exec, in one that just exits, and in several threads. */

#include "tests/rig/sdk.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/rig/store.h"
#include "tests/rig/unit.h"

static struct player players[MAX_LOCAL];

static int result_of(pid_t pid) {
  int status;
  if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* A fork ----------------------------------------------------------------------------------------------------------- */

static bool is_refused(const struct rdzv *r, int rc, pid_t parent, const char *what) {
  char sentence[200];
  snprintf(sentence, sizeof(sentence),
           "%s: process %d was forked from process %d, which has this context; call rdzv_init in the new one", what,
           (int)getpid(), (int)parent);
  if (rc == -EINVAL && strcmp(rdzv_error(r), sentence) == 0) return true;
  fprintf(stderr, "%s: %d: %s\n", what, rc, rdzv_error(r));
  return false;
}

static int call_all(struct rdzv *r, pid_t parent) {
  int n;
  char ids[RDZV_NCCL_ID_SIZE];
  if (!is_refused(r, rdzv_progress(r, 1000, 1000, 0, 0), parent, "progress")) return 1;
  if (!is_refused(r, rdzv_saved(r, 1000), parent, "saved")) return 2;
  if (!is_refused(r, rdzv_saving(r, true), parent, "saving")) return 2;
  if (!is_refused(r, rdzv_resumed(r, 1000), parent, "resumed")) return 2;
  if (!is_refused(r, rdzv_store_barrier(r, "a", 1, 1000), parent, "store barrier \"a\"")) return 3;
  if (!is_refused(r, rdzv_store_set(r, "k", "v", 1, 1000), parent, "store set \"k\"")) return 4;
  if (!is_refused(r, rdzv_can_checkpoint(r), parent, "can checkpoint")) return 5;
  if (!is_refused(r, rdzv_checkpointed(r, 3), parent, "checkpointed")) return 6;
  if (!is_refused(r, rdzv_rejoin(r, NULL, 1000), parent, "rejoin")) return 7;
  if (!is_refused(r, rdzv_nccl_ids(r, ids, sizeof(ids), &n, NULL, 1000), parent, "nccl ids")) return 8;
  if (!is_refused(r, rdzv_nccl_up(r), parent, "nccl up")) return 9;
  if (!is_refused(r, rdzv_done(r), parent, "done")) return 10;
  if (rdzv_requested(r) != (RDZV_STOP | RDZV_LOST)) return 11;
  return rdzv_rank(r) == 0 ? 0 : 12;
}

/* The parent's context, then one of its own, in the same rank. */
static int child(struct rdzv *r, pid_t parent) {
  struct rdzv *own;
  int rc = call_all(r, parent);
  rdzv_finish(r);
  if (rc) return rc;
  if (rdzv_init(&own, PATIENCE_MS)) return 20;
  if (rdzv_rank(own) != 0 || rdzv_store_set(own, "child", "was here", 8, PATIENCE_MS)) return 21;
  rdzv_finish(own);
  return 0;
}

static struct {
  struct rdzv *r;
  atomic_bool over;
} reporter;

static void *report(void *arg) {
  for (uint64_t i = 1; !reporter.over; i++) rdzv_progress(reporter.r, i, 0, 0, 0);
  return NULL;
}

/* A thread of the parent may hold the lock at the moment of the fork. */
static int part_fork(struct rdzv *r) {
  pthread_t thread;
  char *value = NULL;
  int rc = rdzv_can_rejoin(r);
  if (!rc) rc = rdzv_store_set(r, "before", "", 0, PATIENCE_MS);
  reporter.r = r;
  reporter.over = false;
  if (rc || pthread_create(&thread, NULL, report, NULL)) return 100;
  for (int i = 0; i < 20 && !rc; i++) {
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) _exit(child(r, parent));
    rc = result_of(pid);
  }
  reporter.over = true;
  pthread_join(thread, NULL);
  if (rc) return rc;
  if (rdzv_store_get(r, "child", &value, NULL, PATIENCE_MS) || strcmp(value, "was here") != 0) return 101;
  free(value);
  return rdzv_progress(r, 7, 7, 0, 0) || rdzv_barrier(r, "b", 0) || rdzv_done(r);
}

UNIT_TEST(test_a_forked_process) {
  struct sdk_rig d;
  sdk_rig_open_store(&d, 1, 1, store_thread_start());
  drive(&d, players, 1, part_fork, NULL);
  if (players[0].result) fail_msg("%d: %s", players[0].result, players[0].text);
  assert_int_equal(d.hellos, 21);
  assert_int_equal(d.dones, 1);
  assert_int_equal(d.troubles, 0);
  assert_int_equal(d.progress[0].step, 7);
  sdk_rig_close(&d);
  store_thread_stop();
}

/* Without an agent both have a world of one. */
UNIT_TEST(test_a_fork_without_an_agent) {
  struct rdzv *r;
  assert_int_equal(rdzv_init(&r, 0), 0);
  pid_t pid = fork();
  if (pid == 0) {
    int rc = rdzv_store_set(r, "k", "v", 1, 0) || rdzv_barrier(r, "b", 0) || rdzv_progress(r, 1, 1, 0, 0) ||
             rdzv_requested(r);
    rdzv_finish(r);
    _exit(rc);
  }
  assert_int_equal(result_of(pid), 0);
  assert_int_equal(rdzv_store_try_get(r, "k", &(char *){NULL}, NULL, 0), -ENOENT);
  rdzv_finish(r);
}

/* An exit, an exec ------------------------------------------------------------------------------------------------- */

/* Drives the agent until the process is over. */
static int watch(struct sdk_rig *d, pid_t pid) {
  int status = 0;
  assert_true(pid > 0);
  while (waitpid(pid, &status, WNOHANG) == 0) pump(d, 5);
  settle(d);
  return status;
}

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* The first, with an odd step, is sent, and the second is held back. Where this process did not run between the two, both
 * may be sent, and it makes two more. */
static int report_twice_at_once(struct rdzv *r) {
  enum { AT_ONCE_MS = 10, LATER_MS = 100 }; /* librdzv sends one report in 20 ms */
  for (uint64_t step = 1;; step += 2) {
    uint64_t from = now_ms();
    if (rdzv_progress(r, step, 0, 0, 0) || rdzv_progress(r, step + 1, 0, 0, 0)) return 1;
    if (now_ms() - from < AT_ONCE_MS) return 0;
    poll(NULL, 0, LATER_MS);
  }
}

static int begin_everything(struct rdzv **r) {
  if (rdzv_init(r, PATIENCE_MS) || rdzv_can_checkpoint(*r) || rdzv_can_rejoin(*r)) return 1;
  return report_twice_at_once(*r);
}

/* The agent learns that nobody answers there any more; the second report was held back. */
UNIT_TEST(test_exit_without_done) {
  struct sdk_rig d;
  sdk_rig_open(&d, 1, 2);
  pid_t pid = fork();
  if (pid == 0) {
    struct rdzv *r;
    _exit(begin_everything(&r));
  }
  assert_int_equal(watch(&d, pid), 0);
  assert_int_equal(d.hellos, 1);
  assert_int_equal(d.dones, 0);
  assert_int_equal(d.can, 1);
  assert_int_equal(d.cannot, 1);
  assert_int_equal(d.can_rejoin, 1);
  assert_int_equal(d.cannot_rejoin, 1);
  assert_int_equal(d.progress[0].step % 2, 1);
  assert_int_equal(d.troubles, 0);
  sdk_rig_close(&d);
}

#define AFTER_EXEC "after-exec"

/* No descriptor of the library but those of 0 to 2. */
static int after_exec(void) {
  struct rdzv *r;
  for (int fd = 3; fd < 64; fd++) {
    char link[64], to[256] = "";
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    if (readlink(link, to, sizeof(to) - 1) > 0 && strncmp(to, "socket:", 7) == 0) return 50;
  }
  if (rdzv_init(&r, PATIENCE_MS)) return 51;
  int rc = rdzv_requested(r) || rdzv_done(r) ? 52 : 0;
  rdzv_finish(r);
  return rc;
}

UNIT_TEST(test_exec) {
  struct sdk_rig d;
  sdk_rig_open(&d, 1, 2);
  pid_t pid = fork();
  if (pid == 0) {
    struct rdzv *r;
    for (int fd = 3; fd < 64; fd++) close(fd); /* the rig's own */
    if (begin_everything(&r) == 0) execl("/proc/self/exe", "test", AFTER_EXEC, (char *)NULL);
    _exit(40);
  }
  assert_int_equal(watch(&d, pid), 0);
  assert_int_equal(d.hellos, 2);
  assert_int_equal(d.dones, 1);
  assert_int_equal(d.cannot, 1);
  assert_int_equal(d.cannot_rejoin, 1);
  assert_int_equal(d.troubles, 0);
  sdk_rig_close(&d);
}

/* Threads ---------------------------------------------------------------------------------------------------------- */

enum { REPORTERS = 4, REPORTS = 20000 };

static void *report_some(void *arg) {
  for (uint64_t i = 1; i <= REPORTS; i++)
    if (rdzv_progress(arg, i, 0, 0, 0) || (i % 1000 == 0 && rdzv_saved(arg, i))) return arg;
  return NULL;
}

static int part_threads(struct rdzv *r) {
  pthread_t threads[REPORTERS];
  void *failed;
  int all[2], rc = 0;
  for (int i = 0; i < REPORTERS; i++)
    if (pthread_create(&threads[i], NULL, report_some, r)) return 1;
  for (int i = 0; i < 200 && !rc; i++) {
    rc = rdzv_exchange(r, "x", &i, sizeof(i), all, sizeof(all), PATIENCE_MS);
    if (!rc && (all[0] != i || all[1] != i || rdzv_requested(r))) rc = 2;
  }
  for (int i = 0; i < REPORTERS; i++)
    if (pthread_join(threads[i], &failed) || failed) rc = 3;
  return rc ? rc : rdzv_done(r);
}

UNIT_TEST(test_reports_of_several_threads) {
  struct sdk_rig d;
  sdk_rig_open_store(&d, 2, 2, store_thread_start());
  drive(&d, players, 2, part_threads, NULL);
  for (uint32_t i = 0; i < 2; i++) {
    if (players[i].result) fail_msg("%u: %d: %s", i, players[i].result, players[i].text);
    assert_int_equal(d.progress[i].step, REPORTS); /* the last report of the last thread */
  }
  assert_int_equal(d.troubles, 0);
  sdk_rig_close(&d);
  store_thread_stop();
}

/* The sentence of one thread is not another's. */
static void *fail_elsewhere(void *arg) {
  return rdzv_store_try_get(arg, "other", &(char *){NULL}, NULL, 0) == -ENOENT && strstr(rdzv_error(arg), "\"other\"")
             ? NULL
             : arg;
}

UNIT_TEST(test_sentences_of_threads) {
  struct rdzv *r, *second;
  pthread_t thread;
  void *failed;
  assert_int_equal(rdzv_init(&r, 0), 0);
  assert_int_equal(rdzv_init(&second, 0), 0);
  assert_string_equal(rdzv_error(r), "");
  assert_int_equal(rdzv_store_try_get(r, "mine", &(char *){NULL}, NULL, 0), -ENOENT);
  pthread_create(&thread, NULL, fail_elsewhere, r);
  pthread_join(thread, &failed);
  assert_null(failed);
  assert_string_equal(rdzv_error(r), "store get \"mine\": it does not exist");
  assert_string_equal(rdzv_error(second), "");
  rdzv_finish(second);
  rdzv_finish(r);
}

int main(int argc, char **argv) {
  alarm(100);
  if (argc > 1 && strcmp(argv[1], AFTER_EXEC) == 0) return after_exec();
  return unit_run(NULL, NULL);
}
