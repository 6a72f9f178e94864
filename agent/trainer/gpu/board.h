/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_BOARD_H
#define AGENT_TRAINER_GPU_BOARD_H

/* Which rank to name when a collective does not complete. NCCL knows only that it waits. So every rank that has failed
 * posts its position on a board that all ranks can read (gpu.h): it waited too long, got an error, gave up, or saw that
 * another one failed. A waiting rank reads the board now and then, and fails with those who have posted. So all live
 * ranks have posted within moments, and a rank without a post is missing. This file has the posts, and what follows
 * from them. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  BOARD_RECORD = 128, /* bytes of a post on the board */
  BOARD_WHY = 100,    /* of which this many are text, with the NUL */
  BOARD_TEXT = 400,
  BOARD_NAMED = 4, /* ranks named in a message */
};

enum board_state {
  BOARD_SILENT,  /* it posted nothing */
  BOARD_UP,      /* its communicator came up */
  BOARD_WAITS,   /* it waited too long, or saw that another rank has failed */
  BOARD_ERROR,   /* NCCL reported an error that may have begun elsewhere */
  BOARD_GAVE_UP, /* for a reason of its own; later posts do not change this */
};

struct board_post {
  uint32_t rank;
  enum board_state state;
  uint64_t begun, done; /* collectives on its device; equal: it is in none */
  char why[BOARD_WHY];  /* of BOARD_GAVE_UP */
};

struct board_verdict {
  int lost; /* the rank to name, or -1 */
  char text[BOARD_TEXT];
};

void board_write(const struct board_post *p, uint8_t out[BOARD_RECORD]);
/* Fills posts[0..world), by rank, with the last record of each rank. Ranks without one are BOARD_SILENT. Invalid
 * records are ignored. */
void board_read(const void *records, size_t size, int world, struct board_post *posts);
/* true: all ranks but `self` have posted what is needed. */
bool board_all_posted(const struct board_post *posts, int world, int self, bool running);
/* A rank other than `self` in this state or a later one, or -1. BOARD_WAITS: it has failed, for any reason. */
int board_rank_at(const struct board_post *posts, int world, int self, enum board_state least);
/* Decides which rank to name, and the text (without "rank 0 waited" and the like). running: the communicators had come
 * up, so a rank whose last post is BOARD_UP has been silent since. posts[self] is filled in. */
void board_decide(const struct board_post *posts, int world, int self, bool running, struct board_verdict *out);

#endif
