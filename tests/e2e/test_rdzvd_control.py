# SPDX-License-Identifier: Apache-2.0
"""The control socket from both sides: rdzvd's rules, rdzvctl's sentences. (What the answers say is for test_rdzvctl_verbs.py.)"""

import json
import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from harness import HOST, RDZVCTL, RDZVD, free_port, until
from native import Native, frame


def ctl(rdzv, *args, **kw):
    p = rdzv.spawn(RDZVCTL, *args, **kw)
    p.code = p.exit(10)
    return p


@pytest.fixture
def home(rdzv, tmp_path):
    """A folder for control sockets, so that daemons of other tests are not seen."""
    path = tmp_path / "run"
    path.mkdir(0o700)
    return {"XDG_RUNTIME_DIR": str(path)}


NOBODY = dict(user=65534, group=65534, extra_groups=[], env={"XDG_RUNTIME_DIR": ""})
SOMEBODY = dict(NOBODY, user=65533, group=65533)


def users_can_run_it():
    if os.geteuid() != 0:
        return False
    try:
        return subprocess.run([RDZVCTL, "--version"], capture_output=True, cwd="/", **NOBODY).returncode == 0
    except OSError:
        return False


needs_users = pytest.mark.skipif(not users_can_run_it(), reason="becoming another user needs root, and a build that others may run")

# ---- rdzvd -----------------------------------------------------------------------------------------------------------


def test_socket_is_for_everybody(rdzv, home):
    d = rdzv.daemon(env=home)
    path = f"{home['XDG_RUNTIME_DIR']}/rdzvd-{d.port}.sock"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o666
    d.expect(f"control socket {path}")
    with Native(path=path) as n:
        assert n.control("jobs") == (0, "no jobs\n")
    assert d.end(signal.SIGTERM) == 0 and not os.path.exists(path)


def test_one_question_a_connection(rdzv, tmp_path):
    """A thousand in one packet are not a thousand answers in one turn of the daemon's loop."""
    d = rdzv.daemon("--socket", tmp_path / "c")
    with Native(path=tmp_path / "c") as n:
        n.write(1000 * frame("CONTROL", dict(verb="jobs"), id=7))
        answers = [m.name for m in n.until_closed(15)]
        assert answers.count("CONTROL_REPLY") == 1
    assert d.running


