# SPDX-License-Identifier: Apache-2.0
"""The scripts of deploy/pbs, sge and lsf, on hosts in network namespaces, with the environment that those schedulers give a script, and with stand-ins
for the programs of theirs that the scripts call (standin.py). No PBS, Grid Engine or LSF is here: it is our side of it that is tested.
"""

import contextlib
import os
import re
import shutil
import signal
import time

import pages
import pytest
from harness import SLOW, TOP, stat, until

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
        for name in "qsub", "bsub", "pbsdsh", "qrsh", "blaunch", "jsrun":
            (self.c.bin / name).symlink_to(TOP / "tests/cluster/standin.py")

    def train(self, text):
        path = self.folder / "train.py"
        path.write_text(text)
        path.chmod(0o755)

    def submit(self, page, name, env, changes=()):
        """The page's line, on the first host, in a folder with the page's scripts; what it submits runs at once."""
        (line,) = pages.lines(page, name)
        for script in (TOP / page).with_suffix("").iterdir():
            shutil.copy(script, self.folder)
        mine = {"STANDIN_LOG": str(self.log), "MINE": "it's $mine"}
        return self.c.run(1, "env", "-C", self.folder, "sh", "-c", "exec " + pages.with_changes(line, changes), env={**mine, **env})

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
    assert not proc.says("it is ignored"), proc  # nobody misses what only the first host has
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


def test_devices_stay_on_their_host(make_rsh):
    """CUDA_VISIBLE_DEVICES may be a person's or PBS': it is not passed on, which is said; to hosts that are named it is."""
    site = Site(make_rsh)
    env = {**pbs(site), "CUDA_VISIBLE_DEVICES": "0,1", "RDZV_AGENT_NPROC": "1"}
    p = site.submit(PBS, "train", env)
    assert ranks(p, 2) == {0: (0, 1, "n1"), 1: (0, 1, "n2")}, p
    assert p.says(r"rank 0 .* 0,1 it's") and p.says(r"rank 1 .* all it's"), p
    assert p.text.count("rdzv-agent: CUDA_VISIBLE_DEVICES=0,1 is not passed to the job's other hosts, where PBS may have granted other GPUs") == 1, p
    finish(site, p)
    (site.folder / "go").unlink()
    named = pages.inline(PBS, 'rdzv-agent --hostfile "$PBS_NODEFILE" -- ./train.py')
    p = site.c.run(1, "env", "-C", site.folder, "sh", "-c", "exec " + named, env=env)
    assert ranks(p, 2) == {0: (0, 1, "n1"), 1: (0, 1, "n2")} and p.says(r"rank 1 .* 0,1") and not p.says("is not passed"), p
    finish(site, p)


def test_pbs_runs_it_again(make_rsh):
    """By hand, after one that has left before its end; ABCI's options. The environment that they name is there."""
    site = Site(make_rsh)
    site.go()
    p = site.submit(PBS, "again", pbs(site), [(":ID", ":4710")])
    assert p.exit(30) == 0 and p.says("rank 1 of 2"), p
    site.train('#!/usr/bin/env python3\nimport os\nprint("rank", os.environ["RANK"], "has", os.environ["USE_SSH"])\n')
    p = site.submit(PBS, "abci", pbs(site), [("GROUP", "gaa50000")])
    assert p.exit(30) == 0 and p.says("rank 1 has 1"), p
    site.c.gone()


def test_torque_by_ssh(make_rsh):
    """Its files lie on the first host alone. The other agent misses neither, and has as many workers as it was granted GPUs."""
    site = Site(make_rsh)
    path = "/var/spool/aux/4711.torque"
    site.c[1].ns.sh(f"mount -t tmpfs spool /var/spool && mkdir -p /var/spool/aux && printf 'n1\\nn2\\n' >{path}")
    site.c[1].ns.sh(f"printf 'n1-gpu0\\nn2-gpu0\\nn2-gpu1\\n' >{path}gpu")
    env = {"PBS_JOBID": "4711.torque", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": path, "PBS_GPUFILE": f"{path}gpu", "PBS_NODENUM": "0",
           "PBS_VNODENUM": "0", "PBS_TASKNUM": "1", "PBS_NUM_NODES": "2", "PBS_NUM_PPN": "1", "PBS_O_WORKDIR": str(site.folder), "PBS_O_PATH": "/usr/bin"}
    p = site.submit(PBS, "train", env)
    assert ranks(p, 3) == {0: (0, 1, "n1"), 1: (0, 2, "n2"), 2: (1, 2, "n2")}, p
    assert not p.says("PBS_GPUFILE"), p
    finish(site, p)


@pytest.mark.seconds(20)
@pytest.mark.parametrize("script", ["train", "pbsdsh"])
def test_pbs_leaves_before_its_end(make_rsh, script):
    """The script tells when that is; here, by another clock, in ten minutes and the seconds in which a busy machine starts the workers."""
    site = Site(make_rsh)
    site.c.program("date", f"#!/bin/sh\necho {int(time.time()) - 24 * 3600 + 600 + 15 * SLOW}\n")
    p = site.submit(PBS, script, pbs(site))
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
    env = {**pbs(site), "RDZV_AGENT_MAX_RESTARTS": "0"}
    p = site.submit(PBS, "pbsdsh", env)
    assert p.exit(60) == 7 and not list(site.folder.glob("exit.*")), p
    # Nobody is there who could: what an earlier job of that number has left says nothing.
    (site.folder / "exit.4711.pbs1").write_text("0\n")
    (site.c.bin / "pbsdsh").unlink()
    site.c.program("pbsdsh", "#!/bin/sh\necho 'pbsdsh: error from tm_poll() 17002' >&2\n")
    p = site.submit(PBS, "pbsdsh", env)
    assert p.exit() == 1 and p.says("first node has left no exit code") and not p.says("numeric argument"), p
    site.c.gone()


