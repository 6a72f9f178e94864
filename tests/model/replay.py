#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replays runs of the simulation against the model of the succession: does the model allow what daemons and agents do?

    tests/model/replay.py SIM_RANDOM [--seeds FROM:TO] [--without RULE] [-j N]

SIM_RANDOM, the program, plays small worlds with random faults, and writes what happens in the words of the model. Spin then searches for a run of
the model that has just these events in this order, with hidden steps between them: times that end, fences, what a daemon finds out. Where there is
none, the trace is printed up to the first event that no run of the model reaches. Without --without, errors are planted as well, and the model must
refuse some of their traces. Exit status 1: a trace is refused or not decided, or no trace of a planted error is.
"""

import argparse
import collections
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import check

SEEDS = "1:301"
# Where an error in one rule shows. In most worlds it does not: a rule is there for rare orders.
PLANTED = {"FENCE": "1:101", "TIE": "1:101", "FIRM": "600:650", "HOLD": "940:990"}
WORLD = dict(REPLAY=1, NODES=3, NEWCOMERS=1, DAEMONS=3, ROUNDS=8, RESTARTS=1, DEATHS=99, PAUSES=99, GHOSTS=99, BREAKS=255, TURNS=255)
KINDS = {name: int(n) for name, n in re.findall(r"^#define EV_([A-Z]+) (\d+)$", check.MODEL.read_text(), re.M)}
RUN_S = 60

Trace = collections.namedtuple("Trace", "seed world lines end")


def play(sim, folder, seeds, without):
    """What the simulation has seen: a Trace of each seed."""
    path, traces, lines = folder / "traces", [], []
    subprocess.run([sim, "--seeds", seeds, "--model-trace", str(path), *(["--without", without] if without else [])], check=True, timeout=10 * RUN_S)
    for line in path.read_text().splitlines():
        if line.startswith("seed "):
            _, seed, *world = line.split()
            lines = []
        elif line.startswith("end "):
            traces.append(Trace(int(seed), " ".join(world), lines, line[4:]))
        else:
            lines.append(line)
    return traces


def replay(folder, trace):
    """How many events a run of the model has, and why that is not certain."""
    path = folder / f"trace-{trace.seed}"
    events = [[KINDS[word], *map(int, numbers)] for word, *numbers in (line.split()[1:] for line in trace.lines)]
    path.write_text("\n".join([trace.world, *(" ".join(map(str, e)) for e in events)]) + "\n")
    try:
        text = subprocess.run(["./pan", "-E", "-m50000", "-w20"], cwd=folder, env=dict(os.environ, TRACE=str(path)), capture_output=True, text=True,
                              timeout=RUN_S).stdout
    except subprocess.TimeoutExpired:
        return 0, f"Spin has not ended after {RUN_S} s"
    finally:
        path.unlink()
    reached = max((int(n) for n in re.findall(r"^replayed (\d+)$", text, re.M)), default=0)
    if reached == len(events):
        return reached, None
    return reached, next((why for why in ("assertion violated", "max search depth too small", "Search not completed") if why in text), None)


def replay_all(args, folder, seeds, without):
    """How many traces the model refuses, and how many are not decided."""
    began = time.monotonic()
    traces = play(args.sim, folder, seeds, without)
    with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
        results = list(pool.map(lambda t: replay(folder, t), traces))
    refused = [(t, n) for t, (n, why) in zip(traces, results) if n < len(t.lines) and not why]
    undecided = [(t, why) for t, (_, why) in zip(traces, results) if why]
    whole, kinds = sum(len(t.lines) > 0 for t in traces), collections.Counter(line.split()[1] for t in traces for line in t.lines)
    what = f"without {without}" if without else "as it is"
    print(f"{what}: seeds {seeds}, {whole} traces, {len(refused)} refused, {len(undecided)} not decided, {time.monotonic() - began:.0f} s")
    if not without:
        print("  events: " + ", ".join(f"{n} {k}" for k, n in kinds.most_common()))
        ends = collections.Counter(t.end for t in traces)
        print("  a trace ends with: " + ", ".join(f"{why} ({n})" for why, n in ends.most_common()))
    for t, n in refused[:3] if not without or args.without else []:
        print(f"  seed {t.seed} ({t.world}), refused at the last of these events:")
        print("\n".join(f"    {line}" for line in t.lines[: n + 1]))
    for t, why in undecided:
        print(f"  seed {t.seed}: not decided: {why}")
    sys.stdout.flush()
    return len(refused), len(undecided)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("sim", metavar="SIM_RANDOM")
    args.add_argument("--seeds", default=SEEDS, metavar="FROM:TO")
    args.add_argument("--without", choices=list(PLANTED))
    args.add_argument("-j", type=int, default=os.cpu_count(), metavar="N")
    args = args.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rdzv-replay-"))
    try:
        check.build(folder, WORLD)
        refused, undecided = replay_all(args, folder, args.seeds, args.without)
        good = not refused and not undecided
        if not args.without and args.seeds == SEEDS:
            good = all([replay_all(args, folder, seeds, rule)[0] > 0 for rule, seeds in PLANTED.items()]) and good
    finally:
        shutil.rmtree(folder)
    sys.exit(not good)


if __name__ == "__main__":
    main()
