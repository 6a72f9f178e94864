/* SPDX-License-Identifier: Apache-2.0 */
/* agent/cluster: PBS, Grid Engine, LSF and Kubernetes, from environments written after their sources and manuals
 * (clusters/README), and host files of every form, right and wrong. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/cluster/internal.h"
#include "common/mem.h"
#include "tests/rig/cluster.h"
#include "tests/rig/unit.h"

enum { KEPT_MAX = 128 };

/* A site read from clusters/NAME.env, and what it points into. */
struct written {
  struct site site;
  char *kept[KEPT_MAX];
  int n_kept;
};

static char *load(const char *name) {
  char path[512];
  struct buf b = BUF_INIT;
  snprintf(path, sizeof(path), "%s/tests/unit/agent/cluster/clusters/%s", SOURCE_ROOT, name);
  FILE *f = fopen(path, "r");
  if (!f) fail_msg("%s: %s", path, strerror(errno));
  for (size_t n = 1; n > 0;) {
    n = fread(buf_reserve(&b, 4096), 1, 4096, f);
    buf_commit(&b, n);
  }
  fclose(f);
  buf_puts(&b, "");
  return buf_steal(&b);
}

static char *keep(struct written *r, char *text) {
  assert_in_range(r->n_kept, 0, KEPT_MAX - 1);
  return r->kept[r->n_kept++] = text;
}

static void take_line(struct written *r, const char *line, int *n_env, int *n_files) {
  char path[256], file[256], host[256];
  if (sscanf(line, "@file %255s %255s", path, file) == 2) {
    assert_in_range(*n_files, 0, SITE_FILES - 1);
    const char *where = keep(r, xstrdup(path)), *text = keep(r, load(file));
    r->site.files[(*n_files)++] = (struct site_file){where, text};
  } else if (sscanf(line, "@host %255s", host) == 1) {
    r->site.host = keep(r, xstrdup(host));
  } else {
    assert_non_null(strchr(line, '='));
    assert_in_range(*n_env, 0, SITE_VARIABLES - 1);
    r->site.env[(*n_env)++] = line;
  }
}

static void recall(struct written *r, const char *name) {
  int n_env = 0, n_files = 0;
  char file[100], *save = NULL;
  *r = (struct written){0};
  snprintf(file, sizeof(file), "%s.env", name);
  char *text = keep(r, load(file));
  for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
    take_line(r, line, &n_env, &n_files);
}

static void forget(struct written *r) {
  while (r->n_kept) free(r->kept[--r->n_kept]);
}

static const char on_launch_node[] =
    "warnings=batch5 is a launch node of this job, which runs no workers: start the agents with jsrun, one on each "
    "host (jsrun -r 1 -a 1 -c ALL_CPUS -g ALL_GPUS rdzv-agent ...)";

struct known {
  const char *name; /* of the recording */
  const char *expected[24];
};

