/* Advice at the start.
 *
 * One worker on one CPU is nobody's mistake. Several on fewer CPUs mostly are: a batch system has bound the agent to the
 * single CPU of its task, training runs at a tenth of its speed, and nothing says why. Slurm does that unless it is told
 * otherwise, and its own option is the remedy, so there it is named.
 *
 * Threads: torchrun sets OMP_NUM_THREADS=1 where several workers share a machine and prints a box of stars. The
 * setting is kept, because scripts were tuned with it; one line is enough to say so. */

#include "agent/advice.h"

#include <inttypes.h>
#include "agent/cluster/cluster.h"
#include "agent/workers/env.h"

bool advice_cpus(int64_t cpus, int64_t workers, char *const *env, struct buf *out) {
  if (workers < 2 || cpus >= workers) return false;
  buf_printf(out, "%" PRId64 " workers share %" PRId64 " CPU%s: this process may use no more", workers, cpus,
             cpus == 1 ? "" : "s");
  if (cluster_variable(env, "SLURM_JOB_ID") || cluster_variable(env, "SLURM_JOBID"))
    buf_printf(out,
               "; if the machine has more, ask Slurm for them: srun -c %" PRId64
               " (--cpus-per-task), or as many as suit %" PRId64 " workers",
               workers, workers);
  return true;
}

bool advice_threads(int64_t workers, char *const *env, struct buf *out) {
  if (!env_limits_threads(env, workers)) return false;
  buf_printf(out, "OMP_NUM_THREADS is not set: each of the %" PRId64 " workers gets 1; set it to tune",
             workers);
  return true;
}
