# SPDX-License-Identifier: Apache-2.0
"""The messages of rdzvd and rdzv-agent to a service manager: a real datagram socket replaces systemd's."""

import os
import signal
import socket
import time

import pytest

from harness import SLOW, TRAINER, environ, stat, until

SLEEPER = ["--", "python3", "-c", "import time; print('up', flush=True); time.sleep(600)"]


class Manager:
    """Everything that was sent so far: (time, [line, ...]) per datagram."""

    def __init__(self, address):
        self.name = address
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + address[1:] if address[0] == "@" else address)
        self.sock.setblocking(False)
        self.heard = []

    def env(self, watchdog_usec=None, **more):
        env = {"NOTIFY_SOCKET": self.name, **more}
        if watchdog_usec:
            env["WATCHDOG_USEC"] = str(watchdog_usec)
        return env

    def listen(self):
        while True:
            try:
                data = self.sock.recv(4096)
            except BlockingIOError:
                return self.heard
            assert data.endswith(b"\n") and data.isascii(), data
            self.heard.append((time.monotonic(), data.decode().splitlines()))

    def lines(self):
        return [line for _, lines in self.listen() for line in lines]

    def wait(self, what, condition, timeout=10):
        return until(lambda: f"{what}; heard {self.lines()}", lambda: condition(self.lines()), timeout)

    def expect(self, line, timeout=10):
        self.wait(line, lambda lines: line in lines, timeout)

    def status(self, part, timeout=10):
        self.wait(f"STATUS=...{part}...", lambda lines: any(l.startswith("STATUS=") and part in l for l in lines), timeout)


@pytest.fixture
def manager(tmp_path):
    m = Manager(str(tmp_path / "notify"))
    yield m
    m.sock.close()


def test_daemon_is_ready_when_it_listens(rdzv, manager):
    d = rdzv.daemon(env=manager.env())
    manager.expect("READY=1")
    assert manager.heard[0][1] == ["READY=1", "STATUS=no job"], manager.heard
    with socket.create_connection(("127.0.0.1", d.port), 5):
        pass
    assert d.end(signal.SIGTERM) == 0, d
    lines = manager.lines()
    assert lines.count("READY=1") == 1 and lines.count("STOPPING=1") == 1, lines
    assert "STATUS=stopping: SIGTERM" in lines, lines
    assert not any("WATCHDOG" in l or "MAINPID" in l for l in lines), lines


def test_abstract_address(rdzv):
    m = Manager(f"@rdzv-{os.getpid()}-{time.monotonic_ns()}")
    rdzv.daemon(env=m.env())
    m.expect("READY=1")
    m.sock.close()


def test_daemon_that_cannot_listen_is_never_ready(rdzv, manager):
    d = rdzv.daemon()
    p = rdzv.spawn(d.argv[0], "--listen", d.endpoint, env=manager.env())
    assert p.exit() == 71, p
    assert manager.lines() == [], manager.heard


def test_watchdog_falls_silent_with_the_loop(rdzv, manager):
    """Half of WATCHDOG_USEC, and nothing at all while the process is stopped."""
    d = rdzv.daemon(env=manager.env(800000))
    beats = lambda: [at for at, lines in manager.listen() if "WATCHDOG=1" in lines]
    until("six signs of life", lambda: len(beats()) >= 6)
    gap = (beats()[-1] - beats()[0]) / (len(beats()) - 1)  # we may be late ourselves, but not always
    assert 0.3 < gap < 0.7 * SLOW, beats()
    os.kill(d.pid, signal.SIGSTOP)
    until("it is stopped", lambda: stat(d.pid)[0] == "T")
    before = len(beats())
    time.sleep(1.0)  # more than WATCHDOG_USEC: a manager would have acted
    assert len(beats()) == before
    os.kill(d.pid, signal.SIGCONT)
    until("it lives again", lambda: len(beats()) > before)


def test_watchdog_of_another_process(rdzv, manager):
    """WATCHDOG_PID names whose watchdog it is."""
    rdzv.daemon(env=manager.env(100000, WATCHDOG_PID="1"))
    manager.expect("READY=1")
    time.sleep(0.3)
    assert "WATCHDOG=1" not in manager.lines()


