/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_GUARD_WIRE_H
#define AGENT_GUARD_WIRE_H

/* The packets between agent and guard, on a SOCK_SEQPACKET pair between two halves of one program, so structs as they
 * are. Commands go to the guard, `struct guard_event`s come back. Private to this folder. */

#include <stdint.h>
#include "agent/guard/guard.h"
#include "common/key/key.h"
#include "common/system/copy.h"

enum guard_command_kind {
  GUARD_CMD_SPAWN = 1,
  GUARD_CMD_STOP,
  GUARD_CMD_SIGNAL,
  GUARD_CMD_DEATH_REPORT,
  GUARD_CMD_FENCE,
  GUARD_CMD_ADOPT,
  GUARD_CMD_SUSPEND,
  GUARD_CMD_TEMPLATE,
  GUARD_CMD_KEEP /* with a listening socket */
};

/* SPAWN comes with three descriptors: a memfd with the set of CPUs (cpus_size bytes, mostly none), argv's strings, then
 * the environment's, each with its NUL, and the worker's stdout and stderr. */
enum { GUARD_SPAWN_FDS = 3, GUARD_FDS_MAX = 4 /* of any command */ };

struct guard_cmd_spawn {
  uint32_t round, local_rank, count, argc, envc, cpus_size, size; /* size: of all that is in the memfd */
  uint32_t warm;                                                  /* the template may fork it */
  uint32_t terminals; /* TEMPLATE: its standard streams that are one (enum guard_terminals) */
  uint32_t own;       /* TEMPLATE: where the script's own words begin in argv */
};

struct guard_cmd_stop {
  uint32_t round, grace_ms;
  int32_t signo;
  struct local_set keep;
};

struct guard_cmd_death_report {
  struct sockaddr_storage addr;
  uint32_t addr_len, len, sealed; /* with `key` */
  struct key key;
  uint8_t bytes[GUARD_DEATH_REPORT_MAX];
};

struct guard_command {
  uint32_t kind; /* enum guard_command_kind; only the union's member of that name follows */
  union {
    struct guard_cmd_spawn spawn; /* TEMPLATE too */
    struct guard_cmd_stop stop;
    struct {
      int32_t local_rank, signo;
    } signal;
    struct {
      uint64_t at_ms;
    } fence;
    struct {
      uint64_t for_ms;
    } keep;
    struct {
      uint32_t round, count;
    } adopt;
    struct {
      uint32_t on;
    } suspend;
    struct guard_cmd_death_report death_report;
  } u;
};

/* The guard's process, after the fork. */
struct guard_birth {
  int sock; /* to the agent */
  struct backstop_page *page;
  int page_fd;          /* -1: it may not stay */
  const char *likeness; /* of the agent; it lives as long as this process */
  const char *command;  /* of its workers, as text */
  const struct copy_words *words;
};
_Noreturn void guard_main(const struct guard_birth *birth);

/* spawn.c: the strings of one command: a private mapping, and pointers into it. 0, or a negative errno; either way
 * guard_strings_finish. */
struct guard_strings {
  char *map;
  size_t size;
  char **v; /* argv, NULL, env, NULL */
};
int guard_strings_map(struct guard_strings *s, const struct guard_cmd_spawn *c, int fd);
void guard_strings_finish(struct guard_strings *s);
/* Forks one worker. 0 and *pid, *exec_fd: readable when exec succeeded (end of file) or failed (the int errno
 * is read); or a negative errno. Takes the descriptors. name: argv[0], cut; on an error the call that failed. */
enum { GUARD_NAME_MAX = 80 };
int guard_fork_worker(const struct guard_cmd_spawn *s, const int fds[GUARD_SPAWN_FDS], pid_t *pid, int *exec_fd,
                      char name[GUARD_NAME_MAX]);
/* The sentence for a failed start. */
void guard_exec_text(int error, const char *name, char *out, size_t size);
/* suspend.c: SIGSTOP to all descendants of this process, until each of them is stopped; SIGCONT to all of them. */
void guard_stop_trees(void);
void guard_continue_trees(void);
/* death_report.c: connects, writes, waits for the peer's close; at most some seconds. */
void guard_send_death_report(const struct guard_cmd_death_report *o, const struct key *key); /* key NULL: plain */

#endif
