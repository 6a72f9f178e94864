# SPDX-License-Identifier: Apache-2.0
"""rdzv.torch with real PyTorch: a worker is lost, the others keep their processes, and losses and parameters are bit for bit those of an undisturbed
run. RDZV_KILLS sets how many kills the test at random moments makes, RDZV_KILLS_SEED which."""

import json
import os
import random
import signal
import sys
import time
from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from conftest import HERE, PYTHONS, QUIET  # and with it the folder of the next two
import pages
from harness import BUILD, SANITIZED, TOP, need, until

PAGE = "deploy/guide/in-place.md"
SCRIPT = HERE / "scripts/in_place.py"
KILLS, SEED = int(os.environ.get("RDZV_KILLS", 8)), int(os.environ.get("RDZV_KILLS_SEED", 1))
MODULE = {"PYTHONPATH": str(TOP / "deploy/python"), "RDZV_LIBRARY": str(BUILD / "agent/sdk/librdzv.so.0"), "GLOO_SOCKET_IFNAME": "lo"}
pytestmark = pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitized librdzv")


def python_of(name):
    need("a PyTorch with reconfigure (2.14 or later; tests/run installs it)", PYTHONS[name])
    return str(PYTHONS[name])


class Job:
    """One run of the script, and what its ranks have written."""

    def __init__(self, rdzv, name, steps, python=sys.executable, **env):
        self.rdzv, self.steps_wanted, self.folder = rdzv, steps, rdzv.tmp / name
        self.folder.mkdir()
        cache = rdzv.tmp.parent / "cache"  # of all tests: the first job's workers teach the template what it imports
        cache.mkdir(exist_ok=True)
        self.env = {**QUIET, **MODULE, "PYTHON_EXEC": python, "XDG_CACHE_HOME": str(cache), **env}

    def start(self, *options, standalone=True, nproc=4, **env):
        return self.rdzv.agent(*(["--standalone"] if standalone else []), "--nproc", nproc, "--max-restarts", 1000, *options, SCRIPT, self.folder,
                               self.steps_wanted, env={**self.env, **env})

    def read(self, name):
        lines = [line for path in self.folder.glob(name + "-*") for line in path.read_text().splitlines() if line.endswith("}")]
        return [json.loads(line) for line in lines]

    def step(self):
        return max((line["step"] for line in self.read("steps")), default=-1)

    def until_step(self, agent, step):
        until(lambda: f"step {step}\n{agent}", lambda: self.step() >= step, 90)

    def numbers(self):
        """step -> what ranks have computed in it, which must be the same on all."""
        found = {}
        for line in self.read("steps"):
            found.setdefault(line["step"], set()).add((line["loss"], line["lr"]))
        return found

    def parameters(self):
        return {line["sha"] for line in self.read("end")}


def check(job, straight):
    """A rank does not write down a step that it completed behind a fault, so some are missing."""
    numbers, want = job.numbers(), straight.numbers()
    assert {s: v for s, v in numbers.items() if v != want[s]} == {}
    assert len(numbers) > len(want) // 2
    assert job.parameters() == straight.parameters() and len(job.parameters()) == 1


def run_straight(rdzv, steps, **more):
    straight = Job(rdzv, "straight", steps, **more)
    a = straight.start()
    assert a.exit(120) == 0, a
    assert sorted(straight.numbers()) == list(range(steps)) and all(len(v) == 1 for v in straight.numbers().values()), a
    return straight


