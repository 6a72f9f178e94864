/* SPDX-License-Identifier: Apache-2.0 */
/* The guard: starting workers, what they inherit, where they run. Workers are shell lines, or this program again
 * (argv[1] says which part it plays). */

#include "tests/rig/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/rig/unit.h"
#include "common/buf.h"
#include "common/mem.h"

static char self_path[4096];

/* ----------------------------------------------------------------- exec */

GUARD_TEST(test_exit_status) {
  int out;
  spawn_shell(0, 1, "echo out; echo err >&2; echo $MARK; exit 7", &out);
  struct guard_event ev = expect(GUARD_STARTED);
  assert_true(ev.pid > 0);
  ev = expect(GUARD_EXITED);
  assert_int_equal(ev.round, 7);
  assert_true(WIFEXITED(ev.status) && WEXITSTATUS(ev.status) == 7);
  ev = expect(GUARD_CLEAR);
  assert_int_equal(ev.round, 7);
  assert_int_equal(ev.killed, 0);
  char *text = read_all(out);
  assert_string_equal(text, "out\nerr\nyes\n");
  free(text);
}

static void expect_exec_failure(const char *program, int code, const char *sentence) {
  start();
  spawn_env(3, 1, (const char *const[]){program, NULL}, plain_env, NULL);
  struct guard_event ev = expect(GUARD_EXEC_FAILED);
  assert_int_equal(ev.local_rank, 3);
  assert_int_equal(WEXITSTATUS(ev.status), code);
  if (!strstr(ev.text, sentence)) fail_msg("\"%s\" does not say \"%s\"", ev.text, sentence);
  expect(GUARD_CLEAR);
  finish();
}

UNIT_TEST_WITH(test_exec_failures, NULL, clean) {
  char script[] = "/tmp/rdzv-test-XXXXXX";
  int fd = mkstemp(script);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, "#!/no/such/interpreter\n", 23), 23);
  close(fd);
  expect_exec_failure("no-such-program-here", 127, "not found in PATH");
  expect_exec_failure("/no/such/program", 127, "No such file");
  expect_exec_failure(script, 126, "Permission denied");
  expect_exec_failure("/tmp", 126, "Permission denied");
  chmod(script, 0700);
  expect_exec_failure(script, 127, "interpreter");
  unlink(script);
}

GUARD_TEST(test_path_of_the_given_environment) {
  spawn_env(0, 1, (const char *const[]){"sh", "-c", "exit 0", NULL}, (const char *const[]){"PATH=/nowhere", NULL},
            NULL);
  expect(GUARD_EXEC_FAILED);
  expect(GUARD_CLEAR);
}

/* A megabyte in 16 variables arrives whole. */
UNIT_TEST_WITH(test_large_environment, NULL, clean) {
  enum { N = 16, SIZE = 65536 };
  char *env[N + 2];
  env[0] = xstrdup("PATH=/usr/bin:/bin");
  for (int i = 1; i <= N; i++) {
    env[i] = xmalloc(SIZE);
    memset(env[i], 'x', SIZE);
    env[i][0] = (char)('A' + i);
    env[i][1] = '=';
    env[i][SIZE - 1] = '\0';
  }
  env[N + 1] = NULL;
  start();
  int out;
  spawn_env(0, 1, (const char *const[]){"sh", "-c", "echo ${#B} ${#Q}", NULL}, (const char *const *)(void *)env, &out);
  char *text = read_all(out);
  assert_string_equal(text, "65533 65533\n");
  free(text);
  await(GUARD_CLEAR);
  env[0] = xrealloc(env[0], GUARD_SPAWN_MAX + 1);
  memset(env[0], 'y', GUARD_SPAWN_MAX);
  env[0][GUARD_SPAWN_MAX] = '\0';
  struct err e = ERR_INIT;
  struct guard_spawn s = {
      .round = 7, .count = 1, .argv = plain_env, .env = (const char *const *)(void *)env, .out = 1, .err = 2};
  assert_int_equal(guard_spawn(&g, &s, &e), -E2BIG);
  finish();
  for (int i = 0; i <= N; i++) free(env[i]);
}

