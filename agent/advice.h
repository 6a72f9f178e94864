/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_ADVICE_H
#define AGENT_ADVICE_H

/* Sentences about a start that works, but probably not as intended. Pure. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"

/* Fewer CPUs than workers; under Slurm with the remedy. False: no advice. */
bool advice_cpus(int64_t cpus, int64_t workers, char *const *env, struct buf *out);
/* Fewer GPUs than workers; gpus: those that a worker sees, 0: none, or not known. False: no advice. */
bool advice_gpus(int64_t gpus, int64_t workers, struct buf *out);
/* Workers get one thread each because OMP_NUM_THREADS is not set (env_limits_threads). */
bool advice_threads(int64_t workers, char *const *env, struct buf *out);

#endif
