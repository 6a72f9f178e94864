# SPDX-License-Identifier: Apache-2.0
"""Random faults in a row, on a training job of fixed size and on an elastic one.

Whoever runs it is a supervisor: an agent that exits with anything but 0 is started again by the same command line, as is the daemon, and a host
without power gets it back. The seed is a fact that is printed; RDZV_CLUSTER_SEED=N repeats its faults (not their timing to the microsecond).
"""

import os
import random
import re
import signal
import time

import pytest

from harness import SLOW, TRAINER, alive, comm, environ, until
from job import LEASE, WAIT, Clock

STEPS = 20_000  # more than can be done while the faults go on, at this pace: steps a second
PACE = 40
TRAIN = (
    f"exec {TRAINER} --layers 60,12,60 --data synthetic:500 --scale 0.01 --batch 16 --loss rmse --seed 3 --steps {STEPS} --coll-timeout 20s "
    "--report-every 1s --throttle $(cat throttle) --checkpoint-every 60 --checkpoint-dir "
)
KINDS = ("worker", "agent", "agent", "guard", "guard", "power", "daemon", "daemon", "cut", "cut", "cut daemon", "stop daemon", "stop agent",
         "stop guard", "stop worker")


class Supervised:
    """The daemon on node1 and an agent on each other host, started again when they end before the job does."""

    def __init__(self, cluster, name, rng, script, *options):
        self.c, self.name, self.rng, self.words = cluster, name, rng, [*options, "--", "sh", "-c", script]
        self.log, self.began, self.started = [], time.monotonic(), []
        self.charged, self.kinds, self.twice = 0, {}, 0
        (cluster.tmp / "state").mkdir(exist_ok=True)
        self.daemon, self.agents, self.due, self.targets = None, {}, {}, cluster.hosts[1:]
        self.start_daemon()
        for host in cluster.hosts[1:]:
            self.start(host.i)

    def say(self, text):
        self.log.append(f"{time.monotonic() - self.began:8.3f} {text}")

    def start_daemon(self):
        self.daemon = self.c[1].daemon("--state-dir", self.c.tmp / "state")

    def start(self, i):
        options = ["--endpoint", "node1", "--rdzv-id", self.name, "--lease", f"{LEASE:g}s", "--max-restarts", 1000, "--stop-timeout", "5s"]
        self.agents[i] = self.c[i].agent(*options, "--join-timeout", "5m", *self.words)
        self.started.append(self.agents[i])

    def tend(self, seconds):
        """For so long, or until the job is done. Agents that have ended are started again a moment later."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.done():
            for i, a in self.agents.items():
                if not self.c[i].up:
                    continue
                if not a.running and a.exit() and i not in self.due:
                    self.say(f"the agent of node{i} has ended with {a.exit()}")
                    self.due[i] = time.monotonic() + 0.2
                elif i in self.due and time.monotonic() > self.due[i]:
                    del self.due[i]
                    self.start(i)
            self.watch()
            time.sleep(0.03)

    def watch(self):
        """No rank of a round runs twice. (One of an older round may, on a host that is cut off and was needed: PROTOCOL.md 8.)"""
        seen = {}
        for host in self.c.hosts:
            for rank, pid in host.workers(self.name).items():
                key = rank, environ(pid).get("RDZV_ROUND")
                twice = key in seen and alive(seen[key]) and alive(pid)
                assert not twice, f"rank {rank} of round {key[1]} runs twice: {pid}, {seen[key]}\n{self.c}"
                self.twice += any(k[0] == rank and k != key and alive(p) for k, p in seen.items()) and alive(pid)
                seen[key] = pid

    def done(self):
        return all(not a.running and a.exit() == 0 for a in self.agents.values())

    def workers(self):
        return [pid for host in self.c.hosts for pid in host.workers(self.name).values()]

    def hit(self, kinds, worker_deaths_max):
        """One fault, to its end: what was stopped goes on, what was cut is whole again."""
        host, span = self.rng.choice(self.targets), self.rng.uniform(0.05, 2.5) * LEASE
        kind = self.rng.choice(kinds)
        if kind == "worker" and self.charged >= worker_deaths_max:  # each is charged, and delays the next round, up to 30 s
            kind = "agent"
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        {"worker": self.hit_worker, "agent": self.hit_agent, "guard": self.hit_guard, "daemon": self.hit_daemon, "cut": self.hit_wire,
         "power": self.hit_power}[kind.split()[-1]](kind, host, span)

    def hit_worker(self, kind, host, span):
        pids = self.workers()
        if not pids:
            return self.say(f"{kind}: there is none")
        pid = self.rng.choice(pids)
        self.say(f"{kind} {pid}, {span:.2f} s")
        self.charged += kind == "worker"
        signalled(pid, signal.SIGKILL if kind == "worker" else signal.SIGSTOP)
        if kind != "worker":
            self.tend(span)
            signalled(pid, signal.SIGCONT)

    def hit_agent(self, kind, host, span):
        a = self.agents[host.i]
        self.say(f"{kind} of {host.name}, {span:.2f} s")
        a.kill(signal.SIGKILL if kind == "agent" else signal.SIGSTOP)
        if kind != "agent":
            self.tend(span)
            a.kill(signal.SIGCONT)

    def hit_guard(self, kind, host, span):
        self.say(f"{kind} of {host.name}")
        pids = [pid for pid in host.pids() if comm(pid) == "rdzv-guard"]
        for pid in pids:
            signalled(pid, signal.SIGKILL if kind == "guard" else signal.SIGSTOP)
        if kind != "guard":
            self.tend(span)  # its agent wakes it sooner, where there is one
            for pid in pids:
                signalled(pid, signal.SIGCONT)

    def hit_daemon(self, kind, host, span):
        if kind == "cut daemon":
            return self.hit_wire(kind, self.c[1], span)
        self.say(f"{kind}, {span:.2f} s")
        self.daemon.kill(signal.SIGKILL if kind == "daemon" else signal.SIGSTOP)
        self.tend(span)
        self.daemon.kill(signal.SIGCONT)
        if kind == "daemon":
            self.daemon.exit()
            self.start_daemon()

    def hit_wire(self, kind, host, span):
        way = self.rng.choice(("both", "in", "out"))
        self.say(f"{host.name} is cut, {way}, for {span:.2f} s")
        host.cut(way)
        self.tend(span)
        host.heal()

    def hit_power(self, kind, host, span):
        self.say(f"{host.name} has no power for {span:.2f} s")
        host.power_off()
        self.tend(span)
        host.boot()

    def rest(self):
        """Until the next fault."""
        self.tend(self.rng.choice((0.05, 0.5, 2, 4)))

    def hits(self, n, kinds, worker_deaths_max=1000):
        clock = Clock(self.c)
        for _ in range(n):
            self.hit(kinds, worker_deaths_max)
            self.rest()
            assert not self.done() and not checksum(self), "the job was done before the faults were: more steps are needed"
        clock.fact(f"{n} faults ({', '.join(f'{k} {n}' for k, n in sorted(self.kinds.items()))})")


def checksum(s):
    found = [m[1] for p in s.started for l in p.out if (m := re.search(rf"done: {STEPS} steps, .*checksum (\w+)", l))]
    return found[-1] if found else None


def signalled(pid, signo):
    try:
        os.kill(pid, signo)
    except ProcessLookupError:
        pass


@pytest.fixture
def faults(make_cluster):
    """faults(N hosts): a cluster, and random numbers whose seed is told."""

    def make(n):
        seed = int(os.environ.get("RDZV_CLUSTER_SEED", random.randrange(1 << 30)))
        c = make_cluster(n)
        c.fact(f"seed {seed}")
        return c, random.Random(seed)

    return make


def narrate(s, do):
    """What was done, and when, is part of a failure's report."""
    try:
        return do()
    except BaseException:
        print(*s.log, sep="\n")
        raise


