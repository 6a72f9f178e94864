# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run: that the command works which will measure on a GPU. What it measures here, on a CPU with tiny sizes, means nothing."""

import json
import os
import pathlib
import subprocess
import sys

import pages
import pytest

from harness import BUILD, TOP

sys.path.insert(0, str(TOP / "tests/gpu"))

import kills  # noqa: E402
import work  # noqa: E402

RUN = TOP / "tests/gpu/run"
FAKE = BUILD / "tests/fakegpu/rdzv-cuda-fake.so"
on_stand_ins = pytest.mark.skipif(not FAKE.exists(), reason="not on this machine: the stand-ins for a GPU are built where CUDA's and NCCL's headers are")
NOT_ON_A_CPU = {"coll": "there is no device", "sanitize": "there is no device"}


def run(*argv, **env):
    return subprocess.run([sys.executable, RUN, *map(str, argv)], capture_output=True, text=True, timeout=240, env={**os.environ, **env})


def test_every_step_can_be_rehearsed(tmp_path):
    (command,) = pages.lines("deploy/guide/benchmarks.md", "rehearse")
    argv = pages.with_changes(command, [("tests/gpu/run", f"exec {sys.executable} {RUN}"), ("--build build", f"--build {BUILD}")])
    p = subprocess.Popen(["sh", "-c", f"{argv} --out {tmp_path}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = p.communicate(timeout=240)[0]
    finally:
        p.terminate()
        p.wait(30)
    assert p.returncode == 0, said
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found["results"]) == run("--list").stdout.split()
    for name, r in found["results"].items():
        assert (r["how"], r["line"]) == ("skipped", NOT_ON_A_CPU[name]) if name in NOT_ON_A_CPU else r["how"] == "ok", (name, r)
    table = (tmp_path / "results.md").read_text()
    assert found["facts"]["PyTorch"] in table and "| 64-32-64, batch 16, fp32 |" in table
    # Nothing of it is left: everything that it starts carries its mark.
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            assert f"GPURUN_MARK=gpurun-{p.pid}-".encode() not in pathlib.Path(f"/proc/{name}/environ").read_bytes(), pathlib.Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue


@on_stand_ins
def test_kills_on_a_device_that_runs_ahead(tmp_path):
    """Rank 0 may take lines with it; nothing else may be missing. The device's memory is what this nvidia-smi says."""
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\ncase $1 in *memory*) echo 1000 ;; *) echo stand-in, 1 ;; esac\n")
    smi.chmod(0o755)
    p = run("--rehearse", "--build", BUILD, "--cuda-module", FAKE, "--only", "coll,kill", "--out", tmp_path / "out", PATH=f"{smi.parent}:{os.environ['PATH']}")
    assert p.returncode == 0, p
    results = json.loads((tmp_path / "out/results.json").read_text())["results"]
    assert results["coll"]["figures"] == {"nccl": 1, "seam-1": 3}
    figures = results["kill"]["figures"]
    assert figures["restart"]["kills"] == figures["inplace"]["kills"] == 2
    assert figures["survivors_mib"] == {"rank 0": [1000] * 3, "rank 1": [1000] * 3} and figures["memory_left_mib"] == 0


SANITIZER = r"""#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
case "$HOW $1" in
"nothing "*) echo "no permission" >&2; exit 1 ;;
"crash "*rdzv-trainer) echo "Segmentation fault" >&2 ;;
"errors "*rdzv-trainer) "$@"; echo "========= ERROR SUMMARY: 3 errors"; exit 99 ;;
*) "$@" ;;
esac
echo "========= ERROR SUMMARY: 0 errors"
"""


@on_stand_ins
@pytest.mark.parametrize("how, result, words", [
    ("well", "ok", "memcheck fp32, memcheck bf16, racecheck fp32, racecheck bf16: clean"),
    ("crash", "FAILED", "memcheck, fp32: ERROR SUMMARY: 0 errors, and the run did not end well"),
    ("errors", "FAILED", "memcheck, fp32: ERROR SUMMARY: 3 errors ("),
    ("nothing", "skipped", "memcheck does not work here: no permission"),
])
def test_a_sanitizer(tmp_path, how, result, words):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    p = run("--rehearse", "--build", BUILD, "--cuda-module", FAKE, "--only", "sanitize", "--out", tmp_path / "out", PATH=f"{tmp_path}:{os.environ['PATH']}", HOW=how)
    assert p.stdout.split()[0] == result and words in p.stdout, p


