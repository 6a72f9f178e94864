# SPDX-License-Identifier: Apache-2.0
"""--numa-binding: on fifty made machines our workers get the CPUs that torch/numa/binding.py would give them."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from conftest import EVERY_PYTORCH
from harness import BUILD

pytestmark = EVERY_PYTORCH

PLAN = BUILD / "tests/unit/numa-plan"
MODES = ["node", "socket", "exclusive", "core-complex"]
# PyTorch's own functions, with their hands on a made tree: for each machine of stdin, mode -> CPUs of each GPU's worker, None: it refuses.
THEIRS = """
import builtins, json, os, sys
from types import SimpleNamespace as Space
import torch.numa.binding as b
answers = []
for m in json.load(sys.stdin):
    root, allowed = m["root"], set(m["allowed"])
    b.open = lambda path, root=root: builtins.open(root + path)
    b.os = Space(path=os.path, listdir=lambda path, root=root: os.listdir(root + path), sched_getaffinity=lambda _, a=allowed: a)
    place = lambda i, m=m: Space(pci_domain_id=0, pci_bus_id=int(m["gpus"][i][5:7], 16), pci_device_id=0)
    cuda = Space(device_count=lambda m=m: len(m["gpus"]), get_device_properties=place)
    every = Space(is_available=lambda: True, current_accelerator=lambda: "cuda", device_count=cuda.device_count)
    b.torch = Space(cuda=cuda, accelerator=every, get_device_module=lambda name, cuda=cuda: cuda)
    index = "gpu_index" if hasattr(b, "_get_numa_node_index_for_gpu_index") else "device_index"  # until 2.13, and since 2.14
    answer = {}
    for mode in sys.argv[1:]:
        answer[mode] = []
        for i in range(len(m["gpus"])):
            try:
                got = b._get_logical_cpus_to_bind_to(**{index: i}, numa_options=b.NumaOptions(affinity_mode=b.AffinityMode(mode)))
            except Exception as e:
                got = None
            answer[mode].append(sorted(got) if got else None)
    answers.append(answer)
json.dump(answers, sys.stdout)
"""


def put(root, path, text):
    file = Path(root) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def commas(cpus):
    return ",".join(map(str, sorted(cpus)))


def make(root, rng):
    """A machine: sockets, nodes in them, caches in those, cores with one or two threads, numbered in one of the two ways that are met."""
    sockets, nodes, caches, cores = rng.choice([1, 2]), rng.choice([1, 1, 2]), rng.choice([1, 2, 3]), rng.choice([1, 2, 4])
    threads, all_cores = rng.choice([1, 2]), sockets * nodes * caches * cores
    neighbours = rng.random() < 0.3
    cpu = lambda core, thread: core * threads + thread if neighbours else core + thread * all_cores
    members = {}
    for core in range(all_cores):
        cache, node = core // cores, core // cores // caches
        mine = [cpu(core, t) for t in range(threads)]
        group = [cpu(c, t) for c in range(cache * cores, (cache + 1) * cores) for t in range(threads)]
        members.setdefault(node, []).extend(mine)
        for c in mine:
            sys_cpu = f"sys/devices/system/cpu/cpu{c}"
            put(root, f"{sys_cpu}/topology/thread_siblings_list", commas(mine))
            put(root, f"{sys_cpu}/topology/physical_package_id", node // nodes)
            for index, level, kind, shared in [(0, 1, "Data", mine), (1, 1, "Instruction", mine), (2, 2, "Unified", mine), (3, 3, "Unified", group)]:
                for name, text in ("level", level), ("type", kind), ("shared_cpu_list", commas(shared)):
                    put(root, f"{sys_cpu}/cache/index{index}/{name}", text)
    for name in "possible", "online":
        put(root, f"sys/devices/system/node/{name}", f"0-{len(members) - 1}" if len(members) > 1 else 0)
    for node, cpus in members.items():
        put(root, f"sys/devices/system/node/node{node}/cpulist", commas(cpus))
    gpus = [f"0000:{bus:02x}:00.0" for bus in sorted(rng.sample(range(1, 255), rng.randint(1, 8)))]
    for gpu in gpus:
        put(root, f"proc/driver/nvidia/gpus/{gpu}/information", "GPU UUID: x")
        put(root, f"sys/bus/pci/devices/{gpu}/numa_node", rng.randrange(len(members)) if len(members) > 1 else -1)
    every = [c for cpus in members.values() for c in cpus]
    allowed = every if rng.random() < 0.5 else [c for c in every if rng.random() < 0.7]
    # torch refuses --numa-binding socket where any node has no CPU for us; we bind to the others.
    allowed = sorted({*allowed, *(cpus[0] for cpus in members.values())})
    return {"root": str(root), "allowed": allowed, "gpus": gpus}


def ours(machine, mode):
    argv = [PLAN, machine["root"], mode, commas(machine["allowed"]), str(len(machine["gpus"]))]
    out = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    spread = lambda l: [c for part in l.split(",") for c in range(int(part.split("-")[0]), int(part.split("-")[-1]) + 1)]
    return [None if line == "-" else spread(line) for line in out]


@pytest.mark.parametrize("seed", [1])
def test_as_pytorch_binds(pytorch, tmp_path, seed):
    rng = random.Random(seed)
    machines = [make(tmp_path / str(i), rng) for i in range(50)]
    done = subprocess.run([pytorch, "-c", THEIRS, *MODES], input=json.dumps(machines), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    refused = 0
    for machine, theirs in zip(machines, json.loads(done.stdout)):
        for mode in MODES:
            assert ours(machine, mode) == theirs[mode], (seed, machine, mode)
            refused += theirs[mode].count(None)
    assert refused  # more GPUs than cores on a node is among them
