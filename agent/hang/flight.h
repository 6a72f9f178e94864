/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_FLIGHT_H
#define AGENT_HANG_FLIGHT_H

/* PyTorch's flight recorder, as a worker's debug server gives it out: fr_trace_json (CPU) and dump_nccl_trace_json. Pure.
 *
 * The recorder keeps a worker's last collectives. From those of one worker follow the collective of each process group
 * that it has entered last, and the first that it has not left. From those of all workers of a node follows the list
 * that goes to the daemon (struct collective). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/slice.h"
#include "proto/msg.h"

enum {
  FLIGHT_MAX = 4 * 1024 * 1024, /* bytes of one worker's answer */
  FLIGHT_HEADER_MAX = 8192,     /* of HTTP, before it */
  FLIGHT_GROUPS_MAX = 64,       /* process groups of one worker; later ones are left out */
};

struct flight_group {
  char name[GROUP_NAME_MAX + 1]; /* "gloo 0 default_pg" */
  int64_t entered;               /* the last one; 0: none */
  int64_t pending;               /* the first one that it has not left; 0: none */
  char op[OPERATION_MAX + 1];    /* of `pending` */
};

struct flight {
  struct flight_group v[FLIGHT_GROUPS_MAX];
  size_t n;
};

/* Adds the groups of one answer. -EPROTO and a sentence: it is not such an answer. */
int flight_parse(struct flight *f, const char *data, size_t n, struct err *e);
/* The body of a complete HTTP answer of a debug server. Returns its status, or -EPROTO and a sentence. `body` borrows. */
int flight_unwrap(const char *data, size_t n, struct slice *body, struct err *e);
bool flight_is_idle(const struct flight *f); /* the worker has been in a collective, and is in none now */

/* The groups of a node. Strings of `v` point into `room`. */
struct flights {
  struct collective v[COLLECTIVES_MAX];
  struct flights_room {
    char group[GROUP_NAME_MAX + 1], op[OPERATION_MAX + 1], ranks[RANKS_TEXT_MAX + 1];
  } room[COLLECTIVES_MAX];
  size_t n;
};

/* Groups beyond COLLECTIVES_MAX are left out. */
void flights_add(struct flights *all, int64_t rank, const struct flight *f);
/* The ranks of all groups that the others wait for, as text in `ranks`: those of `collective_lacks`. */
void flights_behind(const struct flights *all, char ranks[RANKS_TEXT_MAX + 1]);

#endif
