# SPDX-License-Identifier: Apache-2.0
"""The c10d protocol by hand: requests as bytes, and a socket that tells what came back. Little-endian, as PyTorch sends it from every machine."""

import socket
import struct

MAGIC = 0x3C85F7CE
OPS = ("VALIDATE SET COMPARE_SET GET ADD CHECK WAIT GETNUMKEYS DELETE_KEY APPEND MULTI_GET MULTI_SET CANCEL_WAIT PING "
       "QUEUE_PUSH QUEUE_POP QUEUE_LEN LIST_KEYS BARRIER").split()
NUMBER = {name: i for i, name in enumerate(OPS)}
# Before 2.2 there was no VALIDATE. 1.13 has WATCH_KEY where 2.1 has DELETE_KEY, and nothing after its own.
OF_113 = {n: i for i, n in enumerate("SET COMPARE_SET GET ADD CHECK WAIT GETNUMKEYS WATCH_KEY DELETE_KEY".split())}
OF_21 = {n: i for i, n in enumerate("SET COMPARE_SET GET ADD CHECK WAIT GETNUMKEYS DELETE_KEY APPEND MULTI_GET MULTI_SET CANCEL_WAIT".split())}


def u64(n):
    return struct.pack("<Q", n)


def i64(n):
    return struct.pack("<q", n)


def s(text):
    b = text.encode() if isinstance(text, str) else text
    return u64(len(b)) + b


def op(name, *parts, numbers=NUMBER):
    """A request: strings and bytes get their length, integers are i64; a list is its count and its items."""
    out = bytes([numbers[name]])
    for p in parts:
        if isinstance(p, list):
            out += u64(len(p)) + b"".join(b"".join(map(s, x)) if isinstance(x, tuple) else s(x) for x in p)
        else:
            out += i64(p) if isinstance(p, int) else s(p)
    return out


def validate(magic=MAGIC):
    return bytes([NUMBER["VALIDATE"]]) + struct.pack("<I", magic)


def ping(nonce):
    return bytes([NUMBER["PING"]]) + struct.pack("<I", nonce)


class Raw:
    def __init__(self, port, host="127.0.0.1", timeout=5, source=None):
        self.sock = socket.create_connection((host, port), timeout, source and (source, 0))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, data):
        self.sock.sendall(data)

    def recv(self, n):
        """n bytes, or fewer where the other side closed first."""
        got = b""
        while len(got) < n:
            try:
                part = self.sock.recv(n - len(got))
            except ConnectionResetError:
                part = b""
            if not part:
                break
            got += part
        return got

    def until_closed(self):
        return self.recv(1 << 30)

    def silent(self, seconds):
        """Whether nothing comes for so long."""
        self.sock.settimeout(seconds)
        try:
            return not self.sock.recv(1, socket.MSG_PEEK) and None
        except TimeoutError:
            return True
        finally:
            self.sock.settimeout(5)

    def taken(self):
        """Waits until the other side's kernel has acknowledged all that was sent."""
        import fcntl
        import time

        while struct.unpack("i", fcntl.ioctl(self.sock, 0x5411, b"\0\0\0\0"))[0]:  # TIOCOUTQ
            time.sleep(0.0002)

    def close(self):
        self.sock.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
