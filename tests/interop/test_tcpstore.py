# SPDX-License-Identifier: Apache-2.0
"""PyTorch's TCPStore and PrefixStore, 2.13 and the newest, the whole interface, against rdzvd's common space and against a round's store: every case also against
PyTorch's own server, and the answers are the same."""

import pytest

import cases
from conftest import EVERY_PYTORCH

pytestmark = EVERY_PYTORCH

# Where PROTOCOL.md says that we differ: case -> what ours returns instead.
DIFFERENT = {}

# Not asked of PyTorch's server, which looks at such a request again from its beginning with every part that comes: it takes 23 s.
TOO_LONG = {"multi_of_131072_keys": {"returned": [131072, 131072, "b:0", "b:131071", True]}}


@pytest.fixture(scope="session")
def answers(client, stock):
    """What PyTorch's own server answers, asked once for each case."""
    known = dict(TOO_LONG)

    def ask(name):
        if name not in known:
            known[name] = client.ask(do="case", name=name, port=stock.ask(do="serve"))
        return known[name]

    return ask


@pytest.mark.parametrize("name", cases.names())
@pytest.mark.parametrize("where", ["rdzvd", "round"])
def test_same_answers(where, name, serve, client, answers):
    want = answers(name)
    assert "returned" in want, f"the case itself is wrong: {want}"
    got = client.ask(do="case", name=name, port=serve(where))
    if (where, name) == ("round", "by_ipv6"):  # the round's store listens on MASTER_ADDR alone
        assert "timed out" in got["raised"]
    else:
        assert got == DIFFERENT.get(name, want)


@pytest.mark.parametrize("where", ["rdzvd", "round", "stock"])
def test_two_hundred_clients(where, serve, client, stock):
    port = serve(where)
    case = dict(do="case", name="together_two_hundred_clients", port=port)
    client.tell(**case)
    theirs = stock.ask(timeout=60, **case)
    assert client.answer(case, 60) == theirs == {"returned": [[True, "b:19900", 200], True]}
