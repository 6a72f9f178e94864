/* The options of rdzv-agent: the rules that concern more than one row of the table.
 *
 * A row's own bounds are checked by common/opts; here stands what no row can know alone: where the nodes meet,
 * a node rank that lies below the number of nodes, which of two options for one thing holds. Each refusal ends
 * in a sentence that shows the line to type.
 *
 * Where to meet, in this order:
 *
 *     --standalone              this machine alone; an endpoint, a name and a node rank are put aside
 *     --endpoint                there; port 0 with a single node is torchrun's way to say "alone"
 *     --master-addr, -port      there, unless --rdzv-backend c10d; with a single node nobody is to be met, and
 *                               the port is the one that its users expect in MASTER_PORT: the store's
 *     nothing                   one node: alone; several: as the scheduler's facts say (options_cluster.c), or refused, because each
 *                               would wait for itself
 *
 * What torchrun puts aside without a word is put aside here too, so that its users' scripts go on to work, but
 * with a line in the notes. --rdzv-conf, and two variables of torchrun's, are second names for options of ours:
 * they count where these come from a weaker source.
 *
 * What follows the options is a command, or, behind "--" and beginning with a dash, options of the trainer:
 *
 *     rdzv-agent --nproc 2 ./a.out -x       runs ./a.out -x
 *     rdzv-agent --nproc 2 -- ./a.out -x    the same
 *     rdzv-agent --nproc 2 -- --steps 100   runs rdzv-trainer --steps 100
 *     rdzv-agent --nproc 2                  runs rdzv-trainer */

#include "agent/options/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/internal.h"
#include "common/exit_codes.h"

enum opt_source options_source(const struct settling *s, const char *name) {
  return opts_source(&agent_options_spec, s->argc, s->argv, s->env, name);
}

bool options_is_given(const struct settling *s, const char *name) {
  return options_source(s, name) != OPT_FROM_DEFAULT;
}

const char *options_spelt(struct settling *s, const char *name) {
  opts_spelling(&agent_options_spec, s->argc, s->argv, s->env, name, s->spelling);
  return s->spelling;
}

/* Says that an option that was given has no effect, and why. */
void options_put_aside(struct settling *s, const char *name, const char *why) {
  if (options_is_given(s, name)) options_note(s->o, "%s has no effect: %s", options_spelt(s, name), why);
}

/* Where to meet. --------------------------------------------------------------------------------------------- */

static bool is_c10d(const struct agent_options *o) {
  return o->torch.backend && strcmp(o->torch.backend, "static") != 0;
}

static int refuse_no_place(const struct nnodes *n, struct err *e) {
  char most[24] = "";
  if (n->max > n->min) snprintf(most, sizeof(most), ":%" PRId64, n->max);
  return err_set(e, -EINVAL,
                 "several nodes need a place to meet: rdzv-agent --nnodes %" PRId64
                 "%s --endpoint HOST ..., where HOST is the name of one of them, the same on all",
                 n->min, most);
}

static bool is_given(const char *text) {
  return text && *text;
}

/* Nobody's place to meet but the first that counts. */
static void put_master_aside(struct settling *s, const char *why) {
  if (is_given(s->o->torch.master_addr)) options_put_aside(s, "master-addr", why);
  options_put_aside(s, "master-port", why);
}

/* --standalone was said. */
static int settle_alone(struct settling *s, struct err *e) {
  static const char why[] = "--standalone is this machine alone";
  struct agent_options *o = s->o;
  if (o->nnodes.min > 1)
    return err_set(e, -EINVAL,
                   "--standalone is one node, --nnodes asks for more: give --endpoint HOST instead, the same "
                   "on all nodes");
  if (o->nnodes.max > 1)
    options_note(o, "--standalone is this machine alone: no more than one of the %" PRId64 " nodes",
                 o->nnodes.max);
  if (is_given(o->torch.endpoint)) options_put_aside(s, "endpoint", why);
  put_master_aside(s, why);
  if (o->rdzv_id) options_put_aside(s, "rdzv-id", "a --standalone job's name is a fresh one");
  o->nnodes.max = 1;
  o->rdzv_id = NULL;
  return 0;
}

static void note_where(struct settling *s, const char *option) {
  snprintf(s->o->endpoint_where, sizeof(s->o->endpoint_where), "in %s", options_spelt(s, option));
}

static int settle_endpoint(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  note_where(s, "endpoint");
  bool fixed = o->torch.backend && !is_c10d(o);
  int rc =
      endpoint_parse(o->torch.endpoint, fixed ? STATIC_DEFAULT_PORT : RDZV_DEFAULT_PORT, &o->endpoint, e);
  if (rc || o->endpoint.port) return rc;
  if (o->nnodes.max > 1)
    return err_set(e, -EINVAL, "%s=%s: port 0 is nowhere: give the port on which rdzvd listens",
                   options_spelt(s, "endpoint"), o->torch.endpoint);
  o->standalone = true;
  o->endpoint.host[0] = '\0';
  return 0;
}

