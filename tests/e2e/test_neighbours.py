# SPDX-License-Identifier: Apache-2.0
"""Programs of neighbouring releases together (neighbours.py): each test runs with an older and with a newer one, and with the last release where there is one.

Those whose releases do not fit: test_versions.py."""

import contextlib
import json
import os
import re
import shutil
import signal

import pytest

import harness
import neighbours
import pages
from harness import AGENT, BUILD, RDZVCTL, RDZVD, TOP, free_port, until

pytestmark = pytest.mark.deadline(600)  # the first one of a kind builds it

WAITS = "until [ -e go ]; do sleep 0.02; done"
# Rank 1 dies by a signal in the first round: a cause whose word the neighbours do not share.
DIES_ONCE = f'[ "$RANK:$RDZV_RESTART_COUNT" != 1:0 ] || kill -9 $$; {WAITS}'
# What a peer writes that gets what it does not know, or does not allow.
MISREAD = re.compile(r"unknown to this version|is not for an? |does not understand|a word that this version does not know|sent a record of type|"
                     r"which is not within|more than the \d+ allowed|[A-Z_]{3,}\.[\w.\[\]]+ (is missing|is empty|must be|holds other)")


class Release:
    """The programs of a build."""

    def __init__(self, kind, top):
        self.kind, self.top = kind, top
        self.agent, self.rdzvd, self.rdzvctl = (str(top / name) for name in ("agent/rdzv-agent", "daemon/rdzvd", "daemon/rdzvctl"))
        self.library = top / "agent/sdk/librdzv.so.0"


OURS = Release("this", BUILD)


@pytest.fixture(scope="module", params=neighbours.KINDS)
def other(request):
    return Release(request.param, neighbours.build(request.param))


@pytest.fixture(autouse=True)
def nothing_is_misread(rdzv):
    yield
    assert not [line for p in rdzv.procs for line in p.out + p.err if MISREAD.search(line)], rdzv


def daemon(rdzv, release, *args, **kw):
    was, harness.RDZVD = harness.RDZVD, release.rdzvd
    try:
        return rdzv.daemon(*args, **kw)
    finally:
        harness.RDZVD = was


def agent(rdzv, release, endpoint, *words, node="", **kw):
    return rdzv.spawn(release.agent, "--endpoint", endpoint, "--nproc", 1, *words, node=node, **kw)


def ask(rdzv, release, *args):
    p = rdzv.spawn(release.rdzvctl, *args)
    assert p.exit() == 0, p
    return p.text


def shell(command):
    return "--", "sh", "-c", command


# Jobs. --------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", ["daemon", "agents", "an agent", "first agent"])
def test_a_job(rdzv, other, theirs):
    """A worker dies, the job restarts, operators of both releases look at it, and all end well."""
    d = daemon(rdzv, other if theirs == "daemon" else OURS)
    nodes = {"daemon": [OURS, OURS], "agents": [other, other], "an agent": [OURS, other], "first agent": [other, OURS]}[theirs]
    agents = [agent(rdzv, r, d.endpoint, "--nnodes", 2, "--rdzv-id", "mixed", *shell(DIES_ONCE), node=str(i)) for i, r in enumerate(nodes)]
    for a in agents:
        a.expect("round 2: ")
    rdzv.await_workers(2)
    if other.kind == "newer" and theirs in ("daemon", "agents"):
        d.expect(r"round 1 is settled: rank 1 .* failed by a cause that only a later release of rdzv knows")
    for r in OURS, other:
        where = "--endpoint", d.endpoint
        assert json.loads(ask(rdzv, r, *where, "status", "--json"))["jobs"][0]["round"] == 2
        for verb in ["status"], ["jobs"], ["nodes", "mixed"], ["hosts"], ["logs", "mixed"]:
            ask(rdzv, r, *where, *verb)
    rdzv.go(*agents)
    for a in agents:
        assert not a.says("tidings came"), a  # what one side alone knows is not sent
    assert not d.says("gossip came"), d


def test_newer_programs_have_more(rdzv):
    """Between two of them the messages do come that the others must not get: the tests here can fail."""
    newer = Release("newer", neighbours.build("newer"))
    d = daemon(rdzv, newer)
    a = agent(rdzv, newer, d.endpoint, "--verbose", "--", "true")
    assert a.exit() == 0, a
    a.expect("tidings came")
    d.expect("gossip came")


