# SPDX-License-Identifier: Apache-2.0
"""The tests' own tools for the secure channel: sealed.py, the model daemon of hostile.py and the relay understand each other."""

import secrets
import socket
import subprocess
import sys

import pytest

import sealed
from harness import TOP, until
from hostile import FakeDaemon
from native import Native
from relay import Relay


@pytest.fixture
def fake(rdzv):
    daemon = FakeDaemon(("WELCOME", dict(state="forming")), ("END", dict(code=3)))
    yield daemon
    daemon.close()


def test_vectors_are_what_noiseprotocol_says():
    done = subprocess.run([sys.executable, TOP / "tests/unit/proto/noise_vectors.py", "--check"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_client_and_model_daemon(rdzv, fake):
    with Relay(fake.port) as relay:
        for key in rdzv.key, sealed.Key.parse(rdzv.key).derive(1000):
            with Native(relay.port, key=key) as n:
                n.hello(job="a-job-that-nobody-sees")
                assert [n.recv().name for _ in range(3)] == ["GREETING", "WELCOME", "END"]
        assert b"a-job-that-nobody-sees" not in relay.seen and len(relay.seen) > 500
        with Native(relay.port, key=secrets.token_hex(32)) as n, pytest.raises(sealed.Refused) as e:
            n.recv()
        assert e.value.status == sealed.WRONG_KEY


def test_a_ticket_opens_the_next_channel(rdzv):
    """The independent client at the real daemon: with the key, with a ticket, with a ticket of that channel; then at a daemon that has restarted."""
    daemon = rdzv.daemon()
    with Relay(daemon.port) as relay:
        tickets = {}
        for key in sealed.Key.parse(rdzv.key), sealed.Key.parse(rdzv.key).derive(1000):
            ticket = None
            for _ in range(3):
                with Native(relay.port, key=key, ticket=ticket) as n:
                    ticket = n.ticket()
                    n.hello(job="a-job-that-nobody-sees", nodes=2)
                    n.expect("WELCOME")
            tickets[key] = ticket
        port = daemon.port
        daemon.end()
        rdzv.daemon(port=port)
        for key, ticket in tickets.items():
            with Native(relay.port, key=key, ticket=ticket) as n:
                n.expect("GREETING")
        until("the relay has noted all connections", lambda: len(relay.links) == 8)
        kinds = [sealed.kind_of(link.sent) for link in relay.links]
        assert kinds == 2 * [sealed.SEALED, sealed.RESUMED, sealed.RESUMED] + 2 * [sealed.RESUMED], kinds
        assert b"a-job-that-nobody-sees" not in relay.seen and len(relay.seen) > 3000


def test_an_agent_resumes_at_the_model_daemon(rdzv):
    """The real agent at an independent daemon, which ends its first connection."""
    fake = FakeDaemon(("WELCOME", dict(state="forming", incarnation="ab" * 8, daemon="cd" * 8)))
    agent = rdzv.agent("--endpoint", fake.endpoint, "--nnodes", 2, "--", "true")
    until("the agent has said HELLO", lambda: fake.heard.count("HELLO") == 1)
    fake.conns[0].shutdown(socket.SHUT_RDWR)
    until("it has said HELLO again", lambda: fake.heard.count("HELLO") == 2)
    agent.kill()
    fake.close()
    assert [sealed.kind_of(o) for o in fake.openings[:2]] == [sealed.SEALED, sealed.RESUMED]


def test_relay_changes_what_it_is_told(rdzv, fake):
    with Relay(fake.port, change=lambda unit: unit.data[:-1] + bytes([unit.data[-1] ^ 1]) if not unit.to_daemon and unit.number == 1 else unit.data) as relay:
        with Native(relay.port) as n, pytest.raises(sealed.Forged):
            n.recv()
