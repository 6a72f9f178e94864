/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_CHECKPOINT_CLAIM_H
#define AGENT_TRAINER_CHECKPOINT_CLAIM_H

/* Which run may write to a checkpoint folder, and which checkpoint a run may resume from. Pure.
 *
 * A job is known by its name, the agent's run id. A trainer without an agent has no name and is a job of its own.
 * Within a job the fencing token (incarnation, round) tells which round is newer, and the newer one takes the folder
 * from the older one.
 *
 * Checkpoints have an order of their own, the generation. A run that opens the folder takes the generation of its own
 * incarnation if that is the highest there, else the next higher one. So no clock decides which checkpoint is newer,
 * and what a run writes is newer than all that it found. */

#include "agent/trainer/checkpoint/codec.h"

/* The process that holds a folder, and its token. */
struct ckpt_owner {
  char job[CKPT_JOB_MAX];                 /* as in struct ckpt_marker */
  char incarnation[CKPT_INCARNATION_MAX]; /* CKPT_ALONE: no agent */
  uint32_t round, generation;
  char host[64], boot[40]; /* words; boot: the id of the kernel's boot */
  uint64_t pid_space, pid, started;
};

#define CKPT_ALONE "alone"

enum { CKPT_OWNER_MAX = 512 };
/* One line of text. parse accepts exactly what format writes. */
void ckpt_owner_format(const struct ckpt_owner *o, char out[CKPT_OWNER_MAX]);
bool ckpt_owner_parse(const char *text, struct ckpt_owner *out);
/* "job NAME, round 3, pid 4711 on HOST". */
void ckpt_owner_describe(const struct ckpt_owner *o, char *out, size_t size);

/* Trainers without an agent are jobs of their own. */
bool ckpt_owner_same_job(const struct ckpt_owner *a, const struct ckpt_owner *b);

enum ckpt_life {
  CKPT_GONE,    /* its process has ended, or it gave no sign of life for too long */
  CKPT_UNKNOWN, /* it is on another host, and may have ended since its last sign of life */
  CKPT_ALIVE,
};

enum ckpt_claim {
  CKPT_TAKE,   /* the folder belongs to me now */
  CKPT_WAIT,   /* wait until the holder releases it, is known to be gone, or is known to be alive */
  CKPT_BUSY,   /* another job writes there */
  CKPT_FENCED, /* a newer round of the same job writes there */
};

/* held: NULL if there is no holder. */
enum ckpt_claim ckpt_claim_decide(const struct ckpt_owner *me, const struct ckpt_owner *held, enum ckpt_life life);
/* The generation of a run that opens a folder with these n checkpoints. held: the last holder; NULL: none. */
uint32_t ckpt_claim_generation(const struct ckpt_owner *me, const struct ckpt_owner *held, const struct ckpt_id *v,
                               size_t n);

/* Whether a run of kind `want`, of job `job`, may resume from the checkpoint with marker `have` and kind `had`. 0: yes.
 * 1: yes, and `e` lists the options that differ. -EINVAL: no. -EPERM: only on request. `e` has the reason. */
int ckpt_fit(const struct ckpt_marker *have, const struct ckpt_kind *had, const char *job, const struct ckpt_kind *want,
             struct err *e);

/* Decides which of n checkpoints, newest first, are removed. whole[i] is the marker, or NULL without one. A run removes
 * checkpoints of its own origin beyond the `keep` newest, and what older rounds did not finish. Sets each goes[i]. */
void ckpt_claim_prune(const struct ckpt_id *v, const struct ckpt_marker *const *whole, size_t n,
                      const struct ckpt_marker *mine, int keep, bool *goes);

#endif