def test_agents_are_refused_there(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    with Native(path=rdzv.tmp / "s") as n:
        n.hello()
        got = n.until_closed()
    assert [m.name for m in got] == ["GREETING", "REFUSED"] and "agents connect to its port" in got[1].text
    d.expect(r"control socket \(pid \d+, uid \d+\): HELLO refused")


def test_control_at_the_port(rdzv):
    """One question for each connection, of a peer with a key. Without keys nobody knows who asks."""
    d = rdzv.daemon()
    with Native(d.port) as n:
        for _ in range(3):
            n.send("CONTROL", dict(verb="jobs"), id=7)
        got = n.until_closed()
        assert [m.name for m in got] == ["GREETING", "CONTROL_REPLY"] and got[1].raw == b"no jobs\n", got
    d = rdzv.daemon("--insecure")
    with Native(d.port) as n:
        n.send("CONTROL", dict(verb="jobs"), id=7)
        got = n.until_closed()
        assert [m.name for m in got] == ["GREETING", "REFUSED"] and "use its control socket" in got[1].text, got


def test_leftover_of_a_killed_daemon_is_replaced(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    d.end()
    assert (rdzv.tmp / "s").exists()
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    with Native(path=rdzv.tmp / "s") as n:
        assert n.control("jobs")[0] == 0


def test_leftovers_of_killed_daemons_are_swept(rdzv, home):
    """Of any port; not what is alive, nor what is no socket of ours."""
    alive, *dead = [rdzv.daemon(env=home) for _ in range(3)]
    paths = [f"{home['XDG_RUNTIME_DIR']}/rdzvd-{d.port}.sock" for d in (alive, *dead)]
    plain = Path(home["XDG_RUNTIME_DIR"]) / "rdzvd-1.sock"
    plain.touch()
    until("their sockets are there", lambda: all(map(os.path.exists, paths)))
    for d in dead:
        d.end()
    assert all(map(os.path.exists, paths))
    new = rdzv.daemon(env=home)
    new.expect("control socket")
    assert [os.path.exists(p) for p in paths] == [True, False, False] and plain.exists()
    assert ctl(rdzv, "jobs", "--port", alive.port, env=home).exit() == 0
    assert sorted(os.listdir(home["XDG_RUNTIME_DIR"])) == sorted(["rdzvd-1.sock", *[f"rdzvd-{d.port}.sock" for d in (alive, new)]])


def test_living_socket_is_left_alone(rdzv):
    rdzv.daemon("--socket", rdzv.tmp / "s")
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--socket", rdzv.tmp / "s")
    assert p.exit() == 71 and p.says("--socket: .*/s belongs to another running daemon"), p
    (rdzv.tmp / "file").write_text("precious")
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--socket", rdzv.tmp / "file")
    assert p.exit() == 71 and p.says("/file exists and is not a socket"), p
    assert (rdzv.tmp / "file").read_text() == "precious"


@needs_users
def test_users(rdzv):
    port = free_port()
    os.chmod(rdzv.tmp, 0o777)
    d = rdzv.spawn(RDZVD, "--listen", f"127.0.0.1:{port}", **NOBODY)
    folder = f"/tmp/rdzvd-65534-{port}"
    d.expect(f"control socket {folder}/control.sock")
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o755
    assert ctl(rdzv, "--socket", f"{folder}/control.sock", "jobs").code == 0, "root may"
    assert ctl(rdzv, "--port", port, "jobs", **NOBODY).code == 0, "its own user may"
    p = ctl(rdzv, "--socket", f"{folder}/control.sock", "jobs", **SOMEBODY)
    assert p.code == 0 and p.out == ["no jobs of yours (uid 65533)"], p
    assert p.says(rf"rdzvctl: this daemon belongs to user \S+ \(uid 65534\), pid {d.pid}"), "whose daemon it is, is said"
    assert d.end(signal.SIGTERM) == 0 and not os.path.exists(folder)


@needs_users
def test_daemons_of_other_users_do_not_count(rdzv):
    """One line says that there is one; --socket is for those who trust it."""
    port = free_port()
    theirs = rdzv.spawn(RDZVD, "--listen", f"127.0.0.1:{port}", **SOMEBODY)
    theirs.expect("control socket")
    for who in NOBODY, {}:
        p = ctl(rdzv, "--port", port, "jobs", **who)
        assert p.code == 69 and len(p.err) == 1 and not p.out, p
        assert p.says(rf"no rdzvd of this user, .* /tmp/rdzvd-65533-{port}/control.sock belongs to user \S+ \(uid 65533\): .*--socket"), p
    mine = rdzv.spawn(RDZVD, "--listen", f"127.0.0.2:{port}", **NOBODY)
    mine.expect("control socket")
    p = ctl(rdzv, "--port", port, "jobs", **NOBODY)
    assert p.code == 0 and p.text == "no jobs", p
    for d in (mine, theirs):
        assert d.end(signal.SIGTERM) == 0


@needs_users
def test_closed_folder(rdzv, home):
    os.chmod(home["XDG_RUNTIME_DIR"], 0o700)
    rdzv.daemon("--socket", f"{home['XDG_RUNTIME_DIR']}/s")
    p = ctl(rdzv, "--socket", f"{home['XDG_RUNTIME_DIR']}/s", "jobs", **NOBODY)
    assert p.code == 69 and p.says("/s: permission denied"), p


@needs_users
def test_folder_in_tmp_that_is_not_ours(rdzv):
    port = free_port()
    folder = f"/tmp/rdzvd-65534-{port}"
    os.mkdir(folder, 0o777)
    try:
        p = rdzv.spawn(RDZVD, "--listen", f"127.0.0.1:{port}", **NOBODY)
        path = p.expect(rf"listens on .*; control socket ({folder}-\w{{6}}/control\.sock)")[1]
        assert ctl(rdzv, "--port", port, "jobs", **NOBODY).code == 0, "rdzvctl finds it"
        assert p.end(signal.SIGTERM) == 0 and not os.path.exists(os.path.dirname(path)), p
    finally:
        os.rmdir(folder)


# ---- rdzvctl ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "args, words",
    [
        ([], "a command is missing"),
        (["statsu"], '"statsu" is not a command: did you mean status?'),
        (["kill-worker", "x", "1", "--signal", "SIGFOO"], "SIGFOO: unknown signal"),
        (["status", "--port", "1", "--socket", "x"], "exclude each other"),
        (["jobs", "--port", "0"], "--port"),
        (["--endpoint", "[::1", "jobs"], "--endpoint"),
        (["jobs", "--socket", "x" * 200], "at most 107 bytes"),
        (["jobs", "--jsn"], "--json"),
    ],
)
def test_bad_command_line(rdzv, args, words):
    p = ctl(rdzv, *args)
    assert p.code == 64 and p.says(words) and len(p.err) == 1, p


@pytest.mark.parametrize(
    "code, args, words",
    [
        (64, ["--json"], "a command is missing"),
        (64, ["frobnicate", "--json"], '"frobnicate" is not a command'),
        (64, ["jobs", "--jsn", "--json"], "unknown option --jsn: did you mean --json?"),
        (64, ["--port", "x", "jobs", "--json"], "--port=x: not a whole number from 1 to 65535"),
        (64, ["stop", "--json=yes"], "an argument is missing: rdzvctl stop JOB"),
        (64, ["jobs", "--json", "--socket", "x" * 200], "at most 107 bytes"),
        (69, ["jobs", "--json", "--port", "1"], "no rdzvd that this user can reach listens on port 1 of this machine"),
        (69, ["jobs", "--json", "--socket", "nowhere\x1b\udcff"], "no daemon listens there"),
        (69, ["stop", "j", "--json", "--endpoint", "no-such-host.invalid:1"], "unknown host"),
    ],
    ids=lambda v: " ".join(v)[:30] if isinstance(v, list) else "",
)
def test_failures_are_json_without_a_daemon(rdzv, home, code, args, words):
    p = ctl(rdzv, *args, env=home)
    failure = json.loads(p.text)
    assert p.code == code and not p.err and len(p.out) == 1, p
    assert list(failure) == ["ok", "code", "text"] and failure["ok"] is False and failure["code"] == code and words in failure["text"], p


def test_failures_are_json_by_variable(rdzv, home):
    p = ctl(rdzv, "nope", env={**home, "RDZVCTL_JSON": "1"})
    assert p.code == 64 and json.loads(p.text)["code"] == 64, p
    p = ctl(rdzv, "nope", "--json=no", env={**home, "RDZVCTL_JSON": "1"})
    assert p.code == 64 and not p.out and len(p.err) == 1, p


def test_watch_alone_is_status(rdzv):
    rdzv.daemon("--socket", rdzv.tmp / "s")
    p = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "s", "--watch", "--json")
    until("two objects", lambda: len(p.out) >= 2)
    said = [json.loads(text) for text in [*p.out[:2], ctl(rdzv, "--socket", rdzv.tmp / "s", "status", "--json").text]]
    times = [fields.pop("wall_ms") for fields in said]
    assert said[0] == said[1] == said[2] and times == sorted(times), p
    assert p.end(signal.SIGINT, 5) == 0, p


