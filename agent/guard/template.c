/* SPDX-License-Identifier: Apache-2.0 */
/* The template: a process from which workers are forked (agent/warm/template.py says what it does).
 *
 *   guard -plan (memory file)-> template, at its start
 *   template -one packet: a letter and a text-> guard: how far it is (enum guard_template_word)
 *   guard -SPAWN with five descriptors-> template, which forks twice and does not answer
 *   worker -its pid-> guard -'g'-> worker, over a pair of sockets of this worker alone
 *   worker -end of file-> guard, when the command is about to run, as exec would close a pipe
 *
 * A worker does nothing before it reads 'g'. So whenever the guard is in doubt, it closes its end of the pair and runs
 * the command by exec: a fork that comes late reads the end of the file, and exits. No worker can run twice. */

#include "agent/guard/template.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/deadline.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/copy.h"
#include "common/system/fds.h"

enum {
  TEMPLATE_FD = 240, /* its socket; then the zip file, the plan, the terminal's master: as template.py has them */
  TEMPLATE_FDS = 4,
  FIRST_WORD_MS = 10000, /* until it says how long it will need */
  FORK_MS = 5000,        /* from SPAWN to the worker's pid; a file system may have to be asked for thousands of files */
  STARTS_MAX = 4,        /* one that dies is made again so often */
  BUDGET_MAX_MS = 600000, /* that it may ask for */
};

static void close_all(const int *fds, int n) {
  for (int i = 0; i < n; i++)
    if (fds[i] >= 0) close(fds[i]);
}

/* Its beginning and end. ------------------------------------------------------------------------------------------- */

/* env with PYTHONPATH and RDZV_TEMPLATE in front of it; env's own PYTHONPATH is in the plan. */
static char **environment_of(const struct guard_strings *s, const struct guard_cmd_spawn *c) {
  char *const *env = s->v + c->argc + 1, *path = NULL;
  char **own = xcalloc((size_t)c->envc + 3, sizeof(*own));
  size_t n = 2;
  for (; *env; env++) {
    if (strncmp(*env, "PYTHONPATH=", 11) == 0)
      path = *env + 11;
    else
      own[n++] = *env;
  }
  own[0] = xasprintf("PYTHONPATH=/proc/self/fd/%d%s%s", TEMPLATE_FD + 1, path && *path ? ":" : "", path ? path : "");
  own[1] = xasprintf("RDZV_TEMPLATE=probe:%u:%u:%u:%u:%u", c->argc, c->envc, c->size, c->terminals, c->own);
  return own;
}

/* In the child. If this interpreter does not run the zip file, the command ends with a code that template.py never
 * has. One descriptor may lie in the place of another, so all are moved above these places first. */
_Noreturn static void become_template(char *python, char **env, pid_t guard, const int *fds, int n_fds, int out,
                                      int err) {
  char option[] = "-c", code[] = "raise SystemExit(3)";
  char *argv[] = {python, option, code, NULL};
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != guard) _exit(0); /* it died before the signal was set */
  bool placed = dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0;
  int above[TEMPLATE_FDS];
  for (int i = 0; i < n_fds; i++) above[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, TEMPLATE_FD + TEMPLATE_FDS);
  for (int i = 0; i < n_fds; i++) placed = dup2(above[i], TEMPLATE_FD + i) >= 0 && placed;
  copy_reset_signals();
  if (placed) {
    environ = env;
    execvpe(argv[0], argv, env);
  }
  _exit(3);
}

/* One that was ready can be made again, because its interpreter is known to be ours. */
static bool can_begin_again(const struct template *t) {
  return t->again && t->was_ready;
}

static void give_up(struct template *t) {
  if (t->again) close_all(t->files, guard_template_count_fds(&t->command));
  t->again = false;
}

int guard_template_count_fds(const struct guard_cmd_spawn *c) {
  return c->terminals ? GUARD_TEMPLATE_FDS : GUARD_TEMPLATE_FDS - 2;
}

/* What it prints goes to a memory file, or to its terminal, and is noticed. */
static int begin(struct template *t) {
  struct guard_strings s = {0};
  int pair[2], rc = guard_strings_map(&s, &t->command, t->files[0]);
  int said = memfd_create("rdzv-template-output", MFD_CLOEXEC);
  pid_t pid = -1;
  if (!rc && said < 0) rc = -errno;
  if (!rc && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair)) rc = -errno;
  if (!rc) {
    char **env = environment_of(&s, &t->command);
    pid_t guard = getpid();
    pid = fork();
    if (pid == 0) {
      bool tty = t->command.terminals != 0;
      if (tty) fcntl(t->files[2], F_SETFL, O_RDWR | O_NONBLOCK); /* an import that prints much must not wait */
      become_template(s.v[0], env, guard, (const int[]){pair[1], t->files[1], t->files[0], tty ? t->files[3] : -1},
                      tty ? TEMPLATE_FDS : TEMPLATE_FDS - 1, t->command.terminals & GUARD_TTY_OUT ? t->files[2] : said,
                      t->command.terminals & GUARD_TTY_ERR ? t->files[2] : said);
    }
    if (pid < 0) rc = -errno;
    close(pair[1]);
    if (rc) close(pair[0]);
    free(env[0]);
    free(env[1]);
    free(env);
  }
  if (!rc) {
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    t->pid = pid;
    t->sock = pair[0];
    t->state = TEMPLATE_WARMS;
    t->by_ms = boot_ms() + FIRST_WORD_MS;
    t->starts++;
    t->spoke = t->was_ready = t->hurries = t->reads_words = false;
  }
  if (rc || t->starts == STARTS_MAX) give_up(t);
  guard_strings_finish(&s);
  if (said >= 0) close(said);
  return rc;
}

