# SPDX-License-Identifier: Apache-2.0
"""Hostile bytes in every text of every message, in both directions: terminals, logs, JSON and the service manager get printable text.

The fields come from proto/msg.h. Each gets text that UTF-8 allows and a terminal obeys, bytes that are no UTF-8, and escapes of JSON that stand for none."""

import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fields import MESSAGES, put, text_fields
from harness import AGENT, RDZVCTL, until
from hostile import EVIL, SHOWN, STORE_PORT, FakeDaemon, check
from native import Closed, Native

MARK = "@@"  # stands for the hostile bytes until the JSON is text
VALUES = {
    "characters": json.dumps(EVIL)[1:-1].encode(),
    "characters as they are": "évil中\u009b31m\u202e\u2028\x7f\U000e0041".encode(),
    "no UTF-8": b"\x9b31m\xff\xc3(\xed\xa0\x80",
    "half a pair": rb"\ud800",
    "NUL": rb"a\u0000b",
}
DAEMONS = [m for m, (_, way) in MESSAGES.items() if way == "TO_DAEMON" and text_fields(m)]
AGENTS = [m for m, (_, way) in MESSAGES.items() if way == "TO_AGENT" and text_fields(m)]


def hostile(fields, path, value):
    return json.dumps(put(fields, path, MARK)).encode().replace(MARK.encode(), value)


def cases(message):
    """Where, and what. The first field gets all values. Those that are no JSON are refused with the whole message, whatever the field. The last case
    is a key that nobody knows."""
    for i, path in enumerate([*text_fields(message), (EVIL,)]):
        for name, value in VALUES.items():
            if i == 0 or name == "characters":
                yield path, value


ROUND = dict(incarnation="ab" * 8, round=1)
CALLER = dict(id=1, addr="127.0.0.1", port=1)

# ---- to the daemon ---------------------------------------------------------------------------------------------------


class Manager:
    """A service manager, and the texts that it got."""

    def __init__(self, path):
        self.sock, self.texts = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), []
        self.sock.bind(str(path))
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while data := self.sock.recv(4096):
            self.texts.append(data)


def fields_of(message, n, report):
    """What an agent of a running job would send."""
    verdict = dict(cause="worker-exit", rank=0, local_rank=0, pid=4, code=3, host="h", text="t", error="e", device="d", state="R")
    return dict(
        REPORT=dict(incarnation=n.incarnation, report=dict(seq=report, round=n.round or 1, kind="failed", ago_ms=0, what=verdict)),
        END_ACK=dict(incarnation=n.incarnation),
        ASK_OWNERS=dict(ROUND, incarnation=n.incarnation, serial=1, addr="127.0.0.1", port=1, callers=[CALLER]),
        FOUND_OWNERS=dict(ROUND, incarnation=n.incarnation, serial=1, owners=[dict(id=1, **{"is": "other"}, uid=1, pid=1, name="p")]),
        BYE=dict(text="bye"),
        AGENT_DIED=dict(job="job", agent="ab" * 8),
        PROGRESS=dict(incarnation=n.incarnation, round=n.round or 1, step=3),
        FORWARD=dict(job="job", incarnation=f"{int(time.time() * 1000):012x}-0123456789abcdef", round=1, daemon="ab" * 16, host="h", addr="127.0.0.1", port=1),
        MINTED=dict(incarnation=n.incarnation, round=n.round or 1, first=0, count=1, version=0, text="none"),
        EVIDENCE=dict(incarnation=n.incarnation, round=n.round or 1, collectives=[dict(group="g", op="o", seq=1, waiting=1, ranks="0")], silent="0"),
        FACTS=dict(wall_ms=1, text="t", facts=[dict(name="kernel", at="gpu0", text="t")]),
        PAIRED=dict(serial=1, port=1, secret="ab" * 16, text="t"),
        PACE=dict(incarnation=n.incarnation, round=n.round or 1, ranks=[dict(local_rank=0, group=1, collectives=1, waited_us=1)]),
        CONTROL=dict(verb="drain", host="h", job="job", user="u"),
    )[message]


