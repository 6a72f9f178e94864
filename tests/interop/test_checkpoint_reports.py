# SPDX-License-Identifier: Apache-2.0
"""Workers report their checkpoints to the agent: the step at which a round resumed, and each wait for a save."""

import importlib.util
import sys

import pytest

from conftest import HERE, QUIET
import pages
from harness import BUILD, SANITIZED, TOP, need
from trainer_world import SMALL, Run

MODULE = {"PYTHONPATH": str(TOP / "deploy/python"), "RDZV_LIBRARY": str(BUILD / "agent/sdk/librdzv.so.0"), "PYTHONDONTWRITEBYTECODE": "1"}
in_python = pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitized librdzv")


def test_the_agent_learns_of_checkpoints(tmp_path):
    """All ranks wait at the end; rank 0 also copies its state. Each names the step that it resumed at."""
    args = SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10]
    for at, to in (0, 40), (40, 60):
        with Run([*args, "--steps", to], 2) as run:
            codes, _, errs = run.wait()
            assert codes == [0, 0], errs
            run.agent.wait_done()
            assert run.agent.resumed == {0: [at], 1: [at]}
            on_off = run.agent.saving
            assert on_off[1] == [1, 0]
            assert on_off[0] == [1, 0] * (len(on_off[0]) // 2) and len(on_off[0]) >= 2


# ---- the Python module ----------------------------------------------------------------------------------------------


@in_python
def test_the_python_page(rdzv):
    (block,) = [b for b in pages.blocks("deploy/guide/python.md") if b.comment == "python: saving"]
    (rdzv.tmp / "train.py").write_text(block.text)
    (command,) = pages.lines("deploy/guide/python.md", "saving")
    a = pages.shell(rdzv, command, env={**MODULE, "PYTHON_EXEC": sys.executable})
    assert a.exit(60) == 0, a


# ---- the callbacks --------------------------------------------------------------------------------------------------

KINDS = {"huggingface": ("with_trainer.py", "transformers"), "lightning": ("with_lightning.py", "lightning"), "accelerate": ("with_saver.py", "accelerate")}


@in_python
@pytest.mark.parametrize("kind", KINDS)
def test_what_callbacks_report(tmp_path, kind):
    """A checkpoint every five steps, each of which training waits for. The second run resumes at the last one."""
    script, package = KINDS[kind]
    need(package, importlib.util.find_spec(package))
    import trainer_world as world
    env = dict(QUIET, **MODULE, HF_HUB_OFFLINE="1", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    for begin, end in (0, 10), (10, 20):
        argument = end // 2 if kind == "accelerate" else end  # its data is for two ranks
        with pytest.MonkeyPatch.context() as patch:
            real = world.subprocess.Popen
            patch.setattr(world.subprocess, "Popen", lambda argv, **kw: real([sys.executable, str(HERE / "scripts" / script), str(tmp_path), str(argument)], **kw))
            with Run([], 1, env=env) as run:
                codes, _, errs = run.wait(120)
                assert codes == [0], errs
                assert run.agent.resumed == {0: [begin]}
                assert run.agent.saving == {0: [1, 0] * 2}
                assert run.agent.saved == {0: [begin + 5, begin + 10]}
