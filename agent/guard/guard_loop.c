/* SPDX-License-Identifier: Apache-2.0 */
/* The guard's process: one loop, no threads, no libraries but libc.
 *
 *   IDLE -spawn-> RUNNING -stop-> TERMINATING -grace over-> KILLING -no child left-> IDLE, and GUARD_CLEAR
 *                    '--all workers exited--> TERMINATING (200 ms for what they left behind; if all exited with 0, then
 *                                             SIGTERM and 5 s more)
 *                    '--no child left, and all that were announced have been spawned--> IDLE, and GUARD_CLEAR
 *   the agent's deadline (guard_fence) has passed: KILLING at once, whether the agent can run or not
 *   agent gone: KILLING at once; then the death report, then the end
 *   a stop that leaves workers out: -only they are left-> PARKED, and GUARD_CLEAR; -adopt-> RUNNING, in the next round
 *
 * waitpid alone answers whether anything is left. Every process of a worker hangs on a chain of parents below us. When
 * a link dies its children become ours, because we are a subreaper. So "no child" (ECHILD) means "nothing", exactly and
 * at no cost, and killing can work from the top: SIGKILL to each child and to its whole process group, reap, and look
 * again. Only children are signalled in this way, and a child keeps its pid until it is reaped, so no stranger can be
 * hit. If that has not ended after some milliseconds (a process that is slow to die hides its children), all
 * descendants are looked up in /proc and killed wherever they hang.
 *
 * A stop may leave workers out. Then waitpid cannot tell that nothing else is left. Spared are: a kept worker, its
 * descendants, and a child of ours in a kept worker's session. A helper with its own session that lost its parent has
 * left its worker, and is stopped with the round. Two looks must agree that nothing else is left: one picture alone can
 * miss a process whose parent died while it was taken. */

#include "agent/guard/proctree.h"
#include "agent/guard/stay.h"
#include "agent/guard/template.h"
#include "agent/guard/wire.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common/deadline.h"
#include "common/system/clock.h"
#include "common/system/copy.h"
#include "common/system/fds.h"
#include "common/key/secret.h"
#include "common/mem.h"

enum {
  LEFTOVER_GRACE_MS = 200, /* after the last worker: time for its helpers to end by themselves */
  DEEP_AFTER_MS = 20,      /* killing from the top has not ended: look everywhere; again after twice that */
  DEEP_EVERY_MAX_MS = 500,
  HOLD_EVERY_MS = 250,
  ADOPT_LOOKS = 200, /* a millisecond each, for what a worker left that died before it was adopted */
  REPORTS_MAX = 16,  /* processes that are named at a time */
};

#define NEVER UINT64_MAX

enum guard_phase { PHASE_IDLE, PHASE_RUNNING, PHASE_TERMINATING, PHASE_KILLING, PHASE_PARKED };

/* Processes that were left running by workers that all exited with 0. */
enum leftovers { LEFTOVERS_NONE, LEFTOVERS_FOUND, LEFTOVERS_ASKED /* it got SIGTERM */ };

/* The guard's own record of a worker. The agent is another process and keeps another one (agent/workers/worker.h). */
struct guarded {
  pid_t pid; /* of its group and session too */
  bool reaped;
  bool was_dying; /* when the stop came: we did not cause this death */
  bool kept;      /* left out of the stop */
  uint32_t local_rank;
  int exec_fd; /* readable when exec has succeeded or failed; -1: that is known */
  bool failed; /* exec did: no GUARD_EXITED follows */
  char name[GUARD_NAME_MAX];
};

struct guard_process {
  int sock; /* -1: the agent is gone */
  int sigchld;
  int fence_timer;
  uint64_t fence_at_ms; /* no worker may run later; NEVER: no fence */
  bool overdue;         /* the fence has passed, and the backstop may have killed workers */
  uint64_t hold_at_ms;  /* suspended: when the workers are stopped again */
  bool suspended;       /* workers of a round that is not being stopped are stopped (SIGSTOP) */
  enum guard_phase phase;
  uint32_t round, count, spawned; /* of the workers at hand */
  uint32_t late_round;            /* its ADOPT came while the workers kept for it are being killed; 0: none */
  struct guarded *workers;
  size_t n_workers, cap_workers, alive;
  bool any_failed;     /* a worker of this round did not exit with 0 */
  uint64_t kill_at_ms; /* TERMINATING */
  enum leftovers leftovers;
  int signo;        /* of the stop; 0: none was sent */
  uint64_t told_ms; /* when it was sent */
  bool orphaned;    /* a worker has died since: its last child is ours now, and may not have got the signal */
  uint64_t deep_at_ms, deep_every_ms, stuck_at_ms; /* KILLING */
  uint32_t killed;
  struct template template;
  struct stay stay;
  struct guard_event *events; /* not yet sent */
  size_t n_events, cap_events;
  struct guard_cmd_death_report death_report;
  struct key *key; /* of a sealed death report, in secret memory */
};

/* Events. ---------------------------------------------------------------------------------------------------------- */

