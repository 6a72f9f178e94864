# SPDX-License-Identifier: Apache-2.0
"""Who may do what to a job behind a key: strangers of every kind at every door, and impostors in front of every program.

Each test has a real job that runs meanwhile. Afterwards the same workers run, the job ends well, and no log has a key or what a stranger said of
itself (secured.Job). What comes from outside here is the channel of sealed.py, which is not our code.

The first part attacks the daemon's doors: its port, as an agent, as rdzvctl, over HTTP and as PyTorch's store, and its unix socket. The second
part stands between the programs (relay.py). The third poses as the daemon.
"""

import contextlib
import os
import re
import secrets
import socket
import struct
import threading
import time

import pytest

import sealed
from harness import RDZVCTL, SLOW, listen_in, stop_accepting, until
from hostile import FakeDaemon
from native import Closed, Native, frame
from others import EVE, needs_users, user
from relay import Relay
from sealed import Key
from secured import JOB, STRANGER, Job

FORGED = sealed.Forged, sealed.Refused, Closed


@pytest.fixture
def job(rdzv):
    job = Job(rdzv)
    yield job
    job.finish()


def everything(sock, timeout=15.0):
    """What comes until the other side closes."""
    sock.settimeout(timeout * SLOW)
    got = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            got += data
    return got


# ---- strangers at the port -------------------------------------------------------------------------------------------


def opened(job, key, **how):
    """The status that the daemon answers; sealed.OK where the channel is open."""
    with Native(job.daemon.port, key=key, **how) as n:
        try:
            n.expect("GREETING")
        except sealed.Refused as e:
            return e.status
        return sealed.OK


def keys(job):
    own = Key.parse(job.rdzv.key)
    return {
        "wrong": Key.random(),
        "wrong user's": Key(secrets.token_bytes(32), os.geteuid()),
        "user's own for another user": Key(own.derive(EVE).secret, 0),
        "user's for the daemon": Key(own.derive(EVE).secret),
        "daemon's for a user": Key(own.secret, EVE),
        "derived twice": own.derive(EVE).derive(EVE),
        "zero": Key(bytes(32)),
        "HTTP token": Key.parse(own.token()),
    }


@pytest.mark.parametrize("verb", ["HELLO", "AGENT_DIED", "CONTROL"])
def test_no_key(job, verb):
    """Agent, guard and rdzvctl that speak plainly: the same sentence, and nothing of them is read."""
    with Native(job.daemon.port, key=None) as n:
        if verb == "HELLO":
            n.hello(**STRANGER)
        elif verb == "AGENT_DIED":
            n.send("AGENT_DIED", dict(agent="ab" * 8, incarnation="ab" * 8, round=1))
        else:
            n.send("CONTROL", dict(verb="stop", job=JOB, json=False, user=STRANGER["host"]), id=1)
        got = n.until_closed()
    assert [m.name for m in got] == ["GREETING", "REFUSED"] and got[1].code == 72, got
    assert "key" in got[1].text and "--insecure" in got[1].text and JOB not in str(got), got
    job.daemon.expect(r"127\.0\.0\.1:\d+: refused: it has no key")


def test_keys_that_are_not_the_daemons(job):
    for name, key in keys(job).items():
        assert opened(job, key) == sealed.WRONG_KEY, name
    job.daemon.expect(r"127\.0\.0\.1:\d+: refused: its key is not the key of this daemon")
    for uid in None, 0, EVE, 4294967294:
        own = Key.parse(job.rdzv.key)
        assert opened(job, own if uid is None else own.derive(uid)) == sealed.OK, uid


def test_key_of_before(job):
    """A rotated key opens nothing any more; who has the new one comes in."""
    old, new = Key.parse(job.rdzv.key), Key.random()
    job.restart_daemon(new)
    assert opened(job, old) == opened(job, old.derive(EVE)) == sealed.WRONG_KEY
    assert opened(job, new) == opened(job, new.derive(EVE)) == sealed.OK
    job.unharmed()  # its agents have the old key: they try on, and their workers run
    job.restart_daemon(old)
    until("the agents are back", lambda: len([l for l in job.daemon.err if f"job {JOB}" in l]) > 1)


