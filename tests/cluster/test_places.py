# SPDX-License-Identifier: Apache-2.0
"""The place of a node whose workers may live is not given away.

A node that others could go on without kills its own workers in time, and only what its daemon has sealed moves that time: a reset or a refusal, which
anybody on the way can send, does not. A node that others could not go on without need not kill them. A spare that comes afterwards waits until they are
surely dead. Workers write every 10 ms (beats.py), so what is judged here is an order, and no duration.
"""

import json
import signal

import pytest

from harness import SLOW, alive, until
from job import LEASE, Own, stays

BUSY = 10 * SLOW


@pytest.mark.seconds(30)
@pytest.mark.parametrize("daemon", ["runs", "is stopped"])
def test_resets_are_silence(make_cluster, daemon):
    """Elastic: what one node sends is answered with RST, while the daemon runs or is stopped (SIGSTOP). Its workers are dead before the others go on."""
    c = make_cluster(4)
    d = c[1].daemon()
    job = Own(c, "2:4", 2, 3, 4, endpoint="node1", more=["--last-call", "2s"])
    job.expect(1, 3)
    stays(lambda: f"round 1 runs\n{c}", lambda: len(job.workers()) == 3, LEASE / 2)
    (pid,) = c[3].workers(job.name).values()
    if daemon == "is stopped":
        d.kill(signal.SIGSTOP)
    c[3].reject()
    job.agents[3].expect("lost contact with the daemon at node1:29400: reset by the peer", LEASE + BUSY)
    if daemon == "is stopped":
        stays(lambda: f"no rounds overlap\n{c}", lambda: job.rounds(), 8)
        d.kill(signal.SIGCONT)
    job.expect("[2-9]", 2, 2, 4, timeout=2 * LEASE + BUSY)
    assert not alive(pid), f"its worker lives beside the next round\n{c}"
    stays(lambda: f"no rounds overlap\n{c}", lambda: job.rounds(), 2 * LEASE)
    assert not c[3].workers(job.name), c
    c[3].heal()
    until(lambda: f"it is back\n{c}", lambda: "node3" in str(job.asked(1)["members"]), 20)
    job.end()


def cut_off(c, *more):
    """Three nodes of three run; node4 is cut off, and then a spare comes. The worker on node4 lives, and the spare waits."""
    c[1].daemon()
    job = Own(c, 3, 2, 3, 4, endpoint="node1", more=more)
    job.expect(1, 3)
    stays(lambda: f"round 1 runs\n{c}", lambda: len(job.workers()) == 3, 3)  # long enough for a boot to be surely later
    (pid,) = c[4].workers(job.name).values()
    c[4].cut()
    job.agents[2].expect(r"node \d \(node4\) was lost", LEASE + BUSY)
    job.start(5)
    for i in (2, 3, 5):
        job.agents[i].expect(r"3 of 3 nodes are here .*; node4 may still run workers of an earlier round: the daemon has lost contact"
                             r".*\. To go on now, make sure that nothing of the job runs there, then: rdzvctl confirm-dead job node4$", BUSY)
    stays(lambda: f"its worker lives, and no round begins\n{c}", lambda: alive(pid) and len(job.rounds()) == 1, LEASE)
    return job, pid


def goes_on(job, *hosts):
    """The next round runs, on these hosts too, and the workers of the first one were dead before."""
    job.expect("[2-9]", 3, *hosts, timeout=30)
    until(lambda: f"its workers write\n{job.cluster}", lambda: len(job.rounds()) == 2)


@pytest.mark.seconds(40)
def test_a_spare_waits_for_the_grace(make_cluster):
    """Nobody says anything of the lost node. Its workers are stopped after --orphan-grace, and later than that the daemon knows it."""
    c = make_cluster(5)
    job, pid = cut_off(c, "--orphan-grace", "15s", "--stop-timeout", "1s")
    assert job.agents[5].says(r"and knows in \d+ s that they have stopped \(--orphan-grace\)"), c
    until(lambda: f"its worker is stopped\n{c}", lambda: not alive(pid), 30)
    assert len(job.rounds()) == 1, c
    goes_on(job, 2, 3, 5)
    assert job.agents.pop(4).exit(30) == 76, c
    job.end()


@pytest.mark.seconds(25)
def test_a_spare_waits_for_a_boot(make_cluster):
    """The machine loses its power and is booted again: its new agent's word for that is enough."""
    c = make_cluster(5)
    job, _ = cut_off(c, "--orphan-grace", "forever")
    job.lose(4)
    c[4].boot()
    stays(lambda: f"the daemon cannot know\n{c}", lambda: len(job.rounds()) == 1, LEASE)
    job.start(4)
    goes_on(job, 2, 3, 5)
    job.end()


def test_the_page_is_where_the_agent_says(make_cluster):
    """The agent that starts the daemon names it, once, and another host opens it with the token."""
    c = make_cluster(2)
    job = Own(c, 2)
    job.expect(1, 2)
    assert job.says(r"this job's page: http://node1:29400/, with the password that rdzvctl token prints") == [1], c
    code, token = c[1].ctl("token")
    assert code == 0, token
    told = json.loads(c[2].ns.sh(f"curl -sf -u anybody:{token.split()[0]} http://node1:29400/status"))
    assert [j["job"] for j in told["jobs"]] == ["job"], told
    job.end()
