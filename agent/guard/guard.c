/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's side of the guard: fork it, send it commands, read its events, and clean up after it.
 *
 * The pair is a SOCK_SEQPACKET socket, so a command is a packet, and an end of file is the other's death, however it
 * came. argv and environment of a worker can be two megabytes and go as a memfd beside the packet.
 *
 * The socket does not block. A command that finds no room waits for it, but not forever: a guard that cannot run must
 * not stop the agent. A queue here would need a second interest in the agent's loop for a case that does not happen in
 * practice: some two hundred commands fit.
 *
 * If the guard is killed, the processes that its workers had started are handed to the agent. guard_reap_orphans ends
 * them. It blocks on purpose: an agent must not start a round beside the remains of another. */

#include "agent/guard/guard.h"
#include "agent/guard/backstop.h"
#include "agent/guard/likeness.h"
#include "agent/guard/proctree.h"
#include "agent/guard/wire.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/kept/kept.h"
#include "common/key/secret.h"
#include "common/err.h"
#include "common/system/clock.h"
#include "common/system/fds.h"
#include "common/system/log.h"
#include "common/system/file.h"

enum {
  START_WAIT_MS = 5000, /* for the guard's pid */
  ROOM_WAIT_MS = 2000,
};

static struct backstop_page *map_page(int fd) {
  struct backstop_page *page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return page == MAP_FAILED ? NULL : page;
}

/* In the backstop's process: it forks the guard and reports its pid, or a negative errno. */
_Noreturn static void become_backstop(const struct guard_birth *birth, pid_t agent) {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) _exit(1); /* the agent reads the end of the pair */
  secret_lock_again();
  pid_t pid = fork();
  if (pid == 0) {
    secret_lock_again();
    copy_set_name(birth->words, "rdzv-guard", agent);
    guard_main(birth);
  }
  if (pid < 0) pid = -errno;
  if (send(birth->sock, &pid, sizeof(pid), MSG_NOSIGNAL) != sizeof(pid) || pid < 0) _exit(1);
  copy_set_name(birth->words, "backstop", agent);
  backstop_main(birth->page, pid);
}

static void drop_page(struct guard *g) {
  if (g->page) munmap(g->page, sizeof(*g->page));
  g->page = NULL;
}

/* All but the page. */
static void forget(struct guard *g) {
  if (g->fd >= 0) close(g->fd);
  if (g->backstop > 0) {
    kill(g->backstop, SIGKILL);
    waitpid(g->backstop, NULL, 0);
  }
  g->fd = g->pid = g->backstop = -1;
}

/* -1: the kernel has no pidfds (before 5.3), or there is no such process. */
static int open_pidfd(pid_t pid) {
#ifdef SYS_pidfd_open
  return (int)syscall(SYS_pidfd_open, pid, 0U);
#else
  errno = ENOSYS;
  return -1;
#endif
}

/* A guard that has stayed, and was started by a process like this one. */
static bool take(struct guard *g, const char *likeness) {
  struct kept_facts all[KEPT_MAX], f;
  size_t n = kept_list(all, KEPT_MAX);
  while (n-- > 0) {
    int page = -1, fd = kept_ask(all[n].pid, KEPT_TAKE, likeness, STDIN_FILENO, &f, &page);
    if (fd < 0) continue;
    struct backstop_page *shared = page >= 0 ? map_page(page) : NULL;
    if (page >= 0) close(page);
    int pid_fd = shared ? open_pidfd(f.pid) : -1;
    if (pid_fd >= 0) {
      *g = (struct guard){
          .fd = fd, .pid = f.pid, .backstop = f.backstop, .page = shared, .pid_fd = pid_fd, .may_stay = true};
      return true;
    }
    if (shared) munmap(shared, sizeof(*shared));
    close(fd); /* it ends */
  }
  return false;
}