# Random moments -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.deadline(300 + 5 * KILLS)
@pytest.mark.parametrize("python", PYTHONS)
def test_ranks_are_killed_at_random_moments(rdzv, python):
    python, rng = python_of(python), random.Random(SEED)
    steps = 70 + 7 * KILLS
    straight = run_straight(rdzv, steps, python=python)
    job = Job(rdzv, "killed", steps, python=python, PAUSE="0.01")
    a = job.start("--verdict-file", job.folder / "verdict")
    job.until_step(a, 2)
    first, killed = rdzv.workers(), Counter()
    for i in range(KILLS):
        step = job.step()
        if step > steps - 30:  # a rank that dies behind the last step leaves nobody who has the state
            break
        before = {line["pid"] for line in job.read("steps")} & set(rdzv.workers().values())  # a new rank that has not met the others does not stay
        again = rng.random() < 0.3  # a second one, while the others recover
        for _ in range(1 + again):
            here = rdzv.workers()
            victim = rng.choice(sorted(here))
            if len(here) >= 3 and not killed[here[victim]]:
                os.kill(here[victim], signal.SIGKILL)
                killed[here[victim]] += 1
            time.sleep(rng.random() * 0.2 if again else 0)
        until(lambda: f"a step behind {step}, kill {i}\n{a}", lambda: job.step() > step + 1 or not a.running, 90)
        stayed = [pid for pid in before if not killed[pid]]
        assert not a.running or all(pid in rdzv.workers().values() for pid in stayed), a
    assert a.exit(120) == 0, a
    assert sum(killed.values()) >= KILLS // 2
    # A rank that was not killed has the process that it began with.
    assert {pid for pid in first.values() if not killed[pid]} <= {line["pid"] for line in job.read("end")}
    check(job, straight)
    goodput = json.loads((job.folder / "verdict").read_text())["goodput"]
    assert 0 < goodput["rounds_in_place"] < goodput["rounds"] and 0 < goodput["in_place"] < goodput["total"], goodput
    rdzv.gone()


# One moment at a time -------------------------------------------------------------------------------------------------------------------

MOMENTS = ["forward", "backward", "before the update", "behind the update", "behind the last sum"]


@pytest.fixture(scope="module")
def straights():
    return {}


def straight_of(rdzv, straights, form):
    """Its folder lives as long as the tests of this file."""
    if form not in straights:
        straights[form] = run_straight(rdzv, 24, FORM=form)
        straights[form].numbers = lambda n=straights[form].numbers(): n
        straights[form].parameters = lambda p=straights[form].parameters(): p
    return straights[form]


@pytest.mark.parametrize("form,rank,where", [("ddp", 2, w) for w in MOMENTS] + [
    ("plain", 0, "backward"), ("plain", 0, "behind the last sum"), ("scaler", 1, "behind the update"), ("ddp", 3, "set-up")])
def test_a_rank_dies(rdzv, straights, form, rank, where):
    straight = straight_of(rdzv, straights, form)
    job = Job(rdzv, "died", 24, FORM=form, DIE=f"{rank} {0 if where == 'set-up' else 9} {where}")
    a = job.start()
    assert a.exit(120) == 0, a
    assert (job.folder / "died").exists()
    if where != "set-up":
        assert a.says("3 of 4 workers here go on in place") and a.says(r"rdzv: round 2: 3 of 4 ranks stayed in place, and go on with step (9|10),"), a
    check(job, straight)
    pids = Counter((line["pid"]) for line in job.read("steps"))
    assert len(pids) == (4 if where == "set-up" else 5), a


@pytest.mark.parametrize("mistake", [False, True])
def test_nobody_aborts_before_all_have_left(rdzv, mistake):
    """On a group that ends as NCCL does: an abort lets other ranks complete a sum without all of its parts, and without an error."""
    straight = run_straight(rdzv, 16, FORM="plain", BACKEND="standin_nccl")
    job = Job(rdzv, "died", 16, FORM="plain", BACKEND="standin_nccl", DIE="3 9 forward", SLOW_CUT="1", **({"ABORT_FIRST": "1"} if mistake else {}))
    a = job.start()
    assert a.exit(120) == 0, a
    assert a.says("rdzv: round 2: 3 of 4 ranks stayed in place"), a
    if mistake:
        assert job.parameters() != straight.parameters(), a
    else:
        check(job, straight)


@pytest.mark.parametrize("where,timeout,said", [
    ("", "4s", r"rank 1 was asked to rejoin, and has not left round \d+ within 2.0 s: stopping it"),
    ("collective", "60s", "rdzv: a collective of this worker has not ended 3 s after its connections; it exits, and starts again")])
