/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LAUNCH_CONTROLLER_H
#define AGENT_LAUNCH_CONTROLLER_H

/* The decisions of the launcher: whether the job can continue, when everything is stopped, how it ends. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/launch/plan.h"
#include "common/log_level.h"

enum {
  LAUNCH_SAY_FIRST_MS = 5000,    /* after this time hosts that are not up are named */
  LAUNCH_SAY_AGAIN_MS = 30000,   /* and named again after this time */
  LAUNCH_LINGER_MS = 5000,       /* after an agent failed, the others have this long to end by themselves */
  LAUNCH_LINGER_DONE_MS = 10000, /* after one finished */
  LAUNCH_STOP_MORE_MS = 10000,   /* on top of the agents' stop timeout, until SIGKILL */
  LAUNCH_KILL_MS = 5000,         /* then the launcher exits, even if some hosts have not answered */
};

enum launch_effect_kind {
  LAUNCH_SAY,    /* level, text */
  LAUNCH_SIGNAL, /* value: send it to all agents; drop connections that are not up */
  LAUNCH_PROBE,  /* ask all for a sign of life; those that do not answer are lost */
  LAUNCH_KILL,   /* everything, now */
  LAUNCH_EXIT,   /* value: the exit code. The last effect */
};
struct launch_effect {
  enum launch_effect_kind kind;
  int value;
  bool own; /* SIGNAL: the launcher's own decision, not a user's signal */
  enum log_level level;
  char text[ERR_TEXT_MAX];
};

struct launch_controller_config {
  const struct launch_seat *seats; /* outlive the controller */
  size_t n;
  int64_t need;     /* the job can continue with this many agents */
  bool serves;      /* rdzvd runs on the first host */
  uint32_t stop_ms; /* --stop-timeout */
};

struct launch_controller;
struct launch_controller *launch_controller_create(const struct launch_controller_config *c, uint64_t now_ms);
void launch_controller_destroy(struct launch_controller *m);
void launch_controller_report(struct launch_controller *m, const struct launch_report *r, uint64_t now_ms);
void launch_controller_signal(struct launch_controller *m, int signo, uint64_t now_ms);
/* Reports may be waiting unread because the terminal takes nothing: an agent that has not ended yet gets more time. */
void launch_controller_unread(struct launch_controller *m, uint64_t now_ms);
void launch_controller_tick(struct launch_controller *m, uint64_t now_ms);
uint64_t
launch_controller_deadline(const struct launch_controller *m); /* when the next tick is due; UINT64_MAX: never */
/* The next effect, oldest first; false: none. To be called after each call above. */
bool launch_controller_next(struct launch_controller *m, struct launch_effect *fx);

#endif
