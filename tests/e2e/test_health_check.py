# SPDX-License-Identifier: Apache-2.0
"""A check of the site's own (--check), workers that ask for another host (16) or found their result wrong (17), and hosts with a past (rdzvctl hosts)."""

import json
import re
import shlex
import signal

import pages
import pytest

from harness import until
from test_rdzvctl_verbs import WAIT, ask, d, hosts  # noqa: F401, fixtures

FAILS = "; exit code 16: run it again on another host"


def lines(a, pattern):
    return [line for line in a.err if re.search(pattern, line)]


# ---- before the first round -------------------------------------------------------------------------------------------


def test_a_check_that_passes(rdzv):
    a = rdzv.agent("--standalone", "--check", "env | grep ^RDZV_CHECK_ | sort > seen", "--", "sh", "-c", "cat seen")
    assert a.exit() == 0, a
    assert [line.split("=")[0] for line in a.out] == ["RDZV_CHECK_HOST", "RDZV_CHECK_JOB", "RDZV_CHECK_ROUND", "RDZV_CHECK_WHEN"], a
    assert "RDZV_CHECK_WHEN=start" in a.out and "RDZV_CHECK_ROUND=0" in a.out, a


@pytest.mark.parametrize("check, why", [
    ("echo all is well; echo GPU 3 is missing >&2; exit 2", "exit code 2: GPU 3 is missing"),
    ("echo +----+; echo '| Fail |'; echo +----+; exit 226", r"exit code 226: \| Fail \|"),
    ("exit 1", "exit code 1"),
    ("head -c 1000000 /dev/zero | tr '\\0' x; echo; yes bad | head -n 100000; echo the last line; exit 1", "exit code 1: the last line"),
], ids=["text", "table", "silent", "megabytes"])
def test_a_check_that_fails(rdzv, check, why):
    a = rdzv.agent("--standalone", "--check", check, "--", "touch", "started")
    assert a.exit() == 16 and lines(a, rf"this node failed its --check with {why}{FAILS}$"), a
    assert not (rdzv.tmp / "started").exists() and len(a.text) < 10000, a


@pytest.mark.parametrize("words, why", [
    (("--check", "no_such_tool --all"), "exit code 127: the command was not found, or cannot be run"),
    (("--check", "/etc/passwd"), "exit code 126: the command was not found, or cannot be run"),
    (("--check", "kill -SEGV $$"), "signal 11 killed it"),
    (("--check", "sleep 600 & sleep 600", "--check-timeout", "1s"), r"it has not ended within 1 s \(--check-timeout\)"),
], ids=["missing", "denied", "crashes", "hangs"])
def test_a_check_that_cannot_run_stops_nothing(rdzv, words, why):
    a = rdzv.agent("--standalone", *words, "--", "true")
    assert a.exit() == 0 and lines(a, f"--check could not run, and this node counts as fit: {why}$"), a
    rdzv.gone()


def test_a_signal_ends_a_check(rdzv):
    a = rdzv.agent("--standalone", "--check", "touch begun; sleep 600", "--check-timeout", "1h", "--", "true")
    until("the check runs", lambda: (rdzv.tmp / "begun").exists())
    assert a.end(signal.SIGTERM) == 75, a
    rdzv.gone()


def test_the_others_read_why_a_node_does_not_come(rdzv, d, hosts):
    check = "[ $(hostname) != n1 ] || { echo the disk is full; exit 1; }"
    (line,) = pages.lines("deploy/guide/health.md", "site")
    option, command = shlex.split(line)[2:4]
    assert command.startswith("/usr/sbin/nhc ")
    options = ("--endpoint", d.endpoint, "--nnodes", "2", "--rdzv-id", "family", option, check, "--", "sh", "-c", WAIT)
    first = rdzv.agent(*options, wrap=hosts(0), node="0")
    first.expect("1 of 2 nodes is here")
    bad = rdzv.agent(*options, wrap=hosts(1), node="1")
    assert bad.exit() == 16 and lines(bad, f"failed its --check with exit code 1: the disk is full{FAILS}"), bad
    first.expect("n1 was refused .* ago: it failed its --check with exit code 1: the disk is full")
    good = rdzv.agent(*options, wrap=hosts(2), node="2")
    rdzv.await_workers(2)
    rdzv.go(first, good)


# ---- after a failure --------------------------------------------------------------------------------------------------

