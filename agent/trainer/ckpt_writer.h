#ifndef AGENT_TRAINER_CKPT_WRITER_H
#define AGENT_TRAINER_CKPT_WRITER_H

/* A thread that writes checkpoints while training goes on: one at a time. What it writes must not be touched until it is done.
 *
 *   ckpt_writer_begin(w, &id, &state);                 the state's floats now belong to the writer
 *   ...
 *   if (ckpt_writer_wait(w, 0, &r)) ...                r.rc, r.why, times; the floats are the caller's again
 *
 * All calls from one thread. */

#include "agent/trainer/checkpoint/checkpoint.h"

struct ckpt_writer;

struct ckpt_written {
  int rc;
  struct err why; /* where rc is not 0 */
  struct ckpt_id id;
  uint64_t bytes, us;
  struct err unpruned; /* code not 0: old checkpoints could not be removed, which does no harm */
};

/* keep: as for ckpt_prune. dir must outlive it. */
int ckpt_writer_create(const char *dir, int keep, struct ckpt_writer **out, struct err *e);
/* Whether something was begun whose result has not been taken. */
bool ckpt_writer_busy(const struct ckpt_writer *w);
/* Not while it is busy. */
void ckpt_writer_begin(struct ckpt_writer *w, const struct ckpt_id *id, const struct ckpt_state *s);
/* true: what was begun is done, and *out says how. false: not within timeout_ms (0: only looks), or nothing was begun. */
bool ckpt_writer_wait(struct ckpt_writer *w, uint64_t timeout_ms, struct ckpt_written *out);
/* Waits for what is being written, timeout_ms at most; after that the thread is left behind with what it has, and false is returned: the
 * floats must stay, and the process should end. NULL is fine. */
bool ckpt_writer_destroy(struct ckpt_writer *w, uint64_t timeout_ms);

#endif