def test_help(rdzv):
    p = ctl(rdzv, "--help")
    assert p.code == 0 and p.says("status") and max(map(len, p.out)) <= 100, p


def test_options_before_and_behind_the_verb(rdzv):
    rdzv.daemon("--socket", rdzv.tmp / "s")
    for args in (["--json", "jobs", "--socket", "s"], ["--socket=s", "jobs", "--json"], ["jobs", "--json", "--socket", "s"]):
        p = ctl(rdzv, *args)
        assert p.code == 0 and json.loads(p.text)["jobs"] == [], p
    p = ctl(rdzv, "jobs", "--json", env={"RDZVCTL_SOCKET": "s"})
    assert p.code == 0 and json.loads(p.text)["jobs"] == [], p


def test_finds_the_daemon_by_its_port(rdzv, home):
    d = rdzv.daemon(env=home)
    for where in (["--port", d.port], ["--endpoint", d.endpoint], ["--endpoint", f"localhost:{d.port}"], ["--endpoint", f"{HOST}:{d.port}"]):
        assert ctl(rdzv, "jobs", *where, env=home).code == 0, where


def test_no_daemon(rdzv, home):
    port = free_port()
    p = ctl(rdzv, "jobs", "--port", port, env=home)
    assert p.code == 69 and p.says(f"no rdzvd that this user can reach listens on port {port}"), p
    p = ctl(rdzv, "jobs", "--socket", "nowhere")
    assert p.code == 69 and p.says("nowhere: no daemon listens there"), p
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    d.end()
    p = ctl(rdzv, "jobs", "--socket", "s")
    assert p.code == 69 and p.says("s: no daemon listens there"), p


