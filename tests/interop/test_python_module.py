# SPDX-License-Identifier: Apache-2.0
"""`import rdzv`: a world of one without an agent, workers of one job, threads, signals, forks, a checkpoint on request, a round in the same process."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from conftest import HERE  # and with it the folder of the next two
import pages
from harness import BUILD, RDZVCTL, SANITIZED, TOP, need, until

WORLD = HERE / "scripts/module_world.py"
MODULE = {"PYTHONPATH": str(TOP / "deploy/python"), "RDZV_LIBRARY": str(BUILD / "agent/sdk/librdzv.so.0"), "PYTHONDONTWRITEBYTECODE": "1"}
# librdzv of a sanitized build needs its runtime in the process before Python.
pytestmark = pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitized librdzv")


def alone(rdzv, code, code_is=0, **env):
    p = rdzv.spawn(sys.executable, "-c", code, env={**MODULE, **env})
    assert p.exit(20) == code_is, p
    return p


def agent(rdzv, case, *options, nproc=2, **env):
    return rdzv.agent("--standalone", "--nproc", nproc, "--max-restarts", 0, *options, "--", sys.executable, WORLD, case, env={**MODULE, **env})


def status(rdzv, job):
    return subprocess.run([RDZVCTL, "--socket", rdzv.tmp / "s", "status", job], capture_output=True, text=True, timeout=20).stdout


def all_step(rdzv, job, nodes):
    """All ranks of all nodes: they meet at step 10, so who is beyond it knows that the others can save."""
    steps = re.findall(r"  step (\d+) of ", status(rdzv, job))  # of the nodes' lines
    return len(steps) == nodes and all(int(n) > 10 for n in steps)


def test_a_world_of_one(rdzv):
    p = alone(rdzv, """
import rdzv
with rdzv.init() as job:
    assert (rdzv.rank, rdzv.world_size, rdzv.local_rank, rdzv.alone, rdzv.run_id, rdzv.end_time) == (0, 1, 0, True, "", None)
    assert rdzv.exchange(b"mine") == [b"mine"]
    rdzv.barrier(timeout=0)
    rdzv.store.set("k", "v")
    assert rdzv.store.get("k") == b"v" and rdzv.store.add("n", 3) == 3
    rdzv.progress(1, of=2, loss=0.5, samples=8)
    rdzv.can_checkpoint(), rdzv.checkpointed(1), rdzv.saved(1), rdzv.can_rejoin()
    assert not rdzv.requested()
    checkpoints = rdzv.Checkpoints()
    assert not checkpoints.due(1)
    for call in lambda: rdzv.store.get("none"), lambda: rdzv.rejoin():
        try:
            call()
        except rdzv.Error as e:
            print(type(e).__name__, e)
