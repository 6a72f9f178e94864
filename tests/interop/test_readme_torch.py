# SPDX-License-Identifier: Apache-2.0
"""The lines with torchrun in them of the front page and the guide, as they stand there: two nodes, each started by the same line, train with gloo; and
one crash under both launchers.

    python3 tests/interop/test_readme_torch.py      crashes, and writes what both launchers print into the front page
"""

import difflib
import os
import re
import subprocess
import sys
import tempfile

import pytest

from conftest import EVERY_PYTORCH, QUIET  # and with it the folder of the next two
import pages
from harness import AGENT, HOST, free_port

pytestmark = EVERY_PYTORCH
README = "README.md"

TRAIN = '''import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
open(f"out/{dist.get_rank()}", "w").write(" ".join([str(int(x.item())), *sys.argv[1:]]))
dist.destroy_process_group()
'''


def torchrun(pytorch):
    return {"torchrun": f'#!/bin/sh\nexec {pytorch} -m torch.distributed.run "$@"\n'}


@pytest.fixture
def out(rdzv):
    (rdzv.tmp / "train.py").write_text(TRAIN)
    (rdzv.tmp / "out").mkdir()
    return rdzv.tmp / "out"


def on_both(pytorch, rdzv, out, command, world, *more):
    """PET_LOCAL_ADDR: both nodes are this machine, whose name need not lead to itself."""
    both = [pages.shell(rdzv, command, env={**QUIET, "PYTHON_EXEC": pytorch, "PET_LOCAL_ADDR": "127.0.0.1"}, more=torchrun(pytorch)) for _ in range(2)]
    for p in both:
        assert p.exit(60) == 0, rdzv
    assert {p.name: p.read_text().split() for p in out.iterdir()} == {str(r): [str(world), *more] for r in range(world)}
    for p in out.iterdir():
        p.unlink()


def test_one_word(pytorch, rdzv, out):
    theirs, ours = pages.lines(README, "one word")
    assert theirs.split()[1:] == ours.split()[1:] and (theirs.split()[0], ours.split()[0]) == ("torchrun", "rdzv-agent")
    for line in theirs, ours:
        line = pages.with_changes(line, [("node1:29400", f"127.0.0.1:{free_port()}"), ("--nproc_per_node=8", "--nproc_per_node=1")])
        on_both(pytorch, rdzv, out, line, 2, "--lr", "0.1")


def test_torchrun_meets_at_rdzvd(pytorch, rdzv, out):
    (line,) = pages.lines("deploy/guide/pytorch.md", "torchrun here")
    on_both(pytorch, rdzv, out, pages.with_changes(line, [("node1:29400", rdzv.daemon("--c10d").endpoint)]), 2)


# One crash. -------------------------------------------------------------------------------------------------------------------------------

def script():
    return next(b.text for b in pages.blocks(README) if b.lang == "python")


def report_of(launcher, text):
    """Of all that was printed what the page shows: the agent's lines from the verdict on; torchrun's report."""
    lines = [line.rstrip() for line in text.replace(HOST, "node1").split("\n")]
    if launcher == "rdzv-agent":
        said = [line for line in lines if line.startswith("rdzv-agent: ")]
        return said[next(i for i, line in enumerate(said) if line.startswith("rdzv-agent: rank ")) :]
    rules = [i for i, line in enumerate(lines) if re.fullmatch("=+", line)]
    return [re.sub(r"host      : .*", "host      : node1", line) for line in lines[rules[0] : rules[-1] + 1]]


def bare(lines):
    """Without numbers, names of jobs, and the length of rules."""
    return [re.sub(r"\d+", "N", re.sub(r"=+|-{9,}", "=", re.sub(r"alone-[0-9a-f]+", "alone-ID", line))) for line in lines]


def test_one_crash(pytorch, rdzv):
    """The script of the front page under both command lines: each launcher prints what the page shows."""
    (rdzv.tmp / "train.py").write_text(script())
    for line in pages.lines(README, "crash"):
        launcher = line.split()[0]
        p = pages.shell(rdzv, line, env={**QUIET, "PYTHON_EXEC": pytorch}, more=torchrun(pytorch))
        assert p.exit(60) == (139 if launcher == "rdzv-agent" else 1), p
        want = pages.generated(README, f"crash under {launcher}").strip("`\n").split("\n")
        got = report_of(launcher, p.text)
        assert "[rank1]: Traceback" not in p.text, p
        assert bare(want) == bare(got), "\n".join(difflib.unified_diff(want, got, README, "printed", lineterm=""))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        with open(tmp + "/train.py", "w") as f:
            f.write(script())
        for line in pages.lines(README, "crash"):
            launcher, *words = line.split()
            argv = [AGENT, *words] if launcher == "rdzv-agent" else [sys.executable, "-m", "torch.distributed.run", *words]
            done = subprocess.run(argv, cwd=tmp, env={**os.environ, **QUIET, "PYTHON_EXEC": sys.executable}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            pages.write_part(README, f"crash under {launcher}", "```\n" + "\n".join(report_of(launcher, done.stdout)) + "\n```\n")
