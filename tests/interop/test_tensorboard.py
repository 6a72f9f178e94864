# SPDX-License-Identifier: Apache-2.0
"""Curves for TensorBoard, read back by TensorBoard's own reader: of rdzv-trainer and of the Python module, over restarts, on a full disk; and what
the agent is told beside them: where a round resumed, and when workers waited for a checkpoint."""

import importlib.util
import json
import os
import re
import signal
import sys

import pytest

from conftest import HERE, QUIET
import pages
from harness import BUILD, SANITIZED, TOP, need, until
from trainer_world import SMALL, Run, train

need("tensorboard", importlib.util.find_spec("tensorboard"))
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

MODULE = {"PYTHONPATH": str(TOP / "deploy/python"), "RDZV_LIBRARY": str(BUILD / "agent/sdk/librdzv.so.0"), "PYTHONDONTWRITEBYTECODE": "1"}
in_python = pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitized librdzv")


def curves(folder):
    """{tag: [(step, value)]}, as TensorBoard shows them."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def steps(curve):
    return [step for step, _ in curve]


# ---- rdzv-trainer ---------------------------------------------------------------------------------------------------


def test_the_curves_of_a_run(tmp_path):
    """One value for each step, the same as in --metrics, and those of the evaluations."""
    train(SMALL + ["--steps", 40, "--tensorboard", tmp_path / "runs", "--metrics", tmp_path / "m", "--lr-decay", "linear", "--eval-data", "synthetic:50",
                   "--eval-every", 20], 2)
    lines = [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()]
    got = curves(tmp_path / "runs")
    assert set(got) == {"train/loss", "train/learning_rate", "train/grad_norm", "train/samples_per_second", "eval/loss"}
    for tag, key in ("train/loss", "loss"), ("train/learning_rate", "lr"), ("train/grad_norm", "grad_norm"):
        assert got[tag] == [(line["step"], pytest.approx(line[key], rel=1e-6)) for line in lines if line["event"] == "step"], tag
    assert got["eval/loss"] == [(line["step"], pytest.approx(line["loss"], rel=1e-6)) for line in lines if line["event"] == "eval"]
    assert len(list((tmp_path / "runs").iterdir())) == 1  # rank 0's


def test_a_run_that_resumes_continues_its_curves(tmp_path):
    """The steps behind the checkpoint are done again, and show once."""
    args = SMALL + ["--checkpoint-dir", tmp_path / "ckpt", "--checkpoint-every", 20, "--tensorboard", tmp_path / "runs"]
    straight = SMALL + ["--steps", 60, "--tensorboard", tmp_path / "straight"]
    train(straight, 2)
    with Run([*args, "--steps", 60, "--throttle", 100], 2) as run:
        run.until_step(33)
        for w in run.workers:
            w.kill()
        run.wait()
    begun = curves(tmp_path / "runs")["train/loss"]
    assert begun[-1][0] >= 33  # nothing waits in a killed process
    again = train([*args, "--steps", 60], 2, round_=2, saved_step=20)
    at = int(re.search(r"at step (\d+)", again["stderr"])[1])
    assert 20 <= at < begun[-1][0]
    got, want = curves(tmp_path / "runs")["train/loss"], curves(tmp_path / "straight")["train/loss"]
    assert got == want and steps(got) == list(range(1, 61))


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("recovery", ["restart", "inplace"])
def test_a_worker_is_killed(rdzv, recovery, victim):
    runs, ckpt = rdzv.tmp / "runs", rdzv.tmp / "ckpt"
    a = rdzv.agent("--standalone", "--nproc", 2, "--", *SMALL, "--steps", 200, "--throttle", 100, "--tensorboard", runs, "--checkpoint-dir", ckpt,
                   "--checkpoint-every", 20, "--recovery", recovery)
    until(lambda: f"step 30 is drawn\n{a}", lambda: runs.exists() and steps(curves(runs).get("train/loss", []))[-1:] > [30], 30)
    os.kill(rdzv.workers()[victim], signal.SIGKILL)
    assert a.exit(60) == 0, a
    got = curves(runs)
    for tag in "train/loss", "train/learning_rate", "train/grad_norm", "train/samples_per_second":
        assert steps(got[tag]) == list(range(1, 201)), tag


@pytest.mark.parametrize("folder,sentence", [
    ("file/runs", r"TensorBoard folder \S+/file/runs: Not a directory; the run continues without --tensorboard"),
    ("file", r"TensorBoard folder \S+/file: Not a directory; the run continues without --tensorboard"),
])
def test_a_folder_that_cannot_be(tmp_path, folder, sentence):
    (tmp_path / "file").touch()
    out = train(SMALL + ["--steps", 20, "--tensorboard", tmp_path / folder], 2)
    assert out["steps"] == 20 and len(re.findall(sentence, out["stderr"])) == 1, out


def test_a_full_disk_costs_the_curves_alone(tmp_path):
    """ulimit -f stands for it: a write comes to its limit in the middle of a record."""
    shell = tmp_path / "limited"
    shell.write_text('#!/bin/sh\nulimit -f 4\nexec "$@"\n')
    shell.chmod(0o755)
    import trainer_world as world
    with pytest.MonkeyPatch.context() as patch:
        real = world.subprocess.Popen
        patch.setattr(world.subprocess, "Popen", lambda argv, **kw: real([str(shell), *argv], **kw))
        out = train(SMALL + ["--steps", 200, "--tensorboard", tmp_path / "runs"], 2)
    assert out["steps"] == 200
    assert len(re.findall(r"TensorBoard file \S+: File too large; the run continues, and the curves lack its steps until that works again", out["stderr"])) == 1, out
    got = steps(curves(tmp_path / "runs")["train/loss"])
    assert got == list(range(1, len(got) + 1)) and 5 < len(got) < 200


def test_the_agent_learns_of_checkpoints(tmp_path):
    """All ranks wait at the end; rank 0 also copies its state. Each names the step that it resumed at."""
    args = SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10]
    for at, to in (0, 40), (40, 60):
        with Run([*args, "--steps", to], 2) as run:
            codes, _, errs = run.wait()
            assert codes == [0, 0], errs
            run.agent.wait_done()
            assert run.agent.resumed == {0: [at], 1: [at]}
            on_off = run.agent.saving
            assert on_off[1] == [1, 0]
            assert on_off[0] == [1, 0] * (len(on_off[0]) // 2) and len(on_off[0]) >= 2


# ---- the Python module ----------------------------------------------------------------------------------------------


def python(rdzv, code, *options, nproc=1, **env):
    (rdzv.tmp / "worker.py").write_text("import os, sys, time, warnings\nimport rdzv\n" + code)
    return rdzv.agent("--standalone", "--nproc", nproc, *options, "--", sys.executable, rdzv.tmp / "worker.py", env={**MODULE, **env})


@in_python
def test_log(rdzv):
    """On rank 0, or on all; a number or a tensor; into a folder, or that of the environment."""
    need("torch", importlib.util.find_spec("torch"))
    a = python(rdzv, """
