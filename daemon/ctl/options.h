#ifndef DAEMON_RDZVCTL_OPTIONS_H
#define DAEMON_RDZVCTL_OPTIONS_H

/* What rdzvctl can be told beside its words (ctl_words.h). */

#include <stdbool.h>
#include <stdint.h>
#include "common/opts/opts.h"

struct rdzvctl_options {
  const char *socket, *endpoint, *signal; /* NULL: none */
  int64_t port;                           /* 0: none */
  bool json, watch, force, version, help;
};

/* No defaults: options may stand before and behind the verb, and each part is parsed into the same struct. */
extern const struct opts_spec rdzvctl_options_spec;

#endif
