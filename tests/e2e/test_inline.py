# SPDX-License-Identifier: Apache-2.0
"""Commands that stand within sentences of pages, and in no block: see test_commands.py."""

import subprocess

import pytest

import pages
from harness import AGENT, TOP
from test_readme import agent_help, rdzvd_help


@pytest.mark.parametrize("page, words, want", [("deploy/guide/options.md", "rdzv-agent --help", agent_help), ("deploy/systemd.md", "rdzvd --help", rdzvd_help)])
def test_help(rdzv, page, words, want):
    p = pages.shell(rdzv, pages.inline(page, words))
    shown = [line for line in want().splitlines() if line.strip("`")]
    assert p.exit() == 0 and shown == [line for line in p.out if line], p


def test_a_command_or_an_option_of_the_trainer(rdzv):
    page = "deploy/guide/jobs.md"
    p = pages.shell(rdzv, pages.inline(page, "rdzv-agent --nproc 4 -- --epochs 3"))
    assert p.exit() == 0 and p.says("rdzv-trainer: autoencoder") and p.says("world 4; 157 steps an epoch, 471 in all"), p
    p = pages.shell(rdzv, pages.inline(page, "rdzv-agent -- $COMMAND"))
    assert p.exit() == 64 and p.says("a command is missing"), p


def test_a_worker_with_the_sources(rdzv):
    """In their folder."""
    for name in ("agent", "proto", "common"):
        (rdzv.tmp / name).symlink_to(TOP / name)
    (rdzv.tmp / "worker.c").write_text(pages.c_block("deploy/guide/worker-in-c.md", "int main"))
    command = pages.inline("deploy/guide/worker-in-c.md", "cc -I . -I agent/sdk worker.c agent/sdk/rdzv*.c proto/c10d.c common/printable.c")
    done = subprocess.run(["sh", "-c", command], cwd=rdzv.tmp, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    p = rdzv.spawn(AGENT, "--standalone", "--nproc", 2, "--", rdzv.tmp / "a.out")
    assert p.exit() == 0, p
