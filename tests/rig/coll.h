/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_COLL_H
#define TESTS_RIG_COLL_H

/* Worlds of real processes for test_nccl.c. Each rank opens the module itself, and a process of its own mints the ids,
 * as in a real job. Ranks exchange and post in shared memory. */

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/trainer/gpu/gpu.h"

enum { WORLD_MAX = 4, CARD_MAX = 160, BOARD_MAX = 1 << 16, IDS = 2, PATIENCE_S = 100, SKIPPED = 77 };
enum { LONG_MS = 60000, N = 5000 };

struct shared {
  pthread_mutex_t lock;
  /* Of two rounds, and of the twins in them. */
  int come[4];
  uint8_t cards[4][WORLD_MAX][CARD_MAX];
  size_t board_n[4];
  uint8_t board[4][BOARD_MAX];
  int minted;
  uint8_t ids[2][IDS * GPU_ID_SIZE];
  int flag[8];           /* for a test's own use */
  int parked[2];         /* ranks that have left the round */
  int asked;             /* not 0: every rank's agent asks it to leave, with this code */
  bool asked_after_post; /* they ask as soon as a rank has posted that it waits */
  int reads_when_asked;  /* of the board */
  int ready;             /* ranks that have their device */
};

struct rank {
  int rank, world, round; /* round: 0, then 1 for a rank that joins again */
  struct shared *s;
  const struct gpu_module *gpu;
  struct compute *c;
  struct coll *l;
  volatile sig_atomic_t stop;
  uint64_t timeout_ms;
};

struct test {
  const char *name;
  int world;
  uint64_t timeout_ms; /* 0: coll_timeout_ms */
  bool (*run)(struct rank *r);
  bool bare;  /* run creates the collectives itself */
  int killed; /* the rank that does not exit normally, or -1 */
};

extern const char *coll_module;  /* the file */
extern int coll_devices;         /* 1: all ranks share one */
extern uint64_t coll_timeout_ms; /* of worlds with a missing rank: as short as the device starts */

#define EXPECT(cond)                                                                                                   \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      fprintf(stderr, "rank %d of %d: line %d: %s\n", r->rank, r->world, __LINE__, #cond);                             \
      return false;                                                                                                    \
    }                                                                                                                  \
  } while (0)
/* The message contains these words. */
#define SAYS(words)                                                                                                    \
  do {                                                                                                                 \
    if (!strstr(e.text, words)) {                                                                                      \
      fprintf(stderr, "rank %d of %d: line %d: '%s' is not in: %s\n", r->rank, r->world, __LINE__, words, e.text);     \
      return false;                                                                                                    \
    }                                                                                                                  \
  } while (0)
#define GOOD(call)                                                                                                     \
  do {                                                                                                                 \
    if ((call)) {                                                                                                      \
      fprintf(stderr, "rank %d of %d: line %d: %s: %s\n", r->rank, r->world, __LINE__, #call, e.text);                 \
      return false;                                                                                                    \
    }                                                                                                                  \
  } while (0)

void nap(int ms);
void set_flag(struct rank *r, int i);
void await_flag(struct rank *r, int i);
/* As the trainer leaves a round: blocks the updates, waits until all `live` ranks have done so, and cuts off what is
 * queued. The collectives are left to the caller, as are its graphs. */
void leave_round(struct rank *r, int live);
void leave_round_apart(struct rank *r, int live, int ms); /* cuts off so much later */
void all_here(struct rank *r); /* without collectives; once per test. Uses the flags from 4 on */
int exchange(void *ctx, const char *key, const void *mine, size_t size, void *all, int timeout_ms, struct err *e);
struct nccl_config config_of(struct rank *r);
bool make_coll(struct rank *r);
/* Runs all ranks of one test to their end. */
bool run_world(const struct test *t);

/* Buckets of uneven sizes from the top down, as gradients come. */
struct step {
  struct compute_buf *in, *grads, *out;
  size_t n, buckets;
};

bool step_make(struct rank *r, struct step *p, size_t n, size_t buckets);
void step_free(struct rank *r, struct step *p);
void step_fill(struct rank *r, struct step *p, int turn);
int step_queue(struct rank *r, struct step *p, struct err *e);
bool step_right(struct rank *r, struct step *p, int turn);
/* Waits like the trainer: for the device, and watches the other ranks. */
int await_queue(struct rank *r, struct err *e);
/* Runs `turns` whole steps, and checks the sums. */
bool steps(struct rank *r, struct step *p, int turns);

#endif
