# SPDX-License-Identifier: Apache-2.0
"""The wheel and the tarball, built by the script that makes releases: pip installs the wheel in an empty environment without a network, where all that
runs is what it brought; removed, it leaves nothing. With --fresh the same on a bare Debian 12, and on a Debian 11, whose glibc is older."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import machine
import pages
from harness import BUILD, TOP, free_port, until

SCRIPT = TOP / "deploy/python/build"
PAGE, BUILD_PAGE, COMMANDS_PAGE = "deploy/packages.md", "deploy/python/README.md", "deploy/guide/fixed-commands.md"
PLAIN_PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
TRAIN = ["--data", "synthetic:200", "--layers", "8,4,8", "--loss", "rmse", "--batch", "8", "--device", "cpu", "--report-every", "0"]
HELLO = "import os, sys\nprint('rank', os.environ['RANK'], 'under', sys.executable, flush=True)\n"
DDP = """import os, signal, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = 0
if os.path.exists("state.pt"):
    state = torch.load("state.pt")
    model.load_state_dict(state["model"])
    first = state["step"]
print("begins at step", first, flush=True)
for step in range(first, 30):
    if step == 15 and rank == 1 and restarts == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.zero_grad()
    model(torch.ones(8, 4) * (rank + 1)).pow(2).mean().backward()
    optimizer.step()
    if step == 9:
        if rank == 0:
            torch.save({"model": model.state_dict(), "step": 10}, "state.pt")
        dist.barrier()
dist.destroy_process_group()
"""


def one(folder, pattern):
    (found,) = folder.glob(pattern)
    return found


def make_environment(venv, command, made, tools):
    tools.run(sys.executable, "-m", "venv", venv)
    before = tools.files(venv)
    env = {**os.environ, "PATH": f"{venv}/bin:{os.environ['PATH']}", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(made), "PIP_CONFIG_FILE": "/dev/null"}
    tools.run("sh", "-ec", command, env=env)
    return before


@pytest.fixture(scope="module")
def environment(made, tmp_path_factory, tools):
    """A virtual environment with nothing but rdzv, by the front page's command."""
    venv = tmp_path_factory.mktemp("wheel") / "venv"
    before = make_environment(venv, pages.block("README.md", "pip"), made, tools)
    yield venv
    program, *words = "pip uninstall rdzv".split()
    tools.run(venv / "bin" / program, *words, "--yes")
    left = {f for f in tools.files(venv) - before if "__pycache__" not in f}
    assert not left, "pip uninstall leaves these behind"


def put(rdzv, name, text):
    (rdzv.tmp / name).write_text(text)
    return rdzv.tmp / name