def hello_fields(n, job):
    caught = {}
    send, n.send = n.send, lambda name, fields: caught.update(fields)
    what = dict(cause="worker-exit", rank=0, host="h", text="t", error="e")
    n.hello(job=job, role="r", local_addr="127.0.0.1", addrs="127.0.0.1", expected_hosts="h[1-2]", command="ab",
            reports=[dict(seq=1, round=1, kind="failed", ago_ms=0, what=what)])
    n.send = send
    return caught


def say(d, message, path, value, job):
    """Sends one hostile message, as a stranger and as a member."""
    for member in [False] if message in ("HELLO", "AGENT_DIED") else [False, True]:
        with contextlib.closing(Native(path=d.socket) if message == "CONTROL" else Native(d.port)) as n:
            if message == "CONTROL" or not member:
                n.expect("GREETING")
            else:
                n.hello(job=job, host="h", nodes=1)
                n.started()
            fields = hello_fields(n, job) if message == "HELLO" else fields_of(message, n, 2)
            n.send(message, hostile(fields, path, value), id=1)
            with contextlib.suppress(Closed, TimeoutError):
                if message == "REPORT" and member:
                    n.expect("STOP", 0.2)
                    n.report("stopped")
                    n.expect("SETTLED", 0.2)
                while n.recv(0.1):
                    pass
            if value == VALUES["characters"]:
                ask(d)


def ask(d):
    for words in ["status"], ["status", "--json"]:
        p = d.rdzv.spawn(RDZVCTL, "--socket", d.socket, *words)
        assert p.exit() == 0, p
        check(p.out + p.err)
        if len(words) == 2:
            json.loads("\n".join(p.out))


@pytest.mark.parametrize("message", DAEMONS)
def test_every_text_to_the_daemon(rdzv, message):
    manager = Manager(rdzv.tmp / "notify")
    d = rdzv.daemon("--verbose", "--socket", rdzv.tmp / "s", "--state-dir", rdzv.tmp / "state", env={"NOTIFY_SOCKET": str(rdzv.tmp / "notify")})
    d.socket, d.rdzv = rdzv.tmp / "s", rdzv
    for i, (path, value) in enumerate(cases(message)):
        say(d, message, path, value, f"job-{i}")
    assert d.end(signal.SIGTERM) == 0, d
    check(d.out + d.err)
    assert SHOWN in d.text or message not in ("HELLO", "REPORT"), d
    assert manager.texts
    for text in manager.texts:
        check(text.decode().rstrip("\n").split("\n"))
    assert all(line.isascii() for line in (rdzv.tmp / "state/rdzvd.state").read_text().split("\n") if "\u202e" in line)


# ---- to the agent ----------------------------------------------------------------------------------------------------

INCARNATION = "ab" * 8
VERDICT = dict(cause="worker-exit", round=1, node_rank=0, rank=0, local_rank=0, host="h", pid=4, code=3, state="R", text="t", error="e", device="d")
WELCOME = ("WELCOME", dict(incarnation=INCARNATION, round=0, state="forming", peer_addr="127.0.0.1"))
START = ("START", dict(incarnation=INCARNATION, origin=INCARNATION, round=1, node_rank=0, nodes=1, rank_base=0, world_size=1, role_world_size=1, head_addr="127.0.0.1", store_port=int(STORE_PORT),
                       head_host="h", node_addr="127.0.0.1", minters="h", other_command="h"))
