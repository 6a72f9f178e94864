/* SPDX-License-Identifier: Apache-2.0 */
/* agent/cluster: mpirun of Open MPI and of Hydra, alone and inside a Slurm job, PALS and Flux. The environments were
 * recorded from Open MPI 4.1 and MPICH 4.0, with other addresses; PRRTE's name space and Flux' variables follow their
 * sources, those of PALS the sites that use it. */

#include <string.h>
#include "tests/rig/cluster.h"
#include "tests/rig/unit.h"

#define OMPI(rank, size, local_rank, local_size)                                                                       \
  "OMPI_COMM_WORLD_RANK=" rank, "OMPI_COMM_WORLD_SIZE=" size, "OMPI_COMM_WORLD_LOCAL_RANK=" local_rank,                \
      "OMPI_COMM_WORLD_LOCAL_SIZE=" local_size, "OMPI_COMM_WORLD_NODE_RANK=" local_rank, "OMPI_UNIVERSE_SIZE=" size,   \
      "PMIX_RANK=" rank, "PMIX_NAMESPACE=1449328641", "PMIX_ID=1449328641." rank
#define HNP "OMPI_MCA_orte_hnp_uri=1449328640.0;tcp://127.0.0.1,192.0.2.2,10.0.0.2:42053;tcp6://[fd00::2]:37141"
#define HYDRA(rank, size, local_rank, local_size)                                                                      \
  "PMI_RANK=" rank, "PMI_SIZE=" size, "PMI_FD=6", "MPI_LOCALRANKID=" local_rank, "MPI_LOCALNRANKS=" local_size
#define PALS(rank, size, local_rank, local_size)                                                                       \
  "PALS_RANKID=" rank, "PALS_NODEID=0", "PALS_LOCAL_RANKID=" local_rank, "PALS_LOCAL_SIZE=" local_size,                \
      "PMI_RANK=" rank, "PMI_SIZE=" size, "PMI_LOCAL_RANK=" local_rank, "PMI_LOCAL_SIZE=" local_size,                  \
      "PMI_CONTROL_PORT=20123"
#define FLUX(rank, size, local_rank, nodes, id)                                                                        \
  "FLUX_URI=local:///run/flux/local", "FLUX_JOB_ID=" id, "FLUX_JOB_SIZE=" size, "FLUX_JOB_NNODES=" nodes,              \
      "FLUX_TASK_RANK=" rank, "FLUX_TASK_LOCAL_ID=" local_rank, "PMI_FD=6", "PMI_RANK=" rank, "PMI_SIZE=" size
#define MPICH "/usr/bin/hydra_pmi_proxy\n--control-port\n"
#define PROC                                                                                                           \
  {"/proc/self/stat", "70 (rdzv-agent) R 60 60 1 0"}, {"/proc/60/stat", "60 (sh) S 50 60 1 0"},                        \
      {"/proc/50/stat", "50 (hydra_pmi_proxy) S 40 60 1 0"}, {                                                         \
    "/proc/40/stat", "40 (mpiexec) (x) S 1 60 1 0"                                                                     \
  }

#define PROXY(words)                                                                                                   \
  {"/proc/self/stat", "70 (rdzv-agent) R 50 60 1 0"}, {"/proc/50/stat", "50 (hydra_pmi_proxy) S 40 60 1 0"}, {         \
    "/proc/50/cmdline", words                                                                                          \
  }
/* Intel MPI's: mpiexec, a proxy for the host, a proxy for its processes. */
#define INTEL(level)                                                                                                   \
  {"/proc/self/stat", "70 (rdzv-agent) R 50 60 1 0"}, {"/proc/50/stat", "50 (hydra_pmi_proxy) S 40 60 1 0"},           \
      {"/proc/50/cmdline", "/i/bin/hydra_pmi_proxy\n--usize\n-1\n--auto-cleanup\n1\n"},                                \
      {"/proc/40/stat", "40 (hydra_bstrap_pr) S 1 60 1 0"}, {                                                          \
    "/proc/40/cmdline", "/i/bin//hydra_bstrap_proxy\n--upstream-host\nz5-01.cm.cluster\n--upstream-port\n"             \
                        "34921\n--pgid\n0\n--tree-width\n16\n--tree-level\n" level "\n/i/bin//hydra_pmi_proxy\n"       \
  }

