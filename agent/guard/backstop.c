/* SPDX-License-Identifier: Apache-2.0 */
/* The backstop's process: it sleeps in poll until a process dies or a deadline passes.
 *
 * It knows of deaths by signals: SIGCHLD for the guard, and SIGCONT, its parent-death signal, for the agent. SIGCONT
 * also gets through to a process that is stopped. The agent sends the same signal when it moves the fence to an earlier
 * time, so a SIGCONT only means "look again". An agent that took a guard that had stayed is not our parent, and is
 * watched by a pidfd.
 *
 * The guard is not reaped while the agent lives. Agent and guard signal each other by pid, and a pid that is not reaped
 * cannot become a stranger's.
 *
 * It holds no descriptor of the agent's: a program may wait for the end of its output, or for its port. */

#include "agent/guard/backstop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "agent/guard/wire.h"
#include "common/system/clock.h"
#include "common/system/copy.h"
#include "common/deadline.h"

enum {
  KILL_MS = 200,       /* for one kill of the trees */
  WAIT_MAX_MS = 60000, /* then it looks again, in case the clocks of fence and wait differ: the machine was suspended */
};

/* Decisions. ------------------------------------------------------------------------------------------------------- */

void backstop_init(struct backstop *b) {
  *b = (struct backstop){.fence_at_ms = BACKSTOP_NEVER, .kill_at_ms = BACKSTOP_NEVER, .give_up_at_ms = BACKSTOP_NEVER};
}

enum backstop_act backstop_orphan(struct backstop *b, uint64_t now_ms) {
  if (b->orphaned) return BACKSTOP_REST;
  b->orphaned = true;
  b->kill_at_ms = earliest(b->kill_at_ms, now_ms + BACKSTOP_PATIENCE_MS);
  b->give_up_at_ms = now_ms + BACKSTOP_PATIENCE_MS + BACKSTOP_GIVE_UP_MS;
  return BACKSTOP_WAKE;
}

void backstop_fence(struct backstop *b, uint64_t fence_at_ms) {
  if (fence_at_ms == b->fence_at_ms) return;
  b->fence_at_ms = fence_at_ms;
  if (!b->orphaned) b->kill_at_ms = fence_at_ms;
}

enum backstop_act backstop_next(struct backstop *b, uint64_t now_ms) {
  if (now_ms >= b->give_up_at_ms) {
    b->give_up_at_ms = BACKSTOP_NEVER;
    return BACKSTOP_GIVE_UP;
  }
  if (now_ms < b->kill_at_ms) return BACKSTOP_REST;
  b->kill_at_ms = now_ms + BACKSTOP_AGAIN_MS;
  return BACKSTOP_KILL;
}

/* A guard whose fence has passed starts nothing, so what is dead stays dead until the fence moves. A guard without an
 * agent may still be about to read a command. */
void backstop_killed(struct backstop *b, int left) {
  if (left == 0 && !b->orphaned) b->kill_at_ms = BACKSTOP_NEVER;
}

uint64_t backstop_deadline(const struct backstop *b) {
  return earliest(b->kill_at_ms, b->give_up_at_ms);
}

/* The process. ----------------------------------------------------------------------------------------------------- */

struct watched {
  pid_t agent; /* 0: none */
  int fd;      /* its pidfd, if it is not our parent; -1 */
  bool dead;
};

static void watch_agent(struct watched *w, const struct backstop_page *page, struct backstop *b) {
  pid_t agent = atomic_load(&page->agent);
  if (agent != w->agent) {
    if (w->fd >= 0) close(w->fd);
    *w = (struct watched){.agent = agent, .fd = -1};
    backstop_init(b);
    if (agent > 0 && getppid() != agent) w->fd = (int)syscall(SYS_pidfd_open, agent, 0U);
    w->dead = agent > 0 && getppid() != agent && w->fd < 0;
  }
  if (w->fd >= 0)
    w->dead = poll(&(struct pollfd){.fd = w->fd, .events = POLLIN}, 1, 0) > 0;
  else if (agent > 0)
    w->dead = w->dead || getppid() != agent;
}

static void wait_for_news(int signals, const struct watched *w, uint64_t until_ms) {
  uint64_t now = boot_ms(), wait = until_ms <= now ? 0 : earliest(until_ms - now, WAIT_MAX_MS);
  struct pollfd p[] = {{.fd = signals, .events = POLLIN}, {.fd = w->dead ? -1 : w->fd, .events = POLLIN}};
  struct signalfd_siginfo drop[8];
  poll(p, 2, until_ms == BACKSTOP_NEVER ? -1 : (int)wait);
  while (read(signals, drop, sizeof(drop)) > 0) {
  }
}

/* 0: it lives. 1: it exited by itself, so nothing of its workers is left. -1: it was killed. */
static int fate_of(pid_t guard) {
  siginfo_t info = {.si_pid = 0};
  if (waitid(P_PID, (id_t)guard, &info, WEXITED | WNOHANG | WNOWAIT)) return errno == EINTR ? 0 : -1;
  if (info.si_pid == 0) return 0;
  return info.si_code == CLD_EXITED && info.si_status == 0 ? 1 : -1;
}

static void act(struct backstop *b, enum backstop_act what, pid_t guard) {
  switch (what) {
  case BACKSTOP_REST: break;
  case BACKSTOP_WAKE: kill(guard, SIGCONT); break;
  case BACKSTOP_KILL: backstop_killed(b, guard_kill_below(guard, KILL_MS)); break;
  case BACKSTOP_GIVE_UP: kill(guard, SIGKILL); break;
  }
}

_Noreturn void backstop_main(const struct backstop_page *page, pid_t guard) {
  struct backstop b;
  struct watched agent = {.agent = -1, .fd = -1};
  sigset_t waited;
  int fate;
  copy_block_signals();
  sigemptyset(&waited);
  sigaddset(&waited, SIGCHLD);
  sigaddset(&waited, SIGCONT);
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0);
  for (int fd = 0; fd <= 2; fd++) close(fd);
  copy_close_others(-1, -1);
  while (open("/dev/null", O_RDWR) == 0 || dup(0) <= 2) { /* proctree must not get one of 0 to 2 */
  }
  backstop_init(&b);
  int signals = signalfd(-1, &waited, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) _exit(1);
  while ((fate = fate_of(guard)) == 0) {
    enum backstop_act what;
    watch_agent(&agent, page, &b);
    if (agent.dead) act(&b, backstop_orphan(&b, boot_ms()), guard);
    backstop_fence(&b, atomic_load(&page->fence_at_ms));
    while ((what = backstop_next(&b, boot_ms())) != BACKSTOP_REST) act(&b, what, guard);
    wait_for_news(signals, &agent, backstop_deadline(&b));
  }
  watch_agent(&agent, page, &b);
  if (fate < 0) guard_reap_orphans(agent.agent > 0 && !agent.dead ? guard : 0, BACKSTOP_REAP_MS);
  _exit(0);
}
