# SPDX-License-Identifier: Apache-2.0
"""mpirun of Open MPI and mpiexec of Hydra (MPICH's; Intel MPI's is one too), the real ones, on hosts in network namespaces, by a real sshd: agents that are
told nothing find each other, output comes back, and whatever dies nothing is left. The commands are those of deploy/mpi.md.
"""

import os
import re
import shutil
import signal
import subprocess

import pages
import pytest
from harness import comm, environ, stat, until
from job import PYTHON

TOOLS = {"openmpi": ("mpirun.openmpi", "openmpi-bin"), "hydra": ("mpiexec.hydra", "mpich")}
# The command of the pages: with options it is the trainer that runs.
TRAIN = """#!/bin/sh
echo rank $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE on $(hostname) round $RDZV_ROUND cpus $(env -u OMP_NUM_THREADS nproc)
while [ ! -e go ]; do sleep 0.05; done
echo rank $RANK is done
"""
TRAINER = "--data synthetic:400 --layers 20,5,20 --batch 40 --epochs 2 --device cpu"


class Mpi:
    """Hosts, on which mpirun is the launcher `kind`, and reaches the others by our ssh."""

    def __init__(self, make_rsh, kind, hosts=2):
        tool, package = TOOLS[kind]
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed (package {package})")
        self.c, self.kind = make_rsh(hosts), kind
        self.c.program("mpirun", '#!/bin/sh\nexec mpirun.openmpi "$@"\n')
        (self.c.tmp / "train").write_text(TRAIN)
        (self.c.tmp / "train").chmod(0o755)
        self.env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1"}

    def start(self, name, *changes, on=1):
        """The page's command for this launcher, with fewer workers: this machine has two cores."""
        (line,) = [x for x in pages.lines("deploy/mpi.md", name) if x.startswith("mpirun" if self.kind == "openmpi" else "mpiexec.hydra")]
        return self.c.run(on, "exec " + pages.with_changes(line, changes), env=self.env)

    def each_worker(self, *changes):
        fewer = [("n1:4,n2:4 -np 8", "n1:2,n2:2 -np 4")] if self.kind == "openmpi" else [("-ppn 4 -n 8", "-ppn 2 -n 4")]
        return self.start("each worker", *fewer, *changes)

    def each_host(self, *changes):
        return self.start("each host", ("--nproc 4", "--nproc 2"), *changes)

    def ranks(self, proc, n, round_=1):
        """rank -> (local rank, local world size, host), once all have said so in that round."""
        found, cpus = {}, len(os.sched_getaffinity(0))

        def look():
            for text in proc.out:
                if m := re.search(rf"rank (\d+) of {n} local (\d+) of (\d+) on (\S+) round {round_} cpus (\d+)", text):
                    found[int(m[1])] = (int(m[2]), int(m[3]), m[4])
                    assert int(m[5]) == cpus, f"a worker is bound to fewer CPUs: {text}"
            return len(found) == n or not proc.running

        until(lambda: f"{n} ranks in round {round_}, now {found}\n{self.c}", look, 20)
        assert sorted(found) == list(range(n)), f"{found}\n{self.c}"
        return found

    def finish(self, proc, n):
        (self.c.tmp / "go").touch()
        assert proc.exit(30) == 0, str(self.c)
        assert {int(m[1]) for m in (re.search(r"rank (\d+) is done", text) for text in proc.out) if m} == set(range(n)), str(self.c)
        self.c.gone()


TWO_EACH = {0: (0, 2, "n1"), 1: (1, 2, "n1"), 2: (0, 2, "n2"), 3: (1, 2, "n2")}


@pytest.fixture(params=sorted(TOOLS))
def kind(request):
    return request.param


def worker(cluster, rank):
    """Its first process."""
    (pid,) = [p for h in cluster.hosts for p in h.pids() if environ(p).get("RANK") == str(rank) and stat(p)[3] == str(p)]
    return pid


def test_an_agent_for_each_worker(make_rsh, kind):
    """A rank that is killed costs a restart, and nothing else."""
    m = Mpi(make_rsh, kind)
    p = m.each_worker()
    assert m.ranks(p, 4) == TWO_EACH, str(m.c)
    os.kill(worker(m.c, 3), signal.SIGKILL)
    p.expect("rank 3 .* was killed by SIGKILL")
    assert m.ranks(p, 4, round_=2) == TWO_EACH, str(m.c)
    m.finish(p, 4)


def test_an_agent_for_each_host(make_rsh, kind):
    """With two workers each; and with the trainer."""
    m = Mpi(make_rsh, kind)
    p = m.each_host()
    assert m.ranks(p, 4) == TWO_EACH, str(m.c)
    m.finish(p, 4)
    train = m.each_host(("./train", TRAINER))
    assert train.exit(60) == 0, str(m.c)
    assert train.says("done: 20 steps"), str(m.c)
    m.c.gone()


