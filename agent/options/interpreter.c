/* SPDX-License-Identifier: Apache-2.0 */
/* The program that runs on this host.
 *
 * PATH travels with a job, but hosts differ: python3 may belong to an environment on one host and to the system on the
 * next. A worker then fails late, or trains with another version of a library. So each host reports the file that it
 * would run: the one behind all links, since /usr/bin/python3 links to python3.9 here and to python3.11 there. Its
 * folder does not matter. For a script the program of its first line counts; `#!/usr/bin/env python3` searches PATH
 * too.
 *
 * A script may run another program in its place, as pyenv's shims do, which are bash. Only the process shows that:
 * /proc/PID/exe is the file behind all links. The name by which it was started leads to a virtual environment, if it
 * leads to the same file. */

#include "agent/options/interpreter.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/cluster/cluster.h"
#include "agent/options/command_line.h"
#include "agent/options/options.h"
#include "common/buf.h"
#include "common/system/command.h"
#include "common/system/file.h"
#include "common/mem.h"

enum { ENVIRON_MAX = 256 * 1024, BELOW_MAX = 32 /* processes that are looked at, by a thread with a small stack */ };
enum { LINE_MAX_LEN = 255 }; /* of a script's first line: the kernel reads no more */

static const char *base_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* Reads the first line of a script, after "#!"; false: it is not a script. */
static bool read_line(const char *file, char line[LINE_MAX_LEN + 1]) {
  int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  ssize_t n = fd < 0 ? -1 : read(fd, line, LINE_MAX_LEN);
  if (fd >= 0) close(fd);
  if (n < 2 || line[0] != '#' || line[1] != '!') return false;
  line[n] = '\0';
  line[strcspn(line, "\n")] = '\0';
  memmove(line, line + 2, strlen(line + 2) + 1);
  return true;
}

/* "/usr/bin/env -S A=b python3 -u" is python3 in PATH; other programs stay as they are. Heap, or NULL. */
static char *find_named(char *line, const char *path) {
  char *rest = line, *word = strtok_r(rest, " \t", &rest);
  if (!word) return NULL;
  if (strcmp(base_of(word), "env") != 0) return xstrdup(word);
  while ((word = strtok_r(rest, " \t", &rest)) && (*word == '-' || strchr(word, '='))) continue;
  return word ? command_find(word, path, NULL) : NULL;
}

/* Takes `file`. */
static char *with_target(char *file) {
  char *real = file ? realpath(file, NULL) : NULL;
  if (real && strcmp(base_of(real), base_of(file)) != 0) {
    char *both = xasprintf("%s (%s)", file, base_of(real));
    free(file);
    file = both;
  }
  free(real);
  return file;
}

char *interpreter_find(char *const *argv, char *const *env, const char *folder) {
  static struct agent_options o;
  int argc = 0;
  while (argv[argc]) argc++;
  o = (struct agent_options){0};
  if (opts_parse(&agent_options_spec, argc, argv, env, &o, &o.parsed, NULL)) return NULL;
  agent_options_take_words(&o, argc, argv);
  if (!o.command) return NULL;
  o.own_python = command_own_python(NULL);
  char **words = command_line_create(&o, env, NULL);
  char line[LINE_MAX_LEN + 1], *name = words[0], *file;
  const char *path = cluster_variable(env, "PATH");
  char *whole = strchr(name, '/') && *name != '/' ? xasprintf("%s/%s", folder, name) : xstrdup(name);
  file = command_find(whole, path, NULL);
  if (file && read_line(file, line)) {
    free(file);
    file = find_named(line, path);
  }
  free(whole);
  free(words);
  free(o.own_python);
  return with_target(file);
}

/* A process that runs. ------------------------------------------------------------------------------------------------ */

static bool is_python(const char *base) {
  return strncmp(base, "python", 6) == 0 || strncmp(base, "pypy", 4) == 0;
}

