#ifndef AGENT_TRAINER_CKPT_H
#define AGENT_TRAINER_CKPT_H

/* Checkpoints in a directory:
 *
 *   DIR/<incarnation>-r<round>-s<step>/state.bin    the state (ckpt_codec.h)
 *   DIR/<incarnation>-r<round>-s<step>/COMMIT       written last: without it, or with one that does not
 *                                                   fit, it is none
 *   DIR/.tmp-*                                      being written, or left behind by a writer that died
 *
 * Nothing is ever overwritten. One rank writes, the others get what they need from it. */

#include "agent/trainer/checkpoint/codec.h"

struct ckpt_list {
  struct ckpt_id *v; /* newest first: highest (incarnation, round, step) */
  size_t n;
};

/* Makes DIR where it is missing (its parent must exist). */
int ckpt_dir_open(const char *dir, struct err *e);
/* Every directory with a well-formed name, whole or not. */
int ckpt_list(const char *dir, struct ckpt_list *out, struct err *e);
void ckpt_list_finish(struct ckpt_list *l);

/* Writes and commits. On failure the sentence names path and space, and what was written is removed. */
int ckpt_write(const char *dir, const struct ckpt_id *id, const struct ckpt_bytes *b, struct err *e);
/* Marker, size and checksums are checked; `out` is filled with state.bin. -ENOENT: no marker. -EBADMSG:
 * torn or damaged. max: larger is refused before it is read. */
int ckpt_read(const char *dir, const struct ckpt_id *id, uint64_t max, struct buf *out, struct err *e);
/* Told of every newer checkpoint that ckpt_latest passed over, and why. */
typedef void (*ckpt_refused_fn)(void *ctx, const char *name, const struct err *why);
/* The newest that is whole into *id, *s and `out` (where s->params point). 1: found; 0: there is none;
 * negative: the newest whole one is of another kind than `want`, or the directory cannot be read. */
int ckpt_latest(const char *dir, const struct ckpt_kind *want, struct ckpt_id *id, struct ckpt_state *s,
                struct buf *out, ckpt_refused_fn refused, void *ctx, struct err *e);
/* Removes all but the `keep` newest that have a marker, and what dead writers left behind (older than
 * `mine` and without a marker). The first thing removed of a checkpoint is its marker. Failures are told
 * by the result, but a checkpoint that is not removed does no harm. */
int ckpt_prune(const char *dir, const struct ckpt_id *mine, int keep, struct err *e);

#endif
