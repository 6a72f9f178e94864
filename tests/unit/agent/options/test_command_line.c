/* SPDX-License-Identifier: Apache-2.0 */
/* agent/options/command_line.c: from words to argv; and the output of --explain. */

#include "agent/options/command_line.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/options.h"

/* Parses words parted by blanks and joins the argv that comes of them by '|'. */
static const char *become(const char *words, const char *variable) {
  static char out[512], trainer[] = "/bin/rdzv-trainer";
  char **got = command_line_create(parse(words, variable), l.env, trainer);
  out[0] = '\0';
  for (char **p = got; *p; p++) strcat(strcat(out, p == got ? "" : "|"), *p);
  free(got);
  return out;
}

UNIT_TEST(what_runs) {
  static const struct {
    const char *words, *argv;
    enum command_kind kind;
  } cases[] = {
      {"", "/bin/rdzv-trainer", COMMAND_TRAINER},
      {"-- --steps 3", "/bin/rdzv-trainer|--steps|3", COMMAND_TRAINER},
      {"./a.out -x", "./a.out|-x", COMMAND_PROGRAM},
      {"train", "train", COMMAND_PROGRAM},
      {".py", ".py", COMMAND_PROGRAM},
      {"train.py a --b", "python3|-u|train.py|a|--b", COMMAND_SCRIPT},
      {"-- dir/train.py", "python3|-u|dir/train.py", COMMAND_SCRIPT},
      {"python train.py", "python|train.py", COMMAND_PROGRAM},
      {"--no-python train.py a", "train.py|a", COMMAND_PROGRAM},
      {"-m pkg.mod --x", "python3|-u|-m|pkg.mod|--x", COMMAND_MODULE},
      {"--module train.py", "python3|-u|-m|train.py", COMMAND_MODULE},
      {"train.py -- --x", "python3|-u|train.py|--x", COMMAND_SCRIPT},
      {"train.py a -- --x", "python3|-u|train.py|a|--|--x", COMMAND_SCRIPT},
      {"-- train.py -- --x", "python3|-u|train.py|--|--x", COMMAND_SCRIPT},
      {"--no-python train -- --x", "train|--x", COMMAND_PROGRAM},
      {"sh -- x", "sh|--|x", COMMAND_PROGRAM},
      {"--pass-local-rank old.py a", "python3|-u|old.py|--local-rank=${local_rank}|a", COMMAND_SCRIPT},
      {"--pass-local-rank old.py -- a", "python3|-u|old.py|--local-rank=${local_rank}|a", COMMAND_SCRIPT},
      {"--pass-local-rank -m old", "python3|-u|-m|old|--local-rank=${local_rank}", COMMAND_MODULE},
      {"--use-env old.py a", "python3|-u|old.py|a", COMMAND_SCRIPT},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    assert_string_equal(become(cases[i].words, "A=b"), cases[i].argv);
    assert_int_equal(command_line_kind(&l.o), cases[i].kind);
  }
  const char *run_path = become("--run-path --no-python dir/x.py a", "A=b");
  assert_int_equal(command_line_kind(&l.o), COMMAND_RUN_PATH);
  assert_int_equal(strncmp(run_path, "python3|-u|-c|import runpy", 26), 0);
  assert_string_equal(run_path + strlen(run_path) - 11, "|dir/x.py|a");
}

UNIT_TEST(which_python) {
  assert_string_equal(become("x.py", "PYTHON_EXEC=/opt/python"), "/opt/python|-u|x.py");
  assert_string_equal(become("-m x", "PYTHON_EXEC=/opt/python"), "/opt/python|-u|-m|x");
  assert_string_equal(become("x.py", "PYTHON_EXEC="), "python3|-u|x.py");
  assert_string_equal(become("./x", "PYTHON_EXEC=/opt/python"), "./x");
}

UNIT_TEST(which_python_in_an_environment) {
  static char own[] = "/env/bin/python3", exec[] = "PYTHON_EXEC=/opt/python", none[] = "PYTHON_EXEC=";
  become("x.py", "A=b");
  l.o.own_python = own;
  assert_string_equal(command_line_python(&l.o, (char *[]){none, NULL}), own);
  assert_string_equal(command_line_python(&l.o, (char *[]){exec, NULL}), "/opt/python");
}

UNIT_TEST(local_rank_in_arguments) {
  char zero[] = "${local_rank}", one[] = "--local-rank=${local_rank}",
       two[] = "${local_rank}${local_rank}-${local_ran}", three[] = "$local_rank $$", four[] = "";
  char *argv[] = {zero, one, two, three, four, NULL};
  char **got = command_line_for(argv, 1023);
  assert_string_equal(got[0], "${local_rank}"); /* the program's name is none of its arguments */
  assert_string_equal(got[1], "--local-rank=1023");
  assert_string_equal(got[2], "10231023-${local_ran}");
  assert_string_equal(got[3], "$local_rank $$");
  assert_string_equal(got[4], "");
  assert_null(got[5]);
  free(got);
}

UNIT_TEST(explains) {
  static char python[] = "python3", word[] = "it's $x\n\x1b", empty[] = "";
  char *command[] = {python, word, empty, NULL};
  struct buf out = BUF_INIT;
  become("--nproc 2 --nnodes 1 -r 1:3 --duplicate-stdout-filters a,b --stop-timeout 1500ms x", "A=b");
  agent_options_explain(&l.o, &(struct options_told){.job = "job", .workers = 2, .local_world = 2, .command = command},
                        &out);
  static const char *const lines[] = {"nnodes 1:1\n",
                                      "nproc 2\n",
                                      "job 'job'\n",
                                      "endpoint standalone\n",
                                      "node-rank -\n",
                                      "stop-timeout 1.5\n",
                                      "redirects 1:3\n",
                                      "tee -\n",
                                      "local-ranks-filter -\n",
                                      "duplicate-stdout-filters 'a' 'b'\n",
                                      "duplicate-stderr-filters -\n",
                                      "command 'python3' 'it'\\''s $x\\n\\x1b' ''\n"};
  for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
    if (!strstr(buf_text(&out), lines[i])) fail_msg("no '%s' in:\n%s", lines[i], buf_text(&out));
  buf_finish(&out);
}
