# SPDX-License-Identifier: Apache-2.0
"""The Python module's callbacks inside the real trainers, two workers each: a worker is killed, the job is preempted, a rank hangs. In the end
the losses are those of an undisturbed job, bit by bit."""

import importlib.util
import os
import re
import signal
import sys

import pytest

from conftest import HERE, QUIET
from harness import BUILD, TOP, need, until

STEPS = 30
KINDS = {"huggingface": ("with_trainer.py", "transformers"), "lightning": ("with_lightning.py", "lightning"), "accelerate": ("with_saver.py", "accelerate")}
ENV = dict(QUIET, PYTHON_EXEC=sys.executable, PYTHONPATH=str(TOP / "deploy/python"), RDZV_LIBRARY=str(BUILD / "agent/sdk/librdzv.so.0"),
           HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")


class Job:
    def __init__(self, rdzv, kind, folder):
        self.rdzv, self.folder = rdzv, rdzv.tmp / folder
        self.script = HERE / "scripts" / KINDS[kind][0]
        self.folder.mkdir()

    def start(self, *options, **env):
        return self.rdzv.agent("--standalone", "--nproc", 2, *options, self.script, self.folder, STEPS, env=dict(ENV, **env))

    def losses(self):
        """(step, loss) as rank 0 has trained them, from round to round."""
        path = self.folder / "losses"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(int(step), loss) for step, loss in (line.split() for line in lines if line.endswith(tuple("0123456789")))]

    def until_step(self, agent, step, behind=0):
        until(lambda: f"step {step} is trained\n{agent}", lambda: any(s >= step for s, _ in self.losses()[behind:]), 60)


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_preempted(rdzv, kind):
    need(KINDS[kind][1], importlib.util.find_spec(KINDS[kind][1]))
    straight = Job(rdzv, kind, "straight")
    assert straight.start().exit(90) == 0, rdzv
    want = straight.losses()
    assert [s for s, _ in want] == list(range(1, STEPS + 1))

    # A worker is killed: the next round begins behind the last checkpoint, which is written every five steps.
    job = Job(rdzv, kind, "disturbed")
    first = job.start(PAUSE="0.1")
    job.until_step(first, 8)
    os.kill(rdzv.workers()[1], signal.SIGKILL)
    first.expect(rf"rank 1 .* was killed by SIGKILL \(signal 9\), after step \d+ of {STEPS}")
    trained = len(job.losses())
    job.until_step(first, 12, trained)
    assert job.losses()[trained][0] == 6 or job.losses()[trained - 1][0] >= 10, rdzv
    # The job is preempted: all ranks write a checkpoint behind the same step, and no step is trained behind it.
    first.kill(signal.SIGTERM)
    assert first.exit(30) == 75, first
    assert first.says("workers are asked for a checkpoint first"), first
    (asked,) = {int(m) for m in re.findall(r"a checkpoint was written after step (\d+)", first.text)}
    assert job.losses()[-1][0] == asked, first
    behind = first.text[first.text.index("leaving with exit code 75") :]
    assert not re.search("Traceback|was killed|has not written", behind), first
    # The same command goes on behind it.
    trained = len(job.losses())
    last = job.start()
    assert last.exit(90) == 0 and last.says(f"trained {STEPS}"), last
    assert job.losses()[trained][0] == asked + 1, rdzv
    assert dict(job.losses()) == dict(want), rdzv
    rdzv.gone()


def test_a_hang_is_found_by_its_step(rdzv):
    need("transformers", importlib.util.find_spec("transformers"))
    job = Job(rdzv, "huggingface", "hangs")
    a = job.start("--max-restarts", 0, "--hang-timeout", "3s", "--hang-start-timeout", "60s", "--hang-stacks", "never", HANG="1 7", PAUSE="0.1")
    a.expect(rf"rank 1 \(local 1\) .* made no progress for \S+ s, after step 6 of {STEPS}: .* rank 0 .* step 7", 90)
    assert a.exit(30) == 67, a
