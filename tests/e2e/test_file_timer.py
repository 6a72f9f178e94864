# SPDX-License-Identifier: Apache-2.0
"""TORCHELASTIC_ENABLE_FILE_TIMER=1: workers write timers into a named pipe, and the agent ends a worker whose timer expires."""

import os
import signal

import pytest

from harness import alive, environ, until

CLIENT = """import json, os, sys, time

def send(scope, expires, signo=9, pid=None):
    fd = os.open(os.environ["TORCHELASTIC_TIMER_FILE"], os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, (json.dumps({"version": 1, "pid": pid or os.getpid(), "scope_id": scope, "expiration_time": expires, "signal": signo}) + "\\n").encode())
    os.close(fd)

first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
"""
ON = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}


@pytest.fixture
def run(rdzv):
    def run(script, *words, env=None):
        (rdzv.tmp / "train.py").write_text(CLIENT + script)
        tmp = rdzv.tmp / "pipes"
        tmp.mkdir(exist_ok=True)
        return rdzv.agent("--standalone", *words, "train.py", env={**ON, "TMPDIR": str(tmp), **(env or {})})

    return run


def pipes(rdzv):
    return list((rdzv.tmp / "pipes").glob("watchdog_timer_*"))


def test_a_timer_that_expires(rdzv, run):
    """Its worker gets the timer's signal, the verdict names the scope, and the round is another one."""
    a = run("if first and os.environ['RANK'] == '1':\n    send('train.py#12', time.time() + 0.2)\n    time.sleep(600)\nprint('done', flush=True)\n",
            "--nproc", 2)
    assert a.exit() == 0 and sum("done" in line for line in a.out) >= 2, a
    a.expect(r'rank 1 \(local 1\) on .*, was killed by SIGKILL \(signal 9\): its timer "train.py#12" expired')
    a.expect(r'pid \d+ gets SIGKILL: its timer "train.py#12" expired \(TORCHELASTIC_ENABLE_FILE_TIMER\)')
    assert a.says("restart 1 of 3") and not pipes(rdzv), a


def test_its_own_signal(rdzv, run):
    a = run("send('s', time.time() - 1, 10)\ntime.sleep(600)\n", "--max-restarts", 0)
    assert a.exit() == 128 + signal.SIGUSR1 and a.says('was killed by SIGUSR1 .*: its timer "s" expired'), a


def test_timers_that_are_released_or_have_no_signal(rdzv, run):
    a = run("send('a', time.time() + 0.3)\nsend('a', -1, 0)\nsend('b', time.time() + 0.1, 0)\ntime.sleep(0.6)\nprint('done', flush=True)\n")
    assert a.exit() == 0 and a.out == ["done"], a
    a.expect(r'pid \d+: its timer "b" expired; it has no signal')


def test_what_makes_no_sense_is_ignored(rdzv, run):
    """A process of somebody else is not signalled, and a bad line does not end the others."""
    other = rdzv.spawn("sleep", 600)
    a = run("fd = os.open(os.environ['TORCHELASTIC_TIMER_FILE'], os.O_WRONLY)\nos.write(fd, b'words\\n' + b'x' * 5000 + b'\\n')\n"
            f"send('theirs', time.time(), pid={other.pid})\nsend('mine', time.time(), 12)\ntime.sleep(600)\n", "--max-restarts", 0)
    assert a.exit() == 128 + signal.SIGUSR2, a
    a.expect(rf"ignored: pid {other.pid} is not a worker of this agent")
    a.expect("ignored: it is longer than PIPE_BUF")
    assert sum("in the timer file" in line for line in a.err) == 3 and alive(other.pid), a
    other.kill()


def test_a_name_that_was_asked_for(rdzv, run):
    """TORCHELASTIC_TIMER_FILE: the pipe is there, a pipe that was left there is replaced, and a file is not."""
    os.mkfifo(rdzv.tmp / "pipe")
    env = {"TORCHELASTIC_TIMER_FILE": str(rdzv.tmp / "pipe")}
    a = run("send('x', time.time())\ntime.sleep(600)\n", "--max-restarts", 0, env=env)
    assert a.exit() == 137 and a.says('its timer "x" expired') and not (rdzv.tmp / "pipe").exists(), a
    (rdzv.tmp / "pipe").write_text("precious")
    a = run("print('x')", env=env)
    assert a.exit() == 71 and a.says("TORCHELASTIC_TIMER_FILE=.*pipe: no named pipe can be made there: File exists"), a
    assert (rdzv.tmp / "pipe").read_text() == "precious"


def test_without_the_variable(rdzv, run):
    """A timer file of the user's own reaches workers, as under torchrun; that of an outer agent does not."""
    show = "print(os.environ.get('TORCHELASTIC_TIMER_FILE'), flush=True)\n"
    assert run(show, env={"TORCHELASTIC_ENABLE_FILE_TIMER": "0"}).exit() == 0 and rdzv.procs[-1].out == ["None"]
    mine = {"TORCHELASTIC_ENABLE_FILE_TIMER": "0", "TORCHELASTIC_TIMER_FILE": "/mine"}
    assert run(show, env=mine).exit() == 0 and rdzv.procs[-1].out == ["/mine"]
    assert run(show, env={**mine, "TORCHELASTIC_RUN_ID": "outer"}).exit() == 0 and rdzv.procs[-1].out == ["None"]


def test_an_agent_that_is_killed_leaves_no_pipe(rdzv, run):
    a = run("print('ready', flush=True)\ntime.sleep(600)\n")
    a.expect("ready")
    (worker,) = rdzv.workers().values()
    assert environ(worker)["TORCHELASTIC_TIMER_FILE"] == str(pipes(rdzv)[0])
    a.kill()
    until("the pipe is gone", lambda: not pipes(rdzv))
    rdzv.gone()


def test_the_health_check_port_is_named(rdzv, run):
    a = run("", env={"TORCHELASTIC_HEALTH_CHECK_PORT": "12345"})
    assert a.exit() == 0 and sum("TORCHELASTIC_HEALTH_CHECK_PORT has no effect" in line for line in a.err) == 1, a
