# SPDX-License-Identifier: Apache-2.0
"""Under a real Slurm (slurm.py): nodes die, jobs are preempted, come to their time limit, and go on. The scripts are those of deploy/slurm.

Where a run is disturbed and its size stays what it was, its weights in the end are those of an undisturbed one, byte for byte. After each test nothing
but Slurm is left on any host.
"""

import os
import re
import signal
import sys
import time

import pytest

import pages
from harness import TRAINER, comm, until
from job import PYTHON, Clock
from slurm import OURS
from test_slurm import SCRIPTS, SMALL, WAIT, checksum, stand_in, torch, train, undisturbed

PAGE = "deploy/slurm.md"

STEPS = 600
SLOWLY = ("--throttle", 40, "--checkpoint-every", 10, "--report-every", "1s", "--checkpoint-dir", "ckpt")  # 40 steps a second


@pytest.mark.seconds(25)
def test_a_node_dies_elastic(make_slurm):
    """The others go on without it at once, and after Slurm has found it dead, too."""
    c = make_slurm(3)
    stand_in(c, go=False)
    (job,) = c.submitted(pages.block(PAGE, "elastic"))
    for rank in range(12):
        job.expect(f"round 1, rank {rank} of 12")
    clock = Clock(c)
    c[3].power_off()
    for rank in range(8):
        job.expect(f"round 2, rank {rank} of 8")
    clock.fact("the others run without the dead node")
    job.expect("Node failure on node3", 30)
    clock.fact("Slurm has found it dead")
    (c.tmp / "go").touch()
    assert job.exit() == 0, c
    c.gone()


@pytest.mark.seconds(30)
def test_a_node_dies_and_a_spare_takes_its_place(make_slurm):
    """From a job of its own, an element of an array. The weights are those of an undisturbed run."""
    c = make_slurm(4)
    # At this pace it takes longer than spares need to come. The round without the dead node does not dawdle.
    (c.tmp / "throttle").write_text("10")
    (c.tmp / "trains").write_text("#!/bin/sh\nexec " + " ".join(map(str, (TRAINER, *train(STEPS, *SLOWLY[2:])))) + " --throttle $(cat throttle)\n")
    (c.tmp / "trains").chmod(0o755)
    first, second = pages.with_changes(pages.block(PAGE, "spares"), [("./train.py --lr 0.1", "./trains")]).splitlines()
    assert c.type(f"{first}\necho $job > main.job").exit() == 0, c
    job = c.job((c.tmp / "main.job").read_text().strip())
    (spares,) = c.submitted(f"job={job.id}\n{second}")
    until(lambda: f"both spares wait\n{c}", lambda: len(re.findall("spare for the next round", spares.text)) == 2, 20)
    job.expect(r"step [2-9]\d+ of")
    (c.tmp / "throttle").write_text("0")
    c[2].power_off()
    job.expect(r"round 2: 2 nodes, 8 workers", 30)
    assert job.exit(60) == 0, c
    assert checksum(job.text, STEPS) == undisturbed(c, STEPS, gpus=4), c
    assert job.says("resumed from .* at step [1-9]"), c
    until(lambda: f"the spares have ended\n{c}", lambda: not c.run("squeue", "-h"), 10)
    assert c.run("scontrol", "-o", "show", "job", spares.id).count("JobState=COMPLETED") == 2, c
    c.gone()


@pytest.mark.seconds(30)
def test_the_first_node_dies(make_slurm):
    """It had the script, srun and rdzvd. The others go on without it, and end the job when they are done, since nobody else would."""
    c = make_slurm(3)
    job = c.sbatch(*SMALL, "--nodes", 3, SCRIPTS / "elastic.sbatch", "sh", "-c", WAIT)
    for rank in range(6):
        job.expect(f"round 1, rank {rank} of 6")
    clock = Clock(c)
    c[1].power_off()
    for rank in range(4):
        job.expect(f"round [2-9], rank {rank} of 4")
    clock.fact("the others run without the first node")
    until(lambda: f"Slurm has found it dead\n{c}", lambda: job.fields().get("NodeList") == "node[2-3]", 40)
    clock.fact("Slurm has found it dead")
    (c.tmp / "go").touch()
    job.until_state("CANCELLED")
    # The agent that is done first cancels the job.
    assert job.says(r"is done: \d rounds") and job.says("node1 has died, which had the script of the job"), c
    c.gone()


