# SPDX-License-Identifier: Apache-2.0
"""Ten thousand connections of strangers, silent or slow: agents join in their time, and root's rdzvctl is answered."""

import contextlib
import random
import resource
import socket
import threading
import time

import pytest

import sealed
from harness import RDZVCTL, SLOW, status, until
from native import HEADER, NUMBERS, Closed, Native

SILENT, SLOW_ONES, AGENTS = 10_000, 1_000, 200


class Crowd:
    """Connections that are opened again when they are closed. Those that drip send a byte of an opening now and then."""

    OPENING = sealed.Client(sealed.Key.random()).opening()[:-1]  # it never ends

    def __init__(self, port, sources, silent, dripping):
        self.port, self.sources, self.opened, self.broken = port, sources, 0, 0
        self.conns = [(None, 0, i < dripping) for i in range(silent + dripping)]
        random.seed(1)
        random.shuffle(self.conns)
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _open(self):
        s = socket.socket()
        s.setblocking(False)
        s.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no port waits in TIME_WAIT
        s.bind((self.sources[self.opened % len(self.sources)], 0))
        s.connect_ex(("127.0.0.1", self.port))
        self.opened += 1
        return s

    def _turn(self, i):
        s, sent, drips = self.conns[i]
        if s:
            try:
                if s.recv(4096) == b"":
                    raise ConnectionResetError
            except BlockingIOError:
                pass
            except OSError:
                s.close()
                self.broken += 1
                s, sent = None, 0
        if s is None:
            s = self._open()
        elif drips:
            with contextlib.suppress(OSError):
                sent += s.send(self.OPENING[sent : sent + 1])
        self.conns[i] = (s, sent, drips)

    def _run(self):
        while not self.ending.is_set():
            for i in range(len(self.conns)):
                if self.ending.is_set():
                    return
                self._turn(i)

    @property
    def full(self):
        return self.opened >= len(self.conns)

    def close(self):
        self.ending.set()
        self.thread.join()
        for s, _, _ in self.conns:
            if s:
                s.close()


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < SILENT + SLOW_ONES + AGENTS + 1000:
        pytest.skip(f"ulimit -Hn is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def joins(port, i, source):
    """Seconds from the connect to the WELCOME, as an agent that tries again."""
    began = time.monotonic()
    while True:
        try:
            n = Native(port, source=source)
            n.hello(job=f"job-{i % 10}", nodes=AGENTS, lease_ms=600000)  # it sends no heartbeats
            n.expect("WELCOME")
            return n, time.monotonic() - began
        except Exception:
            if time.monotonic() - began > 60 * SLOW:
                raise


@pytest.mark.parametrize("sources, files", [(1, 4096), (1, 16384), (5000, 4096)], ids=["one address", "one address, room for all", "5000 addresses"])
def test_a_crowd_keeps_no_agent_out(rdzv, many_files, sources, files):
    """The agents come from an address of their own, while descriptors are used up."""
    addresses = [f"127.1.{i >> 8}.{i & 255}" for i in range(1, sources + 1)]
    d = rdzv.daemon("--socket", rdzv.tmp / "s", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)))
    crowd = Crowd(d.port, addresses, SILENT, SLOW_ONES)
    members, took = [], []
    try:
        until("the crowd is there", lambda: crowd.full, 60)
        for i in range(AGENTS):
            n, seconds = joins(d.port, i, "127.2.0.1")
            members.append(n)
            took.append(seconds)
        began = time.monotonic()
        p = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "s", "status", "job-0")
        assert p.exit(10) == 0 and p.says("job-0"), p
        answered = time.monotonic() - began
        for n in members:  # not one of them was dropped
            n.sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                while n.sock.recv(65536):
                    pass
    finally:
        crowd.close()
        for n in members:
            n.close()
    took.sort()
    memory = status(d.pid, "VmHWM")
    print(f"\n{crowd.opened} connections were opened, {crowd.broken} closed by the daemon; join: median {took[AGENTS // 2] * 1000:.1f} ms, worst {took[-1] * 1000:.1f} ms; "
          f"rdzvctl: {answered * 1000:.0f} ms; memory {memory} KiB")
    assert memory < 200_000
    assert not d.says("accept:"), "descriptors never run out"
    assert d.running and sum("closed" in line for line in d.err) < 2000, "lines about strangers are rationed"


def test_unfinished_messages_of_many_take_little_memory(rdzv, many_files):
    """Each may be of 64 KiB: two thousand of those who have the key would take 128 MiB."""
    d = rdzv.daemon()
    begun = HEADER.pack(65000, NUMBERS["HELLO"], 0, 0, 65000) + b" " * 60_000
    held = []
    for i in range(2000):
        held.append(Native(d.port, source=f"127.3.0.{1 + i % 2}"))
        with contextlib.suppress(Closed, ConnectionError):
            held[-1].write(begun)
    # Where two thousand take longer than 10 s, the first ones make room in another way.
    d.expect("closed to make room: unfinished messages of unidentified connections take too much memory|closed: it did not say who it is within 10 s")
    with Native(d.port) as n:
        n.hello(nodes=2)
        n.expect("WELCOME")
    assert status(d.pid, "VmHWM") < 100_000
    for s in held:
        s.close()


def test_answers_on_their_way_out_count(rdzv):
    """A stranger that never closes its end has its answer, and its connection still counts."""
    d = rdzv.daemon(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400)))
    held = []
    for _ in range(1000):
        held.append(socket.create_connection(("127.0.0.1", d.port), 10))
        held[-1].sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            held[-1].recv(1)
    assert not d.says("accept:") and d.running, d
    with Native(d.port) as n:
        n.hello(nodes=2)
        n.expect("WELCOME")
    for s in held:
        s.close()