int guard_template_start(struct template *t, const struct guard_cmd_spawn *c, const int *fds) {
  give_up(t);
  t->command = *c;
  for (int i = 0; i < guard_template_count_fds(c); i++) t->files[i] = fds[i];
  t->again = true;
  t->starts = 0;
  return begin(t);
}

bool guard_template_fits(struct template *t, const struct guard_cmd_spawn *c, const int *fds) {
  struct winsize here = {0}, there = {0};
  if (!t->pid || !t->again || c->terminals != t->command.terminals || c->own != t->command.own || c->own > c->argc ||
      c->own > t->command.argc || c->envc != t->command.envc)
    return false;
  if (c->terminals && (ioctl(fds[3], TIOCGWINSZ, &here) || ioctl(t->files[3], TIOCGWINSZ, &there) ||
                       here.ws_col != there.ws_col || here.ws_row != there.ws_row))
    return false;
  struct guard_strings a = {0}, b = {0};
  bool same = guard_strings_map(&a, c, fds[0]) == 0 && guard_strings_map(&b, &t->command, t->files[0]) == 0 &&
              (!t->reads_words || c->argc == t->command.argc);
  for (uint32_t i = 0; same && i < (t->reads_words ? c->argc : c->own); i++) same = strcmp(a.v[i], b.v[i]) == 0;
  for (uint32_t i = 1; same && i <= c->envc; i++) same = strcmp(a.v[c->argc + i], b.v[t->command.argc + i]) == 0;
  guard_strings_finish(&a);
  guard_strings_finish(&b);
  if (same) t->starts = 1;
  return same;
}

