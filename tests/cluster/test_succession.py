# SPDX-License-Identifier: Apache-2.0
"""The machine of the daemon is lost, and the job goes on: the others agree on a successor, which seals the next round without it.

The first host has rdzvd, the round's store and rank 0. Its power fails: the wire is dead first, then everything on it, at once. In each test the workers
write when they run (beats.py), so each test shows too that no two rounds overlap. Times are facts to be read, as in test_deaths.py.
"""

import random
import re
import sys
import time

import pytest

import beats
from harness import SLOW, TOP, TRAINER, comm, until
from job import LEASE, Clock, Own, stays
from test_slurm import torch

BUSY = 10 * SLOW
TRAIN = (
    f"exec {TRAINER} --layers 60,12,60 --data synthetic:500 --scale 0.01 --batch 16 --loss rmse --seed 3 --steps 2000 --coll-timeout 20s "
    "--report-every 1s --throttle $(cat throttle) --checkpoint-every 10 --checkpoint-dir "
)
PACE = 40  # steps a second, until the power fails


def often(few, many, seconds):
    """A test that is done a few times here, and many times with --soak; each takes so long."""
    short, long = (pytest.mark.seconds(times * seconds) for times in (few, many))
    return pytest.mark.parametrize("times", [pytest.param(few, marks=short), pytest.param(many, marks=[pytest.mark.soak, long])])


def taken_over(agents, successor, agree, of, lost="node1"):
    """Each of these agents has said so, once."""
    for a in agents:
        a.expect(rf"the daemon on {lost} did not answer for [\d.]+ s; {successor} has taken over \({agree} of {of} nodes agree\)", 15)
        assert len(re.findall(f"the daemon on {lost} did not answer", a.text)) == 1, a


def in_charge(job, i, term, successors):
    """What rdzvctl says of the daemon on host i."""
    told = job.asked(i)["daemon"]
    assert (told["host"], told["in_charge"], told["successors"]) == (f"node{i}", True, successors) and told["term"] in term, f"{told}\n{job.cluster}"


def forget(job):
    """Before its agents are started again on a host that has lost its power."""
    job.cluster[1].boot()
    for a in job.agents.values():
        a.exit()


def checksum(job):
    found = {m[1] for a in job.agents.values() for l in a.out if (m := re.search(r"done: 2000 steps, .*checksum (\w+)", l))}
    assert len(found) == 1, f"{found}\n{job.cluster}"
    return found.pop()


def done(job, clock):
    got = {i: a.exit(60) for i, a in job.agents.items()}
    assert not any(got.values()), f"exit codes {got}\n{job.cluster}"
    clock.fact("the training is done")
    job.cluster.gone(8)
    return job.rounds()


# -- it goes on --------------------------------------------------------------------------------------------------------


def test_what_a_user_sees(make_cluster):
    """Each agent says in a line who has taken over; rdzvctl shows the daemon in charge, its term and its successors; the verdict names the lost machine."""
    c = make_cluster(4)
    job = Own(c, "2:4")
    job.expect(1, 4)
    in_charge(job, 1, [1], ["node2", "node3", "node4"])
    clock = job.lose(1)
    job.expect("[2-9]", 3, 2, 3, 4, timeout=2 * LEASE + BUSY)
    clock.fact(f"with a lease of {LEASE:g} s: the others run without the host of the daemon")
    taken_over(job.agents.values(), "node2", 3, 4)
    for a in job.agents.values():
        a.expect(r"the daemon on node1 does not answer for [\d.]+ s; asking node2")
        assert a.says(r"node1.*lost|lost.*node1"), a
    in_charge(job, 2, [2], ["node4", "node3"])  # by rank: node3 has kept its 2, node4 has got the free 0
    code, text = c[2].ctl("status", job.name)
    assert code == 0 and re.search(r"node2.*term 2", text), text
    told = job.asked(2)["last_verdict"]
    assert told["cause"] == "node-lost" and told["host"] == "node1", f"{told}\n{c}"
    assert [(len(r.ranks)) for r in job.end()] == [4, 3], c


