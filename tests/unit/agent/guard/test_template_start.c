/* SPDX-License-Identifier: Apache-2.0 */
/* The template's process: its start, with what it finds there, and its end. The interpreter is a program that knows
 * nothing of us, or this program again: RDZV_TEMPLATE in its environment tells it to play the template, and PART how. */

#include "tests/rig/template.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

enum { PATIENCE_MS = 20000, SOCKET_FD = 240, ZIP_FD, PLAN_FD, MASTER_FD, STRINGS = 8 };

static char self_path[4096];
static bool fork_fails;

pid_t __real_fork(void);
pid_t __wrap_fork(void);

pid_t __wrap_fork(void) {
  if (!fork_fails) return __real_fork();
  errno = EAGAIN;
  return -1;
}

/* The template. ---------------------------------------------------------------------------------------------------- */

static void put_file(char *out, size_t size, int fd) {
  ssize_t n = pread(fd, out, size - 1, 0);
  out[n < 0 ? 0 : n] = '\0';
}

/* What it finds, in one packet for each thing. */
static void tell_all(char **argv) {
  char packet[4][GUARD_TEMPLATE_WORD_MAX], file[64];
  int dies_with = 0;
  sigset_t blocked;
  sigprocmask(SIG_SETMASK, NULL, &blocked);
  prctl(PR_GET_PDEATHSIG, &dies_with, 0, 0, 0);
  put_file(file, sizeof(file), ZIP_FD);
  snprintf(packet[0], sizeof(packet[0]), "Lzip: %s", file);
  put_file(file, sizeof(file), PLAN_FD);
  snprintf(packet[1], sizeof(packet[1]), "Lplan: %s", file);
  snprintf(packet[2], sizeof(packet[2]), "Lleader %d, signal %d, blocked %d, terminals %d%d%d, %s %s",
           getsid(0) == getpid(), dies_with, sigismember(&blocked, SIGUSR1), isatty(1), isatty(2),
           fcntl(MASTER_FD, F_GETFD) == 0, argv[1], argv[2]);
  const char *path = getenv("PYTHONPATH"), *more = getenv("MORE");
  snprintf(packet[3], sizeof(packet[3]), "L%s %s %s", path ? path : "no path", getenv("RDZV_TEMPLATE"),
           more ? more : "-");
  for (int i = 0; i < 4; i++) send(SOCKET_FD, packet[i], strlen(packet[i]), 0);
}

/* As Template.fork and become_worker of template.py. */
static void fork_it(void) {
  struct asked a;
  pid_t guard = getppid();
  rig.far = SOCKET_FD;
  poll(&(struct pollfd){.fd = SOCKET_FD, .events = POLLIN}, 1, PATIENCE_MS);
  if (!read_spawn(&a)) _exit(1);
  pid_t middle = fork();
  if (middle == 0) {
    if (fork()) _exit(0);
    for (int i = 0; i < PATIENCE_MS && getppid() != guard; i++) usleep(1000);
    uint32_t pid = (uint32_t)getpid();
    answer(&a, &pid, sizeof(pid));
    for (;;) pause(); /* a worker that does not see the end of its pair */
  }
  waitpid(middle, NULL, 0);
  forget(&a);
}

_Noreturn static void play_template(char **argv) {
  const char *part = getenv("PART");
  while (part && strcmp(part, "stay") == 0) pause();
  tell_all(argv);
  send(SOCKET_FD, "R0", 2, 0);
  printf("a word that nobody must see\n");
  fflush(stdout);
  if (part && strcmp(part, "fork") == 0) fork_it();
  char byte;
  recv(SOCKET_FD, &byte, 1, 0); /* until the guard is gone */
  _exit(4);
}

/* The guard. ------------------------------------------------------------------------------------------------------- */

static unsigned terminals; /* of the next start */

