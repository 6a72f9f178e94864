# SPDX-License-Identifier: Apache-2.0
"""A machine whose only loopback address is ::1: whatever stays on one host works there as it does on 127.0.0.1."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness import HOST, RDZVCTL, TRAINER, free_port, until

E2E = Path(__file__).resolve().parent
# Rank 0 leaves a value in the round's store; all ranks read it.
MEETS = """
import os, sys
sys.path.insert(0, os.environ["E2E"])
from c10d import Store
store = Store()
if os.environ["RANK"] == "0":
    store.set("key", "value")
print("rank", os.environ["RANK"], "at", os.environ["MASTER_ADDR"], "read", store.get("key").decode(), flush=True)
"""
MEET = ["--", sys.executable, "-u", "-c", MEETS]


@pytest.fixture
def v6(rdzv):
    """All that `rdzv` starts runs in a network name space without 127.0.0.1."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and ip(8)")
    name = f"rdzv-lo-{os.getpid()}"
    run = lambda *a: subprocess.run(["ip", *a], check=True, capture_output=True)
    try:
        run("netns", "add", name)
        run("-n", name, "link", "set", "lo", "up")
        run("-n", name, "addr", "del", "127.0.0.1/8", "dev", "lo")
        rdzv.wrap = ["ip", "netns", "exec", name, "env", f"E2E={E2E}"]
        yield rdzv
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def met(agents, world, code=0):
    for a in agents:
        assert a.exit(30) == code, a
    lines = [l for a in agents for l in a.out]
    assert sorted(l[l.index("rank") :] for l in lines) == [f"rank {r} at ::1 read value" for r in range(world)], agents


def test_standalone(v6):
    met([v6.agent("--standalone", "--nproc", 2, *MEET)], 2)
    v6.gone()


def test_hosts(v6):
    """This machine alone, by --hosts."""
    met([v6.agent("--hosts", "localhost", "--nproc", 2, *MEET)], 2)
    v6.gone()


def test_agents_of_one_slurm_step(v6):
    """The place to meet follows from the step, all of whose tasks are here."""
    env = dict(SLURM_JOB_ID=os.getpid(), SLURM_STEP_ID=0, SLURM_STEP_NUM_TASKS=2, SLURM_STEP_TASKS_PER_NODE=2, SLURM_STEP_NODELIST=HOST, SLURM_NODEID=0)
    agents = [
        v6.agent("--nproc", 1, "--join-timeout", "20s", *MEET, env={**{k: str(v) for k, v in env.items()}, "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i)})
        for i in range(2)
    ]
    met(agents, 2)
    v6.gone()


def test_static_place(v6):
    """torchrun's --master-addr defaults to this machine."""
    port = free_port()
    met([v6.agent("--nnodes", 2, "--node-rank", i, "--master-port", port, "--join-timeout", "20s", *MEET) for i in range(2)], 2)
    v6.gone()


def test_rdzvctl(v6):
    """The daemon that an agent has started on ::1, and what rdzvctl says of the job there."""
    a = v6.agent("--standalone", "--", "sleep", "60")
    v6.await_workers(1)
    port = int(until("an rdzvd listens", lambda: [l for l in listening(v6) if "rdzvd" in l])[0].split("]:")[1].split()[0])
    for words in (["--endpoint", f"[::1]:{port}"], ["--port", port]):
        p = v6.spawn(RDZVCTL, *words, "status")
        assert p.exit(10) == 0 and p.says("running.* 1 node") and p.says(" ::1 "), p
    p = v6.spawn(RDZVCTL, "--port", port, "stop", p.out[0].split(":")[0])
    assert p.exit(10) == 0, p
    assert a.exit() == 77, a
    v6.gone()


def listening(v6):
    """[::1]:PORT and whose it is, of all sockets that listen there."""
    text = subprocess.run([*v6.wrap, "ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout
    return [l for l in text.splitlines() if "[::1]:" in l]


def test_trainer(v6):
    """The workers' ring and librdzv's store."""
    a = v6.agent("--standalone", "--nproc", 2, "--", TRAINER, "--steps", 3)
    assert a.exit(60) == 0, a
    v6.gone()
