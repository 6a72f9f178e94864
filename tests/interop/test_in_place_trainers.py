# SPDX-License-Identifier: Apache-2.0
"""Accelerate, the Hugging Face Trainer and Lightning in place, four workers each: workers are killed, the others keep their processes, and losses and parameters
are bit for bit those of an undisturbed job. RDZV_KILLS sets how many kills the test at random moments makes, RDZV_KILLS_SEED which."""

import importlib.util
import os
import random
import re
import signal
import sys

import pytest

import pages
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


def run_straight(rdzv, kind, steps):
    straight = Job(rdzv, kind, "straight", steps)
    assert straight.start().exit(120) == 0, rdzv
    assert {str(s) for s in range(4, steps + 1, 4)} <= set(straight.losses()) and all(len(v) == 1 for v in straight.losses().values())
    losses, ends = straight.losses(), straight.ends()
    straight.losses, straight.ends = lambda: losses, lambda: ends
    return straight


@pytest.fixture(scope="module")
def straights():
    return {}


def straight_of(rdzv, straights, kind):
    """Run once for all tests."""
    if kind not in straights:
        straights[kind] = run_straight(rdzv, kind, STEPS)
    return straights[kind]


def check(job, straight, but=()):
    """A rank does not write down a step that it completes behind a fault, so one may be missing."""
    losses, want = ({s: v for s, v in j.losses().items() if s not in but} for j in (job, straight))
    assert {s: v for s, v in losses.items() if v != want[s]} == {}
    assert len(want) - len(losses) <= 3, set(want) - set(losses)
    assert {sha for sha, _ in job.ends().values()} == {sha for sha, _ in straight.ends().values()} and len(job.ends()) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_are_killed(rdzv, straights, kind):
    straight, job = straight_of(rdzv, straights, kind), Job(rdzv, kind, "killed")
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


@pytest.mark.parametrize("kind", ["accelerate", "huggingface", "lightning"])
def test_a_preempted_job_goes_on_from_its_checkpoint(rdzv, straights, kind):
    straight, job = straight_of(rdzv, straights, kind), Job(rdzv, kind, "stopped")
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


DEATHS = ("3 5 forward", "1 8 before the update", "2 18 validation", "0 20 checkpoint", "1 21 epoch end", "3 24 behind the update")


def test_lightning_goes_on_wherever_a_rank_dies(rdzv, straights):
    straight, job = straight_of(rdzv, straights, "lightning"), Job(rdzv, "lightning", "killed")
    a = job.start(DIE=", ".join(DEATHS))
    assert a.exit(240) == 0, a
    assert {p.name for p in job.folder.glob("died *")} == {"died " + d.split(" ", 2)[2] for d in DEATHS}
    assert len(re.findall("of 4 ranks stayed in place", a.text)) == len(DEATHS), a
    check(job, straight)
    rdzv.gone()


@pytest.mark.parametrize("form, says", [("manual", "cannot see the steps of manual optimization"), ("single", 'is for strategy="ddp", and this is')])
def test_lightning_refuses_what_would_not_be_sound(rdzv, form, says):
    job = Job(rdzv, "lightning", form)
    a = job.start("--standalone", "--nproc", 1, "--warm", "off", "--repeat-limit", 1, FORM=form)
    assert a.exit(120) == 1 and says in a.text, a
    assert job.ends() == {}


def test_lightning_begins_again_with_another_number_of_ranks(rdzv):
    d, job = rdzv.daemon(), Job(rdzv, "lightning", "elastic", 60)
    options = "--nproc", 2, "--nnodes", "1:2", "--endpoint", f"127.0.0.1:{d.port}", "--rdzv-id", "elastic", "--join-timeout", "1s"
    a = job.start(*options, NODE="a", PAUSE="0.1")
    b = job.start(*options, NODE="b", PAUSE="0.1")
    job.until_step(a, 6)
    b.kill(signal.SIGTERM)
    a.expect("there are 2 ranks now, and Lightning was prepared for another number", 60)
    assert a.exit(120) == 0 and "Restoring states from the checkpoint" in a.text, a
    b.exit(60)
    assert len(job.ends()) == 2 and len({sha for sha, _ in job.ends().values()}) == 1 and "60" in job.losses(), a


def test_the_lines_of_the_page_are_those_of_the_script():
    (block,) = [b.text for b in pages.blocks("deploy/guide/in-place.md") if b.comment == "python: lightning"]
    assert set(block.splitlines()) <= set((HERE / "scripts/in_place_lightning.py").read_text().splitlines())


def test_a_scaler_unscales_again_when_its_step_is_cut(rdzv):
    (rdzv.tmp / "train.py").write_text("""
import torch, rdzv.torch
layer, scaler = torch.nn.Linear(2, 1), torch.amp.GradScaler("cpu")
optimizer = torch.optim.SGD(layer.parameters())
job = rdzv.torch.Elastic(layer, optimizer, {"scaler": scaler})
for _ in range(2):
    scaler.scale(layer(torch.ones(2)).sum()).backward()
    scaler.unscale_(optimizer)
    job._undo_step()
print("unscaled twice")
""")
    p = rdzv.spawn(sys.executable, "train.py", env=ENV)
    assert p.exit(60) == 0 and p.says("unscaled twice"), p


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
