# SPDX-License-Identifier: Apache-2.0
"""--verdict-file: what every agent leaves when it exits."""

import json
import signal

from harness import HOST


def verdict(rdzv, name):
    return json.loads((rdzv.tmp / name).read_text())


def test_every_agent_writes_the_same_verdict(rdzv):
    d = rdzv.daemon()
    script = 'if [ $RANK = 1 ]; then echo "cannot go on" >&2; exit 7; fi; sleep 300'
    job = ["--endpoint", d.endpoint, "--nnodes", 2, "--max-restarts", 1, "--rdzv-id", "j"]
    agents = [rdzv.agent(*job, "--verdict-file", f"v{i}.json", "--", "sh", "-c", script, node=str(i)) for i in (0, 1)]
    assert [a.exit() for a in agents] == [7, 7], rdzv
    v = [verdict(rdzv, f"v{i}.json") for i in (0, 1)]
    for a in v:
        assert a["job"] == "j" and a["outcome"] == "failed" and a["exit_code"] == 7, a
        assert a["round"] == 2 and a["restarts"] == 1 and a["max_restarts"] == 1, a
        w = a["verdict"]
        assert w["cause"] == "worker-exit" and w["rank"] == 1 and w["code"] == 7 and w["round"] == 2 and w["host"] == HOST, a
        assert "cannot go on" in w["text"] and "rank 1" in a["sentence"], a
    assert v[0]["verdict"] == v[1]["verdict"]
    assert sorted(p.name for p in rdzv.tmp.glob("v*")) == ["v0.json", "v1.json"], "something is left beside them"


def test_success_after_a_restart(rdzv):
    """The job is done; the verdict is that of the round that was given up."""
    a = rdzv.agent("--standalone", "--verdict-file", "v.json", "--", "sh", "-c", "exit $((2 - RDZV_ROUND > 0 ? 3 : 0))")
    assert a.exit() == 0, a
    v = verdict(rdzv, "v.json")
    assert v["outcome"] == "success" and v["exit_code"] == 0 and v["restarts"] == 1 and v["round"] == 2, v
    assert v["verdict"]["cause"] == "worker-exit" and v["verdict"]["round"] == 1 and v["verdict"]["code"] == 3, v


def test_success(rdzv):
    a = rdzv.agent("--standalone", "--nproc", 2, "--verdict-file", "v.json", "--", "true")
    assert a.exit() == 0, a
    v = verdict(rdzv, "v.json")
    assert v["outcome"] == "success" and v["restarts"] == 0 and v["verdict"]["cause"] == "none", v


def test_told_to_leave(rdzv):
    a = rdzv.agent("--standalone", "--verdict-file", "v.json", "--", "sh", "-c", "echo here; sleep 300")
    a.expect("here")
    assert a.end(signal.SIGTERM) == 75, a
    v = verdict(rdzv, "v.json")
    assert v["exit_code"] == 75 and v["outcome"] is None and "asked this node to leave" in v["sentence"], v


def test_a_place_where_nothing_can_be_written(rdzv):
    a = rdzv.agent("--standalone", "--verdict-file", "no/such/v.json", "--", "true")
    assert a.exit() == 0 and a.says("--verdict-file no/such/v.json cannot be written: No such file"), a
