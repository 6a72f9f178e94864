# SPDX-License-Identifier: Apache-2.0
"""rdzvd as a TCPStore for foreign clients: PyTorch's protocol on the daemon's port, quotas, who may stay, and that agents beside them notice nothing."""

import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from harness import RDZVD, status, until

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

from wire import Raw, i64, op, ping, s, u64, validate  # noqa: E402


def client(d, host="127.0.0.1"):
    c = Raw(d.port, host)
    c.send(validate() + ping(7))
    assert c.recv(4) == b"\7\0\0\0"
    return c


def ask(c, request, answer):
    c.send(request)
    assert c.recv(len(answer)) == answer


def test_quota_of_memory(rdzv):
    d = rdzv.daemon("--c10d", "--store-memory", "2m")
    with client(d) as a, client(d) as b:
        a.send(op("SET", "one", b"x" * 1500000))
        ask(a, op("CHECK", ["one"]), b"\0")
        a.send(op("SET", "two", b"x" * 1500000))
        assert a.until_closed() == b""
        d.expect(r"common store: 127\.0\.0\.1:\d+: closed: SET: .*(memory|bytes|MiB|KiB)")
        ask(b, op("CHECK", ["two"]), b"\1")
        ask(b, op("DELETE_KEY", "one"), i64(1))
        b.send(op("SET", "two", b"x" * 1500000))
        ask(b, op("CHECK", ["two"]), b"\0")


def test_quota_of_keys(rdzv):
    d = rdzv.daemon("--c10d", "--store-keys", 3)
    with client(d) as a, client(d) as b:
        for k in "abc":
            ask(a, op("ADD", k, 1), i64(1))
        a.send(op("ADD", "d", 1))
        assert a.until_closed() == b""
        d.expect(r"closed: ADD: .*3 keys")
        ask(b, op("ADD", "c", 1), i64(2))


@pytest.mark.parametrize("hello", [validate() + ping(7), b"\3"], ids=["today's", "before 2.2"])
def test_off_unless_it_was_asked_for(rdzv, hello):
    d = rdzv.daemon()
    c = Raw(d.port)
    c.send(hello)
    assert c.until_closed() == b""
    d.expect(r"127\.0\.0\.1:\d+: refused: it is a client of PyTorch's TCPStore \(torchrun\?\), and this rdzvd serves none: start rdzvd with --c10d, or rdzv-agent")
    a = rdzv.agents(1, d.endpoint, "--", "true")
    assert a[0].exit() == 0, rdzv


@pytest.mark.parametrize("args", [["--store-memory", "1k"], ["--store-memory", "many"], ["--store-keys", "0"], ["--store-keys", "-1"]])
def test_bad_quota(rdzv, args):
    p = rdzv.spawn(RDZVD, *args)
    assert p.exit() == 64 and p.says(args[0]), p


def test_malformed_is_closed_with_a_line(rdzv):
    d = rdzv.daemon("--c10d")
    for n, data in enumerate((validate() + b"\x63", validate() * 2, validate() + b"\x05" + u64(1 << 40), b"\0" + u64(1 << 40))):
        with Raw(d.port) as c:
            c.send(data)
            assert c.until_closed() == b""
        until("a line", lambda: len([l for l in d.err if "common store: 127.0.0.1:" in l and "closed: " in l]) == n + 1)
    with client(d) as c:
        ask(c, op("GETNUMKEYS"), i64(0))


def test_control_socket_is_no_store(rdzv):
    rdzv.daemon("--c10d", "--socket", rdzv.tmp / "ctl")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(rdzv.tmp / "ctl"))
        sock.sendall(validate() + ping(1))
        assert sock.recv(10) == b""


# ---- beside agents ---------------------------------------------------------------------------------------------------


def test_agents_and_clients_on_one_port(rdzv):
    d = rdzv.daemon("--c10d")
    with client(d) as c:
        a = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--", "sh", "-c", "sleep 0.5; echo rank $RANK of $WORLD_SIZE")
        deadline, n = time.monotonic() + 20, 0
        while any(p.running for p in a) and time.monotonic() < deadline:
            n += 1
            ask(c, op("ADD", "n", 1), i64(n))
        assert [p.exit() for p in a] == [0, 0], rdzv
        assert n > 10 and sorted(l for p in a for l in p.out if "of 2" in l), rdzv
        ask(c, op("GET", "n"), s(str(n)))


def test_killed_daemon_leaves_nothing(rdzv):
    """kill -9 while clients wait: they see the end, and the next daemon on the port begins empty."""
    d = rdzv.daemon("--c10d")
    with client(d) as a, client(d) as b:
        ask(a, op("ADD", "n", 1), i64(1))
        b.send(op("WAIT", ["never"]))
        d.end()
        assert b.until_closed() == b"" and a.until_closed() == b""
    again = rdzv.spawn(RDZVD, "--c10d", "--listen", d.endpoint)
    again.expect("listens on")
    again.port = d.port
    with client(again) as c:
        ask(c, op("GETNUMKEYS"), i64(0))


def test_stopped_daemon_closes_clients(rdzv):
    d = rdzv.daemon("--c10d")
    with client(d) as c:
        c.send(op("WAIT", ["never"]))
        d.kill(signal.SIGTERM)
        assert c.until_closed() == b""
    assert d.exit(5) == 0, d


def test_used_daemon_stays(rdzv):
    """--exit-when-idle: the jobs are done, but a client is connected."""
    d = rdzv.daemon("--c10d", "--exit-when-idle")
    with client(d) as c:
        a = rdzv.agents(1, d.endpoint, "--", "true")
        assert a[0].exit() == 0, rdzv
        d.expect("-> ended")
        time.sleep(0.5)
        ask(c, op("ADD", "n", 1), i64(1))
    assert d.exit(10) == 0 and d.says("stopping: its work is done"), d


# ---- who may stay ----------------------------------------------------------------------------------------------------


def test_at_rest_nothing_moves(rdzv):
    d = rdzv.daemon("--c10d", "--socket", rdzv.tmp / "ctl")  # where no rdzvctl of another test asks every daemon of the machine
    clients = [client(d) for _ in range(50)]
    for c in clients:
        ask(c, op("WAIT", ["never"]) + ping(1), b"\1\0\0\0")
    ticks = lambda: sum(map(int, open(f"/proc/{d.pid}/stat").read().rsplit(")", 1)[1].split()[11:13]))
    switches = lambda: status(d.pid, "voluntary_ctxt_switches")

    def settled():  # on a loaded machine it may not yet have come to all of them
        was = switches()
        time.sleep(0.3)
        return switches() == was

    until("it comes to rest", settled)
    before = ticks(), switches()
    time.sleep(2)
    assert ticks() - before[0] <= 1 and switches() - before[1] <= 2
    for c in clients:
        c.close()