def recorded(job):
    """What an honest agent of another job wrote, byte for byte: its opening, and its HELLO."""
    with Relay(job.daemon.port) as relay, Native(relay.port) as n:
        n.hello(job="replayed-job", nodes=2, lease_ms=5000)  # its loss is noticed after a fiftieth of it
        n.expect("WELCOME")
    return relay.links[0]


@pytest.mark.parametrize("later", [0, 1.2], ids=["at once", "under another ephemeral key"])
def test_replay(job, later):
    link, got, lines = replayed(job, later)
    if later:  # the daemon opens a channel, and does not understand what follows
        assert got[6] == sealed.OK and len(got) > sealed.ANSWER, got
        assert got[: sealed.ANSWER] != link.got[: sealed.ANSWER], "fresh keys"
        assert got[sealed.ANSWER :] != link.got[sealed.ANSWER : len(got)], "fresh records"
        job.daemon.expect(r"127\.0\.0\.1:\d+: refused: a record was changed on its way, or came twice")
    else:
        for _ in range(20):  # the ephemeral key is a new one each second
            if got[6] != sealed.OK:
                break
            link, got, lines = replayed(job, later)
        assert got == sealed.no(sealed.WRONG_KEY, got[7]), got
    assert len([l for l in job.daemon.err if "replayed-job" in l]) == lines, "the daemon has read nothing of it"


def replayed(job, later):
    """The link that was recorded, what the daemon answered to the same bytes, and how many lines it had said of that job before."""
    lost = lambda: len([l for l in job.daemon.err if re.search("replayed-job.*lost", l)])
    before = lost()
    link = recorded(job)
    until("the other job's agent is gone", lambda: lost() > before)
    lines = len([l for l in job.daemon.err if "replayed-job" in l])
    time.sleep(later)
    with socket.create_connection(("127.0.0.1", job.daemon.port)) as s:
        s.sendall(link.sent)
        return link, everything(s), lines


def test_every_byte_of_an_opening(job):
    """One bit flipped in each: no channel opens, and the daemon says what it read."""
    for at in range(sealed.OPENING):
        client = sealed.Client(Key.parse(job.rdzv.key))
        data = bytearray(client.opening())
        data[at] ^= 1 << at % 8
        with socket.create_connection(("127.0.0.1", job.daemon.port)) as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            got = everything(s)
        assert len(got) < sealed.HEADER.size or got[6] != sealed.OK or got[:4] != b"RDZV", (at, got)
        if at >= 8:
            assert got == sealed.no(sealed.WRONG_KEY, got[7]), (at, got)
    for n in 1, 7, 8, 11, 12, 59:  # cut off
        with socket.create_connection(("127.0.0.1", job.daemon.port)) as s:
            s.sendall(sealed.Client(Key.parse(job.rdzv.key)).opening()[:n])
            s.shutdown(socket.SHUT_WR)
            assert everything(s) == b"", n


# ---- tickets ---------------------------------------------------------------------------------------------------------


TICKET_REFUSED = r"127\.0\.0\.1:\d+: refused: its ticket is too old, used, or not of this daemon"


def ticket_of(job, key=None):
    with Native(job.daemon.port, key=key or job.rdzv.key) as n:
        return n.ticket()


def forged(job, issued, key=None):
    """A ticket of somebody who has the daemon's own key, or another one."""
    client, server = sealed.Client(Key.parse(job.rdzv.key)), sealed.Server(Key.parse(job.rdzv.key))
    server.opening(client.opening())
    client.answer(server.answer())
    server.own = key or server.own
    return client.ticket(server.ticket(issued))


