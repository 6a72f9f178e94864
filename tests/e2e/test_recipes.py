# SPDX-License-Identifier: Apache-2.0
"""deploy/guide/recipes.md: each of its commands is typed. gdb is real, and perf where it is allowed. py-spy, nsys, uv, conda and singularity are stand-ins, which
say that they run and run what follows."""

import shutil
import subprocess

import pytest

import pages
from harness import need, until
from terminal import Terminal

PAGE = "deploy/guide/recipes.md"
HELLO = "import os\nprint('rank', os.environ['RANK'], flush=True)\n"


def stand_in(name, skip):
    """Drops so many words, says the rank that it has in its environment, and runs the rest."""
    return f'#!/bin/sh\nshift {skip}\necho "{name} runs ${{RANK:-the agent}}"\nexec "$@"\n'


def put(rdzv, name, text):
    (rdzv.tmp / name).write_text(text)
    (rdzv.tmp / name).chmod(0o755)


def may_record():
    """A container has another kernel than its perf, or may not use it."""
    return bool(shutil.which("perf")) and not subprocess.run(["perf", "record", "-o", "/dev/null", "true"], capture_output=True, timeout=30).returncode


@pytest.mark.parametrize("name,skip", [("py-spy", 4), ("nsys", 3), ("perf", 5)])
def test_one_rank_under_a_profiler(rdzv, name, skip):
    put(rdzv, "train.py", HELLO)
    real = name == "perf" and may_record()
    p = pages.shell(rdzv, pages.block(PAGE, name), more=None if real else {name: stand_in(name, skip)})
    assert p.exit(30) == 0 and p.says("rank 0") and p.says("rank 1"), p
    if real:
        assert (rdzv.tmp / "rank0.data").stat().st_size > 0 and p.says(r"\[ perf record: .*rank0.data"), p
    else:
        assert p.says(f"{name} runs 0") and not p.says(f"{name} runs 1"), p


def test_a_breakpoint(rdzv):
    script = next(b.text for b in pages.blocks(PAGE) if b.lang == "python")
    put(rdzv, "train.py", "import os\nx = 41\n" + script + "print('rank', os.environ['RANK'], 'ends', flush=True)\n")
    t = Terminal(rdzv, ["bash", "-c", pages.block(PAGE, "breakpoint")], env=pages.with_programs(rdzv))
    t.expect(r"\(Pdb\)")
    t.type("x + 1\n")
    t.expect(r"\b42\b")
    t.type("c\n")
    t.expect("rank 0 ends")
    t.expect("is done")


def test_gdb(rdzv):
    need("gdb")
    put(rdzv, "train", '#!/bin/sh\nexec sh -c \'test "$RANK" = 1 || kill -SEGV $$; sleep 30\'\n')
    command = pages.with_changes(pages.block(PAGE, "gdb"), [("./train", "sh ./train")])
    p = pages.shell(rdzv, command)
    assert p.exit(60) != 0 and p.says("received signal SIGSEGV") and p.says(r"#0 .* in "), p


def test_an_environment_for_each_node(rdzv):
    put(rdzv, "train", "#!/bin/sh\necho rank $RANK has $NCCL_SOCKET_IFNAME\n")
    command = pages.with_changes(pages.block(PAGE, "by hand"), [("--nnodes 2 --endpoint node1", "--standalone")])
    p = pages.shell(rdzv, command)
    assert p.exit(30) == 0 and p.says("rank 0 has eth1"), p
    p = pages.shell(rdzv, "echo export NCCL_SOCKET_IFNAME=eth7 >env.$(hostname)\n" + pages.block(PAGE, "file"))
    assert p.exit(30) == 0 and p.says("rank 0 has eth7") and p.says("rank 1 has eth7"), p


@pytest.mark.parametrize("name,skip", [("uv", 1), ("conda", 4)])
def test_uv_and_conda(rdzv, name, skip):
    """As both do, the stand-in puts the environment first in PATH."""
    put(rdzv, "train.py", HELLO)
    (rdzv.tmp / "venv").mkdir()
    put(rdzv, "venv/python3", "#!/bin/sh\necho its own Python\nexec /usr/bin/env -i PATH=/usr/bin:/bin RANK=$RANK python3 \"$@\"\n")
    text = stand_in(name, skip).replace("exec", f"PATH={rdzv.tmp}/venv:$PATH exec")
    p = pages.shell(rdzv, "unset PYTHON_EXEC\n" + pages.block(PAGE, name), more={name: text})
    assert p.exit(30) == 0 and p.says(f"{name} runs the agent") and p.says("its own Python") and p.says("rank 1"), p


def test_singularity(rdzv):
    put(rdzv, "train.py", HELLO)
    p = pages.shell(rdzv, pages.block(PAGE, "singularity"), more={"singularity": stand_in("singularity", 3)})
    assert p.exit(30) == 0 and all(p.says(f"singularity runs {i}") and p.says(f"rank {i}") for i in range(2)), p


def test_a_bound_in_time(rdzv):
    put(rdzv, "train", "#!/bin/sh\necho began\nexec sleep 60\n")
    p = pages.shell(rdzv, pages.with_changes(pages.block(PAGE, "timeout"), [("8h", "2s")]))
    assert p.exit(30) == 124 and p.says("began") and p.says("SIGTERM: leaving with exit code 75"), p


def test_two_jobs_on_a_node(rdzv):
    put(rdzv, "train", "#!/bin/sh\necho $CUDA_VISIBLE_DEVICES\nwhile [ ! -e go ]; do sleep 0.02; done\n")
    env = {"XDG_RUNTIME_DIR": str(rdzv.tmp)}
    p = pages.shell(rdzv, pages.block(PAGE, "two jobs"), env=env)
    p.expect("2,3")
    p.expect("0,1")
    look = lambda: pages.shell(rdzv, pages.block(PAGE, "look"), env=env)

    def both():
        q = look()
        return q.exit(10) == 0 and q.says("first: running") and q.says("second: running")

    until("both jobs are shown", both)
    rdzv.go(p)
