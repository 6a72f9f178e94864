# SPDX-License-Identifier: Apache-2.0
"""The command of contributing.md and the second one of the front page, on a machine that has nothing but what Debian 12 ships: tests/run, as root, in a copy of the sources that has never been
built. It installs what it needs, and what it cannot have there it skips, each with its reason.

    tests/run --only fresh-tests

It takes as long as tests/run does, and a few minutes for the machine; what it says goes to build/test-logs/fresh-tests.said meanwhile."""

import re
import subprocess

import pytest

import machine
import pages
from harness import TOP

pytestmark = pytest.mark.fresh

MINUTES = 60
SAID = TOP / "build/test-logs/fresh-tests.said"


@pytest.fixture
def workshop(base, tools):
    """The machine with a copy of the sources. The base is not needed again."""
    tools.run(TOP / "deploy/sources", base / "root/rdzv")
    m = machine.Machine(base)
    yield m
    m.close()


@pytest.mark.deadline((MINUTES + 5) * 60)
def test_the_second_command(workshop):
    (command,) = pages.lines("deploy/guide/contributing.md", "all")
    assert command == pages.lines("README.md", "quickstart")[1]
    SAID.parent.mkdir(parents=True, exist_ok=True)
    with SAID.open("w") as said:
        done = subprocess.run(workshop.argv(f"cd rdzv && {command}"), stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, timeout=MINUTES * 60)
    text = SAID.read_text()
    passed, failed, skipped = map(int, re.search(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", text, re.M).groups())
    assert done.returncode == 0 and failed == 0 and passed > 1000, text[-20000:]
    workshop.gone()
