# SPDX-License-Identifier: Apache-2.0
"""Signals to an agent: its workers get the same one, then time, then SIGKILL; and who is who in ps."""

import os
import signal
import sys
import time

import pytest

import waits
from harness import RDZVCTL, describe, free_port, stat, until

WORKER = waits.COMMAND


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_workers_get_the_same_signal(rdzv, signo):
    a = rdzv.agent("--nproc", 2, "--", "sh", "-c", WORKER)
    until(lambda: f"both are ready:\n{a}", lambda: sum("ready" in l for l in a.out) == 2)
    assert a.end(signo, 10) == (130 if signo == signal.SIGINT else 75), a
    assert sum(f"got {signo.name[3:]}" in l for l in a.out) == 2, a
    assert sum("got" in l for l in a.out) == 2, a
    rdzv.gone()


def test_signals_that_were_asked_for(rdzv):
    """--signals-to-handle: what is in it is passed on; the worker reads the same list."""
    names = "SIGUSR1,SIGUSR2,SIGTERM"
    a = rdzv.agent("--signals-to-handle", names, "--", "sh", "-c", "echo $TORCHELASTIC_SIGNALS_TO_HANDLE;" + WORKER)
    a.expect("^ready")
    assert set(a.out[0].split(",")) == set(names.split(","))
    assert a.end(signal.SIGUSR1, 10) == 75, a
    assert a.out[-1] == "got USR1"
    rdzv.gone()


def test_a_signal_that_was_not_asked_for_kills_everything(rdzv):
    """As under torchrun it then does to the agent what it does to any process; nothing of the job survives that."""
    a = rdzv.agent("--signals-to-handle", "SIGTERM", "--", "sh", "-c", WORKER)
    a.expect("^ready")
    assert a.end(signal.SIGHUP, 10) == -signal.SIGHUP, a
    rdzv.gone()


def test_a_named_signal_that_was_ignored(rdzv):
    """trap '' in the batch script: what --signals-to-handle names is handled all the same, and the worker can be told."""
    ignoring = ["sh", "-c", "trap '' USR1 HUP; exec \"$@\"", "sh"]
    a = rdzv.agent("--signals-to-handle", "SIGUSR1,SIGHUP", "--", "sh", "-c", WORKER, wrap=ignoring)
    a.expect("^ready")
    assert not a.says("ignored when"), a
    assert a.end(signal.SIGUSR1, 10) == 75 and a.out[-1] == "got USR1", a
    rdzv.gone()


def test_defaults_that_were_ignored_stay_ignored_and_are_named(rdzv):
    """nohup, and a shell's background job."""
    ignoring = ["sh", "-c", "trap '' HUP INT TERM; exec \"$@\"", "sh"]
    a = rdzv.agent("--", "sh", "-c", WORKER, wrap=ignoring)
    a.expect("^ready")
    a.expect("SIGINT,SIGHUP were ignored when this agent started .*, and stay ignored; .* --signals-to-handle$")
    a.kill(signal.SIGINT)
    a.kill(signal.SIGHUP)
    assert a.end(signal.SIGTERM, 10) == 75 and a.out[-1] == "got TERM", a
    rdzv.gone()


def test_a_background_job_of_a_script_is_nothing_special(rdzv):
    """Every shell script ignores SIGINT and SIGQUIT in what it starts with `&`."""
    a = rdzv.agent("--", "true", wrap=["sh", "-c", "trap '' INT QUIT; exec \"$@\"", "sh"])
    assert a.exit(10) == 0 and not a.says("ignored when"), a


@pytest.mark.parametrize("signo", [signal.SIGUSR1, signal.SIGUSR2])
def test_schedulers_signal_all_processes(rdzv, signo):
    """SIGUSR1 and SIGUSR2 are for the workers that asked for them, and no business of agent, guard and daemon."""
    a = rdzv.agent("--standalone", "--", "sh", "-c", WORKER + " stay")
    a.expect("^ready")
    (worker,) = rdzv.workers().values()
    for pid in [p for p in rdzv.pids() if p == worker or stat(p)[3] not in (str(worker), "0")]:  # not its sleep
        os.kill(pid, signo)
    a.expect(f"got {signo.name[3:]}")
    a.expect(f"{signo.name} came and was ignored: it is for the workers")
    os.kill(worker, signal.SIGKILL)
    a.expect("restart 1 of 3")  # the daemon is there
    until(lambda: f"it starts again\n{a}", lambda: sum(l == "ready" for l in a.out) == 2)
    assert not a.says("rdzvd was killed|restarting it|lost contact"), a
    a.kill(signal.SIGTERM)
    a.expect("leaving with exit code 75")
    assert a.end(signal.SIGINT, 10) == 75, a
    rdzv.gone()


