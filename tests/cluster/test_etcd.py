# SPDX-License-Identifier: Apache-2.0
"""--claim etcd://...: members of etcd are lost, and the machine of the daemon too."""

import pytest

from etcd import Etcd
from harness import SLOW, until
from job import LEASE, Clock, Own, stays

BUSY = 10 * SLOW


@pytest.mark.seconds(45)
def test_two_of_three_members_die(make_cluster):
    """A round that runs does not notice. When the machine of the daemon is lost, no round begins until etcd can say that none has; then one of two nodes
    is enough."""
    c = make_cluster(6)
    etcd = Etcd(c, 4, 5, 6)
    job = Own(c, "1:3", 1, 2, 3, lease=None, more=["--claim", etcd.url])
    before = job.expect(1, 3)
    etcd.lose(5, 6)
    stays(lambda: f"nobody notices\n{c}", lambda: job.workers() == before, 7)
    job.lose(1)
    for a in job.agents.values():
        a.expect("etcd", 30)  # the sentence names what does not answer
    stays(lambda: f"no round begins\n{c}", lambda: not job.workers(), 3)
    clock = Clock(c)
    etcd.back(5)
    job.expect("[2-9]", 2, 2, 3, timeout=30)
    clock.fact("two of three members are there again, and the others run")
    clock = job.lose(2)
    job.expect("[3-9]", 1, 3, timeout=30)
    clock.fact(f"with the default lease: one of two nodes runs alone")
    assert [len(r.ranks) for r in job.end()] == [3, 2, 1], c


@pytest.mark.seconds(25)
def test_two_halves_of_which_one_reaches_etcd(make_cluster):
    """Two nodes on each side of a cut, and the member on the side without the daemon. That side goes on."""
    c = make_cluster(5)
    etcd = Etcd(c, 5)
    job = Own(c, "1:4", 1, 2, 3, 4, more=["--claim", etcd.url])
    job.expect(1, 4)
    clock = Clock(c)
    c.part([1, 2], [3, 4, 5])
    job.expect("[2-9]", 2, 3, 4, timeout=2 * LEASE + 2 * BUSY)
    clock.fact(f"with a lease of {LEASE:g} s: the side that reaches etcd goes on")
    stays(lambda: f"the other does not\n{c}", lambda: not any(c[i].workers(job.name) for i in (1, 2)), 2 * LEASE)
    for host in c.hosts:
        host.heal()
    until(lambda: f"all are one job\n{c}", lambda: all(f"node{i}" in str(job.asked(3)["members"]) for i in (1, 2)), 30)
    assert len(job.end()) == 2, c
