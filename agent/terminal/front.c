/* SPDX-License-Identifier: Apache-2.0 */
/* The front's process: one loop over a signalfd, the agent's socket, the keyboard and its pseudo-terminal.
 *
 * All signals are blocked and read from the descriptor. A blocked SIGTTIN or SIGTTOU stops nothing. A read in the
 * background then fails, but tcsetattr works. So the front asks for the foreground group before each of them.
 *
 * It stops itself by SIGTSTP with its default action. The kernel ignores that in an orphaned process group, where no
 * shell could continue it: the workers are then continued at once.
 *
 * A shell's fg sends no signal to a job that runs in the background. So a front with a keyboard looks four times a
 * second whether it is in the foreground now; others sleep.
 *
 * Another program of the foreground may use the keyboard: rdzv-agent ... | less. It shows by a terminal that passes
 * each key at once already, which the front then leaves alone, or that has other modes at the end than the front has
 * set. */

#include "agent/terminal/front.h"
#include "agent/terminal/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/system/copy.h"
#include "common/system/file.h"

enum {
  SUSPEND_MS = 3000,   /* for the agent's acknowledgement; then the front stops without it */
  FOREGROUND_MS = 250, /* between two looks */
  KEYS_MAX = 1024,
};

/* On the socket, agent to front. */
enum { KEYBOARD_ON = 'k', KEYBOARD_OFF = 'o', STOPPED = 's' };

/* The agent's side. ------------------------------------------------------------------------------------------------ */

static void tell(const struct front *f, char word) {
  if (f->pid) (void)!send(f->ctl, &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT); /* a dead front takes the agent with it */
}

void front_give_keyboard(const struct front *f, bool on) {
  tell(f, on ? KEYBOARD_ON : KEYBOARD_OFF);
}

void front_stop(struct front *f) {
  f->suspended = true;
  tell(f, STOPPED);
}

void front_continued(struct front *f) {
  f->suspended = false;
}

/* Signals that are pending for a process, bit n for signal n. */
static uint64_t pending_signals(pid_t pid) {
  char name[32], line[128];
  uint64_t all = 0, some;
  snprintf(name, sizeof(name), "/proc/%d/status", (int)pid);
  FILE *file = fopen(name, "re");
  if (!file) return 0;
  while (fgets(line, sizeof(line), file))
    if (sscanf(line, "SigPnd: %" SCNx64, &some) == 1 || sscanf(line, "ShdPnd: %" SCNx64, &some) == 1) all |= some << 1;
  fclose(file);
  return all;
}

void front_check(const struct front *f, uint64_t signals) {
  if (f->pid && f->suspended && (pending_signals(f->pid) & signals)) kill(f->pid, SIGCONT);
}

void front_finish(struct front *f) {
  if (!f->pid) return;
  tell(f, KEYBOARD_OFF);
  if (f->suspended) kill(f->pid, SIGCONT);
  f->suspended = false;
}

/* The front's process. --------------------------------------------------------------------------------------------- */

struct watch {
  pid_t agent;
  int ctl, signals;
  int keyboard; /* the master; -1: none */
  bool given;   /* workers run */
  bool taken;   /* the terminal has our modes */
  bool dead;    /* the terminal cannot be read any more */
  bool acknowledged;
  struct termios before, own;
  char keys[KEYS_MAX];
  size_t n_keys; /* read and not yet written */
};

static bool is_foreground(void) {
  return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

static void take_terminal(struct watch *w) {
  if (tcgetattr(STDIN_FILENO, &w->before) || !(w->before.c_lflag & ICANON)) return;
  w->own = w->before;
  w->own.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR);
  w->own.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ECHONL | IEXTEN);
  w->own.c_cc[VMIN] = 1;
  w->own.c_cc[VTIME] = 0;
  w->taken = tcsetattr(STDIN_FILENO, TCSANOW, &w->own) == 0;
}

static void leave_terminal(struct watch *w) {
  struct termios now;
  bool own = w->taken && is_foreground() && tcgetattr(STDIN_FILENO, &now) == 0 && now.c_iflag == w->own.c_iflag &&
             now.c_lflag == w->own.c_lflag;
  if (own) tcsetattr(STDIN_FILENO, TCSANOW, &w->before);
  w->taken = false;
}

/* False: the agent is gone, or is about to go. */
static bool read_words(struct watch *w) {
  char words[16];
  ssize_t n = recv(w->ctl, words, sizeof(words), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  for (ssize_t i = 0; i < n; i++) {
    if (words[i] == STOPPED)
      w->acknowledged = true;
    else
      w->given = words[i] == KEYBOARD_ON;
  }
  return n > 0;
}

static void suspend(struct watch *w) {
  uint64_t deadline = boot_ms() + SUSPEND_MS;
  leave_terminal(w);
  w->acknowledged = false;
  kill(w->agent, SIGTSTP);
  for (uint64_t now; !w->acknowledged && (now = boot_ms()) < deadline;) {
    bool spoke = poll(&(struct pollfd){.fd = w->ctl, .events = POLLIN}, 1, (int)(deadline - now)) > 0;
    if (spoke && !read_words(w)) return; /* the agent is ending */
  }
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, SIGTSTP);
  kill(getpid(), SIGTSTP);
  sigprocmask(SIG_UNBLOCK, &only, NULL); /* it stops here */
  sigprocmask(SIG_BLOCK, &only, NULL);
}

