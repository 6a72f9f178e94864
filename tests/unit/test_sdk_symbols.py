#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""librdzv shows what rdzv.h names and nothing else, every name in the static library begins with rdzv_ or c10d_, and it needs libc alone.

usage: test_sdk_symbols.py SOURCE_ROOT SHARED STATIC
"""
import re
import subprocess
import sys


def nm(*args):
    lines = subprocess.run(["nm", *args], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0].split("@")[0] for line in lines if len(line.split()) > 1}


def main():
    root, shared, static = sys.argv[1:]
    header = open(f"{root}/agent/sdk/rdzv.h").read()
    api = set(re.findall(r"RDZV_API\s+(?:const\s+)?\w+\s*\*?\s*(rdzv_\w+)\(", header))
    # What a sanitizer or the coverage of a fuzzer adds is not ours.
    shown = {s for s in nm("-D", "--defined-only", "-P", shared) if not re.match(r"__(asan|odr_asan|ubsan|sanitizer|sancov|start|stop)", s)}
    names = {s for s in nm("-g", "--defined-only", "-P", static) if not re.match(r"__|.*\.o\]?:|lib", s)}
    needed = re.findall(r"NEEDED.*\[(.*?)\]", subprocess.run(["readelf", "-d", shared], capture_output=True, text=True, check=True).stdout)
    errors = [f"rdzv.h declares {s}, the library does not show it" for s in sorted(api - shown)]
    errors += [f"the library shows {s}, rdzv.h does not declare it" for s in sorted(shown - api)]
    errors += [f"{s} may clash with a name of the program" for s in sorted(names) if not s.startswith(("rdzv_", "c10d_"))]
    errors += [f"it needs {lib}" for lib in needed if not re.match(r"libc\.|lib(asan|ubsan|gcc_s|m|clang)|ld-linux", lib)]
    print(f"{len(api)} functions, {len(names)} names, needs {' '.join(needed)}")
    for line in errors:
        print(line)
    sys.exit(1 if errors or len(api) < 30 else 0)


if __name__ == "__main__":
    main()