def test_tickets_that_open_nothing(job):
    own, eve, good = Key.parse(job.rdzv.key), Key.parse(job.rdzv.key).derive(EVE), ticket_of(job)
    replace = lambda t, **what: sealed.Ticket(**dict(vars(t), **what))
    bad = {
        "too old": forged(job, int(time.time()) - sealed.TICKET_S - 5),
        "of the future": forged(job, int(time.time()) + sealed.TICKET_S + 60),
        "of a daemon with another key": forged(job, int(time.time()), Key.random()),
        "made with a user's key": forged(job, int(time.time()), eve),
        "a user's for the daemon": replace(ticket_of(job, eve), number=sealed.OWN),
        "a user's for another": replace(ticket_of(job, eve), number=0),
        "the daemon's for a user": replace(good, number=EVE),
        "stolen, without its secret": replace(good, secret=secrets.token_bytes(32)),
        "another's with the own secret": replace(ticket_of(job), secret=good.secret),
        "random": replace(good, data=good.data[:4] + secrets.token_bytes(sealed.TICKET - 4)),
    }
    for name, ticket in bad.items():
        assert opened(job, own, ticket=ticket) == sealed.WRONG_KEY, name
    job.daemon.expect(TICKET_REFUSED)
    assert opened(job, own, ticket=good) == sealed.OK, "nobody has used it up"
    assert opened(job, own, ticket=forged(job, int(time.time()) - sealed.TICKET_S + 600)) == sealed.OK
    with Native(job.daemon.port, ticket=ticket_of(job, eve)) as n:  # its bearer is that user, whatever other key it holds
        n.expect("GREETING")
        n.send("CONTROL", dict(verb="jobs"), id=1)
        assert JOB not in str(n.expect("CONTROL_REPLY").raw)


@pytest.mark.parametrize("later", [0, 1.2], ids=["at once", "under another ephemeral key"])
def test_replay_with_a_ticket(job, later):
    """What a client with a ticket has said is said again. Once the daemon has forgotten the opening, it opens a channel of which nobody has the keys."""
    asked = lambda: len([line for line in job.daemon.err if "CONTROL" in line])
    for n_asked in range(1, 21):  # the ephemeral key is a new one each second
        ticket = ticket_of(job)
        with Relay(job.daemon.port) as relay, Native(relay.port, ticket=ticket) as n:
            n.expect("GREETING")
            n.send("CONTROL", dict(verb="stop", job="replayed-job"), id=1)
            n.expect("CONTROL_REPLY")
        until("the daemon's line about it", lambda: asked() == n_asked)
        time.sleep(later)
        with socket.create_connection(("127.0.0.1", job.daemon.port)) as s:
            s.sendall(relay.links[0].sent)
            got = everything(s)
        if later or got[6] != sealed.OK:
            break
    if later:
        assert got[6] == sealed.OK and len(got) > sealed.ANSWER, got
        assert got[: sealed.ANSWER] != relay.links[0].got[: sealed.ANSWER], "fresh keys"
        job.daemon.expect(r"127\.0\.0\.1:\d+: refused: a record was changed on its way, or came twice")
    else:
        assert got == sealed.no(sealed.WRONG_KEY, got[7]), got
        job.daemon.expect(TICKET_REFUSED)
    assert asked() == n_asked, "the daemon has read nothing of it"


def test_every_byte_of_an_opening_with_a_ticket(job):
    for at in range(sealed.RESUMING):
        client = sealed.Client(Key.parse(job.rdzv.key), ticket=ticket_of(job))
        data = bytearray(client.opening())
        data[at] ^= 1 << at % 8
        with socket.create_connection(("127.0.0.1", job.daemon.port)) as s:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
            got = everything(s)
        assert len(got) < sealed.HEADER.size or got[6] != sealed.OK or got[:4] != b"RDZV", (at, got)
        if at >= 8:
            assert got == sealed.no(sealed.WRONG_KEY, got[7]), (at, got)


