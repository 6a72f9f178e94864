# SPDX-License-Identifier: Apache-2.0
"""A guard that cannot run: stopped (SIGSTOP), which its agent can end, or held by a debugger, which it cannot. Its workers are dead all the same before
those who have taken their ranks run, and the job goes on."""

import os
import signal
import time

from harness import alive, until
from held import guard_of, hold, reap, release

LEASE = 4.0  # a fifth of it is the margin that a busy machine may use up
# Each worker of a later round looks whether one of an earlier round, of which pids are kept in files, is still there.
LOOK = """for f in round-*; do
  read -r pid < $f
  [ $f = round-$RDZV_ROUND.$RANK ] || [ ${f%.*} = round-$RDZV_ROUND ] || case $(cut -d' ' -f3 /proc/$pid/stat 2>/dev/null) in [RSDTt]) echo overlap: $f;; esac
done"""
WAIT = f"echo $$ > pid.$RANK.$RDZV_ROUND; mv pid.$RANK.$RDZV_ROUND round-$RDZV_ROUND.$RANK; {LOOK}; echo round $RDZV_ROUND of $GROUP_WORLD_SIZE; while [ ! -e go ]; do sleep 0.02; done"


def ended(rdzv, agents, codes):
    (rdzv.tmp / "go").touch()
    assert [a.exit() for a in agents] == codes, rdzv
    for a in agents:
        assert not a.says("overlap"), f"a worker of an old round still ran:\n{rdzv}"


def begin(rdzv, n, *args):
    d = rdzv.daemon()
    agents = rdzv.agents(n, d.endpoint, *args, "--last-call", "1m", "--lease", f"{LEASE:g}s", "--", "sh", "-c", WAIT)
    for a in agents:
        a.expect(f"round 1 of {n}", 10)
    return d, agents, {i: next(iter(rdzv.workers(E2E_NODE=str(i)).values())) for i in range(n)}


def test_a_stopped_guard_is_woken(rdzv):
    """Another node's worker dies: all are stopped, that node's too, and nobody is lost."""
    d, agents, workers = begin(rdzv, 3, "--nnodes", "2:3")
    os.kill(guard_of(rdzv, 2), signal.SIGSTOP)
    os.kill(workers[0], signal.SIGKILL)
    for a in agents:
        a.expect("round 2 of 3", 10)
    assert not alive(workers[2])
    ended(rdzv, agents, [0, 0, 0])


def test_a_worker_of_a_stopped_guard_dies(rdzv):
    """Nobody else could tell of it."""
    d, agents, workers = begin(rdzv, 2, "--nnodes", 2, "--max-restarts", 1)
    os.kill(guard_of(rdzv, 1), signal.SIGSTOP)
    os.kill(workers[1], signal.SIGKILL)
    for a in agents:
        a.expect("round 2 of 2", 10)
    ended(rdzv, agents, [0, 0])


def test_the_agent_of_a_stopped_guard_dies(rdzv):
    d, agents, workers = begin(rdzv, 2, "--nnodes", "1:2")
    os.kill(guard_of(rdzv, 1), signal.SIGSTOP)
    agents[1].kill()
    rdzv.gone(E2E_NODE="1")
    agents[0].expect("round 2 of 1", 10)
    ended(rdzv, agents[:1], [0])


def test_a_guard_that_is_held_is_replaced_by_its_agent(rdzv):
    """It cannot be woken: the agent kills its workers, then itself, and the others go on without that node."""
    d, agents, workers = begin(rdzv, 3, "--nnodes", "2:3", "--stop-timeout", "1s")
    guard = guard_of(rdzv, 2)
    hold(guard)
    os.kill(workers[0], signal.SIGKILL)
    agents[2].expect(r"the guard \(pid \d+\) has not killed the processes in time: is it stopped, traced or frozen\?", 10)
    until("its worker is dead", lambda: not alive(workers[2]))
    agents[2].expect(r"the guard \(pid \d+\) does not report the end of the stop", 10)
    reap(guard)
    assert agents[2].exit() == 71, rdzv
    for a in agents[:2]:
        a.expect("round 2 of 2", 10)
    ended(rdzv, agents[:2], [0, 0])


def test_a_guard_that_is_held_does_not_outlive_the_lease(rdzv):
    """Its node must fence, and the agent does. The guard goes on before it is given up: it is one that obeys, a little late."""
    d, agents, workers = begin(rdzv, 2, "--nnodes", "1:2")
    time.sleep(1)  # a heartbeat or two have told both that the other can go on alone
    guard = guard_of(rdzv, 1)
    hold(guard)
    d.kill(signal.SIGSTOP)
    silent = time.monotonic()
    until("its worker is killed", lambda: not alive(workers[1]), LEASE + 5)
    took = time.monotonic() - silent
    assert took < LEASE, f"its worker lived for {took:.2f} s, longer than the lease"
    release(guard)
    d.kill(signal.SIGCONT)
    for a in agents:
        a.expect("round 2 of 2", 20)
    ended(rdzv, agents, [0, 0])
