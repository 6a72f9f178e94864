# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own FileTimerClient under rdzv-agent."""

import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

SCRIPT = """import os, time
import torch.distributed.elastic.timer as timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
for step in range(20):
    with timer.expires(after=60):
        pass
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "0":
    with timer.expires(after=0.3, scope="the step"):
        time.sleep(600)
print("done", flush=True)
"""


def test_expires(rdzv):
    (rdzv.tmp / "train.py").write_text(SCRIPT)
    a = rdzv.agent("--standalone", "--nproc", 2, "train.py", env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "PYTHON_EXEC": sys.executable})
    assert a.exit(120) == 0 and sum("done" in line for line in a.out) >= 2, a
    assert a.says(r'rank 0 .*was killed by SIGKILL \(signal 9\): its timer "the step" expired') and a.says("restart 1 of 3"), a
