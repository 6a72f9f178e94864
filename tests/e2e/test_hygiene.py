# SPDX-License-Identifier: Apache-2.0
"""What processes hand on and leave behind: descriptors, and files of other users in their way."""

import json
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from harness import AGENT, BUILD, RDZVD, environ, until
from others import EVE, MALLORY, as_user, needs_users, user

LIST = "import json, os; print('FDS', json.dumps({fd: os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')}))"


def own_fds(pid):
    """Of a process: descriptor -> what it is, with its flags."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            flags = next(int(line.split()[1], 8) for line in open(f"/proc/{pid}/fdinfo/{fd}") if line.startswith("flags:"))
            found[int(fd)] = (os.readlink(f"/proc/{pid}/fd/{fd}"), bool(flags & os.O_CLOEXEC))
        except OSError:
            pass
    return found


# ---- descriptors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--log-dir", "logs"], ["--hang-timeout", "60s"]], ids=["plain", "logs", "hang"])
def test_a_worker_inherits_three_descriptors(rdzv, options):
    """Input, output and errors."""
    a = rdzv.agent("--standalone", *options, "--no-python", "--", sys.executable, "-c", LIST)
    assert a.exit() == 0, a
    fds = json.loads(a.expect(r"FDS (.*)")[1])
    assert sorted(fds, key=int)[:3] == ["0", "1", "2"] and len(fds) == 3, fds


def program(pid):
    """Its path, "" where it is gone: the worker's sleep ends many times a second."""
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def test_programs_keep_their_descriptors(rdzv):
    """In a running job every program but the one that is executed next would lose all but 0 to 2."""
    a = rdzv.agent("--standalone", "--log-dir", "logs", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
    worker = rdzv.await_workers(1)[0]
    programs = {pid: environ(pid) for pid in rdzv.pids() if program(pid).endswith(("rdzvd", "rdzv-agent"))}
    assert len(programs) >= 3 and worker not in programs, "agent, guard, daemon"
    for pid in programs:
        open_ones = {fd: what for fd, (what, cloexec) in own_fds(pid).items() if fd > 2 and not cloexec and what != "/dev/null"}
        assert not open_ones, (pid, open_ones)
    rdzv.go(a)


# ---- files of others -------------------------------------------------------------------------------------------------


@pytest.fixture
def shared():
    """A folder as /tmp is."""
    folder = tempfile.mkdtemp(dir="/tmp")
    os.chmod(folder, 0o1777)
    yield Path(folder)
    shutil.rmtree(folder)


@needs_users
def test_modes(rdzv, shared):
    """Under the most open umask, only what a user has asked for is open to others."""
    rdzv_dir = shared / "job"
    with as_user(MALLORY):
        os.mkdir(rdzv_dir)
    d = rdzv.spawn("sh", "-c", 'umask 0; exec "$@"', "sh", "env", "-u", "RDZV_KEY", f"XDG_CONFIG_HOME={rdzv_dir}/config", RDZVD, "--listen", "127.0.0.1:0",
                   "--state-dir", rdzv_dir / "state", "--port-file", rdzv_dir / "port", **user(MALLORY))
    until("it listens", lambda: (rdzv_dir / "port").exists())
    mode = lambda p: oct(stat.S_IMODE(os.lstat(p).st_mode))
    port = (rdzv_dir / "port").read_text().strip()
    place = f"/tmp/rdzvd-{MALLORY}-{port}"
    assert mode(rdzv_dir / "state") == "0o700" and mode(rdzv_dir / "state/rdzvd.state") == mode(rdzv_dir / "state/rdzvd.lock") == "0o600"
    assert mode(rdzv_dir / "port") == "0o644"
    assert mode(rdzv_dir / "config/rdzv") == "0o700" and mode(rdzv_dir / "config/rdzv/key") == "0o600"
    assert mode(place) == "0o755" and mode(f"{place}/control.sock") == "0o666", "every user may ask; the daemon decides"
    a = rdzv.spawn("sh", "-c", 'umask 0; exec "$@"', "sh", AGENT, "--standalone", "--", "sh", "-c", "until [ -e $GO ]; do sleep 0.05; done",
                   **user(MALLORY, TMPDIR=str(shared), GO=str(shared / "go")))
    rdzv.await_workers(1)
    for kind in shared.glob("torchelastic_*"), Path("/dev/shm").glob(f"rdzvd-{a.pid}-*"):
        found = list(kind)
        assert [mode(p) for p in found] == ["0o700"], found
    (shared / "go").touch()
    assert a.exit() == 0, a
    d.end(signal.SIGTERM)
    assert not os.path.exists(place)


@needs_users
def test_a_link_in_the_place_of_the_control_socket(rdzv, shared):
    """Root's sweep of leftovers does not go through another user's link to a socket of root's own."""
    mine = shared / "mine"
    mine.mkdir(0o755)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(mine / "control.sock"))  # nobody listens: it looks like a leftover
    link = Path(f"/tmp/rdzvd-{EVE}-1234")
    with as_user(EVE):
        link.symlink_to(mine)
    try:
        d = rdzv.daemon("--socket", rdzv.tmp / "s")
        assert d.running and (mine / "control.sock").exists()
    finally:
        link.unlink()


