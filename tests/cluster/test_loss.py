# SPDX-License-Identifier: Apache-2.0
"""Packets are lost, not all of them: no alarm."""

import pytest

from job import Job, stays


@pytest.mark.seconds(135)
@pytest.mark.parametrize("percent, lease", [(10, None), (20, 10)])
def test_packets_are_lost_for_two_minutes(make_cluster, percent, lease):
    """Of all that an agent's host sends and of all that it is sent: no false alarm. The same processes run to the end. None: the default lease.

    When acknowledgements are lost, TCP takes the round trip for longer than it is, and its timer grows to a second. So a lease has one trial a second."""
    c = make_cluster(4)
    d = c[1].daemon()
    job = Job(c, "2:3", lease=lease)
    before = job.expect(1, 3)
    for host in c.hosts[1:]:
        host.lose(percent)
    stays(lambda: f"the workers go on\n{c}", lambda: job.workers() == before, 120)
    for host in c.hosts[1:]:
        host.heal()
    assert not job.says("round 2 of|lost|fence") and not d.says(r"\blost\b"), c
    assert job.workers() == before
    job.finish()
