# SPDX-License-Identifier: Apache-2.0
"""One user asks for all of the daemon's one thread: channels and refused HELLOs on thousands of connections, as fast as they are answered. Jobs of
others start meanwhile, each in turn with one of hers."""

import socket
import subprocess

import pytest

from crowd import descriptors
from harness import BUILD, until
from native import Native
from others import EVE, MALLORY
from sealed import Key

FLOOD = BUILD / "tests/e2e/flood"
ADDRESSES, CONNECTIONS, STARTS = 40, 4000, 11


class Flood:
    def __init__(self, rdzv, port, key):
        argv = [FLOOD, port, ADDRESSES, CONNECTIONS]
        self.p = subprocess.Popen(list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=rdzv.env({"RDZV_KEY": str(key)}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.stdin.close()
        self.p.wait()
        self.p.stdout.close()

    @property
    def answered(self):
        """How many of her connections were, so far."""
        self.p.stdin.write("?\n")
        self.p.stdin.flush()
        return int(self.p.stdout.readline())


def start(port, key, job):
    """A job from the connect to its end, as an agent with one worker."""
    with Native(port, key=key, source="127.9.0.1", timeout=60) as n:
        n.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        n.hello(job=job, nodes=1)
        n.started()
        n.finish()


@pytest.fixture
def d(rdzv):
    with descriptors(3 * CONNECTIONS):
        return rdzv.daemon()


def test_jobs_start_beside_a_flood(rdzv, d):
    """A start takes about ten messages. In the time of one, the daemon answers a few hundred of hers; in one queue with all of hers it was thousands."""
    own = Key.parse(rdzv.key)
    beside = []
    with descriptors(3 * CONNECTIONS), Flood(rdzv, d.port, own.derive(EVE)) as flood:
        until("she is at it", lambda: flood.answered > CONNECTIONS, 60)
        for i in range(STARTS):
            before = flood.answered
            start(d.port, own.derive(MALLORY), f"honest-{i}")
            beside.append(flood.answered - before)
        p = rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", "honest", "--", "true", env={"RDZV_KEY": str(own.derive(MALLORY))})
        assert p.exit(60) == 0, p
        answered = flood.answered
    beside.sort()
    print(f"beside a start {beside[STARTS // 2]} of hers were answered in the median, {beside[-1]} at most; {answered} in all")
    assert beside[STARTS // 2] < 1000, beside
    lines = sum("flood" in line for line in d.err)
    assert lines < 200, f"{lines} lines about {answered} refusals"