/* A start of argv[0] with these variables. The plan's file, which the template finds, has all strings. */
static int start_template(const char *python, const char *const *env) {
  struct guard_cmd_spawn c = {.argc = 2, .terminals = terminals};
  char bytes[8192];
  size_t n = (size_t)snprintf(bytes, sizeof(bytes), "%s%ctrain.py", python, 0) + 1;
  for (; *env; env++, c.envc++) n += (size_t)snprintf(bytes + n, sizeof(bytes) - n, "%s", *env) + 1;
  c.size = (uint32_t)n;
  int fds[GUARD_TEMPLATE_FDS] = {memfd_create("plan", MFD_CLOEXEC), memfd_create("zip", MFD_CLOEXEC)};
  if (terminals) {
    fds[3] = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    assert_int_equal(unlockpt(fds[3]), 0);
    fds[2] = open(ptsname(fds[3]), O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(fds[2] >= 0);
  }
  assert_int_equal(write(fds[0], bytes, n), n);
  assert_int_equal(write(fds[1], "PK", 2), 2);
  return guard_template_start(&rig.t, &c, fds);
}

/* rig.t is to be started, and has no socket of the rig. */
static int open_none(void **state) {
  rig_open(state);
  guard_template_gone(&rig.t);
  close(rig.far);
  rig.far = -1;
  return 0;
}

#define RIG_TEST(f) UNIT_TEST_WITH(f, open_none, rig_close)

/* It reads the end of its socket. */
static void leave_it(void) {
  close(rig.t.sock);
  rig.t.sock = -1;
  assert_int_equal(reap_one(rig.t.pid, NULL), 4);
  rig.t.pid = 0;
  guard_template_end(&rig.t);
}

static void await_word(char *word, char text[GUARD_TEMPLATE_WORD_MAX]) {
  while (!guard_template_hear(&rig.t, word, text, GUARD_TEMPLATE_WORD_MAX))
    if (poll(&(struct pollfd){.fd = rig.t.sock, .events = POLLIN}, 1, PATIENCE_MS) <= 0)
      fail_msg("the template says nothing");
}

static void expect_word(char letter, const char *text) {
  char word, heard[GUARD_TEMPLATE_WORD_MAX];
  await_word(&word, heard);
  assert_int_equal(word, letter);
  assert_string_equal(heard, text);
}

static const char *const plain_env[] = {"PATH=/usr/bin:/bin", NULL};

/* A program that does not run template.py ends. The guard tells that once, whether it hears or reaps first. */
RIG_TEST(test_other_programs) {
  static const struct {
    const char *python;
    int code; /* -1: its own */
  } programs[] = {{"/no/such/python", 3}, {"no-such-python", 3}, {"/tmp", 3}, {"/bin/true", 0},
                  {"/bin/false", 1},      {"/bin/cat", -1},      {"sh", -1}};
  for (size_t i = 0; i < 2 * sizeof(programs) / sizeof(programs[0]); i++) {
    bool reaped_first = i % 2;
    assert_int_equal(start_template(programs[i / 2].python, plain_env), 0);
    assert_true(rig.t.pid > 0 && (rig.t.state != TEMPLATE_NONE));
    assert_int_equal(rig.t.by_ms, rig.now_ms + FIRST_WORD_MS);
    assert_int_equal(count_fds(), rig.fds + 1 + GUARD_TEMPLATE_FDS - 2);
    int code = reaped_first ? reap_one(rig.t.pid, NULL) : -1;
    expect_word(TEMPLATE_DOUBT, "the interpreter does not run it, as with -I, -E or -S");
    if (!reaped_first) code = reap_one(rig.t.pid, NULL);
    assert_int_equal(hear_all(), 0);
    if (programs[i / 2].code >= 0) assert_int_equal(code, programs[i / 2].code);
    guard_template_gone(&rig.t);
    assert_int_equal(rig.t.pid, 0);
    assert_int_equal(count_fds(), rig.fds);
  }
}

RIG_TEST(test_what_it_finds) {
  static const struct {
    const char *env[STRINGS], *path, *more;
  } cases[] = {
      {{"MORE=1"}, "", "1"},
      {{NULL}, "", "-"},
      {{"PYTHONPATH=/a:/b", "MORE=2"}, ":/a:/b", "2"},
      {{"MORE=", "PYTHONPATH="}, "", ""},
      {{"PYTHONPATHS=/a", "RDZV_TEMPLATE=again:1:2:3", "MORE=3"}, "", "3"},
  };
  sigset_t set, before;
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1); /* the guard blocks nearly all */
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    char text[GUARD_TEMPLATE_WORD_MAX + 4096];
    size_t size = strlen(self_path) + 1 + sizeof("train.py");
    int envc = 0;
    for (; cases[i].env[envc]; envc++) size += strlen(cases[i].env[envc]) + 1;
    sigprocmask(SIG_BLOCK, &set, &before);
    assert_int_equal(start_template(self_path, cases[i].env), 0);
    sigprocmask(SIG_SETMASK, &before, NULL);
    expect_word(TEMPLATE_LEARNED, "zip: PK");
    snprintf(text, sizeof(text), "plan: %.63s", self_path); /* as much as it tells */
    expect_word(TEMPLATE_LEARNED, text);
    expect_word(TEMPLATE_LEARNED, "leader 1, signal 9, blocked 0, terminals 000, -c raise SystemExit(3)");
    snprintf(text, sizeof(text), "/proc/self/fd/241%s probe:2:%d:%zu:0:0 %s", cases[i].path, envc, size, cases[i].more);
    expect_word(TEMPLATE_LEARNED, text);
    expect_word(TEMPLATE_READY, "0");
    leave_it();
  }
}

