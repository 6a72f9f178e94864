# SPDX-License-Identifier: Apache-2.0
"""Unmodified torchrun, accelerate and torchx, which find rdzv by the entry points of its wheel."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

import conftest
import pages
from conftest import HERE, QUIET
from harness import BUILD, HOST, TOP, free_port, need, stat, until

LIGHT = HERE / "scripts/light.py"
PAGE = "deploy/guide/fixed-commands.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment in which a Python has rdzv as its wheel installs it: the module, and what the wheel says about itself."""
    folder = tmp_path_factory.mktemp("wheel")
    info = folder / "rdzv-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rdzv\nVersion: 0\n")
    (info / "entry_points.txt").write_text((TOP / "deploy/python/entry_points.txt").read_text())
    return {**QUIET, "PYTHONPATH": f"{folder}:{TOP}/deploy/python", "PATH": f"{BUILD}/agent:{BUILD}/daemon:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}


class Torchrun:
    """torchruns of one job, one on each pretended node."""

    def __init__(self, rdzv, env, python=sys.executable):
        self.rdzv, self.env, self.python, self.endpoint = rdzv, env, python, f"127.0.0.1:{free_port()}"
        self.out = rdzv.tmp / "out"
        self.out.mkdir()

    def start(self, *args, fail="well", nnodes="2", conf="join_timeout=60", name="job", env=None, node="", script=LIGHT):
        command = [self.python, "-m", "torch.distributed.run", "--nnodes", nnodes, "--nproc-per-node", 1, "--rdzv-backend", "rdzv", "--rdzv-id", name,
                   "--rdzv-endpoint", self.endpoint, "--rdzv-conf", conf, *args, script, self.out, fail]
        return self.rdzv.spawn(*command, env={**self.env, **(env or {})}, node=node)

    def lines(self, name):
        return (self.out / name).read_text().splitlines()


@pytest.fixture
def torchrun(rdzv, installed):
    return Torchrun(rdzv, installed)


@conftest.EVERY_PYTORCH
def test_two_nodes_with_a_restart(rdzv, installed, pytorch):
    """Rank 0 fails once. Its torchrun counts a restart, and the other one only starts its workers again."""
    t = Torchrun(rdzv, installed, pytorch)
    both = [t.start("--max-restarts", 1, fail="fail") for _ in range(2)]
    assert [p.exit(60) for p in both] == [0, 0], rdzv
    (t.out / "failed").unlink()
    assert sorted(line for p in t.out.iterdir() for line in t.lines(p.name)) == ["0 2 0 0 job", "0 2 0 1 job", "1 2 1 0 job", "1 2 1 0 job"], rdzv
    assert all(p.says("round 2: 2 nodes") and p.says(f"exited with code 1: torchrun: its workers on {HOST} failed") for p in both), rdzv
    assert not any(p.says("restart 1 of|turns restarts off|runs another command") for p in both), rdzv


def test_a_store_of_rank_0(rdzv, torchrun):
    """With PyTorch's variable for it, rank 0 serves the workers' store, on another port than the agent's."""
    (rdzv.tmp / "train.py").write_text("import os, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
                                       "print(os.environ['TORCHELASTIC_USE_AGENT_STORE'], dist.get_world_size(), flush=True)\ndist.destroy_process_group()\n")
    both = [torchrun.start(script="train.py", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}) for _ in range(2)]
    assert [p.exit(60) for p in both] == [0, 0] and [p.out for p in both] == [["False 2"]] * 2, rdzv


def test_a_last_failure_ends_the_job_everywhere(rdzv, torchrun):
    """The verdict names torchrun's worker, its torchrun exits as ever, and the other one says why it ends."""
    both = [torchrun.start("--max-restarts", 0, fail="fail") for _ in range(2)]
    assert [p.exit(60) for p in both] == [1, 1], rdzv
    for p in both:
        assert p.says(r"failed in round 1: .* exited with code 3, a final failure by its own account: torchrun: its worker of rank 0 \(local 0\), pid \d+, exited with code 3; .* exit code 3"), p
    assert sorted(p.says("RendezvousClosedError: rdzv-agent: job job failed in round 1") for p in both) == [False, True], rdzv
    assert sorted(p.says("ChildFailedError") for p in both) == [False, True], rdzv


