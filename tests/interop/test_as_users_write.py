# SPDX-License-Identifier: Apache-2.0
"""Scripts as they are written in the wild, started by rdzv-agent where torchrun, torch.distributed.launch, mpirun or nothing at all started them before."""

import json
import sys

import pytest

from conftest import HERE, QUIET
from harness import HOST

SCRIPTS = HERE / "scripts"
# Which python a script gets that is started without one.
ENV = dict(QUIET, PYTHON_EXEC=sys.executable)


@pytest.fixture
def out(rdzv):
    path = rdzv.tmp / "out"
    path.mkdir()
    return path


def agent(rdzv, *args, env=None, timeout=60, code=0):
    a = rdzv.agent("--standalone", "--max-restarts", 0, *args, env=dict(ENV, **(env or {})))
    assert a.exit(timeout) == code, a
    return a


def said(out, n):
    return [(out / str(rank)).read_text().split() for rank in range(n)]


def test_script_without_python(rdzv, out):
    """torchrun's own form: the script's name is the command, LOCAL_RANK comes from the environment."""
    agent(rdzv, "--nproc", 2, SCRIPTS / "some/module.py", out)
    assert said(out, 2) == [["2.0", "None", "0"], ["2.0", "None", "1"]]


def test_module(rdzv, out):
    agent(rdzv, "--nproc-per-node", 2, "-m", "some.module", out, env={"PYTHONPATH": str(SCRIPTS)})
    assert said(out, 2) == [["2.0", "some", "0"], ["2.0", "some", "1"]]


@pytest.mark.parametrize("form", ["--local-rank=${local_rank}", "--local_rank=${local_rank}"])
def test_local_rank_as_an_argument(rdzv, out, form):
    agent(rdzv, "--nproc", 2, SCRIPTS / "by_argument.py", out, form)
    assert said(out, 2) == [["0", "0", "3.0"], ["1", "1", "3.0"]]


def test_accelerate(rdzv, out):
    """The same losses as under torchrun, bit by bit."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    agent(rdzv, "--nproc", 2, SCRIPTS / "with_accelerate.py", out)
    theirs = rdzv.tmp / "theirs"
    theirs.mkdir()
    t = rdzv.spawn(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, SCRIPTS / "with_accelerate.py", theirs, env=QUIET)
    t.exit(60)  # whether torchrun's own workers end well is not compared; one of PyTorch's threads has called std::terminate there
    ours = (out / "accelerate").read_text().split()
    assert ours == (theirs / "accelerate").read_text().split()
    assert ours[:2] == ["2", "DistributedType.MULTI_CPU"] and len(ours) == 2 + 16


def test_distributed_checkpoint(rdzv, out):
    """torch.distributed.checkpoint: saved by two ranks of one round, loaded by two of the next."""
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--max-restarts", 1, SCRIPTS / "with_dcp.py", out, env=ENV)
    for a in agents:
        assert a.exit(60) == 0 and a.says("restart 1 of 1"), rdzv
    for rank in range(2):
        assert (out / f"loaded.{rank}").read_text().split(" ", 2) == ["7", "1", str([7.0 * i for i in range(8 * rank, 8 * rank + 8)]) + "\n"]


def test_record(rdzv, out):
    """What @record writes is the verdict, on every node, and is handed on where the agent has such a file itself."""
    d = rdzv.daemon()
    files = [rdzv.tmp / f"agent-{n}.json" for n in range(2)]
    agents = [rdzv.agents(1, d.endpoint, "--nnodes", 2, "--node-rank", n, "--max-restarts", 0, SCRIPTS / "with_record.py",
                          env=dict(ENV, TORCHELASTIC_ERROR_FILE=str(f)))[0] for n, f in enumerate(files)]
    for a in agents:
        assert a.exit(60) == 1, rdzv
        assert a.says(r"rank 1\b.*: ValueError: the learning rate is a banana") and a.says(HOST), a
    for f in files:
        got = json.loads(f.read_text())["message"]
        assert got["message"] == "ValueError: the learning rate is a banana" and "in main" in got["extraInfo"]["py_callstack"]


def test_one_process_per_node_that_spawns(rdzv, out):
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--max-restarts", 0, "--store", "worker", SCRIPTS / "spawns.py", out, 2, env=ENV)
    for a in agents:
        assert a.exit(60) == 0, rdzv
    assert said(out, 4) == [["6.0", "4"]] * 4


def test_own_server(rdzv, out):
    """--store worker: rank 0 binds MASTER_PORT itself, and nobody of ours is there."""
    agent(rdzv, "--nproc", 2, "--store", "worker", SCRIPTS / "own_server.py", out)
    assert said(out, 2) == [["2.0", "2"]] * 2


# mpirun's NODE_RANK is a process's place on its node.
def test_mpi_variables(rdzv, out):
    agent(rdzv, "--nproc", 2, "--mpi-env", SCRIPTS / "by_mpi.py", out)
    assert said(out, 2) == [["2.0", "0", "2", "0", "2", "0"], ["2.0", "1", "2", "1", "2", "1"]]


def test_under_mpirun(rdzv, out):
    """mpirun starts an agent per node, and its variables are the agent's place: the workers get their own."""
    inherited = {f"OMPI_COMM_WORLD_{k}": v for k, v in dict(RANK="3", SIZE="4", LOCAL_RANK="0", LOCAL_SIZE="1", NODE_RANK="0").items()}
    agent(rdzv, "--nproc", 2, SCRIPTS / "by_mpi.py", out, env=inherited)
    assert said(out, 2) == [["2.0", "0", "2", "0", "2", "0"], ["2.0", "1", "2", "1", "2", "1"]]
