/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_OPTIONS_H
#define DAEMON_CTL_OPTIONS_H

/* The options of rdzvctl, its commands, and the arguments of each. Pure. */

#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "common/key/source.h"
#include "common/opts/opts.h"

struct rdzvctl_options {
  const char *socket, *endpoint, *signal, *user, *munge_user, *svg; /* NULL: none */
  int64_t port;                                                     /* 0: none */
  int64_t tail;                                                     /* -1: none */
  struct key_options key;
  bool json, watch, force, follow, version, help;
};

/* No defaults (`tail` begins as -1): options may stand before and after the command, and each part is parsed into the same struct. */
extern const struct opts_spec rdzvctl_options_spec;

/* The commands. */

enum { CTL_WORDS_MAX = 4 };

struct ctl_request {
  const char *verb, *job, *host; /* "": none */
  const char *user;              /* --user as it was given; a uid is in `owner` instead; NULL: none */
  const char *svg;               /* NULL: none */
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
