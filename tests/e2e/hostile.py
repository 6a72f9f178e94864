# SPDX-License-Identifier: Apache-2.0
"""Hostile text, and a daemon that sends it."""

import contextlib
import json
import re
import socket
import threading
import unicodedata

import harness
import sealed
from harness import stop_accepting
from native import FEATURES, HEADER, NAMES, PREFACE, frame

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


STORE_PORT = b"40404"  # in an answer: stands for the port that the agent's HELLO has named


class FakeDaemon:
    """Opens a channel with an agent (with the key of the test, or with `key`; None: it speaks plainly), greets it with `greeting`, waits for
    HELLO and sends it `answers`: (name, fields) each; those behind a None when it has reported. .openings: what each peer wrote first, .heard: the names of messages, .facts: the fields of each FACTS."""

    def __init__(self, *answers, key="", greeting=None, listener=None):
        at = answers.index(None) if None in answers else len(answers)
        self.answers, self.last = dict(HELLO=answers[:at], REPORT=answers[at + 1 :]), "REPORT" if None in answers else "HELLO"
        self.key = harness.key_of(0) if key == "" else key
        self.greeting = greeting
        self.openings, self.heard, self.facts, self.answered = [], [], [], False
        self.listener = listener or harness.listen_in()
        host, self.port = self.listener.getsockname()
        self.endpoint = f"{host}:{self.port}"
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
        with contextlib.suppress(OSError, EOFError):
            seal, read, more = self._open(conn)
            conn.sendall(seal(frame("GREETING", self.greeting or dict(version=1, features=FEATURES, **more))))
            data = b""
            while True:
                data += read()
                while len(data) >= HEADER.size:
                    size, number, *_ = HEADER.unpack_from(data)
                    if len(data) < HEADER.size + size:
                        break
                    body, data = data[HEADER.size : HEADER.size + size], data[HEADER.size + size :]
                    self.heard.append(NAMES[number])
                    if NAMES[number] == "FACTS":
                        self.facts.append(json.loads(body))
                    if NAMES[number] == "HELLO":
                        port = json.loads(body).get("store_port", 0)
                    texts = [(name, json.dumps(f).encode() if isinstance(f, dict) else f) for name, f in self.answers.get(NAMES[number], ())]
                    conn.sendall(seal(b"".join(frame(name, text.replace(STORE_PORT, b"%d" % port)) for name, text in texts)))
                    self.answered = self.answered or NAMES[number] == self.last

    def _open(self, conn):
        """(What makes bytes of frames, what reads some, what GREETING has besides the version)."""
        first = exactly(conn, len(PREFACE))
        if self.key is not None:
            first += exactly(conn, sealed.opening_size(sealed.kind_of(first)) - len(PREFACE))
        self.openings.append(first)
        if self.key is None:
            return bytes, lambda: some(conn), {}
        channel = sealed.Server(sealed.Key.parse(str(self.key)))
        try:
            channel.opening(first)
        except sealed.Forged:
            conn.sendall(sealed.no(sealed.WRONG_KEY))
            raise EOFError from None
        conn.sendall(channel.answer())
        return channel.seal, lambda: channel.open(some(conn)), dict(ticket=channel.ticket())

    def close(self):
        stop_accepting(self.listener, self.accepting)
        for c in self.conns:
            with contextlib.suppress(OSError):  # the peer may have gone
                c.shutdown(socket.SHUT_RDWR)
            c.close()


def some(conn):
    data = conn.recv(65536)
    if not data:
        raise EOFError
    return data


def exactly(conn, n):
    data = b""
    while len(data) < n:
        more = conn.recv(n - len(data))
        if not more:
            raise EOFError
        data += more
    return data
