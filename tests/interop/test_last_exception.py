# SPDX-License-Identifier: Apache-2.0
"""The last exception of PyTorch's own programs: behind its rank prefix, out of a process that mp.spawn started, with @record and without."""

import re
import sys

import pytest

from conftest import QUIET

RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1: raise ValueError("boom")
dist.barrier()
"""
SPAWN = """
import torch.multiprocessing as mp
from torch.distributed.elastic.multiprocessing.errors import record
def f(i):
    import no_such_module
{record}
def main(): mp.spawn(f, nprocs=2)
if __name__ == "__main__": main()
"""


def run(rdzv, text, *args):
    (rdzv.tmp / "train.py").write_text(text)
    return rdzv.agent("--standalone", *args, "--", sys.executable, "-u", "train.py", env=QUIET)


def test_of_a_process_group(rdzv):
    a = run(rdzv, RANKS, "--nproc", 2, "--max-restarts", 0)
    assert a.exit(120) == 1 and a.says(r"rank 1 \(local 1\) on \S+, pid \d+, exited with code 1: ValueError: boom\n"), a
    assert len(re.findall("Traceback", a.text)) <= 2 and not a.says(r"  \| "), a  # rank 0 may have one of its own


@pytest.mark.parametrize("record", ["", "@record"])
def test_of_a_spawned_process(rdzv, record):
    a = run(rdzv, SPAWN.format(record=record))
    assert a.exit(120) == 1, a
    assert a.says(r"failed in round 1: rank 0 .*, a failed import that a restart would repeat: ModuleNotFoundError: No module named 'no_such_module'; 0 of 3"), a