def test_the_tag(made, tools):
    """auditwheel has the last word, for both architectures; and the programs are hardened like those of Debian's packages."""
    assert pages.lines(BUILD_PAGE, "build")[0].endswith("--arch x86_64,aarch64")  # the command of the fixture
    for arch in ("x86_64", "aarch64"):
        for name, size in (("rdzv", 2e6), ("rdzv_trainer", 10e6)):
            wheel = one(made, f"{name}-*-py3-none-manylinux_2_28_{arch}.whl")
            assert f'platform tag: "manylinux_2_28_{arch}"' in " ".join(tools.run(made / "venv/bin/auditwheel", "show", wheel).split())
            assert wheel.stat().st_size < size
    for name, mega in re.findall(r"(?m)^\| `(\S+)` \| ([\d.]+) MB \|$", (TOP / BUILD_PAGE).read_text()):
        assert (made / name).stat().st_size / 1e6 == pytest.approx(float(mega), rel=0.05), f"{BUILD_PAGE} gives another size of {name}"
    (mega,) = re.findall(r"The wheel is ([\d.]+) MB", (TOP / "README.md").read_text())
    assert one(made, "rdzv-*_x86_64.whl").stat().st_size / 1e6 == pytest.approx(float(mega), rel=0.05)
    for arch in ("x86_64", "aarch64"):
        assert {p.name for p in (made / arch / "root/rdzv/share/man").rglob("*.?")} >= {"rdzv-agent.1", "rdzvctl.1", "rdzvd.8", "rdzv.7", "librdzv.3"}
    root = made / os.uname().machine / "root/rdzv"
    for name in ("bin/rdzv-agent", "bin/rdzvd", "bin/rdzvctl", "libexec/rdzv/rdzv-claim", "libexec/rdzv/rdzv-devices", "libexec/rdzv/rdzv-kubeflow", "libexec/rdzv/rdzv-nccl"):
        dynamic = tools.run("readelf", "-dW", root / name)
        assert "RPATH" not in dynamic and "RUNPATH" not in dynamic and re.search(r"FLAGS_1.*NOW.*PIE", dynamic), dynamic
        assert set(re.findall(r"NEEDED.*\[(.*)\]", dynamic)) <= {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
        if name == "libexec/rdzv/rdzv-kubeflow":  # without libcurl it has one sentence, and nothing to harden
            continue
        symbols = tools.run("readelf", "--dyn-syms", "-W", root / name)
        assert "__stack_chk_fail" in symbols and re.search(r"_chk@GLIBC", symbols), f"{name} is not hardened"


def test_a_mistake_gets_a_sentence(made, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/venv").symlink_to(made / "venv")

    def refused(*args):
        done = subprocess.run([SCRIPT, "--out", tmp_path / "out", *args], capture_output=True, text=True)
        assert done.returncode != 0 and "Traceback" not in done.stderr, done
        return done.stderr
    assert "--arch sparc: there are x86_64 and aarch64" in refused("--arch", "sparc")
    assert "cannot be read" in refused("--mirror", f"file://{tmp_path}")
    (tmp_path / "libuv1_1.50.0.orig.tar.gz").write_text("another")
    assert "is not the file that was released: its SHA-256 is" in refused("--sources", str(tmp_path))


@pytest.mark.parametrize("command", ["rdzv-agent", "python -m rdzv.run", "python -m rdzv"])
def test_a_job_under_the_environments_python(rdzv, environment, command):
    """The environment is not activated, and PATH has another python3."""
    program, *words = command.split()
    agent = rdzv.spawn(environment / "bin" / program, *words, "--standalone", "--nproc", 2, put(rdzv, "hello.py", HELLO), env=PLAIN_PATH)
    assert agent.exit() == 0, agent
    for rank in (0, 1):
        assert agent.says(rf"rank {rank} under {environment}/bin/python"), agent


def test_python_exec_overrules(rdzv, environment):
    agent = rdzv.spawn(environment / "bin/rdzv-agent", "--standalone", put(rdzv, "hello.py", HELLO), env={**PLAIN_PATH, "PYTHON_EXEC": "/usr/bin/python3"})
    assert agent.exit() == 0 and agent.says("under /usr/bin/python3"), agent


def test_a_missing_module_names_the_interpreter(rdzv, environment):
    agent = rdzv.spawn(environment / "bin/rdzv-agent", "--standalone", "--max-restarts", 0, put(rdzv, "imports.py", "import no_such_module\n"), env=PLAIN_PATH)
    assert agent.exit() == 1, agent
    assert agent.says(rf"it ran under {environment}/bin/python3 \(python3[.\d]*\): install the module there"), agent


def test_the_programs_find_each_other(rdzv, environment):
    """A daemon for two agents, started by one of them; and the helper that asks the driver for GPUs."""
    agent = rdzv.spawn(environment / "bin/rdzv-agent", "--endpoint", f"127.0.0.1:{free_port()}", "--nproc", 2, "--rdzv-id", "wheel", "--", "sleep", 60, env=PLAIN_PATH)
    rdzv.await_workers(2)
    assert {os.readlink(f"/proc/{pid}/exe") for pid in rdzv.daemons()} == {str(environment / "bin/rdzvd")}, rdzv
    agent.kill(15)
    assert agent.exit() == 75, agent
    script = put(rdzv, "gpus", "device GPU-aaaa-1 00000000:01:00.0 NVIDIA_H100 81920 4\n")
    nvml = BUILD / "tests/rig/fake-nvml.so"
    assert nvml.exists()
    env = {"RDZV_NVML_LIBRARY": str(nvml), "RDZV_FAKE_NVML": str(script), **PLAIN_PATH}
    agent = rdzv.spawn(environment / "bin/rdzv-agent", "--standalone", "--nproc", "gpu", "--", "sh", "-c", "echo has $RDZV_DEVICE_UUID", env=env)
    assert agent.exit() == 0 and agent.says("has GPU-aaaa-1"), agent


def test_its_files(environment, tools):
    """Manual pages and completions lie where man and the shells look beside bin, and the module has the library."""
    assert pages.block(PAGE, "install the wheel") == pages.block("README.md", "pip")
    found = tools.files(environment)
    assert {"share/man/man1/rdzv-agent.1", "share/man/man1/rdzvctl.1", "share/man/man8/rdzvd.8", "share/man/man7/rdzv.7",
            "share/bash-completion/completions/rdzv-agent", "share/zsh/site-functions/_rdzv-agent", "share/fish/vendor_completions.d/rdzv-agent.fish", "share/rdzv/rdzv-agent.tcsh",
            "bin/rdzv-agent", "bin/rdzvd", "bin/rdzvctl", "libexec/rdzv/rdzv-claim", "libexec/rdzv/rdzv-devices", "libexec/rdzv/rdzv-kubeflow", "libexec/rdzv/rdzv-nccl", "libexec/rdzv/librdzv-nccl-profiler.so"} <= found
    assert {Path(f).name for f in found if ".dist-info/licenses/" in f and "/rdzv-" in f} == {"LICENSE", "LICENSE.libuv", "LICENSE-extra.libuv", "LICENSE.jansson", "LICENSE.libsodium"}
    (about,) = environment.glob("lib/python*/site-packages/rdzv-*.dist-info/METADATA")
    assert {"Author: rdzv developers", "Project-URL: Homepage, https://rdzv.invalid/"} <= set(about.read_text().splitlines())
    ask = "import importlib.metadata as m; print([(e.group, e.name, e.value) for e in m.distribution('rdzv').entry_points])"
    assert "('torchrun.handlers', 'rdzv', 'rdzv._rendezvous:get_creator'), ('torchx.components', 'rdzv', 'rdzv.torchx')" in tools.run(environment / "bin/python", "-c", ask)
    ask = "import ctypes, rdzv; print(ctypes.CDLL(list(rdzv.__path__)[0] + '/lib/librdzv.so.0').rdzv_init)"
    assert "FuncPtr" in tools.run(environment / "bin/python", "-c", ask, env={"PATH": "/usr/bin:/bin"})


def test_the_module_finds_the_library(rdzv, environment):
    text = "import rdzv\nwith rdzv.init() as job:\n    print('rank', job.rank, 'of', job.world_size, 'by', rdzv.__file__, flush=True)\n"
    agent = rdzv.spawn(environment / "bin/rdzv-agent", "--standalone", "--nproc", 2, put(rdzv, "worker.py", text), env=PLAIN_PATH)
    assert agent.exit() == 0 and agent.says(rf"rank 0 of 2 by {environment}/") and agent.says("rank 1 of 2 by"), agent
    assert f"{environment}" in subprocess.run([environment / "bin/python", "-c", "from rdzv import _lib; print(_lib.load()._name)"], capture_output=True, text=True).stdout


@pytest.fixture
def torch(environment):
    """The environment has this Python's PyTorch as well."""
    if not importlib.util.find_spec("torch"):
        pytest.skip("torch is not installed: tests/run --torch installs it")
    link = one(environment, "lib/python3*/site-packages") / "torch.pth"
    link.write_text("".join(f"{path}\n" for path in sys.path if path.endswith("-packages")))
    yield
    link.unlink()


def test_unmodified_torchrun_finds_it(rdzv, environment, torch):
    """Two nodes with --rdzv-backend rdzv, each with the agent of the wheel."""
    words = "--nnodes", 2, "--rdzv-backend", "rdzv", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", put(rdzv, "hello.py", HELLO)
    both = [rdzv.spawn(environment / "bin/python", "-m", "torch.distributed.run", *words, env=PLAIN_PATH) for _ in range(2)]
    assert [p.exit(60) for p in both] == [0, 0], rdzv
    assert sorted(line for p in both for line in p.out) == [f"rank {rank} under {environment}/bin/python" for rank in range(2)], rdzv


def test_beside_torch(rdzv, environment, torch):
    """A script with DistributedDataParallel is launched; one worker is killed; the next round resumes. Nothing else is installed."""
    agent = rdzv.spawn(environment / "bin/rdzv-agent", "--standalone", "--nproc-per-node", 2, put(rdzv, "train.py", DDP), env=PLAIN_PATH)
    assert agent.exit(120) == 0, agent
    assert agent.says("rank 1 .* was killed by SIGKILL") and agent.says(r"\[0\] begins at step 0") and agent.says(r"\[0\] begins at step 10"), agent


def test_the_name_torchrun(rdzv, environment, made, tools):
    """A package of its own, with a script and nothing else. It is gone when that package is, and rdzv stays."""
    assert not (environment / "bin/torchrun").exists()
    venv = rdzv.tmp / "venv"
    make_environment(venv, pages.block(COMMANDS_PAGE, "name"), made, tools)
    p = rdzv.spawn(venv / "bin/torchrun", "--standalone", "--nproc_per_node=2", put(rdzv, "hello.py", HELLO), env=PLAIN_PATH)
    assert p.exit() == 0 and all(p.says(rf"\[{rank}\] rank {rank} under {venv}/bin/python") for rank in range(2)), p
    (record,) = venv.glob("lib/python3*/site-packages/rdzv_torchrun-*.dist-info/RECORD")
    assert [line for line in record.read_text().splitlines() if ".dist-info/" not in line] == [line for line in record.read_text().splitlines() if line.startswith("../../../bin/torchrun,")]
    tools.run(venv / "bin/pip", "uninstall", "--yes", "rdzv-torchrun")
    assert not (venv / "bin/torchrun").exists() and (venv / "bin/rdzv-agent").exists()


def test_the_trainer(rdzv, made, tools):
    """A wheel of its own, which brings OpenBLAS; the agent finds it when it gets no command."""
    venv = rdzv.tmp / "venv"
    make_environment(venv, pages.block(PAGE, "the trainer"), made, tools)
    agent = rdzv.spawn(venv / "bin/rdzv-agent", "--standalone", "--nproc", 2, "--", *TRAIN, "--steps", 200, env=PLAIN_PATH)
    assert agent.exit(60) == 0 and agent.says("done: 200 steps"), agent
    assert {"share/man/man1/rdzv-trainer.1", "share/bash-completion/completions/rdzv-trainer"} <= tools.files(venv)
    maps = rdzv.spawn(venv / "bin/rdzv-agent", "--standalone", "--", *TRAIN, "--steps", 1000000000, env=PLAIN_PATH)
    (pid,) = rdzv.await_workers(1).values()
    until("the trainer runs with its own OpenBLAS", lambda: f" {venv}/lib/rdzv/libscipy_openblas.so\n" in Path(f"/proc/{pid}/maps").read_text())
    maps.kill(15)
    assert maps.exit() == 75, maps


def test_the_tarball(rdzv, made, tools):
    """Unpacked by the page's command, and moved: agent, daemon, trainer, manual pages, and a worker in C."""
    tools.run("sh", "-ec", pages.block(PAGE, "tarball").replace("x86_64", os.uname().machine), cwd=made, env={**os.environ, "HOME": str(rdzv.tmp)})
    root = rdzv.tmp / "elsewhere"
    one(rdzv.tmp, "rdzv-*-linux-*").rename(root)
    agent = rdzv.spawn(root / "bin/rdzv-agent", "--endpoint", f"127.0.0.1:{free_port()}", "--nproc", 2, "--rdzv-id", "tarball", "--", "sleep", 60, env=PLAIN_PATH)
    rdzv.await_workers(2)
    assert {os.readlink(f"/proc/{pid}/exe") for pid in rdzv.daemons()} == {str(root / "bin/rdzvd")}, rdzv
    agent.kill(15)
    assert agent.exit() == 75, agent
    agent = rdzv.spawn(root / "bin/rdzv-agent", "--standalone", "--nproc", 2, "--", *TRAIN, "--steps", 200, env=PLAIN_PATH)
    assert agent.exit(60) == 0 and agent.says("done: 200 steps"), agent
    put(rdzv, "worker.c", tools.worker_in_c())
    tools.run("sh", "-ec", "cc worker.c $(pkg-config --cflags --libs rdzv) -Wl,-rpath,$(pkg-config --variable=libdir rdzv) -o worker", cwd=rdzv.tmp,
              env={**os.environ, "PKG_CONFIG_PATH": str(root / "lib/pkgconfig")})
    agent = rdzv.spawn(root / "bin/rdzv-agent", "--standalone", "--nproc", 2, "--", rdzv.tmp / "worker", env=PLAIN_PATH)
    assert agent.exit() == 0, agent
    assert {p.name for p in (root / "share/man").rglob("*.?")} >= {"rdzv-agent.1", "rdzvctl.1", "rdzvd.8", "rdzv.7", "librdzv.3"}
    fixed = subprocess.run(["grep", "-rlI", "/rdzv/bin", root], capture_output=True, text=True).stdout
    assert not fixed, "these name a prefix that nobody knows"
    (root / "etc/rdzv").mkdir(parents=True)
    (root / "etc/rdzv/agent.conf").write_text("lease = 20\n")
    agent = rdzv.spawn(root / "bin/rdzv-agent", "--explain", "--", "true", env=PLAIN_PATH)
    assert agent.exit() == 0 and agent.says(rf"lease 20  # {root}/etc/rdzv/agent.conf:1"), agent


# On a machine that has never seen anything of it. ------------------------------------------------------------------------------------------

OTHER = """
import os, signal, sys
print(f"under {sys.executable}", flush=True)
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=["bookworm", "bullseye"])
def user(request, folder, made, tools):
    root = folder / request.param
    if request.param == machine.SUITE:
        tools.run("cp", "-a", "--reflink=auto", request.getfixturevalue("base"), root)
    else:
        machine.bootstrap(root, request.param)
    m = machine.Machine(root)
    m.run("apt-get update -q && apt-get install -q --no-install-recommends python3-venv man-db && (id anna || useradd --create-home --shell /bin/bash anna)", seconds=600)
    for file in made.glob(f"rdzv*-*{os.uname().machine}*"):
        shutil.copy(file, root / "home/anna")
    (root / "home/anna/hello.py").write_text(OTHER)
    m.suite = request.param
    yield m
    m.gone()
    m.close()


@pytest.mark.fresh
def test_on_a_bare_machine(user):
    glibc = user.run("ldd --version | head -1")
    assert {"bookworm": "2.36", "bullseye": "2.31"}[user.suite] in glibc, glibc
    anna = {"user": "anna", "alone": True}
    user.run("python3 -m venv venv && find venv -type f | sort > before", **anna)
    user.run("PATH=~/venv/bin:$PATH PIP_NO_INDEX=1 PIP_FIND_LINKS=~ sh -ec '" + pages.block("README.md", "pip").strip() + "'", **anna)
    for command in ("venv/bin/rdzv-agent", "venv/bin/python -m rdzv.run"):
        said = user.run(f"{command} --standalone --nproc 2 hello.py", **anna)
        assert said.count("under /home/anna/venv/bin/python") >= 2 and "is done: 2 rounds" in said, said
        assert "rank 1 (local 1) on fresh" in said and "killed by SIGKILL" in said, said
    assert user.run("man -M venv/share/man -w rdzv-agent", **anna).strip() == "/home/anna/venv/share/man/man1/rdzv-agent.1"
    assert user.run("PATH=~/venv/bin:$PATH man -w 7 rdzv", **anna).strip() == "/home/anna/venv/share/man/man7/rdzv.7"
    user.run("PIP_NO_INDEX=1 PIP_FIND_LINKS=~ venv/bin/pip install 'rdzv[trainer]'", **anna)
    said = user.run("venv/bin/rdzv-agent --standalone --nproc 2 -- " + " ".join([*TRAIN, "--steps 200"]), **anna)
    assert "done: 200 steps" in said, said
    user.run("venv/bin/pip uninstall -q -y rdzv rdzv-trainer && find venv -type f | grep -v __pycache__ | sort > after; grep -v __pycache__ before | diff - after", **anna)
    said = user.run("tar -xf rdzv-*.tar.gz && mv rdzv-*/ moved && moved/bin/rdzv-agent --standalone --nproc 2 hello.py", **anna)
    assert said.count("under /usr/bin/python3") >= 2 and "is done: 2 rounds" in said, said