@pytest.mark.seconds(40)
def test_the_first_node_dies_just_before_the_end(make_slurm):
    """Slurm does not know it yet when the others are done: they end the job all the same, and give their nodes back."""
    c = make_slurm(3)
    conf = c.folder / "etc/slurm.conf"
    conf.write_text(re.sub(r"SlurmdTimeout=\d+\n", "SlurmdTimeout=600\n", conf.read_text()))
    assert not c.run("scontrol", "reconfigure"), c
    job = c.sbatch(*SMALL, "--nodes", 3, SCRIPTS / "elastic.sbatch", "sh", "-c", WAIT)
    for rank in range(6):
        job.expect(f"round 1, rank {rank} of 6")
    c[1].power_off()
    for rank in range(4):
        job.expect(f"round [2-9], rank {rank} of 4")
    (c.tmp / "go").touch()
    idle = lambda: c.run("sinfo", "-h", "-N", "-n", "node[2-3]", "-p", "main", "-o", "%t").split() == ["idle", "idle"]
    until(lambda: f"nodes 2 and 3 are idle again: {c.run('sinfo', '-N', '-l')}\n{c}", idle, 60)
    assert job.says(r"is done: \d rounds") and job.says("node1 has died, which had the script of the job"), c
    c.gone()


@pytest.mark.seconds(35)
def test_more_than_half_of_the_nodes_die(make_slurm):
    """The first one too. An agent that is left asks for a new life of the job, which begins when there are nodes enough."""
    c = make_slurm(5)
    job = c.sbatch(*SMALL, "--nodes", 3, SCRIPTS / "elastic.sbatch", "sh", "-c", WAIT, env={"RDZV_AGENT_ORPHAN_GRACE": "4s"})
    for rank in range(6):
        job.expect(f"round 1, rank {rank} of 6")
    c[1].power_off()
    c[2].power_off()
    until(lambda: f"the job lives again\n{c}", lambda: job.fields().get("Restarts") == "1" and job.state == "RUNNING", 60)
    (c.tmp / "go").touch()
    assert job.exit() == 0, c
    c.gone()


@pytest.mark.seconds(20)
def test_an_agent_leaves_an_elastic_job(make_slurm):
    """It alone is told to. The others go on, for longer than WaitTime, and how the job ends is theirs to say: it is not begun again."""
    c = make_slurm(3)
    stand_in(c, go=False)
    (job,) = c.submitted(pages.block(PAGE, "elastic"), {"SBATCH_GPUS_PER_NODE": "1"})
    for rank in range(3):
        job.expect(f"round 1, rank {rank} of 3")
    os.kill(c[3].process("rdzv-agent"), signal.SIGTERM)
    for rank in range(2):
        job.expect(f"round 2, rank {rank} of 2")
    until(lambda: f"node 3 has nothing of the job any more\n{c}", lambda: not [p for p in c[3].pids() if comm(p) not in OURS])
    time.sleep(3)  # longer than WaitTime
    (c.tmp / "go").touch()
    assert job.exit() == 0 and job.fields()["Restarts"] == "0", c
    assert not job.says("round 3|is to go on|killed by SIGKILL"), c
    c.gone()


# In Python, which loses no signal: see waits.py. SIGTERM comes twice, from Slurm and from the agent.
WRITES = """
import os, signal, sys, time
rank, life = int(os.environ["RANK"]), os.environ.get("RDZV_SCHEDULER_RESTARTS") or 0
def write(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(4 * rank)
    print(f"rank {rank} has written", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, write)
go = os.path.exists("go")  # before the line at which the test makes it
print(f"{os.uname().nodename}: round {os.environ['RDZV_ROUND']}, rank {rank}, life {life}", flush=True)
if go:
    sys.exit(0)
while True:
    time.sleep(1)
"""


