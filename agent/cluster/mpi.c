/* SPDX-License-Identifier: Apache-2.0 */
/* Launchers that start one agent of several: Open MPI's mpirun (4 and 5, with PRRTE), Hydra (MPICH, Intel MPI), Flux,
 * HPE's PALS, and others that set PMI's variables.
 *
 * Each gives a process its rank and the number of ranks, and mostly the same two for its host: one table. An agent that
 * is one of several never starts others, whatever else its environment has: PALS passes PBS_NODEFILE to each rank.
 *
 * No launcher reports the host of rank 0. If all ranks share this host, that does not matter; else agents meet on
 * mpirun's host, or on the first host of the scheduler's job. A scheduler's host list does not help Open MPI, since its
 * ssh does not pass the scheduler's variables on. mpirun's host runs an agent unless mpirun was started on a login
 * node: then the agent of rank 0 refuses to start (agent/rdzv-agent.c). Open MPI gives its host in the environment.
 * Hydra has a proxy on each host, above each agent, with mpiexec's host on its command line: MPICH as --control-port
 * HOST:PORT, Intel MPI as --upstream-host, which is mpiexec's host only in jobs with fewer agents than its tree is wide.
 *
 * PMI_RANK and PMI_SIZE do not suffice: Slurm's srun --mpi=pmi2 sets them too, and --mpi=pmix sets PMIX_RANK. So a
 * launcher is recognised by a variable that only it sets, PRRTE by its name space, and a step of Slurm goes before PMI.
 * Flux can imitate PALS (its plugin cray-pals), so it comes first.
 *
 * Two starts differ by Open MPI's number of the start, the same for all processes ("1449328641",
 * "prterun-node1-4711@1"), by host and port of Hydra's mpiexec, by the id that PALS gives to each mpiexec, or by Flux'
 * job. If Hydra's host and port cannot be read, the pid of the proxy serves on one host. On several hosts it is the
 * scheduler's job and its first host, which Hydra passes to every rank. */

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

