# SPDX-License-Identifier: Apache-2.0
"""The lines for Slurm of the front page and the guide, typed in an allocation of a real one."""

import pages


def test_srun(make_slurm):
    """The step has the size of the allocation, and nothing needs to be said."""
    c = make_slurm(2)
    (c.tmp / "my-trainer").write_text("#!/bin/sh\necho rank $RANK of $WORLD_SIZE\n")
    (c.tmp / "my-trainer").chmod(0o755)
    (c.tmp / "train").symlink_to(c.tmp / "my-trainer")
    (line,) = pages.lines("deploy/guide/jobs.md", "srun")
    there = [*c.login.ns.enter(), "sh", "-c", 'cd "$0" && exec "$@"', c.tmp]
    for words in (line, pages.inline("README.md", "srun rdzv-agent -- ./train")):
        p = c.spawn("salloc", "--nodes", 2, "--gpus-per-node", 2, *words.split(), node="login", wrap=there)
        assert p.exit(30) == 0, c
        assert sorted(p.out) == [f"[{r}] rank {r} of 4" for r in range(4)], c
    c.gone()
