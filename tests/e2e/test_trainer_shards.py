# SPDX-License-Identifier: Apache-2.0
"""--shard-optimizer on CPUs: the same bytes as without it, checkpoints for any world with it or without, and what a lost share means."""

import json
import os
import re
import signal

import numpy as np
import pytest

from harness import BUILD, until
from trainer_world import SMALL, STOP, Run, metrics, train

SHARD = ["--shard-optimizer"]
FLAT = sum((n + 31) // 32 * 32 for n in (60 * 12, 12, 12 * 60, 60))  # floats of the model, each tensor padded to 128 bytes


def curve(path):
    return [(line["step"], line["loss"], line["grad_norm"]) for line in metrics(path)]


@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("options", [
    ["--optimizer", "adam", "--weight-decay", "0.01", "--lr-decay", "cosine", "--warmup-steps", 5],
    ["--optimizer", "adamw", "--weight-decay", "0.1", "--update-freq", 3],
    ["--optimizer", "sgd", "--momentum", "0.9", "--lr", "0.01"],
    ["--optimizer", "sgd", "--lr", "0.01", "--precision", "fp16"],
], ids=lambda o: o[1])
def test_the_same_bytes_as_without(tmp_path, world, options):
    """One bucket has the whole model, so the ring cuts and adds it as without shards."""
    args = SMALL + options + ["--steps", 40, "--metrics"]
    whole = train(args + [tmp_path / "whole"], world)
    parts = train(args + [tmp_path / "parts"] + SHARD, world)
    assert (parts["checksum"], parts["loss"]) == (whole["checksum"], whole["loss"])
    a, b = curve(tmp_path / "whole"), curve(tmp_path / "parts")
    assert [(step, loss) for step, loss, _ in a] == [(step, loss) for step, loss, _ in b]
    np.testing.assert_allclose([norm for _, _, norm in a], [norm for _, _, norm in b], rtol=1e-6)
    states = 1 if "sgd" in options else 2
    floats = r"memory of each rank: .* for gradients, (\S+) of (\S+) MB for the optimizer"
    share, all_of_it = map(float, re.search(floats, parts["stderr"]).groups())
    assert all_of_it == pytest.approx(FLAT * 4 * states / 1e6, rel=0.01) and share == pytest.approx(all_of_it / world, rel=0.1)


def test_many_buckets_and_clipping_change_last_bits_alone(tmp_path):
    args = SMALL + ["--steps", 60, "--clip-norm", "0.05", "--metrics"]
    whole = train(args + [tmp_path / "whole"], 3)
    parts = train(args + [tmp_path / "parts", "--bucket-cap-mb", "0.0005"] + SHARD, 3)
    again = train(args + [tmp_path / "again", "--bucket-cap-mb", "0.0005"] + SHARD, 3)
    assert again["checksum"] == parts["checksum"]
    a, b = curve(tmp_path / "whole"), curve(tmp_path / "parts")
    np.testing.assert_allclose([loss for _, loss, _ in a], [loss for _, loss, _ in b], rtol=1e-5)
    assert whole["steps"] == parts["steps"] == 60


def test_fewer_weights_than_ranks_have_room_for(tmp_path):
    """4 weights for 5 ranks: all are in the share of one."""
    args = ["--layers", "1,1,1", "--data", "synthetic:50", "--scale", "0.1", "--batch", 10, "--steps", 20]
    assert train(args + SHARD, 5)["checksum"] == train(args, 5)["checksum"]


def test_one_rank_has_nothing_to_share():
    args = SMALL + ["--steps", 20]
    assert train(args + SHARD)["checksum"] == train(args)["checksum"]


def test_all_ranks_skip_a_step_together(tmp_path):
    """fp16 begins with a loss scale that overflows here."""
    args = SMALL + ["--steps", 30, "--precision", "fp16", "--loss", "mse", "--scale", 10, "--metrics"]
    whole = train(args + [tmp_path / "whole"], 3)
    parts = train(args + [tmp_path / "parts"] + SHARD, 3)
    skipped = metrics(tmp_path / "parts", "end")[0]["skipped"]
    assert skipped == metrics(tmp_path / "whole", "end")[0]["skipped"] > 0
    assert parts["checksum"] == whole["checksum"]


@pytest.mark.parametrize("before, after, more", [(3, 3, SHARD), (3, 2, SHARD), (3, None, SHARD), (2, 4, []), (None, 3, SHARD)])
def test_a_checkpoint_is_for_any_world(tmp_path, before, after, more):
    """state.bin has the same bytes with shards and without. The others continue as if it had been written without."""
    args = SMALL + ["--lr-decay", "cosine", "--epochs", 2, "--checkpoint-every", 10, "--keep-checkpoints", 9]
    for name, shard in ("parts", SHARD), ("whole", []):
        folder = ["--checkpoint-dir", tmp_path / name]
        train(args + folder + shard + ["--steps", 25, "--lr-decay", "constant"], before)
    states = {n: {p.parent.name.split("-s")[1]: p.read_bytes() for p in (tmp_path / n).glob("*/state.bin")} for n in ("parts", "whole")}
    assert states["parts"] == states["whole"] and sorted(states["parts"]) == [f"{n:012}" for n in (10, 20, 25)]
    ends = [train(SMALL + ["--steps", 60, "--checkpoint-dir", tmp_path / name] + shard, after)
            for name, shard in (("parts", more), ("whole", []))]
    assert all("resumed from" in end["stderr"] for end in ends)
    assert ends[0]["checksum"] == ends[1]["checksum"]


@pytest.mark.parametrize("throttle", [0, 200])
def test_stopped_while_it_trains(tmp_path, throttle):
    args = SMALL + SHARD + ["--epochs", 40, "--checkpoint-dir", tmp_path / "c", "--checkpoint-every", 7]
    straight = train(SMALL + ["--epochs", 40], 3)
    with Run(args + ["--throttle", throttle], 3) as run:
        run.until_step(25)
        run.agent.request(STOP, ranks=[1])
        codes, _, errs = run.wait(20)
        assert codes == [75] * 3, errs
    end = train(args, 3, round_=2)
    assert "resumed from" in end["stderr"] and end["checksum"] == straight["checksum"]


# ---- with agents ----------------------------------------------------------------------------------------------------

TASK = ["--layers", "60,12,60", "--data", "synthetic:500", "--scale", "0.01", "--batch", 16, "--seed", 3, "--steps", 400]


def lines(path, event):
    whole = path.read_text().splitlines() if path.exists() else []
    return [e for e in (json.loads(line) for line in whole if line.endswith("}")) if e["event"] == event]


@pytest.mark.parametrize("checkpoints", [True, False])
@pytest.mark.parametrize("victim", [0, 2])
def test_a_lost_share_means_the_last_checkpoint(rdzv, victim, checkpoints):
    """In place: the others keep their processes. They come to the bytes of a run in peace."""
    out, keep = rdzv.tmp / "metrics", ["--checkpoint-dir", rdzv.tmp / "c", "--checkpoint-every", 20] if checkpoints else []
    trainer = [BUILD / "agent/trainer/rdzv-trainer", *TASK, *SHARD, "--metrics", out, "--throttle", 150, "--recovery", "inplace", *keep]
    agent = rdzv.agent("--endpoint", rdzv.daemon().endpoint, "--nproc", 3, "--max-restarts", 5, "--", *trainer)
    until(lambda: f"step 70:\n{rdzv}", lambda: any(e["step"] >= 70 for e in lines(out, "step")), 30)
    before = rdzv.await_workers(3)
    os.kill(before[victim], signal.SIGKILL)
    until(lambda: f"round 2:\n{rdzv}", lambda: any(e["round"] == 2 for e in lines(out, "step")), 30)
    after = rdzv.await_workers(3)
    assert {r for r in range(3) if after[r] != before[r]} == {victim}, rdzv
    assert agent.exit(60) == 0, rdzv
    first = next(e["step"] for e in lines(out, "step") if e["round"] == 2)
    assert first == 1 if not checkpoints else first % 20 == 1 and 41 <= first <= 101, rdzv
    if victim != 0:  # who tells
        assert "the optimizer is sharded" in agent.text, rdzv
    peace = train(TASK, 3)
    assert f"checksum {peace['checksum']}" in agent.text, rdzv