def test_agents_come_back_with_tickets(rdzv):
    """After a restart of the daemon they come back without Diffie-Hellman. A daemon with another key gets the ticket, then an opening with the
    key, and the agents try on until theirs is back."""
    job = Job(rdzv, via=lambda port: Relay(port, patience=20), agent_args=["--lease", "60s"])
    opened_with = lambda n: [(sealed.kind_of(link.sent), link.got[6]) for link in job.via.links[n:] if len(link.got) >= sealed.HEADER.size]
    assert opened_with(0) == 2 * [(sealed.SEALED, sealed.OK)]
    n = len(job.via.links)
    job.restart_daemon()
    until("both are back", lambda: opened_with(n) == 2 * [(sealed.RESUMED, sealed.OK)])
    until("the daemon has its job again", lambda: job.daemon.says(f"job {JOB}"))
    job.unharmed()
    n = len(job.via.links)
    job.restart_daemon(Key.random())
    until("each has tried both", lambda: {(kind, sealed.WRONG_KEY) for kind in (sealed.RESUMED, sealed.SEALED)} <= set(opened_with(n)) and len(opened_with(n)) >= 4)
    assert not [o for o in opened_with(n) if o[1] == sealed.OK]
    assert opened_with(n).count((sealed.RESUMED, sealed.WRONG_KEY)) == 2, "a ticket is used once"
    job.restart_daemon(Key.parse(rdzv.key))
    until("both are back with the key", lambda: opened_with(n).count((sealed.SEALED, sealed.OK)) == 2)
    job.finish()


# ---- records ---------------------------------------------------------------------------------------------------------


def first_record(key, port, change):
    """Sends HELLO in a record of which `change` makes something else: what the daemon says then."""
    with Native(port, key=key) as n:
        n.expect("GREETING")
        data = frame("HELLO", dict(version=1, agent=n.agent, **STRANGER, workers=1, settings=dict(min_nodes=1, max_nodes=1, lease_ms=5000)))
        n.sock.sendall(change(bytearray(n.channel.seal(data))))
        n.sock.shutdown(socket.SHUT_WR)
        return n.until_closed()


def test_every_byte_of_the_first_record(job):
    size = []

    def flip(at, data):
        size[:] = [len(data)]
        data[at] ^= 1 << at % 8
        return data

    assert [m.name for m in first_record(job.rdzv.key, job.daemon.port, lambda data: flip(20, data))] == []
    for at in range(size[0]):
        assert first_record(job.rdzv.key, job.daemon.port, lambda data: flip(at, data)) == [], at
    job.daemon.expect(r"127\.0\.0\.1:\d+: refused: a record was changed on its way, or came twice")
    for length in 0, 1, 16, 65535:
        got = first_record(job.rdzv.key, job.daemon.port, lambda data: struct.pack("<H", length) + data[2:])
        assert [m.name for m in got] == ["REFUSED"] and f"a record of {length} bytes" in got[0].text, (length, got)


def test_munge_requests_of_strangers(job):
    """Whatever is no credential of munged brings no key. test_munge.py has those that are."""
    credential = b"MUNGE:" + b"A" * 200 + b":"
    for n, data in (0, b""), (1, b"x"), (len(credential), credential), (4097, b"x" * 4097), (0xFFFFFFFF, b"x" * 100), (4096, b"x" * 4096):
        with socket.create_connection(("127.0.0.1", job.daemon.port)) as s:
            s.sendall(sealed.preface(sealed.MUNGE) + struct.pack("<I", n) + data)
            s.shutdown(socket.SHUT_WR)
            got = everything(s)
        assert got == b"" or got[6] in (sealed.NO_MUNGE, sealed.MUNGE_REFUSED, sealed.BUSY), (n, got)
        job.check_wire(got)


def test_slow_and_silent(job):
    """A peer that is not done with its opening, or says nothing in its channel, is closed after ten seconds; so are all other doors."""
    opening = sealed.Client(Key.parse(job.rdzv.key)).opening()
    wrong = sealed.Client(Key.random()).opening()
    peers = {}
    for name, first in dict(nothing=b"", preface=opening[:8], most=opening[:59], wrong=wrong[:59], http=b"GET /heal", c10d=b"\x00").items():
        peers[name] = socket.create_connection(("127.0.0.1", job.daemon.port))
        peers[name].sendall(first)
    drip = socket.create_connection(("127.0.0.1", job.daemon.port))
    authentic = Native(job.daemon.port)  # has the key, and says nothing
    authentic.expect("GREETING")
    local = socket.socket(socket.AF_UNIX)
    local.connect(str(job.socket))
    for i in range(12):  # a byte in a second
        with contextlib.suppress(ConnectionError):
            drip.sendall(opening[i : i + 1])
        time.sleep(1)
    for name, s in dict(peers, drip=drip, authentic=authentic.sock, local=local).items():
        everything(s, 5)
        s.close()


