# SPDX-License-Identifier: Apache-2.0
"""Counts test results for tests/run: `count.py meson testlog.json FAILED [AGAIN SECOND]` or `count.py junit FILE.xml FAILED [AGAIN SECOND]`.

Prints "passed failed skipped"; skipped pytest cases are named with their reasons on stderr. Into the file FAILED go the names of what failed, a line each, and
below each, indented, what it said: of a log of thousands of lines that is what somebody wants to read first. A file that is missing or cannot be read
counts as one failure: a run that broke off must not look like a run without failures.

For second tries: the file AGAIN gets a line for each failed test: the test, as meson or pytest is given it to run that test alone, a tab, and why it failed.
A test that the file SECOND names in the first column of a line, of columns separated by tabs, has passed since and counts as passed.
"""

import json
import os
import re
import sys
import xml.etree.ElementTree as ET

LINES_MAX = 120  # of what one failed test said: its end
WHY_MAX = 400  # characters of why a test failed


def tell(failed, name, said):
    lines = said.rstrip().split("\n")
    if len(lines) > LINES_MAX:
        lines = [f"({len(lines) - LINES_MAX} lines before these)"] + lines[-LINES_MAX:]
    print(name, *("    " + line for line in lines), sep="\n", file=failed)


def why(said):
    """The lines in which pytest says what did not hold, and where, as one line."""
    lines = [" ".join(line[1:].split()) for line in said.split("\n") if line.startswith(("E ", ">"))]
    return " / ".join(line for line in lines if line)[:WHY_MAX] or "see its output"


def meson(path, told, again, second):
    """One JSON object per test program; cmocka's own lines in its output tell how many cases it had."""
    passed = failed = skipped = 0
    for line in open(path, encoding="utf-8", errors="replace"):
        test = json.loads(line)
        output = test.get("stdout", "") + test.get("stderr", "")
        ok, left = output.count("[       OK ]"), len(set(re.findall(r"^\[  SKIPPED \] (\w+)$", output, re.M)))
        if test["result"] == "OK":
            passed, skipped = passed + (ok or 1), skipped + left
        elif test["name"] in second:
            passed, skipped = passed + ok + max(1, (output.count("[  FAILED  ]") - 1) // 2), skipped + left
        elif test["result"] == "SKIP":
            skipped += 1
        else:  # FAIL, TIMEOUT, ERROR, INTERRUPT...
            # cmocka names a failed case twice: when it fails and in its summary.
            bad = output.count("[  FAILED  ]")
            names = dict.fromkeys(re.findall(r"^\[  FAILED  \] (\w+)$", output, re.M))
            how = "" if bad else f" ({test['result']}, exit status {test.get('returncode')}, {test.get('duration', 0):.0f} s)"
            tell(told, f"{test['name']}: {', '.join(names)}{how}" if names else f"{test['name']}{how}", output)
            again.append(f"{test['name']}\t{', '.join(names) or how.strip() or 'see its output'}")
            passed, failed, skipped = passed + ok, failed + max(1, (bad - 1) // 2), skipped + left
    return passed, failed, skipped


def junit(path, told, again, second):
    passed = failed = skipped = 0
    for case in ET.parse(path).iter("testcase"):
        file = case.get("classname").replace(".", "/") + ".py"
        node = f"{file}::{case.get('name')}"
        if (bad := case.find("failure")) is None:
            bad = case.find("error")
        if bad is not None and node not in second:
            failed += 1
            tell(told, f"{case.get('classname')}.{case.get('name')}", bad.text or bad.get("message") or "")
            if os.path.exists(file):  # else it is a file that could not even be collected
                again.append(f"{node}\t{why(bad.text or '')}")
        elif (skip := case.find("skipped")) is not None:
            skipped += 1
            print(f"skipped {case.get('name')}: {skip.get('message')}", file=sys.stderr)
        else:
            passed += 1
    return passed, failed, skipped


def main(kind, path, failed, again=os.devnull, second=os.devnull):
    lines, passed_since = [], {line.split("\t")[0] for line in open(second, encoding="utf-8")}
    try:
        with open(failed, "w", encoding="utf-8", errors="replace") as told:
            print(*{"meson": meson, "junit": junit}[kind](path, told, lines, passed_since))
    except (OSError, ValueError, ET.ParseError) as e:
        print(0, 1, 0)
        print(f"{path}: {e}", file=sys.stderr)
    with open(again, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in dict.fromkeys(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
