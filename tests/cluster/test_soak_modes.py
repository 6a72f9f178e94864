# SPDX-License-Identifier: Apache-2.0
"""Random faults, several at once, on jobs of every kind: never do workers of two rounds run at the same time.

Each kind of job has its own way to a daemon: by hand, its agents' own, standby daemons, with claims and without. A storm is one to three faults, each for a
while. Then everything is healed, and a whole round must run soon. What has ended before the job is started again by the same command line, as a supervisor
does. Workers and children of theirs in sessions of their own write every 10 ms (beats.py, session_child.py).

RDZV_CLUSTER_SEED=N repeats the faults of a run (not their timing to the microsecond).
"""

import json
import os
import signal
import time

import pytest

import beats
import session_child
from harness import RDZVD, SLOW, comm, environ, until
from job import LEASE, PYTHON, Clock
from test_soak import faults, signalled  # noqa: F401: a fixture

STOP = 2.0  # --stop-timeout
GRACE = 10  # --orphan-grace
SETTLE = 2 * LEASE + STOP + GRACE + 7 + 30 * SLOW

# hosts, those with an rdzvd of their own, --nnodes, whether it claims
MODES = {
    "by-hand-elastic": (4, (1,), "2:3", False),
    "by-hand-fixed": (4, (1,), "3", False),
    "by-hand-spare": (5, (1,), "3", False),
    "by-hand-alone": (4, (1,), "1:3", False),
    "own-elastic": (4, (), "2:4", False),
    "own-three-of-four": (4, (), "3:4", False),
    "own-fixed": (3, (), "3", False),
    "own-spare": (4, (), "3", False),
    "own-two-claims": (2, (), "1:2", True),
    "own-elastic-claims": (4, (), "2:4", True),
    "own-spare-claims": (4, (), "3", True),
    "standby-elastic": (6, (1, 2, 3), "2:3", False),
    "standby-spare": (7, (1, 2, 3), "3", False),
}


