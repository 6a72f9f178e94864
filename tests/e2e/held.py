# SPDX-License-Identifier: Apache-2.0
"""A process that is held as by a debugger: it does nothing, and no signal but SIGKILL gets through."""

import ctypes
import os

import pytest

from harness import comm

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000


def guard_of(rdzv, node):
    (pid,) = [p for p in rdzv.pids(E2E_NODE=str(node)) if comm(p) == "rdzv-guard"]
    return pid


def ptrace(request, pid):
    call = ctypes.CDLL(None, use_errno=True).ptrace
    call.argtypes = ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p
    if call(request, pid, None, None):
        pytest.skip(f"this process may not trace others here: {os.strerror(ctypes.get_errno())}")


def hold(pid):
    ptrace(PTRACE_SEIZE, pid)
    ptrace(PTRACE_INTERRUPT, pid)
    os.waitpid(pid, WALL)


def release(pid):
    ptrace(PTRACE_DETACH, pid)


def reap(pid):
    """A dead one is the debugger's first."""
    os.waitpid(pid, WALL)
