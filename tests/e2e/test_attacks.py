# SPDX-License-Identifier: Apache-2.0
"""What one peer without a key could do to a daemon before there were keys. Now each of these is refused, harmless and reported.

Each attack comes from two sides: from a stranger, who speaks plainly or with a key of his own, and from EVE, another user of the same daemon, who
has the key that it derives for her. Where other tests hold an attack, this table says which.

| attack | held by |
|---|---|
| HELLO with the highest incarnation and round: all agents exit 76, and the restarted job is kept out | test_highest_incarnation |
| 4,094 of these refuse every new job for ten minutes | test_many_jobs |
| HELLO with want_rank 0 and local_addr: becomes MASTER_ADDR, and puts an address on the store's list | test_first_rank |
| a REPORT that is `failed` and `lasting`, an AGENT_DIED, END_ACK: ends the job with a forged verdict | test_forged_reports |
| a flood of HELLOs on one connection takes all CPU of the daemon | test_flood |
| somebody makes a node send more messages than any node does, and the daemon refuses that node | test_a_node_that_is_too_fast; test_store_door.py |
| 19,900 valid HELLOs from two addresses fill the daemon | test_many_connections; test_crowds.py |
| HELLO with a uid under another user's job name: sees and stops it | test_uid_of_hello |
| a program that squats the port and answers END: the agent exits 0 without a worker | test_security_matrix.py::test_impostor |
| connections are exhausted: root's rdzvctl is refused as well | test_many_connections; test_crowds.py |
| 550 SETs of 8 MB to a round's store; 288 idle connections to it; a thousand new ones in a second, by another user of a machine | test_store_door.py |
"""

import contextlib
import json
import os
import resource
import secrets
import time

import pytest

import sealed
from harness import RDZVCTL, SLOW
from native import Closed, Native, frame
from others import EVE
from sealed import Key
from secured import JOB, Job

HIGHEST = "f" * 12 + "-" + "f" * 16


@pytest.fixture
def job(rdzv):
    job = Job(rdzv)
    job.incarnation = job.daemon.expect(rf"job {JOB}.* begins as incarnation (\S+)")[1]
    yield job
    job.finish()


def eve(rdzv):
    return Key.parse(rdzv.key).derive(EVE)


def sides(rdzv):
    """The keys with which each attack comes; None: plain."""
    return {"plain": None, "wrong key": Key.random(), "eve": eve(rdzv)}


def attack(port, key, do, patience=10.0):
    """Lets `do` write to a connection with that key: the messages that come back. Strangers get REFUSED at most."""
    with Native(port, key=key) as n:
        try:
            with contextlib.suppress(ConnectionError):
                do(n)
            with contextlib.suppress(TimeoutError):
                return n.until_closed(0.3 if key and key.uid == EVE else patience)
        except (sealed.Refused, Closed):
            pass
        return n.seen


def from_all_sides(job, do):
    for name, key in sides(job.rdzv).items():
        got = [m.name for m in attack(job.daemon.port, key, do)]
        if name == "plain":
            assert got == ["GREETING", "REFUSED"], got
        elif name == "wrong key":
            assert got == [], got
        job.unharmed()


def test_highest_incarnation(job):
    from_all_sides(job, lambda n: n.hello(job=JOB, nodes=2, incarnation=HIGHEST, round=499999999, phase="running", node_rank=0, round_nodes=2, restarts_used=3))
    # Nor is the job kept out when it starts again: an agent of it joins beside the running ones, and not another incarnation.
    late = job.rdzv.agent("--endpoint", job.daemon.endpoint, "--rdzv-id", JOB, "--role", "chief-scientist", "--nnodes", 2, "--max-restarts", 0, "--", "true")
    late.expect("waiting|wait for|spare|is full|refused")
    assert HIGHEST not in late.text and "76" not in late.text, late
    late.end(15)


def test_a_job_that_starts_after_the_attack(rdzv):
    """The name is taken by strangers before its owner comes."""
    d = rdzv.daemon()
    for key in sides(rdzv).values():
        attack(d.port, key, lambda n: n.hello(job=JOB, incarnation=HIGHEST, round=499999999, phase="stopped", node_rank=0, round_nodes=1))
    a = rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", JOB, "--", "true")
    assert a.exit(30) == 0, f"{a}\n{d}"


