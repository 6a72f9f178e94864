/* SPDX-License-Identifier: Apache-2.0 */
/* A guard that waits for another agent: which it takes, which it refuses, and what it keeps. The template is a program
 * that says that it is ready. XDG_RUNTIME_DIR is a folder of this test. */

#include "tests/rig/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/unit.h"
#include "agent/guard/likeness.h"
#include "common/kept/kept.h"
#include "common/mem.h"

enum { SOCKET_FD = 240 };

static char self_path[4096], folder[64];
static char *const command[] = {(char *)(uintptr_t) "python3", (char *)(uintptr_t) "train.py", NULL};

/* The template: it is ready, and stays until its guard is gone. */
_Noreturn static void play_template(void) {
  char packet[64];
  send(SOCKET_FD, "R1 test", 7, 0);
  while (recv(SOCKET_FD, packet, sizeof(packet), 0) > 0) {
  }
  _exit(0);
}

static char *const no_env[] = {NULL};

static void start_kept(char *const *argv) {
  const struct guard_kept_for kept_for = {argv, no_env};
  struct err e = ERR_INIT;
  if (guard_start(&g, NULL, NULL, 0, argv ? &kept_for : NULL, &e) || guard_await(&g, &e)) fail_msg("%s", e.text);
}

static struct guard_event start_template(const char *more, const char *word) {
  char *argv[] = {self_path, (char *)(uintptr_t) "train.py", (char *)(uintptr_t)word, NULL};
  const char *env[] = {"PATH=/usr/bin:/bin", more, NULL};
  const struct guard_plan plan = {
      .argv = (const char *const *)argv, .env = env, .own = 2, .zip = "PK", .zip_len = 2, .tty = {0, -1, -1}};
  assert_int_equal(guard_template(&g, &plan, NULL), 0);
  return expect(GUARD_TEMPLATE);
}

static void keep(pid_t template) {
  struct err e = ERR_INIT;
  if (guard_keep(&g, 60000, template, &e)) fail_msg("%s", e.text);
  guard_finish(&g, PATIENCE_MS);
}

/* Until n of them wait. */
static size_t await_kept(size_t n, struct kept_facts *all, size_t max) {
  size_t found;
  for (uint64_t deadline = now_ms() + PATIENCE_MS; (found = kept_list(all, max)) != n; poll(NULL, 0, 1))
    if (now_ms() > deadline) fail_msg("%zu templates stay, not %zu", found, n);
  return found;
}

static void await_end(pid_t pid) {
  for (uint64_t deadline = now_ms() + PATIENCE_MS; kill(pid, 0) == 0; poll(NULL, 0, 1)) {
    waitpid(pid, NULL, WNOHANG); /* orphans are this process's */
    if (now_ms() > deadline) fail_msg("process %d does not end", (int)pid);
  }
}

static int close_all(void **state) {
  struct kept_facts all[16], f;
  size_t n = kept_list(all, 16);
  for (size_t i = 0; i < n; i++) {
    int fd = kept_ask(all[i].pid, KEPT_END, NULL, -1, &f, NULL);
    if (fd >= 0) close(fd);
    await_end(all[i].pid);
  }
  return clean(state);
}

UNIT_TEST_WITH(test_it_is_taken_again_and_again, NULL, close_all) {
  start_kept(command);
  struct kept_facts all[4];
  pid_t guard = g.pid, template = start_template(NULL, "one").pid;
  for (int i = 0; i < 3; i++) {
    int out;
    keep(template);
    await_kept(1, all, 4);
    assert_int_equal(all[0].pid, guard);
    assert_int_equal(all[0].template, template);
    assert_string_equal(all[0].command, "python3 train.py");
    assert_in_range(all[0].left_ms, 50000, 60000);
    start_kept(command);
    assert_int_equal(g.pid, guard);
    assert_true(g.pid_fd >= 0);
    struct guard_event ev = start_template(NULL, "other words");
    assert_int_equal(ev.error, TEMPLATE_READY);
    assert_int_equal(ev.pid, template);
    spawn_shell(0, 1, "echo works", &out);
    expect(GUARD_STARTED);
    assert_int_equal(expect(GUARD_EXITED).status, 0);
    expect(GUARD_CLEAR);
    char *said = read_all(out);
    assert_string_equal(said, "works\n");
    free(said);
    assert_int_equal(kept_list(all, 4), 0);
  }
  guard_finish(&g, PATIENCE_MS);
  await_end(template);
}

