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

from harness import HOST


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


def test_garbage_that_is_not_ours_is_passed_on(rdzv):
    a = rdzv.agent("--standalone", "--", "sh", "-c", 'printf %s "$JUNK" | wc -c', env={"JUNK": "\x01\xfe" * 20000, "RANK": "banana", "no-name.at all": ""})
    assert a.exit() == 0 and a.out[0].strip() == str(len(("\x01\xfe" * 20000).encode())), a


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


