/* SPDX-License-Identifier: Apache-2.0 */
/* Advice at the start.
 *
 * Several workers on fewer CPUs are mostly a mistake: a batch system has bound the agent to the single CPU of its
 * task, training runs at a tenth of its speed, and nothing says why. Slurm does that by default, so its own option is
 * named as the remedy.
 *
 * Several workers on one GPU are mostly a mistake, too: fewer GPUs were granted than meant.
 *
 * torchrun sets OMP_NUM_THREADS=1 if several workers share a machine. The setting is kept, because scripts were tuned
 * with it; one line says so. */

#include "agent/advice.h"

#include <inttypes.h>
#include "agent/cluster/cluster.h"
#include "agent/workers/env.h"

bool advice_cpus(int64_t cpus, int64_t workers, char *const *env, struct buf *out) {
  if (workers < 2 || cpus >= workers) return false;
  buf_printf(out, "%" PRId64 " workers share %" PRId64 " CPU%s: this process may use no more", workers, cpus,
             cpus == 1 ? "" : "s");
  if (cluster_variable(env, "SLURM_JOB_ID") || cluster_variable(env, "SLURM_JOBID"))
    buf_printf(out, "; if the machine has more, ask Slurm for them: srun -c %" PRId64 " (--cpus-per-task) or more",
               workers);
  return true;
}

bool advice_gpus(int64_t gpus, int64_t workers, struct buf *out) {
  if (gpus == 0 || workers <= gpus) return false;
  buf_printf(out,
             "%" PRId64 " workers share %" PRId64 " GPU%s: this process sees no more; ask the scheduler for %" PRId64
             ", or start --nproc %" PRId64,
             workers, gpus, gpus == 1 ? "" : "s", workers, gpus);
  return true;
}

bool advice_threads(int64_t workers, char *const *env, struct buf *out) {
  if (!env_limits_threads(env, workers)) return false;
  buf_printf(out, "OMP_NUM_THREADS is not set: each of the %" PRId64 " workers gets 1; set it to tune", workers);
  return true;
}
