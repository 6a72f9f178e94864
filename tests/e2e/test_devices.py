# SPDX-License-Identifier: Apache-2.0
"""GPUs: counted, passed to workers, left out when busy, waited for between rounds. The driver's library is one of the tests' own."""

import json
import os
import pwd
import re
import time
from pathlib import Path

import pytest

from harness import BUILD, environ, until

LIBRARY = BUILD / "tests/rig/fake-nvml.so"
USER = pwd.getpwuid(os.getuid()).pw_name
PLACE = 'echo "worker $LOCAL_RANK has $RDZV_DEVICE_UUID of ${CUDA_VISIBLE_DEVICES-all}"'
FAIL_ONCE = PLACE + '; [ "$RDZV_ROUND" != 1 ]'
# As if the machine had none of its own: whoever runs this on one that has must see the same.
A, B, C, D = UUIDS = ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3", "GPU-dddd-4"]


class Gpus:
    """Four GPUs of 80 GiB; lines by device are appended to them."""

    def __init__(self, tmp):
        self.script = tmp / "gpus"
        self.lines = {uuid: [] for uuid in UUIDS}
        self.before = []
        self.write()

    def write(self):
        text = [*self.before]
        for i, uuid in enumerate(UUIDS):
            text += [f"device {uuid} 00000000:{i}1:00.0 NVIDIA_H100 81920 4", *self.lines[uuid]]
        new = self.script.with_suffix(".new")
        new.write_text("\n".join(text) + "\n")
        new.rename(self.script)

    def put(self, uuid, line):
        self.lines[uuid].append(line)
        self.write()

    def do(self, line):
        self.before.append(line)
        self.write()

    @property
    def calls(self):
        calls = Path(f"{self.script}.calls")
        return calls.stat().st_size if calls.exists() else 0

    def env(self, visible=None):
        env = {"RDZV_NVML_LIBRARY": str(LIBRARY), "RDZV_FAKE_NVML": str(self.script), "OMP_NUM_THREADS": "1"}
        return env if visible is None else {**env, "CUDA_VISIBLE_DEVICES": visible}


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Gpus(tmp_path)


def places(agent):
    """local rank -> (device, CUDA_VISIBLE_DEVICES), as workers said last."""
    found = re.findall(r"worker (\d+) has (\S*) of (\S*)", "\n".join(agent.out))
    return {int(rank): (device, visible) for rank, device, visible in found}


def run(rdzv, gpus, *args, visible=None, script=PLACE, code=0):
    agent = rdzv.agent("--max-restarts", 1, *args, "--", "sh", "-c", script, env=gpus.env(visible))
    assert agent.exit(60) == code, agent
    return agent


def test_a_worker_for_each(rdzv, gpus):
    for count in "gpu", "auto":
        agent = run(rdzv, gpus, "--nproc", count)
        assert places(agent) == {i: (uuid, "all") for i, uuid in enumerate(UUIDS)}
        assert not agent.says("device")


@pytest.mark.parametrize(
    "visible, uuids",
    [("2,0", [C, A]), ("1", [B]), (f"{D},GPU-bb", [D, B]), ("0,9,1", [A]), ("MIG-x,MIG-y", ["MIG-x", "MIG-y"])],
)
def test_as_cuda_reads_its_list(rdzv, gpus, visible, uuids):
    gpus.put(C, "mig MIG-x")
    gpus.put(C, "mig MIG-y")
    agent = run(rdzv, gpus, "--nproc", "gpu", visible=visible)
    assert places(agent) == {i: (uuid, visible) for i, uuid in enumerate(uuids)}


def test_unequal_gpus(rdzv, gpus):
    """CUDA numbers unequal GPUs by speed, unless CUDA_DEVICE_ORDER says otherwise. The agent takes no device for a rank's then."""
    gpus.script.write_text(gpus.script.read_text().replace("NVIDIA_H100", "NVIDIA_T4", 1))
    for order, seen in ({}, {i: ("", "all") for i in range(4)}), ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {i: (uuid, "all") for i, uuid in enumerate(UUIDS)}):
        agent = rdzv.agent("--nproc", "gpu", "--", "sh", "-c", PLACE, env={**gpus.env(), **order})
        assert agent.exit() == 0 and places(agent) == seen, agent
        assert agent.text.count("CUDA_DEVICE_ORDER=PCI_BUS_ID makes their numbers known") == (not order), agent
    assert places(run(rdzv, gpus, "--nproc", "gpu", visible=f"{C},{A}")) == {0: (C, f"{C},{A}"), 1: (A, f"{C},{A}")}


