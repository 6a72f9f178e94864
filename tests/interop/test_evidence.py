# SPDX-License-Identifier: Apache-2.0
"""A hang in a real process group of PyTorch, on gloo: the flight recorders of its workers, by their debug servers, say which rank the others
wait for."""

import json
import sys

from conftest import HERE, QUIET

HANG = ["--max-restarts", 0, "--hang-timeout", "3s", "--hang-start-timeout", "60s", "--hang-watch", "file:${rank}.beat", "--hang-stacks", "never"]
SCRIPT = [sys.executable, "-u", HERE / "scripts/hangs.py"]


def verdict(path):
    return json.loads(path.read_text())["verdict"]


def run(rdzv, nodes, nproc, *args):
    """One verdict for each node."""
    d = rdzv.daemon()
    agents = [rdzv.agent("--endpoint", d.endpoint, "--nnodes", nodes, "--nproc", nproc, *HANG, "--verdict-file", f"verdict{i}.json", "--", *SCRIPT,
                         *args, node=str(i), env=QUIET) for i in range(nodes)]
    for a in agents:
        assert a.exit(120) == 67, a
    return agents, [verdict(rdzv.tmp / f"verdict{i}.json") for i in range(nodes)]


def test_one_rank_sleeps(rdzv):
    (a,), (v,) = run(rdzv, 1, 4, "all", 3)
    assert v["evidence"] == "rank 3 has not entered all_reduce #8, 3 others wait in it", a
    assert v["rank"] == 3 and v["awaited"], a
    assert a.says(r"rank 3 \(local 3\) .* made no progress for .*; rank 3 has not entered all_reduce #8, 3 others wait in it; 0 of 0"), a


def test_nodes_that_see_one_rank_each(rdzv):
    """No node can tell alone."""
    agents, verdicts = run(rdzv, 3, 1, "all", 1)
    for a, v in zip(agents, verdicts):
        assert v["evidence"] == "rank 1 has not entered all_reduce #8, 2 others wait in it", a


def test_a_process_group_of_some(rdzv):
    """Rank 0 waits for rank 1 in their own group, and ranks 2 and 3 for both of them. Only rank 1 is in no collective, and named."""
    (a,), (v,) = run(rdzv, 1, 4, "pair", 1)
    assert v["evidence"] == "rank 1 has not entered all_reduce #8, 2 others wait in it", a
    assert v["rank"] == 1, a


def test_a_stopped_process_does_not_answer(rdzv):
    (a,), (v,) = run(rdzv, 1, 3, "stop", 2)
    assert v["evidence"] == "2 ranks wait in all_reduce #8; the debug server of rank 2 does not answer", a
    assert (v["rank"], v["state"]) == (2, "T"), a


def test_a_collective_that_timed_out(rdzv):
    """gloo's own timeout ends a worker; without --hang-timeout."""
    a = rdzv.agent("--standalone", "--nproc", 3, "--max-restarts", 0, "--verdict-file", "verdict.json", "--", *SCRIPT, "timeout", 2, env=QUIET)
    assert a.exit(120) == 1, a
    v = verdict(rdzv.tmp / "verdict.json")
    assert v["cause"] == "worker-exit" and v["rank"] in (0, 1), a
    # The others give up at the same time: one may still wait, or rank 2 is the only one left.
    assert v["evidence"] in ("rank 2 has not entered all_reduce #8, 1 other waits in it", "rank 2 is in no collective, the last one was #7"), a
