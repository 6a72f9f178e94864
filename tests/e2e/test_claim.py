# SPDX-License-Identifier: Apache-2.0
"""--claim: rdzv-claim by itself and below rdzvd, in a folder and in a real etcd whose members die, hang, move their leader, or are slow."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

import etcd
from harness import BUILD, RDZVCTL, RDZVD, describe, free_port, stop_accepting, until

HELPER = BUILD / "daemon/claim/rdzv-claim"
ANSWER_S = 9  # within which a claim is answered


class Claimer:
    """Runs rdzv-claim for one place."""

    def __init__(self, place, env=None):
        self.place, self.env, self.running = place, {**os.environ, **(env or {})}, []

    def send(self, verb, name, content="x"):
        p = subprocess.Popen([HELPER, self.place, verb, name, "new"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.env)
        self.running.append(p)
        p.stdin.write(content.encode())
        p.stdin.close()
        p.stdin = None
        return p

    def take(self, p, timeout=ANSWER_S + 3):
        """(won|taken|failed, text)"""
        word, _, text = p.communicate(timeout=timeout)[0].decode().partition("\n")
        return word, text

    def claim(self, name, content="x"):
        return self.take(self.send("create", name, content))

    def run(self, prefix, content="x"):
        return self.take(self.send("run", prefix, content))

    def end(self, prefix):
        return self.take(self.send("end", prefix, "ended"))

    def close(self):
        for p in self.running:
            p.kill()
            p.wait()
            p.stdout.close()


@pytest.fixture
def claimer():
    with contextlib.ExitStack() as stack:
        def make(place, **kw):
            c = Claimer(str(place), **kw)
            stack.callback(c.close)
            return c
        yield make


@pytest.fixture(scope="module")
def one():
    with etcd.cluster(1) as c:
        yield c


@pytest.fixture
def three():
    with etcd.cluster(3) as c:
        yield c


@pytest.fixture(params=["folder", "etcd"])
def place(request, tmp_path):
    return tmp_path / "claims" if request.param == "folder" else request.getfixturevalue("one").place


# Each place. ----------------------------------------------------------------------------------------------------------


def test_a_claim_is_given_once(place, claimer, request):
    a, b = claimer(place), claimer(place)
    job = f"1000/{request.node.callspec.id}%20job/5f-1"
    mine = json.dumps({"daemon": "ab" * 16, "host": "gpu1", "nodes": ["ü"]}, ensure_ascii=False)
    assert a.claim(f"{job}/1", mine) == ("won", "")
    assert b.claim(f"{job}/1", "theirs") == ("taken", mine)
    assert a.claim(f"{job}/1", mine) == ("won", "")
    # The stdin of one whose daemon died at once is empty.
    assert b.claim(f"{job}/2", "") == ("failed", "a claim needs content") and a.claim(f"{job}/2", mine) == ("won", "")
    largest = "x" * 65536
    assert a.claim(f"{job}/3", largest) == ("won", "") and b.claim(f"{job}/3") == ("taken", largest)


def test_nothing_is_won_after_the_end(place, claimer, request):
    a, b = claimer(place), claimer(place)
    job = f"1000/{request.node.callspec.id}-ends"
    for name in (f"{job}/i/1", f"{job}/i/2", f"{job}/other/1"):
        assert a.claim(name) == ("won", "")
    assert a.end(f"{job}/i/") == ("won", "") and a.end(f"{job}/i/") == ("won", "")
    for name in (f"{job}/i/1", f"{job}/i/3"):
        assert b.claim(name) == ("taken", "ended") and a.claim(name) == ("taken", "ended")
    assert b.claim(f"{job}/other/1", "y") == ("taken", "x") and b.claim(f"{job}/other/2") == ("won", "")


def test_one_run_of_a_job_at_a_time(place, claimer, request):
    a, b = claimer(place), claimer(place)
    job = f"1000/{request.node.callspec.id}-run"
    run = lambda c, incarnation, content: c.run(f"{job}/{incarnation}/", content)
    assert run(a, "i", "mine") == ("won", "") and run(b, "k", "theirs") == ("taken", "mine") and run(a, "i", "mine") == ("won", "")
    assert a.claim(f"{job}/i/1") == ("won", "") and a.end(f"{job}/i/") == ("won", "")
    assert run(a, "i", "mine") == ("taken", "ended") and run(b, "k", "theirs") == ("won", "") and run(a, "l", "x") == ("taken", "theirs")


def test_two_race_for_runs(place, claimer, request):
    """Each begins runs, and ends those that it has won. Never have both won."""
    job, running, won = f"1000/{request.node.callspec.id}-runs", [], [0, 0]

    def race(i, c):
        for k in range(15):
            if c.run(f"{job}/{i}-{k}/")[0] == "won":
                running.append(i)
                assert running == [i]
                won[i] += 1
                running.remove(i)
                assert c.end(f"{job}/{i}-{k}/") == ("won", "")
    errors = []

    def safe(*args):
        try:
            race(*args)
        except AssertionError as e:
            errors.append(e)
    threads = [threading.Thread(target=safe, args=(i, claimer(place))) for i in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors and sum(won) > 3, (errors, won)


@pytest.mark.parametrize("name, says", [("0", "has a slash"), ("0//1", "empty part"), ("0/ü", "printable ASCII"), ("0/1/", "does not end with a slash")])
def test_a_bad_name_is_refused(place, claimer, name, says):
    answer, text = claimer(place).claim(name)
    assert answer == "failed" and says in text


def test_two_race_for_claims(place, claimer, request):
    n = 30
    racers = [claimer(place), claimer(place)]
    job = f"1000/{request.node.callspec.id}-race/i"

    def run(i, got):
        for k in range(n):
            got.append(racers[i].claim(f"{job}/{k}", f"racer {i}"))
    got = [[], []]
    threads = [threading.Thread(target=run, args=(i, got[i])) for i in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(got[0]) == len(got[1]) == n
    for k in range(n):
        assert {got[0][k], got[1][k]} in ({("won", ""), ("taken", "racer 0")}, {("won", ""), ("taken", "racer 1")}), (k, got[0][k], got[1][k])
        assert got[0][k] in (("won", ""), ("taken", "racer 1"))


def test_the_race_against_the_end(place, claimer, request):
    """A claim that was won came before the end; behind the end none is won, and nothing but the end is left."""
    a, b = claimer(place), claimer(place)
    for k in range(5):
        job = f"1000/{request.node.callspec.id}-late/{k}"
        asked = [a.send("create", f"{job}/{r}") for r in range(8)]
        assert b.end(f"{job}/") == ("won", "")
        got = [a.take(s) for s in asked]
        assert set(got) <= {("won", ""), ("taken", "ended")}, got
        assert a.claim(f"{job}/9") == ("taken", "ended")
        if isinstance(place, Path):
            assert [f.name for f in place.iterdir() if f.name.startswith(f"1000,{request.node.callspec.id}-late,{k},")] == [f"1000,{request.node.callspec.id}-late,{k},end"]


# etcd. ----------------------------------------------------------------------------------------------------------------


def test_members_die(three, claimer):
    c = claimer(three.place)
    assert c.claim("0/j/i/1") == ("won", "")
    three[0].kill()
    assert c.claim("0/j/i/2") == ("won", "")
    leader = three.leader()
    leader.kill()
    answer, text = c.claim("0/j/i/3")
    assert answer == "failed", text
    assert all(m.at in text for m in three.members), text
    assert "Couldn't connect to server" in text, text
    three.restart(leader)
    until("claims are made again", lambda: c.claim("0/j/i/3") == ("won", ""), 30)
    assert c.claim("0/j/i/1", "y") == ("taken", "x") and c.claim("0/j/i/2", "y") == ("taken", "x")


def test_the_leader_dies_or_changes(three, claimer):
    """Two daemons claim all the time. Each claim is answered in time, and none is won twice."""
    racers = [claimer(three.place), claimer("etcd://" + ",".join(m.at for m in reversed(three.members)))]
    together, got, slowest = threading.Barrier(2), [{}, {}], [0, 0]

    def run(i):
        for k in range(100000):
            try:
                together.wait()
            except threading.BrokenBarrierError:
                return
            began = time.monotonic()
            got[i][k] = racers[i].claim(f"0/j/i/{k}", f"racer {i}")
            slowest[i] = max(slowest[i], time.monotonic() - began)
    threads = [threading.Thread(target=run, args=(i,)) for i in (0, 1)]
    for t in threads:
        t.start()
    done = lambda: min(len(got[0]), len(got[1]))

    def await_more(n):
        before = done()
        until("claims go on", lambda: done() >= before + n, 30)
    try:
        await_more(20)
        three.move_leader()
        await_more(20)
        leader = three.leader()
        leader.kill()
        await_more(20)
        three.restart(leader)
        await_more(20)
        three.leader().stop()  # it neither answers nor refuses
        await_more(20)
        for m in three.members:
            m.go_on()
        await_more(20)
    finally:
        together.abort()
        for t in threads:
            t.join()
    assert max(slowest) < ANSWER_S + 1, slowest
    won = [{k for k, (answer, _) in g.items() if answer == "won"} for g in got]
    assert not won[0] & won[1] and won[0] and won[1], got
    print(f"{len(won[0])} and {len(won[1])} of {done()}; the slowest took {max(slowest):.1f} s")
    for i in (0, 1):
        for k, (answer, text) in got[i].items():
            assert answer != "taken" or text == f"racer {1 - i}", (k, answer, text)
    keys = three.keys()
    for i in (0, 1):
        assert all(keys[f"rdzv/claims/0/j/i/{k}"] == f"racer {i}" for k in won[i])


def test_a_member_that_hangs_holds_up_no_claim(three, claimer):
    follower = next(m for m in three.members if m is not three.leader())
    c = claimer("etcd://" + ",".join(m.at for m in sorted(three.members, key=lambda m: m is not follower)))
    follower.stop()
    assert c.claim("0/j/i/1") == ("won", "")
    follower.go_on()


class Proxy:
    """Between rdzv-claim and etcd: passes requests on after `delay` seconds; act(client, request, etcd) may do something else."""

    def __init__(self, port):
        self.port_of_etcd, self.delay, self.act, self.seen = port, 0, None, []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.place = f"etcd://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self.accept, daemon=True)
        self.thread.start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    @staticmethod
    def read(sock, rest=b""):
        """One request or answer, head and body."""
        data = rest
        while b"\r\n\r\n" not in data:
            more = sock.recv(65536)
            if not more:
                return data
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
        while len(body) < length:
            body += sock.recv(65536)
        return head + b"\r\n\r\n" + body

    def serve(self, client):
        with client, contextlib.suppress(OSError):
            while request := self.read(client):
                self.seen.append(request)
                if self.act:
                    self.act(client, request)
                    return
                time.sleep(self.delay)
                client.sendall(self.pass_on(request))

    def pass_on(self, request):
        with socket.create_connection(("127.0.0.1", self.port_of_etcd), 10) as s:
            s.sendall(request)
            return self.read(s)

    def close(self):
        stop_accepting(self.listener, self.thread)


@pytest.fixture
def proxy(one):
    p = Proxy(one[0].port)
    yield p
    p.close()


def test_a_slow_etcd(proxy, claimer, request):
    """A second for each answer: claims of different jobs do not wait for each other."""
    c = claimer(proxy.place)
    proxy.delay = 1
    began = time.monotonic()
    asked = [c.send("create", f"0/slow-{i}/i/1") for i in range(8)]
    assert [c.take(s) for s in asked] == [("won", "")] * 8
    assert 1 <= time.monotonic() - began < 8, "one behind the other take 8 s"


def test_a_lost_answer(proxy, claimer):
    """etcd has created the key, and the connection ends before it says so."""
    def lose(client, request):
        proxy.pass_on(request)
        proxy.act = None
    c = claimer(proxy.place)
    proxy.act = lose
    assert c.claim("0/lost/i/1", "mine") == ("won", "")
    assert c.claim("0/lost/i/1", "theirs") == ("taken", "mine") and len(proxy.seen) == 3
    proxy.act = lose
    assert c.end("0/lost/i/") == ("won", "") and c.claim("0/lost/i/2") == ("taken", "ended")


def say(text, status="200 OK", more=""):
    def act(client, request):
        client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n{more}\r\n{text}".encode())
    return act


def babble(client, request):
    client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
    while True:
        client.sendall(b"x" * 65536)


@pytest.mark.parametrize("act, says", [
    (say("<html>hello</html>"), "not from etcd's v3 API: <html>hello</html>"),
    (say("404 page not found", "404 Not Found"), "HTTP 404: 404 page not found"),
    (say('{"error":"etcdserver: user name is empty","code":3}', "400 Bad Request"), "HTTP 400: etcdserver: user name is empty"),
    (say("", "302 Found", "Location: http://127.0.0.1:1/\r\n"), "HTTP 302: nothing"),
    (say('{"header":{}}'), "neither success nor a value"),
    (babble, "its answer has more than 131072 bytes"),
    (lambda client, request: None, "Server returned nothing"),
    (lambda client, request: client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), "unsupported|weird|HTTP/0.9"),
], ids=["html", "404", "auth", "redirect", "no-value", "babble", "closes", "ssh"])
def test_what_is_not_etcd(proxy, claimer, act, says):
    proxy.act = act
    answer, text = claimer(proxy.place).claim("0/strange/i/1")
    assert answer == "failed" and re.search(says, text, re.I) and proxy.place[7:] in text, text


def test_an_unreachable_etcd(claimer):
    """One that refuses is told at once; one that is silent before the daemon's deadline."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        c = claimer(f"etcd://127.0.0.1:1,{at}")
        began = time.monotonic()
        answer, text = c.claim("0/j/i/1")
        silent_s = time.monotonic() - began
        assert answer == "failed" and ANSWER_S - 1 < silent_s
        assert "127.0.0.1:1 (Couldn't connect to server)" in text and re.search(rf"{at} \(no answer", text), text
        began = time.monotonic()
        assert claimer("etcd://127.0.0.1:1,127.0.0.1:2").claim("0/j/i/1") == (
            "failed", "no member of etcd could be used: 127.0.0.1:1 (Couldn't connect to server), 127.0.0.1:2 (Couldn't connect to server)")
        assert time.monotonic() - began < silent_s
        answer, text = claimer("etcd://no-such-host.invalid").claim("0/j/i/1")
        assert answer == "failed" and re.search("no-such-host.invalid:2379 .*(resolve|timeout|no answer)", text, re.I), text