/* One is at each stream that asks for it, with its master. Another template gets the same ones. */
RIG_TEST(test_its_terminals) {
  for (terminals = GUARD_TTY_OUT; terminals <= (GUARD_TTY_OUT | GUARD_TTY_ERR); terminals++) {
    char text[GUARD_TEMPLATE_WORD_MAX], word, expected[GUARD_TEMPLATE_WORD_MAX];
    snprintf(expected, sizeof(expected), "terminals %d%d1,", (terminals & GUARD_TTY_OUT) != 0,
             (terminals & GUARD_TTY_ERR) != 0);
    assert_int_equal(start_template(self_path, plain_env), 0);
    for (int start = 0; start < 2; start++) {
      bool found = false;
      do {
        await_word(&word, text);
        found = found || strstr(text, expected);
      } while (word != TEMPLATE_READY);
      assert_true(found);
      kill(rig.t.pid, SIGKILL);
      reap_one(rig.t.pid, NULL);
      guard_template_gone(&rig.t);
      assert_true(rig.t.pid > 0);
    }
    guard_template_end(&rig.t);
    reap_one(-1, NULL);
    assert_int_equal(count_fds(), rig.fds);
  }
  terminals = 0;
}

/* Descriptors lie in the template's places: those that it is to get, in another order, or older ones. */
RIG_TEST(test_its_places_are_taken) {
  int taken[SOCKET_FD + 4] = {open("/dev/null", O_RDWR | O_CLOEXEC)}, n = 1;
  for (int above = -4; above < 4; above++) { /* where the first of its descriptors comes to lie */
    for (; taken[n - 1] < SOCKET_FD + above - 1; n++) taken[n] = fcntl(taken[0], F_DUPFD_CLOEXEC, 0);
    assert_int_equal(start_template(self_path, plain_env), 0);
    char text[GUARD_TEMPLATE_WORD_MAX];
    expect_word(TEMPLATE_LEARNED, "zip: PK");
    snprintf(text, sizeof(text), "plan: %.63s", self_path);
    expect_word(TEMPLATE_LEARNED, text);
    leave_it();
  }
  while (n > 0) close(taken[--n]);
}

/* Nothing is started, and nothing is left open. What there was stays. */
RIG_TEST(test_it_cannot_be_started) {
  static const char good[] = "/bin/true\0A=1";
  static const struct guard_cmd_spawn plans[] = {
      {.argc = 1, .envc = 1, .size = 0},
      {.argc = 0, .envc = 1, .size = sizeof(good)},
      {.argc = 2, .envc = 1, .size = sizeof(good)},
      {.argc = 1, .envc = 1, .size = sizeof(good) - 1},
      {.argc = 1, .envc = UINT32_MAX, .size = sizeof(good)},
      {.argc = UINT32_MAX, .envc = 2, .size = sizeof(good)},
      {.argc = 1, .envc = 1, .size = GUARD_SPAWN_MAX + 1},
      {.argc = 1, .envc = 1, .size = sizeof(good), .cpus_size = UINT32_MAX},
  };
  enum { PLANS = sizeof(plans) / sizeof(plans[0]), NO_PLAN = PLANS, NO_FORK, NO_FDS, CASES = NO_FDS + 3 };
  struct rlimit before;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  for (int i = 0; i < CASES; i++) {
    struct guard_cmd_spawn c = {.argc = 1, .envc = 1, .size = sizeof(good)};
    if (i < PLANS) c = plans[i];
    int fds[GUARD_TEMPLATE_FDS] = {i == NO_PLAN ? open("/dev", O_RDONLY | O_CLOEXEC)
                                                : memfd_create("plan", MFD_CLOEXEC),
                                   memfd_create("zip", MFD_CLOEXEC)};
    if (i != NO_PLAN) assert_int_equal(write(fds[0], good, sizeof(good)), sizeof(good));
    struct rlimit few = before;
    few.rlim_cur = (rlim_t)dup(0); /* the lowest free number; then a few more */
    close((int)few.rlim_cur);
    few.rlim_cur += (rlim_t)(i - NO_FDS);
    fork_fails = i == NO_FORK;
    if (i >= NO_FDS) assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int rc = guard_template_start(&rig.t, &c, fds);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    fork_fails = false;
    assert_int_equal(rc, i < PLANS ? -EBADMSG : i == NO_PLAN ? -ENODEV : i == NO_FORK ? -EAGAIN : -EMFILE);
    assert_int_equal(count_fds(), rig.fds);
    assert_int_equal(rig.t.pid, 0);
    assert_int_equal(rig.t.sock, -1);
    assert_false(rig.t.state != TEMPLATE_NONE);
  }
}

