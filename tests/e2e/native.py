# SPDX-License-Identifier: Apache-2.0
"""A peer of rdzvd that speaks native frames by hand, for tests that want to say exactly what goes over the wire.

    with Native(port) as n:
        n.hello(job="j", nodes=1)
        assert n.started().world_size == 1

It opens a channel with the key of the test's daemons (harness.Rdzv.key), or with `key`. At a daemon that runs with --insecure, at a unix
socket, and with key=None it speaks plainly. The numbers of messages are read from the list in proto/msg.h, so there is no second list here.
"""

import json
import re
import secrets
import socket
import struct
import time
from pathlib import Path

import harness

try:
    import sealed
except ImportError:
    harness.need("PyPI's noiseprotocol", False)

PREFACE = b"RDZV\x01\x00\x00\x00"
HEADER = struct.Struct("<IHHII")  # bytes behind the header, type, flags, id, bytes of JSON

_list = (Path(__file__).resolve().parents[2] / "proto/msg.h").read_text()
_list = _list[_list.index("#define MSG_LIST(M)") :].split("\n\n", 1)[0]
NAMES = [None] + re.findall(r"^\s*M\((\w+),", _list, re.M)
# Those of this release: daemons and agents of the tests know them all.
FEATURES = " ".join(re.findall(r'^  X\(\w+, "(\w+)"\)', (Path(__file__).resolve().parents[2] / "proto/version.h").read_text(), re.M))
NUMBERS = {name: i for i, name in enumerate(NAMES) if name}


def frame(name, fields=None, raw=b"", flags=0, id=0):
    """The bytes of one message; `name` may be a number, `fields` bytes that are no JSON."""
    number = NUMBERS[name] if isinstance(name, str) else name
    text = fields if isinstance(fields, bytes) else b"" if fields is None else json.dumps(fields).encode()
    return HEADER.pack(len(text) + len(raw), number, flags, id, len(text)) + text + raw


class Message:
    """A message that came: .name, .flags, .id, .raw, and its JSON fields as attributes."""

    def __init__(self, name, flags, id, fields, raw):
        self.__dict__.update(fields)
        self.name, self.flags, self.id, self.fields, self.raw = name, flags, id, fields, raw

    def __repr__(self):
        return f"{self.name} {self.fields}"


class Closed(Exception):
    """The daemon closed the connection."""


class Native:
    def __init__(self, port=0, addr="127.0.0.1", path=None, source=None, preface=None, timeout=10.0, key="", sock=None, ticket=None):
        self.timeout, self.buffer, self.seen = timeout, b"", []
        if key == "":
            key = None if path or preface or sock else harness.key_of(port)
        self.channel = key and sealed.Client(sealed.Key.parse(str(key)), ticket=ticket)
        self.key_source = None  # of the daemon, once it has answered
        self.agent = secrets.token_hex(8)
        self.incarnation, self.round, self.seq = "", 0, 0
        if sock:  # one that is connected, of --agent-fd: without a preface
            self.sock, self.channel = sock, None
            return
        if path:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(timeout)
            self.sock.connect(str(path))
        else:
            self.sock = socket.create_connection((addr, port), timeout, source and (source, 0))
        self.sock.sendall(self.channel.opening() if self.channel else preface or PREFACE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.sock.close()

    def close(self):
        self.sock.close()

    def write(self, data):
        """Bytes that need not be frames."""
        if self.channel and self.key_source is None:
            self._open(time.monotonic() + self.timeout)
        self.sock.sendall(self.channel.seal(data) if self.channel else data)

    def send(self, name, fields=None, raw=b"", flags=0, id=0):
        self.write(frame(name, fields, raw, flags, id))

    def _read(self, deadline, n=65536):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"no message; so far: {self.seen}")
        self.sock.settimeout(left)
        try:
            data = self.sock.recv(n)
        except ConnectionError as e:
            raise Closed(f"{e}; so far: {self.seen}") from None
        if not data:
            raise Closed(f"so far: {self.seen}")
        return data

    def _open(self, deadline):
        """Reads the daemon's answer. sealed.Refused, sealed.Forged."""
        got = b""
        while len(got) < sealed.HEADER.size or (len(got) < sealed.ANSWER and got[6] == sealed.OK):
            want = sealed.ANSWER if len(got) >= sealed.HEADER.size else sealed.HEADER.size
            got += self._read(deadline, want - len(got))
        self.key_source = self.channel.answer(got)

    def recv(self, timeout=None):
        """The next message. Closed where there is none any more, TimeoutError where none comes."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            if len(self.buffer) >= HEADER.size:
                size, number, flags, id, n = HEADER.unpack_from(self.buffer)
                if len(self.buffer) >= HEADER.size + size:
                    body, self.buffer = self.buffer[HEADER.size : HEADER.size + size], self.buffer[HEADER.size + size :]
                    m = Message(NAMES[number], flags, id, json.loads(body[:n] or b"{}"), body[n:])
                    self.seen.append(m)
                    return m
            if self.channel and self.key_source is None:
                self._open(deadline)
            data = self._read(deadline)
            self.buffer += self.channel.open(data) if self.channel else data

    def expect(self, name, timeout=None):
        """Reads until `name` comes; what comes before it is kept in .seen."""
        return self.expect_one(name, timeout=timeout)

    def expect_one(self, *names, timeout=None):
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            m = self.recv(max(0.0, deadline - time.monotonic()))
            if m.name in names:
                return m

    def ticket(self):
        """That of the daemon's GREETING, for the `ticket` of another Native."""
        return self.channel.ticket(self.expect("GREETING").ticket)

    def until_closed(self, timeout=None):
        """All messages until the daemon closes."""
        got, deadline = [], time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            try:
                got.append(self.recv(max(0.0, deadline - time.monotonic())))
            except Closed:
                return got

    # -- an agent's part -----------------------------------------------------------------------------------------------

    def hello(self, job="job", nodes=1, max_nodes=None, workers=1, lease_ms=60000, **more):
        settings = dict(
            min_nodes=nodes, max_nodes=max_nodes or nodes, max_restarts=3, last_call_ms=0, join_timeout_ms=60000,
            stop_timeout_ms=1000, lease_ms=lease_ms,
        )
        fields = dict(
            version=1, features=FEATURES, agent=self.agent, job=job, settings=settings, host="testhost", pid=1, workers=workers,
            incarnation=self.incarnation, round=self.round,
        )
        self.send("HELLO", dict(fields, **more))

    def started(self):
        """Waits for START, answers it as an agent whose workers run. START."""
        m = self.expect("START")
        self.incarnation, self.round = m.incarnation, m.round
        self.report("started")
        return m

    def report(self, kind, **what):
        self.seq += 1
        report = dict(seq=self.seq, round=self.round, kind=kind, ago_ms=0)
        if what:
            report["what"] = what
        self.send("REPORT", dict(incarnation=self.incarnation, report=report))

    def finish(self):
        """The rest of a job that goes well. END."""
        self.report("finished")
        end = self.expect("END")
        self.send("END_ACK", dict(incarnation=self.incarnation))
        return end

    def control(self, verb, job="", json=False):
        """Over the control socket: (exit code, text)."""
        self.send("CONTROL", dict(verb=verb, job=job, json=json), id=7)
        m = self.expect("CONTROL_REPLY")
        assert m.id == 7, m
        return m.fields.get("code", 0), m.raw.decode()
