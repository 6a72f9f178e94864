/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_DAEMON_PROCESS_H
#define AGENT_LINK_DAEMON_PROCESS_H

/* One process of the agent's own rdzvd, and the descriptors to it. It needs no loop, so it can start before the agent
 * has one: local_daemon.h takes it over. */

#include <stdbool.h>
#include <sys/types.h>
#include "common/err.h"
#include "common/key/source.h"
#include "common/system/copy.h"

struct daemon_process {
  pid_t pid;             /* our child; 0: none */
  int ready, owner, err; /* our pipe ends: read its port; write a byte, or close at our end; read its log (-1: file) */
  int talk;              /* ours: a connection to it, without a key; -1: none */
  char *state_dir;       /* heap; the caller's */
};

#define DAEMON_PROCESS_NONE ((struct daemon_process){.ready = -1, .owner = -1, .err = -1, .talk = -1})

struct daemon_process_options {
  const char *listen;    /* --listen */
  int listen_fd;         /* a bound socket instead; -1: none */
  const struct key *key; /* NULL: --insecure */
  enum key_source key_source;
  const char *log_file; /* NULL: lines go to `err` */
  bool verbose;
  const char *claim; /* --claim; NULL: none */
  bool talks;        /* it gets --agent-fd */
  /* rdzvd as a function: a copy of this process calls it, which saves exec and the dynamic linker. Only while this
   * process has one thread and has used no loop (loop_was_opened). NULL: the program is started. */
  int (*program)(int argc, char **argv);
  const struct copy_words *words; /* of this process; NULL: the copy keeps them */
};

/* Starts rdzvd. p->state_dir: of the previous process; NULL: a new folder is made. On an error *p is unchanged. */
int daemon_process_start(const struct daemon_process_options *o, struct daemon_process *p, struct err *e);
/* Kills it, waits for its end, closes the descriptors and removes the folder. pid 0 is fine. */
void daemon_process_kill(struct daemon_process *p);

/* The folder in which our own rdzvd keeps its state: private, in memory if possible, removed at the end. */

/* Makes one, and removes those that agents and daemons left when they were killed together. Heap; NULL and a
 * sentence. */
char *private_dir_create(struct err *e);
/* Removes it and its files, and frees the name. NULL is fine. */
void private_dir_remove(char *dir);

#endif