def test_many_jobs(job):
    """Each says that it comes from a round of long ago, so that the daemon keeps it in mind. Eve has a share of the jobs, and is told when it is
    used up; nobody else is."""
    for key in sides(job.rdzv).values():

        def do(n):
            for i in range(4094):
                n.agent = secrets.token_hex(8)
                n.hello(job=f"many-{i}", nodes=2, incarnation=HIGHEST, round=499999999, phase="stopped", node_rank=0, round_nodes=2)

        attack(job.daemon.port, key, do)
    members = []
    for i in range(1100):
        members.append(Native(job.daemon.port, key=eve(job.rdzv)))
        members[-1].hello(job=f"more-{i}", nodes=2, lease_ms=60000)
        if (m := members[-1].expect_one("WELCOME", "REFUSED")).name == "REFUSED":
            break
    assert m.name == "REFUSED" and f"uid {EVE}" in m.text and "limit" in m.text, m
    a = job.rdzv.agent("--endpoint", job.daemon.endpoint, "--rdzv-id", "honest", "--", "true")
    assert a.exit(30) == 0, a
    with Native(job.daemon.port, key=Key.parse(job.rdzv.key).derive(EVE + 1)) as n:
        n.hello(job="mallorys", nodes=1)
        n.started()
        n.finish()
    for n in members:
        n.close()


def test_first_rank(rdzv):
    """While the job forms, strangers want to be its first node, at an address of their choice."""
    d = rdzv.daemon()
    words = "--endpoint", d.endpoint, "--rdzv-id", JOB, "--nnodes", 2, "--", "sh", "-c", "echo master $MASTER_ADDR"
    first = rdzv.agent(*words, node="0")
    first.expect("1 of 2 nodes is here")
    for key in sides(rdzv).values():
        do = lambda n: n.hello(job=JOB, nodes=2, want_rank=0, local_addr="8.8.8.8", addrs="8.8.8.8", store_port=53, host="evil")
        got = attack(d.port, key, do)
        assert "START" not in [m.name for m in got], got
    assert first.running and not first.says("8.8.8.8|evil"), first
    second = rdzv.agent(*words, node="1")
    for a in first, second:
        assert a.exit(30) == 0 and a.says("master 127.0.0.1") and not a.says("8.8.8.8"), a


def test_forged_reports(job):
    """With the job's real incarnation, which is no secret to who reads the log."""
    forged = dict(seq=1, round=1, kind="failed", ago_ms=0, what=dict(cause="worker-exec", rank=0, local_rank=0, pid=1, code=127, text="forged", lasting=True))
    messages = [
        ("REPORT", dict(incarnation=job.incarnation, report=forged)),
        ("REPORT", dict(incarnation=job.incarnation, report=dict(seq=2, round=1, kind="finished", ago_ms=0))),
        ("AGENT_DIED", dict(job=JOB, agent="ab" * 16)),
        ("END_ACK", dict(incarnation=job.incarnation)),
        ("BYE", dict(text="bye")),
        ("PROGRESS", dict(incarnation=job.incarnation, round=1, step=9)),
    ]
    for name, fields in messages:
        from_all_sides(job, lambda n: n.send(name, fields))
        if name in ("REPORT", "END_ACK", "PROGRESS"):  # as a member of a job of her own with that name, in the job's round
            def as_member(n):
                n.hello(job=JOB, nodes=1, incarnation=job.incarnation, round=1, phase="running", node_rank=0, round_nodes=2, reports=[forged])
                n.expect("WELCOME")
                n.send(name, fields)

            attack(job.daemon.port, eve(job.rdzv), as_member)
            job.unharmed()
    assert not any(a.says("forged") for a in job.agents)
    assert not job.daemon.says("the guard of agent"), "nobody reads in the log that a job has lost a node"