@pytest.mark.parametrize("name, words", [("vsock:2:1234", "vsock:2:1234 cannot be used"), ("/no/such/socket", "cannot send to the service manager")])
def test_manager_that_is_not_there(rdzv, name, words):
    """One warning, and everything works."""
    d = rdzv.daemon(env={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "200000"})
    d.expect(words)
    a = rdzv.agent("--endpoint", d.endpoint, "--", "true")
    assert a.exit() == 0, a
    assert len([l for l in d.err if "NOTIFY_SOCKET" in l]) == 1, d


def test_main_pid_where_a_script_started_it(rdzv, manager):
    d = rdzv.daemon(env=manager.env(SYSTEMD_EXEC_PID="1"))
    manager.expect(f"MAINPID={d.pid}")


def test_daemon_tells_of_jobs_and_of_no_names(rdzv, manager):
    d = rdzv.daemon(env=manager.env())
    one = rdzv.agents(2, d.endpoint, "--nnodes", "2", "--rdzv-id", "secret-one", *SLEEPER)
    manager.status("1 job: running, round 1, 2 nodes, 2 workers")
    two = rdzv.agents(1, d.endpoint, "--nnodes", "2", "--rdzv-id", "secret-two", *SLEEPER)
    manager.status("2 jobs (1 forming, 1 running), 3 nodes")
    for a in one + two:
        a.kill(signal.SIGTERM)
    for a in one + two:
        a.exit()
    assert "secret" not in "\n".join(manager.lines())


def test_agent(rdzv, manager):
    """READY when the daemon has welcomed it, not before; STOPPING, and more time asked for while workers are being stopped."""
    d = rdzv.daemon()
    port = d.port
    d.end(signal.SIGTERM)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    a = rdzv.agent("--endpoint", f"127.0.0.1:{port}", "--rdzv-conf", "is_host=0", "--nnodes", "2", "--stop-timeout", "2.5",
                   "--", "python3", "-c", stubborn, env=manager.env(400000))
    manager.expect("EXTEND_TIMEOUT_USEC=10000000")
    manager.status(f"no daemon at 127.0.0.1:{port} for")
    assert "READY=1" not in manager.lines(), manager.heard
    d = rdzv.daemon(port=port)
    manager.expect("READY=1")
    manager.status("1 of 2 nodes")
    b = rdzv.agent("--endpoint", d.endpoint, "--nnodes", "2", "--stop-timeout", "2.5", *SLEEPER)
    manager.status("round 1: node ")
    a.expect("up")
    n = len([l for l in manager.lines() if l.startswith("EXTEND")])
    assert a.end(signal.SIGTERM) == 75, a
    lines = manager.lines()
    assert lines.count("STOPPING=1") == 1 and lines.count("READY=1") == 1, lines
    assert len([l for l in lines if l.startswith("EXTEND")]) >= n + 3, lines
    assert any(l.startswith("STATUS=round 1: stopping workers") for l in lines), lines
    assert lines.count("WATCHDOG=1") > 4, lines
    b.end(signal.SIGTERM)


def test_agents_helpers_do_not_speak_for_it(rdzv, manager):
    """The workers have none of the manager's variables. Its own rdzvd, which begins as a copy of the agent, says nothing: READY comes once."""
    a = rdzv.agent("--standalone", "--nproc", "2", *SLEEPER, env=manager.env(400000))
    a.expect("up")
    rdzv.await_workers(2)
    for pid in rdzv.workers().values():
        assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(environ(pid)), pid
    assert manager.lines().count("READY=1") == 1
    os.kill(a.pid, signal.SIGSTOP)
    until("it is stopped", lambda: stat(a.pid)[0] == "T")
    before = len([l for l in manager.lines() if l == "WATCHDOG=1"])
    time.sleep(0.8)
    assert len([l for l in manager.lines() if l == "WATCHDOG=1"]) == before, manager.heard
    os.kill(a.pid, signal.SIGCONT)
    a.end(signal.SIGTERM)


def test_agent_tells_progress(rdzv, manager):
    if not os.path.exists(TRAINER):
        pytest.skip("rdzv-trainer is not built")
    a = rdzv.agent("--standalone", "--nproc", "1", "--", "--data", "synthetic:2000", "--layers", "200,50,200", "--batch", "8", "--epochs", "100000",
                   env=manager.env())
    manager.status("round 1: node 0 of 1, rank 0 of 1, step ")
    a.end(signal.SIGTERM)