/* --master-addr and --master-port are all that was said. */
static int settle_master(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  struct torch_options *t = &o->torch;
  if (o->nnodes.max == 1) {
    o->standalone = true;
    if (t->master_port > 0 && options_source(s, "store-port") == OPT_FROM_DEFAULT)
      o->store_port = t->master_port;
    return 0;
  }
  int rc = endpoint_parse(is_given(t->master_addr) ? t->master_addr : "127.0.0.1", STATIC_DEFAULT_PORT,
                          &o->endpoint, e);
  if (rc) return rc;
  note_where(s, "master-addr");
  if (t->master_port == 0)
    return err_set(e, -EINVAL, "%s=0: port 0 is nowhere: give the port on which rdzvd is to listen",
                   options_spelt(s, "master-port"));
  if (t->master_port > 0) o->endpoint.port = (uint16_t)t->master_port;
  return 0;
}

static int settle_place(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  bool master = is_given(o->torch.master_addr) || o->torch.master_port >= 0;
  if (o->standalone) return settle_alone(s, e);
  if (is_given(o->torch.endpoint)) {
    put_master_aside(s, "the endpoint says where to meet");
    return settle_endpoint(s, e);
  }
  if (master && !is_c10d(o)) return settle_master(s, e);
  put_master_aside(s, "it is for --rdzv-backend static");
  bool done = false;
  int rc = options_take_place(s, &done, e);
  if (rc || done) return rc;
  if (o->nnodes.max > 1) return refuse_no_place(&o->nnodes, e);
  o->standalone = true;
  return 0;
}

/* Second names. ---------------------------------------------------------------------------------------------- */

static int settle_conf(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  const struct rdzv_conf *c = &o->torch.conf;
  enum opt_source from = options_source(s, "rdzv-conf");
  int64_t join = c->join_ms >= 0 ? c->join_ms
                 : is_c10d(o)    ? -1
                                 : c->timeout_ms,
          lease = rdzv_conf_lease_ms(c);
  if (join >= 0 && options_source(s, "join-timeout") < from) o->join_timeout_ms = join < 1000 ? 1000 : join;
  if (c->last_call_ms >= 0 && options_source(s, "last-call") < from) o->last_call_ms = c->last_call_ms;
  if (lease >= 0 && options_source(s, "lease") < from) o->lease_ms = lease;
  if (c->rank >= 0 && options_source(s, "node-rank") < from) o->node_rank = c->rank;
  o->hosting = c->is_host;
  if (is_c10d(o) && c->timeout_ms >= 0)
    options_note(o, "%s timeout has no effect: it is for --rdzv-backend static",
                 options_spelt(s, "rdzv-conf"));
  return 0;
}

