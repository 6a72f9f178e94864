# SPDX-License-Identifier: Apache-2.0
"""What NCCL knows of a hang goes into the verdict. NCCL itself needs GPUs: fake_ras.py stands in for it. PyTorch's part is in
tests/interop/test_evidence.py, with PyTorch."""

import json
import re
import signal
import sys

import pytest
from harness import SLOW, TOP, until

WORKER = ["--", sys.executable, TOP / "tests/e2e/fake_ras.py"]
HANG = ["--max-restarts", 0, "--hang-timeout", f"{2 * SLOW}s", "--hang-start-timeout", f"{6 * SLOW}s", "--hang-watch", "output",
        "--hang-stacks", "never", "--verdict-file", "verdict.json"]


def verdict(rdzv):
    return json.loads((rdzv.tmp / "verdict.json").read_text())["verdict"]


def test_a_rank_is_behind(rdzv):
    a = rdzv.agent("--standalone", "--nproc", 4, *HANG, *WORKER, env={"BEHIND": "2"})
    assert a.exit(40) == 67, a
    v = verdict(rdzv)
    assert v["evidence"] == "rank 2 has not entered AllReduce #412, 3 others have", a
    assert v["rank"] == 2 and v["awaited"], a  # the others wait for it, so it is the origin
    assert a.says(r"rank 2 \(local 2\) .* made no progress for .*; rank 2 has not entered AllReduce #412, 3 others have; 0 of 0 restarts"), a
    assert not a.says("it is not known"), a


def test_a_rank_that_does_not_answer(rdzv):
    a = rdzv.agent("--standalone", "--nproc", 4, *HANG, *WORKER, env={"DEAD": "3"})
    assert a.exit(40) == 67, a
    assert verdict(rdzv)["evidence"] == "rank 3 does not answer NCCL", a


@pytest.mark.parametrize("kind", ["mute", "hostile", "endless", "old"])
def test_a_server_that_says_nothing_of_use(rdzv, kind):
    """It costs time, within limits, and no word of it reaches the terminal."""
    a = rdzv.agent("--standalone", "--nproc", 2, *HANG, *WORKER, env={"RAS": kind})
    assert a.exit(40) == 67, a
    assert verdict(rdzv)["evidence"] == "" and a.says("made no progress"), a
    assert "\x1b[" not in a.text, a


def test_two_jobs_of_one_host(rdzv):
    """Each has a port of its own, which all of its workers share."""
    agents = [rdzv.agent("--standalone", "--nproc", 2, *WORKER) for i in range(2)]
    serving = lambda a: re.findall(r"serves (127\.0\.0\.1:\d+)", a.text)
    until(lambda: f"all serve: {agents}", lambda: all(len(serving(a)) == 2 for a in agents), 20)
    ports = [set(serving(a)) for a in agents]
    assert len(ports[0]) == len(ports[1]) == 1 and ports[0] != ports[1], agents
    for a in agents:
        a.end(signal.SIGTERM, 20)


def test_an_address_of_the_user(rdzv):
    a = rdzv.agent("--standalone", "--nproc", 1, *HANG, "--", "sh", "-c", "echo at $NCCL_RAS_ADDR", env={"NCCL_RAS_ADDR": "node7:1234"})
    assert a.exit() == 0 and a.says("at node7:1234"), a


def test_the_node_that_hangs_is_not_the_one_that_asks(rdzv):
    """Two nodes: the evidence of either one is in the verdict of both."""
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--nproc", 2, *HANG[:-2], *WORKER, env={"BEHIND": "3"})
    for a in agents:
        assert a.exit(40) == 67, a
        assert a.says("rank 3 has not entered AllReduce #412, 3 others have; 0 of 0 restarts"), a


def test_a_collective_that_timed_out(rdzv):
    """PyTorch's watchdog has ended one of the workers, without --hang-timeout: the others are asked before they are stopped."""
    a = rdzv.agent("--standalone", "--nproc", 3, "--max-restarts", 0, "--verdict-file", "verdict.json", *WORKER, "dies", env={"BEHIND": "1"})
    assert a.exit(40) == 128 + signal.SIGABRT, a
    v = verdict(rdzv)
    assert (v["cause"], v["rank"], v["evidence"]) == ("worker-signal", 0, "rank 1 has not entered AllReduce #412, 2 others have"), a
