#ifndef AGENT_FAILURES_H
#define AGENT_FAILURES_H

/* What this node's workers failed of, in a round: their error files, read when they die; which failure was told; and
 * at the end, what is handed to whoever started this agent (TORCHELASTIC_ERROR_FILE). */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "agent/failures/error_file.h"
#include "common/local_set.h"

struct failures;

struct failures_options {
  uv_loop_t *loop;
  uint32_t count;             /* local ranks */
  void (*on_read)(void *ctx); /* a file that failures_read asked for was read, or could not be */
  void *ctx;
};

struct failures *failures_create(const struct failures_options *o);
void failures_destroy(struct failures *f); /* no on_read any more; what is on its way frees itself */

/* A new round: the last one's are forgotten. Workers in `stay` (NULL: none) go on, and write where they were told when they were started. */
void failures_begin(struct failures *f, const struct local_set *stay);
/* Where local_rank writes: a copy is kept. NULL: nowhere. */
void failures_name(struct failures *f, uint32_t local_rank, const char *file);
/* It died of itself: status as of waitpid, when_ms on the monotonic clock. Its file is read. */
void failures_read(struct failures *f, uint32_t local_rank, int status, uint64_t when_ms);
bool failures_is_reading(const struct failures *f, uint32_t local_rank);
/* What it said; NULL: nothing. Valid until failures_begin. */
const struct error_file *failures_said(const struct failures *f, uint32_t local_rank);

struct failure_told {
  int64_t local_rank; /* -1: it is another node's */
  const char *text;   /* the verdict's sentence, and below it the worker's last lines */
  const char *said;   /* what its error file says; NULL: nothing */
  int64_t unix_s;     /* filled: when it happened, or, elsewhere, when it was told */
};
/* The round's failure was told. Returns the name of its error file, NULL where there is none here. */
const char *failures_told(struct failures *f, struct failure_told *told);

/* Writes to `file` why we end with `code`, in uv's pool: what the worker of the failure that was told wrote, else the
 * first of ours that wrote something, else what was told, else what the code means. */
void failures_hand_up(struct failures *f, const char *file, int code);
bool failures_is_busy(const struct failures *f); /* that is under way */

#endif
