# SPDX-License-Identifier: Apache-2.0
"""A user's mistakes and a machine's troubles: each a clear sentence, the documented exit code, nothing left running."""

import os
import re
import signal
import socket
import socketserver
import threading
from pathlib import Path

import pytest

from harness import AGENT, HOST, RDZVD, environ, free_port, until


# How a sentence names this process.
ME = f"pid {os.getpid()} ({Path('/proc/self/comm').read_text().strip()})"


def one_sentence(p, *words):
    """The program says all of `words` in one line, in few lines altogether, and never just an errno."""
    said = [l for l in p.err if l.strip()]
    assert any(all(w in l for w in words) for l in said), f"no line with {words}:\n{p}"
    assert len(said) <= 6, f"more than a user reads:\n{p}"
    assert not re.search(r"errno|error \d+", p.text), p


def greet(server, words):
    """Greets everybody who comes, like a mail or ssh server, until the socket is closed."""
    try:
        while True:
            with server.accept()[0] as c:
                c.sendall(words)
                c.recv(1)
    except OSError:
        pass


def test_port_taken_by_what_greets_first(rdzv):
    """What answered is shown, and starting an rdzvd there is not the advice."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        threading.Thread(target=greet, args=(s, b"SSH-2.0-OpenSSH_9.2\r\n"), daemon=True).start()
        endpoint = f"127.0.0.1:{s.getsockname()[1]}"
        a = rdzv.agent("--endpoint", endpoint, "--join-timeout", "1s", "--", "true")
        assert a.exit(5) == 69, a
        one_sentence(a, endpoint, "does not seem to be rdzv", '"SSH-2.0-OpenSSH_9.2')
        one_sentence(a, f"no rdzvd could be reached at {endpoint} within 1 s", ME, "stop that program, or choose another port")
        assert not a.says("start one there"), a
        s.shutdown(socket.SHUT_RDWR)


def test_another_program_at_the_endpoint_is_named_and_not_waited_for_long(rdzv):
    """After a second, with its pid; and --join-timeout, ten minutes by default, is for a daemon that may still come."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        threading.Thread(target=greet, args=(s, b"SSH-2.0-OpenSSH_9.2\r\n"), daemon=True).start()
        endpoint = f"127.0.0.1:{s.getsockname()[1]}"
        agents = [rdzv.agent("--endpoint", endpoint, "--nnodes", 2, "--", "true", node=str(i)) for i in range(2)]
        for a in agents:
            a.expect(rf"{re.escape(ME)} listens at {endpoint} and does not seem to be rdzv: .*; trying again for 2\d s$")
            assert a.end(signal.SIGTERM) == 75, a
        s.shutdown(socket.SHUT_RDWR)


