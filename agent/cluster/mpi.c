/* SPDX-License-Identifier: Apache-2.0 */
/* mpirun: Open MPI (4 and 5, with PRRTE) and Hydra, which MPICH and Intel MPI use.
 *
 * Both give a process its rank, the number of ranks, and the same two for its host. Neither reports the host of rank
 * 0. If all ranks share this host, that does not matter; else agents meet on mpirun's host. A scheduler's host list
 * does not help, since Open MPI's ssh does not pass the scheduler's variables on. mpirun's host runs an agent unless
 * mpirun was started on a login node: then the agent of rank 0 refuses to start (agent/rdzv-agent.c). Open MPI gives
 * its host in the environment. Hydra has a proxy on each host, above each agent, with mpiexec's host on its command
 * line: MPICH as --control-port HOST:PORT, Intel MPI as --upstream-host, which is mpiexec's host only in jobs with
 * fewer agents than its tree is wide.
 *
 * PMI_RANK and PMI_SIZE do not suffice: Slurm's srun --mpi=pmi2 sets them too, and --mpi=pmix sets PMIX_RANK. Hydra is
 * recognised by two variables that only it sets, Open MPI by its own, PRRTE by its name space.
 *
 * Two starts differ by Open MPI's number of the start, the same for all processes ("1449328641",
 * "prterun-node1-4711@1"), or by host and port of Hydra's mpiexec. If those cannot be read, the pid of the proxy serves
 * on one host. On several hosts it is the scheduler's job and its first host, which Hydra passes to every rank. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "agent/cluster/internal.h"
#include "common/ascii.h"
#include "common/endpoint.h"
#include "common/mem.h"
#include "common/opts/opts.h"

struct hydra {
  char host[ENDPOINT_HOST_MAX];
  int64_t port;
  char source[ENDPOINT_HOST_MAX + 80];
};

static const char HNP[] = "OMPI_MCA_orte_hnp_uri", SPACE[] = "PMIX_NAMESPACE";

static bool is_prrte(const struct row *r) {
  const char *space = row_variable(r, SPACE);
  return space && strncmp(space, "prte", 4) == 0;
}

/* A short word for the name space. */
static void set_run(struct row *r) {
  const char *space = row_variable(r, SPACE);
  bool word = space && strlen(space) <= 64;
  for (const char *p = space; word && *p; p++) word = *p > ' ' && *p < 0x7f;
  if (word) row_set_text(r, &r->c->run, space, SPACE);
  if (space && !word) row_warn_of(r, SPACE, "cannot be a job's name: give one with --rdzv-id");
}

/* "1449328640.0;tcp://192.0.2.2,10.0.0.2:42053;tcp6://[fd00::2]:37141": the first address that is not loopback. */
static bool read_uri(const char *uri, char out[ENDPOINT_HOST_MAX]) {
  const char *p = strstr(uri, "://");
  for (p = p ? p + 3 : ""; *p && *p != ';'; p += *p == ',') {
    size_t bracket = *p == '[', n = strcspn(p + bracket, bracket ? "],;" : ":,;");
    if (n >= ENDPOINT_HOST_MAX) return false;
    memcpy(out, p + bracket, n);
    out[n] = '\0';
    struct ipaddr a = ipaddr_parse(out);
    if (a.family && !ipaddr_is_loopback(&a)) return true;
    p += strcspn(p, ",;");
  }
  return false;
}

/* "prterun-NODE-PID@N" */
static bool read_space(const char *space, char out[ENDPOINT_HOST_MAX]) {
  const char *begin = strchr(space, '-'), *end = strrchr(space, '-');
  if (!begin || end <= begin + 1 || (size_t)(end - begin) > ENDPOINT_HOST_MAX || !ascii_is_digit(end[1])) return false;
  snprintf(out, ENDPOINT_HOST_MAX, "%.*s", (int)(end - begin - 1), begin + 1);
  return true;
}

static void set_mpiruns_host(struct row *r) {
  char host[ENDPOINT_HOST_MAX];
  const char *uri = row_variable(r, HNP);
  if (uri && read_uri(uri, host))
    row_set_text(r, &r->c->first_host, host, HNP);
  else if (is_prrte(r) && read_space(row_variable(r, SPACE), host))
    row_set_text(r, &r->c->first_host, host, SPACE);
  r->c->first_host_is_uncertain = r->c->first_host.is_set;
}

void cluster_read_open_mpi(struct row *r) {
  struct cluster *c = r->c;
  bool ompi = row_variable(r, "OMPI_COMM_WORLD_RANK") && row_variable(r, "OMPI_COMM_WORLD_SIZE");
  if (!ompi && !(is_prrte(r) && row_variable(r, "PMIX_RANK"))) return;
  const char *rank = ompi ? "OMPI_COMM_WORLD_RANK" : "PMIX_RANK";
  c->by_mpirun = true;
  row_set_text(r, &c->launcher, ompi ? "Open MPI" : "PRRTE", rank);
  row_set_number(r, &c->start, CLUSTER_STARTED, rank);
  row_take_number(r, &c->index, rank, 0, NODES_MAX - 1);
  row_take_number(r, &c->agents, "OMPI_COMM_WORLD_SIZE", 1, NODES_MAX);
  row_take_number(r, &c->local_index, "OMPI_COMM_WORLD_LOCAL_RANK", 0, CLUSTER_SLOTS_MAX);
  row_take_number(r, &c->local_agents, "OMPI_COMM_WORLD_LOCAL_SIZE", 1, CLUSTER_SLOTS_MAX);
  set_run(r);
  set_mpiruns_host(r);
}

