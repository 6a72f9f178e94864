# SPDX-License-Identifier: Apache-2.0
"""A daemon of root, and users whose own keys it does not know: MUNGE, a real one, brings each the key of that user."""

import os
import signal
import socket
import struct
import subprocess

import pytest

import sealed
from harness import RDZVD, free_port
from munged import munged, needs_munge
from others import EVE, MALLORY, needs_users

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
    d = rdzv.daemon(env={"RDZV_MUNGE_SOCKET": "/nonexistent"})
    p = agent(rdzv, d, **someone(m, home))
    assert p.exit() == REFUSED and p.says("has another key .*copy it: .*; MUNGE brings none: no munged runs on rdzvd's machine"), p
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
    d.kill(signal.SIGTERM)
    assert d.exit() == 0, d
