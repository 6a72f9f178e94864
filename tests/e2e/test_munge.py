# SPDX-License-Identifier: Apache-2.0
"""A daemon of root, and users whose own keys it does not know: MUNGE, a real one, brings each the key of that user."""

import contextlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import threading
import time

import pytest

import sealed
from crowd import descriptors
from harness import RDZVCTL, RDZVD, free_port, listen_in, stop_accepting, until
from munged import munged, needs_munge
from others import EVE, MALLORY, needs_users
from sealed import Key

REFUSED = 72  # exit code
pytestmark = [needs_munge, needs_users]


@pytest.fixture
def m():
    with munged() as one:
        yield one


@pytest.fixture
def home(tmp_path_factory):
    """A folder for a user's key."""
    folder = tmp_path_factory.mktemp("home")
    for up in (folder, *folder.parents):
        if up.stat().st_uid == os.geteuid() and str(up).count("/") > 1:
            up.chmod(up.stat().st_mode | 0o011)
    os.chown(folder, EVE, EVE)
    return folder


def someone(m, home, uid=EVE, **env):
    os.chown(home, uid, uid)
    become = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups"]  # the harness gives a key to those that it makes another user
    return dict(wrap=[*map(str, become)], env={"XDG_RUNTIME_DIR": "", "TMPDIR": "", "HOME": "/", "XDG_CONFIG_HOME": str(home), **m.env, **env})


def agent(rdzv, d, *words, **who):
    return rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", "j", "--nnodes", "1", *words, "--", "sh", "-c", "echo my uid is $(id -u)", **who)


def ask(port, credential, timeout=10):
    """What the daemon answers: status, and bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout) as s:
        s.sendall(b"RDZV" + struct.pack("<HHI", 1, sealed.MUNGE, len(credential)) + credential)
        data = b""
        while more := s.recv(65536):
            data += more
    assert data[:6] == b"RDZV\1\0", data
    if len(data) == 8:
        return data[6], b""
    (n,) = struct.unpack_from("<I", data, 8)
    assert len(data) == 12 + n, data
    return data[6], data[12:]


def credential(m, text, uid=None, *options):
    who = dict(user=uid, group=uid, extra_groups=[]) if uid else {}
    return subprocess.run(["munge", f"--socket={m.socket}", f"--string={text}", *options], capture_output=True, check=True, cwd="/", **who).stdout.strip()


def opened(m, answer, uid=None):
    """Whether that user can decode it, and its text."""
    who = dict(user=uid, group=uid, extra_groups=[]) if uid else {}
    done = subprocess.run(["unmunge", f"--socket={m.socket}", "--metadata=/dev/null"], input=answer, capture_output=True, cwd="/", **who)
    return done.returncode == 0, done.stdout.decode().strip()


def test_each_user_gets_a_key(rdzv, m, home):
    """Of that user, which others cannot decode. The job is the user's."""
    d = rdzv.daemon(env=m.env)
    p = agent(rdzv, d, "--verbose", **someone(m, home))
    assert p.exit() == 0, f"{p}\n{d}"
    assert p.says(f"my uid is {EVE}") and p.says("MUNGE has brought the key of this user"), p
    nonce = "ab" * 32
    status, answer = ask(d.port, credential(m, f"rdzv-key-request 1 {nonce}", EVE))
    assert status == sealed.CREDENTIAL
    for other in (MALLORY, None):
        assert opened(m, answer, other) == (False, ""), "somebody else can decode it"
    good, text = opened(m, answer, EVE)
    word, version, same, key = text.split()
    assert good and (word, version, same) == ("rdzv-key", "1", nonce) and key.startswith(f"{EVE}:") and key.split(":")[1] != rdzv.key
    for said in (d.text, p.text):
        assert key.split(":")[1] not in said and rdzv.key not in said, "a key is logged"


def test_what_the_daemon_refuses(rdzv, m):
    d = rdzv.daemon(env=m.env)
    request = credential(m, "rdzv-key-request 1 " + "ab" * 32)
    assert ask(d.port, request)[0] == sealed.CREDENTIAL
    assert ask(d.port, request) == (sealed.MUNGE_REFUSED, b"the MUNGE credential was used before")
    with munged() as other:
        status, why = ask(d.port, credential(other, "rdzv-key-request 1 " + "ab" * 32))
        assert status == sealed.MUNGE_REFUSED and b"same /etc/munge/munge.key" in why, why
    assert b"does not ask for a key" in ask(d.port, credential(m, "hello"))[1]
    assert b"not a MUNGE credential" in ask(d.port, b"")[1]
    assert d.running


