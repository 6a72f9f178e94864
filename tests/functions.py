#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How large the C code is, without tests: lines, functions, their median, and static functions that one place calls.

    tests/functions.py [--list LINES] [FOLDER ...]

--list prints the static functions of at most LINES lines in their body that are used once, as FILE:LINE NAME LINES. Such a
function earns its name only if the name hides a decision (or if it is a callback). clang-format puts the head and the end of each
function at the first column, and this relies on it.
"""

import argparse
import re
import statistics
import subprocess
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
HEAD = re.compile(r"^(?P<head>[a-zA-Z_][^;{}#]*?\b(?P<name>\w+)\([^;{}]*\)) \{\n(?P<body>(?:.*\n)*?)\}\n", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def tracked(folders):
    out = subprocess.run(["git", "ls-files", "--", *folders], cwd=TOP, check=True, capture_output=True, text=True).stdout
    return [TOP / f for f in out.splitlines() if f.endswith((".c", ".h", ".cu", ".cuh")) and not f.startswith("tests/")]


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--list", type=int, metavar="LINES")
    args.add_argument("folders", nargs="*")
    args = args.parse_args()
    lines, sizes, single, small = 0, [], [], []
    for path in tracked(args.folders):
        text = path.read_text()
        lines += text.count("\n")
        code = COMMENT.sub("", text)
        for m in HEAD.finditer(text):
            n = m["body"].count("\n")
            sizes.append(n)
            uses = re.findall(r"\b%s\b(.)" % m["name"], code, re.DOTALL)
            calls = uses.count("(") - len(re.findall(r"^[a-z][^;{}=]*\b%s\([^;{}]*\)(?: \{|;)" % m["name"], code, re.MULTILINE))
            if m["head"].startswith("static") and calls == 1 and uses.count("(") == len(uses):
                single.append(n)
                if args.list and n <= args.list:
                    small.append(f"{path.relative_to(TOP)}:{text[: m.start()].count(chr(10)) + 1} {m['name']} {n}")
    for line in small:
        print(line)
    print(f"{lines} lines, {len(sizes)} functions, median {statistics.median(sizes or [0]):g} lines in the body, "
          f"{len(single)} static functions with one caller, {sum(n <= 6 for n in single)} of them of at most 6 lines")


if __name__ == "__main__":
    main()
