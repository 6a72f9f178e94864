#ifndef AGENT_LAUNCH_MIND_H
#define AGENT_LAUNCH_MIND_H

/* What the launcher makes of its hosts: whether the job can go on, when all is taken down, how it ends. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/launch/plan.h"
#include "common/log_level.h"

enum {
  LAUNCH_SAY_FIRST_MS = 5000,    /* then who is not up yet is named, */
  LAUNCH_SAY_AGAIN_MS = 30000,   /* and again */
  LAUNCH_LINGER_MS = 5000,       /* an agent has failed: the others end by themselves so soon */
  LAUNCH_LINGER_DONE_MS = 10000, /* one has finished */
  LAUNCH_STOP_MORE_MS = 10000,   /* on top of the agents' stop timeout, then SIGKILL */
  LAUNCH_KILL_MS = 5000,         /* then the launcher leaves, whoever has not answered */
};

enum launch_effect_kind {
  LAUNCH_SAY,    /* level, text */
  LAUNCH_SIGNAL, /* value: all agents get it; connections that are not up yet are given up */
  LAUNCH_PROBE,  /* whoever does not answer is lost */
  LAUNCH_KILL,   /* everything, now */
  LAUNCH_EXIT,   /* value: the exit code. The last one */
};
struct launch_effect {
  enum launch_effect_kind kind;
  int value;
  bool own; /* SIGNAL: it is our decision, not a person's */
  enum log_level level;
  char text[ERR_TEXT_MAX];
};

struct launch_mind_config {
  const struct launch_seat *seats; /* outlive the mind */
  size_t n;
  int64_t need;     /* the job can go on with so many agents */
  bool serves;      /* rdzvd runs on the first host */
  uint32_t stop_ms; /* --stop-timeout */
};

struct launch_mind;
struct launch_mind *launch_mind_create(const struct launch_mind_config *c, uint64_t now_ms);
void launch_mind_destroy(struct launch_mind *m);
void launch_mind_report(struct launch_mind *m, const struct launch_report *r, uint64_t now_ms);
void launch_mind_signal(struct launch_mind *m, int signo, uint64_t now_ms);
/* Reports may be on their way that nobody reads, because the terminal takes nothing: who has not ended yet is not to be blamed for it. */
void launch_mind_deaf(struct launch_mind *m, uint64_t now_ms);
void launch_mind_tick(struct launch_mind *m, uint64_t now_ms);
uint64_t launch_mind_deadline(const struct launch_mind *m); /* when it wants a tick; UINT64_MAX: never */
/* What is to be done, oldest first; false: nothing more. After each call of the above. */
bool launch_mind_next(struct launch_mind *m, struct launch_effect *fx);

#endif