/* Ends as the agent did. */
_Noreturn static void end_like(struct watch *w, int status) {
  leave_terminal(w);
  if (!WIFSIGNALED(status)) _exit(WEXITSTATUS(status));
  sigset_t all;
  signal(WTERMSIG(status), SIG_DFL);
  setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
  sigfillset(&all);
  sigprocmask(SIG_UNBLOCK, &all, NULL);
  kill(getpid(), WTERMSIG(status));
  _exit(128 + WTERMSIG(status));
}

static void reap_agent(struct watch *w) {
  int status;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
    if (pid == w->agent) end_like(w, status);
  if (pid < 0 && errno == ECHILD) _exit(1); /* SIGCHLD was ignored, and the agent is dead */
}

_Noreturn static void front_main(pid_t agent, int ctl, int keyboard, int signals) {
  struct watch w = {.agent = agent, .ctl = ctl, .signals = signals, .keyboard = keyboard};
  signal(SIGCHLD, SIG_DFL); /* if it was ignored, the agent would vanish unseen */
  reap_agent(&w);
  for (;;) {
    bool wanted = w.keyboard >= 0 && w.given && !w.dead && is_foreground();
    if (wanted && !w.taken) take_terminal(&w);
    if (!wanted && w.taken) leave_terminal(&w);
    bool may_come = keyboard >= 0 && w.given && !w.dead && !w.taken;
    struct pollfd p[] = {{.fd = signals, .events = POLLIN},
                         {.fd = w.ctl, .events = POLLIN},
                         {.fd = w.taken && w.n_keys == 0 ? STDIN_FILENO : -1, .events = POLLIN},
                         {.fd = w.n_keys > 0 ? keyboard : -1, .events = POLLOUT}};
    if (poll(p, 4, may_come ? FOREGROUND_MS : -1) <= 0) continue;
    if (p[0].revents) {
      /* SIGCONT comes last: the agent learns of a SIGTERM that came while the front was stopped before it continues. */
      struct signalfd_siginfo s;
      bool continued = false;
      while (read(w.signals, &s, sizeof(s)) == (ssize_t)sizeof(s)) {
        int signo = (int)s.ssi_signo;
        if (signo == SIGTSTP)
          suspend(&w);
        else if (signo != SIGCONT && signo != SIGCHLD && signo != SIGTTIN && signo != SIGTTOU)
          kill(w.agent, signo);
        continued |= signo == SIGTSTP || signo == SIGCONT;
      }
      reap_agent(&w);
      if (continued) kill(w.agent, SIGCONT);
    }
    if (p[1].revents && !read_words(&w)) w.ctl = -1;
    if (p[2].revents && w.taken && is_foreground()) {
      ssize_t n = read(STDIN_FILENO, w.keys, sizeof(w.keys));
      w.dead = n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN && is_foreground()); /* it was hung up */
      w.n_keys = n > 0 ? (size_t)n : 0;
    }
    ssize_t n = w.n_keys > 0 ? write(keyboard, w.keys, w.n_keys) : -1;
    if (n < 0) continue;
    w.n_keys -= (size_t)n;
    memmove(w.keys, w.keys + n, w.n_keys);
  }
}

/* Beginning. ------------------------------------------------------------------------------------------------------- */

/* In the child. */
static void become_agent(struct front *f, pid_t front, int slave) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() != front) _exit(1); /* it died before the signal was set */
  signal(SIGTTOU, SIG_IGN);         /* stty tostop: the agent prints from the background */
  signal(SIGTTIN, SIG_IGN);
  f->pid = front;
  if (slave < 0) return;
  f->terminal = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  dup2(slave, STDIN_FILENO);
  close(slave);
}

int front_start(struct front *f, bool with_keyboard, struct err *e) {
  int pair[2], master = -1, slave = -1;
  sigset_t before;
  *f = (struct front){.ctl = -1, .keyboard = -1, .terminal = -1};
  int tty = open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (tty < 0) return 0;
  close(tty);
  int rc = file_fill_standard(e);
  if (rc) return rc;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return err_sys(e, -errno, "no socket pair");
  /* The slave is the workers' stdin; -1: they share ours. */
  bool keyboard = with_keyboard && tcgetpgrp(STDIN_FILENO) >= 0;
  if (keyboard && (rc = pty_open(PTY_KEYBOARD, STDIN_FILENO, &master, &slave))) {
    err_sys(e, rc, "no pseudo-terminal can be opened, so workers do not see what is typed");
    master = -1;
    slave = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (slave < 0) {
      rc = err_sys(e, -errno, "cannot open /dev/null");
      close(pair[0]);
      close(pair[1]);
      return rc;
    }
  }
  sigprocmask(SIG_SETMASK, NULL, &before);
  copy_block_signals();
  sigset_t all;
  sigfillset(&all);
  int signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
  pid_t front = getpid(), pid = signals < 0 ? -1 : fork();
  int error = errno;
  if (pid > 0) {
    close(pair[1]);
    if (slave >= 0) close(slave);
    front_main(pid, pair[0], master, signals);
  }
  close(pair[0]);
  if (signals >= 0) close(signals);
  if (pid == 0) {
    become_agent(f, front, slave);
    f->ctl = pair[1];
    f->keyboard = master;
  } else {
    close(pair[1]);
    if (master >= 0) close(master);
    if (slave >= 0) close(slave);
  }
  sigprocmask(SIG_SETMASK, &before, NULL);
  return pid < 0 ? err_sys(e, -error, "cannot fork the process that the shell stops and continues") : 0;
}
