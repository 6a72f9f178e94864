/* One table, as everywhere in rdzv (common/opts.h), and the rules between options that a row cannot say. */

#include "agent/trainer/options_value.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define AT(field) offsetof(struct trainer_opts, field)
#define FEW       1e-30 /* "more than 0" */
#define BELOW_ONE 0.9999999

static const struct opt table[] = {
    {.group = "The model"},
    {.name = "layers",
     .type = OPT_CUSTOM,
     .offset = AT(shape),
     .def = "1000,100,1000",
     .label = "N,N[,N...]",
     .parse = option_parse_layers,
     .help = "Widths of a stack of linear layers with ReLU between them: what goes in, hidden layers, what "
             "comes out."},
    {.name = "loss",
     .type = OPT_CUSTOM,
     .offset = AT(loss),
     .def = "mse",
     .label = "mse|rmse|cross-entropy",
     .parse = option_parse_loss,
     .help = "What is made small. mse or rmse: an autoencoder, whose output should be its input. "
             "cross-entropy: a classifier of --labels. rmse is the root over each rank's share, averaged "
             "over ranks by their samples, as under DDP; so it depends a little on the number of ranks."},
    {.name = "init-weights",
     .type = OPT_STRING,
     .offset = AT(init_weights),
     .label = "FILE",
     .help = "Begin with these weights instead of random ones: little-endian floats, layer after layer, "
             "weight[out][in], then bias[out]."},
    {.name = "save-weights",
     .type = OPT_STRING,
     .offset = AT(save_weights),
     .label = "FILE",
     .help = "Write the final weights there, in the same format."},

    {.group = "The data"},
    {.name = "data",
     .type = OPT_STRING,
     .offset = AT(data),
     .def = "synthetic:10000",
     .label = "synthetic:N|FILE",
     .help = "What to train on. synthetic: N vectors, of which number i is the linear ramp from 0 to i. "
             "FILE: images in IDX format (that of MNIST), gzip or not: bytes become value / 255."},
    {.name = "labels",
     .type = OPT_STRING,
     .offset = AT(labels),
     .label = "FILE",
     .help = "The images' classes, for cross-entropy, in IDX format."},
    {.name = "scale",
     .type = OPT_FLOAT,
     .offset = AT(scale),
     .def = "1",
     .min = -1e30,
     .max = 1e30,
     .label = "X",
     .help = "All values of the data times X."},

    {.group = "Training"},
    {.name = "batch",
     .type = OPT_INT,
     .offset = AT(batch),
     .def = "64",
     .min = 1,
     .max = 1 << 24,
     .label = "N",
     .help = "Samples per batch, over all ranks together: the same run for any number of ranks."},
    {.name = "update-freq",
     .type = OPT_INT,
     .offset = AT(update_freq),
     .def = "1",
     .min = 1,
     .max = 1 << 20,
     .label = "N",
     .help = "A step is made of N batches, whose gradients are added up before the ranks sum them: the "
             "gradient of the mean over all of "
             "their samples. The last step of an epoch may have fewer batches."},
    {.name = "epochs",
     .type = OPT_INT,
     .offset = AT(epochs),
     .def = "0",
     .min = 0,
     .max = 1e9,
     .label = "N",
     .help =
         "End after N passes over the data. 0: as many as --steps needs; one if that is not given either."},
    {.name = "steps",
     .type = OPT_INT,
     .offset = AT(steps),
     .def = "0",
     .min = 0,
     .max = 1e12,
     .label = "N",
     .help = "End after N steps, counted from the very first. 0: no limit."},
    {.name = "optimizer",
     .type = OPT_CUSTOM,
     .offset = AT(hyper.kind),
     .def = "adam",
     .label = "adam|adamw|sgd",
     .parse = option_parse_optimizer,
     .help = "The optimizer, as PyTorch has it."},
    {.name = "lr",
     .type = OPT_FLOAT,
     .offset = AT(hyper.lr),
     .def = "0.001",
     .min = 0,
     .max = 1e6,
     .label = "X",
     .help = "Learning rate."},
    {.name = "warmup-steps",
     .type = OPT_INT,
     .offset = AT(hyper.warmup_steps),
     .def = "0",
     .min = 0,
     .max = 1e12,
     .label = "N",
     .help = "The learning rate goes up in a line from 0 in the first step to --lr after N steps."},
    {.name = "lr-decay",
     .type = OPT_CUSTOM,
     .offset = AT(hyper.decay),
     .def = "constant",
     .label = "constant|linear|cosine|polynomial",
     .parse = option_parse_decay,
     .help = "How the learning rate falls from the end of the warm-up to the end of the run, as the "
             "schedules of transformers have it; cosine is half a wave."},
    {.name = "lr-min",
     .type = OPT_FLOAT,
     .offset = AT(hyper.lr_min),
     .def = "0",
     .min = 0,
     .max = 1e6,
     .label = "X",
     .help = "Learning rate where the decay ends."},
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
     .help = "Weight decay. sgd and adam: X times the weights is added to the gradients. adamw: X times the "
             "learning rate is taken from the weights."},
    {.name = "clip-norm",
     .type = OPT_FLOAT,
     .offset = AT(hyper.clip_norm),
     .def = "0",
     .min = 0,
     .max = 1e30,
     .label = "X",
     .help = "Gradients whose norm over all weights is more than X are shortened to X. 0: never."},
    {.name = "seed",
     .type = OPT_INT,
     .offset = AT(seed),
     .def = "1",
     .min = 0,
     .max = 9e15,
     .label = "N",
     .help = "Seed of the first weights and of the order of the samples."},
    {.name = "threads",
     .type = OPT_INT,
     .offset = AT(threads),
     .def = "0",
     .min = 0,
     .max = 1024,
     .label = "N",
     .help = "Threads of each worker for matrix products. 0: as OPENBLAS_NUM_THREADS or OMP_NUM_THREADS say, "
             "else one."},
    {.name = "recovery",
     .type = OPT_CUSTOM,
     .offset = AT(recovery),
     .def = "restart",
     .label = "restart|inplace",
     .parse = option_parse_recovery,
     .help = "What to do when another rank is gone. restart: this one ends, and all are started anew, from "
             "the last checkpoint. inplace: it keeps its process and its weights, waits for the next round, "
             "and goes on from the furthest step that any rank has; only who died is started anew. The same "
             "on all ranks."},
    {.name = "cuda-graph",
     .type = OPT_CUSTOM,
     .offset = AT(cuda_graph),
     .def = "auto",
     .label = "auto|on|off",
     .parse = option_parse_cuda_graph,
     .help = "Whether steps are launched as a CUDA graph. auto: a step is captured once, with its "
             "collectives, and launched from then on; where that fails steps go on without, and a line says "
             "so. on: that ends the run. off: never. On a CPU there is nothing to capture. The iterations of "
             "--bench likewise."},
    {.name = "max-skipped",
     .type = OPT_INT,
     .offset = AT(max_skipped),
     .def = "20",
     .min = 0,
     .max = 1e9,
     .label = "N",
     .help = "A step whose loss or gradients are not finite is skipped and told; more than N in a row end "
             "the run. "
             "(With fp16 up to 16 may be skipped at the beginning, while the loss scale falls from 65536.)"},
    {.name = "throttle",
     .type = OPT_FLOAT,
     .offset = AT(throttle),
     .def = "0",
     .min = 0,
     .max = 1e6,
     .label = "X",
     .help = "At most X steps a second, for demonstrations and drills. 0: no limit."},

    {.group = "Evaluation"},
    {.name = "eval-data",
     .type = OPT_STRING,
     .offset = AT(eval_data),
     .label = "synthetic:N|FILE",
     .help = "Tell the loss on these samples, as --data, at the end and as --eval-every says; with "
             "--eval-labels the accuracy too. rmse is "
             "told over the whole set."},
    {.name = "eval-labels",
     .type = OPT_STRING,
     .offset = AT(eval_labels),
     .label = "FILE",
     .help = "Classes of --eval-data, as --labels."},
    {.name = "eval-every",
     .type = OPT_INT,
     .offset = AT(eval_every),
     .def = "0",
     .min = 0,
     .max = 1e12,
     .label = "STEPS",
     .help = "How often to evaluate. 0: only at the end."},

    {.group = "The device"},
    {.name = "device",
     .type = OPT_CUSTOM,
     .offset = AT(device),
     .def = "auto",
     .label = "auto|cpu|cuda",
     .parse = option_parse_device,
     .help = "Where to compute. cpu, or cuda: a GPU of NVIDIA's, and NCCL among several ranks. auto: cuda "
             "where rdzv-cuda.so, a driver and a device are there. All ranks use the same."},
    {.name = "precision",
     .type = OPT_CUSTOM,
     .offset = AT(precision),
     .def = "fp32",
     .label = "fp32|tf32|bf16|fp16",
     .parse = option_parse_precision,
     .help = "Precision of matrix products. fp32; tf32, operands of 10 bits, on a CPU as fp32; bf16 and "
             "fp16, with weights, sums, gradients of weights and the optimizer in fp32, fp16 with a loss "
             "scale that finds itself."},
    {.name = "deterministic",
     .type = OPT_FLAG,
     .offset = AT(deterministic),
     .help = "The same bytes on every run, on the same kind of device with the same libraries, at some cost. "
             "A CPU "
             "always does so."},
    {.name = "cuda-module",
     .type = OPT_STRING,
     .offset = AT(cuda_module),
     .label = "FILE",
     .help = "rdzv-cuda.so, where it is not beside this program or in its library folder."},

    {.group = "Checkpoints"},
    {.name = "checkpoint-dir",
     .type = OPT_STRING,
     .offset = AT(checkpoint_dir),
     .label = "DIR",
     .help = "Write checkpoints there: at the end, when told to stop, and as --checkpoint-every says. Only "
             "rank 0 reads and writes it."},
    {.name = "checkpoint-every",
     .type = OPT_CUSTOM,
     .offset = AT(checkpoint_every),
     .def = "0",
     .label = "STEPS|TIME",
     .parse = option_parse_every,
     .help =
         "How often to write one: after so many steps (100), or after a time (30s, 5m). It is written in the "
         "background; the run waits only while its state is copied. 0: only at the end and when told to."},
    {.name = "keep-checkpoints",
     .type = OPT_INT,
     .offset = AT(keep_checkpoints),
     .def = "3",
     .min = 1,
     .max = 1e6,
     .label = "N",
     .help = "How many of the newest checkpoints are kept; older ones are removed once a new one is safely "
             "there."},
    {.name = "resume",
     .type = OPT_CUSTOM,
     .offset = AT(resume),
     .def = "auto",
     .label = "auto|none",
     .parse = option_parse_resume,
     .help = "Where to begin. auto: at the newest whole checkpoint in --checkpoint-dir, if there is one. "
             "none: at the first step."},

    {.group = "Reports"},
    {.name = "report-every",
     .type = OPT_DURATION,
     .offset = AT(report_every_ms),
     .def = "10s",
     .min = 0,
     .max = 1e9,
     .label = "TIME",
     .help = "How often rank 0 prints how far it is. 0: never."},
    {.name = "metrics",
     .type = OPT_STRING,
     .offset = AT(metrics),
     .label = "FILE",
     .help = "A file to which rank 0 appends one JSON object per line: start, resume, first-step, step, "
             "eval, checkpoint, recover, stop, end; bench, bench_end."},
    {.name = "metrics-every",
     .type = OPT_INT,
     .offset = AT(metrics_every),
     .def = "1",
     .min = 1,
     .max = 1e9,
     .label = "STEPS",
     .help = "A line of --metrics for every STEPS steps."},

    {.group = "Ranks"},
    {.name = "coll-timeout",
     .type = OPT_DURATION,
     .offset = AT(coll_timeout_ms),
     .def = "60s",
     .min = 100,
     .max = 86400000,
     .label = "TIME",
     .help = "How long to wait for a rank that gives no sign of life; then it is lost, and this one names it "
             "and ends."},
    {.name = "stop-wait",
     .type = OPT_DURATION,
     .offset = AT(stop_wait_ms),
     .def = "3s",
     .min = 0,
     .max = 86400000,
     .label = "TIME",
     .help = "How long to wait for the others to come to the end of the step once SIGTERM has come."},
    {.name = "bucket-cap-mb",
     .type = OPT_FLOAT,
     .offset = AT(bucket_cap_mb),
     .def = "25",
     .min = 0.0001,
     .max = 1e6,
     .label = "MB",
     .help = "Gradients are summed over ranks in pieces of this size, while the backward pass goes on."},

    {.group = "Checking a cluster"},
    {.name = "bench",
     .type = OPT_CUSTOM,
     .offset = AT(bench.kind),
     .label = "allreduce",
     .parse = option_parse_bench,
     .help = "Train nothing; measure all-reduces of growing sizes between the ranks and check their sums, "
             "with nccl-tests' columns, definitions and short options."},
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
     .help = "Each size is N times the one before it."},
    {.name = "bench-iters",
     .alias = "n",
     .type = OPT_INT,
     .offset = AT(bench.iters),
     .def = "20",
     .min = 1,
     .max = 1e6,
     .label = "N",
     .help = "All-reduces of each size whose time is taken."},
    {.name = "bench-warmup",
     .alias = "w",
     .type = OPT_INT,
     .offset = AT(bench.warmup),
     .def = "5",
     .min = 0,
     .max = 1e6,
     .label = "N",
     .help = "All-reduces of each size before time is taken."},
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
     .help = "Print all options and exit."},
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
    .intro =
        "Trains autoencoders and classifiers, data-parallel: every rank takes its share of each batch, and "
        "the ranks sum "
        "their gradients. Started by rdzv-agent it learns from it who it is; by hand it is a world of one.",
    .outro = "Examples:\n"
             "  rdzv-trainer --layers 1000,100,1000 --loss rmse --lr 1e-4 --beta1 0 --beta2 0.99 --epochs 5\n"
             "  rdzv-trainer --layers 784,128,10 --loss cross-entropy --data train-images-idx3-ubyte.gz \\\n"
             "      --labels train-labels-idx1-ubyte.gz\n"
             "  rdzv-agent --standalone --nproc 4 -- --checkpoint-dir ckpt --checkpoint-every 100\n"
             "  rdzv-agent --nnodes 2 --nproc 8 --endpoint node1 -- --bench allreduce -b 8 -e 1g -f 2\n",
    .exits = exits,
    .env_prefix = "RDZV_TRAINER_",
    .table = table,
};

