# SPDX-License-Identifier: Apache-2.0
"""rdzvctl's verbs on real daemons: what they do, to whom they are allowed, and --watch."""

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys

import pytest

from harness import HOST, RDZVCTL, SLOW, until
from native import Native
from terminal import CTRL_C, Terminal
from test_rdzvd_control import NOBODY, SOMEBODY, ctl, needs_users

WAIT = "while [ ! -e go ]; do sleep 0.02; done"
NOBODYS, SOMEBODYS = NOBODY["user"], SOMEBODY["user"]
ME = "root" if os.geteuid() == 0 else rf"{pwd.getpwuid(os.geteuid()).pw_name} \(uid {os.geteuid()}\)"
NAME = f"{pwd.getpwuid(NOBODYS).pw_name} (uid {NOBODYS})"


@pytest.fixture
def hosts():
    """What to put in front of a command that is to run as if on host n0, n1 ..."""
    wrap = lambda name: ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name]
    if os.geteuid() != 0 or not shutil.which("unshare") or subprocess.run([*wrap("n0"), "true"], capture_output=True).returncode:
        pytest.skip("host names of one's own need root and unshare(1)")
    return lambda i: wrap(f"n{i}")


@pytest.fixture
def d(rdzv):
    """A daemon that others can reach."""
    for parent in (rdzv.tmp, *rdzv.tmp.parents):
        if os.geteuid() == 0 and parent.owner() == "root" and str(parent).startswith("/tmp/"):
            os.chmod(parent, parent.stat().st_mode | 0o011)
    daemon = rdzv.daemon("--socket", rdzv.tmp / "s", "--state-dir", rdzv.tmp / "state")
    daemon.socket = rdzv.tmp / "s"
    return daemon


def ask(rdzv, *args, **user):
    return ctl(rdzv, "--socket", rdzv.tmp / "s", *args, **user)


def status(rdzv, job="family"):
    p = ask(rdzv, "status", job, "--json")
    assert p.code == 0, p
    return json.loads(p.text)["jobs"][0]


# ---- what they do ----------------------------------------------------------------------------------------------------


def test_stop(rdzv, d):
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--rdzv-id", "family", "--", "sh", "-c", WAIT)
    rdzv.await_workers(2)
    assert ask(rdzv, "stop", "family").code == 0
    assert [a.exit(5) for a in agents] == [77, 77], rdzv
    for p in *agents, d, ask(rdzv, "status", "family"):
        p.expect(rf"an operator stopped the job: rdzvctl stop by {ME} from {HOST}")
    assert not rdzv.workers()


def test_drain_a_host_and_give_it_back(rdzv, d, hosts):
    options = ("--endpoint", d.endpoint, "--nnodes", "2:3", "--last-call", "5s", "--rdzv-id", "family")
    agents = [rdzv.agent(*options, "--", "sh", "-c", WAIT, wrap=hosts(i), node=str(i)) for i in range(3)]
    rdzv.await_workers(3)
    d.expect("starting -> running")
    p = ask(rdzv, "drain", "n7")
    assert p.code == 1 and p.says("no job has a node on host n7 .*; hosts are: n[012], n[012], n[012]"), p
    p = ask(rdzv, "drain", "n1")
    assert p.code == 0 and p.says("host n1 is drained: .* until `rdzvctl undrain n1`"), p
    assert p.says("job family: round 1 ends as planned, nothing is charged; 2 other nodes are here for the next one"), p
    agents[1].expect("host n1 is drained by root from .*: its agents join no round until `rdzvctl undrain n1`")
    for i in (0, 2):
        agents[i].expect(r"was drained by root")
        agents[i].expect("round 2: 2 nodes, 2 workers")
    rdzv.await_workers(2)
    assert not rdzv.pids(E2E_NODE="1", RANK="1"), "nothing of the job runs there"
    job = status(rdzv)
    assert job["restarts_used"] == 0 and job["verdicts"][0]["verdict"]["cause"] == "node-drained" and not job["verdicts"][0]["charged"]
    until("both run", lambda: sorted(m["state"] for m in status(rdzv)["members"]) == ["drained", "running", "running"])
    p = ask(rdzv, "drain", "n0")
    assert p.code == 72 and p.says(r"job family cannot go on without n0: it needs 2 nodes \(--nnodes 2:3\), and 1 other is here"), p

    # It outlives the daemon, and an agent.
    d.end()
    again = rdzv.daemon("--socket", rdzv.tmp / "s", "--state-dir", rdzv.tmp / "state", port=d.port)
    again.expect("recovering -> running")
    assert agents[1].end(signal.SIGTERM) == 75, agents[1]
    agents[1] = rdzv.agent(*options, "--", "sh", "-c", WAIT, wrap=hosts(1), node="1")
    agents[1].expect("host n1 is drained by root")
    p = ask(rdzv, "status")
    assert p.says(rf"^drained: n1 +for \d+ s, by root from {HOST}$".replace("^", "(?m)^")), p
    assert json.loads(ask(rdzv, "status", "--json").text)["drained"][0]["host"] == "n1"

    p = ask(rdzv, "undrain", "n0")
    assert p.code == 1 and p.says("host n0 is not drained; drained hosts are: n1"), p
    p = ask(rdzv, "undrain", "n1", "--json")
    assert p.code == 0 and json.loads(p.text)["ok"] and json.loads(p.text)["host"] == "n1", p
    agents[1].expect("round 2 of job family has its 2 nodes; this node waits; a new round with all waiting nodes")
    rdzv.go(*agents)


