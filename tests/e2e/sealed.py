# SPDX-License-Identifier: Apache-2.0
"""The secure channel of PROTOCOL.md section 13, on PyPI's noiseprotocol: it shares no line with proto/channel.c, and that both understand
each other is the proof that the channel is Noise.

    key = Key.random()
    c = Client(key)                     what a peer of rdzvd does
    sock.sendall(c.opening())           60 bytes; Server.opening() reads them
    c.answer(sock.recv(56))             the header and the daemon's message; Refused where it says no
    sock.sendall(c.seal(frame))         records
    frames += c.open(sock.recv(65536))
    ticket = c.ticket(greeting.ticket)
    c = Client(key, ticket=ticket)      a later connection: 88 bytes of opening, and no Diffie-Hellman

Neither of them has a socket: native.py has, and the tests that relay, cut and change what passes between two real programs.
"""

import dataclasses
import hashlib
import hmac
import re
import secrets
import struct
import time
import warnings

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from noise.connection import Keypair, NoiseConnection
from noise.exceptions import NoiseInvalidMessage

PATTERN = b"Noise_NNpsk0_25519_ChaChaPoly_SHA256"
OWN = 0xFFFFFFFF  # on the wire: the daemon's own key
PLAIN, SEALED, MUNGE, RESUMED = range(4)  # KIND of a preface
OK, WRONG_KEY, NO_KEY, CREDENTIAL, NO_MUNGE, MUNGE_REFUSED, BUSY = range(7)  # STATUS of an answer
OTHER, HOME_FILE, KEY_FILE, ENVIRONMENT, RANDOM, STATE_DIRECTORY = range(6)  # SOURCE of the daemon's key
PREFACE = struct.Struct("<4sHH")
HEADER = struct.Struct("<4sHBB")
LENGTH = struct.Struct("<H")
MESSAGE = 32 + 16  # an ephemeral key, and the tag of an empty payload
OPENING = PREFACE.size + 4 + MESSAGE
ANSWER = HEADER.size + MESSAGE
TAG = 16
TICKET = 4 + 8 + 32 + TAG  # seconds of issue, random bytes, the secret
RESUMING = PREFACE.size + 4 + TICKET + TAG
TICKET_S = 24 * 60 * 60
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

    def tickets(self):
        """The key that wraps tickets, of a daemon's own key."""
        return self._hash(b"rdzv ticket key", 0)

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


@dataclasses.dataclass
class Ticket:
    """A client's: .number is the uid on the wire, .secret never goes over it."""

    number: int
    data: bytes
    secret: bytes


def hkdf(ck, ikm, n):
    temp, out = hmac.digest(ck, ikm, "sha256"), [b""]
    for i in range(n):
        out.append(hmac.digest(temp, out[-1] + bytes([i + 1]), "sha256"))
    return out[1:]


def derive(key, data, size):
    return hashlib.blake2b(data, key=key, digest_size=size).digest()


class Cipher:
    """One direction of a channel that was resumed."""

    def __init__(self, key):
        self.aead, self.n = ChaCha20Poly1305(key), 0

    def _nonce(self):
        self.n += 1
        return struct.pack("<IQ", 0, self.n - 1)

    def encrypt(self, data):
        return self.aead.encrypt(self._nonce(), data, None)

    def decrypt(self, data):
        return self.aead.decrypt(self._nonce(), data, None)


class Channel:
    """One end of a connection. `ephemeral`: 32 bytes instead of fresh ones, where a test wants the same bytes again."""

    def __init__(self, initiator, ephemeral=None):
        self.initiator, self.ephemeral, self.resumption = initiator, ephemeral, None
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
        self.state = self.noise.noise_protocol.symmetric_state  # its ck outlives the handshake

    def _finish(self):
        """The channel is open."""
        self.encrypt, self.decrypt = self.noise.encrypt, self.noise.decrypt
        self.resumption = hkdf(self.state.ck, b"", 3)[2]

    def _resume(self, secret, prologue):
        """The proof that this end has the secret."""
        both = derive(secret, prologue, 64)
        self.ck = both[:32]
        return ChaCha20Poly1305(both[32:]).encrypt(bytes(12), b"", None)

    def _finish_resumed(self, unique):
        both, self.resumption = derive(self.ck, unique, 64), derive(self.ck, unique, 32)
        first, second = Cipher(both[:32]), Cipher(both[32:])
        sender, receiver = (first, second) if self.initiator else (second, first)
        self.encrypt, self.decrypt = sender.encrypt, receiver.decrypt

    def _read(self, message):
        try:
            return bytes(self.noise.read_message(message))
        except InvalidTag:
            raise Forged("a message of the handshake") from None

    def seal(self, data, size=PLAIN_MAX):
        """Records of at most `size` bytes of plaintext each."""
        records = []
        for at in range(0, len(data), size):
            text = bytes(self.encrypt(data[at : at + size]))
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
                plain.append(bytes(self.decrypt(text)))
            except (NoiseInvalidMessage, InvalidTag):
                raise Forged("a record") from None
        return b"".join(plain)