@pytest.mark.seconds(60)
def test_requeue_expedite(make_slurm):
    """A job that asks for its next life, or has a node that fails, waits for nothing. One that fails on healthy nodes is held in the queue."""
    c = make_slurm(4)
    if c.version() < (25, 11):
        pytest.skip("not on this machine: Slurm 25.11 or later")
    epilog = c.folder / "epilog"
    epilog.write_text('#!/bin/sh\n[ "$(hostname)" != node2 ]\n')
    epilog.chmod(0o755)
    conf = c.folder / "etc/slurm.conf"
    conf.write_text(conf.read_text().replace("cred_expire=5", "cred_expire=300") + f"Epilog={epilog}\n")
    assert not c.run("scontrol", "reconfigure"), c
    text = pages.inline(PAGE, "sbatch --requeue=expedite requeue.sbatch")
    (c.tmp / "fails").write_text("#!/bin/sh\necho life $RDZV_SCHEDULER_RESTARTS on $(hostname)\nexit 3\n")
    (c.tmp / "fails").chmod(0o755)
    (fails,) = c.submitted(f"{text} ./fails", {"SBATCH_GPUS_PER_NODE": "1", "RDZV_AGENT_MAX_RESTARTS": "0"})
    for life in (2, 3):
        until(lambda: f"it is held after life {life}\n{c}", lambda: [fails.fields()[key] for key in ("JobState", "Restarts")] == ["REQUEUE_HOLD", str(life)], 30)
        assert fails.says(f"life {life - 1} on node[134]") and not fails.says("life [1-9] on node2|is to go on"), c
        c.run(*(("scontrol", "release") if life == 2 else ("scancel",)), fails.id)
    (c.tmp / "writes.py").write_text(WRITES)
    (job,) = c.submitted(f"{text} {PYTHON} -SE writes.py", {"SBATCH_GPUS_PER_NODE": "1"})
    for life in range(2):
        for rank in range(2):
            job.expect(f"round 1, rank {rank}, life {life}")
        if life == 0:
            c.run("scancel", "--signal", "TERM", job.id)
    (c.tmp / "go").touch()
    dead = job.says(r"node(\d): round 1, rank 1, life 1")[1]
    c[int(dead)].power_off()
    assert job.exit(60) == 0 and job.fields()["Restarts"] == "2" and job.says(f"node[^{dead}]: round 1, rank 1, life 2"), c
    c.gone()


@pytest.mark.seconds(20)
@pytest.mark.parametrize("script", ["requeue", "elastic", "../aws/parallelcluster"])
def test_a_checkpoint_may_take_longer_elsewhere(make_slurm, script):
    """Than WaitTime: who still writes is not killed because another one has written; then the job is begun again."""
    c = make_slurm(2)
    (c.tmp / "writes.py").write_text(WRITES)
    job = c.sbatch("--nodes", 2, "--gpus-per-node", 1, "--cpus-per-task", 1, SCRIPTS / f"{script}.sbatch", PYTHON, "-SE", "writes.py")
    for rank in range(2):
        job.expect(f"round 1, rank {rank}, life 0")
    (c.tmp / "go").touch()
    c.run("scancel", "--signal", "TERM", job.id)  # as --signal does before the time limit
    for rank in range(2):
        job.expect(f"rank {rank} has written")
    assert job.exit(60) == 0 and job.fields()["Restarts"] == "1", c
    for rank in range(2):
        assert job.says(f"rank {rank}, life 1"), c
    c.gone()


@pytest.mark.seconds(30)
def test_the_time_limit_after_a_loss(make_slurm):
    """The script still sees that its agents leave with 75, and asks for the next life: since 23.02 srun exits with 1 because of the dead node."""
    c = make_slurm(4)
    (c.tmp / "writes.py").write_text(WRITES)
    job = c.sbatch("--nodes", 3, "--gpus-per-node", 1, "--cpus-per-task", 1, SCRIPTS / "elastic.sbatch", PYTHON, "-SE", "writes.py")
    for rank in range(3):
        job.expect(f"round 1, rank {rank}, life 0")
    c[3].power_off()
    for rank in range(2):
        job.expect(f"round 2, rank {rank}, life 0")
    job.expect("Node failure on node3", 40)
    (c.tmp / "go").touch()
    c.run("scancel", "--signal", "TERM", job.id)
    assert job.exit(60) == 0 and job.fields()["Restarts"] == "1", c
    assert job.says(r"life 1 of job \d+ is over \(exit code 75\)") and job.says("rank 2, life 1"), c
    c.gone()


