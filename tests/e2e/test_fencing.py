# SPDX-License-Identifier: Apache-2.0
"""An agent that is stopped (SIGSTOP) cannot act. If a round can form without its node, its guard acts in its stead, or the backstop if the guard is stopped too.

The worker that begins the next round looks itself whether one of the round before still runs."""

import os
import signal
import time

import pytest

from harness import alive, environ, until
from held import guard_of

LEASE = 8.0  # a fifth of it is the margin that a busy machine may use up
ALIVE = "for pid in $(cat fenced 2>/dev/null); do grep -q '^State:.[^ZX]' /proc/$pid/status 2>/dev/null && echo $pid still runs; done; "
WAIT = ALIVE + "echo round $RDZV_ROUND of $GROUP_WORLD_SIZE; while [ ! -e go ]; do sleep 0.02; done"


@pytest.mark.parametrize("stopped_with_it", ["nobody", "guard"])
def test_a_stopped_agent_is_fenced(rdzv, stopped_with_it):
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", "1:2", "--last-call", "1m", "--lease", f"{LEASE:g}s", "--", "sh", "-c", WAIT)
    workers = {i: rdzv.await_workers(1, E2E_NODE=str(i)) for i in (0, 1)}
    time.sleep(LEASE / 3)  # a heartbeat or two have told both that the other can go on alone
    pid = next(iter(workers[1].values()))
    (rdzv.tmp / "fenced").write_text(f"{pid}\n")
    guard = guard_of(rdzv, 1)
    agents[1].kill(signal.SIGSTOP)
    if stopped_with_it == "guard":
        os.kill(guard, signal.SIGSTOP)
    until("the guard or the backstop of the stopped agent kills its worker", lambda: not alive(pid), LEASE + 15)
    agents[0].expect("round 2 of 1", 30)
    assert not agents[0].says("still runs"), agents[0]
    agents[1].kill(signal.SIGCONT)
    os.kill(guard, signal.SIGCONT)
    agents[1].expect(r"was stopped, or could not run, for \d+\.\d s .* its guard has killed its workers", 30)
    agents[1].expect("joining again", 30)
    assert not agents[1].says("SIGKILL"), agents[1]
    assert agents[1].running and not rdzv.workers(E2E_NODE="1"), rdzv
    rdzv.go(*agents)


# Children that escape a worker's group: in sessions of their own, deaf to SIGTERM, orphaned, stopped.
FAMILY = ("setsid sh -c 'trap \"\" TERM; while :; do sleep 0.1; done' & (setsid sh -c 'trap \"\" TERM HUP; setsid sleep 60 & wait' &) ; "
          "setsid sh -c 'kill -STOP $$' & trap '' TERM; ")


@pytest.mark.parametrize("state", ["running", "in the middle of a stop"])
def test_what_workers_have_started_is_fenced_with_them(rdzv, state):
    """The agent is stopped, the second time behind the SIGTERM that asks it to leave: its workers have a minute for that, and the fence does not wait."""
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", "1:2", "--last-call", "1m", "--lease", f"{LEASE:g}s", "--stop-timeout", "60s", "--", "sh", "-c",
                         f'[ "$E2E_NODE" = 0 ] || {{ {FAMILY} }}; {WAIT}')
    family = lambda: [pid for pid in rdzv.pids(E2E_NODE="1") if "RANK" in environ(pid)]
    rdzv.await_workers(1, E2E_NODE="0")
    until(lambda: f"the worker and its children run: {len(family())}", lambda: len(family()) >= 6)
    time.sleep(LEASE / 3)  # a heartbeat or two have told both that the other can go on alone
    (rdzv.tmp / "fenced").write_text("".join(f"{pid}\n" for pid in family()))
    if state != "running":
        agents[1].kill(signal.SIGTERM)
        agents[1].expect("leaving with exit code", 5)
    agents[1].kill(signal.SIGSTOP)
    until(lambda: f"the guard kills all of them, but there is {family()}", lambda: not family(), LEASE + 15)
    agents[0].expect("round 2 of 1", 30)
    assert not agents[0].says("still runs"), agents[0]
    agents[1].kill(signal.SIGCONT)
    (rdzv.tmp / "go").touch()
    assert agents[0].exit() == 0 and agents[1].exit() is not None, rdzv
