# SPDX-License-Identifier: Apache-2.0
"""What a job's time went to: in the closing line, in the file and in the status, with a worker that fails and a daemon that dies."""

import json
import urllib.request

import pytest

from harness import BUILD, SANITIZED, TOP, until

MODULE = {"PYTHONPATH": str(TOP / "deploy/python"), "RDZV_LIBRARY": str(BUILD / "agent/sdk/librdzv.so.0"), "PYTHONDONTWRITEBYTECODE": "1"}

# 0.1 s for each step. Round 1 fails behind step 90, and round 2 resumes at step 40: 50 steps are done again.
TRAIN = """
import os, time
import rdzv
job = rdzv.init()
first = 1 if job.restart_count == 0 else 41
for step in range(first, 111):
    time.sleep(0.1)
    job.progress(step, of=110, loss=1 / step, samples=10)
    if job.restart_count == 0 and step == 90:
        os._exit(3)
"""


def status(d):
    """The only job; goodput of 0 s while there is none."""
    with urllib.request.urlopen(f"http://127.0.0.1:{d.port}/status", timeout=10) as answer:
        jobs = json.load(answer)["jobs"]
    return jobs[0] if jobs else {"state": "", "goodput": {"waiting": 0, "lost": 0, "rounds": 0}}


@pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitized librdzv")
@pytest.mark.parametrize("stateful", [False, True], ids=["without-state", "with-state"])
def test_a_job(rdzv, stateful):
    """n1 comes 2 s late, a worker fails, and the daemon is killed while round 2 runs."""
    (rdzv.tmp / "train.py").write_text(TRAIN)
    state = ["--state-dir", rdzv.tmp / "state"] if stateful else []
    d = rdzv.daemon(*state)
    command = ["--nnodes", 2, "--rdzv-conf", "is_host=0", "--verdict-file", "verdict.json", "--", "python3", "train.py"]
    first = rdzv.agent("--endpoint", d.endpoint, *command, env=MODULE)
    until("the first node has waited", lambda: status(d)["goodput"]["waiting"] > 2, 20)
    second = rdzv.agent("--endpoint", d.endpoint, *command, env=MODULE)
    until("round 2 makes steps", lambda: status(d)["goodput"]["lost"] > 0, 40)
    d.kill()
    d = rdzv.daemon(*state, port=d.port)
    until("the daemon knows the job", lambda: (status(d)["goodput"]["rounds"], status(d)["state"]) == (2, "running"), 20)
    until("its history goes on", lambda: (h := status(d)["history"]) and h[-1][1] > 40)
    assert first.exit() == 0 and second.exit() == 0, rdzv
    m = first.expect(r"useful (\d+) % of (\d+) s; lost: (.*)")
    assert "1 restart" in m[3] and "waiting for" in m[3], first
    goodput = json.loads((rdzv.tmp / "verdict.json").read_text())["goodput"]
    buckets = ["forming", "waiting", "starting", "productive", "lost", "stopping", "checkpoint"]
    assert abs(sum(goodput[b] for b in buckets) - goodput["total"]) < 0.01, goodput
    assert goodput["steps"] and goodput["rounds"] == 2 and goodput["waiting"] >= 2, goodput
    # Nobody counts while there is no daemon. The one that came back counts the lost steps that agents tell it of, and the others without the start of each round.
    assert goodput["lost"] > 1 and goodput["productive"] > 9, goodput
    assert int(m[1]) == int(goodput["useful"] * 100), goodput
