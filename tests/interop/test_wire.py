# SPDX-License-Identifier: Apache-2.0
"""Requests as bytes, to rdzvd, to a round's store and to PyTorch's own server: cut at every byte, all in one piece, byte by byte. The answers are the same
bytes, wherever PyTorch's server has an answer; where it has none (PROTOCOL.md lists it), ours is written down here."""

import time

import pytest

from conftest import EVERY_PYTORCH
from wire import OF_113, OF_21, Raw, i64, op, ping, s, u64, validate

pytestmark = EVERY_PYTORCH

# name -> (what comes before, the request, its answer, a question after it, the answer to that)
KEY = op("SET", "/k", "old")
CASES = {
    "SET": (b"", op("SET", "/k", "value"), b"", op("GET", "/k"), s("value")),
    "SET empty": (b"", op("SET", "", ""), b"", op("CHECK", [""]), b"\0"),
    "COMPARE_SET": (KEY, op("COMPARE_SET", "/k", "old", "new"), s("new"), op("GET", "/k"), s("new")),
    "COMPARE_SET unlike": (KEY, op("COMPARE_SET", "/k", "other", "new"), s("old"), op("GET", "/k"), s("old")),
    "COMPARE_SET absent": (b"", op("COMPARE_SET", "/k", "other", "new"), s("other"), op("CHECK", ["/k"]), b"\1"),
    "COMPARE_SET from empty": (b"", op("COMPARE_SET", "/k", "", "new"), s("new"), op("GET", "/k"), s("new")),
    "GET": (KEY, op("GET", "/k"), s("old"), op("CHECK", []), b"\0"),
    "GET missing": (b"", op("GET", "/k"), s(""), op("CHECK", []), b"\0"),
    "ADD": (op("SET", "/n", "40"), op("ADD", "/n", -2), i64(38), op("GET", "/n"), s("38")),
    "CHECK": (KEY, op("CHECK", ["/k", "/none"]), b"\1", op("CHECK", ["/k", "/k"]), b"\0"),
    "WAIT": (KEY, op("WAIT", ["/k", ""]), b"", op("SET", "", "x"), b"\0"),
    "WAIT for what is there": (KEY, op("WAIT", ["/k"]), b"\0", op("CHECK", []), b"\0"),
    "GETNUMKEYS": (KEY, op("GETNUMKEYS"), i64(1), op("CHECK", []), b"\0"),
    "DELETE_KEY": (KEY, op("DELETE_KEY", "/k"), i64(1), op("DELETE_KEY", "/k"), i64(0)),
    "APPEND": (KEY, op("APPEND", "/k", "er"), b"", op("GET", "/k"), s("older")),
    "MULTI_GET": (KEY, op("MULTI_GET", ["/k", "/none", "/k"]), s("old") + s("") + s("old"), op("CHECK", []), b"\0"),
    "MULTI_SET": (b"", op("MULTI_SET", [("/a", "1"), ("", "")]), b"", op("MULTI_GET", ["/a", ""]), s("1") + s("")),
    "CANCEL_WAIT": (op("WAIT", ["/none"]), op("CANCEL_WAIT"), b"\1", op("SET", "/none", "x"), b""),
    "CANCEL_WAIT of nothing": (b"", op("CANCEL_WAIT"), b"\1", op("CHECK", []), b"\0"),
    "PING": (b"", ping(0xA1B2C3D4), b"\xd4\xc3\xb2\xa1", op("CHECK", []), b"\0"),
    "QUEUE_PUSH": (b"", op("QUEUE_PUSH", "/q", "elem"), b"", op("QUEUE_POP", "/q"), i64(1) + s("elem")),
    "QUEUE_POP": (op("QUEUE_PUSH", "/q", "1") * 2, op("QUEUE_POP", "/q"), i64(2) + s("1"), op("QUEUE_LEN", "/q"), i64(1)),
    "QUEUE_POP of nothing": (b"", op("QUEUE_POP", "/q"), i64(0), op("CHECK", []), b"\0"),
    "QUEUE_LEN": (op("QUEUE_PUSH", "/q", "1"), op("QUEUE_LEN", "/q"), i64(1), op("GETNUMKEYS"), i64(0)),
    "LIST_KEYS": (KEY, op("LIST_KEYS"), i64(1) + s("/k"), op("CHECK", []), b"\0"),
    "BARRIER": (b"", op("BARRIER", "/b", 2), b"", op("GET", "/b"), s("1")),
    "BARRIER and its key": (b"", op("BARRIER", "/b", 2), b"", op("ADD", "/b", 0), b"\0" + i64(1)),
    "BARRIER complete": (op("SET", "/b", "1"), op("BARRIER", "/b", 2), b"\0", op("GET", "/b"), s("2")),
}
END = 0x0E0D0C0B