static const struct known recordings[] = {
    {"pbs-script",
     {"scheduler=PBS", "start=0", "start.source=PBS_ENVIRONMENT=PBS_BATCH", "job=pbs-4711.pbs1", "port=31353",
      "hosts=gpu[07-08].cluster.example", "nodes=2", "first_host=gpu07.cluster.example",
      "slots=gpu07.cluster.example:1,gpu08.cluster.example:1", "agents=-", "index=-", "gpus=-", "restarts=-",
      "end_time=-", "remote_shell=-", "nodes.source=PBS_NODEFILE=/var/spool/pbs/aux/4711.pbs1"}},
    {"pbs-mpiprocs",
     {"start=0", "job=pbs-4712.pbs1", "port=31384", "hosts=gpu[07-08]", "slots=gpu07:4,gpu08:4", "nodes=2",
      "agents=-"}},
    {"pbs-pbsdsh",
     {"start=1", "launcher=pbsdsh", "start.source=PBS_TASKNUM=40000001, PBS_NODENUM=1", "agents=2", "index=1",
      "local_agents=1", "local_index=0", "index.source=PBS_TASKNUM=40000001, PBS_NODENUM=1",
      "hosts=gpu[07-08].cluster.example", "first_host=gpu07.cluster.example", "job=pbs-4711.pbs1", "port=31353"}},
    {"pbs-pbsdsh-first",
     {"start=1", "agents=8", "index=1", "local_agents=4", "local_index=1", "first_host=gpu07",
      "local_index.source=PBS_TASKNUM=00000003, PBS_NODENUM=0"}},
    {"pbs-array", {"job=pbs-4711[3].pbs1", "port=31356", "nodes=2", "start=0"}},
    {"pbs-mpirun",
     {"scheduler=PBS", "launcher=Open MPI", "start=1", "agents=4", "index=3", "local_agents=2", "local_index=1",
      "job=mpi-1449328641", "first_host=192.0.2.2"}},
    {"torque-script",
     {"start=0", "job=pbs-815.head", "slots=n1:2,n2:2", "gpus=3",
      "gpus.source=PBS_GPUFILE=/var/spool/torque/aux/815.headgpu", "end_time=-"}},
    {"torque-pbsdsh",
     {"start=1", "agents=4", "agents.source=PBS_NUM_NODES=2, PBS_NUM_PPN=2", "index=3", "index.source=PBS_VNODENUM=3",
      "hosts=-", "first_host=-", "nodes=2", "local_agents=2", "local_index=1",
      "local_index.source=PBS_VNODENUM=3, PBS_NUM_PPN=2"}},
    {"sge-script",
     {"scheduler=SGE", "start=0", "job=sge-4711", "port=31353", "nodes=2", "slots=node1.local:8,node2.local:8",
      "first_host=node1.local", "hosts=node[1-2].local", "remote_shell=qrsh -inherit", "restarts=0", "gpus=-",
      "end_time=-", "agents=-"}},
    {"sge-qrsh",
     {"start=1", "launcher=qrsh", "agents=-", "local_agents=1", "local_index=0", "index=-", "hosts=-", "first_host=-",
      "nodes=-"}},
    {"sge-array", {"start=0", "job=sge-4713.7", "port=31422", "restarts=1", "nodes=1", "hosts=-", "first_host=-"}},
    {"uge-gpus", {"gpus=3", "gpus.source=SGE_HGR_gpu_card=0 1 3", "nodes=1"}},
    {"abci-script",
     {"start=0", "job=sge-8001", "nodes=2", "slots=a0001.abci.local:72,a0002.abci.local:72",
      "first_host=a0001.abci.local", "nodes.source=PE_HOSTFILE=/var/spool/age/a0001/active_jobs/8001.1/pe_hostfile"}},
    {"abci-qrsh",
     {"start=1", "agents=2", "index=1", "index.source=SGE_JOB_HOSTLIST=/var/spool/age/hostlist/8001",
      "hosts=a[0001-0002]", "first_host=a0001", "local_agents=1"}},
    {"lsf-script",
     {"scheduler=LSF", "start=0", "job=lsf-4711", "port=31353", "nodes=2", "hosts=hostA,hostB", "slots=hostA:4,hostB:4",
      "first_host=hostA", "remote_shell=blaunch", "agents=-", "restarts=-",
      "nodes.source=LSB_MCPU_HOSTS=hostA 4 hostB 4 "}},
    {"lsf-hostfile",
     {"job=lsf-4712.5", "port=31389", "restarts=1", "slots=hostA:4,hostB:4",
      "nodes.source=LSB_DJOB_HOSTFILE=/home/u/.lsbatch/1790000000.4712.hostfile"}},
    {"lsf-hosts", {"slots=hostA:2,hostB:1", "nodes.source=LSB_HOSTS=hostA hostB hostA", "start=0"}},
    {"lsf-blaunch",
     {"launcher=blaunch", "start=1", "agents=8", "index=6", "local_agents=4", "local_index=2", "first_host=hostA",
      "local_index.source=LSF_PM_TASKID=7"}},
    {"lsf-jsrun",
     {"launcher=jsrun", "start=1", "agents=2", "index=1", "local_agents=1", "local_index=0", "hosts=h36n[01-02]",
      "slots=h36n01:42,h36n02:42", "first_host=h36n01", "remote_shell=-", "job=lsf-99"}},
    {"lsf-launch-node", {"start=0", "first_host=h36n01", "nodes=2", "remote_shell=-", on_launch_node}},
    {"k8s-indexed",
     {"scheduler=Kubernetes", "index=3", "job=k8s-train", "start=-", "agents=-", "first_host=-", "hosts=-"}},
    {"k8s-jobset", {"index=1", "job=k8s-bert-workers-0", "agents=-"}},
    {"k8s-trainer", {"index=1", "job=k8s-bert-node-0", "agents=-", "launcher=-"}},
    {"k8s-pytorchjob-master",
     {"launcher=PyTorchJob", "start=1", "agents=2", "index=0", "first_host=mnist-master-0", "port=23456",
      "job=k8s-mnist", "agents.source=WORLD_SIZE=8, PET_NPROC_PER_NODE=4"}},
    {"k8s-pytorchjob-worker", {"agents=3", "index=1", "first_host=mnist-master-0", "port=23456", "job=k8s-mnist"}},
    {"k8s-lws",
     {"launcher=LeaderWorkerSet", "start=1", "agents=4", "index=1", "first_host=vllm-0.vllm.default",
      "job=k8s-vllm-0"}},
};