def cpu_seconds(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("who", ["plain", "wrong key", "eve"])
def test_flood(job, who):
    """For two seconds HELLOs on one connection, as fast as they go, and on a new one when it is closed: the daemon serves the others meanwhile."""
    key, sent, closed, slowest = sides(job.rdzv)[who], 0, 0, 0.0
    hello = frame("HELLO", dict(version=1, agent="ab" * 8, job="flood", host="x", workers=1, settings=dict(min_nodes=2, max_nodes=2, lease_ms=5000)))
    begin, cpu = time.monotonic(), cpu_seconds(job.daemon.pid)
    asked = begin
    while time.monotonic() - begin < 2:
        with contextlib.suppress(ConnectionError, Closed, sealed.Refused, TimeoutError):
            with Native(job.daemon.port, key=key, timeout=1) as n:
                while time.monotonic() - begin < 2:
                    n.write(hello * 10)
                    sent += 10
        closed += 1
        if time.monotonic() - asked > 0.5:
            asked = time.monotonic()
            p = job.rdzv.spawn(RDZVCTL, "--socket", job.socket, "jobs")
            assert p.exit() == 0 and p.says(JOB), p
            slowest = max(slowest, time.monotonic() - asked)
    assert closed > 1 and slowest < 5 * SLOW, f"{sent} HELLOs, {closed} connections, slowest answer {slowest:.3f} s"
    spent = cpu_seconds(job.daemon.pid) - cpu
    print(f"{who}: {sent} HELLOs, {closed} connections, {spent:.2f} s of CPU in 2 s, slowest answer {slowest:.3f} s")


def test_a_node_that_is_too_fast(rdzv):
    """It sends more at once than a daemon reads at once. The rest is read at the allowed pace, which takes longer than its lease; but each message is a
    sign of life. It keeps its place, each message is answered, and the job ends well."""
    daemon = rdzv.daemon()
    beats = 4096 + 600
    with Native(daemon.port) as fast, Native(daemon.port) as other:
        for n in fast, other:
            n.hello(job="fast", nodes=2, lease_ms=1000)
        for n in fast, other:
            n.started()
        fast.write(b"".join(frame("HEARTBEAT", id=i + 1) for i in range(beats)))
        began, answered = time.monotonic(), 0
        while answered < beats:
            other.send("HEARTBEAT", id=answered + 1)
            for m in some(fast, 0.2):
                assert m.name not in ("REFUSED", "STALE", "STOP"), m
                answered += m.name == "HEARTBEAT_ACK"
                assert m.name != "HEARTBEAT_ACK" or m.id == answered
        assert time.monotonic() - began > 2, "it was read at the allowed pace"
        daemon.expect("job fast: node testhost sends more than 200 messages in a second: they are read at that pace")
        assert not daemon.says("is lost"), daemon
        other.send("HEARTBEAT", id=beats + 1)
        fast.report("finished")
        assert other.finish().outcome == "success"


def some(n, seconds):
    """The messages that come within that time."""
    end = time.monotonic() + seconds
    with contextlib.suppress(TimeoutError):
        while (left := end - time.monotonic()) > 0:
            yield n.recv(left)


def test_uid_of_hello(job):
    """Eve says that she is the job's user. The daemon believes her key."""
    with Native(job.daemon.port, key=eve(job.rdzv)) as n:
        n.hello(job=JOB, nodes=1, uid=os.geteuid())
        n.started()
        job.unharmed()
        p = job.rdzv.spawn(RDZVCTL, "--socket", job.socket, "--json", "jobs")
        assert p.exit() == 0, p
        owners = sorted(j["uid"] for j in json.loads("\n".join(p.out))["jobs"] if j["job"] == JOB)
        assert owners == sorted([os.geteuid(), EVE]), p
        with Native(job.daemon.port, key=eve(job.rdzv)) as m:
            m.send("CONTROL", dict(verb="stop", job=JOB, json=False), id=7)
            assert m.expect("CONTROL_REPLY").fields.get("code", 0) == 0
        n.expect("STOP")  # her own job is what she stops
        n.report("stopped")
        assert n.expect("END").code == 77
        n.send("END_ACK", dict(incarnation=n.incarnation))
    job.unharmed()


@pytest.mark.parametrize("who", ["plain", "wrong key", "eve"])
def test_many_connections(rdzv, who):
    """They hold as many as the daemon has. Agents come in, and root's rdzvctl is answered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (500, 500))
    job = Job(rdzv, daemon_kw=dict(preexec_fn=limit))
    held = []
    try:
        for i in range(700):
            with contextlib.suppress(OSError, Closed, sealed.Refused, TimeoutError):
                n = Native(job.daemon.port, key=sides(rdzv)[who], timeout=1)
                held.append(n)
                if who == "eve":
                    n.hello(job=f"many-{i % 7}", nodes=2, lease_ms=60000)
                elif i % 2:
                    n.sock.sendall(b"\0")
        p = rdzv.spawn(RDZVCTL, "--socket", job.socket, "jobs")
        assert p.exit() == 0 and p.says(JOB), f"{p}\n{job.daemon}"
        a = rdzv.agent("--endpoint", job.daemon.endpoint, "--rdzv-id", "honest", "--join-timeout", "20s", "--", "true")
        assert a.exit(30) == 0, f"{a}\n{job.daemon}"
    finally:
        for n in held:
            n.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    job.finish()
