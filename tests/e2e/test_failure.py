# SPDX-License-Identifier: Apache-2.0
"""A worker, an agent, a guard or the daemon dies: the processes that must go, those that must stay, and the lines for the user."""

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import waits
from harness import HOST, SANITIZED, alive, comm, describe, environ, free_port, status, until

# A worker with a grandchild in a session of its own, which no signal to a process group reaches.
HYDRA = "setsid sleep 300 & while [ ! -e go ]; do sleep 0.02; done; kill $!"
WAIT = "while [ ! -e go ]; do sleep 0.02; done"


def parent(pid):
    return status(pid, "PPid")


def test_exit_code_reaches_everybody(rdzv):
    """Rank 3 exits with 7 and no restart is left: every agent exits with 7 and names rank, host and code."""
    d = rdzv.daemon()
    script = 'if [ $RANK = 3 ]; then echo "cannot go on" >&2; exit 7; fi; sleep 300'
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--nproc", 2, "--max-restarts", 0, "--", "sh", "-c", script)
    for a in agents:
        assert a.exit() == 7, rdzv
        said = "\n".join(a.err)
        assert re.search(r"rank 3\b", said) and HOST in said and re.search(r"\b7\b", said), a
        assert "cannot go on" in said, f"the worker's last words are not told:\n{a}"
    rdzv.gone(E2E_NODE="0")
    rdzv.gone(E2E_NODE="1")


def test_restarts_are_counted(rdzv):
    """Every round fails: with --max-restarts 2 there are three, and workers are told how many were charged."""
    d = rdzv.daemon()
    script = "echo round $RDZV_ROUND charged $RDZV_RESTART_COUNT; [ $RANK = 0 ] || exit 9; sleep 300"
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--max-restarts", 2, "--", "sh", "-c", script)
    assert [a.exit(30) for a in agents] == [9, 9], rdzv
    said = {re.sub(r"^\[\d\] ", "", l) for a in agents for l in a.out}
    assert said == {f"round {n + 1} charged {n}" for n in range(3)}


def test_death_by_signal_is_128_and_more(rdzv):
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", "ulimit -c 0; kill -SEGV $$")
    assert a.exit() == 128 + signal.SIGSEGV and a.says("SIGSEGV"), a


def test_core_dumped(rdzv):
    """A worker that may leave a core does, and the verdict says it; the same death where it may not is told without."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
    if not re.fullmatch(r"[\w.%-]+", pattern):
        pytest.skip(f"not on this machine: kernel.core_pattern is {pattern!r}, so a core would not be left in the worker's own folder")
    if os.geteuid() and (SANITIZED or not resource.getrlimit(resource.RLIMIT_CORE)[1]):  # a sanitizer takes its program's limit away
        pytest.skip("not on this machine: nobody but root may leave a core here (ulimit -H -c)")
    (rdzv.tmp / "cores").mkdir()
    script = "cd cores; ulimit -c {limit} && kill -ABRT $$"
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", script.format(limit="unlimited"))
    assert a.exit() == 128 + signal.SIGABRT and a.says(r"was killed by SIGABRT \(signal 6\), core dumped"), a
    assert len(os.listdir(rdzv.tmp / "cores")) == 1
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", script.format(limit=0))
    assert a.exit() == 128 + signal.SIGABRT and a.says("was killed by SIGABRT") and not a.says("core dumped"), a
    assert len(os.listdir(rdzv.tmp / "cores")) == 1


def test_fault_of_a_gpu(rdzv):
    """What ROCm's runtime prints before it aborts is the reason, whatever is printed behind it."""
    fault = "Memory access fault by GPU node-4 (Agent handle: 0x26ff) on address 0x7edbdee00000. Reason: Unknown."
    text = f"echo '{fault}' >&2; echo 'GPU coredump: handler exited' >&2; ulimit -c 0; kill -ABRT $$"
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", text)
    assert a.exit() == 128 + signal.SIGABRT and a.says("was killed by SIGABRT.*: " + re.escape(fault)), a


