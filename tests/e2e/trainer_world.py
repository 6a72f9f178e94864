# SPDX-License-Identifier: Apache-2.0
"""A world of rdzv-trainers without an agent: a stand-in for the agent's socket (agent/sdk/wire.h) and the processes.

The stand-in knows nothing but what workers need to meet: HELLO, REQUEST, the few requests to the round's store that rdzv_exchange is made of,
and it remembers PROGRESS and DONE. What the real agent does with them is tested with the real agent.
"""

import json
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import threading
import time

from harness import stop_accepting

BUILD = pathlib.Path(os.environ.get("RDZV_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build"))
TRAINER = BUILD / "agent/trainer/rdzv-trainer"

HELLO, WELCOME, REFUSED, PROGRESS, REQUEST, DONE, CAN_CHECKPOINT, CHECKPOINTED = range(1, 9)
SAVED, RESUMED, SAVING = 14, 15, 16
HEAD = struct.Struct("<IHH")
MAGIC = 0x5A445652
VERSION = int(re.search(r"SDK_VERSION = (\d+)", (pathlib.Path(__file__).resolve().parents[2] / "agent/sdk/wire.h").read_text())[1])
STOP, CHECKPOINT = 2, 1

MASK = (1 << 64) - 1
SMALL = ["--layers", "60,12,60", "--data", "synthetic:500", "--scale", "0.01", "--batch", 16, "--loss", "rmse", "--seed", 3]


# ---- the trainer's numbers ------------------------------------------------------------------------------------------


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def rng_at(seed, stream, counter):
    return mix((mix((mix(seed) + stream) & MASK) + counter) & MASK)


def epoch_order(n, seed, epoch):
    """The sampler's order of n samples."""
    half = 1
    while 1 << (2 * half) < n:
        half += 1
    low, keys = (1 << half) - 1, [rng_at(seed, 2, epoch * 6 + k) for k in range(6)]
    order = []
    for x in range(n):
        while True:
            left, right = x >> half, x & low
            for key in keys:
                left, right = right, left ^ (mix(key ^ right) & low)
            x = left << half | right
            if x < n:
                break
        order.append(x)
    assert sorted(order) == list(range(n))
    return order


# ---- the stand-in ---------------------------------------------------------------------------------------------------


def head(kind):
    return HEAD.pack(MAGIC, VERSION, kind)


class Store:
    """PyTorch's store, as far as an exchange needs it; one thread per connection."""

    def __init__(self):
        self.lock, self.values, self.come = threading.Lock(), {}, {}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.accepting = threading.Thread(target=self.accept, daemon=True)
        self.accepting.start()

    def accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self.serve, args=(conn, conn.makefile("rb")), daemon=True).start()

    def close(self):
        stop_accepting(self.listener, self.accepting)

    def serve(self, conn, data):
        def number(fmt):
            return struct.unpack(fmt, data.read(struct.calcsize(fmt)))[0]

        def text():
            return data.read(number("<Q"))

        try:
            while op := data.read(1):
                with self.lock:
                    getattr(self, f"op_{op[0]}")(conn, number, text)
        except (OSError, struct.error):
            conn.close()

    def op_0(self, conn, number, text):  # VALIDATE
        assert number("<I") == 0x3C85F7CE

    def op_13(self, conn, number, text):  # PING
        conn.sendall(struct.pack("<I", number("<I")))

    def op_9(self, conn, number, text):  # APPEND
        key = text()
        self.values[key] = self.values.get(key, b"") + text()

    def op_18(self, conn, number, text):  # BARRIER
        here = self.come.setdefault(text(), [])
        here.append(conn)
        if len(here) == number("<q"):
            for c in here:
                c.sendall(b"\0")

    def op_3(self, conn, number, text):  # GET
        value = self.values.get(text(), b"")
        conn.sendall(struct.pack("<Q", len(value)) + value)

    def op_12(self, conn, number, text):  # CANCEL_WAIT
        conn.sendall(b"\1")


