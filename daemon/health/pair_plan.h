/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_HEALTH_PAIR_PLAN_H
#define DAEMON_HEALTH_PAIR_PLAN_H

/* Which hosts exchange data with which, and what the results say. Pure; it knows hosts by their numbers alone.
 *
 * A search is for the host whose fault ended a round. In the first round of exchanges the first half of the hosts, the
 * suspects among them, meets the second half. In the second each host meets another one, and those that did badly meet one
 * that did well. Further rounds follow only while a bad pair is unexplained. A survey measures all pairs, or of many hosts
 * some.
 *
 * A pair is bad if its exchange failed, or was much slower than most. A host is at fault if it has no good pair, and two
 * bad ones with hosts that do well elsewhere: the fault follows the host. That could also be a bad cable between two
 * switches, and the host has met only hosts of the other side. So in a search it must have met a host of each group, where
 * good pairs join hosts to groups. While there are several groups their hosts meet each other.
 *
 * The fabric that NCCL uses may be bad while TCP is well. So a host is judged by its pairs over NCCL alone, and by all.
 *
 * A bad pair of two hosts that both do well elsewhere is a bad link, in a search after a second try. Whatever else is bad
 * stays open: either end may be at fault. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "proto/msg.h"

enum {
  PAIR_SEARCH_ROUNDS_MAX = 6,
  PAIR_SURVEY_ALL = 64, /* so many hosts at most meet each other host; more have PAIR_SURVEY_ROUNDS rounds */
  PAIR_SURVEY_ROUNDS = 8,
  PAIR_SLOW_FACTOR = 4,     /* a pair is slow if the upper quartile of all pairs is so many times as fast, */
  PAIR_LATE_FACTOR = 10,    /* or its round trips take so many times as long as the lower quartile, */
  PAIR_LATE_MIN_US = 20000, /* and so long */
};

enum pair_state {
  PAIR_PENDING,
  PAIR_MEASURED,
  PAIR_FAILED,
  PAIR_VOID, /* an end was lost meanwhile: it says nothing */
};

struct pair {
  uint32_t a, b; /* a listens, b connects; at first a is the smaller one */
  uint32_t round;
  enum pair_state state;
  bool bad;                             /* pair_plan_judge */
  bool nccl;                            /* over NCCL, not TCP: the two are not compared, */
  int64_t gpus;                         /* nor are those over NCCL with other numbers of GPUs at each end */
  int64_t bytes, out_us, in_us, rtt_us; /* MEASURED: from b to a, and back */
  int64_t gpu;                          /* over NCCL: whose times these are */
  char *text;                           /* FAILED: why; owned */
};

struct pair_host {
  bool gone;      /* takes part no more */
  char *lacks;    /* why it cannot exchange over NCCL; NULL: it can, as far as it is known; owned */
  bool met, used; /* it has met another one; in the round that is being planned */
  /* pair_plan_judge: */
  bool fault;
  /* Over TCP, and over NCCL. Whoever does well over NCCL does well in general, but not the reverse. */
  uint32_t good[2], blamed[2]; /* good pairs; bad ones with hosts that have good ones */
  uint32_t group[2];           /* of a search */
};

struct pair_plan {
  bool survey;
  bool nccl; /* hosts that do not lack it exchange over NCCL */
  struct pair_host *hosts;
  size_t n_hosts;
  struct pair *v;
  size_t n, cap;
  uint32_t round; /* the last one; 0: none yet */
};

void pair_plan_init(struct pair_plan *p, size_t n_hosts, bool survey);
void pair_plan_finish(struct pair_plan *p);
/* Adds the pairs of the next round, and returns how many; 0: the plan is done. The last round has no pending pairs. */
size_t pair_plan_next(struct pair_plan *p);
bool pair_can_use_nccl(const struct pair_plan *p, size_t x, size_t y);
void pair_plan_judge(struct pair_plan *p);
/* After a judgement. */
bool pair_is_link(const struct pair_plan *p, const struct pair *pair);
bool pair_is_open(const struct pair_plan *p, const struct pair *pair);
int64_t pair_bytes_s(const struct pair *pair); /* of the slower direction */
/* What is found, in a sentence. False: all is well, and the sentence says how well. */
bool pair_plan_sentence(const struct pair_plan *p, const char *const *names, struct buf *out);

#endif
