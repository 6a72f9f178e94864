# SPDX-License-Identifier: Apache-2.0
"""A daemon that is told that a job is with another one: it sends the job's nodes there."""

import os
import time

from native import Native
from test_rdzvctl_verbs import ask, d  # noqa: F401: a fixture

RUN = f"{int(time.time() * 1000):012x}-0123456789abcdef"


def forward(d, **more):
    """What the daemon answers: nothing, if it believes it."""
    with Native(d.port) as n:
        n.send("FORWARD", {**dict(job="job", incarnation=RUN, origin=RUN, round=3, term=2, daemon=32 * "2", host="gpu2", addr="127.0.0.1", port=1), **more})
        return [m for m in n.until_closed() if m.name != "GREETING"]


def moved(n):
    """It is sent to that one, and to no other."""
    m = n.expect("MOVED")
    assert (m.host, m.addr, m.port, m.incarnation, m.round) == ("gpu2", "127.0.0.1", 1, RUN, 3), m
    assert n.until_closed() == []


def test_nodes_are_sent_on(rdzv, d):
    with Native(d.port) as a, Native(d.port) as b:
        a.hello(nodes=2)
        a.expect("WAITING")
        assert forward(d) == []
        moved(a)
        b.hello(nodes=2)
        moved(b)
    p = ask(rdzv, "status")
    assert p.code == 0 and p.out == ["job: moved to the daemon on gpu2 (127.0.0.1:1)", f"page: http://127.0.0.1:{d.port}/"], p
    p = ask(rdzv, "stop", "job")
    assert p.code == 1 and p.says(r"job job has moved to the daemon on gpu2 \(127.0.0.1:1\): ask that one, with --endpoint"), p
    with Native(d.port) as n:
        n.hello(job="other")
        n.started()
        n.finish()


def owned(rdzv):
    """A daemon as an agent starts it, and the agent's end of its pipe."""
    r, w = os.pipe()
    d = rdzv.daemon("--owner-fd", r, "--exit-when-idle", pass_fds=[r])
    os.close(r)
    return d, w


def test_the_daemon_of_an_agent_stays(rdzv):
    """Its job is gone, and nodes still come to its address. It leaves when its agent says that the job is over."""
    d, w = owned(rdzv)
    with Native(d.port) as a, Native(d.port) as b:
        a.hello(nodes=2)
        a.expect("WAITING")
        assert forward(d) == []
        moved(a)
        b.hello(nodes=2)
        moved(b)
    assert d.running, d
    os.write(w, b"d")
    assert d.exit(3) == 0, d
    os.close(w)


def test_the_daemon_of_an_agent_that_left_stays(rdzv):
    """The job goes on elsewhere, and a host that comes back looks for it here. The last FORWARD counts for 15 s."""
    d, w = owned(rdzv)
    with Native(d.port) as a, Native(d.port) as b:
        a.hello(nodes=2)
        a.expect("WAITING")
        os.write(w, b"l")
        os.close(w)
        d.expect("the agent that started this daemon is gone")
        assert forward(d) == []
        moved(a)
        b.hello(nodes=2)
        moved(b)
    time.sleep(1)
    assert d.running, d
    assert d.exit(20) == 0, d
