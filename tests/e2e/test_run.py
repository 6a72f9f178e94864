# SPDX-License-Identifier: Apache-2.0
"""A job that goes well: what workers get, what becomes of their output, what the agent costs."""

import re

import pytest

from harness import BUILD, SANITIZED, free_port, status, until

# Workers wait for a file, so that a test decides when a job ends.
WAIT = "while [ ! -e go ]; do sleep 0.02; done"


def test_worker_environment(rdzv):
    """Two agents with two workers: each worker finds its place in the world, under the names that PyTorch knows."""
    d = rdzv.daemon()
    script = "env > env.$RANK"
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--nproc", 2, "--rdzv-id", "family", "--", "sh", "-c", script)
    assert [a.exit() for a in agents] == [0, 0], rdzv
    worlds = [dict(l.split("=", 1) for l in (rdzv.tmp / f"env.{r}").read_text().splitlines() if "=" in l) for r in range(4)]
    assert len({w["RDZV_AGENT_SOCKET"] for w in worlds}) == 2
    for rank, w in enumerate(worlds):
        node, local = divmod(rank, 2)
        want = {
            "RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": 2, "NODE_RANK": node, "RDZV_ROUND": 1, "RDZV_RESTART_COUNT": 0, "RDZV_RUN_ID": "family",
            "RDZV_HEAD_ADDR": "127.0.0.1",
        }
        assert {k: w.get(k) for k in want} == {k: str(v) for k, v in want.items()}
        assert w["RDZV_AGENT_SOCKET"]
    rdzv.gone(E2E_NODE="0")
    rdzv.gone(E2E_NODE="1")


def test_agent_brings_the_daemon(rdzv):
    """Nobody listens at an address of this machine: an agent starts rdzvd there, and it goes when the job is over."""
    agents = rdzv.agents(2, f"127.0.0.1:{free_port()}", "--nnodes", 2, "--", "sh", "-c", "echo I am $RANK of $WORLD_SIZE")
    assert [a.exit() for a in agents] == [0, 0], rdzv
    said = "\n".join(a.text for a in agents)
    assert "I am 0 of 2" in said and "I am 1 of 2" in said
    rdzv.gone()


def test_output_in_whole_lines(rdzv):
    """Four workers write as fast as they can, in pieces that end within lines: no line is torn, lost, or without its prefix."""
    n = 3000
    script = (
        "import os, sys\n"
        "r = os.environ['RANK']\n"
        f"text = ''.join(f'rank {{r}} line {{i:05}} ' + 'x' * (i % 90) + ' end\\n' for i in range({n})).encode()\n"
        "for at in range(0, len(text), 777): os.write(1 + int(r) % 2, text[at:at + 777])\n"
    )
    (rdzv.tmp / "w.py").write_text(script)
    import sys

    a = rdzv.agent("--standalone", "--nproc", 4, "--", sys.executable, "-SE", "w.py")
    assert a.exit(60) == 0, a
    seen = {r: [] for r in "0123"}
    for text in a.out + [l for l in a.err if "line" in l]:
        m = re.fullmatch(r"\[(\d)\] rank (\d) line (\d{5}) (x*) end", text)
        assert m and m[1] == m[2], f"torn or mixed: {text!r}"
        seen[m[1]].append(int(m[3]))
    assert all(lines == list(range(n)) for lines in seen.values())


def test_several_jobs_on_one_daemon(rdzv):
    d = rdzv.daemon()
    jobs = {}
    for job in "abc":
        jobs[job] = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--rdzv-id", job, "--", "sh", "-c", "echo $RDZV_RUN_ID $RANK/$WORLD_SIZE")
    for job, agents in jobs.items():
        assert [a.exit() for a in agents] == [0, 0], rdzv
        assert sorted(re.sub(r"^\[\d\] ", "", l) for a in agents for l in a.out) == [f"{job} 0/2", f"{job} 1/2"]


def test_one_agent_too_many_waits_as_a_spare(rdzv):
    """A third agent of a job of two is no error: it takes the place of one that is lost."""
    d = rdzv.daemon()
    job = ["--nnodes", 2, "--", "sh", "-c", WAIT]
    first = rdzv.agents(2, d.endpoint, *job)
    rdzv.await_workers(2)
    spare = rdzv.agent("--endpoint", d.endpoint, *job, node="spare")
    spare.expect("spare|not needed")
    assert not rdzv.workers(E2E_NODE="spare")
    first[1].kill()
    until(lambda: f"the spare takes over\n{rdzv}", lambda: rdzv.workers(E2E_NODE="spare") and rdzv.workers(E2E_NODE="0"))
    (rdzv.tmp / "go").touch()
    assert first[0].exit() == 0 and spare.exit() == 0, rdzv


def test_a_hundred_workers(rdzv):
    a = rdzv.agent("--standalone", "--nproc", 100, "--", "sh", "-c", "echo $RANK")
    assert a.exit() == 0, a
    assert sorted(int(l.split("] ")[1]) for l in a.out) == list(range(100))


def test_the_agent_is_small(rdzv):
    if SANITIZED:
        pytest.skip("memory of a sanitized build says nothing")
    a = rdzv.agent("--standalone", "--nproc", 2, "--", "sh", "-c", WAIT)
    rdzv.await_workers(2)
    resident = status(a.pid, "VmRSS")
    rdzv.go(a)
    assert resident < 5 * 1024, f"{resident} kB"


def test_worker_in_c(rdzv):
    """The program in rdzv.h's comment, alone and in a world of three."""
    example = BUILD / "agent/sdk/example"
    alone = rdzv.spawn(example)
    assert alone.exit() == 0, alone
    a = rdzv.agent("--standalone", "--nproc", 3, "--", example)
    assert a.exit() == 0, a


def test_environment_sets_options_and_does_not_leak(rdzv):
    """RDZV_AGENT_NPROC is --nproc; workers do not see the agent's own settings."""
    a = rdzv.agent("--standalone", "--", "sh", "-c", "env | grep ^RDZV_AGENT_ | cut -d= -f1", env={"RDZV_AGENT_NPROC": "2"})
    assert a.exit() == 0, a
    assert sorted(re.sub(r"^\[\d\] ", "", l) for l in a.out) == ["RDZV_AGENT_SOCKET"] * 2


def test_worker_signals_and_descriptors_are_clean(rdzv):
    """A worker starts with default signals and three descriptors, whatever its agent does."""
    script = "ls -1 /proc/self/fd | wc -l; grep -E 'Sig(Blk|Ign)' /proc/self/status"
    a = rdzv.agent("--standalone", "--", "sh", "-c", script)
    assert a.exit() == 0, a
    assert int(a.out[0]) == 4  # 0, 1, 2 and the one that ls opens
    assert [l.split()[1] for l in a.out[1:]] == ["0" * 16] * 2


def test_agent_environment_of_daemon_is_its_own(rdzv):
    """RDZVD_... configures the daemon that the agent starts."""
    a = rdzv.agent("--standalone", "--", "true", env={"RDZVD_NO_SUCH_OPTION": "1"})
    assert a.exit() != 0 and a.says("RDZVD_NO_SUCH_OPTION"), a