UNIT_TEST_WITH(test_other_variables_make_another_template, NULL, close_all) {
  start_kept(command);
  struct kept_facts all[4];
  pid_t guard = g.pid, template = start_template(NULL, "one").pid;
  keep(template);
  await_kept(1, all, 4);
  start_kept(command);
  struct guard_event ev = start_template("MORE=1", "one");
  assert_int_equal(ev.error, TEMPLATE_AGAIN);
  ev = expect(GUARD_TEMPLATE);
  assert_int_equal(ev.error, TEMPLATE_READY);
  assert_true(g.pid == guard && ev.pid != template);
  guard_finish(&g, PATIENCE_MS);
}

/* What is not there is not kept, and another command is another guard's. */
UNIT_TEST_WITH(test_reasons_to_end, NULL, close_all) {
  struct kept_facts all[4];
  struct err e = ERR_INIT;
  start_kept(NULL); /* it was not asked to stay */
  assert_true(guard_keep(&g, 60000, 0, &e) < 0);
  guard_finish(&g, PATIENCE_MS);
  start_kept(command); /* it has no template */
  pid_t guard = g.pid;
  assert_int_equal(guard_keep(&g, 60000, 0, &e), 0);
  await_end(guard);
  start_kept(command); /* a worker runs */
  guard = g.pid;
  start_template(NULL, "one");
  spawn_shell(0, 1, "sleep 60", NULL);
  expect(GUARD_STARTED);
  assert_int_equal(guard_keep(&g, 60000, 0, &e), 0);
  await_end(guard);
  start_kept(command); /* its time is over */
  guard = g.pid;
  start_template(NULL, "one");
  assert_int_equal(guard_keep(&g, 1, 0, &e), 0);
  await_end(guard);
  assert_int_equal(kept_list(all, 4), 0);
}

/* A pipe that is open for workers can be no later agent's. */
UNIT_TEST_WITH(test_what_cannot_be_passed_on, NULL, close_all) {
  int p[2];
  struct err e = ERR_INIT;
  assert_int_equal(pipe(p), 0);
  assert_int_equal(guard_start(&g, NULL, NULL, 0, &(struct guard_kept_for){command, no_env}, &e), 0);
  assert_false(g.may_stay);
  assert_non_null(strstr(e.text, "is open, which no later start can have"));
  assert_int_equal(guard_await(&g, NULL), 0);
  guard_finish(&g, PATIENCE_MS);
  close(p[0]);
  close(p[1]);
}

static void expect_unlike(const char *what, const struct buf *before) {
  struct buf now = BUF_INIT;
  assert_int_equal(likeness_put(&(struct guard_kept_for){command, no_env}, &now, NULL), 0);
  if (strcmp(buf_text(before), buf_text(&now)) == 0) fail_msg("the likeness does not show %s", what);
  buf_finish(&now);
}

UNIT_TEST(test_likeness) {
  struct buf before = BUF_INIT, again = BUF_INIT;
  struct rlimit limit, lower;
  char here[4096];
  const struct guard_kept_for alike = {command, no_env};
  assert_int_equal(likeness_put(&alike, &before, NULL), 0);
  assert_int_equal(likeness_put(&alike, &again, NULL), 0);
  assert_string_equal(buf_text(&before), buf_text(&again));
  buf_finish(&again);
  mode_t mask = umask(0123);
  expect_unlike("the umask", &before);
  umask(mask);
  assert_int_equal(getrlimit(RLIMIT_CORE, &limit), 0);
  lower = limit;
  lower.rlim_cur = limit.rlim_cur ? 0 : limit.rlim_max ? 1 : 0;
  assert_int_equal(setrlimit(RLIMIT_CORE, &lower), 0);
  if (lower.rlim_cur != limit.rlim_cur) expect_unlike("a limit", &before);
  setrlimit(RLIMIT_CORE, &limit);
  assert_non_null(getcwd(here, sizeof(here)));
  assert_int_equal(chdir("/"), 0);
  expect_unlike("the folder", &before);
  assert_int_equal(chdir(here), 0);
  int file = open("/dev/zero", O_RDONLY);
  assert_int_equal(likeness_put(&alike, &again, NULL), -EBUSY);
  buf_clear(&again);
  close(file);
  assert_int_equal(likeness_put(&(struct guard_kept_for){(char *const[]){command[0], NULL}, no_env}, &again, NULL), 0);
  assert_string_not_equal(buf_text(&before), buf_text(&again));
  buf_clear(&again);
  char variable[] = "A=1", *env[] = {variable, NULL};
  assert_int_equal(likeness_put(&(struct guard_kept_for){command, env}, &again, NULL), 0);
  assert_string_not_equal(buf_text(&before), buf_text(&again));
  buf_finish(&again);
  buf_finish(&before);
}