class Client(Channel):
    def __init__(self, key, uid=None, ephemeral=None, ticket=None):
        """`uid`: the number that goes over the wire, where it is not the key's."""
        super().__init__(True, ephemeral)
        self.resumes, self.number = ticket, key.number if uid is None else uid
        if ticket:
            self.number = ticket.number if uid is None else uid
            self.prologue = preface(RESUMED) + struct.pack("<I", self.number) + ticket.data
        else:
            self.prologue = preface(SEALED) + struct.pack("<I", self.number)
            self._begin(key, self.prologue)

    def opening(self):
        return self.prologue + (self._resume(self.resumes.secret, self.prologue) if self.resumes else bytes(self.noise.write_message()))

    def ticket(self, text):
        """Of which the daemon has sent this text through the channel."""
        data = bytes.fromhex(text)
        assert len(data) == TICKET, text
        return Ticket(self.number, data, self.resumption)

    def answer(self, data):
        """Refused, or the key's source. `data` may be a header alone where the answer is no."""
        magic, version, status, source = HEADER.unpack_from(data)
        assert (magic, version) == (b"RDZV", 1), data
        if status != OK:
            raise Refused(status, source)
        assert len(data) == ANSWER, data
        if not self.resumes:
            self._read(data[HEADER.size :])
            self._finish()
            return source
        self._finish_resumed(data[HEADER.size : HEADER.size + 32])
        try:
            self.decrypt(data[HEADER.size + 32 :])
        except InvalidTag:
            raise Forged("the answer to a ticket") from None
        return source


class Server(Channel):
    def __init__(self, own, ephemeral=None):
        super().__init__(False, ephemeral)
        self.own, self.uid = own, None

    def opening(self, data, now=None):
        """Reads a client's 60 or 88 bytes. Forged where it has another key; .uid is whose key it showed (None: the daemon's own)."""
        magic, version, kind = PREFACE.unpack_from(data)
        assert (magic, version, len(data)) == (b"RDZV", 1, opening_size(kind)), data
        self.number = struct.unpack_from("<I", data, PREFACE.size)[0]
        self.uid = number = None if self.number == OWN else self.number
        self.resumes = kind == RESUMED
        if self.resumes:
            ticket = data[PREFACE.size + 4 : -TAG]
            if abs(struct.unpack_from("<I", ticket)[0] - (time.time() if now is None else now)) >= TICKET_S:
                raise Forged("an old ticket")
            try:
                secret = ChaCha20Poly1305(self.own.tickets()).decrypt(ticket[:12], ticket[12:], struct.pack("<I", self.number))
            except InvalidTag:
                raise Forged("a ticket") from None
            if not hmac.compare_digest(self._resume(secret, data[:-TAG]), data[-TAG:]):
                raise Forged("the proof beside a ticket")
            return
        self._begin(self.own if self.uid is None else self.own.derive(number), data[: PREFACE.size + 4])
        self._read(data[PREFACE.size + 4 :])

    def answer(self, source=OTHER):
        header = HEADER.pack(b"RDZV", 1, OK, source)
        if self.resumes:
            unique = X25519PrivateKey.from_private_bytes(self.ephemeral).public_key().public_bytes_raw() if self.ephemeral else secrets.token_bytes(32)
            self._finish_resumed(unique)
            return header + unique + self.encrypt(b"")
        message = bytes(self.noise.write_message())
        self._finish()
        return header + message

    def ticket(self, now=None, random=None):
        """The text of one for this channel."""
        nonce = struct.pack("<I", int(time.time()) if now is None else now) + (random or secrets.token_bytes(8))
        return (nonce + ChaCha20Poly1305(self.own.tickets()).encrypt(nonce, self.resumption, struct.pack("<I", self.number))).hex()


def opening_size(kind):
    return {SEALED: OPENING, RESUMED: RESUMING}[kind]


def kind_of(opening):
    return PREFACE.unpack_from(opening)[2]


def no(status, source=OTHER):
    """The header of an answer that is no."""
    return HEADER.pack(b"RDZV", 1, status, source)
