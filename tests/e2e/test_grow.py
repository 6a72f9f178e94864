# SPDX-License-Identifier: Apache-2.0
"""Rounds that grow, with real agents."""

import time


def test_a_node_that_comes_late_is_taken(rdzv):
    """Of at most 2 nodes one runs. A second one comes, and when the round is 30 s old both run; nothing is charged, and the agent says why."""
    d = rdzv.daemon()
    script = "echo world $WORLD_SIZE, $TORCHELASTIC_RESTART_COUNT used; [ $WORLD_SIZE = 2 ] || exec sleep 100; exec sleep 2"
    words = ["--endpoint", d.endpoint, "--nnodes", "1:2", "--rdzv-id", "grows", "--last-call", "0s", "--max-restarts", 0, "--", "sh", "-c", script]
    first = rdzv.agent(*words)
    first.expect("world 1, 0 used", 20)
    began = time.monotonic()
    second = rdzv.agent(*words)
    second.expect("a new round with all waiting nodes is formed in", 20)
    for a in (first, second):
        a.expect("world 2, 0 used", 60)
    assert time.monotonic() - began > 28, f"the round was not 30 s old:\n{first}"
    for a in (first, second):
        assert a.exit(30) == 0, rdzv
    assert first.says("joined: a new round is formed with 2 nodes") and first.says("no restart is charged"), first