def test_a_rank_that_does_not_leave_is_started_again(rdzv, straights, where, timeout, said):
    """It sleeps in a step, so it takes no part in the recovery. The agent ends it, or its own thread if it seems to wait for a collective."""
    straight = straight_of(rdzv, straights, "ddp")
    job = Job(rdzv, "slept", 24, SLEEPS=f"1 9 {where}", DIE="2 10 forward")
    a = job.start("--stop-timeout", timeout)
    until(lambda: f"the sleep\n{a}", lambda: (job.folder / "slept").exists(), 60)
    os.kill(rdzv.workers()[3], signal.SIGKILL)
    a.expect(said, 25)
    assert a.exit(120) == 0, a
    check(job, straight)


def test_a_rank_that_its_thread_has_rejoined_for_exits(rdzv):
    """On a group that ends as NCCL does, a rank rejoins while its main thread may still wait. Here that wait is no collective and goes on."""
    straight = run_straight(rdzv, 14, FORM="plain", BACKEND="standin_nccl")
    job = Job(rdzv, "slept", 14, FORM="plain", BACKEND="standin_nccl", SLEEPS="1 9")
    a = job.start()
    until(lambda: f"the sleep\n{a}", lambda: (job.folder / "slept").exists(), 60)
    os.kill(rdzv.workers()[3], signal.SIGKILL)
    a.expect("rdzv: this worker has not left its step 15 s after the round ended", 40)
    a.expect(r"rank 1 .* exited with code 1", 20)
    assert a.exit(120) == 0, a
    check(job, straight)


def test_a_mistake_of_the_script_is_not_a_fault(rdzv):
    job = Job(rdzv, "bad", 24, BAD="1 5")
    a = job.start("--max-restarts", 0)
    assert a.exit(120) == 1 and a.says("rank 1 .* exited with code 1: ValueError: a mistake of the script"), a


def test_a_preempted_job_goes_on_with_its_checkpoint(rdzv, straights):
    straight = straight_of(rdzv, straights, "ddp")
    job = Job(rdzv, "preempted", 24, HOLD="13", CHECKPOINT=str(rdzv.tmp / "saves"))
    a = job.start()
    job.until_step(a, 12)
    a.kill(signal.SIGTERM)
    (job.folder / "go").touch()
    assert a.exit(60) == 75, a
    saved = {int(p.stem[5:]) for p in (rdzv.tmp / "saves").glob("step-*.pt")}
    assert 10 in saved and max(saved) in (14, 15), a  # every ten steps, and on request
    b = job.start()
    assert b.exit(120) == 0, b
    assert {line["step"] for line in job.read("began")} == {0, max(saved)} and (rdzv.tmp / "saves/step-24.pt").exists(), b
    check(job, straight)


def test_sharded_parameters_start_again_from_the_checkpoint(rdzv):
    """There is no replica of what the lost rank had. The script keeps its checkpoint itself."""
    (rdzv.tmp / "train.py").write_text(SHARDED)
    a = rdzv.agent("--standalone", "--nproc", 2, "train.py", env={**QUIET, **MODULE, "PYTHON_EXEC": sys.executable, "XDG_CACHE_HOME": str(rdzv.tmp)})
    a.expect("UserWarning: the parameter weight is sharded over the ranks, and no other rank has its parts: after a fault all workers start again", 60)
    assert a.exit(120) == 0 and not a.says("go on in place"), a
    assert a.says(r"rank 0 begins with 0\b") and a.says(r"rank 0 begins with 4\b"), a


