# SPDX-License-Identifier: Apache-2.0
"""The pair check over NCCL, on the stand-ins of tests/fakegpu: the fault of a wire that only NCCL uses is named, and a node without NCCL is measured over TCP."""

import json
import re

import pytest

from harness import BUILD, until
from test_rdzvctl_verbs import ask, d, hosts  # noqa: F401, fixtures

FAKE = BUILD / "tests/fakegpu/fake-nccl-pair.so"
pytestmark = pytest.mark.skipif(not FAKE.exists(), reason="not on this machine: the stand-ins are built where CUDA's and NCCL's headers are")
# Rank 0 ends the first round as a worker whose peer is gone. A worker of a later one finds no helper of NCCL beside it.
FAULT = """
if [ $RDZV_ROUND = 1 ]; then
  while [ ! -e fault ]; do sleep 0.05; done
  [ $RANK != 0 ] || { echo "ncclRemoteError: a network error" >&2; exit 1; }
  sleep 60
fi
for pid in $(pgrep -x rdzv-nccl); do ! grep -qz "E2E_MARK=$E2E_MARK" /proc/$pid/environ || echo "a helper still runs"; done
touch r-$RDZV_ROUND-$RANK
while [ ! -e go ]; do sleep 0.05; done
"""


def job(rdzv, d, hosts, nnodes, n, wires=None, gpus="0", lacks=None, slow=None, words=("--", "sh", "-c", FAULT)):  # noqa: F811, the fixtures
    """One agent on each of n hosts, with a worker for each GPU."""
    def own(i):
        e = {"RDZV_CUDA_LIBRARY": str(FAKE), "RDZV_NCCL_LIBRARY": str(FAKE), "CUDA_VISIBLE_DEVICES": gpus, "FAKEGPU_WIRE": (wires or {}).get(i, "10000000")}
        if i == lacks:
            e["RDZV_NCCL_LIBRARY"] = "/there/is/no/libnccl.so.2"
        if i == slow:
            e["FAKEGPU_CONTEXT_MS"] = "9200"
        return e

    return [rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", "pairs", "--nnodes", nnodes, "--max-restarts", 3, "--nproc", len(gpus.split(",")), *words, env=own(i), wrap=hosts(i), node=str(i)) for i in range(n)]


def fail_round(rdzv, n):
    rdzv.await_workers(n)
    (rdzv.tmp / "fault").touch()


def finish(rdzv, agents, world):
    until(lambda: f"round 2 runs:\n{rdzv}", lambda: all((rdzv.tmp / f"r-2-{rank}").exists() for rank in range(world)), 60)
    (rdzv.tmp / "go").touch()
    for a in agents:
        assert a.exit() == 0, a
        assert not a.says("a helper still runs") and not a.says("fakegpu:"), a


def checked(rdzv):
    return json.loads(ask(rdzv, "status", "pairs", "--json").text)["jobs"][0].get("pair_check", "")


def test_all_is_well(rdzv, d, hosts):  # noqa: F811
    agents = job(rdzv, d, hosts, 3, 3, gpus="0,1")
    fail_round(rdzv, 6)
    until(lambda: f"the pairs are checked:\n{rdzv}", lambda: checked(rdzv))
    assert re.fullmatch(r"all 3 pairs are good, .* or more; measured over NCCL", checked(rdzv))
    finish(rdzv, agents, 6)


@pytest.mark.parametrize("wire, why", [
    ("400000", r"with n\d \([\d.]+ MB/s on GPU 0\), with .*; good pairs reach .*"),
    ("fail", r"with n\d \(.*GPU 0: \w+: remote process exited or there was a network error.*\), with .*"),
    ("hang", r"with n\d \(GPU 0: nothing comes over NCCL\), with .*"),
], ids=["slow", "fails", "hangs"])
def test_a_bad_wire_is_named(rdzv, d, hosts, wire, why):  # noqa: F811
    agents = job(rdzv, d, hosts, "3:4", 4, wires={2: wire})
    fail_round(rdzv, 4)
    for a in agents:
        a.expect(f"pair check after round 1: host n2 has a network fault: {why}; measured over NCCL; the job goes on without n2$", 60)
    finish(rdzv, agents, 3)


def test_a_bad_wire_of_three_hosts(rdzv, d, hosts):  # noqa: F811
    """No two of their pairs can meet at once, so there are three rounds, and two of them wait for the wire."""
    agents = job(rdzv, d, hosts, "2:3", 3, wires={0: "hang"})
    fail_round(rdzv, 3)
    for a in agents:
        a.expect(r"pair check after round 1: host n0 has a network fault: with n[12] \(GPU 0: nothing comes over NCCL\), with .*; the job goes on without n0$", 60)
    finish(rdzv, agents, 2)


def test_a_host_without_nccl(rdzv, d, hosts):  # noqa: F811
    """Its pairs are over TCP, which is much faster than this NCCL. The slow wire among the others is found all the same."""
    agents = job(rdzv, d, hosts, "5:6", 6, wires={4: "400000"}, lacks=1)
    fail_round(rdzv, 6)
    for a in agents:
        a.expect(r"host n4 has a network fault: .*; measured over NCCL and TCP: no NCCL on n1 \(NCCL cannot be loaded .*/there/is/no/libnccl.so.2: cannot open.*\); the job goes on without n4", 60)
        assert not a.says("host n[01235] has a network fault"), a
    finish(rdzv, agents, 5)


def test_a_host_that_is_slow_to_start(rdzv, d, hosts):  # noqa: F811
    """CUDA leaves an exchange less time than it needs. That is no network fault."""
    agents = job(rdzv, d, hosts, "3:4", 4, wires={i: "100000" for i in range(4)}, slow=2)
    fail_round(rdzv, 4)
    until(lambda: f"the pairs are checked:\n{rdzv}", lambda: checked(rdzv), 60)
    assert re.fullmatch(r"all 4 pairs are good, .*; measured over NCCL and TCP: no NCCL on n2 \(CUDA was not ready after \d\.\d s\)", checked(rdzv))
    finish(rdzv, agents, 4)


def test_a_check_beside_a_round(rdzv, d, hosts):  # noqa: F811
    """Workers are on the GPUs, so they are left alone."""
    agents = job(rdzv, d, hosts, 2, 2)
    rdzv.await_workers(2)
    p = ask(rdzv, "check", "pairs")
    assert p.code == 0 and p.says(r"measured over TCP: no NCCL on n[01] \(workers run on its GPUs\)"), p
    fail_round(rdzv, 2)
    finish(rdzv, agents, 2)


@pytest.mark.parametrize("words, over", [
    (("--", "true"), "NCCL"),
    (("--nccl-ids", "never", "--", "true"), "TCP"),
    (("--", "--device", "cpu"), "TCP"),
], ids=["nccl", "never", "trainers on CPUs"])
def test_a_check_between_rounds(rdzv, d, hosts, words, over):  # noqa: F811
    """The third node is still missing."""
    agents = job(rdzv, d, hosts, 3, 2, words=words)
    told = until(lambda: f"two nodes are here:\n{rdzv}", lambda: (p := ask(rdzv, "check", "pairs", "--json")).code == 0 and json.loads(p.text))
    assert [(v["over"], v["is"]) for v in told["pairs"]] == [(over, "good")] and told["sentence"].endswith(f"; measured over {over}"), told
    for a in agents:
        a.end(15)
