#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The version is in meson.build alone: no file states another one, a file that does is named, and what we build states it.

usage: test_version.py SOURCE_ROOT BUILD_ROOT PROGRAM...
"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

NEW = "7.8.9"
# Where another version must be found, each alone: the file, and what stands there.
PLANTED = [
    ("agent/sdk/rdzv.h", "RDZV_VERSION       \"{}\""),
    ("agent/sdk/rdzv.h", "RDZV_VERSION_MINOR {minor}"),
    ("deploy/rpm/rdzv.spec", "Version:        {}"),
    ("deploy/rpm/rdzv.spec", " - {}-1"),
    ("deploy/conda/recipe.yaml", 'version: "{}"'),
    ("deploy/spack/spack_repo/rdzv/packages/rdzv/package.py", 'version("{}"'),
    ("deploy/spack/spack_repo/rdzv/packages/rdzv/package.py", 'tag="v{}"'),
    ("deploy/kubernetes/jobset.yaml", "rdzv:{}"),
    ("deploy/packages.md", "rdzv-{}-linux"),
    ("deploy/python/README.md", "rdzv_trainer-{}-py3"),
    ("NEWS.md", "## {} ("),
]


def check(tree):
    return subprocess.run([tree / "deploy/version"], capture_output=True, text=True)


def main():
    root, build, *programs = map(pathlib.Path, sys.argv[1:])
    done = check(root)
    assert done.returncode == 0, done.stderr
    version = done.stdout.strip()
    for program in programs:
        said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
        assert re.search(rf"\b{re.escape(version)}\b", said), f"{program} --version prints {said!r}"
    for made in ("meson-private/rdzv.pc", "deploy/manual/rdzv-agent.1"):
        assert not (build / made).exists() or version in (build / made).read_text(), f"{made} does not state {version}"
    with tempfile.TemporaryDirectory(prefix="rdzv-version-") as folder:
        tree = pathlib.Path(folder)
        for name in ("agent/sdk", "deploy", "meson.build", "NEWS.md", "README.md"):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (root / name).is_dir() else shutil.copy)(root / name, tree / name)
        assert check(tree).returncode == 0, check(tree).stderr
        minor = int(version.split(".")[1])
        for file, text in PLANTED:
            old, new = text.format(version, minor=minor), text.format("6.5.4", minor=minor + 1)
            before = (tree / file).read_text()
            assert old in before, f"{file} has no {old}"
            (tree / file).write_text(before.replace(old, new, 1))
            done = check(tree)
            assert done.returncode == 1 and file in done.stderr, f"{new} in {file} is not found: {done}"
            (tree / file).write_text(before)
        # A new version is written everywhere, and NEWS.md must have it.
        subprocess.run([tree / "deploy/version", "--set", NEW], check=True)
        assert check(tree).stderr.count("\n") == 2 and f'NEWS.md: there is no section "## {NEW} ' in check(tree).stderr, check(tree)
        news = (tree / "NEWS.md").read_text()
        (tree / "NEWS.md").write_text(news.replace(f"## {version} ", f"## {NEW} (2031-02-03)\n\n- **More.** A line.\n\n## {version} ", 1))
        assert check(tree).stdout == f"{NEW}\n", check(tree)
        changelog = subprocess.run([tree / "deploy/version", "--changelog"], capture_output=True, text=True, check=True).stdout
        assert changelog.startswith(f"rdzv ({NEW}) unstable; urgency=medium\n\n  * More. A line.\n\n -- rdzv developers <maintainers@rdzv.invalid>  Mon, 03 Feb 2031 12:00:00 +0000\n\nrdzv ({version}) ")
        assert max(map(len, changelog.splitlines())) <= 80
        wrong = subprocess.run([tree / "deploy/version", "--set", "1.2"], capture_output=True, text=True)
        assert wrong.returncode == 1 and "--set 1.2: a version has three numbers" in wrong.stderr, wrong


if __name__ == "__main__":
    main()
