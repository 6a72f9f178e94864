/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_KEPT_KEPT_H
#define COMMON_KEPT_KEPT_H

/* Templates that stay when their agent has ended, for the next start (rdzv-agent --warm-keep). The guard of each listens
 * on a unix socket in a folder of this user alone, under the guard's pid:
 *
 *   $XDG_RUNTIME_DIR/rdzv-warm/PID    if that folder is ours, and only we can write to it
 *   /tmp/rdzv-warm-UID/PID            else
 *
 * Both ends ask the kernel for the other's user (SO_PEERCRED). A question is one packet: its letter, then a text. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/err.h"

enum {
  KEPT_MAX = 4,              /* of one user, on one machine */
  KEPT_MEMORY_SHARE = 4,     /* all of them together have at most this part of the machine's memory */
  KEPT_TEXT_MAX = 96 * 1024, /* bytes of a question */
  KEPT_ANSWER_MS = 1000,     /* to a question; a guard that waits answers at once */
  KEPT_COMMAND_MAX = 256,    /* bytes of the command that is shown, with its NUL */
};

enum kept_question {
  KEPT_TAKE = 't', /* with a likeness, and the new agent's stdin: this connection becomes the agent's */
  KEPT_LOOK = 'l',
  KEPT_END = 'e',
};

/* The answer. To KEPT_TAKE: with the descriptor of the page that agent and backstop share, or none, if it is refused. */
struct kept_facts {
  uint32_t size; /* of this struct: another program's answer is no answer */
  int32_t pid, backstop, template;
  uint64_t age_ms, left_ms;
  uint64_t memory; /* bytes of the template; 0: not known */
  char command[KEPT_COMMAND_MAX];
};

/* A listening socket for the guard `pid`. Makes the folder. A descriptor, or a negative errno. */
int kept_listen(pid_t pid, struct err *e);
/* Whether the guard can still be found: somebody may have removed the folder. */
bool kept_is_known(pid_t pid);
/* The guard's: removes its name. */
void kept_forget(pid_t pid);
/* The guards that wait, the one that has waited longest first: at most `max` of them. Removes the names of dead ones. */
size_t kept_list(struct kept_facts *out, size_t max);
/* Asks the guard `pid`. input: a descriptor that goes with the question; -1: none. Returns the connection, or a negative
 * errno; -ENOENT: no such guard waits, or it is not this user's. *page (may be NULL) gets the descriptor that came. */
int kept_ask(pid_t pid, enum kept_question question, const char *text, int input, struct kept_facts *facts, int *page);
/* Resident memory of a process, in bytes; 0: not known. Cheap, and near to its own share while it has no forks. */
uint64_t kept_memory_of(pid_t pid);

#endif