/* Names the run KIND-ID. Flux writes its ids with a letter that is not ASCII, U+0192, or with "f" in its place. */
static void set_run(struct row *r, const char *kind, const char *variable) {
  static const char florin[] = "\xc6\x92";
  const char *id = row_variable(r, variable), *rest = id;
  if (!id) return;
  if (strncmp(id, florin, 2) == 0) rest = id + 2;
  bool word = strlen(id) <= 64;
  for (const char *p = rest; word && *p; p++) word = *p > ' ' && *p < 0x7f;
  char *run = xasprintf("%s-%s%s", kind, rest == id ? "" : "f", rest);
  if (word) row_set_text(r, &r->c->run, run, variable);
  if (!word) row_warn_of(r, variable, "cannot be a job's name: give one with --rdzv-id");
  free(run);
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

static void read_open_mpi(struct row *r) {
  char host[ENDPOINT_HOST_MAX];
  const char *uri = row_variable(r, HNP), *space = row_variable(r, SPACE);
  if (uri && read_uri(uri, host)) {
    row_set_text(r, &r->c->first_host, host, HNP);
  } else if (is_prrte(r)) { /* "prterun-NODE-PID@N" */
    const char *begin = strchr(space, '-'), *end = strrchr(space, '-');
    size_t n = begin && end > begin + 1 && ascii_is_digit(end[1]) ? (size_t)(end - begin) : 0;
    snprintf(host, sizeof(host), "%.*s", n ? (int)n - 1 : 0, n ? begin + 1 : "");
    if (n && n <= ENDPOINT_HOST_MAX) row_set_text(r, &r->c->first_host, host, SPACE);
  }
  r->c->first_host_is_uncertain = r->c->first_host.is_set;
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

/* A name for this start, and the host of mpiexec. Its port for proxies is the same for all agents of one start only. */
static void read_hydra(struct row *r) {
  static const char *const proxies[] = {"hydra_pmi_proxy", "pmi_proxy", "hydra_bstrap_pr"};
  struct cluster *c = r->c;
  struct hydra h;
  int64_t proxy = 0; /* the one that started this process, the same for all agents on this host */
  bool known = false,
       one_host = c->agents.is_set && c->local_agents.is_set && c->agents.number == c->local_agents.number;
  for (size_t i = 0; i < 3 && !known; i++) {
    int64_t pid = row_ancestor(r, proxies[i]);
    if (pid) known = i < 2 ? read_control_port(r, pid, &h) : read_upstream(r, pid, &h);
    if (!proxy) proxy = pid;
  }
  known = known && is_reachable(h.host);
  if (!known && !(one_host && proxy)) return;
  char *run = known ? xasprintf("mpi-hydra-%s-%" PRId64, h.host, h.port) : xasprintf("mpi-hydra-%" PRId64, proxy);
  row_set_text(r, &c->run, run, known ? h.source : "(the pid of Hydra's proxy)");
  free(run);
  if (!known) return;
  row_set_text(r, &c->first_host, h.host, h.source);
  c->first_host_is_uncertain = true;
}

/* The table. ------------------------------------------------------------------------------------------------------- */

/* Flux does not report how it spreads tasks, which it does evenly unless asked otherwise. */
static void read_flux(struct row *r) {
  int64_t agents = cluster_number(&r->c->agents, 0), nodes;
  row_set_text(r, &r->c->scheduler, "Flux", "FLUX_JOB_ID");
  if (!row_number(r, "FLUX_JOB_NNODES", 1, NODES_MAX, &nodes)) return;
  row_set_number(r, &r->c->nodes, nodes, "FLUX_JOB_NNODES");
  if (agents && agents % nodes == 0)
    row_set_number(r, &r->c->local_agents, agents / nodes, "FLUX_JOB_SIZE FLUX_JOB_NNODES");
}

/* srun sets PMI's variables too, and its own say more. */
static bool is_no_step(const struct row *r) {
  return !cluster_is_step(row_variable(r, "SLURM_STEP_ID"));
}

static const struct launcher {
  const char *name, *sign; /* sign: a variable that only this launcher sets */
  const char *rank, *size, *local_rank, *local_size;
  void (*more)(struct row *r);        /* where its agents meet; NULL: it is not known */
  bool (*is_it)(const struct row *r); /* NULL: its sign and a rank suffice */
  const char *kind, *run;             /* names this start KIND-ID, with the id in `run`; NULL: no variable has one */
} launchers[] = {
    {"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", read_open_mpi, NULL, "mpi", SPACE},
    {"PRRTE", SPACE, "PMIX_RANK", NULL, NULL, NULL, read_open_mpi, is_prrte, "mpi", SPACE},
    {"Hydra", "MPI_LOCALRANKID", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", read_hydra},
    {"Flux", "FLUX_JOB_ID", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", NULL, read_flux, NULL, "flux",
     "FLUX_JOB_ID"},
    {"PALS", "PALS_RANKID", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", NULL, NULL, "pals",
     "PALS_APID"},
    {"mpiexec", "PMI_SIZE", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", NULL, is_no_step},
};

void cluster_read_launcher(struct row *r) {
  struct cluster *c = r->c;
  const struct launcher *l = launchers, *end = l + sizeof(launchers) / sizeof(*launchers);
  while (l < end && !(row_variable(r, l->sign) && (row_variable(r, l->rank) || (l->size && row_variable(r, l->size))) &&
                      (!l->is_it || l->is_it(r))))
    l++;
  if (l == end) return;
  const char *shown = row_variable(r, l->rank) ? l->rank : l->size;
  c->by_mpirun = true;
  row_set_text(r, &c->launcher, l->name, shown);
  row_set_number(r, &c->start, CLUSTER_STARTED, shown);
  row_take_number(r, &c->index, l->rank, 0, NODES_MAX - 1);
  if (l->size) row_take_number(r, &c->agents, l->size, 1, NODES_MAX);
  if (l->local_rank) row_take_number(r, &c->local_index, l->local_rank, 0, CLUSTER_SLOTS_MAX);
  if (l->local_size) row_take_number(r, &c->local_agents, l->local_size, 1, CLUSTER_SLOTS_MAX);
  if (l->run) set_run(r, l->kind, l->run);
  if (l->more) l->more(r);
}