def test_a_munged_that_hangs(rdzv, m, home):
    """Neither the agent nor the daemon hangs in it: others join, and this one when munged goes on."""
    d = rdzv.daemon(env=m.env)
    m.stop()
    p = agent(rdzv, d, **someone(m, home))
    assert agent(rdzv, d, "--rdzv-id", "other").exit() == 0, "root has the daemon's key"
    p.expect("MUNGE brings none: munged of this machine did not answer within 4 s; trying again")
    m.go_on()
    assert p.exit() == 0, f"{p}\n{d}"


def test_without_munge_here_or_there(rdzv, m, home):
    """The refusal says what else helps, and why MUNGE does not."""
    d = rdzv.daemon("--quiet", env={"RDZV_MUNGE_SOCKET": "/nonexistent"})
    p = agent(rdzv, d, **someone(m, home))
    assert p.exit() == REFUSED and p.says("has another key .*copy it: .*; MUNGE brings none: no munged runs on rdzvd's machine"), p
    d.expect("refused: its key is not the key of this daemon")  # a warning, unless MUNGE may bring the right one
    d = rdzv.daemon(env=m.env)
    p = agent(rdzv, d, **someone(m, home, RDZV_MUNGE_SOCKET="/nonexistent"))
    assert p.exit() == REFUSED and p.says("has another key .*copy it: ") and not p.says("MUNGE"), p


def test_a_key_that_was_named_is_not_replaced(rdzv, m, home):
    d = rdzv.daemon(env=m.env)
    p = agent(rdzv, d, **someone(m, home, RDZV_KEY="00" * 32))
    assert p.exit() == REFUSED and p.says("has another key .*RDZV_KEY") and not p.says("MUNGE"), p


def test_only_trusted_users_give_keys(rdzv, m, home, tmp_path_factory):
    """MALLORY's daemon, which a user would have to trust by name."""
    folder = tmp_path_factory.mktemp("mallory")
    port = free_port()
    d = rdzv.spawn(RDZVD, "--listen", f"127.0.0.1:{port}", "--socket", folder / "socket", **someone(m, folder, MALLORY))
    d.expect("listens on")
    d.endpoint = f"127.0.0.1:{port}"
    p = agent(rdzv, d, **someone(m, home))
    assert p.exit() == REFUSED and p.says(f"MUNGE brings none: a program of uid {MALLORY} answers there.* give --munge-user"), f"{p}\n{d}"
    p = agent(rdzv, d, "--munge-user", MALLORY, **someone(m, home))
    assert p.exit() == 0, f"{p}\n{d}"
    assert d.end(signal.SIGTERM) == 0, d


# ---- strangers, who have no key and send junk ------------------------------------------------------------------------


class Junk:
    """Connections on which something is sent that is no credential, at once again when it was answered. Strangers need no key for that."""

    QUESTION = b"RDZV" + struct.pack("<HHI", 1, sealed.MUNGE, 15) + b"MUNGE:nonsense:"

    def __init__(self, port, addresses, each):
        self.port, self.given_up = port, 0
        self.ready, self.ending = selectors.DefaultSelector(), threading.Event()
        for i in range(addresses * each):
            self._ask(f"127.7.0.{1 + i % addresses}")
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _ask(self, source):
        s = socket.socket()
        s.setblocking(False)
        s.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # no port waits in TIME_WAIT
        s.bind((source, 0))
        s.connect_ex(("127.0.0.1", self.port))
        self.ready.register(s, selectors.EVENT_WRITE, source)

    def _turn(self, s, events, source):
        with contextlib.suppress(OSError):
            if events & selectors.EVENT_WRITE:
                s.send(self.QUESTION)
                self.ready.modify(s, selectors.EVENT_READ, source)
                return
            self.given_up += b"did not answer within" in s.recv(4096)
        self.ready.unregister(s)
        s.close()
        self._ask(source)

    def _run(self):
        while not self.ending.is_set():
            for key, events in self.ready.select(0.1):
                self._turn(key.fileobj, events, key.data)

    def close(self):
        self.ending.set()
        self.thread.join()
        for key in list(self.ready.get_map().values()):
            key.fileobj.close()