/* Options that would be read by nobody: of the bench mode without it, of training with it. What the environment says may be meant for
 * another run. */
static int check_mode(const struct trainer_opts *o, int argc, char *const *argv, char *const *env,
                      struct err *e) {
  static const char *const training[] = {"The model", "The data", "Training", "Evaluation", "Checkpoints"};
  static const char *const both[] = {"threads", "cuda-graph"};
  bool trains = false, bench = o->bench.kind != BENCH_NONE;
  for (const struct opt *row = table; row->name || row->group; row++) {
    if (!row->name) {
      trains = false;
      for (size_t i = 0; i < sizeof training / sizeof *training; i++)
        trains |= strcmp(row->group, training[i]) == 0;
      continue;
    }
    bool shared = false, of_bench = strncmp(row->name, "bench-", 6) == 0;
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) shared |= strcmp(row->name, both[i]) == 0;
    if (shared || !(bench ? trains : of_bench)) continue;
    if (opts_source(&trainer_opts_spec, argc, argv, env, row->name) != OPT_FROM_ARGV) continue;
    return bench
               ? err_set(e, -EINVAL, "--%s is for training; --bench trains nothing: leave it out", row->name)
               : err_set(e, -EINVAL, "--%s is for --bench allreduce, which is not given", row->name);
  }
  if (o->bench.min > o->bench.max)
    return err_set(e, -EINVAL, "--bench-min %lld is more than --bench-max %lld", (long long)o->bench.min,
                   (long long)o->bench.max);
  return 0;
}

