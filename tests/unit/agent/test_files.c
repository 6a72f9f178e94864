/* SPDX-License-Identifier: Apache-2.0 */
/* agent/link/daemon_process.c, common/system/command.c, agent/launch/host_file.c: abandoned folders, where a program is,
 * which files are read. */

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "agent/launch/host_file.h"
#include "agent/link/daemon_process.h"
#include "common/system/command.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

static char *beside(const char *dir, const char *name) {
  return xasprintf("%s/%s", dir, name);
}

static void touch(const char *dir, const char *name, mode_t mode) {
  char *file = beside(dir, name);
  int fd = open(file, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  assert_int_equal(fchmod(fd, mode), 0);
  close(fd);
  free(file);
}

static bool exists(const char *file) {
  return access(file, F_OK) == 0;
}

/* The pid of a process that is gone. */
static pid_t dead_pid(void) {
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  assert_int_equal(waitpid(pid, NULL, 0), pid);
  return pid;
}

/* A name beside `one`, as if pid had made it. */
static char *name_of(const char *one, pid_t pid, const char *tail) {
  return xasprintf("%.*s/rdzvd-%d-%s", (int)(strrchr(one, '/') - one), one, (int)pid, tail);
}

/* A folder of this process with state in it, beside `one`. */
static char *leave_behind(const char *one, const char *tail) {
  char *dir = name_of(one, getpid(), tail);
  assert_int_equal(mkdir(dir, 0700), 0);
  touch(dir, "rdzvd.lock", 0600);
  touch(dir, "rdzvd.state", 0600);
  return dir;
}

/* It gets a dead owner's name when it is whole: agents of this machine sweep the same place. */
static char *bury(char *dir, const char *tail) {
  char *name = name_of(dir, dead_pid(), tail);
  assert_int_equal(rename(dir, name), 0);
  free(dir);
  return name;
}

UNIT_TEST(makes_and_removes) {
  struct err e = ERR_INIT;
  struct stat st;
  char *dir = private_dir_create(&e), *name = xstrdup(dir);
  assert_non_null(dir);
  assert_int_equal(stat(dir, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0700);
  touch(dir, "rdzvd.state", 0600);
  private_dir_remove(dir);
  assert_false(exists(name));
  private_dir_remove(NULL);
  free(name);
}

UNIT_TEST(removes_what_the_dead_left) {
  char *first = private_dir_create(NULL);
  char *dead = bury(leave_behind(first, "aaaaaa"), "aaaaaa"), *alive = leave_behind(first, "bbbbbb");
  char *ours = leave_behind(first, "cccccc"), *lock = beside(ours, "rdzvd.lock");
  int fd = open(lock, O_RDWR | O_CLOEXEC);
  assert_int_equal(flock(fd, LOCK_EX), 0);
  char *used = bury(ours, "cccccc");
  char *second = private_dir_create(NULL);
  assert_false(exists(dead));
  assert_true(exists(alive));
  assert_true(exists(used));
  close(fd);
  char *third = private_dir_create(NULL);
  assert_false(exists(used));
  char *all[] = {first, second, third, alive};
  for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++) private_dir_remove(all[i]);
  free(dead);
  free(used);
  free(lock);
}

UNIT_TEST(finds_commands) {
  struct err e = ERR_INIT;
  char *dir = private_dir_create(NULL), *path = xasprintf("/nowhere:%s:/bin", dir), *script = beside(dir, "script"),
       *data = beside(dir, "data");
  touch(dir, "script", 0755);
  touch(dir, "data", 0644);
  char *found = command_find("script", path, &e);
  assert_string_equal(found, script);
  free(found);
  found = command_find(script, "/bin", &e);
  assert_string_equal(found, script);
  free(found);
  assert_null(command_find("data", path, &e));
  assert_int_equal(e.code, -EACCES);
  assert_null(command_find(data, path, &e));
  assert_int_equal(e.code, -EACCES);
  assert_null(command_find("no-such-command", path, &e));
  assert_int_equal(e.code, -ENOENT);
  assert_non_null(strstr(e.text, "no-such-command"));
  assert_null(command_find("", path, &e));
  assert_null(command_find(dir, path, &e));
  assert_int_equal(e.code, -EACCES);
  private_dir_remove(dir);
  free(path);
  free(script);
  free(data);
}

/* What a scheduler names is a file; what a person names may be a pipe, within its size and time. */
UNIT_TEST(reads_pipes) {
  enum { WAIT_MS = 50, PATIENCE_MS = 20000, MAX = 10 };
  struct err e = ERR_INIT;
  int ends[2];
  char name[40];
  assert_int_equal(pipe(ends), 0);
  snprintf(name, sizeof(name), "/dev/fd/%d", ends[0]);
  assert_null(host_file_read(NULL, name, MAX, &e));
  assert_int_equal(e.code, -EINVAL);
  assert_int_equal(write(ends[1], "n1\n", 3), 3);
  assert_null(host_file_read(&(uint32_t){WAIT_MS}, name, MAX, &e)); /* its writer is still there */
  assert_int_equal(e.code, -ETIMEDOUT);
  assert_int_equal(write(ends[1], "n1\nn2\n", 6), 6);
  close(ends[1]);
  char *text = host_file_read(&(uint32_t){PATIENCE_MS}, name, MAX, &e);
  assert_string_equal(text, "n1\nn2\n");
  free(text);
  close(ends[0]);
  assert_int_equal(pipe(ends), 0);
  snprintf(name, sizeof(name), "/dev/fd/%d", ends[0]);
  assert_int_equal(write(ends[1], "0123456789a", MAX + 1), MAX + 1);
  close(ends[1]);
  assert_null(host_file_read(&(uint32_t){PATIENCE_MS}, name, MAX, &e));
  assert_int_equal(e.code, -EFBIG);
  close(ends[0]);
  assert_null(host_file_read(&(uint32_t){WAIT_MS}, "/dev/null", MAX, &e));
  assert_string_equal(e.text, "/dev/null cannot be read: it is neither a file nor a pipe");
}
