/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_CHECKPOINT_CHECKPOINT_H
#define AGENT_TRAINER_CHECKPOINT_CHECKPOINT_H

/* Checkpoints in a folder, its lock, and the thread that writes them.
 *
 *   DIR/NAME/model.safetensors    the state (codec.h); NAME is <generation>-<incarnation>-r<round>-s<step>
 *   DIR/NAME/COMMIT       the marker, written last; without it, or with one that does not fit, there is no checkpoint
 *   DIR/.tmp-NAME-PID     a checkpoint in progress, or one that a dead writer left
 *   DIR/.lock             the run that may write there
 *
 * Nothing is ever overwritten. One rank writes, and the others get what they need from it. codec.h has the types and
 * the bytes. */

#include <pthread.h>
#include "agent/trainer/checkpoint/codec.h"
#include "common/tally.h"

/* The folder. */

struct ckpt_list {
  struct ckpt_id *v; /* newest first: highest (generation, round, step) */
  size_t n;
};

/* Creates DIR if it is missing. Its parent must exist. */
int ckpt_dir_open(const char *dir, struct err *e);
/* Every folder with a well-formed name, complete or not. */
int ckpt_list(const char *dir, struct ckpt_list *out, struct err *e);
void ckpt_list_finish(struct ckpt_list *l);

/* Writes and commits a checkpoint under about->id, and fills in size and checksum of its marker. On failure the message
 * names the path and the free space, and the partial checkpoint is removed. tally: the bytes that were given to the
 * system, or NULL. */
int ckpt_write(const char *dir, const struct ckpt_marker *about, const struct ckpt_bytes *b, struct tally *tally,
               struct err *e);
/* Reads the marker into *m and model.safetensors into `out`, and checks marker, size and checksums. -ENOENT: there is no
 * marker. -EBADMSG: torn, damaged, or not a regular file. A file larger than max is refused before it is read. tally:
 * its bytes, or NULL. */
int ckpt_read(const char *dir, const struct ckpt_id *id, uint64_t max, struct ckpt_marker *m, struct buf *out,
              struct tally *tally, struct err *e);
/* Called with the reason for every newer checkpoint that ckpt_latest skips. */
typedef void (*ckpt_refused_fn)(void *ctx, const char *name, const struct err *why);
/* Reads the newest complete checkpoint into *m, *s and `out` (s->params points into it). incarnation: only those of
 * that life of the job; NULL: all. 1: found. 0: there is none. Negative: the folder cannot be read. */
int ckpt_latest(const char *dir, const char *incarnation, struct ckpt_marker *m, struct ckpt_state *s, struct buf *out,
                ckpt_refused_fn refused, void *ctx, struct tally *tally, struct err *e);
/* The marker of the newest checkpoint of that life, without its state. 1: found. 0: there is none. */
int ckpt_latest_marker(const char *dir, const char *incarnation, struct ckpt_marker *m);
/* Removes what dead writers left (checkpoints older than mine->id and without a marker), and all but the `keep` newest
 * complete checkpoints of mine->origin. Those of other runs, and of other
 * releases, stay. Removes the marker of a checkpoint first. A failure is
 * reported, but a checkpoint that stays does no harm. */
int ckpt_prune(const char *dir, const struct ckpt_marker *mine, int keep, struct err *e);

/* The lock. One job at a time writes to a folder. DIR/.lock is a symbolic link whose text names the holder.
 *
 * A link exists with all of its text or not at all, even after a power cut, and needs no block of a full disk. It is
 * made where none is, which one process alone can do; the link of a holder that is gone is moved away before. A thread
 * of the holder touches it every CKPT_BEAT_MS. A holder on this host is alive if its process is. A holder on another
 * host is gone if its link was not touched for CKPT_STALE_MS, by the file server's clock.
 *
 * The lock does not protect the checkpoints themselves, since nothing is overwritten. A holder that was stopped for
 * longer finds its folder taken at the next ckpt_lock_check, before it writes, or after a write that fails. A file system
 * without links has no lock, and the log says so. */
enum { CKPT_BEAT_MS = 2000, CKPT_STALE_MS = 30000 };

struct ckpt_lock;

/* A thread that takes no signals, and what its two sides share. */
struct ckpt_thread {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool stop;
};
/* Else a negative code. */
int ckpt_thread_start(struct ckpt_thread *t, void *(*body)(void *), void *arg);
/* With the mutex: waits for `changed`. false: that time of monotonic_ms has come. */
bool ckpt_thread_wait(struct ckpt_thread *t, uint64_t until_ms);
/* Asks it to stop and waits for its end, so many seconds at most. false: it hangs, and what it uses must stay. */
bool ckpt_thread_end(struct ckpt_thread *t, int seconds);

/* When a process started, in the kernel's ticks; 0: it has ended. */
uint64_t ckpt_started_at(uint64_t pid);
/* Fills in this process: host, boot, pid. */
void ckpt_lock_self(struct ckpt_owner *me);
/* Waits for a holder that may be gone, a little longer than CKPT_STALE_MS at most, and sets me->generation. dir must
 * outlive the lock. -EBUSY: another job holds the folder. -ESTALE: a newer round of this job holds it, or an older life
 * of this job does not end. */
int ckpt_lock_take(const char *dir, struct ckpt_owner *me, struct ckpt_lock **out, struct err *e);
/* Checks that the folder still belongs to this process, and makes a lock that has vanished again. -ESTALE: another
 * process of this job has it. -EBUSY: another job. Any thread, one at a time. */
int ckpt_lock_check(struct ckpt_lock *l, struct err *e);
/* NULL is fine. If the file system does not respond, the lock stays behind. */
void ckpt_lock_release(struct ckpt_lock *l);

/* The writer: a thread that writes checkpoints while training continues, one at a time. Do not touch the floats of a
 * state while the writer has them.
 *
 *   ckpt_writer_begin(w, &about, &state);          the writer now owns the floats of the state
 *   ... if (ckpt_writer_wait(w, 0, &r)) ...            r has the result; the floats are the caller's again
 *
 * All calls come from one thread. */
struct ckpt_writer;

struct ckpt_written {
  int rc;
  struct err why; /* if rc is not 0 */
  struct ckpt_id id;
  uint64_t bytes, us;
  struct err unpruned; /* code not 0: old checkpoints could not be removed, which does no harm */
  bool full;           /* rc: the disk is full, so a later try may succeed */
};

/* keep: as for ckpt_prune. dir and lock must outlive the writer. lock NULL: none is checked. */
int ckpt_writer_create(const char *dir, int keep, struct ckpt_lock *lock, struct ckpt_writer **out, struct err *e);
/* true: a checkpoint was begun and its result was not fetched. */
bool ckpt_writer_busy(const struct ckpt_writer *w);
/* The bytes of the checkpoint that is being written. Valid until ckpt_writer_destroy. */
const struct tally *ckpt_writer_tally(const struct ckpt_writer *w);
/* Not while the writer is busy. */
void ckpt_writer_begin(struct ckpt_writer *w, const struct ckpt_marker *about, const struct ckpt_state *s);
/* true: the checkpoint is finished, and *out is the result. false: not within timeout_ms (0: do not wait), or none was
 * begun. */
bool ckpt_writer_wait(struct ckpt_writer *w, uint64_t timeout_ms, struct ckpt_written *out);
/* Waits timeout_ms at most for the checkpoint in progress. false: the thread stays behind and still uses the floats, so
 * they must stay and the process should end. NULL is fine. */
bool ckpt_writer_destroy(struct ckpt_writer *w, uint64_t timeout_ms);

#endif
