# SPDX-License-Identifier: Apache-2.0
"""The installed files: by meson in a prefix without root, and as Debian packages. The harness is that of the end-to-end tests, by whose rules all
of it runs: everything is bounded in time, and nothing survives."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
sys.path.insert(0, str(HERE))

import deadlines  # noqa: E402
import dry_release  # noqa: E402
import machine  # noqa: E402
import pages  # noqa: E402
from harness import TOP, need  # noqa: E402

DEBIAN_BUILD = "deploy/debian/build"
DEBIAN_TOOLS = {"dpkg-buildpackage": "dpkg-dev", "dh": "debhelper", "lintian": "lintian", "chrpath": "chrpath"}

_spec = importlib.util.spec_from_file_location("e2e_conftest", HERE.parent / "e2e/conftest.py")
e2e = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(e2e)
pytest_runtest_makereport = e2e.pytest_runtest_makereport
rdzv = e2e.rdzv


def pytest_configure(config):
    deadlines.configure(config)
    config.addinivalue_line("markers", "fresh: on a machine made for it, in minutes; only with --fresh")


def pytest_addoption(parser):
    parser.addoption("--fresh", action="store_true", help="those on a fresh machine, and no others")


def pytest_collection_modifyitems(config, items):
    items[:] = [i for i in items if bool(i.get_closest_marker("fresh")) == config.getoption("--fresh")]
    for item in items:  # they build packages, or a machine
        item.add_marker(pytest.mark.deadline(1500))


@pytest.fixture(scope="session", autouse=True)
def config(tmp_path_factory):
    """What packages install finds its key here, and not in the home directory of the user who tests."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


def run(*argv, **kw):
    """A command that has to succeed; its output, both streams together. The test's deadline is its only bound: beside other steps a build takes long."""
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    assert done.returncode == 0, f"{' '.join(map(str, argv))}: exit {done.returncode}\n{done.stdout[-6000:]}"
    return done.stdout


def files(folder):
    """All files and links below a folder, relative to it."""
    found = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return {str(f.relative_to(folder)) for f in found}


def manual(folder, chapter, name):
    """What `man` finds there."""
    if not shutil.which("man"):
        pytest.skip("man is not installed")
    return run("man", "-M", folder, chapter, name, env={**os.environ, "MANPAGER": "cat", "MANWIDTH": "80", "LANG": "C.UTF-8"})


def worker_in_c():
    """The program of the guide's page on workers in C."""
    return pages.c_block("deploy/guide/worker-in-c.md", "int main")


@pytest.fixture(scope="session")
def folder():
    why = machine.missing()
    if why:
        pytest.skip(why)
    folder = Path(tempfile.mkdtemp(prefix="rdzv-fresh-"))
    folder.chmod(0o755)
    mounts = Path("/proc/mounts").read_text()
    try:
        yield folder
        assert str(folder) not in Path("/proc/mounts").read_text(), "something is still mounted"
    finally:
        if str(folder) in mounts + Path("/proc/mounts").read_text():
            raise AssertionError(f"{folder} is left alone: something is mounted in it")
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def base(folder):
    """Debian's base system with its package lists, and an ordinary user."""
    root = folder / "base"
    machine.bootstrap(root)
    m = machine.Machine(root)
    m.run("apt-get update -q && useradd --create-home --shell /bin/bash anna")
    m.close()
    return root


@pytest.fixture(scope="session")
def tools():
    return SimpleNamespace(run=run, files=files, worker_in_c=worker_in_c, manual=manual, cuda_is_here=cuda_is_here)


@pytest.fixture(scope="session")
def made(tools):
    """The folder with the wheels and the tarballs, for both architectures."""
    need("python3-venv", importlib.util.find_spec("ensurepip"))
    out = TOP / "build/test/python"
    (command,) = pages.lines("deploy/python/README.md", "build")
    tools.run("sh", "-c", f"{command} --out {out}", cwd=TOP)
    return out


def environment():
    """CUDA's libraries may be wheels of the python that runs the tests."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DEB")}
    return {**env, "RDZV_CUDA_ARCH": "90", "PATH": os.path.dirname(sys.executable) + ":" + env["PATH"]}


def cuda_is_here():
    at = subprocess.run([sys.executable, TOP / "agent/trainer/gpu/find_cuda.py"], capture_output=True, text=True, check=True, env=environment())
    return "missing=" not in at.stdout


@pytest.fixture(scope="session")
def built(tmp_path_factory, tools):
    """(folder, what the script said)"""
    absent = [package for tool, package in DEBIAN_TOOLS.items() if not shutil.which(tool)]
    if absent:
        pytest.skip(f"not installed: {' '.join(absent)}")
    command = pages.block("deploy/packages.md", "cuda").strip() if cuda_is_here() else DEBIAN_BUILD
    work = tmp_path_factory.mktemp("built") / "debian"
    done = subprocess.run(["sh", "-c", f"{command} --out {work}"], cwd=TOP, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert list(work.glob("*.changes")), done.stdout
    return work, done.stdout


@pytest.fixture(scope="session")
def dry(made, tmp_path_factory, tools):
    """A release, made dry from a clean clone: (its folder, what the command printed). Its packages are those without CUDA, as most people build them."""
    need("dpkg-buildpackage")
    return dry_release.release(made, tmp_path_factory.mktemp("elsewhere") / "a" / "clone", tools, with_libraries=True)
