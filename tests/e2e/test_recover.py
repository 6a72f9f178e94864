# SPDX-License-Identifier: Apache-2.0
"""Workers that keep their process from one round to the next: the real trainer with --recovery inplace, killed in many ways, and a worker of our own."""

import json
import os
import random
import re
import signal
import subprocess
import time

import pytest

from harness import BUILD, TOP, TRAINER, until
from held import guard_of, hold, reap
from test_rdzvctl_verbs import hosts  # noqa: F401, a fixture
from test_rdzvd_control import ctl

TASK = ["--layers", "60,12,60", "--data", "synthetic:500", "--scale", "0.01", "--batch", 16, "--loss", "mse", "--seed", 3, "--recovery", "inplace", "--verify-every", 3]


def events(path, kind):
    lines = path.read_text().splitlines() if path.exists() else []
    return [e for e in (json.loads(line) for line in lines if line.endswith("}")) if e["event"] == kind]


class Job:
    """Agents with two trainers each."""

    def __init__(self, rdzv, n, *trainer, nnodes=None, agent=()):
        self.rdzv, self.metrics = rdzv, rdzv.tmp / "metrics"
        self.endpoint = rdzv.daemon().endpoint
        self.words = ["--nnodes", nnodes or n, "--nproc", 2, "--rdzv-id", "recovers", "--max-restarts", 100, *agent, "--",
                      BUILD / "agent/trainer/rdzv-trainer", *TASK, "--metrics", self.metrics, *trainer]
        self.agents = rdzv.agents(n, self.endpoint, *self.words)

    def until_step(self, step):
        until(lambda: f"step {step}:\n{self.rdzv}", lambda: any(e["step"] >= step for e in events(self.metrics, "step")), 30)

    def last_step(self):
        return max((e["step"] for e in events(self.metrics, "step")), default=0)

    def in_round(self, n, timeout=40):
        """The ranks have agreed in that round, or a later one."""
        until(lambda: f"round {n} in place:\n{self.rdzv}", lambda: any(e["round"] >= n for e in events(self.metrics, "recover") + events(self.metrics, "start")), timeout)

    def finish(self, agents=None):
        for a in agents or self.agents:
            assert a.exit(60) == 0, self.rdzv
        return re.search(r"done: (\d+) steps.*checksum (\w+)", "".join(a.text for a in self.agents)).groups()


@pytest.fixture(scope="module")
def undisturbed():
    """steps -> the checksum of a run of four ranks that nobody disturbs."""
    known = {}

    def checksum(rdzv, steps):
        if steps not in known:
            job = Job(rdzv, 2, "--steps", steps)
            known[steps] = job.finish()[1]
            job.metrics.unlink()
        return known[steps]

    return checksum


def test_ten_workers_are_killed(rdzv, undisturbed):
    """Two at a time. All others live on, and the end is byte for byte that of a run in peace."""
    expected = undisturbed(rdzv, 700)
    job = Job(rdzv, 2, "--steps", 700, "--throttle", 100)
    rng = random.Random(7)
    fresh = 0  # rounds in which rank 0, who tells, is a new process
    for n in range(5):
        job.until_step(job.last_step() + 20)
        before = job.rdzv.await_workers(4)
        victims = rng.sample(sorted(before), 2)
        fresh += 0 in victims
        for signo in signal.SIGSTOP, signal.SIGKILL:  # both at once: between two kills a next round may have begun
            for rank in victims:
                os.kill(before[rank], signo)
        job.in_round(n + 2)
        after = job.rdzv.await_workers(4)
        for rank in before:
            assert (after[rank] == before[rank]) == (rank not in victims), f"{rank}: {before} {after}\n{rdzv}"
    steps, checksum = job.finish()
    assert (steps, checksum) == ("700", expected), rdzv
    said = len(re.findall(r"\[0\] rdzv-trainer: round \d+: received the state of step [1-9]", "\n".join(p.text for p in job.rdzv.procs)))  # all lines
    assert said == fresh > 0, f"{fresh}\n{rdzv}"
    recovered = events(job.metrics, "recover")
    assert {e["world"] for e in recovered} == {4}, recovered  # told by rank 0, where that one had stayed


def test_all_workers_are_killed(rdzv, undisturbed):
    """Nobody has anything: the checkpoint has."""
    expected = undisturbed(rdzv, 300)
    job = Job(rdzv, 2, "--steps", 300, "--throttle", 100, "--checkpoint-dir", rdzv.tmp / "ckpt", "--checkpoint-every", 40)
    job.until_step(100)
    pids = job.rdzv.await_workers(4).values()
    for signo in signal.SIGSTOP, signal.SIGKILL:  # stopped first: in the time between two kills the others are back at work
        for pid in pids:
            os.kill(pid, signo)
    assert job.finish() == ("300", expected), rdzv
    assert events(job.metrics, "resume"), rdzv


