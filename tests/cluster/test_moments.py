# SPDX-License-Identifier: Apache-2.0
"""A host dies at an awkward moment: while a job forms, while a round starts, while one is being stopped; and nodes come late."""

import os
import shlex
import signal
import time

import pytest

from harness import SLOW, alive, until
from job import LEASE, PYTHON, Clock, Job

BUSY = 10 * SLOW


def test_while_forming(make_cluster):
    """Two of three are here and last call runs when one of them loses power. It is missed by its lease; the third comes, and the job runs without
    the dead one having been counted."""
    c = make_cluster(4)
    d = c[1].daemon()
    job = Job(c, 2, 2, 3, more=["--last-call", "0s"])
    job.expect(1, 2)
    (c.tmp / "go").touch()
    assert [a.exit() for a in job.agents.values()] == [0, 0]
    (c.tmp / "go").unlink()
    forming = Job(c, 3, 2, 3, name="forming")
    for a in forming.agents.values():
        a.expect("wait|missing|1 more|2 of 3")
    c[3].power_off()
    clock = Clock(c)
    until(lambda: f"its loss is noticed\n{c}", lambda: d.says("node3.* lost|lost.*node3"), LEASE + BUSY)
    clock.fact(f"with a lease of {LEASE:g} s: the daemon misses it")
    c[3].boot()
    forming.start(3)
    forming.start(4)
    forming.expect(1, 3)
    forming.finish()


def test_a_dead_node_is_sealed_in(make_cluster):
    """It loses power at the end of last call, within its lease: the daemon seals a round with it, which is void when the lease is over. Nothing is
    charged, and the others run without it."""
    c = make_cluster(4)
    c[1].daemon("-v")
    job = Job(c, "2:3", 2, 4, lease=8, more=["--scale-up", "next-round"])
    until(lambda: f"both have joined\n{c}", lambda: len(job.status()["members"]) == 2)
    c[4].power_off()
    clock = Clock(c)
    job.start(3)  # with the third one the job is full, and is sealed at once
    job.expect(2, 2, 2, 3, timeout=8 + BUSY)
    clock.fact("with a lease of 8 s: the others run without the dead one")
    assert not job.says("[1-9] charged"), c
    job.finish()


# In Python, which loses no signal: see waits.py.
SLOW_TO_STOP = """
import os, signal, sys, time
def stop(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("asked to stop", flush=True)
    time.sleep(3)
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
e = os.environ
print(f"round {e['RDZV_ROUND']} of {e['GROUP_WORLD_SIZE']}, {e['RDZV_RESTART_COUNT']} charged", flush=True)
while not os.path.exists("go"):
    time.sleep(0.1)
"""


def test_while_stopping(make_cluster):
    """A worker fails; while the others take their time to stop, one of their hosts loses power. The round ends without its word, and the weightier
    cause is told: a lost node, which costs no restart."""
    c = make_cluster(4)
    c[1].daemon()
    job = Job(c, "2:3", more=["--scale-up", "next-round"], script=f"exec {PYTHON} -SEc {shlex.quote(SLOW_TO_STOP)}")
    before = job.expect(1, 3)
    os.kill(before[0], signal.SIGKILL)
    job.agents[4].expect("asked to stop")
    c[4].power_off()
    clock = Clock(c)
    until(lambda: f"the others run without it\n{c}", lambda: all(job.agents[i].says("round 2 of 2, ") for i in (2, 3)), LEASE + 5 + BUSY)
    clock.fact(f"with a lease of {LEASE:g} s and workers that take 3 s to stop: the others run without the dead one")
    job.finish()


def test_while_ending(make_cluster):
    """Its workers have finished and the others' have not: the job's end does not need it any more, but its loss is told as it is."""
    c = make_cluster(3)
    c[1].daemon()
    job = Job(c, 2, script="echo round $RDZV_ROUND of $GROUP_WORLD_SIZE, 0 charged; [ $RANK = 1 ] || while [ ! -e go ]; do sleep 0.1; done")
    job.expect(1, 2)
    finished = lambda: [m["host"] for m in job.status()["members"] if m["state"] == "finished"] == ["node3"]
    until(lambda: f"the daemon knows that rank 1 has finished\n{c}", finished)
    c[3].power_off()
    time.sleep(2 * LEASE)
    (c.tmp / "go").touch()
    assert job.agents[2].exit(30) == 0, c
    job.succeeded(charged=0)
    c.gone()


@pytest.mark.seconds(40)
def test_a_node_is_added(make_cluster):
    """A round of one of at most two grows when it is 30 s old; nothing is charged."""
    c = make_cluster(3)
    c[1].daemon()
    job = Job(c, "1:2", 2, more=["--last-call", "0s"])
    before = job.expect(1, 1)
    clock = Clock(c)
    job.start(3)
    after = job.expect(2, 2, timeout=60)
    assert clock.fact("a node that came at once is taken into the round") > 25, "the round was not 30 s old"
    assert not any(map(alive, before.values())) and len(after) == 2
    job.finish()