def test_a_missing_node_is_named(rdzv, torchrun):
    p = torchrun.start(conf="join_timeout=3,read_timeout=9,lease=3", env={"RDZV_AGENT_EXPECT": f"{HOST},gpu7"})
    assert p.exit(60) == 1, p
    assert p.says("--rdzv-conf: lease, read_timeout: no effect with --rdzv-backend rdzv"), p
    assert p.says("RendezvousTimeoutError: rdzv-agent: .*gpu7"), p


@pytest.mark.parametrize("change,sentence", [
    ({"endpoint": ""}, r"ValueError: --rdzv-backend rdzv needs --rdzv-endpoint HOST\[:PORT\], the same on all nodes"),
    ({"endpoint": "no:such:port"}, "RendezvousError: rdzv-agent: .*no:such:port"),
    ({"endpoint": "192.0.2.1:1", "conf": "join_timeout=2"}, "RendezvousConnectionError: rdzv-agent: .*192.0.2.1:1"),
    ({"key": "0" * 63}, "RendezvousError: rdzv-agent: .*RDZV_KEY"),
    ({"path": "/usr/bin:/bin"}, "RendezvousError: there is no rdzv-agent beside .*, and none in PATH: pip install rdzv"),
])
def test_a_mistake_gets_a_sentence(rdzv, torchrun, change, sentence):
    torchrun.endpoint = change.get("endpoint", torchrun.endpoint)
    env = {"RDZV_KEY": change["key"]} if "key" in change else {"PATH": change["path"]} if "path" in change else {}
    p = torchrun.start(conf=change.get("conf", "join_timeout=60"), env=env)
    assert p.exit(60) == 1, p
    assert p.says(sentence), p


def test_the_reason_need_not_be_the_last_line(rdzv, installed):
    """A job of 10 s and more has a line behind it that says what its time went to."""
    said = ["rdzv-agent: job j failed in round 1: rank 0", "rdzv-agent:   at 2026-11-29", "rdzv-agent: ran 99.9 % of 15 s", "rdzv-agent: useful 93 % of 40 min"]
    code = f"""
from types import SimpleNamespace
from rdzv._rendezvous import Agent
a = Agent.__new__(Agent)
a._reason, a._process = "", SimpleNamespace(pid=7)
for a.code, lines in (3, {said}), (-9, {said}), (76, []):
    for line in lines:
        a._on_stderr(line.encode(), None)
    print(repr(a.get_error()))
    a._reason = ""
"""
    p = rdzv.spawn(sys.executable, "-c", code, env=installed)
    assert p.exit(60) == 0 and p.out == ["RendezvousClosedError('rdzv-agent: job j failed in round 1: rank 0')",
                                         "RendezvousConnectionError('rdzv-agent (pid 7) was killed by SIGKILL')",
                                         "RendezvousConnectionError('rdzv-agent exited with code 76')"], p


def test_a_member_that_is_gone_before_its_answer(rdzv, installed):
    """Its place is none, and the reader goes on."""
    code = """
import json, socket, threading
from rdzv._rendezvous import Agent, PLACE
a = Agent.__new__(Agent)
a.changed, a.place, a._member = threading.Condition(), None, None
ours, theirs = socket.socketpair()
theirs.close()
a._on_member(json.dumps({key: "1" for key in PLACE}).encode(), ours)
print(a.place, a._member)
"""
    p = rdzv.spawn(sys.executable, "-c", code, env=installed)
    assert p.exit(60) == 0 and p.out == ["None None"], p


def start_member(rdzv, installed, name):
    """A member in a round, which waits for a second only."""
    code = "from rdzv import _member\n_member.ANSWER_S = 1\n_member.member(4711, %r)" % name
    place = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "RDZV_ROUND": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "RDZV_RUN_ID": "job"}
    return rdzv.spawn(sys.executable, "-c", code, env={**installed, **place, "TORCHELASTIC_ERROR_FILE": str(rdzv.tmp / "error.json")})


@pytest.mark.parametrize("there,sentence", [(True, "has not answered for 1 s: it is stopped, or its machine is overloaded"), (False, "has died")])
def test_a_member_without_torchrun_ends_the_job(rdzv, installed, there, sentence):
    name = f"rdzv-test-{rdzv.mark}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        if there:
            listener.listen()  # and accepts nobody
        p = start_member(rdzv, installed, name)
        assert p.exit() == 1, p
    message = json.loads((rdzv.tmp / "error.json").read_text())["message"]
    assert message["message"] == f"torchrun (pid 4711) on {HOST} {sentence}" and message["extraInfo"]["final"] is True