def test_devices_that_are_not_ours(rdzv, gpus):
    gpus.put(A, "hidden")
    gpus.put(C, "hidden")
    assert places(run(rdzv, gpus, "--nproc", "gpu")) == {0: (B, "all"), 1: (D, "all")}


def test_none_visible(rdzv, gpus):
    assert run(rdzv, gpus, "--nproc", "gpu", visible="", code=64).says("no GPU is visible")
    agent = run(rdzv, gpus, "--nproc", "auto", visible="")
    assert len(places(agent)) == len(os.sched_getaffinity(0)) and "" == places(agent)[0][0]


def test_fixed_number_is_told_too(rdzv, gpus):
    agent = run(rdzv, gpus, "--nproc", 2)
    assert places(agent) == {0: (A, "all"), 1: (B, "all")}


def test_no_driver(rdzv, gpus):
    """As if nobody had asked: not a word of it."""
    env = dict(gpus.env(), RDZV_NVML_LIBRARY="libthere-is-none.so.7")
    agent = rdzv.agent("--nproc", "auto", "--", "sh", "-c", PLACE, env=env)
    assert agent.exit() == 0 and places(agent) and not agent.says("driver|library|nvml"), agent


@pytest.mark.parametrize("args, asked_first", [(["--nproc", "gpu"], True), (["--nproc", 2], False)])
def test_driver_that_hangs(rdzv, gpus, args, asked_first):
    gpus.do("hang")
    begun = time.monotonic()
    agent = run(rdzv, gpus, *args, "--device-timeout", "500ms", visible="0,1")
    assert 0.5 < time.monotonic() - begun, agent
    assert len(re.findall("the GPU driver did not answer within 0.5 s", agent.text)) == 1, agent
    assert {rank: visible for rank, (_, visible) in places(agent).items()} == {0: "0,1", 1: "0,1"}
    rdzv.gone()


def test_driver_that_hangs_while_devices_are_waited_for(rdzv, gpus):
    gpus.do("hang 1")
    agent = run(rdzv, gpus, "--nproc", "gpu", "--device-timeout", "500ms", script=FAIL_ONCE)
    assert agent.says("did not answer within 0.5 s; it is unknown whether the workers' devices are free"), agent
    assert agent.says("is done: 2 rounds, 1 restart")


def test_driver_that_is_not_to_be_asked(rdzv, gpus):
    gpus.do("hang")
    agent = run(rdzv, gpus, "--nproc", 2, "--device-timeout", "0", visible="0,1", script=FAIL_ONCE)
    assert gpus.calls == 0 and len(places(agent)) == 2, agent


@pytest.mark.parametrize(
    "line, words",
    [
        ("init 18", "Driver/library version mismatch"),
        ("crash", r"rdzv-devices \(pid \d+\) (was killed by signal|exited with code)"),
        ("chatter 5000000", "an answer of \\d+ bytes is too long"),
        ("chatter 100", "line 1"),
    ],
)
def test_driver_that_fails(rdzv, gpus, line, words):
    gpus.do(line)
    agent = rdzv.agent("--nproc", "auto", "--", "sh", "-c", PLACE, env=dict(gpus.env("0,1"), ASAN_OPTIONS="handle_segv=0"))
    assert agent.exit() == 0 and agent.says(words) and len(places(agent)) == 2, agent


def test_busy_and_failing_devices_are_said(rdzv, gpus):
    holder = rdzv.spawn("sleep", "1000")
    gpus.put(B, f"process {holder.pid} 30512")
    gpus.put(C, "lost")
    gpus.put(D, "damaged")
    agent = run(rdzv, gpus, "--nproc", "gpu")
    assert agent.says(rf"device 1, {B} \(NVIDIA H100\) is busy: pid {holder.pid} \({USER}, sleep 1000\) holds 30512 MiB; --exclude-busy leaves"), agent
    assert agent.says("device 2 fails: GPU is lost") and agent.says(rf"device 3, {D} \(NVIDIA H100\) fails: its memory is damaged"), agent
    assert len(places(agent)) == 4 and not agent.says("device 0")
    holder.kill()


