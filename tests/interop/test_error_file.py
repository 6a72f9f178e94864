# SPDX-License-Identifier: Apache-2.0
"""Error files, with PyTorch's own @record on one side or its own torchrun on the other."""

import json
import re
import time

from conftest import EVERY_PYTORCH, HERE, QUIET
from harness import AGENT, HOST

pytestmark = EVERY_PYTORCH
RECORD = HERE / "scripts/with_record.py"  # rank 1 fails, and says so in the file alone
TORCHRUN = ["-m", "torch.distributed.run"]
MESSAGE = "ValueError: the learning rate is a banana"


def env(rdzv, pytorch):
    (rdzv.tmp / "T").mkdir(exist_ok=True)
    return dict(QUIET, TMPDIR=str(rdzv.tmp / "T"), PYTHON_EXEC=pytorch)


def test_what_record_writes(pytorch, rdzv):
    """The sentence, the call stack as the worker's last lines, and the file, which stays."""
    began = int(time.time())
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, RECORD, env=env(rdzv, pytorch))
    assert a.exit(60) == 1, a
    assert a.says(rf"rank 1 \(local 1\) on {HOST}, pid \d+, exited with code 1: {MESSAGE}\n"), a
    assert a.says(r"  \| Traceback \(most recent call last\)") and a.says(r"  \|     raise ValueError"), a
    at, file = re.search(r"  at (\S+ \S+), error file (\S+)", a.text).groups()
    assert began <= time.mktime(time.strptime(at, "%Y-%m-%d %H:%M:%S")) <= time.time()
    with open(file) as f:
        got = json.load(f)["message"]
    assert got["message"] == MESSAGE and abs(int(got["extraInfo"]["timestamp"]) - began) < 60


def test_we_say_no_less_than_torchrun(pytorch, rdzv):
    """What its block of the same failure has is in our lines too, and they are fewer."""
    theirs = rdzv.spawn(pytorch, *TORCHRUN, "--standalone", "--nproc-per-node", 2, RECORD, env=env(rdzv, pytorch))
    ours = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, RECORD, env=env(rdzv, pytorch))
    assert theirs.exit(60) == 1 and ours.exit(60) == 1, rdzv
    block = theirs.text[theirs.text.index("Root Cause"):]
    assert re.search(r"rank +: 1 \(local_rank: 1\)", block) and re.search(r"exitcode +: 1 \(pid: \d+\)", block), theirs
    told = "\n".join(ours.err)
    assert re.search(r"host +: \S+", block) and HOST in told
    for field in (r"\d\d\d\d-\d\d-\d\d.\d\d:\d\d:\d\d", r"error.file.*/attempt_0/1/error\.json", MESSAGE, "in main", "Traceback"):
        assert re.search(field, block, re.I) and re.search(field, told, re.I), f"{field}\n{rdzv}"
    assert re.search(r"rank 1 \(local 1\) .* pid \d+, exited with code 1", told), ours
    assert len(ours.err) < len(theirs.text[theirs.text.index("FAILED") - 70:].splitlines()), rdzv


def test_torchrun_quotes_what_we_hand_up(pytorch, rdzv):
    """rdzv-agent as torchrun's worker: its block has the root cause of ours, with the exit code."""
    p = rdzv.spawn(pytorch, *TORCHRUN, "--standalone", "--log-dir", "logs", "--no-python", AGENT, "--standalone", "--nproc-per-node", 2, "--max-restarts", 0,
                   pytorch, "-u", RECORD, env=env(rdzv, pytorch))
    assert p.exit(60) == 1, p
    block = p.text[p.text.index("Root Cause"):]
    assert MESSAGE in block and "in main" in block, p
    (file,) = (rdzv.tmp / "logs").rglob("error.json")
    assert json.loads(file.read_text())["message"]["errorCode"] == 1


def test_torchrun_quotes_a_verdict(pytorch, rdzv):
    """No worker wrote a file: the sentence is handed up."""
    p = rdzv.spawn(pytorch, *TORCHRUN, "--standalone", "--no-python", AGENT, "--standalone", "--max-restarts", 0, "sh", "-c", "echo my last words >&2; exit 9",
                   env=env(rdzv, pytorch))
    assert p.exit(60) == 1, p
    block = p.text[p.text.index("Root Cause"):]
    assert re.search(r"traceback : rank 0 \(local 0\) on .* exited with code 9: my last words\n +my last words", block), p
