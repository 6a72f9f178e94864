#ifndef DAEMON_SAVER_H
#define DAEMON_SAVER_H

/* Writes the state file from the loop without blocking it: one write at a time in the thread pool. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "daemon/server/state.h"

enum {
  SAVER_WAIT_MS = 500,             /* how long effects wait for a write; past it the disk is called stuck */
  SAVER_RETRY_MS = 5000,           /* after a write that failed the file is written anew that often */
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
  struct err result; /* of the write that runs */
  struct err last;   /* of the last one */
  bool busy, rewrites, stuck;
  bool failed; /* the last write did */
  bool again;  /* this one is only for that */
  bool given_up;
  uint64_t started_ms;
  uint64_t retry_ms; /* UINT64_MAX: the last write went well, or nobody tries again */
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
/* The last write failed some time ago: saver_write it anew. Once per SAVER_RETRY_MS. */
bool saver_may_retry(struct saver *s, uint64_t now_ms);
void saver_give_up(struct saver *s); /* no retry any more */
/* Why what is put does not reach the disk now, appended; nothing: it does, as far as is known. */
void saver_put_trouble(const struct saver *s, struct buf *out);

#endif
