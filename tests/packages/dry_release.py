# SPDX-License-Identifier: Apache-2.0
"""Makes a release dry, from a clean clone, by the page's command."""

import os
import platform
import shutil
import subprocess

import pytest

import pages
from harness import TOP

ARCH = platform.machine()


def git(*words, cwd=TOP):
    return subprocess.run(["git", *words], cwd=cwd, capture_output=True, text=True)


def release(made, clone, tools, with_libraries):
    """The folder of the release, and what the command printed; with_libraries: those of the other build are taken over, which spares half a minute."""
    if git("rev-parse", "--show-toplevel").stdout.strip() != str(TOP):
        pytest.skip("these sources are not a clone")
    changed = git("status", "--porcelain").stdout
    if changed:
        pytest.skip(f"not on this machine: the sources are not as in the commit:\n{changed}")
    tools.run("git", "clone", "-q", TOP, clone)
    work = clone / "build/release/work/python"
    work.mkdir(parents=True)
    (work / "venv").symlink_to(made / "venv")
    if with_libraries:
        for name in ("libraries", "source"):
            shutil.copytree(made / ARCH / name, work / ARCH / name, symlinks=True)
        for file in (work / ARCH / "libraries/lib/pkgconfig").iterdir():
            if not file.is_symlink():
                file.write_text(file.read_text().replace(str(made / ARCH), str(work / ARCH)))
    (command,) = pages.lines("deploy/guide/releases.md", "dry")
    return clone / "build/release", tools.run("sh", "-c", f"{command} --arch {ARCH} --sources {made}/sources", cwd=clone, env=plain())


def plain():
    return {k: v for k, v in os.environ.items() if not k.startswith(("DEB", "SOURCE_DATE_EPOCH"))}
