# SPDX-License-Identifier: Apache-2.0
"""A job over a cluster's hosts: node1 has the daemon and no agent, node2 and on have one agent each, as a supervisor would start them."""

import json
import os
import re
import shlex
import sys
import time

import beats
from harness import HANG_S, until

# Says where it is, then waits for the file `go` in the folder that all hosts share.
WAIT = "echo round $RDZV_ROUND of $GROUP_WORLD_SIZE, $RDZV_RESTART_COUNT charged; while [ ! -e go ]; do sleep 0.1; done"
LEASE = 2.0
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable  # one that every user may run


def told_of(host, name, *more):
    """What rdzvctl on that host says of a job, as soon as a daemon answers that has it."""
    said = ""

    def answered():
        nonlocal said
        code, said = host.ctl("status", name, "--json", *more)
        jobs = json.JSONDecoder().raw_decode(said)[0]["jobs"] if code == 0 else []  # warnings come behind it
        return len(jobs) == 1 and jobs

    return until(lambda: f"rdzvctl on {host.name} tells of {name}: {said}", answered)[0]


class Job:
    def __init__(self, cluster, nodes, *hosts, lease=LEASE, script=WAIT, more=(), name="job", endpoint="node1", user=None):
        """Agents on these hosts (by number; the second and all after it where none is named), which are not waited for."""
        self.cluster, self.name, self.user = cluster, name, user
        lease = ["--lease", f"{lease:g}s"] if lease else []
        self.options = ["--nnodes", nodes, "--endpoint", endpoint, "--rdzv-id", name, *lease, "--stop-timeout", "5s", "--join-timeout", "2m", *more]
        self.script, self.agents = script, {}
        for i in hosts or range(2, len(cluster.hosts) + 1):
            self.start(i)

    def start(self, i):
        """(Again) on node i."""
        self.agents[i] = self.cluster[i].agent(*self.options, "--", "sh", "-c", self.script, user=self.user)
        return self.agents[i]

    def expect(self, round_, size, *hosts, charged=0, timeout=HANG_S):
        """Until the workers on these hosts (all of the job) have said so. Their pids, by rank."""
        for i in hosts or self.agents:
            self.agents[i].expect(rf"round {round_} of {size}, {charged} charged", timeout)
        return self.workers()

    def workers(self):
        """rank -> pid, on all hosts."""
        return self.cluster.workers(self.name, self.user or 0)

    def says(self, pattern):
        return [i for i, a in self.agents.items() if a.says(pattern)]

    def finish(self, charged=0):
        """Lets the workers go, and sees that all agents still there exit with 0, that the daemon says so too, and that nothing is left."""
        (self.cluster.tmp / "go").touch()
        got = {i: a.exit() for i, a in self.agents.items() if a.host.up}
        assert not any(got.values()), f"exit codes {got}\n{self.cluster}"
        self.succeeded(charged)
        self.cluster.gone()

    def succeeded(self, charged):
        """That the daemon says so, with so many restarts used."""
        until(lambda: f"the daemon says that it has ended: {self.status()}", lambda: self.status()["state"] == "ended")
        told = self.status()
        assert (told["outcome"], told["code"], told["restarts_used"]) == ("success", 0, charged), f"{told}\n{self.cluster}"

    def failed(self, code, cause):
        """That the daemon says so: with this exit code, and of what."""
        until(lambda: f"the daemon says that it has ended: {self.status()}", lambda: self.status()["state"] == "ended")
        told = self.status()
        assert (told["outcome"], told["code"], told["last_verdict"]["cause"]) == ("failed", code, cause), f"{told}\n{self.cluster}"

    def status(self):
        """What rdzvctl, on the daemon's host, says of this job."""
        return told_of(self.cluster[1], self.name)


class Own(Job):
    """An agent on each of these hosts (all of them where none is named), the first of which starts the daemon. Workers write when they run: beats.py."""

    def __init__(self, cluster, nodes, *hosts, script=WAIT, **more):
        self.beats = cluster.tmp / f"beats-{len(cluster.procs)}"  # in the folder where all run, whoever they are
        script = f"exec {shlex.join([PYTHON, '-SE', beats.__file__, self.beats.name, 'sh', '-c', script])}"
        super().__init__(cluster, nodes, *(hosts or range(1, len(cluster.hosts) + 1)), script=script, **more)

    def rounds(self):
        """Those of which workers have run; fails where two overlap."""
        return beats.check(self.beats)

    def lose(self, i):
        """Host i has no power any more, nor has anything on it."""
        clock = Clock(self.cluster)
        self.cluster[i].power_off()
        del self.agents[i]
        return clock

    def asked(self, i, *more):
        """What rdzvctl says of it on host i."""
        return told_of(self.cluster[i], self.name, *more)

    def end(self, timeout=40):
        """Lets the workers go: all agents exit with 0, nothing is left, daemons of the agents neither."""
        (self.cluster.tmp / "go").touch()
        got = {i: a.exit(timeout) for i, a in self.agents.items()}
        assert not any(got.values()), f"exit codes {got}\n{self.cluster}"
        self.cluster.gone(8)
        (self.cluster.tmp / "go").unlink()
        return self.rounds()


class Clock:
    """How long things took, since something was done to a host."""

    def __init__(self, cluster):
        self.cluster, self.began = cluster, time.monotonic()

    @property
    def took(self):
        return time.monotonic() - self.began

    def fact(self, what):
        took = self.took
        self.cluster.fact(f"{what} after {took:.2f} s" if took >= 1 else f"{what} after {1000 * took:.0f} ms")
        return took


def stays(what, condition, seconds):
    """Fails when a condition that holds does not hold for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition(), what() if callable(what) else what
        time.sleep(0.05)


def rounds(agent):
    """The rounds that an agent's workers have told, in order."""
    return [int(m[1]) for l in agent.out if (m := re.search(r"round (\d+) of \d+", l))]
