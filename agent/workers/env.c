/* SPDX-License-Identifier: Apache-2.0 */
/* The worker's environment: the agent's own, minus the agent's options, plus the worker's place.
 *
 * Names, values and their meaning for a reader stand in one list. So the variables that are set, those that are removed
 * from the inherited environment, and the README cannot differ. Old values must be removed, not shadowed: getenv,
 * Python and the shell do not agree which of two equal names counts.
 *
 * Names and values are torchrun's, to the letter where a worker could look at them ("True", not "1").
 * TORCHELASTIC_RESTART_COUNT is the job's count, the same on all nodes, because scripts name files by it. RDZV_AGENT_*
 * are the agent's options, or the socket of an outer agent: a worker that starts an agent of its own must get neither.
 * PET_* go on to the workers, as under torchrun.
 *
 * OMPI_COMM_WORLD_* of an agent that mpirun started have the agent's place, and scripts would believe them. So they are
 * replaced if they are inherited, and elsewhere set only on request: to libraries they mean that mpirun is here.
 * SLURM_PROCID and the like belong to a task, and a task of Slurm is an agent. An agent with one worker leaves them. */

#include "agent/workers/env.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

/* INT and STR are set (a NULL is not: the inherited value stays); SPARE gives way to what is inherited; MPI as above;
 * TOLD is set where its condition holds. The texts are the README's. */
#define ENV_LIST(INT, STR, SPARE, MPI, TOLD)                                                                           \
  INT("RANK", p->rank, "this worker's number in the job, from 0")                                                      \
  INT("WORLD_SIZE", start->world_size, "workers in the job")                                                           \
  INT("LOCAL_RANK", p->local_rank,                                                                                     \
      "its number on this node, by which it takes a GPU; with `--virtual-local-rank` always 0")                        \
  INT("LOCAL_WORLD_SIZE", p->local_world,                                                                              \
      "workers on this node: `--nproc`, times the agents here that see the same GPUs")                                 \
  INT("GROUP_RANK", start->node_rank, "the node's number in this round")                                               \
  INT("GROUP_WORLD_SIZE", start->nodes, "nodes in this round")                                                         \
  INT("NODE_RANK", start->node_rank, "as `GROUP_RANK`")                                                                \
  INT("ROLE_RANK", start->role_rank_base + p->own_rank,                                                                \
      "its number among the workers of nodes with the same `--role`")                                                  \
  INT("ROLE_WORLD_SIZE", start->role_world_size, "workers in that role")                                               \
  STR("ROLE_NAME", job->role ? job->role : "default", "`--role`")                                                      \
  STR("MASTER_ADDR", start->head_addr, "node rank 0's address")                                                        \
  INT("MASTER_PORT", start->store_port,                                                                                \
      "port of the round's store there, another one in each round, or `--store-port`")                                 \
  INT("TORCHELASTIC_RESTART_COUNT", start->restarts_used, "restarts that the job has used so far")                     \
  INT("TORCHELASTIC_MAX_RESTARTS", job->max_restarts, "`--max-restarts`")                                              \
  STR("TORCHELASTIC_RUN_ID", job->run_id, "the job's name: `--rdzv-id`")                                               \
  STR("TORCHELASTIC_USE_AGENT_STORE", job->worker_store ? "False" : "True",                                            \
      "`True`: the agent serves the store; `False` with `--store worker`")                                             \
  STR("TORCHELASTIC_ERROR_FILE", job->error_file ? job->error_file : "",                                               \
      "file in which a worker can report its error (`torch.distributed.elastic`'s `record` does)")                     \
  STR("TORCHELASTIC_SIGNALS_TO_HANDLE", p->signals, "`--signals-to-handle`")                                           \
  SPARE("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1", "1, if it is not set already")                                         \
  SPARE("NCCL_RAS_ADDR", job->ras_addr,                                                                                \
        "where NCCL answers questions about a hang: a port of this agent alone, if it is not set already")             \
  SPARE("NCCL_PROFILER_PLUGIN", job->profiler,                                                                         \
        "with `--slow-ranks`: librdzv-nccl-profiler.so, which reports times of collectives, if it is not set already") \
  SPARE("OMP_NUM_THREADS", p->threads, "1, if it is not set already and there are several workers here")               \
  STR("CUDA_VISIBLE_DEVICES", p->lists.v[DEVICE_LIST_CUDA],                                                            \
      "untouched; with `--virtual-local-rank`, and for rdzv-trainer, the worker's own device, of NVIDIA or AMD")       \
  STR("HIP_VISIBLE_DEVICES", p->lists.v[DEVICE_LIST_HIP], "the same on GPUs of AMD")                                   \
  STR("ZE_AFFINITY_MASK", p->lists.v[DEVICE_LIST_ZE], "the same on GPUs of Intel")                                     \
  STR("ONEAPI_DEVICE_SELECTOR", p->lists.v[DEVICE_LIST_SELECTOR],                                                      \
      "`level_zero:gpu` if `ZE_AFFINITY_MASK` is set here and the inherited value has numbers")                        \
  INT("RDZV_ROUND", start->round, "the round, from 1; it also counts when nodes came or went")                         \
  INT("RDZV_RESTART_COUNT", start->restarts_used, "as `TORCHELASTIC_RESTART_COUNT`")                                   \
  STR("RDZV_RUN_ID", job->run_id, "as `TORCHELASTIC_RUN_ID`")                                                          \
  TOLD("RDZV_END_TIME", job->end_time > 0, job->end_time,                                                              \
       "when the scheduler ends the job, in seconds since 1970, where that is known")                                  \
  TOLD("RDZV_SCHEDULER_RESTARTS", job->scheduler_restarts >= 0, job->scheduler_restarts,                               \
       "how often the scheduler has started the job again, where it reports that")                                     \
  STR("RDZV_HEAD_ADDR", start->head_addr, "as `MASTER_ADDR`")                                                          \
  INT("RDZV_LOCAL_RANK", p->own_rank, "its number among the workers of its agent, whatever `LOCAL_RANK` says")         \
  STR("RDZV_DEVICE_UUID", job->device_uuid, "UUID of the device that `LOCAL_RANK` counts to, where it is known")       \
  STR("RDZV_NCCL_LIBRARY", job->nccl_library, "`--nccl-library`, where it is given")                                   \
  STR("RDZV_AGENT_SOCKET", job->socket, "where `librdzv` finds the agent")                                             \
  MPI("OMPI_COMM_WORLD_RANK", p->rank, "as `RANK`: where inherited, or with `--mpi-env`")                              \
  MPI("OMPI_COMM_WORLD_SIZE", start->world_size, "as `WORLD_SIZE`, in the same cases")                                 \
  MPI("OMPI_COMM_WORLD_LOCAL_RANK", p->local_rank, "as `LOCAL_RANK`, in the same cases")                               \
  MPI("OMPI_COMM_WORLD_LOCAL_SIZE", p->local_world, "as `LOCAL_WORLD_SIZE`, in the same cases")                        \
  MPI("OMPI_COMM_WORLD_NODE_RANK", p->node_rank, "as `LOCAL_RANK` without `--virtual-local-rank`, in the same cases")  \
  TOLD("SLURM_PROCID", is_agents_own(base, job, "SLURM_PROCID"), p->rank,                                              \
       "as `RANK`: where inherited, if the agent has several workers")                                                 \
  TOLD("SLURM_NTASKS", is_agents_own(base, job, "SLURM_NTASKS"), start->world_size,                                    \
       "as `WORLD_SIZE`, in the same cases")                                                                           \
  TOLD("SLURM_NPROCS", is_agents_own(base, job, "SLURM_NPROCS"), start->world_size,                                    \
       "as `WORLD_SIZE`, in the same cases")                                                                           \
  TOLD("SLURM_LOCALID", is_agents_own(base, job, "SLURM_LOCALID"), p->node_rank,                                       \
       "as `LOCAL_RANK` without `--virtual-local-rank`, in the same cases")                                            \
  TOLD("SLURM_NODEID", is_agents_own(base, job, "SLURM_NODEID") && !job->shares_host, start->node_rank,                \
       "as `GROUP_RANK`, in the same cases; untouched where several agents share the host")

