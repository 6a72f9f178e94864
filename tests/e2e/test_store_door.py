# SPDX-License-Identifier: Apache-2.0
"""Who comes in to the round's store: processes of the job's user, on its nodes. PyTorch's protocol has no authentication; the kernel says who connects."""

import contextlib
import encodings.idna  # noqa: F401  for connections: another user may not be able to load it
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from c10d import MAGIC, PING, SET, VALIDATE, Store
from harness import BUILD, comm, environ, free_port, until
from others import EVE, as_user, needs_users, user

WORKER = [sys.executable, "-B", str(Path(__file__).parent / "store_worker.py")]
WAIT = ["--no-python", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"]
REFUSED = rf"store of round 1: \S+:\d+: refused: it belongs to process {os.getpid()} \(\S+\) of user {EVE}, and the job to user 0"


def place(rdzv, workers=1):
    """MASTER_ADDR, MASTER_PORT."""
    rdzv.await_workers(workers)
    env = environ(rdzv.pids(RANK="0")[0])
    return env["MASTER_ADDR"], int(env["MASTER_PORT"])


def go(rdzv, *agents):
    (rdzv.tmp / "go").touch()
    assert [a.exit() for a in agents] == [0] * len(agents), str(rdzv)


def listeners(pid):
    """(address, port) of each TCP socket of that process that listens."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}")))
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            word = line.split()
            if word[3] == "0A" and word[9] in inodes:
                raw, port = word[1].split(":")
                raw = b"".join(struct.pack("<I", int(raw[i:i + 8], 16)) for i in range(0, len(raw), 8))
                found.append((socket.inet_ntop(socket.AF_INET6 if len(raw) == 16 else socket.AF_INET, raw), int(port, 16)))
    return found


def anonymous_kib(pid):
    return int(re.search(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])


@contextlib.contextmanager
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- this machine ----------------------------------------------------------------------------------------------------


@needs_users
def test_another_user_is_refused_and_named(rdzv):
    a = rdzv.agent("--standalone", *WAIT)
    addr, port = place(rdzv)
    with as_user(EVE), pytest.raises(ConnectionError):
        Store(addr, port)
    a.expect(REFUSED)
    Store(addr, port).ping()  # root's own
    go(rdzv, a)


@needs_users
def test_numbers_of_another_connection(rdzv):
    """Eve sends a value and resets her connection. Before the agent looks, a process of the job has a connection of the same two ports: it vouches for
    itself and not for her."""
    a = rdzv.agent("--standalone", *WAIT)
    at = place(rdzv)
    Store(*at).ping()
    os.kill(a.pid, signal.SIGSTOP)
    source = at[0], free_port()  # a port that the kernel gives to nobody by itself
    with as_user(EVE):
        eve = socket.create_connection(at, 5, source)
        eve.sendall(struct.pack("<BI", VALIDATE, MAGIC) + bytes([SET]) + struct.pack("<Q", 4) + b"evil" + struct.pack("<Q", 1) + b"x")
        eve.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        eve.close()
    own = socket.create_connection(at, 5, source)
    os.kill(a.pid, signal.SIGCONT)
    own.sendall(struct.pack("<BI", VALIDATE, MAGIC) + bytes([PING]) + b"ping")
    own.settimeout(10)
    assert own.recv(4) == b"ping"
    assert "evil" not in Store(*at).keys()
    own.close()
    go(rdzv, a)


@needs_users
def test_550_values_of_another_user_take_no_memory(rdzv):
    a = rdzv.agent("--standalone", *WAIT)
    addr, port = place(rdzv)
    before = anonymous_kib(a.pid)
    value, sent = struct.pack("<BQ", SET, 1) + b"k" + struct.pack("<Q", 8 << 20) + bytes(8 << 20), 0
    with as_user(EVE):
        for _ in range(550):
            with socket.create_connection((addr, port), 5) as s, contextlib.suppress(OSError):
                s.sendall(value)
                sent += s.recv(1) != b""
    assert sent == 0
    own = Store(addr, port)
    assert own.keys() == []
    assert anonymous_kib(a.pid) < before + 4096
    assert 1 <= len(re.findall(REFUSED.replace(rf"process {os.getpid()} \(\S+\) of ", ".*"), a.text)) <= 64, a  # and the log is not filled
    go(rdzv, a)


@needs_users
def test_1000_idle_connections_of_another_user_take_no_place(rdzv):
    a = rdzv.agent("--standalone", *WAIT)
    addr, port = place(rdzv)
    with many_descriptors(), contextlib.ExitStack() as held:
        with as_user(EVE):
            for _ in range(1000):
                held.enter_context(socket.create_connection((addr, port), 5))
        own = [Store(addr, port) for _ in range(64)]
        assert own[0].add("k", 1) == 1
        for s in own:
            s.close()
    go(rdzv, a)


@needs_users
def test_a_job_of_another_user_refuses_root_too(rdzv):
    """The uid must be the job's: nobody else's, whatever he may do otherwise."""
    rdzv.tmp.chmod(0o777)
    a = rdzv.agent("--standalone", "--no-python", "sleep", "60", **user(EVE))
    addr, port = place(rdzv)
    with pytest.raises(ConnectionError):
        Store(addr, port)
    a.expect(rf"refused: it belongs to user 0, and the job to user {EVE}")
    with as_user(EVE):
        Store(addr, port).ping()
    a.end()


@pytest.mark.parametrize("addr", ["127.0.0.1", "127.0.0.5", "::1"])
def test_it_listens_on_the_nodes_address_alone(rdzv, addr):
    if addr == "::1":
        try:
            socket.create_server((addr, 0), family=socket.AF_INET6).close()
        except OSError as e:
            pytest.skip(f"no IPv6 here: {e}")
    daemon = rdzv.daemon(listen="[::1]" if addr == "::1" else "127.0.0.1")
    endpoint = f"[::1]:{daemon.port}" if addr == "::1" else daemon.endpoint
    local = ["--local-addr", addr] if addr == "127.0.0.5" else []
    agents = [rdzv.agent("--endpoint", endpoint, "--nnodes", "2", *local, *WAIT, node=str(i)) for i in range(2)]
    assert place(rdzv, 2)[0] == addr
    seen = [at for a in agents for at in listeners(a.pid)]
    assert len(seen) == 3 and {at[0] for at in seen} == {addr}, seen  # the round's store, and one of each agent for the next
    Store(*place(rdzv, 2)).ping()
    go(rdzv, *agents)


def test_two_agents_of_one_host_with_two_addresses(rdzv):
    daemon = rdzv.daemon()
    agents = [rdzv.agent("--endpoint", daemon.endpoint, "--nnodes", "2", "--local-addr", f"127.0.0.{7 + i}", "--no-python", *WORKER, "crash_once", node=str(i))
              for i in range(2)]
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)


@needs_users
def test_user_name_spaces(rdzv):
    """Two agents of one user, in containers that know him by other numbers; and root outside, whom neither knows."""
    probe = subprocess.run(["unshare", "--user", "--map-user=0", "--map-group=0", "true"], user=EVE, group=EVE, extra_groups=[], capture_output=True)
    if probe.returncode:
        pytest.skip(f"no user name spaces for users here: {probe.stderr.decode().strip()}")
    rdzv.tmp.chmod(0o777)
    daemon = rdzv.daemon()
    inside = lambda uid: ["unshare", "--user", f"--map-user={uid}", f"--map-group={uid}"]
    agents = [rdzv.agent("--endpoint", daemon.endpoint, "--rdzv-id", "j", "--nnodes", "2", *WAIT, node=str(i), wrap=inside(i), **user(EVE)) for i in range(2)]
    at = place(rdzv, 2)
    with as_user(EVE):
        Store(*at).ping()
    with pytest.raises(ConnectionError):
        Store(*at)
    text = r"refused: it belongs to a user that is unknown there .*, and the job to user [01]"
    until("root is refused", lambda: any(a.says(text) for a in agents), 5)
    go(rdzv, *agents)


# -- other nodes -----------------------------------------------------------------------------------------------------

KNOCK = """
import encodings.idna, os, sys, time
from c10d import Store
os.setegid(int(sys.argv[3])); os.seteuid(int(sys.argv[3]))
began = time.monotonic()
try:
    Store(sys.argv[1], int(sys.argv[2]), timeout=20).ping()
    print("in", time.monotonic() - began)
except ConnectionError:
    print("out", os.getpid())
"""


def knock(host, at, uid):
    done = subprocess.run([*host, sys.executable, "-B", "-c", KNOCK, *map(str, at), str(uid)], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def on_both(rdzv, lan, endpoint, *worker, **kw):
    return [rdzv.agent("--endpoint", endpoint, "--nnodes", "2", *worker, wrap=lan[i], node=str(i), **kw) for i in range(2)]


@needs_users
def test_another_user_of_another_node_is_refused_and_named(rdzv, lan):
    daemon = rdzv.daemon(listen="0.0.0.0", wrap=lan[0])
    agents = on_both(rdzv, lan, f"10.99.0.1:{daemon.port}", *WAIT)
    at = place(rdzv, 2)
    for _ in range(3):
        how, seconds = knock(lan[1], at, 0)
        assert how == "in" and float(seconds) < 1
    how, pid = knock(lan[1], at, EVE)
    assert how == "out"
    agents[0].expect(rf"store of round 1: 10\.99\.0\.2:\d+: refused: it belongs to process {pid} \(python\S*\) of user {EVE} on node2, and the job to user 0")
    how, pid = knock(lan[0], at, EVE)  # the node of the store, by its address
    assert how == "out"
    agents[0].expect(rf"store of round 1: 10\.99\.0\.1:\d+: refused: it belongs to .*user {EVE}, and the job to user 0")
    for i in range(2):
        assert {addr for addr, _ in listeners(next(p for p in rdzv.pids(E2E_NODE=str(i)) if comm(p) == "rdzv-agent"))} <= {f"10.99.0.{i + 1}"}
    go(rdzv, *agents)
    daemon.end()


@needs_users
def test_a_daemon_that_is_away(rdzv, lan):
    """A process of another node waits until it is back, and comes in."""
    daemon = rdzv.daemon(listen="0.0.0.0", wrap=lan[0])
    agents = on_both(rdzv, lan, f"10.99.0.1:{daemon.port}", *WAIT)
    at = place(rdzv, 2)
    daemon.end()
    for a in agents:
        a.expect("lost contact with the daemon")
    one = subprocess.Popen([*lan[1], sys.executable, "-B", "-c", KNOCK, *map(str, at), "0"], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
    assert knock(lan[0], at, 0)[0] == "in"  # this node needs no daemon
    assert one.poll() is None
    daemon = rdzv.daemon(listen="0.0.0.0", port=daemon.port, wrap=lan[0])
    assert one.communicate(timeout=20)[0].split()[0] == "in"
    go(rdzv, *agents)
    daemon.end()


STORM = """
import collections, encodings.idna, os, socket, struct, sys, time
addr, port, uid, rate, seconds = sys.argv[1], *map(int, sys.argv[2:])
os.setegid(uid); os.seteuid(uid)
opened, held, began = 0, collections.deque(), time.monotonic()
while (now := time.monotonic() - began) < seconds or opened < rate * seconds:
    if opened < now * rate:  # one at a time: each shall be a turn of the agent's loop
        s = socket.socket()
        s.setblocking(False)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no TIME_WAIT: ports last
        s.connect_ex((addr, port))
        held.append((now, s))
        opened += 1
    while held and held[0][0] < now - 0.5:
        held.popleft()[1].close()
    time.sleep(0.0002)
print(opened)
"""


@needs_users
def test_a_storm_of_another_user_of_another_node(rdzv, lan):
    """She opens a thousand connections in a second, for longer than it once took until the daemon refused the agents that asked each other about them. The
    job goes on, and its own processes get in meanwhile."""
    daemon = rdzv.daemon(listen="0.0.0.0", wrap=lan[0])
    agents = on_both(rdzv, lan, f"10.99.0.1:{daemon.port}", "--max-restarts", "0", *WAIT)
    at = place(rdzv, 2)
    workers = rdzv.workers()
    storm = [*lan[1], sys.executable, "-B", "-c", STORM, *map(str, at), str(EVE), "1000", "12"]
    with many_descriptors():
        storm = subprocess.Popen(storm, stdout=subprocess.PIPE, text=True)
    asked = 0
    while storm.poll() is None:
        assert knock(lan[1], at, 0)[0] == "in"
        asked += 1
        assert all(a.running for a in agents), str(rdzv)
    assert int(storm.communicate()[0]) >= 12000 and asked
    assert rdzv.workers() == workers and not any(a.says("too many messages|lost contact") for a in agents), str(rdzv)
    agents[0].expect(rf"store of round 1: 10\.99\.0\.2:\d+: refused: it belongs to .*user {EVE}")
    go(rdzv, *agents)
    daemon.end()


def test_512_ranks_that_connect_at_once(rdzv, lan):
    """Four times each: 2,048 connections, half of them from another node."""
    daemon = rdzv.daemon(listen="0.0.0.0", wrap=lan[0])
    worker = ["--nproc-per-node", "256", "--max-restarts", "0", "--no-python", BUILD / "tests/e2e/crowd-worker", "4"]
    agents = on_both(rdzv, lan, f"10.99.0.1:{daemon.port}", *worker)
    assert [a.exit(60) for a in agents] == [0, 0], str(rdzv)
    assert not any(a.says("refused|lost contact") for a in agents), str(rdzv)
    daemon.end()


def test_the_daemons_host_connects_over_loopback(rdzv, lan):
    """Its own name is 127.0.1.1, as Debian has it. START names the address that others see, and the store is there, and only there."""
    daemon = rdzv.daemon(listen="0.0.0.0", wrap=lan[0])
    worker = ["--no-python", *WORKER, "crash_once"]
    agents = [rdzv.agent("--endpoint", f"node1:{daemon.port}", "--nnodes", "2", "--node-rank", str(i), *worker, wrap=lan[i], node=str(i)) for i in range(2)]
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)
    for round in (1, 2):
        assert '"addr": "10.99.0.1"' in (rdzv.tmp / f"seen-{round}-1.json").read_text()
    daemon.end()
