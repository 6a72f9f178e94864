/* SPDX-License-Identifier: Apache-2.0 */
/* --explain: where each setting came from.
 *
 * A comment follows each line that was not typed and is not a default. It is the source of a fact (agent/cluster), or
 * the variable that gave the option its value, ours or torchrun's, or the line of agent.conf.
 *
 * A variable may set an option of another name: --rdzv-conf has second names, --master-addr and --master-port form an
 * endpoint, and some of torchrun's variables are not options. A variable is shown only where it took effect.
 *
 * The launcher of --hosts, or of a batch script, passes its findings to the agents as RDZV_AGENT_* variables. The user
 * did not set those, so the line shows the launcher's source instead. */

#include <stdio.h>
#include <string.h>
#include "agent/options/internal.h"

enum { VALUE_SHOWN_MAX = 120, PATH_SHOWN_MAX = 300, NAME_LEN = 64 };

void agent_options_show_variable(const char *variable, struct buf *out) {
  size_t n = strcspn(variable, "=");
  buf_printf(out, "%.*s=", (int)n, variable);
  if (variable[n]) buf_put_escaped(out, variable + n + 1, strlen(variable + n + 1), VALUE_SHOWN_MAX);
}

static const char *variable_of(const struct agent_options *o, const char *option) {
  return opts_origin(&o->parsed, option)->variable;
}

static enum opt_source source_of(const struct agent_options *o, const char *option) {
  return opts_origin(&o->parsed, option)->source;
}

void agent_options_show_setting(const struct opts_spec *spec, const struct opts_setting *s, struct buf *out) {
  buf_put_escaped(out, spec->file->path, strlen(spec->file->path), PATH_SHOWN_MAX);
  buf_printf(out, ":%d", s->line);
}

char *agent_options_variable(char *const *env, const char *name) {
  size_t n = strlen(name);
  for (; env && *env; env++)
    if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') return *env;
  return NULL;
}

/* Adds a variable, or the launcher's source for it. */
static void add_source(const struct options_told *told, const char *variable, struct buf *out) {
  char name[NAME_LEN];
  if (!variable) return;
  snprintf(name, sizeof(name), "%.*s", (int)strcspn(variable, "="), variable);
  const char *better = agent_options_variable(told->launched, name);
  if (out->len) buf_puts(out, ", ");
  if (better)
    buf_puts(out, better + strlen(name) + 1);
  else
    agent_options_show_variable(variable, out);
}

/* Whether --rdzv-conf set the value of this line. */
static bool is_by_conf(const struct agent_options *o, const char *line) {
  const struct rdzv_conf *c = &o->torch.conf;
  bool is_static = !o->torch.backend || strcmp(o->torch.backend, "static") == 0;
  const struct {
    const char *line;
    bool said;
  } keys[] = {
      {"join-timeout", c->join_ms >= 0 || (is_static && c->timeout_ms >= 0)},
      {"last-call", c->last_call_ms >= 0},
      {"lease", rdzv_conf_lease_ms(c) >= 0},
      {"node-rank", c->rank >= 0},
      {"starts-rdzvd", c->is_host != HOST_AUTO},
  };
  for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
    if (strcmp(keys[i].line, line) == 0)
      return keys[i].said && (i == 4 || source_of(o, line) < source_of(o, "rdzv-conf"));
  return false;
}

/* A variable of torchrun's own that set the value of this line; or NULL. */
static const char *torchs_own(const struct agent_options *o, const char *line) {
  bool weaker = source_of(o, line) <= OPT_FROM_FILE;
  const char *name = NULL;
  if (strcmp(line, "log-line-prefix-template") == 0 && o->torch.prefix_by_variable)
    name = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
  if (strcmp(line, "stop-timeout") == 0 && weaker) name = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  if (strcmp(line, "store") == 0 && weaker && o->store == STORE_WORKER) name = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE";
  return name ? agent_options_variable(o->env, name) : NULL;
}

static void add_variables(const struct agent_options *o, const struct options_told *told, const char *line,
                          struct buf *out) {
  const struct opts_setting *set = opts_origin(&o->parsed, line)->setting;
  bool ours = source_of(o, line) != OPT_FROM_DEFAULT;
  if (strcmp(line, "endpoint") == 0) {
    bool alone = o->standalone && source_of(o, "standalone") != OPT_FROM_DEFAULT;
    bool named = !alone && o->torch.endpoint && *o->torch.endpoint;
    bool by_master = !named && !o->standalone && (o->torch.master_addr || o->torch.master_port >= 0);
    if (alone || named) add_source(told, variable_of(o, alone ? "standalone" : "endpoint"), out);
    if (by_master) add_source(told, variable_of(o, "master-addr"), out);
    if (by_master) add_source(told, variable_of(o, "master-port"), out);
  } else if (strcmp(line, "job") == 0) {
    add_source(told, o->rdzv_id ? variable_of(o, "rdzv-id") : NULL, out);
  } else if (strcmp(line, "node-rank") == 0 && o->node_rank < 0) {
    return;
  } else if (strcmp(line, "store-port") == 0 && !ours && o->store_port) {
    add_source(told, variable_of(o, "master-port"), out);
  } else if (is_by_conf(o, line)) {
    add_source(told, variable_of(o, "rdzv-conf"), out);
  } else if (torchs_own(o, line)) {
    add_source(told, torchs_own(o, line), out);
  } else if (set) {
    agent_options_show_setting(&o->spec, set, out);
  } else if (ours) {
    add_source(told, variable_of(o, line), out);
  }
}

void options_put_sources(const struct agent_options *o, const struct options_told *told, const struct buf *lines,
                         struct buf *out) {
  const struct options_sources *f = &o->from;
  const struct {
    const char *line, *source;
  } facts[] = {
      {"nnodes", f->nnodes},         {"nproc", f->nproc},       {"endpoint", f->endpoint},
      {"job", f->rdzv_id},           {"expect", f->expect},     {"order-key", f->order_key},
      {"local-rank", f->local_rank}, {"end-time", f->end_time}, {"scheduler-restarts", f->scheduler_restarts},
  };
  for (const char *p = buf_text(lines); *p;) {
    size_t n = strcspn(p, "\n");
    char line[NAME_LEN];
    snprintf(line, sizeof(line), "%.*s", (int)strcspn(p, " "), p);
    buf_append(out, p, n);
    struct buf source = BUF_INIT;
    const char *fact = NULL;
    for (size_t i = 0; i < sizeof(facts) / sizeof(*facts); i++)
      if (strcmp(facts[i].line, line) == 0) fact = facts[i].source;
    if (fact)
      buf_puts(&source, fact);
    else
      add_variables(o, told, line, &source);
    /* Facts that the agent found on this machine. */
    bool count = strcmp(line, "nproc") == 0 && o->nproc <= 0 && o->nproc != OPTIONS_NPROC_CPU;
    bool own = strcmp(line, "local-rank") == 0 && o->local_agents > 1 && told->local_world == told->workers;
    if (told->seen && (count || own)) buf_printf(&source, "%s%s", source.len ? ", " : "", told->seen);
    if (told->end_time && strcmp(line, "end-time") == 0) buf_printf(&source, ": %s", told->end_time);
    if (told->left_out && *told->left_out && strcmp(line, "warm") == 0)
      buf_printf(&source, "%s%s", source.len ? ", " : "", told->left_out);
    if (source.len) buf_printf(out, "  # %s", buf_text(&source));
    buf_finish(&source);
    buf_putc(out, '\n');
    p += n + (p[n] == '\n');
  }
}