def test_busy_devices_are_left_out(rdzv, gpus):
    holder = rdzv.spawn("sleep", "1000")
    gpus.put(A, f"process {holder.pid} 30512")
    gpus.put(C, "lost")
    agent = run(rdzv, gpus, "--nproc", "gpu", "--exclude-busy")
    assert places(agent) == {0: (B, f"{B},{D}"), 1: (D, f"{B},{D}")}, agent
    assert agent.says(rf"leaves out device 0, {A}: pid {holder.pid} \(.*sleep 1000\) holds 30512 MiB")
    assert agent.says("leaves out device 2: it fails: GPU is lost")

    agent = run(rdzv, gpus, "--nproc", 1, "--exclude-busy")
    assert places(agent) == {0: (B, f"{B},{D}")}
    agent = run(rdzv, gpus, "--nproc", 2, "--exclude-busy", "--virtual-local-rank")
    assert agent.text.count("worker 0 has") == 2 and agent.says(f"has {B} of {B}") and agent.says(f"has {D} of {D}"), agent  # both are 0, in any order

    agent = run(rdzv, gpus, "--nproc", 3, "--exclude-busy", code=79)
    assert agent.says("of 4 devices only 2 are free, but --nproc asks for 3"), agent
    agent = run(rdzv, gpus, "--nproc", "gpu", "--exclude-busy", visible="0,2", code=79)
    assert agent.says("of 2 devices 0 are free"), agent
    # The list that the agent inherits narrows first.
    agent = run(rdzv, gpus, "--nproc", "gpu", "--exclude-busy", visible=f"{D},{A},{B}")
    assert places(agent) == {0: (D, f"{D},{B}"), 1: (B, f"{D},{B}")}
    holder.kill()


def test_excluding_without_a_driver(rdzv, gpus):
    env = dict(gpus.env("0,1"), RDZV_NVML_LIBRARY="libthere-is-none.so.7")
    agent = rdzv.agent("--nproc", 2, "--exclude-busy", "--", "sh", "-c", PLACE, env=env)
    assert agent.exit() == 0 and agent.says("--exclude-busy has no effect: the GPU driver cannot be asked") and len(places(agent)) == 2, agent


def test_memory_that_comes_back_is_waited_for(rdzv, gpus):
    """The driver gives it back three answers later: no restart is lost for it."""
    gpus.put(B, "held 30000 1 4")
    agent = run(rdzv, gpus, "--nproc", "gpu", "-v", script=FAIL_ONCE)
    assert gpus.calls == 5 and agent.says("is done: 2 rounds, 1 restart"), agent
    assert int(agent.expect(r"devices are free after (\d+) ms")[1]) >= 750
    assert not agent.says("is busy"), agent


def test_pages_of_the_system_are_not_waited_for(rdzv, gpus):
    """On GH200 the kernel keeps cached files in a GPU's memory, which never looks free. The memory of processes there is waited for, as elsewhere."""
    holder = rdzv.spawn("sleep", "1000")
    gpus.put(B, "numa")
    gpus.put(B, "held 30000 1")
    gpus.put(B, f"process {holder.pid} 20000 1 3")
    agent = run(rdzv, gpus, "--nproc", "gpu", "-v", script=FAIL_ONCE)
    assert gpus.calls == 4 and agent.says("is done: 2 rounds, 1 restart") and agent.says("devices are free after"), agent
    holder.kill()


def test_who_is_waited_for(rdzv, gpus):
    holder = rdzv.spawn("sleep", "1000")
    gpus.put(B, f"process {holder.pid} 30000 1 8")
    agent = run(rdzv, gpus, "--nproc", "gpu", script=FAIL_ONCE)
    who = rf"waiting for the memory of device 1, {B} \(NVIDIA H100\): pid {holder.pid} \({USER}, sleep 1000\) holds 30000 MiB; at most 20 s"
    assert len(re.findall(who, agent.text)) == 1 and agent.says("is done: 2 rounds, 1 restart"), agent
    holder.kill()