def test_spare_takes_over(rdzv, d, hosts):
    options = ("--endpoint", d.endpoint, "--nnodes", "2", "--rdzv-id", "family", "--", "sh", "-c", WAIT)
    agents = [rdzv.agent(*options, wrap=hosts(i), node=str(i)) for i in range(2)]
    rdzv.await_workers(2)
    agents.append(rdzv.agent(*options, wrap=hosts(2), node="2"))
    agents[2].expect("spare")
    assert ask(rdzv, "drain", "n0").code == 0
    agents[2].expect("round 2: 2 nodes, 2 workers")
    rdzv.go(*agents)


def test_confirm_dead(rdzv, d, hosts):
    """The agents of two nodes are stopped, so nobody says that their workers are dead; then an operator does, first of one and then of all."""
    options = ("--endpoint", d.endpoint, "--nnodes", "3", "--lease", "2s", "--orphan-grace", "forever", "--rdzv-id", "family", "--", "sh", "-c", WAIT)
    agents = [rdzv.agent(*options, wrap=hosts(i), node=str(i)) for i in range(3)]
    rdzv.await_workers(3)
    p = ask(rdzv, "confirm-dead", "nightly", "n1")
    assert p.code == 1 and p.says("nightly"), p
    p = ask(rdzv, "confirm-dead", "family", "n1")
    assert p.code == 72 and p.text == "job family waits for no lost node on that host: its agent is connected", p
    p = ask(rdzv, "confirm-dead", "family")
    assert p.code == 72 and p.text == "job family waits for no lost node", p
    for i in (1, 2):
        agents[i].kill(signal.SIGSTOP)
    agents[0].expect(r"1 of 3 nodes is here .*; n\[1-2\] may still run workers of an earlier round: .* then: rdzvctl confirm-dead family;", 30)
    assert status(rdzv)["waiting"]["held"].startswith("n[1-2] may still run workers of an earlier round"), rdzv
    lost = [*rdzv.workers(E2E_NODE="1").values(), *rdzv.workers(E2E_NODE="2").values()]
    assert len(lost) == 2, "they live, so this is no formality"
    agents += [rdzv.agent(*options, wrap=hosts(i), node=node) for i, node in ((1, "3"), (4, "4"))]  # n1 has a second agent
    agents[4].expect("3 of 3 nodes are here .* rdzvctl confirm-dead family$", 20)
    for pid in lost:
        os.kill(pid, signal.SIGKILL)  # now it is true
    p = ask(rdzv, "confirm-dead", "family", "n9", "--json")
    assert p.code == 72 and json.loads(p.text) == {"ok": False, "code": 72, "text": "job family waits for no lost node on that host"}, p
    p = ask(rdzv, "confirm-dead", "family", "n1", "--json")
    vouched = "job family: 1 lost node on n1 counts as dead; the next round waits for it no longer"
    assert p.code == 0 and json.loads(p.text) == {"ok": True, "code": 0, "text": vouched}, p
    d.expect(rf"job family: {ME} from {HOST} confirms that nothing of it runs on n1 any more")
    held = status(rdzv)["waiting"]["held"]
    assert held.startswith("n2 may still run workers") and held.endswith("rdzvctl confirm-dead family n2"), held
    assert not any(a.says("round 2") for a in agents), rdzv
    p = ask(rdzv, "confirm-dead", "family")
    assert p.code == 0 and p.text == "job family: 1 lost node counts as dead; the next round waits for it no longer", p
    for i in (0, 3, 4):
        agents[i].expect("round 2: 3 nodes, 3 workers")
    (rdzv.tmp / "go").touch()
    assert [agents[i].exit() for i in (0, 3, 4)] == [0, 0, 0], rdzv
    p = ask(rdzv, "confirm-dead", "family")
    assert p.code == 1 and p.says("job family is over"), p
    for i in (1, 2):
        agents[i].kill()


