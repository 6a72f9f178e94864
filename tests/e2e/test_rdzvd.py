# SPDX-License-Identifier: Apache-2.0
"""rdzvd as a program: its options, its ports, what it does to peers that are none of ours, and how it leaves."""

import os
import resource
import signal
import socket
import struct
import time

import pytest

from harness import RDZVD, SANITIZED, SLOW, status, until
from native import PREFACE, Closed, Native, frame

NO_IPV6 = not os.path.exists("/proc/net/if_inet6") or "00000001 " not in open("/proc/net/if_inet6").read()


def connect(port, addr="127.0.0.1"):
    return socket.create_connection((addr, port), 10)


def answer(s, timeout=10.0):
    """Everything until the other side closes."""
    s.settimeout(timeout * SLOW)
    got = b""
    try:
        while data := s.recv(65536):
            got += data
    except ConnectionError:
        pass
    return got


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, words",
    [
        (["--listen", "localhost:29400"], "--listen localhost:29400: a numeric address"),
        (["--listen", "1.2.3.4:99999"], "99999"),
        (["--listen", "1.2.3:0"], "1.2.3"),
        (["--listen", "[::1:0"], r"\[::1:0"),
        (["--listen", "127.0.0.1:0", "--listen", ""], "--listen"),
        (["--owner-fd", "99"], "--owner-fd 99: this descriptor is not open"),
        (["--agent-fd", "99"], "--agent-fd 99: this descriptor is not open"),
        (["--ready-fd", "-7"], "--ready-fd"),
        (["--quiet", "--verbose"], "--quiet and --verbose"),
        (["--socket", "/tmp/" + "x" * 200], "--socket .* at most 107 bytes"),
        (["--listne", "127.0.0.1:0"], "--listen"),
        (["29400"], '"29400" is not one'),
    ],
)
def test_bad_option(rdzv, args, words):
    p = rdzv.spawn(RDZVD, *args)
    assert p.exit() == 64, p
    assert len(p.err) == 1 and p.says(words), p


def test_bad_environment(rdzv):
    p = rdzv.spawn(RDZVD, env={"RDZVD_LISTNE": "127.0.0.1:0"})
    assert p.exit() == 64 and p.says("RDZVD_LISTNE"), p
    p = rdzv.spawn(RDZVD, env={"RDZVD_LISTEN": "nonsense:x"})
    assert p.exit() == 64 and p.says("nonsense:x"), p


def test_help_and_version(rdzv):
    p = rdzv.spawn(RDZVD, "--help")
    assert p.exit() == 0 and not p.err and p.says("--listen ADDR:PORT"), p
    assert max(map(len, p.out)) <= 100, p
    p = rdzv.spawn(RDZVD, "--version")
    assert p.exit() == 0 and p.says(r"^rdzvd \d+\.\d+\.\d+$"), p


# ---- ports -----------------------------------------------------------------------------------------------------------


def ports(p):
    """Where a daemon with several listeners listens, from its first line."""
    line = p.expect("listens on ([^;]*)").group(1)
    return [int(text.rsplit(":", 1)[1]) for text in line.split(", ")]


def test_port_file(rdzv):
    path = rdzv.tmp / "port"
    d = rdzv.spawn(RDZVD, "--port-file", path, "--listen", "127.0.0.1:0", "--listen", "127.0.0.2:0")
    first, second = ports(d)
    assert path.read_text() == f"{first}\n{second}\n"
    for addr, port in (("127.0.0.1", first), ("127.0.0.2", second)):
        with Native(port, addr) as n:
            n.expect("GREETING")
    assert d.end(signal.SIGTERM) == 0 and not path.exists(), d


def test_port_file_cannot_be_written(rdzv):
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--port-file", "no/such/folder/port")
    assert p.exit() == 71 and p.says("--port-file no/such/folder/port: no such file"), p


def test_listen_from_environment(rdzv):
    p = rdzv.spawn(RDZVD, env={"RDZVD_LISTEN": "127.0.0.1:0,127.0.0.3:0"})
    p.expect(r"listens on 127\.0\.0\.1:\d+, 127\.0\.0\.3:\d+")