def test_a_node_is_lost(rdzv):
    """The other goes on by itself, with larger shares."""
    job = Job(rdzv, 2, "--steps", 500, "--throttle", 100, nnodes="1:2", agent=["--last-call", "5s"])
    job.until_step(60)
    before = job.rdzv.await_workers(4)
    heads = set(job.rdzv.workers(E2E_NODE="0").values())
    job.agents[1].kill(signal.SIGKILL)
    job.in_round(2)
    assert set(job.rdzv.await_workers(2, E2E_NODE="0").values()) == heads, f"{before}\n{rdzv}"
    assert job.finish(job.agents[:1])[0] == "500"
    assert [e["world"] for e in events(job.metrics, "recover")] == [2]


def test_who_has_lost_its_agent_stops_nobody_else(rdzv):
    """Its guard is held, so that its workers hear of it before they are killed: they leave, and the others go on in place."""
    job = Job(rdzv, 2, "--steps", 500, "--throttle", 100, nnodes="1:2", agent=["--last-call", "5s", "--lease", "5s"])
    job.until_step(60)
    rdzv.await_workers(4)
    stay, guard = set(rdzv.workers(E2E_NODE="0").values()), guard_of(rdzv, 1)
    hold(guard)
    job.agents[1].kill(signal.SIGKILL)
    job.in_round(2)
    assert set(rdzv.workers(E2E_NODE="0").values()) == stay, rdzv
    os.kill(guard, signal.SIGKILL)
    reap(guard)
    rdzv.gone(E2E_NODE="1")
    assert job.finish(job.agents[:1])[0] == "500"
    assert not job.agents[0].says("stopped as requested"), rdzv


def test_a_node_comes(rdzv):
    """Who trains is not stopped for those who come, and they get the state."""
    job = Job(rdzv, 1, "--steps", 1000000, "--throttle", 60, nnodes="1:2", agent=["--last-call", "1s"])
    job.until_step(30)
    before = set(job.rdzv.await_workers(2).values())
    time.sleep(30.5)  # a round is not ended for newcomers before
    step = job.last_step()
    late = job.rdzv.agents(1, job.endpoint, *job.words)[0]
    job.in_round(2)
    assert before < set(job.rdzv.pids()), rdzv
    recovered = events(job.metrics, "recover")[-1]
    assert recovered["world"] == 4 and recovered["step"] >= step, recovered
    job.until_step(recovered["step"] + 10)
    for a in (*job.agents, late):
        a.kill(signal.SIGTERM)
    for a in (*job.agents, late):
        assert a.exit(60) == 75, rdzv


def test_one_does_not_leave(rdzv):
    """It has half of --stop-timeout, and the rest to die; the others wait for it, and stay."""
    job = Job(rdzv, 2, "--steps", 400, "--throttle", 100, agent=["--stop-timeout", "10s"])
    job.until_step(40)
    before = job.rdzv.await_workers(4)
    subprocess.run(["kill", "-STOP", str(before[1])], check=True)
    subprocess.run(["kill", "-9", str(before[2])], check=True)
    job.in_round(2)
    after = job.rdzv.await_workers(4)
    assert {r for r in before if before[r] == after[r]} == {0, 3}, f"{before} {after}\n{rdzv}"
    assert "rank 1 was asked to rejoin, and has not left round 1 within" in "".join(a.text for a in job.agents)
    assert job.finish()[0] == "400"


