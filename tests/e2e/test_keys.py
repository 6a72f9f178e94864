# SPDX-License-Identifier: Apache-2.0
"""Where keys come from: each source, from the words of a person to a job that runs with it, and nothing of the key where it does not belong.

A job that runs is the proof that its agents and its daemon have one key: the daemon refuses any other.
"""

import base64
import json
import os
import secrets
import shutil
import socket
import stat
import time
from pathlib import Path

import pytest

from harness import AGENT, HOST, RDZVCTL, RDZVD, SANITIZED, describe, environ, free_port, until, write_key
from sealed import Key
from terminal import Terminal

REFUSED = 72
WAIT = "env >env.$RANK.new; mv env.$RANK.new env.$RANK; while [ ! -e go ]; do sleep 0.02; done"


@pytest.fixture
def key():
    return secrets.token_hex(32)


def explain(rdzv, *words, env=None, argv=("true",)):
    p = rdzv.agent("--explain", *words, "--", *argv, env=env)
    assert p.exit() == 0, p
    return next(l.removeprefix("key ") for l in p.out if l.startswith("key "))


def refuses(rdzv, sentence, *words, env=None, code=64, program=AGENT):
    p = rdzv.spawn(program, *words, env=env)
    assert p.exit() == code and p.says(sentence), p
    return p


def serve(rdzv, *words, env=None, **kw):
    d = rdzv.daemon("--socket", rdzv.tmp / "s", *words, env=env, **kw)
    d.expect("listens on")  # its port file may be seen before its lines
    return d


def ctl(rdzv, *words, **kw):
    p = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "s", *words, **kw)
    p.code = p.exit()
    return p


def join(rdzv, d, *words, env=None, **kw):
    """The exit code of a job of one agent at that daemon."""
    a = rdzv.agent("--endpoint", d.endpoint, *words, "--", "true", env=env, **kw)
    return a, a.exit()


