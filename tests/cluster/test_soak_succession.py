# SPDX-License-Identifier: Apache-2.0
"""Random faults in a row, and no host is spared: the one with the daemon least of all. test_soak.py has the faults, and says how to repeat them.

Each host has an agent, and the first one is where they meet; three of them run the training, the others are spares. Without a claim more than half of a
round's nodes must outlive it, so each fault waits until a whole round runs. With claims one of them must, so two faults come in a row.
"""

import json
import signal
import time

import pytest

import beats
from harness import SLOW, comm, environ, until
from job import LEASE, PYTHON, Clock
from test_soak import TRAIN, Supervised, checksum, faults, narrate, signalled  # noqa: F401: a fixture

HOSTS, NODES, PACE = 5, 3, 20
KINDS = ("worker", "agent", "agent", "guard", "power", "power daemon", "power daemon", "power daemon", "daemon", "cut", "cut daemon", "cut daemon",
         "stop daemon", "stop agent", "stop guard")


class Masterless(Supervised):
    """An agent on each host, started again when it ends before the job does. Daemons are theirs."""

    def __init__(self, cluster, name, rng, claims):
        self.beats, self.claims = cluster.tmp / f"beats-{name}", claims
        script = f"exec {PYTHON} -SE {beats.__file__} {self.beats.name} sh -c '{TRAIN}{name}'"
        super().__init__(cluster, name, rng, script, "--nnodes", NODES, *(("--claim", claims) if claims else ()))
        self.targets, self.since = cluster.hosts, 0

    def start_daemon(self):
        self.start(1)

    def in_charge(self):
        """The host whose daemon is in charge, as that one says; None: there is none now."""
        host, _ = self.asked()
        return host

    def asked(self):
        """The same, and what it says of the job."""
        for host in self.c.hosts:
            if host.up and any(comm(p) == "rdzvd" for p in host.pids()):
                code, text = host.ctl("status", self.name, "--json")
                jobs = json.loads(text).get("jobs", ()) if code == 0 else ()
                for j in jobs:
                    if j.get("daemon", {}).get("in_charge") and j["state"] == "running":
                        return host, j
        return None, {}

    def whole(self):
        """The round that all run, if there is a daemon in charge; None: not all run."""
        workers = self.workers()
        rounds = {environ(p).get("RDZV_ROUND") for p in workers}
        return rounds.pop() if len(workers) == NODES and len(rounds) == 1 and self.in_charge() else None

    def settle(self, seconds):
        """Until a whole round runs, and has run for long enough that its nodes have said so."""
        seen = [None, 0.0]

        def settled():
            self.tend(0.1)
            if (now := self.whole()) != seen[0]:
                seen[:] = now, time.monotonic()
            return self.done() or now and time.monotonic() > seen[1] + LEASE / 2

        until(lambda: f"a whole round runs\n{self.c}", settled, seconds)

    def all_back(self, seconds):
        """Until each agent is with the job: one that comes when it is over would wait for another."""
        def back():
            self.tend(0.1)
            _, job = self.asked()
            here = {m["host"] for m in job.get("members", ()) if m["state"] != "lost"}
            return all(a.running and self.c[i].name in here for i, a in self.agents.items())

        until(lambda: f"all nodes are back\n{self.c}", back, seconds)

    def rest(self):
        super().rest()
        self.since += 1
        if self.since == (2 if self.claims else 1):
            self.since = 0
            self.settle(60)

    def hit(self, kinds, worker_deaths_max):
        self.target = self.in_charge() or self.rng.choice(self.targets)
        super().hit(kinds, worker_deaths_max)

    def hit_daemon(self, kind, host, span):
        if kind == "cut daemon":
            return self.hit_wire(kind, self.target, span)
        if kind == "power daemon":
            return self.hit_power(kind, self.target, span)
        self.say(f"{kind} on {self.target.name}, {span:.2f} s")
        pids = [p for p in self.target.pids() if comm(p) == "rdzvd"]
        for pid in pids:
            signalled(pid, signal.SIGKILL if kind == "daemon" else signal.SIGSTOP)
        self.tend(span)
        for pid in pids:
            signalled(pid, signal.SIGCONT)


@pytest.mark.parametrize("claimed", [False, True], ids=["majority", "claims"])
@pytest.mark.parametrize("n", [pytest.param(5, marks=pytest.mark.seconds(60)), pytest.param(100, marks=[pytest.mark.soak, pytest.mark.seconds(900)])])
def test_faults_that_spare_nobody(faults, n, claimed):  # noqa: F811
    """Training at fixed size ends with the weights of an undisturbed run, byte for byte; no two rounds overlap."""
    c, rng = faults(HOSTS)
    claims = c.tmp / "claims" if claimed else None
    if claims:
        claims.mkdir()
    throttle = c.tmp / "throttle"
    throttle.write_text("0")
    calm = Masterless(c, "calm", rng, claims)
    calm.tend(120 * SLOW)
    undisturbed = checksum(calm)
    assert calm.done() and undisturbed, c
    c.gone(10)

    throttle.write_text(str(PACE))
    s = Masterless(c, "faults", rng, claims)

    def disturbed():
        until(lambda: f"the training begins\n{c}", lambda: any(a.says(r"step \d+ of") for a in s.agents.values()), 30)
        s.hits(n, KINDS, 10)
        rest = Clock(c)
        s.settle(90)
        rest.fact("after the last fault a whole round runs")
        s.all_back(90)
        rest.fact("after the last fault all nodes are back")
        throttle.write_text("0")
        signalled(rng.choice(s.workers()), signal.SIGKILL)  # the last one: the rest is done at full speed
        s.tend(120 * SLOW)
        rest.fact("after the last fault the job is done")
        assert s.done(), c
        assert checksum(s) == undisturbed, f"{checksum(s)}, undisturbed {undisturbed}"

    narrate(s, disturbed)
    c.gone(40)  # a daemon whose agent has left sends nodes on for 15 s after the last FORWARD
    c.fact(f"{len(beats.check(s.beats))} rounds, none of which overlap, and the same weights: checksum {undisturbed}")
