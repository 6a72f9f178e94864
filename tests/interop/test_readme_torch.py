"""The README's lines with torchrun in them, as they stand there: two nodes, each started by the same line, train with gloo."""

import sys

import pages
import pytest

from conftest import QUIET
from harness import free_port

TRAIN = '''import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
open(f"out/{dist.get_rank()}", "w").write(" ".join([str(int(x.item())), *sys.argv[1:]]))
dist.destroy_process_group()
'''
TORCHRUN = {"torchrun": f'#!/bin/sh\nexec {sys.executable} -m torch.distributed.run "$@"\n'}


@pytest.fixture
def out(rdzv):
    (rdzv.tmp / "train.py").write_text(TRAIN)
    (rdzv.tmp / "out").mkdir()
    return rdzv.tmp / "out"


def on_both(rdzv, out, command, world, *more):
    """PET_LOCAL_ADDR: both nodes are this machine, whose name need not lead to itself."""
    both = [pages.shell(rdzv, command, env={**QUIET, "PYTHON_EXEC": sys.executable, "PET_LOCAL_ADDR": "127.0.0.1"}, more=TORCHRUN) for _ in range(2)]
    for p in both:
        assert p.exit(60) == 0, rdzv
    assert {p.name: p.read_text().split() for p in out.iterdir()} == {str(r): [str(world), *more] for r in range(world)}
    for p in out.iterdir():
        p.unlink()


def test_one_word(rdzv, out):
    theirs, ours = pages.lines("README.md", "one word")
    assert theirs.split()[1:] == ours.split()[1:] and (theirs.split()[0], ours.split()[0]) == ("torchrun", "rdzv-agent")
    for line in theirs, ours:
        line = pages.with_changes(line, [("node1:29400", f"127.0.0.1:{free_port()}"), ("--nproc_per_node=8", "--nproc_per_node=1")])
        on_both(rdzv, out, line, 2, "--lr", "0.1")


def test_torchrun_meets_at_rdzvd(rdzv, out):
    (line,) = pages.lines("README.md", "torchrun here")
    on_both(rdzv, out, pages.with_changes(line, [("node1:29400", rdzv.daemon().endpoint)]), 2)
