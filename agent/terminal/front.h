/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TERMINAL_FRONT_H
#define AGENT_TERMINAL_FRONT_H

/* The front: the process that the shell sees.
 *
 *   shell -> front -> agent -> backstop -> guard -> workers
 *
 * Ctrl-Z must give the prompt back, so the shell's child must stop. But an agent that stops loses its lease, and can
 * neither obey its daemon nor end its job. So an agent that is started from a terminal forks. The parent stays in the
 * shell's process group, as the front. The child has a group of its own and goes on as the agent.
 *
 *   signal to the front     the agent gets it: Ctrl-C, kill, a terminal that hangs up, a new window size
 *   Ctrl-Z (SIGTSTP)        the agent stops the workers and acknowledges; then the front stops itself
 *   fg, bg (SIGCONT)        the agent continues the workers
 *   kill -9 of the front    the kernel kills the agent, and its guard kills the workers
 *   the agent ends          the front ends with the same exit code or signal
 *
 * The front also owns the keyboard, if stdin is the terminal. Workers run in other sessions, where nothing keeps them
 * from reading the shell's terminal, so they get a pseudo-terminal as stdin. While the front is in the foreground and
 * workers run, the terminal passes each key at once and does not echo: the pseudo-terminal edits and echoes. Ctrl-C,
 * Ctrl-\ and Ctrl-Z stay the terminal's. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/err.h"

/* The agent's side. */
struct front {
  pid_t pid;    /* 0: there is no front, and the functions below do nothing */
  int ctl;      /* to it */
  int keyboard; /* the master of the workers' stdin: their echo is read here; -1: stdin is not a terminal */
  int terminal; /* the real stdin, if there is a keyboard; -1 */
  bool suspended;
};

/* Forks if this process has a controlling terminal, and returns in the child, whose stdin then is the workers'
 * pseudo-terminal. Call it before the first thread. with_keyboard: workers may read stdin. 0, also without a terminal;
 * or a negative errno and a sentence, and nothing was forked. If no pseudo-terminal can be had, that is 0 too: stdin
 * then is /dev/null, and *e has a sentence for a warning. */
int front_start(struct front *f, bool with_keyboard, struct err *e);
/* Workers run, so what is typed is for them; or no longer. */
void front_give_keyboard(const struct front *f, bool on);
/* Acknowledges SIGTSTP: all workers are stopped. */
void front_stop(struct front *f);
/* SIGCONT came. */
void front_continued(struct front *f);
/* A stopped front cannot pass a signal on. So ask every second: if one of `signals` (bit n: signal n) waits for it, it
 * continues, and passes it on. */
void front_check(const struct front *f, uint64_t signals);
/* The agent ends: a stopped front is continued. */
void front_finish(struct front *f);

#endif
