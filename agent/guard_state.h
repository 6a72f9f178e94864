#ifndef AGENT_GUARD_STATE_H
#define AGENT_GUARD_STATE_H

/* The guard's process inside: what guard_main.c (the loop, what follows what) and guard_kill.c (whom a signal reaches) share. */

#include "agent/guard/wire.h"

#define NEVER UINT64_MAX

enum phase { PHASE_IDLE, PHASE_RUNNING, PHASE_TERMINATING, PHASE_KILLING, PHASE_PARKED };

struct worker {
  pid_t pid; /* of its group and session too */
  bool reaped;
  bool was_dying; /* when we were told to stop: whatever it died of was not our doing */
  bool kept;      /* left out of the stop */
  uint32_t local_rank;
  int exec_fd; /* -1: it is known whether exec succeeded */
  bool failed; /* it did not: no GUARD_EXITED follows */
  char name[GUARD_NAME_MAX];
};

struct state {
  int sock; /* -1: the agent is gone */
  int sigchld;
  int fence_timer;
  uint64_t fence_at_ms; /* no worker of ours may run later; NEVER: as long as they like */
  enum phase phase;
  uint32_t round, count, spawned; /* of the workers at hand */
  uint32_t late_round;            /* came while what was kept for it is being killed; 0: none */
  struct worker *workers;
  size_t n_workers, cap_workers, alive;
  uint64_t kill_at_ms; /* TERMINATING */
  int signo;           /* by which; 0: nobody was told */
  uint64_t told_ms;    /* when */
  bool
      orphaned; /* a worker has died since: what it forked at that moment is ours now, and may not have been told */
  uint64_t deep_at_ms, deep_every_ms, stuck_at_ms; /* KILLING */
  uint32_t killed;
  struct guard_event *events; /* not yet sent */
  size_t n_events, cap_events;
  struct guard_cmd_obituary obituary;
};

/* guard_kill.c */
struct worker *find_worker(struct state *s, pid_t pid);
/* To the worker's group; a child that has not come to setsid yet has none, but will find the signal waiting. Once it is
 * reaped its number may belong to anybody. */
void signal_worker(const struct worker *w, int signo);
/* All below: but for the kept ones, their sessions and their trees. */
void signal_orphans(struct state *s, int signo); /* what dead workers have left to us */
void signal_all(struct state *s, int signo);
void tell_late_born(struct state *s); /* who was born while we told */
bool group_left(struct state *s);     /* somebody of a dead worker's group is still at work */
void kill_everywhere(struct state *s);
/* Our descendants, without the spared. */
struct proctree;
void list_others(struct state *s, struct proctree *t);
size_t count_kept(const struct state *s); /* that live */
bool only_kept_left(struct state *s);

#endif