def test_ready_fd(rdzv):
    r, w = os.pipe()
    rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--ready-fd", w, pass_fds=[w])
    os.close(w)
    with os.fdopen(r) as f:
        text = f.read()  # to its end: the daemon has closed it
    with Native(int(text)) as n:
        n.expect("GREETING")


def test_port_taken(rdzv):
    d = rdzv.daemon()
    p = rdzv.spawn(RDZVD, "--listen", d.endpoint)
    assert p.exit() == 71, p
    assert p.says(rf"cannot listen on {d.endpoint}: port {d.port} is taken by pid {d.pid} \(rdzvd\)"), p
    p = rdzv.spawn(RDZVD, "--listen", d.port, "--exit-when-idle")
    assert p.exit() == 68 and p.says(f"port {d.port} is taken"), p
    assert d.running


def test_address_of_another_machine(rdzv):
    p = rdzv.spawn(RDZVD, "--listen", "192.0.2.1:0")
    assert p.exit() == 71 and p.says(r"192\.0\.2\.1 is not an address of this machine"), p


@pytest.mark.skipif(NO_IPV6, reason="this machine has no IPv6")
def test_ipv6(rdzv):
    d = rdzv.daemon(listen="[::]")
    for addr in ("::1", "127.0.0.1"):
        with Native(d.port, addr) as n:
            n.hello(job="ipv6" + addr)
            assert n.expect("WELCOME").peer_addr == addr
    d = rdzv.daemon(listen="[::1]")
    with Native(d.port, "::1") as n:
        n.expect("GREETING")
    with pytest.raises(ConnectionRefusedError):
        connect(d.port)


@pytest.mark.skipif(NO_IPV6, reason="this machine has no IPv6")
def test_both_wildcards_share_a_port(rdzv):
    port = rdzv.daemon().port
    for p in rdzv.procs:
        p.end(signal.SIGTERM)
    d = rdzv.spawn(RDZVD, "--listen", f"[::]:{port}", "--listen", f"0.0.0.0:{port}")
    assert ports(d) == [port, port]
    for addr in ("::1", "127.0.0.1"):
        with Native(port, addr) as n:
            n.expect("GREETING")


# ---- first bytes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, words",
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", r"unknown protocol, which begins with \"\\x16\\x03\\x01"),
        (b"SSH-2.0-x\r\n", r"\"SSH-2.0-x\\r\\n\""),
        (b"RDZX", "RDZX"),
    ],
)
def test_foreign_peer_is_closed_at_once(rdzv, data, words):
    d = rdzv.daemon()
    with connect(d.port) as s:
        s.sendall(data)
        assert answer(s, 2) == b""
    d.expect(r"127\.0\.0\.1:\d+: closed: .*" + words)


def test_log_is_not_flooded(rdzv):
    """16 lines about a peer in 10 s."""
    d, began = rdzv.daemon(), time.monotonic()
    for _ in range(100):
        with connect(d.port) as s:
            s.sendall(b"xxxxxxxx")
            answer(s)
    windows = 2 + (time.monotonic() - began) // 10
    with Native(d.port) as n:
        n.hello()
        n.expect("WELCOME")
        d.expect("joins")  # so all lines before are here
    assert 16 <= len([l for l in d.err if "xxxx" in l]) <= min(99, 16 * windows), d


# ---- messages that are wrong -----------------------------------------------------------------------------------------

HUGE = b'{"version": 1, "pad": "' + b"x" * 70000 + b'"}'


