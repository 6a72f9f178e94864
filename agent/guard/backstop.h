/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GUARD_BACKSTOP_H
#define AGENT_GUARD_BACKSTOP_H

/* The backstop: a process between the agent and its guard that acts only when both of them fail.
 *
 *   agent -> backstop -> guard -> workers
 *
 * `pkill -9 rdzv` kills agent and guard at once: the workers die by their parent-death signal, but their children would
 * live on. The backstop is a subreaper above the guard, so the kernel hands these children to it, and it kills them. It
 * has a process name, a command line and a session of its own, so signals aimed at agent and guard miss it.
 *
 *   the guard is killed          kill all descendants, then exit
 *   the agent dies               wake the guard; after BACKSTOP_PATIENCE_MS kill the trees in its stead, then the guard
 *   the fence passes             kill the trees: agent and guard are both stopped, or they would have done it
 *   the guard exits by itself    exit
 *
 * A backstop that dies is not replaced: agent and guard watch each other without it. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
  BACKSTOP_PATIENCE_MS = 1000,  /* for a guard whose agent died */
  BACKSTOP_AGAIN_MS = 500,      /* from one kill of the trees to the next */
  BACKSTOP_GIVE_UP_MS = 6500,   /* from the first kill to the guard's */
  BACKSTOP_REAP_MS = 30 * 1000, /* for the trees of a dead guard; the kernel may hold a process for longer (state D) */
};

#define BACKSTOP_NEVER UINT64_MAX

/* Memory that agent and backstop share. */
struct backstop_page {
  _Atomic uint64_t fence_at_ms; /* boot_ms after which nothing of a worker may run; BACKSTOP_NEVER: no such time */
  _Atomic int32_t agent;        /* 0: none, while a guard that stays waits for one (guard_keep) */
};

/* The decisions, without the process: a function of events and time. */
enum backstop_act { BACKSTOP_REST, BACKSTOP_WAKE, BACKSTOP_KILL, BACKSTOP_GIVE_UP };

struct backstop {
  bool orphaned;                                   /* the agent is dead */
  uint64_t fence_at_ms, kill_at_ms, give_up_at_ms; /* BACKSTOP_NEVER: not due */
};

void backstop_init(struct backstop *b);
/* The agent is dead. Returns what to do at once: BACKSTOP_WAKE the first time, then BACKSTOP_REST. */
enum backstop_act backstop_orphan(struct backstop *b, uint64_t now_ms);
/* The fence as it stands now. */
void backstop_fence(struct backstop *b, uint64_t fence_at_ms);
/* The action that is due at now_ms. Ask until it is BACKSTOP_REST, then again at backstop_deadline. */
enum backstop_act backstop_next(struct backstop *b, uint64_t now_ms);
/* The answer to BACKSTOP_KILL: how many processes were still there. */
void backstop_killed(struct backstop *b, int left);
uint64_t backstop_deadline(const struct backstop *b);

/* Turns this process into the backstop of `guard`, its child. */
_Noreturn void backstop_main(const struct backstop_page *page, pid_t guard);

#endif
