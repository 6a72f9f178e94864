/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv: TensorBoard's event files, byte by byte. tests/interop reads them with TensorBoard's own reader. */

#include "agent/sdk/rdzv_tfevents.h"
#include "tests/rig/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "tests/rig/unit.h"

/* RFC 3720, B.4. */
static void test_crc32c(void **state) {
  unsigned char zeros[32] = {0}, ones[32], up[32];
  memset(ones, 0xff, sizeof ones);
  for (unsigned i = 0; i < 32; i++) up[i] = (unsigned char)i;
  assert_int_equal(rdzv_crc32c(zeros, 32), 0x8a9136aa);
  assert_int_equal(rdzv_crc32c(ones, 32), 0x62a8ab43);
  assert_int_equal(rdzv_crc32c(up, 32), 0x46dd794e);
  assert_int_equal(rdzv_crc32c("123456789", 9), 0xe3069283);
  assert_int_equal(rdzv_crc32c("", 0), 0);
}

static void check(struct rdzv_bytes *b, const unsigned char *want, size_t n) {
  assert_int_equal(b->len, n);
  assert_memory_equal(b->data, want, n);
  b->len = 0;
}

/* Made by TensorBoard's own EventFileWriter, for wall time 1.5. */
static void test_the_bytes_of_records(void **state) {
  struct rdzv_bytes b = {0};
#include "tests/unit/agent/sdk/tfevents_vectors.inc"
  assert_int_equal(rdzv_tfevents_version(&b, 1.5), 0);
  check(&b, version, sizeof version);
  assert_int_equal(rdzv_tfevents_start(&b, 1.5, 301), 0);
  check(&b, start, sizeof start);
  const char *tags[] = {"loss", "train/\xc3\xa9"};
  assert_int_equal(rdzv_tfevents_scalars(&b, 1.5, 1000000007, tags, (double[]){0.25, -3}, 2), 0);
  check(&b, scalars, sizeof scalars);
  rdzv_bytes_free(&b);
}

/* Files. ----------------------------------------------------------------------------------------------------------- */

/* The names in a folder, in order; the caller frees them. */
static int names_in(const char *dir, struct dirent ***names) {
  int n = scandir(dir, names, NULL, alphasort);
  assert_true(n >= 2);
  for (int i = 0; i < 2; i++) free((*names)[i]); /* . and .. */
  memmove(*names, *names + 2, (size_t)(n - 2) * sizeof **names);
  return n - 2;
}

static void free_names(struct dirent **names, int n) {
  for (int i = 0; i < n; i++) free(names[i]);
  free(names);
}

static size_t read_file(const char *dir, const char *name, char *out, size_t room) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  int fd = open(path, O_RDONLY);
  assert_true(fd >= 0);
  ssize_t n = read(fd, out, room);
  close(fd);
  assert_true(n >= 0 && (size_t)n < room);
  return (size_t)n;
}

/* Fails unless the file consists of whole records. Returns their number. */
static size_t count_records(const char *dir, const char *name) {
  static char data[65536];
  size_t len = read_file(dir, name, data, sizeof data), at = 0, n = 0;
  for (; at + 12 <= len; n++) {
    uint64_t size;
    memcpy(&size, data + at, 8);
    at += 16 + (size_t)size;
  }
  assert_int_equal(at, len);
  return n;
}

static int log_one(struct rdzv_tensorboard *t, uint64_t step) {
  const char *tag = "loss";
  return rdzv_tensorboard_log(t, step, &tag, &(double){0.5}, 1);
}

/* TensorBoard reads them in the order of their names. */
static void test_a_later_file_has_a_later_name(void **state) {
  struct tree tree;
  struct dirent **names;
  char dir[128];
  tree_init(&tree);
  snprintf(dir, sizeof dir, "%s/runs/7", tree.root);
  tree_put(&tree, "", "runs/7/events.out.tfevents.4000000000.another.1.0"); /* its clock is ahead */
  tree_put(&tree, "", "runs/7/events.out.tfevents.9999999999.hostile.1.0");
  for (int i = 0; i < 3; i++) {
    struct rdzv_tensorboard *t = NULL;
    assert_int_equal(rdzv_tensorboard_open(&t, dir), 0);
    assert_int_equal(rdzv_tensorboard_resumed(t, 7), 0);
    assert_int_equal(log_one(t, 8 + (uint64_t)i), 0);
    rdzv_tensorboard_close(t);
  }
  assert_int_equal(names_in(dir, &names), 5);
  for (int i = 0; i < 3; i++) {
    char begin[64];
    snprintf(begin, sizeof begin, "events.out.tfevents.400000000%d.", i + 1);
    assert_memory_equal(names[i + 1]->d_name, begin, strlen(begin));
    assert_int_equal(count_records(dir, names[i + 1]->d_name), 3);
  }
  free_names(names, 5);
  tree_finish(&tree);
}

