/* SPDX-License-Identifier: Apache-2.0 */
/* Folders: made on a file system that hides that they exist, and removed without what links lead to. */

#include "common/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "tests/rig/unit.h"

static char closed[128]; /* to new entries; as NFS does, mkdir does not look whether one is there */

__attribute__((visibility("default"))) int mkdir(const char *path, mode_t mode) {
  size_t n = strlen(closed);
  if (n && strncmp(path, closed, n) == 0 && path[n] == '/' && !strchr(path + n + 1, '/')) {
    errno = EACCES;
    return -1;
  }
  return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

static const char *in_folder(const char *name) {
  static char path[128];
  snprintf(path, sizeof(path), "%s/%s", unit_folder, name);
  return path;
}

static bool is_there(const char *name) {
  return access(in_folder(name), F_OK) == 0;
}

static void write_file(const char *name) {
  int fd = open(in_folder(name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  assert_true(fd >= 0);
  close(fd);
}

FOLDER_TEST(test_folders_are_made) {
  assert_int_equal(file_make_folders(in_folder("a/b//c/file")), 0);
  assert_true(is_there("a/b/c") && !is_there("a/b/c/file"));
  assert_int_equal(file_make_folders(in_folder("a/b/c/file")), 0);
  assert_int_equal(file_make_folders("file"), 0);
  assert_int_equal(file_make_folders(""), 0);
  write_file("a/f");
  assert_int_equal(file_make_folders(in_folder("a/f/c/file")), -ENOTDIR);
}

FOLDER_TEST(test_a_folder_that_is_there_need_not_be_made) {
  assert_int_equal(file_make_folders(in_folder("home/me/file")), 0);
  snprintf(closed, sizeof(closed), "%s", in_folder("home"));
  assert_int_equal(file_make_folders(in_folder("home/me/run/file")), 0);
  assert_true(is_there("home/me/run"));
  assert_int_equal(file_make_folders(in_folder("home/you/run/file")), -EACCES);
  closed[0] = '\0';
}

FOLDER_TEST(test_what_links_lead_to_stays) {
  assert_int_equal(file_make_folders(in_folder("kept/sub/file")), 0);
  assert_int_equal(file_make_folders(in_folder("gone/1/2/file")), 0);
  write_file("kept/sub/file");
  write_file("gone/1/2/file");
  char to[128];
  snprintf(to, sizeof(to), "%s", in_folder("kept"));
  assert_int_equal(symlink(to, in_folder("gone/1/link")), 0);
  assert_int_equal(symlink(to, in_folder("link")), 0);
  file_remove_folder(in_folder("link"), 2);
  file_remove_folder(in_folder("gone"), 1);
  assert_true(is_there("gone/1/2/file") && !is_there("gone/1/link"));
  file_remove_folder(in_folder("gone"), 2);
  assert_true(!is_there("gone") && is_there("kept/sub/file") && is_there("link"));
}
