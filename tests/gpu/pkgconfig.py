#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A pkg-config for the few plain files that tests/gpu/prepare.py writes, where a machine has none: what meson asks it, no more."""

import os
import re
import sys
from pathlib import Path


def read(name):
    folders = os.environ.get("PKG_CONFIG_LIBDIR", "") + ":" + os.environ.get("PKG_CONFIG_PATH", "")
    for folder in filter(None, folders.split(":")):
        at = Path(folder).resolve() / f"{name}.pc"
        if at.exists():
            break
    else:
        return None
    found = {"pcfiledir": str(at.parent)}
    for line in at.read_text().splitlines():
        m = re.match(r"(\w+)\s*([=:])\s*(.*)", line)
        if m:
            found[m[1]] = re.sub(r"\$\{(\w+)\}", lambda v: found.get(v[1], ""), m[3])
    return found


def split(version):
    return [int(n) for n in re.findall(r"\d+", version)]


def fits(have, op, want):
    a, b = split(have), split(want)
    return {"=": a == b, ">=": a >= b, "<=": a <= b, ">": a > b, "<": a < b}[op]


def main(argv):
    if "--version" in argv:
        print("0.29.2")
        return 0
    options, names = [a for a in argv if a.startswith("--")], [a for a in argv if not a.startswith("--")]
    words = " ".join(names).split()
    i, out = 0, []
    while i < len(words):
        found = read(words[i])
        if not found:
            if "--exists" not in options:
                print(f"Package '{words[i]}' not found", file=sys.stderr)
            return 1
        i += 1
        if i + 1 < len(words) and words[i] in ("=", ">=", "<=", ">", "<"):
            if not fits(found["Version"], words[i], words[i + 1]):
                return 1
            i += 2
        for o in options:
            if o == "--modversion":
                out.append(found["Version"])
            elif o == "--cflags":
                out.append(found["Cflags"])
            elif o == "--libs":
                out.append(found["Libs"])
            elif o.startswith("--variable="):
                out.append(found.get(o.partition("=")[2], ""))
    if out:
        print(" ".join(out))
    return 0


sys.exit(main(sys.argv[1:]))
