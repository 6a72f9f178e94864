/* SPDX-License-Identifier: Apache-2.0 */
/* user: which number is one user, in real user name spaces. */

#include "common/system/user.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/unit.h"

enum { NOBODY = 65534, EVE = 60101, NO_NAME_SPACE = 99 };

UNIT_TEST(test_a_table) {
  assert_true(user_map_is_total("         0          0 4294967295\n"));
  assert_true(user_map_is_total("0 1000 1\n1 100000 4294967294"));
  assert_false(user_map_is_total("         0       1000          1\n"));
  assert_false(user_map_is_total("0 1000 1\n1 100000 65536\n"));
  assert_false(user_map_is_total(""));
  assert_false(user_map_is_total("what\nis this\n"));
}

/* The exit code of `ask` in a user name space with that table, as that user of it. */
static int in_name_space(const char *table, uid_t uid, int (*ask)(void)) {
  int ready[2], go[2], status = 0;
  char byte = 0, path[64];
  assert_int_equal(pipe(ready) | pipe(go), 0);
  pid_t pid = fork();
  if (pid == 0) {
    if (unshare(CLONE_NEWUSER)) _exit(NO_NAME_SPACE);
    if (write(ready[1], "", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(NO_NAME_SPACE);
    _exit(uid != geteuid() && setresuid(uid, uid, uid) ? 98 : ask());
  }
  close(ready[1]);
  if (read(ready[0], &byte, 1) == 1) {
    snprintf(path, sizeof(path), "/proc/%d/uid_map", (int)pid);
    int fd = open(path, O_WRONLY);
    if (*table) assert_int_equal(write(fd, table, strlen(table)), strlen(table));
    close(fd);
    assert_int_equal(write(go[1], "", 1), 1);
  }
  waitpid(pid, &status, 0);
  close(ready[0]);
  close(go[0]);
  close(go[1]);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int nobody_is_known(void) {
  return user_is_known(NOBODY);
}

static int root_is_known(void) {
  return user_is_known(0) && user_is_known(1);
}

static int this_is_itself(void) {
  return user_is_self(geteuid());
}

UNIT_TEST(test_in_a_name_space) {
  if (geteuid() != 0 || in_name_space("0 0 1", 0, root_is_known) == NO_NAME_SPACE) skip();
  assert_int_equal(in_name_space("0 0 1", 0, root_is_known), 1);
  assert_int_equal(in_name_space("0 0 1", 0, nobody_is_known), 0);
  assert_int_equal(in_name_space("0 0 1\n65534 60101 1", 0, nobody_is_known), 0); /* or one that is not mapped */
  assert_int_equal(in_name_space("0 0 1\n65534 60101 1", NOBODY, this_is_itself), 0);
  assert_int_equal(in_name_space("0 0 1\n1000 60101 1", 1000, this_is_itself), 1);
  assert_int_equal(in_name_space("0 0 4294967295", 0, nobody_is_known), 1);
  assert_int_equal(in_name_space("", NOBODY, this_is_itself), 0);
}

UNIT_TEST(test_here) {
  assert_false(user_is_known(-1));
  assert_true(user_is_known(0));
  assert_true(user_is_known(EVE));
  assert_true(user_is_self(geteuid()) || geteuid() == NOBODY);
  assert_false(user_is_self(geteuid() + 1));
}
