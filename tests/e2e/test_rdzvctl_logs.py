# SPDX-License-Identifier: Apache-2.0
"""rdzvctl logs and top on real daemons, agents and workers, and drain with several daemons."""

import json
import os
import signal
import time

from harness import RDZVCTL, free_port, until
from native import Native
from terminal import Terminal
from test_rdzvctl_verbs import WAIT
from test_rdzvd_control import NOBODY, SOMEBODY, ctl, needs_users

STEPS = "i=0; while [ ! -e go ]; do echo line $i; i=$((i+1)); sleep 0.02; done"


def daemon(rdzv, name="s", **kw):
    d = rdzv.daemon("--socket", rdzv.tmp / name, "--state-dir", rdzv.tmp / f"state-{name}", **kw)
    d.socket = rdzv.tmp / name
    return d


def ask(rdzv, *args, **user):
    return ctl(rdzv, "--socket", rdzv.tmp / "s", *args, **user)


def follow(rdzv, *args):
    return rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "s", "logs", *args, "--follow")


def test_lines_of_ranks_and_nodes(rdzv):
    d = daemon(rdzv)
    body = f"echo out of $RANK; echo err of $RANK >&2; printf 'one\\ntwo\\nthree\\n'; touch said-$RANK; {WAIT}"
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--nproc", 2, "--rdzv-id", "family", "--redirects", 3, "--log-dir", rdzv.tmp / "l", "--", "sh", "-c", body)
    until("all have said it", lambda: all((rdzv.tmp / f"said-{i}").exists() for i in range(4)))
    until("it is here", lambda: len(ask(rdzv, "logs", "family").out) == 16)
    p = ask(rdzv, "logs", "family")
    assert p.code == 0 and sorted(p.err) == [f"[{i}] err of {i}" for i in range(4)], p
    for i in range(4):
        assert [l for l in p.out if l.startswith(f"[{i}] ")] == [f"[{i}] out of {i}", f"[{i}] one", f"[{i}] two", f"[{i}] three"], p
    p = ask(rdzv, "logs", "family", 2, "--tail", 2)
    assert p.code == 0 and len(p.out + p.err) == 2 and "three" in p.out, p
    p = ask(rdzv, "logs", "family", 2, "--json")
    said = [json.loads(l) for l in p.out]
    assert {(s["stream"], s["text"]) for s in said} >= {("stderr", "err of 2"), ("stdout", "out of 2")}, p
    assert all(s["rank"] == 2 and s["round"] == 1 and s["job"] == "family" for s in said), p
    p = ask(rdzv, "logs", "family", 4)
    assert p.code == 1 and p.err == ["rdzvctl: job family has no rank 4; its ranks are 0 to 3"], p
    p = ask(rdzv, "logs", "famly")
    assert p.code == 1 and p.says("no job has the id famly; there are: family"), p
    rdzv.go(*agents)
    p = ask(rdzv, "logs", "family")
    assert p.code == 1 and p.says("job family is over: success with exit code 0; its agents, which had the lines, are gone"), p


def test_follow_through_a_restart_to_the_last_words(rdzv):
    """The rank is on the same agent, or on the other; the last line is a worker's last."""
    d = daemon(rdzv)
    body = f"echo round $TORCHELASTIC_RESTART_COUNT of $RANK; {STEPS}; [ $RANK = 1 ] && echo last words && exit 3; sleep 60"
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--rdzv-id", "family", "--max-restarts", 1, "--", "sh", "-c", body)
    rdzv.await_workers(2)
    one, every = follow(rdzv, "family", 1), follow(rdzv, "family")
    for f in one, every:
        f.expect("line 5")
    assert ask(rdzv, "kill-worker", "family", 0).code == 0
    for f in one, every:
        f.expect("round 1 of 1")
    every.expect(r"\[0\] round 1 of 0")
    (rdzv.tmp / "go").touch()
    assert [a.exit() for a in agents] == [3, 3], rdzv
    for f in one, every:
        assert f.exit() == 0, f
        assert f.says("last words") and f.err[-1] == "rdzvctl: job family is over: failed with exit code 3", f
    assert one.says("^round 0 of 1") and not one.says("of 0"), one
    steps = [l for l in one.out if l.startswith("line ")]
    starts = steps.index("line 0", 1)
    for part in steps[:starts], steps[starts:]:
        assert part == [f"line {i}" for i in range(len(part))], "each line once, in order"


