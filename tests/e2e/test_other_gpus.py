# SPDX-License-Identifier: Apache-2.0
"""GPUs of AMD and Intel, which are found in files: counted, shown to workers, left out when busy, waited for between rounds, named by verdicts. The files are made."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import BUILD, TOP

sys.path.insert(0, str(TOP / "tests/rig"))
import machines  # noqa: E402

HELPER = BUILD / "agent/rdzv-devices"
LISTS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "ROCR_VISIBLE_DEVICES")
PLACE = 'echo "worker $LOCAL_RANK has ${RDZV_DEVICE_UUID-none} by ' + " ".join(f"${{{name}-all}}" for name in LISTS) + '"'


class Machine:
    def __init__(self, tmp):
        self.root = tmp / "root"
        self.root.mkdir()

    def env(self, **more):
        return {"RDZV_DEVICES_ROOT": str(self.root), "RDZV_NVML_LIBRARY": "libthere-is-none.so.7", "OMP_NUM_THREADS": "1", **more}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    for name in LISTS:
        monkeypatch.delenv(name, raising=False)
    return Machine(tmp_path)


def places(agent):
    """local rank -> (UUID, the lists), as workers said last."""
    found = re.findall(r"worker (\d+) has (\S+) by (\S+) (\S+) (\S+) (\S+) (\S+)", "\n".join(agent.out))
    return {int(rank): (uuid, tuple(lists)) for rank, uuid, *lists in found}


def run(rdzv, machine, *args, code=0, script=PLACE, **lists):
    agent = rdzv.agent("--max-restarts", 1, *args, "--", "sh", "-c", script, env=machine.env(**lists))
    assert agent.exit(60) == code, agent
    return agent


def test_a_worker_for_each_of_amd(rdzv, machine):
    gpus = machines.mi250(machine.root)
    for count in "gpu", "auto":
        agent = run(rdzv, machine, "--nproc", count)
        assert {rank: uuid for rank, (uuid, _) in places(agent).items()} == {i: uuid for i, (_, uuid, _) in enumerate(gpus)}, agent
    agent = run(rdzv, machine, "--nproc", "gpu", ROCR_VISIBLE_DEVICES="6,5,4", HIP_VISIBLE_DEVICES="2,0")
    assert places(agent) == {i: (gpus[k][1], ("2,0", "all", "all", "all", "6,5,4")) for i, k in enumerate((4, 6))}, agent
    assert run(rdzv, machine, "--nproc", "xpu", code=64).says(r"--nproc=xpu: no GPU of Intel is visible"), agent
    agent = run(rdzv, machine, "--nproc", "gpu", code=64, ROCR_VISIBLE_DEVICES="4,5", CUDA_VISIBLE_DEVICES="4,5")
    assert agent.says('--nproc=gpu: no GPU is visible: CUDA_VISIBLE_DEVICES=4,5: "4" is none of the 2 that ROCR_VISIBLE_DEVICES leaves; HIP ignores it'), agent
    agent = run(rdzv, machine, "--nproc", "gpu", ROCR_VISIBLE_DEVICES="4,5,12")
    assert len(places(agent)) == 2 and agent.text.count('"12" is none of this machine\'s 8; ROCm ignores it') == 1, agent


def test_a_worker_for_each_tile_of_intel(rdzv, machine):
    machines.pvc(machine.root)
    machines.display(machine.root)
    for count in "gpu", "xpu", "auto":
        assert len(places(run(rdzv, machine, "--nproc", count))) == 12
    assert len(places(run(rdzv, machine, "--nproc", "xpu", ZE_FLAT_DEVICE_HIERARCHY="COMPOSITE"))) == 6
    agent = run(rdzv, machine, "--nproc", "xpu", ZE_AFFINITY_MASK="3,1,3.1,99")
    assert len(places(agent)) == 2 and agent.says('"3.1" is none of this machine\'s 12; Level Zero skips it'), agent


def test_a_display_is_not_counted(rdzv, machine):
    """As torchrun with a PyTorch that was not built for Intel: a worker for each CPU."""
    machines.display(machine.root)
    assert len(places(run(rdzv, machine, "--nproc", "auto"))) == len(os.sched_getaffinity(0))


def test_mixed_host(rdzv, machine):
    machines.amd(machine.root, [(0x30, 0), (0x40, 1)], gfx=90402)
    machines.intel(machine.root, [(0x60, 0)], tiles=1, minor=140)
    agent = run(rdzv, machine, "--nproc", "gpu")
    assert len(places(agent)) == 2 and agent.text.count("this host has GPUs of several vendors (AMD 2, Intel 1): workers use AMD's; --nproc xpu selects Intel's") == 1, agent
    agent = run(rdzv, machine, "--nproc", "xpu", "--virtual-local-rank")
    assert places(agent) == {0: ("none", ("all", "all", "0", "all", "all"))} and not agent.says("vendors"), agent


def test_each_worker_sees_its_own(rdzv, machine):
    """In its vendor's variable, and counted as that counts."""
    gpus = machines.mi250(machine.root)
    show = 'echo "$RDZV_LOCAL_RANK $LOCAL_RANK $RDZV_DEVICE_UUID $HIP_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES $ROCR_VISIBLE_DEVICES"'
    agent = run(rdzv, machine, "--nproc", 2, "--virtual-local-rank", script=show, ROCR_VISIBLE_DEVICES="5,3,1", CUDA_VISIBLE_DEVICES="2,0")
    assert sorted(l.split("] ")[1] for l in agent.out) == [f"0 0 {gpus[1][1]} 2 2 5,3,1", f"1 0 {gpus[5][1]} 0 0 5,3,1"], agent
    agent = run(rdzv, machine, "--nproc", 3, "--virtual-local-rank", script=show, code=64, HIP_VISIBLE_DEVICES="2,0")
    assert agent.says("gives each of the 3 workers a device of its own, but HIP_VISIBLE_DEVICES names only 2"), agent


