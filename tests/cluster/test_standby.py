# SPDX-License-Identifier: Apache-2.0
"""Standby daemons for a shared one: --endpoint a,b. The machine of a is lost, and the jobs move to b; a returns and takes nothing back."""

import os
import time

import pytest

from harness import SLOW, until
from job import Clock, Own, stays, told_of
from test_rdzvd_control import needs_users
from test_succession import often

BUSY = 10 * SLOW
LEASE = 4.0
BOTH = "node1,node2"
ADA, EVE = 65533, 65534


def asked(host, name):
    return told_of(host, name, "--endpoint", BOTH)


@needs_users
@often(1, 5, 40)
def test_jobs_of_several_users_move(make_cluster, times):
    """Those of fixed size lose no round: no worker notices. The elastic one is in a hurry, since its nodes must fence in time, and may lose one."""
    c = make_cluster(6)
    os.chmod(c.tmp, 0o777)
    for i in range(times):
        a, b = c[1].daemon(), c[2].daemon()
        more = dict(lease=LEASE, endpoint=BOTH)
        jobs = [Own(c, "2:4", 3, 4, 5, 6, name=f"elastic-{i}", **more), Own(c, 2, 3, 4, name=f"train-{i}", user=ADA, **more),
                Own(c, 2, 5, 6, name=f"train-{i}", user=EVE, **more)]
        before = [job.expect(1, len(job.agents)) for job in jobs]
        told = asked(c[6], f"elastic-{i}")["daemon"]
        assert (told["host"], told["term"], told["in_charge"], told["successors"]) == ("node1", 1, True, []), told
        time.sleep(LEASE / 4)
        clock = Clock(c)
        c[1].power_off()
        a.exit()
        for job in jobs:
            for agent in job.agents.values():
                agent.expect(r"the daemon on node1 did not answer for [\d.]+ s; node2 has taken over", 4 * LEASE + BUSY)
            clock.fact(f"with a lease of {LEASE:g} s: {job.name} of {len(job.agents)} nodes is with the other daemon")
        told = asked(c[6], f"elastic-{i}")["daemon"]
        assert (told["host"], told["term"], told["in_charge"]) == ("node2", 2, True), told
        assert [job.workers() for job in jobs[1:]] == before[1:], c
        runs = lambda: [m["state"] for m in asked(c[6], f"elastic-{i}")["members"]] == ["running"] * 4
        until(lambda: f"the elastic job runs, in its round or in the next one\n{c}", runs, 2 * LEASE + BUSY)
        before = [job.workers() for job in jobs]
        c.fact("the elastic job " + ("has lost a round" if jobs[0].says("round [2-9] of 4, 0 charged") else "has lost no round"))
        c[1].boot()
        a = c[1].daemon()
        stays(lambda: f"the one that returns takes nothing\n{c}", lambda: [job.workers() for job in jobs] == before, 2 * LEASE)
        # The first that answers is asked, and so is the next one, where the job is.
        assert asked(c[6], f"elastic-{i}")["daemon"]["host"] == "node2"
        fresh = Own(c, 2, 3, 4, name=f"fresh-{i}", **more)
        fresh.expect(1, 2)
        assert asked(c[6], f"fresh-{i}")["daemon"]["host"] == "node1"
        assert not any(job.says("round [2-9]") for job in jobs[1:]), c
        (c.tmp / "go").touch()
        for job in (*jobs, fresh):
            assert [agent.exit(30) for agent in job.agents.values()] == [0] * len(job.agents), c
            assert len(job.rounds()) <= 1 + (job is jobs[0]), c
        (c.tmp / "go").unlink()
        for d in (a, b):
            d.kill()
            d.exit()
        c.gone()


@pytest.mark.seconds(30)
def test_a_node_is_lost_with_the_daemon(make_cluster):
    """Both daemons' machines are nodes too. The others move, and seal the next round at the standby daemon."""
    c = make_cluster(4)
    a, b = c[1].daemon(), c[2].daemon()
    job = Own(c, "2:4", endpoint=BOTH)
    job.expect(1, 4)
    time.sleep(1)
    clock = job.lose(1)
    a.exit()
    job.expect("[2-9]", 3, 2, 3, 4, timeout=30)
    clock.fact("with a lease of 2 s: the others run at the standby daemon")
    c[1].boot()
    c[1].daemon()
    job.start(1)
    until(lambda: f"the one that returned has joined the job at the standby daemon\n{c}", lambda: "node1" in str(job.asked(2)["members"]), 20)
    assert asked(c[3], job.name)["daemon"]["host"] == "node2"
    (c.tmp / "go").touch()
    assert [agent.exit(40) for agent in job.agents.values()] == [0] * 4, c
    assert [len(r.ranks) for r in job.rounds()] == [4, 3], c
    c.gone()


@pytest.mark.seconds(20)
def test_two_groups_of_one_job_meet(make_cluster):
    """One agent comes while the first daemon is away, and waits at the second. The other comes when the first daemon is there. They find each other."""
    c = make_cluster(4)
    c[2].daemon()
    job = Own(c, 2, 3, endpoint=BOTH)
    job.agents[3].expect("wait|missing|1 more|1 of 2")
    c[1].daemon()
    clock = Clock(c)
    job.start(4)
    job.expect("[12]", 2, timeout=30)  # a daemon that finds one of them later may leave a number out
    clock.fact("both have met")
    (c.tmp / "go").touch()
    assert [agent.exit(30) for agent in job.agents.values()] == [0, 0], c
    c.gone()
