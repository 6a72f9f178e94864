"""What torchrun's users type, run for real: scripts, modules, ${local_rank}, PET_ variables, notes, --local-addr by name."""

import shlex
import sys

import pytest

from harness import free_port

SHOW = """import os, sys
print(os.environ["RANK"], __name__, sys.argv, flush=True)
"""


@pytest.fixture
def script(rdzv):
    (rdzv.tmp / "pkg").mkdir()
    for name in ("show.py", "pkg/__init__.py", "pkg/show.py"):
        (rdzv.tmp / name).write_text("" if "__init__" in name else SHOW)


def shown(p, code=0):
    assert p.exit() == code, p
    return sorted(line.split("] ", 1)[-1] for line in p.out)


@pytest.mark.parametrize("words, argv0", [
    (["show.py"], "show.py"),
    (["--run-path", "pkg/show.py"], "pkg/show.py"),
    (["-m", "pkg.show"], None),
])
def test_python_runs_it(rdzv, script, words, argv0):
    got = shown(rdzv.agent("--nproc_per_node=2", *words, "a b", "--rank=${local_rank}", "$0"))
    assert len(got) == 2
    for rank, line in enumerate(got):
        number, name, argv = line.split(" ", 2)
        assert number == str(rank) and name == "__main__"
        assert eval(argv)[1:] == ["a b", f"--rank={rank}", "$0"]
        assert eval(argv)[0] == (argv0 or str(rdzv.tmp / "pkg/show.py"))


def test_python_exec(rdzv, script):
    """Another interpreter: one that says its name."""
    other = rdzv.tmp / "python-of-ours"
    other.write_text(f'#!/bin/sh\necho "ours $1 $2"\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    got = shown(rdzv.agent("show.py", env={"PYTHON_EXEC": str(other)}))
    assert got == ["0 __main__ ['show.py']", "ours -u show.py"]


def test_no_python(rdzv):
    program = rdzv.tmp / "program.py"
    program.write_text('#!/bin/sh\necho "shell $1"\n')
    program.chmod(0o755)
    assert shown(rdzv.agent("--no-python", "./program.py", "x")) == ["shell x"]


def test_python_that_is_not_there(rdzv, script):
    for env, name in (({"PATH": "/nowhere"}, "python3"), ({"PYTHON_EXEC": "/no/python"}, "/no/python")):
        a = rdzv.agent("show.py", env=env)
        assert a.exit() == 127 and len(a.err) == 1, a
        assert f"{name}: command not found" in a.err[0] and "show.py needs Python" in a.err[0] and "PYTHON_EXEC" in a.err[0]


def test_script_without_the_bit(rdzv):
    (rdzv.tmp / "train").write_text("print(1)\n")
    a = rdzv.agent("./train")
    assert a.exit() == 126 and len(a.err) == 1, a
    assert "./train cannot be run" in a.err[0] and "chmod +x" in a.err[0] and "python3 -u ./train" in a.err[0]
    many = rdzv.agent("--endpoint", rdzv.daemon().endpoint, "--max-restarts", 0, "./train")
    assert many.exit() == 126 and "python3 -u ./train" in many.err[0] and "could not be started" in many.err[-1], many


def test_variables(rdzv, script):
    env = {"PET_NPROC_PER_NODE": "2", "PET_MODULE": "1", "PET_STANDALONE": "1", "PET_SOMETHING_ELSE": "x"}
    assert len(shown(rdzv.agent("pkg.show", env=env))) == 2
    bad = rdzv.agent("pkg.show", env={**env, "PET_NPROC_PER_NODE": "two"})
    assert bad.exit() == 64 and "PET_NPROC_PER_NODE=two" in bad.text


def test_notes_are_told_once(rdzv):
    words = ["--standalone", "--rdzv-endpoint", "node9:1", "--monitor-interval", "5", "--rdzv-conf", "close_timeout=3,wrong=1", "true"]
    a = rdzv.agent(*words)
    assert a.exit() == 0, a
    for note in ("--rdzv-endpoint has no effect", "--monitor-interval has no effect", "--rdzv-conf close_timeout", "--rdzv-conf wrong is not known"):
        assert len([line for line in a.err if note in line]) == 1, a
    assert rdzv.agent("--quiet", *words).exit() == 0
    assert not rdzv.procs[-1].err


def test_two_nodes_by_master_addr(rdzv, script):
    """The line of a batch script, with nothing but its first word changed."""
    line = f"--nnodes=2 --nproc_per_node=2 --master_addr=127.0.0.1 --master_port={free_port()} --node_rank=%d show.py"
    agents = [rdzv.agent(*shlex.split(line % rank)) for rank in (1, 0)]
    ranks = [[int(x[0]) for x in shown(a)] for a in agents]
    assert ranks == [[2, 3], [0, 1]], rdzv


def test_is_host(rdzv):
    """is_host=0: this agent starts no daemon, though the endpoint is its own machine."""
    point = f"127.0.0.1:{free_port()}"
    a = rdzv.agent("--rdzv-endpoint", point, "--rdzv-conf", "is_host=0", "--join-timeout", "1s", "true")
    assert a.exit() == 69 and not rdzv.daemons(), a
    assert rdzv.agent("--rdzv-endpoint", point, "--rdzv-conf", "is_host=1", "true").exit() == 0, rdzv
    rdzv.gone(3)


def test_local_addr_by_name(rdzv, lan):
    """A name of this node that others can reach; and one that nobody knows."""
    job = ["--endpoint", "10.99.0.1:29400", "--nnodes", 2, "--", "sh", "-c", "echo head $RDZV_HEAD_ADDR"]
    agents = [rdzv.agent("--local-addr", name, "--node-rank", rank, *job, wrap=lan[rank ^ 1], node=name)
              for rank, name in enumerate(("node2", "10.99.0.1"))]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert {line.split("] ")[-1] for a in agents for line in a.out} == {"head 10.99.0.2"}, rdzv
    a = rdzv.agent("--local-addr", "no-such-host.invalid", "--standalone", "true", wrap=lan[0])
    assert a.exit(20) == 64 and len(a.err) == 1 and "no-such-host.invalid" in a.text and "--local-addr" in a.text, a
    rdzv.gone(3)
