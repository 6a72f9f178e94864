/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_OPTIONS_H
#define DAEMON_CTL_OPTIONS_H

/* The options of rdzvctl, beside its commands (words.h). */

#include <stdbool.h>
#include <stdint.h>
#include "common/key/source.h"
#include "common/opts/opts.h"

struct rdzvctl_options {
  const char *socket, *endpoint, *signal, *user, *munge_user; /* NULL: none */
  int64_t port;                                               /* 0: none */
  int64_t tail;                                               /* -1: none */
  struct key_options key;
  bool json, watch, force, follow, version, help;
};

/* No defaults (`tail` begins as -1): options may stand before and after the command, and each part is parsed into the same struct. */
extern const struct opts_spec rdzvctl_options_spec;

#endif
