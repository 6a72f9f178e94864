/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_RDZVD_OPTIONS_H
#define DAEMON_RDZVD_OPTIONS_H

/* The options of rdzvd. */

#include <stdbool.h>
#include <stdint.h>
#include "common/opts/opts.h"

struct rdzvd_options {
  struct opt_strings listen;
  const char *port_file, *socket, *state_dir; /* NULL: none */
  const char *key_file;                       /* NULL: none */
  const char *claim;                          /* NULL: none */
  const char *events, *on_event;              /* NULL: none */
  const char *on_event_names;
  int64_t owner_fd, ready_fd, agent_fd, key_fd, listen_fd; /* -1: none */
  int64_t store_memory, store_keys;
  bool c10d; /* serves PyTorch's TCPStore */
  bool insecure, exit_when_idle, quiet, verbose, version, help;
};

extern const struct opts_spec rdzvd_options_spec;

#endif
