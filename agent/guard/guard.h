#ifndef AGENT_GUARD_H
#define AGENT_GUARD_H

/* The guard: a small process between the agent and the workers. It is the parent of all workers and a child
 * subreaper, so every process that a worker ever forks, in whatever session, is its descendant and can be found and
 * killed. It outlives its agent: when the agent is gone (the socket pair between them closes) it kills every tree at
 * once, tells the daemon by the obituary it was given, and goes. When the guard itself is killed, the workers die by
 * their parent-death signal, and the agent, a subreaper too, kills what is left (guard_reap_orphans).
 *
 * It must be able to run for that. The agent sees to it: each command wakes a guard that was stopped (SIGSTOP), and the agent's death does
 * (PR_SET_PDEATHSIG, SIGCONT); that it obeys is watched (guard_watch.h), and where it does not the agent kills in its stead, then the guard too.
 *
 * Workers may outlive their round: a stop can leave some of them out, which then belong to no round until guard_adopt says to which. Nothing else of
 * the old round is left when GUARD_CLEAR comes. Whatever kills trees without leaving anybody out (a fence, the agent's death) kills them too.
 *
 * The agent side of it, below: commands are packets on a SOCK_SEQPACKET pair, events come back on the same socket.
 * Nothing waits for the guard, but for room in the socket, two seconds at most, when hundreds of commands are on
 * their way. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include "agent/guard/watch.h"
#include "common/local_set.h"
#include "common/err.h"

enum {
  GUARD_WORKERS_MAX = 1024, /* workers of one agent */
  GUARD_SPAWN_MAX =
      2 * 1024 * 1024,   /* bytes of argv and environment of one worker (ARG_MAX as we allow it) */
  GUARD_CPUS_MAX = 1024, /* bytes of a set of CPUs */
};

struct guard {
  int fd; /* readable when guard_next has events; -1: gone */
  pid_t pid;
};

/* The words of this program's command line as main got them, in place. Where they are given (NULL: not) the guard
 * writes its own name over its copy of them, so that ps and pgrep can tell it from its agent. */
struct guard_words {
  int argc;
  char **argv;
};

/* Forks the guard; call it before the first thread and before any descriptor that workers must not see. What is open
 * then and not close-on-exec goes on to the workers, as with any launcher. */
int guard_start(struct guard *g, const struct guard_words *words, struct err *e);

struct guard_spawn {
  uint32_t round, local_rank;
  uint32_t
      count; /* workers of this round here: GUARD_CLEAR comes by itself when so many were spawned and are gone */
  const char *const
      *argv; /* NULL-terminated; argv[0] is looked up in PATH of the environment below if it has no slash */
  const char *const *
      env; /* NULL-terminated "NAME=value"; the folder of its TORCHELASTIC_ERROR_FILE, and the one above, are made */
  int out, err; /* its stdout and stderr: passed on, the caller closes its own copies; stdin is the agent's */
  const void *cpus;   /* which it may use, as for sched_setaffinity; NULL: as this process */
  uint32_t cpus_size; /* bytes, at most GUARD_CPUS_MAX */
};
/* A worker of another round than those that run, or of one that is being stopped, is answered with EXEC_FAILED. */
int guard_spawn(struct guard *g, const struct guard_spawn *s, struct err *e);

/* `signo` to every worker's process group and to what dead workers left behind, SIGKILL to every tree after grace_ms
 * (0: at once). When all workers are dead, what is left outside of their process groups has 200 ms; members of the
 * groups keep the whole grace (the real trainer behind a shell). When nothing is left: GUARD_CLEAR. A second call may
 * only shorten the grace; another signal than before is passed on. Without workers GUARD_CLEAR comes at once, with this round: so it can come twice for one. */
int guard_stop(struct guard *g, uint32_t round, int signo, uint32_t grace_ms, struct err *e);
/* The same, but for the local ranks in `keep` and what descends from them: they are neither told nor killed. GUARD_CLEAR when all others are gone. A second
 * call may only take some out of it; they are told and killed like the others, and another GUARD_CLEAR comes for it. NULL: none is kept. One that
 * dies is told by GUARD_EXITED, and what it leaves behind is killed at once. */
int guard_stop_but(struct guard *g, uint32_t round, int signo, uint32_t grace_ms,
                   const struct local_set *keep, struct err *e);