def test_each_worker_sees_its_own_of_intel(rdzv, machine):
    machines.pvc(machine.root)
    show = 'echo "$RDZV_LOCAL_RANK $ZE_AFFINITY_MASK $ONEAPI_DEVICE_SELECTOR ${CUDA_VISIBLE_DEVICES-all}"'
    agent = run(rdzv, machine, "--nproc", 2, "--virtual-local-rank", script=show, ZE_AFFINITY_MASK="9,4,7", ONEAPI_DEVICE_SELECTOR="level_zero:2,1")
    assert sorted(l.split("] ")[1] for l in agent.out) == ["0 7 level_zero:gpu all", "1 9 level_zero:gpu all"], agent


def test_busy_amd_gpus_are_left_out(rdzv, machine):
    gpus = machines.mi250(machine.root)
    holder = rdzv.spawn("sleep", "1000")
    machines.holds_kfd(machine.root, holder.pid, gpus[1][0], 30512)
    machines.holds_kfd(machine.root, holder.pid, gpus[2][0], 12)  # it has opened it, as each process of ROCm does
    machines.uses_vram(machine.root, gpus[3][2], 50000)  # of another container
    said = rf"device 1, {gpus[1][1]} \(AMD gfx90a\) is busy: pid {holder.pid} \(\S+, sleep 1000\) holds 30512 MiB; --exclude-busy"
    assert run(rdzv, machine, "--nproc", "gpu").says(said)
    agent = run(rdzv, machine, "--nproc", "gpu", "--exclude-busy")
    left = [0, 2, 4, 5, 6, 7]
    shown = ",".join(map(str, left))
    assert places(agent) == {i: (gpus[k][1], (shown, shown, "all", "all", "all")) for i, k in enumerate(left)}, agent
    assert agent.says(rf"leaves out device 3, {gpus[3][1]}: 50000 MiB are in use by a process that is not visible here"), agent
    # Within what ROCR leaves, where HIP's numbers begin anew.
    agent = run(rdzv, machine, "--nproc", "gpu", "--exclude-busy", ROCR_VISIBLE_DEVICES="1,7,6")
    assert places(agent) == {i: (gpus[k][1], ("1,2", "1,2", "all", "all", "1,7,6")) for i, k in enumerate((7, 6))}, agent
    assert run(rdzv, machine, "--nproc", 7, "--exclude-busy", code=79).says("of 8 devices only 6 are free")
    holder.kill()


