/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_HINT_H
#define AGENT_STORE_HINT_H

/* The likely mistake when no worker connects to the round's store. Pure: it judges what was seen of the workers'
 * processes.
 *
 * A script that sets MASTER_PORT itself, or has an init_method of its own, makes PyTorch connect to the agent's store
 * at a port that no process serves. PyTorch retries for half an hour and prints nothing. Three signs reveal such a
 * script. Without any of them nothing is logged, since many commands need no store.
 *
 *   set      a process below a worker has another MASTER_PORT than the agent gave, and no worker listens there. If its
 *            command brought it, that is enough. If the process has set it itself, it has PyTorch too. What else it does,
 *            and with whom it is connected, does not matter
 *   dials    a process with PyTorch connects to an address that does not answer
 *   sleeps   a process with PyTorch has no connection and sleeps at each look, as PyTorch does between its attempts. The
 *            script has an init_method of its own, or set the variables where the agent may not read its memory. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/buf.h"

enum {
  STORE_HINT_FIRST_MS = 10000, /* after the workers were started */
  STORE_HINT_AGAIN_MS = 30000,
  STORE_HINT_LOOK_MS = 2500,      /* between two looks, until a sentence was logged; */
  STORE_HINT_EAGER_MS = 120000,   /* after that only every STORE_HINT_AGAIN_MS */
  STORE_HINT_PROCESSES_MAX = 512, /* looked at */
  STORE_HINT_LISTENS_MAX = 4,
  STORE_HINT_ADDR_MAX = 127,
};

struct store_hint_process {
  int64_t rank; /* of the worker that it is or descends from */
  pid_t pid;
  uint64_t start; /* with pid it names the process */
  char name[16];
  /* From its environment as it is now; "": not set. */
  char addr[STORE_HINT_ADDR_MAX + 1], port[8];
  bool set_inside; /* it did not begin with this port */
  bool own_store;  /* TORCHELASTIC_USE_AGENT_STORE is not True: it serves a store itself */
  bool torch;      /* PyTorch is loaded */
  bool sleeps;     /* its first thread is in nanosleep */
  /* Its TCP sockets. */
  bool connected;
  bool reached; /* connected to that port, anywhere */
  uint16_t listens[STORE_HINT_LISTENS_MAX];
  size_t n_listens;
  char dials[64]; /* "10.0.0.5:31234": no answer has come yet; "": none */
  uint16_t dials_port;
};

struct store_hint_look {
  struct store_hint_process *v; /* in the order of ranks */
  size_t n;
};

struct store_hint_given {
  const char *addr; /* from the agent */
  uint16_t port;
  int64_t world_size;
};

/* MASTER_PORT as a number; 0: it is none. */
uint16_t store_hint_port(const struct store_hint_process *p);

/* Appends the sentence, if there is a reason for one. before: the previous look at the same round. */
bool store_hint_put(const struct store_hint_given *given, const struct store_hint_look *before,
                    const struct store_hint_look *now, uint64_t elapsed_ms, struct buf *out);

/* When to look next. said_ms: when the last sentence was logged, or 0. All since the workers were started. */
uint64_t store_hint_next_ms(uint64_t elapsed_ms, uint64_t said_ms);

#endif
