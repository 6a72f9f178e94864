# SPDX-License-Identifier: Apache-2.0
"""Nodes that say what they are made of, to a real daemon: the odd one is named on all of them, in rdzvctl nodes, in /metrics and as an event."""

import contextlib
import json
import os
import pty
import shlex
import subprocess

import pages
from harness import RDZVCTL
from native import Native
from test_http import get

WIDTH = 16


def facts(width=WIDTH, **others):
    gpus = [
        {"name": name, "at": f"gpu{i}", **value}
        for i in range(8)
        for name, value in [("gpu_model", {"text": "NVIDIA H100 80GB HBM3"}), ("pcie_width", {"value": width if i == 3 else WIDTH}), ("nvlinks", {"value": 18})]
    ]
    host = {"gpus": {"value": 8}, "kernel": {"text": "6.8.0-45-generic"}, "driver": {"text": "550.90.07"}, "memlock_kib": {"value": -1}, **others}
    return {"wall_ms": 0, "facts": [{"name": name, **value} for name, value in host.items()] + gpus}


@contextlib.contextmanager
def nodes(d, n, odd):
    """n nodes of a running job, which say their facts; node `odd` has a GPU at half its width."""
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(Native(d.port)) for _ in range(n)]
        for i, peer in enumerate(peers):
            peer.hello(job="nightly", nodes=n, host=f"n{i}", want_rank=i, wants_events=i == 0)
        for peer in peers:
            peer.started()
        for i, peer in enumerate(peers):
            peer.send("FACTS", facts(8 if i == odd else WIDTH))
        yield peers


def ctl(d, *words):
    return subprocess.run([RDZVCTL, "--socket", d.socket, *words], capture_output=True, text=True, timeout=20)


def test_nodes_and_page(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    d.socket = rdzv.tmp / "s"
    sentence = "PCIe width of gpu3 is x8; x16 on 3 of 3 like nodes"
    with nodes(d, 4, odd=1) as peers:
        for peer in peers:
            assert peer.expect("NOTICE").text == f"node n1: {sentence} (suspect)"
        text, as_json = (shlex.split(line)[1:] for line in pages.lines("deploy/guide/health.md", "nodes"))
        p = ctl(d, *text)
        assert p.returncode == 0 and not p.stderr, p
        lines = p.stdout.splitlines()
        assert lines[0].split() == ["NODE", "HOST", "GPUS", "MODEL", "DRIVER", "PCIE", "NVLINKS", "KERNEL", "MEMLOCK"], p
        assert "!" not in lines[1] and " !x16/x8 " in lines[2], p
        assert lines[5].startswith(f"! node n1: {sentence} (suspect, for "), p
        answer = json.loads(ctl(d, *as_json).stdout)
        assert answer["job"] == "nightly" and [n["host"] for n in answer["nodes"]] == ["n0", "n1", "n2", "n3"]
        assert [len(n["odd"]) for n in answer["nodes"]] == [0, 1, 0, 0]
        assert {"name": "pcie_width", "at": "gpu3", "value": 8} in answer["nodes"][1]["facts"]
        odd = answer["nodes"][1]["odd"][0]
        assert (odd["fact"], odd["at"], odd["class"], odd["value"], odd["usual"]) == ("pcie_width", "gpu3", "suspect", "x8", "x16")
        job = json.loads(ctl(d, "status", "nightly", "--json").stdout)["jobs"][0]
        assert [f["sentence"] for f in job["odd"]] == [sentence]
        text = get(d, "/metrics")[1]
        assert [line for line in text.splitlines() if line.startswith("rdzv_node_odd_facts{")][0].endswith('fact="pcie_width",class="suspect",host="n1"} 1')
        while (event := peers[0].expect("EVENT")).fields["name"] != "rdzv.node.odd":
            pass
        assert json.loads(event.raw)["metadata"]["hostname"] == "n1"
    p = ctl(d, "nodes")
    assert p.returncode == 64 and "an argument is missing: rdzvctl nodes JOB" in p.stderr, p


def test_red_on_a_terminal(rdzv):
    """The mark is there without colour; on a terminal what is marked is red, up to the end of its cell."""
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    with nodes(d, 4, odd=2) as peers:
        peers[0].expect("NOTICE")
        main, end = pty.openpty()
        with subprocess.Popen([RDZVCTL, "--socket", rdzv.tmp / "s", "nodes", "nightly"], stdout=end) as p:
            os.close(end)
            shown = b""
            with contextlib.suppress(OSError):
                while piece := os.read(main, 65536):
                    shown += piece
            os.close(main)
        assert p.returncode == 0
        assert b"\x1b[31m!x16/x8\x1b[0m " in shown and b"\x1b[31m! node n2: PCIe width" in shown, shown
        assert shown.count(b"\x1b[31m") == shown.count(b"\x1b[0m") == 2, shown


def test_a_certain_fault_makes_a_spare(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    with contextlib.ExitStack() as stack:
        settings = dict(min_nodes=3, max_nodes=4, max_restarts=3, last_call_ms=60000, join_timeout_ms=60000, stop_timeout_ms=1000, lease_ms=60000)
        peers = [stack.enter_context(Native(d.port)) for _ in range(4)]
        for i, peer in enumerate(peers):
            peer.hello(job="nightly", host=f"n{i}", settings=settings)
        for peer in peers:
            peer.started()
        peers[2].send("FACTS", {"facts": [{"name": "gpu_error", "at": "gpu1", "text": "GPU is lost"}]})
        for peer in peers:
            assert peer.expect("NOTICE").text == "node n2: error of gpu1 is GPU is lost: it becomes a spare"
            verdict = peer.expect("PREPARE").fields["verdict"]
            assert (verdict["cause"], verdict["host"]) == ("node-drained", "n2")
            assert verdict["text"] == "health (error of gpu1 is GPU is lost)"
        d.expect("host n2 is excluded: health")