def test_sge(make_rsh):
    """The other nodes' agents by qrsh, all from the first node, however many there are; what is granted on that one stays there."""
    site = Site(make_rsh, 3)
    p = site.submit(SGE, "train", sge(site, CUDA_VISIBLE_DEVICES="none"))
    assert ranks(p, 3) == {i: (0, 1, f"n{i + 1}") for i in range(3)}, p
    assert p.says(r"rank 0 .* sge-4711 none") and p.says(r"rank 2 .*\['--epochs', '10'\].* sge-4711 all it's \$mine"), p
    finish(site, p)
    assert sorted(site.tasks()) == [["qrsh", "n1", f"n{i}.example.org"] for i in (2, 3)], site.tasks()


def test_abci(make_rsh):
    """Its script loads modules, by a file that stands no -u, and has two files with hosts to go by."""
    site = Site(make_rsh)
    module = 'module() { [ -z "$MODULES_QUIET" ] || return; export MINE="modules: $*"; }\n'
    (site.c.tmp / "modules.sh").write_text(module)
    (site.c.tmp / "hostlist").write_text("n1\nn2\n")
    site.c[1].ns.sh(f"mount -t tmpfs profile /etc/profile.d && cp {site.c.tmp}/modules.sh /etc/profile.d/")
    env = sge(site, SGE_JOB_HOSTLIST=str(site.c.tmp / "hostlist"), PE="perack72", ENVIRONMENT="BATCH", SGE_RESOURCE_TYPE="rt_AF")
    p = site.submit(SGE, "abci", env, [("GROUP", "gaa50000")])
    assert ranks(p, 2) == {0: (0, 1, "n1"), 1: (0, 1, "n2")}, p
    assert p.says(r"rank 1 .*\['--epochs', '10'\].*modules: load cuda nccl"), p
    finish(site, p)
    assert [t[:2] for t in site.tasks()] == [["qrsh", "n1"]], site.tasks()


def test_a_script_without_a_shell(make_rsh):
    """What the queues of many sites would do with it: so the stand-in sees whether a script names its shell."""
    site = Site(make_rsh)
    for script in ("train.sh", "abci.sh", "requeue.sh"):
        bare = (TOP / "deploy/sge" / script).read_text().replace("#$ -S /bin/bash\n", "")
        (site.folder / script).write_text(bare)
        p = site.c.run(1, "env", "-C", site.folder, "qsub", script, env=sge(site) if script == "train.sh" else {"PE": "mpi"})
        assert p.exit() == 1 and p.says("would be run by /bin/csh"), p


def test_sge_requeue(make_rsh):
    """The soft limit's SIGUSR1, to the whole process group: a checkpoint, and the exit code that Grid Engine requeues."""
    site = Site(make_rsh)
    p = site.submit(SGE, "requeue", sge(site))
    ranks(p, 2)
    group = [pid for pid in site.c[1].pids() if stat(pid)[2] == stat(p.pid)[2]]  # without nsenter
    assert len(group) > 1, group
    for pid in group:
        with contextlib.suppress(ProcessLookupError):  # the first signals may have ended the others
            os.kill(pid, signal.SIGUSR1)
    assert p.exit(60) == 99, p
    assert p.text.count("checkpoint") >= 2, p
    site.c.gone()
    again = site.submit(SGE, "requeue", sge(site, RESTARTED="1"))
    ranks(again, 2)
    finish(site, again)


def test_lsf(make_rsh):
    site = Site(make_rsh)
    p = site.submit(LSF, "train", lsf(site, CUDA_VISIBLE_DEVICES="none"))
    assert ranks(p, 2) == {0: (0, 1, "n1"), 1: (0, 1, "n2")}, p
    assert p.says(r"rank 1 .* none it's \$mine") and not p.says("is not passed"), p  # blaunch carries it
    p.kill(signal.SIGTERM)  # -wa TERM, ten minutes before the end
    assert p.exit(60) == 75, p  # which -Q "75" requeues
    assert p.text.count("checkpoint") >= 2, p
    site.c.gone()
    assert site.tasks() == [["blaunch", "n1", "n2"]], site.tasks()


def test_blaunch_starts_an_agent_for_each_slot(make_rsh):
    """And each of them has one worker."""
    site = Site(make_rsh)
    p = site.submit(LSF, "slots", lsf(site, LSB_MCPU_HOSTS="n1 2 n2 2 ", LSB_DJOB_NUMPROC="4"))
    got = ranks(p, 4)
    assert {r: (v[0], v[2]) for r, v in got.items()} == {0: (0, "n1"), 1: (1, "n1"), 2: (0, "n2"), 3: (1, "n2")}, p
    finish(site, p)
    assert len(site.tasks()) == 4, site.tasks()


def test_jsrun(make_rsh):
    """From a launch node, which takes no worker: n1."""
    site = Site(make_rsh, 3)
    rankfile = site.c.tmp / "rankfile"
    rankfile.write_text("n1\n" + "n2\n" * 42 + "n3\n" * 42)
    env = {"LSB_JOBID": "99", "LSB_JOBINDEX": "0", "LSB_DJOB_RANKFILE": str(rankfile), "LSB_DJOB_NUMPROC": "85", "CSM_ALLOCATION_ID": "1"}
    p = site.submit(LSF, "jsrun", env)
    assert ranks(p, 2) == {0: (0, 1, "n2"), 1: (0, 1, "n3")}, p
    finish(site, p)
