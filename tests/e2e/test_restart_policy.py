# SPDX-License-Identifier: Apache-2.0
"""Failures that come again end the job, failures that no restart can mend are final, and the verdict quotes the last exception. With real Python."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from harness import HOST

PYTHON = ["--", sys.executable, "-u", "train.py"]
REPEATED = r"not restarted, since the same failure has come again 2 times without progress \(--repeat-limit 2\)"


def write(rdzv, text):
    (rdzv.tmp / "train.py").write_text("import os, signal, sys, threading, time\nround = int(os.environ['RDZV_ROUND'])\nrank = int(os.environ['RANK'])\n" + text)


def lines(a, pattern):
    return [l for l in a.err if re.search(pattern, l)]


def rounds(a):
    return len(lines(a, r"^rdzv-agent: round \d+:"))


# ------------------------------------------------------------------- repeats


def test_a_deterministic_crash_ends_the_job(rdzv):
    """The numbers of the message differ each time, and so does the rank."""
    write(rdzv, "if rank == round % 2: raise ValueError(f'boom in {os.getpid()} at {hex(id(rank))} of /tmp/tmp{os.getpid()}_x/a')\ntime.sleep(60)")
    a = rdzv.agent("--standalone", "--nproc", 2, "--verdict-file", "v.json", *PYTHON)
    assert a.exit() == 1 and rounds(a) == 3, a
    assert lines(a, rf"failed in round 3: rank 1 .*: ValueError: boom in .*; 2 of 3 restarts used; {REPEATED}; exit code 1$"), a
    assert len(lines(a, r"restart 2 of 3; the same failure has come again without progress, repeat 1 of 2 \(--repeat-limit\)")) == 1, a
    assert json.loads((rdzv.tmp / "v.json").read_text())["repeats"] == 2


# --------------------------------------------------------------------- final

FINAL = [
    ("syntax", "def (:\n", PYTHON, 1, r", a syntax error that a restart would repeat: SyntaxError: invalid syntax"),
    ("indent", "  x = 1\n y = 2\n", PYTHON, 1, r", a syntax error that a restart would repeat: IndentationError: "),
    ("tab", "if 1:\n\tx = 1\n        y = 2\n", PYTHON, 1, r", a syntax error that a restart would repeat: TabError: "),
    ("import", "import no_such_module\n", PYTHON, 1, r", a failed import that a restart would repeat: ModuleNotFoundError: No module named 'no_such_module'"),
    ("name", "from os import no_such_name\n", PYTHON, 1, r", a failed import that a restart would repeat: ImportError: cannot import name 'no_such_name'"),
    ("module", "", ["-m", "no_such_module"], 1, r", a missing script or module that a restart would repeat: .*: No module named no_such_module"),
    ("script", "", ["--", sys.executable, "no_such.py"], 2, r", a missing script or module that a restart would repeat: .*can't open file '.*no_such.py'"),
    ("shell", "", ["--", "sh", "-c", "no_such_command"], 127, r", an unusable command that a restart would repeat: .*no_such_command: not found"),
    ("denied", "", ["--", "sh", "-c", "./train.py"], 126, r", an unusable command that a restart would repeat: .*[Pp]ermission denied"),
]


@pytest.mark.parametrize("text, words, code, sentence", [f[1:] for f in FINAL], ids=[f[0] for f in FINAL])
def test_final(rdzv, text, words, code, sentence):
    (rdzv.tmp / "train.py").write_text(text)
    a = rdzv.agent("--standalone", "--nproc", 2, *words)
    assert a.exit() == code and rounds(a) == 1, a
    assert lines(a, rf"failed in round 1: rank \d .*exited with code {code}{sentence}.*; 0 of 3 restarts used; exit code {code}$"), a


@pytest.mark.parametrize("shim", ['exec -a python3 "$E2E_ENV/bin/python3" "$@"', '"$E2E_ENV/bin/python3" "$@"; exit $?'], ids=["exec", "child"])
def test_a_failed_import_names_the_python_that_ran(rdzv, shim):
    """python3 in PATH is a script of bash that runs a Python of its own choice, as pyenv's shims do; here that of a virtual environment."""
    env, shims, real = rdzv.tmp / "env", rdzv.tmp / "shims", Path(sys.executable).resolve()
    for folder in (env / "bin", shims):
        folder.mkdir(parents=True)
    (env / "bin/python3").symlink_to(real)
    (shims / "python3").write_text(f'#!/usr/bin/env bash\nexport PATH=$E2E_ENV/bin:$PATH\n{shim}\n')
    (shims / "python3").chmod(0o755)
    # A large program takes its time to end, too.
    (rdzv.tmp / "train.py").write_text("import atexit, time\natexit.register(time.sleep, 1)\nimport no_such_module\n")
    a = rdzv.agent("--standalone", "--max-restarts", 0, "train.py", env={"PATH": f"{shims}:{os.environ['PATH']}", "E2E_ENV": str(env)})
    assert a.exit() == 1, a
    assert lines(a, rf"^rdzv-agent:   it ran under {re.escape(str(env))}/bin/python3 \({re.escape(real.name)}\): install the module there, "), a
    assert not a.says("ran under .*bash"), a


