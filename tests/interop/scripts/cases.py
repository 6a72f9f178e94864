# SPDX-License-Identifier: Apache-2.0
"""Cases for a store: each is a function of `open`, which connects another client, and returns what the store answered. Two servers are equal if all cases
return the same from both. They stand in the files cases_*.py; a function with another parameter than `open` is none."""

import inspect

import cases_clients
import cases_keys
import cases_wait
from case_help import Opener

PARTS = cases_keys, cases_wait, cases_clients


def is_case(part, f):
    return inspect.isfunction(f) and f.__module__ == part.__name__ and list(inspect.signature(f).parameters) == ["open"]


CASES = {name: f for part in PARTS for name, f in vars(part).items() if is_case(part, f)}


def run(name, port):
    return CASES[name](Opener(port))


def names():
    """Of those that one process alone can run."""
    return [n for n in CASES if not n.startswith("together_")]
