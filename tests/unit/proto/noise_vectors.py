#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes noise_vectors.inc, which test_noise.c and test_channel.c compare proto/ with.

The first vector is public: the inputs and the ciphertexts are those of "Noise_NNpsk0_25519_ChaChaPoly_SHA256" in vectors/cacophony.txt of
cacophony (github.com/haskell-cryptography/cacophony), which snow and noiseprotocol test themselves with too. This program computes the
ciphertexts anew with PyPI's noiseprotocol. The other vectors are computed the same way, for what no public one has: empty payloads, the
prologue of rdzv's channel, and so many records that the nonce has a second byte.

    noise_vectors.py            writes noise_vectors.inc
    noise_vectors.py --check    compares; exit 1 where it differs
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "e2e"))

import sealed  # noqa: E402
from sealed import Client, Key, Server  # noqa: E402

EPHEMERALS = (
    bytes.fromhex("893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a"),
    bytes.fromhex("bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b"),
)
ECONOMISTS = [s.encode("latin1") for s in ("Ludwig von Mises", "Murray Rothbard", "F. A. Hayek", "Carl Menger", "Jean-Baptiste Say", "Eugen Böhm von Bawerk")]
ISSUED, RANDOM = 1700000000, bytes(range(1, 9))  # of tickets
OWN = Key.parse("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")


def both(psk, prologue):
    ends = Client(Key(psk), ephemeral=EPHEMERALS[0]), Server(Key(psk), ephemeral=EPHEMERALS[1])
    for end in ends:
        end._begin(Key(psk), prologue)
    return ends


def vector(name, psk, prologue, payloads):
    """The first two messages are the handshake's; the initiator sends each other one."""
    ends = both(psk, prologue)
    messages = []
    for i, payload in enumerate(payloads):
        sender, receiver = ends[i % 2].noise, ends[1 - i % 2].noise
        text = bytes(sender.write_message(payload) if i < 2 else sender.encrypt(payload))
        assert bytes(receiver.read_message(text) if i < 2 else receiver.decrypt(text)) == payload
        messages.append((payload, text))
    lines = [f'{{"{name}",', f' "{psk.hex()}",', f' "{prologue.hex()}",', f' "{EPHEMERALS[0].hex()}",', f' "{EPHEMERALS[1].hex()}",']
    lines += [f' "{ends[0].noise.get_handshake_hash().hex()}",', f" {len(messages)},", " {"]
    lines += [f'  {{"{payload.hex()}",\n   "{text.hex()}"}},' for payload, text in messages]
    return "\n".join(lines + [" }},"])


def opening(key, records):
    """A whole connection as it is on the wire: what the client writes, what the daemon writes."""
    client, server = Client(key, ephemeral=EPHEMERALS[0]), Server(OWN, ephemeral=EPHEMERALS[1])
    first = client.opening()
    server.opening(first)
    second = server.answer(sealed.KEY_FILE)
    client.answer(second)
    lines = [f'{{"{key}",', f' "{first.hex()}",', f' "{second.hex()}",', f" {len(records)},", " {"]
    for i, record in enumerate(records):
        sender, receiver = (client, server) if i % 2 == 0 else (server, client)
        text = sender.seal(record)
        assert receiver.open(text) == record
        lines.append(f'  {{"{record.hex()}",\n   "{text.hex()}"}},')
    return "\n".join(lines + [" },", *resumption(key, client, server), "},"])


def resumption(key, client, server):
    """The connection that follows: its ticket, what the client writes, what the daemon writes, and a record of the client's. The second of
    them has a ticket of its own."""
    text = server.ticket(ISSUED, RANDOM)
    again, over = Client(key, ticket=client.ticket(text)), Server(OWN, ephemeral=EPHEMERALS[1])
    first = again.opening()
    over.opening(first, ISSUED)
    second = over.answer(sealed.KEY_FILE)
    again.answer(second)
    record = again.seal(b"again")
    assert over.open(record) == b"again"
    return [f' "{s}",' for s in (text, first.hex(), second.hex(), record.hex(), over.ticket(ISSUED, RANDOM))]


def nonces():
    """The 300th record of the client: nonce 299."""
    client, server = Client(OWN, ephemeral=EPHEMERALS[0]), Server(OWN, ephemeral=EPHEMERALS[1])
    server.opening(client.opening())
    client.answer(server.answer())
    for _ in range(299):
        client.seal(b"x")
    return client.seal(b"x").hex()


def generate():
    preface = sealed.preface(sealed.SEALED)
    out = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        "/* Written by noise_vectors.py, which says where they come from. Hexadecimal; ephemerals are the private keys. */",
        "",
        "struct noise_message {",
        "  const char *payload, *ciphertext;",
        "};",
        "",
        "/* Messages 0 and 1 are the handshake's, the rest are transport messages. The initiator sends the even ones. */",
        "static const struct noise_vector {",
        "  const char *name, *psk, *prologue, *init_ephemeral, *resp_ephemeral, *handshake_hash;",
        "  int count;",
        "  struct noise_message messages[8];",
        "} noise_vectors[] = {",
        vector("cacophony", b"This is my Austrian perspective!", b"John Galt", ECONOMISTS),
        vector("no prologue", bytes(32), b"", [b"", b"", b"", b"", b"ping", b"pong"]),
        vector("rdzv's", OWN.secret, preface + b"\xff" * 4, [b"", b"", b"a", b"b", bytes(64), b"c" * 33]),
        "};",
        "",
        f'static const char own_key[] = "{OWN}";',
        f'static const char own_token[] = "{OWN.token()}";',
        "",
        "/* A connection on the wire: opening, answer (the daemon's key from a key file), and the payloads and bytes of records.",
        " * The client sends the even ones. Ephemerals and own key as above. Then the one that it resumes: the ticket for it, opening,",
        " * answer, the client's first record, and the ticket that follows. */",
        f"enum {{ TICKET_ISSUED_S = {ISSUED} }};",
        'static const uint8_t ticket_random[] = "' + "".join(f"\\x{b:x}" for b in RANDOM) + '";',
        "static const struct channel_vector {",
        "  const char *key, *opening, *answer;",
        "  int count;",
        "  struct noise_message records[8];",
        "  const char *ticket, *resuming, *resumed, *again, *next_ticket;",
        "} channel_vectors[] = {",
        opening(OWN, [b"client's first", b"daemon's first", b"2", b"3" * 100]),
        opening(OWN.derive(0), [b"root", b"yes"]),
        opening(OWN.derive(1000), [b"a user", b"yes"]),
        opening(OWN.derive(4294967294), [b"the last uid", b"yes"]),
        "};",
        "",
        "/* The client's record number 299 of the first of them, with payload \"x\", if records 0 to 298 were sent before. */",
        f'static const char record_299[] = "{nonces()}";',
        "",
    ]
    return "\n".join(out)


def main():
    file, text = HERE / "noise_vectors.inc", generate()
    if sys.argv[1:] != ["--check"]:
        file.write_text(text)
    elif file.read_text() != text:
        sys.exit(f"{file} is not what {Path(__file__).name} writes")


if __name__ == "__main__":
    main()
