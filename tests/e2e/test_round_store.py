# SPDX-License-Identifier: Apache-2.0
"""The round's store: served by node rank 0's agent, empty in every round, for the round's nodes alone, gone with the round."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from c10d import Store
from harness import environ, free_port, until

WORKER = [sys.executable, "-B", str(Path(__file__).parent / "store_worker.py")]


def seen(rdzv, round, rank):
    path = rdzv.tmp / f"seen-{round}-{rank}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def await_seen(rdzv, round, rank, *keys):
    there = lambda: all(k in seen(rdzv, round, rank) for k in keys)
    until(lambda: f"rank {rank} of round {round} has noted {keys}, has {seen(rdzv, round, rank)}:\n{rdzv}", there, 20)
    return seen(rdzv, round, rank)


def start(rdzv, scenario, *args, n=2, endpoint=None, more=()):
    endpoint = endpoint or rdzv.daemon().endpoint
    return rdzv.agents(n, endpoint, "--nnodes", str(n), "--nproc", "1", *args, "--no-python", *WORKER, scenario, *more)


def refused(port, addr="127.0.0.1"):
    try:
        socket.create_connection((addr, port), 5).close()
    except ConnectionRefusedError:
        return True
    return False


def test_every_round_has_an_empty_store_on_another_port(rdzv):
    agents = start(rdzv, "crash_once")
    first = await_seen(rdzv, 1, 0, "port")
    second = await_seen(rdzv, 2, 0, "after")
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)
    for got in (first, second):  # the other rank may have come to the first meeting already
        assert not [k for k in got["before"] if k != "before/count"], got
    assert not [k for k in second["after"] if "round 1" in k], second
    assert {f"of round 2 by {r}" for r in (0, 1)} <= set(second["after"])
    assert first["port"] != second["port"]
    assert first["agent_store"] == "True"
    assert seen(rdzv, 1, 1)["port"] == first["port"] and seen(rdzv, 2, 1)["port"] == second["port"]


def test_the_old_port_is_closed_when_the_round_is_over(rdzv):
    agents = start(rdzv, "crash_once", more=["crash"])
    first = await_seen(rdzv, 1, 0, "port")
    old = Store("127.0.0.1", first["port"])  # a client that is nobody's worker, and stays
    (rdzv.tmp / "crash").touch()
    await_seen(rdzv, 2, 0, "port")
    with pytest.raises(ConnectionError):
        old.ping()
    assert refused(first["port"])
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)
    assert refused(seen(rdzv, 2, 0)["port"])


def test_it_lives_as_long_as_any_node_needs_it(rdzv):
    agents = start(rdzv, "early_head")
    pid = await_seen(rdzv, 1, 0, "pid")["pid"]
    until("rank 0 is gone", lambda: pid not in rdzv.pids(), 10)
    assert all(a.running for a in agents)
    (rdzv.tmp / "rank 0 is gone").write_text("")
    assert await_seen(rdzv, 1, 1, "late")["late"] == "of the old connection"
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)


def test_a_daemon_that_dies_and_comes_back_is_not_noticed(rdzv):
    daemon = rdzv.daemon()
    agents = start(rdzv, "daemon_dies", endpoint=daemon.endpoint)
    for rank in range(2):
        await_seen(rdzv, 1, rank, "pid")
    pids = rdzv.await_workers(2)
    daemon.end(signal.SIGKILL)
    for a in agents:
        a.expect("lost contact with the daemon")
    store = Store("127.0.0.1", seen(rdzv, 1, 0)["port"])
    ticks = store.add("ticks", 0)
    until("the workers use the store while there is no daemon", lambda: store.add("ticks", 0) > ticks + 20)
    rdzv.daemon(port=daemon.port)
    for a in agents:
        a.expect("the daemon is back")
    assert rdzv.workers() == pids
    (rdzv.tmp / "the daemon is back").write_text("")
    for rank in range(2):
        assert await_seen(rdzv, 1, rank, "others")["others"] == ["was not disturbed"] * 2
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)
    assert not list(rdzv.tmp.glob("seen-2-*"))


def test_a_new_head_serves_the_next_round(rdzv):
    endpoint = rdzv.daemon().endpoint
    args = ("--nnodes", "2:3", "--last-call", "5s", "--nproc", "1", "--no-python", *WORKER, "stay")
    agents = rdzv.agents(3, endpoint, *args)
    first = await_seen(rdzv, 1, 0, "port")
    await_seen(rdzv, 1, 2, "port")
    head = next(i for i in range(3) if 0 in rdzv.workers(E2E_NODE=str(i)))
    agents[head].kill()
    second = await_seen(rdzv, 2, 0, "port")
    assert second["port"] != first["port"] and await_seen(rdzv, 2, 1, "port")["port"] == second["port"]
    assert refused(first["port"])
    (rdzv.tmp / "done").write_text("")
    assert [a.exit() for i, a in enumerate(agents) if i != head] == [0, 0], str(rdzv)


def test_it_is_reached_by_ipv6(rdzv):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as e:
        pytest.skip(f"no IPv6 here: {e}")
    daemon = rdzv.daemon(listen="[::1]")
    agents = start(rdzv, "crash_once", endpoint=f"[::1]:{daemon.port}")
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)
    assert seen(rdzv, 2, 0)["addr"] == "::1"


# -- options ---------------------------------------------------------------------------------------------------------


def test_store_worker_leaves_the_port_to_the_worker(rdzv):
    agents = start(rdzv, "own_store", "--store", "worker")
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)
    head, other = seen(rdzv, 1, 0), seen(rdzv, 1, 1)
    assert head["agent_store"] == other["agent_store"] == "False"
    assert head["port"] == other["port"] > 0
    assert other["heard"] == "mine"


def test_store_port_is_the_same_in_every_round(rdzv):
    port = free_port()
    agents = start(rdzv, "crash_once", "--store-port", str(port))
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)
    for round in (1, 2):
        got = seen(rdzv, round, 0)
        assert got["port"] == port and not [k for k in got["before"] if k != "before/count"], got
    assert refused(port)


def test_store_port_that_is_taken(rdzv):
    with socket.create_server(("0.0.0.0", 0)) as holder:
        port = holder.getsockname()[1]
        (agent,) = start(rdzv, "stay", "--store-port", str(port), n=1)
        assert agent.exit() == 126, str(rdzv)
    assert agent.says(rf"cannot serve the round's store on port {port} \(--store-port.*\): address already in use"), str(agent)
    assert not list(rdzv.tmp.glob("seen-*"))


def test_store_worker_with_a_port_of_ones_own(rdzv):
    port = free_port()
    agents = start(rdzv, "own_store", "--store", "worker", "--store-port", str(port))
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)
    assert seen(rdzv, 1, 0)["port"] == seen(rdzv, 1, 1)["port"] == port


# -- who is let in ---------------------------------------------------------------------------------------------------


def in_host(host, code, *args):
    """Runs Python in a host of the lan; what it printed."""
    done = subprocess.run([*host, sys.executable, "-B", "-c", code, *args], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


KNOCK = """
import sys
from c10d import Store
try:
    Store(sys.argv[1], int(sys.argv[2]), timeout=5, source=sys.argv[3]).ping()
    print("in")
