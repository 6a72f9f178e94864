# SPDX-License-Identifier: Apache-2.0
"""The daemon dies and comes back, or is stopped and goes on, while jobs run, fail, lose nodes and begin."""

import os
import signal
import time

import pytest

from harness import SLOW, alive, until
from job import LEASE, Clock, Job, Own, stays

BUSY = 10 * SLOW


@pytest.mark.parametrize("state", [False, True], ids=["without-state", "with-state"])
def test_killed_and_restarted_under_load(make_cluster, state):
    """Four jobs: in the gap one loses a worker, one an agent, one is left alone, and one begins. One is touched as little as can be."""
    c = make_cluster(4)
    options = []
    if state:
        (c.tmp / "state").mkdir()
        options = ["--state-dir", c.tmp / "state"]
    d = c[1].daemon(*options)
    calm = Job(c, 3, name="calm")
    fails = Job(c, 3, name="fails")
    loses = Job(c, "2:3", name="loses", more=["--scale-up", "next-round"])
    before = calm.expect(1, 3)
    fails.expect(1, 3)
    loses.expect(1, 3)
    d.kill()
    d.exit()
    os.kill(fails.workers()[1], signal.SIGKILL)
    loses.agents[4].kill()
    begins = Job(c, 3, name="begins")
    time.sleep(1)
    clock = Clock(c)
    again = c[1].daemon(*options)
    begins.expect(1, 3)
    clock.fact("a job that began in the gap runs")
    fails.expect("[23]", 3, charged=1)  # without a state folder a number is left out, which might have been given out unheard
    clock.fact("a job whose worker died in the gap runs again")
    alone = lambda: all(loses.agents[i].says("round [2-9] of 2, 0") for i in (2, 3))
    until(lambda: f"two nodes go on without the lost one\n{c}", alone, 2 * LEASE + BUSY)
    clock.fact("a job whose agent died in the gap runs again")
    assert again.running and calm.workers() == before, c
    (c.tmp / "go").touch()
    for job in (calm, fails, begins):
        assert [a.exit(30) for a in job.agents.values()] == [0] * 3, c
    assert [loses.agents[i].exit(30) for i in (2, 3)] == [0, 0], c
    assert not calm.says("round 2 of"), c
    for job in (calm, fails, loses, begins):
        job.succeeded(charged=job is fails)
    c.gone()


@pytest.mark.parametrize("state", [False, True], ids=["without-state", "with-state"])
def test_its_host_loses_power_and_boots_again(make_cluster, state):
    """Fixed size: no worker notices. (The state folder is on a disk that survives.)"""
    c = make_cluster(3)
    options = []
    if state:
        (c.tmp / "state").mkdir()
        options = ["--state-dir", c.tmp / "state"]
    c[1].daemon(*options)
    job = Job(c, 2)
    before = job.expect(1, 2)
    c[1].power_off()
    time.sleep(1)
    c[1].boot()
    clock = Clock(c)
    c[1].daemon(*options)
    for a in job.agents.values():
        a.expect("the daemon is back", 20)
    clock.fact("both agents are back")
    stays(lambda: f"no worker notices\n{c}", lambda: job.workers() == before, 2 * LEASE)
    assert not job.says("round 2 of"), c
    job.finish()


def test_stopped_for_two_leases_fixed_size(make_cluster):
    """SIGSTOP, then SIGCONT: it kills nobody for a silence that was its own."""
    c = make_cluster(3)
    d = c[1].daemon()
    job = Job(c, 2)
    before = job.expect(1, 2)
    d.kill(signal.SIGSTOP)
    stays(lambda: f"the workers go on\n{c}", lambda: job.workers() == before, 2 * LEASE)
    d.kill(signal.SIGCONT)
    stays(lambda: f"the workers go on\n{c}", lambda: job.workers() == before, 2 * LEASE)
    assert not job.says("round 2 of") and not d.says("lost"), c
    job.finish()


def test_stopped_for_two_leases_with_a_spare(make_cluster):
    """Fixed size, but a spare could take each node's place: so each fences, and the spare, with nothing to fence, waits. When the daemon goes on two
    of the three run a new round; nothing is charged."""
    c = make_cluster(4)
    d = c[1].daemon()
    job = Job(c, 2, 2, 3)
    before = job.expect(1, 2)
    job.start(4).expect("spare|wait")
    time.sleep(LEASE / 2)
    d.kill(signal.SIGSTOP)
    until(lambda: f"both fence\n{c}", lambda: not any(map(alive, before.values())), LEASE + BUSY)
    time.sleep(LEASE)
    assert not job.workers() and job.agents[4].running, c
    d.kill(signal.SIGCONT)
    clock = Clock(c)
    until(lambda: f"two run again\n{c}", lambda: sorted(job.workers()) == [0, 1], 30)
    clock.fact("it goes on, and both ranks run")
    until(lambda: f"in a new round\n{c}", lambda: len(job.says("round [2-9] of 2, 0 charged")) == 2)
    job.finish()


@pytest.mark.seconds(25)
@pytest.mark.parametrize("fault, state", [("cut", False), ("cut", True), ("stop", True)], ids=["cut", "cut-with-state", "stop"])
def test_a_node_that_returns_early_fences(make_cluster, fault, state):
    """The daemon dies, or is told to stop, and comes back. One node finds it before the others do. Before the next heartbeat of that node its wire
    is cut, or its agent stopped; then the others return. They form a round without it, and no worker of the old round runs by then."""
    lease = 10.0
    c = make_cluster(4)
    options = []
    if state:
        (c.tmp / "state").mkdir()
        options = ["--state-dir", c.tmp / "state"]
    d = c[1].daemon(*options)
    job = Own(c, "2:3", 2, 3, 4, lease=lease)
    job.expect(1, 3)
    time.sleep(lease / 3)  # a heartbeat has told all that the others can go on alone
    d.kill(signal.SIGKILL if fault == "cut" else signal.SIGTERM)
    d.exit()
    for i in (3, 4):
        c[i].cut()
    c[1].daemon(*options)
    job.agents[2].expect("the daemon is back", 20)
    clock = Clock(c)
    part = c[2].cut if fault == "cut" else lambda: job.agents[2].kill(signal.SIGSTOP)
    join = c[2].heal if fault == "cut" else lambda: job.agents[2].kill(signal.SIGCONT)
    part()
    try:
        for i in (3, 4):
            c[i].heal()
        job.expect("[23]", 2, 3, 4, timeout=lease + 2 * BUSY)  # without a state folder a number is left out
        clock.fact(f"with a lease of {lease:g} s: the others run without the early one")
        stays(lambda: f"the later round runs\n{c}", lambda: c[3].workers(job.name) and c[4].workers(job.name), 1)
    finally:
        join()
    until(lambda: f"workers of both rounds have written\n{c}", lambda: len(job.rounds()) >= 2)  # fails if any overlap
    job.finish()
