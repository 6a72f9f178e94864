# SPDX-License-Identifier: Apache-2.0
"""Hostile text, and a daemon that sends it."""

import contextlib
import re
import socket
import threading
import unicodedata

from harness import stop_accepting
from native import HEADER, NAMES, PREFACE, frame

# CSI as ESC, as C1 and as one byte; overrides, isolates, marks, a line separator, DEL, an invisible tag, a line break, OSC that sets the title.
CHARS = "\x1b[31m\x9b31m\u202eevil\u2066\u2069\u200e\u200f\u2028\u2029\x7f\U000e0041\n\x9d0;title\x07"
EVIL = "évil中" + CHARS
SHOWN = "évil中"  # of it, as it is


def unprintable(text):
    """What of a line must not reach a terminal."""
    return [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs", "Cn") and c not in "\t"]


def check(lines):
    """Of a process that was sent no U+FFFD: where one is, the harness has met a byte that is not UTF-8."""
    for line in lines:
        bad = unprintable(line) + re.findall("\ufffd", line)
        assert not bad, f"{line!r}: {bad!r}"


class FakeDaemon:
    """Greets an agent, waits for HELLO and sends it `answers`: (name, fields) each."""

    def __init__(self, *answers):
        self.answers = answers
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.endpoint = f"127.0.0.1:{self.port}"
        self.conns = []
        self.accepting = threading.Thread(target=self._accept, daemon=True)
        self.accepting.start()

    def _accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.conns.append(conn)
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn):
        conn.sendall(frame("CHALLENGE", dict(version=1, nonce="00" * 32, auth="none")))
        data = b""
        while True:
            try:
                more = conn.recv(65536)
            except OSError:
                return
            if not more:
                return
            data += more
            body = data[len(PREFACE) :]
            if len(body) < HEADER.size:
                continue
            size, number, *_ = HEADER.unpack_from(body)
            if len(body) < HEADER.size + size:
                continue
            data = PREFACE + body[HEADER.size + size :]
            if NAMES[number] == "HELLO":
                conn.sendall(b"".join(frame(name, fields) for name, fields in self.answers))

    def close(self):
        stop_accepting(self.listener, self.accepting)
        for c in self.conns:
            with contextlib.suppress(OSError):  # the peer may have gone
                c.shutdown(socket.SHUT_RDWR)
            c.close()