class Slow:
    """Passes connections on to munged after 20 ms, so that the daemon's four threads ask it 200 times a second at most."""

    def __init__(self, m, path):
        self.target, self.env = m.socket, {"RDZV_MUNGE_SOCKET": str(path)}
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen(64)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self.listener.accept()[0],), daemon=True).start()

    def _serve(self, s):
        with contextlib.suppress(OSError), s, socket.socket(socket.AF_UNIX) as to:
            if not (data := s.recv(65536)):
                return  # a look at the socket
            time.sleep(0.02)
            to.connect(str(self.target))
            to.sendall(data)
            while data := to.recv(65536):
                s.sendall(data)

    def close(self):
        stop_accepting(self.listener, self.thread)


@pytest.mark.parametrize("addresses", [8, 40])
def test_junk_of_many_addresses(rdzv, m, home, addresses):
    """More than munged can look at within a request's 5 s waits before it all the time. Agents who come then have their turn at once."""
    slow = Slow(m, rdzv.tmp / "slow")
    with descriptors(8192):
        d = rdzv.daemon(env=slow.env)
    junk = Junk(d.port, addresses, 2000 // addresses)
    try:
        until("the strangers' requests wait until they are given up", lambda: junk.given_up > 10, 30)
        for _ in range(4):
            p = agent(rdzv, d, **someone(m, home))
            assert p.exit(30) == 0 and p.says(f"my uid is {EVE}"), f"{p}\n{d}"
            assert not p.says("trying again"), p
    finally:
        junk.close()
        slow.close()


class Doorkeeper:
    """Passes connections on to a daemon. The first ones that ask for a key by MUNGE are not: they are reset when they have asked."""

    def __init__(self, port, resets):
        self.target, self.resets, self.reset = port, resets, 0
        self.listener = listen_in()
        self.endpoint = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        with contextlib.suppress(OSError):
            while True:
                s, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(s,), daemon=True).start()

    def _serve(self, s):
        data = s.recv(4096)
        if struct.unpack_from("<H", data, 6)[0] == sealed.MUNGE and self.reset < self.resets:
            self.reset += 1
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.close()
            return
        to = socket.create_connection(("127.0.0.1", self.target))
        to.sendall(data)
        back = threading.Thread(target=self._copy, args=(to, s), daemon=True)
        back.start()
        self._copy(s, to)
        back.join()
        s.close()
        to.close()

    @staticmethod
    def _copy(one, other):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self):
        stop_accepting(self.listener, self.thread)


def test_a_daemon_that_ends_while_it_is_asked(rdzv, m, home):
    """A reset says nothing of the user. The agent asks again, as after any connection that is lost."""
    d = rdzv.daemon(env=m.env)
    door = Doorkeeper(d.port, 3)
    try:
        d.endpoint = door.endpoint
        p = agent(rdzv, d, **someone(m, home))
        assert p.exit() == 0 and door.reset == 3, f"{p}\n{d}"
    finally:
        door.close()


def test_a_munged_of_the_daemon_that_starts_again(rdzv, m, home):
    """It is asked for a key while it closes every connection. When it is back, the agent gets its key."""
    path = rdzv.tmp / "munged"
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        path.chmod(0o666)
        asked = threading.Event()

        def hang_up():
            with contextlib.suppress(OSError):
                while True:
                    with deaf.accept()[0] as s:
                        if s.recv(1):  # a look at the socket says nothing
                            asked.set()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        d = rdzv.daemon(env={"RDZV_MUNGE_SOCKET": str(path)})
        p = agent(rdzv, d, **someone(m, home))
        p.expect("MUNGE brings none: on rdzvd's machine: munged of this machine does not answer.*; trying again")
        assert asked.is_set()
        link = rdzv.tmp / "link"
        link.symlink_to(m.socket)
        link.rename(path)
        assert p.exit() == 0, f"{p}\n{d}"
        deaf.shutdown(socket.SHUT_RDWR)
        thread.join(10)


