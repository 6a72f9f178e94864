# SPDX-License-Identifier: Apache-2.0
"""Lies about which daemon has a job: daemons that send agents in circles, nodes with invented terms and silences, FORWARD from those who may not say
so, and what lies where claims are made."""

import json
import os
import time

import pytest

import harness
from harness import until
from hostile import FakeDaemon
from native import Native
from test_rdzvctl_verbs import ask, d  # noqa: F401: a fixture
from test_rdzvd_control import NOBODY, SOMEBODY, needs_users

ADA, EVE = SOMEBODY["user"], NOBODY["user"]
RUN = f"{int(time.time() * 1000):012x}-0123456789abcdef"
OTHER = 32 * "2"
TERM_MAX = 10**9
def cpu_s(pid):
    ticks = sum(map(int, open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


# Daemons. -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("welcomed", [False, True])
def test_daemons_that_send_agents_in_circles(rdzv, welcomed):
    """Two of them, each of which says that the other one has the job. The agent slows down, and gives up when it would without a daemon."""
    listeners = [harness.listen_in() for _ in range(2)]
    welcome = [("WELCOME", dict(version=1, incarnation=RUN, round=0, state="forming", peer_addr="127.0.0.1", daemon=OTHER))] if welcomed else []
    moved = lambda i: ("MOVED", dict(host=f"gpu{i}", addr="127.0.0.1", port=listeners[i].getsockname()[1], incarnation=RUN, round=3))
    fakes = [FakeDaemon(*welcome, moved(1 - i), listener=listeners[i]) for i in range(2)]
    try:
        a = rdzv.agent("--endpoint", fakes[0].endpoint, "--nnodes", 2, "--join-timeout", "5s", "--", "true")
        time.sleep(3)
        time.sleep(3)
        assert cpu_s(a.pid) < 0.5, f"{sum(len(f.openings) for f in fakes)} connections\n{a}"
        assert a.exit(20) in (69, 73, 76), a
        asked = sum(len(f.openings) for f in fakes)
        assert 10 < asked < 200, f"{asked} connections\n{a}"
        assert len(a.err) < 20, a
    finally:
        for f in fakes:
            f.close()


# Nodes. ---------------------------------------------------------------------------------------------------------------


def test_the_highest_term(rdzv, d):
    """No higher one can come after it. So it stays, and agents understand what the daemon says."""
    with Native(d.port) as n, Native(d.port) as other:
        for rank, node in enumerate((n, other)):
            node.incarnation, node.round = RUN, 3
            node.hello(nodes=2, phase="running", node_rank=rank, round_nodes=2, follows=OTHER, term=TERM_MAX, silent_ms=0)
            assert node.expect("WELCOME").term in (1, TERM_MAX)
        told = json.loads(ask(rdzv, "status", "job", "--json").text)["jobs"][0]
        assert (told["round"], told["daemon"]["term"]) == (3, TERM_MAX), told
        n.report("finished")
        other.finish()


@needs_users
def test_another_users_forward(rdzv, d):
    """It is about a job of his own, which nobody here has."""
    with Native(d.port, key=rdzv.user_key(ADA)) as a, Native(d.port, key=rdzv.user_key(ADA)) as b:
        a.hello(job="train", nodes=2)
        a.expect("WAITING")
        with Native(d.port, key=rdzv.user_key(EVE)) as n:
            n.send("FORWARD", dict(version=1, job="train", incarnation=RUN, origin=RUN, round=3, term=2, daemon=OTHER, host="gpu2", addr="127.0.0.1", port=1))
            assert [m.name for m in n.until_closed()] == ["GREETING"]
        b.hello(job="train", nodes=2)
        a.started(), b.started()
        a.report("finished")
        b.finish()
    p = ask(rdzv, "status", "--user", str(EVE))
    assert p.says("train: moved to the daemon on gpu2"), p


# Where claims are made. -----------------------------------------------------------------------------------------------

WORKER = "[ $RDZV_ROUND = 1 ] || exit 0; while [ ! -e fail ]; do sleep 0.05; done; exit 3"


def huge(path):
    with open(path, "w") as f:
        f.truncate(2**40)


@pytest.mark.parametrize("put, says", [
    (os.mkdir, "is not a claim: a claim is a file of at most 65536 bytes; remove it"),
    (os.mkfifo, "is not a claim: a claim is a file of at most 65536 bytes; remove it"),
    (huge, "is not a claim: a claim is a file of at most 65536 bytes; remove it"),
    (lambda p: p.symlink_to("/etc/passwd"), "Too many levels of symbolic links"),
    (lambda p: p.symlink_to("nowhere"), "Too many levels of symbolic links"),
    (lambda p: p.write_bytes(b"\0\xff{" * 1000), "its claim exists, and no rdzvd has written what it says"),
    (lambda p: p.write_text("[" * 60000), "its claim exists, and no rdzvd has written what it says"),
    (lambda p: p.write_text(""), "its claim exists, and no rdzvd has written what it says"),
    (lambda p: p.write_text('{"daemon":3,"host":[],"addr":{},"port":"x","nodes":7}'), "is with the daemon on another machine, which has claimed it"),
    (lambda p: p.write_text(json.dumps(dict(daemon=OTHER, host="gpu2", addr="127.0.0.1", port=1, nodes=["x" * 50000, None, {}]))),
     "is with the daemon on gpu2, which has claimed it"),
], ids=["folder", "fifo", "huge", "link", "dangling", "bytes", "deep", "empty", "types", "nobody"])
def test_what_lies_in_a_claims_place(rdzv, put, says):
    """The next round waits, says why, and begins when that is gone. Nothing else is read, written or removed."""
    claims = rdzv.tmp / "claims"
    d = rdzv.daemon("--claim", claims, "--socket", rdzv.tmp / "s")
    a = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 1, "--rdzv-id", "job", "--claim", claims, "--", "sh", "-c", WORKER)
    a.expect("round 1: 1 node")
    (first,) = [p for p in claims.iterdir() if not p.name.startswith(".") and ",run," not in p.name]
    place = claims / first.name.replace(",1", ",2")
    put(place)
    (rdzv.tmp / "fail").touch()
    d.expect(f"round 2 of job job .*{says}")
    until(lambda: f"rdzvctl says so\n{ask(rdzv, 'status')}", lambda: ask(rdzv, "status").says(says))
    assert a.running and not a.says("round [23]: 1 node"), a
    place.rmdir() if place.is_dir() and not place.is_symlink() else place.unlink()
    a.expect("round [23]: 1 node")
    assert a.exit() == 0, a
