# SPDX-License-Identifier: Apache-2.0
"""Attacks by another user of the machine: the sockets are not trusted, the files are not used, the connections fill no log."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from harness import AGENT, RDZVCTL, RDZVD, alive, comm, environ, free_port, status, until
from hostile import EVIL, check
from native import frame
from others import EVE, MALLORY, as_user, can_run, needs_users, user


def ctl(rdzv, *args, **kw):
    p = rdzv.spawn(RDZVCTL, *args, **kw)
    p.code = p.exit(10)
    return p


# ---- rdzvctl: whose sockets it believes ------------------------------------------------------------------------------


@contextlib.contextmanager
def fake(uid, path, mode=0o755):
    """A socket of that user that answers every rdzvctl. How often it was asked."""
    asked = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                c, _ = s.accept()
                with c:
                    c.settimeout(5)
                    with contextlib.suppress(OSError):
                        if c.recv(65536):
                            asked.append(1)
                            c.sendall(frame("GREETING", dict(version=1)))
                            c.sendall(frame("CONTROL_REPLY", dict(code=0), raw=EVIL.encode(), id=1))

    folder = os.path.dirname(path)
    with socket.socket(socket.AF_UNIX) as s:
        with as_user(uid):
            made = not os.path.exists(folder)
            if made:
                os.mkdir(folder)
                os.chmod(folder, mode)
            s.bind(path)
            os.chmod(path, 0o666)
            s.listen()
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield asked
        finally:
            s.shutdown(socket.SHUT_RDWR)
            os.unlink(path)
            if made:
                os.rmdir(folder)


@needs_users
@pytest.mark.parametrize("me", [0, MALLORY], ids=["root", "another user"])
def test_sockets_of_other_users_are_not_believed(rdzv, me):
    port = free_port()
    path = f"/tmp/rdzvd-{EVE}-{port}/control.sock"
    me = user(me) if me else {}
    with fake(EVE, path) as asked:
        p = ctl(rdzv, "--port", port, "status", **me)
        assert p.code == 69 and not asked and not p.out and len(p.err) == 1, p
        assert p.says(rf"no rdzvd of this user, of root or of rdzvd.service listens on port {port} .*{path} .*\(uid {EVE}\)"), p
        check(p.err)
        p = ctl(rdzv, "--socket", path, "status", **me)
        assert p.code == 0 and asked and p.says(rf"this daemon belongs to user \S+ \(uid {EVE}\)"), p
        check(p.out + p.err)


@needs_users
def test_a_fake_beside_the_real_one(rdzv):
    """It neither answers nor makes the choice ambiguous."""
    port = free_port()
    d = rdzv.daemon(port=port, env={"XDG_RUNTIME_DIR": ""})
    with fake(EVE, f"/tmp/rdzvd-{EVE}-{port}/control.sock") as asked:
        p = ctl(rdzv, "--port", port, "jobs", env={"XDG_RUNTIME_DIR": ""})
        assert p.code == 0 and p.out == ["no jobs"] and not asked, p
    d.kill()


@needs_users
def test_places_where_others_may_write(rdzv):
    """The folder's owner is not enough: whoever may write to it can put a socket there. And a name is not an owner."""
    port = free_port()
    with as_user(MALLORY):
        os.mkdir(f"/tmp/rdzvd-{MALLORY}-{port}")
        os.chmod(f"/tmp/rdzvd-{MALLORY}-{port}", 0o777)
    try:
        with fake(EVE, f"/tmp/rdzvd-{MALLORY}-{port}/control.sock") as asked:
            p = ctl(rdzv, "--port", port, "jobs", **user(MALLORY))
            assert p.code == 69 and not asked, p
    finally:
        os.rmdir(f"/tmp/rdzvd-{MALLORY}-{port}")
    with fake(EVE, f"/tmp/rdzvd-{MALLORY}-{port}/control.sock") as asked:
        p = ctl(rdzv, "--port", port, "jobs", **user(MALLORY))
        assert p.code == 69 and not asked, p
    with tempfile.TemporaryDirectory(dir="/tmp") as shared:
        os.chmod(shared, 0o777)
        with fake(EVE, f"{shared}/run/rdzvd-{port}.sock") as asked:
            p = ctl(rdzv, "--port", port, "jobs", env={"XDG_RUNTIME_DIR": f"{shared}/run"})  # as under sudo
            assert p.code == 69 and not asked, p


# ---- connections that fill a log -------------------------------------------------------------------------------------


def windows(began):
    """Each has its own lines: 10 s, of which the flood may have touched so many."""
    return 2 + int((time.monotonic() - began) / 10)


