/* SPDX-License-Identifier: Apache-2.0 */
/* Rules that concern several options. common/opts checks each row's own bounds.
 *
 * Where nodes meet, in this order:
 *
 *     --standalone              this machine only; an endpoint, a job name and a node rank are ignored
 *     --endpoint                there; port 0 with a single node is torchrun's way to ask for --standalone
 *     --master-addr, -port      there, unless --rdzv-backend c10d; with a single node the port is that of the store,
 *                               since its users expect it in MASTER_PORT
 *     none of these             one node: standalone; several: the scheduler's facts (from_cluster.c), or a refusal,
 *                               because each node would wait for itself
 *
 * Words after the options are a command. After "--" and starting with a dash they are options of the trainer. */

#include "agent/options/options.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/command_line.h"
#include "agent/options/internal.h"
#include "agent/options/torch_flags.h"
#include "common/endpoint.h"

enum { CONF_SHOWN_MAX = 120, WHY_MAX = 120, SHOWN_MAX = 80 };

#define FLAG(flag, difference) {flag, difference},
static const struct { const char *name, *text; } torch_flags[] = {TORCH_FLAG_LIST(FLAG)};
#undef FLAG

enum opt_source options_source(const struct settling *s, const char *name) {
  return opts_origin(&s->o->parsed, name)->source;
}

bool options_is_given(const struct settling *s, const char *name) {
  return options_source(s, name) != OPT_FROM_DEFAULT;
}

const char *options_spelling_of(const struct settling *s, const char *name) {
  return opts_origin(&s->o->parsed, name)->spelling;
}

void options_note_ignored(struct settling *s, const char *name, const char *why) {
  if (options_source(s, name) > OPT_FROM_FILE)
    options_note(s->o, "%s has no effect: %s", options_spelling_of(s, name), why);
}

/* Where to meet. --------------------------------------------------------------------------------------------------- */

static bool is_c10d(const struct agent_options *o) {
  return o->torch.backend && strcmp(o->torch.backend, "static") != 0;
}

static bool is_given(const char *text) {
  return text && *text;
}

static void note_master_ignored(struct settling *s, const char *why) {
  if (is_given(s->o->torch.master_addr)) options_note_ignored(s, "master-addr", why);
  options_note_ignored(s, "master-port", why);
}

static int settle_alone(struct settling *s, struct err *e) {
  static const char why[] = "--standalone uses this machine only";
  struct agent_options *o = s->o;
  if (o->nnodes.min > 1)
    return err_set(
        e, -EINVAL,
        "--standalone is for one node, but --nnodes asks for more: give --endpoint HOST instead, the same on "
        "all nodes");
  if (o->nnodes.max > 1)
    options_note(o, "--standalone uses this machine only: one of at most %" PRId64 " nodes", o->nnodes.max);
  if (is_given(o->torch.endpoint)) options_note_ignored(s, "endpoint", why);
  note_master_ignored(s, why);
  if (o->rdzv_id) options_note_ignored(s, "rdzv-id", "--standalone draws a random name");
  o->nnodes.max = 1;
  o->rdzv_id = NULL;
  return 0;
}

static void note_where(struct settling *s, const char *option) {
  snprintf(s->o->endpoint_where, sizeof(s->o->endpoint_where), "in %s", options_spelling_of(s, option));
}

static int settle_endpoint(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  note_where(s, "endpoint");
  bool fixed = o->torch.backend && !is_c10d(o), zero = false;
  int rc = endpoint_list_parse(o->torch.endpoint, fixed ? STATIC_DEFAULT_PORT : RDZV_DEFAULT_PORT, o->endpoints,
                               DAEMONS_MAX, &o->n_endpoints, e);
  if (rc) return err_wrap(e, "%s=%s", options_spelling_of(s, "endpoint"), o->torch.endpoint), rc;
  for (size_t i = 0; i < o->n_endpoints; i++) zero = zero || o->endpoints[i].port == 0;
  if (!zero) return 0;
  if (o->nnodes.max > 1 || o->n_endpoints > 1)
    return err_set(e, -EINVAL, "%s=%s: port 0 cannot be connected to: give the port on which rdzvd listens",
                   options_spelling_of(s, "endpoint"), o->torch.endpoint);
  o->standalone = true;
  o->endpoints->host[0] = '\0';
  return 0;
}

