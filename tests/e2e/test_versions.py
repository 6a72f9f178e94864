# SPDX-License-Identifier: Apache-2.0
"""Programs of different protocol versions meet: each names both versions and ends with 72 at once; PROTOCOL.md 11 says what all versions have in common."""

import socket
import threading

import pytest

from harness import RDZVCTL, until
from hostile import FakeDaemon
from native import Closed, Native, frame

OURS, NEWER = 1, 2


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
    """A daemon of the next version, whose GREETING has a version and nothing else that is known today."""
    opened = []

    def listen(server):
        heard = []
        opened.append(server)
        greeting = frame("GREETING", dict(version=NEWER, nonce=["of", "another", "kind"], more={}))
        threading.Thread(target=serve, args=(server, greeting, heard), daemon=True).start()
        return heard

    yield listen
    for s in opened:
        s.shutdown(socket.SHUT_RDWR)
        s.close()


def test_newer_daemon_and_older_agent(rdzv):
    newer = FakeDaemon(greeting=dict(version=NEWER, nonce=["of", "another", "kind"], more={}))
    a = rdzv.agent("--endpoint", newer.endpoint, "--join-timeout", "20s", "--", "true")
    assert a.exit(30) == 72, a
    a.expect(f"rdzvd at {newer.endpoint} speaks protocol version {NEWER}, this rdzv-agent speaks version {OURS}; use the same version of rdzv on all nodes")
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
    p.expect(f"rdzvd at {path} speaks protocol version {NEWER}, this rdzvctl speaks version {OURS}; use the rdzvctl of that version")
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
        assert refusal(n) == "it speaks version 2 of the frames, this rdzvd speaks version 1; use the same version of rdzv on all nodes"
    d.expect("closed: speaks version 2 of the frames")
    with Native(port=d.port) as n:  # the daemon goes on
        n.hello()
        n.expect("WELCOME")


def test_older_daemon_and_a_newer_hello(rdzv):
    """It is refused by its version, whatever else it has that this daemon cannot read."""
    d = rdzv.daemon()
    with Native(port=d.port) as n:
        n.send("HELLO", dict(version=NEWER, agent={"name": "x"}, settings=[]))
        assert refusal(n) == "its rdzv-agent speaks protocol version 2, this rdzvd speaks version 1; use the same version of rdzv on all nodes"
    with Native(port=d.port) as n:
        n.expect("GREETING")
        n.send("HELLO", dict(version="2", agent="ab"))  # no number: malformed, as ever
        refused = n.expect("REFUSED")
        assert refused.code == 72 and "HELLO.version must be an integer" in refused.text, refused
        with pytest.raises(Closed):
            n.recv()
