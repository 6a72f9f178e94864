# SPDX-License-Identifier: Apache-2.0
"""Accelerate and the Hugging Face Trainer in place, four workers each: workers are killed, the others keep their processes, and losses and parameters
are bit for bit those of an undisturbed job. RDZV_KILLS sets how many kills the test at random moments makes, RDZV_KILLS_SEED which."""

import importlib.util
import os
import random
import re
import signal
import sys

import pytest

from conftest import HERE, QUIET
from harness import BUILD, SANITIZED, TOP, need, until

STEPS = 44  # two epochs of 21 batches, and two steps more
KINDS = {"accelerate": ("in_place_saver.py", "accelerate", {}),
         "accelerate-accumulates": ("in_place_saver.py", "accelerate", {"ACCUMULATE": "3"}),
         "huggingface": ("in_place_trainer.py", "transformers", {}),
         "huggingface-accumulates": ("in_place_trainer.py", "transformers", {"ACCUMULATE": "3", "LOG": "4"}),
         "lightning": ("in_place_lightning.py", "lightning", {}),
         "lightning-accumulates": ("in_place_lightning.py", "lightning", {"ACCUMULATE": "3"})}
KILLS, SEED = int(os.environ.get("RDZV_KILLS", 0)), int(os.environ.get("RDZV_KILLS_SEED", 1))
ENV = dict(QUIET, PYTHON_EXEC=sys.executable, PYTHONPATH=str(TOP / "deploy/python"), RDZV_LIBRARY=str(BUILD / "agent/sdk/librdzv.so.0"),
           GLOO_SOCKET_IFNAME="lo", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
pytestmark = pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitized librdzv")


class Job:
    def __init__(self, rdzv, kind, folder, steps=STEPS):
        script, module, env = KINDS[kind]
        need(module, importlib.util.find_spec(module))
        self.rdzv, self.folder, self.script, self.steps, self.env = rdzv, rdzv.tmp / folder, HERE / "scripts" / script, steps, {**ENV, **env}
        self.folder.mkdir()

    def start(self, *options, **env):
        return self.rdzv.agent(*(options or ("--standalone", "--nproc", 4)), "--max-restarts", 1000, self.script, self.folder, self.steps,
                               env={**self.env, **env})

    def losses(self):
        """step, or step and what -> values as ranks have written them, which must be the same on all."""
        found = {}
        for path in self.folder.glob("losses-*"):
            for line in path.read_text().splitlines():
                if len(line.split()) == 2:
                    found.setdefault(line.split()[0], set()).add(line.split()[1])
        return found

    def until_step(self, agent, step):
        until(lambda: f"step {step} is trained\n{agent}", lambda: any(int(re.match(r"\d+", s)[0]) >= step for s in self.losses()), 90)

    def ends(self):
        """rank -> its parameters' sum and its pid."""
        return {int(path.name[4:]): path.read_text().split() for path in self.folder.glob("end-*")}


def run_straight(rdzv, kind, steps=STEPS):
    straight = Job(rdzv, kind, "straight", steps)
    assert straight.start().exit(120) == 0, rdzv
    assert {str(s) for s in range(4, steps + 1, 4)} <= set(straight.losses()) and all(len(v) == 1 for v in straight.losses().values())
    return straight


def check(job, straight, but=()):
    """A rank does not write down a step that it completes behind a fault, so one may be missing."""
    losses, want = ({s: v for s, v in j.losses().items() if s not in but} for j in (job, straight))
    assert {s: v for s, v in losses.items() if v != want[s]} == {}
    assert len(want) - len(losses) <= 3, set(want) - set(losses)
    assert {sha for sha, _ in job.ends().values()} == {sha for sha, _ in straight.ends().values()} and len(job.ends()) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_are_killed(rdzv, kind):
    straight, job = run_straight(rdzv, kind), Job(rdzv, kind, "killed")
    a = job.start(PAUSE="0.05")
    job.until_step(a, 8)
    first = rdzv.workers()
    os.kill(first[2], signal.SIGKILL)
    a.expect("3 of 4 ranks stayed in place", 60)
    job.until_step(a, 24)
    os.kill(first[0], signal.SIGKILL)
    assert a.exit(120) == 0, a
    assert len(re.findall("3 of 4 ranks stayed in place", a.text)) == 2, a
    check(job, straight)
    pids = {rank: int(pid) for rank, (_, pid) in job.ends().items()}
    assert {rank for rank in range(4) if pids[rank] == first[rank]} == {1, 3}
    rdzv.gone()


@pytest.mark.parametrize("kind", ["accelerate", "huggingface"])
def test_a_preempted_job_goes_on_from_its_checkpoint(rdzv, kind):
    straight, job = run_straight(rdzv, kind), Job(rdzv, kind, "stopped")
    a = job.start(PAUSE="0.05")
    job.until_step(a, 8)
    os.kill(rdzv.workers()[1], signal.SIGKILL)
    a.expect("3 of 4 ranks stayed in place", 60)
    job.until_step(a, 14)
    a.kill(signal.SIGTERM)
    assert a.exit(30) == 75, a
    (asked,) = {int(m) for m in re.findall(r"a checkpoint was written after step (\d+)", a.text)}
    assert 14 <= asked < STEPS and "Traceback" not in a.text, a
    again = job.start()
    assert again.exit(120) == 0, again
    check(job, straight, but=(f"{asked}eval_", f"{STEPS}train_"))  # the Trainer evaluates when it starts, and its mean is over the steps since then


@pytest.mark.parametrize("kind", ["accelerate", "huggingface"])
def test_a_node_leaves_and_another_one_comes(rdzv, kind):
    """The ranks of the other node stay. All ranks have the same parameters in the end."""
    d, job = rdzv.daemon(), Job(rdzv, kind, "elastic", 60)
    options = "--nproc", 2, "--nnodes", "1:2", "--endpoint", f"127.0.0.1:{d.port}", "--rdzv-id", "elastic", "--scale-up", "next-round"
    a = job.start(*options, NODE="a", PAUSE="0.1")
    b = job.start(*options, NODE="b", PAUSE="0.1")
    job.until_step(a, 6)
    stays = rdzv.workers(NODE="a")
    b.kill(signal.SIGTERM)
    a.expect("2 of 2 ranks stayed in place", 60)
    b.exit(60)
    c = job.start(*options, NODE="c", PAUSE="0.1")
    c.expect("this node is a spare for the next round", 60)
    os.kill(stays[max(stays)], signal.SIGKILL)
    a.expect("1 of 4 ranks stayed in place", 60)
    assert a.exit(120) == 0 and c.exit(30) == 0, f"{a}\n{c}"
    assert str(stays[min(stays)]) in {pid for _, pid in job.ends().values()}, a
    assert len(job.ends()) == 4 and len({sha for sha, _ in job.ends().values()}) == 1 and "60" in job.losses(), a


if KILLS:  # by hand: it takes minutes

    @pytest.mark.parametrize("kind", KINDS)
    def test_workers_are_killed_at_random_moments(rdzv, kind):
        rng, steps = random.Random(SEED), 40 + 6 * KILLS
        straight, job = run_straight(rdzv, kind, steps), Job(rdzv, kind, "killed", steps)
        a = job.start(PAUSE="0.02")
        job.until_step(a, 4)
        for _ in range(KILLS):
            here, done = rdzv.workers(), len(job.losses())
            if len(here) >= 3:
                os.kill(rng.choice(sorted(here.values())), signal.SIGKILL)
            until(lambda: f"it goes on\n{a}", lambda: not a.running or len(job.losses()) > done + rng.randrange(3), 60)
        assert a.exit(200) == 0, a
        check(job, straight)
