/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LAUNCH_HOSTS_H
#define AGENT_LAUNCH_HOSTS_H

/* The hosts of --hosts and --hostfile. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/map.h"

enum {
  LAUNCH_HOSTS_MAX = 16384,          /* of one job */
  LAUNCH_NAME_MAX = 255 + 1 + 63,    /* of a name, with "user@" in front */
  LAUNCH_FILE_MAX = 8 * 1024 * 1024, /* bytes of a host file */
  LAUNCH_LINE_MAX = 4096,            /* and of one of its lines */
};

struct launch_host {
  char *name;    /* as ssh gets it: "n1", "ada@n1", "10.0.0.1", "fd00::1" (no brackets) */
  int64_t slots; /* workers; 0: not given */
};

struct launch_hosts {
  struct launch_host *v;
  size_t n, cap;
  struct map index;
};

void launch_hosts_init(struct launch_hosts *h);
void launch_hosts_finish(struct launch_hosts *h);

/* Adds the hosts of "n1:4,gpu[01-16]:8,ada@n2,[fd00::1]:2". Slots of a repeated name add up; a mention without a
 * number is one slot. 0, -EINVAL or -E2BIG and a sentence; then *h must only be finished. */
int launch_hosts_list(struct launch_hosts *h, const char *text, struct err *e);
/* Adds the hosts of a file: "n1 slots=4 max_slots=8", "n1:4", "n1 4 all.q@n1 UNDEFINED", or n1 once per slot; "#"
 * starts a comment. Sentences begin with "FILE, line N: ". */
int launch_hosts_file(struct launch_hosts *h, const char *file, const char *text, size_t len, struct err *e);

/* The host's own name, after "user@". */
const char *launch_host_bare(const char *name);
/* Whether the name means this machine on every host: "localhost", 127.0.0.1, ::1. */
bool launch_host_is_loopback(const char *name);

#endif
