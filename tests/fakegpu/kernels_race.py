#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No kernel has a race, and each barrier and fence is needed: without any one of them ThreadSanitizer finds a race.

    kernels_race.py PROGRAM SOURCE...

PROGRAM is test_kernels_race, which must launch every kernel of the sources and come to every barrier. It exits with 77
where ThreadSanitizer cannot run."""

import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

RACE, SKIPPED = 66, 77
KERNEL = re.compile(r"__global__[^;{(]*?(\w+)\s*\(")
SITE = re.compile(r"__(?:syncthreads|threadfence)\s*\(")


def code(text):
    """Without comments, on the same lines."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda c: "\n" * c[0].count("\n"), text, flags=re.S)


def run(program, *args):
    options = {**os.environ, "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:atexit_sleep_ms=0"}
    a = subprocess.run([*program, *args], env=options, capture_output=True, text=True, timeout=300)
    return a.returncode, a.stdout + a.stderr


def runnable(program):
    """ThreadSanitizer's memory map does not suit every kernel's randomized addresses."""
    for command in [program], [shutil.which("setarch"), "-R", program]:
        if command[0] and "unexpected memory mapping" not in (said := run(command))[1]:
            return command, said
    return None, None


def main():
    program, sources = sys.argv[1], [Path(s) for s in sys.argv[2:]]
    texts = {s.name: code(s.read_text()) for s in sources}
    kernels = {k for text in texts.values() for k in KERNEL.findall(text)}
    sites = sorted(f"{name}:{i}" for name, text in texts.items() for i, line in enumerate(text.split("\n"), 1) if SITE.search(line))
    assert kernels and sites
    command, clean = runnable(program)
    if command is None:
        print("ThreadSanitizer cannot map its memory on this machine: skipped")
        return SKIPPED
    rc, said = clean
    if rc:
        print(f"{program} exited with {rc}:\n{said}")
        return 1
    failed = []
    launched = set(re.findall(r"\w+_kernel", " ".join(re.findall(r"^kernel (.*)$", said, re.M))))
    reached = {Path(p).name for p in re.findall(r"^site (.*)$", said, re.M)}
    planted = run(command, "--planted")
    if planted[0] != RACE:
        failed += [f"the planted race was not found:\n{planted[1]}"]
    failed += [f"test_kernels_race.c does not launch {k}" for k in sorted(kernels - launched - {"planted_kernel"})]
    failed += [f"no thread comes to the barrier at {s}" for s in sites if s not in reached]
    if not failed:
        with concurrent.futures.ThreadPoolExecutor(min(len(os.sched_getaffinity(0)), 4)) as pool:
            for site, (rc, said) in zip(sites, pool.map(lambda s: run(command, "--skip-barrier", s), sites)):
                found = re.search(r"SUMMARY: ThreadSanitizer: data race (\S+)", said)
                print(f"without {site}: " + (f"a race at {Path(found[1]).name}" if rc == RACE and found else f"exit status {rc}, no race"))
                if rc != RACE or not found:
                    failed += [f"nothing needs the barrier at {site}: remove it, or let test_kernels_race.c show the need\n{said}"]
    print("\n".join(failed) or f"{len(kernels)} kernels, {len(sites)} barriers: no race, and one without each barrier")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