@pytest.mark.parametrize("from_us", [True, False], ids=["from us", "to us"])
def test_the_daemon_is_replaced(rdzv, other, from_us):
    """In the middle of a job, with its state, and back again: the workers go on."""
    first, second = (OURS, other) if from_us else (other, OURS)
    d = daemon(rdzv, first, "--state-dir", "state")
    agents = [agent(rdzv, r, d.endpoint, "--nnodes", 2, *shell(WAITS), node=str(i)) for i, r in enumerate([OURS, other])]
    workers = rdzv.await_workers(2)
    for release in second, first:
        d.end(signal.SIGTERM)
        d = daemon(rdzv, release, "--state-dir", "state", port=d.port)
        both = lambda: json.loads(ask(rdzv, OURS, "--endpoint", d.endpoint, "status", "--json"))["jobs"]
        until("both nodes are back", lambda: both() and both()[0]["state"] == "running")
    assert rdzv.workers() == workers, rdzv
    rdzv.go(*agents)
    until("the daemon has told both", lambda: d.says("the job is over|ended|success"))


def test_a_job_that_has_ended_is_known_to_the_next_daemon(rdzv, other):
    """By the state file: a stranger that comes late does not begin it again."""
    for first, second in ((OURS, other), (other, OURS)):
        job, folder = f"ended-{first.kind}", f"state-{first.kind}"
        d = daemon(rdzv, first, "--state-dir", folder)
        a = agent(rdzv, first, d.endpoint, "--rdzv-id", job, "--max-restarts", 0, *shell("exit 7"))
        assert a.exit() == 7, a
        d.end(signal.SIGTERM)
        d = daemon(rdzv, second, "--state-dir", folder)
        assert json.loads(ask(rdzv, second, "--endpoint", d.endpoint, "status", "--json"))["jobs"][0]["state"] == "ended", d


def test_the_nodes_are_replaced(rdzv, other):
    """One after the other, in a job that may have less of them: half of the nodes is of one release, then all of the other."""
    d = daemon(rdzv, OURS)
    start = lambda r, node: agent(rdzv, r, d.endpoint, "--nnodes", "1:2", "--last-call", "100ms", *shell(WAITS), node=node)
    agents = [start(OURS, "0"), start(OURS, "1")]
    rdzv.await_workers(2)
    for i in 0, 1:
        agents[i].kill(signal.SIGTERM)
        agents[i].exit()
        agents[i] = start(other, f"{i}-new")
        agents[i].expect("2 nodes")
        rdzv.await_workers(2)
    rdzv.go(*agents)


# Without a master. --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours_first", [True, False], ids=["ours is lost", "theirs is lost"])
def test_a_takeover(rdzv, other, ours_first):
    """The first agent has started its release's daemon. Both are killed, and an agent of the other release starts that release's daemon."""
    endpoint = f"127.0.0.1:{free_port()}"
    releases = [OURS, other, other] if ours_first else [other, OURS, OURS]
    words = ["--nnodes", "2:3", "--last-call", "100ms", "--rdzv-id", f"takeover-{rdzv.mark}", "--lease", "2s", "--verbose"]
    first = agent(rdzv, releases[0], endpoint, *words, *shell(WAITS), node="0")
    first.expect("rdzvd: version .* listens")
    agents = [agent(rdzv, r, endpoint, *words, *shell(WAITS), node=str(i + 1)) for i, r in enumerate(releases[1:])]
    rdzv.await_workers(3)
    programs = lambda: {os.readlink(f"/proc/{pid}/exe") for pid in rdzv.daemons()}
    assert programs() == {releases[0].rdzvd}
    lost = rdzv.pids(E2E_NODE="0")
    for signo in signal.SIGSTOP, signal.SIGKILL:  # at once: else the daemon outlives its agent, and begins round 2
        for pid in lost:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signo)
    first.exit()
    for a in agents:
        a.expect("round [23]: 2 nodes")
    assert programs() == {releases[1].rdzvd}
    rdzv.go(*agents)


