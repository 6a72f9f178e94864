"""The scripts of deploy/pbs, sge and lsf, on hosts in network namespaces, with the environment that those schedulers give a script, and with stand-ins
for the programs of theirs that the scripts call (standin.py). No PBS, Grid Engine or LSF is here: it is our side of it that is tested.
"""

import os
import re
import shlex
import signal
import time

import pages
import pytest
from harness import SLOW, TOP, until

PBS, SGE, LSF = "deploy/pbs.md", "deploy/sge.md", "deploy/lsf.md"
# Says where it is; ends when `go` is there, writes a checkpoint when it is told to stop.
TRAIN = """#!/usr/bin/env python3
import os, signal, sys, time
def stop(signo, frame):
    print("checkpoint", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
e = os.environ
print("rank", e["RANK"], "of", e["WORLD_SIZE"], "local", e["LOCAL_RANK"], "of", e["LOCAL_WORLD_SIZE"], "on", os.uname().nodename, sys.argv[1:],
      "round", e["RDZV_ROUND"], e["RDZV_RUN_ID"], e.get("CUDA_VISIBLE_DEVICES", "all"), e.get("MINE", ""), flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""


class Site:
    """Hosts that reach each other by ssh, a folder with train.py that all see, and the stand-ins in PATH."""

    def __init__(self, make_rsh, n=2):
        self.c = make_rsh(n)
        self.folder, self.log = self.c.tmp / "run", self.c.tmp / "tasks"
        self.folder.mkdir()
        self.train(TRAIN)
        for name in "pbsdsh", "qrsh", "blaunch", "jsrun":
            (self.c.bin / name).symlink_to(TOP / "tests/cluster/standin.py")

    def train(self, text):
        path = self.folder / "train.py"
        path.write_text(text)
        path.chmod(0o755)

    def submit(self, page, name, env):
        """What the page tells to submit, on the first host, as its scheduler would run it."""
        (line,) = pages.lines(page, name)
        words = shlex.split(line.replace(" < ", " "))
        assert words[0] == ("bsub" if page == LSF else "qsub"), line
        script = (TOP / page).with_suffix("") / words[1]
        mine = {"STANDIN_LOG": str(self.log), "MINE": "it's $mine"}
        return self.c.run(1, "env", "-C", self.folder, "bash", script, *words[2:], env={**mine, **env})

    def go(self):
        (self.folder / "go").touch()

    def tasks(self):
        """Who started one on whom, by what."""
        return [text.split()[:3] for text in self.log.read_text().splitlines()] if self.log.exists() else []


def pbs(site, each=1):
    """What OpenPBS gives to a script, and the file that it leaves on each host."""
    lines = "".join(f"{h.name}\n" * each for h in site.c.hosts)
    for host in site.c.hosts:
        host.ns.sh("mount -t tmpfs spool /var/spool && mkdir -p /var/spool/pbs/aux")
        host.ns.sh(f"printf '%s' '{lines}' >/var/spool/pbs/aux/4711.pbs1")
    return {"PBS_JOBID": "4711.pbs1", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": "/var/spool/pbs/aux/4711.pbs1", "PBS_NODENUM": "0",
            "PBS_TASKNUM": "1", "PBS_O_WORKDIR": str(site.folder), "PBS_O_PATH": f"{site.c.bin}:/usr/bin:/bin", "PBS_QUEUE": "gpu", "NCPUS": "2"}


def sge(site, **more):
    """Grid Engine's: its file lies on the first host alone."""
    lines = "".join(f"{h.name}.example.org 4 all.q@{h.name}.example.org UNDEFINED\n" for h in site.c.hosts)
    path = "/var/spool/sge/active_jobs/4711.1"
    site.c[1].ns.sh(f"mount -t tmpfs spool /var/spool && mkdir -p {path} && printf '%s' '{lines}' >{path}/pe_hostfile")
    return {"JOB_ID": "4711", "SGE_TASK_ID": "undefined", "SGE_JOB_SPOOL_DIR": path, "PE": "mpi", "PE_HOSTFILE": f"{path}/pe_hostfile",
            "NHOSTS": str(len(site.c.hosts)), "NSLOTS": "8", "NQUEUES": "2", "RESTARTED": "0", **more}


def lsf(site, **more):
    return {"LSB_JOBID": "4711", "LSB_JOBINDEX": "0", "LSB_MCPU_HOSTS": "".join(f"{h.name} 4 " for h in site.c.hosts),
            "LSB_DJOB_NUMPROC": str(4 * len(site.c.hosts)), **more}


def ranks(proc, n):
    """rank -> (local rank, local world size, host) once all n have said so in one round; and the last line of each."""
    found = {}

    def look():
        for text in proc.out:
            if m := re.search(r"rank (\d+) of (\d+) local (\d+) of (\d+) on (\S+) (\[.*?\]) round 1", text):
                assert int(m[2]) == n, f"{text}\n{proc}"
                found[int(m[1])] = (int(m[3]), int(m[4]), m[5])
        return len(found) == n or not proc.running

    until(lambda: f"{n} ranks, now {found}\n{proc}", look, 20)
    assert sorted(found) == list(range(n)), f"{found}\n{proc}"
    return found


