# SPDX-License-Identifier: Apache-2.0
"""After a network fault the hosts exchange data in pairs, and the one at fault is named; rdzvctl check does so when asked."""

import json
import re
import shlex

import pytest

import pages
from harness import until
from job import Job

PAGE = "deploy/guide/health.md"
# Rank 0 ends the first round as a worker whose peer is gone; in later rounds all wait for the file `go`.
FAULT = (
    "echo round $RDZV_ROUND of $GROUP_WORLD_SIZE, $RDZV_RESTART_COUNT charged; while [ ! -e go ]; do sleep 0.1; "
    'if [ $RDZV_ROUND = 1 ] && [ -e fault ]; then if [ $RANK = 0 ]; then echo "RuntimeError: [10.77.0.3]:4711: Connection closed by peer" >&2; exit 1; fi; fi; done'
)


def job_with_a_fault(c, slow=None, rate="20mbit"):
    """node1 has the daemon; of the others one may have a slow wire. All hosts run round 1, and it ends."""
    c[1].daemon()
    job = Job(c, f"{len(c.hosts) - 2}:{len(c.hosts) - 1}", script=FAULT)
    job.expect(1, len(c.hosts) - 1)
    if slow:
        c[slow].slow(rate)
    (c.tmp / "fault").touch()
    return job


@pytest.mark.seconds(15)
@pytest.mark.parametrize("hosts, slow", [(5, 4), (7, 2)])
def test_a_slow_wire_is_named_and_its_host_left_out(make_cluster, hosts, slow):
    c = make_cluster(hosts)
    job = job_with_a_fault(c, slow)
    others = [i for i in range(2, hosts + 1) if i != slow]
    job.expect(2, hosts - 2, *others, charged=1)
    for i in job.agents:
        job.agents[i].expect(rf"pair check after round 1: host node{slow} has a network fault: with node\d .*; the job goes on without node{slow}")
    assert f"host node{slow} has a network fault" in job.status()["pair_check"]
    job.finish(charged=1)


@pytest.mark.seconds(12)
def test_whole_wires_are_not_blamed(make_cluster):
    c = make_cluster(5)
    job = job_with_a_fault(c)
    job.expect(2, 4, charged=1)
    assert re.match(r"all 4 pairs are good, ", job.status()["pair_check"]), c
    assert not job.says("network fault")
    job.finish(charged=1)


@pytest.mark.seconds(12)
def test_a_wire_of_two_hosts_is_named_with_both(make_cluster):
    """What comes from one of them does not reach the other: nobody can tell whose fault that is."""
    c = make_cluster(3)
    c[1].daemon()
    job = Job(c, "2", script=FAULT)
    job.expect(1, 2)
    c[2].refuse([c[3]])
    (c.tmp / "fault").touch()
    job.agents[2].expect(r"pair check after round 1: the network is bad between node[23] and node[23] \(no connection in 3.0 s\): either end may be at fault", 30)
    c[2].heal()
    job.expect(2, 2, charged=1)
    job.finish(charged=1)


@pytest.mark.seconds(15)
def test_an_agent_that_dies_in_the_middle_is_not_blamed(make_cluster):
    """The others are good, and go on."""
    c = make_cluster(5)
    c[1].daemon()
    job = Job(c, "3:4", script=FAULT, lease=20)
    job.expect(1, 4)
    c[5].slow("100kbit")  # its exchange takes three seconds
    (c.tmp / "fault").touch()
    until("the check goes on", lambda: job.status()["state"] == "forming")
    job.agents[5].kill()
    job.expect(2, 3, 2, 3, 4, charged=1)
    assert not job.says("network fault")
    del job.agents[5]
    job.finish(charged=1)


@pytest.mark.seconds(15)
def test_check_beside_a_round(make_cluster):
    c = make_cluster(5)
    c[1].daemon()
    job = Job(c, "4", name="my-job")
    before = job.expect(1, 4)
    c[3].slow("20mbit")
    (command,) = pages.lines(PAGE, "check")
    _, *words = shlex.split(pages.with_changes(command, [("map.svg", str(c.tmp / "map.svg"))]))
    code, text = c[1].ctl(*words)
    assert code == 0, text
    assert "# host node3 has a network fault: with " in text
    assert len(re.findall(r"^  node\d +node\d +\d+ .*", text, re.M)) == 6, text
    assert len(re.findall("<- host node3$", text, re.M)) == 3, text
    svg = (c.tmp / "map.svg").read_text()
    assert svg.startswith("<svg ") and svg.count("<title>") == 12
    code, text = c[1].ctl("check", "my-job", "--json")
    told = json.loads(text)
    assert [h["host"] for h in told["hosts"] if h["fault"]] == ["node3"] and len(told["pairs"]) == 6
    assert job.workers() == before
    job.finish()