@pytest.mark.parametrize(
    "data, words",
    [
        (frame("HELLO", HUGE), "70025|65536|64 KiB"),
        (b"\xff\xff\xff\xff" + frame("HELLO", {})[4:], "65536|64 KiB"),
        (frame("HELLO", b'{"version": 1, "version": 1}'), "duplicate"),
        (frame("HELLO", {"version": 1}), "agent"),
        (frame(77, {}), "77"),
    ],
    ids=lambda v: None if isinstance(v, str) else str(len(v)),
)
def test_malformed_message_is_refused_by_name(rdzv, data, words):
    d = rdzv.daemon()
    with Native(d.port) as n:
        n.write(data)
        got = n.until_closed()
    assert [m.name for m in got] == ["GREETING", "REFUSED"], got
    d.expect(r"127\.0\.0\.1:\d+: closed: .*(" + words + ")")
    with Native(d.port) as n:  # and nobody else is hurt
        n.hello()
        n.expect("WELCOME")


def test_garbage_from_a_member_ends_its_connection_only(rdzv):
    d = rdzv.daemon()
    with Native(d.port) as a, Native(d.port) as b:
        a.hello(nodes=2)
        a.expect("WELCOME")
        b.hello(nodes=2)
        a.started(), b.started()
        a.write(b"\xff" * 64)
        a.until_closed()
        d.expect("testhost of job job: connection closed: ")
        b.send("HEARTBEAT", id=5)
        assert b.expect("HEARTBEAT_ACK").id == 5


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_silent_connection_to_a_daemon_at_rest_is_closed(rdzv):
    """Nothing else happens that could wake it."""
    d = rdzv.daemon()
    began = time.monotonic()
    with connect(d.port) as s:
        answer(s, 15)
    assert 9.5 < time.monotonic() - began


def test_silent_connections_are_closed(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    began = time.monotonic()
    member = Native(d.port)
    member.hello(nodes=2, lease_ms=60000)
    member.expect("WELCOME")
    silent = [connect(d.port), connect(d.port), connect(d.port)]
    silent[1].sendall(b"RD")  # the beginning of something
    silent[2].sendall(PREFACE)  # native, but says no more
    local = Native(path=rdzv.tmp / "s")
    silent.append(local.sock)
    time.sleep(1)
    member.send("HEARTBEAT", id=1)
    for s in silent:
        answer(s, 15)
        assert 9.5 < time.monotonic() - began
    d.expect("closed: it sent nothing that rdzvd understands within 10 s")
    d.expect("closed: it did not say who it is within 10 s")
    d.expect(r"control socket \(pid \d+, uid \d+\): closed")
    member.send("HEARTBEAT", id=2)
    assert member.expect("HEARTBEAT_ACK").id == 1 and member.expect("HEARTBEAT_ACK").id == 2


def comes_in(port):
    with Native(port) as n:
        try:
            return n.expect("GREETING")
        except Closed:
            return None


def test_unidentified_connections_of_one_address_are_limited(rdzv):
    """A quarter of all that descriptors allow, but 256. Then the oldest gives way."""
    d = rdzv.daemon(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600)))
    held = [connect(d.port) for _ in range(256)]
    with Native(d.port) as n:
        n.expect("GREETING")
        assert answer(held[0], 3) == b""
        d.expect(r"closed to make room: 256 connections of this address have not said who they are")
        with Native(d.port, source="127.0.0.9") as other:  # its own is the only one of its address
            other.expect("GREETING")
        with pytest.raises(TimeoutError):
            answer(held[1], 0.5)
    for s in held:
        s.close()


def test_reset_behind_the_first_bytes(rdzv):
    """The daemon sees both at once, and must not wait for more bytes."""
    d = rdzv.daemon("--verbose")
    with connect(d.port) as s:
        d.expect("is connection")
        d.kill(signal.SIGSTOP)
        time.sleep(0.1)
        s.sendall(PREFACE[:2])
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    d.kill(signal.SIGCONT)
    d.expect(r"127.0.0.1:\d+: closed: ", 3)


def test_limit_of_descriptors(rdzv):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

    d = rdzv.daemon(preexec_fn=few)
    members = []
    for i in range(136):  # one after the other: each has ten seconds to say who it is
        members.append(Native(d.port))
        members[i].hello(job=f"job-{i}", nodes=2, lease_ms=60000)
        members[i].expect("WELCOME")
    with connect(d.port) as one_too_many:
        assert answer(one_too_many, 3) == b""
    d.expect("refused: there are 136 connections already")
    members.pop().close()
    until("there is room again", lambda: comes_in(d.port))
    for n in members:
        n.close()


