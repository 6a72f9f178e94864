# SPDX-License-Identifier: Apache-2.0
"""The project folder for OSS-Fuzz: its build.sh makes every target of tests/fuzz, here with clang and the environment that OSS-Fuzz's images set."""

import os
import re
import shutil
import subprocess
import zipfile

import yaml

from harness import TOP, need

FOLDER = TOP / "deploy/oss-fuzz"
CFLAGS = "-O0 -fno-omit-frame-pointer -gline-tables-only -fsanitize=address -fsanitize-address-use-after-scope -fsanitize=fuzzer-no-link"


def test_its_facts():
    project = yaml.safe_load((FOLDER / "project.yaml").read_text())
    assert project["language"] == "c" and project["sanitizers"] == ["address", "undefined"] and project["fuzzing_engines"] == ["libfuzzer"]
    assert {"homepage", "primary_contact", "main_repo"} <= set(project)
    image = (FOLDER / "Dockerfile").read_text()
    assert project["main_repo"] in image and "COPY build.sh $SRC/" in image


def test_every_target_is_built_and_runs(tmp_path, tools):
    need("clang", shutil.which("clang"))
    source, out, work = tmp_path / "src/rdzv", tmp_path / "out", tmp_path / "work"
    tools.run(TOP / "deploy/sources", source)
    out.mkdir()
    work.mkdir()
    env = {**os.environ, "CC": "clang", "CXX": "clang++", "CFLAGS": CFLAGS, "CXXFLAGS": CFLAGS, "LIB_FUZZING_ENGINE": "-fsanitize=fuzzer", "SRC": str(source.parent), "OUT": str(out), "WORK": str(work)}
    tools.run("bash", FOLDER / "build.sh", cwd=source, env=env)
    names = set(re.findall(r"(?m)^  '(\w+)': ", (TOP / "tests/fuzz/meson.build").read_text()))
    assert len(names) > 15 and {f.name for f in out.iterdir()} == {"lib"} | {f"fuzz_{n}" for n in names} | {f"fuzz_{n}_seed_corpus.zip" for n in names}
    for name in names:
        program = out / f"fuzz_{name}"
        foreign = [m for m in re.findall(r"=> (\S+)", tools.run("ldd", program)) if not re.search(r"/lib(c|m|dl|rt|pthread|gcc_s|resolv|stdc\+\+)\.so", m)]
        assert all(f.startswith(f"{out}/") for f in foreign), foreign
        with zipfile.ZipFile(f"{program}_seed_corpus.zip") as corpus:
            corpus.extractall(tmp_path / name)
        done = subprocess.run([program, "-runs=200", tmp_path / name], capture_output=True, text=True)
        assert done.returncode == 0 and "INITED cov:" in done.stderr, done.stderr[-3000:]