def test_who_was_there_before_is_not_waited_for(rdzv, gpus):
    holder = rdzv.spawn("sleep", "1000")
    gpus.put(B, f"process {holder.pid} 2000 0 1")
    gpus.put(B, f"process {holder.pid} 50000 1")  # it has grown since
    agent = run(rdzv, gpus, "--nproc", "gpu", script=FAIL_ONCE)
    assert gpus.calls == 2 and agent.says("is done: 2 rounds, 1 restart"), agent
    holder.kill()


@pytest.mark.parametrize("leftover", [False, True])
@pytest.mark.parametrize("args", [["--nproc", "gpu"], ["--nproc", 4]])
def test_memory_that_never_comes_back(rdzv, gpus, args, leftover):
    """The holder is named, once for each restart that it costs; but whoever may use no device at all is started, unless the holder is this job's own."""
    job = {"RDZV_RUN_ID": "run-7"} if leftover else {}
    holder = rdzv.spawn("sleep", "1000", env=job)
    gpus.put(B, f"process {holder.pid} 30512 1")
    held = leftover or "gpu" in args
    agent = rdzv.agent(
        "--max-restarts", 2, "--endpoint", rdzv.daemon().endpoint, "--rdzv-id", "run-7", *args, "--device-timeout", "1s",
        "--verdict-file", "verdict", "--", "sh", "-c", FAIL_ONCE, env=gpus.env(),
    )
    code = agent.exit(60)
    who = rf"pid {holder.pid} \({USER}, sleep 1000{', of job run-7' if leftover else ''}\) holds 30512 MiB"
    if held:
        assert code == 79, agent
        found = re.findall(rf"rank 1 \(local 1\) on \S+, device 1, {B}, was not started: its memory is not free after [\d.]+ s: {who}", agent.text)
        assert found and agent.says("2 of 2 restarts used"), agent
        verdict = json.loads((rdzv.tmp / "verdict").read_text())["verdict"]
        assert (verdict["cause"], verdict["device"], verdict["code"]) == ("device-held", f"1, {B}", 79)
    else:
        assert code == 0 and agent.says(rf"device 1, {B} \(NVIDIA H100\): its memory is not free after .*{who}; the workers are started anyway"), agent
    holder.kill()
    assert not rdzv.workers()


def test_device_that_falls_off_its_bus(rdzv, gpus):
    gpus.put(D, "lost 1")
    agent = run(rdzv, gpus, "--nproc", "gpu", script=FAIL_ONCE, code=79)
    assert agent.says(rf"rank 3 .*, device 3, {D}, was not started: (it|the driver)"), agent


def test_leaving_while_devices_are_waited_for(rdzv, gpus):
    gpus.put(A, "held 30000 1")
    agent = rdzv.agent("--nproc", "gpu", "--device-timeout", "25s", "--", "sh", "-c", FAIL_ONCE, env=gpus.env())
    until(lambda: f"the devices are asked for again:\n{agent}", lambda: gpus.calls >= 3)
    assert agent.end(15, 5) == 75, agent
    rdzv.gone()


def test_a_worker_lost_in_another_node_while_devices_are_waited_for(rdzv, gpus):
    """STOP comes in the middle: nothing of that round is started afterwards."""
    gpus.put(A, "held 30000 1 12")
    daemon = rdzv.daemon()
    script = 'case $RDZV_ROUND$NODE_RANK in 10|21) exit 1;; 11) sleep 100;; esac; ' + PLACE + "; echo round $RDZV_ROUND"
    common = ["--nnodes", 2, "--nproc", 1, "--max-restarts", 5, "--endpoint", daemon.endpoint]
    waiting = rdzv.agent(*common, "--node-rank", 0, "--", "sh", "-c", script, env=gpus.env("0"))
    other = rdzv.agent(*common, "--node-rank", 1, "--", "sh", "-c", script, env={"OMP_NUM_THREADS": "1"})
    assert waiting.exit(60) == 0 and other.exit(60) == 0, f"{waiting}\n{other}"
    assert "[0] round 2" not in waiting.out and "[0] round 3" in waiting.out, waiting
    assert not waiting.says("driver"), waiting