@torch
@often(1, 20, 40)
def test_pytorch_under_slurm(make_slurm, times):
    """DistributedDataParallel on four nodes, with no option about it. Slurm finds the node dead later than the agents do."""
    c = make_slurm(4)
    for i in range(times):
        file = c.tmp / f"beats-{i}"
        train = (sys.executable, TOP / "deploy/slurm/train.py", "--epochs", 12, "--steps", 20, "--pause", "0.03", "--checkpoint", f"{i}.pt")
        p = c.srun("--nodes", 4, "--gpus-per-node", 1, "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "rdzv-agent", "--nnodes", "2:4", "--",
                   sys.executable, "-SE", beats.__file__, file, *train, env={"OMP_NUM_THREADS": "1"})
        p.expect("4 ranks, from step 0", 40)
        p.expect("step 20, loss", 20)
        time.sleep(random.uniform(0, 1))
        clock = Clock(c)
        c[1].power_off()
        p.expect("3 ranks, from step [1-9]", 40)
        clock.fact("with the default lease: three ranks of PyTorch have met and resume")
        p.expect("done: 240 steps", 40)
        clock.fact("the training is done")
        assert len(re.findall("the daemon on node1 did not answer", p.text)) == 3, p
        p.exit(30)  # srun's code is that of the node that was lost
        assert [len(r.ranks) for r in beats.check(file)] == [4, 3], p
        until(lambda: f"nothing is left\n{c}", lambda: not c.left(), 10)
        c[1].boot()
        c.start(c[1])
        c.ready()


@often(2, 20, 15)
def test_the_trainer_elastic(make_cluster, times):
    c = make_cluster(4)
    for i in range(times):
        (c.tmp / "throttle").write_text(str(PACE))
        job = Own(c, "2:4", script=TRAIN + f"elastic-{i}", name=f"elastic-{i}")
        job.agents[1].expect(r"step \d\d+ of", 20)
        time.sleep(random.uniform(0, 1))
        clock = job.lose(1)
        (c.tmp / "throttle").write_text("0")
        until(lambda: f"it resumes\n{c}", lambda: job.says("resumed from .* at step [1-9]"), 2 * LEASE + BUSY)
        clock.fact(f"with a lease of {LEASE:g} s: it resumes")
        assert [len(r.ranks) for r in done(job, clock)] == [4, 3], c
        checksum(job)
        forget(job)


@often(2, 20, 15)
def test_the_trainer_with_a_spare(make_cluster, times):
    """Fixed size, one node more than needed. The weights in the end are those of an undisturbed run, byte for byte."""
    c = make_cluster(4)
    (c.tmp / "throttle").write_text("0")
    calm = Own(c, 3, 1, 2, 3, script=TRAIN + "calm", name="calm")
    done(calm, Clock(c))
    for i in range(times):
        (c.tmp / "throttle").write_text(str(PACE))
        job = Own(c, 3, 1, 2, 3, script=TRAIN + f"spare-{i}", name=f"spare-{i}")
        job.agents[1].expect(r"step \d\d+ of", 20)
        job.start(4).expect("spare|wait")
        time.sleep(random.uniform(0.5, 1.5))
        clock = job.lose(1)
        (c.tmp / "throttle").write_text("0")
        until(lambda: f"it resumes\n{c}", lambda: job.says("resumed from .* at step [1-9]"), 2 * LEASE + BUSY)
        clock.fact(f"with a lease of {LEASE:g} s: it resumes on the others and the spare")
        assert [len(r.ranks) for r in done(job, clock)] == [3, 3], c
        assert checksum(job) == checksum(calm), c
        forget(job)
    c.fact(f"{times} times the weights of the undisturbed run: {checksum(calm)}")


@pytest.mark.seconds(25)
def test_the_successor_dies_too(make_cluster):
    """While it takes over. The next one does."""
    c = make_cluster(5)
    job = Own(c, "2:5")
    job.expect(1, 5)
    time.sleep(LEASE / 2)
    c.part([2], [3, 4, 5])  # so that it cannot be done before it dies
    clock = job.lose(1)
    until(lambda: f"node2 starts a daemon\n{c}", lambda: any(comm(p) == "rdzvd" for p in c[2].pids()), LEASE + BUSY)
    job.lose(2)
    job.expect("[2-9]", 3, 3, 4, 5, timeout=4 * LEASE + BUSY)
    clock.fact(f"with a lease of {LEASE:g} s: the others run without both")
    taken_over(job.agents.values(), "node3", 3, 5)
    in_charge(job, 3, range(2, 6), ["node4", "node5"])  # node4 and node5 may have tried meanwhile
    job.end()


