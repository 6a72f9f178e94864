/* SPDX-License-Identifier: Apache-2.0 */
/* One table of options (common/opts/opts.h), the parsers of shapes and intervals, and the rules between
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

const char *const trainer_precision_words[] = {[COMPUTE_FP32] = "fp32", [COMPUTE_BF16] = "bf16"};

static int parse_layers(const char *text, void *field, struct err *e) {
  return model_shape_parse(text, field, e);
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

/* Rows of the table: the option, its field, what --help shows for its value, the default, the limits; then the texts. */
#define ROW(kind, option, field, ...)                                                                                  \
  { .type = OPT_##kind, .name = (option), .offset = AT(field), __VA_ARGS__ }
#define NUMBER(kind, option, field, value, preset, least, most, ...)                                                   \
  ROW(kind, option, field, .label = (value), .def = (preset), .min = (least), .max = (most), __VA_ARGS__)
#define PARSED(option, field, parser, value, preset, ...)                                                              \
  ROW(CUSTOM, option, field, .parse = (parser), .label = (value), .def = (preset), __VA_ARGS__)
#define WORD(option, field, words, preset, ...) ROW(WORD, option, field, .label = (words), .def = (preset), __VA_ARGS__)
#define TEXT(option, field, value, preset, ...)                                                                        \
  ROW(STRING, option, field, .label = (value), .def = (preset), __VA_ARGS__)
#define FLAG(option, field, ...) ROW(FLAG, option, field, __VA_ARGS__)

static const struct opt table[] = {
    {.group = "The model"},
    PARSED("layers", shape, parse_layers, "N,N[,N...]", "1000,100,1000",
           .brief = "Widths of the layers: input, hidden layers, output.",
           .help = "Widths of a stack of linear layers: input, hidden layers, output. A ReLU is behind each hidden "
                   "layer."),
    WORD("loss", loss, "mse|rmse|cross-entropy", "mse",
         .brief = "mse and rmse: an autoencoder; cross-entropy: a classifier.",
         .help = "The loss. mse and rmse train an autoencoder, whose target is its input. cross-entropy trains a "
                 "classifier with --labels. rmse is the root over each rank's share, averaged over the ranks by "
                 "their samples, as under DDP. So it depends slightly on the number of ranks."),
    TEXT("init-weights", init_weights, "FILE", NULL,
         .help = "Start with the weights in FILE instead of random ones. FILE is of safetensors, with the names of "
                 "torch.nn.Sequential: 0.weight, 0.bias, 2.weight and so on, as F32. --save-weights, the "
                 "model.safetensors of a checkpoint, and PyTorch write such files."),
    TEXT("save-weights", save_weights, "FILE", NULL,
         .help = "Write the final weights to FILE, for --init-weights or PyTorch."),

    {.group = "The data"},
    TEXT("data", data, "synthetic:N|FILE", "synthetic:10000",
         .brief = "N synthetic vectors, or images in IDX format (MNIST).",
         .help = "Training data. synthetic:N is N vectors, and vector i is the linear ramp from 0 to i. FILE holds "
                 "images in IDX format (that of MNIST), plain or gzip. A byte becomes value / 255."),
    TEXT("labels", labels, "FILE", NULL, .brief = "Classes of the images.",
         .help = "Classes of the images, in IDX format. For --loss cross-entropy."),
    NUMBER(FLOAT, "scale", scale, "X", "1", -1e30, 1e30,
           .help = "Factor by which all values of the data are multiplied."),

    {.group = "Training"},
    NUMBER(INT, "batch", batch, "N", "64", 1, 1 << 24, .brief = "Samples per batch, over all ranks together.",
           .help = "Samples per batch, over all ranks together. So a run is the same with any number of ranks."),
    NUMBER(INT, "epochs", epochs, "N", "0", 0, 1e9, .brief = "Passes over the data.",
           .help = "End after N passes over the data. 0: as many as --steps needs, or one without --steps."),
    NUMBER(INT, "steps", steps, "N", "0", 0, 1e12,
           .help = "End after N steps, counted from the first step of the run. 0: no limit."),
    NUMBER(FLOAT, "lr", opt.lr, "X", "0.001", 0, 1e6, .brief = "Learning rate.",
           .help = "Learning rate of Adam, the optimizer."),
    NUMBER(FLOAT, "beta1", opt.beta1, "X", "0.9", 0, BELOW_ONE, .help = "First beta of Adam."),
    NUMBER(FLOAT, "beta2", opt.beta2, "X", "0.999", 0, BELOW_ONE, .help = "Second beta of Adam."),
    NUMBER(FLOAT, "eps", opt.eps, "X", "1e-8", FEW, 1, .help = "Epsilon of Adam."),
    NUMBER(INT, "seed", seed, "N", "1", 0, 9e15,
           .help = "Seed of the initial weights and of the order of the samples."),
    WORD("recovery", recovery, "restart|inplace", "restart",
         .help =
             "Reaction of a rank to the loss of another one. restart: it exits, and all ranks restart from the last "
             "checkpoint. inplace: it keeps its process and its weights, waits for the next round, and "
             "continues from the furthest step of any rank. Only lost ranks restart. All ranks need the same "
             "value."),
    WORD("cuda-graph", cuda_graph, "auto|on|off", "auto",
         .help = "Launch steps as a CUDA graph. auto: a step is captured once, with its collectives, "
                 "and launched from then on. If a rank cannot do that, a line names it, and no rank captures. on: "
                 "that failure ends the run. off: never. A CPU has nothing to capture. The iterations of --bench "
                 "are treated alike."),
    NUMBER(INT, "max-skipped", max_skipped, "N", "20", 0, 1e9,
           .help = "A step whose loss or gradients are not finite is skipped and logged. More than N in a row end the "
                   "run."),
    NUMBER(INT, "verify-every", verify_every, "N", "0", 0, 1e9, .brief = "Look for silent corruption every N steps.",
           .help = "Every N steps, look for silent corruption. All ranks compare checksums of weights and optimizer "
                   "state, also before a checkpoint. Each rank repeats another rank's gradients and compares their "
                   "bits; on GPUs that needs --deterministic. The wrong rank exits with 16. 0: never. All ranks need "
                   "the same value."),
    NUMBER(FLOAT, "throttle", throttle, "X", "0", 0, 1e6,
           .help = "At most X steps per second, for demonstrations and drills. 0: no limit."),

    {.group = "The device"},
    WORD("device", device, "auto|cpu|cuda", "auto", .brief = "Where to compute.",
         .help = "Where to compute. cuda is an NVIDIA GPU, with NCCL among several ranks. auto: cuda if "
                 "rdzv-cuda.so, a driver and a device are present, else cpu. All ranks must use the same."),
    WORD("precision", precision, "fp32|bf16", "fp32",
         .help = "Precision of matrix products. bf16 "
                 "keeps weights, sums, gradients of weights and the optimizer in fp32."),
    FLAG("deterministic", deterministic,
         .help = "Give the same bytes on every run, on the same kind of device with the same libraries, at some "
                 "cost. A CPU always does."),
    TEXT("cuda-module", cuda_module, "FILE", NULL,
         .help = "The file rdzv-cuda.so, if it is neither beside this program nor in its library folder."),

    {.group = "Checkpoints"},
    TEXT("checkpoint-dir", checkpoint_dir, "DIR", NULL, .brief = "Write checkpoints here, and resume from them.",
         .help = "Write checkpoints to DIR: at the end, on a request to stop, and every --checkpoint-every. Only "
                 "rank 0 reads and writes it."),
    PARSED("checkpoint-every", checkpoint_every, parse_every, "STEPS|TIME", "0",
           .brief = "Interval between checkpoints.",
           .help = "Interval between checkpoints: steps (100) or time (30s, 5m). They are written in the background, "
                   "and the run only waits while its state is copied. 0: only at the end and on a request to stop."),
    NUMBER(INT, "keep-checkpoints", keep_checkpoints, "N", "3", 1, 1e6,
           .help = "Number of newest checkpoints to keep. Older ones are removed after a new one is safely on disk."),
    WORD("resume", resume, "auto|none", "auto",
         .help = "Where to start. auto: at the newest complete checkpoint in --checkpoint-dir, if there is one. "
                 "none: at the first step; later rounds of the same job resume. A checkpoint of another job with "
                 "other options, such as --lr or --batch, is refused."),

    {.group = "Reports"},
    NUMBER(DURATION, "report-every", report_every_ms, "TIME", "10s", 0, 1e9,
           .help = "Interval at which rank 0 logs its progress, and what a long wait waits for. 0: never."),
    TEXT("metrics", metrics, "FILE", NULL,
         .help = "A file to which rank 0 appends one JSON object per line: start, resume, first-step, step, "
                 "checkpoint, recover, verify, stop, end; bench, bench_end."),
    NUMBER(INT, "metrics-every", metrics_every, "STEPS", "1", 1, 1e9,
           .help = "Steps between two step lines of --metrics."),

    {.group = "Ranks"},
    NUMBER(DURATION, "coll-timeout", coll_timeout_ms, "TIME", "60s", 100, 86400000,
           .help = "How long to wait for a rank that gives no sign of life. Then it is lost, and the waiting rank "
                   "names it and exits."),
    NUMBER(FLOAT, "bucket-cap-mb", bucket_cap_mb, "MB", "25", 0.0001, 1e6,
           .help = "Size of the pieces in which the ranks sum gradients during the backward pass."),

    {.group = "Checking a cluster"},
    WORD("bench", bench.kind, "allreduce", NULL, .min = BENCH_ALLREDUCE,
         .brief = "Measure the all-reduce instead of training.",
         .help = "Train nothing. Measure all-reduces of growing sizes between the ranks, and check their sums, with "
                 "the columns, definitions and short options of nccl-tests."),
    NUMBER(SIZE, "bench-min", bench.min, "SIZE", "8", BENCH_ELEM, BENCH_SIZE_MAX, .alias = "b",
           .help = "The first size, in bytes on each rank."),
    NUMBER(SIZE, "bench-max", bench.max, "SIZE", "128m", BENCH_ELEM, BENCH_SIZE_MAX, .alias = "e",
           .help = "The last size, at most."),
    NUMBER(INT, "bench-factor", bench.factor, "N", "2", 2, 1 << 30, .alias = "f",
           .help = "Each size is N times the one before."),
    NUMBER(INT, "bench-iters", bench.iters, "N", "20", 1, 1e6, .alias = "n", .help = "Timed all-reduces of each size."),
    NUMBER(INT, "bench-warmup", bench.warmup, "N", "5", 0, 1e6, .alias = "w",
           .help = "All-reduces of each size before the timed ones."),
    NUMBER(INT, "bench-check", bench.check, "N", "1", 0, 1e6, .alias = "c",
           .help = "All-reduces of each size whose sums are checked. 0: none."),

    {.group = "Help"},
    FLAG("help", help, .alias = "h", .brief = "Print all options and exit.",
         .help = "Print all options and exit; -h prints those that are used most."),
    FLAG("version", version, .help = "Print the version and exit."),
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

/* Refuses options that nothing would read: those of the bench without it, and those of training with it. Environment
 * variables may be meant for another run. */
static int check_unread(struct trainer_opts *o, const struct opts_parsed *p, struct err *e) {
  static const char *const training[] = {"The model", "The data", "Training", "Checkpoints"};
  bool trains = false, bench = o->bench.kind != BENCH_NONE;
  for (const struct opt *row = table; row->name || row->group; row++) {
    if (!row->name) {
      trains = false;
      for (size_t i = 0; i < sizeof training / sizeof *training; i++) trains |= strcmp(row->group, training[i]) == 0;
      continue;
    }
    bool shared = strcmp(row->name, "cuda-graph") == 0, of_bench = strncmp(row->name, "bench-", 6) == 0;
    if (shared || !(bench ? trains : of_bench)) continue;
    if (opts_origin(p, row->name)->source != OPT_FROM_ARGV) continue;
    return bench ? err_set(e, -EINVAL, "--%s is for training; --bench trains nothing: leave it out", row->name)
                 : err_set(e, -EINVAL, "--%s is for --bench allreduce, which is not given", row->name);
  }
  if (o->bench.min > o->bench.max)
    return err_set(e, -EINVAL, "--bench-min %lld is more than --bench-max %lld", (long long)o->bench.min,
                   (long long)o->bench.max);
  return 0;
}

static int check_training(const struct trainer_opts *o, struct err *e) {
  const struct model_shape *s = &o->shape;
  uint32_t in = s->width[0], out = s->width[s->n - 1];
  bool classify = o->loss == COMPUTE_CROSS_ENTROPY;
  if (classify && !o->labels) return err_set(e, -EINVAL, "--loss cross-entropy needs --labels FILE");
  if (!classify && o->labels)
    return err_set(e, -EINVAL, "--labels are for --loss cross-entropy; this run has %s", model_loss_words[o->loss]);
  if (!classify && in != out)
    return err_set(e, -EINVAL, "--loss %s trains an autoencoder: --layers must end as it begins, with %u, not %u",
                   model_loss_words[o->loss], in, out);
  if ((o->checkpoint_every.steps || o->checkpoint_every.ms) && !o->checkpoint_dir)
    return err_set(e, -EINVAL, "--checkpoint-every needs --checkpoint-dir DIR");

  if (o->opt.lr <= 0) return err_set(e, -EINVAL, "--lr 0: nothing would be learned");
  return 0;
}

int trainer_opts_parse(struct trainer_opts *o, int argc, char *const *argv, char *const *env, struct err *e) {
  struct opts_parsed p;
  *o = (struct trainer_opts){0};
  int rc = opts_parse(&trainer_opts_spec, argc, argv, env, o, &p, e);
  if (rc || o->help || o->version) return rc;
  if (p.rest < argc)
    return err_set(e, -EINVAL, "unexpected word '%.100s': rdzv-trainer takes only options", argv[p.rest]);
  if (o->steps == 0 && o->epochs == 0) o->epochs = 1;
  rc = check_unread(o, &p, e);
  return rc || o->bench.kind != BENCH_NONE ? rc : check_training(o, e);
}