def memory(pid, want=lambda flags: " dd" not in flags):
    """What a core dump of the process would have: see core(5), MADV_DONTDUMP. Or the mappings whose VmFlags are wanted."""
    parts, start = [], 0
    with open(f"/proc/{pid}/smaps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        ranges = []
        for line in maps:
            first = line.split(" ", 1)[0]
            if "-" in first and not first.endswith(":"):
                ranges.append([*(int(x, 16) for x in first.split("-")), line.split()[1], False])
            elif line.startswith("VmFlags:"):
                ranges[-1][3] = want(line)
        for start, end, mode, wanted in ranges:
            if "r" in mode and wanted:
                try:
                    mem.seek(start)
                    parts.append(mem.read(end - start))
                except (OSError, OverflowError):
                    pass  # vvar, vsyscall
    return b"\0".join(parts)


def clean(rdzv, text, allowed=()):
    """No process of the test shows the key: in its words, environment, or what a core dump would have; nor does anything that was printed, or
    written below the test's folder."""
    raw, looked = bytes.fromhex(text), 0
    for pid in rdzv.pids():
        assert text not in describe(pid), describe(pid)
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                shown = f.read()
            image = memory(pid)
        except OSError:
            continue  # it has ended
        assert text.encode() not in shown, describe(pid)
        looked += 1
        assert rdzv.mark.encode() in image, describe(pid)  # of its environment: the image is whole
        assert raw not in image and text.encode() not in image, f"the key is in the memory of {describe(pid)}"
        if not SANITIZED:
            assert raw not in memory(pid, lambda flags: " lo" not in flags), f"the key is in memory that may be swapped, of {describe(pid)}"
    assert looked or not any(p.running for p in rdzv.procs)
    for p in rdzv.procs:
        assert text not in p.text and text not in " ".join(p.argv), p
    for path in rdzv.tmp.rglob("*"):
        if path.is_file() and path not in allowed:
            assert text.encode() not in path.read_bytes(), path


# ---- files, environment, descriptor ----------------------------------------------------------------------------------


def test_file(rdzv, key):
    """Daemon and agents take --key-file and RDZV_KEY_FILE; another file is refused, and the daemon says which kind its own is."""
    path = rdzv.tmp / "my.key"
    write_key(path, key)
    d = serve(rdzv, "--key-file", path)
    d.expect(f"key: --key-file {path}$")
    for words, env in (["--key-file", path], {}), ([], {"RDZV_KEY_FILE": str(path)}), ([], {"RDZV_AGENT_KEY_FILE": str(path)}):
        a, code = join(rdzv, d, *words, env=env)
        assert code == 0, a
    a, code = join(rdzv, d)
    assert code == REFUSED and a.says(r"rdzvd at \S+ has another key \(its --key-file\) than this agent"), a
    a, code = join(rdzv, d, env={"RDZV_KEY": "00" * 32})
    assert code == REFUSED and a.says(r"this agent \(RDZV_KEY\): put the daemon's key there; this prints it: ssh 127.0.0.1 rdzvctl --port \d+ key$"), a
    assert not a.says("copy it"), "a copy in the default file would not be read"
    assert explain(rdzv, "--key-file", path) == f"--key-file {path}"
    clean(rdzv, key, [path])


def test_site_file(rdzv, key):
    """agent.conf may name the file; a person's word overrides it."""
    path, conf = rdzv.tmp / "site.key", rdzv.tmp / "agent.conf"
    write_key(path, key)
    conf.write_text(f"key-file = {path}\n")
    env = {"RDZV_AGENT_CONF": str(conf)}
    assert explain(rdzv, env=env) == f"key-file in agent.conf {path}"
    assert explain(rdzv, env={**env, "RDZV_KEY": key}) == "RDZV_KEY"
    assert explain(rdzv, "--insecure", env=env) == "none (--insecure)"


def test_environment(rdzv, key):
    """RDZV_KEY serves daemon and agent, and is gone from the environment that the kernel shows of them and of all that they start."""
    d = serve(rdzv, env={"RDZV_KEY": key})
    a = rdzv.agent("--endpoint", d.endpoint, "--verbose", "--", "sh", "-c", WAIT, env={"RDZV_KEY": key, "RDZV_KEY_FILE": ""})
    assert a.exit() == 64 and a.says("RDZV_KEY_FILE and RDZV_KEY exclude each other|RDZV_KEY and RDZV_KEY_FILE exclude each other"), a
    a = rdzv.agent("--endpoint", d.endpoint, "--verbose", "--", "sh", "-c", WAIT, env={"RDZV_KEY": key})
    until(lambda: f"the worker runs:\n{rdzv}", (rdzv.tmp / "env.0").exists)
    names = {line.split("=")[0] for line in (rdzv.tmp / "env.0").read_text().splitlines()}
    assert not [n for n in names if "KEY" in n], names
    assert len(rdzv.pids()) >= 4  # daemon, agent, guard, worker
    for pid in rdzv.pids():
        assert not environ(pid).get("RDZV_KEY"), describe(pid)
    clean(rdzv, key)
    rdzv.go(a)
    d.expect("; key: RDZV_KEY$")


def test_file_of_the_environment_is_not_the_workers(rdzv, key):
    path = rdzv.tmp / "my.key"
    write_key(path, key)
    a = rdzv.agent("--standalone", "--", "sh", "-c", WAIT, env={"RDZV_KEY_FILE": str(path), "RDZV_INSECURE": "no"})
    until(lambda: f"the worker runs:\n{rdzv}", (rdzv.tmp / "env.0").exists)
    assert "KEY_F" not in (rdzv.tmp / "env.0").read_text()
    rdzv.go(a)


def test_descriptor(rdzv, key):
    """--key-fd is read to its end and closed."""
    r, w = os.pipe()
    d_end = os.dup(r)
    os.close(r)
    os.write(w, key.encode() + b"\n")
    os.close(w)
    d = serve(rdzv, "--key-fd", d_end, pass_fds=[d_end])
    os.close(d_end)
    d.expect(rf"key: --key-fd {d_end}$")
    a, code = join(rdzv, d, env={"RDZV_KEY": key})
    assert code == 0, a
    targets = [os.readlink(p) for p in Path(f"/proc/{d.pid}/fd").iterdir() if p.name == str(d_end)]
    assert not [t for t in targets if t.startswith("pipe:")], targets
    clean(rdzv, key)
    refuses(rdzv, "--key-fd 77: cannot read the key: Bad file descriptor", "--key-fd", 77, "--", "true")


def test_a_descriptor_that_stays_open_has_a_deadline(rdzv):
    r, w = os.pipe()
    begun = time.monotonic()
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--key-fd", r, pass_fds=[r])
    assert p.exit(30) == 64 and p.says("was not written there within 10 s, or the other end stays open"), p
    assert 9 < time.monotonic() - begun
    os.close(r), os.close(w)


# ---- random keys -----------------------------------------------------------------------------------------------------


def test_standalone(rdzv):
    """A random key, which only agent and daemon know; the daemon that is started again after its death has the same. No file is created."""
    shutil.rmtree(rdzv.config)
    assert explain(rdzv, "--standalone") == "random, for this job"
    a = rdzv.agent("--standalone", "--verbose", "--", "sh", "-c", WAIT)
    until(lambda: f"the worker runs:\n{rdzv}", (rdzv.tmp / "env.0").exists)
    (daemon,) = rdzv.daemons()
    a.expect(r"rdzvd: .*key: --key-fd 5 \(random\)$")
    os.kill(daemon, 9)
    until(lambda: f"another daemon runs:\n{rdzv}", lambda: set(rdzv.daemons()) - {daemon})
    assert " --key-fd 5" in describe(*rdzv.daemons())
    rdzv.go(a)
    assert not rdzv.config.exists()


# ---- the default file ------------------------------------------------------------------------------------------------


def test_default_file_is_created(rdzv):
    """The first agent creates it, for its user alone; the next ones, and daemons, agree."""
    shutil.rmtree(rdzv.config)
    path, port = rdzv.config / "rdzv/key", free_port()
    words = ["--endpoint", f"127.0.0.1:{port}", "--nnodes", 2, "--", "true"]
    assert explain(rdzv, *words[:4]) == f"{path} (will be created)"
    assert not rdzv.config.exists()
    agents = [rdzv.agent(*words) for _ in range(2)]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert [stat.S_IMODE(os.stat(p).st_mode) for p in (path, path.parent, rdzv.config)] == [0o600, 0o700, 0o700]
    assert explain(rdzv, *words[:4]) == str(path)
    text = path.read_text().strip()
    assert text == str(Key.parse(text))
    clean(rdzv, text, [path])


def test_eight_at_once(rdzv):
    """Eight agents that start at once in a new home folder meet."""
    shutil.rmtree(rdzv.config)
    port = free_port()
    agents = [rdzv.agent("--endpoint", f"127.0.0.1:{port}", "--nnodes", 8, "--", "true") for _ in range(8)]
    assert [a.exit(60) for a in agents] == [0] * 8, rdzv
    assert os.listdir(rdzv.config / "rdzv") == ["key"]


def test_default_file_that_is_refused(rdzv):
    path = rdzv.config / "rdzv/key"
    text = path.read_text().strip()
    path.chmod(0o640)
    os.chown(path, -1, 1 if os.geteuid() == 0 else os.getegid())
    for program, words in (AGENT, ["--endpoint", "127.0.0.1:1", "--", "true"]), (RDZVD, ["--listen", "127.0.0.1:0"]):
        p = refuses(rdzv, rf"the key's default file {path}: other users have access to it \(mode 0640\): chmod 600 it.*give --key-file FILE", *words, program=program)
        assert text not in p.text and len([l for l in p.err if l]) == 1, p


def test_home_that_cannot_be_written(rdzv):
    """One sentence names the remedy; a job of one machine needs no home."""
    env = {"XDG_CONFIG_HOME": "/proc/nowhere"}
    p = refuses(rdzv, r"default file /proc/nowhere/rdzv/key: cannot create /proc/nowhere: .*; otherwise give --key-file FILE", "--endpoint",
                "127.0.0.1:1", "--", "true", env=env)
    assert len(p.err) == 1, p
    refuses(rdzv, "default file /proc/nowhere/rdzv/key", "--listen", "127.0.0.1:0", env=env, program=RDZVD)
    a = rdzv.agent("--standalone", "--", "true", env=env)
    assert a.exit() == 0, a


def test_state_directory(rdzv):
    """A service's daemon has its key beside its state."""
    (rdzv.tmp / "state").mkdir(0o755)
    d = serve(rdzv, env={"STATE_DIRECTORY": str(rdzv.tmp / "state")})
    path = rdzv.tmp / "state/key"
    d.expect(rf"key: {path} \(created\)")
    a, code = join(rdzv, d)
    assert code == REFUSED and a.says(r"has another key \(its service's state folder\)"), a
    a, code = join(rdzv, d, "--key-file", path)
    assert code == 0, a


# ---- none ------------------------------------------------------------------------------------------------------------


def test_insecure(rdzv, key):
    """One warning a program, no key, and no mixture."""
    d = serve(rdzv, "--insecure")
    warns = lambda p: sum("no key (--insecure)" in line for line in p.err)
    assert warns(d) == 1, d
    for words, env in (["--insecure"], {}), ([], {"RDZV_INSECURE": "1"}), ([], {"RDZV_AGENT_INSECURE": "yes"}):
        a, code = join(rdzv, d, *words, env=env)
        assert code == 0 and warns(a) == 1, a
    a, code = join(rdzv, d)
    assert code == REFUSED and a.says("runs without a key, and this agent has one"), a
    a = rdzv.agent("--standalone", "--insecure", "--", "sh", "-c", WAIT)
    until(lambda: f"the worker runs:\n{rdzv}", (rdzv.tmp / "env.0").exists)
    assert any(" --insecure" in describe(pid) for pid in rdzv.daemons())
    (rdzv.tmp / "go").touch()
    assert a.exit() == 0 and warns(a) == 1, a
    refuses(rdzv, "--key-file and --insecure exclude each other", "--insecure", "--key-file", "x", "--", "true")
    refuses(rdzv, "RDZV_KEY and RDZV_INSECURE exclude each other", "--", "true", env={"RDZV_KEY": key, "RDZV_INSECURE": "1"})
    p = ctl(rdzv, "key")
    assert p.code == REFUSED and p.says(r"this daemon has no key \(--insecure\)"), p


def test_a_users_key_serves_a_daemon_too(rdzv, key):
    """It came from a shared daemon, and the user's other jobs start daemons of their own. Such a daemon has this key alone."""
    env = {"RDZV_KEY": f"1000:{key}"}
    a = rdzv.agent("--endpoint", f"127.0.0.1:{free_port()}", "--", "true", env=env)
    assert a.exit() == 0, a
    d = serve(rdzv, env=env)
    assert join(rdzv, d, env=env)[1] == 0
    for other in key, f"1001:{key}":
        a, code = join(rdzv, d, env={"RDZV_KEY": other})
        assert code == REFUSED and a.says("has another key"), a


# ---- one command for several hosts -----------------------------------------------------------------------------------


SSH = """#!/bin/sh
printf '%s\\n' "$@" >>"$0.log"; env >>"$0.log"
while [ "$1" != "${1#-}" ]; do shift; done
host=$1; shift
cd / && unset RDZV_KEY XDG_CONFIG_HOME && E2E_HOST="$host" HOME="/nowhere/$host" exec sh -c "$*"
"""


@pytest.fixture
def ssh(rdzv):
    path = rdzv.tmp / "ssh-stand-in"
    path.write_text(SSH)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("given", ["random", "environment", "file"])
def test_hosts(rdzv, ssh, key, given):
    """The key goes to the other hosts on stdin. They have no home folder, and a file of that name may not exist there."""
    path = rdzv.tmp / "my.key"
    words, env = [], {}
    if given == "environment":
        env = {"RDZV_KEY": key}
    if given == "file":
        write_key(path, key)
        words = ["--key-file", path]
    hosts = ["--hosts", f"{HOST},other", "--ssh", f"{ssh} -q", *words]
    from_where = {"random": "random, drawn by the launcher", "environment": "RDZV_KEY", "file": f"--key-file {path}"}[given]
    assert explain(rdzv, *hosts, env=env) == from_where
    if given == "random":
        assert explain(rdzv, "--hosts", "localhost") == "random, for this job"
    a = rdzv.agent(*hosts, "--verbose", "--", "sh", "-c", WAIT, env=env)
    until(lambda: f"both workers run:\n{rdzv}", lambda: all((rdzv.tmp / f"env.{i}").exists() for i in range(2)), 20)
    path.unlink(missing_ok=True)
    for i in range(2):
        assert "KEY" not in (rdzv.tmp / f"env.{i}").read_text()
    if given != "random":
        clean(rdzv, key)
        assert key not in Path(f"{ssh}.log").read_text()
    assert "--key-fd" not in Path(f"{ssh}.log").read_text()
    rdzv.go(a)


def test_hosts_at_a_daemon(rdzv, ssh):
    """The key of the machine where the command is typed, for hosts without home folders."""
    d = serve(rdzv)
    hosts = ["--hosts", f"{HOST},other", "--ssh", f"{ssh} -q", "--endpoint", d.endpoint]
    assert explain(rdzv, *hosts) == str(rdzv.config / "rdzv/key")
    a = rdzv.agent(*hosts, "--", "true")
    assert a.exit() == 0, a
    clean(rdzv, (rdzv.config / "rdzv/key").read_text().strip(), [rdzv.config / "rdzv/key"])
    a = rdzv.agent(*hosts, "--", "true", env={"XDG_CONFIG_HOME": "/proc/nowhere"})
    assert a.exit() != 0 and a.says("default file /proc/nowhere/rdzv/key"), a


# ---- rdzvctl ---------------------------------------------------------------------------------------------------------


def test_rdzvctl_key(rdzv):
    """Root and the daemon's user get the own key, and the token of it; the daemon logs neither."""
    d = serve(rdzv, "--verbose")
    own = Key.parse(rdzv.key)
    assert ctl(rdzv, "key").out == [rdzv.key]
    assert ctl(rdzv, "token").out == [own.token()]
    assert json.loads(ctl(rdzv, "key", "--json").out[0]) == {"ok": True, "code": 0, "key": rdzv.key}
    assert json.loads(ctl(rdzv, "--json", "token").out[0]) == {"ok": True, "code": 0, "token": own.token()}
    assert rdzv.key not in d.text and own.token() not in d.text
    image = memory(d.pid)
    assert rdzv.mark.encode() in image and rdzv.key.encode() not in image and own.secret not in image
    p = ctl(rdzv, "token", "--key-file", rdzv.config / "rdzv/key")
    assert p.out == [own.token()] and not p.err, p
    p = rdzv.spawn(RDZVCTL, "token", "--key-file", rdzv.tmp / "none")
    assert p.exit() == 64 and p.says("--key-file: .*none: cannot open it"), p


def test_no_token_of_http_stays_in_memory(rdzv):
    """In one piece and in many, answered or not, as Bearer and as the password of Basic."""
    d = serve(rdzv)

    def accepted():
        """Connections that the daemon has not closed; state 1 is ESTABLISHED, 8 is CLOSE_WAIT."""
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return [r for r in rows if r[1].endswith(f":{d.port:04X}") and r[3] in ("01", "08")]

    token = Key.parse(rdzv.key).token().encode()
    basic = base64.b64encode(b"ada:" + token)
    for field, code in (b"Bearer " + token, b"200"), (b"Basic " + basic, b"200"), (b"Bearer " + token + b"0", b"401"):
        request = b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Filler: " + b"x" * 900 + b"\r\nAuthorization: " + field + b"\r\nX-Filler: " + b"y" * 5000
        for step, end in (len(request) + 4, b"\r\n\r\n"), (700, b"\r\n\r\n"), (700, b""):
            with socket.create_connection(("127.0.0.1", d.port)) as s:
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for i in range(0, len(request + end), step):
                    s.sendall((request + end)[i:i + step])
                    time.sleep(0.01)  # so that it is read in pieces
                if end:
                    assert s.recv(4096).split()[1] == code
    until("all connections have ended", lambda: not accepted())
    image = memory(d.pid)
    assert rdzv.mark.encode() in image
    assert token[-32:] not in image and basic[-40:] not in image


def test_rdzvctl_key_of_another_user(rdzv):
    """Others get the key that the daemon derives for them; with it they join, and it is no administrator's."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    serve(rdzv)
    os.chmod(rdzv.tmp, 0o711)
    for folder in rdzv.tmp.parents:
        if folder.is_relative_to("/tmp/") and folder != Path("/tmp"):
            os.chmod(folder, 0o711)
    p = ctl(rdzv, "key", user=4711, group=4711, extra_groups=[], env={"HOME": "/"})
    assert p.out == [str(Key.parse(rdzv.key).derive(4711))], p


def test_rdzvctl_warns_at_a_terminal(rdzv):
    serve(rdzv)
    Terminal(rdzv, [RDZVCTL, "--socket", rdzv.tmp / "s", "key"]).expect("keep it secret: whoever has this key can join and control your jobs")


def test_rdzvctl_key_is_not_asked_over_the_port(rdzv):
    """The port of another machine: a sentence with the command that works. 192.0.2.1 is nobody's."""
    p = rdzv.spawn(RDZVCTL, "--endpoint", "192.0.2.1:29400", "key")
    assert p.exit() == REFUSED and p.says(r"on its own machine only: \(umask 077; .*ssh 192.0.2.1 rdzvctl --port 29400 key >new && mv new key\)"), p
    p = rdzv.spawn(RDZVCTL, "--endpoint", "192.0.2.1:29400", "jobs", env={"XDG_CONFIG_HOME": str(rdzv.tmp / "empty")})
    assert p.exit() == REFUSED and p.says("this user has no key here for rdzvd at 192.0.2.1:29400"), p
    assert not (rdzv.tmp / "empty").exists()
