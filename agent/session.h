#ifndef AGENT_SESSION_H
#define AGENT_SESSION_H

/* One agent's life, from the first connection to the exit code: the loop with the supervisor in it. */

#include "agent/guard/guard.h"
#include "agent/devices/numa.h"
#include "agent/options/options.h"
#include "agent/place.h"
#include "agent/supervisor/supervisor.h"
#include "common/notify.h"

struct session_options {
  const struct agent_options *options;
  const struct supervisor_config *supervisor; /* settings, names, numbers */
  char *const *argv;                          /* what workers run */
  struct placed *placed;                      /* their environment and devices */
  const struct numa *numa;                    /* where they run */
  struct guard guard;                         /* started already */
  struct notify *notify;                      /* the service manager */
};

/* Returns the exit code. Once per process. *hung: something is still in uv's pool (a name server, a disk) and
 * exit() would wait for it: _exit then. */
int session_run(const struct session_options *o, bool *hung);

#endif
