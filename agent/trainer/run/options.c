/* SPDX-License-Identifier: Apache-2.0 */
/* One table of options (common/opts/opts.h), the parsers of values that are words or shapes, and the rules between
 * options that a row cannot express. An option that nothing would read is refused, so a run is what its command line
 * says. */

#include "agent/trainer/run/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct trainer_opts, field)
#define FEW       1e-30 /* "more than 0" */
#define BELOW_ONE 0.9999999

static const char *const loss_names[] = {
    [COMPUTE_MSE] = "mse", [COMPUTE_RMSE] = "rmse", [COMPUTE_CROSS_ENTROPY] = "cross-entropy"};

const char *trainer_loss_name(enum compute_loss loss) {
  return loss_names[loss];
}

static const char *const precision_names[] = {
    [COMPUTE_FP32] = "fp32", [COMPUTE_TF32] = "tf32", [COMPUTE_BF16] = "bf16"};

const char *trainer_precision_name(enum compute_precision precision) {
  return precision_names[precision];
}

static int parse_word(const char *text, const char *const *names, size_t n, unsigned *out, struct err *e) {
  char all[128] = "";
  for (size_t i = 0; i < n; i++) {
    if (strcmp(text, names[i]) == 0) {
      *out = (unsigned)i;
      return 0;
    }
    size_t len = strlen(all);
    snprintf(all + len, sizeof all - len, "%s%s", i == 0 ? "" : i + 1 < n ? ", " : " or ", names[i]);
  }
  return err_set(e, -EINVAL, "must be %s", all);
}

/* parse_NAME: the field becomes the index of the word in `names`. */
#define WORD_PARSER(name, type, names)                                                                                 \
  static int parse_##name(const char *text, void *field, struct err *e) {                                              \
    unsigned k = 0;                                                                                                    \
    int rc = parse_word(text, names, sizeof names / sizeof *names, &k, e);                                             \
    if (rc == 0) *(type *)field = (type)k;                                                                             \
    return rc;                                                                                                         \
  }

