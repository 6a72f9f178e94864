# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/run: that the command works which will measure on a GPU. What it measures here, on a CPU with tiny sizes, means nothing."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import time
from types import SimpleNamespace

import pages
import pytest

from harness import BUILD, TOP

sys.path.insert(0, str(TOP / "tests/gpu"))

import kills  # noqa: E402
import pack  # noqa: E402
import perf  # noqa: E402
import sanitize  # noqa: E402
import steps  # noqa: E402
import work  # noqa: E402
from standins import NSYS, SANITIZER  # noqa: E402

RUN = TOP / "tests/gpu/run"
FAKE = BUILD / "tests/fakegpu/rdzv-cuda-fake.so"
on_stand_ins = pytest.mark.skipif(not FAKE.exists(), reason="not on this machine: the stand-ins for a GPU are built where CUDA's and NCCL's headers are")
NOT_ON_A_CPU = {**dict.fromkeys(("coll-1", "coll-2", "coll-3", "coll-4", "pairs", "sanitize", "sanitize-seam", "trace"), "this machine has no GPU"),
                **dict.fromkeys(("devices", "busy"), "nvidia-smi is not installed"), "kill-memory": "nvidia-smi says nothing of a device's memory", **dict.fromkeys(("perf-mlp", "perf-wide"), "rehearsed by perf-autoencoder")}


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


def test_all_deadlines_fit_half_an_hour():
    loader = importlib.machinery.SourceFileLoader("gpu_run", str(RUN))
    found = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_run", loader))
    loader.exec_module(found)
    assert found.longest() <= 1800 and set(found.ALONE) < set(found.DEADLINES)
    assert found.longest(["seam", "ranks", "coll-1", "coll-2"]) == 120 and found.longest(["seam", "ranks", "coll-1", "coll-2", "coll-4", "times"]) == 165


