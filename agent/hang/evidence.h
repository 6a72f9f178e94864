/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_EVIDENCE_H
#define AGENT_HANG_EVIDENCE_H

/* Asks NCCL (its RAS) and PyTorch (the debug servers of workers) about the collectives of a round that hangs. All of it
 * runs in a thread of uv's pool, on sockets that do not block, and ends within EVIDENCE_MS. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "agent/hang/flight.h"
#include "common/local_set.h"
#include "proto/msg.h"

enum {
  EVIDENCE_MS = 2500,
  EVIDENCE_WORKERS_MAX = 64,
  EVIDENCE_ASKERS = 4, /* the first nodes of a round ask NCCL; it answers for all nodes */
};

struct evidence_question {
  int64_t node_rank, rank_base, world_size;
  char store_addr[ADDR_MAX + 1]; /* of the round's store; "": none. There workers say where their debug servers are */
  uint16_t store_port;
  uint16_t ras_port; /* on this host; 0: none */
  int ras_v6;
  uint32_t n, local_ranks[EVIDENCE_WORKERS_MAX]; /* workers that live */
};

struct evidence_answer {
  bool any;                    /* somebody has said something about collectives */
  bool has_ras;                /* NCCL answers on this host: nodes that ask it need the workers of all others alive */
  char text[EVIDENCE_MAX + 1]; /* for the verdict */
  char ras[EVIDENCE_MAX + 1];  /* NCCL's part of it */
  char silent[RANKS_TEXT_MAX + 1];
  struct flights flights;
  struct local_set awaited;
  char why[200]; /* why somebody has said nothing; "": no reason is known */
};

typedef void (*evidence_fn)(void *ctx, const struct evidence_answer *a);

/* Zero but for the first three, which its owner sets. */
struct evidence_collector {
  uv_loop_t *loop;
  evidence_fn fn;
  void *ctx;
  struct asking *asking; /* NULL: none */
};

/* Calls fn once, later. A question under way is dropped. */
void evidence_ask(struct evidence_collector *d, const struct evidence_question *q);
void evidence_drop(struct evidence_collector *d); /* no call follows */

/* The port at which NCCL's RAS of this agent's workers answers (NCCL_RAS_ADDR). NCCL's own default, 28028, would be
 * that of all jobs of a host. */

enum { RAS_ADDR_MAX = 31 };

struct ras_port {
  int fd;                      /* -1: none */
  char addr[RAS_ADDR_MAX + 1]; /* "127.0.0.1:4711"; "": none */
};

/* Holds a free port until ras_port_close. No other program gets it by chance, and NCCL in processes of the same user
 * can listen there. Without a free port there is none. */
void ras_port_open(struct ras_port *p);
void ras_port_close(struct ras_port *p);

/* The port of NCCL_RAS_ADDR where it leads to this host ("localhost:28028", "127.0.0.1:1", "[::1]:1"); 0: elsewhere, or
 * not numeric. v6: it is that of ::1. */
uint16_t ras_port_parse(const char *addr, int *v6);

#endif
