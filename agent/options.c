/* The options of rdzv-agent: one table, and the few rules that concern more than one row.
 *
 * A row's own bounds are checked by common/opts; here stands what no row can know alone: --standalone and
 * --endpoint exclude each other, a node rank lies below the number of nodes, several nodes need a place to
 * meet. Each rule ends in a sentence that shows the line to type.
 *
 * --standalone on the command line beats an endpoint that stands only in the environment, and the other way
 * round: a module file or profile may set RDZV_AGENT_ENDPOINT for all jobs, and a quick try on one machine
 * must not have to unset it. Where both come from the same place one of them is a mistake.
 *
 * What follows the options is a command, or, behind "--" and beginning with a dash, options of the trainer:
 *
 *     rdzv-agent --nproc 2 ./a.out -x       runs ./a.out -x
 *     rdzv-agent --nproc 2 -- ./a.out -x    the same
 *     rdzv-agent --nproc 2 -- --steps 100   runs rdzv-trainer --steps 100
 *     rdzv-agent --nproc 2                  runs rdzv-trainer */

#include "agent/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"
#include "common/opts.h"

static int parse_nnodes(const char *text, void *field, struct err *e) {
  struct nnodes *n = field, got;
  char first[24];
  const char *colon = strchr(text, ':');
  size_t len = colon ? (size_t)(colon - text) : strlen(text);
  if (len >= sizeof(first)) return err_set(e, -EINVAL, "not a number of nodes: write N or MIN:MAX");
  memcpy(first, text, len);
  first[len] = '\0';
  if (parse_int(first, 1, NODES_MAX, &got.min, e) ||
      parse_int(colon ? colon + 1 : first, 1, NODES_MAX, &got.max, e)) {
    err_wrap(e, "write N or MIN:MAX");
    return -EINVAL;
  }
  if (got.min > got.max)
    return err_set(e, -EINVAL,
                   "the least number of nodes is above the greatest: did you mean %" PRId64 ":%" PRId64 "?",
                   got.max, got.min);
  *n = got;
  return 0;
}

static int parse_nproc(const char *text, void *field, struct err *e) {
  int64_t *n = field;
  if (strcmp(text, "cpu") == 0 || strcmp(text, "auto") == 0) {
    *n = OPTIONS_NPROC_CPU;
    return 0;
  }
  if (strcmp(text, "gpu") == 0)
    return err_set(e, -EINVAL, "GPUs are not counted yet: give the number of workers, or cpu");
  if (parse_int(text, 1, WORKERS_MAX, n, e) == 0) return 0;
  err_wrap(e, "write the number of workers, cpu or auto");
  return -EINVAL;
}

static int parse_endpoint(const char *text, void *field, struct err *e) {
  struct endpoint *ep = field, got;
  int rc = endpoint_parse(text, RDZV_DEFAULT_PORT, &got, e);
  if (rc) return rc;
  if (got.port == 0) return err_set(e, -EINVAL, "port 0 is nowhere: give the port on which rdzvd listens");
  *ep = got;
  return 0;
}

static int parse_id(const char *text, void *field, struct err *e) {
  const char **id = field;
  size_t n = strlen(text);
  if (n == 0) return err_set(e, -EINVAL, "a job's name cannot be empty");
  if (n > JOB_ID_MAX) return err_set(e, -EINVAL, "a job's name has at most %d bytes", JOB_ID_MAX);
  for (size_t i = 0; i < n; i++)
    if ((unsigned char)text[i] <= ' ' || text[i] == 0x7f)
      return err_set(e, -EINVAL, "a job's name has no blanks or control characters");
  *id = text;
  return 0;
}

static int parse_address(const char *text, void *field, struct err *e) {
  const char **addr = field;
  if (strlen(text) > ADDR_MAX || ipaddr_parse(text).family == 0)
    return err_set(e, -EINVAL, "not a numeric address: write it as 10.0.0.7 or fd00::7");
  *addr = text;
  return 0;
}

static int parse_directory(const char *text, void *field, struct err *e) {
  const char **dir = field;
  if (!*text) return err_set(e, -EINVAL, "the directory's name is empty");
  *dir = text;
  return 0;
}

#define FIELD(name) offsetof(struct agent_options, name)

