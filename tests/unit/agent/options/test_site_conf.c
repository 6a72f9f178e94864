/* SPDX-License-Identifier: Apache-2.0 */
/* agent/options/site_conf.c: which file is read, and which is refused. The lines themselves: common/opts/file. */

#include "agent/options/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

static struct tree tree;

/* Reads root/name as RDZV_AGENT_CONF says. The sentence without the made folder's name. */
static int read_conf(struct opts_file *f, const char *file, char sentence[ERR_TEXT_MAX]) {
  char text[128];
  char *const env[] = {text, NULL};
  struct err e = ERR_INIT;
  snprintf(text, sizeof(text), "RDZV_AGENT_CONF=%s%s", *file ? tree.root : "", file);
  int rc = site_conf_read(f, env, &e);
  char *p = strstr(e.text, tree.root);
  if (p) memmove(p, p + strlen(tree.root), strlen(p + strlen(tree.root)) + 1);
  snprintf(sentence, ERR_TEXT_MAX, "%s", e.text);
  return rc;
}

static void change_mode(const char *file, mode_t mode) {
  char path[128];
  snprintf(path, sizeof(path), "%s%s", tree.root, file);
  assert_int_equal(chmod(path, mode), 0);
}

UNIT_TEST(a_named_file_is_read) {
  struct opts_file f;
  char sentence[ERR_TEXT_MAX];
  tree_put(&tree, "lease = 9s\n", "a.conf");
  change_mode("/a.conf", 0644);
  assert_int_equal(read_conf(&f, "/a.conf", sentence), 0);
  assert_int_equal(f.n, 1);
  assert_string_equal(f.v[0].row->name, "lease");
  assert_string_equal(f.v[0].value, "9s");
  opts_file_finish(&f);
  assert_int_equal(read_conf(&f, "", sentence), 0); /* an empty name: no file */
  assert_int_equal(f.n, 0);
  opts_file_finish(&f);
}

UNIT_TEST(a_file_that_cannot_be_trusted_is_refused) {
  struct opts_file f;
  char sentence[ERR_TEXT_MAX], *big = malloc(OPTS_FILE_MAX + 2);
  assert_int_equal(read_conf(&f, "/missing", sentence), -ENOENT);
  assert_string_equal(sentence, "RDZV_AGENT_CONF=/missing cannot be read: No such file or directory");
  opts_file_finish(&f);
  tree_put(&tree, "", "folder/file");
  assert_int_equal(read_conf(&f, "/folder", sentence), -EINVAL);
  assert_string_equal(sentence, "/folder is not a file: give a file with a setting on a line");
  opts_file_finish(&f);
  tree_put(&tree, "lease = 9s\n", "open.conf");
  change_mode("/open.conf", 0666);
  assert_int_equal(read_conf(&f, "/open.conf", sentence), -EPERM);
  assert_non_null(
      strstr(sentence, "RDZV_AGENT_CONF=/open.conf can be changed by every user, and decides what runs here: chmod"));
  opts_file_finish(&f);
  assert_non_null(big);
  memset(big, '\n', OPTS_FILE_MAX + 1);
  big[OPTS_FILE_MAX + 1] = '\0';
  tree_put(&tree, big, "big.conf");
  change_mode("/big.conf", 0644);
  assert_true(read_conf(&f, "/big.conf", sentence) < 0);
  assert_string_equal(sentence, "/big.conf is longer than 65536 bytes: a setting on a line is all that it needs");
  opts_file_finish(&f);
  big[OPTS_FILE_MAX] = '\0';
  tree_put(&tree, big, "full.conf");
  change_mode("/full.conf", 0644);
  assert_int_equal(read_conf(&f, "/full.conf", sentence), 0);
  opts_file_finish(&f);
  free(big);
}

static int set_up(void **state) {
  tree_init(&tree);
  return 0;
}

static int tear_down(void **state) {
  tree_finish(&tree);
  return 0;
}

int main(void) {
  return unit_run(set_up, tear_down);
}
