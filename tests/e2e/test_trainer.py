# SPDX-License-Identifier: Apache-2.0
"""rdzv-trainer as it is run: in worlds of several ranks, interrupted, resumed, and with everything wrong."""

import gzip
import re
import signal
import struct
import sys
import time
import zlib

import numpy as np
import pytest

from harness import TOP

sys.path.insert(0, str(TOP / "tests/rig"))
import weights  # noqa: E402
from trainer_world import SMALL, STOP, Run, epoch_order, metrics, rng_at, train  # noqa: E402

def init_weights(widths, seed):
    out, k = [], 0
    for i, o in zip(widths, widths[1:]):
        n = (i + 1) * o
        unit = np.array([rng_at(seed, 1, k + j) >> 40 for j in range(n)], np.float64) * 2.0**-24
        out.append(((2 * unit - 1) / np.sqrt(i)).astype(np.float32))
        k += n
    return np.concatenate(out)


# ---- data -----------------------------------------------------------------------------------------------------------


def idx(path, array):
    data = struct.pack(">HBB", 0, 8, array.ndim) + b"".join(struct.pack(">I", s) for s in array.shape) + array.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Images of 5 x 4 in 7 classes that can be told apart."""
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 7, 103).astype(np.uint8)
    shapes = rng.integers(0, 200, (7, 5, 4))
    images = np.clip(shapes[labels] + rng.integers(0, 56, (103, 5, 4)), 0, 255).astype(np.uint8)
    d = tmp_path_factory.mktemp("digits")
    return {"images": idx(d / "images.idx.gz", images), "labels": idx(d / "labels.idx", labels)}


def config(loss, digits):
    if loss == "cross-entropy":
        return ["--layers", "20,16,7", "--loss", loss, "--data", digits["images"], "--labels", digits["labels"]]
    return ["--layers", "20,16,12,20", "--loss", loss, "--data", digits["images"]]


def test_first_weights_are_torchs_distribution_from_the_seed(tmp_path):
    train(["--layers", "20,16,20", "--data", "synthetic:10", "--steps", 1, "--lr", "1e-30", "--seed", 9,
           "--save-weights", tmp_path / "w"])
    np.testing.assert_allclose(np.frombuffer(weights.read(tmp_path / "w"), "<f4"), init_weights([20, 16, 20], 9), rtol=1e-6)


# ---- worlds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
def test_same_curve_for_any_world_size(tmp_path, digits, loss):
    """The global batches are the same; only the order of additions differs. In float, sums of 10 rows differ by some
    1e-7, and 60 steps of a well-conditioned run do not amplify that beyond 1e-4."""
    args = config(loss, digits)
    curves, ends = {}, {}
    for world in (1, 2, 3, 4, 5):
        m = tmp_path / f"m{world}"
        out = train(args + ["--batch", 13, "--steps", 60, "--metrics", m, "--bucket-cap-mb", "0.0005"], world)
        curves[world] = np.array([line["loss"] for line in metrics(m)])
        ends[world] = out["checksum"]
        assert len(curves[world]) == 60
        np.testing.assert_allclose(curves[world], curves[1], rtol=1e-4)
    again = train(args + ["--batch", 13, "--steps", 60, "--bucket-cap-mb", "0.0005"], 3)
    assert again["checksum"] == ends[3], "the same world gives the same bytes"


def test_fewer_samples_in_a_batch_than_ranks(tmp_path):
    one = train(["--layers", "6,3,6", "--data", "synthetic:7", "--batch", 2, "--epochs", 3, "--scale", "0.1", "--metrics", tmp_path / "a"], 1)
    five = train(["--layers", "6,3,6", "--data", "synthetic:7", "--batch", 2, "--epochs", 3, "--scale", "0.1", "--metrics", tmp_path / "b"], 5)
    assert one["steps"] == five["steps"] == 12
    np.testing.assert_allclose(one["loss"], five["loss"], rtol=1e-4)


def test_every_rank_ends_with_the_same_bytes(tmp_path):
    args = ["--layers", "50,7,50", "--data", "synthetic:40", "--scale", "0.01", "--steps", 20, "--batch", 9]
    with Run(args, 3, per_rank=lambda r: ["--checkpoint-dir", tmp_path / f"d{r}", "--save-weights", tmp_path / f"w{r}"]) as run:
        codes, outs, errs = run.wait()
        assert codes == [0, 0, 0], errs
    assert not (tmp_path / "w1").exists(), "rank 0 alone writes"
    assert f"checksum {zlib.crc32(weights.read(tmp_path / 'w0')):08x}" in outs[0], outs
    assert not (tmp_path / "d1").exists()


# ---- interrupted and resumed ----------------------------------------------------------------------------------------



@pytest.mark.parametrize("world", [None, 2])
def test_resumed_run_ends_with_the_same_bytes(tmp_path, world):
    args = SMALL
    straight = train(args + ["--steps", 100], world)
    for steps in (37, 64, 100):
        out = train(args + ["--steps", steps, "--checkpoint-dir", tmp_path / "c"], world,
                    **({"round_": steps} if world else {}))
    assert "resumed from" in out["stderr"] and "at step 64" in out["stderr"]
    assert (out["checksum"], out["loss"]) == (straight["checksum"], straight["loss"])
    done = train(args + ["--steps", 100, "--checkpoint-dir", tmp_path / "c"], world, **({"round_": 101} if world else {}))
    assert done["checksum"] == straight["checksum"] and done["steps"] == 100, "nothing left to do"


def test_killed_rank_is_named_and_the_next_round_ends_with_the_same_bytes(tmp_path):
    args = SMALL + ["--steps", 300]
    straight = train(args, 3)
    args += ["--checkpoint-dir", tmp_path, "--checkpoint-every", 20]
    with Run(args + ["--throttle", 200], 3, round_=1) as run:
        run.until_step(70)
        run.workers[1].send_signal(signal.SIGKILL)
        codes, _, errs = run.wait(10)
    assert codes == [82, -signal.SIGKILL, 82]
    for rank in (0, 2):
        assert "lost contact with rank 1" in errs[rank] and "echo" in errs[rank]
    out = train(args, 3, round_=2)
    assert "resumed from" in out["stderr"] and "-r000001-s" in out["stderr"]
    assert out["checksum"] == straight["checksum"]


def test_another_world_size_goes_on_where_the_first_stopped(tmp_path):
    args = SMALL[:-4] + ["--loss", "mse", "--seed", 3]
    straight = train(args + ["--steps", 80], 2)
    train(args + ["--steps", 40, "--checkpoint-dir", tmp_path], 4, round_=1)
    out = train(args + ["--steps", 80, "--checkpoint-dir", tmp_path], 2, round_=2)
    np.testing.assert_allclose(out["loss"], straight["loss"], rtol=1e-4)


def test_silent_rank_is_named_by_all_within_the_deadline(tmp_path):
    with Run(SMALL + ["--epochs", 1000, "--coll-timeout", "2s", "--throttle", 200], 4) as run:
        run.until_step(10)
        run.workers[2].send_signal(signal.SIGSTOP)
        began = time.monotonic()
        for rank in (0, 1, 3):
            run.workers[rank].wait(30)
        assert 1.5 < time.monotonic() - began
        run.workers[2].send_signal(signal.SIGKILL)
        codes, _, errs = run.wait()
    for rank in (0, 1, 3):
        assert codes[rank] == 82 and "lost contact with rank 2" in errs[rank], errs[rank]


def test_sigterm_to_one_stops_all_after_the_same_step(tmp_path):
    args = SMALL + ["--steps", 400]
    straight = train(args, 3)
    args += ["--checkpoint-dir", tmp_path]
    with Run(args + ["--throttle", 200, "--metrics", tmp_path / "m"], 3) as run:
        run.until_step(20, rank=2)
        run.workers[2].send_signal(signal.SIGTERM)
        codes, outs, errs = run.wait(10)
        assert codes == [75, 75, 75], errs
        assert not run.agent.done and not any(outs)
    (stop,) = metrics(tmp_path / "m", "stop")
    (saved,) = metrics(tmp_path / "m", "checkpoint")
    assert stop["step"] == saved["step"] and "run the same command to continue" in errs[0]
    assert train(args, 3, round_=2)["checksum"] == straight["checksum"]


def test_requests_of_the_agent(tmp_path):
    args = SMALL + ["--epochs", 100000, "--checkpoint-dir", tmp_path, "--throttle", 200, "--metrics", tmp_path / "m"]
    with Run(args, 2) as run:
        run.until_step(5)
        assert run.agent.can == {0, 1}
        run.agent.request(checkpoint=1, ranks=[1])
        run.agent.wait_checkpointed([1])
        run.agent.request(checkpoint=1, ranks=[0])
        run.agent.wait_checkpointed([0])
        run.until_step(run.agent.progress[0][0] + 20)
        run.agent.request(STOP)
        codes, _, errs = run.wait(10)
    assert codes == [75, 75], errs
    answers, saved = run.agent.checkpointed, metrics(tmp_path / "m", "checkpoint")
    assert len(saved) == 2, f"one when asked, though one rank was asked later, and one at the stop: {saved}"
    assert answers == {0: [(1, saved[0]["step"])], 1: [(1, saved[0]["step"])]}, (answers, saved)


def test_requests_that_are_far_apart(tmp_path):
    """Each is a checkpoint of its own, of the same step on all ranks; without a place to write to no rank offers any."""
    args = SMALL + ["--epochs", 100000, "--throttle", 200, "--metrics", tmp_path / "m"]
    with Run(args + ["--checkpoint-dir", tmp_path], 3) as run:
        for n in (1, 2):
            run.until_step(5 if n == 1 else run.agent.progress[0][0] + 300)
            run.agent.checkpointed.clear()
            run.agent.request(checkpoint=n)
            answers = run.agent.wait_checkpointed([0, 1, 2])
            assert len({tuple(a) for a in answers.values()}) == 1 and answers[0][0][0] == n, answers
        run.agent.request(STOP)
        run.wait(10)
    assert len(metrics(tmp_path / "m", "checkpoint")) == 3
    with Run(SMALL + ["--epochs", 100000, "--throttle", 200], 2) as run:
        run.until_step(5)
        assert not run.agent.can
        run.agent.request(STOP)
        run.wait(10)


@pytest.mark.parametrize("signo", [signal.SIGUSR1, signal.SIGUSR2])
def test_the_signals_before_a_time_limit_stop_all(tmp_path, signo):
    with Run(SMALL + ["--epochs", 100000, "--throttle", 200, "--checkpoint-dir", tmp_path, "--metrics", tmp_path / "m"], 2) as run:
        run.until_step(5)
        run.workers[1].send_signal(signo)
        codes, _, errs = run.wait(10)
    assert codes == [75, 75], errs
    assert len(metrics(tmp_path / "m", "checkpoint")) == 1


def test_stop_does_not_wait_for_a_silent_rank():
    with Run(SMALL + ["--epochs", 100000, "--throttle", 200], 3) as run:
        run.until_step(5)
        run.workers[1].send_signal(signal.SIGSTOP)
        time.sleep(0.2)
        for rank in (0, 2):
            run.workers[rank].send_signal(signal.SIGTERM)
        for rank in (0, 2):
            run.workers[rank].wait(30)  # --coll-timeout is 60 s
        run.workers[1].send_signal(signal.SIGKILL)
        codes, _, errs = run.wait()
    assert codes[0] == codes[2] == 82 and "rank 1" in errs[0]


# ---- what a person does wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("args, code, words", [
    (["--layer", "3"], 64, "--layers"),
    (["--precision", "tf32"], 64, "--precision=tf32: must be fp32 or bf16"),
    (["--eval-data", "synthetic:9"], 64, "unknown option --eval-data"),
    (["--layers", "10"], 64, "two widths"),
    (["--layers", "10,x"], 64, "numbers"),
    (["--layers", "10,5"], 64, "must end as it begins"),
    (["--loss", "huber"], 64, "mse, rmse or cross-entropy"),
    (["--loss", "cross-entropy"], 64, "--labels"),
    (["--batch", "0"], 64, "--batch"),
    (["--lr", "0"], 64, "--lr"),
    (["--checkpoint-every", "5"], 64, "--checkpoint-dir"),
    (["--checkpoint-every", "5 steps"], 64, "neither a number of steps nor a time"),
    (["--checkpoint-every", "1ms"], 64, "a time of at least 100ms"),
    (["--cuda-graph", "maybe"], 64, "auto, on or off"),
    (["--cuda-graph", "on"], 64, "cannot capture steps"),
    (["train.py"], 64, "train.py"),
    (["--data", "/nowhere/x.idx"], 65, "/nowhere/x.idx: No such file"),
    (["--data", "/tmp"], 65, "is a directory"),
    (["--data", "/dev/null"], 65, "is empty"),
    (["--data", "synthetic:0"], 65, "synthetic:0"),
    (["--data", "synthetic:many"], 65, "synthetic:many"),
    (["--init-weights", "/nowhere/w"], 66, "/nowhere/w"),
    (["--metrics", "/nowhere/m"], 66, "/nowhere/m"),
    (["--metrics", "/dev/full"], 66, "metrics file /dev/full: No space left"),
    (["--checkpoint-dir", "/nowhere/at/all"], 66, "/nowhere/at/all"),
    (["--save-weights", "/nowhere/w", "--steps", "1"], 66, "rdzv-trainer: --save-weights /nowhere/w"),
    (["--save-weights", "/tmp", "--steps", "1"], 66, "is a directory"),
    (["--optimizer", "sgd"], 64, "unknown option"),
    (["--lr", "1e6", "--loss", "mse"], 83, "not finite at step"),
])
def test_clear_sentences(args, code, words):
    with Run(args) as run:
        (got,), (out,), (err,) = run.wait()
    assert got == code and words in err and out == "", (got, err)
    assert "error 2" not in err and err.splitlines()[-1].startswith("rdzv-trainer: ")


def test_what_a_run_says_that_does_less_than_was_meant(tmp_path):
    """Steps that are there already, skipped steps, and weights that nobody should go on from."""
    base = ["--layers", "10,3,10", "--data", "synthetic:640"]
    kept = base + ["--checkpoint-dir", tmp_path / "c"]
    train(kept + ["--steps", 5])
    err = train(kept + ["--steps", 4])["stderr"]
    assert "nothing left to do: the run ends after step 4" in err
    assert "nothing left" not in train(kept + ["--steps", 6])["stderr"]
    err = train(base + ["--steps", 3, "--scale", "1e30"])["stderr"]
    assert "3 of 3 steps were skipped" in err
    assert "computing on " in (err := train(base + ["--steps", 1, "--precision", "bf16", "--device", "cpu"])["stderr"]) and " in bf16" in err
    wild = ["--lr", "1e6", "--scale", "1e15", "--steps", 100]
    for args, told in [(base, False), (base + ["--checkpoint-dir", tmp_path / "d"], True)]:
        with Run(args + wild) as run:
            (code,), _, (err,) = run.wait()
        assert code == 83 and ("--resume none" in err) == told, err


@pytest.mark.parametrize("change, words", [
    (lambda data: data[:6], "ends before its header"),
    (lambda data: data[:40], "is not a file of safetensors"),
    (lambda data: data[weights_at(data):], "is not a file of safetensors"),  # the floats alone, as this option once read them
    (lambda data: data.replace(b"0.weight", b"0.heights"[:8]), 'has no tensor "0.weight"; the names are those of torch.nn.Sequential'),
    (lambda data: data.replace(b"F32", b"F16", 1), 'has "0.weight" as F16; save it as F32, with model.float()'),
    (lambda data: data.replace(b"[3, 10]", b"[10, 3]"), 'has "0.weight" in another shape than the [3,10] of --layers'),
    (lambda data: data.replace(b"[0, 120]", b"[0, 124]"), 'has "0.weight" at a place that is not in the file'),
    (lambda data: data[:-4], 'has "2.bias" at a place that is not in the file'),
    (lambda data: data.replace(b'"dtype"', b'dtype":'), "has no header of safetensors: bad JSON at line 1"),
])
def test_weights_that_are_not_these(tmp_path, change, words):
    path = weights.write(tmp_path / "w", [10, 3, 10], init_weights([10, 3, 10], 1).astype("<f4").tobytes())
    path.write_bytes(change(path.read_bytes()))
    with Run(["--layers", "10,3,10", "--data", "synthetic:64", "--steps", 1, "--init-weights", path]) as run:
        (code,), _, (err,) = run.wait()
    assert code == 66 and f"weights {path}: {words}" in err, err


def weights_at(data):
    return 8 + int.from_bytes(data[:8], "little")


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_weights_that_are_not_finite_are_not_begun_with(tmp_path, value):
    """A GPU's ReLU may make zeros of them, and then nobody would know."""
    first = init_weights([10, 3, 10], 1).astype("<f4")
    first[7] = float(value)
    weights.write(tmp_path / "w", [10, 3, 10], first.tobytes())
    base = ["--layers", "10,3,10", "--data", "synthetic:640", "--steps", 4]
    with Run(base + ["--init-weights", tmp_path / "w"]) as run:
        (code,), _, (err,) = run.wait()
    assert code == 66 and f"w: has {value} as weight 7" in err, err
    # A whole checkpoint with such a weight.
    kept = ["--layers", "10,3,10", "--data", "synthetic:640", "--checkpoint-dir", tmp_path / "c"]
    train(kept + ["--steps", 1])
    (state,) = (tmp_path / "c").glob("*/model.safetensors")
    (marker,) = (tmp_path / "c").glob("*/COMMIT")
    data, text = bytearray(state.read_bytes()), marker.read_text()
    (header,) = struct.unpack_from("<Q", data)
    struct.pack_into("<f", data, 8 + header + 28, float(value))
    at = data.index(b'"crc32":"') + 9
    data[at:at + 8] = b"0" * 8
    data[at:at + 8] = f"{zlib.crc32(data):08x}".encode()
    state.write_bytes(data)
    text = re.sub(r"bytes crc32 \w+", f"bytes crc32 {zlib.crc32(data):08x}", text.partition("marker crc32")[0])
    marker.write_text(f"{text}marker crc32 {zlib.crc32(text.encode()):08x}\n")
    with Run(kept + ["--steps", 2]) as run:
        (code,), _, (err,) = run.wait()
    assert code == 66 and f"weight 7 is {value}, so that run had diverged" in err, err


