# SPDX-License-Identifier: Apache-2.0
"""Limits of the machine: processes, threads and open files that cannot be had. Programs report the limit and exit with 71; a worker whose start fails
costs a restart, and the next round tries again."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from harness import AGENT, RDZVCTL, RDZVD, SANITIZED, status, until

LIMITS_UID = 500_000  # root's processes have no limit, so these run as users that nobody else is


def parent(pid):
    return status(pid, "PPid")


def limit(rdzv, pid, **soft):
    """Sets a process's soft limits, as its user: nofile=3, nproc="hard"."""
    for name, value in soft.items():
        ask = [*rdzv.wrap, "prlimit", f"--pid={pid}"]
        if value == "hard":
            value = subprocess.run([*ask, f"--{name}", "--output=HARD", "--noheadings"], check=True, capture_output=True, text=True).stdout.strip()
        subprocess.run([*ask, f"--{name}={value}:"], check=True, timeout=10)


@pytest.fixture
def user(rdzv):
    """All that `rdzv` starts runs as a user of its own, in a folder that is this user's."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("changing the user needs root and setpriv(1)")
    uid = LIMITS_UID + os.getpid()
    with tempfile.TemporaryDirectory(prefix="rdzv-limits-") as tmp:  # tmp_path lies in a folder of root's
        os.chown(tmp, uid, uid)
        rdzv.tmp = Path(tmp)
        config = Path(tmp) / "config"  # as is the folder with the key
        config.mkdir(mode=0o700)
        os.chown(config, uid, uid)
        rdzv.wrap = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "env", "-u", "XDG_RUNTIME_DIR", f"XDG_CONFIG_HOME={config}"]
        if SANITIZED:  # looking for leaks takes a process
            rdzv.wrap.append(f"ASAN_OPTIONS={os.environ.get('ASAN_OPTIONS', '')}:detect_leaks=0")
        yield rdzv
        rdzv.close()


# ---- a worker that cannot be started ---------------------------------------------------------------------------------

WORKER = ["--", "sh", "-c", 'test "$RDZV_ROUND" -gt 1 && test -e done && exit 0; exec sleep 60']


def test_fork_fails_once(user):
    """The guard's user has no process left for a moment: a restart is charged, and the round after that one runs."""
    a = user.agent("--standalone", "--max-restarts", 5, *WORKER)
    worker = user.await_workers(1)[0]
    guard = parent(worker)
    limit(user, guard, nproc=1)
    os.kill(worker, signal.SIGKILL)
    a.expect(r"rank 0 \(local 0\) on .* could not be started: fork: Resource temporarily unavailable; see ulimit -u, and pids.max of the cgroup")
    a.expect("restart 2 of 5")
    limit(user, guard, nproc="hard")
    worker = user.await_workers(1, timeout=20)[0]
    (user.tmp / "done").touch()
    os.kill(worker, signal.SIGKILL)
    assert a.exit(30) == 0, a
    user.gone()


def test_fork_fails_until_all_restarts_are_used(user):
    a = user.agent("--standalone", "--max-restarts", 2, *WORKER)
    worker = user.await_workers(1)[0]
    limit(user, parent(worker), nproc=1)
    os.kill(worker, signal.SIGKILL)
    assert a.exit(20) == 71, a
    a.expect(r"job .* failed in round 3: rank 0 .* could not be started: fork: Resource temporarily unavailable; see ulimit -u.*; 2 of 2 restarts used; exit code 71")
    user.gone()


def test_pipes_of_the_agent_fail_once(rdzv):
    """The agent has no descriptor left for a moment."""
    a = rdzv.agent("--standalone", "--max-restarts", 9, *WORKER)
    worker = rdzv.await_workers(1)[0]
    limit(rdzv, a.pid, nofile=3)
    os.kill(worker, signal.SIGKILL)
    a.expect("could not be started: no pipes for the output of local rank 0: Too many open files; see ulimit -n")
    limit(rdzv, a.pid, nofile="hard")
    worker = rdzv.await_workers(1, timeout=30)[0]
    (rdzv.tmp / "done").touch()
    os.kill(worker, signal.SIGKILL)
    assert a.exit(30) == 0, a
    rdzv.gone()


def test_program_that_is_still_written(rdzv):
    """Whoever unpacks an image has it open; exec(2) fails as long."""
    program = rdzv.tmp / "program"
    shutil.copy(shutil.which("true"), program)
    with open(program, "r+b"):
        a = rdzv.agent("--standalone", "--max-restarts", 5, "--no-python", "--", program)
        a.expect("could not be started: .*program: Text file busy; another process has the program open for writing")
        a.expect("restart 1 of 5")
    assert a.exit(30) == 0, a
    rdzv.gone()


# ---- programs that have no process or thread left --------------------------------------------------------------------