def test_a_proxy_of_the_environment_is_not_asked(one, claimer):
    c = claimer(one.place, env={"http_proxy": "http://127.0.0.1:1", "all_proxy": "http://127.0.0.1:1"})
    assert c.claim("0/direct/i/1") == ("won", "")


# Folders. -------------------------------------------------------------------------------------------------------------


def test_two_mounts_of_a_kernels_nfs(tmp_path, claimer):
    """Two clients that do not share a cache."""
    folder, mounts = tmp_path / "exported", [tmp_path / "a", tmp_path / "b"]
    for f in (folder, *mounts):
        f.mkdir()
    run = lambda *argv: subprocess.run(argv, check=True, capture_output=True, timeout=60)
    with contextlib.ExitStack() as stack:
        run("exportfs", "-o", "rw,sync,no_subtree_check,no_root_squash,fsid=4711", f"127.0.0.1:{folder}")
        stack.callback(run, "exportfs", "-u", f"127.0.0.1:{folder}")
        run("rpc.nfsd", "--host", "127.0.0.1", "--no-nfs-version", "3", "4")
        stack.callback(run, "rpc.nfsd", "0")
        for m in mounts:
            run("mount", "-t", "nfs4", "-o", "nosharecache,soft,timeo=50", f"127.0.0.1:{folder}", m)
            stack.callback(run, "umount", "-f", m)
        two_race(claimer, mounts)


