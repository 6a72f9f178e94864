# SPDX-License-Identifier: Apache-2.0
"""PyTorch 1.13, as Debian 12 has it: the numbering before 2.2, no handshake, and a second connection that says nothing for as long as the first lives."""

import json

import pytest

from conftest import HERE, QUIET, find_torch

OLD = "/usr/bin/python3"
SCRIPT = HERE / "scripts/old.py"


@pytest.fixture(scope="module", autouse=True)
def old():
    version = find_torch(OLD)
    if not version.startswith("1.13"):
        pytest.skip(f"{OLD} has no PyTorch 1.13 (Debian's python3-torch) but {version or 'none'}")


@pytest.fixture
def out(rdzv):
    path = rdzv.tmp / "out"
    path.mkdir()
    return path


@pytest.mark.parametrize("where", ["rdzvd", "round"])
def test_store(where, rdzv, serve):
    """And while it rests, it rests: a client whose silent connection is closed turns round for ever."""
    p = rdzv.spawn(OLD, SCRIPT, serve(where), env=QUIET)
    assert p.exit(40) == 0, p
    got = json.loads(p.out[-1])
    assert got.pop("rest") <= 0.03, "it does not rest"
    assert got == {"get": "v1", "add": [5, -2], "keys": 2, "compare_set": ["x", "x", "z"], "delete": [True, False, 2], "wait": "1",
                   "prefix": "prefixed", "big": 1 << 20, "timeout": "RuntimeError", "still there": -1}


def gloo(out, words):
    assert [(out / str(rank)).read_text().split(" ", 1)[1] for rank in range(2)] == [words] * 2


def test_gloo_through_rdzvd(rdzv, serve, out):
    """Two processes that were told of rdzvd as MASTER_ADDR and MASTER_PORT, and whose store is a client's (as under an agent)."""
    env = dict(QUIET, MASTER_ADDR="localhost", MASTER_PORT=str(serve("rdzvd")), WORLD_SIZE="2", TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    both = [rdzv.spawn(OLD, SCRIPT, "env", out, env=dict(env, RANK=str(rank))) for rank in range(2)]
    assert [p.exit(40) for p in both] == [0, 0], rdzv
    gloo(out, "[3.0, 3.0] 0\n")


def test_gloo_under_the_agent(rdzv, out):
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--", OLD, SCRIPT, "env", out, env=QUIET)
    assert a.exit(40) == 0, a
    gloo(out, "[3.0, 3.0] 0\n")
