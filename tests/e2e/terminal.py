# SPDX-License-Identifier: Apache-2.0
"""A terminal with an interactive bash, as a user has it: type, read the screen, press Ctrl-Z."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from harness import SLOW, stat, until

CTRL_C, CTRL_D, CTRL_Z = "\x03", "\x04", "\x1a"


class Terminal:
    """A pseudo-terminal of 120 columns, and a program in a session of its own at it: bash unless `argv` names another."""

    def __init__(self, rdzv, argv=None, env=None, lines=40):
        argv = [str(a) for a in argv or ["bash", "--norc", "--noprofile", "-i"]]
        env = rdzv.env({"PS1": "$ ", "TERM": "xterm", "HISTFILE": "/dev/null", **(env or {})})
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            try:
                self.resize(lines, 120, fd=0)
                os.chdir(rdzv.tmp)
                os.execvpe(argv[0], argv, env)
            finally:
                os._exit(127)
        self.text, self.seen = "", 0

    def resize(self, lines, columns, fd=None):
        fcntl.ioctl(self.fd if fd is None else fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text):
        os.write(self.fd, text.encode())

    def _read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            got = os.read(self.fd, 65536)
        except OSError:  # the last program at it has ended
            return False
        self.text += got.decode(errors="replace")
        return bool(got)

    def expect(self, pattern, timeout=10.0):
        """The next match on the screen, behind the last one that was returned."""
        rx, deadline = re.compile(pattern, re.M), time.monotonic() + timeout * SLOW
        while True:
            if m := rx.search(self.text, self.seen):
                self.seen = m.end()
                return m
            left = deadline - time.monotonic()
            assert left > 0 and self._read(min(left, 0.2)), f"no /{pattern}/ in {self.text[self.seen:]!r}, after {self.text[:self.seen]!r}"

    def drain(self, seconds=0.05):
        """All that is on the screen, once nothing more comes for a while."""
        size = -1
        while size != len(self.text):
            size = len(self.text)
            self._read(seconds)
        return self.text

    def children(self):
        return children(self.pid)

    def modes(self):
        return termios.tcgetattr(self.fd)

    def exit(self, timeout=5.0):
        """Reads all that is still to come. Returns the exit code."""
        deadline = time.monotonic() + timeout * SLOW
        while self._read(0.2):
            assert time.monotonic() < deadline, f"still running: {self.text[self.seen:]!r}"
        pid, self.pid = self.pid, None
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def close(self):
        os.close(self.fd)  # hangs up
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(p) for p in f.read().split()]


def is_stopped(pid):
    """A shell waits in vfork() until its child has exec'd. A child that was stopped before that holds it there: state D, which no signal can change."""
    state = stat(pid)[0]
    return state == "T" or (state == "D" and children(pid) != [] and all(stat(child)[0] == "T" for child in children(pid)))


def await_running(*pids):
    until("none is stopped", lambda: not any(is_stopped(p) for p in pids))