int guard_start(struct guard *g, const struct copy_words *words, const int *others, size_t n_others,
                const struct guard_kept_for *kept_for, struct err *e) {
  int pair[2], page_fd = -1;
  struct buf likeness = BUF_INIT, command = BUF_INIT;
  *g = (struct guard){.fd = -1, .pid = -1, .backstop = -1, .pid_fd = -1};
  int rc = file_fill_standard(e); /* or workers would get the pair as their stdin */
  if (rc) return rc;
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)) return err_sys(e, -errno, "cannot become a subreaper");
  int has_pidfds = kept_for ? open_pidfd(getpid()) : -1;
  if (has_pidfds >= 0) close(has_pidfds);
  bool may_stay = has_pidfds >= 0 && likeness_put(kept_for, &likeness, e) == 0 && likeness.len < KEPT_TEXT_MAX;
  if (may_stay && take(g, buf_text(&likeness))) {
    buf_finish(&likeness);
    return 0;
  }
  for (size_t i = 0; may_stay && kept_for->argv[i]; i++) buf_printf(&command, i ? " %s" : "%s", kept_for->argv[i]);
  page_fd = memfd_create("rdzv-guard", MFD_CLOEXEC); /* for an agent that takes the guard later */
  struct backstop_page *page = page_fd >= 0 && !ftruncate(page_fd, sizeof(*page)) ? map_page(page_fd) : NULL;
  if (page) {
    atomic_store(&page->fence_at_ms, BACKSTOP_NEVER);
    atomic_store(&page->agent, getpid());
  }
  if (!page || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair)) {
    rc = err_sys(e, -errno, page ? "no socket pair for the guard" : "no memory to share with the guard");
    if (page) munmap(page, sizeof(*page));
    if (page_fd >= 0) close(page_fd);
    buf_finish(&likeness);
    buf_finish(&command);
    return rc;
  }
  sigset_t all, before; /* no handler of the agent may run in the guard */
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  pid_t agent = getpid(), pid = fork();
  if (pid == 0) {
    close(pair[0]);
    for (size_t i = 0; i < n_others; i++)
      if (others[i] >= 0) close(others[i]);
    become_backstop(&(struct guard_birth){.sock = pair[1],
                                          .page = page,
                                          .page_fd = page_fd,
                                          .likeness = may_stay ? buf_text(&likeness) : NULL,
                                          .command = buf_text(&command),
                                          .words = words},
                    agent);
  }
  int error = errno;
  sigprocmask(SIG_SETMASK, &before, NULL);
  close(pair[1]);
  close(page_fd);
  buf_finish(&likeness);
  buf_finish(&command);
  *g = (struct guard){.fd = pair[0], .backstop = pid, .page = page, .pid_fd = -1, .may_stay = may_stay};
  if (pid > 0) return 0;
  err_sys(e, -error, "cannot fork the guard");
  rc = limit_explain(e);
  forget(g);
  drop_page(g);
  return rc;
}

static int learn_pid(struct guard *g, int timeout_ms, struct err *e) {
  if (g->pid || g->fd < 0) return 0;
  struct pollfd p = {.fd = g->fd, .events = POLLIN};
  pid_t pid = g->failed;
  int n = 1;
  while (!g->failed && (n = poll(&p, 1, timeout_ms)) < 0 && errno == EINTR) {
  }
  if (n == 0)
    pid = -ETIMEDOUT;
  else if (!g->failed && recv(g->fd, &pid, sizeof(pid), MSG_DONTWAIT) != sizeof(pid)) /* the backstop's report */
    pid = -EPIPE;
  if (pid > 0) g->pid = pid;
  if (pid > 0 || (pid == -ETIMEDOUT && timeout_ms == 0)) return 0;
  g->failed = pid;
  if (g->backstop > 0) kill(g->backstop, SIGKILL); /* the socket ends, and the loop asks guard_next */
  err_sys(e, pid, "cannot fork the guard");
  return limit_explain(e);
}

int guard_await(struct guard *g, struct err *e) {
  return learn_pid(g, START_WAIT_MS, e);
}

/* A guard that was taken is another process's to reap, and its number may become a stranger's. */
static void send_signal(const struct guard *g, int signo) {
  if (g->pid_fd >= 0)
    syscall(SYS_pidfd_send_signal, g->pid_fd, signo, NULL, 0);
  else if (g->pid > 0)
    kill(g->pid, signo);
}

void guard_sigkill(const struct guard *g) {
  send_signal(g, SIGKILL);
}

void guard_wake(const struct guard *g) {
  if (g->fd >= 0) send_signal(g, SIGCONT);
}

