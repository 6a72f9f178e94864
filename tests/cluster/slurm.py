# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on hosts in network namespaces (hosts.py): node1 .. nodeN, and `login`, where its controller runs and jobs are submitted.

munged and slurmd run on each node, munged and slurmctld on login, as root, from the machine's own packages. All that they need or leave lies in
the cluster's folder: the key, the configuration (which is mounted over each host's /etc/slurm), spool, logs. So nothing of the machine's own Slurm
is touched, and several such clusters do not know of each other. RDZV_SLURM_ROOT=DIR runs another version: a folder of slurm_root.sh, which lies
over each host's /usr. The build and all else stay the machine's own, on the folder's newer C library. Processes are found by their descent (proctrack/linuxproc), since a test may not
have cgroups of its own; GPUs are
device files that Slurm hands out by their numbers, and that nothing opens. Waits are short where Slurm lets one say so:
a node that is silent for SlurmdTimeout is down, and a job that was requeued may start again when its old credential is over. As on many sites srun kills what is left of a step WaitTime after its first task has ended, unless it is told --wait=0.
"""

import os
import re
import shutil
import subprocess
import threading
import time

import harness
import hosts
from harness import BUILD, SLOW, TOP, until

TOOLS = ("slurmctld", "slurmd", "munged", "srun", "sbatch")
ROOT = os.environ.get("RDZV_SLURM_ROOT", "")
GPUS = 4
NEVER = 300  # SlurmdTimeout, by default
# What a job does not leave behind. Since 24.11 daemons that were reconfigured have their file's name.
OURS = {"munged", "slurmctld", "slurmctld-wlm", "slurmscriptd", "slurmd", "slurmd-wlm"}

CONF = """
ClusterName=rdzv
SlurmctldHost=login({addr})
AuthType=auth/munge
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
SlurmctldParameters=enable_expedited_requeue
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SlurmdTimeout={silent}
TCPTimeout=2
MessageTimeout=5
WaitTime=2
NodeName={nodes} CPUs=128 RealMemory=1000 Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=10 State=UP
PartitionName=urgent Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP
"""


def missing():
    """Why there can be no Slurm here, "" if there can."""
    gone = [t for t in TOOLS if not shutil.which(t, path=f"{ROOT}/usr/bin:{ROOT}/usr/sbin")]
    if ROOT and gone:
        return f"RDZV_SLURM_ROOT={ROOT}: {', '.join(gone)} is not there; tests/cluster/slurm_root.sh makes such a folder"
    return f"{', '.join(gone)} not installed (packages slurm-wlm, munge)" if gone else ""


class Slurm(hosts.Batch):
    def __init__(self, tmp, n, say=print, topology=""):
        self.timers = []
        super().__init__(tmp, n, say)
        self.folder, self.jobs = self.tmp / "slurm", []
        try:
            for host in self.hosts if ROOT else ():
                host.ns.sh(f"mount -t overlay slurm -o lowerdir={ROOT}/usr:/usr /usr")
            self.configure(n, topology)
            self.start(self.login)
            for host in self.nodes:
                self.start(host)
            self.ready()
        except BaseException:
            self.tear_down()
            raise

    def configure(self, n, topology):
        for name in ("etc", "state", *(f"spool.node{i}" for i in range(1, n + 1))):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(self.mark.encode() * 4)
        silent = NEVER if (23, 11) <= self.version() < (26, 5) else 6
        conf = CONF.format(addr=self.login.addr, folder=self.folder, nodes=f"node[1-{n}]", gpus=GPUS, silent=silent)
        (self.folder / "etc/slurm.conf").write_text(conf + ("TopologyPlugin=topology/tree\n" if topology else ""))
        (self.folder / "etc/topology.conf").write_text(topology)
        (self.folder / "etc/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self.folder / "etc/gres.conf").write_text(f"NodeName=node[1-{n}] Name=gpu File=/run/gpu[0-{GPUS - 1}]\n")

    def on_power_off(self, host):
        """Slurm 24.11 waits for a dead node before it asks the others again, so a short SlurmdTimeout ends those as well. It learns of the dead one here."""
        if f"SlurmdTimeout={NEVER}\n" in (self.folder / "etc/slurm.conf").read_text():
            self.timers.append(threading.Timer(10, self.run, ("scontrol", "update", f"nodename={host.name}", "state=down", "reason=silent")))
            self.timers[-1].start()

    def tear_down(self):
        for timer in self.timers:
            timer.cancel()
        super().tear_down()

    def start(self, host):
        """Its daemons. They leave when the host does."""
        munged = f"munged --force --key-file {self.folder}/munge.key --seed-file /run/munge.seed --log-file {self.folder}/munged.{host.name}.log"
        what = "slurmctld" if host is self.login else f"for i in $(seq 0 {GPUS - 1}); do touch /run/gpu$i; mount --bind /dev/null /run/gpu$i; done; slurmd"
        host.ns.sh(f"PATH=$PATH:/usr/sbin; mkdir -p /run/munge; mount --bind {self.folder}/etc /etc/slurm; {munged} 2>/dev/null; {what} 2>&1")

    def ready(self):
        """Until every node is idle."""
        idle = lambda: self.run("sinfo", "-h", "-t", "idle", "-p", "main", "-o", "%D") == str(len(self.nodes))
        until(lambda: f"all nodes are idle:\n{self.run('sinfo', '-N', '-l')}\n{self.logs()}", idle, 20)

    def logs(self):
        """What Slurm's daemons have to say of jobs and nodes."""
        dull = re.compile(r"pmi|CPU|differs from hardware|state file|started on|version|Parameters|select/|mcs|backup")
        lines = lambda p: [line for line in p.read_text(errors="replace").splitlines() if not dull.search(line)][-25:]
        return "\n".join(f"    {p.stem} {line}" for p in sorted(self.folder.glob("slurm*.log")) for line in lines(p))

    def __str__(self):
        said = "".join(f"\n{j}" for j in self.jobs)
        return f"{super().__str__()}{said}\n{self.logs()}" if hasattr(self, "folder") else super().__str__()

    # -- what a user does, on login ------------------------------------------------------------------------------------

    def env(self, extra=None):
        env = super().env(extra)
        env.pop("TMPDIR", None)
        return {**env, "PATH": f"{BUILD}/agent:{BUILD}/agent/trainer:{BUILD}/daemon:{env['PATH']}"}

    def version(self):
        """(year, month); no configuration is needed."""
        return tuple(map(int, re.findall(r"\d+", self.run("/usr/sbin/slurmctld", "-V"))[:2]))

    def run(self, *argv, env=None):
        """What it says, without the last newline; stderr too where it failed."""
        done = subprocess.run([*self.login.ns.enter(), "sh", "-c", 'cd "$0" && exec "$@"', self.tmp, *map(str, argv)], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, env=self.env(env), timeout=30 * SLOW)
        return (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip()

    def start_there(self, *argv, env=None):
        return self.spawn(*argv, node="login", env=env, wrap=[*self.login.ns.enter(), "sh", "-c", 'cd "$0" && exec "$@"', self.tmp])

    def srun(self, *argv, env=None):
        return self.start_there("srun", *argv, env=env)

    def type(self, text, env=None):
        """Lines of a page, in a folder with the scripts of deploy/slurm and deploy/aws."""
        for script in (TOP / "deploy").glob("*/*.sbatch"):
            if not (self.tmp / script.name).exists():
                (self.tmp / script.name).symlink_to(script)
        return self.start_there("bash", "-e", "-c", text, env=env)

    def submitted(self, text, env=None):
        """The jobs that such lines submit."""
        p = self.type(text, env)
        assert p.exit() == 0, p
        return [self.job(number) for number in re.findall(r"^Submitted batch job (\d+)$", p.text, re.M)]

    def job(self, number):
        self.jobs.append(Job(self, number))
        return self.jobs[-1]

    def sbatch(self, *argv, env=None):
        """The job."""
        said = self.run("sbatch", "--parsable", *argv, env=env)
        assert re.fullmatch(r"\d+", said), f"sbatch {' '.join(map(str, argv))}: {said}"
        return self.job(said)

    def left(self):
        """What jobs have left on any host."""
        return [p for h in self.hosts for p in h.pids() if harness.comm(p) not in OURS]


class Job:
    """A batch job: what Slurm knows of it, and what it has written."""

    def __init__(self, slurm, id_):
        self.slurm, self.id = slurm, id_

    def shown(self):
        return dict(re.findall(r"(\w[\w:/]*)=(\S*)", self.slurm.run("scontrol", "-o", "show", "job", self.id)))

    def fields(self):
        """What Slurm says of it, as soon as the controller answers."""
        found = lambda: "JobState" in (fields := self.shown()) and fields
        return until(lambda: f"scontrol shows job {self.id}\n{self.slurm.logs()}", found, 30)

    @property
    def state(self):
        return self.shown().get("JobState", "unknown")

    @property
    def text(self):
        files = sorted([*self.slurm.tmp.glob(f"*-{self.id}.out"), *self.slurm.tmp.glob(f"*-{self.id}_*.out")])  # of an array
        return "".join(p.read_text(errors="replace") for p in files)

    def says(self, pattern):
        return re.search(pattern, self.text, re.I | re.M)

    def expect(self, pattern, timeout=20.0):
        """The first match, already there or still to come, in what it has written."""
        return until(lambda: f"/{pattern}/ is said:\n{self}\n{self.slurm.logs()}", lambda: self.says(pattern), timeout)

    def until_state(self, *states, timeout=30.0):
        deadline = time.monotonic() + timeout * SLOW
        while (state := self.state) not in states:
            assert time.monotonic() < deadline, f"job {self.id} is {state}, not {states}:\n{self}\n{self.slurm.logs()}"
            time.sleep(0.1)
        return self

    def exit(self, timeout=30.0):
        """Waits for its end: its exit code, -N where signal N ended it."""
        self.until_state("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", timeout=timeout)
        code, signo = map(int, self.fields()["ExitCode"].split(":"))
        return -signo if signo else code

    def __str__(self):
        return f"job {self.id}: {self.state}" + "".join(f"\n    {line}" for line in self.text.splitlines()[-80:])
