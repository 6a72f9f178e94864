#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""librdzv exports what rdzv.h declares and nothing else, shared and static alike; in the shared library each name has the version RDZV_0.1; it needs
libc alone.

usage: test_sdk_symbols.py SOURCE_ROOT SHARED STATIC
"""
import re
import subprocess
import sys

# What a sanitizer or the coverage of a fuzzer adds is not ours.
FOREIGN = r"__(asan|odr_asan|ubsan|sanitizer|sancov|start|stop)"


def output(*argv):
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def exported(*args):
    """Names, with the version that stands behind them."""
    lines = [line.split() for line in output("nm", "--defined-only", "-P", *args).splitlines()]
    return {words[0] for words in lines if len(words) > 1 and not re.match(FOREIGN, words[0])}


def main():
    root, shared, static = sys.argv[1:]
    header = open(f"{root}/agent/sdk/rdzv.h").read()
    api = set(re.findall(r"RDZV_API\s+(?:const\s+)?\w+\s*\*?\s*(rdzv_\w+)\(", header))
    errors = []
    for library, names, wanted in (
        ("the shared library", exported("-D", "--with-symbol-versions", shared), {f"{name}@@RDZV_0.1" for name in api} | {"RDZV_0.1"}),
        ("the static library", exported("-g", static), api),
    ):
        errors += [f"rdzv.h declares {name}, {library} does not export it" for name in sorted(wanted - names)]
        errors += [f"{library} exports {name}, rdzv.h does not declare it" for name in sorted(names - wanted)]
    needed = re.findall(r"NEEDED.*\[(.*?)\]", output("readelf", "-d", shared))
    errors += [f"it needs {lib}" for lib in needed if not re.match(r"libc\.|lib(asan|ubsan|gcc_s|m|clang)|ld-linux", lib)]
    print(f"{len(api)} functions, needs {' '.join(needed)}")
    for line in errors:
        print(line)
    sys.exit(1 if errors or len(api) < 30 else 0)


if __name__ == "__main__":
    main()
