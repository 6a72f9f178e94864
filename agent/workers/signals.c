/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/workers/signals.h"

#include <signal.h>
#include "agent/workers/env.h"
#include "common/system/log.h"

enum { SIGNALS_MAX = 64 };

bool signal_is_echo(struct last_signal *last, int signo, uint64_t now_ms) {
  if (signo == last->signo && now_ms < last->at_ms + SIGNAL_ECHO_MS) return true;
  *last = (struct last_signal){signo, now_ms};
  return false;
}

bool signal_is_ignored(int signo) {
  struct sigaction now;
  return sigaction(signo, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

uint64_t signals_to_watch(const struct agent_options *o) {
  uint64_t watched = o->signals, ignored = 0;
  if (o->signals_named) return watched;
  for (int signo = 1; signo < SIGNALS_MAX; signo++) {
    uint64_t bit = UINT64_C(1) << signo;
    if ((watched & bit) && signo != SIGTERM && signal_is_ignored(signo)) ignored |= bit;
  }
  if (ignored) {
    struct buf names = BUF_INIT;
    env_signal_names(ignored, &names);
    bool one = (ignored & (ignored - 1)) == 0;
    /* A script's background job has these two ignored, since no Ctrl-C reaches it. */
    bool background = ignored == (UINT64_C(1) << SIGINT | UINT64_C(1) << SIGQUIT);
    log_line(background ? LOG_DEBUG : LOG_INFO,
             "%s %s ignored when this agent started (nohup, trap '', a shell's background job), and %s ignored; "
             "to handle one anyway, name it in --signals-to-handle",
             buf_text(&names), one ? "was" : "were", one ? "stays" : "stay");
    buf_finish(&names);
  }
  return watched & ~ignored;
}
