# SPDX-License-Identifier: Apache-2.0
"""tests/bench/first_hour: it reads a terminal as a user does, judges a row by the rule that it states, and makes mistakes."""

import importlib.machinery
import importlib.util
import os
import re
import subprocess
import sys

import pytest

from harness import BUILD, TOP

PROGRAM = TOP / "tests/bench/first_hour"
spec = importlib.util.spec_from_loader("first_hour", importlib.machinery.SourceFileLoader("first_hour", str(PROGRAM)))
hour = sys.modules["first_hour"] = importlib.util.module_from_spec(spec)
sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
spec.loader.exec_module(hour)
sys.dont_write_bytecode = before


@pytest.mark.parametrize("data, lines", [
    ("one\r\n\r\n  two  \r\n", ["one", "  two"]),
    ("\x1b[1;31mError\x1b[0m: red\r\n", ["Error: red"]),
    ("10%\r20%\r100%\r\n", ["100%"]),
    ("a long line\r\x1b[Kshort\r\n", ["short"]),
    ("first\r\nstatus\r\nmore status\x1b[1A\r\x1b[Jlast\r\n", ["first", "last"]),
    ("\x1b]2;a title\x07said\r\n", ["said"]),
    ("\x1b]0;a title\x1b\\said\r\n", ["said"]),
    ("\x1b7\x1b[3;1Hsaid\x1b8", ["said"]),
    ("a\tb", ["a       b"]),
])
def test_a_screen(data, lines):
    assert hour.screen(data) == lines


def outcome(seconds, lines, shown, of=1):
    return hour.Outcome(seconds, lines, shown, of, False)


@pytest.mark.parametrize("ours, theirs, verdict", [
    (outcome(9, 90, 1), outcome(1, 10, 0), "win"),
    (outcome(1, 10, 0), outcome(9, 90, 1), "lose"),
    (outcome(1, 10, 1, 2), outcome(1, 10, 2, 2), "lose"),
    (outcome(1.4, 10, 1), outcome(1, 10, 1), "draw"),
    (outcome(1.6, 10, 1), outcome(1, 10, 1), "lose"),
    (outcome(1, 11, 1), outcome(9, 10, 1), "lose"),
    (outcome(1, 9, 1), outcome(1, 10, 1), "win"),
    (outcome(1, 10, 1), outcome(9, 10, 1), "win"),
    (outcome(1, 10, 0), outcome(9, 90, 0), "draw"),
    (outcome(1, 10, 0), outcome(1, 9, 0), "lose"),
    (outcome(hour.NEVER, 3, 0), outcome(hour.NEVER, 3, 0), "draw"),
    (outcome(hour.NEVER, 3, 0), outcome(5, 3, 0), "lose"),
])
def test_a_verdict(ours, theirs, verdict):
    assert hour.verdict(ours, theirs) == verdict


def watched(line, ceiling=20):
    t = hour.Terminal(line, "/", dict(os.environ))
    try:
        hour.watch([t], ceiling)
    finally:
        t.close()
    return t


def test_the_end_of_a_line_that_ends():
    t = watched("printf 'a\\nb\\ncause\\nc\\nd\\n' >&2; exit 3")
    assert (t.shell.returncode, hour.screen(t.text())) == (3, ["a", "b", "cause", "c", "d"])
    assert t.ended < 20 and t.shows("CAUSE") and not t.shows("b$")


def test_a_line_that_does_not_end():
    """The cause is known from the moment at which it was printed, and never where later lines have pushed it away. Nothing survives, not even what has left the session."""
    t = watched("echo cause; sleep 0.2; echo more; setsid sleep 500 & exec sleep 500", ceiling=3)
    assert t.ended is None and t.known("cause") == t.first("cause") <= t.known("more") < 3 and t.known("more") >= 0.2
    mark = f"{hour.MARK}={t.mark}".encode()
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in hour.environment_of(pid)]
    t = watched("echo cause; sleep 0.2; echo 1; echo 2; echo 3; exec sleep 500", ceiling=3)
    assert t.known("cause") == hour.NEVER and t.first("cause") < 3


def test_mistakes_have_names_of_their_own():
    keys = [m.key for m in hour.MISTAKES]
    assert len(set(keys)) == len(keys) >= 20
    assert all(line.startswith("L ") for m in hour.MISTAKES for line in m.typed)


def test_mistakes_are_made(tmp_path):
    """Without torchrun: rows of rdzv alone, with the cause in each, and what the terminals showed."""
    want = {"path": 1, "option": 1, "where": 2}
    done = subprocess.run([sys.executable, PROGRAM, "--no-torchrun", "--runs", "1", "--ceiling", "10", "--only", ",".join(want), "--outputs", tmp_path],
                          env=dict(os.environ, RDZV_BUILD=str(BUILD)), capture_output=True, text=True, timeout=60)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    assert done.returncode == 0 and len(rows) == len(want), done
    for cells, (key, terminals) in zip(rows, want.items()):
        title = next(m.title for m in hour.MISTAKES if m.key == key)
        kept = (tmp_path / f"{key}.rdzv-agent.txt").read_text()
        assert cells[0] == title and re.fullmatch(r"\d+\.\d\d", cells[1]) and int(cells[3]) >= terminals and cells[5] == "yes", (cells, kept)
        assert len(re.findall(r"^\$ rdzv-agent ", kept, re.M)) == terminals, kept


def test_an_unknown_mistake():
    done = subprocess.run([sys.executable, PROGRAM, "--only", "path,pathh"], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and done.stderr == "bench: --only pathh: --list has the mistakes\n", done
