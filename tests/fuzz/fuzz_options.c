/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's command line and environment, a scheduler's variables too. A line of the input is a word, or, behind
 * '$', a variable; every file that a variable names has the whole input in it, and so has agent.conf. Whatever is said
 * is either refused with a sentence or settled to what the rest of the agent may rely on. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "agent/options/command_line.h"
#include "common/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

enum { WORDS_MAX = 64 };

static size_t count(char *const *words) {
  size_t n = 0;
  while (words[n]) n++;
  return n;
}

static char *read_file(void *ctx, const char *path, size_t max, struct err *e) {
  const char *text = ctx;
  if (path[0] && strlen(text) <= max) return strdup(text);
  err_set(e, -ENOENT, "no such file");
  return NULL;
}

/* Each fact in its bounds, with its source, and warnings that are lines. */
static void check_facts(const struct cluster *c) {
  const struct cluster_fact *const numbers[] = {&c->agents, &c->index, &c->local_agents, &c->local_index,
                                                &c->port,   &c->gpus,  &c->end_time,     &c->restarts};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
    if (numbers[i]->is_set && (!numbers[i]->source || numbers[i]->number < 0)) abort();
  int64_t agents = cluster_number(&c->agents, NODES_MAX), local = cluster_number(&c->local_agents, CLUSTER_SLOTS_MAX);
  if (agents < 1 || agents > NODES_MAX || local < 1 || (c->agents.is_set && c->local_agents.is_set && local > agents))
    abort();
  if (cluster_number(&c->index, 0) >= agents || cluster_number(&c->port, 1) > 65535) abort();
  if (c->job.is_set && (!c->job.text[0] || strlen(c->job.text) > JOB_ID_MAX)) abort();
  if (c->hosts.is_set && (strlen(c->hosts.text) > HOSTS_MAX || cluster_count(c->hosts.text) != (int64_t)c->n_hosts))
    abort();
  for (size_t i = 0; i < c->n_hosts; i++)
    if (!c->host[i].name[0] || strlen(c->host[i].name) > HOST_MAX || c->host[i].slots < 0) abort();
}

static void check_settled(const struct agent_options *o) {
  struct settings s;
  agent_options_settings(o, &s);
  if (s.min_nodes < 1 || s.max_nodes < s.min_nodes || s.max_nodes > NODES_MAX) abort();
  if (s.lease_ms < LEASE_MIN_MS || s.lease_ms > LEASE_MAX_MS || s.join_timeout_ms < 1) abort();
  if (s.join_timeout_ms > TIMEOUT_MAX_MS || s.last_call_ms > TIMEOUT_MAX_MS || s.stop_timeout_ms > TIMEOUT_MAX_MS)
    abort();
  if (o->node_rank >= s.max_nodes || o->nproc > WORKERS_MAX || !o->signals || !o->role) abort();
  if (o->standalone ? o->endpoints->host[0] || s.max_nodes != 1 : !o->endpoints->host[0] || !o->endpoints->port)
    abort();
  if (o->store_port < 0 || o->store_port > 65535 || strlen(o->notes) > OPTIONS_NOTES_MAX) abort();
  for (int i = 0; i < WORKERS_MAX; i++)
    if (o->output.redirects.of[i] > STD_ALL || o->output.tee.of[i] > STD_ALL) abort();
}

static size_t explained_lines(const struct agent_options *o, char *const *argv) {
  struct buf text = BUF_INIT;
  const struct options_told told = {.job = "job", .workers = 2, .local_world = 2, .command = argv};
  agent_options_explain(o, &told, &text);
  size_t lines = 0;
  for (size_t i = 0; i < text.len; i++) lines += text.data[i] == '\n';
  if (text.data[text.len - 1] != '\n') abort();
  buf_finish(&text);
  return lines;
}

/* As many as for any other: a value cannot add a line of its own. */
static size_t plain_lines(void) {
  static char name[] = "rdzv-agent", command[] = "true";
  char *const argv[] = {name, command, NULL}, *const none[] = {NULL};
  static struct agent_options o;
  struct err e = ERR_INIT;
  if (agent_options_parse(&o, 2, argv, none, NULL, &e)) abort();
  return explained_lines(&o, argv + 1);
}

static void check_command(const struct agent_options *o, char *const *env) {
  static char trainer[] = "rdzv-trainer";
  char **argv = command_line_create(o, env, trainer), **own = command_line_for(argv, 12);
  if (!argv[0] || count(argv) != count(own)) abort();
  for (size_t i = 1; own[i]; i++)
    if (strstr(own[i], "${local_rank}") && !strstr(argv[i], "${${local_rank}")) abort();
  if (explained_lines(o, argv) != plain_lines()) abort();
  free(argv);
  free(own);
}

/* The same bytes as agent.conf; NULL: they are none. */
static const struct opts_file *read_conf(struct opts_file *f, const uint8_t *data, size_t len) {
  struct err e = ERR_INIT;
  int rc = opts_file_parse(f, &agent_options_spec, xstrdup("agent.conf"), xmemdup(data, len), len, &e);
  if (rc && (rc != -EINVAL || strncmp(e.text, "agent.conf:", 11) != 0)) abort();
  return rc ? NULL : f;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  static char name[] = "rdzv-agent";
  char *argv[WORDS_MAX + 1] = {name, NULL}, *env[WORDS_MAX + 1] = {NULL};
  int argc = 1, n = 0;
  static struct agent_options o;
  struct err e = ERR_INIT;
  char *text = calloc(1, len + 1);
  if (!text) return 0;
  if (len) memcpy(text, data, len);
  for (char *p = text, *end; p; p = end) {
    end = strchr(p, '\n');
    if (end) *end++ = '\0';
    if (*p == '$' && n < WORDS_MAX) env[n++] = p + 1;
    if (*p != '$' && argc < WORDS_MAX) argv[argc++] = p;
  }
  argv[argc] = env[n] = NULL;
  struct cluster c;
  char *whole = strndup((const char *)data, len);
  cluster_read(&c, &(struct cluster_site){.env = env, .host = "n1", .read_file = read_file, .ctx = whole});
  check_facts(&c);
  struct opts_file conf;
  c.conf = read_conf(&conf, data, len);
  int rc = agent_options_parse(&o, argc, argv, env, &c, &e);
  if (rc && (rc != -EINVAL || !e.text[0])) abort();
  if (rc == 0 && !o.help && !o.version) {
    check_settled(&o);
    check_command(&o, env);
  }
  cluster_finish(&c);
  opts_file_finish(&conf);
  free(whole);
  free(text);
  return 0;
}
