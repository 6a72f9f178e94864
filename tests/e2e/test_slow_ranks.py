# SPDX-License-Identifier: Apache-2.0
"""Slow ranks: the real agents and daemon, and workers whose stand-in for NCCL drives librdzv-nccl-profiler.so through its interface's versions."""

import json
import os
import re
import sys
from pathlib import Path

from test_page import browser, page  # noqa: F401  a fixture
from test_rdzvctl_verbs import ask, d, hosts  # noqa: F401  fixtures

COST = r"rank 2 \(\S+, local 0\) was slow for \d+ s, which cost \d+ s \(\d+ % of the round\)"
WORKER = Path(os.environ["RDZV_BUILD"]) / "tests/e2e/pace-worker"


def start(rdzv, d, name, *worker, options=(), env=None):
    return rdzv.agents(2, d.endpoint, "--nnodes", 2, "--nproc", 2, "--rdzv-id", name, "--slow-ranks", "6s", *options, "--no-python", "--", WORKER, *worker, env=env)


def slow_ranks(rdzv, name):
    p = ask(rdzv, "status", name, "--json")
    assert p.code == 0, p
    return [(s["rank"], s["by"]) for s in json.loads(p.text)["jobs"][0]["slow_ranks"]]


def test_a_slow_rank_is_named_by_each_version(rdzv, d):
    jobs = {f"v{version}": start(rdzv, d, f"v{version}", version, 2, "work", 40) for version in range(1, 7)}
    for name, agents in jobs.items():
        for a in agents[:1]:
            a.expect(r"rank 2 \(\S+, local 0\) is slow: the others wait \d+ % of the time for it")
        assert slow_ranks(rdzv, name) == [(2, "work")]
    text = ask(rdzv, "status", "v6").text
    cost = re.search(r"  rank 2 \(\S+, local 0\) is slow: the others wait (\d+) % of the time for it, for ", text)
    assert cost and 10 <= int(cost[1]) <= 30, text  # 10 ms of 50
    for name, agents in jobs.items():
        assert ask(rdzv, "stop", name).code == 0
        agents[0].expect(rf"job {name} stopped in round 1: an operator stopped the job.*; {COST}")
        assert [a.exit() for a in agents] == [77, 77]


def test_the_verdict_and_the_end_say_what_it_cost(rdzv, d):
    def ends(name, code):
        file = rdzv.tmp / name
        return file, start(rdzv, d, name, 6, 2, "work", 40, 99, 14, code, options=("--max-restarts", "0", "--verdict-file", file, "--events", rdzv.tmp / f"{name}.events"))

    (_, well), (failed_file, failed) = ends("well", 0), ends("failed", 3)
    for a in well:
        a.expect("job well is done")
        a.expect(COST)
    failed[0].expect(rf"job failed failed in round 1: rank \d \(local \d\) on .* exited with code 3.*; {COST}")
    assert [[a.exit() for a in agents] for agents in (well, failed)] == [[0, 0], [3, 3]]
    assert re.fullmatch(COST, json.loads(failed_file.read_text())["verdict"]["slow"])
    ended = json.loads((rdzv.tmp / "well.events").read_text().splitlines()[-1])
    assert ended["name"] == "rdzv.job.ended" and re.search(f"; {COST}", json.dumps(ended)), ended


def test_a_slow_wire_is_named_and_recovers(rdzv, d):
    a, b = start(rdzv, d, "family", 5, 1, "wire", 100, 25, options=("--events", rdzv.tmp / "events"))
    a.expect(r"the wire from rank 1 \(\S+, local 1\) is slow, or the one to the rank behind it: its sends cost \d+ % of the time")
    assert slow_ranks(rdzv, "family") == [(1, "wire")]
    a.expect(r"rank 1 \(\S+, local 1\) keeps up again")
    assert slow_ranks(rdzv, "family") == []
    assert ask(rdzv, "stop", "family").code == 0
    for p in a, b:
        p.exit()
    names = [json.loads(line)["name"] for line in (rdzv.tmp / "events").read_text().splitlines()]
    assert names.index("rdzv.rank.slow") < names.index("rdzv.rank.keeps_up") < names.index("rdzv.job.ended"), names


def test_the_page_shows_it(rdzv, d, browser):
    agents = start(rdzv, d, "family", 6, 0, "work", 60)
    browser.open(page(d))
    browser.shows("1 slow rank", "#h-slow", 60)
    browser.shows("rank 0 (", ".alert li.sentence")
    assert ask(rdzv, "stop", "family").code == 0
    assert [a.exit() for a in agents] == [77, 77]


def test_slow_limit_leaves_the_host_out(rdzv, d, hosts):
    options = ("--endpoint", d.endpoint, "--nnodes", "2:3", "--nproc", "2", "--last-call", "5s", "--rdzv-id", "family", "--slow-ranks", "6s", "--slow-limit", "10,1s", "--no-python", "--")
    agents = [rdzv.agent(*options, WORKER, "6", "3", "work", "60", wrap=hosts(i), node=str(i)) for i in range(3)]
    host = agents[0].expect(r"rank 3 \((n\d), local 1\) is slow")[1]
    d.expect(rf"host {host} is excluded: the job itself: rank 3 \({host}, local 1\) is slow: the others wait \d+ % of the time for it \(--slow-limit 10\)")
    others = [a for i, a in enumerate(agents) if host != f"n{i}"]
    others[0].expect("round 2: 2 nodes, 4 workers")
    assert ask(rdzv, "stop", "family").code == 0
    assert [a.exit() for a in agents] == [77, 77, 77]


def test_what_the_user_sets_counts(rdzv, d):
    show = [sys.executable, "-c", "import os; print('plugin', os.environ.get('NCCL_PROFILER_PLUGIN'))"]
    for env, options, want in (({}, ("--slow-ranks", "3m"), r"plugin /.*/librdzv-nccl-profiler\.so"), ({"NCCL_PROFILER_PLUGIN": "mine"}, ("--slow-ranks", "3m"), "plugin mine"), ({}, (), "plugin None")):
        a = rdzv.agent("--standalone", *options, "--no-python", "--", *show, env=env)
        a.expect(want)
        assert a.exit() == 0