def test_the_key_comes_from_mpirun(make_rsh, kind):
    """No file is needed on any host: each has another one here, which stays unused. No command line shows a key or what it comes from."""
    m = Mpi(make_rsh, kind)
    own = f"sh -c 'export XDG_CONFIG_HOME={m.c.tmp}/home.$(hostname); exec \"$@\"' - rdzv-agent"
    p = m.each_worker(("rdzv-agent", own))
    assert m.ranks(p, 4) == TWO_EACH, str(m.c)
    assert not list(m.c.tmp.glob("home.*")), "a key file was made"
    agents = [pid for h in m.c.hosts for pid in h.pids() if comm(pid) == "rdzv-agent"]
    number = environ(agents[0]).get("OMPI_MCA_orte_precondition_transports", "cmd=put")
    shown = subprocess.run(["ps", "-ww", "-eo", "args"], check=True, capture_output=True, text=True).stdout
    assert agents and "rdzv-agent" in shown and number not in shown, f"{number} is on a command line"
    numbers = {environ(worker(m.c, rank)).get("OMPI_MCA_orte_precondition_transports") for rank in range(4)}
    assert numbers == ({number} if kind == "openmpi" else {None}), "all workers have one number, which is not mpirun's"
    m.finish(p, 4)


def test_one_host_has_no_agent(make_rsh):
    """Hydra's barrier never ends: it says so at --join-timeout."""
    m = Mpi(make_rsh, "hydra")
    p = m.each_host(("rdzv-agent", "sh -c '[ $PMI_RANK = 0 ] || exec sleep 60; exec \"$@\"' - rdzv-agent --join-timeout 1s"))
    assert p.exit(20) != 0, str(m.c)
    assert p.says("an agent of this start is missing or is no rdzv-agent; give all of them --key-file"), str(m.c)
    m.c.gone(10)


def test_agents_end_one_after_the_other(make_rsh):
    """Hydra takes one that asked for a key and ended for a crash, and kills the others, unless it says goodbye. And a worker may be an MPI program."""
    m = Mpi(make_rsh, "hydra", hosts=1)
    program = "import ctypes, os, time; m = ctypes.CDLL('libmpich.so.12', ctypes.RTLD_GLOBAL); n = ctypes.c_int(); assert m.MPI_Init(None, None) == 0"
    program += "; m.MPI_Comm_size(0x44000000, ctypes.byref(n)); print('MPI has', n.value, flush=True); assert m.MPI_Finalize() == 0"
    (m.c.tmp / "mpi.py").write_text(program)
    for command, said in (("sh -c 'sleep 0.$RANK; echo rank $RANK is done'", "rank 1 is done"), ("python3 mpi.py", "MPI has 2")):
        p = m.c.run(1, f"exec mpiexec.hydra -n 2 rdzv-agent -- {command}", env=m.env)
        assert p.exit(30) == 0, str(m.c)
        assert p.says(said), str(m.c)
    m.c.gone()


def test_on_one_host(make_rsh, kind):
    """Two jobs at once do not meet. They begin one after the other: two mpiruns of Open MPI 4.1 that make their common folder in the same
    moment fall over each other."""
    m = Mpi(make_rsh, kind, hosts=1)
    jobs = []
    for _ in range(2):
        jobs.append(m.start("one host", ("-np 4", "-np 2") if kind == "openmpi" else ("-n 4", "-n 2")))
        assert m.ranks(jobs[-1], 2) == {0: (0, 2, "n1"), 1: (1, 2, "n1")}, str(m.c)
    (m.c.tmp / "go").touch()
    assert [p.exit(30) for p in jobs] == [0, 0], str(m.c)
    m.c.gone()


def test_ctrl_c(make_rsh, kind):
    m = Mpi(make_rsh, kind)
    p = m.each_host()
    m.ranks(p, 4)
    os.killpg(os.getpgid(p.pid), signal.SIGINT)
    assert p.exit(20) != 0, str(m.c)
    m.c.gone(10)