SHARDED = """
import os, signal, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import rdzv.torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

rdzv.torch.init_process_group("gloo")
torch.manual_seed(1)
net = torch.nn.Linear(8, 8)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
fully_shard(net, mesh=mesh)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
begin = 4 if os.path.exists("save/.metadata") else 0
if begin:
    state = {"net": net.state_dict()}
    dcp.load(state, checkpoint_id="save")
    net.load_state_dict(state["net"])
print(f"rank {rdzv.rank} begins with {begin}", flush=True)
with rdzv.torch.Elastic(model=net, optimizer=optimizer) as job:
    assert not job.in_place
    for step in job.steps(8 - begin):
        with step:
            optimizer.zero_grad()
            net(torch.ones(2, 8)).sum().backward()
            optimizer.step()
        if step == 3 and not begin:
            dcp.save({"net": net.state_dict()}, checkpoint_id="save")
            dist.barrier()
            if rdzv.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
"""


# The world changes ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("python", PYTHONS)
def test_a_node_leaves_and_comes_back(rdzv, python):
    """The ranks of the other node stay both times. No sample is taken twice in an epoch, and none is left out."""
    d = rdzv.daemon()
    job = Job(rdzv, "elastic", 14, python=python_of(python), HOLD="5")
    options = "--nnodes", "1:2", "--endpoint", f"127.0.0.1:{d.port}", "--rdzv-id", "elastic", "--scale-up", "next-round"
    a = job.start(*options, standalone=False, nproc=2, NODE="a")
    b = job.start(*options, standalone=False, nproc=2, NODE="b")
    job.until_step(a, 4)
    stays = list(rdzv.workers(NODE="a").values())
    assert {line["world"] for line in job.read("steps")} == {4}, a
    b.kill(signal.SIGTERM)
    a.expect("rdzv: round 2: 2 of 2 ranks stayed in place, and go on with step 5,", 60)
    b.exit(60)
    # The next node waits until a round ends.
    c = job.start(*options, standalone=False, nproc=2, NODE="c")
    c.expect("this node is a spare for the next round", 30)
    os.kill(stays[1], signal.SIGKILL)
    a.expect("rdzv: round 3: 1 of 4 ranks stayed in place, and go on with step 5,", 60)
    (job.folder / "go").touch()
    assert a.exit(120) == 0 and c.exit(30) == 0, f"{a}\n{c}"
    assert stays[0] in {line["pid"] for line in job.read("end")}, a
    assert len(job.parameters()) == 1 and all(len(v) == 1 for v in job.numbers().values()), a
    # What the ranks took, step by step, is the order of the epoch: nothing twice, nothing left out.
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(3)).tolist()
    for step in range(14):
        which = [i for line in job.read("steps") if line["step"] == step for i in line["which"]]
        world = next(line["world"] for line in job.read("steps") if line["step"] == step)
        assert len(which) == 16 * world and set(which) == set(order[: 16 * world]), step
        order = order[16 * world :]


# The page ---------------------------------------------------------------------------------------------------------------------------------


def test_the_script_of_the_page(rdzv):
    """It trains under an agent, a worker is killed on the way, and it trains alone."""
    (script,) = [b.text for b in pages.blocks(PAGE) if b.comment == "python: in place"]
    under_agent, alone = pages.lines(PAGE, "in place")
    (rdzv.tmp / "train.py").write_text(script.replace('"saves"', '"here"').replace("            step.report", "            import time; time.sleep(0.002)\n            step.report"))
    env = {**QUIET, **MODULE, "PYTHON_EXEC": sys.executable, "XDG_CACHE_HOME": str(rdzv.tmp)}
    a = pages.shell(rdzv, under_agent, env=env)
    until(lambda: f"the first checkpoint\n{a}", lambda: (rdzv.tmp / "here/step-500.pt").exists(), 90)
    os.kill(rdzv.workers()[1], signal.SIGKILL)
    a.expect("rdzv: round 2: 3 of 4 ranks stayed in place, and go on with step 5", 60)
    assert a.exit(90) == 0 and (rdzv.tmp / "here/step-1000.pt").exists(), a
    (rdzv.tmp / "train.py").write_text(script)
    p = pages.shell(rdzv, alone, env=env, more={"python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n'})
    assert p.exit(90) == 0 and (rdzv.tmp / "saves/step-1000.pt").exists(), p
