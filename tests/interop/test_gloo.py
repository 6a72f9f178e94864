# SPDX-License-Identifier: Apache-2.0
"""torch.distributed with gloo under rdzv-agent: scripts that were written for torchrun, unchanged, do the same and come to the same losses, bit by bit."""

import json
import re
import signal
import sys

from conftest import HERE, QUIET
from harness import until

SCRIPTS = HERE / "scripts"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def script(name, *args):
    return [sys.executable, "-u", SCRIPTS / name, *args]


def folder(rdzv, name):
    path = rdzv.tmp / name
    path.mkdir()
    return path


def results(path, world):
    return [json.loads((path / f"result.{rank}").read_text()) for rank in range(world)]


def losses(path, world):
    """rank -> step -> loss; a step that was done again counts as it came out last."""
    return [dict(line.split() for line in (path / f"losses.{rank}").read_text().splitlines()) for rank in range(world)]


def ends(agents, timeout=60, code=0):
    for a in agents:
        assert a.exit(timeout) == code, "\n".join(map(str, agents))


def under_torchrun(rdzv, world, *command):
    out = folder(rdzv, "torchrun")
    p = rdzv.spawn(*TORCHRUN, "--standalone", "--nproc-per-node", world, "--no-python", *command, SCRIPTS / "gloo_world.py", out, env=QUIET)
    ends([p])
    return out


def same(ours, theirs, world):
    assert results(ours, world) == results(theirs, world)
    assert losses(ours, world) == losses(theirs, world)
    assert len(losses(ours, world)[0]) == results(ours, world)[0]["steps"] > 0


def test_two_agents_of_two(rdzv):
    theirs = under_torchrun(rdzv, 4, sys.executable, "-u")
    ours = folder(rdzv, "ours")
    d = rdzv.daemon()
    ends(rdzv.agents(2, d.endpoint, "--nnodes", 2, "--nproc", 2, "--max-restarts", 0, "--", *script("gloo_world.py", ours), env=QUIET))
    same(ours, theirs, 4)


def test_one_agent_of_eight(rdzv, warm):
    theirs = under_torchrun(rdzv, 8, *warm)
    ours = folder(rdzv, "ours")
    ends([rdzv.agent("--standalone", "--nproc", 8, "--max-restarts", 0, "--", *warm, SCRIPTS / "gloo_world.py", ours, env=QUIET)])
    same(ours, theirs, 8)


def test_a_crash_is_one_restart(rdzv, warm):
    """Twenty jobs in a row, each with a worker that dies once, early or late, in every way: every one goes on in the first restart, from the
    last checkpoint, to the losses of an undisturbed training. Under torchrun, whose store keeps the keys of the round before, gloo then meets dead addresses."""
    d = rdzv.daemon()

    def job(name, rank, step, how):
        out = folder(rdzv, name)
        agents = rdzv.agents(2, d.endpoint, "--rdzv-id", name, "--nnodes", 2, "--max-restarts", 3, "--",
                             *warm, SCRIPTS / "crash_once.py", out, rank, step, how, env=QUIET)
        ends(agents)
        return losses(out, 2), agents

    want, agents = job("undisturbed", -1, 0, "")
    assert len(want[0]) == 16 and any(re.search(r"1 round\b", a.text) for a in agents), agents[0]
    for n in range(20):
        got, agents = job(f"job-{n}", n % 2, 1 + n * 7 % 16, ["SIGKILL", "exit", "exception", "SIGSEGV", "SIGABRT"][n % 5])
        # The step in which a rank died was perhaps done by the other one, and not by itself: it is done again.
        assert got == want, f"job {n}"
        for a in agents:
            assert a.says("restart 1 of 3") and not a.says("restart 2"), f"job {n} needed more than one restart:\n{a}"


def test_the_daemon_is_killed_and_returns(rdzv):
    """The store lives with the job, not in the daemon: new_group(), set and get go on while rdzvd is dead, and after its return."""
    out = folder(rdzv, "out")
    keep = ["--state-dir", rdzv.tmp / "state"]
    d = rdzv.daemon(*keep)
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--max-restarts", 0, "--", *script("survive.py", out), env=QUIET)

    def go(n):
        (out / f"go {n}").touch()
        done = [out / f"done {n}.{rank}" for rank in range(2)]
        until(lambda: f"both ranks did their part {n}:\n{rdzv}", lambda: all(p.exists() for p in done), 40)
        assert [p.read_text().rsplit(" ", 1)[0] for p in done] == ["2 value 1", "2 value 0"]

    go(0)
    d.kill(signal.SIGKILL)
    d.exit()
    go(1)
    again = rdzv.daemon(*keep, port=d.port)
    until(lambda: f"both agents are back:\n{rdzv}", lambda: all(a.says("the daemon is back") for a in agents), 15)
    go(2)
    ends(agents)
    assert all(a.says("1 round") for a in agents), rdzv
    assert again.running
