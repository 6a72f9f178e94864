/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SESSION_H
#define AGENT_SESSION_H

/* One agent's life, from the first connection to the exit code: the loop around the mind. */

#include "agent/devices/numa.h"
#include "agent/guard/guard.h"
#include "agent/link/daemon_process.h"
#include "agent/options/options.h"
#include "agent/place.h"
#include "agent/supervisor/supervisor.h"
#include "agent/terminal/front.h"
#include "common/key/source.h"
#include "common/system/notify.h"

struct session_options {
  const struct agent_options *options;
  const struct supervisor_config *supervisor; /* settings, names, numbers */
  char *const *argv;                          /* the workers' command */
  struct placed *placed;                      /* the workers' environment and devices */
  const struct numa *numa;                    /* the workers' CPUs */
  struct guard guard;                         /* started already */
  struct daemon_process daemon;               /* session_start_daemon */
  const struct key *key;                      /* NULL: --insecure */
  int64_t munge_user;                         /* as in link_options */
  const struct key_origin *key_origin;
  struct notify *notify; /* the service manager */
  struct front *front;   /* started already */
};

/* With --standalone, starts rdzvd before all else, so that rdzvd comes up while this process goes on. A failure is
 * reported later, by session_run. program: rdzvd as a function. A copy of this process calls it, unless this process
 * has used a loop already, to ask a driver for its devices. words: as in guard_start. */
void session_start_daemon(struct session_options *o, int (*program)(int argc, char **argv),
                          const struct copy_words *words);
/* Returns the exit code. Once per process. *hung: something is still in uv's pool (a name server, a disk). Call _exit
 * then, since exit() would wait for it. */
int session_run(const struct session_options *o, bool *hung);

#endif
