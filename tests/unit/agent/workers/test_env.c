/* SPDX-License-Identifier: Apache-2.0 */
/* agent/workers/env.c: the environment of a worker, name by name. */

#include "tests/rig/unit.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "agent/workers/env.h"

static const struct start start = {
    .incarnation = "1",
    .round = 7,
    .node_rank = 3,
    .nodes = 5,
    .rank_base = 11,
    .world_size = 19,
    .role_rank_base = 4,
    .role_world_size = 9,
    .restarts_used = 2,
    .head_addr = "10.0.0.1",
    .store_port = 41234,
    .head_host = "node1",
    .node_addr = "10.0.0.4",
};
static const struct env_job job = {.scheduler_restarts = -1,
                                   .run_id = "try 1",
                                   .socket = "@rdzv-agent-1",
                                   .workers = 4,
                                   .max_restarts = 6,
                                   .signals = 1ULL << SIGTERM | 1ULL << SIGINT | 1ULL << SIGHUP | 1ULL << SIGQUIT,
                                   .error_file = "/logs/error.json"};

enum { BASE_MAX = 16 };

/* An environ has words that could be written to; those of a test are literals. */
static char **create_as(const char *const *base, const struct env_job *as, uint32_t local_rank) {
  char *words[BASE_MAX] = {0};
  for (size_t i = 0; base[i]; i++) memcpy(&words[i], &base[i], sizeof(words[i]));
  return env_create(words, &start, as, local_rank);
}

static char **create(const char *const *base, uint32_t local_rank) {
  return create_as(base, &job, local_rank);
}

static int count(char **env, const char *name) {
  int n = 0;
  size_t len = strlen(name);
  for (; *env; env++) n += strncmp(*env, name, len) == 0 && (*env)[len] == '=';
  return n;
}

static const char *value(char **env, const char *name) {
  size_t len = strlen(name);
  for (; *env; env++)
    if (strncmp(*env, name, len) == 0 && (*env)[len] == '=') return *env + len + 1;
  return NULL;
}