class WaitsForARequest(socketserver.StreamRequestHandler):
    """As many HTTP servers do: nothing is answered before the empty line."""

    def handle(self):
        data = byte = self.rfile.read(1)
        while byte and not data.endswith(b"\r\n\r\n"):
            byte = self.rfile.read(1)
            data += byte
        if byte:
            self.wfile.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_another_program_that_waits_for_a_line(rdzv):
    """It is named after a second, and shows what it is before the connection is given up."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), WaitsForARequest) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        endpoint = f"127.0.0.1:{s.server_address[1]}"
        a = rdzv.agent("--endpoint", endpoint, "--nnodes", 2, "--join-timeout", "8s", "--", "true")
        a.expect(rf"{re.escape(ME)} listens at {endpoint}, is not rdzvd and has not answered; trying again for \d s")
        assert a.exit(20) == 69, a
        one_sentence(a, f"no rdzvd could be reached at {endpoint}", ME, "does not seem to be rdzv: it begins with", "stop that program, or choose another port")
        s.shutdown()


def test_too_few_nodes_before_the_first_round(rdzv):
    d = rdzv.daemon()
    a = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 2, "--join-timeout", "1s", "--", "true")
    assert a.exit(10) == 73, a
    assert a.says("failed before its first round: too few nodes joined in time") and not a.says("round 0"), a


@pytest.mark.parametrize(
    "args, env, words",
    [
        (["--nproc", "0"], {}, ["--nproc"]),
        (["--nproc", "many"], {}, ["--nproc", "many"]),
        (["--nnodes", "3:2", "--endpoint", "localhost"], {}, ["--nnodes", "3:2"]),
        (["--nnodes", "2"], {}, ["--endpoint"]),
        (["--max-restarts", "-1"], {}, ["--max-restarts"]),
        (["--max-restrat", "1"], {}, ["--max-restrat", "--max-restarts"]),
        (["--last-call", "soon"], {}, ["--last-call", "soon"]),
        (["--endpoint", "host:99999"], {}, ["--endpoint", "99999"]),
        (["--endpoint", "", "--nnodes", "2"], {}, ["--endpoint"]),
        (["--nproc"], {}, ["--nproc"]),
        ([], {"RDZV_AGENT_NPROC": "\x01\x7fgarbage"}, ["RDZV_AGENT_NPROC"]),
        ([], {"RDZV_AGENT_NPROK": "2"}, ["RDZV_AGENT_NPROK", "RDZV_AGENT_NPROC"]),
        ([], {"RDZV_AGENT_LEASE": "0"}, ["RDZV_AGENT_LEASE"]),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "+".join(v) if isinstance(v, dict) else "",
)
def test_bad_options(rdzv, args, env, words):
    a = rdzv.agent(*args, "--", "true", env=env)
    assert a.exit(5) == 64, a
    one_sentence(a, *words)
    assert all(ord(c) >= 32 for l in a.err for c in l), "control characters of the environment on the terminal"


def test_garbage_that_is_not_ours_is_passed_on(rdzv):
    a = rdzv.agent("--standalone", "--", "sh", "-c", 'printf %s "$JUNK" | wc -c', env={"JUNK": "\x01\xfe" * 20000, "RANK": "banana", "no-name.at all": ""})
    assert a.exit() == 0 and a.out[0].strip() == str(len(("\x01\xfe" * 20000).encode())), a


def test_port_taken_for_rdzvd(rdzv):
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
        d = rdzv.spawn(RDZVD, "--listen", f"127.0.0.1:{port}")
        assert d.exit(5) == 71, d
        one_sentence(d, str(port))


def test_port_taken_by_something_else(rdzv):
    """Somebody listens at the endpoint and is no rdzvd: it says nothing, or something else."""
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
        a = rdzv.agent("--endpoint", f"127.0.0.1:{port}", "--join-timeout", "1s", "--", "true")
        assert a.exit(15) == 69, a
        one_sentence(a, str(port))
    rdzv.gone()


def test_endpoint_unreachable(rdzv, lan):
    """An address of the network at which no host is: an answer by --join-timeout, not when TCP gives up."""
    a = rdzv.agent("--endpoint", "10.99.0.77", "--nnodes", 2, "--join-timeout", "1s", "--", "true", wrap=lan[0])
    assert a.exit(5) == 69, a
    one_sentence(a, "10.99.0.77")


def test_nobody_listens_there(rdzv, lan):
    a = rdzv.agent("--endpoint", "10.99.0.2", "--nnodes", 2, "--join-timeout", "1s", "--", "true", wrap=lan[0])
    assert a.exit(5) == 69, a
    one_sentence(a, "10.99.0.2", "29400")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "node2"])
def test_an_endpoint_that_each_machine_has_for_itself(rdzv, lan, host):
    """--endpoint localhost on each of two machines, or the name of the other one as a wrong line of /etc/hosts has it."""
    hosts = ["sh", "-c", "echo '127.0.0.1 localhost node2' > hosts && mount --bind hosts /etc/hosts && exec \"$@\"", "sh"]
    a = rdzv.agent("--endpoint", f"{host}:29400", "--nnodes", 2, "--join-timeout", "2s", "--", "true", wrap=[*lan[0], *hosts])
    assert a.exit(15) == 73, a
    said = rf"rdzv-agent: other machines cannot reach the daemon at {host}:29400: on each machine that is the machine itself; .*such as node1$"
    assert len([l for l in a.err if re.match(said, l)]) == 1 and a.says(rf"failed before its first round: .*; other machines cannot reach the daemon at {host}:29400"), a


def test_unknown_host(rdzv, lan):
    a = rdzv.agent("--endpoint", "no-such-host.invalid", "--nnodes", 2, "--join-timeout", "2s", "--", "true", wrap=lan[0])
    assert a.exit(15) == 69, a
    one_sentence(a, "no-such-host.invalid")


def test_hostname_that_resolves_to_127_0_1_1(rdzv, lan):
    """Debian's /etc/hosts: node1 is 127.0.1.1 for itself. The daemon that the agent there starts must be reached from node2, and
    the ranks must be told an address of node1 that works from everywhere."""
    job = ["--endpoint", "node1:29400", "--nnodes", 2, "--", "sh", "-c", "echo head $RDZV_HEAD_ADDR on $(hostname) rank $RANK"]
    agents = [rdzv.agent(*job, wrap=host, node=str(i)) for i, host in enumerate(lan)]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert {a.out[-1].split("] ")[-1] for a in agents} == {
        "head 10.99.0.1 on node1 rank 0", "head 10.99.0.1 on node2 rank 1"}, rdzv
    rdzv.gone()


def test_nobody_comes(rdzv):
    d = rdzv.daemon()
    a = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 3, "--join-timeout", "1s", "--", "true")
    assert a.exit(5) == 73, a
    a.expect("1 of 3|missing|2 more")


def test_settings_that_differ(rdzv):
    d = rdzv.daemon()
    first = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 2, "--rdzv-id", "x", "--", "true")
    first.expect("1 of 2 nodes is here")
    other = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 3, "--rdzv-id", "x", "--", "true")
    assert other.exit(5) == 72, other
    one_sentence(other, "2", "3")
    first.expect(rf"missing 1; {HOST} was refused \d s ago: --nnodes \(minimum\) is 3 there and 2 in the job")
    assert first.running
    assert first.end(signal.SIGTERM) == 75


def test_commands_that_differ(rdzv):
    """They may, so it is a warning: node 0's, once, and not where only an option of the agent differs."""
    d = rdzv.daemon()
    for more_words, warned in ("", 0), (" || exit 1", 1):  # all of them fail in the first round
        agents = [rdzv.agent("--endpoint", d.endpoint, "--nnodes", 2, "--node-rank", i, *more, "--", "sh", "-c", "test $RDZV_ROUND = 2" + i * more_words)
                  for i, more in enumerate(([], ["--verbose"]))]
        assert [a.exit() for a in agents] == [0, 0], rdzv
        said = [l for a in agents for l in a.err if "runs another command" in l]
        assert len(said) == warned and not agents[1].says("runs another command"), rdzv
        if said:
            assert re.fullmatch(rf"rdzv-agent: host {HOST} runs another command than host {HOST} \(this node 0\); if that is a mistake, .* the same command on all nodes", said[0]), said


