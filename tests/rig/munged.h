/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_MUNGED_H
#define TESTS_RIG_MUNGED_H

/* A real munged with a key of its own, in a folder of its own. */

#include <stdbool.h>
#include <sys/types.h>

struct munged {
  char folder[64], socket[96];
  pid_t pid;
};

bool munged_is_installed(void);
/* Its socket is open on return. */
void munged_start(struct munged *m);
void munged_stop(struct munged *m);
/* Something that has munged's socket, and closes each connection; this process uses it. End it with munged_stop. */
void munged_hangs_up(struct munged *m);
/* The socket that this process uses from now on. */
void munged_use(const struct munged *m);

#endif