/* Without a word of resuming, the first step that is logged begins the curve. */
static void test_the_first_log_starts_the_curve(void **state) {
  struct tree tree;
  struct dirent **names;
  struct rdzv_tensorboard *t = NULL;
  tree_init(&tree);
  assert_int_equal(rdzv_tensorboard_open(&t, tree.root), 0);
  for (uint64_t step = 1; step < 4; step++) assert_int_equal(log_one(t, step), 0);
  assert_int_equal(names_in(tree.root, &names), 1);
  assert_int_equal(count_records(tree.root, names[0]->d_name), 1 + 1 + 3);
  assert_int_equal(rdzv_tensorboard_resumed(t, 2), 0); /* a round in place */
  assert_int_equal(count_records(tree.root, names[0]->d_name), 1 + 1 + 3 + 1);
  free_names(names, 1);
  rdzv_tensorboard_close(t);
  tree_finish(&tree);
}

static void limit_files(rlim_t size) {
  struct rlimit l;
  getrlimit(RLIMIT_FSIZE, &l);
  l.rlim_cur = size;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &l), 0);
}

/* Half a record would end the file for every reader. */
static void test_a_disk_that_is_full_for_a_while(void **state) {
  struct tree tree;
  struct dirent **names;
  struct rdzv_tensorboard *t = NULL;
  tree_init(&tree);
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(rdzv_tensorboard_open(&t, tree.root), 0);
  assert_int_equal(names_in(tree.root, &names), 1);
  const char *name = names[0]->d_name;
  for (uint64_t step = 1; step <= 10; step++) assert_int_equal(log_one(t, step), 0);
  size_t whole = count_records(tree.root, name);
  char data[4096];
  limit_files(read_file(tree.root, name, data, sizeof data) + 20);
  for (int i = 0; i < 3; i++) assert_int_equal(log_one(t, 11), -EFBIG);
  assert_non_null(strstr(rdzv_error(NULL), "File too large"));
  assert_non_null(strstr(rdzv_error(NULL), name));
  assert_int_equal(count_records(tree.root, name), whole);
  limit_files(RLIM_INFINITY);
  assert_int_equal(log_one(t, 12), 0);
  assert_int_equal(count_records(tree.root, name), whole + 1);
  free_names(names, 1);
  rdzv_tensorboard_close(t);
  tree_finish(&tree);
}

static void check_refused(struct rdzv_tensorboard *t, uint64_t step, const char *tag, size_t n, const char *words) {
  const char *tags[RDZV_TAGS_MAX + 1];
  double values[RDZV_TAGS_MAX + 1] = {0};
  for (size_t i = 0; i <= RDZV_TAGS_MAX; i++) tags[i] = tag;
  assert_int_equal(rdzv_tensorboard_log(t, step, tags, values, n), -EINVAL);
  if (!strstr(rdzv_error(NULL), words)) fail_msg("%s: %s", words, rdzv_error(NULL));
}

static void test_what_is_refused(void **state) {
  struct tree tree;
  struct rdzv_tensorboard *t = NULL;
  char text[RDZV_TAG_MAX + 2], dir[128];
  tree_init(&tree);
  tree_put(&tree, "", "file");
  snprintf(dir, sizeof dir, "%s/file/7", tree.root);
  assert_int_equal(rdzv_tensorboard_open(&t, dir), -ENOTDIR);
  assert_non_null(strstr(rdzv_error(NULL), "TensorBoard folder "));
  assert_non_null(strstr(rdzv_error(NULL), "/file/7: Not a directory"));
  assert_int_equal(rdzv_tensorboard_open(&t, ""), -EINVAL);
  assert_int_equal(rdzv_tensorboard_open(&t, NULL), -EINVAL);
  assert_int_equal(rdzv_tensorboard_open(&t, tree.root), 0);
  check_refused(t, 1, "", 1, "a tag has 1 to 1024 bytes");
  memset(text, 'x', sizeof text);
  text[RDZV_TAG_MAX + 1] = '\0';
  check_refused(t, 1, text, 1, "a tag has 1 to 1024 bytes");
  check_refused(t, 1, "\xc3", 1, "is not UTF-8");
  check_refused(t, 1, "loss", 0, "1 to 1024 values, not 0");
  check_refused(t, 1, "loss", RDZV_TAGS_MAX + 1, "not 1025");
  check_refused(t, UINT64_MAX, "loss", 1, "beyond 2^63-1");
  assert_int_equal(rdzv_tensorboard_resumed(t, UINT64_MAX), -EINVAL);
  text[RDZV_TAG_MAX] = '\0';
  const char *tags[RDZV_TAGS_MAX];
  double values[RDZV_TAGS_MAX];
  for (size_t i = 0; i < RDZV_TAGS_MAX; i++) tags[i] = text, values[i] = i % 2 ? (double)NAN : (double)INFINITY;
  assert_int_equal(rdzv_tensorboard_log(t, INT64_MAX, tags, values, RDZV_TAGS_MAX), 0);
  rdzv_tensorboard_close(t);
  rdzv_tensorboard_close(NULL);
  tree_finish(&tree);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_crc32c),
      cmocka_unit_test(test_the_bytes_of_records),
      cmocka_unit_test(test_a_later_file_has_a_later_name),
      cmocka_unit_test(test_the_first_log_starts_the_curve),
      cmocka_unit_test(test_a_disk_that_is_full_for_a_while),
      cmocka_unit_test(test_what_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