class Agent:
    """Serves `world` local ranks on an abstract socket; one thread per worker. The store is its own, or the one at addr, store_port."""

    def __init__(self, world, round_=1, incarnation="20260101T000000-test", addr="127.0.0.1", store_port=None, run_id="test", saved_step=0):
        self.world, self.round, self.incarnation, self.addr, self.run_id = world, round_, incarnation, addr, run_id
        self.name = f"rdzv-test-{os.getpid()}-{id(self)}"
        self.lock = threading.Condition()
        self.store = None if store_port else Store()
        self.store_port = store_port or self.store.port
        self.connections, self.progress, self.done, self.bits, self.checkpoint = {}, {}, set(), 0, 0
        self.saved_step, self.saved = saved_step, {}  # of the rounds before; rank -> steps
        self.resumed, self.saving = {}, {}  # rank -> steps; rank -> on and off, in turn
        self.can, self.checkpointed = set(), {}  # who answers requests for a checkpoint; rank -> [(which, step)]
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind("\0" + self.name)
        self.listener.listen(64)
        self.accepting = threading.Thread(target=self.accept, daemon=True)
        self.accepting.start()

    def accept(self):
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(conn,), daemon=True).start()

    def serve(self, conn):
        rank = None
        while True:
            try:
                record = conn.recv(65536)
            except OSError:
                return
            if not record:
                return
            magic, version, kind = HEAD.unpack_from(record)
            assert (magic, version) == (MAGIC, VERSION)
            body = record[HEAD.size:]
            if kind == HELLO:
                _, round_, rank = struct.unpack("<16sII", body)
                assert round_ == self.round and rank < self.world
                with self.lock:
                    self.connections[rank] = conn
                    conn.send(self.welcome(rank))
            elif kind == PROGRESS:
                self.progress[rank] = struct.unpack("<4xQQdd" if len(body) == 36 else "<QQdd", body)
            elif kind == DONE:
                self.done.add(rank)
            elif kind == CAN_CHECKPOINT:
                self.can.add(rank)
            elif kind == SAVED:
                self.saved.setdefault(rank, []).append(struct.unpack("<Q", body)[0])
            elif kind == RESUMED:
                self.resumed.setdefault(rank, []).append(struct.unpack("<Q", body)[0])
            elif kind == SAVING:
                self.saving.setdefault(rank, []).append(struct.unpack("<I4x", body)[0])
            elif kind == CHECKPOINTED:
                self.checkpointed.setdefault(rank, []).append(struct.unpack("<I4xQ", body))

    def welcome(self, rank):
        numbers = struct.pack("<11I", rank, self.world, rank, self.world, 0, 1, self.round, 0, self.bits, self.checkpoint, self.store_port)
        text = struct.pack("<132s64s64s64s", self.run_id.encode(), self.incarnation.encode(), self.addr.encode(), self.addr.encode())
        return head(WELCOME) + numbers + text + struct.pack("<Q", self.saved_step)

    def request(self, bits=0, checkpoint=0, ranks=None):
        self.bits, self.checkpoint = bits, max(checkpoint, self.checkpoint)
        for r in ranks if ranks is not None else list(self.connections):
            self.connections[r].send(head(REQUEST) + struct.pack("<II", bits, self.checkpoint))

    def wait_checkpointed(self, ranks, timeout=10):
        """They have answered; rank -> their answers."""
        end = time.monotonic() + timeout
        while not set(ranks) <= set(self.checkpointed):
            assert time.monotonic() < end, self.checkpointed
            time.sleep(0.005)
        return self.checkpointed

    def wait_done(self, timeout=10):
        """Every worker has said so; its words may be read some moments after it has gone."""
        end = time.monotonic() + timeout
        while self.done != set(range(self.world)):
            assert time.monotonic() < end, self.done
            time.sleep(0.005)

    def close(self):
        stop_accepting(self.listener, self.accepting)
        if self.store:
            self.store.close()
        for conn in self.connections.values():
            conn.shutdown(socket.SHUT_RDWR)  # which ends the thread that serves it
            conn.close()


class Run:
    """The processes of one world. With world None: one trainer by hand, without an agent."""

    def __init__(self, args, world=None, env=None, per_rank=None, **agent):
        self.agent = Agent(world, **agent) if world else None
        self.workers = []
        for rank in range(world or 1):
            full = {k: v for k, v in os.environ.items() if not k.startswith("RDZV_")}
            if self.agent:
                full.update(RDZV_AGENT_SOCKET="@" + self.agent.name, RDZV_ROUND=str(self.agent.round), RDZV_LOCAL_RANK=str(rank))
            full.update(env or {})
            argv = [str(TRAINER)] + [str(a) for a in args] + [str(a) for a in (per_rank(rank) if per_rank else [])]
            self.workers.append(subprocess.Popen(argv, env=full, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        for w in self.workers:
            if w.poll() is None:
                w.send_signal(signal.SIGKILL)
            out, err = w.communicate(timeout=30)
            if exc[0]:  # pytest shows it beside what failed
                print(f"$ {' '.join(w.args)}\nexit {w.returncode}\n{out}{err}")
        if self.agent:
            self.agent.close()

    def wait(self, timeout=60):
        """Exit codes, stdouts, stderrs, by rank."""
        end = time.monotonic() + timeout
        out = [w.communicate(timeout=max(0.1, end - time.monotonic())) for w in self.workers]
        return [w.returncode for w in self.workers], [o for o, _ in out], [e for _, e in out]

    def until_step(self, step, rank=0, timeout=30):
        end = time.monotonic() + timeout
        while self.agent.progress.get(rank, (0,))[0] < step:
            assert time.monotonic() < end, f"rank {rank} did not come to step {step}"
            assert self.workers[rank].poll() is None, self.workers[rank].communicate(timeout=30)
            time.sleep(0.005)


def train(args, world=None, **kw):
    """Runs to the end, which must be a success; rank 0's result as a dict."""
    with Run(args, world, **kw) as run:
        codes, outs, errs = run.wait()
        assert codes == [0] * len(codes), (codes, outs, errs)
        if run.agent:
            run.agent.wait_done()
    words = outs[0].split()
    assert words[0] == "done:" and outs[0].count("\n") == 1 and not any(outs[1:]), outs
    return {"steps": int(words[1]), "loss": float(words[4].rstrip(",")), "rate": float(words[5]), "checksum": words[-1],
            "stderr": errs[0]}


def metrics(path, event="step"):
    lines = [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]
    return [line for line in lines if line["event"] == event]