@pytest.mark.seconds(20)
def test_a_node_dies_without_no_kill(make_slurm):
    """All end when Slurm has found it dead, of a batch job and of srun alone, whose exit code says so. The job is not to be requeued, so it is given up."""
    c = make_slurm(2)
    job = c.sbatch(*SMALL, "--no-requeue", SCRIPTS / "two-nodes.sbatch", "sh", "-c", WAIT)
    alone = c.srun("--nodes", 2, "rdzv-agent", "--", "sh", "-c", "echo alone: rank $RANK; sleep 300")
    for rank in range(4):
        job.expect(f"round 1, rank {rank} of 4")
    alone.expect("rank 1$")
    c[2].power_off()
    job.until_state("NODE_FAIL")
    assert job.says("Node failure on node2|NODE FAILURE"), c
    assert alone.exit(30) not in (None, 0), c
    c.fact(f"srun exits with {alone.exit()}")
    c.gone(12)


@pytest.mark.seconds(40)
def test_preempted(make_slurm):
    """By a job of a partition of higher priority, which takes both nodes: a checkpoint, exit code 75, and on from there when the nodes are free again."""
    c = make_slurm(2)
    text = pages.block(PAGE, "requeue")
    command = text.split("requeue.sbatch", 1)[1].split()
    (job,) = c.submitted(text.strip() + " --throttle 20 --report-every 1s", {"SBATCH_GPUS_PER_NODE": "2", "STOP_TIMEOUT": "8s"})
    job.expect(r"step \d+ of")
    urgent = c.sbatch("--partition", "urgent", "--exclusive", *SMALL, "--output", "urgent-%j.out", SCRIPTS / "two-nodes.sbatch", "sh", "-c", "sleep 1")
    job.expect("stopped as requested: checkpoint written")
    assert urgent.exit(60) == 0, c
    assert job.exit(60) == 0, c
    assert job.fields()["Restarts"] == "1" and job.says("resumed from .* at step [1-9]") and job.says("has started it 1 time before"), c
    assert not job.says("lost contact|reconnect|is being stopped"), c  # the daemon stays as long as it is needed
    (c.tmp / "ckpt").rename(c.tmp / "disturbed")
    assert checksum(job.text, 400) == undisturbed(c, 400, command), c
    c.gone()


def lives(c, options, command, timeout, env=None, script="requeue"):
    """A job that comes to its time limit of a minute, is told 45 s before it, and goes on in a next life, until it is done."""
    job = c.sbatch(*SMALL, "--time", 1, "--signal", "TERM@45", *options, SCRIPTS / f"{script}.sbatch", *command, env=env)
    assert job.exit(timeout) == 0, c
    assert int(job.fields()["Restarts"]) >= 1 and job.says(r"life 1 of job \d+ is over \(exit code 75\)"), c
    return job


@pytest.mark.soak
@pytest.mark.seconds(90)
@pytest.mark.parametrize("script", ["requeue", "elastic"])
def test_time_limit(make_slurm, script):
    """A checkpoint in time, exit code 75, requeued, and resumed; the weights of a run in one piece."""
    c = make_slurm(2)
    job = lives(c, (), train(2000, *SLOWLY), 180, script=script)
    assert job.says("stopped as requested: checkpoint written") and job.says("resumed from .* at step [1-9]"), c
    assert checksum(job.text, 2000) == undisturbed(c, 2000), c
    c.gone()


@torch
@pytest.mark.soak
@pytest.mark.seconds(150)
def test_time_limit_with_pytorch(make_slurm):
    """The same with deploy/slurm/train.py; of two ranks, since of more gloo may add in another order in the first step after a start."""
    c = make_slurm(2)
    command = (SCRIPTS / "train.py", "--epochs", 3, "--steps", 100)
    python = {"PYTHON_EXEC": sys.executable}
    job = lives(c, ("--gpus-per-node", 1), (*command, "--pause", "0.1", "--checkpoint", "disturbed.pt"), 300, python)
    assert job.says("told to stop, checkpoint written") and job.says("2 ranks, from step [1-9]"), c
    calm = c.srun("--nodes", 2, "--gpus-per-node", 1, "rdzv-agent", "--", *command, "--checkpoint", "calm.pt", env=python)
    assert calm.exit(120) == 0, c
    weights = lambda text: set(re.findall(r"done: 300 steps, weights (\S+)", text))  # twice, where it was told to stop when it was done
    assert len(weights(calm.text)) == 1 and weights(job.text) == weights(calm.text), c
    c.gone()
