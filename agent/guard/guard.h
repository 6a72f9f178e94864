/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GUARD_GUARD_H
#define AGENT_GUARD_GUARD_H

/* The guard: a small process between the agent and the workers. It is the parent of all workers and a child subreaper.
 * So every process that a worker ever forks, in any session, is its descendant and can be found and killed. The guard
 * outlives its agent: when the agent is gone (the socket pair between them closes), it kills every tree at once, sends
 * the daemon the death report that the agent left with it, and exits. When the guard itself is killed, the workers die
 * by their parent-death signal, and the agent, a subreaper too, kills what is left (guard_reap_orphans). When both are
 * killed at once, the backstop does it (backstop.h).
 *
 * Workers may outlive their round. A stop can leave some of them out, and these belong to no round until guard_adopt
 * names one. A kill without exceptions (a fence, the agent's death) kills them too.
 *
 * The functions below are the agent's side. No function waits for the guard, except for room in the socket, two seconds
 * at most. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include "agent/guard/watch.h"
#include "common/key/key.h"
#include "common/err.h"
#include "common/local_set.h"
#include "common/system/copy.h"

enum {
  GUARD_LEFTOVER_STOP_MS = 5000,     /* from SIGTERM to SIGKILL, for processes that finished workers left running */
  GUARD_WORKERS_MAX = 1024,          /* workers of one agent */
  GUARD_SPAWN_MAX = 2 * 1024 * 1024, /* bytes of argv and environment of one worker (ARG_MAX as we allow it) */
  GUARD_CPUS_MAX = 1024,             /* bytes of a set of CPUs */
};

struct backstop_page;

struct guard {
  int fd;         /* readable when guard_next has events; -1: gone */
  pid_t pid;      /* the guard's; 0: not known yet (guard_await); -1: it is gone, and reaped */
  pid_t backstop; /* our child, the guard's parent; -1 as above */
  int failed;     /* it could not be started: a negative errno, until guard_next has reported it */
  bool may_stay;  /* guard_keep can keep it */
  int pid_fd;     /* of a guard that had stayed: it is not our descendant; -1 */
  struct backstop_page *page;
};

/* Forks the backstop, which forks the guard. Call it before the first thread and before any descriptor that workers
 * must not see. Descriptors that are open then and not close-on-exec go on to the workers, as with any launcher.
 * words: over their copies guard and backstop write their own names; NULL: they keep the agent's.
 * others: close-on-exec descriptors of this process that the guard must not hold; -1: none.
 *
 * kept_for: the guard may stay with its template when this process ends (guard_keep); NULL: it may not. Then a guard that
 * has stayed is taken instead, if it was started by a process like this one (likeness.h). Such a guard is no descendant
 * of this process: if it and its backstop are killed at once, guard_reap_orphans does not find what its workers left
 * behind, and guard_kill_marked does. If nothing may stay, that is 0 too, and *e has the reason. */
struct guard_kept_for {
  char *const *argv, *const *env; /* the workers' command without the script's own words; variables as of guard_plan */
};
int guard_start(struct guard *g, const struct copy_words *words, const int *others, size_t n_others,
                const struct guard_kept_for *kept_for, struct err *e);
/* Waits until the guard runs, and learns its pid. guard_spawn does it, so that the guard starts while the caller does other
 * work. Earlier commands wait in the socket. After an error guard_next reports that the guard is gone. */
int guard_await(struct guard *g, struct err *e);

struct guard_spawn {
  uint32_t round, local_rank;
  uint32_t count; /* workers of this round here: GUARD_CLEAR comes when all were spawned and are gone */
  const char *const
      *argv; /* NULL-terminated; argv[0] is looked up in PATH of the environment below if it has no slash */
  const char *const
      *env; /* NULL-terminated "NAME=value"; the folder of its TORCHELASTIC_ERROR_FILE, and the one above, are made */
  int out, err;       /* its stdout and stderr: passed on, the caller closes its own copies; stdin is the agent's */
  bool warm;          /* the template may fork it: argv is the template's */
  const void *cpus;   /* which it may use, as for sched_setaffinity; NULL: as this process */
  uint32_t cpus_size; /* bytes, at most GUARD_CPUS_MAX */
};
/* A worker of another round than those that run, or of one that is being stopped, is answered with EXEC_FAILED. */
int guard_spawn(struct guard *g, const struct guard_spawn *s, struct err *e);

