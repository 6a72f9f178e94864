/* SPDX-License-Identifier: Apache-2.0 */
/* The workers' command line.
 *
 * torchrun takes its first word for a Python script unless told otherwise. Here a command may be any program, so the
 * word decides: a name that ends in ".py", and anything that only Python can run (common/system/command.c checks: a
 * script without a suffix, a .pyz, a folder with __main__.py). --module, --run-path and --no-python decide as under
 * torchrun. torchrun runs scripts under its own interpreter. An agent that pip installed in a virtual environment runs
 * them under the environment's, activated or not. Elsewhere the interpreter is python3 in PATH. PYTHON_EXEC overrules
 * both. -u makes lines appear when they are printed.
 *
 * torchrun's parser drops a "--" that directly follows the script, and scripts are called with one by habit. So it is
 * dropped here too for Python commands; a program's words stay.
 *
 * --pass-local-rank is torch.distributed.launch without --use-env: --local-rank=${local_rank} precedes the script's
 * arguments, or --local_rank=${local_rank} before PyTorch 2.0.
 *
 * ${local_rank} in an argument becomes the worker's local rank. torchrun also replaces $local_rank and $$. The shell
 * uses both, and `sh -c` must get them unchanged, so they stay. */

#include "agent/options/command_line.h"

#include <stdio.h>
#include <string.h>
#include "common/mem.h"

static char macro[] = "${local_rank}";
static char default_python[] = "python3", unbuffered[] = "-u", module_flag[] = "-m", code_flag[] = "-c";
static char local_rank_flag[] = "--local-rank=${local_rank}", old_local_rank_flag[] = "--local_rank=${local_rank}";
static char run_path_code[] = "import runpy, sys; sys.argv = sys.argv[1:]; "
                              "runpy.run_path(sys.argv[0], run_name='__main__')";

enum { HEAD_MAX = 6 }; /* words that the agent adds, and the NULL */

static bool ends_in(const char *text, const char *end) {
  size_t n = strlen(text), k = strlen(end);
  return n > k && strcmp(text + n - k, end) == 0;
}

enum command_kind command_line_kind(const struct agent_options *o) {
  if (!o->command) return COMMAND_TRAINER;
  if (o->torch.run_path) return COMMAND_RUN_PATH;
  if (o->torch.no_python) return COMMAND_PROGRAM;
  if (o->torch.module) return COMMAND_MODULE;
  return ends_in(o->words[0], ".py") || o->python_file ? COMMAND_SCRIPT : COMMAND_PROGRAM;
}

char *command_line_python(const struct agent_options *o, char *const *env) {
  static const char name[] = "PYTHON_EXEC=";
  for (; env && *env; env++)
    if (strncmp(*env, name, sizeof(name) - 1) == 0 && (*env)[sizeof(name) - 1]) return *env + sizeof(name) - 1;
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

/* Copies text to `to` (NULL: only counts) with each macro replaced; returns the bytes, with the NUL. */
static size_t copy_replaced(char *to, const char *text, const char *rank) {
  size_t used = 0, k = strlen(macro), r = strlen(rank);
  while (*text) {
    bool here = strncmp(text, macro, k) == 0;
    if (to && here) memcpy(to + used, rank, r);
    if (to && !here) to[used] = *text;
    used += here ? r : 1;
    text += here ? k : 1;
  }
  if (to) to[used] = '\0';
  return used + 1;
}

char **command_line_for(char *const *argv, uint32_t local_rank) {
  char rank[12];
  size_t n = 0, bytes = 0;
  snprintf(rank, sizeof(rank), "%u", (unsigned)local_rank);
  for (; argv[n]; n++) bytes += n ? copy_replaced(NULL, argv[n], rank) : strlen(argv[n]) + 1;
  char **out = xcalloc(1, (n + 1) * sizeof(*out) + bytes);
  char *to = (char *)(out + n + 1);
  for (size_t i = 0; i < n; i++) {
    size_t size = i ? copy_replaced(NULL, argv[i], rank) : strlen(argv[i]) + 1;
    out[i] = to;
    if (i)
      copy_replaced(to, argv[i], rank);
    else
      memcpy(to, argv[i], size);
    to += size;
  }
  return out;
}