@on_stand_ins
def test_dry(tmp_path):
    """The whole order, on stand-ins for all that a GPU's machine has."""
    (line,) = pages.lines("deploy/guide/benchmarks.md", "dry")
    assert line == "tests/gpu/run --dry --build build"
    p = subprocess.Popen([sys.executable, RUN, "--dry", "--build", str(BUILD), "--out", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = p.communicate(timeout=600)[0]
    found = json.loads((tmp_path / "results.json").read_text())["results"]
    assert p.returncode == 0 and list(found) == run("--list").stdout.split(), said
    skipped = {name: r["line"] for name, r in found.items() if r["how"] == "skipped"}
    assert skipped == dict.fromkeys(("perf-mlp", "perf-wide"), "rehearsed by perf-autoencoder") and all(r["how"] in ("ok", "skipped") for r in found.values()), said
    assert found["devices"]["figures"]["devices"] == 1 and found["ras"]["figures"]["verdict"]["rank"] == 1
    assert len(set(map("{:.6g}".format, found["torch-nccl"]["figures"].values()))) == 1
    for name in "nvidia-smi-q.out", "nvidia-smi-topo.out", "ldd.out":
        assert (tmp_path / "smoke" / name).stat().st_size, name


def test_the_runtime_may_be_the_wheels(tmp_path):
    """A toolkit with the compiler alone; the wheel of another release does not count."""
    for name, text in {"home/bin/nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n", "site/nvidia/cu12/lib/libcudart_static.a": "",
                       "site/nvidia/cu12/include/cuda_runtime_api.h": "#define CUDART_VERSION 12080\n"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "home/bin/nvcc").chmod(0o755)
    env = {**os.environ, "CUDA_HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path / "site")}

    def ask():
        said = subprocess.run([sys.executable, TOP / "agent/trainer/gpu/find_cuda.py"], env=env, capture_output=True, text=True, check=True, timeout=60).stdout
        return dict(line.split("=", 1) for line in said.splitlines())

    if not list((pathlib.Path(sys.prefix) / "lib").glob("python3*/site-packages/nvidia/cu13")):
        assert ask()["nvcc"] == ""
    (tmp_path / "site/nvidia/cu12").rename(tmp_path / "site/nvidia/cu13")
    (tmp_path / "site/nvidia/cu13/include/cuda_runtime_api.h").write_text("#define CUDART_VERSION 13000\n")
    found = ask()
    assert found["nvcc"] == str(tmp_path / "home/bin/nvcc") and found["cudart"] == str(tmp_path / "site/nvidia/cu13/lib/libcudart_static.a") and found["major"] == "13"


BUILDS = r"""#!/bin/sh
case "$1" in
-C) [ -e "$BUILDS/relaxed" ] || { echo "error: a warning" >&2; exit 1; } ;;
configure) case "$*" in *werror=false) touch "$BUILDS/relaxed" ;; esac ;;
setup) mkdir -p "$2"; touch "$2/build.ninja" ;;
esac
exit 0
"""


def test_a_build_that_warns_is_made_without_werror(tmp_path, monkeypatch):
    for name in "meson", "ninja":
        (tmp_path / name).write_text(BUILDS)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("BUILDS", str(tmp_path))
    one = work.Work(SimpleNamespace(rehearse=True, cuda_module=None, out=str(tmp_path / "out"), build=None, deps=None))
    one.build, one.step, one.deadline = tmp_path / "build", "build", time.monotonic() + 60
    monkeypatch.setattr(one, "program", lambda name: "/bin/true")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(one, "env", lambda **more: dict(os.environ))
    assert "without -Werror" in steps.build(one)[0] and (tmp_path / "relaxed").exists()


def test_an_import_that_was_too_slow_is_tried_again(tmp_path, monkeypatch):
    one = work.Work(SimpleNamespace(rehearse=True, cuda_module=None, out=str(tmp_path), build=str(tmp_path), deps=None))
    said = iter([work.Fail("torch-facts did not end in time"), [{"torch": "2.11.0"}]])

    def torch(*_):
        answer = next(said)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(work.Work, "torch", torch)
    assert "did not end in time" in one.fork().lacks_torch()
    assert one.fork().lacks_torch() is None and one.of_torch["torch"] == "2.11.0"


@pytest.mark.parametrize("devices, world, several", [(0, 2, False), (1, 2, False), (2, 2, True), (8, 4, True)])
def test_with_several_gpus_each_rank_has_one_and_they_are_one_host(tmp_path, monkeypatch, devices, world, several):
    one, began = work.Work(SimpleNamespace(rehearse=True, cuda_module=None, out=str(tmp_path), build=str(tmp_path), deps=None)), []
    one.devices = devices
    monkeypatch.setattr(one, "program", lambda name: name)
    monkeypatch.setattr(one, "start", lambda argv, log, env: began.append(env))
    work.Job(one, world, [], "job")
    assert [env.get("NCCL_HOSTID") for env in began] == [None if several else f"node-{i}" for i in range(world)]
    assert [env.get("CUDA_VISIBLE_DEVICES") for env in began] == [str(i) if several else os.environ.get("CUDA_VISIBLE_DEVICES") for i in range(world)]
    assert all(("NCCL_IB_DISABLE" in env) != several for env in began)


@on_stand_ins
def test_kills_on_a_device_that_runs_ahead(tmp_path):
    """Rank 0 may take lines with it; nothing else may be missing. The device's memory is what this nvidia-smi says."""
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\ncase $1 in *memory*) echo 1000 ;; *) echo stand-in, 1 ;; esac\n")
    smi.chmod(0o755)
    p = run("--rehearse", "--build", BUILD, "--cuda-module", FAKE, "--only", "coll-2,kill", "--out", tmp_path / "out", PATH=f"{smi.parent}:{os.environ['PATH']}")
    assert p.returncode == 0, p
    results = json.loads((tmp_path / "out/results.json").read_text())["results"]
    assert results["coll-2"]["figures"] == {"nccl": 1}
    assert results["kill-restart"]["figures"]["kills"] == results["kill-inplace"]["figures"]["kills"] == 2
    assert {name: v["kills"] for name, v in results["kill-staggered"]["figures"].items()} == {"3 ranks": 2, "4 ranks": 2}
    figures = results["kill-memory"]["figures"]
    assert figures["survivors_mib"] == {"rank 0": [1000] * 3, "rank 1": [1000] * 3} and figures["memory_left_mib"] == 0


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
    p = run("--rehearse", "--build", BUILD, "--cuda-module", FAKE, "--only", "sanitize,sanitize-seam", "--out", tmp_path / "out", PATH=f"{tmp_path}:{os.environ['PATH']}", HOW=how)
    assert re.search(rf"^{result} +sanitize ", p.stdout, re.M) and words in p.stdout, p


INITCHECK = """========= Uninitialized __global__ memory read of size 4 bytes
=========     at {}+0x1d0
=========     by thread (0,0,0) in block (0,0,0)
========= ERROR SUMMARY: 1 error
"""


@pytest.mark.parametrize("kernel, check, words", [
    ("void squared_kernel<float>(squared, finish, const T1 *)", "initcheck", "ERROR SUMMARY: 1 error in squared_kernel"),
    ("void squared_kernel<float>(squared, finish, const T1 *)", "memcheck", "ERROR SUMMARY: 1 error in squared_kernel"),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "initcheck", ""),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "memcheck", "ERROR SUMMARY: 1 error"),
])
def test_only_initcheck_lets_libraries_read_what_they_ignore(kernel, check, words):
    log = INITCHECK.format(kernel)
    assert sanitize.verdict(check, sanitize.re.search(r"ERROR SUMMARY: (\d+) \w+", log), log, True) == words