/* Only --master-addr and --master-port were given. */
static int settle_master(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  struct torch_options *t = &o->torch;
  if (o->nnodes.max == 1) {
    o->standalone = true;
    if (t->master_port > 0 && options_source(s, "store-port") == OPT_FROM_DEFAULT) o->store_port = t->master_port;
    return 0;
  }
  int rc = endpoint_parse(is_given(t->master_addr) ? t->master_addr : cluster_loopback(s->cluster), STATIC_DEFAULT_PORT,
                          o->endpoints, e);
  if (rc) return rc;
  note_where(s, "master-addr");
  if (t->master_port == 0)
    return err_set(e, -EINVAL, "%s=0: port 0 cannot be connected to: give the port on which rdzvd is to listen",
                   options_spelling_of(s, "master-port"));
  if (t->master_port > 0) o->endpoints->port = (uint16_t)t->master_port;
  return 0;
}

static int settle_place(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  bool master = is_given(o->torch.master_addr) || o->torch.master_port >= 0;
  if (o->standalone) return settle_alone(s, e);
  if (is_given(o->torch.endpoint)) {
    note_master_ignored(s, "the endpoint takes precedence");
    return settle_endpoint(s, e);
  }
  if (master && !is_c10d(o)) return settle_master(s, e);
  note_master_ignored(s, "it applies to --rdzv-backend static only");
  bool done = false;
  int rc = options_endpoint_from_cluster(s, &done, e);
  if (rc || done) return rc;
  if (o->nnodes.max > 1) {
    char most[24] = "";
    if (o->nnodes.max > o->nnodes.min) snprintf(most, sizeof(most), ":%" PRId64, o->nnodes.max);
    return err_set(e, -EINVAL,
                   "several nodes need a meeting place: rdzv-agent --nnodes %" PRId64
                   "%s --endpoint HOST ..., where HOST is one of the nodes, the same on all",
                   o->nnodes.min, most);
  }
  o->standalone = true;
  return 0;
}

/* Second names. ---------------------------------------------------------------------------------------------------- */

static int settle_conf(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  const struct rdzv_conf *c = &o->torch.conf;
  enum opt_source from = options_source(s, "rdzv-conf");
  bool is_static = !is_c10d(o) && !o->standalone;
  if (is_static && (c->bad_timeout || c->bad_rank)) {
    struct buf text = BUF_INIT;
    rdzv_conf_check_static(c, e);
    buf_put_escaped(&text, c->text, strlen(c->text), CONF_SHOWN_MAX);
    err_wrap(e, "%s=%s", options_spelling_of(s, "rdzv-conf"), buf_text(&text));
    buf_finish(&text);
    return -EINVAL;
  }
  int64_t join = c->join_ms >= 0 ? c->join_ms : is_c10d(o) ? -1 : c->timeout_ms, lease = rdzv_conf_lease_ms(c);
  if (join >= 0 && options_source(s, "join-timeout") < from) o->join_timeout_ms = join < 1000 ? 1000 : join;
  if (c->last_call_ms >= 0 && options_source(s, "last-call") < from) o->last_call_ms = c->last_call_ms;
  if (lease >= 0 && options_source(s, "lease") < from) o->lease_ms = lease;
  if (c->rank >= 0 && options_source(s, "node-rank") < from) o->node_rank = c->rank;
  o->hosting = c->is_host;
  if ((is_c10d(o) && c->timeout_ms >= 0) || (!is_static && c->bad_timeout))
    options_note(o, "%s timeout has no effect: it applies to --rdzv-backend static only",
                 options_spelling_of(s, "rdzv-conf"));
  return 0;
}

