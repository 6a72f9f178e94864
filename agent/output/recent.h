/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OUTPUT_RECENT_H
#define AGENT_OUTPUT_RECENT_H

/* The recent lines of an agent's workers, for rdzvctl logs. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "proto/worker_line.h"

enum {
  RECENT_BYTES = 1048576,    /* of all workers together; */
  RECENT_WORKER_MIN = 65536, /* but of each at least this */
};

struct recent;

/* Memory is taken as lines come. */
struct recent *recent_create(size_t workers);
void recent_destroy(struct recent *r); /* NULL is fine */
/* Copies the line of that worker, by local rank. Its number is given here; too long a text is cut. */
void recent_add(struct recent *r, size_t worker, const struct worker_line *line);

/* Lines of `rank` (-1: of all workers) with a number from `from` on and a round from `from_round` on; of these the last
 * `tail` (-1: all), and at most `max` bytes of them, but at least one. */
struct recent_question {
  int64_t rank, tail;
  uint64_t from;
  uint32_t from_round;
  size_t max;
};
struct recent_answer {
  uint64_t next; /* the number to ask for next */
  bool more;     /* further lines are here already */
  bool lost;     /* the ring has dropped lines that the question asks for */
};
/* Appends them, in the order in which they came. */
void recent_read(const struct recent *r, const struct recent_question *q, struct buf *out, struct recent_answer *a);

#endif
