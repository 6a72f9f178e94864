# SPDX-License-Identifier: Apache-2.0
"""A worker in C (librdzv) beside one in Python (PyTorch's TCPStore): they share the round's store. Against every server: PyTorch's own, rdzvd's
common space, a round's store; and both as workers of one job."""

import sys

import pytest

from harness import BUILD, SANITIZED, TOP
from trainer_world import Agent

SCRIPTS = TOP / "tests/interop/scripts"


@pytest.fixture
def in_c(rdzv):
    cc = ["cc", "-I", TOP / "agent/sdk", SCRIPTS / "beside_python.c", BUILD / "agent/sdk/librdzv.a", "-o", "in_c"]
    if SANITIZED:
        cc.append("-fsanitize=address,undefined")
    assert rdzv.spawn(*cc).exit(30) == 0, rdzv
    return rdzv.tmp / "in_c"


@pytest.mark.parametrize("where", ["stock", "rdzvd", "round"])
def test_they_share_a_store(where, rdzv, in_c, serve):
    """The agent is a stand-in that names the store; PyTorch's server serves a worker in C as well as ours serves PyTorch."""
    port = serve(where)
    agent = Agent(1, store_port=port)
    agent.addr = "::1" if where == "rdzvd" else "127.0.0.1"
    c = rdzv.spawn(in_c, env={"RDZV_AGENT_SOCKET": "@" + agent.name, "RDZV_ROUND": "1", "RDZV_LOCAL_RANK": "0"})
    python = rdzv.spawn(sys.executable, SCRIPTS / "beside_c.py", env={"MASTER_ADDR": agent.addr, "MASTER_PORT": str(port)})
    assert (c.exit(60), python.exit(60)) == (0, 0), rdzv
    assert c.says("C: ok") and python.says("Python: ok"), rdzv
    agent.close()


def test_they_are_workers_of_one_job(rdzv, in_c):
    script = f'if [ $RANK = 0 ]; then exec {in_c}; else exec {sys.executable} {SCRIPTS / "beside_c.py"}; fi'
    job = rdzv.agent("--standalone", "--nproc", 2, "--", "sh", "-c", script, env={"OMP_NUM_THREADS": "1"})
    assert job.exit(60) == 0, rdzv
    assert job.says("C: ok") and job.says("Python: ok"), rdzv