static int settle_variables(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  const char *seconds = cluster_variable(s->o->env, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
  const char *timer = cluster_variable(s->o->env, "TORCHELASTIC_ENABLE_FILE_TIMER");
  if (timer && strcmp(timer, "1") == 0)
    options_note(o, "TORCHELASTIC_ENABLE_FILE_TIMER has no effect: the agent does not watch timers of workers; "
                    "--hang-timeout ends a worker that makes no progress");
  if (cluster_variable(s->o->env, "TORCHELASTIC_HEALTH_CHECK_PORT"))
    options_note(
        o, "TORCHELASTIC_HEALTH_CHECK_PORT has no effect: neither this agent nor PyTorch's torchrun serves a health "
           "check; rdzvd answers /healthz on its port");
  const char *unshared = cluster_variable(s->o->env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
  const char *prefix = cluster_variable(s->o->env, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  bool weaker = !o->output.log_line_prefix || options_source(s, "log-line-prefix-template") <= OPT_FROM_FILE;
  o->torch.prefix_by_variable = prefix && weaker;
  if (o->torch.prefix_by_variable) o->output.log_line_prefix = prefix;
  if (unshared && strcmp(unshared, "1") == 0 && options_source(s, "store") == OPT_FROM_DEFAULT) o->store = STORE_WORKER;
  if (!seconds || options_source(s, "stop-timeout") > OPT_FROM_FILE) return 0;
  int64_t n;
  int rc = parse_int(seconds, 0, TIMEOUT_MAX_MS / 1000, &n, e);
  if (rc) return err_wrap(e, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"), rc;
  o->stop_timeout_ms = n * 1000;
  return 0;
}

/* The rest. -------------------------------------------------------------------------------------------------------- */

static int settle_rank(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  bool alone = o->standalone && o->node_rank > 0;
  const char *why =
      is_c10d(o) ? "it applies to --rdzv-backend static, or without a backend" : "this machine is the only node";
  if (is_c10d(o) || alone) options_note_ignored(s, "node-rank", why);
  if (((is_c10d(o) || alone) && o->torch.conf.rank >= 0) || o->torch.conf.bad_rank)
    options_note(o, "%s rank has no effect: %s", options_spelling_of(s, "rdzv-conf"), why);
  if (is_c10d(o) || alone) o->node_rank = -1;
  if (o->node_rank < o->nnodes.max) return 0;
  return err_set(e, -EINVAL, "%s=%" PRId64 ": ranks of %" PRId64 " node%s go from 0 to %" PRId64,
                 options_spelling_of(s, "node-rank"), o->node_rank, o->nnodes.max, o->nnodes.max == 1 ? "" : "s",
                 o->nnodes.max - 1);
}

/* Notes flags without effect, and those of --rdzv-conf. */
static void note_rest(struct settling *s) {
  struct agent_options *o = s->o;
  const struct torch_options *t = &o->torch;
  if (is_c10d(o) && strcmp(t->backend, "c10d") != 0 && strcmp(t->backend, "rdzv") != 0) {
    struct buf shown = BUF_INIT;
    buf_put_escaped(&shown, t->backend, strlen(t->backend), SHOWN_MAX);
    options_note(o, "%s %s has no effect: nodes meet at rdzvd with any backend", options_spelling_of(s, "rdzv-backend"),
                 buf_text(&shown));
    buf_finish(&shown);
  }
  for (size_t i = 0; i < sizeof(torch_flags) / sizeof(*torch_flags); i++) {
    const char *name = torch_flags[i].name, *text = torch_flags[i].text;
    char why[WHY_MAX];
    bool is_default =
        strcmp(name, "event-log-handler") == 0 && t->event_log_handler && strcmp(t->event_log_handler, "null") == 0;
    if (strncmp(text, TORCH_NO_EFFECT, strlen(TORCH_NO_EFFECT)) != 0 || is_default) continue;
    text += strlen(TORCH_NO_EFFECT);
    snprintf(why, sizeof(why), "%.*s", (int)strcspn(text, "."), text);
    options_note_ignored(s, name, why);
  }
  rdzv_conf_note_ignored(o, options_spelling_of(s, "rdzv-conf"));
}

static int settle_command(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  struct torch_options *t = &o->torch;
  const char *flag = t->run_path ? "run-path" : t->module ? "module" : t->no_python ? "no-python" : NULL;
  if (!o->command && flag)
    return err_set(e, -EINVAL, "%s needs a %s after the options", options_spelling_of(s, flag),
                   t->run_path ? "script"
                   : t->module ? "module"
                               : "program");
  if (t->run_path && t->no_python) options_note_ignored(s, "no-python", "--run-path runs Python");
  if (t->run_path && t->module) options_note_ignored(s, "module", "--run-path runs a file, not a module");
  if (t->module && t->no_python && !t->run_path)
    return err_set(e, -EINVAL, "--module and --no-python exclude each other: a module needs Python");
  if (t->use_env && t->pass_local_rank)
    return err_set(e, -EINVAL, "--use-env and --pass-local-rank exclude each other: remove one of them");
  return 0;
}

/* An option of ours behind the script. It is the script's argument, as under torchrun, and a script may have an option
 * of that name. So it gets a line and no refusal, and only names that torchrun's users know are looked for. */
static void note_misplaced(struct settling *s) {
  static const char *const names[] = {"nnodes",  "nproc-per-node", "nproc",      "rdzv-backend", "rdzv-endpoint",
                                      "rdzv-id", "rdzv-conf",      "standalone", "max-restarts", "no-python"};
  struct agent_options *o = s->o;
  if (o->dashes || command_line_kind(o) <= COMMAND_PROGRAM || strncmp(o->words[0], "torch.", 6) == 0) return;
  for (char *const *word = o->words + 1; *word; word++) {
    const char *name =
        strncmp(*word, "--", 2) == 0 ? opts_name(&agent_options_spec, *word + 2, strcspn(*word + 2, "=")) : NULL;
    for (size_t i = 0; name && i < sizeof(names) / sizeof(names[0]); i++) {
      if (strcmp(name, names[i]) != 0 || options_is_given(s, name)) continue;
      struct buf option = BUF_INIT, script = BUF_INIT;
      buf_put_escaped(&option, *word, strlen(*word), SHOWN_MAX);
      buf_put_escaped(&script, o->words[0], strlen(o->words[0]), SHOWN_MAX);
      options_note(o, "%s goes to %s, because it stands behind it: options of rdzv-agent stand in front",
                   buf_text(&option), buf_text(&script));
      buf_finish(&option);
      buf_finish(&script);
      return;
    }
  }
}

static int settle_all(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  int rc = options_nodes_from_cluster(s, e);
  if (rc == 0) rc = settle_place(s, e);
  if (rc == 0 && o->standalone) { /* one daemon of one machine competes with nobody */
    options_note_ignored(s, "claim", "a job on one machine has one daemon");
    o->claim = NULL;
  }
  if (o->n_endpoints == 0 || o->standalone) o->n_endpoints = o->standalone ? 0 : 1;
  if (rc == 0) rc = settle_conf(s, e);
  if (rc == 0) rc = settle_variables(s, e);
  if (rc == 0) rc = settle_rank(s, e);
  if (rc == 0) rc = settle_command(s, e);
  if (rc) return rc;
  /* Only Python knows its packages, so the agent checks a name that is not empty later. */
  if (o->torch.logs_specs && !*o->torch.logs_specs)
    return err_set(e, -EINVAL, "%s is empty: give a name, or remove it", options_spelling_of(s, "logs-specs"));
  options_rest_from_cluster(s);
  if (!o->device_timeout_ms) {
    if (options_source(s, "health") > OPT_FROM_FILE)
      options_note_ignored(s, "health", "--device-timeout 0 asks no driver");
    o->health = HEALTH_OFF;
  }
  if (o->orphan_grace_ms < 0)
    o->orphan_grace_ms = o->nnodes.min == o->nnodes.max ? ORPHAN_GRACE_FIXED_MS : ORPHAN_GRACE_MS;
  /* The start of a worker may last at least as long as a step. */
  static const char why[] = "hangs are detected only with --hang-timeout";
  enum opt_source start = options_source(s, "hang-start-timeout"), step = options_source(s, "hang-timeout");
  bool given = start > OPT_FROM_FILE || (start == OPT_FROM_FILE && step <= OPT_FROM_FILE);
  if (!given && o->hang_start_ms < o->hang_timeout_ms) o->hang_start_ms = o->hang_timeout_ms;
  if (!o->hang_timeout_ms) {
    options_note_ignored(s, "hang-start-timeout", why);
    options_note_ignored(s, "hang-watch", why);
    options_note_ignored(s, "hang-stacks", why);
  }
  /* A scheduler ends what a job leaves behind, and rightly so. The outer job ends what its worker leaves behind. */
  bool nested = cluster_variable(s->o->env, "RDZV_AGENT_SOCKET") || cluster_variable(s->o->env, "TORCHELASTIC_RUN_ID");
  const char *not_kept = o->nnodes.max > 1              ? "it is for jobs of one node"
                         : s->cluster->scheduler.is_set ? "nothing of a scheduler's job may stay when it has ended"
                         : s->cluster->launcher.is_set
                             ? "nothing that a launcher has started may stay when it has ended"
                         : nested                      ? "this agent runs in a worker of another job"
                         : strcmp(o->warm, "off") == 0 ? "--warm is off"
                                                       : NULL;
  if (not_kept && o->warm_keep_ms) {
    o->warm_keep_ms = 0;
    options_note_ignored(s, "warm-keep", not_kept);
  }
  /* An empty list means the default, as under torchrun. */
  o->signals_named = o->signals && options_is_given(s, "signals-to-handle");
  if (!o->signals)
    o->signals = UINT64_C(1) << SIGTERM | UINT64_C(1) << SIGINT | UINT64_C(1) << SIGHUP | UINT64_C(1) << SIGQUIT;
  /* An explicit 0 counts: it prevents --log-dir from implying --tee 3. */
  o->output.streams_named = options_is_given(s, "redirects") || options_is_given(s, "tee");
  note_rest(s);
  note_misplaced(s);
  if (o->quiet && o->verbose)
    return err_set(e, -EINVAL, "--quiet and --verbose exclude each other: remove one of them");
  if (o->slow_limit.percent && !o->slow_ranks_ms && options_source(s, "slow-limit") > OPT_FROM_FILE)
    return err_set(e, -EINVAL, "%s needs --slow-ranks: add --slow-ranks 3m", options_spelling_of(s, "slow-limit"));
  return 0;
}

static bool is_typed(int argc, char *const *argv, const char *name) {
  char spelling[OPT_SPELLING_MAX];
  return opts_is_typed(&agent_options_spec, argc, argv, name, spelling);
}

bool agent_options_asks(int argc, char *const *argv) {
  return is_typed(argc, argv, "help") || is_typed(argc, argv, "version") || is_typed(argc, argv, "print-completion");
}

void agent_options_take_words(struct agent_options *o, int argc, char *const *argv) {
  o->argv = argv;
  o->dashes = o->parsed.dashes;
  o->words = argv + o->parsed.rest;
  o->command = o->parsed.rest < argc && !(o->dashes && o->words[0][0] == '-');
}

int agent_options_parse(struct agent_options *o, int argc, char *const *argv, char *const *env,
                        const struct cluster *cluster, struct err *e) {
  struct cluster unknown = {.loopback = cluster ? cluster->loopback : NULL};
  struct settling s = {.o = o, .cluster = cluster ? cluster : &unknown};
  memset(o, 0, sizeof(*o));
  o->node_rank = o->order_key = o->torch.master_port = o->orphan_grace_ms = o->key_fd = -1;
  o->spec = agent_options_spec;
  o->spec.file = s.cluster->conf;
  o->help = is_typed(argc, argv, "help");
  o->version = is_typed(argc, argv, "version");
  if (o->help || o->version) return 0;
  int rc = opts_parse(&o->spec, argc, argv, env, o, &o->parsed, e);
  if (rc || o->completion) return rc;
  agent_options_take_words(o, argc, argv);
  o->env = env;
  s.said_standalone = o->standalone;
  if (cluster_variable(env, "RDZV_AGENT_SOCKET")) s.cluster = &unknown; /* an agent that is itself a worker */
  return settle_all(&s, e);
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
      .repeat_limit = o->repeat_limit,
      .join_timeout_ms = o->join_timeout_ms,
      .stop_timeout_ms = o->stop_timeout_ms,
      .lease_ms = o->lease_ms,
      .hang_timeout_ms = o->hang_timeout_ms,
      .slow_ranks_ms = o->slow_ranks_ms,
      .slow_limit = o->slow_limit.percent,
      .slow_limit_ms = o->slow_limit.percent ? o->slow_limit.time_ms : 0,
      .nccl_ids = o->nccl_ids,
      .pair_check = o->pair_check,
      .daemons = o->n_endpoints > 1 ? (int64_t)o->n_endpoints : 0,
      .claims = o->claim != NULL,
      .orphan_grace_ms = o->orphan_grace_ms == INT64_MAX ? 0
                         : o->orphan_grace_ms            ? o->orphan_grace_ms
                                                         : 1,
  };
}