bool interpreter_is_python(const char *found) {
  const char *target = strrchr(found, '(');
  return is_python(target && target > found && target[-1] == ' ' ? target + 1 : base_of(found));
}

char *interpreter_of_script(const char *name, char *const *env) {
  char line[LINE_MAX_LEN + 1];
  const char *path = cluster_variable(env, "PATH");
  char *file = command_find(name, path, NULL);
  char *program = file && read_line(file, line) ? find_named(line, path) : NULL;
  free(file);
  if (program && is_python(base_of(program))) return program;
  free(program);
  return NULL;
}

/* PREFIX/bin/python has it in PREFIX/lib/python3.9/site-packages, Debian's in dist-packages. */
bool interpreter_has_old_torch(const char *python) {
  static const char *const folders[] = {"python3*/site-packages", "python3*/dist-packages"};
  const char *slash = strrchr(python, '/');
  int found = 0, major = 0;
  for (size_t i = 0; slash && !found && i < sizeof(folders) / sizeof(*folders); i++) {
    glob_t g = {0};
    char *pattern = xasprintf("%.*s/../lib/%s/torch/version.py", (int)(slash - python), python, folders[i]);
    FILE *f = glob(pattern, 0, NULL, &g) == 0 ? fopen(g.gl_pathv[0], "re") : NULL;
    char line[256];
    while (f && !found && fgets(line, sizeof(line), f)) found = sscanf(line, "__version__ = %*[\"']%d.", &major) == 1;
    if (f) fclose(f);
    globfree(&g);
    free(pattern);
  }
  return found && major < 2;
}

/* Of /proc/PID/FILE at most ENVIRON_MAX bytes, and a NUL. */
static void read_proc(pid_t pid, const char *file, struct buf *out) {
  char path[96];
  snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
  file_drain(open(path, O_RDONLY | O_CLOEXEC), ENVIRON_MAX, out);
  buf_putc(out, '\0');
}

/* The name by which it was started, as a file, if that is the file that runs; else NULL. */
static char *started_as(pid_t pid, const char *exe) {
  struct buf words = BUF_INIT, env = BUF_INIT;
  const char *path = NULL;
  read_proc(pid, "cmdline", &words);
  read_proc(pid, "environ", &env);
  for (size_t at = 0; at < env.len && !path; at += strlen(env.data + at) + 1)
    if (strncmp(env.data + at, "PATH=", 5) == 0) path = env.data + at + 5;
  char *file = command_find(words.data, path, NULL), *real = file && *file == '/' ? realpath(file, NULL) : NULL;
  if (!real || strcmp(real, exe) != 0) {
    free(file);
    file = NULL;
  }
  free(real);
  buf_finish(&words);
  buf_finish(&env);
  return file;
}

static char *find_running(pid_t pid, int *looks) {
  char path[64], exe[4096], *found = NULL;
  if (--*looks < 0) return NULL;
  snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
  ssize_t n = readlink(path, exe, sizeof(exe) - 1);
  exe[n > 0 ? n : 0] = '\0';
  if (is_python(base_of(exe))) {
    found = started_as(pid, exe);
    return with_target(found ? found : xstrdup(exe));
  }
  struct buf children = BUF_INIT;
  snprintf(path, sizeof(path), "task/%d/children", (int)pid);
  read_proc(pid, path, &children);
  char *at = children.data, *end;
  for (long child; !found && (child = strtol(at, &end, 10)) > 0 && end != at; at = end)
    found = find_running((pid_t)child, looks);
  buf_finish(&children);
  return found;
}

char *interpreter_running(pid_t pid) {
  char self[24];
  int looks = BELOW_MAX;
  ssize_t n = readlink("/proc/self", self, sizeof(self) - 1);
  self[n > 0 ? n : 0] = '\0';
  return strtol(self, NULL, 10) == getpid() ? find_running(pid, &looks)
                                            : NULL; /* else /proc counts otherwise than we do */
}