# ---- another user of the same daemon ---------------------------------------------------------------------------------


def control(job, key, verb, target=JOB):
    """Over the port, as rdzvctl on another machine does it."""
    with Native(job.daemon.port, key=key) as n:
        n.send("CONTROL", dict(verb=verb, job=target, json=False), id=7)
        m = n.expect("CONTROL_REPLY")
        return m.fields.get("code", 0), m.raw.decode()


def test_user_of_another_job(job):
    """A user's key shows that user's jobs. The names of the others' are not even refused."""
    eve = Key.parse(job.rdzv.key).derive(EVE)
    code, text = control(job, eve, "jobs", "")
    assert code == 0 and JOB not in text, text
    for verb in "stop", "kill-worker", "status":
        code, text = control(job, eve, verb)
        assert code != 0 and JOB in text and not any(str(pid) in text for pid in job.workers.values()), (verb, text)
        assert control(job, eve, verb, "never-heard-of")[1].replace("never-heard-of", JOB) == text, "the same words as for a job that is none"
    with Native(job.daemon.port, key=eve) as n:  # her own job of that name is another one
        n.hello(job=JOB, nodes=1, uid=0)
        n.started()
        assert JOB in control(job, eve, "status")[1]
        job.unharmed()
        n.finish()
    assert JOB in control(job, job.rdzv.key, "status")[1]


# ---- HTTP and the stores ---------------------------------------------------------------------------------------------


def http(job, request):
    with socket.create_connection(("127.0.0.1", job.daemon.port)) as s:
        s.sendall(request)
        return everything(s)


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/metrics", "/status", "/jobs", "/%2e%2e/key"])
def test_http_tells_nothing(job, path):
    for more in "", "Authorization: Bearer " + secrets.token_hex(32) + "\r\n", "Authorization: Bearer " + job.rdzv.key + "\r\n":
        got = http(job, f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode())
        assert got.startswith(b"HTTP/1.1 "), got
        job.check_wire(got)