def test_two_agents_with_the_same_devices(rdzv, gpus):
    """Workers that the other one has started already are no leftovers."""
    daemon = rdzv.daemon()
    go = 'case $RDZV_ROUND in 1) while [ ! -e go ]; do sleep 0.1; done; exit 1;; esac; '
    args = ["--nnodes", 2, "--nproc", 1, "--endpoint", daemon.endpoint, "--rdzv-id", rdzv.mark, "--", "sh", "-c", go + PLACE]
    one, two = [rdzv.agent(*args, env=gpus.env(visible)) for visible in ("1", "1,0")]
    rdzv.await_workers(2)
    sibling = rdzv.spawn("sleep", "1000", env={"RDZV_RUN_ID": rdzv.mark, "RDZV_ROUND": "2"})
    gpus.put(B, f"process {sibling.pid} 30000 2")
    (rdzv.tmp / "go").touch()
    assert one.exit() == 0 and two.exit() == 0, f"{one}\n{two}"
    assert gpus.calls == 4
    sibling.kill()


def test_verdict_names_the_device(rdzv, gpus):
    script = '[ "$LOCAL_RANK" != 2 ] || kill -SEGV $$; sleep 100'
    agent = rdzv.agent("--nproc", "gpu", "--max-restarts", 0, "--", "sh", "-c", script, env=gpus.env())
    assert agent.exit() == 139 and agent.says(rf"rank 2 \(local 2\) on \S+, device 2, {C}, pid \d+, was killed by SIGSEGV"), agent


@pytest.mark.parametrize("nproc, visible, own", [(2, None, ["0", "1"]), ("gpu", "2,0", ["2", "0"]), (3, D, [D, D, D]), (2, "", ["", ""])])
def test_the_trainer_sees_its_own_device(rdzv, gpus, nproc, visible, own):
    """LOCAL_RANK stays what it is, and where there are more workers than devices they share them."""
    agent = rdzv.agent("--nproc", nproc, "--", "--steps", 1000, "--throttle", 10, env=gpus.env(visible))
    workers = rdzv.await_workers(len(own))
    for rank, pid in workers.items():
        env = environ(pid)
        assert env.get("CUDA_VISIBLE_DEVICES") == own[rank] and env["LOCAL_RANK"] == str(rank), env
        index = {"0": A, "1": B, "2": C, D: D}
        assert env.get("RDZV_DEVICE_UUID") == index.get(own[rank]), env
    agent.end(15)


def test_the_trainer_does_not_need_nccl(rdzv, gpus):
    """Where GPUs are, ids are minted for it; where they cannot be, it may do without, and nobody hears of it who does not ask."""
    env = {**gpus.env(), "RDZV_NCCL_LIBRARY": "/nowhere/libnccl.so.2"}
    for verbose in [], ["--verbose"]:
        agent = rdzv.agent(*verbose, "--nproc", "gpu", "--", "--steps", 5, env=env)
        assert agent.exit(60) == 0 and agent.says("could not mint NCCL ids for round 1: NCCL cannot be loaded") == bool(verbose), agent
    agent = rdzv.agent("--nproc", "gpu", "--", "--device", "cpu", "--steps", 5, env=env)
    agent.exit(60)
    assert not agent.says("NCCL"), agent  # nobody wants any


@pytest.mark.parametrize("choose", [False, True])
def test_workers_that_all_take_the_first_device(rdzv, gpus, choose):
    """The agent prints one line about a script that does not look at LOCAL_RANK, and none about one that does."""
    agent = rdzv.agent("--nproc", "gpu", "--", "sh", "-c", "echo worker is $$; while [ ! -e go ]; do sleep 0.1; done", env=gpus.env())
    until("all workers run", lambda: len(re.findall(r"worker is \d+", agent.text)) == len(UUIDS))
    for i, pid in enumerate(re.findall(r"worker is (\d+)", agent.text)):
        gpus.put(UUIDS[i if choose else 0], f"process {pid} 5000")
    line = rf"{len(UUIDS)} processes of this job are on device 0, {UUIDS[0]} \(NVIDIA H100\), and none is on device \d, .*: does each worker choose its own, by LOCAL_RANK"
    asked = gpus.calls
    until("the driver is asked again", lambda: gpus.calls > asked, 40)
    if not choose:
        agent.expect(line)
    (rdzv.tmp / "go").touch()
    assert agent.exit(30) == 0 and len(re.findall(line, agent.text)) == (not choose), agent