def test_a_daemon_that_an_agent_started_stays_for_the_last_words(rdzv):
    port = free_port()
    a = rdzv.agent("--nnodes", 1, "--endpoint", f"127.0.0.1:{port}", "--rdzv-id", "family", "--max-restarts", 0, "--", "sh", "-c", f"{STEPS}; echo last words; exit 4")
    rdzv.await_workers(1)
    f = rdzv.spawn(RDZVCTL, "--port", port, "logs", "family", "0", "-f")
    f.expect("line 3")
    (rdzv.tmp / "go").touch()
    assert a.exit() == 4, a
    assert f.exit() == 0 and f.out[-1] == "last words", f
    rdzv.gone()


def test_follow_through_a_restart_of_the_daemon(rdzv):
    d = daemon(rdzv)
    (a,) = rdzv.agents(1, d.endpoint, "--rdzv-id", "family", "--", "sh", "-c", STEPS)
    rdzv.await_workers(1)
    f = follow(rdzv, "family")
    f.expect("line 5")
    d.end()
    f.expect("trying again")
    again = daemon(rdzv, port=d.port)
    again.expect("recovering -> running")
    before = len(f.out)
    until("it goes on", lambda: len(f.out) > before + 5)
    (rdzv.tmp / "go").touch()
    assert a.exit() == 0 and f.exit() == 0, f
    assert f.out == [f"line {i}" for i in range(len(f.out))], "each line once"


def test_more_lines_than_are_kept(rdzv):
    """Nobody holds more than a piece: an agent keeps 1 MiB, and a reader that stops stops the questions."""
    d = daemon(rdzv)
    body = f"i=0; while [ $i -lt 60 ]; do i=$((i+1)); head -c 60000 /dev/zero | tr '\\0' x; echo; done; echo the end; touch done; {WAIT}"
    (a,) = rdzv.agents(1, d.endpoint, "--rdzv-id", "family", "--", "sh", "-c", body)
    until("it has printed", (rdzv.tmp / "done").exists)
    until("it is here", lambda: ask(rdzv, "logs", "family", "--tail", 1).out == ["the end"])
    p = ask(rdzv, "logs", "family")
    assert p.code == 0 and p.out[-1] == "the end", p.err
    assert 500_000 < sum(map(len, p.out)) < 1_100_000
    assert any("keeps recent lines only: earlier ones are not shown" in l for l in p.err), p.err
    rdzv.go(a)


@needs_users
def test_other_users_see_nothing(rdzv):
    for parent in (rdzv.tmp, *rdzv.tmp.parents):
        if os.geteuid() == 0 and parent.owner() == "root" and str(parent).startswith("/tmp/"):
            os.chmod(parent, parent.stat().st_mode | 0o011)
    d = daemon(rdzv)
    os.chmod(rdzv.tmp, 0o777)
    key = ask(rdzv, "key", **NOBODY).out[0]
    (a,) = rdzv.agents(1, d.endpoint, "--rdzv-id", "family", "--", "sh", "-c", f"echo secret; {WAIT}", **{**NOBODY, "env": {"RDZV_KEY": key}})
    until("its user sees it", lambda: ask(rdzv, "logs", "family", **NOBODY).out == ["secret"])
    assert ask(rdzv, "logs", "family").out == ["secret"], "root may"
    for verb in "logs", "top":
        p = ask(rdzv, verb, "family", **SOMEBODY)
        assert p.code == 1 and not p.says("secret") and p.err == ["rdzvctl: no job of yours has the id family; you have none here"], p
    p = ctl(rdzv, "--endpoint", d.endpoint, "logs", "family", **{**SOMEBODY, "env": {"RDZV_KEY": rdzv.user_key(SOMEBODY["user"])}})
    assert p.code == 1 and not p.says("secret"), p
    rdzv.go(a)


def test_from_another_machine(rdzv):
    """Over the port, with the key."""
    d = daemon(rdzv)
    (a,) = rdzv.agents(1, d.endpoint, "--rdzv-id", "family", "--", "sh", "-c", f"echo hello; {WAIT}")
    rdzv.await_workers(1)
    (rdzv.tmp / "s").unlink()  # no control socket: the port is left
    until("it is here", lambda: ctl(rdzv, "--endpoint", d.endpoint, "logs", "family").out == ["hello"])
    rdzv.go(a)


def test_a_terminal_gets_text_and_colours(rdzv):
    d = daemon(rdzv)
    (a,) = rdzv.agents(1, d.endpoint, "--rdzv-id", "family", "--", "sh", "-c", rf"printf '\033]0;title\007\033[2J\033[31mred\n'; {WAIT}")
    rdzv.await_workers(1)
    until("it is here", lambda: ask(rdzv, "logs", "family").out)
    t = Terminal(rdzv, [RDZVCTL, "--socket", rdzv.tmp / "s", "logs", "family"])
    try:
        t.expect("\x1b\\[31mred\x1b\\[0m")
        assert "title" not in t.text and "[2J" not in t.text
    finally:
        t.close()
    p = ask(rdzv, "logs", "family")
    assert p.out == ["\x1b]0;title\x07\x1b[2J\x1b[31mred"], "a pipe gets the bytes"
    rdzv.go(a)


