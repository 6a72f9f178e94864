# SPDX-License-Identifier: Apache-2.0
"""ncclUniqueIds: minted by the real NCCL, the same for all, new in each round, and what happens when a helper dies, hangs, or finds no library."""

import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from harness import BUILD, HOST, describe, until

WORKER = str(BUILD / "tests/e2e/ids-worker")
FAKE = str(BUILD / "tests/e2e/fake-nccl.so")


def find_nccl():
    """The library of the package nvidia-nccl-cu13 (or cu12), which works on a machine without a GPU, too."""
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    for folder in spec.submodule_search_locations if spec else []:
        if (Path(folder) / "lib/libnccl.so.2").exists():
            return str(Path(folder) / "lib/libnccl.so.2")
    return None


@pytest.fixture
def nccl():
    library = find_nccl()
    if not library:
        pytest.skip("NCCL is not here: pip install nvidia-nccl-cu13")
    return {"RDZV_NCCL_LIBRARY": library, "NCCL_SOCKET_IFNAME": "lo"}


def fake(**env):
    return {"RDZV_NCCL_LIBRARY": FAKE, **{f"FAKE_NCCL_{k}": str(v) for k, v in env.items()}}


def start(rdzv, envs, *words, args=(), nproc=2, worker=WORKER):
    """An agent for each environment, with node ranks in their order."""
    daemon = rdzv.daemon()
    many = ["--nnodes", len(envs), "--nproc", nproc, "--nccl-ids", "always", "--endpoint", daemon.endpoint, *args]
    return [rdzv.agent(*many, "--node-rank", i, "--", worker, *words, env={"OMP_NUM_THREADS": "1", **env}, node=str(i)) for i, env in enumerate(envs)]


def ids(agents, round_=1):
    """rank -> (number, version, ids in hex), as workers have printed them in that round."""
    text = "\n".join("\n".join(a.out) for a in agents)
    found = re.findall(rf"ids {round_} (\d+) (\d+) (\d+) ([0-9a-f]+)", text)
    return {int(rank): (int(n), int(version), hex_) for rank, n, version, hex_ in found}


def await_ids(agents, ranks, round_=1):
    until(lambda: f"{ranks} ranks have ids in round {round_}:\n" + "\n".join(map(str, agents)), lambda: len(ids(agents, round_)) == ranks, 30)
    found = set(ids(agents, round_).values())
    assert len(found) == 1, found
    return found.pop()


def port_of(hex_):
    """An id begins with a random number, and then has the address of its maker: AF_INET, port."""
    assert hex_[16:20] == "0200" and hex_[24:32] == "7f000001", hex_[:64]
    return int(hex_[20:24], 16)


def listens(port):
    return any(line.split()[1] == f"0100007F:{port:04X}" and line.split()[3] == "0A" for line in Path("/proc/net/tcp").read_text().splitlines()[1:])


def helpers(rdzv, **want):
    return [pid for pid in rdzv.pids(**want) if describe(pid).split(": ")[1].startswith("rdzv-nccl")]


def go(rdzv):
    (rdzv.tmp / "go").touch()


@pytest.mark.parametrize("nodes", [2, 4])
def test_the_same_for_all(rdzv, nccl, nodes):
    agents = start(rdzv, [nccl] * nodes, "until=go")
    n, version, hex_ = await_ids(agents, 2 * nodes)
    assert n == 1 and len(hex_) == 256 and version >= 20000
    port = port_of(hex_)
    assert listens(port) and len(helpers(rdzv)) == len(helpers(rdzv, E2E_NODE="0")) == 1
    go(rdzv)
    assert [a.exit() for a in agents] == [0] * nodes
    assert not listens(port) and not helpers(rdzv)


def test_new_in_each_round(rdzv, nccl):
    agents = start(rdzv, [nccl] * 2, "fail=1:3", "until=go")
    first = await_ids(agents, 4, 1)
    second = await_ids(agents, 4, 2)
    assert first[2] != second[2]
    until("the first round's helper is gone", lambda: not listens(port_of(first[2])))
    assert listens(port_of(second[2])) and len(helpers(rdzv)) == 1
    go(rdzv)
    assert [a.exit() for a in agents] == [0, 0]