/* Questions that no agent asks. It goes on to wait. */
UNIT_TEST_WITH(test_strange_questions, NULL, close_all) {
  start_kept(command);
  struct kept_facts all[4], f;
  static char long_text[2 * KEPT_TEXT_MAX];
  memset(long_text, 'x', sizeof(long_text) - 1);
  pid_t guard = g.pid;
  keep(start_template(NULL, "one").pid);
  await_kept(1, all, 4);
  const char *const texts[] = {"", "another likeness", long_text};
  for (int i = 0; i < 6; i++) /* a likeness without a descriptor, a wrong one with it */
    assert_true(kept_ask(guard, KEPT_TAKE, texts[i / 2], i % 2 ? STDIN_FILENO : -1, &f, NULL) < 0);
  assert_true(kept_ask(guard, (enum kept_question)'z', "", STDIN_FILENO, &f, NULL) < 0);
  struct sockaddr_un sa = {.sun_family = AF_UNIX};
  snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/rdzv-warm/%d", folder, (int)guard);
  int silent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(silent, (struct sockaddr *)&sa, sizeof(sa)), 0);
  await_kept(1, all, 4);
  close(silent);
  start_kept(command);
  assert_int_equal(g.pid, guard);
  guard_finish(&g, PATIENCE_MS);
}

/* A likeness is the peer's own word, so a confined process may know the right one. The kernel says that it is confined. */
UNIT_TEST_WITH(test_a_confined_process, NULL, close_all) {
  start_kept(command);
  struct kept_facts all[4], f;
  struct buf likeness = BUF_INIT;
  pid_t guard = g.pid;
  int status;
  keep(start_template(NULL, "one").pid);
  await_kept(1, all, 4);
  assert_int_equal(likeness_put(&(struct guard_kept_for){command, no_env}, &likeness, NULL), 0);
  pid_t confined = fork();
  if (confined == 0) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    _exit(kept_ask(guard, KEPT_TAKE, buf_text(&likeness), STDIN_FILENO, &f, NULL) < 0 ? 0 : 1);
  }
  assert_int_equal(waitpid(confined, &status, 0), confined);
  assert_int_equal(status, 0);
  int taken = kept_ask(guard, KEPT_TAKE, buf_text(&likeness), STDIN_FILENO, &f, NULL); /* the words were right */
  assert_true(taken >= 0);
  close(taken);
  await_end(guard);
  buf_finish(&likeness);
}

/* At most KEPT_MAX, and the oldest makes room. A name that a dead guard has left is removed. */
UNIT_TEST_WITH(test_how_many, NULL, close_all) {
  struct kept_facts all[16];
  pid_t first = 0;
  char word[2] = "a", path[128];
  char *const own[] = {command[0], word, NULL};
  for (int i = 0; i < KEPT_MAX + 1; i++, word[0]++) {
    start_kept(own);
    if (i == 0) first = g.pid;
    keep(start_template(NULL, "one").pid);
  }
  await_end(first);
  await_kept(KEPT_MAX, all, 16);
  kill(all[0].pid, SIGKILL);
  snprintf(path, sizeof(path), "%s/rdzv-warm/%d", folder, (int)all[0].pid);
  await_end(all[0].pid);
  await_kept(KEPT_MAX - 1, all, 16);
  assert_int_equal(access(path, F_OK), -1);
}

/* A folder that others can write to is not used. */
UNIT_TEST_WITH(test_a_folder_of_others, NULL, close_all) {
  char path[128];
  start_kept(command);
  struct err e = ERR_INIT;
  start_template(NULL, "one");
  snprintf(path, sizeof(path), "%s/rdzv-warm", folder);
  mkdir(path, 0700);
  assert_int_equal(chmod(path, 0777), 0);
  assert_int_equal(guard_keep(&g, 60000, 0, &e), -EPERM);
  assert_non_null(strstr(e.text, "only this user can write to"));
  assert_int_equal(chmod(path, 0700), 0);
  guard_finish(&g, PATIENCE_MS);
}

int main(void) {
  if (getenv("RDZV_TEMPLATE")) play_template();
  ssize_t n = readlink("/proc/self/exe", self_path, sizeof(self_path) - 1);
  if (n <= 0) return 1;
  alarm(110);
  snprintf(folder, sizeof(folder), "/tmp/rdzv-stay-XXXXXX");
  if (!mkdtemp(folder) || setenv("XDG_RUNTIME_DIR", folder, 1)) return 1;
  for (int fd = 3; fd < 256; fd++) close(fd); /* those of the test's runner */
  int rc = unit_run(NULL, NULL);
  char path[128];
  snprintf(path, sizeof(path), "%s/rdzv-warm", folder);
  rmdir(path);
  rmdir(folder);
  return rc;
}
