/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_WORDS_H
#define DAEMON_CTL_WORDS_H

/* rdzvctl's commands, and the arguments of each. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/opts/opts.h"

enum { CTL_WORDS_MAX = 4 };

struct ctl_request {
  const char *verb, *job, *host; /* "": none */
  const char *user;              /* --user as it was given; a uid is in `owner` instead; NULL: none */
  int64_t owner;                 /* -1: none */
  int64_t rank;                  /* -1: none */
  int signal;                    /* 0: none */
  bool json, watch, force, follow, has_tail, end;
  int64_t tail; /* -1: not given */
};

/* For rdzvctl's option table. */
extern const struct opts_verb ctl_verbs[];

/* words[0] is the command; none with r->watch is status. signal: --signal's text or NULL; r's flags and `user` are set already.
 * Strings are borrowed. 0, or -EINVAL and a sentence. */
int ctl_read_words(const char *const *words, int n, const char *signal, struct ctl_request *r, struct err *e);
/* "KILL", "SIGKILL", "sigkill" or "9"; -EINVAL and a sentence. */
int ctl_read_signal(const char *text, int *signo, struct err *e);

#endif
