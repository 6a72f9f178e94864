#ifndef AGENT_TRAINER_GPU_WHOM_H
#define AGENT_TRAINER_GPU_WHOM_H

/* Who is to be named when a collective does not come to its end? NCCL knows only that it waits. So every rank that has failed (it waited
 * too long, was told of an error, gave up, or saw that another has failed) writes where it was on a board that all can read (gpu.h). Whoever waits
 * looks there now and then, and follows those who have failed; so all that live have written within moments, and who has not is missing.
 * Here is what is written, and what follows from what was read. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  WHOM_RECORD = 128, /* bytes of a post on the board */
  WHOM_WHY = 100,    /* of which this many, with the NUL, are words */
  WHOM_TEXT = 400,
  WHOM_NAMED = 4, /* ranks in a sentence */
};

enum whom_state {
  WHOM_SILENT,  /* nothing was read of it */
  WHOM_UP,      /* its communicator came up */
  WHOM_WAITS,   /* it had waited too long, or saw that another has failed */
  WHOM_ERROR,   /* NCCL told it of an error that may have begun elsewhere */
  WHOM_GAVE_UP, /* for a reason of its own; stays, whatever else is read */
};

struct whom_post {
  uint32_t rank;
  enum whom_state state;
  uint64_t begun, done; /* collectives on its device; equal: it is in none */
  char why[WHOM_WHY];   /* of WHOM_GAVE_UP */
};

struct whom {
  int lost; /* the rank to name, or -1 */
  char text[WHOM_TEXT];
};

void whom_write(const struct whom_post *p, uint8_t out[WHOM_RECORD]);
/* posts[0..world), by rank: what the records say, the last of each rank; those of ranks without one are WHOM_SILENT. What is no record
 * is passed over. */
void whom_read(const void *records, size_t size, int world, struct whom_post *posts);
/* Have all ranks but `self` written what counts? */
bool whom_all_here(const struct whom_post *posts, int world, int self, bool running);
/* Somebody other than `self` gave up: the rank, or -1. */
int whom_gave_up(const struct whom_post *posts, int world, int self);
/* Somebody other than `self` has failed, for whatever reason: the rank, or -1. */
int whom_failed(const struct whom_post *posts, int world, int self);
/* Whom to name, and in which words (without "rank 0 waited" and the like). `running`: the communicators had come up, so that to have
 * written WHOM_UP is to have been silent since. posts[self] is filled in. */
void whom_decide(const struct whom_post *posts, int world, int self, bool running, struct whom *out);

#endif