def no_more_descriptors(d):
    """Returns a function that takes the limit back."""
    used = {int(fd) for fd in os.listdir(f"/proc/{d.pid}/fd")}
    soft, hard = resource.prlimit(d.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (min(set(range(len(used) + 1)) - used), hard))
    return lambda: resource.prlimit(d.pid, resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("first", [b"\x00\xce\xf7\x85\x3c", PREFACE + b"\xff" * 16], ids=["store", "malformed"])
def test_a_closed_descriptor_ends_the_pause(rdzv, first):
    """The acceptor tries again after a second in any case: in several tries, one must be let in long before that."""
    d = rdzv.daemon("--c10d")

    def delay():
        with connect(d.port) as held:
            if first[0]:  # the daemon ends it, but closes only when this side has
                held.sendall(PREFACE)
                held.recv(1)
            else:
                held.sendall(first)
            time.sleep(0.1)
            restore = no_more_descriptors(d)
            began = time.monotonic()
            with Native(d.port) as waiting:
                time.sleep(0.1)
                if first[0]:
                    held.sendall(first[len(PREFACE) :])
                    time.sleep(0.1)
                held.close()
                waiting.expect("GREETING")
            restore()
        return time.monotonic() - began

    delays = []
    until(lambda: f"one is let in soon; delays: {delays}", lambda: delays.append(delay()) or delays[-1] < 0.7, 20)
    d.expect("accept: Too many open files")


@pytest.mark.skipif(SANITIZED, reason="sanitizers hold memory back")
def test_memory_of_idle_connections(rdzv, record_property):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("fewer than 1,200 descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    d = rdzv.daemon("--quiet")
    empty = status(d.pid, "VmRSS")
    members = []
    for i in range(1000):
        n = Native(d.port)
        n.hello(job="many", nodes=2000, lease_ms=60000)  # nobody beats
        n.expect("WELCOME")
        members.append(n)
    full = status(d.pid, "VmRSS")
    per_connection = (full - empty) * 1024 / 1000
    record_property("rss_kib", empty)
    record_property("bytes_per_member", per_connection)
    print(f"rdzvd: {empty} KiB, {per_connection:.0f} bytes per member")
    assert empty < 5000 and per_connection < 8192, (empty, full)
    for n in members:
        n.close()


# ---- time ------------------------------------------------------------------------------------------------------------


def test_heartbeats_in_the_socket_count_before_anybody_is_expired(rdzv):
    d = rdzv.daemon()
    with Native(d.port) as n:
        n.hello(lease_ms=1000)
        n.started()
        d.kill(signal.SIGSTOP)
        for i in range(5):
            time.sleep(0.5)
            n.send("HEARTBEAT", id=i + 1)
        d.kill(signal.SIGCONT)
        assert [n.expect("HEARTBEAT_ACK").id for _ in range(5)] == [1, 2, 3, 4, 5]
        n.send("HEARTBEAT", id=6)
        n.expect("HEARTBEAT_ACK")
        assert [m.name for m in n.seen if m.name in ("STOP", "STALE", "END")] == [], n.seen
        assert not d.says("is lost"), d
        n.finish()


def test_silence_of_all_is_the_daemons_own(rdzv):
    """As when its wire is cut: the one who is heard again is as before."""
    d = rdzv.daemon()
    with Native(d.port) as n:
        n.hello(lease_ms=1000)
        n.started()
        d.expect(r"no message from any of its nodes \(1\), as if this daemon were cut off:")
        time.sleep(1)
        n.send("HEARTBEAT", id=1)
        n.expect("HEARTBEAT_ACK")
        d.expect("is heard again, after . s without a message from any node")
        assert not d.says("is lost"), d
        n.finish()


# ---- leaving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT])
def test_told_to_go(rdzv, signo):
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    with Native(d.port) as n, Native(d.port) as undecided:
        n.hello()
        n.started()
        undecided.expect("GREETING")
        d.kill(signo)
        assert n.expect("GOING_AWAY")
        assert n.until_closed() == []
        assert d.exit(3) == 0, d
    assert d.says(f"stopping: {signo.name}"), d
    assert not (rdzv.tmp / "s").exists()


def test_owner_dies_while_a_job_runs(rdzv):
    r, w = os.pipe()
    d = rdzv.daemon("--owner-fd", r, pass_fds=[r])
    os.close(r)
    with Native(d.port) as n:
        n.hello()
        n.started()
        os.close(w)
        d.expect("the agent that started this daemon is gone")
        n.send("HEARTBEAT", id=1)
        n.expect("HEARTBEAT_ACK")
        n.finish()
    assert d.exit(3) == 0 and d.says("no agent needs it"), d


def test_owner_dies_before_anybody_came(rdzv):
    r, w = os.pipe()
    d = rdzv.daemon("--owner-fd", r, "--exit-when-idle", pass_fds=[r])
    os.close(r)
    os.close(w)
    d.expect("the agent that started this daemon is gone")
    with Native(d.port) as n:  # another node of the job, which is served as long as it takes
        n.hello()
        n.started()
        n.finish()
    assert d.exit(3) == 0, d


def test_owner_leaves_before_anybody_came(rdzv):
    """In good order: nobody is waited for."""
    r, w = os.pipe()
    d = rdzv.daemon("--owner-fd", r, "--exit-when-idle", pass_fds=[r])
    os.close(r)
    os.write(w, b"l")
    os.close(w)
    assert d.exit(3) == 0 and d.says("no agent needs it"), d


def test_leaves_when_its_work_is_done(rdzv):
    d = rdzv.daemon("--exit-when-idle")
    with Native(d.port) as a, Native(d.port) as b:
        a.hello(nodes=2)
        b.hello(nodes=2)
        a.started(), b.started()
        a.report("finished"), b.report("finished")
        for n in (a, b):
            assert n.expect("END").outcome == "success"
        a.send("END_ACK", dict(incarnation=a.incarnation))
        b.send("HEARTBEAT", id=1)
        b.expect("HEARTBEAT_ACK")
        assert d.running, d
        b.send("END_ACK", dict(incarnation=b.incarnation))
    assert d.exit(3) == 0 and d.says("its work is done"), d


@pytest.mark.parametrize("keyed", [True, False], ids=["key", "insecure"])
def test_agent_fd(rdzv, keyed):
    """A job over an inherited socket, without a key and without a preface. The port still asks others for the key."""
    ours, its = socket.socketpair()
    d = rdzv.daemon("--agent-fd", its.fileno(), *(() if keyed else ["--insecure"]), pass_fds=[its.fileno()])
    its.close()
    with Native(sock=ours) as n:
        assert n.recv().name == "GREETING"
        n.hello()
        start = n.started()
        assert start.head_addr == "127.0.0.1"
        with Native(d.port, key=None) as other:
            assert other.expect_one("GREETING", "REFUSED").name == "GREETING"
            if keyed:
                assert "serves nobody without it" in other.expect("REFUSED").text
        n.finish()
    with Native(d.port, key=rdzv.key if keyed else None) as n:  # and it serves others when that one is gone
        n.hello(job="next")
        n.started()
        n.finish()
    assert d.running, d


def test_agent_fd_must_be_a_socket(rdzv):
    r, w = os.pipe()
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--agent-fd", r, pass_fds=[r])
    os.close(r), os.close(w)
    assert p.exit() == 71 and p.says("--agent-fd: it must be a connected unix socket"), p


def test_owner_fd_must_be_a_pipe(rdzv):
    with open("/etc/passwd") as f:
        p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--owner-fd", f.fileno(), pass_fds=[f.fileno()])
        assert p.exit() == 71 and p.says("it must be an open pipe or socket"), p


# ---- a job by hand ---------------------------------------------------------------------------------------------------