static int settle_variables(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  const char *seconds = cluster_variable(s->env, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  const char *unshared = cluster_variable(s->env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
  o->log_line_prefix = cluster_variable(s->env, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (unshared && strcmp(unshared, "1") == 0 && options_source(s, "store") == OPT_FROM_DEFAULT)
    o->store = STORE_WORKER;
  if (!seconds || options_is_given(s, "stop-timeout")) return 0;
  int64_t n;
  int rc = parse_int(seconds, 0, TIMEOUT_MAX_MS / 1000, &n, e);
  if (rc) {
    err_wrap(e, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
    return rc;
  }
  o->stop_timeout_ms = n * 1000;
  return 0;
}

/* The rest. -------------------------------------------------------------------------------------------------- */

static int settle_rank(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  bool alone = o->standalone && o->node_rank > 0;
  const char *why = is_c10d(o) ? "it is for --rdzv-backend static; without any backend it counts too"
                               : "this machine is the only node";
  if (is_c10d(o) || alone) options_put_aside(s, "node-rank", why);
  if ((is_c10d(o) || alone) && o->torch.conf.rank >= 0)
    options_note(o, "%s rank has no effect: %s", options_spelt(s, "rdzv-conf"), why);
  if (is_c10d(o) || alone) o->node_rank = -1;
  if (o->node_rank < o->nnodes.max) return 0;
  return err_set(e, -EINVAL, "%s=%" PRId64 ": ranks of %" PRId64 " node%s go from 0 to %" PRId64,
                 options_spelt(s, "node-rank"), o->node_rank, o->nnodes.max, o->nnodes.max == 1 ? "" : "s",
                 o->nnodes.max - 1);
}

/* Flags that mean nothing here. */
static void note_rest(struct settling *s) {
  struct agent_options *o = s->o;
  const struct torch_options *t = &o->torch;
  if (is_c10d(o) && strcmp(t->backend, "c10d") != 0)
    options_put_aside(s, "rdzv-backend", "nodes meet at rdzvd, whatever the backend");
  options_put_aside(s, "monitor-interval", "a worker's death is seen when it happens");
  options_put_aside(s, "start-method", "workers are programs of their own");
  if (t->event_log_handler && strcmp(t->event_log_handler, "null") != 0)
    options_put_aside(s, "event-log-handler", "--verbose shows events, --log-dir keeps them");
  if (is_given(t->logs_specs))
    options_put_aside(s, "logs-specs", "files are laid out as torchrun does without it");
  rdzv_conf_notes(o, options_spelt(s, "rdzv-conf"));
}

/* A start is no shorter than a step. */
static void settle_hang(struct settling *s) {
  static const char why[] = "without --hang-timeout nothing is called a hang";
  struct agent_options *o = s->o;
  bool given = options_is_given(s, "hang-start-timeout");
  if (!given && o->hang_start_ms < o->hang_timeout_ms) o->hang_start_ms = o->hang_timeout_ms;
  if (o->hang_timeout_ms) return;
  options_put_aside(s, "hang-start-timeout", why);
  options_put_aside(s, "hang-watch", why);
  options_put_aside(s, "hang-stacks", why);
}

static int settle_command(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  struct torch_options *t = &o->torch;
  const char *flag = t->run_path ? "run-path" : t->module ? "module" : NULL;
  if (!o->command && flag)
    return err_set(e, -EINVAL, "%s needs a %s behind the options", options_spelt(s, flag),
                   t->run_path ? "script" : "module");
  if (t->run_path && t->no_python) options_put_aside(s, "no-python", "--run-path is Python's");
  if (t->run_path && t->module) options_put_aside(s, "module", "--run-path runs a file");
  if (t->module && t->no_python && !t->run_path)
    return err_set(e, -EINVAL, "--module and --no-python exclude each other: a module needs its python");
  return 0;
}

static int settle(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  int rc = options_take_count(s, e);
  if (rc == 0) rc = settle_place(s, e);
  if (rc == 0) rc = settle_conf(s, e);
  if (rc == 0) rc = settle_variables(s, e);
  if (rc == 0) rc = settle_rank(s, e);
  if (rc == 0) rc = settle_command(s, e);
  if (rc) return rc;
  options_take_rest(s);
  if (o->orphan_grace_ms < 0)
    o->orphan_grace_ms = o->nnodes.min == o->nnodes.max ? INT64_MAX : ORPHAN_GRACE_MS;
  settle_hang(s);
  note_rest(s);
  if (o->quiet && o->verbose)
    return err_set(e, -EINVAL, "--quiet and --verbose exclude each other: leave one of them away");
  return 0;
}

int agent_options_parse(struct agent_options *o, int argc, char *const *argv, char *const *env,
                        const struct cluster *cluster, struct err *e) {
  static const struct cluster unknown;
  struct settling s = {
      .o = o, .argc = argc, .argv = argv, .env = env, .cluster = cluster ? cluster : &unknown};
  int rest = argc;
  memset(o, 0, sizeof(*o));
  o->node_rank = o->order_key = o->torch.master_port = o->orphan_grace_ms = -1;
  o->help = opts_source(&agent_options_spec, argc, argv, NULL, "help") == OPT_FROM_ARGV;
  o->version = opts_source(&agent_options_spec, argc, argv, NULL, "version") == OPT_FROM_ARGV;
  if (o->help || o->version) return 0;
  int rc = opts_parse(&agent_options_spec, argc, argv, env, o, &rest, &o->dashes, e);
  if (rc) return rc;
  o->words = argv + rest;
  o->argc = argc;
  o->argv = argv;
  o->env = env;
  s.said_standalone = o->standalone;
  if (cluster_variable(env, "RDZV_AGENT_SOCKET")) s.cluster = &unknown; /* a worker's agent */
  o->command = rest < argc && !(o->dashes && argv[rest][0] == '-');
  return settle(&s, e);
}

void agent_options_help(int width, struct buf *out) {
  opts_help(&agent_options_spec, width, out);
}

void agent_options_settings(const struct agent_options *o, struct settings *s) {
  *s = (struct settings){
      .min_nodes = o->nnodes.min,
      .max_nodes = o->nnodes.max,
      .max_restarts = o->max_restarts,
      .last_call_ms = o->last_call_ms,
      .scale_up = o->scale_up,
      .after_finish = o->after_finish,
      .exclude_after = o->exclude_after,
      .join_timeout_ms = o->join_timeout_ms,
      .stop_timeout_ms = o->stop_timeout_ms,
      .lease_ms = o->lease_ms,
      .hang_timeout_ms = o->hang_timeout_ms,
      .nccl_ids = o->nccl_ids,
  };
}