@pytest.mark.parametrize("socket_left", [True, False], ids=["refuses", "gone"])
@pytest.mark.parametrize("end", ["agent", "daemon"])
def test_a_munged_that_is_away_for_a_moment(rdzv, m, home, end, socket_left):
    """Nobody listens at its socket, or the file is gone, while an agent asks for a key. Both ends expect it back."""
    path = m.folder / "other"  # which EVE reaches
    there = dict(RDZV_MUNGE_SOCKET=str(path))
    link = m.folder / "link"

    def come():
        link.symlink_to(m.socket)
        link.rename(path)

    def go():
        path.unlink(missing_ok=True)
        if socket_left:
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(path))
            path.chmod(0o666)

    come()
    d = rdzv.daemon(env=there if end == "daemon" else m.env)
    if end == "daemon":  # which has given a key by MUNGE before
        assert agent(rdzv, d, "--rdzv-id", "first", **someone(m, home)).exit() == 0, d
        go()
        p = agent(rdzv, d, **someone(m, home))
        p.expect("MUNGE brings none: on rdzvd's machine: munged of this machine does not answer.*; trying again")
    elif socket_left:  # which starts in that moment, and cannot make a key of its own
        go()
        p = agent(rdzv, d, **someone(m, home, XDG_CONFIG_HOME="/proc/rdzv", **there))
        p.expect("MUNGE brings none: munged of this machine does not answer.*; trying again")
    else:  # which comes back to a daemon with another key
        p = rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", "j", "--verbose", "--", "sleep", "600", **someone(m, home, **there))
        p.expect("round 1: 1 node")
        go()
        d.end(signal.SIGKILL)
        d = rdzv.daemon(port=d.port, env=dict(m.env, RDZV_KEY="cd" * 32))
        until("the key by MUNGE is refused, and the agent's own twice", lambda: d.text.count("refused: its key is not the key") >= 3)
    come()
    if end == "agent" and not socket_left:
        until("the agent has another key", lambda: p.text.count("MUNGE has brought the key of this user") == 2)
        p.end(signal.SIGTERM)
    else:
        assert p.exit() == 0, f"{p}\n{d}"


# ---- rdzvctl of another machine: over the port, which is what it does where it finds no control socket ---------------


def ctl(rdzv, d, *words, **who):
    return rdzv.spawn(RDZVCTL, "--endpoint", d.endpoint, *words, **who)


@pytest.fixture
def d(rdzv, m):
    """A daemon whose control socket rdzvctl does not find."""
    return rdzv.daemon("--socket", rdzv.tmp / "s", "--quiet", env=m.env)


def keep_key(home, text):
    path = home / "rdzv/key"
    path.parent.mkdir()
    path.touch(0o600)
    path.write_text(text + "\n")
    for one in (path.parent, path):
        os.chown(one, EVE, EVE)


@pytest.mark.parametrize("key", [None, "ab" * 32], ids=["no key", "another key"])
def test_rdzvctl_of_each_user(rdzv, m, d, home, key):
    """Sees and stops its user's jobs, and not those of others. No key stays behind, and the daemon warns of nothing."""
    if key:
        keep_key(home, key)
    before = sorted(home.rglob("*"))
    one = rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", "roots", "--", "sleep", "600")
    two = rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", "eves", "--", "sleep", "600", **someone(m, rdzv.tmp))
    for a in one, two:
        a.expect("1 worker;")
    p = ctl(rdzv, d, "jobs", **someone(m, home))
    assert p.exit() == 0 and p.says("eves") and not p.says("roots"), f"{p}\n{d}"
    assert ctl(rdzv, d, "stop", "roots", **someone(m, home)).exit() == 1
    assert ctl(rdzv, d, "stop", "eves", **someone(m, home)).exit() == 0
    assert two.exit() == 77, two
    assert ctl(rdzv, d, "stop", "roots").exit() == 0, "root has the daemon's key"
    assert one.exit() == 77, one
    assert sorted(home.rglob("*")) == before
    assert "refused" not in d.text, d


def test_token_of_a_user_without_a_key(rdzv, m, d, home):
    p = ctl(rdzv, d, "token", **someone(m, home))
    assert p.exit() == 0 and p.out == [Key.parse(rdzv.key).derive(EVE).token()], p


