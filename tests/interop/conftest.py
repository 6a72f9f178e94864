# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of rdzv beside PyTorch: Python processes with torch in them that live as long as the session (starting one costs
seconds), PyTorch's own store beside ours, and the harness of the end-to-end tests, by whose rules all of it runs: everything is bounded in
time, and nothing survives."""

import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
sys.path.insert(0, str(HERE / "scripts"))

import harness  # noqa: E402

_spec = importlib.util.spec_from_file_location("e2e_conftest", HERE.parent / "e2e/conftest.py")
e2e = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(e2e)
rdzv = e2e.rdzv
pytest_runtest_makereport = e2e.pytest_runtest_makereport
pytest_runtestloop = e2e.pytest_runtestloop
pytest_configure = e2e.pytest_configure

# Without GPUs, with one thread: what is compared must not depend on the machine.
QUIET = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL", "PYTHONDONTWRITEBYTECODE": "1",
         # PyTorch asks for the name behind every address that it connects to or accepts from. No name server is asked: some answer after
         # seconds, or never.
         "RES_OPTIONS": "attempts:0"}


# A newer PyTorch than that of the other tests, which tests/steps/install.sh puts there; None: it is not installed.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rdzv-tests"
_NEW = CACHE / "torch/bin/python"
NEW_TORCH = _NEW if _NEW.exists() else None
NEWEST = "the newest PyTorch (tests/run --torch installs it)"
PYTHONS = {"pytorch-2.13": sys.executable, "newest-pytorch": NEW_TORCH}
# Of a module whose tests run with each of them: pytestmark.
EVERY_PYTORCH = pytest.mark.parametrize("pytorch", PYTHONS, indirect=True, scope="session")


def find_torch(python):
    """The version of torch that an interpreter has, or ""."""
    done = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version('torch'))"], capture_output=True, text=True, timeout=120)
    return done.stdout.strip() if done.returncode == 0 else ""


def pytest_collection_modifyitems(items):
    if not find_torch(sys.executable):
        for item in items:
            item.add_marker(pytest.mark.skip(reason="torch is not installed"))


class Peer:
    """scripts/peer.py in a process of its own: told by lines of JSON what to do, started again after it had to be killed."""

    script = HERE / "scripts/peer.py"

    def __init__(self, python=sys.executable):
        self.python, self.popen = python, None

    def ask(self, timeout=30, **what):
        self.tell(**what)
        return self.answer(what, timeout)

    def tell(self, **what):
        if not self.popen or self.popen.poll() is not None:
            env = {k: v for k, v in os.environ.items() if not k.startswith(("RDZV", "MASTER_", "TORCHELASTIC"))}
            self.popen = subprocess.Popen([self.python, self.script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                          env=dict(env, **QUIET), cwd="/")
            self.answer("to start", 60)
        self.popen.stdin.write(json.dumps(what).encode() + b"\n")
        self.popen.stdin.flush()

    def answer(self, what, timeout):
        deadline, got = time.monotonic() + timeout * harness.SLOW, b""
        while not got.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.popen.stdout], [], [], left)[0]:
                self.close()
                raise AssertionError(f"no answer within {timeout} s: {what}")
            part = os.read(self.popen.stdout.fileno(), 1 << 16)
            if not part:
                raise AssertionError(f"{self.script.name} ended with {self.popen.wait(10)}: {what}")
            got += part
        return json.loads(got)

    def close(self):
        if self.popen:
            self.popen.kill()
            self.popen.wait(10)
            self.popen.stdin.close()
            self.popen.stdout.close()
            self.popen = None


@pytest.fixture(scope="session")
def pytorch(request):
    """The Python that has the test's PyTorch."""
    name = getattr(request, "param", "pytorch-2.13")
    harness.need(NEWEST, PYTHONS[name])
    return str(PYTHONS[name])


@pytest.fixture(scope="session")
def client(pytorch):
    """A process that plays PyTorch's clients."""
    p = Peer(pytorch)
    yield p
    p.close()


@pytest.fixture(scope="session")
def stock(pytorch):
    """A process that serves PyTorch's own stores; ask(do="serve") gives the port of a new, empty one."""
    p = Peer(pytorch)
    yield p
    p.close()


@pytest.fixture
def round_store(rdzv):
    """The port of a round's store: of a job of one worker, which only waits."""

    def start():
        rdzv.agent("--standalone", "--", "sh", "-c", "echo $MASTER_PORT >port.new; mv port.new port; exec sleep 300")
        path = rdzv.tmp / "port"
        harness.until("the worker was told MASTER_PORT", lambda: path.exists() and path.read_text().strip())
        return int(path.read_text())

    yield start
    for p in rdzv.procs:
        if p.running and p.argv[0] == harness.AGENT:
            p.kill(15)
            p.exit()


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    """The beginning of a command that runs a script without waiting for `import torch`."""
    path = tmp_path_factory.mktemp("warm") / "socket"
    argv = [sys.executable, HERE / "scripts/warm.py"]
    server = subprocess.Popen([*argv, "serve", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ, **QUIET))
    assert select.select([server.stdout], [], [], 60 * harness.SLOW)[0] and server.stdout.readline() == b"ready\n", "warm.py is not ready within 60 s"
    yield [argv[0], "-I", "-S", argv[1], path]
    server.stdin.close()
    server.wait(10)
    server.stdout.close()


def servers(rdzv, round_store, stock):
    """name -> a function that starts an empty store and returns its port."""
    def rdzvd():
        port = harness.free_port()
        return rdzv.daemon("--c10d", "--listen", f"[::1]:{port}", port=port).port

    return {"rdzvd": rdzvd, "round": round_store, "stock": lambda: stock.ask(do="serve")}


@pytest.fixture
def serve(rdzv, round_store, stock):
    table = servers(rdzv, round_store, stock)
    return lambda name: table[name]()
