# SPDX-License-Identifier: Apache-2.0
"""A checkpoint before the planned end of a round, with the real trainer: a node leaves, all leave, a node comes."""

import json
import re
import signal

import pytest

from harness import TOP, until

TASK = ["--layers", "60,12,60", "--data", "synthetic:500", "--scale", "0.01", "--batch", 16, "--loss", "rmse", "--seed", 3]


def events(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def until_step(path, step, timeout=30):
    until(f"step {step} in {path}", lambda: any(e["event"] == "step" and e["step"] >= step for e in events(path)), timeout)


def checkpoint_steps(agent):
    return [int(m) for m in re.findall(r"a checkpoint was written after step (\d+)", agent.text)]


def check_no_step_twice(run):
    """A round begins where the last one has written its last checkpoint, and that is behind its last step."""
    step, saved = 0, 0
    for e in run:
        if e["event"] == "resume":
            assert e["step"] == saved == step, f"resumed at {e['step']}, saved at {saved}, done {step}"
        elif e["event"] == "checkpoint":
            saved = e["step"]
        elif e["event"] == "step":
            assert e["step"] == step + 1, f"step {e['step']} after {step}"
            step = e["step"]


def as_a_pattern(line):
    return re.sub(r"\d+(\\\.\d+)?", r"[0-9.]+", re.escape(line))


def test_the_guide_shows_these_lines(rdzv):
    """A preempted job prints what the guide quotes, but for the numbers."""
    guide = (TOP / "deploy/guide/failures-and-elastic.md").read_text()
    (shown,) = [block for block in guide.split("```\n") if block.startswith("rdzv-agent: SIGTERM: leaving")]
    job = Job(rdzv, "1", "--steps", 100000, "--throttle", 100)
    agent = job.agent()
    until_step(job.metrics, 20)
    assert agent.end(signal.SIGTERM, 20) == 75, agent
    missing = [line for line in shown.splitlines() if not re.search("^" + as_a_pattern(line) + "$", agent.text, re.M)]
    assert missing == [], agent


def no_worker_is_left(rdzv):
    for rank in range(4):
        rdzv.gone(RANK=str(rank))


class Job:
    """Agents with the same words: a trainer that writes checkpoints and metrics."""

    def __init__(self, rdzv, nnodes, *trainer, agent=(), endpoint=None):
        self.rdzv, self.metrics = rdzv, rdzv.tmp / "metrics"
        endpoint = endpoint or rdzv.daemon().endpoint
        self.words = ["--endpoint", endpoint, "--nnodes", nnodes, "--nproc", 2, "--rdzv-id", "prepares", "--last-call", "5s",
                      "--max-restarts", 0, *agent, "--", *TASK, "--metrics", self.metrics, "--checkpoint-dir", rdzv.tmp / "ckpt",
                      "--keep-checkpoints", 100, *trainer]

    def agent(self):
        return self.rdzv.agent(*self.words)

    def events(self):
        return events(self.metrics)


@pytest.mark.parametrize("who", [0, 1])
def test_a_node_leaves(rdzv, who):
    """Node 0, which writes, or another one. All ranks are asked, write the same step, and the other node goes on behind it."""
    job = Job(rdzv, "1:2", "--steps", 100000, "--throttle", 100)
    agents = [job.agent(), job.agent()]
    agents[0].expect("2 nodes, 4 workers; this is node")
    until_step(job.metrics, 20)
    agents.sort(key=lambda a: not a.says("this is node 0"))
    leaver, other = agents[who], agents[1 - who]
    assert leaver.end(signal.SIGTERM, 20) == 75, leaver
    assert leaver.says("leaving with exit code 75; workers are asked for a checkpoint first")
    other.expect("round 2: 1 node, 2 workers", 20)
    until_step(job.metrics, max(e["step"] for e in job.events() if e["event"] == "step") + 20)
    run = job.events()
    check_no_step_twice(run)
    (asked,) = set(checkpoint_steps(leaver) + checkpoint_steps(other)) or {None}
    assert checkpoint_steps(leaver) == checkpoint_steps(other) == [asked], rdzv
    saved = [e["step"] for e in run if e["event"] == "checkpoint"]
    assert asked == saved[0] and len(saved) <= 2, f"one that was asked for, and one of the stop: {saved}"
    assert other.says("no restart is charged") and other.says("SIGTERM asked its agent to leave"), other
    assert other.end(signal.SIGTERM, 20) == 75, other
    no_worker_is_left(rdzv)


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGUSR1])
def test_all_leave_and_the_same_command_goes_on(rdzv, signo):
    """As srun and scancel do it: nobody forms another round, all exit with 75, and what comes out in the end is what would have come out."""
    straight = Job(rdzv, "2", "--steps", 300, "--checkpoint-dir", rdzv.tmp / "straight", "--metrics", "/dev/null")
    agents = [straight.agent(), straight.agent()]
    assert [a.exit(60) for a in agents] == [0, 0], rdzv
    (want,) = {m for a in agents for m in re.findall(r"checksum (\w+)", a.text)}
    job = Job(rdzv, "2", "--steps", 300, "--throttle", 100, agent=["--signals-to-handle", "SIGTERM,SIGUSR1"])
    agents = [job.agent(), job.agent()]
    until_step(job.metrics, 20)
    for a in agents:
        a.kill(signo)
    assert [a.exit(20) for a in agents] == [75, 75], rdzv
    assert not any(a.says("round 2:") or a.says("forming the next round") for a in agents), rdzv
    no_worker_is_left(rdzv)
    agents = [job.agent(), job.agent()]
    assert [a.exit(60) for a in agents] == [0, 0], rdzv
    assert {m for a in agents for m in re.findall(r"checksum (\w+)", a.text)} == {want}, rdzv
    check_no_step_twice(job.events())


def test_a_worker_that_only_reads_its_rank_is_not_waited_for(rdzv):
    """No --checkpoint-dir: nothing to wait for. The signal comes at once, as under torchrun."""
    a = rdzv.agent("--standalone", "--nproc", 2, "--", *TASK, "--steps", 100000, "--throttle", 100, "--metrics", rdzv.tmp / "m")
    until_step(rdzv.tmp / "m", 20)
    assert a.end(signal.SIGTERM, 20) == 75, a
    assert not a.says("asked for a checkpoint") and a.says("workers have 30 s to stop"), a


def test_a_node_comes(rdzv):
    """The round is 30 s old, writes its checkpoint, and goes on with both behind it; nothing is done twice, nothing is charged."""
    job = Job(rdzv, "1:2", "--steps", 100000, "--throttle", 100)
    first = job.agent()
    until_step(job.metrics, 20)
    second = job.agent()
    second.expect("a new round with all waiting nodes is formed in", 20)
    first.expect("joined: .*; workers are asked for a checkpoint first", 60)
    for a in (first, second):
        a.expect("round 2: 2 nodes, 4 workers", 60)
    until_step(job.metrics, max(e["step"] for e in job.events() if e["event"] == "step") + 20)
    check_no_step_twice(job.events())
    (asked,) = checkpoint_steps(first)
    assert asked in [e["step"] for e in job.events() if e["event"] == "checkpoint"]
    assert first.says("no restart is charged"), first
    for a in (first, second):
        a.kill(signal.SIGTERM)
    assert [a.exit(20) for a in (first, second)] == [75, 75], rdzv