def test_watch_asks_munge_once(rdzv, m, d, home):
    """The key serves the next questions too; a daemon that comes back with another key is asked again."""
    p = ctl(rdzv, d, "jobs", "--watch", "--json", **someone(m, home))
    p.expect('"jobs"')
    m.stop()
    seen = p.text.count('"jobs"')
    until(lambda: f"more answers:\n{p}", lambda: p.text.count('"jobs"') >= seen + 2)
    m.go_on()
    assert d.end(signal.SIGTERM) == 0
    p.expect("no daemon listens there")
    seen = p.text.count('"jobs"')
    new = rdzv.daemon("--socket", rdzv.tmp / "s", port=d.port, env=dict(m.env, RDZV_KEY="cd" * 32))
    until(lambda: f"answers of the new daemon:\n{p}\n{new}", lambda: p.text.count('"jobs"') > seen)
    assert p.end(signal.SIGTERM) == 0, p


def test_why_rdzvctl_gets_no_key(rdzv, m, d, home, tmp_path_factory):
    """One sentence: what helps, and why MUNGE does not."""
    none = dict(RDZV_MUNGE_SOCKET="/nonexistent")
    plain = rdzv.daemon("--socket", rdzv.tmp / "plain", env=none)
    p = ctl(rdzv, plain, "jobs", **someone(m, home))
    assert p.exit() == REFUSED and p.says(r"has no key here for .*ssh 127.0.0.1 rdzvctl --port \d+ key .*; MUNGE brings none: no munged runs on rdzvd's machine"), p
    p = ctl(rdzv, d, "jobs", **someone(m, home, **none))
    assert p.exit() == REFUSED and p.says("has no key here for ") and not p.says("MUNGE"), p
    p = ctl(rdzv, d, "jobs", **someone(m, home, RDZV_KEY="00" * 32))
    assert p.exit() == REFUSED and p.says("has another key .*RDZV_KEY") and not p.says("MUNGE"), p
    keyless = rdzv.daemon("--insecure", "--socket", rdzv.tmp / "keyless", env=m.env)
    p = ctl(rdzv, keyless, "jobs", **someone(m, home))
    assert p.exit() == REFUSED and p.says(rf"a daemon without a key \(--insecure\) takes commands on its own machine only: ssh 127.0.0.1 rdzvctl --port {keyless.port}"), p
    keep_key(home, "ab" * 32)
    p = ctl(rdzv, plain, "jobs", **someone(m, home))
    assert p.exit() == REFUSED and p.says(r"has another key .*than this rdzvctl .*rdzvctl --port \d+ key .*; MUNGE brings none: no munged runs on"), p
    assert d.end(signal.SIGTERM) == 0
    p = ctl(rdzv, d, "jobs", **someone(m, tmp_path_factory.mktemp("other")))
    assert p.exit() == 69 and p.says("no daemon listens there"), p


def test_a_munged_that_hangs_does_not_hang_rdzvctl(rdzv, m, d, home):
    m.stop()
    p = ctl(rdzv, d, "jobs", **someone(m, home))
    assert p.exit() == REFUSED and p.says("has no key here for .*; MUNGE brings none: munged of this machine did not answer within 4 s"), p
    m.go_on()


def test_rdzvctl_trusts_as_the_agent_does(rdzv, m, home, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mallory")
    port = free_port()
    d = rdzv.spawn(RDZVD, "--listen", f"127.0.0.1:{port}", "--socket", folder / "socket", **someone(m, folder, MALLORY))
    d.expect("listens on")
    d.endpoint = f"127.0.0.1:{port}"
    p = ctl(rdzv, d, "jobs", **someone(m, home))
    assert p.exit() == REFUSED and p.says(f"MUNGE brings none: a program of uid {MALLORY} answers there.* give --munge-user"), p
    assert ctl(rdzv, d, "jobs", "--munge-user", MALLORY, **someone(m, home)).exit() == 0, d
    p = ctl(rdzv, d, "jobs", "--munge-user", "nobody-of-that-name", **someone(m, home))
    assert p.exit() == REFUSED and p.says("--munge-user nobody-of-that-name: this machine has no such user"), p
    assert d.end(signal.SIGTERM) == 0, d