# In Python, which loses no signal: see waits.py.
WRITES = f"""#!{PYTHON} -SE
import os, signal, sys, time
rank = os.environ["RANK"]
def write(*_):
    for signo in signal.SIGTERM, signal.SIGINT:
        signal.signal(signo, signal.SIG_IGN)
    time.sleep(1.5)
    open("written." + rank, "w").close()
    sys.exit(0)
for signo in signal.SIGTERM, signal.SIGINT:
    signal.signal(signo, write)
e = os.environ
print("rank", rank, "of", e["WORLD_SIZE"], "local", e["LOCAL_RANK"], "of", e["LOCAL_WORLD_SIZE"], "on", os.uname().nodename, "round", e["RDZV_ROUND"],
      "cpus", len(os.sched_getaffinity(0)), flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.seconds(23)
def test_time_for_a_checkpoint(make_rsh):
    """By Open MPI, which kills after a second otherwise. It reads no output meanwhile, and waits for longer than that in the end."""
    m = Mpi(make_rsh, "openmpi")
    (m.c.tmp / "train").write_text(WRITES)
    p = m.start("time", ("--nproc 4", "--nproc 2"), ("timeout 30", "timeout 6"))
    m.ranks(p, 4)
    p.kill(signal.SIGINT)  # mpirun's agents have process groups of their own
    assert p.exit(60) != 0 and len(list(m.c.tmp.glob("written.*"))) == 4, str(m.c)
    m.c.gone()


@pytest.mark.parametrize("what", ["launcher", "agent"])
def test_what_is_killed_takes_all_along(make_rsh, kind, what):
    """mpirun itself; and one of its agents, in whose place mpirun ends the others."""
    m = Mpi(make_rsh, kind)
    p = m.each_host()
    m.ranks(p, 4)
    if what == "launcher":
        p.kill()
    else:
        os.kill(m.c[2].process("rdzv-agent"), signal.SIGKILL)
    assert p.exit(20) != 0, str(m.c)
    m.c.gone(15)


def test_two_jobs_at_once_on_several_hosts(make_rsh):
    """Of Hydra, which numbers nothing: mpiexec's host and port tell them apart. Two mpiruns of Open MPI fall over each other (above)."""
    m = Mpi(make_rsh, "hydra")
    jobs = [m.each_host() for _ in range(2)]
    for p in jobs:
        assert m.ranks(p, 4) == TWO_EACH, str(m.c)
    (m.c.tmp / "go").touch()
    assert [p.exit(30) for p in jobs] == [0, 0], str(m.c)
    m.c.gone()


def test_started_from_elsewhere(make_rsh, kind):
    """mpirun runs on a host that no agent is on: nobody knows where to meet, and that is said at once, not after ten minutes."""
    m = Mpi(make_rsh, kind, hosts=3)
    p = m.start("each host", on=3)
    assert p.exit(20) == 64, str(m.c)
    assert p.says(r"agents would meet on n3 .* is on n1: give --endpoint n1 to all of them" if kind == "hydra" else "--endpoint"), str(m.c)
    m.c.gone(10)
    (m.c.tmp / "go").touch()
    p = m.start("each host", ("rdzv-agent", "rdzv-agent --endpoint n1"), ("--nproc 4", "--nproc 2"), on=3)
    assert p.exit(20) == 0, str(m.c)
    m.c.gone(10)


@pytest.mark.parametrize("hosts", ["even", "uneven"])
def test_more_agents_than_nodes(make_rsh, kind, hosts):
    """The first two to come would take both places. One that is alone on its host may not know that others are not: mpirun ends it."""
    m = Mpi(make_rsh, kind)
    crowd = [("rdzv-agent --", "rdzv-agent --nnodes 2 --nproc 2 --")]
    if hosts == "uneven":
        crowd.append(("n1:2,n2:2 -np 4", "n1:2,n2:1 -np 3") if kind == "openmpi" else ("-n 4", "-n 3"))
    p = m.each_worker(*crowd)
    assert p.exit(20) == 64, str(m.c)
    option = r"mpirun --map-by ppr:1:node" if kind == "openmpi" else "mpiexec -ppn 1"
    assert p.says(rf"started \d agents .*, several of them on one host, but --nnodes=2 admits 2: start one on each host \({option}\)"), str(m.c)
    m.c.gone(10)


def batch(c, scheduler):
    """What a scheduler gives to a batch script on n1, where its file of hosts lies too."""
    c[1].ns.sh("printf 'n1\\nn2\\n' >/run/hosts; printf 'n1 2 q U\\nn2 2 q U\\n' >/run/pe_hosts")
    return {
        "pbs": {"PBS_JOBID": "815.x", "PBS_NODEFILE": "/run/hosts"},
        "sge": {"JOB_ID": "815", "SGE_TASK_ID": "undefined", "PE_HOSTFILE": "/run/pe_hosts", "NHOSTS": "2"},
        "slurm": {"SLURM_JOB_ID": "815", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODELIST": "n[1-2]", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2",
                  "SLURM_TASKS_PER_NODE": "2(x2)", "SLURM_PROCID": "0", "SLURM_NODEID": "0"},
    }[scheduler]


@pytest.mark.parametrize("scheduler", ["pbs", "sge", "slurm"])
def test_by_ssh_within_a_schedulers_job(make_rsh, kind, scheduler):
    """The batch script's variables do not reach the other hosts by mpirun's ssh, and mpirun was not built for this scheduler. The agents meet all the same."""
    m = Mpi(make_rsh, kind)
    m.env.update(batch(m.c, scheduler))
    by_ssh = ("mpirun ", "mpirun --mca plm rsh --mca plm_rsh_agent ssh --mca ras ^slurm,tm,gridengine ") if kind == "openmpi" else ("mpiexec.hydra ", "mpiexec.hydra -launcher ssh -rmk user ")
    p = m.each_worker(by_ssh)
    assert m.ranks(p, 4) == TWO_EACH, str(m.c)
    m.finish(p, 4)