def test_the_socket_of_a_killed_daemon_is_removed(rdzv):
    """By the next daemon, also by one that an agent has started for itself, if the job lasts for a second."""
    for kind in "daemon", "agent":
        folder = Path(f"/tmp/rdzvd-{os.geteuid()}-1")  # no daemon has this port
        folder.mkdir(0o755, exist_ok=True)
        with socket.socket(socket.AF_UNIX) as s:
            s.bind(str(folder / "control.sock"))
        p = rdzv.daemon("--socket", rdzv.tmp / "s") if kind == "daemon" else rdzv.agent("--standalone", "--", "sleep", "600")
        until("it is removed", lambda: not folder.exists(), 20)
        p.end(signal.SIGTERM, 30)


@needs_users
def test_a_link_in_the_place_of_a_file(rdzv, shared):
    """The job's user has opened its log folder to everybody."""
    logs, precious = shared / "logs", shared / "precious"
    a = rdzv.spawn("sh", "-c", 'umask 0; exec "$@"', "sh", AGENT, "--standalone", "--log-dir", logs, "--max-restarts", 0, "--hang-timeout", "6s", "--hang-start-timeout", "20s",
                   "--hang-stacks", "never", "--hang-watch", "output", "--", "sh", "-c", "echo begun; exec sleep 600", **user(MALLORY, TMPDIR=str(shared)))
    folder = until("the worker's folder is there", lambda: next(logs.glob("*/attempt_0/0"), None), 20)
    with as_user(MALLORY):
        precious.write_text("precious")
    with as_user(EVE):
        (folder / "hang.txt").symlink_to(precious)
    assert a.exit(40) == 67, a
    assert precious.read_text() == "precious" and "state S" in (folder / "hang.txt").read_text(), a


@needs_users
def test_a_state_folder_of_another_user(rdzv, shared):
    with as_user(EVE):
        os.mkdir(shared / "state")
        os.chmod(shared / "state", 0o777)
    d = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--state-dir", shared / "state", **user(MALLORY))
    d.expect("--state-dir .*: other users can write to this folder, and change what this daemon remembers; give it a folder of its own")
    with as_user(EVE):
        (shared / "state2").mkdir()
        (shared / "precious").write_text("")
        os.symlink(shared / "precious", shared / "state2/rdzvd.state")
        os.chmod(shared / "state2", 0o777)
    d = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--state-dir", shared / "state2", **user(MALLORY))
    assert d.exit() == 71 and d.says("cannot open .*rdzvd.state: Too many levels of symbolic links"), d


@needs_users
def test_a_worker_does_not_speak_to_another_user(rdzv):
    """The agent is dead, and another user has taken the name of its socket."""
    name = f"rdzv-agent-4711-{os.getpid():08x}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        with as_user(EVE):
            s.bind("\0" + name)
            s.listen()
        worker = rdzv.spawn(BUILD / "agent/sdk/example", **user(MALLORY, RDZV_AGENT_SOCKET="@" + name, RDZV_ROUND="1", LOCAL_RANK="0"))
        assert worker.exit() != 0 and worker.says(rf"is served by process \d+ of user {EVE}, which is not the agent of user {MALLORY}"), worker
