# SPDX-License-Identifier: Apache-2.0
"""A process or a whole host dies: which one, where, which nodes learn of it, and that nothing of it is left.

Times are facts to be read. What is asserted of them: a loss that somebody can tell is told long before a lease is over; one that nobody can
tell (a power cut) is found by the lease, and not much later than that: the bounds here leave room for a machine that is busy with other tests.
"""

import os
import signal
import time

import pytest

from harness import SLOW, alive, until
from job import LEASE, WAIT, Clock, Job

BUSY = 10 * SLOW  # what a machine that is busy with other tests may add to a wait


@pytest.mark.parametrize("endpoint", ["10.77.0.1", "[fd77::1]", "node1", "node1-6"])
def test_hosts_meet(make_cluster, endpoint):
    """By IPv4 and IPv6, by number and by name; workers are told an address of the family by which they met."""
    c = make_cluster(3)
    c[1].daemon()
    job = Job(c, 2, endpoint=endpoint, script="echo meet at $MASTER_ADDR of $(hostname); " + WAIT)
    job.expect(1, 2)
    assert job.agents[2].says("meet at " + ("fd77::2" if "6" in endpoint or "::" in endpoint else "10.77.0.2") + " of node2"), c
    job.finish()


def test_hosts_with_a_network_that_leads_nowhere(make_cluster):
    """Each has a second interface, as for its management, that others cannot reach, and its own name leads there. Workers are told the address by which
    the head's agent reaches the daemon, and come to the round's store by it."""
    c = make_cluster(3)
    c[1].daemon()
    for i in (2, 3):
        c[i].ns.sh(f"ip link add aaa0 type veth peer name aaa1; ip addr add 192.168.7.{i}/24 dev aaa0; ip link set aaa0 up; ip link set aaa1 up; "
                   f"sed 's/^10.77.0.{i} .*/192.168.7.{i} node{i}/' /etc/hosts > /run/hosts; mount --bind /run/hosts /etc/hosts; "
                   f"getent ahostsv4 node{i} | grep -q 192.168")
    job = Job(c, 2, script=f"exec bash -c 'exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT && echo reaches $MASTER_ADDR; {WAIT}'")
    job.expect(1, 2)
    for a in job.agents.values():
        a.expect("reaches 10.77.0.2$")
    job.finish()


def test_a_worker_is_killed(make_cluster):
    c = make_cluster(3)
    c[1].daemon()
    job = Job(c, 2)
    before = job.expect(1, 2)
    clock = Clock(c)
    os.kill(before[1], signal.SIGKILL)
    after = job.expect(2, 2, charged=1)
    clock.fact("both workers run again")
    assert len(after) == 2 and not set(after.values()) & set(before.values())
    for a in job.agents.values():
        a.expect(r"rank 1 \(local 0\) on node3, pid \d+, was killed by SIGKILL \(signal 9\)")
        a.expect("restart 1 of 3")
    job.finish(charged=1)


@pytest.mark.parametrize("victim", ["agent", "guard"])
def test_one_of_three_loses_its_agent_or_guard(make_cluster, victim):
    """Elastic: nothing of that node is left, the others go on without it at once, nothing is charged."""
    c = make_cluster(4)
    c[1].daemon()
    job = Job(c, "2:3", more=["--scale-up", "next-round"])
    job.expect(1, 3)
    clock = Clock(c)
    os.kill(job.agents[4].pid if victim == "agent" else c[4].process("rdzv-guard"), signal.SIGKILL)
    assert job.agents[4].exit() == (-signal.SIGKILL if victim == "agent" else 71), c
    until("nothing of the node is left", lambda: not c[4].pids(), BUSY)
    clock.fact("nothing of the node is left")
    job.expect(2, 2, 2, 3)
    clock.fact("the others run without it")
    again = job.start(4)  # as a supervisor does
    again.expect("wait|spare")  # one that came when the job is over would wait for another
    assert not again.out, f"a worker runs there:\n{c}"
    job.finish()