#define COUNT(name, value, text)             +1
#define COUNT_TOLD(name, known, value, text) +1
enum { N_NAMES = 0 ENV_LIST(COUNT, COUNT, COUNT, COUNT, COUNT_TOLD) };
#undef COUNT_TOLD
#undef COUNT

#define TEXT(name, value, text)             {name, text},
#define TEXT_TOLD(name, known, value, text) TEXT(name, value, text)
const struct env_text env_texts[] = {ENV_LIST(TEXT, TEXT, TEXT, TEXT, TEXT_TOLD){NULL, NULL}};
#undef TEXT_TOLD
#undef TEXT

static const char agent_prefix[] = "RDZV_AGENT_";
/* An outer torchrun or agent has set these for its own workers alone, or they lead to the job's key. */
static const char *const dropped[] = {"TORCHELASTIC_TIMER_FILE", "RDZV_DEVICE_UUID", "RDZV_KEY", "RDZV_KEY_FILE", NULL};
/* A shell's or a terminal's own words, other ones at each start. No import reads them. */
static const char *const fleeting[] = {"_", "OLDPWD", "SHLVL", "TMUX_PANE", "WINDOWID", NULL};

struct numbers {
  int64_t rank, local_rank, own_rank; /* local_rank: as the worker sees it; own_rank: among the workers of its agent */
  int64_t node_rank, local_world;     /* node_rank: among the workers of the host, whichever devices the worker sees */
  const char *threads, *signals;
  struct device_lists lists;
};

static bool has_name(const char *variable, const char *name, size_t n) {
  return strncmp(variable, name, n) == 0 && (variable[n] == '=' || variable[n] == '\0');
}

static bool is_inherited(char *const *base, const char *name) {
  size_t n = strlen(name);
  for (; base && *base; base++)
    if (has_name(*base, name, n)) return true;
  return false;
}

