# SPDX-License-Identifier: Apache-2.0
"""A man in the middle: it relays connections to a port, keeps a copy of every byte, and may change, drop, repeat, delay or add what passes.

    relay = Relay(daemon.port)
    agent = rdzv.agent("--endpoint", relay.endpoint, ...)
    relay.change = lambda unit: unit.data[:-1] + b"x" if unit.to_daemon and unit.number == 2 else unit.data

A unit is what one side of a channel says at once: number 0 is the opening or the answer, the others are records. What is no channel comes in
units of what one recv brings. `change` returns the bytes that go on instead, b"" for none, and may wait; None ends the connection.
"""

import contextlib
import dataclasses
import socket
import threading
import time

import sealed
from harness import listen_in, stop_accepting


@dataclasses.dataclass
class Unit:
    link: "Link"
    to_daemon: bool
    number: int
    data: bytes


class Link:
    """One connection through the relay. .sent, .got: what client and daemon have said; .to_daemon(data), .to_client(data) add to it."""

    def __init__(self, relay, client, number):
        self.relay, self.client, self.number = relay, client, number
        self.sent, self.got = b"", b""
        self.daemon = relay.dial()
        self.daemon.settimeout(None)
        self.threads = [
            threading.Thread(target=self._pass, args=(self.client, self.daemon, True), daemon=True),
            threading.Thread(target=self._pass, args=(self.daemon, self.client, False), daemon=True),
        ]
        for t in self.threads:
            t.start()

    def to_daemon(self, data):
        self.daemon.sendall(data)

    def to_client(self, data):
        self.client.sendall(data)

    def _first(self, to_daemon, data):
        """The size of the unit that begins a stream; 0: more bytes are needed, None: it is no channel."""
        if to_daemon:
            for kind in sealed.SEALED, sealed.RESUMED:
                known = sealed.preface(kind)
                if data[: len(known)] == known[: len(data)]:
                    size = sealed.opening_size(kind)
                    return size if len(data) >= size else 0
            return None
        if data[:4] != b"RDZV"[: len(data)]:
            return None
        if len(data) < sealed.HEADER.size:
            return 0
        size = sealed.ANSWER if data[6] == sealed.OK else sealed.HEADER.size
        return size if len(data) >= size else 0

    def _units(self, source, to_daemon):
        rest, number, is_channel = b"", 0, True
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            if not data:
                break
            if to_daemon:
                self.sent += data
            else:
                self.got += data
            rest += data
            while rest:
                if not is_channel:
                    size = len(rest)
                elif number == 0:
                    size = self._first(to_daemon, rest)
                    if size is None:
                        is_channel = False
                        continue
                else:
                    size = 0
                    if len(rest) >= 2:
                        size = 2 + sealed.LENGTH.unpack_from(rest)[0]
                        size = size if len(rest) >= size else 0
                if not size:
                    break
                yield Unit(self, to_daemon, number, rest[:size])
                rest, number = rest[size:], number + 1
        if rest:
            yield Unit(self, to_daemon, number, rest)

    def _pass(self, source, target, to_daemon):
        with contextlib.suppress(OSError):
            for unit in self._units(source, to_daemon):
                data = self.relay.change(unit)
                if data is None:
                    break
                if data:
                    target.sendall(data)
        self.close()

    def close(self):
        for s in self.client, self.daemon:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


class Relay:
    def __init__(self, port, addr="127.0.0.1", change=None, listener=None, patience=0):
        """`patience`: so many seconds a client waits here for a daemon that is not there yet; else its connection ends."""
        self.target, self.patience = (addr, port), patience
        self.change = change or (lambda unit: unit.data)
        self.links = []
        self.listener = listener or listen_in()
        host, self.port = self.listener.getsockname()
        self.endpoint = f"{host}:{self.port}"
        self.accepting = threading.Thread(target=self._accept, daemon=True)
        self.accepting.start()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                self.links.append(Link(self, client, len(self.links)))
            except OSError:  # no daemon is there
                client.close()

    def dial(self):
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return socket.create_connection(self.target, 10)
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @property
    def seen(self):
        """Every byte that has come by."""
        return b"".join(link.sent + link.got for link in self.links)

    def close(self):
        stop_accepting(self.listener, self.accepting)
        for link in self.links:
            link.close()
            for t in link.threads:
                t.join(5)
            link.client.close()
            link.daemon.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