def test_a_failed_import_is_not_final_later(rdzv):
    """The first round has shown that the modules are there: this is another fault, of a file server perhaps."""
    write(rdzv, "if round == 1: raise ValueError('boom')\nif round == 2: import no_such_module")
    a = rdzv.agent("--standalone", *PYTHON)
    assert a.exit(60) == 0 and rounds(a) == 3 and not a.says("would repeat"), a


def test_an_error_file_says_that_a_failure_is_final(rdzv):
    """In any round."""
    write(rdzv, """if round == 1: raise ValueError('boom')
import json
with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as f: json.dump({'message': {'message': 'bad data', 'extraInfo': {'final': True}}}, f)
sys.exit(9)""")
    a = rdzv.agent("--standalone", *PYTHON)
    assert a.exit() == 9 and rounds(a) == 2, a
    assert a.says(r"failed in round 2: .* exited with code 9, a final failure by its own account: bad data; 1 of 3 restarts used; exit code 9$"), a


def test_a_caught_import_is_not_final(rdzv):
    write(rdzv, "try: import no_such_module\nexcept ImportError: raise RuntimeError('no backend')")
    a = rdzv.agent("--standalone", "--max-restarts", 1, *PYTHON)
    assert a.exit(60) == 1 and rounds(a) == 2 and a.says("exited with code 1: RuntimeError: no backend; 1 of 1"), a


# ------------------------------------------------------------ the last exception

SAYS = [
    ("chained", "try: {}['a']\nexcept KeyError: raise ValueError('boom')", "ValueError: boom"),
    ("cause", "try: {}['a']\nexcept KeyError as e: raise ValueError('boom') from e", "ValueError: boom"),
    ("lines", "raise RuntimeError('first\\nsecond\\nthird')", "RuntimeError: first"),
    ("group", "raise ExceptionGroup('many', [ValueError('a'), TypeError('b')])", r"ExceptionGroup: many \(2 sub-exceptions\)"),
    ("thread", "def f(): raise OSError('theirs')\nt = threading.Thread(target=f); t.start(); t.join()\nraise ValueError('boom')", "ValueError: boom"),
    ("late", "class X:\n  def __del__(self): raise OSError('late')\nx = X()\nraise ValueError('boom')", "ValueError: boom"),
    ("other", "import atexit\natexit.register(lambda: print('bye: all', file=sys.stderr))\nraise ValueError('boom')", "ValueError: boom"),
    ("escaped", "raise ValueError('a\\x1b[31mb\\x07\\u202e')", r"ValueError: ab\\x07\\u202e"),
    ("long", "raise ValueError('x' * 5000)", r"x{300,}\.\.\."),
    ("empty", "raise KeyboardInterrupt", None),
    ("words", "sys.exit('no data in /data')", "no data in /data"),
    ("silent", "os._exit(1)", None),
]


@pytest.mark.parametrize("text, says", [s[1:] for s in SAYS], ids=[s[0] for s in SAYS])
def test_the_verdict_quotes_the_last_exception(rdzv, text, says):
    if "ExceptionGroup" in text and sys.version_info < (3, 11):
        pytest.skip("not on this machine: exception groups came with Python 3.11")
    write(rdzv, text)
    a = rdzv.agent("--standalone", "--max-restarts", 0, *PYTHON)
    assert a.exit() in (1, 130) and "\x1b" not in "\n".join(l for l in a.err if l.startswith("rdzv-agent")), a
    if says:
        assert lines(a, rf"^rdzv-agent: rank 0 \(local 0\) on {HOST}, pid \d+, exited with code 1: {says}$"), a
    else:
        assert lines(a, rf"^rdzv-agent: rank 0 \(local 0\) on {HOST}, pid \d+, (exited with code 1|was killed by SIGINT \(signal 2\))$"), a


def test_of_a_program_in_c(rdzv):
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", "echo step 3 >&2; echo cannot go on >&2; exit 7")
    assert a.exit() == 7 and lines(a, r"pid \d+, exited with code 7: cannot go on$"), a


def test_a_traceback_is_shown_once(rdzv):
    """Where the worker has printed it to this terminal; and below the verdict where it has not."""
    write(rdzv, "if rank == 1: raise ValueError('boom')\ntime.sleep(60)")
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, *PYTHON)
    assert a.exit() == 1 and len(lines(a, "Traceback")) == 1 and len(lines(a, r"^\[1\] Traceback")) == 1, a
    for hidden in (["-r", 3], ["--local-ranks-filter", 0]):
        a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, *hidden, *PYTHON)
        assert a.exit() == 1 and len(lines(a, "Traceback")) == 1 and lines(a, r"^rdzv-agent:   \| Traceback"), a


def test_a_node_that_does_not_show_it(rdzv):
    """The other node's terminal has not seen the traceback."""
    write(rdzv, "if rank == 1: raise ValueError('boom')\ntime.sleep(60)")
    agents = rdzv.agents(2, rdzv.daemon().endpoint, "--nnodes", 2, "--max-restarts", 0, *PYTHON)
    assert [a.exit() for a in agents] == [1, 1], rdzv
    for a in agents:
        assert len(lines(a, "Traceback")) == 1, rdzv
    assert sorted(bool(lines(a, r"^rdzv-agent:   \| Traceback")) for a in agents) == [False, True], rdzv
