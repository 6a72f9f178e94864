# SPDX-License-Identifier: Apache-2.0
"""The daemon is away for long, or for good."""

import signal
import time

import pytest

import waits
from harness import alive, until

LEASE = 2.0


@pytest.mark.parametrize("nodes, signo", [("1:2", signal.SIGTERM), (2, signal.SIGKILL)], ids=["elastic-stopped", "fixed-killed"])
def test_orphans_are_stopped(rdzv, nodes, signo):
    """No daemon comes back. Workers get SIGTERM after --orphan-grace, and the agent exits with 76. A daemon that is told to stop says so, and no node
    of an elastic job has to fence meanwhile. At fixed size none has to anyway."""
    d = rdzv.daemon("--state-dir", rdzv.tmp / "state")
    agents = rdzv.agents(2, d.endpoint, "--nnodes", nodes, "--lease", f"{LEASE:g}s", "--orphan-grace", "3s", "--last-call", "1m", "--rdzv-conf", "is_host=0",
                         "--", "sh", "-c", waits.COMMAND)
    workers = rdzv.await_workers(2)
    for a in agents:
        a.expect("ready$")
    gone = time.monotonic()
    d.kill(signo)
    until("the workers are stopped", lambda: not any(map(alive, workers.values())), 20)
    assert time.monotonic() - gone > 2, "they were stopped before the grace was over"
    assert [a.exit() for a in agents] == [76, 76], rdzv
    for a in agents:
        assert a.says("--orphan-grace") and a.says("got TERM") and not a.says("killing the workers"), a
    rdzv.gone(E2E_NODE="0")
    rdzv.gone(E2E_NODE="1")


@pytest.mark.parametrize("nodes", ["1:2", "2 and a spare"])
def test_a_killed_daemon_that_stays_dead(rdzv, nodes):
    """Nobody listens any more, and that is silence: anybody on the way could refuse as well. Where the others could go on without a node, its workers
    are dead before its lease is over, whatever --orphan-grace is. Its agent waits for a daemon."""
    d = rdzv.daemon()
    options = ("--nnodes", nodes.split()[0], "--lease", f"{LEASE:g}s", "--orphan-grace", "1h", "--join-timeout", "6s", "--last-call", "1m",
               "--rdzv-conf", "is_host=0")
    agents = rdzv.agents(2, d.endpoint, *options, "--", "sh", "-c", waits.COMMAND)
    workers = rdzv.await_workers(2)
    for a in agents:
        a.expect("ready$")
    if "spare" in nodes:
        spare = rdzv.agent("--endpoint", d.endpoint, *options, "--", "sh", "-c", waits.COMMAND, node="2")
        spare.expect("this node is a spare")
        time.sleep(LEASE / 2)  # a few heartbeats have told both of it
    d.kill()
    for a in agents:
        # An agent that ran late finds that its guard has done it.
        a.expect("no answer from the daemon .* killing the workers before the lease of 2.0 s is over|the daemon .* had not answered, .* its guard has killed its workers", 20)
    until("the workers are killed", lambda: not any(map(alive, workers.values())), 20)
    assert not any(a.says("got TERM") for a in agents), rdzv
    if "spare" not in nodes:
        assert [a.exit() for a in agents] == [74, 74], rdzv
        return
    rdzv.daemon(port=d.port)
    until(f"two run again\n{rdzv}", lambda: sorted(rdzv.workers()) == [0, 1], 30)


