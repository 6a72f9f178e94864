# SPDX-License-Identifier: Apache-2.0
"""rdzv-trainer --verify-every: bits are flipped in one rank (flip.c), found within N steps, and blamed on that rank."""

import json
import random
import re

import pytest

import pages
from harness import BUILD, SANITIZED
from trainer_world import SMALL, Run, metrics, train

FLIP = BUILD / "tests/e2e/flip.so"
PRODUCTS = 2  # of one kind in the gradients of one share: a model of two layers

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitizer wants to be the first library that is loaded")


def flip(what, at, rank=2, once=False):
    env = {"LD_PRELOAD": str(FLIP), "FLIP_RANK": str(rank), "FLIP_AT": str(at), "FLIP_WHAT": what}
    return {**env, "FLIP_ONCE": "1"} if once else env


def step_of(at, every):
    """The step in which a rank makes its at'th product of a kind: every Nth step repeats another rank's gradients first."""
    step = 0
    while at > 0:
        step += 1
        at -= PRODUCTS * (2 if step % every == 0 else 1)
    return step


def check_blamed(codes, errs, rank, what):
    """The step of the check that found it."""
    assert codes == [16 if r == rank else 82 for r in range(len(codes))], (codes, errs)
    found = {int(m) for e in errs for m in re.findall(rf"rank {rank} has wrong {what} at step (\d+)", e)}
    assert len(found) == 1, errs
    assert all(f"rank {rank} has wrong {what}" in e for e in errs), errs
    return found.pop()


@pytest.mark.parametrize("seed", range(20))
def test_a_flip_is_found_within_n_steps_and_blamed_on_its_rank(seed):
    rng = random.Random(seed)
    every, at, what = rng.randint(1, 8), rng.randint(1, 60), rng.choice(["gradients", "weights"])
    once = what == "weights" or every == 1
    with Run(SMALL + ["--steps", 100, "--verify-every", every], 4, env=flip(what, at, once=once)) as run:
        codes, outs, errs = run.wait()
    # In a step with a check, wrong weights make wrong gradients too.
    kind = "gradients" if "wrong gradients" in errs[2] else "weights"
    assert what == "weights" or kind == "gradients", errs
    found, began = check_blamed(codes, errs, 2, kind), step_of(at, every)
    assert began <= found <= began + every and found % every == 0, (seed, every, began, found)
    assert "test this host's memory" in errs[2] and "echo" in errs[0] and not any(outs), errs


def test_checks_change_no_bits(tmp_path):
    args = SMALL + ["--steps", 70, "--bucket-cap-mb", "0.0005"]
    for world in (2, 3):
        plain = train(args, world)
        verified = train(args + ["--verify-every", 7, "--metrics", tmp_path / f"m{world}"], world)
        assert (verified["checksum"], verified["loss"]) == (plain["checksum"], plain["loss"])
        assert [m["step"] for m in metrics(tmp_path / f"m{world}", "verify")] == list(range(6, 70, 7)), "each check, before its step; the last step is one"


def test_two_ranks_cannot_decide_whose_weights_are_right():
    with Run(SMALL + ["--steps", 100, "--verify-every", 3], 2, env=flip("weights", 11, rank=1, once=True)) as run:
        codes, _, errs = run.wait()
    assert codes == [16, 16], errs
    assert all("ranks 0 and 1 differ in weights" in e and "no third rank can decide" in e for e in errs), errs


def test_two_ranks_a_rank_that_contradicts_itself():
    with Run(SMALL + ["--steps", 100, "--verify-every", 1], 2, env=flip("gradients", 41, rank=1, once=True)) as run:
        codes, _, errs = run.wait()
    check_blamed(codes, errs, 1, "gradients")