UNIT_TEST(reads_recordings) {
  for (size_t i = 0; i < sizeof(recordings) / sizeof(*recordings); i++) {
    struct written r;
    recall(&r, recordings[i].name);
    site_check(&r.site, recordings[i].expected, recordings[i].name);
    forget(&r);
  }
}

/* What is wrong, and what an odd cluster has. ---------------------------------------------------------------------- */

#define PBS                "PBS_JOBID=7.s", "PBS_ENVIRONMENT=PBS_BATCH", "PBS_TASKNUM=1", "PBS_NODENUM=0", "PBS_NODEFILE=/f"
#define PBSDSH(task, node) "PBS_JOBID=7.s", "PBS_NODEFILE=/f", "PBS_TASKNUM=" task, "PBS_NODENUM=" node
#define LINES              "a\na\na\na\nb\nb\nb\n"
#define SGE                "JOB_ID=7", "SGE_TASK_ID=undefined", "PE_HOSTFILE=/f"
#define K8S                "KUBERNETES_SERVICE_HOST=10.96.0.1"

static const struct site_case odds[] = {
    {"CRLF, blanks, empty lines, no newline at the end",
     {.env = {PBS}, .files = {{"/f", "\r\n  n1  \r\nn1\r\n\n\tn2"}}},
     {"slots=n1:2,n2:1"}},
    {"domains in some places",
     {.host = "N2.b", .env = {PBS}, .files = {{"/f", "n1\nn1.a\nN1.A\nn2.b\nn2\nn2.c\n"}}},
     {"slots=n1:3,n2.b:2,n2.c:1"}},
    {"a domain of its own for the same name, seen after the bare one",
     {.env = {PBS}, .files = {{"/f", "n1.a\nn1.b\nn1.B\nn1\n"}}},
     {"slots=n1.a:2,n1.b:2"}},
    {"addresses are whole names",
     {.env = {PBS}, .files = {{"/f", "10.0.0.1\n10.0.0.2\n10.0.0.1\n"}}},
     {"slots=10.0.0.1:2,10.0.0.2:1"}},
    {"odd names", {.env = {PBS}, .files = {{"/f", "3\nR1-n_04.x-y\n"}}}, {"slots=3:1,R1-n_04.x-y:1"}},
    {"a file that is not there",
     {.env = {PBS}},
     {"start=0", "hosts=-", "nodes=-",
      "warnings=PBS_NODEFILE: /f cannot be read: No such file or directory: it is ignored"}},
    {"the same, on another host than the script's",
     {.env = {PBS, "RDZV_AGENT_LAUNCHER=7"}},
     {"hosts=-", "job=pbs-7.s"}},
    {"an empty file",
     {.env = {PBS}, .files = {{"/f", ""}}},
     {"nodes=-", "warnings=PBS_NODEFILE: /f is not a list of hosts: it names no host: it is ignored"}},
    {"a file of blanks",
     {.env = {PBS}, .files = {{"/f", "\r\n \t\r\n"}}},
     {"nodes=-", "warnings=PBS_NODEFILE: /f is not a list of hosts: it names no host: it is ignored"}},
    {"what is no name",
     {.env = {PBS}, .files = {{"/f", "n1\nn2;rm\n"}}},
     {"nodes=-",
      "warnings=PBS_NODEFILE: /f is not a list of hosts: line 2: \"n2;rm\" is not a host name: it is ignored"}},
    {"an option is no name",
     {.env = {PBS}, .files = {{"/f", "-oProxyCommand=x\n"}}},
     {"nodes=-",
      "warnings=PBS_NODEFILE: /f is not a list of hosts: line 1: \"-oProxyCommand=x\" is not a host name: it is "
      "ignored"}},
    {"two names in a line",
     {.env = {PBS}, .files = {{"/f", "n1\n\nn2 n3\n"}}},
     {"nodes=-",
      "warnings=PBS_NODEFILE: /f is not a list of hosts: line 3: \"n3\" follows a host, where only its number of "
      "slots is allowed: it is ignored"}},
    {"no slots",
     {.env = {SGE}, .files = {{"/f", "n1 0 all.q@n1 UNDEFINED\n"}}},
     {"nodes=-", "warnings=PE_HOSTFILE: /f is not a list of hosts: line 1: \"n1\" has no slots: it is ignored"}},
    {"slots without end",
     {.env = {SGE}, .files = {{"/f", "n1 99999999999999999999 all.q@n1 UNDEFINED\n"}}},
     {"nodes=-",
      "warnings=PE_HOSTFILE: /f is not a list of hosts: line 1: \"n1\" has more than 65536 slots: it is ignored"}},
    {"another number of hosts",
     {.env = {SGE, "NHOSTS=3"}, .files = {{"/f", "n1 1 q x\nn2 1 q x\n"}}},
     {"nodes=2", "warnings=PE_HOSTFILE lists 2 hosts, but NHOSTS=3: the list is used"}},
    {"a task of qrsh's that finds the list",
     {.env = {SGE, "NHOSTS=1", "SGE_JOB_SPOOL_DIR=/s/active_jobs/7.1/1.n2"}, .files = {{"/f", "n1 1 q x\nn2 1 q x\n"}}},
     {"start=1", "agents=2", "nodes=2", "warnings="}},
    {"a task of qrsh's that finds none",
     {.env = {"JOB_ID=7", "SGE_TASK_ID=undefined", "NHOSTS=3", "SGE_JOB_SPOOL_DIR=/s/active_jobs/7.1/1.n2"}},
     {"start=1", "agents=3", "agents.source=NHOSTS=3"}},
    {"a serial job of Grid Engine's", {.env = {"JOB_ID=7", "SGE_TASK_ID=undefined"}}, {"start=0", "nodes=-"}},
    {"LSF outside of an array", {.env = {"LSB_JOBID=9", "LSB_JOBINDEX=0"}}, {"scheduler=LSF", "job=lsf-9"}},
    {"JOB_ID alone is nobody's", {.env = {"JOB_ID=7"}}, {"scheduler=-", "job=-", "start=-"}},
    {"RESTARTED of another kind",
     {.env = {"JOB_ID=7", "SGE_TASK_ID=undefined", "RESTARTED=maybe"}},
     {"restarts=-", "warnings=RESTARTED=maybe is not a number from 0 to 2: it is ignored"}},
    {"pairs that are none",
     {.env = {"LSB_JOBID=7", "LSB_MCPU_HOSTS=a 4 b"}},
     {"nodes=-",
      "warnings=LSB_MCPU_HOSTS is not a list of hosts: \"b\" is not followed by a number of slots: it is ignored"}},
    {"pairs that are none, and a file that is one",
     {.env = {"LSB_JOBID=7", "LSB_MCPU_HOSTS=a b", "LSB_DJOB_HOSTFILE=/f"}, .files = {{"/f", "a\nb\n"}}},
     {"nodes=2", "hosts=a,b",
      "warnings=LSB_MCPU_HOSTS is not a list of hosts: \"a\" is not followed by a number of slots: it is ignored"}},
    {"a task of nobody",
     {.env = {"LSB_JOBID=7", "LSF_PM_TASKID=0"}},
     {"start=0", "index=-", "warnings=LSF_PM_TASKID=0 is not a number from 1 to 65536: it is ignored"}},
    {"blaunch on a part of the hosts",
     {.host = "b", .env = {"LSB_JOBID=7", "LSF_PM_TASKID=2", "LSB_MCPU_HOSTS=a 4 b 4"}},
     {"start=1", "index=1", "local_agents=4", "local_index=-"}},
    {"pbsdsh, and nobody says how many",
     {.env = {"PBS_JOBID=7.s", "PBS_TASKNUM=00000002", "PBS_NODENUM=0"}},
     {"start=1", "agents=-", "index=0",
      "warnings=PBS started this agent (PBS_TASKNUM=00000002, PBS_NODENUM=0), but does not report how many there are "
      "(PBS_NODEFILE is not set): give --nnodes"}},
    {"a second pbsdsh of the job, after a task for the first host alone",
     {.host = "a", .env = {PBSDSH("00000008", "0")}, .files = {{"/f", LINES}}},
     {"agents=7", "local_agents=4", "local_index=2", "index=2"}},
    {"on the other host, whose name it does not know",
     {.host = "x", .env = {PBSDSH("20000005", "1")}, .files = {{"/f", LINES}}},
     {"local_agents=3", "local_index=1", "index=5"}},
    {"a task's number that is another host's",
     {.host = "b", .env = {PBSDSH("40000001", "1")}, .files = {{"/f", LINES}}},
     {"local_agents=3", "local_index=-", "index=1"}},
    {"a task's number that is none",
     {.host = "b", .env = {PBSDSH("2000000x", "1")}, .files = {{"/f", LINES}}},
     {"local_agents=3", "local_index=-"}},
    {"the script's own number",
     {.host = "a", .env = {PBSDSH("00000001", "0")}, .files = {{"/f", LINES}}},
     {"start=1", "local_agents=4", "local_index=-", "index=0"}},
    {"Torque's, with its file",
     {.host = "b", .env = {PBSDSH("7", "1"), "PBS_VNODENUM=6"}, .files = {{"/f", LINES}}},
     {"local_agents=3", "local_index=2", "index=6", "index.source=PBS_VNODENUM=6, PBS_TASKNUM=7, PBS_NODENUM=1"}},
    {"Torque's, and hosts of several sizes",
     {.env = {"PBS_JOBID=7.s", "PBS_TASKNUM=6", "PBS_NODENUM=1", "PBS_VNODENUM=5", "PBS_NUM_NODES=2", "PBS_NUM_PPN=2"}},
     {"agents=4", "local_agents=2", "local_index=-", "index=-",
      "warnings=PBS_VNODENUM=5 is not below PBS_NUM_NODES=2, PBS_NUM_PPN=2: it is ignored"}},
    {"a job's id is no path", {.env = {"PBS_JOBID=../7", "PBS_ENVIRONMENT=PBS_BATCH"}}, {"job=pbs-../7", "nodes=-"}},
    {"a list of GPUs of other hosts",
     {.host = "n9", .env = {PBS, "PBS_GPUFILE=/g"}, .files = {{"/f", "n9\n"}, {"/g", "n1-gpu0\nn2-gpu0\n"}}},
     {"gpus=0"}},
    {"a list of GPUs that cannot be read",
     {.host = "n1", .env = {PBS, "PBS_GPUFILE=/g"}, .files = {{"/f", "n1\n"}}},
     {"gpus=-", "warnings=PBS_GPUFILE: /g cannot be read: No such file or directory: it is ignored"}},
    {"the same, on another host than the script's",
     {.host = "n2", .env = {PBS, "PBS_GPUFILE=/g", "RDZV_AGENT_LAUNCHER=7"}},
     {"gpus=-", "hosts=-"}},
    {"hosts whose names have -gpu",
     {.host = "a-gpu1.x",
      .env = {PBS, "PBS_GPUFILE=/g"},
      .files = {{"/f", "a-gpu1\n"}, {"/g", "a-gpu1-gpu0\r\na-gpu1-gpu1\r\na-gpu2-gpu0"}}},
     {"gpus=2"}},
    {"an end that the script tells",
     {.env = {PBS, "RDZV_END_TIME=1790000000"}, .files = {{"/f", "n1\n"}}},
     {"end_time=1790000000", "end_time.source=RDZV_END_TIME=1790000000"}},
    {"an end that is none",
     {.env = {"RDZV_END_TIME=tomorrow"}},
     {"end_time=-", "warnings=RDZV_END_TIME=tomorrow is not a number from 1 to 99999999999: it is ignored"}},
    {"the scheduler's word is the better one",
     {.env = {"SLURM_JOB_ID=47", "SLURM_JOB_END_TIME=1790000007", "RDZV_END_TIME=1790000000"}},
     {"end_time=1790000007"}},
    {"a pod that is a worker of torchrun's",
     {.env = {K8S, "MASTER_ADDR=127.0.0.1", "MASTER_PORT=1", "RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1"}},
     {"launcher=-", "agents=-", "first_host=-"}},
    {"pods of no number",
     {.env = {K8S, "MASTER_ADDR=m-master-0", "RANK=1", "WORLD_SIZE=7", "PET_NPROC_PER_NODE=2"}},
     {"agents=-", "start=-", "warnings=WORLD_SIZE=7 is not a number of pods times PET_NPROC_PER_NODE: it is ignored"}},
    {"nprocPerNode: auto",
     {.env = {K8S, "MASTER_ADDR=m-master-0", "RANK=1", "WORLD_SIZE=2", "PET_NPROC_PER_NODE=auto"}},
     {"agents=2", "job=-"}},
    {"an id that is no word",
     {.env = {"PBS_JOBID=a b"}},
     {"job=-", "warnings=PBS_JOBID=a b cannot be a job's name: give one with --rdzv-id"}},
    {"an index without a name", {.env = {K8S, "JOB_COMPLETION_INDEX=3"}}, {"index=3", "job=-"}},
    {"a pod without Indexed Job", {.env = {K8S, "HOSTNAME=web-5d8f-x2x"}}, {"job=-", "index=-", "start=-"}},
    {"an index that is not the name's",
     {.env = {K8S, "HOSTNAME=t-12", "JOB_COMPLETION_INDEX=2"}},
     {"job=-", "index=2"}},
    {"a name with a domain",
     {.env = {K8S, "HOSTNAME=t-2.svc.local", "JOB_COMPLETION_INDEX=2"}},
     {"job=k8s-t", "index=2"}},
};

