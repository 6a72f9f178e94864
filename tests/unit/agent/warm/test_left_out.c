/* SPDX-License-Identifier: Apache-2.0 */
/* agent/warm/left_out.c: what it says of files as template.py writes them, of others' files, and of damaged ones. */

#include "agent/warm/warm.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

static struct tree tree;
static char script[PATH_MAX];

static int open_tree(void **state) {
  char path[PATH_MAX];
  tree_init(&tree);
  tree_put(&tree, "", "work/train.py");
  snprintf(path, sizeof(path), "%s/work", tree.root);
  assert_int_equal(chdir(path), 0);
  assert_non_null(realpath("train.py", script));
  return 0;
}

static int close_tree(void **state) {
  assert_int_equal(chdir("/"), 0);
  tree_finish(&tree);
  return 0;
}

static void put_memory(const char *name, const char *key, const char *lines) {
  char *text = xasprintf("rdzv-warm 1\nkey /usr/bin/python3 (3, 11, 7) /usr %s\nseconds 1.000\n%s", key, lines);
  tree_put(&tree, text, "cache/rdzv/warm/%s", name);
  free(text);
}

/* What it says of the command "python3 -u WORDS...". */
static void expect_said(const char *expected, char *word, char *more) {
  char cache[PATH_MAX], python[] = "python3", option[] = "-u", *argv[] = {python, option, word, more, NULL};
  struct buf out = BUF_INIT;
  snprintf(cache, sizeof(cache), "%s/cache", tree.root);
  warm_left_out(argv, cache, "/nowhere", &out);
  assert_string_equal(buf_text(&out), expected);
  buf_finish(&out);
}

UNIT_TEST_WITH(test_of_the_script, open_tree, close_tree) {
  char file[] = "train.py", other[] = "eval.py", module_option[] = "-m", module[] = "pkg.train", folder[PATH_MAX];
  expect_said("", file, NULL);
  put_memory("0", script, "skip lightning it reads LOCAL_RANK\nmodule torch /t\nskip a:B it prints\nend 3\n");
  expect_said("without lightning: it reads LOCAL_RANK; a:B: it prints", file, NULL);
  expect_said("", other, NULL);
  expect_said("", module_option, module);
  assert_non_null(getcwd(folder, sizeof(folder)));
  char *key = xasprintf("module pkg.train %s", folder);
  put_memory("1", key, "skip trio it keeps a thread\nend 1\n");
  free(key);
  expect_said("without trio: it keeps a thread", module_option, module);
}

UNIT_TEST_WITH(test_damaged, open_tree, close_tree) {
  static const struct {
    const char *before, *after; /* the script's name */
  } texts[] = {
      {"", NULL},
      {"\n", NULL},
      {"rdzv-warm 1", NULL},
      {"rdzv-warm 1\nkey", NULL},
      {"rdzv-warm 2\nkey ", "\nskip a b\n"},
      {"rdzv-warm 1\nskip a b\nkey ", "\n"},
      {"rdzv-warm 1\nkey ", "\nskip\nskip \nskipper a\n"},
  };
  char file[] = "train.py";
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
    const char *after = texts[i].after;
    char *text = xasprintf("%s%s%s", texts[i].before, after ? script : "", after ? after : "");
    tree_put(&tree, text, "cache/rdzv/warm/0");
    free(text);
    expect_said("", file, NULL);
  }
  put_memory("0", script, "skip \x1b[31mred it is\ttoo long a word\nskip a b"); /* no last newline */
  expect_said("without \\x1b[31mred: it is\\ttoo long a word; a: b", file, NULL);
}

UNIT_TEST_WITH(test_of_others, open_tree, close_tree) {
  char file[] = "train.py", path[PATH_MAX], link[PATH_MAX];
  put_memory("0", script, "skip a b\nend 1\n");
  expect_said("without a: b", file, NULL);
  snprintf(path, sizeof(path), "%s/cache/rdzv/warm/0", tree.root);
  assert_int_equal(chmod(path, 0666), 0);
  expect_said("", file, NULL);
  assert_int_equal(chmod(path, 0600), 0);
  snprintf(link, sizeof(link), "%s/elsewhere", tree.root);
  assert_int_equal(rename(path, link), 0);
  assert_int_equal(symlink(link, path), 0);
  expect_said("", file, NULL);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0); /* nobody waits for it */
  expect_said("", file, NULL);
}