static bool send_fds(int sock, const void *packet, size_t size, const int *fds, size_t n) {
  struct iovec iov = {.iov_base = (void *)(uintptr_t)packet, .iov_len = size};
  return fds_send(sock, &iov, 1, fds, n, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
}

void guard_template_stdin(struct template *t, int fd) {
  if (t->sock >= 0) send_fds(t->sock, "i", 1, &fd, 1);
}

void guard_template_end(struct template *t) {
  if (t->pid > 0 && kill(-t->pid, SIGKILL)) kill(t->pid, SIGKILL);
  give_up(t);
  guard_template_gone(t);
}

void guard_template_gone(struct template *t) {
  if (t->sock >= 0) close(t->sock);
  t->sock = -1;
  t->pid = 0;
  t->state = TEMPLATE_NONE;
  if (can_begin_again(t))
    begin(t);
  else
    give_up(t);
}

bool guard_template_hear(struct template *t, char *word, char *text, size_t size) {
  char packet[GUARD_TEMPLATE_WORD_MAX + 1];
  ssize_t n = t->sock < 0 ? -1 : recv(t->sock, packet, sizeof(packet) - 1, MSG_DONTWAIT);
  /* A reset says that it died with a SPAWN unread. It comes once, and the last words come behind it. */
  if (n < 0 && t->sock >= 0 && errno == ECONNRESET) n = recv(t->sock, packet, sizeof(packet) - 1, MSG_DONTWAIT);
  if (n < 0) return false;
  if (n == 0) { /* its death is reaped, too */
    bool news = t->state != TEMPLATE_NONE;
    close(t->sock);
    t->sock = -1;
    t->state = TEMPLATE_NONE;
    *word = can_begin_again(t) ? TEMPLATE_AGAIN : TEMPLATE_DOUBT;
    snprintf(text, size, "%s", t->spoke ? "it has ended" : "the interpreter does not run it, as with -I, -E or -S");
    return news;
  }
  t->spoke = true;
  packet[n] = '\0';
  *word = packet[0];
  snprintf(text, size, "%s", packet + 1);
  double seconds = strtod(packet + 1, NULL);
  uint64_t by_ms;
  switch ((enum guard_template_word)packet[0]) {
  case TEMPLATE_BUDGET:
    by_ms = boot_ms() + (seconds > 0 && seconds * 1000 < BUDGET_MAX_MS ? (uint64_t)(seconds * 1000) : FIRST_WORD_MS);
    if (!t->hurries || by_ms < t->by_ms) t->by_ms = by_ms;
    break;
  case TEMPLATE_READY:
    t->state = TEMPLATE_FORKS;
    t->hurries = false;
    t->by_ms = boot_ms();
    t->was_ready = true;
    break;
  case TEMPLATE_WORDS: t->reads_words = true; break;
  case TEMPLATE_LEARNED: t->by_ms = boot_ms() + FORK_MS; break;
  case TEMPLATE_AGAIN:
    t->state = TEMPLATE_WARMS;
    t->hurries = t->reads_words = false;
    for (size_t i = 0; i < t->n_waiting; i++) t->hurries |= t->waiting[i].pair < 0;
    if (!t->hurries) t->by_ms = boot_ms() + FIRST_WORD_MS;
    break;
  case TEMPLATE_DOUBT:
    t->state = TEMPLATE_NONE;
    give_up(t);
    break;
  }
  return true;
}

/* Workers that wait. ----------------------------------------------------------------------------------------------- */

void guard_template_queue(struct template *t, const struct guard_cmd_spawn *c, const int fds[GUARD_SPAWN_FDS]) {
  t->waiting = xgrow(t->waiting, t->n_waiting, &t->cap_waiting, sizeof(*t->waiting));
  struct waiting_worker *w = &t->waiting[t->n_waiting++];
  *w = (struct waiting_worker){.command = *c, .pair = -1, .by_ms = t->by_ms};
  memcpy(w->fds, fds, sizeof(w->fds));
}

static bool send_spawn(struct template *t, struct waiting_worker *w) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return false;
  int fds[GUARD_SPAWN_FDS + 2] = {w->fds[0], w->fds[1], w->fds[2], pair[1], STDIN_FILENO};
  uint32_t record = w->command.local_rank == 0;
  uint32_t packet[] = {w->command.argc, w->command.envc, w->command.cpus_size,
                       w->command.size, record,          w->command.round};
  bool sent = send_fds(t->sock, packet, sizeof(packet), fds, GUARD_SPAWN_FDS + 2);
  close(pair[1]);
  fcntl(pair[0], F_SETFL, O_NONBLOCK);
  w->pair = pair[0];
  w->by_ms = boot_ms() + FORK_MS;
  return sent;
}

/* -1: it is to be exec'd. 0: it waits. Else its pid. */
static pid_t look_at(struct template *t, struct waiting_worker *w, uint64_t now) {
  uint32_t pid = 0;
  siginfo_t info = {0};
  if (t->state == TEMPLATE_NONE && w->pair < 0) return -1;
  if (t->state == TEMPLATE_FORKS && w->pair < 0 && !send_spawn(t, w)) return -1;
  if (w->pair < 0) return now >= w->by_ms && now >= t->by_ms ? -1 : 0;
  ssize_t n = recv(w->pair, &pid, sizeof(pid), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
    if (t->state == TEMPLATE_NONE) return -1;
    if (now < w->by_ms || now < t->by_ms) return 0;
    if (t->pid > 0) kill(t->pid, SIGKILL); /* it hangs; its end is heard */
    return -1;
  }
  /* Only a child of ours can be a worker. */
  if (n != sizeof(pid) || !pid || pid > INT32_MAX || waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT)) return -1;
  return (pid_t)pid;
}

enum template_next guard_template_next(struct template *t, bool late, struct waiting_worker *out, pid_t *pid) {
  uint64_t now = boot_ms();
  for (size_t i = 0; i < t->n_waiting; i++) {
    *pid = late ? -1 : look_at(t, &t->waiting[i], now);
    if (*pid == 0) continue;
    *out = t->waiting[i];
    memmove(t->waiting + i, t->waiting + i + 1, (--t->n_waiting - i) * sizeof(*t->waiting));
    if (*pid > 0) return TEMPLATE_FORKED;
    if (out->pair >= 0) close(out->pair);
    out->pair = -1;
    return TEMPLATE_EXEC;
  }
  return TEMPLATE_WAITS;
}

void guard_template_drop(struct template *t) {
  for (size_t i = 0; i < t->n_waiting; i++) {
    close_all(t->waiting[i].fds, GUARD_SPAWN_FDS);
    close_all(&t->waiting[i].pair, 1);
  }
  t->n_waiting = 0;
}

uint64_t guard_template_deadline(const struct template *t) {
  if (t->state == TEMPLATE_NONE && t->n_waiting) return 0; /* they are to be exec'd */
  uint64_t at = UINT64_MAX;
  for (size_t i = 0; i < t->n_waiting; i++) {
    const struct waiting_worker *w = &t->waiting[i];
    at = earliest(at, w->by_ms > t->by_ms ? w->by_ms : t->by_ms);
  }
  return at;
}