def test_busy_intel_tiles_are_left_out(rdzv, machine):
    """A process's memory is in its fdinfo; a forked child of it, which has the same files, does not count again."""
    pci = machines.pvc(machine.root)
    holder, child = rdzv.spawn("sleep", "1000"), rdzv.spawn("sleep", "1001")
    for pid in sorted((holder.pid, child.pid)):
        machines.holds_drm(machine.root, pid, pci[2], 20000, tile=1)
    agent = run(rdzv, machine, "--nproc", "xpu", "--exclude-busy")
    shown = ",".join(str(i) for i in range(12) if i != 5)
    assert places(agent)[10] == ("none", ("all", "all", shown, "all", "all")) and len(places(agent)) == 11, agent
    assert agent.says(rf"leaves out device 5, {pci[2]} tile 1: pid \d+ \(\S+, sleep 100\d\) holds 20000 MiB\n"), agent
    agent = run(rdzv, machine, "--nproc", "xpu", "--exclude-busy", ZE_FLAT_DEVICE_HIERARCHY="COMPOSITE")
    assert len(places(agent)) == 5 and agent.says(rf"leaves out device 2, {pci[2]}: pid"), agent
    holder.kill()
    child.kill()


def test_memory_is_waited_for(rdzv, machine):
    """The worker's own first process does not free its GPU before the others look again."""
    gpus = machines.mi250(machine.root)
    agent = rdzv.agent("--max-restarts", 1, "--nproc", "gpu", "-v", "--", "sh", "-c", PLACE + '; while [ ! -e go ]; do sleep 0.05; done; [ "$RDZV_ROUND" != 1 ]', env=machine.env())
    rdzv.await_workers(8)
    machines.uses_vram(machine.root, gpus[2][2], 40000)
    (rdzv.tmp / "go").touch()
    agent.expect(rf"waiting for the memory of device 2, {gpus[2][1]} \(AMD gfx90a\): 40000 MiB are in use by a process that is not visible here; at most 20 s")
    machines.uses_vram(machine.root, gpus[2][2], 310)
    assert agent.exit(60) == 0 and agent.says(r"devices are free after \d+ ms") and agent.says("is done: 2 rounds, 1 restart"), agent


def test_memory_that_never_comes_back(rdzv, machine):
    """The verdict names the device and its holder."""
    gpus = machines.mi300x(machine.root)
    holder = rdzv.spawn("sleep", "1000", env={"RDZV_RUN_ID": "run-7"})
    script = PLACE + '; while [ ! -e go ]; do sleep 0.05; done; exit 1'
    agent = rdzv.agent("--max-restarts", 1, "--nproc", "gpu", "--rdzv-id", "run-7", "--endpoint", rdzv.daemon().endpoint, "--device-timeout", "1s", "--verdict-file", "verdict",
                       "--", "sh", "-c", script, env=machine.env())
    rdzv.await_workers(8)
    machines.holds_kfd(machine.root, holder.pid, gpus[3][0], 150000)
    machines.uses_vram(machine.root, gpus[3][2], 150300)
    (rdzv.tmp / "go").touch()
    assert agent.exit(60) == 79, agent
    who = rf"pid {holder.pid} \(\S+, sleep 1000, of job run-7\) holds 150000 MiB"
    assert agent.says(rf"rank 3 \(local 3\) on \S+, device 3, {gpus[3][1]}, was not started: its memory is not free after [\d.]+ s: {who}"), agent
    verdict = json.loads((rdzv.tmp / "verdict").read_text())["verdict"]
    assert (verdict["cause"], verdict["device"]) == ("device-held", f"3, {gpus[3][1]}"), verdict
    holder.kill()


