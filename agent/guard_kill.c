/* Whom a signal of the guard reaches.
 *
 * Children are signalled by their groups, from the top, because a child keeps its pid until it is reaped, so no stranger can be hit; what dead workers
 * have left behind has become our child, too. Only where that does not come to an end are all descendants looked for in /proc.
 *
 * A stop may leave workers out. Then waitpid cannot say any more that nothing is left, and the line must be drawn by hand: spared is a kept worker, what
 * descends from it, and what has become our child but sits in a kept worker's session (its parent died; whose it was cannot be seen otherwise). A helper
 * that took a session of its own and lost its parent has left its worker, and goes with the round, as it would at any other stop. That nothing else is
 * left is believed after two looks: in one picture alone, a process can be missed whose parent died while it was taken. */

#include "agent/guard_state.h"
#include "agent/guard/proctree.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include "common/mem.h"

void signal_worker(const struct worker *w, int signo) {
  if (!w->reaped && kill(-w->pid, signo) < 0) kill(w->pid, signo);
}

struct worker *find_worker(struct state *s, pid_t pid) {
  for (size_t i = 0; i < s->n_workers; i++)
    if (s->workers[i].pid == pid) return &s->workers[i];
  return NULL;
}

/* Kept workers. ---------------------------------------------------------------------------------------------------- */

size_t count_kept(const struct state *s) {
  size_t n = 0;
  for (size_t i = 0; i < s->n_workers; i++) n += s->workers[i].kept && !s->workers[i].reaped;
  return n;
}

static bool is_kept(struct state *s, pid_t pid) {
  const struct worker *w = pid > 0 ? find_worker(s, pid) : NULL;
  return w && w->kept && !w->reaped;
}

/* A child of ours. */
static bool is_spared_child(struct state *s, pid_t pid) {
  return is_kept(s, pid) || is_kept(s, getsid(pid));
}

static const struct proc *find_proc(const struct proctree *t, pid_t pid) {
  for (size_t i = 0; i < t->n; i++)
    if (t->v[i].pid == pid) return &t->v[i];
  return NULL;
}

/* Whether the chain of its parents leads to one. */
static bool is_spared(struct state *s, const struct proctree *t, const struct proc *p) {
  for (size_t depth = 0; p && depth < t->n; depth++) {
    if (is_kept(s, p->pid) || (p->ppid == getpid() && is_spared_child(s, p->pid))) return true;
    p = p->ppid > 0 ? find_proc(t, p->ppid) : NULL;
  }
  return false;
}

static bool look_for_others(struct state *s) {
  struct proctree t = PROCTREE_INIT;
  bool found = false;
  proctree_children(&t);
  for (size_t i = 0; i < t.n && !found; i++) found = !is_spared_child(s, t.v[i].pid);
  proctree_finish(&t);
  return found;
}

bool only_kept_left(struct state *s) {
  bool found = look_for_others(s);
  return !(found || look_for_others(s));
}

void list_others(struct state *s, struct proctree *t) {
  size_t kept = 0;
  proctree_descendants(t, 0);
  if (!count_kept(s)) return;
  bool *spared = xcalloc(t->n ? t->n : 1, sizeof(*spared));
  for (size_t i = 0; i < t->n; i++) spared[i] = is_spared(s, t, &t->v[i]);
  for (size_t i = 0; i < t->n; i++)
    if (!spared[i]) t->v[kept++] = t->v[i];
  t->n = kept;
  free(spared);
}

/* Signals. --------------------------------------------------------------------------------------------------------- */

/* To our children that are no workers, and to their groups. Groups of another session than ours hold nothing but descendants. */
void signal_orphans(struct state *s, int signo) {
  struct proctree t = PROCTREE_INIT;
  proctree_children(&t);
  for (size_t i = 0; i < t.n; i++) {
    pid_t pid = t.v[i].pid, group = pid > 0 ? getpgid(pid) : 0; /* 0: gone meanwhile */
    const struct worker *w = find_worker(s, pid), *leader = find_worker(s, group);
    if ((w && !w->reaped) || (leader && !leader->reaped)) continue; /* they have it from signal_worker */
    if (is_spared_child(s, pid)) continue;
    bool again = false;
    for (size_t k = 0; k < i && !again; k++) again = t.v[k].ppid == group;
    t.v[i].ppid = group; /* who the parent is, we know */
    if (again || group <= 0) continue;
    kill(getsid(pid) != getsid(0) ? -group : pid, signo);
  }
  proctree_finish(&t);
}

void signal_all(struct state *s, int signo) {
  for (size_t i = 0; i < s->n_workers; i++)
    if (!s->workers[i].kept) signal_worker(&s->workers[i], signo);
  signal_orphans(s, signo);
}

/* A shell blocks signals while it forks: the one that comes then kills it afterwards, and its child has never heard of it. Who was
 * there before heard it once, and not again: a second SIGTERM means haste to many programs. */
void tell_late_born(struct state *s) {
  struct proctree t = PROCTREE_INIT;
  uint64_t tick_ms = 1000 / (uint64_t)sysconf(_SC_CLK_TCK);
  s->orphaned = false;
  proctree_children(&t);
  for (size_t i = 0; i < t.n; i++) {
    const struct worker *w = find_worker(s, t.v[i].pid);
    if (t.v[i].pid > 0 && !(w && !w->reaped) && !is_spared_child(s, t.v[i].pid) &&
        (t.v[i].start + 1) * tick_ms > s->told_ms)
      kill(t.v[i].pid, s->signo);
  }
  proctree_finish(&t);
}

/* The workers themselves are dead. Is somebody of their groups still at work? He got the SIGTERM and has his grace: the
 * real trainer behind a shell that did not wait for it. */
bool group_left(struct state *s) {
  struct proctree t = PROCTREE_INIT;
  bool left = false;
  proctree_children(&t);
  for (size_t i = 0; i < t.n && !left; i++)
    left = t.v[i].pid > 0 && find_worker(s, getpgid(t.v[i].pid)) != NULL && !is_spared_child(s, t.v[i].pid);
  proctree_finish(&t);
  return left;
}

void kill_everywhere(struct state *s) {
  struct proctree t = PROCTREE_INIT;
  list_others(s, &t);
  for (size_t i = 0; i < t.n; i++) proc_kill(&t.v[i]);
  proctree_finish(&t);
}
