# SPDX-License-Identifier: Apache-2.0
"""PyTorch's store protocol by hand, as much of it as a test's worker needs, without PyTorch.

    s = Store("127.0.0.1", 29500)
    s.set("key", b"value"); s.get("key"); s.keys()

Every answer is waited for `timeout` seconds at most. A server that turns us away, or goes, is a ConnectionError.
"""

import os
import socket
import struct

MAGIC = 0x3C85F7CE
VALIDATE, SET, GET, ADD, WAIT, PING, LIST_KEYS = 0, 1, 3, 4, 6, 13, 17


def _text(data):
    data = data.encode() if isinstance(data, str) else data
    return struct.pack("<Q", len(data)) + data


class Store:
    def __init__(self, host=None, port=None, timeout=10.0, source=None):
        host = host or os.environ["MASTER_ADDR"]
        port = int(port or os.environ["MASTER_PORT"])
        self.sock = socket.create_connection((host, port), timeout, source and (source, 0))
        self.sock.sendall(struct.pack("<BI", VALIDATE, MAGIC))
        self.ping()

    def close(self):
        self.sock.close()

    def _recv(self, n):
        data = b""
        while len(data) < n:
            got = self.sock.recv(n - len(data))
            if not got:
                raise ConnectionError("the store has closed the connection")
            data += got
        return data

    def _value(self):
        return self._recv(struct.unpack("<Q", self._recv(8))[0])

    def ping(self):
        nonce = os.urandom(4)
        self.sock.sendall(bytes([PING]) + nonce)
        assert self._recv(4) == nonce

    def set(self, key, value):
        self.sock.sendall(bytes([SET]) + _text(key) + _text(value))
        self.ping()  # SET has no answer: this one comes behind it

    def get(self, key):
        """Waits for it."""
        self.sock.sendall(bytes([WAIT]) + struct.pack("<Q", 1) + _text(key))
        assert self._recv(1) == b"\0"
        self.sock.sendall(bytes([GET]) + _text(key))
        return self._value()

    def add(self, key, n):
        self.sock.sendall(bytes([ADD]) + _text(key) + struct.pack("<q", n))
        return struct.unpack("<q", self._recv(8))[0]

    def keys(self):
        self.sock.sendall(bytes([LIST_KEYS]))
        return sorted(self._value().decode() for _ in range(struct.unpack("<q", self._recv(8))[0]))