# A test only where it can run: no package brings nfsd to a kernel without it.
test_two_mounts_of_a_kernels_nfs.__test__ = (os.geteuid() == 0 and shutil.which("exportfs") is not None and
                                             {"nfs4", "nfsd"} <= set(Path("/proc/filesystems").read_text().split()))


def two_race(claimer, mounts):
    racers = [claimer(m) for m in mounts]
    for k in range(50):
        asked = [r.send("create", f"0/nfs/i/{k}", f"racer {i}") for i, r in enumerate(racers)]
        got = [r.take(s)[0] for r, s in zip(racers, asked)]
        assert sorted(got) == ["taken", "won"], (k, got)
    assert racers[0].end("0/nfs/i/") == ("won", "")
    assert racers[1].claim("0/nfs/i/1000") == ("taken", "ended")


# rdzvd. ---------------------------------------------------------------------------------------------------------------


def helpers(rdzv):
    return [pid for pid in rdzv.pids() if describe(pid).split(": ")[1].startswith(str(HELPER)) or "rdzv-claim" in describe(pid)]


def test_a_place_that_cannot_be_used_is_told_at_once(rdzv):
    def refused(place, code, says):
        p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--claim", place)
        assert p.exit() == code and len(p.err) == 1 and p.says(f"--claim: .*{says}"), p
    refused("claims", 64, '"claims" is neither: give the absolute path')
    refused("etcd://a:0", 64, "port 0")
    refused(rdzv.tmp / "no/such", 71, "cannot create .*no/such: No such file")
    shared = rdzv.tmp / "shared"
    shared.mkdir()
    for mode in 0o777, 0o1777, 0o770:
        shared.chmod(mode)
        refused(shared, 71, r"other users can write to .*shared and could make the next claim; chmod go-w it, or name a folder of your own, such as .*shared/claims-\d+")
    rdzv.gone()