/* Forks die with the template as long as they are no workers, also one that does not look at its pair. */
RIG_TEST(test_its_end) {
  struct waiting_worker w;
  pid_t pid, template, reaped[2];
  assert_int_equal(start_template(self_path, (const char *const[]){"PART=fork", NULL}), 0);
  template = rig.t.pid;
  for (int i = 0; i < 4; i++) {
    char word, text[GUARD_TEMPLATE_WORD_MAX];
    await_word(&word, text);
  }
  queue_worker(0);
  expect_nobody();
  expect_word(TEMPLATE_READY, "0");
  assert_int_equal(await_next(&w, &pid), TEMPLATE_FORKED);
  assert_int_equal(getsid(pid), template);
  guard_template_end(&rig.t);
  for (int i = 0; i < 2; i++) assert_int_equal(reap_one(-1, &reaped[i]), 128 + SIGKILL);
  assert_int_equal(reaped[0] + reaped[1], pid + template);
  close_worker(&w);
}

/* A template that has just been forked has no session of its own yet. */
RIG_TEST(test_its_early_end) {
  for (int i = 0; i < 50; i++) {
    assert_int_equal(start_template(self_path, (const char *const[]){"PART=stay", NULL}), 0);
    pid_t pid = rig.t.pid;
    if (i % 2) usleep((unsigned)i * 20);
    guard_template_end(&rig.t);
    assert_int_equal(rig.t.pid, 0);
    assert_int_equal(rig.t.sock, -1);
    assert_int_equal(reap_one(pid, NULL), 128 + SIGKILL);
    guard_template_end(&rig.t); /* of none */
  }
}

/* One that was ready and dies is made again, from the same plan, but not for ever. */
RIG_TEST(test_it_is_made_again) {
  enum { STARTS = 4 }; /* as in template.c */
  pid_t before = 0;
  assert_int_equal(start_template(self_path, (const char *const[]){"MORE=5", NULL}), 0);
  for (int start = 1; start <= STARTS; start++) {
    char word = 0, text[GUARD_TEMPLATE_WORD_MAX];
    assert_true(rig.t.pid > 0 && rig.t.pid != before);
    before = rig.t.pid;
    assert_int_equal(rig.t.state, TEMPLATE_WARMS);
    while (word != TEMPLATE_READY) await_word(&word, text);
    kill(rig.t.pid, SIGKILL);
    expect_word(start < STARTS ? TEMPLATE_AGAIN : TEMPLATE_DOUBT, "it has ended");
    assert_false(rig.t.state != TEMPLATE_NONE);
    assert_int_equal(reap_one(rig.t.pid, NULL), 128 + SIGKILL);
    guard_template_gone(&rig.t);
  }
  assert_int_equal(rig.t.pid, 0);
  assert_int_equal(count_fds(), rig.fds);
}

/* A second template is started when the first has died. Workers that waited for the first are not lost. */
RIG_TEST(test_a_second_one) {
  assert_int_equal(start_template("/bin/true", plain_env), 0);
  queue_worker(0);
  queue_worker(1);
  assert_int_equal(reap_one(rig.t.pid, NULL), 0);
  guard_template_gone(&rig.t);
  rig.now_ms += 1000;
  assert_int_equal(start_template("/bin/true", plain_env), 0);
  assert_int_equal(guard_template_deadline(&rig.t), rig.now_ms + FIRST_WORD_MS);
  assert_int_equal(reap_one(rig.t.pid, NULL), 0);
  expect_word(TEMPLATE_DOUBT, "the interpreter does not run it, as with -I, -E or -S");
  for (uint32_t rank = 0; rank < 2; rank++) assert_int_equal(expect_exec(false), rank);
}

int main(int argc, char **argv) {
  if (getenv("RDZV_TEMPLATE")) play_template(argv);
  ssize_t n = readlink("/proc/self/exe", self_path, sizeof(self_path) - 1);
  if (n <= 0) return 1;
  return unit_run(NULL, NULL);
}