def test_a_job_that_was_asked_to_leave_has_not_failed(rdzv):
    """All its nodes get SIGTERM, as from a scheduler. Status, events and the daemon's log say "stopped" and what to do."""
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--rdzv-id", "family", "--events", rdzv.tmp / "events", "--", "sh", "-c", WORKER)
    for a in agents:
        a.expect("^.*ready")
    for a in agents:
        a.kill(signal.SIGTERM)
    assert [a.exit(10) for a in agents] == [75, 75], rdzv
    p = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "s", "status", "family")
    assert p.exit(5) == 0 and p.says(r"family: ended .*, stopped with exit code 75: requeue me"), p
    d.expect(r"family: .* -> ended")
    assert not d.says("failed") and not any(a.says("failed") for a in agents), rdzv


def test_an_agents_daemon_leaves_with_it(rdzv):
    """SIGTERM to all processes of a job step: the daemon is needed until the agents have told each other, so none reconnects."""
    agents = rdzv.agents(2, f"127.0.0.1:{free_port()}", "--nnodes", 2, "--", "sh", "-c", WORKER)
    rdzv.await_workers(2)
    for a in agents:
        a.expect("^.*ready")
    for pid in rdzv.pids():
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
    assert [a.exit(10) for a in agents] == [75, 75], rdzv
    assert not any(a.says("lost contact|reconnect") for a in agents), rdzv
    rdzv.gone()


def test_who_does_not_stop_is_named(rdzv):
    a = rdzv.agent("--nproc", 2, "--stop-timeout", "4s", "--", "sh", "-c",
                   '[ $RANK = 1 ] && trap "" TERM; echo ready; while :; do sleep 0.02; done')
    until(lambda: f"both are ready:\n{a}", lambda: sum("ready" in l for l in a.out) == 2)
    pid = rdzv.workers()[1]
    a.kill(signal.SIGTERM)
    a.expect(rf"waiting for rank 1 \(pid {pid}\) to stop, SIGKILL in 2 s \(--stop-timeout\)")
    assert a.exit(10) == 75, a
    assert sum("waiting for" in l for l in a.err) == 1
    rdzv.gone()


def test_a_second_signal_kills_at_once(rdzv):
    a = rdzv.agent("--", "sh", "-c", 'trap "" INT TERM; echo ready; while :; do sleep 0.02; done')
    a.expect("^ready")
    a.kill(signal.SIGINT)
    a.expect("leaving")
    time.sleep(0.3)  # at once it would be the same event
    assert a.end(signal.SIGINT, 5) == 130 and a.says("second signal: killing the workers"), a
    rdzv.gone()


def test_one_event_may_send_a_signal_twice(rdzv):
    """timeout(1), a terminal that is closed, a batch system: the workers keep their time."""
    saves = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [15]); print('ready', flush=True); signal.sigwait([15]); time.sleep(0.5); print('saved')"
    a = rdzv.agent("--no-python", "--", sys.executable, "-SEc", saves)
    a.expect("^ready")
    for _ in range(5):
        a.kill(signal.SIGTERM)
        time.sleep(0.002)  # two that wait at a time are one
    assert a.exit(10) == 75 and a.out[-1] == "saved" and not a.says("second signal:"), a
    rdzv.gone()


def test_the_guard_has_a_name_of_its_own(rdzv):
    a = rdzv.agent("--", "sleep", 60)
    (worker,) = rdzv.await_workers(1).values()
    guard = stat(worker)[1]
    assert describe(guard) == f"{guard}: rdzv-guard of {a.pid}"
    with open(f"/proc/{guard}/comm") as f:
        assert f.read() == "rdzv-guard\n"
    assert " ".join(a.argv) in describe(a.pid)
    assert os.readlink(f"/proc/{guard}/exe") == os.readlink(f"/proc/{a.pid}/exe")
    a.end(signal.SIGTERM, 10)