# ---- top -------------------------------------------------------------------------------------------------------------


def test_top(rdzv):
    d = daemon(rdzv)
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--rdzv-id", "family", "--", "sh", "-c", WAIT)
    rdzv.await_workers(2)
    d.expect("starting -> running")
    p = ask(rdzv, "top")
    assert p.code == 0 and p.out[0].split() == ["JOB", "STATE", "FOR", "ROUND", "NODES", "WORKERS", "RESTARTS"][: len(p.out[0].split())] or p.says("^JOB +STATE"), p
    assert p.says(r"(?m)^family +running .* 2 +2 +0 of 3"), p
    p = ask(rdzv, "top", "family")
    assert p.says(r"(?m)^NODE +HOST +RANKS +STATE") and p.says(r"(?m)^ +1 +\S+ +1 +running"), p
    page = json.loads(ask(rdzv, "status", "--json").text)["page"]
    assert ask(rdzv, "top", "family").out[-1] == f"page: {page}" and page.startswith("http://"), page
    p = ask(rdzv, "top", "nope")
    assert p.code == 1 and p.err == ["rdzvctl: no job has the id nope; there are: family"], p
    t = Terminal(rdzv, [RDZVCTL, "--socket", rdzv.tmp / "s", "top", "family"])
    try:
        t.expect(r"rdzvctl top family, every second")
        t.expect(r"family +running")
        second = next(m["pid"] for m in json.loads(ask(rdzv, "status", "family", "--json").text)["jobs"][0]["members"] if m["node_rank"] == 1)
        os.kill(second, signal.SIGSTOP)
        t.expect(r"NODE +HOST +RANKS +STATE +SILENT[^\n]*\n +1 +\S+ +1 +running +\d+ s")  # the worst first
        os.kill(second, signal.SIGCONT)
    finally:
        t.close()
    rdzv.go(*agents)


# ---- several daemons -------------------------------------------------------------------------------------------------


def test_the_daemon_that_has_the_job_is_found(rdzv):
    env = {"XDG_RUNTIME_DIR": str(rdzv.tmp)}
    one, two = rdzv.daemon("--state-dir", rdzv.tmp / "1", env=env), rdzv.daemon("--state-dir", rdzv.tmp / "2", env=env)
    (a,) = rdzv.agents(1, two.endpoint, "--rdzv-id", "family", "--", "sh", "-c", f"echo hello; {WAIT}")
    rdzv.await_workers(1)
    two.expect("starting -> running")
    find = lambda *words: ctl(rdzv, *words, env=env)
    for words in ["status", "family"], ["top", "family"]:
        p = find(*words)
        assert p.code == 0 and p.says("family") and p.says("running"), p
    until("its lines too", lambda: find("logs", "family").out == ["hello"])
    p = find("status", "famly")
    assert p.code == 1 and p.says(f"no daemon of this machine helps: .*rdzvd-{one.port}.sock: no job has the id famly"), p
    assert find("stop", "family").code == 0
    assert a.exit() == 77


RUNS = r":?(?: +\d+)? +running"  # with a column for the user if jobs of other users are there