def status_of(job, token):
    """Over HTTP, as a program of another machine asks: (code, text)."""
    got = http(job, f"GET /status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return int(got.split()[1]), got.decode()


def test_http_tokens(job):
    """One digit that differs, another user's token, the key itself in its place: nobody's."""
    own = Key.parse(job.rdzv.key)
    token, hers = own.token(), own.derive(EVE).token()
    assert status_of(job, token)[0] == 200 and JOB in status_of(job, token)[1]
    assert status_of(job, hers)[0] == 200 and JOB not in status_of(job, hers)[1]
    wrong = [token[:at] + f"{int(token[at], 16) ^ 1:x}" + token[at + 1 :] for at in range(len(token))]
    wrong += [token[:-1], token + "0", f"0:{token}", f"{EVE}:{token}", hers.split(":")[1], hers.replace(str(EVE), "0"), str(own), str(own.derive(EVE)), "", " "]
    wrong += [Key.parse(Key.random().secret.hex()).token(), "0" * 64, "x" * 4000]
    for bad in wrong:
        code, text = status_of(job, bad)
        assert code in (400, 401) and JOB not in text, (bad, text)


def test_pytorchs_protocol(job):
    """The daemon's port serves no store without --c10d. test_store_door.py attacks the round's store."""
    for first in struct.pack("<BI", 0, 0x3C85F7CE) + bytes([13]) + b"ping", bytes([2]) + struct.pack("<Q", 5) + b"/key1":
        with socket.create_connection(("127.0.0.1", job.daemon.port)) as s:
            s.sendall(first)
            assert everything(s) == b""
    job.daemon.expect(r"127\.0\.0\.1:\d+: .*--c10d")


# ---- the unix sockets ------------------------------------------------------------------------------------------------


@needs_users
def test_unix_socket_of_another_user(job):
    """The kernel says who asks there."""
    os.chmod(job.socket, 0o666)
    for folder in [job.socket.parent, *job.socket.parent.parents][:3]:
        os.chmod(folder, os.stat(folder).st_mode | 0o011)
    for args in ["stop", JOB], ["kill-worker", JOB, 0], ["status", JOB]:
        p = job.rdzv.spawn(RDZVCTL, "--socket", job.socket, *args, **user(EVE))
        assert p.exit() != 0 and p.says(JOB), p
    with Native(path=job.socket) as n:  # no agent is served there
        n.hello(**STRANGER)
        n.until_closed()


# ---- a man in the middle ---------------------------------------------------------------------------------------------


def test_nothing_can_be_read_on_the_way(rdzv):
    job = Job(rdzv, via=Relay)
    job.unharmed()
    job.finish()
    assert len(job.via.seen) > 3000
    job.check_wire(job.via.seen)


class Attack:
    """Does something to one record of each of the first links, when the job runs; then it relays."""

    def __init__(self, to_daemon, change):
        self.to_daemon, self.change_ = to_daemon, change
        self.armed, self.done, self.held = False, 0, None

    def __call__(self, unit):
        if not self.armed or unit.to_daemon != self.to_daemon or unit.number < 2:
            return unit.data
        return self.change_(self, unit)

    def once(self, data):
        self.armed = False
        self.done += 1
        return data


def hold(attack, unit):
    """Two records change places."""
    if attack.held is None:
        attack.held = unit.link, unit.data
        return b""
    link, data = attack.held
    if link is not unit.link:
        return unit.data
    return attack.once(unit.data + data)


def first_of(link, to_daemon):
    """The first record of a direction."""
    data = link.sent[sealed.opening_size(sealed.kind_of(link.sent)) :] if to_daemon else link.got[sealed.ANSWER :]
    return data[: 2 + sealed.LENGTH.unpack_from(data)[0]]


ATTACKS = {
    "flip": lambda attack, unit: attack.once(unit.data[:-1] + bytes([unit.data[-1] ^ 1])),
    "reorder": hold,
    "drop": lambda attack, unit: attack.once(b""),
    "repeat": lambda attack, unit: attack.once(unit.data + unit.data),
    "inject": lambda attack, unit: attack.once(struct.pack("<H", 64) + secrets.token_bytes(64) + unit.data),
    "plain frame": lambda attack, unit: attack.once(frame("STOP", dict(incarnation="ab", round=1)) + unit.data),
    "other direction": lambda attack, unit: attack.once(first_of(unit.link, not unit.to_daemon) + unit.data),
    "shorten": lambda attack, unit: attack.once(struct.pack("<H", len(unit.data) - 3) + unit.data[2:-1]),
    "cut": lambda attack, unit: attack.once(None),
}


@pytest.mark.parametrize("to_daemon", [True, False], ids=["to the daemon", "to the agent"])
@pytest.mark.parametrize("what", ATTACKS)
def test_man_in_the_middle(rdzv, what, to_daemon):
    """Whatever he does to a record ends that connection: both say so, the agent opens a new one, and its workers run on."""
    attack = Attack(to_daemon, ATTACKS[what])
    # A fiftieth of the lease is the time in which a connection may come back.
    job = Job(rdzv, via=lambda port: Relay(port, change=attack), agent_args=["--lease", "10s"])
    links = len(job.via.links)
    attack.armed = True
    until("he has done it", lambda: attack.done, 20)
    until(lambda: f"an agent is back in a new connection:\n{rdzv}", lambda: len(job.via.links) > links, 20)
    if what not in ("cut", "drop"):  # a gap shows with the next record
        words = r"a record was changed on its way|sent a record of \d+ bytes"
        until(lambda: f"somebody says why:\n{rdzv}", lambda: job.daemon.says(words) or any(a.says(words) for a in job.agents))
    job.finish()


@pytest.mark.parametrize("status", [sealed.WRONG_KEY, sealed.NO_KEY, sealed.BUSY, 7, 255])
def test_forged_refusal_of_a_running_agent(rdzv, status):
    """Anybody on the way can forge one. An agent that was welcomed before does not believe it."""
    forge = []

    def change(unit):
        if forge and not unit.to_daemon and unit.number == 0:
            forge.pop()
            return sealed.no(status)
        return unit.data

    job = Job(rdzv, via=lambda port: Relay(port, change=change), agent_args=["--lease", "60s"])
    forge += [1, 1]
    for link in list(job.via.links):
        link.close()
    until(lambda: f"both are back:\n{rdzv}", lambda: not forge and len(job.via.links) >= 6, 20)
    job.finish()


def test_every_byte_of_an_answer(rdzv):
    """He flips a bit of the daemon's answer or of its first record: the agent sends nothing more, tries again, and is in when he lets it.

    The status and what tells of the key's source are not covered: a status is only ever advice."""
    d = rdzv.daemon("--verbose")
    tried = []
    positions = [("answer", at) for at in range(sealed.ANSWER) if at not in (6, 7)] + [("record", at) for at in range(40)]

    def run(which, at):
        def change(unit):
            if not unit.to_daemon and unit.link.number == 0 and unit.number == ("answer", "record").index(which):
                tried.append((which, at))
                return unit.data[:at] + bytes([unit.data[at] ^ 1 << at % 8]) + unit.data[at + 1 :] if at < len(unit.data) else unit.data
            return unit.data

        relay = Relay(d.port, change=change)
        return relay, rdzv.agent("--endpoint", relay.endpoint, "--rdzv-id", f"j{which}{at}", "--nnodes", 1, "--", "true")

    while positions:
        batch, positions = positions[:16], positions[16:]
        for relay, a in [run(*p) for p in batch]:
            assert a.exit(40) == 0, a
            relay.close()
            assert len(relay.links) > 1, "the first was spoilt"
            assert len(relay.links[0].sent.rstrip(b"\r\n")) <= sealed.OPENING, "it says nothing to whoever that is"


# ---- impostors -------------------------------------------------------------------------------------------------------

END = ("END", dict(incarnation="ab" * 8, outcome="ok", code=0, text="all is well"))
WELCOME = ("WELCOME", dict(version=1, incarnation="ab" * 8, round=0, state="forming", peer_addr="127.0.0.1"))


class Impostor:
    """Says `answer` to whoever comes (a function: of the bytes that came), and never more."""

    def __init__(self, answer, listener, first=False, size=65536):
        """`first`: before it has heard anything; `size`: bytes at once."""
        self.answer, self.listener, self.first, self.size = answer, listener, first, size
        self.heard = []
        self.endpoint = "%s:%d" % listener.getsockname()
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self):
        while True:
            try:
                c, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(c,), daemon=True).start()

    def _serve(self, c):
        with c, contextlib.suppress(OSError):
            data = b""
            if not self.first:
                while len(data) < 8:
                    more = c.recv(65536)
                    if not more:
                        return
                    data += more
            answer = self.answer(data) if callable(self.answer) else self.answer
            for i in range(0, len(answer), self.size):
                c.sendall(answer[i : i + self.size])
                time.sleep(0.2 if self.size < 64 else 0)
            while more := c.recv(65536):
                data += more
            self.heard.append(data)

    def close(self):
        stop_accepting(self.listener, self.thread)


