# SPDX-License-Identifier: Apache-2.0
"""rdzv-trainer --device and --precision, on any machine: what is said where CUDA is not to be had, and who is named where ranks differ."""

import os
import pathlib
import subprocess

import pytest

from harness import BUILD

TRAINER = BUILD / "agent/trainer/rdzv-trainer"
MODULE = BUILD / "agent/trainer/gpu/rdzv-cuda.so"
SMALL = ["--layers", "8,4,8", "--data", "synthetic:64", "--batch", "8", "--steps", "3", "--report-every", "0"]

pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="rdzv-trainer is not built")


def train(*options, env=None):
    out = subprocess.run([TRAINER, *SMALL, *options], capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})})
    return out.returncode, out.stdout, out.stderr


def have_driver():
    return subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout.count("libcuda.so.1") > 0 or pathlib.Path("/dev/nvidiactl").exists()


def checksum(*options):
    rc, out, err = train(*options)
    assert rc == 0, err
    return out.split("checksum ")[1].strip()


def test_auto_is_the_cpu_where_nothing_of_cuda_is_there():
    if have_driver():
        pytest.skip("not on this machine: it has a driver")
    rc, _, err = train()
    assert rc == 0 and "CUDA" not in err


def test_cuda_says_what_is_missing():
    if have_driver():
        pytest.skip("not on this machine: it has a driver")
    rc, _, err = train("--device", "cuda")
    assert rc == 71
    assert "no NVIDIA driver" in err if MODULE.exists() else "rdzv-cuda.so is neither beside this program" in err


@pytest.mark.skipif(not MODULE.exists(), reason="not on this machine: rdzv-cuda.so is built where CUDA is")
def test_auto_says_why_not_where_a_module_is_named():
    if have_driver():
        pytest.skip("not on this machine: it has a driver")
    rc, _, err = train("--cuda-module", str(MODULE))
    assert rc == 0 and "because CUDA is not available: no NVIDIA driver" in err


def test_a_module_that_is_not_there_is_named():
    for device in ("auto", "cuda"):
        rc, _, err = train("--device", device, "--cuda-module", "/nowhere/rdzv-cuda.so")
        assert rc == 71 and "/nowhere/rdzv-cuda.so" in err


def compile_module(folder, text, *args):
    at = folder / "rdzv-cuda.so"
    (folder / "m.c").write_text(text)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", at, folder / "m.c", *args], check=True)
    return str(at)


def test_what_is_no_module_of_this_build_is_refused(tmp_path):
    rc, _, err = train("--device", "cuda", "--cuda-module", compile_module(tmp_path, "int x;"))
    assert rc == 71 and "not a module of rdzv-trainer" in err
    rc, _, err = train("--device", "cuda", "--cuda-module", compile_module(tmp_path, "const unsigned rdzv_gpu[16] = {4711};"))
    assert rc == 71 and "belongs to another build (its ABI is 4711" in err


def test_a_library_that_is_missing_comes_with_advice(tmp_path):
    """A module that needs a libcublasLt which is gone when it is opened, and one for NCCL."""
    for name, advice in (("libcublasLt.so.13", "nvidia-cublas"), ("libnccl.so.2", "nvidia-nccl-cu13")):
        library = tmp_path / name
        subprocess.run(["cc", "-shared", "-fPIC", "-xc", "/dev/null", f"-Wl,-soname,{name}", "-o", library], check=True)
        module = compile_module(tmp_path, "int x;", "-Wl,--no-as-needed", str(library))
        library.unlink()
        rc, _, err = train("--device", "cuda", "--cuda-module", module)
        if "not a module of rdzv-trainer" in err:
            continue  # the loader knows such a library from elsewhere
        assert rc == 71 and name in err and advice in err


def test_precision_changes_what_is_computed():
    fp32, bf16 = (checksum("--device", "cpu", "--precision", p) for p in ("fp32", "bf16"))
    assert fp32 != bf16
    assert fp32 == checksum("--device", "cpu", "--deterministic")


def test_ranks_of_different_precision_are_named(tmp_path):
    script = tmp_path / "rank.sh"
    script.write_text(f'#!/bin/sh\n[ "$RANK" = 1 ] && p=bf16 || p=fp32\nexec {TRAINER} {" ".join(SMALL)} --device cpu --precision $p\n')
    script.chmod(0o755)
    out = subprocess.run([BUILD / "agent/rdzv-agent", "--standalone", "--nproc", "2", "--max-restarts", "0", "--", script], capture_output=True, text=True,
                         timeout=60)
    said = out.stdout + out.stderr
    assert out.returncode == 64, said
    assert "rank 1 computes on cpu in bf16, but rank 0 on cpu in fp32" in said or "rank 0 computes on cpu in fp32, but rank 1 on cpu in bf16" in said
