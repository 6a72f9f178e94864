/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_COPY_H
#define COMMON_SYSTEM_COPY_H

/* A fork that goes on as another program of ours, without exec: what exec would have done for it. exec and the dynamic
 * linker take as long as the program itself takes to start. */

#include <sys/types.h>

/* This program's command line as main got it, in place. */
struct copy_words {
  int argc;
  char **argv;
};

/* In the copy: "NAME of PID" replaces its command line, as far as there is room, so that ps and pgrep can tell it from
 * the original. NAME alone is the thread's name. w: NULL, the command line stays. The words are gone afterwards. */
void copy_set_name(const struct copy_words *w, const char *name, pid_t of);
/* All signals have their default actions, and none is blocked. */
void copy_reset_signals(void);
/* Blocks all signals but those that a fault raises: they are read from a descriptor. */
void copy_block_signals(void);
/* Closes all descriptors above 2 but a and b (-1: none). */
void copy_close_others(int a, int b);
/* Closes first and all above. */
void copy_close_from(int first);

#endif
