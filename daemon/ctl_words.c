/* rdzvctl's words. One row per verb says what stands behind it and which options belong to it; a word too many, one too few, or an
 * option that means nothing there is answered with the verb's own usage, because who types commands by hand in the night
 * should not have to look anything up. What a name must be like is checked here as the daemon would, so that a mistake costs no
 * connection; whether it exists only the daemon knows. */

#include "daemon/ctl_words.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include "common/opts.h"
#include "proto/msg.h"

enum word { WORD_NONE, WORD_JOB, WORD_HOST, WORD_RANK };

static const struct verb {
  const char *name, *usage;
  enum word words[2];
  bool optional; /* its word may be missing */
  bool watch, force, signal;
} verbs[] = {
    {"status", "status [JOB]", {WORD_JOB}, .optional = true, .watch = true},
    {"jobs", "jobs", {WORD_NONE}, .watch = true},
    {"drain", "drain HOST", {WORD_HOST}, .force = true},
    {"undrain", "undrain HOST", {WORD_HOST}},
    {"stop", "stop JOB", {WORD_JOB}},
    {"kill-worker", "kill-worker JOB RANK", {WORD_JOB, WORD_RANK}, .signal = true},
};
#define VERBS "status, jobs, drain, undrain, stop, kill-worker"

static const struct verb *find_verb(const char *name) {
  for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
    if (!strcmp(verbs[i].name, name)) return &verbs[i];
  return NULL;
}

static int count_words(const struct verb *v) {
  return (v->words[0] != WORD_NONE) + (v->words[1] != WORD_NONE);
}

static int read_word(enum word kind, const char *text, struct ctl_request *r, struct err *e) {
  size_t n = strlen(text);
  switch (kind) {
  case WORD_JOB:
    r->job = text;
    if (n == 0 || n > JOB_ID_MAX) return err_set(e, -EINVAL, "a job's name has 1 to %d bytes", JOB_ID_MAX);
    return 0;
  case WORD_HOST:
    r->host = text;
    if (n == 0 || n > HOST_MAX) return err_set(e, -EINVAL, "a host's name has 1 to %d bytes", HOST_MAX);
    return 0;
  case WORD_RANK:
    if (parse_int(text, 0, WORLD_MAX, &r->rank, NULL) == 0) return 0;
    return err_set(e, -EINVAL, "\"%.80s\" is no rank: a number from 0 on", text);
  case WORD_NONE: break;
  }
  return 0;
}

int ctl_read_signal(const char *text, int *signo, struct err *e) {
  int64_t number;
  if (parse_int(text, 1, 64, &number, NULL) == 0) {
    *signo = (int)number;
    return 0;
  }
  const char *bare = strncasecmp(text, "SIG", 3) == 0 ? text + 3 : text;
  for (int i = 1; i <= 64; i++) {
    const char *name = signal_name(i);
    if (!name || strcasecmp(name + 3, bare) != 0) continue;
    *signo = i;
    return 0;
  }
  return err_set(e, -EINVAL, "--signal %.80s: no signal has that name; write TERM, SIGTERM or 15", text);
}

static int check_options(const struct verb *v, const char *signal, const struct ctl_request *r,
                         struct err *e) {
  if (r->watch && !v->watch) return err_set(e, -EINVAL, "--watch is for status and jobs");
  if (r->force && !v->force) return err_set(e, -EINVAL, "--force is for drain");
  if (signal && !v->signal) return err_set(e, -EINVAL, "--signal is for kill-worker");
  return 0;
}

int ctl_read_words(const char *const *words, int n, const char *signal, struct ctl_request *r,
                   struct err *e) {
  r->verb = r->job = r->host = "";
  r->rank = -1;
  if (n == 0) return err_set(e, -EINVAL, "what is it to do? " VERBS " (--help)");
  const struct verb *v = find_verb(words[0]);
  if (!v) return err_set(e, -EINVAL, "\"%.80s\" is none of its words: " VERBS " (--help)", words[0]);
  r->verb = v->name;
  int want = count_words(v), rc = check_options(v, signal, r, e);
  if (rc < 0) return rc;
  if (n - 1 > want)
    return err_set(e, -EINVAL, "\"%.80s\" is one word too many: rdzvctl %s", words[want + 1], v->usage);
  if (n - 1 < want && !v->optional) return err_set(e, -EINVAL, "a word is missing: rdzvctl %s", v->usage);
  for (int i = 0; i < n - 1 && rc == 0; i++) rc = read_word(v->words[i], words[i + 1], r, e);
  return rc == 0 && signal ? ctl_read_signal(signal, &r->signal, e) : rc;
}