NCU = r"""#!/bin/sh
echo '==PROF== Connected to process 1'
echo '"ID","Process ID","Kernel Name","gpu__time_duration.sum"'
echo '"","","","us"'
for us in 1.0 3.0 2.0; do echo "\"0\",\"1\",\"decide_kernel(kernel_decide, unsigned long, kernel_scratch *)\",\"$us\""; done
"""


@on_stand_ins
@pytest.mark.parametrize("how, tools, result, words", [
    ("well", {"nsys": NSYS, "ncu": NCU}, "ok", "by nsys, the most time first: update_kernel 2.0 us x 60, decide_kernel 1.5 us x 60"),
    ("fails", {"nsys": NSYS, "ncu": NCU}, "ok", "by ncu, the most time first: decide_kernel 2.0 us x 3"),
    ("fails", {"nsys": NSYS, "ncu": "#!/bin/sh\nexit 9\n"}, "skipped", "no permission"),
])
def test_a_trace(tmp_path, how, tools, result, words):
    for name, text in tools.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    p = run("--rehearse", "--build", BUILD, "--cuda-module", FAKE, "--only", "trace", "--out", tmp_path / "out", "--pack", tmp_path / "pack",
            PATH=f"{tmp_path}:{os.environ['PATH']}", HOW=how)
    assert p.stdout.split()[0] == result and words in p.stdout, p
    with tarfile.open(tmp_path / "pack") as tar:
        assert ("trace/replay.nsys-rep" in tar.getnames()) == (how == "well")


@on_stand_ins
def test_without_pytorch(tmp_path):
    """Nor NumPy: an interpreter that sees no packages at all. Our time and the device's rates are told, and what is missing."""
    argv = ["run", "--rehearse", "--build", str(BUILD), "--cuda-module", str(FAKE), "--only", "parity,ranks,perf", "--out", str(tmp_path)]
    code = f"import runpy, sys; sys.argv = {argv!r}; runpy.run_path({str(RUN)!r}, run_name='__main__')"
    p = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=240)
    assert p.returncode == 0, p
    found = json.loads((tmp_path / "results.json").read_text())["results"]
    assert found["parity"]["line"] == "torch is not installed"
    assert "nothing was laid beside PyTorch: torch is not installed" in found["perf-autoencoder"]["line"]
    (row,) = found["perf-autoencoder"]["figures"]["rows"]
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


def test_the_arithmetic_of_the_aims():
    """What perf.py says of an H100: 798 TFLOP/s, 3.0 TB/s."""
    model = perf.WIDE
    rates = {"products_ms": sum(2 * m * k * n for m, k, n in perf.products(model)) / 798e12 * 1e3, "copy_bytes_per_s": 3.0e12}
    params = 2 * 8192 * 8193
    assert round(rates["products_ms"], 2) == 6.89
    assert round(params * perf.ADAM_BYTES["bf16"] / 3e12 * 1e3, 2) == 1.34
    assert round(rates["products_ms"] / (rates["products_ms"] + params * perf.ADAM_BYTES["bf16"] / 3e12 * 1e3), 2) == 0.84
    assert round(rates["products_ms"] / perf.floor_ms(model, "bf16", rates), 2) == 0.78


