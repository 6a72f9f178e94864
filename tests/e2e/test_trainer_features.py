# SPDX-License-Identifier: Apache-2.0
"""Options of a training run besides losses and optimizers: steps of several batches, evaluation, decay, clipping."""

import signal
import subprocess

import numpy as np
import pytest

from test_trainer import adam, config, digits, gradient, numpy_run, sgd  # noqa: F401
from trainer_world import TRAINER, Run, metrics, train


def events(path, event):
    return [line for line in metrics(path, event)]


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


# ---- evaluation -----------------------------------------------------------------------------------------------------


def evaluation_of(loss, digits):  # noqa: F811
    if loss == "cross-entropy":
        return ["--eval-data", digits["images"], "--eval-labels", digits["labels"]]
    return ["--eval-data", digits["images"] if loss == "mse" else "synthetic:103"]


@pytest.mark.parametrize("world", [None, 3])
@pytest.mark.parametrize("loss", ["mse", "rmse", "cross-entropy"])
def test_evaluation_is_of_the_weights_and_disturbs_nothing(tmp_path, digits, loss, world):  # noqa: F811
    args, widths, x, target = config(loss, digits)
    args += ["--lr", "0.01", "--batch", 10, "--steps", 30]
    without = train(args, world)
    with_it = train(args + evaluation_of(loss, digits) + ["--eval-every", 12, "--metrics", tmp_path / "m", "--save-weights", tmp_path / "w"], world)
    assert with_it["checksum"] == without["checksum"]
    lines = events(tmp_path / "m", "eval")
    assert [line["step"] for line in lines] == [12, 24, 30] and all(line["samples"] == 103 for line in lines)
    weights = np.fromfile(tmp_path / "w", "<f4").astype(np.float64)
    value, _ = gradient(weights, widths, x, target, loss)
    np.testing.assert_allclose(lines[-1]["loss"], value, rtol=1e-5)
    assert lines[-1]["loss"] < lines[0]["loss"]
    if loss == "cross-entropy":
        assert lines[-1]["accuracy"] * 103 == pytest.approx(right(weights, widths, x, target), abs=1e-6) and lines[-1]["accuracy"] > 0.3
        assert "classified correctly, 103 samples" in with_it["stderr"]
    else:
        assert all(line["accuracy"] is None for line in lines)


def right(flat, widths, x, target):
    for k, (i, o) in enumerate(zip(widths, widths[1:])):
        w, b, flat = flat[:i * o].reshape(o, i), flat[i * o:(i + 1) * o], flat[(i + 1) * o:]
        x = x @ w.T + b
        if k + 2 < len(widths):
            x = np.maximum(x, 0)
    return (x.argmax(1) == target).sum()


def test_a_finished_run_is_evaluated_again(tmp_path, digits):  # noqa: F811
    args, *_ = config("mse", digits)
    args += ["--steps", 5, "--checkpoint-dir", tmp_path / "c"]
    train(args)
    train(args + ["--eval-data", digits["images"], "--metrics", tmp_path / "m"])
    assert [line["step"] for line in events(tmp_path / "m", "eval")] == [5]


def test_a_set_of_one_sample_and_one_of_many(tmp_path):
    """More pieces than the host adds up at once, and ranks without a sample."""
    args = ["--layers", "4,3,4", "--data", "synthetic:9", "--batch", 3, "--scale", "0.001", "--steps", 3]
    seen = {}
    for n in (1, 2000):
        for world in (1, 4):
            m = tmp_path / f"{n}-{world}"
            train(args + ["--eval-data", f"synthetic:{n}", "--metrics", m], world)
            seen[n, world] = events(m, "eval")[0]["loss"]
        np.testing.assert_allclose(seen[n, 1], seen[n, 4], rtol=1e-5)


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
    (["--eval-every", "5"], "--eval-every needs --eval-data"),
    (["--eval-labels", "x"], "--eval-labels needs --eval-data"),
    (["--eval-data", "synthetic:5", "--eval-labels", "x"], "--eval-labels are for --loss cross-entropy"),
])
def test_what_is_refused(args, why):
    done = subprocess.run([TRAINER, *args], capture_output=True, text=True, timeout=30)
    assert done.returncode == 64 and why in done.stderr, done.stderr


def test_evaluation_data_that_do_not_fit(digits):  # noqa: F811
    args = [str(a) for a in ["--layers", "20,16,6", "--loss", "cross-entropy", "--data", digits["images"], "--labels", digits["labels"]]]
    for extra, why in ((["--eval-data", "/nonexistent"], "--eval-labels FILE"),
                       (["--eval-data", "/nonexistent", "--eval-labels", digits["labels"]], "has class 6"),):
        done = subprocess.run([TRAINER, *args, *map(str, extra)], capture_output=True, text=True, timeout=30)
        assert done.returncode in (64, 65) and why in done.stderr, done.stderr
    args[1] = "20,16,7"
    done = subprocess.run([TRAINER, *args, "--eval-data", "/nonexistent", "--eval-labels", digits["labels"]], capture_output=True, text=True, timeout=30)
    assert done.returncode == 65 and "/nonexistent" in done.stderr, done.stderr
