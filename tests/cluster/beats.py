#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which workers run, and when: proof that no two rounds of a job overlap.

    beats.py FILE COMMAND [ARGUMENT]...

runs the command, and beside it a child that appends a line to FILE every 10 ms, as long as the command lives. All hosts of a test share the file, and
their clock is that of the machine. A line is one write, so it is there whole or not at all, also when a host loses its power.
"""

import ctypes
import os
import signal
import socket
import sys
import time

EVERY = 0.01


def whole_lines(path):
    """Those of a file to which others append. Where a line crosses the end of a page, a reader may see its beginning alone."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


class Round:
    """What its workers have written. Its address is that of its store, so two rounds with one number are told apart."""

    def __init__(self, number, addr):
        self.number, self.addr, self.first, self.last, self.ranks = number, addr, None, None, {}

    def add(self, now, rank, host, pid):
        self.first, self.last = min(now, self.first or now), max(now, self.last or now)
        self.ranks.setdefault(rank, set()).add((host, pid))

    def __str__(self):
        where = ", ".join(f"rank {rank} on {' and '.join(sorted(host for host, _ in at))}" for rank, at in sorted(self.ranks.items()))
        return f"round {self.number} ({self.addr}) from {self.first:.3f} to {self.last:.3f}: {where}"


def rounds(path):
    """Those of the job so far, by the time of their first line."""
    found = {}
    for line in whole_lines(path):
        now, number, addr, rank, host, pid = line.split()
        found.setdefault((int(number), addr), Round(int(number), addr)).add(float(now), int(rank), host, pid)
    return sorted(found.values(), key=lambda r: r.first)


def check(path):
    """Fails if two rounds overlap, if a rank of a round ran twice, or if a later round has a lower number. Returns the rounds."""
    all = rounds(path)
    told = "\n".join(map(str, all))
    for r in all:
        for rank, at in r.ranks.items():
            assert len(at) == 1, f"rank {rank} of round {r.number} ran {len(at)} times\n{told}"
    for a, b in zip(all, all[1:]):
        assert a.last < b.first, f"round {a.number} ran for {a.last - b.first:.3f} s after round {b.number} had begun\n{told}"
        assert a.number < b.number, f"round {b.number} came after round {a.number}\n{told}"
    return all


def write(path, worker, goes_on):
    e = os.environ
    words = f"{e['RDZV_ROUND']} {e['MASTER_ADDR']}:{e['MASTER_PORT']} {e['RANK']} {socket.gethostname()} {worker}"
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    while goes_on():
        os.write(fd, f"{time.monotonic():.6f} {words}\n".encode())
        time.sleep(EVERY)


def beat(path, parent):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    write(path, parent, lambda: os.getppid() == parent)


if __name__ == "__main__":
    pid = os.getpid()
    if os.fork():
        os.execvp(sys.argv[2], sys.argv[2:])
    for signo in signal.SIGTERM, signal.SIGINT:  # told to stop, the command may live on for a while, and so does this
        signal.signal(signo, signal.SIG_IGN)
    beat(sys.argv[1], pid)
    os._exit(0)
