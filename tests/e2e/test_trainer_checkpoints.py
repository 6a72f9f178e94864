# SPDX-License-Identifier: Apache-2.0
"""rdzv-trainer's checkpoints: written while training goes on, kept, damaged, of another run, and where there is no room for them."""

import os
import resource
import shutil
import signal
import subprocess
import time

import pytest

from trainer_world import SMALL, TRAINER, Run, metrics, train


def checkpoints(d):
    return sorted(p for p in d.iterdir() if p.is_dir())


def test_the_last_ones_are_kept(tmp_path):
    train(SMALL + ["--steps", 50, "--checkpoint-dir", tmp_path, "--checkpoint-every", 10, "--keep-checkpoints", 2], 2, round_=7)
    names = [p.name for p in checkpoints(tmp_path)]
    assert names == ["000001-20260101T000000-test-r000007-s000000000040", "000001-20260101T000000-test-r000007-s000000000050"]
    assert sorted(os.listdir(tmp_path / names[0])) == ["COMMIT", "model.safetensors"]


def test_as_often_as_the_clock_of_rank_0_says(tmp_path):
    m = tmp_path / "m"
    straight = train(SMALL + ["--steps", 300], 2)
    args = SMALL + ["--steps", 300, "--checkpoint-dir", tmp_path / "c"]
    began = time.monotonic()
    out = train(args + ["--throttle", 200, "--checkpoint-every", "200ms", "--keep-checkpoints", 100, "--metrics", m], 2)
    saved, at_most = metrics(m, "checkpoint"), (time.monotonic() - began) / 0.2 + 1  # and one at the end
    assert 4 <= len(saved) <= at_most, (saved, at_most)
    assert [p.name for p in checkpoints(tmp_path / "c")] == [s["name"] for s in saved]
    assert out["checksum"] == straight["checksum"]
    for path in checkpoints(tmp_path / "c")[-2:]:  # any of them goes on to the same bytes
        path.rename(tmp_path / "away")
        assert train(args + ["--resume", "auto"], 2, round_=2)["checksum"] == straight["checksum"]
        (tmp_path / "away").rename(path)
        for p in checkpoints(tmp_path / "c"):
            if "-r000002-" in p.name:
                shutil.rmtree(p)


def test_written_while_training_goes_on(tmp_path):
    """The run loses the copy of its state, not the writing; what it lost is told."""
    m = tmp_path / "m"
    big = ["--layers", "500,500,500,500", "--data", "synthetic:64", "--scale", 1e-3, "--batch", 8, "--loss", "mse", "--steps", 40]
    train(big + ["--checkpoint-dir", tmp_path / "c", "--checkpoint-every", 10, "--metrics", m])
    saved = metrics(m, "checkpoint")
    assert [s["step"] for s in saved] == [10, 20, 30, 40]
    size = 12288 + 4 * 3 * (501 * 500) * 3
    assert all(s["bytes"] == size and s["write_ms"] > 0 and s["stall_ms"] > 0 for s in saved)
    stalls = {s["step"]: s["checkpoint_ms"] for s in metrics(m)}
    assert all((stalls[k] > 0) == (k in (10, 20, 30)) for k in stalls if k < 40), stalls


def test_killed_while_it_writes(tmp_path):
    """Whatever moment kill -9 finds: what is there is whole or none, and the run goes on from it to the same bytes."""
    args = ["--layers", "300,200,300", "--data", "synthetic:200", "--scale", 1e-2, "--batch", 16, "--loss", "mse", "--steps", 400]
    straight = train(args)
    args += ["--checkpoint-dir", tmp_path]
    for n in range(6):
        with Run(args + ["--checkpoint-every", 1, "--throttle", 300, "--keep-checkpoints", 2], 1, round_=n + 1) as run:
            run.until_step(20 * (n + 1) + n)
            time.sleep(0.0007 * n)
            run.workers[0].send_signal(signal.SIGKILL)
            run.wait()
    out = train(args, 1, round_=9)
    assert "resumed from" in out["stderr"] and out["checksum"] == straight["checksum"]


