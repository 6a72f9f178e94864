# SPDX-License-Identifier: Apache-2.0
"""A daemon besides the first: the port that an agent reserves for one, the addresses of --endpoint, and rdzvctl's way through them."""

import contextlib
import json
import os
import shutil
import signal
import socket
import time

import pytest

from harness import AGENT, RDZVCTL, RDZVD, free_port
from native import Native


@contextlib.contextmanager
def deaf():
    """HOST:PORT of a machine that is down, as far as a client can tell: the kernel drops what comes there."""
    with contextlib.ExitStack() as all:
        server = all.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(2):
            client = all.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield "127.0.0.1:%d" % server.getsockname()[1]


# ---- rdzvd --listen-fd -----------------------------------------------------------------------------------------------


def reserved(addr="127.0.0.1"):
    """A socket as an agent reserves it: bound, and nobody listens."""
    s = socket.socket()
    s.bind((addr, 0))
    return s


def test_listen_fd(rdzv):
    """The daemon listens on the inherited socket alone; its port can be bound again at once, even while connections are closing."""
    with reserved("127.0.0.2") as s:
        addr, port = s.getsockname()
        with pytest.raises(OSError, match="in use"):
            socket.create_server((addr, port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((addr, port), 5)
        fd = s.fileno()
        d = rdzv.spawn(RDZVD, "--listen-fd", fd, "--ready-fd", 1, pass_fds=[fd])
    d.expect(rf"^{port}$")
    d.expect(rf"version .* listens on {addr}:{port};")
    n = Native(port, addr=addr)
    n.expect("GREETING")
    assert d.end() == -signal.SIGKILL
    again = rdzv.spawn(RDZVD, "--listen", f"{addr}:{port}")
    again.expect(rf"listens on {addr}:{port}")
    n.sock.close()


def test_listen_fd_is_not_what_it_should_be(rdzv):
    def refused(sock, words):
        with sock:
            fd = sock.fileno()
            p = rdzv.spawn(RDZVD, "--listen-fd", fd, pass_fds=[fd])
            assert p.exit() == 64 and len(p.err) == 1 and p.err[0].endswith(f"rdzvd: --listen-fd {fd}: {words}"), p

    refused(socket.socket(), "this socket is not bound to a port")
    refused(socket.socket(type=socket.SOCK_DGRAM), "this descriptor is not a TCP socket")
    refused(socket.socket(socket.AF_UNIX), "this descriptor is not a TCP socket")
    refused(open(os.devnull), "this descriptor is not a TCP socket")
    with socket.create_server(("127.0.0.1", 0)) as server:
        refused(socket.create_connection(server.getsockname()), "this socket is a connection")
    p = rdzv.spawn(RDZVD, "--listen-fd", 99)
    assert p.exit() == 64 and p.err[0].endswith("rdzvd: --listen-fd 99: this descriptor is not open"), p
    with reserved() as s:
        p = rdzv.spawn(RDZVD, "--listen-fd", s.fileno(), "--listen", "127.0.0.1:0", pass_fds=[s.fileno()])
        assert p.exit() == 64 and p.err[0].endswith("rdzvd: --listen and --listen-fd exclude each other"), p


WAIT = "while [ ! -e go ]; do sleep 0.02; done"


def ask(rdzv, endpoints, *words):
    p = rdzv.spawn(RDZVCTL, "--endpoint", ",".join(endpoints), *words)
    p.exit(15)
    return p


# ---- rdzv-agent --endpoint a,b ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def elsewhere(rdzv, rdzvd):
    """rdzv-agent in a folder beside another rdzvd: a script."""
    there = rdzv.tmp / "agent"
    there.mkdir()
    shutil.copy(AGENT, there / "rdzv-agent")
    (there / "rdzvd").write_text(rdzvd)
    (there / "rdzvd").chmod(0o755)
    yield there / "rdzv-agent"


def test_next_address_has_the_daemon(rdzv):
    """One machine is down, on one nobody listens; for the third, nobody starts rdzvd, although it is this one."""
    d = rdzv.daemon(listen="127.0.0.3")
    with deaf() as down:
        endpoint = f"{down},127.0.0.9:{free_port()},127.0.0.3:{d.port}"
        job = ["--rdzv-conf", "is_host=0", "--nnodes", 2, "--rdzv-id", "j", "--", "sh", "-c", WAIT]
        agents = rdzv.agents(2, endpoint, *job)
        rdzv.await_workers(2, timeout=20)
        p = ask(rdzv, endpoint.split(","), "jobs")
        assert p.popen.returncode == 0 and p.says("j: (starting|running)"), p  # FORWARD goes out with START
        assert rdzv.daemons() == [d.pid]
        rdzv.go(*agents)


def test_first_address_is_started(rdzv):
    """Only there an agent starts rdzvd. A daemon that runs at a later address is not the one, and is told where the job is."""
    d = rdzv.daemon(listen="127.0.0.3")
    port = free_port()
    agents = rdzv.agents(2, f"127.0.0.1:{port},127.0.0.3:{d.port}", "--nnodes", 2, "--rdzv-id", "j", "--", "sh", "-c", WAIT)
    d.expect(rf"job j: it is with the daemon on 127.0.0.1 \(127.0.0.1:{port}\), in round 1")
    p = ask(rdzv, [f"127.0.0.3:{d.port}", f"127.0.0.1:{port}"], "status", "j")
    assert p.popen.returncode == 0 and p.says("j: (starting|running)"), p  # FORWARD goes out with START
    rdzv.go(*agents)


def test_daemon_gets_the_claims_place(rdzv):
    """An agent hands --claim to the rdzvd that it starts."""
    with elsewhere(rdzv, '#!/bin/sh\necho "$@" >>said\nexit 71\n') as agent:
        a = rdzv.spawn(agent, "--endpoint", f"127.0.0.1:{free_port()}", "--nnodes", 2, "--claim", "/shared/claims", "--", "true")
        assert a.exit() == 71, a
        assert " --claim /shared/claims" in (rdzv.tmp / "said").read_text()
        a = rdzv.spawn(agent, "--standalone", "--claim", "/shared/claims", "--", "true")
        assert a.exit() == 0 and a.says("--claim has no effect: a job on one machine has one daemon"), a
        assert not os.path.exists("/shared/claims")


def test_explain(rdzv):
    p = rdzv.agent("--explain", "--nnodes", 2, "--endpoint", "n1,n2:7,[::1]", "--claim", "etcd://e1", "true")
    assert p.exit() == 0 and "endpoint n1:29400,n2:7,[::1]:29400" in p.out and "claim 'etcd://e1'" in p.out, p


# ---- rdzvctl --endpoint a,b ------------------------------------------------------------------------------------------

@pytest.fixture
def two(rdzv):
    """Two daemons, a job at the second one, and an address at which nobody listens."""
    rdzv.first, rdzv.second = rdzv.daemon(), rdzv.daemon()
    rdzv.dead = f"127.0.0.9:{free_port()}"
    rdzv.job = rdzv.agent("--endpoint", rdzv.second.endpoint, "--nnodes", 1, "--rdzv-id", "family", "--", "sh", "-c", WAIT)
    rdzv.await_workers(1)
    yield rdzv
    (rdzv.tmp / "go").touch()
    rdzv.job.exit()


def test_first_that_answers(two):
    """About no job in particular: whoever answers first, in the order of the list."""
    a, b = two.first.endpoint, two.second.endpoint
    p = ask(two, [two.dead, b, a], "jobs")
    assert p.popen.returncode == 0 and p.says("family: running"), p
    p = ask(two, [two.dead, a, b], "jobs")
    assert p.popen.returncode == 0 and not p.says("family"), p


def test_daemon_of_the_job(two):
    """About one job: the daemon that has it, wherever it stands in the list."""
    a, b = two.first.endpoint, two.second.endpoint
    for order in [two.dead, a, b], [b, a, two.dead], [a, two.dead, b]:
        p = ask(two, order, "status", "family")
        assert p.popen.returncode == 0 and p.says("family: running") and not p.err, p
    p = ask(two, [a, b], "status", "family", "--json")
    assert p.popen.returncode == 0 and json.loads("\n".join(p.out))["jobs"][0]["job"] == "family", p
    p = ask(two, [two.dead, a, b], "stop", "family")
    assert p.popen.returncode == 0, p
    assert two.job.exit() == 77, two.job


def test_no_daemon_helps(two):
    a, dead = two.first.endpoint, two.dead
    p = ask(two, [dead, a], "stop", "family")
    why = f"no daemon of --endpoint helps: {dead}: no daemon listens there; {a}: no job has the id family; there are no jobs"
    assert p.popen.returncode == 1 and p.err == [f"rdzvctl: {why}"], p
    p = ask(two, [dead, a], "stop", "family", "--json")
    assert p.popen.returncode == 1 and json.loads(p.out[0]) == {"ok": False, "code": 1, "text": why} and not p.err, p
    p = ask(two, [dead, "127.0.0.8:1"], "status")
    assert p.popen.returncode == 69 and len(p.err) == 1 and p.says(f"{dead}: no daemon listens there; 127.0.0.8:1: no daemon listens there$"), p
    assert two.job.running


def test_daemon_that_knows_where_the_job_is(two):
    """It has the job's name, and no job: the next one is asked, and a sentence says where the job is."""
    a = two.first
    run = f"{int(time.time() * 1000):012x}-0123456789abcdef"
    told = dict(version=1, job="family", incarnation=run, origin=run, round=3, term=2, daemon=32 * "2", host="gpu2", addr="10.9.8.7", port=29400)
    with Native(a.port) as n:
        n.expect("GREETING")
        n.send("FORWARD", told)
        a.expect(r"it is with the daemon on gpu2 \(10.9.8.7:29400\)")
    p = ask(two, [a.endpoint, two.second.endpoint], "status", "family")
    assert p.popen.returncode == 0 and p.says("family: running") and not p.says("gpu2"), p
    p = ask(two, [a.endpoint, two.dead], "stop", "family")
    assert p.popen.returncode == 1 and p.says(rf"{a.endpoint}: the job has moved to gpu2 \(10.9.8.7:29400\); {two.dead}: no daemon listens there"), p
    assert two.job.running


def test_silent_machine_costs_its_share(two):
    """A host that is down answers nothing at all: the next one is asked while somebody still waits."""
    with deaf() as addr:
        began = time.monotonic()
        p = ask(two, [addr, two.second.endpoint], "status", "family")
        assert p.popen.returncode == 0 and p.says("family: running"), p
        assert 2.4 < time.monotonic() - began, p


def test_watch_follows(two):
    """--watch goes to the next daemon when the one that answered is gone, and back when only the first is left."""
    p = two.spawn(RDZVCTL, "--endpoint", f"{two.second.endpoint},{two.first.endpoint}", "jobs", "--watch")
    p.expect("family: running")
    two.second.kill()
    p.expect("no jobs")
    two.first.kill()
    p.expect(f"no daemon of --endpoint helps: .*{two.first.endpoint}: no daemon listens there")
    assert p.end(signal.SIGINT) == 0, p