def finished(out, pack_at):
    with tarfile.open(pack_at) as tar:
        packed = json.load(tar.extractfile("results.json"))
    assert packed == json.loads((out / "results.json").read_text())
    return {name: r["how"] for name, r in packed["results"].items()}


def test_pieces_are_put_together(tmp_path):
    """A step that has no room is named, with the command for it; the next call, with a folder of its own, carries the first one's results in."""
    one, two = tmp_path / "one", tmp_path / "two"
    common = ["--rehearse", "--build", BUILD, "--only", "sanitize-seam,coll-3,trace", "--pack", tmp_path / "pack"]
    p = run(*common, "--out", one, "--limit", 100)
    assert p.returncode == 0 and finished(one, tmp_path / "pack") == {"sanitize-seam": "skipped", "trace": "skipped"}, p
    assert "left, since --limit 100 had no room for them: coll-3; go on with:" in p.stdout
    words = p.stdout.splitlines()[-1].split()
    assert words[0] == "tests/gpu/run" and words[-4:] == ["--only", "coll-3", "--carry", str(tmp_path / "pack")] and words.count("--only") == 1
    words[words.index(str(one))] = str(two)
    p = run(*words[1:])
    assert p.returncode == 0 and "left" not in p.stdout, p
    assert finished(two, tmp_path / "pack") == {"sanitize-seam": "skipped", "coll-3": "skipped", "trace": "skipped"}


def test_a_step_that_no_limit_holds_begins_first(tmp_path):
    p = run("--rehearse", "--build", BUILD, "--only", "coll-3", "--out", tmp_path, "--limit", 20)
    assert p.returncode == 0 and p.stdout.startswith("skipped  coll-3 ") and "left" not in p.stdout, p


def test_a_pack_is_small_and_says_what_it_lacks(tmp_path, monkeypatch):
    out = tmp_path / "out"
    (out / "step").mkdir(parents=True)
    for name in pack.RESULTS:
        (out / name).write_text("{}")
    (out / "step/long.log").write_bytes(b"a" * pack.END + b"the end")
    (out / "step/big.nsys-rep").write_bytes(bytes(100))
    (out / "step/weights").write_bytes(bytes(100))
    monkeypatch.setattr(pack, "WHOLE", 99)
    pack.write(out, tmp_path / "pack")
    fresh = tmp_path / "fresh"
    pack.read(tmp_path / "pack", fresh)
    assert sorted(str(f.relative_to(fresh)) for f in fresh.rglob("*") if f.is_file()) == ["left-out.txt", "results.json", "results.md", "step/long.log"]
    assert (fresh / "left-out.txt").read_text() == "step/big.nsys-rep\n"
    assert (fresh / "step/long.log").stat().st_size == pack.END and (fresh / "step/long.log").read_bytes().endswith(b"athe end")


@pytest.mark.parametrize("names, words", [([], "no results.json"), (["results.json", "../out"], "names ../out, outside its folder"), (None, "cannot be read")])
def test_a_pack_that_is_none(tmp_path, names, words):
    at = tmp_path / "pack"
    at.write_bytes(b"not a tar file")
    if names is not None:
        with tarfile.open(at, "w:gz") as tar:
            for name in names:
                pack.add(tar, name, b"{}")
    p = run("--rehearse", "--build", BUILD, "--only", "coll", "--out", tmp_path / "results", "--carry", at)
    assert p.returncode == 1 and words in p.stderr and "--carry" in p.stderr, p
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("argv, words", [(["--only", "nothing"], "there is no step nothing"), (["--rehearse"], "needs --build"), (["--deps", "/nowhere"], "is not what --prepare made")])
def test_bad_words_are_refused(argv, words):
    p = run(*argv)
    assert p.returncode == 2 and words in p.stderr
