/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_OPTIONS_H
#define TESTS_RIG_OPTIONS_H

/* Command lines of rdzv-agent and their environments, parted by blanks; '~' stands for a blank that does not part. */

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/options.h"
#include "tests/rig/unit.h"

enum { WORDS_MAX = 24 };

struct line {
  char text[2048], env_text[2048];
  char *argv[WORDS_MAX], *env[WORDS_MAX];
  int argc;
  struct agent_options o;
  struct err e;
};

/* The last one. */
static struct line l;

static inline int split(char *text, char **words) {
  int n = 0;
  for (char *p = strtok(text, " "); p; p = strtok(NULL, " ")) {
    assert_true(n < WORDS_MAX - 1);
    words[n++] = p;
    for (char *c = p; *c; c++)
      if (*c == '~') *c = ' ';
  }
  words[n] = NULL;
  return n;
}

static inline int try(const char *words, const char *env) {
  memset(&l, 0, sizeof(l));
  snprintf(l.text, sizeof(l.text), "rdzv-agent %s", words);
  snprintf(l.env_text, sizeof(l.env_text), "%s", env);
  l.argc = split(l.text, l.argv);
  split(l.env_text, l.env);
  return agent_options_parse(&l.o, l.argc, l.argv, l.env, NULL, &l.e);
}

static inline struct agent_options *parse(const char *words, const char *env) {
  if (try(words, env)) fail_msg("'%s' with '%s': %s", words, env, l.e.text);
  return &l.o;
}

static inline void refused(const char *words, const char *env, const char *says) {
  assert_int_equal(try(words, env), -EINVAL);
  if (!strstr(l.e.text, says)) fail_msg("'%s' '%s': \"%s\" does not say \"%s\"", words, env, l.e.text, says);
}

#endif
