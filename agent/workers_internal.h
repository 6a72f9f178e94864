#ifndef AGENT_WORKERS_INTERNAL_H
#define AGENT_WORKERS_INTERNAL_H

/* What workers.c (what happens to workers), workers_round.c (how a round begins) and workers_watch.c (whether the guard
 * obeys) share. */

#include "agent/workers/round.h"
#include "agent/failures/failures.h"
#include "agent/guard/watch.h"
#include "agent/workers/hang_watch.h"
#include "agent/failures/oom_watch.h"

struct worker {
  pid_t pid;
  bool exited, drained, told, unasked;
  bool adopting; /* it is to be taken over from the round before; STARTED has not come */
  int status;
  uint64_t when_ms, due_ms, file_due_ms;
};

struct workers {
  struct workers_options o;
  struct guard guard;
  struct relay *relay;
  struct sdk_server *sdk;
  struct failures *failures;
  struct oom_watch *oom;
  struct hang_watch *hang;
  uv_poll_t poll, sdk_poll;
  uv_async_t wake;
  uv_timer_t timer; /* the first due_ms */
  uv_timer_t watch_timer;
  struct guard_watch watch;
  bool by_hand; /* what the guard was to kill was killed by us, in this round */
  struct worker *v;
  struct start *start; /* of the round, a copy */
  uint32_t round, round_before;
  bool clear, closing; /* clear: CLEAR has come, deaths are still to be told */
  uint32_t killed;
  struct local_set kept; /* by CLEAR */
  bool no_files;         /* no place for error files could be made: said once */
};

void workers_tell(struct workers *w, struct supervisor_event ev);
void workers_give_guard_up(const struct workers *w, const struct err *e); /* a command was not taken */
void workers_hear_guard(struct workers *w);
/* workers_watch.c; arm: after each change of w->watch */
void workers_watch_begin(struct workers *w);
void workers_watch_arm(struct workers *w);
/* workers_round.c: local rank i was to be adopted, and had died before the guard heard of that. */
void workers_spawn_again(struct workers *w, uint32_t i);

#endif
