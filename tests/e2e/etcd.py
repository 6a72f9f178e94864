# SPDX-License-Identifier: Apache-2.0
"""A real etcd cluster on loopback, each member with a folder of its own.

    with etcd.cluster(3) as c:
        rdzv.daemon("--claim", c.place)
        c[0].kill(); c[1].stop(); c.leader()
"""

import base64
import contextlib
import json
import shutil
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from harness import free_port, need, until

PROGRAM = shutil.which("etcd")


class Member:
    def __init__(self, number, folder, client, peer):
        self.name, self.folder, self.port, self.peer = f"m{number}", folder / f"m{number}", client, peer
        self.at = f"127.0.0.1:{client}"
        self.process = None

    def start(self, peers):
        self.log = (self.folder.parent / f"{self.name}.log").open("a")
        urls = f"http://{self.at}", f"http://127.0.0.1:{self.peer}"
        self.process = subprocess.Popen(
            [PROGRAM, "--name", self.name, "--data-dir", self.folder, "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
             "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", peers, "--heartbeat-interval", "50",
             "--election-timeout", "500"], stdout=self.log, stderr=self.log)

    def ask(self, path, body, timeout=5):
        """None if it does not answer, or has no leader."""
        request = urllib.request.Request(f"http://{self.at}{path}", json.dumps(body).encode())
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def status(self):
        return self.ask("/v3/maintenance/status", {}, 1)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)


class Cluster:
    def __init__(self, n, folder):
        ports = [free_port() for _ in range(2 * n)]
        self.folder = folder
        self.members = [Member(i, folder, ports[2 * i], ports[2 * i + 1]) for i in range(n)]
        self.peers = ",".join(f"{m.name}=http://127.0.0.1:{m.peer}" for m in self.members)
        self.place = "etcd://" + ",".join(m.at for m in self.members)
        for m in self.members:
            m.start(self.peers)
        until(lambda: f"etcd has a leader:\n{self}", lambda: all(self.keys_by(m) is not None for m in self.members), 30)

    def __getitem__(self, i):
        return self.members[i]

    def __str__(self):
        return "\n".join(f"{p.name}:\n{p.read_text()[-2000:]}" for p in self.folder.glob("*.log"))

    def keys_by(self, member):
        all_keys = base64.b64encode(b"\0").decode()
        got = member.ask("/v3/kv/range", {"key": all_keys, "range_end": all_keys})
        return None if got is None else {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv.get("value", "")).decode() for kv in got.get("kvs", [])}

    def keys(self):
        """What the cluster holds, by the first member that can tell."""
        return until(lambda: f"etcd answers:\n{self}", lambda: next(({"": None, **k} for m in self.members if (k := self.keys_by(m)) is not None), None), 20)

    def leader(self):
        """The member that leads, by the words of all members that run."""
        def find():
            said = [s for m in self.members if m.process.poll() is None and (s := m.status())]
            leaders = {s.get("leader", "0") for s in said}
            ids = {s["header"]["member_id"]: s for s in said}
            (one,) = leaders if len(leaders) == 1 else ("0",)
            return next((m for m in self.members if (s := m.status()) and s["header"]["member_id"] == one), None) if one in ids else None
        return until(lambda: f"etcd has a leader:\n{self}", find, 20)

    def move_leader(self):
        """Another one leads; returns both."""
        before = self.leader()
        to = next(m for m in self.members if m is not before and m.process.poll() is None)
        before.ask("/v3/maintenance/transfer-leadership", {"targetID": to.status()["header"]["member_id"]})
        return before, until("another one leads", lambda: (now := self.leader()) is not before and now, 20)

    def restart(self, member):
        member.start(self.peers)

    def close(self):
        for m in self.members:
            if m.process:
                m.process.kill()
                m.process.wait()


@contextlib.contextmanager
def cluster(n):
    need("etcd")
    folder = Path(tempfile.mkdtemp(prefix="rdzv-etcd-"))
    c = None
    try:
        c = Cluster(n, folder)
        yield c
    finally:
        if c:
            c.close()
        shutil.rmtree(folder)