/* Hydra. ----------------------------------------------------------------------------------------------------------- */

/* Whether other hosts can use this name, as far as can be seen. */
static bool is_reachable(const char *host) {
  struct row_hosts list = {0};
  struct ipaddr ip = ipaddr_parse(host);
  bool good = row_hosts_add(&list, host, strlen(host), 1, NULL) == 0;
  row_hosts_drop(&list);
  return good && !ipaddr_is_loopback(&ip) && strcasecmp(host, "localhost") != 0;
}

/* MPICH's: --control-port n1:41823 */
static bool read_control_port(const struct row *r, int64_t pid, struct hydra *h) {
  char text[ENDPOINT_HOST_MAX];
  if (!row_argument(r, pid, "--control-port", text, sizeof(text))) return false;
  char *colon = strrchr(text, ':');
  if (!colon || parse_int(colon + 1, 1, 65535, &h->port, NULL)) return false;
  *colon = '\0';
  snprintf(h->host, sizeof(h->host), "%s", text);
  snprintf(h->source, sizeof(h->source), "(Hydra's proxy: --control-port %s:%" PRId64 ")", h->host, h->port);
  return true;
}

/* Intel MPI's. In large jobs some proxies are started by other proxies and name these. All agents must conclude the
 * same, so only certainly small jobs count. */
static bool read_upstream(const struct row *r, int64_t pid, struct hydra *h) {
  char level[8], width[8], port[8];
  int64_t most;
  if (!row_argument(r, pid, "--tree-level", level, sizeof(level)) || strcmp(level, "1") != 0 ||
      !row_argument(r, pid, "--tree-width", width, sizeof(width)) || parse_int(width, 1, NODES_MAX, &most, NULL) ||
      cluster_number(&r->c->agents, NODES_MAX) >= most ||
      !row_argument(r, pid, "--upstream-port", port, sizeof(port)) || parse_int(port, 1, 65535, &h->port, NULL) ||
      !row_argument(r, pid, "--upstream-host", h->host, sizeof(h->host)))
    return false;
  snprintf(h->source, sizeof(h->source), "(Hydra's proxy: --upstream-host %s --upstream-port %" PRId64 ")", h->host,
           h->port);
  return true;
}

/* The host of mpiexec and its port for proxies: the same for all agents of one start only. */
static bool find_mpiexec(const struct row *r, struct hydra *h) {
  static const char *const proxies[] = {"hydra_pmi_proxy", "pmi_proxy"};
  int64_t pid;
  for (size_t i = 0; i < sizeof(proxies) / sizeof(*proxies); i++)
    if ((pid = row_ancestor(r, proxies[i])) && read_control_port(r, pid, h)) return is_reachable(h->host);
  pid = row_ancestor(r, "hydra_bstrap_pr");
  return pid && read_upstream(r, pid, h) && is_reachable(h->host);
}

/* The proxy that started this process, the same for all agents on this host. */
static void set_proxys_run(struct row *r) {
  static const char *const proxies[] = {"hydra_pmi_proxy", "pmi_proxy", "hydra_bstrap_pr"};
  for (size_t i = 0; i < sizeof(proxies) / sizeof(*proxies); i++) {
    int64_t pid = row_ancestor(r, proxies[i]);
    if (!pid) continue;
    char *run = xasprintf("hydra-%" PRId64, pid);
    row_set_text(r, &r->c->run, run, "(the pid of Hydra's proxy)");
    free(run);
    return;
  }
}

/* A name for this start, and the host of mpiexec. */
static void set_hydras_run(struct row *r) {
  struct cluster *c = r->c;
  struct hydra h;
  bool one_host = c->agents.is_set && c->local_agents.is_set && c->agents.number == c->local_agents.number;
  if (find_mpiexec(r, &h)) {
    char *run = xasprintf("hydra-%s-%" PRId64, h.host, h.port);
    row_set_text(r, &c->run, run, h.source);
    row_set_text(r, &c->first_host, h.host, h.source);
    c->first_host_is_uncertain = true;
    free(run);
  } else if (one_host) {
    set_proxys_run(r);
  }
}

void cluster_read_hydra(struct row *r) {
  struct cluster *c = r->c;
  if (!row_variable(r, "PMI_RANK") || !row_variable(r, "PMI_SIZE") || !row_variable(r, "MPI_LOCALRANKID")) return;
  if (c->launcher.is_set) return;
  c->by_mpirun = true;
  row_set_text(r, &c->launcher, "Hydra", "PMI_RANK MPI_LOCALRANKID");
  row_set_number(r, &c->start, CLUSTER_STARTED, "PMI_RANK MPI_LOCALRANKID");
  row_take_number(r, &c->index, "PMI_RANK", 0, NODES_MAX - 1);
  row_take_number(r, &c->agents, "PMI_SIZE", 1, NODES_MAX);
  row_take_number(r, &c->local_index, "MPI_LOCALRANKID", 0, CLUSTER_SLOTS_MAX);
  row_take_number(r, &c->local_agents, "MPI_LOCALNRANKS", 1, CLUSTER_SLOTS_MAX);
  set_hydras_run(r);
}
