#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds CUDA, cuBLASLt and NCCL. Prints one `name=value` per line for meson, and what is missing as `missing=...`.

The first of these places wins, for each part alone, because a system may have the compiler without the libraries:

  CUDA_HOME, CUDA_PATH     the toolkit; then the folder above the nvcc in PATH, then /usr/local/cuda
  NCCL_HOME                NCCL; then pkg-config, the system's own folders, the toolkit
  wheels from PyPI         nvidia-cublas and nvidia-nccl-cu13, which contain headers and libraries; of nvidia-cuda-runtime those of the
                           runtime, where the toolkit has only the compiler

The libraries are named by file (libcublasLt.so.13), because wheels have no links for the linker. The number is that of the toolkit, and
the module must run with it.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

NCCL = "libnccl.so.2"
SYSTEM_LIBS = ["lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib"]
TOOLKIT_LIBS = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"]


def toolkits():
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    if any(named):
        return [pathlib.Path(at) for at in named if at]
    at = shutil.which("nvcc")
    real = [pathlib.Path(at).resolve().parent.parent] if at else []
    return real + [pathlib.Path("/usr/local/cuda")]


def wheels():
    """The folders of the namespace package `nvidia`, of the python in PATH, into which wheels are installed."""
    python = shutil.which("python3") or sys.executable
    try:
        out = subprocess.run([python, "-c", "import nvidia; print(*nvidia.__path__, sep='\\n')"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [pathlib.Path(line) for line in out.stdout.splitlines() if out.returncode == 0]


def pair(roots, libs, header, library):
    """(include folder, library file) of the first root that has both."""
    for root in roots:
        for folder in libs:
            include, file = root / "include" / header, root / folder / library
            if include.is_file() and file.is_file():
                return include.parent, file
    return None


def pkg_config(name, header, library):
    found = []
    for variable in ("includedir", "libdir"):
        try:
            out = subprocess.run(["pkg-config", f"--variable={variable}", name], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found.append(pathlib.Path(out.stdout.strip() or "/nowhere"))
    include, lib = found
    return (include, lib / library) if (include / header).is_file() and (lib / library).is_file() else None


def runtime(root):
    include, static = root / "include", [root / lib / "libcudart_static.a" for lib in TOOLKIT_LIBS]
    static = [at for at in static if at.is_file()]
    return {"cuda_include": include, "cudart": static[0]} if (include / "cuda_runtime_api.h").is_file() and static else None


def release(nvcc):
    """13, of nvcc 13.0."""
    try:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    found = re.search(r"release (\d+)", said)
    return int(found[1]) if found else 0


def find_toolkit(nvidia):
    for root in toolkits():
        nvcc = root / "bin/nvcc"
        if not nvcc.is_file():
            continue
        found = runtime(root)
        for at in nvidia if not found else []:
            found = found or runtime(at / f"cu{release(nvcc)}")
        if found:
            return {"nvcc": nvcc, "root": root, **found}
    return None


def major(include):
    """13, from `#define CUDART_VERSION 13000`."""
    found = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", (include / "cuda_runtime_api.h").read_text(errors="replace"))
    return int(found[1]) // 1000 if found else 0


def find_cublas(roots, nvidia, version):
    library = f"libcublasLt.so.{version}"
    found = pair(roots, TOOLKIT_LIBS, "cublasLt.h", library) or pair([pathlib.Path("/usr")], SYSTEM_LIBS, "cublasLt.h", library)
    return found or pair([at / folder for at in nvidia for folder in (f"cu{version}", "cublas")], ["lib"], "cublasLt.h", library)


def find_nccl(roots, nvidia):
    home = os.environ.get("NCCL_HOME")
    if home:
        return pair([pathlib.Path(home)], SYSTEM_LIBS, "nccl.h", NCCL)
    return (pkg_config("nccl", "nccl.h", NCCL) or pair([pathlib.Path("/usr"), pathlib.Path("/usr/local")], SYSTEM_LIBS, "nccl.h", NCCL)
            or pair(roots, TOOLKIT_LIBS, "nccl.h", NCCL) or pair([at / "nccl" for at in nvidia], ["lib"], "nccl.h", NCCL))


def main():
    nvidia = wheels()
    toolkit = find_toolkit(nvidia)
    roots = [toolkit["root"]] if toolkit else []
    version = major(toolkit["cuda_include"]) if toolkit else 13
    cublas, nccl = find_cublas(roots, nvidia, version), find_nccl(roots, nvidia)
    missing = [] if toolkit and version >= 12 else ["nvcc 12 or 13 with the runtime's headers (set CUDA_HOME)"]
    missing += [] if cublas else [f"cublasLt.h with libcublasLt.so.{version} (pip install nvidia-cublas)"]
    missing += [] if nccl else [f"nccl.h with {NCCL} (set NCCL_HOME, or pip install nvidia-nccl-cu13)"]
    if missing:
        print("missing=" + ", ".join(missing))
    print(f"major={version}")
    for name in ("nvcc", "cuda_include", "cudart"):
        print(f"{name}={toolkit[name] if toolkit else ''}")
    for name, at in (("cublas", cublas), ("nccl", nccl)):
        print(f"{name}_include={at[0] if at else ''}")
        print(f"{name}_library={at[1] if at else ''}")
        print(f"{name}_folder={at[1].parent if at else ''}")


main()