except ConnectionError:
    print("out")
"""


def test_only_the_rounds_nodes_are_let_in(rdzv, lan):
    add = lambda host, addr: subprocess.run([*host, "ip", "addr", "add", f"{addr}/24", "dev", "eth0"], check=True, capture_output=True)
    add(lan[1], "10.99.0.22")  # known to its agent, which tells it
    daemon = rdzv.daemon(listen="0.0.0.0", wrap=lan[0])
    agents = [rdzv.agent("--endpoint", f"10.99.0.1:{daemon.port}", "--nnodes", "2", "--nproc", "1", "--no-python", *WORKER, "stay", wrap=lan[i], node=str(i))
              for i in range(2)]
    got = await_seen(rdzv, 1, 0, "port")
    assert await_seen(rdzv, 1, 1, "port")["addr"] == got["addr"] == "10.99.0.1", str(rdzv)
    add(lan[1], "10.99.0.33")  # of nobody, as far as the round knows
    knock = lambda i, source: in_host(lan[i], KNOCK, got["addr"], str(got["port"]), source)
    assert knock(1, "10.99.0.2") == "in"
    assert knock(1, "10.99.0.22") == "in"
    assert knock(0, "10.99.0.1") == "in"
    assert in_host(lan[0], KNOCK, "127.0.0.1", str(got["port"]), "127.0.0.7") == "out"  # it listens on the node's address alone
    assert knock(1, "10.99.0.33") == "out"
    agents[0].expect(r"store of round 1: 10\.99\.0\.33:\d+: refused: only the nodes of the round may connect")
    assert len(re.findall(r"refused", agents[0].text)) == 1
    (rdzv.tmp / "done").write_text("")
    assert [a.exit() for a in agents] == [0, 0], str(rdzv)
    daemon.end()


LOOKS = """
import mmap, time
with open("libc10.so", "rb") as f:
    library = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)  # what the agent knows PyTorch by
time.sleep(60)
"""


def test_a_script_that_looks_for_its_store_elsewhere_is_named(rdzv):
    """PyTorch sleeps between its attempts. Commands that need no store, and those with --store worker, hear nothing."""
    (rdzv.tmp / "libc10.so").write_bytes(b"x" * 4096)
    looks = ["--", sys.executable, "-c", LOOKS]
    quiet = [rdzv.agent("--standalone", "--nproc", 2, *args) for args in (["--store", "worker", *looks], ["--", "sleep", "60"])]
    a = rdzv.agent("--standalone", "--nproc", 2, *looks)
    m = a.expect(r"no worker has connected to the round's store \(MASTER_ADDR=127\.0\.0\.1 MASTER_PORT=(\d+)\) for 1\d s, and rank 0's process (\d+) \(\S+\) has loaded "
                 r"PyTorch and waits; if the script sets MASTER_ADDR or MASTER_PORT, or has an init_method=\"tcp://\.\.\.\", start the job with --store worker", 40)
    assert environ(m[2])["MASTER_PORT"] == m[1], a
    for p in (a, *quiet):
        assert p.end(signal.SIGTERM) == 75, p
    assert not any(p.says("no worker has connected") for p in quiet), rdzv
