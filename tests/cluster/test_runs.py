# SPDX-License-Identifier: Apache-2.0
"""Machines that are booted again, and know nothing of the job that goes on elsewhere. Workers write every 10 ms (beats.py): what is judged is an order."""

import os
import signal
import time

import pytest

import beats
from harness import SLOW, comm, until
from job import LEASE, Own, stays

BUSY = 10 * SLOW
GROWTH = 30  # the age at which a round takes in newcomers


@pytest.mark.seconds(75)
def test_begun_twice_while_the_network_is_split(make_cluster):
    """Elastic, without a claim: two hosts lose power one after the other, and are booted again while they cannot reach the other two. Nothing tells them of
    the job, so they begin it. When all can meet, that younger run ends, and its nodes join the older one."""
    c = make_cluster(4)
    job = Own(c, "2:4", more=["--last-call", "1s"])
    job.expect(1, 4)
    for lost, left in (1, (2, 3, 4)), (2, (3, 4)):
        stays(lambda: f"no rounds overlap\n{c}", lambda: job.rounds(), LEASE)
        job.lose(lost)
        job.expect("[2-9]", len(left), *left, timeout=2 * LEASE + BUSY)
    until(lambda: f"the round of two writes\n{c}", lambda: len(job.rounds()) == 3)
    began = job.rounds()[-1].first
    for i in (1, 2):
        c[i].boot()
    c.part((1, 2), (3, 4))
    for i in (1, 2):
        job.start(i)
    for i in (1, 2):
        job.agents[i].expect("round 1 of 2, 0 charged", 2 * LEASE + BUSY)
    time.sleep(LEASE)
    for host in c.hosts:
        host.heal()
    for i in (1, 2):
        job.agents[i].expect("[4-9] of 4, 0 charged", GROWTH + 2 * LEASE + BUSY)
    job.expect("[4-9]", 4, 3, 4)
    time.sleep(LEASE)
    rounds = beats.rounds(job.beats)
    told = "\n".join(map(str, rounds))
    assert [r.first for r in rounds].index(began) == 2 and [len(r.ranks) for r in rounds] == [4, 3, 2, 2, 4], f"{told}\n{c}"
    older, younger, last = rounds[2:]
    assert younger.last < older.last < last.first, f"the younger run ends, and the older one goes on\n{told}\n{c}"
    (c.tmp / "go").touch()
    assert [a.exit(40) for a in job.agents.values()] == [0] * 4, c
    c.gone(20)


@pytest.mark.seconds(60)
def test_a_claim_keeps_a_second_run_from_beginning(make_cluster):
    """Two hosts and a claim. The one with the daemon hears nobody and loses its guard, and the other goes on. Its agent is started again, and waits."""
    c = make_cluster(2)
    claims = c.tmp / "claims"
    claims.mkdir(mode=0o700)
    job = Own(c, "1:2", more=["--last-call", "1s", "--claim", claims])
    job.expect(1, 2)
    stays(lambda: f"no rounds overlap\n{c}", lambda: job.rounds(), LEASE)
    c[1].cut("in")
    for pid in [p for p in c[1].pids() if comm(p) == "rdzv-guard"]:
        os.kill(pid, signal.SIGKILL)
    job.expect("[2-9]", 1, 2, timeout=2 * LEASE + BUSY)
    if not job.agents[1].running:
        job.start(1)
    job.agents[1].expect("another run of job job, which began at .* UTC with the daemon on node1, has not ended, and this one waits for it", 4 * LEASE + BUSY)
    stays(lambda: f"no rounds overlap\n{c}", lambda: job.rounds(), 3 * LEASE)
    c[1].heal()
    for i in (1, 2):
        job.agents[i].expect("[2-9] of 2, 0 charged", GROWTH + 2 * LEASE + BUSY)
    job.end()