def test_endpoint_of_another_machine(rdzv, lan):
    """It is asked over its port. Where the daemon has no key, it is its own machine's affair."""
    for more in [], ["--json"]:
        p = ctl(rdzv, "stop", "job", "--endpoint", "10.99.0.1:29400", *more, wrap=lan[1])
        assert p.code == 69 and p.says(r"10\.99\.0\.1:29400: no daemon listens there"), p
        p = ctl(rdzv, "stop", "job", "--insecure", "--endpoint", "10.99.0.1:29400", *more, wrap=lan[1])
        assert p.code == 72 and p.says(r"ssh 10\.99\.0\.1 rdzvctl"), p
        p = ctl(rdzv, "jobs", "--endpoint", "no-such-host.invalid:1", *more)
        assert p.code == 69 and p.says("no-such-host.invalid"), p


def test_several_daemons(rdzv, home):
    """A key is of one daemon. The jobs are of all of them."""
    a, b = rdzv.daemon(env=home), rdzv.daemon(env=home)
    p = ctl(rdzv, "key", env=home)
    assert p.code == 64 and p.says("several daemons run here; choose one"), p
    failure = json.loads(ctl(rdzv, "key", "--json", env=home).text)
    assert failure["ok"] is False and failure["code"] == 64, failure
    for verb in "jobs", "status", "top":
        q = ctl(rdzv, verb, env=home)
        assert q.code == 0 and q.out and not q.says(rf"rdzvd-({a.port}|{b.port})\.sock"), q  # other tests have daemons too
    for d in (a, b):
        assert f"{home['XDG_RUNTIME_DIR']}/rdzvd-{d.port}.sock" in failure["sockets"], failure
        assert p.says(f"--socket {home['XDG_RUNTIME_DIR']}/rdzvd-{d.port}.sock"), p


def test_daemon_that_does_not_answer(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    d.kill(signal.SIGSTOP)
    began = time.monotonic()
    p = ctl(rdzv, "jobs", "--socket", "s")
    assert p.code == 69 and 4.5 < time.monotonic() - began, p
    assert p.says(r"gave up after 5 s of waiting for an answer at s \(the daemon is stopped, or very busy\)"), p
    p = ctl(rdzv, "jobs", "--json", "--socket", "s")
    assert p.code == 69 and json.loads(p.text)["text"].startswith("gave up after 5 s") and not p.err, p
    d.kill(signal.SIGCONT)


def test_somebody_else_at_the_socket(rdzv):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(rdzv.tmp / "s"))
        s.listen()
        p = rdzv.spawn(RDZVCTL, "--socket", "s", "jobs")
        c, _ = s.accept()
        c.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        c.close()
        assert p.exit() == 69 and p.says("s: no answer from the daemon"), p


def test_the_socket_of_a_killed_daemon_goes_with_the_next_clean_end(rdzv):
    """Two daemons have one port on two addresses, as on hosts that share /tmp: the second one finds the name taken, and the first one is killed."""
    first = rdzv.daemon()
    path = Path(first.expect(r"control socket (\S+);")[1])
    second = rdzv.daemon(port=first.port, listen="127.0.0.2")
    second.expect("no control socket, rdzvctl cannot reach this daemon: .* belongs to another running daemon")
    first.kill(signal.SIGKILL)
    first.popen.wait(10)
    assert path.exists()
    assert second.end(signal.SIGTERM) == 0 and not path.exists(), rdzv
