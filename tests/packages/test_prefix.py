# SPDX-License-Identifier: Apache-2.0
"""`meson install` in a prefix by somebody who is not root, as packages.md says; then the sources and the build folder are removed, and all that
runs is what was installed: an agent that finds its daemon, its trainer and its helpers, a worker compiled by pkg-config.

The module for CUDA is not built a second time for this: what the build under test installs with DESTDIR has it."""

import json
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

import pages
from harness import BUILD, TOP, VERSION, free_port

PROGRAMS = {"bin/rdzv-agent", "bin/rdzv-trainer", "bin/rdzvctl", "bin/rdzvd"}
HELPERS = {"libexec/rdzv/librdzv-nccl-profiler.so", "libexec/rdzv/rdzv-claim", "libexec/rdzv/rdzv-devices", "libexec/rdzv/rdzv-kubeflow", "libexec/rdzv/rdzv-nccl"}
LIBRARY = {"LIB/librdzv.a", "LIB/librdzv.so", "LIB/librdzv.so.0", f"LIB/librdzv.so.{VERSION}", "LIB/pkgconfig/rdzv.pc", "include/rdzv.h"}
MODULE = "LIB/rdzv/rdzv-cuda.so"
TEXTS = r"share/(man/man[1-8]/|bash-completion/|zsh/|fish/|rdzv/|doc/rdzv/|modulefiles/rdzv/)|lib/(systemd|sysusers.d)/"
NOBODY = 65534
TRAIN = ["--data", "synthetic:200", "--layers", "8,4,8", "--loss", "rmse", "--batch", "8", "--device", "cpu", "--report-every", "0"]


def places(root):
    """The installed files, with LIB for the folder of libraries, which each distribution names in its own way; without texts."""
    lib = next(root.rglob("librdzv.a")).parent.relative_to(root)
    return {re.sub(f"^{lib}/", "LIB/", f) for f in listed(root) if not re.match(TEXTS, f)}


def listed(root):
    return {str((Path(at) / name).relative_to(root)) for at, _, names in os.walk(root) for name in names}


@pytest.fixture(scope="module")
def home(tools):
    """The home of a user without rights, with rdzv installed in .local and nothing else of it left."""
    home = Path(tempfile.mkdtemp(prefix="rdzv-home-"))  # pytest's own folders are for its user only
    home.chmod(0o755)
    try:
        install(home, tools)
        yield home
    finally:
        shutil.rmtree(home)


def install(home, tools):
    who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    if who:
        os.chown(home, NOBODY, NOBODY)
    env = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "RDZV_TESTS": "no", "RDZV_CUDA_ARCH": "none", "LANG": "C.UTF-8"}
    if os.geteuid() != 0:
        env["PATH"] = os.environ["PATH"]
    if not shutil.which("meson", path=env["PATH"]):
        pytest.skip("meson is not where every user finds it")
    source = home / "rdzv"
    tools.run(TOP / "deploy/sources", source, umask=0o022)
    if who:
        tools.run("chown", "-R", NOBODY, source)
    tools.run("sh", "-ec", pages.block("deploy/packages.md", "prefix"), cwd=source, env=env, **who)
    shutil.rmtree(source)


@pytest.fixture
def prefix(home):
    return home / ".local"


def test_every_file_has_its_place(prefix):
    """That is all that the block `prefix` of the page has made."""
    assert "prefix=" in pages.block("deploy/packages.md", "prefix")
    assert places(prefix) == PROGRAMS | HELPERS | LIBRARY
    for name in listed(prefix):
        mode = (prefix / name).stat().st_mode
        assert not mode & (stat.S_IWGRP | stat.S_IWOTH), f"{name} can be written by others"
        assert bool(mode & 0o111) == (name.startswith(("bin/", "libexec/")) or ".so" in name), f"{name}: {oct(mode)}"


def test_the_pages_are_there(prefix):
    """The licence, the front page, and all pages that it leads to; of their links only those to sources and build files lead nowhere."""
    docs = prefix / "share/doc/rdzv"
    assert (docs / "LICENSE").read_text() == (TOP / "LICENSE").read_text()
    assert {str(p.relative_to(docs)) for p in docs.rglob("*.md")} == {*pages.pages(), "NEWS.md", "proto/PROTOCOL.md"}
    for page in pages.pages():
        links = {link.split("#")[0] for link in re.findall(r"\]\(([^)\s:]+)\)", (docs / page).read_text())} - {""}
        dead = {os.path.normpath(os.path.join(os.path.dirname(page), link)) for link in links if not (docs / page).parent.joinpath(link).exists()}
        assert all(re.match(r"(agent|tests)/|deploy/(conda|container|rpm|spack|modulefiles)/", link) for link in dead), (page, dead)