def test_a_helper_has_nothing_of_its_daemon(rdzv):
    """A silent etcd holds it. It has no port, no file and no key of the daemon; signals that are meant for all do not end it, and it does not keep
    the daemon."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"etcd://127.0.0.1:{silent.getsockname()[1]}"
        d = rdzv.daemon("--claim", place)
        a = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 1, "--claim", place, script(rdzv, RUNS))
        silent.settimeout(30)
        silent.accept()
        (pid,) = helpers(rdzv)
        files = lambda of: {os.readlink(f"/proc/{of}/fd/{fd}") for fd in os.listdir(f"/proc/{of}/fd")}
        shared = {f for f in files(pid) & files(d.pid) if not f.startswith(("pipe:", "/dev/null"))}
        assert len([f for f in shared if not f.startswith("anon_inode:")]) == 0, shared
        assert "RDZV_KEY" not in Path(f"/proc/{pid}/environ").read_text()
        for signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, signo)
        time.sleep(0.1)
        assert pid in helpers(rdzv)
        os.kill(pid, signal.SIGSTOP)
        assert d.end(signal.SIGTERM, 6) == 0, d
        until("it is gone", lambda: not helpers(rdzv))
        a.end(signal.SIGTERM)


# Whole jobs. ----------------------------------------------------------------------------------------------------------

FAILS_ONCE = """import os, sys, time
if os.environ["RDZV_ROUND"] == "1":
    time.sleep(0.3 if os.environ["RANK"] == "0" else 60)
    sys.exit(1)
