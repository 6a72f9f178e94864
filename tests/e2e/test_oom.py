# SPDX-License-Identifier: Apache-2.0
"""Out of memory is distinguished from any other SIGKILL, by the kernel's own record."""

import os
from pathlib import Path

import pytest

from harness import until

ROOT = Path("/sys/fs/cgroup")
EAT = "python3 -c 'x = b\"x\" * (1 << 30)'"


@pytest.fixture
def small_memory():
    """A cgroup with 256 MiB: the file by which a process enters it."""
    second = (ROOT / "cgroup.controllers").exists()
    if not second and os.stat("/proc/self/ns/pid").st_ino != 0xEFFFFFFC:
        pytest.skip("no cgroup v2 here, and in a container the kernel's log does not name our pids")
    if not second and not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("no cgroup v2 here, and the kernel's log cannot be read")
    place = (ROOT if second else ROOT / "memory") / f"rdzv-e2e-{os.getpid()}"
    try:
        place.mkdir()
    except OSError as e:
        pytest.skip(f"no cgroup can be made here: {e}")
    try:
        try:
            (place / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(256 << 20))
        except OSError as e:
            pytest.skip(f"a cgroup's memory cannot be limited here: {e}")
        yield place / "cgroup.procs"
    finally:
        until("the cgroup is empty", lambda: not (place / "cgroup.procs").read_text())
        place.rmdir()


def test_out_of_memory(rdzv, small_memory):
    enter = ["sh", "-c", 'echo 0 > "$0"; exec "$@"', small_memory]
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", f"exec {EAT}", wrap=enter)
    assert a.exit() == 137, a
    assert a.says(r"was killed by SIGKILL \(signal 9\): out of memory \(cgroup limit 256 MiB\)"), a


def test_any_other_sigkill(rdzv):
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", "kill -9 $$")
    assert a.exit() == 137 and a.says(r"was killed by SIGKILL \(signal 9\)") and not a.says("memory"), a
