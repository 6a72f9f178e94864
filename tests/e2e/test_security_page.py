# SPDX-License-Identifier: Apache-2.0
"""The commands of the guide's page on security, and what it says that programs print."""

import os
import re
import shutil
import stat

import pages
from harness import RDZVCTL, TOP, free_port
from others import EVE, needs_users, user
from sealed import Key

PAGE = "deploy/guide/security.md"
# Runs rdzvctl here, as the daemon's machine would; daemons of other tests run here as well.
SSH = '#!/bin/sh\n[ "$2" = rdzvctl ] && shift 2 && HOME=$NODE1_HOME XDG_CONFIG_HOME= exec rdzvctl "$@"\n'


def home(rdzv, name):
    path = rdzv.tmp / name
    path.mkdir()
    return {"HOME": str(path), "XDG_CONFIG_HOME": "", "XDG_RUNTIME_DIR": str(rdzv.tmp)}


def key_of(env):
    path = f"{env['HOME']}/.config/rdzv/key"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    return Key.parse(open(path).read())


def run(rdzv, name, env, changes=(), **kw):
    p = pages.shell(rdzv, pages.with_changes(pages.block(PAGE, name), changes), env=env, **kw)
    assert p.exit(30) == 0, p
    return p


def quoted(name):
    """The line of a generated part, as a pattern."""
    line = pages.generated(PAGE, name).split("\n")[1]
    return re.escape(line)


def test_make_and_copy(rdzv):
    """Two machines: their keys differ, and the sentence's command and the page's mend it."""
    one, two = home(rdzv, "one"), home(rdzv, "two")
    run(rdzv, "make", one)
    key = key_of(one)
    d = rdzv.daemon(env=one)
    d.expect(r"; key: ~/\.config/rdzv/key$")
    a = rdzv.agent("--endpoint", d.endpoint, "--", "true", env=two)
    assert a.exit(30) == 72, a
    said = quoted("keys differ").replace(r"node1:29400", re.escape(d.endpoint)).replace("node1", r"127\.0\.0\.1").replace("29400", str(d.port))
    a.expect(f"^{said}$".replace(re.escape("(~/.config/rdzv/key)") + ":", re.escape("(~/.config/rdzv/key (created))") + ":"))
    d.expect("refused: its key is not the key of this daemon")
    more, ssh = {"ssh": SSH}, dict(two, NODE1_HOME=one["HOME"])
    command = a.expect(r"copy it: (.*)$")[1]
    p = pages.shell(rdzv, command, env=ssh, more=more)
    assert p.exit(30) == 0 and key_of(two).secret == key.secret, p
    p = pages.shell(rdzv, command, env=ssh, more={"ssh": "#!/bin/sh\nexit 255\n"})
    assert p.exit(30) != 0 and key_of(two).secret == key.secret, "an ssh that fails costs no key"
    shutil.rmtree(f"{two['HOME']}/.config")
    run(rdzv, "copy", ssh, changes=[("29400", d.port)], more=more)
    assert key_of(two).secret == key.secret
    assert rdzv.agent("--endpoint", d.endpoint, "--", "true", env=two).exit(30) == 0


def test_lines_of_the_daemon():
    """The table quotes what the programs can say."""
    said = "\n".join(f.read_text() for folder in pages.PRODUCT for f in sorted((TOP / folder).rglob("*.c")))
    table = pages.TOP.joinpath(PAGE).read_text().split("| line of `rdzvd` | it means |")[1].split("\n\n")[0]
    lines = re.findall(r"^\| `([^`]+)` \|", table, re.M)
    assert len(lines) == 5
    for line in lines:
        assert line in said, line


def test_rotate(rdzv):
    """A job runs on at the old daemon, a new one begins at the second."""
    env = home(rdzv, "one")
    run(rdzv, "make", env)
    port, new = free_port(), None
    old = rdzv.daemon(env=env)
    go = rdzv.tmp / "go"
    a = rdzv.agent("--endpoint", old.endpoint, "--rdzv-id", "old", "--", "sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done", env=env)
    rdzv.await_workers(1)
    text = pages.block(PAGE, "rotate")
    begin = text[: text.index("rdzvctl")]
    new = pages.shell(rdzv, pages.with_changes(begin, [("29401", f"127.0.0.1:{port}"), ("&", "\nwait")]).replace("\nwait", " & echo $! >pid; wait"), env=env)
    new.expect("listens on")
    b = rdzv.agent("--endpoint", f"127.0.0.1:{port}", "--key-file", "new.key", "--rdzv-id", "new", "--", "true", env=env)
    assert b.exit(30) == 0, rdzv
    look = next(line for line in pages.lines(PAGE, "rotate") if line.startswith("rdzvctl"))
    ask = lambda: pages.shell(rdzv, pages.with_changes(look, [("29400", old.port)]), env=env)
    p = ask()
    assert p.exit() == 0 and p.says("old"), p
    go.touch()
    assert a.exit(30) == 0, a
    move = next(line for line in pages.lines(PAGE, "rotate") if line.startswith("mv"))
    secret = key_of(env).secret
    p = pages.shell(rdzv, move, env=env)
    assert p.exit() == 0 and key_of(env).secret != secret, p
    c = rdzv.agent("--endpoint", f"127.0.0.1:{port}", "--rdzv-id", "newer", "--", "true", env=env)
    assert c.exit(30) == 0, c
    os.kill(int((rdzv.tmp / "pid").read_text()), 15)
    new.exit()


@needs_users
def test_several_users(rdzv):
    """Each fetches a key of her own; what follows from it is hers."""
    d = rdzv.daemon("--socket", "/run/rdzvd-e2e-%d.sock" % os.getpid())
    env = home(rdzv, "eve")
    socket = f"/run/rdzvd-e2e-{os.getpid()}.sock"
    p = rdzv.spawn(RDZVCTL, "--socket", socket, "key", **user(EVE))
    assert p.exit() == 0 and p.out == [rdzv.user_key(EVE)], p
    run(rdzv, "user", env, changes=[("--port 29400", f"--socket {socket}")])
    assert key_of(env).secret.hex() == rdzv.key, "root gets the daemon's own"
    a = rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", "eves", "--", "true", env={"RDZV_KEY": rdzv.user_key(EVE)})
    assert a.exit(30) == 0, a
    d.expect(rf"job eves \(uid {EVE}\)|job eves")


def test_from_another_machine(rdzv, lan):
    """rdzvctl and curl on one host, the daemon on the other."""
    d = rdzv.spawn("rdzvd", "--listen", "10.99.0.1:29400", wrap=lan[0], env={"PATH": pages.with_programs(rdzv)["PATH"]})
    d.expect("listens on")
    a = rdzv.agent("--endpoint", "10.99.0.1:29400", "--nnodes", 2, "--rdzv-id", "abroad", "--", "true", wrap=lan[0])
    d.expect("abroad")
    p = run(rdzv, "remote", {}, wrap=lan[1])
    assert p.says("abroad"), p
    p = run(rdzv, "http", {}, wrap=lan[1])
    assert p.says("abroad"), p
    a.end(15)
    d.end(15)
