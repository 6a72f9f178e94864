# SPDX-License-Identifier: Apache-2.0
"""rdzv.torch.Verify with real PyTorch: a bit is flipped on one rank, found within N steps and blamed on that rank. A healthy run raises no alarm, and ends
with the bits of a run without checks."""

import json
import re
import sys

import pytest

torch = pytest.importorskip("torch")

from conftest import EVERY_PYTORCH, HERE, QUIET
import pages
from harness import BUILD, SANITIZED, TOP

SCRIPT = HERE / "scripts/verify.py"
MODULE = {"PYTHONPATH": str(TOP / "deploy/python"), "RDZV_LIBRARY": str(BUILD / "agent/sdk/librdzv.so.0"), "GLOO_SOCKET_IFNAME": "lo"}
pytestmark = pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitized librdzv")

sys.path.insert(0, str(TOP / "deploy/python"))
from rdzv import _verify  # noqa: E402


@pytest.fixture
def run(rdzv, pytorch):
    def start(form, steps, every, nproc=3, restarts=0, **env):
        cache = rdzv.tmp.parent / "cache"
        cache.mkdir(exist_ok=True)
        a = rdzv.agent("--standalone", "--nproc", nproc, "--max-restarts", restarts, "--verdict-file", "v.json", SCRIPT, form, steps,
                       env={**QUIET, **MODULE, "PYTHON_EXEC": pytorch, "XDG_CACHE_HOME": str(cache), "EVERY": str(every), **env})
        a.code = a.exit(120)
        return a

    return start


def ends(a):
    """rank -> the losses computed for checks, the hash of its parameters."""
    return {int(r): (int(n), sha) for r, n, sha in re.findall(r"rank (\d+): (\d+) losses for checks, parameters (\w+)", a.text)}


@EVERY_PYTORCH
@pytest.mark.parametrize("form", ["plain", "elastic"])
def test_no_alarm_and_the_same_bits(run, form):
    without, checked = run(form, 30, 0), run(form, 30, 3)
    assert without.code == checked.code == 0, f"{without}\n{checked}"
    # Ten checks compute the own gradients and a neighbour's; the first one also the own twice.
    assert {n for n, _ in ends(checked).values()} == {22} and len(ends(checked)) == 3, checked
    assert {sha for _, sha in ends(without).values()} == {sha for _, sha in ends(checked).values()}
    assert not checked.says("verify"), checked


@EVERY_PYTORCH
@pytest.mark.parametrize("what", ["parameter", "state", "gradient"])
def test_a_flip_is_found_and_blamed_on_its_rank(run, rdzv, what):
    """The step of the check is at most 4 behind that of the flip, and a check looks at the state before its step."""
    a = run("plain", 40, 4, FLIP=f"{what} 1 9")
    named = {"parameter": "parameters", "state": "optimizer state", "gradient": "gradients"}[what]
    assert a.code == 16 and a.says(rf"rank 1 has wrong {named} at step 12: other ranks agree on other bits; at step \d+ all"), a
    v = json.loads((rdzv.tmp / "v.json").read_text())["verdict"]
    assert v["rank"] == 1 and v["code"] == 16 and f"wrong {named} at step 12" in v["text"], v
    assert not a.says("rank [02] has wrong"), a


@EVERY_PYTORCH
@pytest.mark.parametrize("what", ["parameter", "gradient"])
def test_the_others_go_back_to_a_checkpoint_in_place(run, rdzv, what):
    """The wrong rank's gradients are in all states since the flip, and in no checkpoint. So the job ends with the bits of a run without a flip."""
    a = run("elastic", 20, 5, restarts=1, FLIP=f"{what} 2 11", CHECKPOINT=str(rdzv.tmp / "saves"))
    straight = run("elastic", 20, 0)
    assert a.code == 0 and a.says("2 of 3 workers here go on in place") and a.says("rank 2 has wrong"), a
    assert {sha for _, sha in ends(a).values()} == {sha for _, sha in ends(straight).values()}, f"{a}\n{straight}"


@EVERY_PYTORCH
def test_two_ranks_cannot_decide(run):
    a = run("plain", 20, 2, nproc=2, FLIP="parameter 1 5")
    assert a.code == 16 and a.says("ranks 0, 1 differ in parameters at step 8, and no third rank can decide"), a


@EVERY_PYTORCH
def test_kernels_without_an_order_switch_the_comparison_off(run):
    a = run("plain", 20, 2, KERNELS="random")
    assert a.code == 0 and a.says("computed other gradients from the same batch the second time: no gradients are compared"), a
    assert {n for n, _ in ends(a).values()} == {2}, a


def test_the_rules():
    """The same as those of rdzv-trainer: tests/unit/agent/trainer/run/test_verify_rule.c has the cases."""
    for world in range(2, 8):
        for turn in range(9):
            assert len({_verify.neighbour(r, world, turn) for r in range(world)}) == world
            for bad in range(world):
                assert _verify.judge_states([7 + (r == bad) for r in range(world)]) == [
                    1 if world == 2 else 2 * (r == bad) for r in range(world)]
                for at in range(16):
                    rows = []
                    for r in range(world):
                        of = [r, _verify.neighbour(r, world, turn), r, _verify.neighbour(r, world, turn + 1)]
                        rows.append([100 * o + (50 + i if r == bad and at & 1 << i else 0) for i, o in enumerate(of)])
                    # Other wrong bits each time: with two ranks, a rank that is wrong contradicts itself.
                    assert _verify.judge_gradients(rows, turn) == [2 * (r == bad and at > 0) for r in range(world)]
    assert _verify.judge_states([1, 1, 2, 2]) == [1] * 4 and _verify.judge_states([1, 1, 2, 3]) == [0, 0, 2, 2]
    assert _verify.judge_gradients([[5, 8, 5, 8], [7, 5, 7, 5]], 0) == [1, 1]


def test_a_checksum_sees_each_bit():
    cpu = torch.device("cpu")
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64):
        x = torch.rand(300).mul(2).to(dtype)
        want = int(_verify.checksum([x, x[:5]], cpu))
        assert int(_verify.checksum([x.clone(), x[:5]], cpu)) == want
        first, data = x[:5].clone(), x.view(torch.uint8)
        for at in range(0, data.numel(), 7):
            data[at] ^= 1 if dtype == torch.bool else 1 << at % 8
            assert int(_verify.checksum([x, first], cpu)) != want
            data[at] ^= 1 if dtype == torch.bool else 1 << at % 8
    assert int(_verify.checksum([], cpu)) == 0 == int(_verify.checksum([torch.empty(0)], cpu))


def test_the_script_of_the_page(rdzv):
    (script,) = [b.text for b in pages.blocks("deploy/guide/health.md") if b.comment == "python: verify"]
    before = """
import torch, torch.distributed as dist, torch.nn.functional as F
import rdzv.torch
dist.init_process_group("gloo")
torch.manual_seed(3)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Dropout(0.1), torch.nn.Linear(4, 1)))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.Generator().manual_seed(dist.get_rank())
loader = [(torch.randn(4, 8, generator=data), torch.randn(4, 1, generator=data)) for _ in range(10)]
"""
    (rdzv.tmp / "train.py").write_text(before + script.replace("every=100", "every=2") + "\nprint(verify._gradients, verify._equal_at)\n")
    a = rdzv.agent("--standalone", "--nproc", 3, rdzv.tmp / "train.py", env={**QUIET, **MODULE, "PYTHON_EXEC": sys.executable})
    assert a.exit(120) == 0 and len(re.findall("True 9$", a.text, re.M)) == 3, a
