/* SPDX-License-Identifier: Apache-2.0 */
/* The program that runs on this host.
 *
 * PATH travels with a job, but hosts differ: python3 may belong to an environment on one host and to the system on the
 * next. A worker then fails late, or trains with another version of a library. So each host reports the file that it
 * would run.
 *
 * The name of the file is not enough: /usr/bin/python3 links to python3.9 here and to python3.11 there. The folder of
 * the target does not matter, since a shared folder may be mounted elsewhere on each host.
 *
 * For a script the program of its first line counts; `#!/usr/bin/env python3` searches PATH too. */

#include "agent/options/interpreter.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/cluster/cluster.h"
#include "agent/options/command_line.h"
#include "agent/options/options.h"
#include "common/system/command.h"
#include "common/mem.h"

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

static char *find_program(const char *name, char *const *env, const char *folder) {
  char line[LINE_MAX_LEN + 1];
  const char *path = cluster_variable(env, "PATH");
  char *whole = strchr(name, '/') && *name != '/' ? xasprintf("%s/%s", folder, name) : xstrdup(name);
  char *file = command_find(whole, path, NULL);
  free(whole);
  if (!file || !read_line(file, line)) return file;
  free(file);
  return find_named(line, path);
}

char *interpreter_find(char *const *argv, char *const *env, const char *folder) {
  static struct agent_options o;
  int argc = 0, rest;
  while (argv[argc]) argc++;
  o = (struct agent_options){0};
  if (opts_parse(&agent_options_spec, argc, argv, env, &o, &rest, &o.dashes, NULL)) return NULL;
  o.words = argv + rest;
  o.command = rest < argc && !(o.dashes && argv[rest][0] == '-');
  if (!o.command) return NULL;
  o.own_python = command_own_python();
  char **words = command_line_create(&o, env, NULL);
  char *file = find_program(words[0], env, folder), *real = file ? realpath(file, NULL) : NULL;
  free(words);
  free(o.own_python);
  if (real && strcmp(base_of(real), base_of(file)) != 0) {
    char *both = xasprintf("%s (%s)", file, base_of(real));
    free(file);
    file = both;
  }
  free(real);
  return file;
}