def test_power_cut_elastic(make_cluster):
    """Nobody tells: it is found by the lease. The others go on without it."""
    c = make_cluster(4)
    c[1].daemon()
    job = Job(c, "2:3", more=["--scale-up", "next-round"])
    job.expect(1, 3)
    clock = Clock(c)
    c[4].power_off()
    job.expect(2, 2, 2, 3)
    clock.fact(f"with a lease of {LEASE:g} s: the others run without the dead host")
    for i in (2, 3):
        job.agents[i].expect("node4")
    c[4].boot()
    job.start(4)
    until("it waits for the next round", lambda: job.agents[4].says("wait|spare"))
    job.finish()


def test_power_cut_and_a_spare(make_cluster):
    """Fixed size with one node more than needed: the spare takes the dead host's ranks."""
    c = make_cluster(4)
    c[1].daemon()
    job = Job(c, 2, 2, 3)
    job.expect(1, 2)
    spare = job.start(4)
    spare.expect("spare|wait")
    clock = Clock(c)
    c[3].power_off()
    job.expect(2, 2, 2, 4)
    clock.fact(f"with a lease of {LEASE:g} s: the spare runs")
    job.finish()


def test_power_cut_and_the_host_boots_again(make_cluster):
    """Fixed size: the other one waits until the host is back, which is sooner than its lease would be over. The time of the boot says that nothing of
    the round runs there any more."""
    c = make_cluster(3)
    c[1].daemon()
    job = Job(c, 2, lease=10)
    job.expect(1, 2)
    time.sleep(3)  # a boot counts if it came surely later than the agent: by a second, and what a clock may be wrong
    clock = Clock(c)
    c[3].power_off()
    c[3].boot()
    job.start(3)
    job.expect(2, 2, timeout=25)
    clock.fact("with a lease of 10 s: both run again")
    job.finish()


def test_power_cut_for_good(make_cluster):
    """Nobody comes: after --join-timeout the job fails, and says who was here and how many are missing. It had gone on to wait for a node, so what
    ends it is that none came (73), not that one was lost."""
    c = make_cluster(3)
    c[1].daemon()
    job = Job(c, 2, more=["--join-timeout", "3s"])
    job.expect(1, 2)
    c[3].power_off()
    assert job.agents[2].exit(30) == 73, c
    job.agents[2].expect("1 of 2|missing|too few")
    job.failed(73, "join-timeout")
    c.gone()


def test_power_cut_when_others_have_finished(make_cluster):
    """The lost node's work cannot be done again without those that are done, so no node is waited for: the loss itself ends the job (78)."""
    c = make_cluster(3)
    c[1].daemon()
    job = Job(c, 2, script="echo round $RDZV_ROUND of $GROUP_WORLD_SIZE, 0 charged; [ $RANK = 0 ] || while [ ! -e go ]; do sleep 0.1; done")
    job.expect(1, 2)
    until("rank 0 has finished", lambda: list(job.workers()) == [1])
    c[3].power_off()
    assert job.agents[2].exit(30) == 78, c
    job.agents[2].expect("node3.*was lost|lost.*node3")
    job.failed(78, "node-lost")
    c.gone()


@pytest.mark.parametrize("what", ["agents", "daemon"])
def test_all_die_at_once_but_one(make_cluster, what):
    """Every agent is killed, or the daemon's host loses power for good: nothing is left anywhere."""
    c = make_cluster(3)
    c[1].daemon()
    job = Job(c, 2, more=["--join-timeout", "3s"])
    job.expect(1, 2)
    if what == "agents":
        for a in job.agents.values():
            a.kill()
        c.gone()
        job.failed(73, "join-timeout")
    else:
        before = job.workers()
        c[1].power_off()
        (c.tmp / "go").touch()  # the workers come to their end without a daemon
        codes = [a.exit(60) for a in job.agents.values()]
        assert codes == [76, 76], f"{codes}\n{c}"  # theirs is all there is: no daemon is left to be asked
        assert not any(map(alive, before.values()))
        c.gone()
