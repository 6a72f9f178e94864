/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GUARD_STAY_H
#define AGENT_GUARD_STAY_H

/* A guard between two agents: it has a template, no worker, and no stdin. Private to this folder. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/guard/template.h"
#include "agent/guard/wire.h"

struct stay {
  int listener;   /* common/kept, of GUARD_CMD_KEEP; -1: the guard is not to stay */
  int asked;      /* a signalfd: SIGTERM ends the stay, as a service manager or a shutdown expects; -1 */
  pid_t backstop; /* at the guard's birth */
  uint64_t for_ms;
  uint64_t since_ms, until_ms; /* boot_ms */
  uint64_t memory;             /* of the template, when the stay began */
  bool ended;                  /* somebody asked it to end */
  bool template_stayed;        /* from an earlier agent: TEMPLATE decides whether it fits */
  const struct guard_birth *birth;
};

/* The agent is gone: nothing of its input and output stays open, here or in the template. */
void guard_stay_begin(struct stay *s, struct template *t);
/* Sleeps until something happens. False: the time is over. */
bool guard_stay_wait(struct stay *s, int sigchld, const struct template *t);
/* Answers one question, if there is one. Returns the socket of an agent that has taken the guard, or -1. */
int guard_stay_answer(struct stay *s, struct template *t);
/* Nobody can find the guard any more. */
void guard_stay_end(struct stay *s);

#endif
