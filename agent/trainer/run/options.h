/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RUN_OPTIONS_H
#define AGENT_TRAINER_RUN_OPTIONS_H

/* Options and exit codes of rdzv-trainer. */

#include "agent/trainer/model/model.h"
#include "agent/trainer/run/bench_table.h"
#include "common/opts/opts.h"

/* One list for the enum, the help text and the guide. A job that fails because of a worker exits with the worker's
 * code, so these numbers differ from those of common/exit_codes.h, or mean the same. */
#define TRAINER_EXIT_LIST(X)                                                                                           \
  X(DONE, 0, "trained to the end")                                                                                     \
  X(ELSEWHERE, 16, "--verify-every: this rank's result is wrong, or may be; run it on another host")                   \
  X(USAGE, 64, "bad option, value or environment variable")                                                            \
  X(DATA, 65, "data or a checkpoint cannot be read or does not fit, or --checkpoint-dir is in use")                    \
  X(FILES, 66, "a checkpoint, a weights or a metrics file cannot be read or written")                                  \
  X(SYSTEM, 71, "this machine lacks something: memory, a port, a device")                                              \
  X(STOPPED, 75, "stopped on request (SIGTERM, or by the agent); run it again to continue")                            \
  X(LOST, 82, "lost contact with another rank (named), or with the agent")                                             \
  X(DIVERGED, 83, "the loss or the gradients are not finite")                                                          \
  X(WRONG, 84, "--bench: sums over ranks were wrong")

#define X(name, code, help) TRAINER_##name = (code),
enum trainer_exit { TRAINER_EXIT_LIST(X) };
#undef X

enum resume_mode { RESUME_AUTO, RESUME_NONE };
enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };
enum recovery_mode { RECOVERY_RESTART, RECOVERY_INPLACE };
enum cuda_graph_mode { CUDA_GRAPH_AUTO, CUDA_GRAPH_ON, CUDA_GRAPH_OFF };

/* "100": steps; "30s", "5m": time. At most one of them is set. */
struct trainer_every {
  uint64_t steps, ms;
};

struct trainer_opts {
  bool help, version;
  struct model_shape shape;
  enum compute_loss loss;
  const char *init_weights, *save_weights;
  const char *data, *labels;
  double scale;
  int64_t batch, epochs, steps, seed, max_skipped, verify_every;
  enum device_kind device;
  enum compute_precision precision;
  bool deterministic;
  const char *cuda_module;
  enum cuda_graph_mode cuda_graph;
  enum recovery_mode recovery;
  struct compute_opt_desc opt; /* without n */
  const char *checkpoint_dir;
  struct trainer_every checkpoint_every;
  int64_t keep_checkpoints;
  enum resume_mode resume;
  const char *metrics;
  int64_t metrics_every, report_every_ms;
  double throttle;
  int64_t coll_timeout_ms;
  double bucket_cap_mb;
  struct bench_opts bench;
};

extern const struct opts_spec trainer_opts_spec;

/* -EINVAL and a message, also for options that contradict each other. */
int trainer_opts_parse(struct trainer_opts *o, int argc, char *const *argv, char *const *env, struct err *e);
extern const char *const trainer_precision_words[2];

#endif