def test_two_of_the_same_rank(rdzv):
    d = rdzv.daemon()
    first = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 2, "--node-rank", 1, "--", "true")
    first.expect("1 of 2 nodes is here")
    other = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 2, "--node-rank", 1, "--", "true")
    assert other.exit(5) == 72, other
    one_sentence(other, "rank 1")
    assert first.end(signal.SIGTERM) == 75


def test_log_directory_that_cannot_be_made(rdzv):
    (rdzv.tmp / "file").write_text("")
    a = rdzv.agent("--standalone", "--log-dir", "file/logs", "--", "true")
    assert a.exit(5) == 71, a
    one_sentence(a, "file/logs")
    rdzv.gone()


TRAIN = ["--layers", "100,100,100", "--data", "synthetic:64", "--batch", 16, "--steps", 20]


def test_data_that_cannot_be_read(rdzv):
    (rdzv.tmp / "torn").write_bytes(b"\0\0\x08\x03\0\0\0\x10\0\0")
    for path in ("/no/such/images", "torn"):
        a = rdzv.agent("--nproc", 2, "--max-restarts", 0, "--", *TRAIN, "--data", path)
        assert a.exit() == 65 and a.says(path), a


def test_disk_full_of_checkpoints(rdzv, small_disk):
    """The job ends, says where the disk is full, and the checkpoint that was there before is still the one to go on from."""
    job = ["--nproc", 2, "--max-restarts", 0, "--", *TRAIN, "--checkpoint-dir", small_disk / "c", "--checkpoint-every", 10]
    (small_disk / "ballast").write_bytes(b"x" * 200000)
    a = rdzv.agent(*job)
    assert a.exit() == 66 and a.says(f"{small_disk}.*No space left on device"), a
    assert [p.parent.name[-4:] for p in small_disk.glob("c/*/COMMIT")] == ["0010"], "there is room for one"
    (small_disk / "ballast").unlink()
    again = rdzv.agent(*job)
    assert again.exit() == 0 and again.says("resumed from .* at step 10"), again


def test_strangers_at_the_port(rdzv):
    """A PyTorch client, a browser, noise: answered or closed, with a line; the daemon goes on."""
    d = rdzv.daemon()
    for bytes_ in (b"GET / HTTP/1.1\r\n\r\n", b"\x00\xce\xf7\x85\x3c\xff", b"\xff" * 5000, b"RDZV" + b"\xff" * 100):
        with socket.create_connection(("127.0.0.1", d.port), 5) as s:
            s.sendall(bytes_)
            s.settimeout(5)
            try:
                while s.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    a = rdzv.agent("--endpoint", d.endpoint, "--", "true")
    assert a.exit() == 0, rdzv
    assert d.running


def test_help_is_on_stdout(rdzv):
    for program in (AGENT, RDZVD):
        p = rdzv.spawn(program, "--help")
        assert p.exit(5) == 0 and len(p.out) > 20 and not p.err, p
        assert all(len(l) <= 100 for l in p.out), p