def test_two_agents_a_daemon_and_the_trainer(rdzv, prefix):
    """The agent starts the daemon, its guard the trainer; nothing of ours is in PATH."""
    port = free_port()
    job = ["--nnodes", 2, "--nproc", 2, "--endpoint", f"127.0.0.1:{port}", "--rdzv-id", "prefix"]
    agents = [rdzv.spawn(prefix / "bin/rdzv-agent", *job, "--node-rank", i, "--", *TRAIN, "--steps", 2000000, env={"PATH": "/usr/bin:/bin"}) for i in (0, 1)]
    workers = rdzv.await_workers(4, timeout=30)
    assert {os.readlink(f"/proc/{pid}/exe") for pid in [*workers.values(), *rdzv.daemons()]} == {str(prefix / "bin/rdzv-trainer"), str(prefix / "bin/rdzvd")}
    status = rdzv.spawn(prefix / "bin/rdzvctl", "--endpoint", f"127.0.0.1:{port}", "status")
    assert status.exit() == 0 and status.says("prefix"), status
    for agent in agents:
        agent.kill(15)
    assert [agent.exit(30) for agent in agents] == [75, 75], rdzv
    rdzv.gone(5)


def test_helpers_are_found(rdzv, prefix):
    """The one that asks the driver for GPUs, and the one that mints NCCL's ids: with stand-ins for both libraries."""
    script = rdzv.tmp / "gpus"
    script.write_text("device GPU-aaaa-1 00000000:01:00.0 NVIDIA_H100 81920 4\n")
    if not (BUILD / "tests/rig/fake-nvml.so").exists():
        pytest.skip("the stand-in for the driver is not built: cmocka is missing")
    env = {"RDZV_NVML_LIBRARY": str(BUILD / "tests/rig/fake-nvml.so"), "RDZV_FAKE_NVML": str(script), "PATH": "/usr/bin:/bin"}
    agent = rdzv.spawn(prefix / "bin/rdzv-agent", "--standalone", "--nproc", "gpu", "--", "sh", "-c", "echo has $RDZV_DEVICE_UUID", env=env)
    assert agent.exit() == 0 and agent.says("has GPU-aaaa-1"), agent
    env = {"RDZV_NCCL_LIBRARY": str(BUILD / "tests/e2e/fake-nccl.so"), "PATH": "/usr/bin:/bin"}
    agent = rdzv.spawn(prefix / "bin/rdzv-agent", "--standalone", "--nproc", 1, "--nccl-ids", "always", "--", BUILD / "tests/e2e/ids-worker", env=env)
    assert agent.expect(r"ids 1 0 1 \d+ [0-9a-f]+", 20), agent
    agent.kill(15)
    agent.exit()


def test_a_worker_is_compiled_by_pkg_config(rdzv, home, prefix, tools):
    """The guide's own worker: as the page says, against the shared library; and against the static one."""
    source, worker = rdzv.tmp / "worker.c", rdzv.tmp / "worker"
    source.write_text(tools.worker_in_c())
    env = {**os.environ, "HOME": str(home)}
    lib = next(prefix.rglob("librdzv.a"))
    for script in (pages.block("deploy/packages.md", "worker"), f"cc -Wall -Werror -I {prefix}/include worker.c {lib} -o worker"):
        tools.run("sh", "-ec", script, cwd=rdzv.tmp, env=env)
        agent = rdzv.spawn(prefix / "bin/rdzv-agent", "--standalone", "--nproc", 2, "--", worker)
        assert agent.exit() == 0, agent
    assert Path(tools.run("pkg-config", "--variable=libdir", lib.parent / "pkgconfig/rdzv.pc").strip()) == lib.parent


def test_the_sites_file_is_below_the_prefix(rdzv, prefix):
    """And of a tree that was copied, in the copy."""
    moved = rdzv.tmp / "moved"
    shutil.copytree(prefix, moved, symlinks=True)
    (moved / "etc/rdzv").mkdir(parents=True)
    shutil.copy(prefix / "share/doc/rdzv/examples/agent.conf", moved / "etc/rdzv/agent.conf")
    with open(moved / "etc/rdzv/agent.conf", "a") as f:
        f.write("lease = 17s\n")
    line = len((moved / "etc/rdzv/agent.conf").read_text().splitlines())
    for root, said in (moved, f"lease 17  # {moved}/etc/rdzv/agent.conf:{line}"), (prefix, "lease 5"):
        agent = rdzv.spawn(root / "bin/rdzv-agent", "--explain", "--", "true")
        assert agent.exit() == 0 and said in agent.out, agent