static const struct site_case cases[] = {
    {"Open MPI on one host",
     {.env = {OMPI("1", "2", "1", "2"), HNP}},
     {"launcher=Open MPI", "scheduler=-", "start=1", "agents=2", "index=1", "local_agents=2", "local_index=1",
      "run=mpi-1449328641", "job=mpi-1449328641", "first_host=192.0.2.2", "nodes=-", "gpus=-"}},
    {"Open MPI on several",
     {.env = {OMPI("2", "4", "0", "2"), HNP}},
     {"agents=4", "local_agents=2", "first_host=192.0.2.2"}},
    {"mpirun that has IPv6 only",
     {.env = {OMPI("0", "4", "0", "2"), "OMPI_MCA_orte_hnp_uri=1.0;tcp6://[fd00::2]:37141"}},
     {"first_host=fd00::2"}},
    {"an odd address", {.env = {OMPI("0", "4", "0", "2"), "OMPI_MCA_orte_hnp_uri=1.0;tcp://[:,;"}}, {"first_host=-"}},
    {"Open MPI in a batch script of Slurm",
     {.env = {OMPI("3", "4", "1", "2"), HNP, "SLURM_JOB_ID=47", "SLURM_PROCID=0", "SLURM_NODEID=0",
              "SLURM_JOB_NODELIST=gpu[1-2]", "SLURM_TASKS_PER_NODE=2(x2)", "SLURM_JOB_END_TIME=1790000000"}},
     {"launcher=Open MPI", "scheduler=Slurm", "start=1", "start.source=OMPI_COMM_WORLD_RANK=3", "agents=4", "index=3",
      "job=mpi-1449328641", "hosts=gpu[1-2]", "first_host=192.0.2.2", "end_time=1790000000", "local_agents=2"}},
    {"on the job's other node, where Open MPI's helper is a step",
     {.env = {OMPI("3", "4", "1", "2"), HNP, "SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_NTASKS=1",
              "SLURM_STEP_NUM_TASKS=1", "SLURM_STEP_NODELIST=gpu2", "SLURM_JOB_NODELIST=gpu[1-2]"}},
     {"agents=4", "index=3", "job=mpi-1449328641", "hosts=gpu[1-2]", "first_host=192.0.2.2", "nodes=2"}},
    {"Open MPI on a part of the job's nodes",
     {.env = {OMPI("0", "2", "0", "1"), "SLURM_JOB_ID=47", "SLURM_JOB_NODELIST=gpu[1-4]"}},
     {"agents=2", "hosts=-", "first_host=gpu1"}},
    {"PRRTE",
     {.env = {"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=4", "PMIX_RANK=0",
              "PMIX_NAMESPACE=prterun-login-1-4711@1"}},
     {"launcher=Open MPI", "run=mpi-prterun-login-1-4711@1", "job=mpi-prterun-login-1-4711@1", "first_host=login-1"}},
    {"prterun of something else",
     {.env = {"PMIX_RANK=1", "PMIX_NAMESPACE=prterun-n1-4711@1"}},
     {"launcher=PRRTE", "index=1", "agents=-", "first_host=n1"}},
    {"srun --mpi=pmix",
     {.env = {"PMIX_RANK=1", "PMIX_NAMESPACE=slurm.pmix.47.0", "SLURM_JOB_ID=47", "SLURM_STEP_ID=0",
              "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=1"}},
     {"launcher=srun", "job=slurm-47.0", "index=1"}},
    {"srun --mpi=pmi2",
     {.env = {"PMI_RANK=1", "PMI_SIZE=2", "PMI_FD=9", "SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2"}},
     {"launcher=srun", "job=slurm-47.0", "agents=2"}},
    {"mpiexec in a batch script of Slurm 26.05",
     {.env = {"PMI_RANK=1", "PMI_SIZE=2", "SLURM_JOB_ID=47", "SLURM_STEP_ID=-5"}},
     {"launcher=mpiexec", "agents=2", "index=1"}},
    {"Hydra on one host",
     {.env = {HYDRA("1", "2", "1", "2")}, .files = {PROC}},
     {"launcher=Hydra", "start=1", "agents=2", "index=1", "local_agents=2", "local_index=1", "run=mpi-hydra-50",
      "job=mpi-hydra-50", "first_host=-"}},
    {"Hydra on several",
     {.env = {HYDRA("1", "4", "1", "2")}, .files = {PROC}},
     {"agents=4", "run=-", "job=-", "first_host=-"}},
    {"Hydra on several, whose proxy can be looked at",
     {.env = {HYDRA("1", "4", "1", "2")}, .files = {PROXY(MPICH "n1:34779\n--rmk\nuser\n")}},
     {"agents=4", "first_host=n1", "run=mpi-hydra-n1-34779", "job=mpi-hydra-n1-34779",
      "first_host.source=Hydra's proxy: --control-port n1:34779", "job.source=Hydra's proxy: --control-port n1:34779"}},
    {"its word, cut", {.env = {HYDRA("1", "4", "1", "2")}, .files = {PROXY(MPICH)}}, {"run=-", "first_host=-"}},
    {"a host that others do not know by that name",
     {.env = {HYDRA("1", "4", "1", "2")}, .files = {PROXY(MPICH "localhost:34779\n")}},
     {"run=-", "first_host=-"}},
    {"a port that is none",
     {.env = {HYDRA("1", "2", "1", "2")}, .files = {PROXY(MPICH "n1:0\n")}},
     {"run=mpi-hydra-50", "first_host=-"}},
    {"a host that is none",
     {.env = {HYDRA("1", "4", "1", "2")}, .files = {PROXY(MPICH "-n1;x:5\n")}},
     {"run=-", "first_host=-"}},
    {"Intel MPI's Hydra",
     {.env = {HYDRA("1", "4", "1", "2")}, .files = {INTEL("1")}},
     {"first_host=z5-01.cm.cluster", "job=mpi-hydra-z5-01.cm.cluster-34921",
      "first_host.source=Hydra's proxy: --upstream-host z5-01.cm.cluster --upstream-port 34921"}},
    {"as many agents as may need a proxy that another one has started",
     {.env = {HYDRA("1", "16", "1", "2"), "PBS_JOBID=7.s", "PBS_NODEFILE=/f"},
      .files = {INTEL("1"), {"/f", "n1\nn2\n"}}},
     {"first_host=n1", "run=-", "job=pbs-7.s"}},
    {"a proxy that another one has started",
     {.env = {HYDRA("1", "4", "1", "2")}, .files = {INTEL("2")}},
     {"first_host=-", "run=-"}},
    {"Hydra in a PBS job",
     {.env = {HYDRA("1", "4", "1", "2"), "PBS_JOBID=7.s", "PBS_NODEFILE=/f"},
      .files = {PROXY(MPICH "n2:5\n"), {"/f", "n1\nn2\n"}}},
     {"first_host=n2", "job=mpi-hydra-n2-5"}},
    {"Hydra in a Slurm job",
     {.env = {HYDRA("1", "4", "1", "2"), "SLURM_JOB_ID=47", "SLURM_STEP_ID=7", "SLURM_TASKS_PER_NODE=1(x3)",
              "SLURM_JOB_NODELIST=gpu[1-2]"}},
     {"launcher=Hydra", "job=slurm-47.7", "agents=4", "first_host=gpu1", "port=17848"}},
    {"PALS, one agent on each host of a PBS job",
     {.host = "x1-hsn",
      .env = {PALS("1", "2", "0", "1"), "PALS_APID=0c4e3a6b-77", "PBS_JOBID=99.p", "PBS_ENVIRONMENT=PBS_BATCH",
              "PBS_NODEFILE=/f"},
      .files = {{"/f", "x0.hsn.example\nx1.hsn.example\n"}}},
     {"launcher=PALS", "scheduler=PBS", "start=1", "start.source=PALS_RANKID=1", "agents=2", "index=1",
      "local_agents=1", "local_index=0", "job=pals-0c4e3a6b-77", "first_host=x0.hsn.example", "nodes=2"}},
    {"PALS, two on each host, without an id",
     {.env = {PALS("3", "4", "1", "2"), "PBS_JOBID=99.p", "PBS_ENVIRONMENT=PBS_BATCH", "PBS_NODEFILE=/f"},
      .files = {{"/f", "x0\nx1\n"}}},
     {"launcher=PALS", "start=1", "agents=4", "index=3", "local_agents=2", "local_index=1", "job=pbs-99.p"}},
    {"PALS on a part of the job's hosts",
     {.env = {PALS("1", "2", "0", "1"), "PBS_JOBID=99.p", "PBS_NODEFILE=/f"}, .files = {{"/f", "x0\nx1\nx2\n"}}},
     {"agents=2", "hosts=-", "first_host=x0"}},
    {"Flux, whose id is not ASCII",
     {.env = {FLUX("1", "4", "1", "2",
                   "\xc6\x92"
                   "2oKw")}},
     {"launcher=Flux", "scheduler=Flux", "start=1", "agents=4", "index=1", "local_agents=2", "local_index=1",
      "job=flux-f2oKw", "first_host=-", "nodes=2", "local_agents.source=FLUX_JOB_SIZE=4, FLUX_JOB_NNODES=2"}},
    {"Flux with an uneven spread, and as PALS",
     {.env = {FLUX("2", "3", "0", "2", "f2oKw"), PALS("2", "3", "0", "1")}},
     {"launcher=Flux", "agents=3", "index=2", "local_agents=-", "job=flux-f2oKw"}},
    {"Flux in a step of Slurm",
     {.env = {FLUX("1", "2", "0", "2", "f2oKw"), "SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4",
              "SLURM_PROCID=3", "SLURM_JOB_NODELIST=gpu[1-2]"}},
     {"launcher=Flux", "scheduler=Flux", "agents=2", "index=1", "job=flux-f2oKw", "first_host=gpu1"}},
    {"another launcher with PMI in a PBS job",
     {.env = {"PMI_RANK=1", "PMI_SIZE=2", "PBS_JOBID=99.p", "PBS_ENVIRONMENT=PBS_BATCH", "PBS_NODEFILE=/f"},
      .files = {{"/f", "n1\nn2\n"}}},
     {"launcher=mpiexec", "start=1", "agents=2", "index=1", "job=pbs-99.p", "first_host=n1"}},
    {"ranks that do not fit",
     {.env = {OMPI("7", "2", "5", "4")}},
     {"index=-", "local_agents=-",
      "warnings=OMPI_COMM_WORLD_RANK=7 is not below OMPI_COMM_WORLD_SIZE=2: it is "
      "ignored\nOMPI_COMM_WORLD_LOCAL_SIZE=4 contradicts OMPI_COMM_WORLD_SIZE=2: it is ignored"}},
};

