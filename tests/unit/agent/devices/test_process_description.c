/* SPDX-License-Identifier: Apache-2.0 */
/* agent/devices/process_description.c: the description of a process, in trees of the test and of a real one. */

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "agent/devices/process_description.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

UNIT_TEST(reads_who_it_is) {
  struct tree t;
  struct process_description h;
  tree_init(&t);
  tree_put(&t, "python train.py --lr 1", "71/cmdline");
  tree_put(&t, "71 (a) b) S 1 1", "71/stat");
  tree_put(&t, "RDZV_RUN_ID=job-1", "71/environ");
  process_description_read(&h, t.root, 71);
  assert_false(h.gone);
  assert_string_equal(h.command, "python train.py --lr 1");
  assert_string_equal(h.job, "job-1");
  assert_true(h.user[0] != '\0');
  tree_put(&t, "72 (python) Z 1 1", "72/stat");
  tree_put(&t, "python\n", "72/comm");
  process_description_read(&h, t.root, 72);
  assert_true(h.gone);
  assert_string_equal(h.command, "[python]");
  assert_string_equal(h.job, "");
  process_description_read(&h, t.root, 73);
  assert_true(h.gone);
  assert_string_equal(h.user, "");
  assert_string_equal(h.command, "");
  tree_finish(&t);
}

UNIT_TEST(makes_text_of_it) {
  struct tree t;
  struct process_description h;
  tree_init(&t);
  tree_put(&t, "a\033[31m\xff\nb", "7/cmdline");
  process_description_read(&h, t.root, 7);
  assert_string_equal(h.command, "a?[31m? b");
  char text[400];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  tree_put(&t, text, "8/cmdline");
  process_description_read(&h, t.root, 8);
  assert_int_equal(strlen(h.command), PROCESS_COMMAND_MAX - 1);
  tree_finish(&t);
}

/* Its words are parted by NULs, and the job's name is not the first variable. */
UNIT_TEST(reads_a_real_one) {
  int pair[2];
  assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
  pid_t pid = fork();
  if (pid == 0) {
    char *argv[] = {(char[]){"sleep"}, (char[]){"1000"}, NULL};
    char *env[] = {(char[]){"A=1"}, (char[]){"RDZV_RUN_ID=real"}, (char[]){"RDZV_ROUND=7"}, NULL};
    execve("/bin/sleep", argv, env);
    _exit(1);
  }
  char byte;
  close(pair[1]);
  assert_int_equal(read(pair[0], &byte, 1), 0); /* exec has closed the other end */
  struct process_description h;
  process_description_read(&h, "/proc", pid);
  assert_false(h.gone);
  assert_string_equal(h.command, "sleep 1000");
  assert_string_equal(h.job, "real");
  assert_int_equal(h.round, 7);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  close(pair[0]);
}