def test_helper_leaves_when_communicators_are_up(rdzv, nccl):
    agents = start(rdzv, [nccl] * 2, "up", "until=go")
    _, _, hex_ = await_ids(agents, 4)
    until("the helper is gone", lambda: not helpers(rdzv) and not listens(port_of(hex_)))
    rdzv.await_workers(4)
    go(rdzv)
    assert [a.exit() for a in agents] == [0, 0]
    assert not any(a.says("rdzv-nccl") for a in agents)


def test_helper_killed_before_it_answers(rdzv, nccl):
    (rdzv.tmp / "hang").touch()
    agents = start(rdzv, [fake(HANG="hang"), nccl], "until=go")
    (pid,) = until("the helper runs", lambda: helpers(rdzv))
    os.kill(pid, 9)
    _, _, hex_ = await_ids(agents, 4)
    assert listens(port_of(hex_)) and len(helpers(rdzv, E2E_NODE="1")) == 1
    assert agents[0].says(rf"this node could not mint NCCL ids for round 1: rdzv-nccl \(pid {pid}\) was killed by signal 9")
    go(rdzv)
    assert [a.exit() for a in agents] == [0, 0]


def test_helper_killed_when_all_have_the_ids(rdzv, nccl):
    agents = start(rdzv, [nccl] * 2, "until=go")
    _, _, hex_ = await_ids(agents, 4)
    (pid,) = helpers(rdzv)
    os.kill(pid, 9)
    agents[0].expect(rf"rdzv-nccl \(pid {pid}\) was killed by signal 9; ranks that have not connected to its NCCL ids yet")
    assert not listens(port_of(hex_))
    go(rdzv)
    assert [a.exit() for a in agents] == [0, 0]  # they may have met before


def test_helper_dies_with_its_agent(rdzv, nccl):
    agents = start(rdzv, [nccl] * 2, "until=go")
    _, _, hex_ = await_ids(agents, 4)
    agents[0].kill()
    until("the helper is gone", lambda: not listens(port_of(hex_)) and not helpers(rdzv, E2E_NODE="0"), 5)
    agents[1].end(15)


def test_who_waits_is_told_for_whom(rdzv):
    (rdzv.tmp / "hang").touch()
    agents = start(rdzv, [fake(HANG="hang"), {}], "timeout=1500", args=["--max-restarts", 0])
    codes = [a.exit() for a in agents]
    assert codes == [2, 2], agents
    assert agents[1].says(rf"nccl ids: they did not come in time: 0 of 1 are here; waiting for {HOST} \(node 0\)"), agents[1]
    assert not helpers(rdzv)