def test_a_usage_error_is_not_tried_again(rdzv):
    """Neither rdzv-trainer's own, nor what argparse says; the same status without such words is a failure like others."""
    (rdzv.tmp / "train.py").write_text("import argparse; argparse.ArgumentParser().parse_args()")
    for code, words in ((64, ("--", "--no-such-option")), (2, ("train.py", "--no-such-option"))):
        a = rdzv.agent("--standalone", "--nproc", 2, *words)
        assert a.exit() == code and a.says("a usage error that a restart would repeat.*; 0 of 3 restarts used"), a
        assert not a.says("restart 1"), a
    a = rdzv.agent("--standalone", "--max-restarts", 1, "--", "sh", "-c", "exit 2")
    assert a.exit() == 2 and a.says("1 of 1 restarts used"), a


def test_who_had_finished_before(rdzv):
    """A rank that leaves early makes the others fail, and is itself in no verdict."""
    a = rdzv.agent("--standalone", "--nproc", 3, "--max-restarts", 0, "--", "sh", "-c", "[ $RANK = 1 ] && exit 0; sleep 1; exit $((RANK + 3))")
    assert a.exit() in (3, 5) and a.says(r"failed in round 1: .*; before that, rank 1 had finished with code 0; exit code"), a
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--", "sh", "-c", "[ $RANK = 1 ] && exit 3; trap 'exit 0' TERM; sleep 9 & wait")
    assert a.exit() == 3 and not a.says("had finished"), a


def test_healthy_workers_are_asked_before_they_are_killed(rdzv):
    """When another rank fails, a worker gets SIGTERM and its time; what it leaves behind is killed."""
    script = (
        "if [ $RANK = 1 ]; then until [ -e ready ]; do sleep 0.02; done; exit 4; fi; "
        f"setsid sleep 300 & {waits.COMMAND} ready"
    )
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--", "sh", "-c", script)
    assert a.exit() == 4, a
    assert a.says(r"\[0\] got TERM"), a
    rdzv.gone()


def test_a_deaf_worker_is_killed(rdzv):
    script = 'trap "" TERM; [ $RANK = 0 ] || exit 4; while :; do sleep 0.1; done'
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--stop-timeout", "300ms", "--", "sh", "-c", script)
    assert a.exit() == 4, a
    rdzv.gone()


@pytest.mark.parametrize("victim", ["agent", "guard", "all that is called rdzv"])
@pytest.mark.parametrize("node", [0, 1])
def test_killed(rdzv, victim, node):
    """kill -9 of one node's agent, of its guard, or of both at once (`pkill -9 rdzv`): nothing of it survives within a second, not even a
    grandchild in its own session; the other node goes on in a world of its own."""
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", "1:2", "--nproc", 2, "--last-call", "1m", "--", "sh", "-c", HYDRA)
    rdzv.await_workers(4, each=2)
    doomed = rdzv.pids(E2E_NODE=str(node))
    first = [pid for pid in doomed if environ(pid).get("RDZV_ROUND") == "1"]
    guard = {parent(pid) for pid in first} & set(doomed) - set(first)
    assert len(guard) == 1, f"one guard per node: {guard}"
    if victim == "agent":
        os.kill(agents[node].pid, signal.SIGKILL)
    elif victim == "guard":
        os.kill(guard.pop(), signal.SIGKILL)
    else:
        subprocess.run(["kill", "-9", *[str(pid) for pid in doomed if "rdzv" in comm(pid) or "rdzv" in describe(pid)]], check=True)
    until(lambda: f"all of {first} are gone\n{rdzv}", lambda: not any(map(alive, first)))
    if victim != "guard":
        rdzv.gone(E2E_NODE=str(node))
    other = str(1 - node)
    until(lambda: f"the other node re-forms\n{rdzv}",
          lambda: any(environ(p).get("RDZV_ROUND", "1") != "1" for p in rdzv.pids(E2E_NODE=other)), 5)
    if victim != "guard":
        until("it is alone", lambda: {environ(p).get("WORLD_SIZE") for p in rdzv.workers(E2E_NODE=other).values()} == {"2"})
        assert {environ(p)["RDZV_RESTART_COUNT"] for p in rdzv.workers(E2E_NODE=other).values()} == {"0"}
    (rdzv.tmp / "go").touch()
    assert agents[1 - node].exit() == 0, rdzv


