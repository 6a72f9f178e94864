"""Counts test results for tests/run: `count.py meson testlog.json` or `count.py junit FILE.xml`.

Prints "passed failed skipped"; skipped pytest cases are named with their reasons on stderr. A file that is missing or cannot be read
counts as one failure: a run that broke off must not look like a run without failures.
"""

import json
import re
import sys
import xml.etree.ElementTree as ET


def meson(path):
    """One JSON object per test program; cmocka's own lines in its output tell how many cases it had."""
    passed = failed = skipped = 0
    for line in open(path, encoding="utf-8", errors="replace"):
        test = json.loads(line)
        output = test.get("stdout", "") + test.get("stderr", "")
        ok, left = output.count("[       OK ]"), len(set(re.findall(r"^\[  SKIPPED \] (\w+)$", output, re.M)))
        if test["result"] == "OK":
            passed, skipped = passed + (ok or 1), skipped + left
        elif test["result"] == "SKIP":
            skipped += 1
        else:  # FAIL, TIMEOUT, ERROR, INTERRUPT...
            # cmocka names a failed case twice: when it fails and in its summary.
            bad = output.count("[  FAILED  ]")
            passed, failed, skipped = passed + ok, failed + max(1, (bad - 1) // 2), skipped + left
    return passed, failed, skipped


def junit(path):
    passed = failed = skipped = 0
    for case in ET.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif (skip := case.find("skipped")) is not None:
            skipped += 1
            print(f"skipped {case.get('name')}: {skip.get('message')}", file=sys.stderr)
        else:
            passed += 1
    return passed, failed, skipped


if __name__ == "__main__":
    try:
        print(*{"meson": meson, "junit": junit}[sys.argv[1]](sys.argv[2]))
    except (OSError, ValueError, ET.ParseError) as e:
        print(0, 1, 0)
        print(f"{sys.argv[2]}: {e}", file=sys.stderr)