@pytest.mark.parametrize("closed_first", [False, True])
def test_a_member_of_a_dead_torchrun_leaves_with_its_agent(rdzv, installed, closed_first):
    """SIGTERM may reach it before torchrun's socket is closed, or after that."""
    name = f"rdzv-test-{rdzv.mark}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()
        p = start_member(rdzv, installed, name)
        link, _ = listener.accept()
        assert json.loads(link.makefile().readline())["run_id"] == "job"
        link.sendall(b"[]\n")
        if not closed_first:
            p.kill(signal.SIGTERM)
            assert json.loads(link.makefile().readline()) == {"stop": True}
        link.shutdown(socket.SHUT_RDWR)
        link.close()
        if closed_first:
            p.kill(signal.SIGTERM)
        assert p.exit() == 75, p


def test_a_node_with_another_key_is_refused(rdzv, torchrun):
    d = rdzv.daemon()
    torchrun.endpoint = d.endpoint
    p = torchrun.start(conf="join_timeout=3", env={"RDZV_KEY": "ab" * 32})
    assert p.exit(60) == 1 and p.says("Rendezvous[A-Za-z]*Error: rdzv-agent: .*key"), p


HOLD = """import os, sys, time
folder = sys.argv[1]
name = "%s.%s.%d" % (os.environ["RANK"], os.environ["WORLD_SIZE"], os.getpid())
open(folder + "/" + name, "w").write(os.environ["MASTER_PORT"])
while not os.path.exists(folder + "/go"): time.sleep(0.02)
"""


def holding(t, nodes):
    """rank -> pid of the workers that hold in a world of so many nodes."""
    found = {}
    for p in t.out.iterdir():
        rank, world, pid = p.name.split(".") if p.name.count(".") == 2 else ("", "", "")
        if world == str(nodes) and pid and Path(f"/proc/{pid}").exists() and stat(pid)[0] not in "ZX":
            found[int(rank)] = int(pid)
    return found


def test_the_daemon_may_be_lost(rdzv, torchrun):
    """An agent has started it. A node takes over, and the round that follows a failure begins there, without a fault of torchrun's."""
    (rdzv.tmp / "hold.py").write_text(HOLD)
    both = [torchrun.start("--max-restarts", 1, nnodes="2", script="hold.py") for _ in range(2)]
    until(lambda: f"both hold\n{rdzv}", lambda: len(holding(torchrun, 2)) == 2, 60)
    before = holding(torchrun, 2)
    (daemon,) = rdzv.daemons()
    os.kill(daemon, signal.SIGKILL)
    until(lambda: f"another daemon serves\n{rdzv}", lambda: [pid for pid in rdzv.daemons() if pid != daemon], 60)
    assert holding(torchrun, 2) == before, rdzv
    os.kill(before[0], signal.SIGKILL)
    until(lambda: f"round 2 holds\n{rdzv}", lambda: len(after := holding(torchrun, 2)) == 2 and not set(after.values()) & set(before.values()), 60)
    (torchrun.out / "go").touch()
    assert [p.exit(60) for p in both] == [0, 0], rdzv


