# SPDX-License-Identifier: Apache-2.0
"""Shows on stderr how far a long wait is: at a terminal in one live line, which is erased at its end, elsewhere in a line a minute.
progress.sh in this folder is the same for shells. Nothing here starts a thread, because its callers measure and fork:

    with Progress("restart", runs) as progress:
        for _ in range(runs):
            ...
            progress.step()
"""

import os
import re
import subprocess
import sys
import time

EVERY_S = 60  # between two lines where there is no terminal
UNSEEN = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[^\x20-\x7e\xa0-\U0010ffff]")


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Progress:
    def __init__(self, what, total=0, out=None):
        """total: how often step() will be called; 0: unknown."""
        self.what, self.total, self.done = what, total, 0
        self.out = out or sys.stderr
        self.live = self.out.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.began = self.shown = time.monotonic()
        self.drawn = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def line(self, state):
        took = time.monotonic() - self.began
        text = f"  {self.what} {clock(took)}"
        if self.total:
            text += f": {self.done} of {self.total}"
            if 0 < self.done < self.total:
                text += f", about {clock(took / self.done * (self.total - self.done))} left"
        return text + (f": {UNSEEN.sub('', state)}" if state else "")

    def show(self, state=""):
        """Call it often: once a second is shown at a terminal, once a minute elsewhere."""
        now = time.monotonic()
        if now - self.shown < (1 if self.live else EVERY_S):
            return
        self.shown = now
        if self.live:
            width = os.get_terminal_size(self.out.fileno()).columns or 80
            print(f"\r{self.line(state)[:width - 1]}\x1b[K", end="", file=self.out, flush=True)
            self.drawn = True
        else:
            print(self.line(state), file=self.out, flush=True)

    def step(self, state=""):
        self.done += 1
        self.show(state)

    def end(self):
        if self.drawn:
            print("\r\x1b[K", end="", file=self.out, flush=True)
        self.drawn = False


def last_line(path):
    """Of a log that a program is writing."""
    with open(path, "rb") as f:
        f.seek(max(0, f.seek(0, os.SEEK_END) - 4096))
        lines = [line for line in f.read().decode(errors="replace").replace("\r", "\n").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def run_with_progress(what, log, argv, **kw):
    """Runs a command, whose output is appended to the log (a path), and shows its last line; its exit status."""
    with open(log, "ab") as out, Progress(what) as progress:
        p = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, **kw)
        try:
            while True:
                try:
                    return p.wait(1)
                except subprocess.TimeoutExpired:
                    progress.show(last_line(log))
        except BaseException:
            p.kill()
            p.wait()
            raise
