#ifndef DAEMON_SAVER_H
#define DAEMON_SAVER_H

/* Writes the state file from the loop without blocking it: one write at a time in the thread pool. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "daemon/state.h"

enum {
  SAVER_WAIT_MS = 500,             /* how long effects wait for a write; past it the disk is called stuck */
  SAVER_PENDING_MAX = 1024 * 1024, /* bytes waiting behind a stuck disk; lines beyond are lost, loudly */
};

struct saver {
  uv_loop_t *loop;
  struct state *state; /* NULL: nothing is kept */
  void (*on_done)(void *ctx);
  /* Appends all lines that the file must hold now. Called when it is to be rewritten. */
  void (*get_lines)(void *ctx, struct buf *out);
  void *ctx;
  uv_work_t work;
  struct buf pending, writing;
  struct err result;
  bool busy, rewrites, stuck;
  uint64_t started_ms;
};

void saver_init(struct saver *s, uv_loop_t *loop, struct state *state, void *ctx);
void saver_finish(struct saver *s); /* not while saver_is_busy */

void saver_put(struct saver *s, const char *line);
/* Begins to write what was put. `complete`: all lines that the core has given so far were put, so a rewrite may take place. */
void saver_write(struct saver *s, bool complete);
bool saver_is_busy(const struct saver *s);
/* Effects behind a line must wait: it is being written and the disk is not stuck. */
bool saver_must_wait(const struct saver *s);
uint64_t saver_deadline(const struct saver *s); /* when to call saver_expire; UINT64_MAX: never */
void saver_expire(struct saver *s, uint64_t now_ms);

#endif
