# SPDX-License-Identifier: Apache-2.0
"""Programs meet whose releases do not fit: each names both and ends with 72 at once; PROTOCOL.md 11 says what all versions have in common. Those that fit:
test_neighbours.py."""

import re
import socket
import threading

import pytest

from harness import RDZVCTL, VERSION, until
from hostile import FakeDaemon
from native import Closed, Native, frame

OURS, NEWER = 1, dict(version=3, oldest=2, release="9.9.0")
MISFIT = rf"has release 9.9.0 (protocol 2 to 3), and this {{}} {VERSION} (protocol 1): upgrade rdzv where it is {VERSION}"


def serve(server, greeting, heard):
    """What a daemon of another version does: it greets everybody, hears them out, and never answers."""
    try:
        while True:
            with server.accept()[0] as c:
                c.sendall(greeting)
                heard.append(b"".join(iter(lambda: c.recv(65536), b"")))
    except OSError:
        pass


@pytest.fixture
def newer():
    """A daemon of a version after the next, whose GREETING has nothing else that is known today."""
    opened = []

    def listen(server):
        heard = []
        opened.append(server)
        greeting = frame("GREETING", dict(NEWER, nonce=["of", "another", "kind"], more={}))
        threading.Thread(target=serve, args=(server, greeting, heard), daemon=True).start()
        return heard

    yield listen
    for s in opened:
        s.shutdown(socket.SHUT_RDWR)
        s.close()


def test_newer_daemon_and_older_agent(rdzv):
    newer = FakeDaemon(greeting=dict(NEWER, nonce=["of", "another", "kind"], more={}))
    a = rdzv.agent("--endpoint", newer.endpoint, "--join-timeout", "20s", "--", "true")
    assert a.exit(30) == 72, a
    a.expect(re.escape(f"rdzvd at {newer.endpoint} {MISFIT.format('rdzv-agent')}"))
    assert not a.says("trying again|another program listens"), a
    newer.close()
    assert newer.openings and not newer.heard, "the agent sends nothing that the other version could misread"
    rdzv.gone()


def test_newer_daemon_and_older_rdzvctl(rdzv, newer, tmp_path):
    path = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    heard = newer(server)
    p = rdzv.spawn(RDZVCTL, "--socket", path, "stop", "job")
    assert p.exit(10) == 72, p
    p.expect(re.escape(f"rdzvd at {path} {MISFIT.format('rdzvctl')}"))
    until("a connection that said something has ended", lambda: any(heard))
    assert b"".join(heard) == b"RDZV\x01\0\0\0", "nothing is asked of another version"


def refusal(n):
    """GREETING, then REFUSED, then the end."""
    got = n.until_closed()
    assert [m.name for m in got] == ["GREETING", "REFUSED"], got
    assert got[0].version == OURS and got[1].code == 72, got
    return got[1].text


@pytest.mark.parametrize("local", [False, True], ids=["agent", "rdzvctl"])
def test_older_daemon_and_a_newer_preface(rdzv, tmp_path, local):
    """Of another framing only the preface can be read: the daemon answers in the layout that all versions share."""
    d = rdzv.daemon("--socket", tmp_path / "s")
    where = dict(path=tmp_path / "s") if local else dict(port=d.port)
    with Native(**where, preface=b"RDZV\x02\0\0\0") as n:
        assert refusal(n) == f"it speaks version 2 of the frames, and this rdzvd {VERSION} version 1: upgrade rdzv where it is older"
    d.expect("closed: speaks version 2 of the frames")
    with Native(port=d.port) as n:  # the daemon goes on
        n.hello()
        n.expect("WELCOME")


def test_older_daemon_and_a_newer_hello(rdzv):
    """It is refused by its version, whatever else it has that this daemon cannot read."""
    d = rdzv.daemon()
    with Native(port=d.port) as n:
        n.send("HELLO", dict(NEWER, agent={"name": "x"}, settings=[]))
        assert refusal(n) == f"its rdzv-agent {MISFIT.format('rdzvd')}"
    with Native(port=d.port) as n:
        n.expect("GREETING")
        n.send("HELLO", dict(version="2", agent="ab"))  # no number: malformed, as ever
        refused = n.expect("REFUSED")
        assert refused.code == 72 and "HELLO.version must be an integer" in refused.text, refused
        with pytest.raises(Closed):
            n.recv()
