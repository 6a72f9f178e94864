# SPDX-License-Identifier: Apache-2.0
"""A real munged with a key of its own, in a folder of its own, and the socket's path in RDZV_MUNGE_SOCKET."""

import contextlib
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from harness import until

PROGRAM = shutil.which("munged") or shutil.which("munged", path="/usr/sbin")
needs_munge = pytest.mark.skipif(not PROGRAM, reason="munged is not installed (package munge)")


def accepts(path):
    with socket.socket(socket.AF_UNIX) as s:
        return s.connect_ex(str(path)) == 0


class Munged:
    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="rdzv-munged-"))
        self.folder.chmod(0o711)  # other users reach the socket
        self.socket = self.folder / "socket"
        key = self.folder / "key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(64))
        files = [f"--{name}={self.folder / name}" for name in ("socket", "pid-file", "seed-file")]
        self.process = subprocess.Popen([PROGRAM, "--foreground", "--force", f"--key-file={key}", *files], stderr=subprocess.DEVNULL)
        until("munged accepts connections", lambda: accepts(self.socket))
        self.env = {"RDZV_MUNGE_SOCKET": str(self.socket)}

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)


@contextlib.contextmanager
def munged():
    m = Munged()
    try:
        yield m
    finally:
        m.close()