def test_a_claim(rdzv, other):
    """Daemons of both releases claim in one folder: a run that one of them has claimed is known to the other."""
    place = rdzv.tmp / "claims"
    for first, second in ((OURS, other), (other, OURS)):
        job = f"claim-{first.kind}-{rdzv.mark}"
        daemons = [daemon(rdzv, r, "--claim", place) for r in (first, second)]
        start = lambda r, d: agent(rdzv, r, d.endpoint, "--nnodes", "1:2", "--last-call", "100ms", "--rdzv-id", job, "--claim", place, *shell(WAITS))
        one = start(first, daemons[0])
        one.expect("round 1 runs|round 1: ")
        rdzv.await_workers(1)
        two = start(second, daemons[1])
        daemons[1].expect(rf"another run of job {job}.* has not ended, and this one waits for it")
        for a in one, two:
            a.end(signal.SIGTERM)
        for d in daemons:
            d.end(signal.SIGTERM)


# Hosts, workers, and the place where they are installed. ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ours_first", [True, False], ids=["our launcher", "their launcher"])
def test_hosts(rdzv, other, ours_first):
    """--hosts: the launcher and its own host are of one release, the other host has the other one."""
    here, there = (OURS, other) if ours_first else (other, OURS)
    ssh = rdzv.tmp / "ssh-stand-in"
    ssh.write_text(f'#!/bin/sh\nhost=$1; shift\n[ "$host" = n1 ] && here={here.agent} || here={there.agent}\n'
                   'exec "$here" --launched\n')
    ssh.chmod(0o755)
    a = rdzv.spawn(here.agent, "--hosts", "n1:1,n2:1", "--ssh", ssh, "--endpoint", f"127.0.0.1:{free_port()}", *shell("echo rank $RANK of $WORLD_SIZE; " + WAITS))
    for rank in 0, 1:
        a.expect(f"rank {rank} of 2")
    agents = {os.readlink(f"/proc/{pid}/exe") for pid in rdzv.pids() if harness.comm(pid) == "rdzv-agent"}
    assert agents >= {here.agent, there.agent}, agents
    rdzv.go(a)


@pytest.mark.parametrize("ours", ["library", "agent"])
def test_a_worker(rdzv, other, ours):
    """The library of one release, in a container for example, below the agent of the other one: the documented program, and progress."""
    library, release = (OURS.library, other) if ours == "library" else (other.library, OURS)
    (rdzv.tmp / "worker.c").write_text(pages.c_block("deploy/guide/worker-in-c.md", "int main"))
    assert rdzv.spawn("cc", "-I", TOP / pages.SDK, "worker.c", library, "-o", "worker").exit(60) == 0, rdzv
    a = rdzv.spawn(release.agent, "--standalone", "--nproc", 2, "--", "./worker", env={"LD_LIBRARY_PATH": str(library.parent)})
    assert a.exit() == 0, a
    for rank in 0, 1:
        a.expect(rf"rank {rank} of 2 on node 0: all ranks add up to 1$")


def test_the_folder_is_replaced(rdzv, other):
    """A package of another release replaces the programs of a running job: the next round, and a new rdzvd, start from what is there now."""
    prefix = rdzv.tmp / "prefix"
    for name in neighbours.PROGRAMS:
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(BUILD / name, prefix / name)
    installed = Release("installed", prefix)
    endpoint = f"127.0.0.1:{free_port()}"
    agents = [agent(rdzv, installed, endpoint, "--nnodes", 2, "--rdzv-id", f"folder-{rdzv.mark}", "--verbose", *shell(WAITS), node=str(i)) for i in (0, 1)]
    workers = rdzv.await_workers(2)
    for name in neighbours.PROGRAMS:  # as a package manager does: a new file under the old name
        shutil.copy(other.top / name, prefix / f"{name}.new")
        os.replace(prefix / f"{name}.new", prefix / name)
    os.kill(workers[1], signal.SIGKILL)
    for a in agents:
        a.expect("round 2: ")
    rdzv.await_workers(2)
    [old] = rdzv.daemons()
    os.kill(old, signal.SIGKILL)
    until("another daemon", lambda: rdzv.daemons() not in ([], [old]))
    rdzv.go(*agents)