def test_files_that_do_not_fit(tmp_path, digits):
    wrong = idx(tmp_path / "wrong.idx", np.zeros((3, 2, 2), np.uint8))
    for args, words in [
        (["--layers", "20,9,20", "--data", wrong], "4 values per sample, but --layers begins with 20"),
        (["--layers", "20,6", "--loss", "cross-entropy", "--data", digits["images"], "--labels", digits["labels"]], "class 6"),
        (["--layers", "20,7", "--loss", "cross-entropy", "--data", digits["images"], "--labels", digits["images"]], "dimensions"),
        (["--layers", "4,7", "--loss", "cross-entropy", "--data", wrong, "--labels", digits["labels"]], "103 labels for 3 samples"),
    ]:
        with Run(args) as run:
            (code,), _, (err,) = run.wait()
        assert code == 65 and words in err, err


def test_environment_is_read_and_checked():
    with Run(["--help"], env={"RDZV_TRAINER_STEPS": "3"}) as run:
        (code,), (out,), _ = run.wait()
    assert code == 0 and "RDZV_TRAINER_" in out and "Exit status" in out
    with Run(["--data", "synthetic:64"], env={"RDZV_TRAINER_STEPZ": "3"}) as run:
        (code,), _, (err,) = run.wait()
    assert code == 64 and "RDZV_TRAINER_STEPZ" in err
    assert train(["--data", "synthetic:640"], env={"RDZV_TRAINER_STEPS": "3"})["steps"] == 3