import threading
found = []
t = threading.Thread(target=lambda: found.append(rdzv.store.try_get("again")))
rdzv.store.set("again", "1")
t.start(), t.join()
assert found == [b"1"]
""")
    assert p.out == ['Timeout store get "none": it does not exist, and a world of one has no other rank to set it',
                     "Error rejoin: this program runs without an agent, so there is no next round"], p


@pytest.mark.parametrize("call,sentence", [
    ("rdzv.progress(-1)", "ValueError: a step is 0 or more, not -1"),
    ("rdzv.progress(1, loss='low')", "ValueError: loss is 'low': it must be a number, or a tensor with one element (could not convert"),
    ("rdzv.Checkpoints().written(3)", "rdzv.Error: written(3): no checkpoint was asked for. Call it only after due() has returned True"),
    ("rdzv.barrier(timeout=-1)", "ValueError: timeout is -1: it must be 0 or more seconds"),
    ("rdzv.barrier(timeout=float('nan'))", "ValueError: timeout is nan: it must be 0 or more seconds"),
    ("rdzv.store.set('k', 1)", "TypeError: a value is str or bytes, not int"),
    ("rdzv.store.get('a\\0b')", "ValueError: 'a\\x00b' has a NUL byte"),
    ("rdzv.store.set('k', b'x' * (9 << 20))", 'Error: store set "k": '),
    ("rdzv.barrier('')", "a name has 1 to 1024 bytes"),
    ("rdzv.barrier('n' * 2000)", "a name has 1 to 1024 bytes"),
    ("rdzv.store.multi_set(['a'], [])", "ValueError: 1 keys and 0 values"),
    ("rdzv.store.get('none')", 'rdzv.Timeout: store get "none": it does not exist'),
    ("rdzv.nothing", "AttributeError: module 'rdzv' has no attribute 'nothing'"),
])
def test_mistakes(rdzv, call, sentence):
    assert sentence in alone(rdzv, "import rdzv\n" + call, 1).err[-1]


@pytest.mark.parametrize("env,sentence", [
    ({"RDZV_LIBRARY": "/nowhere.so"}, "librdzv is not found (/nowhere.so: cannot open shared object file: No such file or directory): set RDZV_LIBRARY"),
    ({"RDZV_LIBRARY": "libc.so.6"}, "libc.so.6 does not fit this Python module, it lacks a function"),
    ({"RDZV_AGENT_SOCKET": "@nobody", "RDZV_ROUND": "1", "RDZV_LOCAL_RANK": "0"}, "no agent answers at RDZV_AGENT_SOCKET=@nobody"),
    ({"RDZV_AGENT_SOCKET": "@"}, 'RDZV_AGENT_SOCKET is "@": a path or @name of 2 to'),
])
def test_an_environment_that_does_not_fit(rdzv, env, sentence):
    assert sentence in alone(rdzv, "import rdzv\nrdzv.rank", 1, **env).err[-1]


def test_help_needs_no_trainer(rdzv):
    """-S: without the packages of this environment."""
    p = rdzv.spawn(sys.executable, "-S", "-c", "import pydoc, rdzv; pydoc.help(rdzv)", env={**MODULE, "PAGER": "cat"})
    assert p.exit(20) == 0 and p.says("rdzv for the workers that rdzv-agent has started") and p.says("class Checkpoints"), p


def test_a_loss_with_a_gradient(rdzv):
    p = alone(rdzv, """
import rdzv, torch, warnings
warnings.simplefilter("error")
loss = torch.ones(3, requires_grad=True).sum()
rdzv.progress(1, loss=loss)
assert rdzv.init()._reports.loss == 3
try:
    rdzv.progress(1, of=1, loss=torch.ones(2))
except RuntimeError as e:
    print(e)