def test_excluded_after_failures(rdzv, d, hosts):
    body = f'case $(hostname) in n1) exit 3;; esac; {WAIT}'
    options = ("--endpoint", d.endpoint, "--nnodes", "1:2", "--last-call", "5s", "--rdzv-id", "family", "--exclude-after", "1", "--", "sh", "-c", body)
    agents = [rdzv.agent(*options, wrap=hosts(i), node=str(i)) for i in range(2)]
    for a in agents:
        a.expect(r"host n1 is excluded from further rounds: 1 of the job's charged failures happened there \(--exclude-after\)")
    agents[1].expect(r"host n1 is drained by the job itself: 1 charged failures there \(--exclude-after 1\)")
    agents[0].expect("round 2: 1 node, 1 worker")
    rdzv.go(*agents)


def test_kill_worker(rdzv, d):
    script = """import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: open("told-" + os.environ["RANK"], "w").close())
print("ready", flush=True)
while not os.path.exists("go"): time.sleep(0.02)"""
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--nproc", 2, "--rdzv-id", "family", "--no-python", "--", sys.executable, "-SEc", script)
    before = rdzv.await_workers(4)
    until(lambda: f"they hear signals\n{rdzv}", lambda: sum("ready" in line for a in agents for line in a.out) == 4)
    d.expect("starting -> running")
    p = ask(rdzv, "kill-worker", "family", "2", "--signal", "usr1")
    assert p.code == 0 and p.says("SIGUSR1 was sent to rank 2 of job family"), p
    until("the worker has it", lambda: (rdzv.tmp / "told-2").exists())
    p = ask(rdzv, "kill-worker", "family", "3")
    assert p.code == 0 and p.says(r"SIGKILL was sent to rank 3 of job family \(local rank 1 on .*, round 1\)"), p
    assert p.says("if it dies, its round ends and restart 1 of 3 is charged"), p
    for a in agents:
        a.expect("was killed by SIGKILL")
        a.expect("restart 1 of 3")
    agents_said = [a for a in agents if a.says(rf"rdzvctl kill-worker by {ME} from {HOST}: signal 9 \(SIGKILL\) goes to rank 3")]
    assert len(agents_said) == 1, rdzv
    until("others run", lambda: len(w := rdzv.workers()) == 4 and not set(w.values()) & set(before.values()))
    p = ask(rdzv, "kill-worker", "family", "4")
    assert p.code == 1 and p.says("job family has no rank 4; its ranks are 0 to 3"), p
    p = ask(rdzv, "kill-worker", "famly", "0")
    assert p.code == 1 and p.says("no job has the id famly; there are: family"), p
    past = status(rdzv)["verdicts"]
    assert [(v["round"], v["charged"], v["verdict"]["signal"], v["verdict"]["rank"]) for v in past] == [(1, True, 9, 3)]
    p = ask(rdzv, "status")
    assert p.says(r"  round 1 ended: rank 3 \(local 1\) on .* was killed by SIGKILL .*\(\d+ s ago, charged\)"), p
    rdzv.go(*agents)