static const char *const expected[][2] = {
    {"RANK", "13"},
    {"LOCAL_RANK", "2"},
    {"WORLD_SIZE", "19"},
    {"LOCAL_WORLD_SIZE", "4"},
    {"GROUP_RANK", "3"},
    {"GROUP_WORLD_SIZE", "5"},
    {"NODE_RANK", "3"},
    {"ROLE_RANK", "6"},
    {"ROLE_WORLD_SIZE", "9"},
    {"ROLE_NAME", "default"},
    {"MASTER_ADDR", "10.0.0.1"},
    {"MASTER_PORT", "41234"},
    {"TORCHELASTIC_RESTART_COUNT", "2"},
    {"TORCHELASTIC_MAX_RESTARTS", "6"},
    {"TORCHELASTIC_RUN_ID", "try 1"},
    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
    {"TORCHELASTIC_ERROR_FILE", "/logs/error.json"},
    {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
    {"OMP_NUM_THREADS", "1"},
    {"RDZV_ROUND", "7"},
    {"RDZV_RESTART_COUNT", "2"},
    {"RDZV_RUN_ID", "try 1"},
    {"RDZV_HEAD_ADDR", "10.0.0.1"},
    {"RDZV_LOCAL_RANK", "2"},
    {"RDZV_AGENT_SOCKET", "@rdzv-agent-1"},
};
enum { EXPECTED = sizeof(expected) / sizeof(*expected) };

UNIT_TEST(sets_every_name) {
  const char *base[] = {NULL};
  char **env = create(base, 2);
  size_t n = 0;
  while (env[n]) n++;
  assert_int_equal(n, EXPECTED);
  for (size_t i = 0; i < EXPECTED; i++) assert_string_equal(value(env, expected[i][0]), expected[i][1]);
  env_destroy(env);
}

UNIT_TEST(keeps_what_is_not_ours) {
  const char *base[] = {"PATH=/bin",      "EMPTY=", "RANKS=9", "XRANK=8", "RDZV_TRAINER_STEPS=3",
                        "no-equals-sign", "A=b=c",  NULL};
  char **env = create(base, 0);
  assert_string_equal(value(env, "PATH"), "/bin");
  assert_string_equal(value(env, "EMPTY"), "");
  assert_string_equal(value(env, "RANKS"), "9");
  assert_string_equal(value(env, "XRANK"), "8");
  assert_string_equal(value(env, "RDZV_TRAINER_STEPS"), "3");
  assert_string_equal(value(env, "A"), "b=c");
  size_t at = 0;
  while (env[at] && strcmp(env[at], "no-equals-sign") != 0) at++;
  assert_non_null(env[at]);
  env_destroy(env);
}

UNIT_TEST(replaces_what_is_there) {
  const char *base[] = {"RANK=0",
                        "WORLD_SIZE=1",
                        "RANK=5",
                        "RDZV_ROUND=1",
                        "RDZV_AGENT_SOCKET=@old",
                        "HOME=/root",
                        "RANK",
                        "TORCHELASTIC_RUN_ID=outer",
                        "MASTER_PORT=1",
                        "ROLE_NAME=ps",
                        NULL};
  char **env = create(base, 2);
  for (size_t i = 0; i < EXPECTED; i++) {
    assert_int_equal(count(env, expected[i][0]), 1);
    assert_string_equal(value(env, expected[i][0]), expected[i][1]);
  }
  size_t n = 0;
  while (env[n]) n++;
  assert_int_equal(n, EXPECTED + 1);
  assert_string_equal(value(env, "HOME"), "/root");
  env_destroy(env);
}

UNIT_TEST(keeps_the_agents_options_to_itself) {
  const char *base[] = {"RDZV_AGENT_NPROC=2", "RDZV_AGENT_ENDPOINT=node1", "RDZV_AGENT_MAX_RESTARTS=0",
                        "RDZVD_LISTEN=x", NULL};
  char **env = create(base, 0);
  assert_null(value(env, "RDZV_AGENT_NPROC"));
  assert_null(value(env, "RDZV_AGENT_ENDPOINT"));
  assert_null(value(env, "RDZV_AGENT_MAX_RESTARTS"));
  assert_string_equal(value(env, "RDZVD_LISTEN"), "x");
  env_destroy(env);
}

UNIT_TEST(borrows_nothing) {
  char word[] = "NAME=before";
  char *base[] = {word, NULL};
  char **env = env_create(base, &start, &job, 0);
  memcpy(word, "GONE=......", sizeof(word) - 1);
  assert_string_equal(value(env, "NAME"), "before");
  env_destroy(env);
  env_destroy(NULL);
}

UNIT_TEST(says_what_the_job_is) {
  const char *base[] = {NULL};
  struct env_job as = job;
  as.role = "trainer";
  as.worker_store = true;
  as.error_file = NULL;
  as.signals = 1ULL << SIGUSR1 | 1ULL << SIGTERM | 1ULL << SIGINT;
  char **env = create_as(base, &as, 0);
  assert_string_equal(value(env, "ROLE_NAME"), "trainer");
  assert_string_equal(value(env, "TORCHELASTIC_USE_AGENT_STORE"), "False");
  assert_string_equal(value(env, "TORCHELASTIC_ERROR_FILE"), "");
  assert_string_equal(value(env, "TORCHELASTIC_SIGNALS_TO_HANDLE"), "SIGTERM,SIGINT,SIGUSR1");
  env_destroy(env);
}

/* The third of four agents of this host, with two workers each, which all see the same devices. */
UNIT_TEST(counts_on_from_other_agents) {
  const char *base[] = {"CUDA_VISIBLE_DEVICES=a0,a1,a2,a3,a4,a5,a6,a7", NULL};
  struct env_job as = job;
  as.workers = 2;
  as.first = 4;
  as.local_world = 8;
  as.mpi_env = true;
  char **env = create_as(base, &as, 1);
  assert_string_equal(value(env, "LOCAL_RANK"), "5");
  assert_string_equal(value(env, "LOCAL_WORLD_SIZE"), "8");
  assert_string_equal(value(env, "RDZV_LOCAL_RANK"), "1");
  assert_string_equal(value(env, "RANK"), "12");
  assert_string_equal(value(env, "OMPI_COMM_WORLD_LOCAL_RANK"), "5");
  assert_string_equal(value(env, "OMPI_COMM_WORLD_LOCAL_SIZE"), "8");
  assert_string_equal(value(env, "OMPI_COMM_WORLD_NODE_RANK"), "5");
  assert_string_equal(value(env, "CUDA_VISIBLE_DEVICES"), "a0,a1,a2,a3,a4,a5,a6,a7");
  env_destroy(env);
  const struct device own = {.vendor = GPU_NVIDIA, .entry = "a5"};
  as.alone = &own; /* rdzv-trainer */
  env = create_as(base, &as, 1);
  assert_string_equal(value(env, "CUDA_VISIBLE_DEVICES"), "a5");
  assert_string_equal(value(env, "LOCAL_RANK"), "5");
  env_destroy(env);
  as.virtual_local_rank = true;
  env = create_as(base, &as, 0);
  assert_string_equal(value(env, "LOCAL_RANK"), "0");
  assert_string_equal(value(env, "OMPI_COMM_WORLD_NODE_RANK"), "4");
  env_destroy(env);
}

UNIT_TEST(tells_what_the_scheduler_said) {
  const char *base[] = {NULL};
  struct env_job as = job;
  as.scheduler_restarts = -1;
  char **env = create_as(base, &as, 0);
  assert_null(value(env, "RDZV_END_TIME"));
  assert_null(value(env, "RDZV_SCHEDULER_RESTARTS"));
  env_destroy(env);
  as.end_time = 1790000000;
  as.scheduler_restarts = 0;
  env = create_as(base, &as, 0);
  assert_string_equal(value(env, "RDZV_END_TIME"), "1790000000");
  assert_string_equal(value(env, "RDZV_SCHEDULER_RESTARTS"), "0");
  env_destroy(env);
}

UNIT_TEST(gives_way_to_what_was_set_by_hand) {
  const char *base[] = {"TORCH_NCCL_ASYNC_ERROR_HANDLING=3", "OMP_NUM_THREADS=8", NULL};
  char **env = create(base, 0);
  assert_string_equal(value(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING"), "3");
  assert_string_equal(value(env, "OMP_NUM_THREADS"), "8");
  assert_int_equal(count(env, "OMP_NUM_THREADS"), 1);
  env_destroy(env);
}

UNIT_TEST(leaves_a_single_worker_its_threads) {
  const char *base[] = {NULL};
  struct env_job as = job;
  as.workers = 1;
  char **env = create_as(base, &as, 0);
  assert_int_equal(count(env, "OMP_NUM_THREADS"), 0);
  env_destroy(env);
  char *set[] = {(char[]){"OMP_NUM_THREADS="}, NULL};
  assert_false(env_limits_threads(NULL, 1));
  assert_true(env_limits_threads(NULL, 2));
  assert_false(env_limits_threads(set, 2));
}

UNIT_TEST(lets_nothing_of_an_outer_torchrun_through) {
  const char *base[] = {"TORCHELASTIC_TIMER_FILE=/tmp/outer", "TORCHELASTIC_ERROR_FILE=/tmp/outer.json",
                        "PET_MAX_RESTARTS=9", NULL};
  char **env = create(base, 0);
  assert_int_equal(count(env, "TORCHELASTIC_TIMER_FILE"), 0);
  assert_string_equal(value(env, "TORCHELASTIC_ERROR_FILE"), "/logs/error.json");
  assert_string_equal(value(env, "PET_MAX_RESTARTS"), "9");
  env_destroy(env);
}

UNIT_TEST(has_mpis_names_where_they_are_inherited) {
  const char *base[] = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_LOCAL_RANK=7", NULL};
  char **env = create(base, 2);
  assert_string_equal(value(env, "OMPI_COMM_WORLD_RANK"), "13");
  assert_string_equal(value(env, "OMPI_COMM_WORLD_LOCAL_RANK"), "2");
  assert_int_equal(count(env, "OMPI_COMM_WORLD_RANK"), 1);
  assert_int_equal(count(env, "OMPI_COMM_WORLD_SIZE"), 0);
  env_destroy(env);
}

UNIT_TEST(has_mpis_names_where_asked_for) {
  const char *base[] = {"OMPI_COMM_WORLD_RANK=1", NULL};
  struct env_job as = job;
  as.mpi_env = true;
  char **env = create_as(base, &as, 2);
  assert_string_equal(value(env, "OMPI_COMM_WORLD_RANK"), "13");
  assert_string_equal(value(env, "OMPI_COMM_WORLD_SIZE"), "19");
  assert_string_equal(value(env, "OMPI_COMM_WORLD_LOCAL_RANK"), "2");
  assert_string_equal(value(env, "OMPI_COMM_WORLD_LOCAL_SIZE"), "4");
  assert_string_equal(value(env, "OMPI_COMM_WORLD_NODE_RANK"), "2");
  env_destroy(env);
}

/* In its vendor's list, once, and in those that would say otherwise. */
UNIT_TEST(shows_each_its_own_device) {
  static const struct {
    const char *base;
    struct device own;
    const char *cuda, *hip, *ze, *selector;
  } cases[] = {
      {"X=", {.vendor = GPU_NVIDIA, .entry = "2"}, "2", NULL, NULL, NULL},
      {"CUDA_VISIBLE_DEVICES= 3, GPU-1b ,5", {.vendor = GPU_NVIDIA, .entry = "GPU-1b"}, "GPU-1b", NULL, NULL, NULL},
      {"HIP_VISIBLE_DEVICES=4,1", {.vendor = GPU_AMD, .entry = "1"}, "1", "1", NULL, NULL},
      {"ROCR_VISIBLE_DEVICES=4,1", {.vendor = GPU_AMD, .entry = "0"}, "0", "0", NULL, NULL},
      {"ONEAPI_DEVICE_SELECTOR=opencl:gpu;level_zero:gpu",
       {.vendor = GPU_INTEL, .entry = "7"},
       NULL,
       NULL,
       "7",
       "opencl:gpu;level_zero:gpu"},
      {"ONEAPI_DEVICE_SELECTOR=level_zero:3,4", {.vendor = GPU_INTEL, .entry = "4"}, NULL, NULL, "4", "level_zero:gpu"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    const char *base[] = {cases[i].base, NULL};
    const char *const names[] = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
                                 "ONEAPI_DEVICE_SELECTOR"};
    const char *const wanted[] = {cases[i].cuda, cases[i].hip, cases[i].ze, cases[i].selector};
    struct env_job as = job;
    as.alone = &cases[i].own;
    as.virtual_local_rank = true;
    char **env = create_as(base, &as, 2);
    assert_string_equal(value(env, "LOCAL_RANK"), "0");
    assert_string_equal(value(env, "RDZV_LOCAL_RANK"), "2");
    assert_string_equal(value(env, "RANK"), "13");
    for (int k = 0; k < 4; k++) {
      assert_int_equal(count(env, names[k]), wanted[k] != NULL);
      if (wanted[k]) assert_string_equal(value(env, names[k]), wanted[k]);
    }
    env_destroy(env);
    env = create(base, 2); /* all, as inherited */
    size_t n = strcspn(cases[i].base, "=");
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)n, cases[i].base);
    assert_string_equal(value(env, name), cases[i].base + n + 1);
    env_destroy(env);
  }
}

/* An outer agent's is not this worker's. */
UNIT_TEST(tells_the_device) {
  char outer[] = "RDZV_DEVICE_UUID=GPU-outer", *base[] = {outer, NULL};
  struct env_job with = job;
  char **env = env_create(base, &start, &job, 0);
  assert_int_equal(count(env, "RDZV_DEVICE_UUID"), 0);
  env_destroy(env);
  with.device_uuid = "GPU-own";
  env = env_create(base, &start, &with, 0);
  assert_int_equal(count(env, "RDZV_DEVICE_UUID"), 1);
  assert_string_equal(value(env, "RDZV_DEVICE_UUID"), "GPU-own");
  env_destroy(env);
}

/* A task of Slurm's is an agent: its numbers would be those of each of its workers. */
UNIT_TEST(renumbers_slurms_tasks) {
  const char *base[] = {"SLURM_PROCID=1", "SLURM_NTASKS=5",  "SLURM_NPROCS=5", "SLURM_LOCALID=0",
                        "SLURM_NODEID=1", "SLURM_JOB_ID=47", "SLURM_NNODES=5", NULL};
  const char *none[] = {"SLURM_JOB_ID=47", NULL};
  static const char *const names[][4] = {{"SLURM_PROCID", "13", "1", "13"}, {"SLURM_NTASKS", "19", "5", "19"},
                                         {"SLURM_NPROCS", "19", "5", "19"}, {"SLURM_LOCALID", "2", "0", "6"},
                                         {"SLURM_NODEID", "3", "1", "1"},   {"SLURM_JOB_ID", "47", "47", "47"},
                                         {"SLURM_NNODES", "5", "5", "5"}};
  struct env_job one = job, shared = job;
  one.workers = 1;
  shared.shares_host = true;
  shared.first = 4;
  shared.local_world = 8;
  char **several = create(base, 2), **alone = create_as(base, &one, 0), **beside = create_as(base, &shared, 2),
       **elsewhere = create(none, 2);
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
    assert_string_equal(value(several, names[i][0]), names[i][1]);
    assert_int_equal(count(several, names[i][0]), 1);
    assert_string_equal(value(alone, names[i][0]), names[i][2]);
    assert_string_equal(value(beside, names[i][0]), names[i][3]);
  }
  for (size_t i = 0; i < 5; i++) assert_null(value(elsewhere, names[i][0])); /* nobody would believe them */
  env_destroy(several);
  env_destroy(alone);
  env_destroy(beside);
  env_destroy(elsewhere);
}