/* Of adam, and given beside sgd, which does not read them. */
static int check_betas(const struct trainer_opts *o, int argc, char *const *argv, char *const *env,
                       struct err *e) {
  static const char *const names[] = {"beta1", "beta2", "eps"};
  for (size_t i = 0; i < sizeof names / sizeof *names && o->hyper.kind == COMPUTE_SGD; i++)
    if (opts_source(&trainer_opts_spec, argc, argv, env, names[i]) == OPT_FROM_ARGV)
      return err_set(e, -EINVAL, "--%s is for --optimizer adam and adamw; sgd has --momentum", names[i]);
  return 0;
}

int trainer_opts_parse(struct trainer_opts *o, int argc, char *const *argv, char *const *env, struct err *e) {
  int rest = 0;
  bool dashes = false;
  *o = (struct trainer_opts){0};
  int rc = opts_parse(&trainer_opts_spec, argc, argv, env, o, &rest, &dashes, e);
  if (rc || o->help || o->version) return rc;
  if (rest < argc)
    return err_set(e, -EINVAL, "unexpected word '%.100s': rdzv-trainer takes only options", argv[rest]);
  if (o->steps == 0 && o->epochs == 0) o->epochs = 1;
  rc = check_mode(o, argc, argv, env, e);
  if (rc == 0) rc = check_betas(o, argc, argv, env, e);
  return rc || o->bench.kind != BENCH_NONE ? rc : trainer_opts_check(o, e);
}

void trainer_opts_help(struct buf *out) {
  opts_help(&trainer_opts_spec, 100, out);
}
