# SPDX-License-Identifier: Apache-2.0
"""deploy/quickstart: what it promises, that it leaves nothing behind, and that the guide shows what it prints.

    python3 tests/e2e/test_quickstart.py      runs it, and writes what it prints into the guide
"""

import ctypes
import difflib
import os
import re
import subprocess
import sys

import pages
import pytest

from harness import BUILD, HOST, SANITIZED, TOP, until

QUICKSTART = TOP / "deploy/quickstart"
SHOWN = TOP / "deploy/guide/failures-and-elastic.md"
PART = re.compile(r"(<!-- begin quickstart, products by OpenBLAS for )(\w+)( -->\n```\n)(.*?)(```\n<!-- end quickstart -->)", re.S)
# What differs from run to run, and what is left of it.
VARIES = [
    (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r"kill -KILL \d+ +#", "kill -KILL PID #"),
    (r"at step \d+", "at step N"),
    (r"pid \d+,", "pid PID,"),
    (r"after step \d+ of", "after step N of"),
    (r"at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "at TIME"),
    (r"resumed from /\S+/run/checkpoints/\d+-\w+-\w+-r000001-s\d{12} ", "resumed from CHECKPOINT "),
    (r"[\d,]+ samples/s", "N samples/s"),
    (r"job quickstart-\d+ is done: 2 rounds, 1 restart, [\d.]+ s", "job quickstart-PID is done: 2 rounds, 1 restart, N s"),
    (r"speed +[\d,]+ steps/s", "speed N steps/s"),
    (r"time lost +[\d.]+ s: \d+ ms from the kill to the next step, the rest for \d+ steps? done again",
     "time lost N s: N ms from the kill to the next step, the rest for N steps done again"),
]
# Lines of which there are as many as the machine has time for.
SOME = [r"\[0\] rdzv-trainer: step \d+ of 3140, epoch \d+, loss [\d.]+, \d+ steps/s, \d+ samples/s"]
# Lines that there may be: of as many ranks as notice before they are stopped, and where a machine takes longer than 10 s, or a second until both nodes are here.
MAYBE = [r"\[[01]\] rdzv-trainer: lost contact with rank 3: its connection closed \(seen by rank \d\); usually an echo of another failure",
         r"rdzv-agent: useful \d+ % of \d+ s.*", r"rdzv-agent: 1 of 2 nodes is here .*"]


def quickstart(rdzv, *args):
    (rdzv.tmp / "t").mkdir()
    return rdzv.spawn(QUICKSTART, *args, env={"RDZV_BUILD": str(BUILD), "TMPDIR": str(rdzv.tmp / "t")})


def blas():
    """For which processor OpenBLAS multiplies here: each kind has sums in an order of its own, and so bytes of its own."""
    lib = ctypes.CDLL("libopenblas.so.0")
    lib.openblas_get_corename.restype = ctypes.c_char_p
    return lib.openblas_get_corename().decode()


def told(text, numbers):
    """The lines without what varies; numbers: those that a sum leads to are compared, too."""
    lines = [line.rstrip() for line in text.strip().replace(f" {HOST} ", " node1 ").replace(f" {HOST},", " node1,").split("\n")]
    for some in SOME:
        assert any(re.fullmatch(some, line) for line in lines), (some, text)
    lines = [line for line in lines if not any(re.fullmatch(some, line) for some in SOME + MAYBE)]
    for pattern, word in VARIES + ([] if numbers else [(r"loss [\d.,]+", "loss N"), (r"[\d.,]+ over the last", "N over the last"),
                                                        (r"checksum( +)[0-9a-f]+", r"checksum\1X"), (r"undisturbed  [0-9a-f]+", "undisturbed X")]):
        lines = [re.sub(pattern, word, line) for line in lines]
    return lines


def nothing_left(rdzv):
    rdzv.gone()
    assert os.listdir(rdzv.tmp / "t") == []


def test_a_worker_is_killed_and_the_result_is_the_same(rdzv):
    q = quickstart(rdzv, "--epochs", 4)
    assert q.exit(120) == 0, q
    assert q.says(r"kill -KILL \d+ .*rank 3") and q.says(r"rank 3 .* killed by SIGKILL"), q
    assert q.says("restart 1 of 3") and q.says(r"resumed from .* at step [1-9]"), q
    assert q.says(r"rounds +2, 1 restart") and q.says("the same, byte for byte"), q
    nothing_left(rdzv)


@pytest.mark.skipif(SANITIZED, reason="the whole run takes minutes under the sanitizers")
def test_the_readme_shows_what_it_prints(rdzv):
    """The command of the README, and its output in the guide but for times, pids and ports. Checksums only where products are made as they were."""
    assert pages.lines("README.md", "quickstart") == ["deploy/quickstart", "tests/run"]
    _, core, _, shown, _ = PART.search(SHOWN.read_text()).groups()
    q = quickstart(rdzv)
    assert q.exit(150) == 0, q
    same = core == blas()
    want, got = told(shown, same), told(q.text, same)
    assert want == got, "\n".join(difflib.unified_diff(want, got, SHOWN.name, "deploy/quickstart", lineterm=""))
    nothing_left(rdzv)


def test_undisturbed(rdzv):
    """On one node with three workers, through --no-kill."""
    q = quickstart(rdzv, "--no-kill", "--nodes", 1, "--nproc", 3, "--steps", 40)
    assert q.exit(60) == 0, q
    assert q.says(r"rounds +1, 0 restarts") and re.search(r"checksum +[0-9a-f]{16}", q.text), q
    nothing_left(rdzv)


def test_ctrl_c(rdzv):
    q = quickstart(rdzv, "--no-kill", "--epochs", 1000)
    until(lambda: f"workers run\n{q}", lambda: len(rdzv.workers()) == 4)
    os.killpg(q.pid, 2)
    assert q.exit(15) == 130, q
    nothing_left(rdzv)


def test_mistakes(rdzv):
    for args, words in ((["--steps", "0"], "--steps 0"), (["--idx", "/nowhere"], "/nowhere"), (["--idx", "/etc/passwd"], "IDX"), (["--what"], "--what")):
        q = rdzv.spawn(QUICKSTART, *args, env={"RDZV_BUILD": str(BUILD), "TMPDIR": str(rdzv.tmp)})
        assert q.exit(10) == 1 and words in q.text and "Traceback" not in q.text, q


if __name__ == "__main__":
    out = subprocess.run([QUICKSTART], env={**os.environ, "RDZV_BUILD": str(BUILD)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    text, n = PART.subn(lambda m: m[1] + blas() + m[3] + out.stdout.strip().replace(f" {HOST} ", " node1 ").replace(f" {HOST},", " node1,") + "\n" + m[5], SHOWN.read_text())
    if n != 1:
        sys.exit(f"{SHOWN} has {n} parts for it")
    SHOWN.write_text(text)