def test_somebody_elses_world_is_not_trained_in_alone():
    with Run(["--steps", 1], env={"WORLD_SIZE": "2", "RANK": "0"}) as run:
        (code,), _, (err,) = run.wait()
    assert code == 64 and "WORLD_SIZE is 2" in err and "rdzv-agent" in err
    assert train(["--steps", 1], env={"WORLD_SIZE": "1"})["steps"] == 1


def test_agent_that_is_not_there():
    with Run([], env={"RDZV_AGENT_SOCKET": "@rdzv-nobody-here", "RDZV_ROUND": "1", "RDZV_LOCAL_RANK": "0"}) as run:
        (code,), _, (err,) = run.wait()
    assert code == 82 and "agent" in err


def test_rank_that_never_comes():
    with Run(["--coll-timeout", "500ms"], 2) as run:
        run.workers[1].send_signal(signal.SIGSTOP)  # before or after it has met the agent: either way it does not come
        run.workers[0].wait(10)
        run.workers[1].send_signal(signal.SIGKILL)
        codes, _, errs = run.wait()
    assert codes[0] == 82 and errs[0].strip(), errs


def test_metrics_are_whole_lines(tmp_path):
    m = tmp_path / "m"
    train(SMALL + ["--steps", 20, "--metrics", m, "--checkpoint-dir", tmp_path / "c", "--checkpoint-every", 10], 2, round_=4)
    assert len(metrics(m, "start")) == 1 and len(metrics(m, "checkpoint")) == 2 and len(metrics(m, "end")) == 1
    steps = metrics(m)
    assert [s["step"] for s in steps] == list(range(1, 21))
    assert all(s["world"] == 2 and s["round"] == 4 and s["step_ms"] > 0 and s["grad_norm"] > 0 for s in steps)
    assert steps[-1]["epoch"] == pytest.approx(20 * 16 / 500)
    assert all(s["skipped"] == 0 and s["flops"] > 0 for s in steps)
    assert any(s["input_ms"] > 0 for s in steps)  # counted in microseconds
    assert all(s["input_ms"] >= 0 and s["wait_ms"] >= 0 and s["comm_exposed_ms"] >= 0 and s["checkpoint_ms"] >= 0 for s in steps)
    (start,), (first,) = metrics(m, "start"), metrics(m, "first-step")
    phases = ["process_ms", "agent_ms", "data_ms", "device_ms", "model_ms", "communicators_ms", "resume_ms"]
    assert all(start[p] >= 0 for p in phases) and start["precision"] == "fp32" and start["device"].startswith("cpu")
    assert first["since_start_ms"] == pytest.approx(sum(start[p] for p in phases) + first["first_step_ms"], abs=0.01)


