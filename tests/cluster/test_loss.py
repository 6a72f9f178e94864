# SPDX-License-Identifier: Apache-2.0
"""Packets are lost, not all of them: no alarm."""

import pytest

from job import Job, stays


@pytest.mark.seconds(135)
def test_a_fifth_of_all_packets_is_lost_for_two_minutes(make_cluster):
    """At the default lease, of all that an agent's host sends and of all that it is sent: no false alarm. The same processes run to the end."""
    c = make_cluster(4)
    d = c[1].daemon()
    job = Job(c, "2:3", lease=None)
    before = job.expect(1, 3)
    for host in c.hosts[1:]:
        host.lose(20)
    stays(lambda: f"the workers go on\n{c}", lambda: job.workers() == before, 120)
    for host in c.hosts[1:]:
        host.heal()
    assert not job.says("round 2 of|lost|fence") and not d.says("lost"), c
    assert job.workers() == before
    job.finish()