static const char *const act_names[] = {[COMPUTE_LINEAR] = "none", [COMPUTE_RELU] = "relu", [COMPUTE_GELU] = "gelu"};
static const char *const device_names[] = {[DEVICE_AUTO] = "auto", [DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda"};
static const char *const optimizer_names[] = {
    [COMPUTE_SGD] = "sgd", [COMPUTE_ADAM] = "adam", [COMPUTE_ADAMW] = "adamw"};
static const char *const decay_names[] = {[OPTIM_CONSTANT] = "constant",
                                          [OPTIM_LINEAR] = "linear",
                                          [OPTIM_COSINE] = "cosine",
                                          [OPTIM_POLYNOMIAL] = "polynomial"};
static const char *const resume_names[] = {[RESUME_AUTO] = "auto", [RESUME_NONE] = "none"};
static const char *const recovery_names[] = {[RECOVERY_RESTART] = "restart", [RECOVERY_INPLACE] = "inplace"};
static const char *const graph_names[] = {[CUDA_GRAPH_AUTO] = "auto", [CUDA_GRAPH_ON] = "on", [CUDA_GRAPH_OFF] = "off"};

WORD_PARSER(activation, enum compute_act, act_names)
WORD_PARSER(loss, enum compute_loss, loss_names)
WORD_PARSER(device, enum device_kind, device_names)
WORD_PARSER(precision, enum compute_precision, precision_names)
WORD_PARSER(optimizer, enum compute_opt_kind, optimizer_names)
WORD_PARSER(decay, enum optim_decay, decay_names)
WORD_PARSER(resume, enum resume_mode, resume_names)
WORD_PARSER(recovery, enum recovery_mode, recovery_names)
WORD_PARSER(cuda_graph, enum cuda_graph_mode, graph_names)

static int parse_layers(const char *text, void *field, struct err *e) {
  return model_shape_parse(text, field, e);
}

static int parse_bench(const char *text, void *field, struct err *e) {
  static const char *const names[] = {"allreduce"};
  unsigned k = 0;
  int rc = parse_word(text, names, 1, &k, e);
  if (rc == 0) *(enum bench_kind *)field = BENCH_ALLREDUCE;
  return rc;
}

static int parse_every(const char *text, void *field, struct err *e) {
  struct trainer_every *every = field;
  size_t digits = strspn(text, "0123456789");
  int64_t ms = 0;
  *every = (struct trainer_every){0};
  if (digits && !text[digits] && digits <= 12) {
    every->steps = strtoull(text, NULL, 10);
    return 0;
  }
  if (!digits || !text[digits] || parse_duration_ms(text, &ms, NULL) || ms < 100)
    return err_set(e, -EINVAL, "neither a number of steps nor a time of at least 100ms: write 100, 30s or 5m");
  every->ms = (uint64_t)ms;
  return 0;
}

static const struct opt table[] = {
    {.group = "The model"},
    {.name = "layers",
     .type = OPT_CUSTOM,
     .offset = AT(shape),
     .def = "1000,100,1000",
     .label = "N,N[,N...]",
     .parse = parse_layers,
     .brief = "Widths of the layers: input, hidden layers, output.",
     .help = "Widths of a stack of linear layers: input, hidden layers, output."},
    {.name = "activation",
     .type = OPT_CUSTOM,
     .offset = AT(activation),
     .def = "relu",
     .label = "none|relu|gelu",
     .parse = parse_activation,
     .help = "Activation behind each hidden layer. none: the layers are linear. gelu: the tanh approximation, "
             "as PyTorch's nn.GELU(approximate=\"tanh\")."},
    {.name = "loss",
     .type = OPT_CUSTOM,
     .offset = AT(loss),
     .def = "mse",
     .label = "mse|rmse|cross-entropy",
     .parse = parse_loss,
     .brief = "mse and rmse: an autoencoder; cross-entropy: a classifier.",
     .help = "The loss. mse and rmse train an autoencoder, whose target is its input. cross-entropy trains a "
             "classifier with --labels. rmse is the root over each rank's share, averaged over the ranks by "
             "their samples, as under DDP. So it depends slightly on the number of ranks."},
    {.name = "init-weights",
     .type = OPT_STRING,
     .offset = AT(init_weights),
     .label = "FILE",
     .help = "Start with the weights in FILE instead of random ones. FILE holds little-endian floats, layer "
             "after layer, weight[out][in], then bias[out]."},
    {.name = "save-weights",
     .type = OPT_STRING,
     .offset = AT(save_weights),
     .label = "FILE",
     .help = "Write the final weights to FILE, in the format of --init-weights."},

    {.group = "The data"},
    {.name = "data",
     .type = OPT_STRING,
     .offset = AT(data),
     .def = "synthetic:10000",
     .label = "synthetic:N|FILE",
     .brief = "N synthetic vectors, or images in IDX format (MNIST).",
     .help = "Training data. synthetic:N is N vectors, and vector i is the linear ramp from 0 to i. FILE holds "
             "images in IDX format (that of MNIST), plain or gzip. A byte becomes value / 255."},
    {.name = "labels",
     .type = OPT_STRING,
     .offset = AT(labels),
     .label = "FILE",
     .brief = "Classes of the images.",
     .help = "Classes of the images, in IDX format. For --loss cross-entropy."},
    {.name = "scale",
     .type = OPT_FLOAT,
     .offset = AT(scale),
     .def = "1",
     .min = -1e30,
     .max = 1e30,
     .label = "X",
     .help = "Factor by which all values of the data are multiplied."},

    {.group = "Training"},
    {.name = "batch",
     .type = OPT_INT,
     .offset = AT(batch),
     .def = "64",
     .min = 1,
     .max = 1 << 24,
     .label = "N",
     .brief = "Samples per batch, over all ranks together.",
     .help = "Samples per batch, over all ranks together. So a run is the same with any number of ranks."},
    {.name = "update-freq",
     .type = OPT_INT,
     .offset = AT(update_freq),
     .def = "1",
     .min = 1,
     .max = 1 << 20,
     .label = "N",
     .help = "Batches per step. Their gradients are added up before the ranks sum them, which gives the "
             "gradient of the mean over all their samples. The last step of an epoch may have fewer batches."},
    {.name = "epochs",
     .type = OPT_INT,
     .offset = AT(epochs),
     .def = "0",
     .min = 0,
     .max = 1e9,
     .label = "N",
     .brief = "Passes over the data.",
     .help = "End after N passes over the data. 0: as many as --steps needs, or one without --steps."},
    {.name = "steps",
     .type = OPT_INT,
     .offset = AT(steps),
     .def = "0",
     .min = 0,
     .max = 1e12,
     .label = "N",
     .help = "End after N steps, counted from the first step of the run. 0: no limit."},
    {.name = "optimizer",
     .type = OPT_CUSTOM,
     .offset = AT(hyper.kind),
     .def = "adam",
     .label = "adam|adamw|sgd",
     .parse = parse_optimizer,
     .help = "The optimizer, as in PyTorch."},
    {.name = "lr",
     .type = OPT_FLOAT,
     .offset = AT(hyper.lr),
     .def = "0.001",
     .min = 0,
     .max = 1e6,
     .label = "X",
     .brief = "Learning rate.",
     .help = "Learning rate."},
    {.name = "warmup-steps",
     .type = OPT_INT,
     .offset = AT(hyper.warmup_steps),
     .def = "0",
     .min = 0,
     .max = 1e12,
     .label = "N",
     .help = "The learning rate rises linearly from 0 in the first step to --lr after N steps."},
    {.name = "lr-decay",
     .type = OPT_CUSTOM,
     .offset = AT(hyper.decay),
     .def = "constant",
     .label = "constant|linear|cosine|polynomial",
     .parse = parse_decay,
     .help = "How the learning rate falls from the end of the warm-up to the end of the run, as in the "
             "schedules of transformers. cosine is half a wave."},
    {.name = "lr-min",
     .type = OPT_FLOAT,
     .offset = AT(hyper.lr_min),
     .def = "0",
     .min = 0,
     .max = 1e6,
     .label = "X",
     .help = "Learning rate at the end of the decay."},
    {.name = "lr-power",
     .type = OPT_FLOAT,
     .offset = AT(hyper.lr_power),
     .def = "1",
     .min = 0.01,
     .max = 100,
     .label = "X",
     .help = "Exponent of --lr-decay polynomial."},
    {.name = "momentum",
     .type = OPT_FLOAT,
     .offset = AT(hyper.momentum),
     .def = "0",
     .min = 0,
     .max = BELOW_ONE,
     .label = "X",
     .help = "Momentum of --optimizer sgd."},
    {.name = "beta1",
     .type = OPT_FLOAT,
     .offset = AT(hyper.beta1),
     .def = "0.9",
     .min = 0,
     .max = BELOW_ONE,
     .label = "X",
     .help = "First beta of --optimizer adam and adamw."},
    {.name = "beta2",
     .type = OPT_FLOAT,
     .offset = AT(hyper.beta2),
     .def = "0.999",
     .min = 0,
     .max = BELOW_ONE,
     .label = "X",
     .help = "Second beta of --optimizer adam and adamw."},
    {.name = "eps",
     .type = OPT_FLOAT,
     .offset = AT(hyper.eps),
     .def = "1e-8",
     .min = FEW,
     .max = 1,
     .label = "X",
     .help = "Epsilon of --optimizer adam and adamw."},
    {.name = "weight-decay",
     .type = OPT_FLOAT,
     .offset = AT(hyper.weight_decay),
     .def = "0",
     .min = 0,
     .max = 1e6,
     .label = "X",
     .help = "Weight decay. sgd and adam add X times the weights to the gradients. adamw subtracts X times the "
             "learning rate times the weights."},
    {.name = "clip-norm",
     .type = OPT_FLOAT,
     .offset = AT(hyper.clip_norm),
     .def = "0",
     .min = 0,
     .max = 1e30,
     .label = "X",
     .help = "Gradients with a norm above X, over all weights, are scaled down to norm X. 0: never."},
    {.name = "seed",
     .type = OPT_INT,
     .offset = AT(seed),
     .def = "1",
     .min = 0,
     .max = 9e15,
     .label = "N",
     .help = "Seed of the initial weights and of the order of the samples."},
    {.name = "threads",
     .type = OPT_INT,
     .offset = AT(threads),
     .def = "0",
     .min = 0,
     .max = 1024,
     .label = "N",
     .help = "Threads of each worker for matrix products. 0: OPENBLAS_NUM_THREADS or OMP_NUM_THREADS decides, "
             "else one."},
    {.name = "recovery",
     .type = OPT_CUSTOM,
     .offset = AT(recovery),
     .def = "restart",
     .label = "restart|inplace",
     .parse = parse_recovery,
     .help = "Reaction of a rank to the loss of another one. restart: it exits, and all ranks restart from the last "
             "checkpoint. inplace: it keeps its process and its weights, waits for the next round, and "
             "continues from the furthest step of any rank. Only lost ranks restart. All ranks need the same "
             "value."},
    {.name = "cuda-graph",
     .type = OPT_CUSTOM,
     .offset = AT(cuda_graph),
     .def = "auto",
     .label = "auto|on|off",
     .parse = parse_cuda_graph,
     .help = "Launch steps as a CUDA graph. auto: a step is captured once, with its collectives, "
             "and launched from then on. If a rank cannot do that, a line names it, and no rank captures. on: "
             "that failure ends the run. off: never. A CPU has nothing to capture. The iterations of --bench "
             "are treated alike."},
    {.name = "max-skipped",
     .type = OPT_INT,
     .offset = AT(max_skipped),
     .def = "20",
     .min = 0,
     .max = 1e9,
     .label = "N",
     .help = "A step whose loss or gradients are not finite is skipped and logged. More than N in a row end the "
             "run."},
    {.name = "throttle",
     .type = OPT_FLOAT,
     .offset = AT(throttle),
     .def = "0",
     .min = 0,
     .max = 1e6,
     .label = "X",
     .help = "At most X steps per second, for demonstrations and drills. 0: no limit."},

    {.group = "Evaluation"},
    {.name = "eval-data",
     .type = OPT_STRING,
     .offset = AT(eval_data),
     .label = "synthetic:N|FILE",
     .help = "Report the loss on these samples, given as in --data, at the end and every --eval-every steps. "
             "With --eval-labels also report the accuracy. rmse is over the whole set."},
    {.name = "eval-labels",
     .type = OPT_STRING,
     .offset = AT(eval_labels),
     .label = "FILE",
     .help = "Classes of --eval-data, given as in --labels."},
    {.name = "eval-every",
     .type = OPT_INT,
     .offset = AT(eval_every),
     .def = "0",
     .min = 0,
     .max = 1e12,
     .label = "STEPS",
     .help = "Steps between evaluations. 0: only at the end."},

    {.group = "The device"},
    {.name = "device",
     .type = OPT_CUSTOM,
     .offset = AT(device),
     .def = "auto",
     .label = "auto|cpu|cuda",
     .parse = parse_device,
     .brief = "Where to compute.",
     .help = "Where to compute. cuda is an NVIDIA GPU, with NCCL among several ranks. auto: cuda if "
             "rdzv-cuda.so, a driver and a device are present, else cpu. All ranks must use the same."},
    {.name = "precision",
     .type = OPT_CUSTOM,
     .offset = AT(precision),
     .def = "fp32",
     .label = "fp32|tf32|bf16",
     .parse = parse_precision,
     .help = "Precision of matrix products. tf32 rounds operands to 10 bits, and equals fp32 on a CPU. bf16 "
             "keeps weights, sums, gradients of weights and the optimizer in fp32."},
    {.name = "deterministic",
     .type = OPT_FLAG,
     .offset = AT(deterministic),
     .help = "Give the same bytes on every run, on the same kind of device with the same libraries, at some "
             "cost. A CPU always does."},
    {.name = "cuda-module",
     .type = OPT_STRING,
     .offset = AT(cuda_module),
     .label = "FILE",
     .help = "The file rdzv-cuda.so, if it is neither beside this program nor in its library folder."},

    {.group = "Checkpoints"},
    {.name = "checkpoint-dir",
     .type = OPT_STRING,
     .offset = AT(checkpoint_dir),
     .label = "DIR",
     .brief = "Write checkpoints here, and resume from them.",
     .help = "Write checkpoints to DIR: at the end, on a request to stop, and every --checkpoint-every. Only "
             "rank 0 reads and writes it."},
    {.name = "checkpoint-every",
     .type = OPT_CUSTOM,
     .offset = AT(checkpoint_every),
     .def = "0",
     .label = "STEPS|TIME",
     .parse = parse_every,
     .brief = "Interval between checkpoints.",
     .help = "Interval between checkpoints: steps (100) or time (30s, 5m). They are written in the background, "
             "and the run only waits while its state is copied. 0: only at the end and on a request to stop."},
    {.name = "keep-checkpoints",
     .type = OPT_INT,
     .offset = AT(keep_checkpoints),
     .def = "3",
     .min = 1,
     .max = 1e6,
     .label = "N",
     .help = "Number of newest checkpoints to keep. Older ones are removed after a new one is safely on disk."},
    {.name = "resume",
     .type = OPT_CUSTOM,
     .offset = AT(resume),
     .def = "auto",
     .label = "auto|none",
     .parse = parse_resume,
     .help = "Where to start. auto: at the newest complete checkpoint in --checkpoint-dir, if there is one. "
             "none: at the first step; later rounds of the same job resume. A checkpoint of another job with "
             "other options, such as --lr or --batch, is refused."},
    {.name = "resume-from",
     .type = OPT_STRING,
     .offset = AT(resume_from),
     .label = "CHECKPOINT",
     .help = "Start from this checkpoint, a folder in some --checkpoint-dir, whatever its options were. "
             "Differences are logged. The same command later continues from its own checkpoints."},

    {.group = "Reports"},
    {.name = "report-every",
     .type = OPT_DURATION,
     .offset = AT(report_every_ms),
     .def = "10s",
     .min = 0,
     .max = 1e9,
     .label = "TIME",
     .help = "Interval at which rank 0 logs its progress, and what a long wait waits for. 0: never."},
    {.name = "metrics",
     .type = OPT_STRING,
     .offset = AT(metrics),
     .label = "FILE",
     .help = "A file to which rank 0 appends one JSON object per line: start, resume, first-step, step, eval, "
             "checkpoint, recover, stop, end; bench, bench_end."},
    {.name = "metrics-every",
     .type = OPT_INT,
     .offset = AT(metrics_every),
     .def = "1",
     .min = 1,
     .max = 1e9,
     .label = "STEPS",
     .help = "Steps between two step lines of --metrics."},

    {.group = "Ranks"},
    {.name = "coll-timeout",
     .type = OPT_DURATION,
     .offset = AT(coll_timeout_ms),
     .def = "60s",
     .min = 100,
     .max = 86400000,
     .label = "TIME",
     .help = "How long to wait for a rank that gives no sign of life. Then it is lost, and the waiting rank "
             "names it and exits."},
    {.name = "bucket-cap-mb",
     .type = OPT_FLOAT,
     .offset = AT(bucket_cap_mb),
     .def = "25",
     .min = 0.0001,
     .max = 1e6,
     .label = "MB",
     .help = "Size of the pieces in which the ranks sum gradients during the backward pass."},

    {.group = "Checking a cluster"},
    {.name = "bench",
     .type = OPT_CUSTOM,
     .offset = AT(bench.kind),
     .label = "allreduce",
     .parse = parse_bench,
     .brief = "Measure the all-reduce instead of training.",
     .help = "Train nothing. Measure all-reduces of growing sizes between the ranks, and check their sums, with "
             "the columns, definitions and short options of nccl-tests."},
    {.name = "bench-min",
     .alias = "b",
     .type = OPT_SIZE,
     .offset = AT(bench.min),
     .def = "8",
     .min = BENCH_ELEM,
     .max = BENCH_SIZE_MAX,
     .label = "SIZE",
     .help = "The first size, in bytes on each rank."},
    {.name = "bench-max",
     .alias = "e",
     .type = OPT_SIZE,
     .offset = AT(bench.max),
     .def = "128m",
     .min = BENCH_ELEM,
     .max = BENCH_SIZE_MAX,
     .label = "SIZE",
     .help = "The last size, at most."},
    {.name = "bench-factor",
     .alias = "f",
     .type = OPT_INT,
     .offset = AT(bench.factor),
     .def = "2",
     .min = 2,
     .max = 1 << 30,
     .label = "N",
     .help = "Each size is N times the one before."},
    {.name = "bench-iters",
     .alias = "n",
     .type = OPT_INT,
     .offset = AT(bench.iters),
     .def = "20",
     .min = 1,
     .max = 1e6,
     .label = "N",
     .help = "Timed all-reduces of each size."},
    {.name = "bench-warmup",
     .alias = "w",
     .type = OPT_INT,
     .offset = AT(bench.warmup),
     .def = "5",
     .min = 0,
     .max = 1e6,
     .label = "N",
     .help = "All-reduces of each size before the timed ones."},
    {.name = "bench-check",
     .alias = "c",
     .type = OPT_INT,
     .offset = AT(bench.check),
     .def = "1",
     .min = 0,
     .max = 1e6,
     .label = "N",
     .help = "All-reduces of each size whose sums are checked. 0: none."},

    {.group = "Help"},
    {.name = "help",
     .alias = "h",
     .type = OPT_FLAG,
     .offset = AT(help),
     .brief = "Print all options and exit.",
     .help = "Print all options and exit; -h prints those that are used most."},
    {.name = "version", .type = OPT_FLAG, .offset = AT(version), .help = "Print the version and exit."},
    {0},
};

static const struct opts_exit exits[] = {
#define X(name, code, help) {code, help},
    TRAINER_EXIT_LIST(X){0, NULL},
#undef X
};

const struct opts_spec trainer_opts_spec = {
    .program = "rdzv-trainer",
    .usage = "rdzv-trainer [OPTION]...                                        one process, by hand\n"
             "rdzv-agent --nnodes N --nproc N --endpoint HOST -- [OPTION]...   many, on many nodes",
    .intro = "Trains autoencoders and classifiers, data-parallel: every rank computes its share of each batch, and "
             "the ranks sum their gradients. rdzv-agent gives it its rank and world size. Started by hand it is a "
             "world of one.",
    .examples = "Examples:\n"
                "  rdzv-trainer --layers 1000,100,1000 --loss rmse --lr 1e-4 --beta1 0 --beta2 0.99 --epochs 5\n"
                "  rdzv-trainer --layers 784,128,10 --loss cross-entropy --data train-images-idx3-ubyte.gz \\\n"
                "      --labels train-labels-idx1-ubyte.gz\n"
                "  rdzv-agent --standalone --nproc 4 -- --checkpoint-dir ckpt --checkpoint-every 100\n"
                "  rdzv-agent --nnodes 2 --nproc 8 --endpoint node1 -- --bench allreduce -b 8 -e 1g -f 2\n",
    .exits = exits,
    .env_prefix = "RDZV_TRAINER_",
    .table = table,
};

/* Refuses options that nothing would read: those of the bench without it, those of training with it. Environment
 * variables may be meant for another run. */
static int check_mode(const struct trainer_opts *o, int argc, char *const *argv, char *const *env, struct err *e) {
  static const char *const training[] = {"The model", "The data", "Training", "Evaluation", "Checkpoints"};
  static const char *const both[] = {"threads", "cuda-graph"};
  bool trains = false, bench = o->bench.kind != BENCH_NONE;
  for (const struct opt *row = table; row->name || row->group; row++) {
    if (!row->name) {
      trains = false;
      for (size_t i = 0; i < sizeof training / sizeof *training; i++) trains |= strcmp(row->group, training[i]) == 0;
      continue;
    }
    bool shared = false, of_bench = strncmp(row->name, "bench-", 6) == 0;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) shared |= strcmp(row->name, both[i]) == 0;
    if (shared || !(bench ? trains : of_bench)) continue;
    if (opts_source(&trainer_opts_spec, argc, argv, env, row->name) != OPT_FROM_ARGV) continue;
    return bench ? err_set(e, -EINVAL, "--%s is for training; --bench trains nothing: leave it out", row->name)
                 : err_set(e, -EINVAL, "--%s is for --bench allreduce, which is not given", row->name);
  }
  if (o->bench.min > o->bench.max)
    return err_set(e, -EINVAL, "--bench-min %lld is more than --bench-max %lld", (long long)o->bench.min,
                   (long long)o->bench.max);
  return 0;
}

/* Options of adam are refused with sgd, which does not read them. */
static int check_betas(const struct trainer_opts *o, int argc, char *const *argv, char *const *env, struct err *e) {
  static const char *const names[] = {"beta1", "beta2", "eps"};
  for (size_t i = 0; i < sizeof names / sizeof *names && o->hyper.kind == COMPUTE_SGD; i++)
    if (opts_source(&trainer_opts_spec, argc, argv, env, names[i]) == OPT_FROM_ARGV)
      return err_set(e, -EINVAL, "--%s is for --optimizer adam and adamw; sgd has --momentum", names[i]);
  return 0;
}

/* Only hidden layers read it. */
static int check_activation(struct trainer_opts *o, int argc, char *const *argv, char *const *env, struct err *e) {
  if (o->shape.n > 2) return 0;
  o->activation = COMPUTE_LINEAR;
  if (opts_source(&trainer_opts_spec, argc, argv, env, "activation") != OPT_FROM_ARGV) return 0;
  return err_set(e, -EINVAL, "--activation is for hidden layers; --layers %u,%u has none: leave it out",
                 o->shape.width[0], o->shape.width[1]);
}

static int check_hyper(const struct optim_hyper *h, struct err *e) {
  if (h->lr <= 0) return err_set(e, -EINVAL, "--lr 0: nothing would be learned");
  if (h->momentum > 0 && h->kind != COMPUTE_SGD)
    return err_set(e, -EINVAL, "--momentum is for --optimizer sgd; adam and adamw have --beta1");
  if (h->lr_min > 0 && h->decay == OPTIM_CONSTANT)
    return err_set(e, -EINVAL, "--lr-min needs --lr-decay linear, cosine or polynomial");
  if (h->lr_min > h->lr)
    return err_set(e, -EINVAL, "--lr-min %g is more than --lr %g, where the decay begins", h->lr_min, h->lr);
  if (h->decay != OPTIM_POLYNOMIAL && (h->lr_power < 1 || h->lr_power > 1))
    return err_set(e, -EINVAL, "--lr-power needs --lr-decay polynomial");
  return 0;
}

static int check_evaluation(const struct trainer_opts *o, struct err *e) {
  bool classify = o->loss == COMPUTE_CROSS_ENTROPY;
  if (!o->eval_data && o->eval_labels) return err_set(e, -EINVAL, "--eval-labels needs --eval-data WHAT");
  if (!o->eval_data && o->eval_every) return err_set(e, -EINVAL, "--eval-every needs --eval-data WHAT");
  if (o->eval_data && classify && !o->eval_labels)
    return err_set(e, -EINVAL, "--eval-data needs --eval-labels FILE where --loss is cross-entropy");
  if (o->eval_labels && !classify)
    return err_set(e, -EINVAL, "--eval-labels are for --loss cross-entropy; this run has %s",
                   trainer_loss_name(o->loss));
  return 0;
}

static int check_training(const struct trainer_opts *o, struct err *e) {
  const struct model_shape *s = &o->shape;
  uint32_t in = s->width[0], out = s->width[s->n - 1];
  bool classify = o->loss == COMPUTE_CROSS_ENTROPY;
  if (classify && !o->labels) return err_set(e, -EINVAL, "--loss cross-entropy needs --labels FILE");
  if (!classify && o->labels)
    return err_set(e, -EINVAL, "--labels are for --loss cross-entropy; this run has %s", trainer_loss_name(o->loss));
  if (!classify && in != out)
    return err_set(e, -EINVAL, "--loss %s trains an autoencoder: --layers must end as it begins, with %u, not %u",
                   trainer_loss_name(o->loss), in, out);
  if ((o->checkpoint_every.steps || o->checkpoint_every.ms) && !o->checkpoint_dir)
    return err_set(e, -EINVAL, "--checkpoint-every needs --checkpoint-dir DIR");
  if (o->resume_from && o->resume == RESUME_NONE)
    return err_set(e, -EINVAL, "--resume-from and --resume none contradict each other; leave one of them out");
  int rc = check_evaluation(o, e);
  return rc ? rc : check_hyper(&o->hyper, e);
}

int trainer_opts_parse(struct trainer_opts *o, int argc, char *const *argv, char *const *env, struct err *e) {
  int rest = 0;
  bool dashes = false;
  *o = (struct trainer_opts){0};
  int rc = opts_parse(&trainer_opts_spec, argc, argv, env, o, &rest, &dashes, e);
  if (rc || o->help || o->version) return rc;
  if (rest < argc) return err_set(e, -EINVAL, "unexpected word '%.100s': rdzv-trainer takes only options", argv[rest]);
  if (o->steps == 0 && o->epochs == 0) o->epochs = 1;
  rc = check_mode(o, argc, argv, env, e);
  if (rc == 0) rc = check_betas(o, argc, argv, env, e);
  if (rc == 0) rc = check_activation(o, argc, argv, env, e);
  return rc || o->bench.kind != BENCH_NONE ? rc : check_training(o, e);
}

void trainer_opts_help(int argc, char *const *argv, struct buf *out) {
  (opts_wants_short_help(&trainer_opts_spec, argc, argv) ? opts_help_short : opts_help)(&trainer_opts_spec, 100, out);
}