GUARD_TEST(test_spawn_time) {
  struct timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (uint32_t i = 0; i < 4; i++) spawn_env(i, 4, (const char *const[]){"/bin/true", NULL}, plain_env, NULL);
  await(GUARD_CLEAR);
  clock_gettime(CLOCK_MONOTONIC, &b);
  char path[64], line[256];
  snprintf(path, sizeof(path), "/proc/%d/status", (int)g.pid);
  FILE *f = fopen(path, "r");
  while (fgets(line, sizeof(line), f))
    if (strncmp(line, "VmRSS", 5) == 0 || strncmp(line, "RssAnon", 7) == 0) print_message("guard %s", line);
  fclose(f);
  print_message("4 x /bin/true, spawned and clear: %.2f ms\n",
                (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6);
}

/* ------------------------------------------------------ what is inherited */

static void on_signal(int signo) {}

UNIT_TEST_WITH(test_signals_are_reset, NULL, guard_teardown) {
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, &before);
  void (*pipe_before)(int) = signal(SIGPIPE, SIG_IGN);
  void (*usr_before)(int) = signal(SIGUSR2, on_signal);
  signal(SIGHUP, SIG_IGN);
  start();
  sigset_t now;
  sigprocmask(SIG_SETMASK, NULL, &now);
  assert_true(sigismember(&now, SIGUSR1) && !sigismember(&now, SIGINT)); /* ours is as it was */
  sigprocmask(SIG_SETMASK, &before, NULL);
  signal(SIGPIPE, pipe_before);
  signal(SIGUSR2, usr_before);
  signal(SIGHUP, SIG_DFL);
  int out;
  spawn_env(0, 1, (const char *const[]){"cat", "/proc/self/status", NULL}, plain_env, &out);
  char *text = read_all(out);
  assert_non_null(strstr(text, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000000\n"));
  free(text);
  await(GUARD_CLEAR);
}

/* The numbers of open descriptors that exec leaves open, in order, as text. */
static char *inherited_fds(void) {
  struct buf b = BUF_INIT;
  for (int fd = 0; fd < 1024; fd++) {
    int flags = fcntl(fd, F_GETFD);
    if (flags >= 0 && !(flags & FD_CLOEXEC)) buf_printf(&b, "%d ", fd);
  }
  buf_puts(&b, "");
  return buf_steal(&b);
}

/* Workers see what this process had open before guard_start, and nothing of ours. */
UNIT_TEST_WITH(test_descriptors, NULL, guard_teardown) {
  int kept = open("/dev/null", O_RDONLY);
  char *expected = inherited_fds();
  start();
  int later = open("/dev/null", O_RDONLY), out;
  spawn_env(0, 2, (const char *const[]){"sleep", "60", NULL}, plain_env, NULL); /* a second one, to leak from */
  spawn_env(1, 2, (const char *const[]){self_path, "fds", NULL}, plain_env, &out);
  char *text = read_all(out);
  assert_string_equal(text, expected);
  free(text);
  free(expected);
  stop(0);
  await(GUARD_CLEAR);
  close(kept);
  close(later);
}

GUARD_TEST(test_session) {
  int out, group = 0, session = 0;
  spawn_env(0, 1, (const char *const[]){"cat", "/proc/self/stat", NULL}, plain_env, &out);
  char *text = read_all(out);
  pid_t pid = expect(GUARD_STARTED).pid;
  assert_int_equal(sscanf(text, "%*d (cat) R %*d %d %d", &group, &session), 2);
  assert_int_equal(group, pid);
  assert_int_equal(session, pid);
  free(text);
  await(GUARD_CLEAR);
}

/* A worker runs on the CPUs that it was given; where they cannot be had it runs all the same, and that is told. */
GUARD_TEST(test_cpus) {
  cpu_set_t own, one, none;
  char list[32], line[32];
  assert_int_equal(sched_getaffinity(0, sizeof(own), &own), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &own)) last--;
  CPU_ZERO(&one);
  CPU_ZERO(&none);
  CPU_SET(last, &one);
  snprintf(list, sizeof(list), "%d", last);
  for (int i = 0; i < 2; i++) {
    int p[2];
    assert_int_equal(pipe2(p, O_CLOEXEC), 0);
    struct guard_spawn s = {.round = 7,
                            .count = 2,
                            .local_rank = (uint32_t)i,
                            .env = plain_env,
                            .out = p[1],
                            .err = p[1],
                            .argv = (const char *const[]){"sh", "-c", "grep Cpus_allowed_list /proc/self/status", NULL},
                            .cpus = i ? &none : &one,
                            .cpus_size = sizeof(one)};
    assert_int_equal(guard_spawn(&g, &s, NULL), 0);
    close(p[1]);
    if (i) assert_int_equal(expect(GUARD_UNBOUND).error, EINVAL);
    await(GUARD_STARTED);
    read_line(p[0], line, sizeof(line));
    if (i == 0) assert_string_equal(strchr(line, '\t') + 1, list);
    assert_int_equal(await(GUARD_EXITED).status, 0);
    close(p[0]);
  }
  await(GUARD_CLEAR);
}

/* ps shows the guard under its own name, its agent as before. */
UNIT_TEST_WITH(test_has_a_name_of_its_own, NULL, clean) {
  char words[] = "/usr/bin/rdzv-agent\0--nproc\0two", want[64], path[64];
  char *argv[] = {words, words + 20, words + 28, NULL};
  char before[sizeof(words)];
  memcpy(before, words, sizeof(words));
  assert_int_equal(guard_start(&g, &(struct copy_words){3, argv}, NULL, 0, NULL, NULL), 0);
  assert_int_equal(guard_await(&g, NULL), 0);
  assert_memory_equal(words, before, sizeof(words));
  snprintf(path, sizeof(path), "/proc/%d/mem", (int)g.pid);
  snprintf(want, sizeof(want), "rdzv-guard of %d", (int)getpid());
  char now[sizeof(words)] = "";
  for (uint64_t deadline = now_ms() + PATIENCE_MS; strcmp(now, want) != 0; poll(NULL, 0, 1)) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, now, sizeof(now), (off_t)(uintptr_t)words), sizeof(now));
    close(fd);
    if (now_ms() > deadline) fail_msg("it is called %s", now);
  }
  for (size_t i = strlen(want); i < sizeof(now); i++) assert_int_equal(now[i], '\0');
  finish();
}

int main(int argc, char **argv) {
  if (argc > 1 && strcmp(argv[1], "fds") == 0) {
    char *fds = inherited_fds();
    fputs(fds, stdout);
    free(fds);
    return 0;
  }
  if (readlink("/proc/self/exe", self_path, sizeof(self_path) - 1) < 0) return 1;
  alarm(110); /* a hang is a failure */
  return unit_run(NULL, NULL);
}