# How a shell gets the command `module`. Debian's two packages exclude each other, so one of them may lie unpacked in a folder of the tests.
ENVIRONMENT_MODULES = [*Path("/usr/lib").glob("*/modulecmd.tcl"), *(TOP / "build/environment-modules").glob("usr/lib/*/modulecmd.tcl")]
LMOD = Path("/usr/share/lmod/lmod/init/bash")


def module_command(kind):
    if kind == "Lmod":
        return f". {LMOD}" if LMOD.exists() else None
    return f'module() {{ eval "$(tclsh {ENVIRONMENT_MODULES[0]} bash "$@")"; }}' if ENVIRONMENT_MODULES and shutil.which("tclsh") else None


@pytest.mark.parametrize("kind", ["Lmod", "Environment Modules"])
@pytest.mark.parametrize("pages_of_others", [None, "/usr/own/man"])
def test_the_modulefile(home, prefix, tools, kind, pages_of_others):
    """Loaded as the page says, what it sets is found; and unloaded, nothing of it is left."""
    begin = module_command(kind)
    if not begin:
        other = "not on this machine: " if Path("/etc/environment-modules").exists() else ""  # which excludes Lmod
        pytest.skip(f"{other}{kind} is not installed")
    show = "; ".join(f'echo "{name}=${name}"' for name in ("PATH", "MANPATH", "PKG_CONFIG_PATH", "LD_LIBRARY_PATH"))
    load = pages.block("deploy/packages.md", "module")
    env = {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **({"MANPATH": pages_of_others} if pages_of_others else {})}
    script = f"{begin}\n{show}\n{load}\n{show}\ncommand -v rdzv-agent; rdzv-agent --version; pkg-config --variable=prefix rdzv\nmodule unload rdzv\n{show}"
    out = tools.run("bash", "-ec", script, env=env).splitlines()
    before, during, found, after = out[:4], dict(line.split("=", 1) for line in out[4:8]), out[8:11], out[11:]
    lib = next(prefix.rglob("librdzv.a")).parent
    assert during["PATH"] == f"{prefix}/bin:{env['PATH']}" and during["LD_LIBRARY_PATH"] == str(lib) and during["PKG_CONFIG_PATH"] == f"{lib}/pkgconfig", out
    # An empty entry, or else man would look nowhere else.
    assert during["MANPATH"].rstrip(":").split(":") == [f"{prefix}/share/man", *([pages_of_others] if pages_of_others else [])] and during["MANPATH"].endswith(":"), out
    assert found == [f"{prefix}/bin/rdzv-agent", tools.run(prefix / "bin/rdzv-agent", "--version").strip(), str(prefix)], out
    assert after == before


def test_the_manual_is_found(prefix, tools):
    for chapter, name in ("3", "librdzv"), ("1", "rdzv-agent"), ("8", "rdzvd"), ("7", "rdzv"):
        assert re.search(rf"NAME\n +{name}", tools.manual(prefix / "share/man", chapter, name)), name


def test_destdir(tmp_path, tools):
    """The build under test, as a packager installs it: all of it below DESTDIR; the module is found from there."""
    dest = tmp_path / "dest"
    tools.run("meson", "install", "-C", BUILD, "--no-rebuild", env={**os.environ, "DESTDIR": str(dest)})
    prefix = Path(next(o["value"] for o in json.loads(tools.run("meson", "introspect", "--buildoptions", BUILD)) if o["name"] == "prefix"))
    root = dest / prefix.relative_to("/")
    module = (BUILD / "agent/trainer/gpu/rdzv-cuda.so").exists()
    assert places(root) == PROGRAMS | HELPERS | LIBRARY | ({MODULE} if module else set())
    assert {dest / f for f in listed(dest)} == {root / f for f in listed(root)}
    if not module or Path("/proc/driver/nvidia").exists():
        return
    done = subprocess.run([root / "bin/rdzv-trainer", *TRAIN, "--device", "cuda", "--steps", "1"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 71 and "no NVIDIA driver" in done.stderr, done.stderr  # so it was found, and asked