def talk(port, parts, expected):
    """Sends the parts, each when the one before has been taken, and a PING at last: what came back, no more than is expected."""
    with Raw(port) as c:
        for p in parts[:-1]:
            c.send(p)
            c.taken()
            time.sleep(0.0005)  # and read, most of the time
        c.send(parts[-1] + ping(END))
        return c.recv(len(expected))


def clear(port):
    """Every key and the one queue go, so that the next talk finds an empty store."""
    with Raw(port) as c:
        c.send(validate() + op("QUEUE_POP", "/q") * 3 + b"".join(op("DELETE_KEY", k) for k in ("/k", "/n", "/a", "/b", "", "/none")) + ping(END))
        got = b""
        while not got.endswith(ping(END)[1:]):
            part = c.sock.recv(4096)
            assert part, "closed while the store was cleared"
            got += part


def session(case):
    before, request, answer, after, then = case
    return validate() + before, request, after, answer + then + ping(END)[1:]


@pytest.mark.parametrize("where", ["rdzvd", "round", "stock"])
def test_cut_at_every_byte(where, serve):
    port = serve(where)
    for name, case in CASES.items():
        hello, request, after, want = session(case)
        for at in range(len(request) + 1):
            got = talk(port, [hello, request[:at], request[at:] + after] if 0 < at < len(request) else [hello, request, after], want)
            assert got == want, f"{name} cut at {at}"
            clear(port)


@pytest.mark.parametrize("where", ["rdzvd", "round", "stock"])
def test_all_in_one_piece(where, serve):
    """Every case pipelined, by hundreds in one segment."""
    port = serve(where)
    for name, case in CASES.items():
        hello, request, after, want = session(case)
        assert talk(port, [hello + request + after], want) == want, name
        clear(port)
    many = (op("ADD", "/n", 1) + op("GET", "/n")) * 300
    want = b"".join(i64(i + 1) + s(str(i + 1)) for i in range(300)) + ping(END)[1:]
    assert talk(port, [validate() + many], want) == want


@pytest.mark.parametrize("where", ["rdzvd", "round"])
def test_byte_by_byte_from_the_first(where, serve):
    """VALIDATE too may come in parts. PyTorch's own server closes then."""
    port = serve(where)
    for name in ("COMPARE_SET", "MULTI_SET", "QUEUE_POP"):
        hello, request, after, want = session(CASES[name])
        assert talk(port, [bytes([b]) for b in hello + request + after], want) == want, name
        clear(port)
    for at in range(1, 5):
        hello = validate()
        want = s("old") + ping(END)[1:]
        assert talk(port, [hello[:at], hello[at:] + KEY + op("GET", "/k")], want) == want, at


TWO = op("MULTI_SET", [("/k", "1"), ("/a", "2")])


@pytest.mark.parametrize("where", ["rdzvd", "round", "stock"])
def test_an_unfinished_request_does_nothing(where, serve):
    """Who goes in the middle of a request leaves nothing of it behind."""
    port = serve(where)
    requests = [op("SET", "/k", "v"), op("ADD", "/n", 1), op("QUEUE_PUSH", "/q", "x"), op("APPEND", "/k", "v")]
    if where != "stock":
        requests.append(TWO)
    for request in requests:
        for at in range(1, len(request)):
            with Raw(port) as c:
                c.send(validate() + request[:at])
        with Raw(port) as c:
            c.send(validate() + op("GETNUMKEYS") + op("QUEUE_LEN", "/q"))
            assert c.recv(16) == i64(0) * 2


@pytest.mark.parametrize("where", ["rdzvd", "round", "stock"])
def test_requests_while_a_wait_is_open(where, serve):
    port = serve(where)
    with Raw(port) as c:
        c.send(validate() + op("WAIT", ["/late"]) + ping(7) + op("ADD", "/n", 3) + op("CHECK", ["/late"]))
        assert c.recv(13) == ping(7)[1:] + i64(3) + b"\1"
        assert c.silent(0.1)
        c.send(op("SET", "/late", "x"))
        assert c.recv(1) == b"\0"
        c.send(op("CANCEL_WAIT") + ping(8))
        assert c.recv(5) == b"\1" + ping(8)[1:]


def test_what_protocol_md_says_of_pytorchs_server(serve):
    """Where we differ on purpose: it should still be true."""
    port = serve("stock")
    with Raw(port) as c:
        c.send(validate()[:3])
        c.taken()
        time.sleep(0.05)
        c.send(validate()[3:] + ping(1))
        assert c.until_closed() == b""
    with Raw(port) as c:
        c.send(validate(0x11111111))
        assert c.silent(0.1)
    with Raw(port) as c:
        c.send(validate() + TWO[:-1])
    with Raw(port) as c:
        c.send(validate() + op("WAIT", ["/k"]) + op("GETNUMKEYS"))
        assert c.recv(9) == b"\0" + i64(1)