"""
RUNS = """import os, time
print("round", os.environ["RDZV_ROUND"], "runs", flush=True)
time.sleep(60)
"""


def script(rdzv, text):
    path = rdzv.tmp / "worker.py"
    path.write_text(text)
    return path


def claims_at(place, cluster):
    """The names of the claims, with the separators of etcd's."""
    if str(place).startswith("etcd:"):
        return {k.removeprefix("rdzv/claims/"): v for k, v in cluster.keys().items() if k.startswith("rdzv/claims/")}
    return {f.name.replace(",", "/"): f.read_text() for f in Path(place).iterdir() if not f.name.startswith(".")}


def test_a_job_claims_its_rounds(rdzv, place, request):
    """A claim for each round while the job runs, and only its end afterwards. The daemon is an agent's, which gets --claim from it."""
    cluster = None if isinstance(place, Path) else request.getfixturevalue("one")
    job = f"claims-{request.node.callspec.id}"
    of_job = lambda: {"run" if "/run/" in k else k.rpartition("/")[2]: v for k, v in claims_at(place, cluster).items() if k.split("/")[1] == job}
    hold = rdzv.tmp / "hold"
    hold.touch()
    worker = script(rdzv, FAILS_ONCE + f"while os.path.exists('{hold}'): time.sleep(0.05)\n")
    agents = rdzv.agents(2, f"127.0.0.1:{free_port()}", "--nnodes", 2, "--rdzv-id", job, "--claim", place, worker)
    agents[0].expect("round 2: 2 nodes")
    there = of_job()
    assert set(there) == {"run", "1", "2"}, there
    for content in map(json.loads, there.values()):
        assert re.fullmatch("[0-9a-f]{32}", content["daemon"]) and len(content["nodes"]) == 2 and content["port"], content
    hold.unlink()
    assert [a.exit() for a in agents] == [0, 0], rdzv
    until("the job's end is the only claim", lambda: of_job() == {"end": "ended success 0"})