static int send_command(struct guard *g, const struct guard_command *c, size_t member_size, const int *fds,
                        size_t n_fds, struct err *e) {
  struct iovec iov = {.iov_base = (void *)(uintptr_t)c, .iov_len = offsetof(struct guard_command, u) + member_size};
  uint64_t deadline = boot_ms() + ROOM_WAIT_MS;
  guard_wake(g);
  while (g->fd >= 0) {
    if (fds_send(g->fd, &iov, 1, fds, n_fds, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return 0;
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET) break;
    if (errno != EAGAIN && errno != ENOBUFS && errno != ETOOMANYREFS)
      return err_sys(e, -errno, "cannot command the guard");
    if (boot_ms() >= deadline)
      return err_set(e, -ETIMEDOUT, "the guard (pid %d) does not take commands: is it stopped?", (int)g->pid);
    poll(&(struct pollfd){.fd = g->fd, .events = POLLOUT}, 1, 10);
  }
  return err_set(e, -EPIPE, "the guard is gone");
}

static uint32_t append_strings(struct buf *out, const char *const *v) {
  uint32_t n = 0;
  for (; v[n]; n++) buf_append(out, v[n], strlen(v[n]) + 1);
  return n;
}

/* A memfd that holds the bytes, or a negative errno. */
static int memfd_of(const void *bytes, size_t len) {
  int fd = memfd_create("rdzv-spawn", MFD_CLOEXEC), rc = fd < 0 ? -errno : file_write_all(fd, bytes, len);
  if (rc && fd >= 0) close(fd);
  return rc ? rc : fd;
}

int guard_spawn(struct guard *g, const struct guard_spawn *s, struct err *e) {
  int fd = -1, rc = guard_await(g, e);
  if (rc) return rc;
  struct buf strings = BUF_INIT;
  struct guard_command c = {.kind = GUARD_CMD_SPAWN};
  c.u.spawn =
      (struct guard_cmd_spawn){.round = s->round, .local_rank = s->local_rank, .count = s->count, .warm = s->warm};
  c.u.spawn.cpus_size = s->cpus ? s->cpus_size : 0;
  if (c.u.spawn.cpus_size) buf_append(&strings, s->cpus, c.u.spawn.cpus_size);
  c.u.spawn.argc = append_strings(&strings, s->argv);
  c.u.spawn.envc = append_strings(&strings, s->env);
  c.u.spawn.size = (uint32_t)strings.len;
  if (c.u.spawn.argc == 0)
    rc = err_set(e, -EINVAL, "no command to run");
  else if (s->local_rank >= GUARD_WORKERS_MAX)
    rc = err_set(e, -EINVAL, "local rank %u: one agent has at most %d workers", s->local_rank, GUARD_WORKERS_MAX);
  else if (strings.len > GUARD_SPAWN_MAX)
    rc = err_set(e, -E2BIG, "command and environment of a worker have %zu bytes, more than %d", strings.len,
                 GUARD_SPAWN_MAX);
  else if ((fd = memfd_of(strings.data, strings.len)) < 0)
    rc = err_sys(e, fd, "no memory file for the worker's environment");
  else
    rc = send_command(g, &c, sizeof(c.u.spawn), (const int[]){fd, s->out, s->err}, GUARD_SPAWN_FDS, e);
  if (fd >= 0) close(fd);
  buf_finish(&strings);
  return rc;
}

int guard_template(struct guard *g, const struct guard_plan *plan, struct err *e) {
  struct buf bytes = BUF_INIT;
  struct guard_command c = {.kind = GUARD_CMD_TEMPLATE};
  c.u.spawn.argc = append_strings(&bytes, plan->argv);
  c.u.spawn.envc = append_strings(&bytes, plan->env);
  c.u.spawn.size = (uint32_t)bytes.len;
  c.u.spawn.terminals = plan->tty.streams;
  c.u.spawn.own = (uint32_t)plan->own;
  int fds[] = {bytes.len > GUARD_SPAWN_MAX ? -E2BIG : memfd_of(bytes.data, bytes.len),
               memfd_of(plan->zip, plan->zip_len), plan->tty.slave, plan->tty.master};
  int bad = fds[0] < 0 ? fds[0] : fds[1] < 0 ? fds[1] : 0;
  int rc = bad ? err_sys(e, bad, "no memory file for the template")
               : send_command(g, &c, sizeof(c.u.spawn), fds, plan->tty.streams ? 4 : 2, e);
  for (int i = 0; i < 2; i++)
    if (fds[i] >= 0) close(fds[i]);
  buf_finish(&bytes);
  return rc;
}

int guard_stop(struct guard *g, uint32_t round, int signo, uint32_t grace_ms, const struct local_set *keep,
               struct err *e) {
  struct guard_command c = {.kind = GUARD_CMD_STOP, .u.stop = {.round = round, .signo = signo, .grace_ms = grace_ms}};
  if (keep) c.u.stop.keep = *keep;
  return send_command(g, &c, sizeof(c.u.stop), NULL, 0, e);
}

int guard_adopt(struct guard *g, uint32_t round, uint32_t count, struct err *e) {
  struct guard_command c = {.kind = GUARD_CMD_ADOPT, .u.adopt = {.round = round, .count = count}};
  return send_command(g, &c, sizeof(c.u.adopt), NULL, 0, e);
}

int guard_suspend(struct guard *g, bool on, struct err *e) {
  struct guard_command c = {.kind = GUARD_CMD_SUSPEND, .u.suspend = {.on = on}};
  return send_command(g, &c, sizeof(c.u.suspend), NULL, 0, e);
}

int guard_signal(struct guard *g, int local_rank, int signo, struct err *e) {
  struct guard_command c = {.kind = GUARD_CMD_SIGNAL, .u.signal = {.local_rank = local_rank, .signo = signo}};
  return send_command(g, &c, sizeof(c.u.signal), NULL, 0, e);
}

int guard_fence(struct guard *g, uint64_t at_ms, uint64_t patience_ms, struct err *e) {
  /* The backstop looks at the page when the fence that it knows passes. So it is woken only for an earlier one, and when
   * it has already acted. */
  if (g->fd >= 0) {
    uint64_t own_ms = at_ms == GUARD_NO_FENCE ? BACKSTOP_NEVER : at_ms + patience_ms;
    uint64_t before_ms = atomic_exchange(&g->page->fence_at_ms, own_ms);
    if (own_ms < before_ms || before_ms <= boot_ms()) kill(g->backstop, SIGCONT);
  }
  struct guard_command c = {.kind = GUARD_CMD_FENCE, .u.fence = {.at_ms = at_ms}};
  return send_command(g, &c, sizeof(c.u.fence), NULL, 0, e);
}

int guard_death_report(struct guard *g, const struct sockaddr *addr, socklen_t addr_len, const struct key *key,
                       const void *bytes, size_t len, struct err *e) {
  struct guard_command c = {.kind = GUARD_CMD_DEATH_REPORT};
  if (len > GUARD_DEATH_REPORT_MAX || addr_len > sizeof(c.u.death_report.addr))
    return err_set(e, -EMSGSIZE, "a death report of %zu bytes is too long", len);
  if (len > 0) {
    memcpy(&c.u.death_report.addr, addr, addr_len);
    memcpy(c.u.death_report.bytes, bytes, len);
    c.u.death_report.addr_len = addr_len;
    c.u.death_report.len = (uint32_t)len;
    c.u.death_report.sealed = key != NULL;
    if (key) c.u.death_report.key = *key;
  }
  int rc = send_command(g, &c, offsetof(struct guard_cmd_death_report, bytes) + len, NULL, 0, e);
  key_wipe(&c.u.death_report.key);
  return rc;
}

int guard_next(struct guard *g, struct guard_event *ev) {
  struct err e = ERR_INIT;
  if (g->fd < 0) return 0;
  if (learn_pid(g, 0, &e)) {
    log_error("%s", e.text);
    forget(g);
    *ev = (struct guard_event){.kind = GUARD_GONE, .pid = g->pid, .when_ms = boot_ms()};
    return 1;
  }
  if (g->pid == 0) return 0; /* it has not started yet */
  ssize_t n;
  do n = recv(g->fd, ev, sizeof(*ev), MSG_DONTWAIT);
  while (n < 0 && (errno == EINTR || errno == ECONNRESET)); /* the reset comes once; earlier events are still there */
  if (n == (ssize_t)sizeof(*ev)) return 1;
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  close(g->fd);
  g->fd = -1;
  *ev = (struct guard_event){.kind = GUARD_GONE, .pid = g->pid, .when_ms = boot_ms()};
  return 1;
}

/* Kills what `list` finds until it finds nothing, or deadline_ms passed; returns how many are left. Two empty pictures in a
 * row: in one alone, a process can be missed whose parent died while it was taken. */
struct hunt {
  pid_t top, spare;     /* the descendants of top; 0: of this process, except spare */
  const char *variable; /* or the processes that have it */
};

static int kill_all(const struct hunt *h, uint32_t deadline_ms) {
  struct proctree t = PROCTREE_INIT;
  uint64_t deadline = boot_ms() + deadline_ms;
  int left = 0, empty = 0;
  for (unsigned wait_ms = 1; empty < 2; wait_ms = wait_ms < 16 ? wait_ms * 2 : 16) {
    if (h->variable)
      proctree_marked(&t, h->variable);
    else
      proctree_descendants(&t, h->top, h->spare);
    left = 0;
    for (size_t i = 0; i < t.n; i++) {
      if (h->top && (t.v[i].state == 'Z' || t.v[i].state == 'X')) continue; /* top's to reap */
      proc_signal(&t.v[i], SIGKILL);
      if (!h->variable && t.v[i].ppid == getpid()) waitpid(t.v[i].pid, NULL, WNOHANG | __WALL);
      left++;
    }
    empty = left ? 0 : empty + 1;
    if (left && boot_ms() >= deadline) break;
    if (left) nanosleep(&(struct timespec){.tv_nsec = (long)wait_ms * 1000000}, NULL);
  }
  proctree_finish(&t);
  return left;
}

int guard_kill_below(pid_t guard, uint32_t deadline_ms) {
  return kill_all(&(struct hunt){.top = guard}, deadline_ms);
}

int guard_kill_trees(const struct guard *g, uint32_t deadline_ms) {
  return g->fd >= 0 && g->pid > 0 ? guard_kill_below(g->pid, deadline_ms) : 0;
}

int guard_kill_marked(const char *variable, uint32_t deadline_ms) {
  return kill_all(&(struct hunt){.variable = variable}, deadline_ms);
}

int guard_reap_orphans(pid_t spare, uint32_t deadline_ms) {
  return kill_all(&(struct hunt){.spare = spare}, deadline_ms);
}

/* True: *pid has ended and was reaped, or was never our child; *pid is -1 then. */
static bool is_reaped(pid_t *pid) {
  if (*pid > 0 && waitpid(*pid, NULL, WNOHANG) == 0) return false;
  *pid = -1;
  return true;
}

void guard_leave(struct guard *g) {
  guard_wake(g);
  if (g->fd >= 0) close(g->fd);
  g->fd = -1;
}

/* Room for one more, of that size. False: it alone is too large. */
static bool end_oldest(uint64_t memory) {
  struct kept_facts all[2 * KEPT_MAX], f;
  uint64_t most = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / KEPT_MEMORY_SHARE;
  size_t n = kept_list(all, 2 * KEPT_MAX);
  for (size_t i = 0; i < n; i++) memory += all[i].memory;
  for (size_t i = 0; i < n && (n - i >= KEPT_MAX || memory > most); i++) {
    int fd = kept_ask(all[i].pid, KEPT_END, NULL, -1, &f, NULL);
    if (fd >= 0) close(fd);
    memory -= all[i].memory;
  }
  return memory <= most;
}

int guard_keep(struct guard *g, uint64_t for_ms, pid_t template, struct err *e) {
  struct guard_command c = {.kind = GUARD_CMD_KEEP, .u.keep = {.for_ms = for_ms}};
  int rc = !g->may_stay || g->pid <= 0 || g->fd < 0 ? err_set(e, -ENOENT, "there is none") : 0;
  if (rc == 0 && !end_oldest(kept_memory_of(template)))
    rc = err_set(e, -ENOMEM, "it has more than a quarter of the machine's memory");
  int fd = rc ? rc : kept_listen(g->pid, e);
  if (fd >= 0) {
    /* The backstop takes this process's death for no fault now. If the guard has reasons not to stay, it ends. */
    atomic_store(&g->page->agent, 0);
    rc = send_command(g, &c, sizeof(c.u.keep), &fd, 1, e);
    if (rc) atomic_store(&g->page->agent, getpid());
    close(fd);
  }
  bool stays = fd >= 0 && rc == 0;
  guard_leave(g);
  if (stays) g->pid = g->backstop = -1;
  return fd < 0 ? fd : rc;
}

/* A dead guard is the backstop's until that is gone, and ours then. */
void guard_finish(struct guard *g, uint32_t deadline_ms) {
  guard_leave(g);
  if (g->pid_fd >= 0) {
    if (g->pid > 0 && poll(&(struct pollfd){.fd = g->pid_fd, .events = POLLIN}, 1, (int)deadline_ms) <= 0) return;
    close(g->pid_fd);
    g->pid_fd = g->pid = g->backstop = -1;
  }
  uint64_t deadline = boot_ms() + deadline_ms;
  for (unsigned us = 50; !is_reaped(&g->backstop) || !is_reaped(&g->pid); us = us < 16000 ? us * 2 : 16000) {
    if (boot_ms() >= deadline) return;
    /* Its end is seen at once where the kernel has pidfd_open (5.3). */
    int fd = open_pidfd(g->backstop > 0 ? g->backstop : g->pid);
    ppoll(&(struct pollfd){.fd = fd, .events = POLLIN}, fd >= 0, &(struct timespec){.tv_nsec = us * 1000L}, NULL);
    if (fd >= 0) close(fd);
  }
  drop_page(g);
}
