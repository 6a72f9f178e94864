# SPDX-License-Identifier: Apache-2.0
"""deploy/progress.sh and deploy/progress.py: what a long wait shows, at a terminal and elsewhere."""

import fcntl
import os
import pty
import re
import subprocess
import termios
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]


class AtTerminal:
    """bash with a terminal of its own, 40 columns wide."""

    def __init__(self, script, *args):
        main, side = pty.openpty()
        subprocess.run(["stty", "columns", "40", "rows", "20"], stdin=side, check=True)
        self.main, self.text = main, ""
        self.p = subprocess.Popen(["bash", "-c", script, "bash", *map(str, args)], cwd=TOP, stdin=side, stdout=side, stderr=side, env=dict(os.environ, TERM="xterm"),
                                  start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(side)

    def read_until(self, pattern):
        while not re.search(pattern, self.text):
            try:
                got = os.read(self.main, 4096)
            except OSError:  # the other side is closed
                got = b""
            assert got, f"ended without {pattern}: {self.text!r}"
            self.text += got.decode()

    def end(self):
        try:
            while got := os.read(self.main, 4096):
                self.text += got.decode()
        except OSError:
            pass
        os.close(self.main)
        return self.p.wait()


LONG = 'printf "\\e[1m[3/60] Compiling %s\\e[0m\\n" a.c.that.has.a.name.beyond.the.edge.of.the.terminal; read -r <"$1"; exit 7'


def pieces(tmp_path):
    fifo, log = tmp_path / "fifo", tmp_path / "log"
    os.mkfifo(fifo)
    script = tmp_path / "long"
    script.write_text("#!/bin/bash\n" + LONG)
    script.chmod(0o755)
    return fifo, log, f'set -eu; . deploy/progress.sh; progress_every=1; rc=0; run_with_progress "$2" building "{script}" "$1" || rc=$?; echo "after $rc"'


def test_a_live_line_at_a_terminal(tmp_path):
    fifo, log, script = pieces(tmp_path)
    t = AtTerminal(script, fifo, log)
    t.read_until(r"\r  building 0:0\d: \[3/60\] Compiling a\.c\.t\x1b\[K")  # cut to 39 columns
    fifo.write_text("\n")
    assert t.end() == 0
    assert t.text.endswith("\r\x1b[Kafter 7\r\n") and t.text.count("\n") == 1, t.text
    assert "[3/60] Compiling" in log.read_text()


def test_a_line_now_and_then_elsewhere(tmp_path):
    fifo, log, script = pieces(tmp_path)
    p = subprocess.Popen(["bash", "-c", script, "bash", fifo, log], cwd=TOP, stdout=subprocess.PIPE, text=True)
    for _ in range(2):
        assert re.fullmatch(r"  building 0:\d\d: \[3/60\] Compiling a\.c\.that\.has\.a\.name\.beyond\.the\.edge\.of\.the\.terminal\n", p.stdout.readline())
    fifo.write_text("\n")
    rest = p.communicate(timeout=20)[0]
    assert rest.splitlines()[-1] == "after 7" and "\r" not in rest and "\x1b" not in rest, rest


def test_nothing_is_shown_of_what_ends_at_once(tmp_path):
    out = subprocess.run(["bash", "-c", 'set -eu; . deploy/progress.sh; run_with_progress "$1" building true; echo "after $?"', "bash", tmp_path / "log"],
                         cwd=TOP, capture_output=True, text=True, timeout=20)
    assert (out.stdout, out.stderr) == ("after 0\n", "")


# ---- progress.py ----------------------------------------------------------------------------------------------------

PYTHON = """
import sys
sys.path.insert(0, "deploy")
import progress
progress.EVERY_S = 0.5
print("after", progress.run_with_progress("building", sys.argv[2], [sys.argv[3], sys.argv[1]]), flush=True)
with progress.Progress("runs", 4) as p:
    p.step()
    p.began -= 100
    p.shown -= 100
    p.step("at \x1b[1mhome\x1b[0m\x07")
"""


def python_pieces(tmp_path):
    fifo, log, _ = pieces(tmp_path)
    (tmp_path / "program.py").write_text(PYTHON)
    return fifo, log, f'exec python3 "{tmp_path}/program.py" "$1" "$2" "{tmp_path}/long"'


def test_python_shows_a_live_line_at_a_terminal(tmp_path):
    fifo, log, script = python_pieces(tmp_path)
    t = AtTerminal(script, fifo, log)
    t.read_until(r"\r  building 0:0\d: \[3/60\] Compiling a\.c\.t\x1b\[K")
    fifo.write_text("\n")
    assert t.end() == 0
    assert re.search(r"\r\x1b\[Kafter 7\r\n\r  runs 1:40: 2 of 4, about 1:40 left: a\x1b\[K\r\x1b\[K$", t.text), t.text


def test_python_shows_a_line_now_and_then_elsewhere(tmp_path):
    fifo, log, script = python_pieces(tmp_path)
    p = subprocess.Popen(["bash", "-c", script, "bash", fifo, log], cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(2):
        assert re.fullmatch(r"  building 0:\d\d: \[3/60\] Compiling a\.c\.that\.has\.a\.name\.beyond\.the\.edge\.of\.the\.terminal\n", p.stderr.readline())
    fifo.write_text("\n")
    out, err = p.communicate(timeout=20)
    assert out == "after 7\n" and err.splitlines()[-1] == "  runs 1:40: 2 of 4, about 1:40 left: at home", err
