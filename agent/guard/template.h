/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GUARD_TEMPLATE_H
#define AGENT_GUARD_TEMPLATE_H

/* The guard's side of the process from which workers are forked. Private to this folder. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "agent/guard/wire.h"

/* TEMPLATE comes with two descriptors: the plan, a memory file as SPAWN has it, and the zip file of template.py. If it
 * has terminals: then with the slave and the master of one, too. */
enum { GUARD_TEMPLATE_FDS = 4, GUARD_TEMPLATE_WORD_MAX = 160 };
int guard_template_count_fds(const struct guard_cmd_spawn *c);

enum template_state { TEMPLATE_NONE, TEMPLATE_WARMS, TEMPLATE_FORKS };

/* A SPAWN that waits for the template. */
struct waiting_worker {
  struct guard_cmd_spawn command;
  int fds[GUARD_SPAWN_FDS];
  int pair;       /* to the process that will be the worker; -1: the template was not asked yet */
  uint64_t by_ms; /* then it is exec'd */
};

struct template {
  pid_t pid; /* 0: none. Its session has the same number, and so have its forks until they are workers */
  int sock;  /* -1: none */
  enum template_state state;
  uint64_t by_ms; /* while it warms: then workers are exec'd */
  struct guard_cmd_spawn command;
  int files[GUARD_TEMPLATE_FDS];
  bool again; /* the files are open, for another one when this one dies */
  bool spoke, was_ready;
  bool reads_words; /* an import has read the script's own words */
  bool hurries;     /* it began again while workers wait: they wait no longer for that */
  unsigned starts;
  struct waiting_worker *waiting;
  size_t n_waiting, cap_waiting;
};

/* 0, or a negative errno. Takes the descriptors, as many as there should be. There is none yet. */
int guard_template_start(struct template *t, const struct guard_cmd_spawn *c, const int *fds);
/* Whether it is what TEMPLATE asks for: the same script, variables and terminal, and the same words of the script if an
 * import has read them. */
bool guard_template_fits(struct template *t, const struct guard_cmd_spawn *c, const int *fds);
/* Its stdin, while no worker is being forked. Its workers get the guard's. */
void guard_template_stdin(struct template *t, int fd);
/* SIGKILL to it and to its forks that are no workers. They are no longer spared, and are to be reaped. */
void guard_template_end(struct template *t);
/* It was reaped. If it was ready and had no doubt, it is made again, a few times. */
void guard_template_gone(struct template *t);
/* One packet: its letter and text; false: none now. */
bool guard_template_hear(struct template *t, char *word, char *text, size_t size);

/* Takes the descriptors. */
void guard_template_queue(struct template *t, const struct guard_cmd_spawn *c, const int fds[GUARD_SPAWN_FDS]);

enum template_next {
  TEMPLATE_WAITS,  /* nobody is due */
  TEMPLATE_FORKED, /* out->pair waits for 'g', then it ends when the command runs; out->fds are to be closed */
  TEMPLATE_EXEC,   /* out->fds as SPAWN had them */
};
/* late: nobody waits for the template any more. */
enum template_next guard_template_next(struct template *t, bool late, struct waiting_worker *out, pid_t *pid);
/* Nobody waits any more. */
void guard_template_drop(struct template *t);
/* When guard_template_next is to be asked again, in boot_ms; UINT64_MAX: after the next event. */
uint64_t guard_template_deadline(const struct template *t);

#endif
