#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the model of the succession with Spin: every order of events in small worlds, then each rule left out.

    tests/model/check.py [--all] [-j N] [--keep FOLDER]

A world must have no fault: no token is sealed twice, and workers of two rounds never run at once. Then the model runs without one rule at a
time, and Spin must find a fault: a rule that could be left out would be no rule. --all adds larger worlds, for a quarter of an hour more. --keep keeps
what Spin makes. A fault is printed as the events that lead to it. Exit status 1: a fault in a world, or none without a rule.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = Path(__file__).resolve().parent / "succession.pml"
RUN_S = 600  # the bound of one run, for hangs
MEMORY_MIB = 3000
DEPTH = 300000

# name: what it may have. TURNS: HELLOs to a daemon that the node does not follow. The others: how often it happens. ROUNDS has round 0.
WORLDS = {
    "two daemons": dict(TURNS=2),
    "a node dies": dict(TURNS=1, DEATHS=1),
    "two of three are enough": dict(TURNS=2, MIN=2),
    "a daemon is restarted": dict(TURNS=1, RESTARTS=1, DAEMONS=3),
    "three daemons": dict(TURNS=1, DAEMONS=3),
    "a newcomer": dict(TURNS=1, NEWCOMERS=1),
    "a connection breaks": dict(TURNS=1, BREAKS=1),
    "a daemon is paused": dict(TURNS=1, PAUSES=1),
    "WELCOME is lost": dict(TURNS=1, GHOSTS=1),
    "a node is left out": dict(TURNS=1, LEAVES_OUT=1),
    "three more rounds": dict(TURNS=1, ROUNDS=4),
}
LARGE = {
    "two turns and a death": dict(TURNS=2, DEATHS=1),
    "two turns and a restart": dict(TURNS=2, RESTARTS=1, DAEMONS=3),
    "two turns and a newcomer": dict(TURNS=2, NEWCOMERS=1),
    "two turns, three daemons": dict(TURNS=2, DAEMONS=3),
    "four nodes": dict(TURNS=1, NODES=4),
    "a restart and a death": dict(TURNS=1, DEATHS=1, RESTARTS=1, DAEMONS=3),
    "three daemons and a death": dict(TURNS=1, DEATHS=1, DAEMONS=3),
    "a newcomer and a death": dict(TURNS=1, DEATHS=1, NEWCOMERS=1),
    "a death and a lost WELCOME": dict(TURNS=1, DEATHS=1, GHOSTS=1),
}
# The world in which each rule is missed. PASSING is missed in none: without it a job waits, and nothing is done twice.
MISSED = {
    "HOLD": "a node dies",
    "FENCE": "a node dies",
    "LOST": "a connection breaks",
    "DEATH": "a node dies",
    "APART": "two turns and a death",
    "TIE": "a node dies",
    "BASE": "two daemons",
    "FIRM": "two daemons",
    "SPENT": "two daemons",
    "INCARNATION": "two daemons",
    "FSYNC": "two turns and a restart",
    "STAYS": "two of three are enough",
}


def numbers():
    """The number of each rule, as the model has it."""
    return {name: n for name, n in re.findall(r"^#define ([A-Z]+) (\d+) +/\* [0-9]", MODEL.read_text(), re.M)}


def build(folder, world):
    defines = {"DEATHS": 0, "ROUNDS": 3, **world}
    subprocess.run(["spin", "-a", *(f"-D{k}={v}" for k, v in defines.items()), str(MODEL)], cwd=folder, check=True, capture_output=True, timeout=RUN_S)
    # What Spin makes for three daemons takes gcc minutes with more.
    optimize = "-O1" if "DAEMONS" not in world and "NEWCOMERS" not in world else "-O0"
    subprocess.run(["gcc", optimize, "-w", "-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MIB}", "-o", "pan", "pan.c"], cwd=folder, check=True,
                   timeout=RUN_S)


def run(folder, without):
    """(faults, states, whether each order was looked at, the output)"""
    env = dict(os.environ, WITHOUT=without)
    (folder / "succession.pml.trail").unlink(missing_ok=True)
    try:
        text = subprocess.run(["./pan", "-E", f"-m{DEPTH}", "-w24"], cwd=folder, env=env, capture_output=True, text=True, timeout=RUN_S).stdout
    except subprocess.TimeoutExpired:
        return -1, 0, False, f"Spin has not ended after {RUN_S} s"
    faults, states = re.search(r"errors: (\d+)", text), re.search(r"(\d+) states, stored", text)
    whole = "Search not completed" not in text and "max search depth too small" not in text and "out of memory" not in text
    return int(faults[1]) if faults else -1, int(states[1]) if states else 0, whole, text


def events(folder, without):
    text = subprocess.run(["./pan", "-r", "succession.pml.trail"], cwd=folder, env=dict(os.environ, WITHOUT=without), capture_output=True, text=True,
                          timeout=RUN_S).stdout
    return [line.strip() for line in text.splitlines() if re.match(r"\s*(node|daemon|time)\b", line)]


def check(base, name, world, rules):
    """The lines about a world, and whether all is as it should be."""
    folder, lines, good = base / name.replace(" ", "-").replace(",", ""), [], True
    folder.mkdir()
    build(folder, world)
    for rule, number in [("", "0")] * (name not in SKIPPED) + rules:
        began = time.monotonic()
        faults, states, whole, text = run(folder, number)
        took = f"{states:>11,} states {time.monotonic() - began:6.1f} s"
        right = faults > 0 if rule else faults == 0 and whole
        good &= right
        what = f"without {rule}" if rule else "every order"
        result = "fault found" if faults > 0 else "no fault" if faults == 0 and whole else "not finished"
        lines.append(f"{'ok    ' if right else 'FAILED'} {name:<28} {what:<20} {took}  {result}")
        if not right:
            lines += [f"         {e}" for e in events(folder, number)] if faults > 0 else text.splitlines()[-12:]
    return lines, good


SKIPPED = set()  # worlds that are built for their rules alone


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--all", action="store_true")
    args.add_argument("-j", type=int, default=os.cpu_count(), metavar="N")
    args.add_argument("--keep", type=Path, metavar="FOLDER")
    args = args.parse_args()
    if not shutil.which("spin"):
        sys.exit("check.py: there is no spin; install Debian's package of that name")
    rules = numbers()
    worlds = {**WORLDS, **LARGE}
    if not args.all:
        SKIPPED.update(LARGE)
        worlds = {n: w for n, w in worlds.items() if n in WORLDS or n in MISSED.values()}
    base = Path(tempfile.mkdtemp(prefix="rdzv-model-"))
    good, began = True, time.monotonic()
    try:
        with concurrent.futures.ThreadPoolExecutor(args.j) as pool:
            jobs = [pool.submit(check, base, n, w, [(r, rules[r]) for r, of in MISSED.items() if of == n]) for n, w in worlds.items()]
            for job in jobs:
                lines, right = job.result()
                good &= right
                print("\n".join(lines), flush=True)
    finally:
        if args.keep:
            shutil.copytree(base, args.keep, dirs_exist_ok=True)
        shutil.rmtree(base)
    print(f"{len(worlds)} worlds, {len(MISSED)} rules, {time.monotonic() - began:.0f} s: {'as it should be' if good else 'FAILED'}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