# ---- to whom they are allowed ----------------------------------------------------------------------------------------


def node(d, i, uid, job, nodes=1, **more):
    n = Native(d.port)
    n.hello(job=job, nodes=nodes, host=f"n{i}", uid=uid, **more)
    return n


@needs_users
def test_verbs_by_user(rdzv, d):
    """Two users, a job each; both have a node on n0."""
    with node(d, 0, NOBODYS, "mine", nodes=1, max_nodes=2) as a, node(d, 0, SOMEBODYS, "theirs") as b:
        a.started(), b.started()
        wrong = "no job of yours has the id theirs; you have: mine"
        for verb in (["status", "theirs"], ["stop", "theirs"], ["kill-worker", "theirs", "0"]):
            p = ask(rdzv, *verb, **NOBODY)
            assert p.code == 1 and p.err == [wrong], p
        p = ask(rdzv, "status", **NOBODY)
        assert p.code == 0 and p.says("mine: running") and not p.says("theirs"), p
        assert [j["job"] for j in json.loads(ask(rdzv, "jobs", "--json", **SOMEBODY).text)["jobs"]] == ["theirs"]
        p = ask(rdzv, "jobs", user=65532, group=65532, extra_groups=[], env={"XDG_RUNTIME_DIR": ""})
        assert p.code == 0 and p.out == ["no jobs of yours (uid 65532)"], p
        p = ask(rdzv, "drain", "n0", **NOBODY)
        assert p.code == 72 and p.says("job mine cannot go on without n0") and not p.says("theirs"), p
        p = ask(rdzv, "undrain", "n0", "--json", **NOBODY)
        assert p.code == 1 and not json.loads(p.out[0])["ok"], p
        assert ask(rdzv, "kill-worker", "mine", "0", **NOBODY).code == 0
        kill = a.expect("KILL")
        assert (kill.signal, kill.round) == (9, 1), kill
        assert ask(rdzv, "kill-worker", "theirs", "0", "--signal", "10").code == 0, "root may"
        assert b.expect("KILL").signal == 10
        with node(d, 1, NOBODYS, "mine", nodes=1, max_nodes=2, agent="ab" * 16) as c:
            c.expect("WAITING")
            p = ask(rdzv, "drain", "n1", **NOBODY)
            assert p.code == 0 and p.says("this holds for your jobs"), p
            assert f"host n1 is drained by {NAME} from {HOST}" in c.expect("WAITING").text
            p = ask(rdzv, "undrain", "n1", **SOMEBODY)
            assert p.code == 1 and p.says("host n1 is not drained; no host is drained"), p
            assert ask(rdzv, "undrain", "n1", **NOBODY).code == 0
            assert ask(rdzv, "drain", "n1").code == 0
            p = ask(rdzv, "undrain", "n1", **NOBODY)
            assert p.code == 72 and p.says("host n1 was not drained by you"), p
        assert ask(rdzv, "stop", "mine", **NOBODY).code == 0
        assert a.expect("STOP").verdict["text"] == f"rdzvctl stop by {NAME} from {HOST}"


@needs_users
def test_user_is_who_the_agent_says(rdzv, d):
    """An agent has the key that rdzvctl gave to its user."""
    os.chmod(rdzv.tmp, 0o777)
    key = ask(rdzv, "key", **SOMEBODY).out[0]
    assert key.startswith(f"{SOMEBODYS}:"), key
    (a,) = rdzv.agents(1, d.endpoint, "--rdzv-id", "family", "--", "sh", "-c", WAIT, **{**SOMEBODY, "env": {"RDZV_KEY": key}})
    d.expect("starting -> running")
    assert status(rdzv)["uid"] == SOMEBODYS
    assert ask(rdzv, "stop", "family", **NOBODY).code == 1
    assert ask(rdzv, "stop", "family", **SOMEBODY).code == 0
    assert a.exit() == 77, a


