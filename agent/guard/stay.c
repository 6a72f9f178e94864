/* SPDX-License-Identifier: Apache-2.0 */
/* The guard waits for another agent. It answers the questions of common/kept, each on a connection of its own.
 *
 * Only processes of this user are answered. A question must be there when its connection is, or soon: a process that
 * connects and is silent delays the others by QUESTION_MS. An agent gets the guard if its likeness is that of the agent
 * which started the guard, as it was then. It must also be confined as the guard is now, and the guard must not have
 * been moved to another cgroup. */

#include "agent/guard/stay.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "agent/guard/backstop.h"
#include "agent/guard/likeness.h"
#include "common/deadline.h"
#include "common/kept/kept.h"
#include "common/system/clock.h"
#include "common/system/fds.h"
#include "common/system/file.h"

enum { QUESTION_MS = 200, CGROUP_MAX = 4096 };

void guard_stay_begin(struct stay *s, struct template *t) {
  int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int fd = 0; fd <= 2; fd++) dup2(null, fd);
  guard_template_stdin(t, STDIN_FILENO);
  if (null > 2) close(null);
  atomic_store(&s->birth->page->fence_at_ms, BACKSTOP_NEVER);
  s->since_ms = boot_ms();
  s->until_ms = s->since_ms + s->for_ms;
  s->memory = kept_memory_of(t->pid);
  s->ended = false;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  struct signalfd_siginfo drop;
  s->asked = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  while (s->asked >= 0 && read(s->asked, &drop, sizeof(drop)) > 0) { /* it was for the job that is over */
  }
}

bool guard_stay_wait(struct stay *s, int sigchld, const struct template *t) {
  uint64_t now = boot_ms();
  if (s->ended || now >= s->until_ms || !kept_is_known(getpid())) return false;
  struct pollfd p[] = {{.fd = sigchld, .events = POLLIN},
                       {.fd = s->listener, .events = POLLIN},
                       {.fd = t->sock, .events = POLLIN},
                       {.fd = s->asked, .events = POLLIN}};
  poll(p, 4, (int)earliest(s->until_ms - now, 60000));
  return !p[3].revents;
}

/* The page's agent is the peer from now on, and the backstop looks. */
static bool give(struct stay *s, struct template *t, const struct ucred *peer, const char *likeness, int input) {
  s->ended = getppid() != s->backstop; /* nobody would watch the guard */
  if (s->ended || input < 0 || strcmp(likeness, s->birth->likeness) != 0) return false;
  /* A likeness has this process's cgroup as it was when the guard was started. */
  char cgroup[CGROUP_MAX], proc[32];
  if (file_read_text("/proc/self/cgroup", cgroup, sizeof(cgroup)) <= 0 || !strstr(likeness, cgroup)) return false;
  /* A likeness is the peer's own word. What confines a process is asked of the kernel. */
  struct buf own = BUF_INIT, other = BUF_INIT;
  snprintf(proc, sizeof(proc), "/proc/%d", (int)peer->pid);
  likeness_put_confinement("/proc/self", &own);
  likeness_put_confinement(proc, &other);
  bool alike = strcmp(buf_text(&own), buf_text(&other)) == 0;
  buf_finish(&own);
  buf_finish(&other);
  if (!alike) return false;
  dup2(input, STDIN_FILENO);
  guard_template_stdin(t, STDIN_FILENO);
  atomic_store(&s->birth->page->agent, peer->pid);
  kill(getppid(), SIGCONT);
  copy_set_name(s->birth->words, "rdzv-guard", peer->pid);
  s->template_stayed = true;
  return true;
}

int guard_stay_answer(struct stay *s, struct template *t) {
  static char text[KEPT_TEXT_MAX + 1];
  struct ucred peer;
  socklen_t len = sizeof(peer);
  int sock = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), input = -1;
  size_t n_fds;
  if (sock < 0) return -1;
  bool known = getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.uid == geteuid();
  if (known) poll(&(struct pollfd){.fd = sock, .events = POLLIN}, 1, QUESTION_MS);
  ssize_t n = known ? fds_receive(sock, text, sizeof(text) - 1, &input, 1, &n_fds, 0) : -1;
  text[n > 0 ? n : 0] = '\0';
  bool taken = text[0] == KEPT_TAKE && give(s, t, &peer, text + 1, input);
  if (taken || text[0] == KEPT_LOOK || text[0] == KEPT_END) {
    uint64_t now = boot_ms();
    struct kept_facts f = {.size = sizeof(f),
                           .pid = getpid(),
                           .backstop = getppid(),
                           .template = t->pid,
                           .age_ms = now - s->since_ms,
                           .left_ms = now < s->until_ms ? s->until_ms - now : 0,
                           .memory = s->memory};
    snprintf(f.command, sizeof(f.command), "%s", s->birth->command);
    bool page = taken && s->birth->page_fd >= 0;
    fds_send(sock, &(struct iovec){&f, sizeof(f)}, 1, &s->birth->page_fd, page, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  s->ended = s->ended || text[0] == KEPT_END;
  if (input >= 0) close(input);
  if (taken) return sock;
  close(sock);
  return -1;
}

void guard_stay_end(struct stay *s) {
  if (s->asked >= 0) close(s->asked);
  s->asked = -1;
  if (s->listener >= 0) {
    kept_forget(getpid());
    close(s->listener);
  }
  s->listener = -1;
}