def test_a_stale_node_is_refused(rdzv, torchrun):
    """A node stands still for longer than its lease: torchrun, agent and worker. The other goes on alone. When the node wakes it learns that its
    round is over, stops its worker and joins again. The workers of the two rounds had different stores."""
    (rdzv.tmp / "hold.py").write_text(HOLD)
    conf = "join_timeout=60,last_call_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=2"
    nodes = [torchrun.start(nnodes="1:2", conf=conf, script="hold.py", node=str(i)) for i in range(2)]
    until(lambda: f"both hold\n{rdzv}", lambda: len(holding(torchrun, 2)) == 2, 60)
    old = holding(torchrun, 2)
    frozen = next(i for i in range(2) if old[1] in rdzv.pids(E2E_NODE=str(i)))
    pids = [pid for pid in rdzv.pids(E2E_NODE=str(frozen)) if pid not in rdzv.daemons()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    until(lambda: f"the other goes on alone\n{rdzv}", lambda: len(holding(torchrun, 1)) == 1, 60)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # the guard has ended the worker meanwhile
            os.kill(pid, signal.SIGCONT)
    until(lambda: f"both are in one round again\n{rdzv}", lambda: len(new := holding(torchrun, 2)) == 2 and old[1] not in new.values(), 120)
    assert old[1] not in rdzv.pids(), rdzv
    ports = {p.read_text() for p in torchrun.out.iterdir() if p.name.count(".") == 2}
    assert len(ports) == 3, ports
    (torchrun.out / "go").touch()
    assert [p.exit(60) for p in nodes] == [0, 0], rdzv


def test_a_torchrun_that_dies_leaves_the_job(rdzv, torchrun):
    (rdzv.tmp / "hold.py").write_text(HOLD)
    nodes = [torchrun.start(nnodes="1:2", conf="join_timeout=60,last_call_timeout=60", script="hold.py", node=str(i)) for i in range(2)]
    until(lambda: f"both hold\n{rdzv}", lambda: len(holding(torchrun, 2)) == 2, 60)
    worker = holding(torchrun, 2)[1]
    dead = next(i for i in range(2) if worker in rdzv.pids(E2E_NODE=str(i)))
    nodes[dead].kill()
    until(lambda: f"the other goes on alone\n{rdzv}", lambda: len(holding(torchrun, 1)) == 1, 60)
    os.kill(worker, signal.SIGKILL)  # torchrun leaves its workers behind, as with any backend
    (torchrun.out / "go").touch()
    assert nodes[1 - dead].exit(60) == 0, rdzv


def test_a_torchrun_that_is_stopped_leaves_the_job(rdzv, torchrun):
    (rdzv.tmp / "hold.py").write_text(HOLD)
    p = torchrun.start(nnodes="1", script="hold.py")
    until(lambda: f"it holds\n{rdzv}", lambda: len(holding(torchrun, 1)) == 1, 60)
    p.kill(signal.SIGTERM)
    assert p.exit(60) != 0, p
    rdzv.gone()


def test_the_page_torchrun(rdzv, installed):
    (rdzv.tmp / "train.py").write_text("import os\nos.write(1, f\"rank {os.environ['RANK']}\\n\".encode())\n")  # whole: workers share torchrun's stdout
    command = pages.with_changes(pages.block(PAGE, "torchrun"), [("node1:29400", f"127.0.0.1:{free_port()}")])
    both = [rdzv.spawn("bash", "-ec", command, env=installed) for _ in range(2)]
    assert [p.exit(60) for p in both] == [0, 0], rdzv
    assert sorted(line for p in both for line in p.out) == [f"rank {n}" for n in range(4)], rdzv


def test_the_page_accelerate(rdzv, installed):
    """Two machines. The first one's agent starts rdzvd at the port that accelerate names."""
    need("accelerate", importlib.util.find_spec("accelerate"))
    (rdzv.tmp / "train.py").write_text("from accelerate import Accelerator\na = Accelerator(cpu=True)\na.wait_for_everyone()\n"
                                       "print('process', a.process_index, 'of', a.num_processes, flush=True)\na.end_training()\n")
    port, both = free_port(), []
    for rank in range(2):
        command = pages.with_changes(pages.block(PAGE, "accelerate"), [("node1", "127.0.0.1"), ("29400", port), ("--machine_rank 0", f"--machine_rank {rank}")])
        both.append(rdzv.spawn("bash", "-ec", command, env={**installed, "HF_HOME": str(rdzv.tmp)}))
        # accelerate on the first machine looks whether the port is free, and both are on this one.
        until(lambda: f"rdzvd serves\n{rdzv}", rdzv.daemons, 60)
    assert [p.exit(60) for p in both] == [0, 0], rdzv
    assert sorted(line for p in both for line in p.out) == ["process 0 of 2", "process 1 of 2"], rdzv


FORMS = [
    (["--nproc", 2, "train.py", "--lr", 1], {}),
    (["--standalone", "--nproc_per_node=2", "train.py", "--lr", 1], {}),
    (["--nnodes=1:1", "--nproc-per-node", 2, "--rdzv-backend=c10d", "--rdzv_endpoint", "localhost:0", "-m", "train", "--lr", 1], {}),
    (["--module", "train", "--lr", 1], {"PET_NPROC_PER_NODE": "2"}),
    (["--nproc-per-node", 2, "--run-path", "train.py", "--lr", 1], {}),
    (["--nproc-per-node", 2, "--no-python", sys.executable, "train.py", "--lr", 1], {}),
]


def test_every_form_with_python_m(rdzv, installed):
    (rdzv.tmp / "train.py").write_text("import os, sys\nprint(*(os.environ[n] for n in ('RANK', 'WORLD_SIZE')), *sys.argv[1:], sys.executable, flush=True)\n")
    started = [rdzv.spawn(sys.executable, "-m", module, *words, env={**installed, **env}) for words, env in FORMS for module in ("rdzv.run", "rdzv")]
    code = f"import sys\nfrom rdzv.run import main\nprint('before')\nmain({[str(word) for word in FORMS[0][0]]})"
    started.append(rdzv.spawn(sys.executable, "-c", code, env=installed))
    for p in started:
        assert p.exit(60) == 0 and all(p.says(rf"(?m)^\[{rank}\] {rank} 2 --lr 1 {sys.executable}$") for rank in range(2)), p
    assert started[-1].out[0] == "before", started[-1]


# TorchX. -----------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torchx():
    """The program, in an environment of its own, which tests/steps/install.sh makes."""
    program = conftest.CACHE / "torchx/bin/torchx"
    need("torchx", program.exists())
    return program


def run_torchx(rdzv, installed, torchx, *words):
    return rdzv.spawn(torchx, *words, env={**installed, "PYTHON_EXEC": sys.executable})


X = "import os, sys\nprint('rank', *(os.environ[n] for n in ('RANK', 'WORLD_SIZE')), os.environ.get('E1'), sys.argv[1:], 'under', 'RDZV_ROUND' in os.environ)\n"


def test_the_page_torchx(rdzv, installed, torchx):
    (rdzv.tmp / "train.py").write_text(X)
    env = {**installed, "PATH": f"{torchx.parent}:{installed['PATH']}", "PYTHON_EXEC": sys.executable}
    p = rdzv.spawn("bash", "-ec", pages.block(PAGE, "torchx"), env=env)
    assert p.exit(60) == 0 and p.says(r"\[0\] rank 0 2 None \[\] under True") and p.says(r"\[1\] rank 1 2 None \[\] under True"), p


def test_torchx_with_two_replicas(rdzv, installed, torchx):
    (rdzv.tmp / "x.py").write_text(X)
    p = run_torchx(rdzv, installed, torchx, "run", "-s", "local_cwd", "rdzv.ddp", "-j", "2x1", "--rdzv_port", free_port(), "--env", "E1=v", "--script", "x.py", "--", "a", "b")
    assert p.exit(60) == 0 and all(p.says(rf"\[{rank}\] rank {rank} 2 v \['a', 'b'\] under True") for rank in range(2)), p


def test_torchx_keeps_its_own_components(rdzv, installed, torchx):
    p = run_torchx(rdzv, installed, torchx, "builtins")
    assert p.exit(60) == 0 and p.says(r"rdzv\.ddp") and p.says(r"dist\.ddp") and p.says(r"utils\.echo"), p


def test_torchx_makes_the_job_of_dist_ddp(rdzv, installed, torchx):
    """All parameters have the same effect. Only the first word differs, so an image needs rdzv-agent where it needed torchrun."""
    (rdzv.tmp / "compare.py").write_text("""
import inspect, json
from torchx.components import dist
from rdzv import torchx
mine, theirs = inspect.signature(torchx.ddp), inspect.signature(dist.ddp)
assert str(mine) == str(theirs), (mine, theirs)
for given in ({"script": "a.py"}, {"m": "pack.mod", "j": "2:4x8", "env": {"A": "b"}, "mounts": ["type=bind", "src=/s", "dst=/d"], "rdzv_port": 7, "rdzv_backend": "static",
              "cpu": 3, "gpu": 2, "memMB": 9, "max_retries": 4, "debug": True, "tee": 1, "name": "e/r", "image": "i"}):
    a, b = torchx.ddp("x", "y z", **given), dist.ddp("x", "y z", **given)
    (role,) = b.roles
    assert role.args[1].startswith("torchrun "), role.args
    role.args[1] = "rdzv-agent" + role.args[1][len("torchrun"):]
    assert a == b, (a, b)
print("alike")
""")
    p = rdzv.spawn(torchx.parent / "python", "compare.py", env=installed)
    assert p.exit(60) == 0 and p.says("alike"), p


def test_torchx_and_components_of_another_package(rdzv, installed, torchx):
    """Then TorchX shows what that package has registered, and rdzv adds its own alone."""
    info = rdzv.tmp / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torchx.components]\nmine = torchx.components.utils\n")
    p = run_torchx(rdzv, {**installed, "PYTHONPATH": f"{rdzv.tmp}:{installed['PYTHONPATH']}"}, torchx, "builtins")
    assert p.exit(60) == 0 and p.says(r"rdzv\.ddp") and p.says(r"mine\.echo") and not p.says(r"dist\.ddp"), p
