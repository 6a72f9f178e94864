"""tests/gpu/run: that the command works which will measure on a GPU. What it measures here, on a CPU with tiny sizes, means nothing."""

import json
import os
import pathlib
import subprocess
import sys

import pages
import pytest

from harness import BUILD, TOP

RUN = TOP / "tests/gpu/run"
NOT_ON_A_CPU = {"sanitize": "there is no device"}


def run(*argv):
    return subprocess.run([sys.executable, RUN, *map(str, argv)], capture_output=True, text=True, timeout=240)


def test_every_step_can_be_rehearsed(tmp_path):
    (command,) = pages.lines("README.md", "rehearse")
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