@pytest.mark.soak
@pytest.mark.seconds(400)
def test_a_hundred_faults_and_the_same_weights(faults):
    """Training at fixed size ends with the weights of an undisturbed run, byte for byte."""
    c, rng = faults(3)
    throttle = c.tmp / "throttle"
    throttle.write_text("0")
    calm = Supervised(c, "calm", rng, TRAIN + "calm", "--nnodes", 2, "--nproc", 2)
    calm.tend(120 * SLOW)
    undisturbed = checksum(calm)
    assert calm.done() and undisturbed, c
    calm.daemon.kill(signal.SIGTERM)
    assert calm.daemon.exit() == 0

    throttle.write_text(str(PACE))
    s = Supervised(c, "faults", rng, TRAIN + "disturbed", "--nnodes", 2, "--nproc", 2)

    def disturbed():
        until(lambda: f"the training begins\n{c}", lambda: any(a.says(r"step \d+ of") for a in s.agents.values()), 30)
        s.hits(100, KINDS, 10)
        throttle.write_text("0")
        rest = Clock(c)
        # Nothing is done to it any more. It must come to run within the longest delay, and from there to its end without a pause.
        until(lambda: f"four workers run\n{c}", lambda: s.tend(0.1) or len(s.workers()) == 4, 60)
        rest.fact("after the last fault four workers run")
        signalled(rng.choice(s.workers()), signal.SIGKILL)  # the last one: the rest is done at full speed
        s.tend(120 * SLOW)
        rest.fact("after the last fault the job is done")
        assert s.done(), c
        assert checksum(s) == undisturbed, f"{checksum(s)}, undisturbed {undisturbed}"

    narrate(s, disturbed)
    c.gone()
    rounds = max(int(m[1]) for p in s.started for l in p.err if (m := re.search(r"rdzv-agent: round (\d+):", l)))
    c.fact(f"{rounds} rounds, the same weights: checksum {undisturbed}")


@pytest.mark.soak
@pytest.mark.seconds(400)
def test_eighty_faults_on_an_elastic_job(faults):
    """Two or three of four hosts. Never runs a rank of a round twice, and when the faults are over a whole round runs
    within the longest delay (30 s) and the age at which a round grows (30 s): of three, or of two where the others' hosts are flapping."""
    c, rng = faults(5)
    s = Supervised(c, "elastic", rng, WAIT, "--nnodes", "2:3", "--last-call", "1s")

    def disturbed():
        until(lambda: f"three workers run\n{c}", lambda: len(s.workers()) == 3, 30)
        s.hits(80, (*KINDS, "power"), 8)
        rest = Clock(c)
        until(lambda: f"all workers of one round run\n{c}", lambda: s.tend(0.1) or together(s), 90)
        rest.fact(f"after the last fault {len(s.workers())} nodes run")
        (c.tmp / "go").touch()
        s.tend(60)
        rest.fact("after the last fault the job is done")
        assert s.done(), c

    narrate(s, disturbed)
    c.gone()
    c.fact(f"a rank was seen running in an old round beside a new one {s.twice} times, on hosts that were cut off and needed")


def together(s):
    worlds = [(environ(p).get("RDZV_ROUND"), environ(p).get("WORLD_SIZE")) for p in s.workers()]
    return len(set(worlds)) == 1 and worlds[0][1] == str(len(worlds))