@on_stand_ins
def test_without_pytorch(tmp_path):
    """Nor NumPy: an interpreter that sees no packages at all. Our time and the device's rates are told, and what is missing."""
    argv = ["run", "--rehearse", "--build", str(BUILD), "--cuda-module", str(FAKE), "--only", "parity,ranks,perf", "--out", str(tmp_path)]
    code = f"import runpy, sys; sys.argv = {argv!r}; runpy.run_path({str(RUN)!r}, run_name='__main__')"
    p = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=240)
    assert p.returncode == 0, p
    found = json.loads((tmp_path / "results.json").read_text())["results"]
    assert found["parity"]["line"] == "torch is not installed"
    assert "nothing was laid beside PyTorch: torch is not installed" in found["perf"]["line"]
    (row,) = found["perf"]["figures"]["rows"]
    assert row["ours_ms"] > 0 and row["floor_ms"] > 0 and row["times_eager"] is None


def lines(losses, checksum="aa", round_=1):
    return [{"event": "step", "step": step, "loss": loss, "round": round_} for step, loss in losses.items()] + [{"event": "end", "step": 9, "checksum": checksum}]


CALM = {step: 1 / step for step in range(1, 10)}


def without(*steps):
    return {k: v for k, v in CALM.items() if k not in steps}


@pytest.mark.parametrize("losses, missing", [(CALM, 0), (without(3, 4), 2), (without(3, 4, 7), 3)])
def test_what_a_kill_may_take(losses, missing):
    assert kills.compare("restart", lines(losses), lines(CALM), 2, 2) == missing


@pytest.mark.parametrize("found, words", [
    (lines(without(3, 4, 5)), "took 1 times lines with them, 3 at once"),
    (lines(without(2, 4, 6)), "took 3 times"),
    (lines(without(9)), "last told step 8"),
    (lines({**CALM, 5: 0.21}), "step 5, in round 1, has loss 0.21; undisturbed it is 0.2"),
    (lines({**CALM, 10: 0.1}), "step 10"),
    (lines(CALM, "ab"), "it ended with (9, 'ab')"),
    (lines({5: 0.21})[:1] + lines(CALM, round_=2), "step 5, in round 1"),
])
def test_what_a_kill_may_not_take(found, words):
    with pytest.raises(work.Fail) as e:
        kills.compare("restart", found, lines(CALM), 2, 2)
    assert words in str(e.value)


@pytest.mark.parametrize("used", [(100, 120, 129), (100, 164, 165)])
def test_memory_that_grows_is_told(monkeypatch, used):
    monkeypatch.setattr(kills, "survive", lambda *_: used)
    found, bad = kills.survivors(None, [])
    assert found == {"rank 0": used, "rank 1": used} and [f"{used[2]} behind the second" in words for words in bad] == [True, True]


def test_a_step_that_fails_is_told(tmp_path):
    (tmp_path / "build/agent/trainer").mkdir(parents=True)
    trainer = tmp_path / "build/agent/trainer/rdzv-trainer"
    trainer.write_text("#!/bin/sh\necho the wrong trainer >&2\nexit 3\n")
    trainer.chmod(0o755)
    p = run("--rehearse", "--build", tmp_path / "build", "--out", tmp_path / "out", "--only", "times,seam")
    assert p.returncode == 1
    lines = p.stdout.splitlines()
    assert lines[0].startswith("FAILED   times") and "the wrong trainer" in lines[0]
    assert lines[1].startswith("FAILED   seam") and "test_compute_seam is not built" in lines[1]


@pytest.mark.parametrize("argv, words", [(["--only", "nothing"], "there is no step nothing"), (["--rehearse"], "needs --build"), (["--deps", "/nowhere"], "is not what --prepare made")])
def test_bad_words_are_refused(argv, words):
    p = run(*argv)
    assert p.returncode == 2 and words in p.stderr
