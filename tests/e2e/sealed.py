# SPDX-License-Identifier: Apache-2.0
"""The secure channel of PROTOCOL.md section 13, on PyPI's noiseprotocol: it shares no line with proto/channel.c, and that both understand
each other is the proof that the channel is Noise.

    key = Key.random()
    c = Client(key)                     what a peer of rdzvd does
    sock.sendall(c.opening())           60 bytes; Server.opening() reads them
    c.answer(sock.recv(56))             the header and the daemon's message; Refused where it says no
    sock.sendall(c.seal(frame))         records
    frames += c.open(sock.recv(65536))

Neither of them has a socket: native.py has, and the tests that relay, cut and change what passes between two real programs.
"""

import hashlib
import hmac
import re
import secrets
import struct
import warnings

from cryptography.exceptions import InvalidTag
from noise.connection import Keypair, NoiseConnection
from noise.exceptions import NoiseInvalidMessage

PATTERN = b"Noise_NNpsk0_25519_ChaChaPoly_SHA256"
OWN = 0xFFFFFFFF  # on the wire: the daemon's own key
PLAIN, SEALED, MUNGE = 0, 1, 2  # KIND of a preface
OK, WRONG_KEY, NO_KEY, CREDENTIAL, NO_MUNGE, MUNGE_REFUSED, BUSY = range(7)  # STATUS of an answer
OTHER, HOME_FILE, KEY_FILE, ENVIRONMENT, RANDOM, STATE_DIRECTORY = range(6)  # SOURCE of the daemon's key
PREFACE = struct.Struct("<4sHH")
HEADER = struct.Struct("<4sHBB")
LENGTH = struct.Struct("<H")
MESSAGE = 32 + 16  # an ephemeral key, and the tag of an empty payload
OPENING = PREFACE.size + 4 + MESSAGE
ANSWER = HEADER.size + MESSAGE
TAG = 16
PLAIN_MAX = 16 * 1024  # of frames in one record


def preface(kind):
    return PREFACE.pack(b"RDZV", 1, kind)


class Key:
    """A daemon's own key (uid None), or the one that it derives for a user."""

    def __init__(self, secret, uid=None):
        self.secret, self.uid = secret, uid

    @classmethod
    def random(cls):
        return cls(secrets.token_bytes(32))

    @classmethod
    def parse(cls, text):
        m = re.fullmatch(r"(?:(\d{1,10}):)?([0-9a-fA-F]{64})", text.strip())
        assert m, "a key is 64 hex digits, or UID: and 64 hex digits"
        return cls(bytes.fromhex(m[2]), m[1] and int(m[1]))

    def __str__(self):
        return self.secret.hex() if self.uid is None else f"{self.uid}:{self.secret.hex()}"

    def _hash(self, context, number):
        return hmac.digest(self.secret, context + b"\0" + struct.pack("<I", number), hashlib.sha256)

    def derive(self, uid):
        return Key(self._hash(b"rdzv user key", uid), uid)

    def token(self):
        """The bearer token of HTTP."""
        return str(Key(self._hash(b"rdzv http token", 0), self.uid))

    @property
    def number(self):
        return OWN if self.uid is None else self.uid


class Refused(Exception):
    """The daemon's answer is no. .status, .source"""

    def __init__(self, status, source=OTHER):
        super().__init__(f"status {status}, source {source}")
        self.status, self.source = status, source


class Forged(Exception):
    """Bytes that the holder of the key did not write, or not in this order."""


class Channel:
    """One end of a connection. `ephemeral`: 32 bytes instead of fresh ones, where a test wants the same bytes again."""

    def __init__(self, initiator, ephemeral=None):
        self.noise = NoiseConnection.from_name(PATTERN)
        (self.noise.set_as_initiator if initiator else self.noise.set_as_responder)()
        if ephemeral:
            self.noise.set_keypair_from_private_bytes(Keypair.EPHEMERAL, ephemeral)
        self.rest = b""

    def _begin(self, key, prologue):
        self.noise.set_psks(key.secret)
        self.noise.set_prologue(prologue)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns of a given ephemeral key
            self.noise.start_handshake()

    def _read(self, message):
        try:
            return bytes(self.noise.read_message(message))
        except InvalidTag:
            raise Forged("a message of the handshake") from None

    def seal(self, data, size=PLAIN_MAX):
        """Records of at most `size` bytes of plaintext each."""
        records = []
        for at in range(0, len(data), size):
            text = bytes(self.noise.encrypt(data[at : at + size]))
            records.append(LENGTH.pack(len(text)) + text)
        return b"".join(records)

    def open(self, data=b""):
        """The plaintext of the records that are whole by now."""
        self.rest += data
        plain = []
        while len(self.rest) >= LENGTH.size:
            size = LENGTH.unpack_from(self.rest)[0]
            if size <= TAG:
                raise Forged(f"a record of {size} bytes")
            if len(self.rest) < LENGTH.size + size:
                break
            text, self.rest = self.rest[LENGTH.size : LENGTH.size + size], self.rest[LENGTH.size + size :]
            try:
                plain.append(bytes(self.noise.decrypt(text)))
            except NoiseInvalidMessage:
                raise Forged("a record") from None
        return b"".join(plain)


class Client(Channel):
    def __init__(self, key, uid=None, ephemeral=None):
        """`uid`: the number that goes over the wire, where it is not the key's."""
        super().__init__(True, ephemeral)
        self.prologue = preface(SEALED) + struct.pack("<I", key.number if uid is None else uid)
        self._begin(key, self.prologue)

    def opening(self):
        return self.prologue + bytes(self.noise.write_message())

    def answer(self, data):
        """Refused, or the key's source. `data` may be a header alone where the answer is no."""
        magic, version, status, source = HEADER.unpack_from(data)
        assert (magic, version) == (b"RDZV", 1), data
        if status != OK:
            raise Refused(status, source)
        assert len(data) == ANSWER, data
        self._read(data[HEADER.size :])
        return source


class Server(Channel):
    def __init__(self, own, ephemeral=None):
        super().__init__(False, ephemeral)
        self.own, self.uid = own, None

    def opening(self, data):
        """Reads a client's 60 bytes. Forged where it has another key; .uid is whose key it showed (None: the daemon's own)."""
        magic, version, kind = PREFACE.unpack_from(data)
        assert (magic, version, kind, len(data)) == (b"RDZV", 1, SEALED, OPENING), data
        number = struct.unpack_from("<I", data, PREFACE.size)[0]
        self.uid = None if number == OWN else number
        self._begin(self.own if self.uid is None else self.own.derive(number), data[: PREFACE.size + 4])
        self._read(data[PREFACE.size + 4 :])

    def answer(self, source=OTHER):
        return HEADER.pack(b"RDZV", 1, OK, source) + bytes(self.noise.write_message())


def no(status, source=OTHER):
    """The header of an answer that is no."""
    return HEADER.pack(b"RDZV", 1, status, source)