static const struct opt agent_table[] = {
    {.group = "How many"},
    {.name = "nnodes",
     .type = OPT_CUSTOM,
     .offset = FIELD(nnodes),
     .def = "1",
     .label = "N|MIN:MAX",
     .parse = parse_nnodes,
     .help = "Nodes in the job, that is: agents. With MIN:MAX the job goes on with fewer when nodes are "
             "lost, and "
             "takes in newcomers when its next round begins."},
    {.name = "nproc",
     .alias = "nproc-per-node",
     .type = OPT_CUSTOM,
     .offset = FIELD(nproc),
     .def = "1",
     .label = "N|cpu|auto",
     .parse = parse_nproc,
     .help = "Workers on this node. cpu: one for each CPU this process may use. auto: as cpu, until GPUs are "
             "counted."},
    {.group = "Where to meet"},
    {.name = "endpoint",
     .alias = "rdzv-endpoint",
     .type = OPT_CUSTOM,
     .offset = FIELD(endpoint),
     .label = "HOST[:PORT]",
     .parse = parse_endpoint,
     .help = "Where rdzvd listens, the same on all nodes; port 29400 if none is given. Where this is an "
             "address of the "
             "machine itself and nobody listens there, the agent starts rdzvd."},
    {.name = "standalone",
     .type = OPT_FLAG,
     .offset = FIELD(standalone),
     .help = "This machine alone, with a daemon of its own on a free port. What --nnodes 1 without "
             "--endpoint does too."},
    {.name = "rdzv-id",
     .type = OPT_CUSTOM,
     .offset = FIELD(rdzv_id),
     .label = "NAME",
     .parse = parse_id,
     .help = "The job's name, the same on all nodes. Default: the scheduler's job and step id (Slurm, PBS, "
             "SGE, LSF); a "
             "fresh one when alone; else user@endpoint."},
    {.name = "node-rank",
     .type = OPT_INT,
     .offset = FIELD(node_rank),
     .min = 0,
     .max = NODES_MAX - 1,
     .label = "N",
     .help = "Ask for this node rank. Default: the scheduler's order, then numeric addresses; it is kept in "
             "later rounds."},
    {.name = "local-addr",
     .type = OPT_CUSTOM,
     .offset = FIELD(local_addr),
     .label = "ADDRESS",
     .parse = parse_address,
     .help = "The numeric address under which other nodes reach this one. Default: as the daemon sees it."},
    {.group = "When things go wrong (TIME is 500ms, 30s, 5m, 2h)"},
    {.name = "max-restarts",
     .type = OPT_INT,
     .offset = FIELD(max_restarts),
     .def = "3",
     .min = 0,
     .max = 1000000,
     .label = "N",
     .help =
         "How often workers are started again after one of them failed. Nodes that come or go cost none."},
    {.name = "join-timeout",
     .type = OPT_DURATION,
     .offset = FIELD(join_timeout_ms),
     .def = "10m",
     .min = 1000,
     .max = TIMEOUT_MAX_MS,
     .label = "TIME",
     .help = "How long to wait for enough nodes, and for the daemon to be reached."},
    {.name = "last-call",
     .type = OPT_DURATION,
     .offset = FIELD(last_call_ms),
     .def = "30s",
     .min = 0,
     .max = TIMEOUT_MAX_MS,
     .label = "TIME",
     .help = "How long the first round waits for more nodes once MIN are there."},
    {.name = "stop-timeout",
     .type = OPT_DURATION,
     .offset = FIELD(stop_timeout_ms),
     .def = "30s",
     .min = 0,
     .max = TIMEOUT_MAX_MS,
     .label = "TIME",
     .help = "From SIGTERM to SIGKILL when workers are stopped."},
    {.name = "lease",
     .type = OPT_DURATION,
     .offset = FIELD(lease_ms),
     .def = "5s",
     .min = LEASE_MIN_MS,
     .max = LEASE_MAX_MS,
     .label = "TIME",
     .help = "How long a silent node is taken to be alive."},
    {.group = "Output"},
    {.name = "log-dir",
     .type = OPT_CUSTOM,
     .offset = FIELD(log_dir),
     .label = "DIR",
     .parse = parse_directory,
     .help = "Write workers' output to DIR/round_N/rank_R/ as well, and what agent and daemon do to files in "
             "DIR."},
    {.name = "quiet",
     .alias = "q",
     .type = OPT_FLAG,
     .offset = FIELD(quiet),
     .help = "Of the agent's own lines only warnings and errors."},
    {.name = "verbose",
     .alias = "v",
     .type = OPT_FLAG,
     .offset = FIELD(verbose),
     .help = "Every event, and the daemon's lines too."},
    {.name = "version", .type = OPT_FLAG, .offset = FIELD(version), .help = "Print the version and exit."},
    {.name = "help",
     .alias = "h",
     .type = OPT_FLAG,
     .offset = FIELD(help),
     .help = "Print this text and exit."},
    {0},
};

static const char *const agent_ignore_env[] = {"RDZV_AGENT_SOCKET",
                                               NULL}; /* a worker's variable: this agent is one */

