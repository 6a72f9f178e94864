"""deploy/quickstart, with few epochs: what it promises, and that it leaves nothing behind."""

import os
import re

from harness import BUILD, TOP, until

QUICKSTART = TOP / "deploy/quickstart"


def quickstart(rdzv, *args):
    (rdzv.tmp / "t").mkdir()
    return rdzv.spawn(QUICKSTART, *args, env={"RDZV_BUILD": str(BUILD), "TMPDIR": str(rdzv.tmp / "t")})


def nothing_left(rdzv):
    rdzv.gone(3)
    assert os.listdir(rdzv.tmp / "t") == []


def test_a_worker_is_killed_and_the_result_is_the_same(rdzv):
    q = quickstart(rdzv, "--epochs", 4)
    assert q.exit(120) == 0, q
    assert q.says(r"kill -KILL \d+ .*rank 3") and q.says(r"rank 3 .* killed by SIGKILL"), q
    assert q.says("restart 1 of 3") and q.says(r"resumed from .* at step [1-9]"), q
    assert q.says(r"rounds +2, 1 restart") and q.says("the same, byte for byte"), q
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
