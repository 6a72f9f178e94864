# SPDX-License-Identifier: Apache-2.0
"""A parser of torchrun's as data, and back. Without PyTorch:

    python3 tests/interop/scripts/parsers.py record WHEEL...      writes the parsers of these wheels (pip download torch==2.9.1 --no-deps) into parsers.json

A wheel is not installed: only its run.py and the two files that make up its parser are run, and every other module of torch is a stand-in.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from unittest import mock

RECORD = Path(__file__).resolve().parents[1] / "parsers.json"
REAL = {"torch.distributed.run", "torch.distributed.argparse_util", "torch.numa.binding"}


def describe(parser):
    """Its options in their order. A variable is one that its action reads (torch/distributed/argparse_util.py)."""
    return [
        {
            "names": a.option_strings or [a.dest],
            "flag": a.nargs == 0,
            "default": a.default,
            "choices": list(a.choices) if a.choices else None,
            "type": a.type.__name__ if a.type else None,
            "variable": f"PET_{a.dest.upper()}" if type(a).__name__ in ("env", "check_env") else None,
        }
        for a in parser._actions
    ]


def rebuild(options):
    """A parser that finds options, whole and abbreviated, as the one that was described."""
    parser = argparse.ArgumentParser(add_help=False)
    for o in options:
        if o["names"][0].startswith("-"):
            parser.add_argument(*o["names"], dest=o["names"][0], nargs=0 if o["flag"] else None, action=argparse.Action if o["flag"] else "store")
    return parser


def find(parser, word):
    """The first name of the option that a word names; None: there is none, or there are several."""
    try:
        found = parser._parse_optional(word)
    except argparse.ArgumentError:
        return None
    except SystemExit:
        return None
    found = found[0] if isinstance(found, list) and len(found) == 1 else found
    return found[0].dest if found and not isinstance(found, list) and found[0] else None


class Wheel(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the three files in the wheel, and a stand-in for each other module of torch."""

    def __init__(self, wheel):
        self.zip = zipfile.ZipFile(wheel)

    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=name not in REAL) if name.split(".")[0] == "torch" else None

    def create_module(self, spec):
        if spec.name in REAL:
            return None
        stand_in = mock.MagicMock(name=spec.name)
        stand_in.__path__ = []
        return stand_in

    def exec_module(self, module):
        if module.__name__ in REAL:
            exec(compile(self.zip.read(module.__name__.replace(".", "/") + ".py"), module.__name__, "exec"), module.__dict__)


def number(version):
    return [int(n) for n in version.split(".")]


def recorded():
    """version -> its options."""
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    versions = {v: [] for v in sorted({v for row in rows for v in row["versions"]}, key=number)}
    for row in rows:
        for v in row["versions"]:
            versions[v].append({k: x for k, x in row.items() if k != "versions"})
    return versions


def record(wheels):
    """A row for each form that an option has had, with the versions that have it."""
    known = recorded()
    for wheel in wheels:
        version = re.match(r"torch-(\d+\.\d+\.\d+)", Path(wheel).name)[1]
        known[version] = json.loads(subprocess.check_output([sys.executable, "-I", "-S", __file__, "print", wheel], env={}))
    rows = {}
    for version in sorted(known, key=number):
        for option in known[version]:
            rows.setdefault(json.dumps(option), []).append(version)
    lines = [json.dumps({**json.loads(option), "versions": versions}) for option, versions in rows.items()]
    RECORD.write_text("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    if sys.argv[1] == "record":
        record(sys.argv[2:])
    else:
        sys.meta_path.insert(0, Wheel(sys.argv[2]))
        from torch.distributed.run import get_args_parser

        print(json.dumps(describe(get_args_parser())))