def total(folder):
    return sum(p.stat().st_size for p in folder.rglob("*.log"))


@needs_users
def test_flood_at_the_workers_socket(rdzv):
    """The socket has an abstract name, so every user of the machine may try. Each is refused; few refusals are logged."""
    a = rdzv.agent("--standalone", "--log-dir", "logs", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
    name = environ(rdzv.await_workers(1)[0])["RDZV_AGENT_SOCKET"]
    assert name[0] == "@"
    refused, began = 0, time.monotonic()
    with as_user(EVE):
        for _ in range(5000):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.settimeout(10)
                s.connect("\0" + name[1:])
                with contextlib.suppress(ConnectionError):
                    refused += s.recv(4096) == b""
    log = next((rdzv.tmp / "logs").rglob("agent-*.log"))
    until("the refusals are logged", lambda: f"of user {EVE} was refused" in log.read_text())
    rdzv.go(a)
    assert log.read_text().count(f"of user {EVE} was refused") <= 16 * windows(began)
    assert total(rdzv.tmp / "logs") < 64 * 1024


def test_flood_from_many_addresses(rdzv):
    """All of 127.0.0.0/8 belongs to every user."""
    d, began = rdzv.daemon(), time.monotonic()
    for i in range(3000):
        with socket.socket() as s:
            s.bind((f"127.{1 + i // 250 % 250}.1.{1 + i % 250}", 0))
            s.connect(("127.0.0.1", d.port))
            s.sendall(b"\0garbage of some length\n")
            with contextlib.suppress(ConnectionError):
                s.recv(1)
    d.end()
    assert 16 < len(d.err) < 600 * windows(began), len(d.err)


# ---- files and folders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, link, command, env",
    [
        ("port", "port.$$.new", "exec {rdzvd} --listen 127.0.0.1:0 --exit-when-idle --port-file port", {}),
        ("error.json", "error.json.$$", "exec {agent} --standalone --max-restarts 0 -- false", {"TORCHELASTIC_ERROR_FILE": "error.json"}),
    ],
    ids=["port file", "error file"],
)
def test_names_that_could_be_guessed(rdzv, name, link, command, env):
    """What we write aside has no name that another could have made first, as a link to a file of ours."""
    (rdzv.tmp / "precious").write_text("precious")
    p = rdzv.spawn("sh", "-c", f"ln -s precious {link}; {command.format(rdzvd=RDZVD, agent=AGENT)}", env=env)
    until(lambda: f"{name} is written:\n{p}", lambda: (rdzv.tmp / name).exists())
    p.end(15)
    assert (rdzv.tmp / "precious").read_text() == "precious"
    assert sorted(f.name for f in rdzv.tmp.iterdir() if f.name.startswith(name) and not f.is_symlink()) in ([name], []), "nothing is left beside it"


def test_a_link_is_replaced_and_not_followed(rdzv):
    (rdzv.tmp / "precious").write_text("precious")
    (rdzv.tmp / "v.json").symlink_to("precious")
    a = rdzv.agent("--standalone", "--verdict-file", "v.json", "--", "true")
    assert a.exit() == 0, a
    assert (rdzv.tmp / "precious").read_text() == "precious" and not (rdzv.tmp / "v.json").is_symlink()


