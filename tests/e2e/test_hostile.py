# SPDX-License-Identifier: Apache-2.0
"""Names that peers, workers and other processes choose are escaped on terminals and in logs. Harmless names stay readable."""

import json
import os
import signal
import socket
import subprocess
import sys

from harness import AGENT, BUILD, RDZVCTL, RDZVD, free_port
from hostile import CHARS, EVIL, SHOWN, check, unprintable
from native import Native, frame

INCARNATION = "ab" * 8
WELCOME = ("WELCOME", dict(incarnation=INCARNATION, round=0, state="forming", peer_addr="127.0.0.1"))


def test_names_of_hosts_and_jobs(rdzv):
    d = rdzv.daemon("--verbose", "--socket", rdzv.tmp / "s")
    with Native(d.port) as n:
        n.hello(job=EVIL, host=EVIL, nodes=1, role=EVIL)
        n.started()
        n.report("failed", cause="worker-exit", rank=0, local_rank=0, pid=4, code=3, text=EVIL + "\nlast", error=EVIL, device=EVIL)
        n.expect("STOP")
        for verb in ["status"], ["jobs"], ["status", EVIL], ["stop", CHARS], ["drain", EVIL], ["undrain", EVIL], ["kill-worker", EVIL, 0]:
            p = rdzv.spawn(RDZVCTL, "--socket", "s", *verb)
            p.exit()
            check(p.out + p.err)
            assert p.text, verb
        for verb in ["status"], ["jobs"], ["drain", EVIL]:
            p = rdzv.spawn(RDZVCTL, "--socket", "s", "--json", *verb)
            assert p.exit() == (72 if verb[0] == "drain" else 0), p
            check(p.out + p.err)
            json.loads("\n".join(p.out))
            if verb == ["status"]:
                assert json.loads("\n".join(p.out))["jobs"][0]["job"] == EVIL, "it means the same"
    check(d.out + d.err)
    assert SHOWN in d.text


def test_last_lines_of_a_worker(rdzv):
    """The worker's own line passes as it is, what we quote of it does not."""
    (rdzv.tmp / "say").write_bytes(CHARS.replace("\n", "").encode() + b" \x9b31m \xff\n")
    a = subprocess.run([AGENT, "--standalone", "--", "sh", "-c", "cat say >&2; exit 3"], cwd=rdzv.tmp, env=rdzv.env(), capture_output=True, timeout=60)
    raw = (rdzv.tmp / "say").read_bytes()
    assert raw in a.stderr, "byte for byte"
    ours = a.stderr.replace(raw, b"").decode().split("\n")  # a byte that is not UTF-8 would raise
    assert any("exited with code 3: " in line and "\\u202e" in line for line in ours), ours
    assert not any(map(unprintable, ours)), ours


def test_error_file_of_a_worker(rdzv):
    (rdzv.tmp / "error").write_text(json.dumps({"message": EVIL}))
    a = rdzv.agent("--standalone", "--verdict-file", "v.json", "--", "sh", "-c", 'cat error > "$TORCHELASTIC_ERROR_FILE"; exit 3')
    assert a.exit() == 3, a
    check(a.out + a.err)
    assert SHOWN in a.text and "\\u202e" in a.text, a
    check((rdzv.tmp / "v.json").read_text().rstrip("\n").split("\n"))
    assert json.loads((rdzv.tmp / "v.json").read_text())["verdict"]["error"].startswith("évil中\x1b[31m\x9b31m"), "it means the same"


def test_names_that_are_not_utf8(rdzv):
    d = rdzv.daemon()
    a = rdzv.agent("--endpoint", d.endpoint, "--max-restarts", 0, "--rdzv-id", os.fsdecode(b"caf\xe9\x9b"), "--verdict-file", "v.json", "--", "sh", "-c", "exit 3")
    assert a.exit() == 3, a
    check(a.out + a.err)
    assert json.loads((rdzv.tmp / "v.json").read_text(encoding="utf-8"))["job"] == "caf\ufffd\ufffd"


def test_name_of_a_process(rdzv):
    """The one that has the port."""
    port = free_port()
    script = (
        "import ctypes, socket, sys, time\n"
        f"ctypes.CDLL(None).prctl(15, {chr(0x202e).encode() + bytes([0x9b]) + b'ab' + bytes([27])!r})\n"
        f"s = socket.create_server(('127.0.0.1', {port})); print('up', flush=True); time.sleep(60)\n"
    )
    holder = rdzv.spawn(sys.executable, "-c", script)
    holder.expect("up")
    d = rdzv.spawn(RDZVD, "--listen", f"127.0.0.1:{port}")
    assert d.exit() == 71 and d.says(f"pid {holder.pid}"), d
    check(d.out + d.err)
    holder.kill()


def test_environment(rdzv):
    d = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--socket", "s", env={"NOTIFY_SOCKET": "/" + CHARS, "TMPDIR": "/" + CHARS})
    d.expect("NOTIFY_SOCKET")
    a = rdzv.agent("--standalone", "--", "true", env={"TMPDIR": "/" + CHARS, "RDZV_AGENT_NPROC": CHARS})
    assert a.exit() == 64, a
    d.end(signal.SIGTERM)
    check(d.out + d.err + a.out + a.err)


def test_sentences_of_librdzv(rdzv):
    """A program in C prints them as they are."""
    p = rdzv.spawn(BUILD / "agent/sdk/example", env={"RDZV_AGENT_SOCKET": "@" + EVIL, "RDZV_ROUND": "1", "LOCAL_RANK": "0"})
    assert p.exit() != 0 and p.says("no agent answers at RDZV_AGENT_SOCKET=@" + SHOWN), p
    check(p.out + p.err)


def test_fake_daemon_behind_a_control_socket(rdzv):
    """rdzvctl trusts no daemon with its terminal, as text or as JSON."""
    for args, raw in ([], EVIL.encode() + b"\x9b\xff"), (["--json"], b'{"jobs": ["' + EVIL.replace("\n", "").encode() + b'\x9b"]}'):
        with socket.socket(socket.AF_UNIX) as s:
            path = rdzv.tmp / f"s{len(args)}"
            s.bind(str(path))
            s.listen()
            p = rdzv.spawn(RDZVCTL, "--socket", path, "status", *args)
            c, _ = s.accept()
            with c:
                c.sendall(frame("GREETING", dict(version=1)))
                c.sendall(frame("CONTROL_REPLY", dict(code=0), raw=raw, id=1))
                assert p.exit() == 0, p
        check(p.out + p.err)
        assert "évil中" in p.text, p
        if args:
            json.loads("\n".join(p.out))
