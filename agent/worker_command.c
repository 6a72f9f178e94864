/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes in the workers' command.
 *
 * A command line that ends where a command should stand is refused, with "--" or without: it is what an unset variable
 * leaves behind, and training something else instead would look like success. So a job of rdzv-trainer names at least
 * one of its options.
 *
 * torchrun looks for a script in the current folder; a shell looks for a program in PATH. A word that neither finds is
 * explained by what this folder has under that name: a program, a script that lacks its permission or its first line, a
 * folder, a module, or a name that is nearly the same. The advice is a command line that runs.
 *
 * A folder is read for near names only after something was not found, and no further than NAMES_READ_MAX entries. */

#include "agent/worker_command.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/options/command_line.h"
#include "common/system/command.h"
#include "common/mem.h"
#include "common/did_you_mean.h"

enum { NAMES_READ_MAX = 10000 };

static bool ends_in(const char *text, const char *end) {
  size_t n = strlen(text), k = strlen(end);
  return n > k && strcmp(text + n - k, end) == 0;
}

static bool is_plain_file(const char *name) {
  struct stat st;
  return stat(name, &st) == 0 && S_ISREG(st.st_mode);
}

static bool is_folder(const char *name) {
  struct stat st;
  return stat(name, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The kernel runs it, if it may: it is a binary, or has a first line such as #!/bin/sh. A pipe or a device is not read,
 * because that may wait forever. */
static bool is_runnable_kind(const char *file) {
  char head[4] = "";
  FILE *f = is_plain_file(file) ? fopen(file, "re") : NULL;
  size_t n = f ? fread(head, 1, sizeof(head), f) : 0;
  if (f) fclose(f);
  return (n >= 2 && memcmp(head, "#!", 2) == 0) || (n == 4 && memcmp(head,
                                                                     "\x7f"
                                                                     "ELF",
                                                                     4) == 0);
}

static const char *runner_of(const char *file) {
  return ends_in(file, ".sh") ? "bash" : "python3";
}

/* Words. ----------------------------------------------------------------------------------------------------------- */

static int check_module(const struct agent_options *o, struct err *e) {
  const char *word = o->words[0];
  if (command_line_kind(o) != COMMAND_MODULE) return 0;
  if (!strchr(word, '/') && !(ends_in(word, ".py") && is_plain_file(word))) return 0;
  if (word[0] == '/')
    return err_set(e, -EINVAL, "-m %s: that is a file, not the name of a module: write %s without -m", word, word);
  /* "./pkg/train.py" is the module pkg.train. */
  const char *file = word;
  while (strncmp(file, "./", 2) == 0) file += 2;
  char *module = xstrdup(file);
  if (ends_in(module, ".py")) module[strlen(module) - 3] = '\0';
  for (char *p = module; *p; p++)
    if (*p == '/') *p = '.';
  err_set(e, -EINVAL, "-m %s: that is a file, not the name of a module: write -m %s, or %s without -m", word, module,
          word);
  free(module);
  return -EINVAL;
}

int worker_command_check_words(const struct agent_options *o, struct err *e) {
  if (o->explain) return 0; /* nothing will run */
  if (!o->words || !o->words[0]) {
    /* The last option may have taken a file as its value, and not what was meant. */
    const char *option = o->parsed.last, *last = o->words && *option ? o->words[-1] : "";
    if (*option && (ends_in(last, ".py") || is_plain_file(last)))
      return err_set(e, -EINVAL, "a command is missing: %s took %s as its value; is a variable in front of it unset?",
                     option, last);
    return err_set(
        e, -EINVAL,
        "a command is missing: rdzv-agent ... train.py runs a script, rdzv-agent ... -- ./program a program, "
        "and rdzv-agent ... -- --epochs 1 rdzv-trainer with that option");
  }
  if (!o->words[0][0]) return err_set(e, -EINVAL, "the command is empty: is a variable unset?");
  if (!o->words[0][strspn(o->words[0], " \t")])
    return err_set(e, -EINVAL, "the command is a blank: remove the blank behind the backslash that ends the line");
  return o->command ? check_module(o, e) : 0;
}

/* Near names. ------------------------------------------------------------------------------------------------------ */

/* Appends "; did you mean X?" if the file's folder has an entry whose name is near. */
static void suggest_file(const char *file, struct err *e) {
  const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
  int folder_len = slash ? (int)(slash - file) + 1 : 0, left = NAMES_READ_MAX;
  char *folder = slash ? xasprintf("%.*s", folder_len, file) : xstrdup("."), *best = NULL;
  size_t least = SIZE_MAX;
  DIR *dir = opendir(folder);
  for (struct dirent *entry; dir && left-- > 0 && (entry = readdir(dir));) {
    size_t d = entry->d_name[0] == '.' ? SIZE_MAX : near_distance(name, entry->d_name);
    if (d >= least) continue;
    least = d;
    free(best);
    best = xasprintf("%.*s%s", folder_len, file, entry->d_name);
  }
  if (dir) closedir(dir);
  free(folder);
  bool bare = best && !slash && !ends_in(best, ".py"); /* a shell would look for it in PATH */
  if (best) err_set(e, e->code, "%s; did you mean %s%s?", e->text, bare ? "./" : "", best);
  free(best);
}

/* Programs. -------------------------------------------------------------------------------------------------------- */

/* What `word`, which is not in PATH, may be meant for. */
static void suggest_program(const struct agent_options *o, const char *word, struct err *e) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789";
  size_t before = strcspn(word, "="), named = strspn(word, letters);
  char *file = xasprintf("%s.py", word);
  for (char *p = file; p < file + strlen(word); p++)
    if (*p == '.') *p = '/';
  if (is_folder(word))
    err_set(e, e->code, "%s; the folder of that name has no __main__.py, so name a script in it", e->text);
  else if (is_plain_file(word) && ends_in(word, ".py") && o->torch.no_python)
    err_set(e, e->code, "%s; without --no-python it runs under Python", e->text);
  else if (is_plain_file(word) && access(word, X_OK) == 0)
    err_set(e, e->code, "%s; to run the file in this folder write ./%s", e->text, word);
  else if (is_plain_file(word) && is_runnable_kind(word))
    err_set(e, e->code, "%s; to run the file in this folder type chmod +x %s, and write ./%s", e->text, word, word);
  else if (is_plain_file(word))
    err_set(e, e->code,
            "%s; the file in this folder has no first line such as #!/bin/sh: write what runs it in front, such as %s "
            "%s",
            e->text, runner_of(word), word);
  else if (word[before] && opts_name(&agent_options_spec, word, before)) /* "nproc_per_node=2" */
    err_set(e, e->code, "%s; did you mean --%s?", e->text, word);
  else if (named > 0 && word[named] == '=' && !strchr("0123456789", word[0])) /* "NAME=VALUE" */
    err_set(e, e->code, "%s; a variable for the workers stands in front of rdzv-agent", e->text);
  else if (strchr(word, ' ')) /* "train.py --lr 1" */
    err_set(e, e->code, "%s; it is one word with blanks: remove the quotes", e->text);
  else if (strchr(word, '.') && is_plain_file(file)) /* "pkg.train" where pkg/train.py is */
    err_set(e, e->code, "%s; to run the module write -m %s", e->text, word);
  else
    suggest_file(word, e);
  free(file);
}

/* Python would log these too, once per worker, and the job would restart. */
static int check_script(const struct agent_options *o, bool *hint, struct err *e) {
  enum command_kind kind = command_line_kind(o);
  const char *script = o->words[0];
  char folder[PATH_MAX], *main_file = xasprintf("%s/__main__.py", script);
  bool without_main = is_folder(script) && access(main_file, F_OK) != 0;
  free(main_file);
  if (kind != COMMAND_SCRIPT && kind != COMMAND_RUN_PATH) return 0;
  *hint = true;
  if (without_main)
    return err_set(e, -EACCES, "the script %s is a folder without __main__.py: name a script in it", script);
  *hint = false;
  if (access(script, R_OK) == 0) return 0;
  int rc = -errno;
  *hint = true;
  err_sys(e, rc, "the script %s cannot be read, from the folder %s", script,
          getcwd(folder, sizeof(folder)) ? folder : "of this agent");
  if (rc == -ENOENT) suggest_file(script, e);
  return rc;
}

/* "#!/bin/sh\r" names a program that no machine has. The kernel, a shell and env say that something was not found, and
 * mean neither the script nor /bin/sh. */
static int check_first_line(const char *word, const char *file, const char *path, struct err *e) {
  char line[256] = "";
  FILE *f = is_plain_file(file) ? fopen(file, "re") : NULL;
  bool read = f && fgets(line, sizeof(line), f);
  if (f) fclose(f);
  size_t n = strlen(line);
  if (!read || strncmp(line, "#!", 2) != 0 || n < 4 || strcmp(line + n - 2, "\r\n") != 0) return 0;
  line[n - 2] = '\0';
  char *program = line + 2 + strspn(line + 2, " \t"), *rest = program + strcspn(program, " \t");
  bool by_env = *rest && rest - program >= 4 && strncmp(rest - 4, "/env", 4) == 0;
  const char *last = by_env ? rest + strspn(rest, " \t") : program;
  if (*rest && (!by_env || strpbrk(last, " \t=")))
    return 0; /* the program gets the \r, and knows what it does with it */
  char *name = xasprintf("%s\r", last), *found = command_find(name, path, NULL);
  bool missing = !found;
  free(found);
  free(name);
  if (!missing) return 0;
  return err_set(e, -ENOENT,
                 "%s cannot be run: its first line ends in \\r, as Windows writes lines, so it asks for a program "
                 "\"%s\\r\": sed -i 's/\\r$//' %s",
                 word, last, word);
}

int worker_command_check(const struct agent_options *o, char *const *argv, const char *path, bool *hint,
                         struct err *e) {
  bool by_python = command_line_kind(o) > COMMAND_PROGRAM;
  char *file = command_find(argv[0], path, e);
  *hint = false;
  if (file) {
    int rc = by_python ? check_script(o, hint, e) : check_first_line(argv[0], file, path, e);
    *hint = *hint || (rc && !by_python);
    free(file);
    return rc;
  }
  const struct err plain = *e;
  const char *word = argv[0];
  bool denied = e->code == -EACCES && strchr(word, '/');
  if (by_python)
    err_wrap(e, "%s needs Python (PYTHON_EXEC names another one)", o->words[0]);
  else if (e->code == -ENOENT)
    suggest_program(o, word, e);
  else if (denied && is_folder(word))
    err_set(e, -EACCES, "%s is a folder without __main__.py: name a script in it", word);
  else if (denied && !is_plain_file(word))
    err_set(e, -EACCES, "%s cannot be run: it is a pipe or a device, and not a file: name a script or a program", word);
  else if (denied && (o->torch.no_python || is_runnable_kind(word)))
    err_set(e, -EACCES, "%s cannot be run: it is not executable: chmod +x %s", word, word);
  else if (denied)
    err_set(e, -EACCES,
            "%s cannot be run: it is neither executable nor a Python file: write what runs it in front, such as %s %s",
            word, runner_of(word), word);
  *hint = by_python || strcmp(e->text, plain.text) != 0;
  return e->code;
}
