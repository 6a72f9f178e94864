/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_RAS_H
#define AGENT_HANG_RAS_H

/* NCCL's RAS (reliability, availability, serviceability): its conversation, and what its answer says about a hang. Pure.
 *
 * Each process of a job with NCCL 2.28.7 or later answers at NCCL_RAS_ADDR, for all processes of the job. The answer
 * comes from a process that may be broken or hostile: every length has a limit, and text in it is only shown escaped. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"

enum {
  RAS_JSON_MAX = 4 * 1024 * 1024,
  RAS_LINE_MAX = 1024, /* before the answer */
  RAS_HOST_MAX = 63,
  RAS_NAMED_MAX = 8,
  RAS_COMMUNICATORS_MAX = 65536,
  RAS_SIZE_MAX = 1048576, /* ranks of a communicator */
  RAS_OPERATION_MAX = 23,
  RAS_COLLECT_S = 1, /* how long NCCL waits for its other processes */
};

/* The conversation. ------------------------------------------------------------------------------------------------ */

enum ras_step { RAS_GREETS, RAS_SETS_TIMEOUT, RAS_SETS_FORMAT, RAS_ANSWERS };

struct ras_talk {
  enum ras_step step;
  struct buf in; /* the line under way; then the answer, which the end of the connection completes */
};

/* Appends the first request. */
void ras_begin(struct ras_talk *t, struct buf *out);
/* Takes bytes of the server and appends the next request. -EPROTO and a sentence: it is not RAS, has no JSON, or exceeds a
 * limit. */
int ras_feed(struct ras_talk *t, const char *data, size_t n, struct buf *out, struct err *e);
void ras_finish(struct ras_talk *t);

/* The answer. ------------------------------------------------------------------------------------------------------ */

struct ras_process {
  int64_t rank; /* in its communicator; -1: unknown */
  int64_t pid;  /* in its own name space; -1: unknown */
  char host[RAS_HOST_MAX + 1];
  bool dead; /* RAS has given it up; else it does not answer now */
};

struct ras_finding {
  int64_t communicators;
  /* Processes without an answer. */
  int64_t n_silent;
  struct ras_process silent[RAS_NAMED_MAX];
  size_t n_silent_named;
  int64_t silent_size; /* of the communicator that their ranks count in; 0: unknown */
  /* Of the communicator in which most ranks wait: ranks that have not launched a collective. */
  int64_t size;    /* of the communicator; 0: ranks are equally far, everywhere */
  int64_t waiting; /* ranks that have launched it */
  int64_t n_behind;
  struct ras_process behind[RAS_NAMED_MAX];
  size_t n_behind_named;
  char op[RAS_OPERATION_MAX + 1];
  int64_t seq;    /* its number, from 1 */
  int64_t errors; /* ranks with an asynchronous error */
};

/* -EPROTO and a sentence: it is not such an answer. */
int ras_parse_json(const char *data, size_t n, struct ras_finding *f, struct err *e);

/* Appends "rank 3 has not entered AllReduce #412, 7 others have"; nothing if nothing is wrong. No full stop.
 * world_size: the ranks of a communicator of that size are the job's. */
void ras_sentence(const struct ras_finding *f, int64_t world_size, struct buf *out);

#endif