def test_the_node_with_the_daemon_is_killed(rdzv):
    """The agent that started rdzvd is killed: the other one still finishes, and in the end the daemon is gone too."""
    endpoint = f"127.0.0.1:{free_port()}"
    agents = [rdzv.agent("--endpoint", endpoint, "--nnodes", "1:2", "--", "sh", "-c", WAIT, node="0")]
    agents[0].expect("1|wait|rdzvd")
    until("rdzvd runs", lambda: len(rdzv.pids(E2E_NODE="0")) >= 3)
    agents.append(rdzv.agent("--endpoint", endpoint, "--nnodes", "1:2", "--", "sh", "-c", WAIT, node="1"))
    rdzv.await_workers(2)
    state = rdzv.state_dirs()
    agents[0].kill()
    until(lambda: f"the other node re-forms\n{rdzv}",
          lambda: {environ(p).get("WORLD_SIZE") for p in rdzv.workers(E2E_NODE="1").values()} == {"1"}, 10)
    assert not rdzv.workers(E2E_NODE="0")
    (rdzv.tmp / "go").touch()
    assert agents[1].exit() == 0, rdzv
    rdzv.gone()
    assert len(state) == 1 and not os.path.exists(state[0])


def test_enough_is_left_or_the_job_waits(rdzv):
    """--nnodes 2 and one is killed: the other stops its workers and waits for a second node; when none comes, it says who is missing."""
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--join-timeout", "2s", "--", "sh", "-c", WAIT)
    rdzv.await_workers(2)
    agents[1].kill()
    until(lambda: f"the survivor's workers stop\n{rdzv}", lambda: not rdzv.workers(), 5)
    assert agents[0].exit() == 73, agents[0]  # nobody came; 78 is a loss that nobody could make good
    assert agents[0].says(r"1 of 2|missing|too few"), agents[0]
    rdzv.gone(E2E_NODE="0")


def test_a_lost_node_is_replaced(rdzv):
    """A node that comes back under the same command takes the lost one's place."""
    d = rdzv.daemon()
    job = ["--nnodes", 2, "--", "sh", "-c", WAIT]
    agents = rdzv.agents(2, d.endpoint, *job)
    rdzv.await_workers(2)
    agents[1].kill()
    until("the survivor's workers stop", lambda: not rdzv.workers(), 5)
    late = rdzv.agent("--endpoint", d.endpoint, *job, node="late")
    workers = rdzv.await_workers(2)
    assert {environ(p)["RDZV_RESTART_COUNT"] for p in workers.values()} == {"0"}
    (rdzv.tmp / "go").touch()
    assert agents[0].exit() == 0 and late.exit() == 0, rdzv


@pytest.mark.parametrize("state", [False, True], ids=["without-state", "with-state"])
def test_daemon_killed_and_started_again(rdzv, state):
    """No worker is restarted: the same pids finish the job, and the agents exit with 0."""
    options = ["--state-dir", rdzv.tmp / "state"] if state else []
    if state:
        (rdzv.tmp / "state").mkdir()
    d = rdzv.daemon(*options)
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--nproc", 2, "--", "sh", "-c", WAIT)
    before = rdzv.await_workers(4)
    d.end()
    again = rdzv.daemon(*options, port=d.port)
    until(lambda: f"the job is known again\n{rdzv}", lambda: again.says("running|recover"), 5)
    for a in agents:
        a.expect("reconnect|again|back", 5)
    assert rdzv.workers() == before
    rdzv.go(*agents)
    assert not any(a.says(r"round 2") for a in agents), rdzv