AFTER = 'echo "$(hostname) $RDZV_CHECK_WHEN $RDZV_CHECK_ROUND" >> checks; [ $RDZV_CHECK_WHEN = start ] || { %s; }'
CRASH = f"[ $(hostname)-$RDZV_ROUND != n1-1 ] || exit 3; {WAIT}"


def family(rdzv, d, hosts, nnodes, check, body, n=2, job="family", more=()):
    options = ("--endpoint", d.endpoint, "--nnodes", nnodes, "--last-call", "5s", "--rdzv-id", job, *more)
    if check:
        options += ("--check", AFTER % check)
    return [rdzv.agent(*options, "--", "sh", "-c", body, wrap=hosts(i), node=str(i)) for i in range(n)]


def test_a_node_that_fails_its_check_after_a_failure_is_excluded(rdzv, d, hosts):
    agents = family(rdzv, d, hosts, "1:2", "echo XID 79; exit 2", CRASH)
    for a in agents:
        a.expect("host n1 is excluded: its --check failed with exit code 2: XID 79")
    agents[1].expect("host n1 is drained by the job itself: its --check failed with exit code 2: XID 79: its agents join no round until")
    agents[0].expect("round 2: 1 node, 1 worker")
    assert sorted((rdzv.tmp / "checks").read_text().split("\n"))[1:] == ["n0 start 0", "n1 failure 1", "n1 start 0"], "only the node that was blamed is checked again"
    rdzv.go(*agents)


def test_the_others_wait_for_a_check_that_passes(rdzv, d, hosts):
    """min is one: without the check the round would begin without n1, and grow later."""
    agents = family(rdzv, d, hosts, "1:2", "touch checking; while [ ! -e checked ]; do sleep 0.05; done", CRASH)
    until("the check runs", lambda: (rdzv.tmp / "checking").exists())
    agents[0].expect(r"missing 1: n1 \(began its --check \d+ s ago\)")
    (rdzv.tmp / "checked").touch()
    for a in agents:
        a.expect("round 2: 2 nodes, 2 workers")
    rdzv.go(*agents)


def test_a_node_that_is_needed_stays(rdzv, d, hosts):
    agents = family(rdzv, d, hosts, "2", "exit 2", CRASH)
    for a in agents:
        a.expect("the --check of n1 failed with exit code 2; the job cannot go on without this host, and uses it")
        a.expect("round 2: 2 nodes, 2 workers")
    rdzv.go(*agents)


# ---- exit codes of workers --------------------------------------------------------------------------------------------


def test_another_host_for_one_worker(rdzv, d, hosts):
    agents = family(rdzv, d, hosts, "1:2", "", f"[ $(hostname) != n1 ] || exit 16; {WAIT}")
    agents[0].expect("exited with code 16, which asks for another host")
    agents[0].expect("round 2: 1 node, 1 worker")
    agents[1].expect("this node is a spare")
    rdzv.go(*agents)


def test_another_host_for_every_rank(rdzv, d, hosts):
    """As Megatron-LM: all ranks exit with 16, and each is to meet another host."""
    body = f'echo "rank $RANK on $(hostname)"; touch r-$RDZV_ROUND-$RANK; while [ ! -e r-$RDZV_ROUND-0 -o ! -e r-$RDZV_ROUND-1 ]; do sleep 0.02; done; [ $RDZV_ROUND != 1 ] || exit 16; {WAIT}'
    agents = family(rdzv, d, hosts, "2", "", body)
    for a in agents:
        a.expect("round 2: 2 nodes, 2 workers")
    rdzv.await_workers(2)
    until("all have spoken", lambda: all(len([line for line in a.out if "rank" in line]) == 2 for a in agents))
    for i, a in enumerate(agents):
        first, second = [re.search(r"rank (\d)", line)[1] for line in a.out if "rank" in line]
        assert first != second, a
    rdzv.go(*agents)


def test_a_wrong_result_ends_the_job(rdzv):
    a = rdzv.agent("--standalone", "--nproc", 2, "--verdict-file", "v.json", "--", "sh", "-c", "sleep 0.2; [ $RANK = 0 ] && exit 17; sleep 60")
    assert a.exit() == 17 and lines(a, r"exited with code 17, a result that failed validation; .*0 of 3 restarts used; exit code 17"), a


# ---- hosts with a past ------------------------------------------------------------------------------------------------


