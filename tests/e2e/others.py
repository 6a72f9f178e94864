# SPDX-License-Identifier: Apache-2.0
"""Other users of the machine, for tests that run as root."""

import contextlib
import os
import subprocess

import pytest

from harness import RDZVCTL

EVE, MALLORY = 60101, 60102  # nobody's, and above all that a machine gives out


def can_run(uid=EVE):
    if os.geteuid() != 0:
        return False
    try:
        return subprocess.run([RDZVCTL, "--version"], capture_output=True, cwd="/", user=uid, group=uid, extra_groups=[]).returncode == 0
    except OSError:
        return False


needs_users = pytest.mark.skipif(not can_run(), reason="becoming another user needs root, and a build that others may run")


def user(uid, **env):
    """What rdzv.spawn needs to run something as that user."""
    return dict(user=uid, group=uid, extra_groups=[], env={"XDG_RUNTIME_DIR": "", "TMPDIR": "", "HOME": "/", **env})


@contextlib.contextmanager
def as_user(uid):
    """This process is another user for a moment: what it makes is hers, and the kernel names her as the listener of its sockets."""
    os.setegid(uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
