# SPDX-License-Identifier: Apache-2.0
"""The wire of a host breaks, in both ways or in one, and heals. No peer notices: no FIN, no RST.

What leases mean here (PROTOCOL.md 8): where a round can form without a node, that node is dead before the others go on, since it kills its own
workers at four fifths of its lease; where none can, it goes on, and a short cut is nothing.
"""

import time

import pytest

import beats
import session_child
from harness import SLOW, alive, until
from job import LEASE, PYTHON, Clock, Job, rounds, stays

BUSY = 10 * SLOW


@pytest.mark.parametrize("nodes, way", [("2:3", "both"), ("2:3", "in"), ("2:3", "out"), ("3", "both")])
def test_a_cut_shorter_than_the_lease(make_cluster, nodes, way):
    """No worker notices: the same processes run to the end, in the first round."""
    c = make_cluster(4)
    c[1].daemon()
    job = Job(c, nodes, lease=10)
    before = job.expect(1, 3)
    c[4].cut(way)
    time.sleep(3)
    c[4].heal()
    stays(lambda: f"the workers go on\n{c}", lambda: job.workers() == before, 5)
    assert not job.says("round 2|lost|fence"), c
    job.finish()


@pytest.mark.seconds(45)
@pytest.mark.parametrize("way", ["both", "in", "out"])
def test_an_elastic_node_is_cut_longer_than_the_lease(make_cluster, way):
    """It fences itself; only then the others go on without it. When the wire is whole again it joins anew, and the round grows."""
    c = make_cluster(4)
    c[1].daemon("-v")
    job = Job(c, "2:3")
    job.expect(1, 3)
    (pid,) = c[4].workers(job.name).values()
    time.sleep(LEASE / 2)  # a few heartbeats have told all that the others can go on alone
    clock = Clock(c)
    c[4].cut(way)
    until(lambda: f"the node that is cut off kills its worker\n{c}", lambda: not alive(pid), LEASE + BUSY)
    clock.fact(f"with a lease of {LEASE:g} s: its worker is dead")
    job.expect(2, 2, 2, 3)
    clock.fact("the others run without it")
    assert not c[4].workers(job.name), c
    job.agents[4].expect("fence|lease|killed", 5)
    healed = Clock(c)
    c[4].heal()
    job.expect(3, 3, timeout=60)
    healed.fact("healed, and the round has grown (30 s after its beginning at the earliest):")
    assert [rounds(job.agents[i]) for i in (2, 3, 4)] == [[1, 2, 3], [1, 2, 3], [1, 3]], c
    job.finish()


@pytest.mark.seconds(30)
@pytest.mark.parametrize("worker", ["runs", "has finished"])
def test_children_of_a_worker_do_not_outlive_a_fence(make_cluster, worker):
    """One node is cut off from the daemon's host alone. Children of its worker, in sessions of their own and deaf to SIGTERM, are dead before the next
    round begins; also if the worker has ended with 0 a moment before, so that they have seconds to end by themselves."""
    c = make_cluster(4)
    c[3].daemon()
    file = c.tmp / "beats"
    job = Job(c, "3:4", 1, 2, 3, 4, endpoint="node3", script=f"exec {PYTHON} -SE {session_child.__file__} {file}")
    job.expect(1, 4)
    time.sleep(LEASE / 2)
    clock = Clock(c)
    c.part((3,), (4,))
    if worker != "runs":
        time.sleep(0.7 * LEASE)
        (c.tmp / "end-node4").touch()
    job.expect(2, 3, 1, 2, 3)
    clock.fact("the others run without it")
    stays(lambda: f"no rounds overlap\n{c}", lambda: beats.check(file), 7 - clock.took)
    for i in (3, 4):
        c[i].heal()
    stays(lambda: f"no rounds overlap\n{c}", lambda: beats.check(file), LEASE)
    (c.tmp / "go").touch()
    assert not any(job.agents[i].exit(30) for i in (1, 2, 3)), c
    job.agents[4].exit(30)
    c.gone()


@pytest.mark.parametrize("way", ["both", "in", "out"])
def test_a_needed_node_is_cut_longer_than_the_lease(make_cluster, way):
    """Fixed size: nobody can take its place, so its worker goes on while it is cut off. When it is back all meet again, without a charge."""
    c = make_cluster(3)
    d = c[1].daemon("-v")
    job = Job(c, 2)
    job.expect(1, 2)
    (pid,) = c[3].workers(job.name).values()
    c[3].cut(way)
    stays(lambda: f"its worker goes on\n{c}", lambda: alive(pid), 1.5 * LEASE)
    d.expect("node node3 .* is lost", LEASE + BUSY)
    assert alive(pid), c
    clock = Clock(c)
    c[3].heal()
    job.expect(2, 2, timeout=30)
    clock.fact("healed, and both run in a new round")
    assert not job.says("restart 1"), c
    job.finish()


def test_the_daemons_host_is_cut_off_fixed_size(make_cluster):
    """For three leases nobody hears of it. No worker is touched, neither meanwhile nor when all hear of each other again."""
    c = make_cluster(3)
    c[1].daemon("-v")
    job = Job(c, 2)
    before = job.expect(1, 2)
    c[1].cut()
    stays(lambda: f"the workers go on\n{c}", lambda: job.workers() == before, 3 * LEASE)
    clock = Clock(c)
    c[1].heal()
    for a in job.agents.values():
        a.expect("the daemon is back", 20)
    clock.fact("healed, and all have the daemon back")
    stays(lambda: f"the same workers go on\n{c}", lambda: job.workers() == before, 2 * LEASE)
    job.finish()