static const struct opts_spec agent_spec = {
    .program = "rdzv-agent",
    .usage = "rdzv-agent [OPTION]... [--] COMMAND [ARGUMENT]...\n"
             "rdzv-agent [OPTION]... [-- TRAINER-OPTION...]",
    .intro = "Runs a number of workers on this node, as one job with the agents of the other nodes, until "
             "all have "
             "finished; when one fails, all are stopped and started again. Without a COMMAND the workers are "
             "rdzv-trainer.",
    .outro = "Examples:\n"
             "  rdzv-agent --nproc 2 -- ./my-trainer --epochs 3\n"
             "  srun rdzv-agent --nnodes 2 --nproc 4 --endpoint node1 -- python train.py\n"
             "\n"
             "Exit status: that of the worker that failed (128+N where signal N killed it, 127 and 126\n"
             "where its command was not found or cannot be run), or\n",
    .env_prefix = "RDZV_AGENT_",
    .ignore_env = agent_ignore_env,
    .table = agent_table,
};

/* Both are there: which holds. */
static int settle_both(struct agent_options *o, int argc, char *const *argv, struct err *e) {
  bool alone = opts_given(&agent_spec, argc, argv, NULL, "standalone");
  bool point = opts_given(&agent_spec, argc, argv, NULL, "endpoint");
  if (alone == point)
    return err_set(e, -EINVAL,
                   "--standalone and --endpoint exclude each other: one machine alone meets nobody");
  if (alone) o->endpoint.host[0] = '\0';
  o->standalone = alone;
  return 0;
}

static int refuse_no_place(const struct nnodes *n, struct err *e) {
  char most[24] = "";
  if (n->max > n->min) snprintf(most, sizeof(most), ":%" PRId64, n->max);
  return err_set(e, -EINVAL,
                 "several nodes need a place to meet: rdzv-agent --nnodes %" PRId64
                 "%s --endpoint HOST ..., where HOST is the name of one of them, the same on all",
                 n->min, most);
}

static int settle_place(struct agent_options *o, int argc, char *const *argv, struct err *e) {
  int rc = o->standalone && o->endpoint.host[0] ? settle_both(o, argc, argv, e) : 0;
  if (rc || o->endpoint.host[0]) return rc;
  if (o->nnodes.max == 1) o->standalone = true;
  if (!o->standalone) return refuse_no_place(&o->nnodes, e);
  if (o->nnodes.max == 1) return 0;
  return err_set(
      e, -EINVAL,
      "--standalone is one node, --nnodes asks for more: give --endpoint HOST instead, the same on "
      "all nodes");
}

static int settle(struct agent_options *o, int argc, char *const *argv, struct err *e) {
  int rc = settle_place(o, argc, argv, e);
  if (rc) return rc;
  if (o->node_rank >= o->nnodes.max)
    return err_set(e, -EINVAL, "--node-rank %" PRId64 ": ranks of %" PRId64 " node%s go from 0 to %" PRId64,
                   o->node_rank, o->nnodes.max, o->nnodes.max == 1 ? "" : "s", o->nnodes.max - 1);
  if (o->quiet && o->verbose)
    return err_set(e, -EINVAL, "--quiet and --verbose exclude each other: leave one of them away");
  return 0;
}

int agent_options_parse(struct agent_options *o, int argc, char *const *argv, char *const *env,
                        struct err *e) {
  int rest = argc;
  bool dashes = false;
  *o = (struct agent_options){.node_rank = -1};
  if (opts_given(&agent_spec, argc, argv, NULL, "help")) {
    o->help = true;
    return 0;
  }
  if (opts_given(&agent_spec, argc, argv, NULL, "version")) {
    o->version = true;
    return 0;
  }
  int rc = opts_parse(&agent_spec, argc, argv, env, o, &rest, &dashes, e);
  if (rc) return rc;
  o->words = argv + rest;
  o->command = rest < argc && !(dashes && argv[rest][0] == '-');
  return settle(o, argc, argv, e);
}

void agent_options_help(int width, struct buf *out) {
  opts_help(&agent_spec, width, out);
#define ROW(name, code, text)                                                                                \
  if ((code) != EXIT_CODE_PORT_TAKEN) buf_printf(out, "  %2d  %s\n", code, text); /* rdzvd's alone */
  EXIT_CODE_LIST(ROW)
#undef ROW
}

void agent_options_settings(const struct agent_options *o, struct settings *s) {
  *s = (struct settings){
      .min_nodes = o->nnodes.min,
      .max_nodes = o->nnodes.max,
      .max_restarts = o->max_restarts,
      .last_call_ms = o->last_call_ms,
      .join_timeout_ms = o->join_timeout_ms,
      .stop_timeout_ms = o->stop_timeout_ms,
      .lease_ms = o->lease_ms,
  };
}
