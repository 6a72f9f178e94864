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
])
def test_what_is_refused(args, why):
    done = subprocess.run([TRAINER, *args], capture_output=True, text=True, timeout=30)
    assert done.returncode == 64 and why in done.stderr, done.stderr