import torch
with rdzv.init() as job:
    for step in range(1, 6):
        rdzv.log(step, loss=torch.tensor(step / 2, requires_grad=True), lr=1)
        job.log(step, {"train/é": float("nan")}, folder=os.environ["OTHER"])
        job.log(step, folder=os.environ["OTHER"], every_rank=True, rank=job.rank)
""", nproc=2, RDZV_TENSORBOARD_DIR=str(rdzv.tmp / "env"), OTHER=str(rdzv.tmp / "other"))
    assert a.exit(60) == 0, a
    got = curves(rdzv.tmp / "env")
    assert got == {"loss": [(s, s / 2) for s in range(1, 6)], "lr": [(s, 1) for s in range(1, 6)]}
    assert steps(curves(rdzv.tmp / "other")["train/é"])[-5:] == [1, 2, 3, 4, 5]
    for rank in 0, 1:
        assert curves(rdzv.tmp / f"other/rank-{rank}") == {"rank": [(s, rank) for s in range(1, 6)]}


@in_python
def test_log_over_a_restart(rdzv):
    """Behind the step that was loaded, the curve of the second round replaces that of the first."""
    a = python(rdzv, """
job = rdzv.init()
begin = 0 if job.restart_count == 0 else 20
job.resumed(begin)
for step in range(begin + 1, 41):
    job.progress(step, of=40)
    job.log(step, value=job.round * 1000 + step)
    if step == 30 and job.round == 1:
        sys.exit(3)
""", RDZV_TENSORBOARD_DIR=str(rdzv.tmp / "runs"))
    assert a.exit(60) == 0, a
    assert curves(rdzv.tmp / "runs") == {"value": [(s, (1000 if s <= 20 else 2000) + s) for s in range(1, 41)]}


@in_python
def test_log_without_a_folder_or_disk(rdzv):
    """One warning, and training goes on. What the caller can mend is an error."""
    a = python(rdzv, """
