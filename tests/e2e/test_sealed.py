# SPDX-License-Identifier: Apache-2.0
"""The tests' own tools for the secure channel: sealed.py, the model daemon of hostile.py and the relay understand each other."""

import secrets
import subprocess
import sys

import pytest

import sealed
from harness import TOP
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


def test_relay_changes_what_it_is_told(rdzv, fake):
    with Relay(fake.port, change=lambda unit: unit.data[:-1] + bytes([unit.data[-1] ^ 1]) if not unit.to_daemon and unit.number == 1 else unit.data) as relay:
        with Native(relay.port) as n, pytest.raises(sealed.Forged):
            n.recv()