TALKS = dict(
    WELCOME=[],
    GREETING=[WELCOME, ("GREETING", dict(version=1, ticket="ab"))],
    REFUSED=[("REFUSED", dict(code=65, text="no"))],
    STALE=[WELCOME, ("STALE", dict(incarnation=INCARNATION, round=0, text="over"))],
    WAITING=[WELCOME, ("WAITING", dict(here=1, min_nodes=2, max_nodes=2, missing=1, incarnation=INCARNATION, hosts="h", twin="other",
                                       absent=[dict(hosts="h", why="lost", ago_ms=1, text="t")], refusals=[dict(host="h", ago_ms=1, text="t")]))],
    START=[WELCOME, START],
    STOP=[WELCOME, START, None, ("STOP", dict(ROUND, verdict=VERDICT))],
    SETTLED=[WELCOME, START, None, ("STOP", dict(ROUND, verdict=VERDICT)), ("SETTLED", dict(ROUND, charged=True, excluded="h", verdict=VERDICT))],
    END=[WELCOME, START, None, ("END", dict(ROUND, outcome="failed", code=3, verdict=VERDICT))],
    GOING_AWAY=[WELCOME, ("GOING_AWAY", dict(text="soon"))],
    PREPARE=[WELCOME, START, None, ("PREPARE", dict(ROUND, left_ms=100, verdict=VERDICT))],
    KILL=[WELCOME, START, None, ("KILL", dict(ROUND, local_rank=0, signal=10, by="root"))],
    MINT=[WELCOME, START, None, ("MINT", dict(ROUND, first=0, count=1))],
    IDS=[WELCOME, START, None, ("IDS", dict(ROUND, count=0, text="h"))],
    FIND_OWNERS=[WELCOME, START, None, ("FIND_OWNERS", dict(ROUND, serial=1, addr="127.0.0.1", port=1, callers=[CALLER]))],
    MOVED=[("MOVED", dict(host="h", addr="127.0.0.1", port=1, incarnation=INCARNATION, round=1))],
    PAIR=[WELCOME, START, None, ("PAIR", dict(serial=1, addr="127.0.0.1", port=1, secret="ab" * 16, bytes=1, limit_ms=100))],
    NOTICE=[WELCOME, START, None, ("NOTICE", dict(text="node n1: t"))],
    EVENT=[WELCOME, START, None, ("EVENT", dict(name="rdzv.node.joined"))],
    OWNERS=[WELCOME, START, None, ("OWNERS", dict(ROUND, serial=1, owners=[dict(id=1, **{"is": "other"}, uid=1, pid=1, name="p")]))],
)


UNSEEN = ["GREETING", "PAIR", "MINT", "IDS", "FIND_OWNERS", "OWNERS", "MOVED", "EVENT", "PREPARE"]  # between the agent and its workers, about a connection or a daemon that is not there, a name that is dropped, or a checkpoint that these workers cannot write


def talk(message, path, value):
    """The last one of that name is hostile."""
    if message == "WELCOME":
        return [("WELCOME", hostile(WELCOME[1], path, value)), START]
    *before, (name, fields) = TALKS[message]
    assert name == message
    return [*before, (name, hostile(fields, path, value))]


def try_on_an_agent(rdzv, message, path, value, i):
    d = FakeDaemon(*talk(message, path, value))
    try:
        logs, verdict = rdzv.tmp / f"logs-{i}", rdzv.tmp / f"verdict-{i}.json"
        a = rdzv.spawn(AGENT, "--endpoint", d.endpoint, "--nnodes", 1, "--log-dir", logs, "--verdict-file", verdict, "--join-timeout", "2s", "--stop-timeout", "1s",
                       "--verbose", "--", "sh", "-c", "trap : USR1; sleep 60 & wait; wait", node=str(i))
        until("it has heard the daemon", lambda: d.answered or not a.running)
        for signo in 0, signal.SIGTERM, signal.SIGKILL:  # what it says then may name what it was told
            with contextlib.suppress(ProcessLookupError):
                a.kill(signo)
            with contextlib.suppress(subprocess.TimeoutExpired):
                a.popen.wait(0.5)
        a.exit()
        check(a.out + a.err)
        for log in logs.rglob("*.log"):
            check(log.read_text(errors="replace").rstrip("\n").split("\n"))
        if verdict.exists():
            check(verdict.read_text().rstrip("\n").split("\n"))
            json.loads(verdict.read_text())
        return a.text
    finally:
        d.close()


@pytest.mark.parametrize("message", AGENTS)
def test_every_text_to_the_agent(rdzv, message):
    with ThreadPoolExecutor(4) as pool:
        tries = [pool.submit(try_on_an_agent, rdzv, message, *case, i) for i, case in enumerate(cases(message))]
        texts = [done.result() for done in tries]
    assert message in UNSEEN or any(SHOWN in text for text in texts), "what is harmless in it stays readable"


def test_every_message_with_text_is_sent():
    assert ("reports", 0, "what", "host") in text_fields("HELLO") and ("absent", 0, "text") in text_fields("WAITING")
    assert set(AGENTS) == set(TALKS), "a message that is new here needs its place in TALKS"