@pytest.mark.seconds(30)
def test_the_old_host_returns(make_cluster):
    """Its agent is started again by the same command, starts a daemon, finds that the job is elsewhere, and is a spare there. When the successor's host is
    lost as well, the job goes on with the one that has returned."""
    c = make_cluster(4)
    job = Own(c, 3, 1, 2, 3)
    job.expect(1, 3)
    job.start(4).expect("spare|wait")
    time.sleep(LEASE / 2)
    job.lose(1)
    job.expect("[2-9]", 3, 2, 3, 4, timeout=2 * LEASE + BUSY)
    (second,) = job.rounds()[1:]
    c[1].boot()
    clock = Clock(c)
    job.start(1)
    until(lambda: f"the one that returned has joined the job\n{c}", lambda: "node1" in str(job.asked(2)["members"]), 20)
    clock.fact("the one that returned has joined the job")
    time.sleep(LEASE / 2)  # some heartbeats: all have read that a spare is here, and so the lost one is dead when its lease is over
    assert job.rounds()[-1].number == second.number, "it has disturbed the round"
    clock = job.lose(2)
    job.expect("[3-9]", 3, 1, 3, 4, timeout=2 * LEASE + BUSY)
    clock.fact("the next one has taken over")
    in_charge(job, 4, [3], ["node1", "node3"])
    assert [len(r.ranks) for r in job.end()] == [3, 3, 3], c


# -- two halves --------------------------------------------------------------------------------------------------------


@pytest.mark.seconds(25)
@pytest.mark.parametrize("sides, goes_on", [([[1, 2], [3, 4, 5]], 1), ([[1, 2, 3], [4, 5]], 0), ([[1, 2], [3, 4]], 0)],
                         ids=["minority", "majority", "half"])
def test_two_halves(make_cluster, sides, goes_on):
    """Each half has enough nodes for a round. The one with more than half of them goes on, or the one with half of them and the daemon; workers of the other
    have ended by then. When the wire is whole again all are one job."""
    hosts = [i for side in sides for i in side]
    c = make_cluster(len(hosts))
    job = Own(c, f"1:{len(hosts)}")
    job.expect(1, len(hosts))
    time.sleep(LEASE)
    clock = Clock(c)
    c.part(*sides)
    major, minor = sides[goes_on], sides[1 - goes_on]
    job.expect("[2-9]", len(major), *major, timeout=2 * LEASE + BUSY)
    clock.fact(f"with a lease of {LEASE:g} s: one half goes on")
    stays(lambda: f"the other does not\n{c}", lambda: not any(c[i].workers(job.name) for i in minor), 3 * LEASE)
    for host in c.hosts:
        host.heal()
    clock = Clock(c)
    at = major[0]
    until(lambda: f"all are one job\n{c}", lambda: all(f"node{i}" in str(job.asked(at)["members"]) for i in hosts), 30)
    clock.fact("healed, and all are one job")
    last = job.end()[-1]
    assert {host for at in last.ranks.values() for host, _ in at} >= {f"node{i}" for i in major}, c


# -- no majority -------------------------------------------------------------------------------------------------------


def test_two_nodes(make_cluster):
    """One of two is no majority: it may not know whether the other goes on. It says so, and ends."""
    c = make_cluster(2)
    job = Own(c, "1:2", more=["--orphan-grace", "8s"])
    job.expect(1, 2)
    time.sleep(LEASE / 2)
    clock = job.lose(1)
    a = job.agents[2]
    a.expect(r"1 of .*2 .*--claim", 2 * LEASE + BUSY)
    assert a.exit(30) == 76, c
    assert clock.fact("with --orphan-grace 8s: it ends") > 8
    assert a.err[-1].count("--claim") == 1, c
    assert len(job.rounds()) == 1
    c.gone()


@pytest.mark.parametrize("lost", [1, 2])
def test_two_nodes_with_claims(make_cluster, lost):
    """In a folder that both share. Then one is enough, with the daemon or without."""
    c = make_cluster(2)
    claims = c.tmp / "claims"
    claims.mkdir()
    job = Own(c, "1:2", more=["--claim", claims])
    job.expect(1, 2)
    assert job.asked(1)["daemon"]["claims"]
    time.sleep(LEASE / 2)
    clock = job.lose(lost)
    (left,) = job.agents
    job.expect("[2-9]", 1, left, timeout=2 * LEASE + BUSY)
    clock.fact(f"with a lease of {LEASE:g} s, a claim: the other runs")
    assert [len(r.ranks) for r in job.end()] == [2, 1], c
    # What stays is the word that the job has ended, for a daemon that was cut off and comes later.
    left = lambda: [p.name for p in claims.rglob("*") if p.is_file()]
    until(lambda: f"the claims are removed: {left()}", lambda: all(name.endswith(",end") for name in left()), 5)