@contextlib.contextmanager
def effective(uid):
    """Connections made within are that user's."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def has_ended(n):
    """Whether the daemon has closed the connection; drops what came."""
    n.sock.setblocking(False)
    try:
        while n.sock.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


@needs_users
def test_one_user_does_not_starve_others(rdzv, d):
    with effective(SOMEBODYS):
        crowd = [Native(path=d.socket) for _ in range(40)]
        until("8 have given way", lambda: sum(has_ended(n) for n in crowd) == 8)
    d.expect(r"control socket \(pid \d+, uid 65533\): closed to make room: 32 connections of this user have not said who they are")
    assert ask(rdzv, "jobs", **NOBODY).code == 0 and ask(rdzv, "jobs").code == 0
    assert ask(rdzv, "jobs", **SOMEBODY).code == 0, "the oldest of its own gives way"
    for n in crowd:
        n.close()


# ---- --watch ---------------------------------------------------------------------------------------------------------


def test_watch_on_a_terminal(rdzv, d):
    (a,) = rdzv.agents(1, d.endpoint, "--rdzv-id", "family", "--", "sh", "-c", WAIT)
    d.expect("starting -> running")
    t = Terminal(rdzv, [RDZVCTL, "--socket", rdzv.tmp / "s", "status", "--watch"])
    try:
        t.expect(r"\x1b\[\?1049h\x1b\[\?25l\x1b\[H\d\d:\d\d:\d\d  rdzvctl status, every second")
        t.expect("family: running.*\x1b\\[K\r+\n")
        t.expect(r"\x1b\[H\d\d:\d\d:\d\d [^~]*?family: running", timeout=3)  # drawn again, over itself
        assert "\x1b[2J" not in t.text, "nothing flickers"
        d.end()
        t.expect("/s: no daemon listens there")
        rdzv.daemon("--socket", rdzv.tmp / "s", "--state-dir", rdzv.tmp / "state", port=d.port).expect("recovering -> running")
        t.expect("family: running")
        t.type(CTRL_C)
        assert t.exit() == 0
        assert t.text.endswith("\x1b[?25h\x1b[?1049l"), "the terminal is as it was"
    finally:
        t.close()
    rdzv.go(a)


def test_watch_without_a_terminal(rdzv, d):
    p = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "s", "jobs", "--watch")
    until("three blocks", lambda: p.out.count("no jobs") >= 3)
    assert p.out[0].count(":") == 2 and p.out[1:3] == ["no jobs", ""] and "\x1b" not in p.text, p
    d.end()
    p.expect("/s: no daemon listens there")
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    until("it goes on", lambda: p.out[-1] == "no jobs")
    assert p.end(signal.SIGINT, 5) == 0, p
    p = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "s", "status", "--watch", "--json")
    until("two objects", lambda: len(p.out) >= 2)
    assert [json.loads(line)["jobs"] for line in p.out[:2]] == [[], []], p
    d.end()
    until("a failure", lambda: '"ok"' in p.text)
    failure = next(json.loads(line) for line in p.out if '"ok"' in line)
    assert (failure["ok"], failure["code"]) == (False, 69) and failure["text"].endswith("/s: no daemon listens there") and not p.err, p
    assert p.end(signal.SIGTERM, 5) == 0, p


def test_watch_ends_where_there_is_nothing_to_watch(rdzv, d):
    p = ask(rdzv, "status", "nobody", "--watch")
    assert p.code == 1 and p.err == ["no job has the id nobody; there are no jobs"], p
    p = ctl(rdzv, "--socket", rdzv.tmp / "nothing", "status", "--watch")
    assert p.code == 69 and p.says("nothing: no daemon listens there"), p


def test_watch_ends_when_nobody_reads(rdzv, d):
    p = subprocess.Popen([RDZVCTL, "--socket", str(rdzv.tmp / "s"), "jobs", "--watch"], stdout=subprocess.PIPE, env=rdzv.env(), cwd=rdzv.tmp)
    assert p.stdout.readline().count(b":") == 2
    p.stdout.close()
    assert p.wait(20 * SLOW) == 0