def sick(rdzv, d, hosts, job, *more):
    """n1 fails each script. The script differs from job to job, and n1 is never node 0."""
    options = ("--endpoint", d.endpoint, "--nnodes", "2:3", "--last-call", "5s", "--rdzv-id", job, *more)
    body = f": {job}; [ $(hostname) != n1 ] || exit 3; {WAIT}"
    return [rdzv.agent(*options, "--node-rank", (0, 2, 1)[i], "--", "sh", "-c", body, wrap=hosts(i), node=str(i)) for i in range(3)]


def finish(rdzv, agents):
    rdzv.go(*agents)
    (rdzv.tmp / "go").unlink()


def excluded(rdzv):
    p = ask(rdzv, "hosts", "--json")
    assert p.code == 0, p
    return {h["host"]: h for h in json.loads(p.text)["hosts"]}


def test_two_jobs_that_fail_on_one_host(rdzv, d, hosts):
    hosts_of, undrain = (shlex.split(line)[1:] for line in pages.lines("deploy/guide/health.md", "past"))
    p = ask(rdzv, *hosts_of)
    assert p.code == 0 and p.says("no jobs have failed on one host alone"), p
    agents = sick(rdzv, d, hosts, "ada", "--exclude-after", "1")
    agents[0].expect("round 2: 2 nodes")
    finish(rdzv, agents)
    past = excluded(rdzv)
    assert list(past) == ["n1"] and not past["n1"]["excluded"] and past["n1"]["runs"][0]["passed_without"], past

    agents = sick(rdzv, d, hosts, "bob")
    for a in agents:
        a.expect(r"host n1 is left out of new rounds where they can do without it: failures of jobs bob and ada \(rdzvctl hosts\)")
    agents[0].expect("round 2: 2 nodes")
    finish(rdzv, agents)
    p = ask(rdzv, "hosts")
    assert p.says(r"host n1 \(uid \d+\): left out of new rounds for \d+ d .*, score 2.00 of 1.25; rdzvctl undrain readmits it"), p
    assert p.says(r"  job bob: 1 failure as node \d of 3, .* ago; it has passed without this host since"), p

    # A third job begins without it, also after a restart of the daemon.
    d.end()
    d = rdzv.daemon("--socket", rdzv.tmp / "s", "--state-dir", rdzv.tmp / "state", port=d.port)
    agents = sick(rdzv, d, hosts, "cyd")
    agents[0].expect("round 1: 2 nodes")
    agents[1].expect("this node is a spare")
    p = ask(rdzv, "status", "cyd", "--json")
    assert [m["state"] for m in json.loads(p.text)["jobs"][0]["members"] if m["host"] == "n1"] == ["kept waiting"], p
    finish(rdzv, agents)

    # A job that needs it gets it.
    agents = family(rdzv, d, hosts, "3", "", f": dan; {WAIT}", n=3, job="dan")
    for a in agents:
        a.expect("round 1 needs host n1, which it would do without: failures of jobs bob and ada")
        a.expect("round 1: 3 nodes")
    finish(rdzv, agents)

    p = ask(rdzv, "undrain", "n1")
    assert p.code == 0 and p.says("host n1: the failures of earlier jobs there are forgotten"), p
    assert excluded(rdzv) == {}
    agents = family(rdzv, d, hosts, "2:3", "", f": eve; {WAIT}", n=3, job="eve")
    agents[1].expect("round 1: 3 nodes")
    finish(rdzv, agents)


def test_a_check_that_passes_is_a_way_back(rdzv, d, hosts):
    agents = sick(rdzv, d, hosts, "ada", "--exclude-after", "1")
    agents[0].expect("round 2: 2 nodes")
    finish(rdzv, agents)
    assert "n1" in excluded(rdzv)
    agents = family(rdzv, d, hosts, "3", "true", WAIT, n=3)
    d.expect("host n1 has passed its --check: failures there no longer count")
    rdzv.await_workers(3)
    finish(rdzv, agents)
    assert excluded(rdzv) == {}


def test_a_script_that_fails_everywhere_blames_no_host(rdzv, d, hosts):
    for i, job in enumerate(("ada", "bob", "cyd")):
        body = f": {job}; [ $RANK != $RDZV_ROUND ] || exit 3; {WAIT}"
        agents = family(rdzv, d, hosts, "3", "", body, n=3, job=job, more=("--max-restarts", "1"))
        assert [a.exit() for a in agents] == [3, 3, 3], rdzv
    past = excluded(rdzv)
    assert len(past) >= 2 and not any(h["excluded"] or h["score"] for h in past.values()), past
