# SPDX-License-Identifier: Apache-2.0
"""Scripts that set MASTER_ADDR and MASTER_PORT themselves. PyTorch looks for the agent's store there, in vain: the agent says so, and with --store worker, as
the pages of the clusters have it, they run."""

import re
import signal
import sys

import pages
import pytest

from conftest import HERE, NEWEST, PYTHONS, QUIET
from harness import free_port, need

SCRIPTS = HERE / "scripts"
ENV = dict(QUIET, PYTHON_EXEC=sys.executable)
PROGRAMS = {"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n', "accelerate": f'#!/bin/sh\nexec {sys.executable} -m accelerate.commands.accelerate_cli "$@"\n'}
# Per worker, as sites have it for mpirun.
PYTHON_BASH = """#!/bin/bash
export MASTER_ADDR=localhost MASTER_PORT={port}
export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK
python "$@"
"""
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
use_cpu: false
num_machines: 2
num_processes: 4
mixed_precision: 'no'
"""


@pytest.fixture
def out(rdzv):
    path = rdzv.tmp / "out"
    path.mkdir()
    return path


def files(rdzv, port):
    (rdzv.tmp / "python.bash").write_text(PYTHON_BASH.format(port=port))
    (rdzv.tmp / "accelerate.yaml").write_text(ACCELERATE)


@pytest.mark.parametrize("n, script, words", [(2, "sets_port.py", []), (1, "spawns_at_port.py", []), (2, "python.bash", ["sets_no_port.py"])])
def test_the_agent_says_why_nothing_happens(rdzv, out, n, script, words):
    """Where PyTorch prints nothing for half an hour."""
    number = free_port()
    files(rdzv, number)
    command = [SCRIPTS / script, out, number] if not words else ["--mpi-env", "--", "bash", script, SCRIPTS / words[0], out]
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--stop-timeout", "1s", "--nproc", n, *command, env={**ENV, **pages.with_programs(rdzv, PROGRAMS)})
    m = a.expect(r"no worker has connected to the round's store \(MASTER_ADDR=127\.0\.0\.1 MASTER_PORT=(\d+)\) for \d+ s, and rank \d's process \d+ \(\S+\) has "
                 "loaded PyTorch and waits; if the script sets MASTER_ADDR", 60)
    assert m[1] != str(number) and "--store worker" in m.string, a
    a.kill(signal.SIGTERM)
    a.exit()


@pytest.mark.parametrize("python, words", [("newest-pytorch", []), ("newest-pytorch", ["--store", "worker"]), ("pytorch-2.13", ["--store", "worker"])])
def test_an_address_in_the_script(rdzv, out, python, words):
    """Since PyTorch 2.14 rank 0 serves the store there, also beside the agent's."""
    need(NEWEST, PYTHONS[python])
    command = [SCRIPTS / "by_address.py", out, free_port()]
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--nproc", 2, *words, *command, env={**ENV, "PYTHON_EXEC": str(PYTHONS[python])})
    assert a.exit(60) == 0, a
    assert sorted(p.name for p in out.iterdir()) == ["0", "1"], a


@pytest.mark.parametrize("n, script, want", [(2, "sets_port.py", 2), (1, "spawns_at_port.py", 2)])
def test_store_worker_is_the_remedy(rdzv, out, n, script, want):
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--nproc", n, "--store", "worker", SCRIPTS / script, out, free_port(), env=ENV)
    assert a.exit(60) == 0, a
    assert sorted(p.name for p in out.iterdir()) == [str(r) for r in range(want)], a


def on_two_nodes(rdzv, page, name, changes, n=2):
    """The page's line, in a folder with the files that it names, on two nodes that are this machine."""
    files(rdzv, free_port())
    (line,) = pages.lines(page, name)
    endpoint = rdzv.daemon().endpoint
    line = pages.with_changes(line, [*changes, ("rdzv-agent", f"rdzv-agent --max-restarts 0 --nnodes 2 --local-addr 127.0.0.1 --endpoint {endpoint}")])
    nodes = [pages.shell(rdzv, line, env=ENV, more=PROGRAMS, node=str(i)) for i in range(n)]
    for p in nodes:
        assert p.exit(90) == 0, rdzv


def test_spawn(rdzv, out):
    on_two_nodes(rdzv, "deploy/slurm.md", "spawn", [("srun ", ""), ("spawns.py", f"{SCRIPTS}/spawns.py {out} 2")])
    assert sorted(p.name for p in out.iterdir()) == ["0", "1", "2", "3"], rdzv


def test_accelerate_launch(rdzv, out):
    """With a file of accelerate's, on two machines: the same four ranks on each page's cluster."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    on_two_nodes(rdzv, "deploy/slurm.md", "accelerate", [("srun ", ""), ("train.py", f"{SCRIPTS}/with_accelerate.py {out}")])
    assert (out / "accelerate").read_text().split()[:2] == ["4", "DistributedType.MULTI_CPU"], rdzv


def test_accelerate_on_cpus(rdzv, out, monkeypatch):
    """accelerate launch leaves ranks out, as the page says; started by the agent they are all there."""
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    with monkeypatch.context() as m:
        m.setitem(globals(), "ACCELERATE", ACCELERATE.replace("MULTI_GPU", "MULTI_CPU").replace("use_cpu: false", "use_cpu: true"))
        on_two_nodes(rdzv, "deploy/slurm.md", "accelerate", [("srun ", ""), ("train.py", f"{SCRIPTS}/with_accelerate.py {out}")])
    assert (out / "accelerate").read_text().split()[:2] == ["2", "DistributedType.MULTI_CPU"], rdzv
    on_two_nodes(rdzv, "deploy/slurm.md", "accelerate on CPUs", [("srun ", ""), ("train.py", f"{SCRIPTS}/with_accelerate.py {out}")])
    assert (out / "accelerate").read_text().split()[:2] == ["4", "DistributedType.MULTI_CPU"], rdzv


def test_python_bash(rdzv, out):
    on_two_nodes(rdzv, "deploy/sge.md", "python.bash", [("./train.py", f"{SCRIPTS}/sets_no_port.py {out}")])
    assert sorted(p.name for p in out.iterdir()) == ["0", "1"], rdzv
