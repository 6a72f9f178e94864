# SPDX-License-Identifier: Apache-2.0
"""Facts about a node, the agent's half: each recorded fault is found, none is invented, an XID is in the verdict of the worker that it killed, and a driver that
hangs delays nothing. The profiles are scripts for the tests' own NVML (tests/rig/fake_nvml.c)."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pages
import pytest

from harness import AGENT, BUILD, alive, comm, environ, stat, until
from hostile import FakeDaemon

LIBRARY = BUILD / "tests/rig/fake-nvml.so"
HELPER = BUILD / "agent/rdzv-devices"
PROFILES = Path(__file__).parent / "health"
ALL = sorted(p.stem for p in PROFILES.glob("*.nvml"))
WELCOME = ("WELCOME", dict(incarnation="ab" * 8, round=0, state="forming", peer_addr="127.0.0.1", daemon="cd" * 8))
# What a healthy H100 of an HGX board says.
WELL = dict(gpu_model="NVIDIA H100 80GB HBM3", recovery_action=0, ecc_uncorrected=0, remap_pending=0, remap_failed=0, foreign_mib=0, pcie_width=16, pcie_width_max=16, nvlinks=18, fabric="ready")
# What each profile says else, by GPU: None is a fact that is missing.
LOST = {**dict.fromkeys([*WELL, "gpu_pci"]), "gpu_error": "GPU is lost"}
FAULTS = {
    "healthy": {},
    "off_the_bus": {3: LOST},
    "mute": {0: dict(gpu_error="Unknown Error")},
    "reset_needed": {5: dict(recovery_action=1)},
    "remap_pending": {2: dict(ecc_uncorrected=2, remap_pending=1)},
    "half_pcie": {6: dict(pcie_width=8)},
    "nvlink_down": {1: dict(nvlinks=16)},
    "fabric": {i: dict(fabric="in progress") for i in range(8)},
}
HANGING = {"hangs", "stuck"}
BROKEN = {"off_the_bus": "gpu3: GPU is lost", "mute": "gpu0: Unknown Error", "reset_needed": "gpu5: recovery action GPU reset"}


def well(i):
    return {**WELL, "gpu_pci": f"0000:{i}1:00.0"}


class Host:
    """A host with the GPUs of a profile, and nothing else of this machine."""

    def __init__(self, tmp):
        self.script, self.root = tmp / "gpus", tmp / "root"
        (self.root / "dev/shm").mkdir(parents=True)
        self.use("healthy")

    def use(self, profile):
        new = self.script.with_suffix(".new")
        shutil.copy(PROFILES / f"{profile}.nvml", new)
        new.rename(self.script)

    def put(self, text):
        new = self.script.with_suffix(".new")
        new.write_text(text)
        new.rename(self.script)

    @property
    def looks(self):
        path = Path(f"{self.script}.looks")
        return path.stat().st_size if path.exists() else 0

    @property
    def events(self):
        return f"{self.script}.events"

    def env(self, **more):
        return {"RDZV_NVML_LIBRARY": str(LIBRARY), "RDZV_FAKE_NVML": str(self.script), "RDZV_DEVICES_ROOT": str(self.root), "OMP_NUM_THREADS": "1", **more}


@pytest.fixture
def host(tmp_path, monkeypatch):
    if not LIBRARY.exists():
        pytest.skip(f"{LIBRARY} is not built")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return Host(tmp_path)


def by_place(facts):
    """place -> {name: value or text}"""
    places = {}
    for f in facts:
        assert f["name"] not in places.setdefault(f.get("at", ""), {}), f
        places[f.get("at", "")][f["name"]] = f.get("text") or f.get("value", 0)
    return places


def ask(host, *args):
    """What the helper prints: part -> places."""
    lines = subprocess.run([HELPER, "facts", *args], env={**os.environ, **host.env()}, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    return {line["part"]: by_place(line["facts"]) for line in map(json.loads, lines)}


def test_each_fault_is_found_and_none_is_invented(host):
    assert set(FAULTS) | HANGING == set(ALL)
    for profile, faults in FAULTS.items():
        host.use(profile)
        parts = ask(host)
        assert list(parts) == ["host", "ports", "gpus"]
        gpus = parts["gpus"]
        assert gpus.pop("") == dict(driver="580.95.05", cuda="13.0", gpus=8), profile
        want = {f"gpu{i}": {k: v for k, v in {**well(i), **faults.get(i, {})}.items() if v is not None} for i in range(8)}
        assert gpus == want, profile


def test_a_node_without_gpus(host):
    host.root.joinpath("sys/class/infiniband/mlx5_0/ports/1").mkdir(parents=True)
    host.root.joinpath("sys/class/infiniband/mlx5_0/ports/1/state").write_text("1: DOWN\n")
    env = {**os.environ, **host.env(RDZV_NVML_LIBRARY="libthere-is-none.so.7")}
    lines = [json.loads(line) for line in subprocess.check_output([HELPER, "facts"], env=env, text=True).splitlines()]
    assert by_place(lines[1]["facts"]) == {"mlx5_0/1": {"port_state": "DOWN"}}
    assert lines[2] == {"part": "gpus", "facts": [{"name": "gpus", "value": 0}]}, "no driver: not worth a word"
    host.root.joinpath("proc/driver/nvidia").mkdir(parents=True)
    host.root.joinpath("proc/driver/nvidia/version").write_text("NVRM version: 580\n")
    host.root.joinpath("dev").mkdir(exist_ok=True)
    host.root.joinpath("dev/nvidiactl").touch()
    last = json.loads(subprocess.check_output([HELPER, "facts"], env=env, text=True).splitlines()[-1])
    assert re.match("NVML: .*libthere-is-none", last["missing"])


def test_memory_of_others_is_foreign(host):
    for job, env in ("mine", {"RDZV_RUN_ID": "mine"}), ("other", {"RDZV_RUN_ID": "another"}):
        holder = subprocess.Popen(["sleep", "60"], env={**os.environ, **env})
        try:
            until("it runs", lambda: comm(holder.pid) == "sleep")
            host.put(f"device GPU-1 00000000:01:00.0 NVIDIA_H100 81559 4\nprocess {holder.pid} 4096\n")
            gpu = ask(host, "mine")["gpus"]["gpu0"]
            assert (gpu["foreign_mib"], gpu.get("gpu_used")) == ((0, 1) if job == "mine" else (4096, None)), job
        finally:
            holder.kill()
            holder.wait()


def watcher(host):
    p = subprocess.Popen([HELPER, "watch", "job"], env={**os.environ, **host.env()}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return p, lambda: json.loads(p.stdout.readline())


def test_the_session(host):
    """One NVML for all looks; it looks when asked and after an XID; a GPU that vanishes is one that was there; it ends with its stdin."""
    p, read = watcher(host)
    assert [read()["part"] for _ in range(3)] == ["host", "ports", "gpus"]
    assert os.getpriority(os.PRIO_PROCESS, p.pid) == 10
    host.put("".join(line for line in open(PROFILES / "healthy.nvml") if not line.startswith("device GPU-7")))
    print(file=p.stdin, flush=True)
    look = [read() for _ in range(3)]
    assert by_place(look[2]["facts"])["gpu7"] == {"gpu_error": "the driver no longer lists it"}
    host.use("healthy")
    with open(host.events, "a") as f:
        print(3, 79, file=f)
    assert read() == {"xid": 79, "gpu": 3, "uuid": "GPU-3333-h100", "pci": "0000:31:00.0"}
    look = [read() for _ in range(3)]
    assert by_place(look[2]["facts"])["gpu3"] == well(3), "the agent remembers it"
    p.stdin.close()
    assert p.wait(30) == 0


def agent(rdzv, host, *args, script="sleep 60", more=None):
    return rdzv.agent("--standalone", "--verbose", "--max-restarts", 0, *args, "--", "sh", "-c", script, env=host.env(**more or {}))


def test_check_only(rdzv, host):
    (line,) = pages.lines("deploy/guide/health.md", "check-only")
    for profile in FAULTS:
        host.use(profile)
        a = rdzv.agent(*shlex.split(line)[1:], env=host.env())
        assert a.exit() == (16 if profile in BROKEN else 0), a
        assert len([line for line in a.out if re.match(r"gpu\d ", line)]) == 8, a
        assert a.says(f"this host cannot work: {BROKEN[profile]}") if profile in BROKEN else not a.err, a
    host.use("hangs")
    a = rdzv.agent("--check-only", "--device-timeout", "300ms", env=host.env())
    assert a.exit() == 0, a
    a.expect("^not known: the GPU driver gave no answer within 0.3 s")
    a.expect("^kernel ")
    rdzv.gone()


def test_strict(rdzv, host):
    """A node that cannot work leaves before HELLO; one that is only suspect joins, and so does one that cannot be asked."""
    for profile, code in ("off_the_bus", 16), ("reset_needed", 16), ("half_pcie", 0), ("healthy", 0):
        host.use(profile)
        a = agent(rdzv, host, "--health", "strict", script="echo ran")
        assert a.exit() == code, a
        assert ("ran" in a.out) == (code == 0) and a.says("start the job on another host") == (code == 16), a
        assert a.says("rdzvd: listens") == (code == 0), a
    host.use("hangs")
    a = agent(rdzv, host, "--health", "strict", "--device-timeout", "300ms", script="echo ran")
    assert a.exit() == 0 and a.says("health: the GPU driver gave no answer within 0.3 s; checks that need it count as passed"), a
    rdzv.gone()


def test_facts_reach_the_daemon(rdzv, host):
    """After WELCOME, when they change, and again after a reconnect."""
    host.use("remap_pending")
    fake = FakeDaemon(WELCOME)
    a = rdzv.agent("--endpoint", fake.endpoint, "--nnodes", 2, "--", "true", env=host.env())
    until("FACTS", lambda: fake.facts)
    assert fake.heard.index("HELLO") < fake.heard.index("FACTS")
    first = fake.facts[0]
    assert abs(first["wall_ms"] - time.time() * 1000) < 60000 and "text" not in first
    places = by_place(first["facts"])
    assert [places[f"gpu{i}"]["gpu_used"] for i in range(8)] == [1, 0, 0, 0, 0, 0, 0, 0], "by the one worker's rank"
    assert places[""]["gpus"] == 8 and places["gpu2"]["remap_pending"] == 1 and places[""]["rdzv"]
    host.use("healthy")
    with open(host.events, "a") as f:
        print(2, 63, file=f)
    until("FACTS that have changed", lambda: len(fake.facts) > 1)
    assert by_place(fake.facts[1]["facts"])["gpu2"] == {**well(2), "gpu_used": 0}
    a.expect(r"gpu2 \(GPU-2222-h100\): XID 63 \(rows of GPU memory are remapped\)")
    for c in fake.conns:
        c.shutdown(2)
    until("FACTS after a reconnect", lambda: len(fake.facts) > 2)
    assert fake.facts[2]["facts"] == fake.facts[1]["facts"]
    a.end(signal.SIGKILL)
    fake.close()
    rdzv.gone()


def test_a_helper_that_is_killed_takes_no_xid_with_it(rdzv, host):
    """The driver hangs after the XID, so the helper is killed; what it saw is in what the daemon hears then."""
    fake = FakeDaemon(WELCOME)
    a = rdzv.agent("--endpoint", fake.endpoint, "--nnodes", 2, "--nproc", 8, "--", "true", env=host.env())
    until("FACTS", lambda: fake.facts)
    helper = helper_of(host)
    with open(host.events, "a") as f:
        print(3, 79, file=f)
    a.expect(r"gpu3 \(GPU-3333-h100\): XID 79")
    os.kill(helper, signal.SIGKILL)
    until("FACTS of a helper that is gone", lambda: "text" in fake.facts[-1])
    assert by_place(fake.facts[-1]["facts"])["gpu3"] | {"gpu_used": 1, "xid": 79} == by_place(fake.facts[-1]["facts"])["gpu3"]
    a.end(signal.SIGKILL)
    fake.close()
    rdzv.gone()


def used(fake):
    return [f["at"] for f in fake.facts[-1]["facts"] if f["name"] == "gpu_used" and f.get("value")]


@pytest.mark.parametrize("env, args, want", [
    ({"CUDA_VISIBLE_DEVICES": "6,7"}, ("--nproc", 2), [6, 7]),
    ({"CUDA_VISIBLE_DEVICES": "GPU-5555"}, ("--nproc", 1), [5]),
    ({"CUDA_VISIBLE_DEVICES": ""}, ("--nproc", 1), []),
    ({}, ("--nproc", 8), range(8)),
    ({}, ("--nproc", 3), range(3)),
], ids=["list", "uuid", "none", "all", "few"])
def test_which_gpus_the_job_uses(rdzv, host, env, args, want):
    fake = FakeDaemon(WELCOME)
    a = rdzv.agent("--endpoint", fake.endpoint, "--nnodes", 2, *args, "--", "true", env=host.env(**env))
    until("FACTS", lambda: fake.facts)
    assert used(fake) == [f"gpu{i}" for i in want] and len([f for f in fake.facts[-1]["facts"] if f["name"] == "gpu_used"]) == 8, fake.facts[-1]
    a.end(signal.SIGKILL)
    fake.close()


def test_strict_and_a_gpu_that_nobody_uses(rdzv, host):
    for i in range(8):
        (host.root / f"proc/driver/nvidia/gpus/0000:{i}1:00.0").mkdir(parents=True)
    host.use("off_the_bus")  # gpu3
    for more, args, code in ({"CUDA_VISIBLE_DEVICES": "0,1"}, ("--nproc", 2), 0), ({"CUDA_VISIBLE_DEVICES": "2,3"}, ("--nproc", 2), 16), ({}, ("--nproc", 3), 0), ({}, ("--nproc", 4), 16):
        a = agent(rdzv, host, "--health", "strict", *args, script="true", more=more)
        assert a.exit() == code, a
    rdzv.gone()


def test_off(rdzv, host):
    for args in ("--health", "off"), ("--device-timeout", 0):
        fake = FakeDaemon(WELCOME)
        a = rdzv.agent("--endpoint", fake.endpoint, "--nnodes", 2, *args, "--", "true", env=host.env())
        until("HELLO", lambda: "HELLO" in fake.heard)
        until("a heartbeat", lambda: fake.heard.count("HEARTBEAT") > 1)  # long after a helper would have started
        assert host.looks == 0 and not fake.facts, a
        a.end(signal.SIGKILL)
        fake.close()


def test_xid_in_the_verdict(rdzv, host, tmp_path):
    """The GPU of the worker that died, and the heaviest XID of this round; neither an echo nor one of another GPU."""
    go = tmp_path / "go"
    die = f'until [ -e {go} ]; do sleep 0.05; done; [ "$LOCAL_RANK" = 3 ] && exit 7; sleep 60'
    for events, verdict in (
        (["1 79", "3 31", "3 79", "3 45"], r"exited with code 7; its GPU reported XID 79 \(GPU has fallen off the bus\)"),
        (["3 45", "3 13", "3 31"], r"exited with code 7; its GPU reported XID 13 \(graphics engine exception, most often the application's own doing\)"),
        (["1 79", "3 45"], r"exited with code 7; 0 of 0"),
    ):
        go.unlink(missing_ok=True)
        file = tmp_path / "verdict.json"
        a = agent(rdzv, host, "--nproc", 8, "--verdict-file", file, script=die)
        a.expect("health: .* facts")
        for i, line in enumerate(events, 1):
            with open(host.events, "a") as f:
                print(line, file=f)
            until("the XID", lambda: len(re.findall("XID", a.text)) == i)
        go.touch()
        assert a.exit() == 7, a
        a.expect(rf"failed in round 1: rank 3 \(local 3\) .*device 3, GPU-3333-h100, pid \d+, {verdict}")
        number = re.search(r"XID (\d+)", verdict)
        assert json.loads(file.read_text())["verdict"]["xid"] == (int(number[1]) if number else 0)
    rdzv.gone()


def test_an_xid_of_an_earlier_round_does_not_count(rdzv, host, tmp_path):
    go = tmp_path / "go"
    script = f'until [ -e {go}$RDZV_ROUND ]; do sleep 0.05; done; exit "$RDZV_ROUND"'
    a = agent(rdzv, host, "--max-restarts", 1, "--nproc", 1, script=script)
    a.expect("health: .* facts")
    with open(host.events, "a") as f:
        print("0 31", file=f)
    a.expect("XID 31")
    Path(f"{go}1").touch()
    a.expect("exited with code 1; its GPU reported XID 31")
    Path(f"{go}2").touch()
    assert a.exit() == 2, a
    a.expect("failed in round 2: .*exited with code 2; 1 of 1")


@pytest.mark.parametrize("profile", sorted(HANGING))
def test_a_driver_that_hangs_delays_nothing(rdzv, host, profile):
    """The job starts, runs and ends while rdzv-devices hangs; the daemon gets what is known; and the next helper waits until that one is gone."""
    host.use(profile)
    fake = FakeDaemon(WELCOME)
    a = rdzv.agent("--endpoint", fake.endpoint, "--nnodes", 2, "--device-timeout", "400ms", "--", "true", env=host.env())
    until("FACTS", lambda: fake.facts)
    assert fake.facts[0]["text"] == "the GPU driver gave no answer within 0.4 s"
    assert set(by_place(fake.facts[0]["facts"])) == {""} and by_place(fake.facts[0]["facts"])[""]["kernel"]
    a.expect("health: the GPU driver gave no answer within 0.4 s; checks that need it count as passed")
    a.end(signal.SIGKILL)
    fake.close()
    if profile == "hangs":
        return  # then the first round waits for the driver in any case: --device-timeout
    a = agent(rdzv, host, "--nproc", 1, script="sleep 1; echo ran")
    a.expect("running -> finished")
    assert host.looks and not a.says("health: "), "the helper still hangs when the job ends"
    assert a.exit() == 0 and ("ran" in a.out), a
    rdzv.gone()



def helper_of(host):
    return until("the helper runs", lambda: [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if comm(p) == "rdzv-devices" and environ(p).get("RDZV_FAKE_NVML") == str(host.script)])[0]


def test_the_helper_dies_with_its_agent(rdzv, host):
    a = agent(rdzv, host, "--nproc", 1)
    a.expect("health: .* facts")
    helper = helper_of(host)
    os.kill(int(stat(helper)[1]), signal.SIGKILL)
    until("the helper is gone", lambda: not alive(helper))
    a.exit()


def test_a_helper_that_talks_nonsense(rdzv, host):
    """A library that writes to stdout spoils a line: no check then, one sentence, and the job runs."""
    host.put("chatter 20\n" + (PROFILES / "healthy.nvml").read_text())
    a = agent(rdzv, host, "--nproc", 1, script="sleep 1; echo ran")
    a.expect("health: rdzv-devices printed a line that is not understood; checks that need it count as passed")
    assert a.exit() == 0 and ("ran" in a.out), a
    host.put("crash\n")
    a = agent(rdzv, host, "--nproc", 1, script="sleep 1; echo ran", more={"ASAN_OPTIONS": "handle_segv=0"})
    a.expect(r"health: rdzv-devices \(pid \d+\) (was killed by signal 11|exited with code 1); checks that need it count as passed")
    assert a.exit() == 0 and ("ran" in a.out), a
    assert subprocess.run([AGENT, "--health", "maybe", "--", "true"], capture_output=True, text=True).stderr.count("--health")
