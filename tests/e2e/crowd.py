# SPDX-License-Identifier: Apache-2.0
"""Many nodes without processes (tests/bench/scale_agents.c), for tests of a daemon that has many: each has a connection and the real mind of an agent."""

import contextlib
import json
import resource
import select
import subprocess

import pytest

from harness import BUILD, SLOW, until

AGENTS = BUILD / "tests/bench/scale-agents"


@contextlib.contextmanager
def descriptors(n):
    """Programs that are started inside may open n; skips the test where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n, max(n, hard)))
    except (ValueError, OSError):
        pytest.skip(f"needs {n} descriptors, and this shell may open {hard}")
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(n, hard)))


class Crowd:
    """n nodes of one job, or of jobs of `nodes_per_job` nodes each, with two workers each.

    One process beats for all of them, and a busy machine may hold it up for seconds. So their lease is long; other tests let leases end."""

    LEASE_MS = 60000

    def __init__(self, rdzv, d, n, nodes_per_job=0, job="crowd"):
        least = nodes_per_job or n
        self.n = n
        argv = [AGENTS, d.port, job, 0, n, least, least, 2, nodes_per_job, self.LEASE_MS]
        self.p = subprocess.Popen(list(map(str, argv)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=rdzv.env({"RDZV_KEY": rdzv.key}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.kill()
        self.p.wait()
        self.p.stdin.close()
        self.p.stdout.close()

    def tell(self, command):
        self.p.stdin.write(command + "\n")
        self.p.stdin.flush()

    def states(self):
        self.tell("report")
        assert select.select([self.p.stdout], [], [], 60 * SLOW)[0], "the crowd does not report"
        return json.loads(self.p.stdout.readline())["states"]

    def join(self):
        """All of them; returns when their workers run."""
        self.tell(f"join {self.n}")
        until(lambda: f"{self.n} nodes run: {self.states()}", lambda: self.states()["running"] == self.n, 120)
        return self