/* Starts the template, from which workers of the same argv are forked as long as it is sure of itself (agent/warm). env: as
 * far as it is the same for all workers. zip: the bytes of a zip file with template.py. GUARD_TEMPLATE says how it goes;
 * whatever it says, guard_spawn starts its worker. A second template is not started while there is one. tty: the streams
 * that are a terminal for its workers, and both ends of one like theirs; the caller closes its own copies. */
enum guard_terminals { GUARD_TTY_OUT = 1, GUARD_TTY_ERR = 2 };
struct guard_tty {
  unsigned streams; /* 0: none, and no ends */
  int slave, master;
};
struct guard_plan {
  const char *const *argv, *const *env;
  size_t own; /* where the script's own words begin in argv: another start of the same script may have others */
  const void *zip;
  size_t zip_len;
  struct guard_tty tty;
};
int guard_template(struct guard *g, const struct guard_plan *plan, struct err *e);

/* News of the template: the first letter of its packets. A text follows. */
enum guard_template_word {
  TEMPLATE_BUDGET = 'B',  /* seconds that the imports may take before workers are exec'd */
  TEMPLATE_READY = 'R',   /* it forks workers: how many modules it has, and the names of some */
  TEMPLATE_WORDS = 'W',   /* this module has read the script's own words, so it is for a script with the same ones */
  TEMPLATE_LEARNED = 'L', /* the same, after it has imported what a worker has imported */
  TEMPLATE_AGAIN = 'A',   /* it starts again, or another one in its place: the reason */
  TEMPLATE_DOUBT = 'D', /* it has ended, and workers are exec'd: the reason; "": the script imports nothing of weight */
};

/* Sends `signo` to every worker's process group and to the processes that dead workers left behind, and SIGKILL to
 * every tree after grace_ms (0: at once). When all workers are dead, processes outside of their groups have 200 ms;
 * members of the groups keep the whole grace (the real trainer behind a shell). When nothing is left: GUARD_CLEAR. A
 * second call may only shorten the grace; another signal than before is passed on. Without workers GUARD_CLEAR comes
 * at once, with this round, so it can come twice for one round.
 *
 * The local ranks in `keep` (NULL: none) and their descendants get no signal, and GUARD_CLEAR comes when all others
 * are gone. A second call may only take ranks out of the set. They are then stopped like the others, and another
 * GUARD_CLEAR comes for it. If a kept worker dies, GUARD_EXITED reports it, and what it leaves behind is killed at
 * once. */
int guard_stop(struct guard *g, uint32_t round, int signo, uint32_t grace_ms, const struct local_set *keep,
               struct err *e);
/* After GUARD_CLEAR: the kept workers belong to `round` now, the others of `count` are spawned. GUARD_STARTED comes for
 * each of them that lives, with its pid; for one that does not, GUARD_EXITED has come, with the round before. If the
 * fence has killed them already: GUARD_FENCED and GUARD_CLEAR. */
int guard_adopt(struct guard *g, uint32_t round, uint32_t count, struct err *e);
/* on: stops (SIGSTOP) all workers and all their descendants; GUARD_SUSPENDED comes. Workers that start later are
 * stopped as soon as their command runs. A stop of the round lets its workers run again, to end. Off: SIGCONT
 * to all. */
int guard_suspend(struct guard *g, bool on, struct err *e);
/* `signo` to the process group of one worker, or of all (local_rank -1). */
int guard_signal(struct guard *g, int local_rank, int signo, struct err *e);

/* The deadline after which no worker of this node may run, in boot_ms; GUARD_NO_FENCE: none, as at the start. Each call
 * replaces the last one. When the deadline passes while workers run: GUARD_FENCED, SIGKILL to every tree, then the
 * deaths and GUARD_CLEAR as after guard_stop; the agent need not be able to run. Until the deadline is moved,
 * guard_spawn starts nothing: it is answered with GUARD_FENCED and GUARD_CLEAR. If the trees live patience_ms after
 * that, neither the guard nor this process can run, and the backstop kills them. */
#define GUARD_NO_FENCE UINT64_MAX
int guard_fence(struct guard *g, uint64_t at_ms, uint64_t patience_ms, struct err *e);

/* The message that the guard sends when the agent is dead and its trees are killed: it connects to addr, writes
 * `bytes`, and waits shortly for the peer's close. With `key` the bytes are frames, and travel in a channel; NULL: they
 * are written as they are. Replaces the last one; len 0: none. */
enum { GUARD_DEATH_REPORT_MAX = 4096 };
int guard_death_report(struct guard *g, const struct sockaddr *addr, socklen_t addr_len, const struct key *key,
                       const void *bytes, size_t len, struct err *e);

