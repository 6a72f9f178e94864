/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl's commands. One row per command has its arguments and its options. A missing argument, one too many, or an
 * option that means nothing there is answered with the usage of that command. A person who types commands at night
 * should not have to look anything up. The form of a name is checked here as the daemon would, so that a mistake costs
 * no connection; only the daemon knows whether it exists. */

#include "daemon/ctl/options.h"

#include <errno.h>
#include <string.h>
#include <strings.h>
#include "common/did_you_mean.h"
#include "common/opts/opts.h"
#include "proto/msg.h"

enum word { WORD_NONE, WORD_JOB, WORD_HOST, WORD_RANK, WORD_END };

const struct opts_verb ctl_verbs[] = {
    {"status", "[JOB]", "watch user json", "One job, or all: nodes, missing nodes, the last verdicts, drained hosts."},
    {"jobs", "", "watch user json", "One line per job."},
    {"nodes", "JOB", "user json", "The hardware of the job's nodes side by side; \"!\" marks what is odd."},
    {"drain", "HOST", "force json", "No further round uses it. One that does ends as planned, uncharged."},
    {"undrain", "HOST", "json", "Its nodes may join rounds again, and its past is forgotten."},
    {"hosts", "", "json", "Hosts on which several jobs have failed; new rounds avoid them."},
    {"stop", "JOB", "user json", "Ends the job on all its nodes; its agents exit with 77."},
    {"kill-worker", "JOB RANK", "signal user json",
     "Sends SIGKILL, or --signal, to the worker of this rank, for drills."},
    {"confirm-dead", "JOB [HOST]", "user json",
     "You vouch that nothing of it runs on this lost host, or on any lost one."},
    {"logs", "JOB [RANK]", "follow tail user json",
     "The recent lines of the job's workers, or of this rank, from all nodes."},
    {"check", "JOB", "svg user json", "Measures the network between the job's hosts, and marks what is slow."},
    {"top", "[JOB]", "user", "All jobs, or a job's nodes, the worst first: every second on a terminal."},
    {"key", "", "json", "Prints your key for this daemon, to be copied to another machine."},
    {"token", "", "json", "Prints the token of your key, for the daemon's HTTP pages."},
    {"warm", "[end]", "json", "What --warm-keep keeps here for your next start; end: ends it."},
    {0},
};
#define VERBS                                                                                                          \
  "status, jobs, nodes, drain, undrain, hosts, stop, kill-worker, confirm-dead, logs, check, top, key, token, warm"

/* The kind of the i-th argument of the command. */
static enum word kind_of_word(const struct opts_verb *v, int i) {
  const char *p = v->words;
  for (; i > 0 && p; i--) p = strchr(p, ' ') ? strchr(p, ' ') + 1 : NULL;
  if (!p || !*p) return WORD_NONE;
  p += *p == '[';
  return *p == 'J' ? WORD_JOB : *p == 'H' ? WORD_HOST : *p == 'e' ? WORD_END : WORD_RANK;
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
    return err_set(e, -EINVAL, "\"%.80s\" is not a rank: give a number from 0 up", text);
  case WORD_END:
    r->end = strcmp(text, "end") == 0;
    return r->end ? 0 : err_set(e, -EINVAL, "\"%.80s\": write rdzvctl warm, or rdzvctl warm end", text);
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
  return err_set(e, -EINVAL, "--signal %.80s: unknown signal; write TERM, SIGTERM or 15", text);
}

static bool has_option(const struct opts_verb *v, const char *name) {
  const char *found = strstr(v->options, name);
  size_t n = strlen(name);
  return found && (found == v->options || found[-1] == ' ') && (found[n] == ' ' || !found[n]);
}

static int check_options(const struct opts_verb *v, const char *signal, const struct ctl_request *r, struct err *e) {
  if (r->watch && !has_option(v, "watch")) return err_set(e, -EINVAL, "--watch is for status and jobs");
  if (r->force && !has_option(v, "force")) return err_set(e, -EINVAL, "--force is for drain");
  if (r->user && !has_option(v, "user"))
    return err_set(e, -EINVAL,
                   "--user is for status, jobs, nodes, stop, kill-worker, confirm-dead, logs, check and top");
  if (r->follow && !has_option(v, "follow")) return err_set(e, -EINVAL, "--follow is for logs");
  if (r->has_tail && !has_option(v, "tail")) return err_set(e, -EINVAL, "--tail is for logs");
  if (r->svg && !has_option(v, "svg")) return err_set(e, -EINVAL, "--svg is for check");
  if (r->json && !has_option(v, "json")) return err_set(e, -EINVAL, "--json is not for top: use status --json");
  if (signal && !has_option(v, "signal")) return err_set(e, -EINVAL, "--signal is for kill-worker");
  return 0;
}

int ctl_read_words(const char *const *words, int n, const char *signal, struct ctl_request *r, struct err *e) {
  r->verb = r->job = r->host = "";
  r->rank = r->owner = -1;
  if (n == 0 && !r->watch) return err_set(e, -EINVAL, "a command is missing: " VERBS " (--help)");
  const char *name = n ? words[0] : "status", *best = NULL;
  const struct opts_verb *v = ctl_verbs;
  while (v->name && strcmp(v->name, name) != 0) v++;
  if (!v->name) {
    size_t least = SIZE_MAX;
    for (v = ctl_verbs; v->name; v++) {
      size_t d = near_distance(name, v->name);
      if (d >= least) continue;
      least = d;
      best = v->name;
    }
    if (best) return err_set(e, -EINVAL, "\"%.80s\" is not a command: did you mean %s?", name, best);
    return err_set(e, -EINVAL, "\"%.80s\" is not a command: " VERBS " (--help)", name);
  }
  if (n == 0) n = 1; /* --watch alone */
  r->verb = v->name;
  int want = 0, needed = 0, rc = check_options(v, signal, r, e);
  if (rc < 0) return rc;
  while (kind_of_word(v, want) != WORD_NONE) want++;
  for (const char *p = v->words; p && *p && *p != '['; needed++) p = strchr(p, ' ') ? strchr(p, ' ') + 1 : NULL;
  if (n - 1 > want)
    return err_set(e, -EINVAL, "\"%.80s\" is one argument too many: rdzvctl %s%s%s", words[want + 1], v->name,
                   want ? " " : "", v->words);
  if (n - 1 < needed) return err_set(e, -EINVAL, "an argument is missing: rdzvctl %s %s", v->name, v->words);
  if (r->user && parse_int(r->user, 0, UINT32_MAX - 1, &r->owner, NULL) == 0) {
    r->user = NULL; /* a number is a uid; a name is looked up later */
  } else if (r->user) {
    r->owner = -1;
    if (!r->user[0] || strlen(r->user) > USER_NAME_MAX)
      rc = err_set(e, -EINVAL, "--user %.80s: give a user's name or uid", r->user);
  }
  for (int i = 0; i < n - 1 && rc == 0; i++) rc = read_word(kind_of_word(v, i), words[i + 1], r, e);
  return rc == 0 && signal ? ctl_read_signal(signal, &r->signal, e) : rc;
}