/* How many GPUs each host has, where the file tells it of all. */
UNIT_TEST(knows_gpus_of_others) {
  static const struct site site = {
      .host = "n1",
      .env = {PBS, "PBS_GPUFILE=/g"},
      .files = {{"/f", "n1\nn1\nn2.x\nn3\n"}, {"/g", "n1-gpu0\nn2-gpu0\nn2-gpu1\nn9-gpu0\n"}}};
  static const struct site none = {.host = "n1", .env = {PBS, "PBS_GPUFILE=/g"}, .files = {{"/f", "n1\n"}, {"/g", ""}}};
  struct cluster c;
  site_read(&site, &c);
  site_expect(&c, "gpus=1", "of all");
  assert_int_equal(c.host[0].gpus, 1);
  assert_int_equal(c.host[1].gpus, 2);
  assert_int_equal(c.host[2].gpus, 0);
  cluster_finish(&c);
  site_read(&none, &c);
  site_expect(&c, "gpus=-", "an empty file: none were asked for");
  assert_int_equal(c.host[0].gpus, -1);
  cluster_finish(&c);
}

UNIT_TEST(copes_with_odd_ones) {
  site_check_all(odds, sizeof(odds) / sizeof(*odds));
}

/* A thousand hosts with eight lines each, in two spellings, by turns. */
UNIT_TEST(reads_long_files) {
  struct buf text = BUF_INIT;
  struct cluster c;
  for (int slot = 0; slot < 8; slot++)
    for (int i = 1; i <= 1000; i++)
      buf_printf(&text, slot % 2 ? "r%02dn%04d.hpc.example.org\r\n" : "r%02dn%04d\n", i % 7, i);
  struct site site = {.host = "r03n0003", .env = {PBS}, .files = {{"/f", buf_text(&text)}}};
  site_read(&site, &c);
  site_expect(&c, "nodes=1000", "long");
  site_expect(&c, "first_host=r01n0001", "long");
  site_expect(&c, "warnings=", "long");
  assert_int_equal(c.n_hosts, 1000);
  for (size_t i = 0; i < c.n_hosts; i++) assert_int_equal(c.host[i].slots, 8);
  cluster_finish(&c);
  buf_clear(&text);
  for (int i = 0; i <= NODES_MAX; i++) buf_printf(&text, "n%d\n", i);
  site.files[0].text = buf_text(&text);
  site_check(&site,
             (const char *const[]){
                 "nodes=-",
                 "warnings=PBS_NODEFILE: /f is not a list of hosts: line 65537: there are more than 65536 hosts: it is "
                 "ignored",
                 NULL},
             "too long");
  buf_clear(&text);
  for (int i = 0; i < 300; i++) buf_putc(&text, 'n');
  site.files[0].text = buf_text(&text);
  site_read(&site, &c);
  assert_non_null(strstr(buf_text(&c.warnings), "...\" is not a host name: it is ignored"));
  cluster_finish(&c);
  buf_finish(&text);
}

/* Every prefix of good lists is read or refused, with a sentence, and leaks nothing. */
UNIT_TEST(survives_cut_lists) {
  static const char *const lists[] = {"n1 4 q@n1 0,0\r\nn2.x 4 q@n2 <NULL>\n", "a 4 b.c 4 ", "a a b-1 c_d"};
  for (int form = LIST_LINES; form <= LIST_PAIRS; form++)
    for (size_t i = 0; i < 3; i++)
      for (size_t n = 0; n <= strlen(lists[i]); n++) {
        struct row_hosts h = {0};
        struct err e = ERR_INIT;
        char *text = xstrndup(lists[i], n);
        int rc = list_read(&h, (enum list_form)form, text, &e);
        assert_true(rc == 0 ? h.n > 0 && list_slots(&h) >= (int64_t)h.n : h.n == 0 && e.text[0]);
        row_hosts_drop(&h);
        assert_int_equal(list_read(&h, (enum list_form)form, text, NULL), rc);
        row_hosts_drop(&h);
        free(text);
      }
}