def test_a_neighbour_hangs(rdzv, hosts):
    """Ranks 1 and 3 are stopped, so 0 and 2 wait for them in the ring, and no connection of theirs ever closes. They leave when they are asked."""
    endpoint = rdzv.daemon("--socket", rdzv.tmp / "s").endpoint
    words = ["--endpoint", endpoint, "--nnodes", "1:2", "--nproc", 2, "--rdzv-id", "recovers", "--stop-timeout", "10s", "--last-call", "5s", "--",
             TRAINER, *TASK, "--metrics", rdzv.tmp / "metrics", "--steps", 300, "--throttle", 100]
    agents = [rdzv.agent(*words, wrap=hosts(i), node=str(i)) for i in range(2)]
    until(lambda: f"step 40:\n{rdzv}", lambda: any(e["step"] >= 40 for e in events(rdzv.tmp / "metrics", "step")), 30)
    before = rdzv.await_workers(4)
    head = 0 if 0 in rdzv.workers(E2E_NODE="0") else 1  # the agent of ranks 0 and 1
    for rank in 1, 3:
        os.kill(before[rank], signal.SIGSTOP)
    steps = lambda: len(events(rdzv.tmp / "metrics", "step"))
    seen = [0]
    until(lambda: f"they wait:\n{rdzv}", lambda: seen.append(steps()) or (len(seen) > 20 and len(set(seen[-20:])) == 1), 30)
    p = ctl(rdzv, "--socket", rdzv.tmp / "s", "drain", f"n{1 - head}")
    assert p.code == 0, p
    until(lambda: f"round 2:\n{rdzv}", lambda: any(e["round"] == 2 for e in events(rdzv.tmp / "metrics", "recover")), 30)
    after = rdzv.await_workers(2)
    assert before[0] in after.values() and before[1] not in after.values(), f"{before} {after}\n{rdzv}"
    asked = lambda: set(re.findall(r"rank (\d) was asked to rejoin, and has not left round 1 within", "".join(a.text for a in agents)))
    until(lambda: f"both agents name their rank:\n{rdzv}", lambda: asked() == {"1", "3"})
    assert agents[head].exit(60) == 0, rdzv


def test_told_to_stop_while_it_waits(rdzv):
    """One node is killed, the other waits for it with its workers, and is told to leave: nothing is left."""
    job = Job(rdzv, 2, "--steps", 100000, "--throttle", 100)
    job.until_step(20)
    job.agents[1].kill(signal.SIGKILL)
    until(lambda: f"they wait:\n{rdzv}", lambda: job.agents[0].says(r"node \d .* was lost"))
    time.sleep(0.5)
    assert len(job.rdzv.workers(E2E_NODE="0")) == 2
    job.agents[0].kill(signal.SIGTERM)
    assert job.agents[0].exit(20) == 75, rdzv
    rdzv.gone(E2E_NODE="0")


def test_the_agent_dies_while_they_wait(rdzv):
    job = Job(rdzv, 2, "--steps", 100000, "--throttle", 100)
    job.until_step(20)
    job.agents[1].kill(signal.SIGKILL)
    until(lambda: f"they wait:\n{rdzv}", lambda: job.agents[0].says(r"node \d .* was lost"))
    job.agents[0].kill(signal.SIGKILL)
    rdzv.gone(E2E_NODE="0")


WORKER = r"""
#include "agent/sdk/rdzv.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(void) {
  struct rdzv *r;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (rdzv_init(&r, 10000) || rdzv_can_rejoin(r)) return 1;
  if (rdzv_round(r) > 1) return 2; /* nobody is started anew */
  if (rdzv_barrier(r, "begin", 10000)) return 3;
  bool alarm = rdzv_rank(r) == 1;
  while (!alarm && !(rdzv_requested(r) & RDZV_REJOIN)) usleep(1000);
  if (rdzv_rejoin(r, alarm ? "lost contact with rank 0" : NULL, 60000)) return puts(rdzv_error(r)), 4;
  if (rdzv_barrier(r, "begin", 10000)) return puts(rdzv_error(r)), 5;
  printf("round %u as rank %d, restarts %u, environment %s\n", rdzv_round(r), rdzv_rank(r), rdzv_restart_count(r),
         getenv("RDZV_RESTART_COUNT"));
  rdzv_done(r);
  rdzv_finish(r);
}
"""


def test_a_false_alarm(rdzv):
    """One rejoins although nothing has happened: after a lease and 2 s it is the round's failure, and all go on."""
    source, program = rdzv.tmp / "worker.c", rdzv.tmp / "worker"
    source.write_text(WORKER)
    sdk = sorted(str(p) for p in (TOP / "agent/sdk").glob("rdzv*.c"))
    subprocess.run(["cc", "-std=gnu11", f"-I{TOP}", source, *sdk, TOP / "proto/c10d.c", TOP / "common/printable.c", "-o", program], check=True)
    a = rdzv.agent("--standalone", "--nproc", 2, "--lease", "1s", "--max-restarts", 1, "--", program)
    assert a.exit(30) == 0, a
    alone = re.search(r"rank 1 \(local 1\) on \S+, pid \d+, left the round to rejoin, and nothing else ended it within (\d+\.\d) s: "
                      r"lost contact with rank 0", a.text)
    assert alone and float(alone[1]) >= 3, a  # and what a busy machine adds
    for rank in 0, 1:
        assert f"[{rank}] round 2 as rank {rank}, restarts 1, environment 0" in a.text, a
