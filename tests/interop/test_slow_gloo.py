# SPDX-License-Identifier: Apache-2.0
"""A slow rank of a PyTorch job on gloo: rdzv.torch says how long backward passes wait, and the daemon names the rank."""

import sys

import pytest

pytest.importorskip("torch")

from test_in_place import MODULE, QUIET, pytestmark  # noqa: F401

SCRIPT = """
import os, time
import torch
from torch.nn.parallel import DistributedDataParallel
import rdzv.torch

torch.set_num_threads(1)
rdzv.torch.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with rdzv.torch.Elastic(model=model, optimizer=optimizer) as job:
    for step in job.steps(1_000_000):
        with step:
            time.sleep(0.030 if job.rank == 1 else 0.015)
            optimizer.zero_grad()
            model(torch.randn(8, 64)).square().mean().backward()
            optimizer.step()
        if os.path.exists("go"):
            os._exit(0)
"""


def test_a_slow_rank_on_gloo(rdzv):
    (rdzv.tmp / "train.py").write_text(SCRIPT)
    a = rdzv.agent("--standalone", "--nproc", 3, "--slow-ranks", "6s", "train.py", env={**QUIET, **MODULE, "PYTHON_EXEC": sys.executable})
    a.expect(r"rank 1 \(\S+, local 1\) is slow: the others wait \d+ % of the time for it", 120)
    (rdzv.tmp / "go").touch()
    a.exit(60)
