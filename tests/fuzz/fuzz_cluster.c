/* SPDX-License-Identifier: Apache-2.0 */
/* The traces of a cluster: variables, a line each, and behind an empty line the text of every file that they
 * name. Whatever stands there, facts are within their bounds, have a source, and fit to each other; what is no fact
 * is a sentence. */

#include <stdlib.h>
#include <string.h>
#include "agent/cluster/cluster.h"
#include "common/hostlist.h"
#include "common/mem.h"

enum { VARIABLES_MAX = 100 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static char *read_file(void *ctx, const char *path, size_t max, struct err *e) {
  const char *text = ctx;
  if (!path[0]) abort();
  if (strlen(text) <= max) return xstrdup(text);
  err_set(e, -1, "too long");
  return NULL;
}

static void check_number(const struct cluster_fact *f, int64_t min, int64_t max) {
  if (f->is_set && (f->number < min || f->number > max || !f->source)) abort();
}

static void check_text(const struct cluster_fact *f, size_t max) {
  if (f->is_set && (!f->text || !f->text[0] || strlen(f->text) > max || !f->source)) abort();
}

static void check(const struct cluster *c) {
  check_number(&c->agents, 1, NODES_MAX);
  check_number(&c->index, 0, NODES_MAX - 1);
  check_number(&c->local_agents, 1, CLUSTER_SLOTS_MAX);
  check_number(&c->nodes, 1, NODES_MAX);
  check_number(&c->port, 1, 65535);
  check_number(&c->start, CLUSTER_ALONE, CLUSTER_STARTED);
  check_number(&c->restarts, 0, INT32_MAX);
  check_number(&c->gpus, 0, INT32_MAX);
  check_text(&c->job, JOB_ID_MAX);
  check_text(&c->hosts, HOSTS_MAX);
  check_text(&c->first_host, SIZE_MAX);
  if (c->agents.is_set && c->index.is_set && c->index.number >= c->agents.number) abort();
  if (c->n_hosts > NODES_MAX || (c->hosts.is_set && cluster_count(c->hosts.text) <= 0)) abort();
  for (size_t i = 0; i < c->n_hosts; i++)
    if (!c->host[i].name[0] || c->host[i].name[0] == '-' || strlen(c->host[i].name) > HOST_MAX) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  char *text = xmemdup(data, len), *env[VARIABLES_MAX + 1] = {NULL};
  struct cluster c;
  char *p = text;
  for (size_t n = 0; n < VARIABLES_MAX && *p && *p != '\n'; n++) {
    env[n] = p;
    p += strcspn(p, "\n");
    if (*p) *p++ = '\0';
  }
  cluster_read(&c, &(struct cluster_site){.env = env, .host = "n1", .read_file = read_file, .ctx = p});
  check(&c);
  cluster_finish(&c);
  free(text);
  return 0;
}