def test_the_agents_own_daemon_is_killed(rdzv):
    """rdzvd belongs to the agent that started it: that one starts it again, and no worker notices."""
    agents = rdzv.agents(2, f"127.0.0.1:{free_port()}", "--nnodes", 2, "--", "sh", "-c", WAIT)
    before = rdzv.await_workers(2)
    daemons, state = rdzv.daemons(), rdzv.state_dirs()
    assert len(daemons) == 1 and len(state) == 1
    os.kill(daemons[0], signal.SIGKILL)
    until(lambda: f"rdzvd is started again\n{rdzv}",
          lambda: set(rdzv.daemons()) - set(daemons), 5)
    rdzv.go(*agents)
    assert rdzv.workers() == {} and len(before) == 2
    assert not any(a.says("round 2") for a in agents), rdzv
    rdzv.gone()
    assert not os.path.exists(state[0])


def test_sigterm_to_one_agent(rdzv):
    """It stops its workers, says goodbye and exits with 75; the others go on without it, and no restart is charged."""
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", "1:2", "--", "sh", "-c", waits.COMMAND)
    for a in agents:
        a.expect("ready$")
    assert agents[1].end(signal.SIGTERM) == 75, rdzv
    assert agents[1].says("got TERM") and agents[1].says("SIGTERM"), agents[1]
    rdzv.gone(E2E_NODE="1")
    until(lambda: f"the other goes on alone\n{rdzv}",
          lambda: [e["RDZV_RESTART_COUNT"] for p in rdzv.workers().values() if (e := environ(p)).get("WORLD_SIZE") == "1"] == ["0"])
    until(lambda: f"and is ready\n{rdzv}", lambda: sum(line.endswith("ready") for line in agents[0].out) == 2)
    os.kill(rdzv.workers()[0], signal.SIGUSR1)
    assert agents[0].exit() == 0, rdzv


def test_ctrl_c_at_a_terminal(rdzv):
    """Two agents in the foreground group of a terminal: one Ctrl-C ends both with their trees, and the terminal is left in order."""
    port = free_port()
    driver = rdzv.tmp / "driver.py"
    driver.write_text(f"""
import fcntl, os, signal, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, lambda *a: None)
agent = {[str(a) for a in (__import__('harness').AGENT, '--endpoint', f'127.0.0.1:{port}', '--nnodes', 2, '--nproc', 2, '--', 'sh', '-c', HYDRA)]!r}
children = [subprocess.Popen(agent) for i in (0, 1)]
codes = [c.wait() for c in children]
print('codes', *codes, file=open('codes', 'w'))
""")
    master, slave = os.openpty()
    p = subprocess.Popen([sys.executable, "-SE", driver], stdin=slave, stdout=slave, stderr=slave, env=rdzv.env(), cwd=rdzv.tmp, start_new_session=True)
    os.close(slave)
    screen = bytearray()
    os.set_blocking(master, False)

    def drained():
        try:
            while chunk := os.read(master, 65536):
                screen.extend(chunk)
        except (BlockingIOError, OSError):
            pass
        return [len(v) for v in rdzv.leaders().values()] == [2] * 4

    until(lambda: f"eight workers' sessions: {screen.decode(errors='replace')}", drained)
    os.write(master, b"\x03")
    until(lambda: f"both leave: {screen.decode(errors='replace')}", lambda: (drained(), p.poll())[1] is not None, 20)
    assert (rdzv.tmp / "codes").read_text().split() == ["codes", "130", "130"], screen.decode(errors="replace")
    drained()
    os.close(master)
    rdzv.gone()
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", l) for l in screen.decode(errors="replace").split("\n")]
    assert any("SIGINT" in l or "Ctrl-C" in l for l in lines), lines
    assert screen.count(b"\x1b[?25l") == screen.count(b"\x1b[?25h"), "the cursor is left hidden"