def finish(site, proc, code=0):
    assert not proc.says("it is not used"), proc  # nobody misses what only the first host has
    site.go()
    assert proc.exit(30) == code, str(site.c)
    site.c.gone()


def test_pbs_by_ssh(make_rsh):
    """Bare rdzv-agent in the script: the other node's agent by ssh, with this shell's environment."""
    site = Site(make_rsh)
    p = site.submit(PBS, "train", pbs(site))
    assert ranks(p, 2) == {0: (0, 1, "n1"), 1: (0, 1, "n2")}, p
    assert p.says(r"rank 1 .*\['--epochs', '10'\].*it's \$mine"), p
    finish(site, p)


def test_pbs_leaves_before_its_end(make_rsh):
    """The script tells when that is; here, by another clock, in ten minutes and a few seconds."""
    site = Site(make_rsh)
    site.c.program("date", f"#!/bin/sh\necho {int(time.time()) - 24 * 3600 + 600 + 6 * SLOW}\n")
    p = site.submit(PBS, "train", pbs(site))
    ranks(p, 2)
    assert p.exit(60) == 75, p
    assert p.text.count("checkpoint") >= 2 and p.says("ends the job in"), p
    site.c.gone()


@pytest.mark.parametrize("each", [1, 2])
def test_pbsdsh(make_rsh, each):
    """PBS starts an agent for each line; they find each other by the file, which nobody names to them."""
    site = Site(make_rsh)
    p = site.submit(PBS, "pbsdsh", pbs(site, each))
    assert ranks(p, 2 * each) == {r: (r % each, each, f"n{1 + r // each}") for r in range(2 * each)}, p
    finish(site, p)
    assert len(site.tasks()) == 2 * each and all(t[:2] == ["pbsdsh", "n1"] for t in site.tasks()), site.tasks()


def test_pbsdsh_tells_how_it_ended(make_rsh):
    site = Site(make_rsh)
    site.train("#!/usr/bin/env python3\nraise SystemExit(7)\n")
    p = site.submit(PBS, "pbsdsh", {**pbs(site), "RDZV_AGENT_MAX_RESTARTS": "0"})
    assert p.exit(60) == 7, p
    site.c.gone()


def test_sge(make_rsh):
    """The other nodes' agents by qrsh, all from the first node, however many there are; what is granted on that one stays there."""
    site = Site(make_rsh, 3)
    p = site.submit(SGE, "train", sge(site, CUDA_VISIBLE_DEVICES="none"))
    assert ranks(p, 3) == {i: (0, 1, f"n{i + 1}") for i in range(3)}, p
    assert p.says(r"rank 0 .* sge-4711 none") and p.says(r"rank 2 .*\['--epochs', '10'\].* sge-4711 all it's \$mine"), p
    finish(site, p)
    assert sorted(site.tasks()) == [["qrsh", "n1", f"n{i}.example.org"] for i in (2, 3)], site.tasks()


def test_sge_requeue(make_rsh):
    """The soft limit's SIGUSR1, to the whole process group: a checkpoint, and the exit code that Grid Engine requeues."""
    site = Site(make_rsh)
    p = site.submit(SGE, "requeue", sge(site))
    ranks(p, 2)
    group = [pid for pid in site.c[1].pids() if os.getpgid(pid) == os.getpgid(p.pid)]  # without nsenter
    assert len(group) > 1, group
    for pid in group:
        os.kill(pid, signal.SIGUSR1)
    assert p.exit(60) == 99, p
    assert p.text.count("checkpoint") >= 2, p
    site.c.gone()
    again = site.submit(SGE, "requeue", sge(site, RESTARTED="1"))
    ranks(again, 2)
    finish(site, again)


def test_lsf(make_rsh):
    site = Site(make_rsh)
    p = site.submit(LSF, "train", lsf(site))
    assert ranks(p, 2) == {0: (0, 1, "n1"), 1: (0, 1, "n2")}, p
    assert p.says(r"rank 1 .*it's \$mine"), p
    p.kill(signal.SIGTERM)  # -wa TERM, ten minutes before the end
    assert p.exit(60) == 75, p  # which -Q "75" requeues
    assert p.text.count("checkpoint") >= 2, p
    site.c.gone()
    assert site.tasks() == [["blaunch", "n1", "n2"]], site.tasks()


def test_jsrun(make_rsh):
    """From a launch node, which takes no worker: n1."""
    site = Site(make_rsh, 3)
    rankfile = site.c.tmp / "rankfile"
    rankfile.write_text("n1\n" + "n2\n" * 42 + "n3\n" * 42)
    env = {"LSB_JOBID": "99", "LSB_JOBINDEX": "0", "LSB_DJOB_RANKFILE": str(rankfile), "LSB_DJOB_NUMPROC": "85", "CSM_ALLOCATION_ID": "1"}
    p = site.submit(LSF, "jsrun", env)
    assert ranks(p, 2) == {0: (0, 1, "n2"), 1: (0, 1, "n3")}, p
    finish(site, p)