UNIT_TEST(reads_mpirun) {
  site_check_all(cases, sizeof(cases) / sizeof(*cases));
}

/* Open MPI's ssh passes no variable of the scheduler's on: on mpirun's own host they are there, on the others they
 * are not. */
UNIT_TEST(names_one_job_on_all_hosts) {
  static const struct {
    const char *what;
    struct site site;
  } jobs[] = {
      {"no scheduler", {.env = {OMPI("0", "8", "0", "4"), HNP}}},
      {"PBS",
       {.env = {OMPI("0", "8", "0", "4"), HNP, "PBS_JOBID=815.x", "PBS_NODEFILE=/f"}, .files = {{"/f", "n1\nn2\n"}}}},
      {"Grid Engine",
       {.env = {OMPI("0", "8", "0", "4"), HNP, "JOB_ID=815", "SGE_TASK_ID=undefined", "PE_HOSTFILE=/f"},
        .files = {{"/f", "n1 4 q U\nn2 4 q U\n"}}}},
      {"LSF", {.env = {OMPI("0", "8", "0", "4"), HNP, "LSB_JOBID=815", "LSB_MCPU_HOSTS=n1 4 n2 4"}}},
      {"Slurm",
       {.env = {OMPI("0", "8", "0", "4"), HNP, "SLURM_JOB_ID=815", "SLURM_JOB_NODELIST=n[1-2]",
                "SLURM_TASKS_PER_NODE=4(x2)"}}},
  };
  struct cluster other;
  site_read(&jobs[0].site, &other);
  for (size_t i = 1; i < sizeof(jobs) / sizeof(*jobs); i++) {
    struct cluster c;
    site_read(&jobs[i].site, &c);
    if (strcmp(c.job.text, other.job.text) != 0 || strcmp(c.first_host.text, other.first_host.text) != 0 ||
        c.port.number != other.port.number)
      fail_msg("%s: %s at %s is not %s at %s", jobs[i].what, c.job.text, c.first_host.text, other.job.text,
               other.first_host.text);
    assert_int_equal(c.n_hosts, 2); /* what concerns this agent alone, or all without doubt, still counts */
    cluster_finish(&c);
  }
  cluster_finish(&other);
}