def test_a_look_at_all_jobs_asks_all_daemons(rdzv):
    """As with two jobs of --standalone. A daemon that does not answer is named beside the others' jobs; one that has ended is not.
    Other tests of this user may have daemons and jobs, too."""
    env = {"XDG_RUNTIME_DIR": str(rdzv.tmp)}
    one, two, three = (rdzv.daemon("--state-dir", rdzv.tmp / n, env=env) for n in "123")
    find = lambda *words: ctl(rdzv, *words, env=env)
    agents = []
    for d, name in (one, "cousin"), (three, "family"):
        agents += rdzv.agents(1, d.endpoint, "--rdzv-id", name, "--", "sh", "-c", WAIT)
        d.expect("starting -> running")
    for verb in "jobs", "status", "top":
        p = find(verb)
        assert p.code == 0 and p.says(rf"cousin{RUNS}") and p.says(rf"family{RUNS}") and not p.says("no jobs"), p
        assert not p.says(rf"rdzvd-({one.port}|{two.port}|{three.port})\.sock"), p
        assert len([l for l in p.out if l.startswith("JOB")]) == (verb == "top"), "one table"
    v = json.loads(find("status", "--json").text)
    assert {j["job"] for j in v["jobs"]} >= {"cousin", "family"} and v["drained"] == [], v
    assert set(v["pages"]) >= {f"http://127.0.0.1:{d.port}/" for d in (one, three)}, v
    assert abs(v["wall_ms"] / 1000 - time.time()) < 60, v
    page = Terminal(rdzv, [RDZVCTL, "top"], env=env, lines=200)  # with room for other tests' jobs
    try:
        page.expect(rf"cousin{RUNS}")
        page.expect(rf"family{RUNS}")
        two.kill(signal.SIGSTOP)
        page.expect(r"rdzvctl: gave up after [0-9.]+ s of waiting for an answer at /")
        p = find("jobs")
        assert p.code == 0 and p.says("cousin: running") and p.says(rf"rdzvctl: gave up after .*rdzvd-{two.port}.sock"), p
        v = json.loads(find("jobs", "--json").text)
        assert len(v["jobs"]) >= 2 and (69, f"{rdzv.tmp}/rdzvd-{two.port}.sock") in [(f["code"], f["daemon"]) for f in v["failures"]], v
        two.kill(signal.SIGCONT)
        four = rdzv.daemon("--state-dir", rdzv.tmp / "4", env=env)
        agents += rdzv.agents(1, four.endpoint, "--rdzv-id", "newcomer", "--", "sh", "-c", WAIT)
        page.expect(rf"newcomer{RUNS}")  # its daemon came after the first page
        assert find("stop", "cousin").code == 0 and agents[0].exit() == 77
        one.end()
        page.expect(rf"\[H(?:(?!cousin|\[H)[\s\S])*family{RUNS}(?:(?!cousin)[\s\S])*\[J")
    finally:
        page.close()
    assert find("stop", "family").code == 0 and find("stop", "newcomer").code == 0
    assert [a.exit() for a in agents[1:]] == [77, 77]


def test_a_drain_reaches_all_daemons(rdzv):
    one, two = rdzv.daemon("--state-dir", rdzv.tmp / "1"), rdzv.daemon("--state-dir", rdzv.tmp / "2")
    (a,) = rdzv.agents(1, one.endpoint, "--rdzv-id", "family", "--nnodes", "1:2", "--last-call", "1s", "--", "sh", "-c", WAIT)
    rdzv.await_workers(1)
    one.expect("starting -> running")
    host = json.loads(ctl(rdzv, "--endpoint", one.endpoint, "status", "--json").text)["jobs"][0]["members"][0]["host"]
    both = f"{one.endpoint},{two.endpoint}"
    p = ctl(rdzv, "--endpoint", both, "drain", "no-such-host")
    assert p.code == 1 and len([l for l in p.err if "no job has a node on host no-such-host" in l]) == 2, p
    p = ctl(rdzv, "--endpoint", both, "drain", host)
    assert p.code == 72 and p.says(f"{one.endpoint}: job family cannot go on without {host}"), p
    assert not json.loads(ctl(rdzv, "--endpoint", two.endpoint, "status", "--json").text)["drained"], "refused by one: by all"
    p = ctl(rdzv, "--endpoint", both, "drain", host, "--force", "--json")
    v = json.loads(p.text)
    assert p.code == 0 and v["ok"] and [x["daemon"] for x in v["daemons"]] == [one.endpoint, two.endpoint], p
    for d in one, two:
        assert [x["host"] for x in json.loads(ctl(rdzv, "--endpoint", d.endpoint, "status", "--json").text)["drained"]] == [host]
    two.end()
    p = ctl(rdzv, "--endpoint", both, "undrain", host)
    assert p.code == 0 and p.says(f"{one.endpoint}: host {host} is undrained") and p.says(f"{two.endpoint}.*no daemon listens there"), p
    assert ctl(rdzv, "--endpoint", one.endpoint, "stop", "family").code == 0
    assert a.exit() == 77


def test_a_standby_learns_of_a_drain(rdzv):
    """It has no job, and so no node on the host: it keeps the drain all the same, for the day when the job comes."""
    one, two = rdzv.daemon("--state-dir", rdzv.tmp / "1"), rdzv.daemon("--state-dir", rdzv.tmp / "2")
    options = ("--rdzv-id", "family", "--nnodes", "1:2", "--last-call", "1s", "--", "sh", "-c", WAIT)
    (a,) = rdzv.agents(1, one.endpoint, *options)
    rdzv.await_workers(1)
    one.expect("starting -> running")
    spare = Native(one.port)
    spare.hello(job="other", nodes=1, host="gpu7")
    p = ctl(rdzv, "--endpoint", f"{one.endpoint},{two.endpoint}", "drain", "gpu7", "--force")
    assert p.code == 0, p
    for d in one, two:
        assert [x["host"] for x in json.loads(ctl(rdzv, "--endpoint", d.endpoint, "status", "--json").text)["drained"]] == ["gpu7"], p
    spare.close()
    rdzv.go(a)