def test_no_checkpoint_has_a_state_that_differs(tmp_path):
    """Rank 0 writes the checkpoints, and it is the wrong one. A check comes before each checkpoint."""
    args = SMALL + ["--steps", 60, "--verify-every", 50, "--checkpoint-dir", tmp_path, "--checkpoint-every", 5]
    straight = train(SMALL + ["--steps", 60], 3)
    at = 44  # in step 19
    assert step_of(at, 5) == 19
    with Run(args, 3, env=flip("weights", at, rank=0, once=True), round_=1) as run:
        codes, _, errs = run.wait()
    assert check_blamed(codes, errs, 0, "weights") == 20
    out = train(args, 3, round_=2)
    assert "at step 15" in out["stderr"] and out["checksum"] == straight["checksum"]


def test_another_interval_is_refused():
    with Run(SMALL + ["--steps", 10], 2, per_rank=lambda r: ["--verify-every", r]) as run:
        codes, _, errs = run.wait()
    assert codes == [64, 64] and "give all ranks the same" in errs[0], errs


def test_one_rank_says_that_nothing_is_compared():
    out = train(SMALL + ["--steps", 4, "--verify-every", 2])
    assert "--verify-every compares nothing: a world of one has no other rank" in out["stderr"]


@pytest.mark.parametrize("recovery", ["inplace", "restart"])
def test_the_job_goes_on_from_a_checkpoint(rdzv, recovery):
    """The wrong rank's gradients are in all states since the flip, and in no checkpoint."""
    args = SMALL + ["--steps", 120]
    straight, wrong = train(args, 4)["checksum"], {**flip("weights", 47, once=True), "FLIP_WHERE": "8"}
    # Without checks there are fewer products before the same step.
    assert step_of(47, 10) == step_of(43, 1000) == 22
    assert train(args, 4, env={**wrong, "FLIP_AT": "43"})["checksum"] != straight, "the flip has an effect"
    more = ["--recovery", recovery, "--verify-every", 10, "--checkpoint-dir", "c", "--checkpoint-every", 10]
    a = rdzv.agent("--standalone", "--nproc", 4, "--max-restarts", 1, "--verdict-file", "v.json", "--", *args, *more, env=wrong)
    assert a.exit() == 0 and a.says(f"checksum {straight}"), a
    assert a.says(r"rank 2 has wrong (weights|gradients) at step 30: other ranks agree on other bits"), a
    assert a.says("resumed from .* at step 20"), a
    v = json.loads((rdzv.tmp / "v.json").read_text())["verdict"]
    assert v["cause"] == "worker-exit" and v["rank"] == 2 and v["code"] == 16 and "other ranks agree on other bits" in v["text"], v


def test_the_others_go_on_in_place_without_a_checkpoint(rdzv):
    """Every step is checked, so no wrong gradient comes into a sum."""
    args = SMALL + ["--steps", 60]
    straight = train(args, 4)["checksum"]
    a = rdzv.agent("--standalone", "--nproc", 4, "--max-restarts", 1, "--", *args, "--recovery", "inplace", "--verify-every", 1,
                   env=flip("gradients", 91, once=True))
    assert a.exit() == 0 and a.says(f"checksum {straight}"), a
    assert a.says("rank 2 has wrong gradients at step 23") and a.says("3 of 4 workers here go on in place"), a


def test_the_command_of_the_page(rdzv):
    (command,) = pages.lines("deploy/guide/health.md", "verify")
    changes = [("--verify-every 100", "--verify-every 10"), ("--checkpoint-every 500", "--checkpoint-every 50"), ("784,128,784", "60,12,60"),
               ("--epochs 20", "--epochs 2")]
    p = pages.shell(rdzv, pages.with_changes(command, changes), env={**flip("weights", 400, once=True), "FLIP_WHERE": "8"})
    assert p.exit(60) == 0, p
    assert p.says(r"rank 2 \(local 2\) on \S+, pid \d+, exited with code 16, which asks for another host: rank 2 has wrong weights at step \d+: other ranks agree on other bits; "
                  r"at step \d+ all ranks had the same state; test this host's memory, processor and GPU, after step \d+ of \d+"), p