def test_a_job_begins_beside_no_run_of_it(rdzv, place):
    """A node that knows nothing of the run, at another daemon, is sent to it. When all is killed, an operator ends the run."""
    daemons = [rdzv.daemon("--claim", place) for _ in range(2)]
    start = lambda d: rdzv.agent("--endpoint", d.endpoint, "--nnodes", "1:2", "--last-call", "100ms", "--rdzv-id", f"run-{rdzv.mark}", "--claim", place, script(rdzv, RUNS))
    waits = rf"another run of job run-{rdzv.mark}, which began at .* UTC with the daemon on \S+, has not ended, and this one waits for it"
    first = start(daemons[0])
    first.expect("round 1 runs")
    second = start(daemons[1])
    daemons[1].expect(waits)
    second.expect(r"round 1 of job \S+ has its 1 node; this node waits", 20)
    daemons[0].kill(signal.SIGKILL)
    for a in first, second:
        a.kill(signal.SIGKILL)
    for p in (daemons[0], first, second):
        p.exit()
    third = start(daemons[1])
    third.expect(rf"{waits}. If nothing of it runs any more: rdzvctl confirm-dead run-{rdzv.mark}", 20)
    c = rdzv.spawn(RDZVCTL, "--endpoint", daemons[1].endpoint, "confirm-dead", f"run-{rdzv.mark}")
    assert c.exit() == 0 and c.says("the run that it waits for counts as dead"), c
    third.expect("round 1: 1 node", 20)
    third.end(signal.SIGTERM)


def cpu_s(pid):
    ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def test_a_job_waits_for_etcd(rdzv):
    """The agent names what does not answer. The daemon waits without work, and the job begins when etcd is back."""
    with etcd.cluster(1) as c:
        d = rdzv.daemon("--claim", c.place)
        c[0].kill()
        a = rdzv.agent("--endpoint", d.endpoint, "--nnodes", "1:2", "--last-call", "500ms", "--claim", c.place, script(rdzv, "print('done')"))
        a.expect(rf"round 1 of job \S+ cannot be claimed: no member of etcd could be used: {c[0].at} \(Couldn't connect to server\); trying again")
        before, began = cpu_s(d.pid), time.monotonic()
        time.sleep(2)
        assert cpu_s(d.pid) - before < 0.2 * (time.monotonic() - began), d
        c.restart(c[0])
        assert a.exit() == 0 and a.says("round 1: 1 node"), rdzv


def test_a_job_outlives_its_helper(rdzv):
    """Another one makes the claim that it has not made."""
    with etcd.cluster(1) as c:
        d = rdzv.daemon("--claim", c.place)
        c[0].stop()
        a = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 1, "--claim", c.place, script(rdzv, RUNS))
        until("it asks", lambda: helpers(rdzv))
        (pid,) = helpers(rdzv)
        os.kill(pid, signal.SIGKILL)
        d.expect(rf"rdzv-claim \(pid {pid}\) was killed by signal 9")
        c[0].go_on()
        a.expect("round 1 runs", 20)
        a.end(signal.SIGTERM)


def test_an_agent_waits_for_a_folder_that_is_read_only(rdzv, small_disk):
    """Its own rdzvd starts all the same, the waiting line has the reason, and the job begins when the folder can be written to."""
    def remount(how):
        subprocess.run(["mount", "-o", f"remount,{how}", small_disk], check=True, timeout=30)
    folder = small_disk / "claims"
    for what in ("", "a file in "):  # the first time, the folder itself is not there
        remount("ro")
        a = rdzv.agent("--endpoint", f"127.0.0.1:{free_port()}", "--nnodes", 1, "--claim", folder, script(rdzv, "print('done')"))
        a.expect(rf"round 1 of job \S+ cannot be claimed: cannot create {what}{folder}: Read-only file system; trying again")
        remount("rw")
        assert a.exit() == 0 and a.says("round 1: 1 node"), rdzv


def test_a_daemon_without_claims_is_refused(rdzv):
    d = rdzv.daemon()
    a = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 1, "--claim", rdzv.tmp / "claims", script(rdzv, RUNS))
    assert a.exit() == 72 and a.says("--claim"), a


def test_one_of_two_goes_on_with_a_claim(rdzv, place):
    """The daemon and half of the nodes are lost at once. The other node finds the standby daemon, which claims the next round for it alone."""
    daemons = [rdzv.daemon("--claim", place) for _ in range(2)]
    both = ",".join(d.endpoint for d in daemons)
    agents = rdzv.agents(2, both, "--nnodes", "1:2", "--rdzv-id", f"half-{rdzv.mark}", "--lease", "2s", "--claim", place, script(rdzv, RUNS))
    for a in agents:
        a.expect("round 1 runs")
    daemons[0].kill()
    for pid in rdzv.pids(E2E_NODE="0"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    # If node 0 has come to the other daemon before it died, round 2 was claimed for both.
    number = agents[1].expect(r"round ([23]): 1 node", 20)[1]
    agents[1].expect(f"round {number} runs")
    daemons[1].expect(f"starting -> running round={number} nodes=1")
    agents[1].end(signal.SIGTERM)