def plain(*messages):
    return b"".join(frame(name, fields) for name, fields in messages)


IMPOSTORS = {
    "END in plain frames": plain(("GREETING", dict(version=1)), WELCOME, END),
    "an answer that is random": lambda data: sealed.no(sealed.OK) + secrets.token_bytes(48),
    "an answer of zeros": lambda data: sealed.no(sealed.OK) + bytes(48),
    "its own opening": lambda data: sealed.no(sealed.OK) + data[12:60],
    "an unknown status": sealed.no(9),
    "silence": b"",
    "a byte now and then": lambda data: sealed.no(sealed.OK) + secrets.token_bytes(48),
    "noise": os.urandom(4096),
    "HTTP": b"HTTP/1.1 200 OK\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
}


class Stage:
    """Where an impostor stands, and who meets it: an agent, or rdzvctl on another machine."""

    def __init__(self, rdzv, which, lan):
        self.rdzv, self.which, self.lan = rdzv, which, lan
        self.ran = rdzv.tmp / "ran"

    def listen(self):
        return listen_in(self.lan[0][3], "10.99.0.1") if self.lan else listen_in()

    def run(self, endpoint, words=("stop", JOB)):
        if self.lan:
            return self.rdzv.spawn(RDZVCTL, "--endpoint", endpoint, *words, wrap=self.lan[1])
        return self.rdzv.agent("--endpoint", endpoint, "--join-timeout", "1s", "--nnodes", 2, "--", "touch", self.ran)

    def is_refused(self, p, pattern=""):
        code = p.exit(40)
        assert code > 0 and not self.ran.exists() and p.says(pattern), p
        assert not p.out and len(p.err) <= 4, p
        return code