def test_no_agent_id_in_a_file_that_others_read(rdzv):
    """It is all that HELLO and AGENT_DIED need to speak for the agent."""
    d = rdzv.daemon("--socket", rdzv.tmp / "s", "--verbose")
    a = rdzv.agent("--endpoint", d.endpoint, "--log-dir", "logs", "--verdict-file", "v.json", "--verbose", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
    rdzv.await_workers(1)
    p = ctl(rdzv, "--socket", "s", "status", "--json")
    agent = json.loads("\n".join(p.out))["jobs"][0]["members"][0]["agent"]
    assert len(agent) == 32
    rdzv.go(a)
    d.end()
    texts = {"stderr of rdzvd": d.text, "stderr of the agent": a.text}
    texts.update((f, f.read_text(errors="replace")) for f in rdzv.tmp.rglob("*") if f.is_file())
    assert len(texts) > 4 and agent[:8] in d.text
    for where, text in texts.items():
        assert agent not in text, where


@needs_users
def test_squatted_folders_do_not_stop_a_job(rdzv):
    """Another user has made every name that could be guessed; the job runs, rdzvctl finds its daemon, temporary folders are closed to others."""
    port = free_port()
    taken = f"/tmp/rdzvd-{MALLORY}-{port}"
    with as_user(EVE):
        os.mkdir(taken)
    home = tempfile.mkdtemp(dir="/tmp")
    os.chmod(home, 0o777)
    try:
        a = rdzv.spawn(AGENT, "--endpoint", f"127.0.0.1:{port}", "--nnodes", 1, "--", "sh", "-c", "while [ ! -e $GO ]; do sleep 0.05; done",
                       **user(MALLORY, GO=f"{home}/go", TMPDIR=home, XDG_CONFIG_HOME=f"{home}/config"))
        rdzv.await_workers(1)
        assert [oct(os.stat(p).st_mode & 0o777) for p in Path(home).glob("torchelastic_*")] == ["0o700"]
        p = ctl(rdzv, "--port", port, "jobs", **user(MALLORY))
        assert p.code == 0 and p.says("running"), p
        Path(home, "go").touch()
        assert a.exit() == 0, a
    finally:
        os.rmdir(taken)
        shutil.rmtree(home)


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.fixture
def become():
    """A setuid program that runs a command as root, for good."""
    folder = tempfile.mkdtemp(dir="/tmp")
    os.chmod(folder, 0o755)
    shutil.copy(shutil.which("setpriv"), f"{folder}/become")
    os.chmod(f"{folder}/become", 0o4755)
    os.mkdir(f"{folder}/home")
    os.chmod(f"{folder}/home", 0o777)
    yield f"{folder}/become --reuid 0 --clear-groups"
    shutil.rmtree(folder)


@needs_users
def test_a_worker_that_has_become_root(rdzv, become):
    """It is named, with its user; the guard, which cannot kill it, is not blamed. When it has ended, the job goes on."""
    home = become.split("/become")[0] + "/home"
    script = f'if [ $RDZV_ROUND = 2 ]; then exit 0; fi; if [ $RANK = 1 ]; then while [ ! -e {home}/go ]; do sleep 0.05; done; exit 3; fi; exec {become} sleep 300'
    a = rdzv.spawn(AGENT, "--standalone", "--max-restarts", 1, "--stop-timeout", "1s", "--nproc", 2, "--", "sh", "-c", script, **user(EVE, TMPDIR=home))
    pid = rdzv.await_workers(2)[0]
    until("the worker is root", lambda: status(pid, "Uid") == 0 and comm(pid) == "sleep")
    Path(home, "go").touch()
    try:
        a.expect(rf"rank 0 \(local 0\), pid {pid} \(sleep\), runs as uid 0 and cannot be killed by uid {EVE}; this node waits until it exits; kill it as root")
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
    assert a.exit() == 0, a
    assert not a.says("does not die of SIGKILL|the guard"), a


# ---- user name spaces ------------------------------------------------------------------------------------------------


needs_name_spaces = pytest.mark.skipif(
    not can_run() or subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode != 0, reason="unshare --user is not permitted here")


@needs_name_spaces
def test_users_that_a_name_space_does_not_know_get_no_key(rdzv):
    """The kernel shows all of them as uid 65534: two users would have one key, and one set of jobs."""
    port = free_port()
    d = rdzv.spawn("unshare", "--user", "--map-root-user", RDZVD, "--listen", f"127.0.0.1:{port}")
    d.expect("listens on")
    p = ctl(rdzv, "--port", port, "key")
    assert p.code == 0 and len(p.out) == 1, p
    for uid in EVE, MALLORY:
        p = ctl(rdzv, "--port", port, "key", **user(uid))
        assert p.code != 0 and not p.out and p.says("shows the daemon your user as nobody known"), p
        p = ctl(rdzv, "--port", port, "jobs", **user(uid))
        assert p.code == 0 and p.out == ["no jobs of yours (your user is not known to the daemon)"], p
    d.end(15)


@needs_name_spaces
def test_an_agent_does_not_run_as_nobody_known(rdzv):
    """Any user that the name space does not know could speak for its workers."""
    command = ["unshare", "--user", AGENT, "--standalone", "--"]
    a = rdzv.spawn(*command, "true", **user(EVE))
    assert a.exit() == 71 and a.says("runs as uid 65534, which in its user name space stands for every user that is not known there.*: run it as another user"), a
    a = rdzv.spawn("unshare", "--user", "--map-root-user", *command[2:], "true", **user(EVE))
    assert a.exit() == 0, a
    a = rdzv.spawn(*command[2:], "true", **user(65534, TMPDIR="/tmp"))
    assert a.exit() == 0, f"nobody of the machine is a user like others:\n{a}"


# ---- what is found beside a program ----------------------------------------------------------------------------------


@pytest.fixture
def unpacked():
    """A folder that everybody may write to, as /tmp, and in its bin/ copies of two programs that belong to root."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        folder = Path(folder)
        (folder / "bin").mkdir(mode=0o755)
        shutil.copy(AGENT, folder / "bin/rdzv-agent")
        shutil.copy(RDZVD, folder / "bin/rdzvd")
        folder.chmod(0o1777)
        yield folder


def place(file, text, mode=0o755):
    """As its user may have to make the folders first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


@needs_users
@pytest.mark.parametrize("name, argv, code", [
    ("etc/rdzv/agent.conf", ["rdzv-agent", "--", "true"], 64),
    ("libexec/rdzv/rdzv-devices", ["rdzv-agent", "--nproc", "auto", "--", "true"], 0),
    ("libexec/rdzv/rdzv-claim", ["rdzvd", "--listen", "127.0.0.1:0", "--claim", "/tmp"], 71),
    ("bin/rdzv-trainer", ["rdzv-agent", "--", "--steps", "1"], 127),
], ids=["agent.conf", "rdzv-devices", "rdzv-claim", "rdzv-trainer"])
def test_what_another_user_has_put_beside_a_program_is_not_run(rdzv, unpacked, name, argv, code):
    """Not by root, and not by a third user. The sentence names the file and its user. What belongs to the program's owner counts."""
    owned = unpacked / "owned"
    text = f"on-event = touch {owned}\n" if name.endswith("conf") else f"#!/bin/sh\ntouch {owned}\n"
    if name.startswith("bin/"):
        (unpacked / "bin").chmod(0o1777)
    with as_user(EVE):
        place(unpacked / name, text)
    command = [unpacked / "bin" / argv[0], *argv[1:]]
    for me in ({}, user(MALLORY)):
        a = rdzv.spawn(*command, **me)
        assert a.exit() == code, a
        assert a.says(rf"{unpacked / name} belongs to uid {EVE}, and would decide what runs here: .* remove it, or chown it"), a
        check(a.err)
    assert not owned.exists()


@needs_users
def test_a_folder_that_others_may_change_is_not_trusted(rdzv, unpacked):
    """A user's own file in it may have been another file a moment ago."""
    place(unpacked / "etc/rdzv/agent.conf", "max-restarts = 7\n", 0o644)
    a = rdzv.spawn(unpacked / "bin/rdzv-agent", "--explain", "--", "true")
    assert a.exit() == 0 and a.says(r"max-restarts 7"), a
    (unpacked / "etc/rdzv").chmod(0o777)
    a = rdzv.spawn(unpacked / "bin/rdzv-agent", "--explain", "--", "true")
    assert a.exit() == 64 and a.says(rf"the folder {unpacked}/etc/rdzv can be changed by every user, and decides what runs here: chmod o-w"), a


@needs_users
def test_files_of_the_programs_owner_count(rdzv, unpacked):
    """A user runs the installation of a colleague. Its file would not count beside a program of root."""
    place(unpacked / "etc/rdzv/agent.conf", "max-restarts = 7\n", 0o644)
    for path in ("etc/rdzv", "etc/rdzv/agent.conf"):
        os.chown(unpacked / path, EVE, EVE)
    a = rdzv.spawn(unpacked / "bin/rdzv-agent", "--explain", "--", "true", **user(MALLORY))
    assert a.exit() == 64 and a.says(f"the folder|belongs to uid {EVE}"), a
    os.chown(unpacked / "bin/rdzv-agent", EVE, EVE)
    a = rdzv.spawn(unpacked / "bin/rdzv-agent", "--explain", "--", "true", **user(MALLORY))
    assert a.exit() == 0 and a.says(r"max-restarts 7"), a


@needs_users
def test_an_environment_of_another_user_is_not_used(rdzv, unpacked):
    """A script would run under her Python. It runs under the one in PATH."""
    owned = unpacked / "owned"
    (unpacked / "sub/bin").mkdir(parents=True)
    shutil.copy(unpacked / "bin/rdzv-agent", unpacked / "sub/bin/rdzv-agent")
    shutil.rmtree(unpacked / "bin")
    with as_user(EVE):
        place(unpacked / "bin/python3", f"#!/bin/sh\ntouch {owned}\n")
        place(unpacked / "pyvenv.cfg", "home = /usr/bin\n", 0o644)
    (rdzv.tmp / "hello").write_text("print('hello')\n")
    a = rdzv.spawn(unpacked / "sub/bin/rdzv-agent", "--standalone", "hello")
    assert a.exit() == 0 and a.says("hello") and not owned.exists(), a
    assert a.says(rf"{unpacked}/pyvenv.cfg belongs to uid {EVE}, .*; scripts run under the python3 in PATH"), a
