#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank of a program with its own communicators is killed in a collective. The others poison, rejoin and cut, in this order, and stay. The test
has to see an abort that comes before the rejoin: the planted error of stay-worker.

test_stay.py AGENT WORKER FAKE_NCCL
"""

import os
import re
import subprocess
import sys
from pathlib import Path

AGENT, WORKER, NCCL = (str(Path(a).resolve()) for a in sys.argv[1:])
WORLD, STEPS = 3, 12
SURVIVORS = {0, 2}
TOTAL = sum(step * 10 * WORLD + sum(range(WORLD)) for step in range(STEPS))


def run(seed, *words):
    # The stand-in's ranks do not see a death, as over NVLink: only the agent reports it.
    env = {**os.environ, "FAKEGPU_SEED": str(seed), "FAKEGPU_DEATHS": "none", "RDZV_NCCL_LIBRARY": NCCL}
    agent = [AGENT, "--standalone", "--nproc", str(WORLD), "--max-restarts", "1", "--nccl-ids", "always", "--", WORKER, *words]
    return subprocess.run(agent, env=env, capture_output=True, text=True, timeout=100)


def moments(text, word):
    """[(rank, round, time)]"""
    return [tuple(int(n) for n in m) for m in re.findall(rf"\[(\d+)\] {word} (\d+) (\d+)$", text, re.M)]


def errors_of_order(text):
    poisons, aborts = moments(text, "poison"), moments(text, "abort")
    errors = []
    if {rank for rank, round_, _ in poisons if round_ == 1} != SURVIVORS:
        errors.append(f"not every survivor poisons in round 1: {poisons}")
    if len(poisons) != len(SURVIVORS) or len(aborts) != len(SURVIVORS):
        errors.append(f"a survivor poisons and aborts once: {poisons}, {aborts}")
    for rank, round_, at in aborts:
        if round_ < 2:
            errors.append(f"rank {rank} aborts before rdzv_rejoin has returned")
        for other, _, left in poisons:
            if at < left:
                errors.append(f"rank {rank} aborts before rank {other} has left the round")
    return errors


def check(p):
    errors = errors_of_order(p.stdout + p.stderr)
    if p.returncode or "torn" in p.stdout:
        errors.append(f"exit code {p.returncode}")
    for rank in range(WORLD):
        done = f"[{rank}] done: step {STEPS}, total {TOTAL}, from round {1 if rank in SURVIVORS else 2} to 2"
        if done not in p.stdout:
            errors.append(f"missing: {done}")
    return errors


for seed in 1, 2, 3:
    p = run(seed)
    if errors := check(p):
        sys.exit(f"seed {seed}: " + "\n".join(errors) + f"\n{p.stdout}{p.stderr}")
    print(f"seed {seed}: poison, rejoin, cut on ranks {sorted(SURVIVORS)}")

torn = 0
for seed in range(1, 13):
    p = run(seed, "abort-first")
    if not errors_of_order(p.stdout + p.stderr):
        sys.exit(f"seed {seed}: the abort before the rejoin was not seen\n{p.stdout}{p.stderr}")
    torn += "torn: step" in p.stdout
    if torn:
        break
if not torn:
    sys.exit("an abort before the rejoin never tore a collective of another rank")
print(f"an abort before the rejoin is seen, and tore a collective with seed {seed}")