def few(rdzv, argv, **limits):
    """Runs a program to its end under limits that hold from its start."""
    p = rdzv.spawn(*["prlimit", *[f"--{name}={n}:{n}" for name, n in limits.items()]], *argv)
    p.exit(30)
    rdzv.gone()
    return p


def ends_in_order(rdzv, argv, name, numbers, advice):
    """Under each limit the program works, or exits with 71 and the name of the limit; some are too low for it, and the last is not."""
    codes = []
    for n in numbers:
        p = few(rdzv, argv, **{name: n})
        codes.append(p.popen.returncode)
        assert codes[-1] in (0, 71), p
        assert codes[-1] == 0 or p.says(advice), p
    assert 71 in codes and codes[-1] == 0, codes


def test_agent_with_log_files_under_a_low_limit_of_processes(user):
    """Its threads for log files are made at the start, or it says why they cannot be."""
    argv = [AGENT, "--standalone", "--max-restarts", 0, "--log-dir", "logs", "--", "true"]
    ends_in_order(user, argv, "nproc", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 40], "see ulimit -u, and pids.max of the cgroup")


def test_launcher_under_a_low_limit_of_processes(user):
    p = few(user, [AGENT, "--hosts", "localhost", "--", "true"], nproc=1)
    assert p.popen.returncode in (71, 85) and p.says("see ulimit -u"), p


def test_worker_dies_when_no_thread_is_left(user):
    """What the agent needs to say why is there since its start."""
    a = user.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", "until test -e go; do sleep 0.01; done; exit 3")
    user.await_workers(1)
    limit(user, a.pid, nproc=1)
    (user.tmp / "go").touch()
    assert a.exit() == 3, a
    a.expect("failed in round 1: rank 0 .* exited with code 3; 0 of 0 restarts used; exit code 3")
    user.gone()


def test_daemon_seals_when_no_thread_is_left(user):
    """It goes on writing its state file, so no job is lost."""
    d = user.daemon("--state-dir", user.tmp / "state", "--socket", user.tmp / "socket")
    limit(user, d.pid, nproc=1)
    for a in user.agents(2, d.endpoint, "--nnodes", 2, "--", "true"):
        assert a.exit() == 0, a
    assert d.running, d
    until("the seal is in the state file", lambda: any("seal" in f.read_text() for f in (user.tmp / "state").iterdir() if f.is_file()))


def test_daemon_starts_when_no_thread_is_left(user):
    d = few(user, [RDZVD, "--listen", "127.0.0.1:0", "--socket", user.tmp / "socket"], nproc=1)
    assert d.popen.returncode == 71, d
    d.expect("rdzvd: .*2 threads for files and names cannot be started: Resource temporarily unavailable; see ulimit -u, and pids.max of the cgroup")


def test_rdzvctl_looks_a_name_up_when_no_thread_is_left(user):
    p = few(user, [RDZVCTL, "--endpoint", "localhost", "status"], nproc=1)
    assert p.popen.returncode == 71, p
    p.expect("rdzvctl: .*cannot be started: Resource temporarily unavailable; see ulimit -u")


# ---- programs that have no descriptor left ---------------------------------------------------------------------------


def test_rdzvctl_under_a_low_limit_of_descriptors(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    codes = []
    for n in [4, 5, 6, 7, 8, 9, 10, 20]:
        p = rdzv.spawn("prlimit", f"--nofile={n}:{n}", RDZVCTL, "--socket", rdzv.tmp / "s", "status")
        codes.append(p.exit())
        assert codes[-1] in (0, 69, 71) and (codes[-1] == 0 or p.says("too many open files")), p
    assert 71 in codes and codes[-1] == 0, codes
    assert d.running


def test_agent_under_a_low_limit_of_descriptors(rdzv):
    argv = [AGENT, "--standalone", "--max-restarts", 0, "--", "true"]
    ends_in_order(rdzv, argv, "nofile", [4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 24, 64], "[Tt]oo many open files")


@pytest.mark.parametrize("closed", ["<&-", "<&- >&-", "<&- >&- 2>&-"])
def test_daemon_with_closed_descriptors(rdzv, closed):
    """A connection is never one of 0 to 2: libuv does not close these."""
    script = f'exec "$0" "$@" {closed}'
    d = rdzv.spawn("sh", "-c", script, RDZVD, "--listen", "127.0.0.1:0", "--port-file", rdzv.tmp / "port")
    port = until("it listens", lambda: (rdzv.tmp / "port").exists() and (rdzv.tmp / "port").read_text().strip())
    for a in rdzv.agents(2, f"127.0.0.1:{port}", "--nnodes", 2, "--", "true"):
        assert a.exit() == 0, a
    assert d.end(signal.SIGTERM) == 0, d