def test_a_state_goes_to_the_other_ranks_in_pieces(tmp_path):
    big = ["--layers", "2000,1000,2000", "--data", "synthetic:16", "--scale", 1e-3, "--batch", 8, "--loss", "mse"]  # 48 MB
    straight = train(big + ["--steps", 3], 2)
    train(big + ["--steps", 2, "--checkpoint-dir", tmp_path], 2)
    out = train(big + ["--steps", 3, "--checkpoint-dir", tmp_path], 2, round_=2)
    assert "at step 2" in out["stderr"] and out["checksum"] == straight["checksum"]


def test_a_long_wait_is_logged_until_it_ends(tmp_path):
    pipe = tmp_path / "weights"
    os.mkfifo(pipe)
    with Run(SMALL + ["--steps", 3, "--init-weights", pipe, "--report-every", "50ms"]) as run:
        for _ in range(2):
            assert f"making the model from --init-weights {pipe}: 0." in run.workers[0].stderr.readline()
        pipe.open("wb").close()
        (code,), _, (err,) = run.wait(20)
    assert code == 66 and f"making the model from --init-weights {pipe} ended after" in err and "cannot be read" not in err, err


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no marker"])
def test_damaged_checkpoint_is_passed_over(tmp_path, damage):
    straight = train(SMALL + ["--steps", 60])
    train(SMALL + ["--steps", 40, "--checkpoint-dir", tmp_path, "--checkpoint-every", 20])
    newest = checkpoints(tmp_path)[-1]
    state = newest / "model.safetensors"
    data = bytearray(state.read_bytes())
    if damage == "truncated":
        state.write_bytes(data[:-1])
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        state.write_bytes(data)
    else:
        (newest / "COMMIT").unlink()
    out = train(SMALL + ["--steps", 60, "--checkpoint-dir", tmp_path])
    assert f"{newest.name} was skipped" in out["stderr"] and "at step 20" in out["stderr"]
    assert out["checksum"] == straight["checksum"]


def test_without_an_agent_nothing_is_overwritten_either(tmp_path):
    for _ in range(2):
        train(SMALL + ["--steps", 10, "--checkpoint-dir", tmp_path, "--resume", "none"])
    assert [p.name for p in checkpoints(tmp_path)] == ["000001-alone-r000001-s000000000010", "000002-alone-r000001-s000000000010"]


def test_rank_0s_failure_is_told_by_the_others_in_its_words(tmp_path):
    with Run(SMALL + ["--steps", 100000, "--checkpoint-dir", tmp_path / "c", "--checkpoint-every", 1000], 3) as run:
        run.until_step(10)
        os.rename(tmp_path / "c", tmp_path / "away")
        codes, _, errs = run.wait(20)
    assert codes == [66, 82, 82], errs
    assert "rank 0 gave up: " in errs[1] and f"{tmp_path}/c" in errs[2]


@pytest.mark.parametrize("change, words", [
    (["--layers", "60,13,60"], "made with --layers 60,12,60, this run has 60,13,60"),
    (["--seed", 4], "--seed 3"), (["--loss", "mse"], "--loss rmse"),
    (["--data", "synthetic:400"], "500 samples"),
])
def test_checkpoint_of_another_run_is_refused(tmp_path, change, words):
    train(SMALL + ["--steps", 5, "--checkpoint-dir", tmp_path])
    with Run(SMALL + ["--steps", 9, "--checkpoint-dir", tmp_path] + change) as run:
        (code,), _, (err,) = run.wait()
    assert code == 65 and words in err and "--resume none" in err


def test_full_disk_ends_the_run_with_a_sentence(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    p = subprocess.run([str(TRAINER)] + [str(a) for a in SMALL] + ["--steps", "10", "--checkpoint-dir", str(tmp_path / "c")],
                       capture_output=True, text=True, preexec_fn=limit)
    assert p.returncode == 66
    assert f"checkpoint {tmp_path}/c/000001-alone-r000001-s000000000010" in p.stderr and "File too large" in p.stderr
    assert list((tmp_path / "c").iterdir()) == [], "what was written is removed"