/* The guard stays for so long, with its template and for another agent, if nothing of a worker is left. Call it instead
 * of guard_leave. No more than KEPT_MAX guards of this user stay, and their templates have only a part of the machine's
 * memory: those that have waited longest end. 0; or a negative errno, and it is as after guard_leave. */
int guard_keep(struct guard *g, uint64_t for_ms, pid_t template, struct err *e);

/* SIGKILL, if it lives. */
void guard_sigkill(const struct guard *g);
/* SIGCONT. No other process reaps the guard before this one does, so its pid cannot become a stranger's. */
void guard_wake(const struct guard *g);
/* SIGKILL to all descendants of the guard, but not to the guard itself, until none of them lives or deadline_ms passed.
 * Returns how many still live. Call it only when a stop without kept workers is due: when the guard can run again, it
 * reports the deaths as its own doing. */
int guard_kill_trees(const struct guard *g, uint32_t deadline_ms);
/* The same, by the guard's pid: a descendant of this process. */
int guard_kill_below(pid_t guard, uint32_t deadline_ms);

enum guard_event_kind {
  GUARD_STARTED, /* the worker's command runs (exec succeeded), or the worker was adopted */
  /* the command could not be run: error (errno), text; status as if it had exited with 127 if the command was not
   * found, else 126. Nothing more comes about this worker */
  GUARD_EXEC_FAILED,
  /* the worker could not be bound to its CPUs: error (errno). It runs without that. Comes before STARTED */
  GUARD_UNBOUND,
  GUARD_EXITED, /* status as of waitpid; comes after STARTED, once per worker */
  /* nothing of the round is left; `killed` processes other than workers were killed. Comes after guard_stop, or when
   * all workers have exited by themselves and their leftovers are gone. These have 200 ms; if all workers exited with
   * 0, they then get SIGTERM, and SIGKILL GUARD_LEFTOVER_STOP_MS later. A fence, or a stop without a grace, kills them
   * at once */
  GUARD_CLEAR,
  GUARD_LEFTOVER, /* pid, named in text, still runs though all workers have exited with 0; it gets signal `error` now */
  /* the deadline of guard_fence has passed: everything of `round` is being killed. Comes before the deaths that it
   * causes */
  GUARD_FENCED,
  /* pid did not die of SIGKILL within GUARD_KILL_DEADLINE_MS, or may not be killed by us (`denied`: it has become
   * user `uid`): state letter (as in /proc/PID/stat) in error, command name in text, local_rank UINT32_MAX if it is
   * not a worker itself. GUARD_CLEAR follows when it is gone */
  GUARD_STUCK,
  GUARD_SUSPENDED, /* answers guard_suspend: every process of a worker is stopped, unless the round is being stopped */
  /* news of the template: pid, error: an enum guard_template_word, and its text */
  GUARD_TEMPLATE,
  GUARD_GONE, /* the guard died; fd is closed. Call guard_reap_orphans */
};

struct guard_event {
  enum guard_event_kind kind;
  uint32_t round, local_rank;
  pid_t pid;
  int status; /* EXITED, EXEC_FAILED */
  int error;
  bool unasked;          /* EXITED: the worker was dead or dying before guard_stop */
  uint32_t killed;       /* CLEAR */
  struct local_set kept; /* CLEAR: the workers that are left */
  uid_t uid;             /* STUCK */
  bool denied;           /* STUCK */
  uint64_t when_ms;      /* boot_ms, when the guard saw it */
  char text[160];
};

/* 1: *ev is filled; 0: nothing more now. */
int guard_next(struct guard *g, struct guard_event *ev);

/* After GUARD_GONE: SIGKILL to all descendants of this process, except `spare` (the agent's own rdzvd; 0: none) and its
 * descendants, until none is left or deadline_ms passed; reaps them. Returns how many are still there. Blocks up to the
 * deadline. Needs guard_start to have made this process a subreaper. */
int guard_reap_orphans(pid_t spare, uint32_t deadline_ms);

/* After GUARD_GONE of a guard that was taken: SIGKILL to all processes of this user whose environment has that
 * "NAME=value", until none is left or deadline_ms passed. Returns how many are still there. */
int guard_kill_marked(const char *variable, uint32_t deadline_ms);

/* Closes the pair. The guard kills what is left, without a death report if guard_death_report(len 0) was called, and
 * exits; so does the backstop. */
void guard_leave(struct guard *g);
/* The same, then waits for both at most deadline_ms; pid is -1 when they are gone. If they are not, guard_reap_orphans
 * kills them and their processes. */
void guard_finish(struct guard *g, uint32_t deadline_ms);

#endif
