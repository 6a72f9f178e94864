# SPDX-License-Identifier: Apache-2.0
"""Options of a training run besides losses and optimizers: steps of several batches, decay, clipping."""

import signal
import subprocess

import numpy as np
import pytest

from test_trainer import adam, config, digits, numpy_run  # noqa: F401
from trainer_world import TRAINER, Run, metrics, train


def first_weights(tmp_path, widths):
    start = np.random.default_rng(3).normal(0, 0.3, sum((i + 1) * o for i, o in zip(widths, widths[1:]))).astype("<f4")
    (tmp_path / "w0").write_bytes(start.tobytes())
    return start


@pytest.mark.parametrize("world", [None, 3])
@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
def test_three_batches_are_one_of_three_times_the_size(tmp_path, digits, loss, world):  # noqa: F811
    """103 samples in batches of 10: the last step of an epoch has 13 samples, in one whole batch and one of 3."""
    args, widths, x, target = config(loss, digits)
    start = first_weights(tmp_path, widths)
    train(args + ["--lr", "0.002", "--batch", 10, "--update-freq", 3, "--steps", 40, "--seed", 5, "--init-weights", tmp_path / "w0",
                  "--save-weights", tmp_path / "w1", "--metrics", tmp_path / "m"], world)
    losses, weights = numpy_run(start, widths, x, target, loss, 30, 5, 40, adam(0.002, 0.9, 0.999))
    np.testing.assert_allclose([line["loss"] for line in metrics(tmp_path / "m")], losses, rtol=1e-4)
    assert np.linalg.norm(np.fromfile(tmp_path / "w1", "<f4") - weights) <= 1e-4 * np.linalg.norm(weights - start)


def test_a_step_of_more_batches_than_an_epoch_has(tmp_path):
    args = ["--layers", "6,3,6", "--data", "synthetic:7", "--scale", "0.1", "--epochs", 3]
    some = train(args + ["--batch", 2, "--update-freq", 1000])
    whole = train(args + ["--batch", 7])
    assert some["steps"] == whole["steps"] == 3
    np.testing.assert_allclose(some["loss"], whole["loss"], rtol=1e-5)


def test_steps_of_several_batches_resume(tmp_path):
    args = ["--layers", "60,12,60", "--data", "synthetic:500", "--scale", "0.01", "--batch", 16, "--update-freq", 3, "--epochs", 4]
    straight = train(args, 2)
    args += ["--checkpoint-dir", tmp_path / "c"]
    with Run(args + ["--throttle", 100], 2, round_=1) as run:
        run.until_step(17)
        run.workers[0].send_signal(signal.SIGTERM)
        codes, _, errs = run.wait(10)
        assert codes == [75, 75], errs
    out = train(args, 2, round_=2)
    assert "resumed from" in out["stderr"]
    assert (out["checksum"], out["steps"]) == (straight["checksum"], 44)


# ---- decay and clipping -----------------------------------------------------------------------------------------


def test_clipping_and_decay_against_numpy(tmp_path, digits):  # noqa: F811
    args, widths, x, target = config("mse", digits)
    start = first_weights(tmp_path, widths)
    train(args + ["--optimizer", "adamw", "--lr", "0.002", "--weight-decay", "0.3", "--clip-norm", "0.05",
                  "--batch", 10, "--steps", 50, "--seed", 5, "--init-weights", tmp_path / "w0", "--save-weights", tmp_path / "w1", "--metrics", tmp_path / "m"])

    def update(w, g, state, step):
        norm = np.linalg.norm(g)
        state["norms"] = state.get("norms", []) + [norm]
        g = g * min(1, 0.05 / (norm + 1e-6))
        return adam(0.002, 0.9, 0.999)(w * (1 - 0.002 * 0.3), g, state, step)

    losses, weights = numpy_run(start, widths, x, target, "mse", 10, 5, 50, update)
    lines = metrics(tmp_path / "m")
    np.testing.assert_allclose([line["loss"] for line in lines], losses, rtol=1e-4)
    assert np.linalg.norm(np.fromfile(tmp_path / "w1", "<f4") - weights) <= 1e-4 * np.linalg.norm(weights - start)
    assert max(line["grad_norm"] for line in lines) > 0.05, "something was clipped"


@pytest.mark.parametrize("args, why", [
    (["--momentum", "0.9"], "--momentum is for --optimizer sgd"),
    (["--optimizer", "lamb"], "must be sgd, adam or adamw"),
    (["--update-freq", "0"], "update-freq"),
])
def test_what_is_refused(args, why):
    done = subprocess.run([TRAINER, *args], capture_output=True, text=True, timeout=30)
    assert done.returncode == 64 and why in done.stderr, done.stderr
