# SPDX-License-Identifier: Apache-2.0
"""Warm start with real PyTorch: a script observes the same, and a fault costs no import."""

import json
import re
import sys

import pytest

from conftest import HERE, QUIET

SCRIPTS = HERE / "scripts"
OBSERVED_MIN = 18


def run(rdzv, mode, *more, stays=False):
    out = rdzv.tmp / f"out-{len(rdzv.procs)}"
    out.mkdir()
    a = rdzv.agent("--verbose", "--max-restarts", 0, "--nproc", 2, "--warm", mode, *more, SCRIPTS / "observe_torch.py", out, "--lr", "3",
                   env=dict(QUIET, PYTHON_EXEC=sys.executable, XDG_CACHE_HOME=str(rdzv.tmp), XDG_RUNTIME_DIR=str(rdzv.tmp)))
    assert a.exit(120) == 0, a
    assert bool(re.search(r"template \(pid \d+\): forks workers, modules: \d+ .*torch", a.text)) == (mode == "auto" and not stays), a
    assert a.says("modules: those of an earlier start") == stays, a
    seen = [json.loads(p.read_text()) for p in sorted(out.iterdir())]
    assert len(seen) == 2, a
    return seen


def test_a_script_observes_the_same_of_pytorch(rdzv):
    keep = "--warm-keep", "20s"
    warm_runs = run(rdzv, "auto"), run(rdzv, "auto", *keep), run(rdzv, "auto", *keep, stays=True), run(rdzv, "auto", "--warm-keep", "1s", stays=True)
    cold = run(rdzv, "off")
    for warm in warm_runs:
        for before, after in zip(cold, warm):
            assert len(before["seen"]) >= OBSERVED_MIN
            different = {n: (v, after["seen"].get(n)) for n, v in before["seen"].items() if after["seen"].get(n) != v}
            assert not different, "\n".join(f"{n}:\n  exec {x}\n  fork {y}" for n, (x, y) in different.items())
        for name, value in warm[0]["draws"].items():
            assert value != warm[1]["draws"][name], f"both workers draw the same {name}"