@pytest.fixture(params=["agent", "rdzvctl"])
def stage(rdzv, request):
    return Stage(rdzv, request.param, request.param == "rdzvctl" and request.getfixturevalue("lan"))


@pytest.mark.parametrize("what", IMPOSTORS)
def test_impostor(stage, what):
    """A program that squats the port and lacks the key: no worker runs, nothing succeeds, and it hears neither job nor host."""
    impostor = Impostor(IMPOSTORS[what], stage.listen(), first=what == "ssh", size=1 if what == "a byte now and then" else 65536)
    stage.is_refused(stage.run(impostor.endpoint), impostor.endpoint)
    impostor.close()
    for heard in impostor.heard:
        assert len(heard.rstrip(b"\r\n")) <= sealed.OPENING and JOB.encode() not in heard, heard


def test_impostor_with_another_key(stage):
    fake = FakeDaemon(WELCOME, END, key=secrets.token_hex(32), listener=stage.listen())
    assert stage.is_refused(stage.run(fake.endpoint), rf"{fake.endpoint} has another key") == 72
    fake.close()
    assert fake.openings and not fake.heard


def test_impostor_that_replays_a_daemon(stage):
    """It has recorded what a real daemon said to another agent."""
    d = stage.rdzv.daemon()
    with Relay(d.port) as relay, Native(relay.port) as n:
        n.hello(nodes=1)
        n.started()
        n.finish()
    impostor = Impostor(relay.links[0].got, stage.listen())
    stage.is_refused(stage.run(impostor.endpoint), impostor.endpoint)
    impostor.close()


def test_daemon_of_a_user_who_has_her_own_key(stage):
    """Whoever has a user's key is that user, not the daemon: nobody with the daemon's own key opens to her."""
    fake = FakeDaemon(WELCOME, END, key=Key.parse(stage.rdzv.key).derive(EVE).secret.hex(), listener=stage.listen())
    assert stage.is_refused(stage.run(fake.endpoint)) == 72
    fake.close()


# ---- without a key ---------------------------------------------------------------------------------------------------


def test_insecure_is_chosen_on_both_sides(rdzv):
    """A daemon without a key serves nobody who has one, and the other way round. Each says what helps."""
    d = rdzv.daemon("--insecure")
    d.expect("--insecure")
    a = rdzv.agent("--endpoint", d.endpoint, "--join-timeout", "1s", "--nnodes", 2, "--", "touch", rdzv.tmp / "ran")
    assert a.exit(30) == 72 and a.says("runs without a key.*--insecure"), a
    secure = rdzv.daemon()
    a = rdzv.agent("--insecure", "--endpoint", secure.endpoint, "--join-timeout", "1s", "--nnodes", 2, "--", "touch", rdzv.tmp / "ran")
    assert a.exit(30) == 72 and a.says("key") and not (rdzv.tmp / "ran").exists(), a
    a = rdzv.agent("--insecure", "--endpoint", d.endpoint, "--", "true")
    assert a.exit(30) == 0 and a.says("--insecure"), a