def test_gpu_that_falls_off_its_bus(rdzv, machine):
    gpus = machines.mi250(machine.root)
    file = machine.root / f"sys/bus/pci/devices/{gpus[6][2]}/mem_info_vram_used"
    file.unlink()
    file.mkdir()  # it is there, and cannot be read
    agent = run(rdzv, machine, "--nproc", "gpu", "--exclude-busy")
    assert len(places(agent)) == 7 and agent.says(rf"leaves out device 6, {gpus[6][1]}: it fails: mem_info_vram_used cannot be read: "), agent


def test_workers_run_beside_their_gpus(rdzv, machine):
    """The NUMA nodes are made of this machine's CPUs; the GPUs' order is not that of the nodes."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("not on this machine: needs two CPUs")
    machines.amd(machine.root, [(0x41, 1), (0x42, 0)], gfx=90402)
    machines.put(machine.root, "sys/devices/system/node/online", "0-1")
    machines.put(machine.root, "sys/devices/system/node/node0/cpulist", cpus[0])
    machines.put(machine.root, "sys/devices/system/node/node1/cpulist", cpus[1])
    show = 'echo "$LOCAL_RANK on $(grep Cpus_allowed_list /proc/self/status | cut -f2)"'
    agent = run(rdzv, machine, "--nproc", "gpu", "--numa-binding", "node", script=show)
    assert sorted(l.split("] ")[1] for l in agent.out) == [f"0 on {cpus[1]}", f"1 on {cpus[0]}"] and not agent.says("numa-binding"), agent


def test_the_trainer_asks_for_no_ids_on_amd(rdzv, machine):
    """It has code for NVIDIA's GPUs only."""
    machines.mi250(machine.root)
    agent = rdzv.agent("--verbose", "--nproc", 2, "--", "--steps", 5, env=machine.env(RDZV_NCCL_LIBRARY="/nowhere/libnccl.so.2"))
    assert agent.exit(60) == 0 and not agent.says("mint"), agent


def test_the_helper_by_hand(rdzv, machine):
    """As the guide says: devices, memory and holders as JSON. Without any GPU it says why."""
    ask = lambda: json.loads(subprocess.run([HELPER], env={**os.environ, **machine.env()}, capture_output=True, text=True, check=True, timeout=20).stdout)
    assert set(ask()) == {"missing"}
    gpus = machines.mi300x(machine.root)
    machines.holds_kfd(machine.root, os.getpid(), gpus[0][0], 4000)
    first = ask()["devices"][0]
    own = {"pid": os.getpid(), "mib": 4000}
    assert (first["vendor"], first["uuid"], first["pci"], first["name"], first["total_mib"], first["used_mib"]) == ("amd", gpus[0][1], gpus[0][2], "AMD Instinct MI300X", 192 << 10, 300)
    assert own.items() <= first["processes"][0].items() and first["processes"][0]["command"], first
    assert len(ask()["devices"]) == 8


def test_files_that_make_no_sense(rdzv, machine):
    """Whatever is in them, the job runs."""
    machines.mi250(machine.root)
    machines.pvc(machine.root)
    rubbish = ["", "\n\n", "x" * 100000, "simd_count\n", "simd_count -1\nlocation_id 99999999999999999999\n", "simd_count 1\nunique_id zzz\ndomain -7", "\0\0"]
    files = sorted(p for p in Path(machine.root).rglob("*") if p.is_file())
    for i, file in enumerate(files):
        file.write_text(rubbish[i % len(rubbish)])
    agent = run(rdzv, machine, "--nproc", "auto")
    assert places(agent), agent