/* After GUARD_CLEAR: the kept workers belong to `round` now, the others of `count` are spawned. GUARD_STARTED comes for each of them that lives, with
 * its pid; of one that does not, GUARD_EXITED has come, of the round before. Too late (the fence has killed them): GUARD_FENCED and GUARD_CLEAR. */
int guard_adopt(struct guard *g, uint32_t round, uint32_t count, struct err *e);
/* `signo` to the process group of one worker, or of all (local_rank -1). */
int guard_signal(struct guard *g, int local_rank, int signo, struct err *e);

/* The deadline that this node must not outlive, in boot_ms; GUARD_NO_FENCE: none, as at the start. Each call replaces the
 * last one. When it passes while workers run: GUARD_FENCED, every tree gets SIGKILL, then the deaths and GUARD_CLEAR as
 * after guard_stop; the agent need not be able to run. Until the deadline is moved guard_spawn starts nothing: it is
 * answered with GUARD_FENCED and GUARD_CLEAR. */
#define GUARD_NO_FENCE UINT64_MAX
int guard_fence(struct guard *g, uint64_t at_ms, struct err *e);

/* What to send, and where, when the agent is dead and its trees are killed: a connection, `bytes`, a short wait for
 * the peer's close. Replaces the last one; len 0: none. */
enum { GUARD_OBITUARY_MAX = 4096 };
int guard_obituary(struct guard *g, const struct sockaddr *addr, socklen_t addr_len, const void *bytes,
                   size_t len, struct err *e);

/* SIGCONT. The guard is our child and not reaped before GUARD_GONE, so its pid is its own. Nothing else continues it: who stops the guard for
 * longer than the agent allows has to stop both. */
void guard_wake(const struct guard *g);
/* SIGKILL to all that descends from the guard, but not to itself, until nothing of it lives or deadline_ms passed. Returns how many still do. Only where a
 * stop without anybody kept is due: the guard, when it can, tells the deaths as its own doing. */
int guard_kill_trees(const struct guard *g, uint32_t deadline_ms);

enum guard_event_kind {
  GUARD_STARTED, /* the worker's command runs (exec succeeded), or it was adopted */
  GUARD_EXEC_FAILED, /* it could not be run: error (errno), text; status as if it had exited with 127 where the command
                        was not found, else 126. Nothing more comes about this worker */
  GUARD_UNBOUND, /* its CPUs could not be had: error (errno); it runs all the same. Comes before STARTED */
  GUARD_EXITED,  /* status as of waitpid; comes after STARTED, once per worker */
  GUARD_CLEAR,   /* after guard_stop, or after all workers exited by themselves and what they left behind was
                        killed (200 ms later): nothing of the round is left; `killed` others than workers were killed */
  GUARD_FENCED, /* the deadline of guard_fence has passed: everything of `round` is being killed. Comes before the deaths that
                   it causes */
  GUARD_STUCK, /* pid did not die of SIGKILL within GUARD_KILL_DEADLINE_MS: state letter (as in /proc/PID/stat) in
                        error, command name in text; GUARD_CLEAR follows all the same, when it is gone */
  GUARD_GONE, /* the guard died; fd is closed. Call guard_reap_orphans */
};

struct guard_event {
  enum guard_event_kind kind;
  uint32_t round, local_rank;
  pid_t pid;
  int status; /* EXITED, EXEC_FAILED */
  int error;
  bool unasked;          /* EXITED: it was dead or dying before guard_stop */
  uint32_t killed;       /* CLEAR */
  struct local_set kept; /* CLEAR: who of the workers is left */
  uint64_t when_ms;      /* boot_ms, when the guard saw it */
  char text[128];
};

/* 1: *ev is filled; 0: nothing more now. */
int guard_next(struct guard *g, struct guard_event *ev);

/* Agent, after GUARD_GONE: SIGKILL to all descendants of this process except `spare` (its own rdzvd; 0: none) and what
 * descends from it, until none is left or deadline_ms passed; reaps them. Returns how many are still there. Blocks up
 * to the deadline. Needs guard_start to have made this process a subreaper. */
int guard_reap_orphans(pid_t spare, uint32_t deadline_ms);

/* Closes the pair; the guard kills what is left, without an obituary if guard_obituary(len 0) was called, and goes.
 * Waits for it at most deadline_ms; pid is -1 when it is gone. Where it is not, guard_reap_orphans kills it and what it keeps. */
void guard_finish(struct guard *g, uint32_t deadline_ms);

#endif
