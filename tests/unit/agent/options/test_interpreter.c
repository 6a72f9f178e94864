/* SPDX-License-Identifier: Apache-2.0 */
/* agent/options/interpreter.c: the program that a command runs, in a folder of the test. */

#include "agent/options/interpreter.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

enum { WORDS_MAX = 16 };

static struct tree tree;

static void put_program(const char *path, const char *text) {
  char whole[256];
  tree_put(&tree, text, "%s", path);
  snprintf(whole, sizeof(whole), "%s/%s", tree.root, path);
  assert_int_equal(chmod(whole, 0755), 0);
}

static void put_link(const char *path, const char *target) {
  char whole[256];
  snprintf(whole, sizeof(whole), "%s/%s", tree.root, path);
  assert_int_equal(symlink(target, whole), 0);
}

/* The program without the made folder's name; "-": there is none. */
static const char *find(const char *words, const char *variable) {
  static char out[512];
  char text[256], path[256], folder[128], named[64], *argv[WORDS_MAX], *env[] = {path, named, NULL};
  int argc = 0;
  snprintf(text, sizeof(text), "rdzv-agent %s", words);
  snprintf(path, sizeof(path), "PATH=%s/env:%s/usr", tree.root, tree.root);
  snprintf(folder, sizeof(folder), "%s/work", tree.root);
  snprintf(named, sizeof(named), "%s", variable);
  for (char *p = strtok(text, " "); p; p = strtok(NULL, " ")) argv[argc++] = p;
  argv[argc] = NULL;
  char *found = interpreter_find(argv, env, folder);
  size_t skip = found && strncmp(found, tree.root, strlen(tree.root)) == 0 ? strlen(tree.root) : 0;
  snprintf(out, sizeof(out), "%s", found ? found + skip : "-");
  free(found);
  return out;
}

UNIT_TEST(finds_what_runs) {
  static const struct {
    const char *words, *variable, *expected;
  } cases[] = {
      {"--nproc 2 -- python train.py", "", "/env/python (python3.11)"},
      {"--nproc 2 train.py", "", "/usr/python3"},
      {"train.py", "PYTHON_EXEC=python", "/env/python (python3.11)"},
      {"-m train", "", "/usr/python3"},
      {"--no-python -- ./env.py", "", "/usr/python3"},
      {"--no-python -- ./split", "", "/env/python (python3.11)"},
      {"--no-python -- ./shell", "", "/bin/sh"},
      {"--no-python -- ./lost", "", "-"},
      {"--no-python -- ./empty", "", "/work/./empty"},
      {"-- nothing", "", "-"},
      {"-- ./nothing", "", "-"},
      {"--nproc 2", "", "-"},
      {"-- --steps 3", "", "-"},
      {"--nosuch option", "", "-"},
  };
  tree_init(&tree);
  put_program("usr/python3", "\177ELF");
  put_program("usr/python3.11", "\177ELF");
  put_program("env/readme", "");
  put_link("env/python", "../usr/python3.11");
  put_program("work/env.py", "#!/usr/bin/env python3\n");
  put_program("work/split", "#! /usr/bin/env -S A=b python -u\nimport os\n");
  put_program("work/shell", "#!/bin/sh");
  put_program("work/lost", "#!/usr/bin/env nosuch\n");
  put_program("work/empty", "");
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    const char *got = find(cases[i].words, cases[i].variable);
    if (i == 6 && strncmp(got, "/bin/sh", 7) == 0) continue; /* what it is a link to differs */
    if (strcmp(got, cases[i].expected) != 0)
      fail_msg("%s: %s was expected, and it is %s", cases[i].words, cases[i].expected, got);
  }
  tree_finish(&tree);
}

UNIT_TEST(knows_a_python) {
  assert_true(interpreter_is_python("/env/bin/python3"));
  assert_true(interpreter_is_python("/opt/(x)/run (python3.11)"));
  assert_true(interpreter_is_python("/usr/bin/pypy3"));
  assert_false(interpreter_is_python("/home/anna/.pyenv/shims/python3 (bash)"));
  assert_false(interpreter_is_python("/usr/bin/bash"));
}

/* A shell runs it, as pyenv's shims do, from a virtual environment: a link there to a copy of `sleep`. */
UNIT_TEST(finds_what_runs_in_its_place) {
  char script[512], want[256], path[256];
  tree_init(&tree);
  tree_put(&tree, "", "usr/readme");
  tree_put(&tree, "", "env/readme");
  snprintf(script, sizeof(script), "cp $(command -v sleep) %s/usr/python3.11", tree.root);
  assert_int_equal(system(script), 0);
  put_link("env/python3", "../usr/python3.11");
  const char *const ways[] = {"exec python3 60", "python3 60; exit 1", "sleep 60 & exec python3 60"};
  snprintf(want, sizeof(want), "%s/env/python3 (python3.11)", tree.root);
  for (size_t i = 0; i < sizeof(ways) / sizeof(*ways); i++) {
    pid_t pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      snprintf(path, sizeof(path), "%s/env:%s", tree.root, getenv("PATH"));
      setenv("PATH", path, 1);
      execl("/bin/sh", "sh", "-c", ways[i], (char *)NULL);
      _exit(127);
    }
    char *found = NULL;
    for (int looks = 0; !found && looks < 1000; looks++) {
      usleep(10000);
      found = interpreter_running(pid);
    }
    assert_non_null(found);
    assert_string_equal(found, want);
    free(found);
    kill(-pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_null(interpreter_running(pid));
  }
  tree_finish(&tree);
}