import resource
job = rdzv.init()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for step in range(1, 4):
        rdzv.log(step, loss=1)
    open("file", "w").close()
    for step in range(1, 4):
        job.log(step, loss=1, folder="file/runs")
    job.log(1, loss=1, folder="full")
    resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
    for step in range(2, 9):
        job.log(step, loss=1, folder="full")
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    job.log(9, loss=1, folder="full")
    for line in seen:
        print("warned:", line.message, os.path.basename(line.filename))
for call in (lambda: job.log(1, loss="low", folder="x"), lambda: job.log(-1, loss=1, folder="x"), lambda: job.log(1, {"": 1}, folder="x"),
             lambda: job.log(1, {"t" * 2000: 1}, folder="x"), lambda: job.log(1 << 63, loss=1, folder="x")):
    try:
        call()
    except (ValueError, rdzv.Error) as e:
        print("refused:", e)
if os.fork() == 0:
    try:
        job.log(1, loss=1, folder="x")
    except rdzv.Error as e:
        print("forked:", e, flush=True)
    os._exit(0)
os.wait()
""")
    assert a.exit(60) == 0, a
    warned = [line.split("warned: ")[1] for line in a.out if "warned: " in line]
    assert warned[0] == "log() writes nothing: give it a folder, or set RDZV_TENSORBOARD_DIR worker.py"
    assert warned[1] == "TensorBoard folder file/runs: Not a directory; training goes on, and file/runs stays without curves worker.py"
    assert re.fullmatch(r"TensorBoard file full/\S+: File too large; training goes on, and the curves lack steps until that works again worker.py", warned[2])
    assert len(warned) == 3, a
    got = steps(curves(rdzv.tmp / "full")["loss"])
    assert got[0] == 1 and got[-1] == 9 and len(got) < 9
    refused = [line.split("refused: ")[1] for line in a.out if "refused: " in line]
    assert re.match(r"loss is 'low': it must be a number", refused[0]) and refused[1] == "a step is 0 or more, not -1"
    assert "a tag has 1 to 1024 bytes" in refused[2] and "a tag has 1 to 1024 bytes" in refused[3] and "beyond 2^63-1" in refused[4], a
    assert a.says("forked: log: this process was forked from the worker: call rdzv.init.. here"), a


def test_the_page(rdzv):
    """The command of trainer.md, shorter."""
    (command,) = pages.lines("deploy/guide/trainer.md", "curves")
    a = pages.shell(rdzv, pages.with_changes(command, [("--steps 2000", "--steps 40"), ("--checkpoint-every 500", "--checkpoint-every 20")]))
    assert a.exit(60) == 0, a
    assert steps(curves(rdzv.tmp / "runs/1")["train/loss"]) == list(range(1, 41))


@in_python
def test_the_python_page(rdzv):
    (block,) = [b for b in pages.blocks("deploy/guide/python.md") if b.comment == "python: curves"]
    (rdzv.tmp / "train.py").write_text(block.text)
    (command,) = pages.lines("deploy/guide/python.md", "curves")
    a = pages.shell(rdzv, command, env={**MODULE, "PYTHON_EXEC": sys.executable})
    assert a.exit(60) == 0, a
    got = curves(rdzv.tmp / "runs/7")
    assert steps(got["train/loss"]) == steps(got["lr"]) == list(range(101, 301))


# ---- the callbacks --------------------------------------------------------------------------------------------------

KINDS = {"huggingface": ("with_trainer.py", "transformers"), "lightning": ("with_lightning.py", "lightning"), "accelerate": ("with_saver.py", "accelerate")}


@in_python
@pytest.mark.parametrize("kind", KINDS)
def test_what_callbacks_report(tmp_path, kind):
    """A checkpoint every five steps, each of which training waits for. The second run resumes at the last one."""
    script, package = KINDS[kind]
    need(package, importlib.util.find_spec(package))
    import trainer_world as world
    env = dict(QUIET, **MODULE, HF_HUB_OFFLINE="1", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    for begin, end in (0, 10), (10, 20):
        argument = end // 2 if kind == "accelerate" else end  # its data is for two ranks
        with pytest.MonkeyPatch.context() as patch:
            real = world.subprocess.Popen
            patch.setattr(world.subprocess, "Popen", lambda argv, **kw: real([sys.executable, str(HERE / "scripts" / script), str(tmp_path), str(argument)], **kw))
            with Run([], 1, env=env) as run:
                codes, _, errs = run.wait(120)
                assert codes == [0], errs
                assert run.agent.resumed == {0: [begin]}
                assert run.agent.saving == {0: [1, 0] * 2}
                assert run.agent.saved == {0: [begin + 5, begin + 10]}
