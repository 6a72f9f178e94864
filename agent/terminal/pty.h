/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TERMINAL_PTY_H
#define AGENT_TERMINAL_PTY_H

/* Pseudo-terminals. A program at the slave believes that it is at a terminal. */

enum pty_kind {
  PTY_OUTPUT,  /* carries each byte unchanged from slave to master */
  PTY_KEYBOARD /* edits, echoes and translates like `like` */
};

/* Both descriptors are close-on-exec, and the master does not block. Modes and size are those of the terminal `like`;
 * if that is not a terminal, the kernel's modes and 24 lines of 80 columns. 0, or a negative errno. */
int pty_open(enum pty_kind kind, int like, int *master, int *slave);
/* The master's window gets the size of the terminal `like`. */
void pty_resize(int master, int like);

#endif
