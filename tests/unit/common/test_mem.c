/* SPDX-License-Identifier: Apache-2.0 */
/* mem: copies, formats, and the end of the process where memory is gone. */

#include "common/mem.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_alloc) {
  void *p = xmalloc(0);
  assert_non_null(p);
  p = xrealloc(p, 0);
  assert_non_null(p);
  free(p);
  unsigned char *z = xcalloc(100, 10);
  for (int i = 0; i < 1000; i++) assert_int_equal(z[i], 0);
  free(z);
  z = xcalloc(0, 10);
  assert_non_null(z);
  free(z);
}

UNIT_TEST(test_copies) {
  assert_null(xstrdup(NULL));
  assert_null(xstrndup(NULL, 3));
  char *s = xstrdup("hello");
  assert_string_equal(s, "hello");
  free(s);
  s = xstrndup("hello", 3);
  assert_string_equal(s, "hel");
  free(s);
  s = xstrndup("hello", 30);
  assert_string_equal(s, "hello");
  free(s);
  s = xmemdup("a\0b", 3);
  assert_memory_equal(s, "a\0b\0", 4);
  free(s);
  s = xmemdup(NULL, 0);
  assert_string_equal(s, "");
  free(s);
  s = xasprintf("%s-%04d", "x", 42);
  assert_string_equal(s, "x-0042");
  free(s);
}

static void ask_too_much(int how) {
  volatile size_t huge = SIZE_MAX / 2;
  void *p = how == 0 ? xmalloc(huge) : how == 1 ? xcalloc(huge, 4) : xrealloc(NULL, huge);
  free(p);
}

/* In a child, since it ends: with our line and SIGABRT (a sanitizer's allocator has its own words and code). */
UNIT_TEST(test_no_memory_ends_the_process) {
  for (int how = 0; how < 3; how++) {
    int fds[2], status = 0;
    char said[4096] = "";
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
      const struct rlimit none = {0, 0};
      setrlimit(RLIMIT_CORE, &none);
      signal(SIGABRT, SIG_DFL);
      dup2(fds[1], STDERR_FILENO);
      ask_too_much(how);
      _exit(0);
    }
    close(fds[1]);
    size_t len = 0;
    for (ssize_t n = 1; n > 0 && len<sizeof(said) - 1; len += n> 0 ? (size_t)n : 0)
      n = read(fds[0], said + len, sizeof(said) - 1 - len);
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(len > 0);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    if (!strstr(said, "Sanitizer")) {
      assert_string_equal(said, "rdzv: out of memory, giving up\n");
      assert_int_equal(WTERMSIG(status), SIGABRT);
    }
  }
}
