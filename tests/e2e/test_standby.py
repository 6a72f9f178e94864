# SPDX-License-Identifier: Apache-2.0
"""A daemon besides the first: the port that an agent reserves for one, the addresses of --endpoint, and rdzvctl's way through them."""

import os
import signal
import socket
import stat
import time

import pytest

from harness import AGENT, RDZVCTL, RDZVD, HOST, alive, free_port, status, until
from native import Native


# ---- rdzvd --listen-fd -----------------------------------------------------------------------------------------------


def reserved(addr="127.0.0.1"):
    """A socket as an agent reserves it: bound, and nobody listens."""
    s = socket.socket()
    s.bind((addr, 0))
    return s


def test_listen_fd(rdzv):
    """The daemon listens on the inherited socket alone; its port can be bound again at once, even while connections are closing."""
    with reserved("127.0.0.2") as s:
        addr, port = s.getsockname()
        with pytest.raises(OSError, match="in use"):
            socket.create_server((addr, port))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((addr, port), 5)
        fd = s.fileno()
        d = rdzv.spawn(RDZVD, "--listen-fd", fd, "--ready-fd", 1, pass_fds=[fd])
    d.expect(rf"^{port}$")
    d.expect(rf"version .* listens on {addr}:{port};")
    n = Native(port, addr=addr)
    n.expect("GREETING")
    d.kill()
    assert d.exit() == -signal.SIGKILL
    again = rdzv.spawn(RDZVD, "--listen", f"{addr}:{port}")
    again.expect(rf"listens on {addr}:{port}")
    n.sock.close()


def test_listen_fd_is_not_what_it_should_be(rdzv):
    def refused(sock, words):
        with sock:
            fd = sock.fileno()
            p = rdzv.spawn(RDZVD, "--listen-fd", fd, pass_fds=[fd])
            assert p.exit() == 64 and len(p.err) == 1 and p.err[0].endswith(f"rdzvd: --listen-fd {fd}: {words}"), p

    refused(socket.socket(), "this socket is not bound to a port")
    refused(socket.socket(type=socket.SOCK_DGRAM), "this descriptor is not a TCP socket")
    refused(socket.socket(socket.AF_UNIX), "this descriptor is not a TCP socket")
    refused(open(os.devnull), "this descriptor is not a TCP socket")
    with socket.create_server(("127.0.0.1", 0)) as server:
        refused(socket.create_connection(server.getsockname()), "this socket is a connection")
    p = rdzv.spawn(RDZVD, "--listen-fd", 99)
    assert p.exit() == 64 and p.err[0].endswith("rdzvd: --listen-fd 99: this descriptor is not open"), p
    with reserved() as s:
        p = rdzv.spawn(RDZVD, "--listen-fd", s.fileno(), "--listen", "127.0.0.1:0", pass_fds=[s.fileno()])
        assert p.exit() == 64 and p.err[0].endswith("rdzvd: --listen and --listen-fd exclude each other"), p