class Stormy:
    """A job, whose agents and daemons are started again when they end."""

    def __init__(self, cluster, rng, hosts, daemons, nodes, claims):
        self.c, self.rng, self.with_daemon = cluster, rng, daemons
        self.min = int(nodes.split(":")[0])
        self.beats = cluster.tmp / "beats"
        self.claims = cluster.tmp / "claims" if claims else None
        if claims:
            self.claims.mkdir(mode=0o700)
        endpoint = ",".join(f"node{i}" for i in daemons) or "node1"
        self.words = ["--endpoint", endpoint, "--rdzv-id", "job", "--nnodes", nodes, "--lease", f"{LEASE:g}s", "--max-restarts", 1000, "--last-call", "1s",
                      "--stop-timeout", f"{STOP:g}s", "--join-timeout", "5m", "--orphan-grace", f"{GRACE}s", *(("--claim", self.claims) if claims else ()),
                      "--", "sh", "-c", f"exec {PYTHON} -SE {session_child.__file__} {self.beats}"]
        self.log, self.began, self.running, self.due, self.vouched = [], time.monotonic(), {}, {}, 0
        self.wanted = [*(("daemon", i) for i in daemons), *(("agent", i) for i in range(1, hosts + 1) if i not in daemons)]
        for who in self.wanted:
            self.start(who)

    def say(self, text):
        self.log.append(f"{time.monotonic() - self.began:8.3f} {text}")

    def start(self, who):
        what, i = who
        host = self.c[i]
        if what == "agent":
            self.running[who] = host.agent(*self.words)
            return
        state = self.c.tmp / f"state-{i}"
        state.mkdir(exist_ok=True)
        self.running[who] = host.spawn(RDZVD, "--listen", "[::]:29400", "--state-dir", state)
        self.c.daemons.append(self.running[who])

    def tend(self, seconds):
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            for who in self.wanted:
                p = self.running[who]
                if not self.c[who[1]].up or p.running:
                    self.due.pop(who, None)
                elif who not in self.due:
                    self.say(f"{who[0]} of node{who[1]} has ended with {p.exit()}")
                    self.due[who] = now + 0.2
                elif now > self.due[who]:
                    del self.due[who]
                    self.start(who)
            if now >= end:
                return
            time.sleep(0.03)

    def workers(self):
        return [pid for host in self.c.hosts for pid in host.workers("job").values()]

    def whole(self):
        """The round that enough workers run, all of the job being in it; None: there is none."""
        worlds = [(e.get("RDZV_ROUND"), e.get("MASTER_ADDR"), e.get("WORLD_SIZE")) for e in map(environ, self.workers())]
        one = len(set(worlds)) == 1 and worlds[0][2] == str(len(worlds)) and len(worlds) >= self.min
        return worlds[0] if one else None

    def all_back(self):
        """Each agent is in the job: one that comes when the job is over would begin it again."""
        for host in self.c.hosts:
            code, text = host.ctl("status", "job", "--json")
            jobs = json.loads(text).get("jobs", ()) if code == 0 else ()
            for j in jobs:
                here = {m["host"] for m in j.get("members", ()) if m["state"] != "lost"}
                if j.get("state") == "running" and all(p.running and f"node{i}" in here for (what, i), p in self.running.items() if what == "agent"):
                    return True
        return False

    def vouch(self):
        """As an operator who has looked: nothing of the job runs, and an agent waits for that word."""
        if not self.claims or self.workers():
            return
        for (what, i), p in self.running.items():
            if what == "agent" and p.running and p.err and "rdzvctl confirm-dead job." in p.err[-1]:
                self.say(f"confirm-dead on node{i}: {self.c[i].ctl('confirm-dead', 'job')}")
                self.vouched += 1

    def settle(self, seconds):
        """Until a whole round has run for half a lease."""
        seen, since = None, 0.0

        def settled():
            nonlocal seen, since
            self.tend(0.1)
            self.vouch()
            now = self.whole()
            if now != seen:
                seen, since = now, time.monotonic()
            return now and time.monotonic() > since + LEASE / 2

        until(lambda: f"a whole round runs\n{self.c}", settled, seconds)

    # -- faults: each returns what ends it ------------------------------------------------------------------------------

    def signal(self, host, name, signo):
        """To each of these processes there. Returns how it is undone."""
        own = {p.pid: p.kill for who, p in self.running.items() if who[1] == host.i}  # nsenter stops with what it has started, and goes on with it
        to = [own.get(pid) or (lambda signo, pid=pid: signalled(pid, signo)) for pid in host.pids() if comm(pid) == name]
        for kill in to:
            kill(signo)
        return lambda: [kill(signal.SIGCONT) for kill in to]

    def power(self, host):
        host.power_off()
        return lambda: host.boot()

    def wire(self, host, way):
        host.reject() if way == "reject" else host.lose(30) if way == "loss" else host.cut(way)
        return lambda: host.up and host.heal()

    def pair(self, host, others):
        other = self.rng.choice([h for h in others if h is not host])
        one_way = self.rng.random() < 0.5
        host.refuse([other])
        if not one_way:
            other.refuse([host])
        return lambda: [h.heal() for h in (host, other) if h.up]

    def read_only(self, host):
        host.ns.sh(f"mount --bind {self.claims} {self.claims} && mount -o remount,bind,ro {self.claims}")
        return lambda: host.up and host.ns.sh(f"umount {self.claims} 2>/dev/null || true")

    def fault(self, host, others):
        kinds = ["power", "both", "in", "out", "reject", "reject", "loss", "pair", "stop rdzv-agent", "stop rdzv-guard", "stop rdzvd", "kill rdzv-agent",
                 "kill rdzv-guard", "kill rdzvd", *(["read-only claims"] if self.claims else [])]
        kind = self.rng.choice(kinds)
        self.say(f"{host.name}: {kind}")
        if kind == "power":
            return self.power(host)
        if kind == "pair":
            return self.pair(host, others)
        if kind == "read-only claims":
            return self.read_only(host)
        if " " in kind:
            verb, name = kind.split()
            return self.signal(host, name, signal.SIGSTOP if verb == "stop" else signal.SIGKILL)
        return self.wire(host, kind)

    def storm(self):
        hosts = self.rng.sample(self.c.hosts, self.rng.choice((1, 1, 2, 2, 3)) if len(self.c.hosts) > 2 else self.rng.choice((1, 2)))
        ends = []
        for host in hosts:
            if host.up:
                ends.append((time.monotonic() + self.rng.uniform(0.05, 4) * LEASE, self.fault(host, [h for h in self.c.hosts if h.up])))
            self.tend(self.rng.choice((0, 0.2, 1, 2.5)))
        for at, end in sorted(ends, key=lambda e: e[0]):
            self.tend(max(0, at - time.monotonic()))
            end()
        for host in self.c.hosts:
            host.heal()
        self.say("all is healed")

    def judge(self):
        """No two rounds overlap."""
        rounds = beats.rounds(self.beats)
        for a, b in zip(rounds, rounds[1:]):
            assert a.last < b.first, f"round {a.number} ran for {a.last - b.first:.3f} s after round {b.number} had begun\n" + "\n".join(map(str, rounds))
        return rounds


@pytest.mark.soak
@pytest.mark.seconds(600)
@pytest.mark.parametrize("mode", MODES)
def test_storms(faults, mode):  # noqa: F811
    n = int(os.environ.get("RDZV_CLUSTER_STORMS", 12))
    hosts, daemons, nodes, claims = MODES[mode]
    c, rng = faults(hosts)
    s = Stormy(c, rng, hosts, daemons, nodes, claims)
    slowest = 0.0
    try:
        s.settle(60)
        for _ in range(n):
            s.storm()
            rest = Clock(c)
            s.settle(SETTLE)
            slowest = max(slowest, rest.took)
            s.say(f"a whole round ran {rest.took:.1f} s later")
            if rest.took > 2 * LEASE + STOP:
                s.log += [f"         {who}: {line}" for who, p in s.running.items() for line in p.err[-12:]]
            s.judge()
        until(lambda: f"all agents are back\n{c}", lambda: s.tend(0.1) or s.all_back(), 120)
    finally:
        print(*s.log, sep="\n")
    (c.tmp / "go").touch()
    codes = {who: p.exit(60) for who, p in s.running.items() if who[0] == "agent"}
    assert not any(codes.values()), f"exit codes {codes}\n{c}"
    c.gone(20)
    words = f", {s.vouched} times by an operator's word" if s.vouched else ""
    c.fact(f"{n} storms, {len(s.judge())} rounds, none of which overlap{words}; a whole round ran {slowest:.1f} s after a storm at the latest")
