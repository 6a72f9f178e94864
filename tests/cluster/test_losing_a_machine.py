# SPDX-License-Identifier: Apache-2.0
"""The page about losing a machine: its commands, typed on hosts of our own, one of which loses its power. What it shows as printed is what they print, but
for names and numbers."""

import re
import shlex

import pytest

import pages
from etcd import Etcd
from harness import SLOW, until

PAGE = "deploy/guide/losing-a-machine.md"
SLURM = "deploy/slurm.md"
BUSY = 10 * SLOW
LEASE = 5  # the default
TRAIN = "#!/bin/sh\necho round $RDZV_ROUND of $GROUP_WORLD_SIZE\nwhile [ ! -e go ]; do sleep 0.1; done\n"


def ready(c):
    (c.tmp / "train").write_text(TRAIN)
    (c.tmp / "train").chmod(0o755)
    return c


def start(c, hosts, line, *changes):
    """The agents of a line of the page, on each of these hosts."""
    program, *words = shlex.split(pages.with_changes(line, changes))
    assert program == "rdzv-agent"
    agents = {i: c[i].agent(*words) for i in hosts}
    for a in agents.values():
        a.expect(f"round 1 of {len(hosts)}", 20)
    return agents


def lose(c, i, agents):
    c[i].power_off()
    agents.pop(i, None)
    for a in agents.values():
        a.expect(f"round [2-9] of {len(agents)}", 2 * LEASE + BUSY)


def pattern(line):
    """Hosts, ports, numbers and times may be others."""
    return re.sub(r"gpu\\?\d|\d+(\\?[.:-]\d+)*", r"\\S+", re.escape(line))


def prints(agent, words):
    """The lines of the block that has these words."""
    (b,) = [b for b in pages.blocks(PAGE) if not b.lang and words in b.text]
    for line in b.text.strip().split("\n"):
        agent.expect(f"^{pattern(line)}$", 20)


def end(c, agents):
    (c.tmp / "go").touch()
    assert [a.exit(30) for a in agents.values()] == [0] * len(agents), c
    (c.tmp / "go").unlink()
    c.gone(8)


@pytest.mark.seconds(20)
def test_by_hand(make_cluster):
    """Four nodes lose the one with the daemon."""
    c = ready(make_cluster(4))
    (line,) = pages.lines(PAGE, "job")
    agents = start(c, (1, 2, 3, 4), line, ("gpu1", "node1"))
    lose(c, 1, agents)
    for a in agents.values():
        prints(a, "has taken over")
    (shown,) = [b.text.strip() for b in pages.blocks(PAGE) if "; successors" in b.text]
    until(lambda: f"rdzvctl shows its successors\n{c[2].ctl('status')}", lambda: re.search(pattern(shown), c[2].ctl("status")[1]))
    end(c, agents)


@pytest.mark.seconds(15)
def test_too_few(make_cluster):
    """Two nodes lose the one with the daemon, and the other may not go on: it says so."""
    c = ready(make_cluster(2))
    (line,) = pages.lines(PAGE, "job")
    agents = start(c, (1, 2), line, ("--nnodes 2:4", "--nnodes 1:2 --orphan-grace 8s"), ("gpu1", "node1"))
    c[1].power_off()
    until(lambda: f"rdzvctl says so too:\n{c[2].ctl('status')}", lambda: "; 1 more node of the last round is needed" in c[2].ctl("status")[1], 2 * LEASE + BUSY)
    prints(agents[2], "no majority for the next round")
    assert agents[2].exit(30) == 76, c


@pytest.mark.seconds(40)
def test_claims(make_cluster):
    """Of two nodes one goes on: in a folder that both see, and in etcd."""
    c = ready(make_cluster(5))
    folder, etcd = pages.lines(PAGE, "claims")
    (c.tmp / "claims").mkdir(0o700)
    agents = start(c, (1, 2), folder, ("gpu1", "node1"), ("/shared/claims", c.tmp / "claims"))
    lose(c, 1, agents)
    end(c, agents)
    c[1].boot()
    members = Etcd(c, 3, 4, 5)
    agents = start(c, (1, 2), etcd, ("gpu1", "node1"), ("etcd://etcd1,etcd2,etcd3", members.url))
    lose(c, 1, agents)
    end(c, agents)


@pytest.mark.seconds(25)
def test_standby_daemons(make_cluster):
    """The first of three daemons is lost: no worker notices, and rdzvctl finds the job."""
    c = ready(make_cluster(7))
    daemon, agent, status = pages.lines(PAGE, "standby")
    heads = ("head1,head2,head3", "node1,node2,node3")
    for i in (1, 2, 3):
        c[i].daemon(*shlex.split(pages.with_changes(daemon, [("/var/lib/rdzvd", c.tmp / f"state{i}")]))[1:])
    agents = start(c, (4, 5, 6, 7), agent, heads)
    c[1].power_off()
    for a in agents.values():
        a.expect("the daemon on node1 did not answer for .*; node2 has taken over", 2 * LEASE + BUSY)
    assert not any(a.says("round [2-9]") for a in agents.values()), c
    words = shlex.split(pages.with_changes(status, [heads]))[1:]
    until(lambda: f"rdzvctl finds it\n{c[7].ctl(*words)}", lambda: c[7].ctl(*words)[0] == 0 and "node2" in c[7].ctl(*words)[1])
    end(c, agents)


@pytest.mark.seconds(25)
def test_daemons_outside_of_slurms_job(make_slurm):
    """The first of two head nodes is lost, which has no part in the job: no worker notices."""
    c = ready(make_slurm(5))
    (line,) = pages.lines(SLURM, "heads")
    first, second = c[5].daemon(), c.login.daemon()
    p = c.srun(*shlex.split(pages.with_changes(line, [("head1,head2", "node5,login"), ("./train.py", "./train")]))[1:])
    for rank in range(4):
        p.expect(rf"\[{rank}\] round 1 of 4", 20)
    c[5].power_off()
    first.exit()
    until(lambda: f"all agents say so\n{p}", lambda: len(re.findall("the daemon on node5 did not answer for .*; login has taken over", p.text)) == 4, 2 * LEASE + BUSY)
    (c.tmp / "go").touch()
    assert p.exit(30) == 0 and not p.says("round [2-9] of"), c
    second.kill()
    second.exit()