def test_no_library_anywhere(rdzv):
    agents = start(rdzv, [{"RDZV_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}] * 2)
    assert [a.exit() for a in agents] == [81, 81]
    for a in agents:
        assert a.says(rf"failed in round 1: the round's NCCL ids could not be minted: {HOST} \(node 0\): NCCL cannot be loaded \(--nccl-library\): /nowhere/libnccl.so.2"), a
        assert a.says(rf"; the same on {HOST} \(node 1\)"), a


def test_library_that_is_none(rdzv):
    agents = start(rdzv, [{}], args=["--nccl-library", "libz.so.1"], nproc=1)
    assert agents[0].exit() == 81 and agents[0].says("libz.so.1 has no function ncclGetVersion: is it NCCL?"), agents[0]


def test_versions_that_differ(rdzv):
    """Two ids, for more than 256 ranks; the workers do not even ask."""
    agents = start(rdzv, [fake(VERSION=22809), fake(VERSION=22703)], "1000", nproc=130, worker="sleep")
    assert [a.exit(60) for a in agents] == [81, 81]
    for a in agents:
        assert a.says(rf"failed in round 1: the round's NCCL ids could not be minted: NCCL is 2\.\d+\.\d on {HOST} \(node \d\) and 2\.\d+\.\d on {HOST} \(node \d\): major and minor version must be the same"), a
        assert a.says("2.28.9") and a.says("2.27.3"), a


def test_what_nccl_says_goes_to_the_log(rdzv, nccl):
    agents = start(rdzv, [{**nccl, "NCCL_DEBUG": "INFO"}, {}])
    await_ids(agents, 4)
    assert [a.exit() for a in agents] == [0, 0]
    assert agents[0].says("rdzv-nccl: .*NCCL INFO"), agents[0]
    agents = start(rdzv, [fake(SAYS="hello from inside")], nproc=1)
    assert agents[0].exit() == 0 and agents[0].says("rdzv-agent: rdzv-nccl: hello from inside"), agents[0]


def test_daemon_restarts_while_ids_are_outstanding(rdzv):
    (rdzv.tmp / "hang").touch()
    agents = start(rdzv, [fake(HANG="hang"), {}], "until=go")
    daemon = rdzv.procs[0]
    rdzv.await_workers(4)
    helper = helpers(rdzv)
    daemon.end()
    again = rdzv.daemon(port=daemon.port)
    again.expect("recovering -> running", 30)
    (rdzv.tmp / "hang").unlink()
    await_ids(agents, 4)
    assert helpers(rdzv) == helper  # asked again, it went on
    go(rdzv)
    assert [a.exit() for a in agents] == [0, 0]


def test_never_and_auto(rdzv):
    for args, why in (["--nccl-ids", "never"], "its agents run with --nccl-ids never"), ([], "with --nccl-ids auto they are for rdzv-trainer on GPUs"):
        agent = rdzv.agent(*args, "--max-restarts", 0, "--", WORKER)
        assert agent.exit() == 2 and agent.says(f"nccl ids: this job has none: .*{why}"), agent
    alone = rdzv.spawn(WORKER)
    assert alone.exit() == 2 and alone.says("runs without an agent; use ncclGetUniqueId"), alone


def test_library_of_python(rdzv, nccl):
    """Without a word, where pip has put it."""
    env = {"PYTHON_EXEC": sys.executable, "NCCL_SOCKET_IFNAME": "lo"}
    agents = start(rdzv, [env], nproc=1)
    assert agents[0].exit() == 0 and len(ids(agents)) == 1, agents[0]


def test_library_of_amd(rdzv):
    """Where no libnccl.so.2 is: RCCL as the loader finds it, in PyTorch's folder, in ROCm's. All of them are the stand-in, which says its version."""
    folders = {"loader": "ld/librccl.so.1", "torch": "py/torch/lib/librccl.so", "rocm": "rocm/lib/librccl.so.1"}
    for where, file in folders.items():
        path = rdzv.tmp / where / file
        path.parent.mkdir(parents=True)
        shutil.copy(FAKE, path)
    (rdzv.tmp / "torch/py/torch/__init__.py").write_text("raise SystemExit('it was imported')\n")
    python = rdzv.tmp / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without the packages of this machine
    python.chmod(0o755)
    bare = {"PYTHON_EXEC": str(python), "ROCM_PATH": "/nowhere"}
    envs = {
        "loader": {"LD_LIBRARY_PATH": str(rdzv.tmp / "loader/ld")},
        "torch": {"PYTHONPATH": str(rdzv.tmp / "torch/py")},
        "rocm": {"ROCM_PATH": str(rdzv.tmp / "rocm/rocm")},
    }
    for i, (where, env) in enumerate(envs.items()):
        agents = start(rdzv, [{**bare, **env, "FAKE_NCCL_VERSION": str(22105 + i)}], nproc=1)
        assert agents[0].exit() == 0 and await_ids(agents, 1)[1] == 22105 + i, f"{where}\n{agents[0]}"
    agents = start(rdzv, [bare], nproc=1)
    assert agents[0].exit() == 81 and agents[0].says(r"NCCL cannot be loaded \(--nccl-library\): libnccl.so.2"), agents[0]
