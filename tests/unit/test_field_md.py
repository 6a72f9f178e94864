# SPDX-License-Identifier: Apache-2.0
"""tests/FIELD.md names tests: they must exist. `test_field_md.py TOP`."""

import pathlib
import re
import sys

top = pathlib.Path(sys.argv[1])
named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (top / "tests/FIELD.md").read_text(encoding="utf-8"))
missing = sorted({f"{path}::{test}" for path, test in named if not (top / path).exists() or f"def {test}(" not in (top / path).read_text(encoding="utf-8")})
if missing:
    sys.exit("tests/FIELD.md names tests that are not there: " + ", ".join(missing))
rows = re.findall(r"^\| (\d+) \|.*$", (top / "tests/FIELD.md").read_text(encoding="utf-8"), re.M)
if len(rows) < 20 or len(rows) != len(set(rows)) or not named:
    sys.exit(f"tests/FIELD.md has {len(rows)} rows: is its table still one?")
print(f"{len(rows)} complaints, {len(set(named))} tests")