static void flush_events(struct guard_process *s) {
  size_t sent = 0;
  while (sent < s->n_events && send(s->sock, &s->events[sent], sizeof(*s->events), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
    sent++;
  s->n_events -= sent;
  if (sent) memmove(s->events, s->events + sent, s->n_events * sizeof(*s->events));
}

static void emit(struct guard_process *s, struct guard_event ev) {
  if (s->sock < 0) return;
  ev.when_ms = boot_ms();
  s->events = xgrow(s->events, s->n_events, &s->cap_events, sizeof(*s->events));
  s->events[s->n_events++] = ev;
  flush_events(s);
}

static void emit_template(struct guard_process *s, int word, const char *text) {
  struct guard_event ev = {.kind = GUARD_TEMPLATE, .pid = s->template.pid, .error = word};
  snprintf(ev.text, sizeof(ev.text), "%s", text);
  emit(s, ev);
}

static void hear_template(struct guard_process *s) {
  char word, text[GUARD_TEMPLATE_WORD_MAX];
  while (guard_template_hear(&s->template, &word, text, sizeof(text))) emit_template(s, word, text);
}

static struct guard_event event_of(const struct guard_process *s, enum guard_event_kind kind, const struct guarded *w) {
  return (struct guard_event){.kind = kind, .round = s->round, .local_rank = w->local_rank, .pid = w->pid};
}

static void emit_exec_failed(struct guard_process *s, struct guard_event ev, int error, const char *name) {
  ev.error = error;
  ev.status = W_EXITCODE(error == ENOENT ? 127 : 126, 0);
  guard_exec_text(error, name, ev.text, sizeof(ev.text));
  emit(s, ev);
}

static void forget_dead(struct guard_process *s) {
  size_t kept = 0;
  for (size_t i = 0; i < s->n_workers; i++)
    if (!s->workers[i].reaped) s->workers[kept++] = s->workers[i];
  s->n_workers = s->alive = kept;
}

/* Nothing of the round is left, except workers that are kept for the next. */
static void clear(struct guard_process *s) {
  struct guard_event ev = {.kind = GUARD_CLEAR, .round = s->round, .killed = s->killed};
  forget_dead(s);
  for (size_t i = 0; i < s->n_workers; i++) local_set_add(&ev.kept, s->workers[i].local_rank);
  emit(s, ev);
  s->phase = s->n_workers ? PHASE_PARKED : PHASE_IDLE;
  s->spawned = s->count = s->killed = 0;
  s->orphaned = s->overdue = s->any_failed = false;
  s->leftovers = LEFTOVERS_NONE;
  if (!s->late_round) return;
  emit(s, (struct guard_event){.kind = GUARD_FENCED, .round = s->late_round});
  emit(s, (struct guard_event){.kind = GUARD_CLEAR, .round = s->late_round});
  s->late_round = 0;
}

/* To the worker's group. A child before its setsid has none; the signal to its pid waits until it unblocks signals.
 * Once the worker is reaped, its number may belong to another process. */
static void signal_worker(const struct guarded *w, int signo) {
  if (!w->reaped && kill(-w->pid, signo) < 0) kill(w->pid, signo);
}

static struct guarded *find_worker(struct guard_process *s, pid_t pid) {
  for (size_t i = 0; i < s->n_workers; i++)
    if (s->workers[i].pid == pid) return &s->workers[i];
  return NULL;
}

/* Kept workers. ---------------------------------------------------------------------------------------------------- */

/* The kept workers that live. */
static size_t count_kept(const struct guard_process *s) {
  size_t n = 0;
  for (size_t i = 0; i < s->n_workers; i++) n += s->workers[i].kept && !s->workers[i].reaped;
  return n;
}

static bool is_kept(struct guard_process *s, pid_t pid) {
  const struct guarded *w = find_worker(s, pid);
  return w && w->kept && !w->reaped;
}

/* pid: a child of ours. A fork of the template is in its session until it is a worker. */
static bool is_spared_child(struct guard_process *s, pid_t pid) {
  pid_t session = getsid(pid);
  return is_kept(s, pid) || is_kept(s, session) || (s->template.pid > 0 && session == s->template.pid);
}

/* Whether the chain of its parents leads to a spared child. */
static bool is_spared(struct guard_process *s, const struct proctree *t, const struct proc *p) {
  for (size_t depth = 0; p && depth < t->n; depth++) {
    if (is_kept(s, p->pid) || (p->ppid == getpid() && is_spared_child(s, p->pid))) return true;
    const struct proc *parent = NULL;
    for (size_t i = 0; i < t->n && !parent; i++)
      if (t->v[i].pid == p->ppid) parent = &t->v[i];
    p = parent;
  }
  return false;
}

static bool only_kept_left(struct guard_process *s) {
  struct proctree t = PROCTREE_INIT;
  bool found = false;
  for (int looks = 0; looks < 2 && !found; looks++) {
    proctree_children(&t);
    for (size_t i = 0; i < t.n && !found; i++) found = !is_spared_child(s, t.v[i].pid);
  }
  proctree_finish(&t);
  return !found;
}

/* Our descendants, without the spared ones. */
static void list_others(struct guard_process *s, struct proctree *t) {
  size_t kept = 0;
  proctree_descendants(t, 0, s->template.pid);
  if (!count_kept(s)) return;
  bool *spared = xcalloc(t->n ? t->n : 1, sizeof(*spared));
  for (size_t i = 0; i < t->n; i++) spared[i] = is_spared(s, t, &t->v[i]);
  for (size_t i = 0; i < t->n; i++)
    if (!spared[i]) t->v[kept++] = t->v[i];
  t->n = kept;
  free(spared);
}

/* Signals. --------------------------------------------------------------------------------------------------------- */

static void signal_all(struct guard_process *s, int signo) {
  for (size_t i = 0; i < s->n_workers; i++)
    if (!s->workers[i].kept) signal_worker(&s->workers[i], signo);
  /* To our children that are not workers, and to their groups. A group of another session than ours holds only
   * descendants. */
  struct proctree t = PROCTREE_INIT;
  proctree_children(&t);
  for (size_t i = 0; i < t.n; i++) {
    pid_t pid = t.v[i].pid, group = getpgid(pid); /* -1: gone meanwhile */
    const struct guarded *w = find_worker(s, pid), *leader = find_worker(s, group);
    if ((w && !w->reaped) || (leader && !leader->reaped)) continue; /* signal_worker has sent it */
    if (is_spared_child(s, pid)) continue;
    bool again = false;
    for (size_t k = 0; k < i && !again; k++) again = t.v[k].ppid == group;
    t.v[i].ppid = group; /* the field is free: the parent is this process */
    if (again || group <= 0) continue;
    kill(getsid(pid) != getsid(0) ? -group : pid, signo);
  }
  proctree_finish(&t);
}

/* The workers themselves are dead. A member of their groups that still runs got the SIGTERM and has the grace: the real
 * trainer behind a shell that did not wait for it. */
static bool group_left(struct guard_process *s) {
  struct proctree t = PROCTREE_INIT;
  bool left = false;
  proctree_children(&t);
  for (size_t i = 0; i < t.n && !left; i++)
    left = find_worker(s, getpgid(t.v[i].pid)) != NULL && !is_spared_child(s, t.v[i].pid);
  proctree_finish(&t);
  return left;
}

/* False: all processes that are left have become another user, so we may not kill them. */
static bool kill_everywhere(struct guard_process *s) {
  struct proctree t = PROCTREE_INIT;
  size_t denied = 0, dead = 0;
  list_others(s, &t);
  for (size_t i = 0; i < t.n; i++) {
    dead += t.v[i].state == 'Z';
    denied += !proc_signal(&t.v[i], SIGKILL);
  }
  proctree_finish(&t);
  return denied == 0 || denied + dead < t.n;
}

/* Stopping. -------------------------------------------------------------------------------------------------------- */

/* A large process takes long to die. Its peers fail because of it, and a stop may arrive before we can reap it. */
static void mark_dying(struct guard_process *s) {
  struct proc p;
  for (size_t i = 0; i < s->n_workers; i++)
    if (!s->workers[i].reaped) s->workers[i].was_dying = !proc_read(s->workers[i].pid, &p) || p.dying;
}

static void tell_to_stop(struct guard_process *s, int signo) {
  s->signo = signo;
  s->told_ms = boot_ms();
  signal_all(s, signo);
  signal_all(s, SIGCONT); /* a stopped one could not act on it */
  if (s->suspended) guard_continue_trees();
}

static void keep(struct guard_process *s, const struct local_set *set) {
  for (size_t i = 0; i < s->n_workers; i++)
    s->workers[i].kept = local_set_has(set, s->workers[i].local_rank) && !s->workers[i].reaped;
}

/* Names the processes that are left. GUARD_STUCK: they do not die. GUARD_LEFTOVER: finished workers left them running, and
 * they get `signo` now. */
static void report_left(struct guard_process *s, enum guard_event_kind kind, int signo) {
  struct proctree t = PROCTREE_INIT;
  bool stuck = kind == GUARD_STUCK;
  list_others(s, &t);
  for (size_t i = 0, named = 0; i < t.n && named < REPORTS_MAX; i++) {
    const struct proc *p = &t.v[i];
    if (stuck ? p->state == 'Z' && p->ppid != getpid() : p->dying) continue; /* a zombie's parent is the one to name */
    const struct guarded *w = find_worker(s, p->pid);
    struct guard_event ev = {.kind = kind, .round = s->round, .pid = p->pid, .error = stuck ? p->state : signo};
    if (stuck) {
      ev.local_rank = w ? w->local_rank : UINT32_MAX;
      ev.uid = proc_uid(p);
      ev.denied = kill(p->pid, 0) < 0 && errno == EPERM;
    }
    snprintf(ev.text, sizeof(ev.text), "%s", p->name);
    emit(s, ev);
    named++;
  }
  proctree_finish(&t);
}

/* An uploader in a session of its own gets no signal from the stop of its worker. */
static void ask_leftovers(struct guard_process *s) {
  report_left(s, GUARD_LEFTOVER, SIGTERM);
  s->leftovers = LEFTOVERS_ASKED;
  s->kill_at_ms = boot_ms() + GUARD_LEFTOVER_STOP_MS;
  tell_to_stop(s, SIGTERM);
}

static void begin_killing(struct guard_process *s) {
  if (s->phase == PHASE_KILLING) return;
  uint64_t now = boot_ms();
  s->phase = PHASE_KILLING;
  s->deep_every_ms = DEEP_AFTER_MS;
  s->deep_at_ms = now + s->deep_every_ms;
  s->stuck_at_ms = now + GUARD_KILL_DEADLINE_MS;
}

/* Fencing. --------------------------------------------------------------------------------------------------------- */

static bool fence_is_due(const struct guard_process *s) {
  return boot_ms() >= s->fence_at_ms;
}

/* Everything at once: a parent that is slow to die, in the kernel or on a GPU, hides what runs below it. */
static void kill_at_once(struct guard_process *s) {
  static const struct local_set none;
  keep(s, &none);
  begin_killing(s);
  s->deep_at_ms = boot_ms();
}

/* It stays due until the agent moves it: a SPAWN may still be on its way. */
static void fence(struct guard_process *s) {
  emit(s, (struct guard_event){.kind = GUARD_FENCED, .round = s->round});
  s->overdue = true;
  mark_dying(s);
  kill_at_once(s);
}

/* A timer of its own: poll's does not run while the machine is suspended. */
static void do_fence(struct guard_process *s, uint64_t at_ms) {
  s->fence_at_ms = at_ms;
  struct itimerspec at = {0}; /* zero disarms it */
  if (at_ms != NEVER) {
    at.it_value.tv_sec = (time_t)(at_ms / 1000);
    at.it_value.tv_nsec = (long)(at_ms % 1000) * 1000000 + 1;
  }
  timerfd_settime(s->fence_timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Suspension. ------------------------------------------------------------------------------------------------------ */

/* Workers that are being stopped run until they end. It is done again and again: when a process that was about to exit
 * does so, the kernel continues the stopped process groups that it leaves orphaned. */
static void hold(const struct guard_process *s) {
  if (!s->suspended || (s->phase != PHASE_RUNNING && s->phase != PHASE_PARKED)) return;
  guard_stop_trees();
}

static void hold_again(struct guard_process *s) {
  s->hold_at_ms = boot_ms() + HOLD_EVERY_MS;
  hold(s);
}

/* Workers. --------------------------------------------------------------------------------------------------------- */

static void report_exec(struct guard_process *s, struct guarded *w) {
  int error = 0;
  ssize_t n;
  while ((n = read(w->exec_fd, &error, sizeof(error))) == (ssize_t)sizeof(error) && error < 0) {
    struct guard_event ev = event_of(s, GUARD_UNBOUND, w);
    ev.error = -error;
    emit(s, ev);
  }
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  close(w->exec_fd);
  w->exec_fd = -1;
  w->failed = n == (ssize_t)sizeof(error);
  if (w->failed)
    emit_exec_failed(s, event_of(s, GUARD_EXEC_FAILED, w), error, w->name);
  else
    emit(s, event_of(s, GUARD_STARTED, w));
  hold(s);
}

/* Reaps all that died. True: no child is left. */
static bool reap(struct guard_process *s) {
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
    if (pid == 0) return false;
    if (pid < 0 && errno == EINTR) continue;
    if (pid < 0) return true;
    struct guarded *w = find_worker(s, pid);
    if (pid == s->template.pid) {
      hear_template(s); /* its last word */
      guard_template_gone(&s->template);
    } else if (w && !w->reaped) {
      if (w->exec_fd >= 0) report_exec(s, w); /* the worker is dead, so the pipe is at its end */
      struct guard_event ev = event_of(s, GUARD_EXITED, w);
      bool fenced = s->overdue && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
      ev.status = status;
      ev.unasked = s->phase == PHASE_RUNNING || (w->was_dying && !fenced);
      if (status) s->any_failed = true;
      if (!w->failed) emit(s, ev);
      w->reaped = true;
      s->alive--;
      s->orphaned = true;
    } else if (s->phase == PHASE_KILLING && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      s->killed++;
    }
  }
}

/* The template. ---------------------------------------------------------------------------------------------------- */

static void close_all(const int *fds, size_t n) {
  for (size_t i = 0; i < n; i++) close(fds[i]);
}

/* 0, or why no worker can start now, as a negative errno. */
static int refusal(const struct guard_process *s, const struct guard_cmd_spawn *c) {
  if (s->phase != PHASE_IDLE && c->round != s->round) return -EBUSY;
  if (s->phase != PHASE_IDLE && s->phase != PHASE_RUNNING) return -ECANCELED;
  return s->n_workers >= GUARD_WORKERS_MAX ? -E2BIG : 0;
}

/* One SPAWN is done. rc: why its worker could not be started, or 0. */
static void count_spawned(struct guard_process *s, const struct guard_cmd_spawn *c, const struct guarded *w, int rc) {
  if (s->phase == PHASE_IDLE) {
    s->phase = PHASE_RUNNING;
    s->round = c->round;
    s->any_failed = false; /* a parked worker that died since is of no round */
  }
  if (c->round == s->round) {
    s->count = c->count;
    s->spawned++;
  }
  struct guard_event ev = event_of(s, GUARD_EXEC_FAILED, w);
  ev.round = c->round;
  if (rc) {
    emit_exec_failed(s, ev, -rc, w->name);
    return;
  }
  s->workers = xgrow(s->workers, s->n_workers, &s->cap_workers, sizeof(*s->workers));
  s->workers[s->n_workers++] = *w;
  s->alive++;
}

static void do_spawn(struct guard_process *s, const struct guard_cmd_spawn *c, const int fds[GUARD_SPAWN_FDS],
                     size_t n_fds) {
  struct guarded w = {.local_rank = c->local_rank, .exec_fd = -1, .name = "its pipes"};
  if (fence_is_due(s)) { /* the agent was stopped before it could send SPAWN: too late */
    close_all(fds, n_fds);
    if (s->phase == PHASE_IDLE) {
      s->round = c->round;
      fence(s);
    }
    return;
  }
  if (s->late_round && s->late_round == c->round) { /* as the ADOPT before it */
    close_all(fds, n_fds);
    return;
  }
  int rc = n_fds == GUARD_SPAWN_FDS ? refusal(s, c) : -EMFILE; /* the kernel drops what we have no room for */
  if (rc)
    close_all(fds, n_fds);
  else
    rc = guard_fork_worker(c, fds, &w.pid, &w.exec_fd, w.name);
  count_spawned(s, c, &w, rc);
}

/* Workers whose time has come, in whichever way they start. */
static void spawn_waiting(struct guard_process *s) {
  struct waiting_worker f;
  enum template_next next;
  pid_t pid;
  /* A SPAWN behind the fence is answered by do_spawn. */
  while ((next = guard_template_next(&s->template, fence_is_due(s), &f, &pid)) != TEMPLATE_WAITS) {
    bool forked = next == TEMPLATE_FORKED;
    int rc = forked ? refusal(s, &f.command) : 0;
    if (forked && !rc &&
        send(f.pair, "g", 1, MSG_DONTWAIT | MSG_NOSIGNAL) != 1) { /* it has died, and nothing has run */
      close(f.pair);
      forked = false;
    }
    if (!forked) {
      do_spawn(s, &f.command, f.fds, GUARD_SPAWN_FDS);
      continue;
    }
    close_all(f.fds, GUARD_SPAWN_FDS);
    if (rc) close(f.pair); /* it reads the end, and exits */
    const struct guarded w = {
        .local_rank = f.command.local_rank, .pid = pid, .exec_fd = f.pair, .name = "its template"};
    count_spawned(s, &f.command, &w, rc);
  }
}

static void do_template(struct guard_process *s, const struct guard_cmd_spawn *c, const int *fds, size_t n_fds) {
  bool stayed = s->stay.template_stayed;
  s->stay.template_stayed = false;
  if (n_fds != (size_t)guard_template_count_fds(c) || (s->template.pid && !stayed) ||
      guard_template_fits(&s->template, c, fds)) {
    close_all(fds, n_fds);
    if (stayed && s->template.state == TEMPLATE_FORKS) emit_template(s, TEMPLATE_READY, "those of an earlier start");
    return;
  }
  if (stayed) emit_template(s, TEMPLATE_AGAIN, "it has stayed, but was made for another start");
  guard_template_end(&s->template);
  int rc = guard_template_start(&s->template, c, fds);
  if (rc) emit_template(s, TEMPLATE_DOUBT, strerror(-rc));
}

/* Commands. -------------------------------------------------------------------------------------------------------- */

/* Of parked workers. The kept workers that live belong to this round. Deaths that are found here are reported first, with the last
 * round, and what these workers left behind is killed. */
static void adopt(struct guard_process *s, uint32_t round, uint32_t count) {
  reap(s);
  for (int looks = 0; s->orphaned && looks < ADOPT_LOOKS && !only_kept_left(s); looks++) {
    kill_everywhere(s);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    reap(s);
  }
  forget_dead(s);
  s->orphaned = s->any_failed = false;
  s->round = round;
  s->count = count;
  s->spawned = (uint32_t)s->n_workers;
  s->phase = s->n_workers ? PHASE_RUNNING : PHASE_IDLE;
  for (size_t i = 0; i < s->n_workers; i++) {
    struct guarded *w = &s->workers[i];
    w->kept = w->was_dying = false;
    emit(s, event_of(s, GUARD_STARTED, w));
  }
  hold(s);
}

static void do_stop(struct guard_process *s, const struct guard_cmd_stop *c) {
  uint64_t kill_at = boot_ms() + c->grace_ms;
  guard_template_drop(&s->template);
  /* A second stop: workers that are no longer kept get the signal that the others got. */
  bool again = s->phase == PHASE_TERMINATING || s->phase == PHASE_KILLING;
  for (size_t i = 0; i < s->n_workers && again; i++) {
    struct guarded *w = &s->workers[i];
    if (!w->kept || local_set_has(&c->keep, w->local_rank)) continue;
    w->kept = false;
    if (!c->grace_ms) continue;
    signal_worker(w, c->signo);
    signal_worker(w, SIGCONT);
    if (s->suspended) guard_continue_trees();
  }
  if (s->phase == PHASE_IDLE) {
    s->round = c->round;
    clear(s);
  } else if (s->phase == PHASE_RUNNING || s->phase == PHASE_PARKED) {
    if (s->phase == PHASE_PARKED) s->round = c->round; /* they are of none */
    keep(s, &c->keep);
    mark_dying(s);
    s->phase = PHASE_TERMINATING;
    s->kill_at_ms = boot_ms() + c->grace_ms;
    s->signo = 0;
    if (c->grace_ms > 0) tell_to_stop(s, c->signo);
  } else if (s->phase == PHASE_TERMINATING) {
    if (c->grace_ms > 0 && s->leftovers == LEFTOVERS_FOUND) ask_leftovers(s);
    if (kill_at < s->kill_at_ms) s->kill_at_ms = kill_at;
    if (c->grace_ms == 0) begin_killing(s); /* what finished workers left is not asked first */
    if (c->grace_ms > 0 && s->signo && c->signo != s->signo) tell_to_stop(s, c->signo);
  }
}

/* Another agent has taken this guard; false: there is none, and the guard ends. */
static bool stay(struct guard_process *s) {
  if (s->stay.listener < 0) return false;
  hear_template(s);
  reap(s);
  bool idle = s->phase == PHASE_IDLE && s->n_workers == 0 && s->template.state != TEMPLATE_NONE &&
              s->template.n_waiting == 0 && !fence_is_due(s) && only_kept_left(s);
  if (!idle) return guard_stay_end(&s->stay), false;
  if (s->suspended) guard_continue_trees();
  if (s->key) key_wipe(s->key);
  s->death_report.len = 0;
  s->suspended = s->overdue = false;
  s->hold_at_ms = NEVER;
  s->late_round = 0;
  do_fence(s, NEVER);
  guard_stay_begin(&s->stay, &s->template);
  while (s->sock < 0 && s->template.pid > 0 && guard_stay_wait(&s->stay, s->sigchld, &s->template)) {
    struct signalfd_siginfo drop[8];
    while (read(s->sigchld, drop, sizeof(drop)) > 0) {
    }
    hear_template(s);
    reap(s);
    s->sock = guard_stay_answer(&s->stay, &s->template);
  }
  guard_stay_end(&s->stay);
  return s->sock >= 0;
}

/* From now on no event is sent and nothing is spawned. Descriptors for workers are closed: a reader of the agent's
 * output must not wait for us. */
static void agent_gone(struct guard_process *s) {
  close(s->sock);
  s->sock = -1;
  s->n_events = 0;
  guard_template_drop(&s->template);
  if (stay(s)) return;
  guard_template_end(&s->template);
  for (size_t i = 0; i < s->n_workers; i++) s->workers[i].exec_fd = -1;
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2; fd++) dup2(null, fd);
  copy_close_others(s->sigchld, s->fence_timer);
  kill_at_once(s);
}

/* One packet with its descriptors; false: none now. */
static bool read_command(struct guard_process *s) {
  struct guard_command c;
  int fds[GUARD_FDS_MAX];
  size_t n_fds;
  ssize_t n = fds_receive(s->sock, &c, sizeof(c), fds, GUARD_FDS_MAX, &n_fds, MSG_DONTWAIT);
  /* A reset says that the agent has gone with events unread. It comes once, and its last commands come behind it. */
  if (n < 0 && (errno == EINTR || errno == ECONNRESET)) return true;
  if (n < 0 && errno == EAGAIN) return false;
  if (n <= 0) return agent_gone(s), false;
  switch ((enum guard_command_kind)c.kind) {
  case GUARD_CMD_SPAWN:
    if (c.u.spawn.warm && n_fds == GUARD_SPAWN_FDS && s->template.state != TEMPLATE_NONE)
      guard_template_queue(&s->template, &c.u.spawn, fds);
    else
      do_spawn(s, &c.u.spawn, fds, n_fds);
    break;
  case GUARD_CMD_KEEP: /* what comes with it is used when the agent is gone */
    if (n_fds == 1 && s->stay.listener < 0 && s->stay.birth->likeness) {
      s->stay.listener = fds[0];
      s->stay.for_ms = c.u.keep.for_ms;
    } else {
      close_all(fds, n_fds);
    }
    break;
  case GUARD_CMD_TEMPLATE: do_template(s, &c.u.spawn, fds, n_fds); break;
  case GUARD_CMD_STOP: do_stop(s, &c.u.stop); break;
  case GUARD_CMD_SIGNAL:
    for (size_t i = 0; i < s->n_workers; i++)
      if (c.u.signal.local_rank < 0 || s->workers[i].local_rank == (uint32_t)c.u.signal.local_rank)
        signal_worker(&s->workers[i], c.u.signal.signo);
    break;
  case GUARD_CMD_FENCE: do_fence(s, c.u.fence.at_ms); break;
  case GUARD_CMD_ADOPT:
    if (s->phase == PHASE_TERMINATING || s->phase == PHASE_KILLING) s->late_round = c.u.adopt.round;
    if (s->phase != PHASE_PARKED) break;
    if (fence_is_due(s)) {
      s->round = c.u.adopt.round;
      fence(s);
    } else {
      adopt(s, c.u.adopt.round, c.u.adopt.count);
    }
    break;
  case GUARD_CMD_SUSPEND:
    s->suspended = c.u.suspend.on;
    s->hold_at_ms = NEVER;
    if (!s->suspended) {
      guard_continue_trees();
      break;
    }
    hold_again(s);
    emit(s, (struct guard_event){.kind = GUARD_SUSPENDED, .round = s->round});
    break;
  case GUARD_CMD_DEATH_REPORT:
    if (c.u.death_report.sealed && !s->key) s->key = secret_alloc();
    if (c.u.death_report.sealed) *s->key = c.u.death_report.key;
    key_wipe(&c.u.death_report.key);
    s->death_report = c.u.death_report;
    break;
  }
  return true;
}

/* Loop. ------------------------------------------------------------------------------------------------------------ */

static void kill_rest(struct guard_process *s, uint64_t now) {
  signal_all(s, SIGKILL);
  if (now >= s->deep_at_ms) {
    if (!kill_everywhere(s) && s->stuck_at_ms != NEVER) s->stuck_at_ms = now; /* waiting does not help */
    s->deep_every_ms = s->deep_every_ms * 2 < DEEP_EVERY_MAX_MS ? s->deep_every_ms * 2 : DEEP_EVERY_MAX_MS;
    s->deep_at_ms = boot_ms() + s->deep_every_ms;
  }
  if (now >= s->stuck_at_ms) {
    report_left(s, GUARD_STUCK, 0);
    s->stuck_at_ms = NEVER;
  }
}

/* Brings the phase up to date with the processes that are left and with the clock. */
static void update_phase(struct guard_process *s, bool none_left) {
  uint64_t now = boot_ms();
  bool complete = s->spawned >= s->count;
  size_t kept = count_kept(s), others = s->alive - kept;
  if (!none_left && others == 0 && (kept ? s->phase != PHASE_PARKED : s->phase != PHASE_IDLE && s->template.pid > 0))
    none_left = only_kept_left(s);
  if (s->phase == PHASE_RUNNING && s->alive == 0 && complete && !none_left) {
    s->phase = PHASE_TERMINATING;
    s->signo = 0;
    s->leftovers = s->any_failed ? LEFTOVERS_NONE : LEFTOVERS_FOUND;
    s->kill_at_ms = now + LEFTOVER_GRACE_MS;
  }
  if (s->phase == PHASE_TERMINATING && s->signo && s->orphaned) {
    /* A shell blocks signals while it forks. A signal that comes then kills the shell afterwards, and its child never gets
     * it. Older processes do not get it again: a second SIGTERM means haste to many programs. */
    struct proctree t = PROCTREE_INIT;
    uint64_t tick_ms = 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
    s->orphaned = false;
    proctree_children(&t);
    for (size_t i = 0; i < t.n; i++) {
      const struct guarded *w = find_worker(s, t.v[i].pid);
      if (!(w && !w->reaped) && !is_spared_child(s, t.v[i].pid) && (t.v[i].start + 1) * tick_ms > s->told_ms)
        kill(t.v[i].pid, s->signo);
    }
    proctree_finish(&t);
  }
  if (s->phase == PHASE_TERMINATING && s->leftovers == LEFTOVERS_NONE && others == 0 &&
      s->kill_at_ms > now + LEFTOVER_GRACE_MS && !group_left(s))
    s->kill_at_ms = now + LEFTOVER_GRACE_MS;
  if (s->phase == PHASE_PARKED) {
    if (none_left) {
      s->phase = PHASE_IDLE;
      s->n_workers = s->alive = 0;
    } else if (fence_is_due(s)) {
      fence(s);
      kill_rest(s, boot_ms());
    } else if (s->orphaned && !only_kept_left(s)) { /* a kept worker has died, and left processes behind */
      kill_everywhere(s);
    } else {
      s->orphaned = false;
    }
    return;
  }
  if (none_left && s->phase != PHASE_IDLE && (s->phase != PHASE_RUNNING || complete)) {
    clear(s);
    return;
  }
  if (s->phase == PHASE_TERMINATING && now >= s->kill_at_ms) { /* the grace is over */
    if (s->leftovers == LEFTOVERS_ASKED) report_left(s, GUARD_LEFTOVER, SIGKILL);
    if (s->leftovers == LEFTOVERS_FOUND)
      ask_leftovers(s);
    else
      begin_killing(s);
  }
  if (s->phase == PHASE_KILLING) kill_rest(s, now);
}

/* Sleeps until something happens; empties the signalfd and reads the pipes of workers that exec. */
static void wait_events(struct guard_process *s) {
  static struct pollfd p[2 * GUARD_WORKERS_MAX + 4];
  static struct guarded *of[GUARD_WORKERS_MAX + 4];
  nfds_t n = 0;
  p[n++] = (struct pollfd){.fd = s->sock, .events = (short)(POLLIN | (s->n_events ? POLLOUT : 0))};
  p[n++] = (struct pollfd){.fd = s->sigchld, .events = POLLIN};
  p[n++] = (struct pollfd){.fd = s->fence_timer, .events = POLLIN};
  p[n++] = (struct pollfd){.fd = s->template.sock, .events = POLLIN};
  for (size_t i = 0; i < s->n_workers; i++) {
    if (s->workers[i].exec_fd < 0) continue;
    of[n] = &s->workers[i];
    p[n++] = (struct pollfd){.fd = s->workers[i].exec_fd, .events = POLLIN};
  }
  nfds_t workers_end = n;
  for (size_t i = 0; i < s->template.n_waiting && i < GUARD_WORKERS_MAX; i++)
    p[n++] = (struct pollfd){.fd = s->template.waiting[i].pair, .events = POLLIN};
  uint64_t at = s->phase == PHASE_TERMINATING ? s->kill_at_ms : s->phase == PHASE_KILLING ? s->deep_at_ms : NEVER;
  uint64_t now = boot_ms();
  if (s->phase == PHASE_PARKED && s->orphaned) at = now + DEEP_AFTER_MS;
  if (s->phase == PHASE_PARKED && fence_is_due(s)) at = now;
  if (s->suspended) at = earliest(at, s->hold_at_ms);
  at = earliest(at, guard_template_deadline(&s->template));
  int timeout = at == NEVER ? -1 : at <= now ? 0 : (int)earliest(at - now, 60000);
  if (poll(p, n, timeout) <= 0) return;
  struct signalfd_siginfo drop[8];
  while (read(s->sigchld, drop, sizeof(drop)) > 0) {
  }
  uint64_t times;
  while (read(s->fence_timer, &times, sizeof(times)) > 0) {
  }
  for (nfds_t i = 4; i < workers_end; i++)
    if (p[i].revents) report_exec(s, of[i]);
  if (p[3].revents) hear_template(s);
  if (p[0].revents & POLLOUT) flush_events(s);
}

_Noreturn void guard_main(const struct guard_birth *birth) {
  struct guard_process s = {.sock = birth->sock,
                            .phase = PHASE_IDLE,
                            .fence_at_ms = NEVER,
                            .hold_at_ms = NEVER,
                            .template = {.sock = -1},
                            .stay = {.listener = -1, .asked = -1, .backstop = getppid(), .birth = birth}};
  setpgid(0, 0);
  /* What the agent holds for itself: the terminal, its front's socket and keyboard. A guard that stays must not hold it. */
  DIR *d = opendir("/proc/self/fd");
  for (const struct dirent *entry; d && (entry = readdir(d));) {
    int fd = (int)strtol(entry->d_name, NULL, 10);
    if (fd > STDERR_FILENO && fd != dirfd(d) && fd != birth->sock && fd != birth->page_fd &&
        fcntl(fd, F_GETFD) == FD_CLOEXEC)
      close(fd);
  }
  if (d) closedir(d);
  /* The backstop wakes us when the agent dies. If the backstop has died, the agent is our parent. */
  prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0);
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) _exit(1); /* the agent reads our end as GUARD_GONE */
  /* SIGCHLD is read from a descriptor. */
  sigset_t set;
  copy_block_signals();
  signal(SIGCHLD, SIG_DFL); /* if it was ignored, children would vanish unseen */
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  s.sigchld = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  s.fence_timer = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
  if (s.sigchld < 0 || s.fence_timer < 0) _exit(1);
  while (s.sock >= 0 || s.phase != PHASE_IDLE) {
    wait_events(&s);
    s.overdue |= fence_is_due(&s); /* before a command moves the fence */
    while (s.sock >= 0 && read_command(&s)) {
    }
    spawn_waiting(&s);
    if ((s.phase == PHASE_RUNNING || s.phase == PHASE_TERMINATING) && fence_is_due(&s)) fence(&s);
    update_phase(&s, reap(&s));
    if (boot_ms() >= s.hold_at_ms) hold_again(&s);
    if (s.phase == PHASE_RUNNING) s.overdue = false;
  }
  guard_send_death_report(&s.death_report, s.death_report.sealed ? s.key : NULL);
  _exit(0);
}