/* A variable by which Slurm numbers this agent, not its workers. */
static bool is_agents_own(char *const *base, const struct env_job *job, const char *name) {
  return job->workers > 1 && is_inherited(base, name);
}

struct own {
  char **env;
  size_t n;
};

static void put_string(struct own *own, const char *name, const char *value) {
  if (value) own->env[own->n++] = xasprintf("%s=%s", name, value);
}

static void put_int(struct own *own, const char *name, int64_t value) {
  own->env[own->n++] = xasprintf("%s=%" PRId64, name, value);
}

static void put_list(struct own *own, char *const *base, const struct start *start, const struct env_job *job,
                     const struct numbers *p) {
#define PUT_INT(name, value, text) put_int(own, name, value);
#define PUT_STR(name, value, text) put_string(own, name, value);
#define PUT_SPARE(name, value, text)                                                                                   \
  if (!is_inherited(base, name)) put_string(own, name, value);
#define PUT_MPI(name, value, text)                                                                                     \
  if (job->mpi_env || is_inherited(base, name)) put_int(own, name, value);
#define PUT_TOLD(name, known, value, text)                                                                             \
  if (known) put_int(own, name, value);
  ENV_LIST(PUT_INT, PUT_STR, PUT_SPARE, PUT_MPI, PUT_TOLD)
#undef PUT_TOLD
#undef PUT_INT
#undef PUT_STR
#undef PUT_SPARE
#undef PUT_MPI
}

char **env_create(char *const *base, const struct start *start, const struct env_job *job, uint32_t local_rank) {
  struct buf signals = BUF_INIT;
  env_signal_names(job->signals, &signals);
  struct numbers numbers = {
      .rank = start->rank_base + (int64_t)local_rank,
      .local_rank = job->virtual_local_rank ? 0 : job->first + (int64_t)local_rank,
      .own_rank = (int64_t)local_rank,
      .node_rank = job->first + (int64_t)local_rank,
      .local_world = job->local_world ? job->local_world : job->workers,
      .threads = env_limits_threads(base, job->workers) ? "1" : NULL,
      .signals = buf_text(&signals),
  };
  if (job->alone) numbers.lists = devices_show(job->alone->vendor, job->alone->entry, base);
  size_t n = 0;
  while (base && base[n]) n++;
  struct own own = {.env = xcalloc(n + N_NAMES + 1, sizeof(*own.env))};
  put_list(&own, base, start, job, &numbers);
  size_t at = own.n;
  for (size_t i = 0; i < n; i++) { /* without those that `own` replaces, or that are meant for an agent */
    bool taken = strncmp(base[i], agent_prefix, sizeof(agent_prefix) - 1) == 0;
    for (size_t k = 0; dropped[k] && !taken; k++) taken = has_name(base[i], dropped[k], strlen(dropped[k]));
    for (size_t k = 0; k < own.n && !taken; k++) taken = has_name(base[i], own.env[k], strcspn(own.env[k], "="));
    if (!taken) own.env[at++] = xstrdup(base[i]);
  }
  buf_finish(&signals);
  return own.env;
}

/* All workers of an agent have the same OMP_NUM_THREADS, and libraries read it when they are loaded. */
char **env_create_common(char *const *base, int64_t workers) {
  size_t n = 0, at = 0;
  while (base && base[n]) n++;
  char **env = xcalloc(n + 2, sizeof(*env));
  if (env_limits_threads(base, workers)) env[at++] = xstrdup("OMP_NUM_THREADS=1");
  for (size_t i = 0; i < n; i++) {
    bool own = strncmp(base[i], agent_prefix, sizeof(agent_prefix) - 1) == 0;
    for (size_t k = 0; env_texts[k].name && !own; k++)
      own = has_name(base[i], env_texts[k].name, strlen(env_texts[k].name)) &&
            strcmp(env_texts[k].name, "OMP_NUM_THREADS") != 0;
    for (size_t k = 0; dropped[k] && !own; k++) own = has_name(base[i], dropped[k], strlen(dropped[k]));
    for (size_t k = 0; fleeting[k] && !own; k++) own = has_name(base[i], fleeting[k], strlen(fleeting[k]));
    if (!own) env[at++] = xstrdup(base[i]);
  }
  return env;
}

void env_destroy(char **env) {
  for (size_t i = 0; env && env[i]; i++) free(env[i]);
  free(env);
}

bool env_limits_threads(char *const *base, int64_t workers) {
  return workers > 1 && !is_inherited(base, "OMP_NUM_THREADS");
}

void env_signal_names(uint64_t signals, struct buf *out) {
  static const int first[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  enum { N_FIRST = sizeof(first) / sizeof(*first) };
  for (int i = 0; i < N_FIRST + 64; i++) {
    int signo = i < N_FIRST ? first[i] : i - N_FIRST;
    if (!(signals >> signo & 1)) continue;
    signals &= ~(1ULL << signo);
    const char *name = signal_name(signo);
    if (out->len) buf_putc(out, ',');
    if (name)
      buf_puts(out, name);
    else
      buf_printf(out, "%d", signo);
  }
}
