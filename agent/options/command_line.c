/* SPDX-License-Identifier: Apache-2.0 */
/* The workers' command line.
 *
 * torchrun takes its first word for a Python script unless told otherwise. Here a command may be any program, so the
 * word decides: a name that ends in ".py", and anything that only Python can run (common/system/command.c). --module,
 * --run-path and --no-python decide as under torchrun. An agent that pip installed in a virtual environment runs
 * scripts under the environment's Python, activated or not. Elsewhere it is python3 in PATH. PYTHON_EXEC overrules
 * both.
 *
 * torchrun's parser drops a "--" that directly follows the script, and scripts are called with one by habit. So it is
 * dropped here too for Python commands; a program's words stay.
 *
 * ${local_rank} in an argument becomes the worker's local rank. torchrun also replaces $local_rank and $$. The shell
 * uses both, and `sh -c` must get them unchanged, so they stay. */

#include "agent/options/command_line.h"

#include <string.h>
#include "common/mem.h"

static const char macro[] = "${local_rank}";
static char default_python[] = "python3", unbuffered[] = "-u", module_flag[] = "-m", code_flag[] = "-c";
static char local_rank_flag[] = "--local-rank=${local_rank}", old_local_rank_flag[] = "--local_rank=${local_rank}";
static char run_path_code[] = "import runpy, sys; sys.argv = sys.argv[1:]; "
                              "runpy.run_path(sys.argv[0], run_name='__main__')";

enum { HEAD_MAX = 6 }; /* words that the agent adds, and the NULL */

enum command_kind command_line_kind(const struct agent_options *o) {
  if (!o->command) return COMMAND_TRAINER;
  if (o->torch.run_path) return COMMAND_RUN_PATH;
  if (o->torch.no_python) return COMMAND_PROGRAM;
  if (o->torch.module) return COMMAND_MODULE;
  size_t n = strlen(o->words[0]);
  bool named = n > 3 && strcmp(o->words[0] + n - 3, ".py") == 0;
  return named || o->python_file ? COMMAND_SCRIPT : COMMAND_PROGRAM;
}

char *command_line_python(const struct agent_options *o, char *const *env) {
  char *given = agent_options_variable(env, "PYTHON_EXEC");
  if (given && given[strlen("PYTHON_EXEC=")]) return given + strlen("PYTHON_EXEC=");
  return o->own_python ? o->own_python : default_python;
}

char **command_line_create(const struct agent_options *o, char *const *env, char *trainer) {
  enum command_kind kind = command_line_kind(o);
  char *const *words = o->words;
  size_t n = 0, at = 0;
  while (words[n]) n++;
  char **argv = xcalloc(n + HEAD_MAX, sizeof(*argv));
  if (kind == COMMAND_TRAINER) argv[at++] = trainer;
  if (kind > COMMAND_PROGRAM) {
    argv[at++] = command_line_python(o, env);
    argv[at++] = unbuffered;
  }
  if (kind == COMMAND_MODULE) argv[at++] = module_flag;
  if (kind == COMMAND_RUN_PATH) {
    argv[at++] = code_flag;
    argv[at++] = run_path_code;
  }
  bool dropped = (kind > COMMAND_PROGRAM || (o->command && o->torch.no_python)) && !o->dashes;
  for (size_t i = 0; i < n; i++) {
    if (i != 1 || !dropped || strcmp(words[i], "--") != 0) argv[at++] = words[i];
    if (i == 0 && o->torch.pass_local_rank) argv[at++] = o->old_local_rank ? old_local_rank_flag : local_rank_flag;
  }
  return argv;
}

char **command_line_for(char *const *argv, uint32_t local_rank) {
  struct buf words = BUF_INIT;
  size_t n = 0;
  for (; argv[n]; n++) {
    const char *text = argv[n];
    for (const char *at; n && (at = strstr(text, macro)); text = at + strlen(macro)) {
      buf_append(&words, text, (size_t)(at - text));
      buf_printf(&words, "%u", (unsigned)local_rank);
    }
    buf_append(&words, text, strlen(text) + 1);
  }
  char **out = xcalloc(1, (n + 1) * sizeof(*out) + words.len);
  char *to = (char *)(out + n + 1);
  if (words.len) memcpy(to, words.data, words.len);
  buf_finish(&words);
  for (size_t i = 0; i < n; i++, to += strlen(to) + 1) out[i] = to;
  return out;
}