""")
    assert "2 elements" in p.out[0], p


def test_everything_between_two_ranks(rdzv):
    a = agent(rdzv, "everything", RDZV_END_TIME="4102444800")
    assert a.exit(30) == 0 and sum("all is well" in line for line in a.out) == 2, a


def test_threads(rdzv):
    a = agent(rdzv, "threads")
    assert a.exit(60) == 0 and a.says(r"held \[b'1'\]"), a


def test_a_wait_is_interrupted(rdzv):
    a = agent(rdzv, "interrupted", nproc=1)
    assert a.exit(30) == 0 and 0.4 <= float(a.expect(r"interrupted after (\S+) s")[1]) < 10, a


def test_a_fork_is_refused_and_may_connect(rdzv):
    a = agent(rdzv, "forked", nproc=1)
    assert a.exit(30) == 0 and a.says(r"this process was forked from pid \d+, and shares its connection: call rdzv.init\(\) here"), a
    assert a.says("in the child: rank 0"), a


def test_progress_is_shown_and_a_preemption_saves_one_step_on_all_ranks(rdzv):
    daemon = rdzv.daemon("--socket", rdzv.tmp / "s")
    agents = rdzv.agents(2, daemon.endpoint, "--nnodes", 2, "--nproc", 2, "--rdzv-id", "watched", "--", sys.executable, WORLD, "watched", env=MODULE)
    shown = lambda: status(rdzv, "watched")  # noqa: E731
    until(lambda: f"all ranks step:\n{shown()}", lambda: all_step(rdzv, "watched", 2), 30)
    # 64 samples each 20 ms or a little more, on four ranks.
    until(lambda: f"status shows step, loss and speed:\n{shown()}", lambda: re.search(r"step \d+ of 100000.*loss 0\.125, \d+ samples/s", shown()), 30)
    for a in agents:
        a.kill(signal.SIGTERM)
    assert [a.exit(20) for a in agents] == [75, 75], rdzv
    saved = {(rdzv.tmp / f"saved.1.{rank}").read_text() for rank in range(4)}
    (step,) = saved
    for a in agents:
        assert a.says(f"a checkpoint was written after step {int(step)}") and not a.says("Traceback|was killed"), a


def test_a_node_leaves_and_the_other_goes_on(rdzv):
    """Its workers exit with 75 when they are asked to stop, which is not a failure."""
    daemon = rdzv.daemon("--socket", rdzv.tmp / "s")
    agents = rdzv.agents(2, daemon.endpoint, "--nnodes", "1:2", "--nproc", 2, "--last-call", "5s", "--max-restarts", 0, "--rdzv-id", "leaves",
                         "--", sys.executable, WORLD, "watched", env=MODULE)
    agents[0].expect("round 1: 2 nodes, 4 workers")
    until(lambda: f"both nodes step\n{rdzv}", lambda: all_step(rdzv, "leaves", 2), 30)
    agents[0].kill(signal.SIGTERM)
    assert agents[0].exit(20) == 75, rdzv
    agents[1].expect("round 2: 1 node, 2 workers", 20)
    assert len({(rdzv.tmp / f"saved.1.{rank}").read_text() for rank in range(4)}) == 1
    assert agents[1].says("no restart is charged") and not any(a.says("Traceback|was killed|has not written") for a in agents), rdzv
    until(lambda: f"round 2 steps\n{rdzv}", lambda: all_step(rdzv, "leaves", 1), 30)
    agents[1].kill(signal.SIGTERM)
    assert agents[1].exit(20) == 75 and (rdzv.tmp / "saved.2.0").exists(), rdzv


def test_a_planned_end_that_is_called_off(rdzv):
    """The ranks go on behind the checkpoint, and the next request is another one."""
    a = agent(rdzv, "calls_off")
    assert a.exit(60) == 0, a
    assert [sum(line.endswith(f"saves {n}") for line in a.out) for n in range(2)] == [2, 2], a


def test_a_job_without_a_store(rdzv):
    a = agent(rdzv, "no_store", "--store", "worker")
    assert a.exit(30) == 0, a
    assert a.says("UserWarning: requests for a checkpoint are not answered: .*this job has no store: its agents run with --store worker"), a


def test_ranks_of_different_speed_save_the_same_step(rdzv):
    a = agent(rdzv, "uneven", nproc=3)
    a.expect(r"met 20$", 30)
    a.kill(signal.SIGTERM)
    assert a.exit(30) == 75, a
    saves = re.findall(r"\[(\d)\] saves (\d+)", a.text)
    assert sorted(rank for rank, _ in saves) == ["0", "1", "2"] and len({step for _, step in saves}) == 1, a


def test_the_next_round_in_the_same_process(rdzv):
    a = agent(rdzv, "rejoins", "--max-restarts", 1)
    assert a.exit(60) == 0 and a.says("rejoined True"), a


PAGE = "deploy/guide/python.md"


def python_blocks():
    return [b for b in pages.blocks(PAGE) if b.lang == "python"]


def test_the_loop_of_the_guide(rdzv):
    """Preempted and started again, then by hand: every step is trained once."""
    (loop,) = [b.text for b in python_blocks() if b.comment == "python: loop"]
    (rdzv.tmp / "train.py").write_text(loop)
    (rdzv.tmp / "deploy").symlink_to(TOP / "deploy")
    (rdzv.tmp / "build").symlink_to(BUILD)
    setting = pages.block(PAGE, "tree")
    agent, by_hand = pages.lines(PAGE, "loop")
    env = {"PYTHON_EXEC": sys.executable, "PYTHONDONTWRITEBYTECODE": "1"}
    daemon = rdzv.daemon("--socket", rdzv.tmp / "s")
    there = pages.with_changes(agent, [("--nproc 4", f"--nproc 4 --rdzv-id loop --endpoint {daemon.endpoint}")])
    first = pages.shell(rdzv, setting + "exec " + there, env=env)
    state = rdzv.tmp / "state.json"
    # A rank that steps has met the others behind Checkpoints(), so all answer requests.
    until(lambda: f"the ranks step\n{first}", lambda: " step " in status(rdzv, "loop"), 30)
    first.kill(signal.SIGTERM)
    assert first.exit(20) == 75 and state.exists(), first
    step = json.loads(state.read_text())["step"]
    assert first.says(f"a checkpoint was written after step {step}"), first
    done = pages.shell(rdzv, setting + pages.with_changes(by_hand, [("python3", sys.executable)]), env=env)
    assert done.exit(30) == 0 and json.loads(state.read_text())["step"] == 1000, done


def test_pytorch_by_hand(rdzv):
    """init_process_group() has no ranks without an agent, and one worker is enough."""
    (rdzv.tmp / "train.py").write_text('import rdzv, torch.distributed as dist\nwith rdzv.init():\n    dist.init_process_group("gloo")\n'
                                       "    print('world', dist.get_world_size())\n    dist.destroy_process_group()\n")
    p = rdzv.spawn(sys.executable, "train.py", env=MODULE)
    assert p.exit(30) == 1 and p.says("environment variable RANK expected"), p
    p = pages.shell(rdzv, pages.inline(PAGE, "rdzv-agent --nproc 1 train.py"), env={**MODULE, "PYTHON_EXEC": sys.executable})
    assert p.exit(30) == 0 and p.says("world 1"), p


@pytest.mark.parametrize("name", ["with_trainer.py", "with_lightning.py", "with_saver.py", "in_place_trainer.py", "in_place_saver.py"])
def test_the_callbacks_of_the_guide_are_those_of_the_tests(name):
    """tests/interop/test_callbacks.py and test_in_place_trainers.py run these lines."""
    script = (HERE / "scripts" / name).read_text().splitlines()
    (block,) = [b.text for b in python_blocks() if not (b.comment or "").startswith("python: ") and b.text.splitlines()[0] in script]
    assert [line for line in block.splitlines() if line not in script] == []


def test_a_misspelt_name_is_found_by_a_type_checker(rdzv):
    """The checker reads the module, and not what the module imports of others."""
    need("mypy", importlib.util.find_spec("mypy"))
    (rdzv.tmp / "worker.py").write_text("import rdzv\nrdzv.barier()\nrdzv.rank + 1\nrdzv.huggingface.Callback()\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--follow-imports", "skip", "--ignore-missing-imports", "--cache-dir", os.devnull,
                           rdzv.tmp / "worker.py", TOP / "deploy/python/rdzv"], env={**os.environ, "MYPYPATH": str(TOP / "deploy/python")}, capture_output=True, text=True, timeout=120)
    assert re.findall(r"error: (.*)", done.stdout) == ['Module has no attribute "barier"; maybe "barrier"?  [attr-defined]'], done.stdout + done.stderr


def test_types():
    """The module is typed, strictly. What it imports of others is not looked at, since PyTorch alone takes a minute."""
    need("mypy", importlib.util.find_spec("mypy"))
    others = ["--follow-imports", "skip", "--allow-subclassing-any", "--ignore-missing-imports"]
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", *others, "--cache-dir", os.devnull, TOP / "deploy/python/rdzv"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
