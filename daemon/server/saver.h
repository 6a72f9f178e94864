/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_SAVER_H
#define DAEMON_SERVER_SAVER_H

/* Writes the state file from the loop without blocking it: one write at a time in the thread pool, or at once if the
 * file is in memory. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "daemon/server/state.h"

enum {
  SAVER_WAIT_MS = 500,             /* how long effects wait for a write; after that the disk is called stuck */
  SAVER_RETRY_MS = 5000,           /* how often the file is rewritten after a failed write */
  SAVER_PENDING_MAX = 1024 * 1024, /* bytes that wait for a stuck disk; further lines are lost, and logged */
};

struct saver {
  uv_loop_t *loop;
  struct state *state; /* NULL: nothing is saved */
  void (*on_done)(void *ctx);
  /* Appends all lines that the file must hold now, for a rewrite. */
  void (*get_lines)(void *ctx, struct buf *out);
  void *ctx;
  uv_work_t work;
  struct buf pending, writing;
  struct err result; /* of the write that runs */
  struct err last;   /* of the last one */
  bool at_once;      /* the file is in memory */
  bool busy, rewrites, stuck;
  bool failed; /* the last write failed */
  bool again;  /* this write only repeats the failed one */
  bool given_up;
  uint64_t started_ms;
  uint64_t retry_ms; /* UINT64_MAX: the last write succeeded, or no retry follows */
};

void saver_init(struct saver *s, uv_loop_t *loop, struct state *state, void *ctx);
void saver_finish(struct saver *s); /* not while a write is going on */

void saver_put(struct saver *s, const char *line);
/* Starts to write what was put. complete: all lines that the core has emitted were put, so a rewrite may take place. */
void saver_write(struct saver *s, bool complete);
/* Effects behind a line must wait: it is being written, and the disk is not stuck. */
bool saver_must_wait(const struct saver *s);
uint64_t saver_deadline(const struct saver *s); /* when to call saver_expire; UINT64_MAX: never */
void saver_expire(struct saver *s, uint64_t now_ms);
/* The last write failed some time ago, and saver_write should repeat it. True once per SAVER_RETRY_MS. */
bool saver_may_retry(struct saver *s, uint64_t now_ms);
void saver_give_up(struct saver *s); /* no further retry */
/* Appends why lines do not reach the disk now; nothing if they do, as far as is known. */
void saver_put_trouble(const struct saver *s, struct buf *out);

#endif