REFUSED = {
    "an unknown number": op("GETNUMKEYS")[:0] + b"\x13",
    "the last number": b"\xff",
    "a second VALIDATE": validate(),
    "a key over its limit": b"\1" + u64(8193),
    "a value over its limit": b"\1" + s("/k") + u64((8 << 20) + 1),
    "too many keys": b"\5" + u64(131073),
    "a length of all ones": b"\3" + b"\xff" * 8,
    "ADD to what is no number": op("SET", "/k", "abc") + op("ADD", "/k", 1),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_by_closing(what, serve):
    """What no client sends ends that connection, at once, and nobody else's."""
    for where in ("rdzvd", "round", "stock"):
        port = serve(where)
        with Raw(port) as other, Raw(port) as c:
            other.send(validate() + op("SET", "/o", "there"))
            c.send(validate() + ping(1))
            assert c.recv(4) == ping(1)[1:]
            c.send(REFUSED[what])
            assert c.until_closed() == b"", where
            other.send(op("GET", "/o"))
            assert other.recv(13) == s("there"), where


@pytest.mark.parametrize("where", ["rdzvd", "round"])
def test_who_does_not_say_validate_is_closed(where, serve):
    """PyTorch's own server keeps them, silent, until the next bytes come."""
    port = serve(where)
    for first in (validate(0x11111111), ping(1), b"\x0c", b"GET / HTTP/1.0\r\n\r\n" if where == "round" else b"\xfe"):
        with Raw(port) as c:
            c.send(first)
            assert b"PING" not in c.until_closed(), first


# ---- the numbering before 2.2 ---------------------------------------------------------------------------------------

COMMON = {
    "SET": (("SET", "/k", "value"), b"", ("GET", "/k"), s("value")),
    "COMPARE_SET": (("COMPARE_SET", "/k", "", "new"), s("new"), ("GET", "/k"), s("new")),
    "ADD": (("ADD", "/n", 7), i64(7), ("GET", "/n"), s("7")),
    "CHECK": (("CHECK", ["/none"]), b"\1", ("GETNUMKEYS",), i64(0)),
    "DELETE_KEY": (("DELETE_KEY", "/none"), i64(0), ("GETNUMKEYS",), i64(0)),
}
ONLY_21 = {
    "APPEND": (("APPEND", "/k", "v"), b"", ("GET", "/k"), s("v")),
    "MULTI_GET": (("MULTI_GET", ["/k", "/k"]), s("") * 2, ("GETNUMKEYS",), i64(0)),
    "MULTI_SET": (("MULTI_SET", [("/k", "1")]), b"", ("GET", "/k"), s("1")),
    "CANCEL_WAIT": (("CANCEL_WAIT",), b"\1", ("GETNUMKEYS",), i64(0)),
}


def old_talk(port, parts, n):
    with Raw(port) as c:
        for p in parts:
            c.send(p)
            c.taken()
            time.sleep(0.0005)
        return c.recv(n)


@pytest.mark.parametrize("version", ["1.13", "2.1"])
@pytest.mark.parametrize("where", ["rdzvd", "round"])
def test_old_numbers_cut_at_every_byte(where, version, serve):
    port = serve(where)
    numbers, cases = (OF_113, COMMON) if version == "1.13" else (OF_21, dict(COMMON, **ONLY_21))
    # 1.13 opens a second connection first, and never says a word on it.
    silent = Raw(port) if version == "1.13" else None
    time.sleep(0.1)  # a connection that is new is silent without meaning anything by it
    for name, (request, answer, after, then) in cases.items():
        # Its first request is ADD init/, and it counts: so do these clients.
        hello = op("ADD", "init/", 1, numbers=numbers)
        request, after = op(*request, numbers=numbers), op(*after, numbers=numbers)
        bye = op("DELETE_KEY", "init/", numbers=numbers)
        if name in ("CHECK", "DELETE_KEY", "MULTI_GET", "CANCEL_WAIT"):
            then = i64(1)  # init/ is a key
        want = i64(1) + answer + then + i64(1)
        for at in range(len(request)):
            parts = [hello + request[:at], request[at:] + after + bye] if at else [hello[:1], hello[1:], request, after, bye]
            assert old_talk(port, parts, len(want)) == want, f"{name} cut at {at}"
            clear(port)
    if silent:
        assert silent.silent(0.05), "the silent connection was closed"
        silent.close()
