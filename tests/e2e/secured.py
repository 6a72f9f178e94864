# SPDX-License-Identifier: Apache-2.0
"""A running job behind a key, for the tests that attack it: afterwards nothing has happened to it, and nothing has leaked."""

import os
import signal

from others import EVE
from sealed import Key

# What only peers with the key may know. Each word is sent in HELLO by the agents of the job.
JOB, ROLE = "moonshot-7", "chief-scientist"
# What strangers say of themselves. None of it may reach a log.
STRANGER = dict(job="mallory-job", host="mallory-host", role="mallory-role", command="badbadbadbadbad1", uid=0)
WAIT = "while [ ! -e $GO ]; do sleep 0.02; done"


class Job:
    """Two agents with a worker each, who run until finish()."""

    def __init__(self, rdzv, nodes=2, via=None, daemon_kw=None, max_restarts=0, agent_args=()):
        self.rdzv, self.nodes = rdzv, nodes
        self.go = rdzv.tmp / "go"
        self.socket = rdzv.tmp / "control"
        self.daemon = rdzv.daemon("--verbose", "--socket", self.socket, **(daemon_kw or {}))
        self.via = via and via(self.daemon.port)  # what stands between the agents and the daemon
        self.agents = rdzv.agents(
            nodes, self.via.endpoint if self.via else self.daemon.endpoint, "--rdzv-id", JOB, "--role", ROLE, "--nnodes", nodes,
            "--max-restarts", max_restarts, "--verbose", *agent_args, "--", "sh", "-c", WAIT, env={"GO": str(self.go)},
        )
        self.workers = rdzv.await_workers(nodes, timeout=20)

    def unharmed(self):
        """The same workers run, in the round in which they began."""
        assert all(a.running for a in self.agents) and self.daemon.running, f"somebody is gone:\n{self.rdzv}"
        assert self.rdzv.workers() == self.workers, f"other workers run:\n{self.rdzv}"

    def finish(self):
        """Unharmed, it ends well, and no log has what it must not have."""
        self.unharmed()
        self.go.touch()
        for a in self.agents:
            assert a.exit(30) == 0, f"{a}\n{self.daemon}"
        self.daemon.expect(f"job {JOB}.*: .* ended")
        if self.via:
            self.via.close()
        self.check_logs()

    def secrets(self):
        """Every form of a key of this test, as text and as bytes."""
        own = Key.parse(self.rdzv.key)
        keys = [own, own.derive(0), own.derive(os.geteuid()), own.derive(EVE)]
        found = set()
        for k in [*keys, *[Key.parse(k.token()) for k in keys]]:
            found |= {k.secret, k.secret.hex().encode(), k.secret.hex().upper().encode()}
        return found

    def check_logs(self):
        said = b"".join(p.text.encode(errors="replace") for p in self.rdzv.procs)
        for path in self.rdzv.tmp.rglob("*.log"):
            said += path.read_bytes()
        for word in self.secrets():
            assert word not in said, f"a key is in a log:\n{self.rdzv}"
        for word in STRANGER.values():
            assert str(word) == "0" or str(word).encode() not in said, f"{word} of a stranger is in a log:\n{self.rdzv}"

    def check_wire(self, data):
        """Of bytes that passed a wire: nothing of the job can be read there."""
        for word in [*self.secrets(), JOB.encode(), ROLE.encode(), b"incarnation", b"HELLO", b"settings", os.uname().nodename.encode() + b'"']:
            assert word not in data, f"{word!r} can be read on the wire"

    def restart_daemon(self, key=None):
        """The daemon comes back at its port, with its key or another one."""
        port = self.daemon.port
        self.daemon.end(signal.SIGTERM)
        env = {"RDZV_KEY": str(key)} if key else None
        self.daemon = self.rdzv.daemon("--verbose", "--socket", self.socket, port=port, env=env)
        return self.daemon