def test_steps_that_are_not_finite_are_skipped_and_told(tmp_path):
    """One sample is so large that its square is not finite: the steps that meet it are skipped, by all ranks, and told."""
    m = tmp_path / "m"
    data = ["--layers", "50,4,50", "--data", "synthetic:64", "--batch", 2, "--loss", "mse", "--seed", 3]
    args = ["--lr", 1e-60, "--scale", 1e18, "--steps", 64, "--metrics", m]  # a rate that changes nothing
    out = train(data + args, 2)
    steps = metrics(m)
    bad = [s["step"] for s in steps if s["loss"] is None]
    skipped = [s["step"] for s in steps if s["grad_norm"] is None]  # a loss may be too large for a float when its gradients are not
    orders = epoch_order(64, 3, 0) + epoch_order(64, 3, 1)
    largest = {k + 1: max(orders[2 * k:2 * k + 2]) for k in range(64)}
    assert {k for k in largest if largest[k] == 63} <= set(bad) and not {k for k in largest if largest[k] < 20} & set(bad), bad
    assert set(skipped) <= set(bad) and 1 < len(skipped) < len(bad)
    assert [s["skipped"] for s in steps] == [sum(k <= s["step"] for k in skipped) for s in steps]
    rank = 0 if orders[2 * bad[0] - 2] > orders[2 * bad[0] - 1] else 1
    said = "step skipped (1 so far)" if bad[0] == skipped[0] else ", but the gradients are"
    one, both = f"the loss of rank {rank} is", "the losses of 2 ranks are"
    assert any(f"{who} not finite at step {bad[0]}" in out["stderr"] for who in (one, both)) and said in out["stderr"], out["stderr"]
    with Run(data + ["--scale", 1e30, "--max-skipped", 3], 2) as run:
        codes, _, errs = run.wait()
    assert codes == [83, 83] and all("not finite at step 4, as in the 3 steps before" in e for e in errs), errs
