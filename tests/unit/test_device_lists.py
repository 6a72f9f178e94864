# SPDX-License-Identifier: Apache-2.0
"""The GPUs of machines of each vendor, and which of them a worker sees: agent/devices/devices.c beside a model of the runtimes.

usage: test_device_lists.py DEVICE_LISTS

The model is written from the vendors' documents ("GPU isolation techniques" of ROCm, Level Zero's affinity mask, the selector of oneAPI, CUDA's environment
variables), with their sources where the documents are silent. It knows nothing of our code: it works on whole lists of strings.
"""
import json
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rig"))
import machines  # noqa: E402

ANY, INTEL = 3, 2
CASES = 1000


class Machine:
    def __init__(self, program, root, wish=ANY):
        self.argv = [program, str(root), str(wish)]

    def ask(self, *envs):
        text = "".join("\t".join(f"{k}={v}" for k, v in env.items()) + "\n" for env in envs)
        done = subprocess.run(self.argv, input=text, capture_output=True, text=True, timeout=50)
        assert done.returncode == 0, done
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(answers) == len(envs), done
        return answers if len(envs) != 1 else answers[0]

    def order(self, **env):
        return [d["index"] for d in self.ask(env)["devices"]]


# The model. -----------------------------------------------------------------------------------------------------------


def model_rocr(uuids, text):
    """A list of the machine's GPUs, in the list's order. It ends before an entry that names none, or one that is in it."""
    chosen = []
    for word in text.split(",")[: len(uuids)] if text else []:
        word = word.strip().upper()
        if word.startswith("G"):
            matches = [i for i, u in enumerate(uuids) if u.upper().startswith(word)] if 5 <= len(word) <= 20 else []
            if len(matches) != 1:
                break
            one = matches[0]
        elif re.fullmatch(r"0X[0-9A-F]+|\d+", word):
            one = int(word, 16 if "X" in word else 8 if word.startswith("0") and len(word) > 1 and set(word) <= set("01234567") else 10)
        else:
            break
        if one >= len(uuids) or one in chosen:
            break
        chosen.append(one)
    return chosen


def model_hip(visible, uuids, text):
    """Of what ROCR leaves. A repeated entry counts once; the first that names none ends it."""
    chosen = []
    for word in text.split(","):
        if "GPU-" in word:
            word = next((str(i) for i, gpu in enumerate(visible) if word in uuids[gpu]), word)
        if not re.fullmatch(r"0|[1-9]\d*", word) or int(word) >= len(visible):
            break
        if int(word) not in chosen:
            chosen.append(int(word))
    return chosen


def model_amd(uuids, env):
    """(GPUs, their numbers in a HIP list)"""
    visible = list(range(len(uuids)))
    if "ROCR_VISIBLE_DEVICES" in env:
        visible = model_rocr(uuids, env["ROCR_VISIBLE_DEVICES"])
    lists = [env[name] for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES") if name in env]
    numbers = list(range(len(visible)))
    if lists:
        text = next((text for text in lists if text), "")
        numbers = model_hip(visible, uuids, text) if text else []  # PyTorch sees none; HIP alone would see all
    return [visible[i] for i in numbers], numbers


def model_cuda(count, text):
    chosen = []
    for word in text.split(","):
        if not re.match(r"\s*\+?\d", word):
            break
        one = int(re.match(r"\s*\+?(\d+)", word)[1])
        if one >= count:
            break
        if one in chosen:
            return []
        chosen.append(one)
    return chosen


def model_selector(text, count):
    """BACKEND:DEVICE,...;... of level_zero."""
    take, drop, positive = set(), set(), False
    for term in text.split(";"):
        backend, _, names = term.lstrip("!").partition(":")
        positive |= term[0] != "!"
        if backend in ("level_zero", "*"):
            found = {i for name in names.split(",") for i in range(count) if name in ("*", "gpu") or name == str(i)}
            (drop if term[0] == "!" else take).update(found)
    return [i for i in range(count) if (i in take or not positive) and i not in drop]


def model_intel(cards, tiles, env):
    """(number without a mask, the mask that shows it alone), in Level Zero's order."""
    composite = env.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE"
    count = cards if composite else cards * tiles
    devices = {i: set(range(tiles)) for i in range(count)}
    mask = env.get("ZE_AFFINITY_MASK", "")
    if mask:
        devices = {}
        for word in mask.split(","):
            parts = word.strip().split(".")
            if not all(p.isdigit() for p in parts) or int(parts[0]) >= count or (len(parts) > 1 and (not composite or int(parts[1]) >= tiles or len(parts) > 2)):
                continue
            devices.setdefault(int(parts[0]), set()).update({int(parts[1])} if len(parts) > 1 else {"all"})
    found = sorted(devices)
    whole = lambda i: not mask or "all" in devices[i] or not composite
    entries = {i: str(i) if whole(i) else ",".join(f"{i}.{tile}" for tile in sorted(devices[i])) for i in found}
    if env.get("ONEAPI_DEVICE_SELECTOR"):
        found = [found[k] for k in model_selector(env["ONEAPI_DEVICE_SELECTOR"], len(found))]
    return [(i, entries[i]) for i in found]


# Machines. ------------------------------------------------------------------------------------------------------------


def test_mi250(program, root):
    found = machines.mi250(root)
    got = Machine(program, root).ask({})["devices"]
    assert [(d["index"], d["uuid"], d["pci"], d["entry"]) for d in got] == [(i, uuid, pci, str(i)) for i, (_, uuid, pci) in enumerate(found)], got
    # A cgroup denies one by its properties, a container has no device file of another: ROCm counts neither.
    (root / "sys/class/kfd/kfd/topology/nodes/5/properties").unlink()
    (root / "dev/dri/renderD130").unlink()
    got = Machine(program, root).ask({}, {"HIP_VISIBLE_DEVICES": "1"})
    assert [d["pci"] for d in got[0]["devices"]] == [found[i][2] for i in (0, 3, 4, 5, 6, 7)], got
    assert [d["pci"] for d in got[1]["devices"]] == [found[3][2]], got


def test_mi300x(program, root):
    found = machines.mi300x(root)
    m = Machine(program, root)
    assert [d["pci"] for d in m.ask({})["devices"]] == [pci for _, _, pci in found]
    assert m.order(ROCR_VISIBLE_DEVICES=f"{found[5][1].upper()},2", HIP_VISIBLE_DEVICES="1,0") == [2, 5]
    # Cut into parts (CPX), whose UUID and PCI device are one.
    parts = root / "parts"
    machines.mi300x(parts, parts=8)
    got = Machine(program, parts).ask({})["devices"]
    assert len(got) == 64 and [(d["pci"], d["part"]) for d in got[:9]] == [(found[0][2], i) for i in range(8)] + [(found[1][2], 0)], got[:9]


def test_pvc(program, root):
    for driver in "xe", "i915":
        pci = machines.pvc(root / driver, driver)
        machines.display(root / driver)
        m = Machine(program, root / driver)
        flat, cards = m.ask({}, {"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"})
        assert [(d["pci"], d["part"]) for d in flat["devices"]] == [(p, t) for p in pci for t in (0, 1)], flat
        assert [(d["pci"], d["part"]) for d in cards["devices"]] == [(p, 0) for p in pci], cards
        assert m.ask({"ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE", "ZE_AFFINITY_MASK": "3.1,0,3.0,5.1"})["devices"][2]["entry"] == "5.1"


def test_a_display_is_no_gpu(program, root):
    machines.display(root)
    for wish in ANY, INTEL:
        assert Machine(program, root, wish).ask({})["devices"] == []
    machines.intel(root, [(3, 0)], tiles=1, device="0xe20b", klass="0x030000")  # a card of its own, which has a display too
    assert len(Machine(program, root).ask({})["devices"]) == 1


def test_mixed(program, root):
    """NVIDIA before AMD before Intel; a list that hides all of one selects the next; --nproc xpu is Intel's."""
    machines.nvidia(root, [0x10, 0x20])
    machines.amd(root, [(0x30, 0), (0x40, 0), (0x50, 1)], gfx=90402)
    machines.intel(root, [(0x60, 0)], tiles=2, minor=140)
    m = Machine(program, root)
    first, second, third, xpu, named = m.ask({}, {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "2,0"}, {"CUDA_VISIBLE_DEVICES": ""},
                                             {"CUDA_VISIBLE_DEVICES": "0"}, {"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"})
    assert (first["vendor"], len(first["devices"])) == (0, 2)
    assert first["said"] == ("this host has GPUs of several vendors (NVIDIA 2, AMD 3, Intel 2): workers use NVIDIA's; CUDA_VISIBLE_DEVICES= with "
                             "HIP_VISIBLE_DEVICES=0,1,... selects AMD's; --nproc xpu selects Intel's\n"), first
    assert (second["vendor"], [d["index"] for d in second["devices"]]) == (1, [2, 0])
    assert (third["vendor"], len(third["devices"]), third["said"]) == (2, 2, "")
    assert (xpu["vendor"], [d["index"] for d in xpu["devices"]]) == (0, [0])
    assert (named["vendor"], [d["index"] for d in named["devices"]]) == (0, [1])
    got = Machine(program, root, INTEL).ask({}, {"CUDA_VISIBLE_DEVICES": "0", "ZE_AFFINITY_MASK": "1"})
    assert [len(a["devices"]) for a in got] == [2, 1] and got[1]["devices"][0]["entry"] == "1"


def test_lists_of_other_vendors(program, root):
    """Slurm sets all of them; on a machine with GPUs only those of its vendor count."""
    machines.nvidia(root, [0x10, 0x20, 0x30, 0x40])
    env = {name: "0,1" for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "GPU_DEVICE_ORDINAL")}
    got = Machine(program, root).ask(env, {**env, "CUDA_VISIBLE_DEVICES": ""})
    assert (got[0]["vendor"], len(got[0]["devices"]), len(got[1]["devices"])) == (0, 2, 0), got
    assert Machine(program, root, INTEL).ask(env)["devices"] == []


def test_lists_are_believed(program, root):
    """Where no GPU is seen: the shortest counts. CUDA's list alone is of NVIDIA."""
    cases = [
        ({"CUDA_VISIBLE_DEVICES": "5, 7"}, 0, ["5", "7"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}, 0, ["GPU-a", "GPU-b"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6,7"}, 1, ["0", "1", "2", "3"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "3,1"}, 1, ["3", "1"]),
        ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "2"}, 1, []),
        ({"ROCR_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, 1, ["0"]),
        ({"HIP_VISIBLE_DEVICES": "GPU-00,5"}, 1, ["GPU-00", "5"]),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "ZE_AFFINITY_MASK": "2,3"}, 2, ["2", "3"]),
        ({"ZE_AFFINITY_MASK": "1.0,0,1.1", "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}, 2, ["0", "1.0,1.1"]),
    ]
    for (env, vendor, entries), got in zip(cases, Machine(program, root).ask(*[env for env, _, _ in cases])):
        assert ([d["entry"] for d in got["devices"]], any(d["known"] for d in got["devices"])) == (entries, False), (env, got)
        assert not entries or got["vendor"] == vendor, (env, got)


def test_gpus_per_task(program, root):
    """Slurm's ROCR list, of a task with two of eight GPUs: with a cgroup it counts the task's own, without one the machine's."""
    machines.mi250(root)
    m = Machine(program, root)
    got = m.ask({"ROCR_VISIBLE_DEVICES": "4,5"}, {"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "1"},
                {"ROCR_VISIBLE_DEVICES": "4,5", "CUDA_VISIBLE_DEVICES": "4,5", "GPU_DEVICE_ORDINAL": "4,5"})
    assert [(d["index"], d["entry"]) for d in got[0]["devices"]] == [(4, "0"), (5, "1")]
    assert [(d["index"], d["entry"]) for d in got[1]["devices"]] == [(5, "1")] and got[1]["from"] == "HIP_VISIBLE_DEVICES"
    # gres.conf without a vendor's flag: HIP sees no GPU, and the sentence says why.
    assert got[2]["devices"] == []
    assert got[2]["said"] == 'CUDA_VISIBLE_DEVICES=4,5: "4" is none of the 2 that ROCR_VISIBLE_DEVICES leaves; HIP ignores it and what follows\n', got[2]
    for node in range(4, 12):
        if node not in (8, 9):
            (root / f"sys/class/kfd/kfd/topology/nodes/{node}/properties").unlink()
    assert m.order(ROCR_VISIBLE_DEVICES="0,1") == [0, 1] and m.order(ROCR_VISIBLE_DEVICES="0,1", CUDA_VISIBLE_DEVICES="0,1") == [0, 1]


def test_as_a_user_of_frontier_saw(program, root):
    """torch.cuda.device_count() by that user's report: Parsl#3858."""
    machines.mi250(root)
    seen = [({"CUDA_VISIBLE_DEVICES": "1"}, 1), ({"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}, 0),
            ({"ROCR_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}, 1), ({"ROCR_VISIBLE_DEVICES": "1"}, 1)]
    assert [len(got["devices"]) for got in Machine(program, root).ask(*[env for env, _ in seen])] == [n for _, n in seen]


def test_sentences(program, root):
    """A value that makes no sense costs one line; one that hides GPUs on purpose costs none."""
    machines.mi250(root / "amd")
    machines.pvc(root / "intel")
    machines.nvidia(root / "nvidia", [1, 2])
    cases = [
        ("amd", {"ROCR_VISIBLE_DEVICES": "0,9,1"}, 1, 'ROCR_VISIBLE_DEVICES=0,9,1: "9" is none of this machine\'s 8; ROCm ignores it and what follows\n'),
        ("amd", {"ROCR_VISIBLE_DEVICES": "1,1"}, 1, 'ROCR_VISIBLE_DEVICES=1,1: "1" is there twice; ROCm ignores it and what follows\n'),
        ("amd", {"HIP_VISIBLE_DEVICES": "0, 1"}, 1, 'HIP_VISIBLE_DEVICES=0, 1: "1" is none of this machine\'s 8; HIP ignores it and what follows\n'),
        ("amd", {"HIP_VISIBLE_DEVICES": "-1"}, 0, ""),
        ("intel", {"ZE_AFFINITY_MASK": "0.1,3"}, 1, 'ZE_AFFINITY_MASK=0.1,3: "0.1" is none of this machine\'s 12; Level Zero skips it\n'),
        ("intel", {"ONEAPI_DEVICE_SELECTOR": "level_zero:0.1"}, 12, 'ONEAPI_DEVICE_SELECTOR: the part "level_zero:0.1" is not understood here, so it hides no GPU\n'),
        ("intel", {"ONEAPI_DEVICE_SELECTOR": "opencl:gpu"}, 0, ""),
        ("intel", {"ONEAPI_DEVICE_SELECTOR": "opencl:gpu;level_zero:gpu"}, 12, ""),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,1,0"}, 0, 'CUDA_VISIBLE_DEVICES=0,1,0: "0" is there twice; CUDA then shows no GPU\n'),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "0,2"}, 1, 'CUDA_VISIBLE_DEVICES=0,2: "2" is none of this machine\'s 2; CUDA ignores it and what follows\n'),
        ("nvidia", {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0, ""),
    ]
    for machine, env, n, said in cases:
        got = Machine(program, root / machine).ask(env)
        assert (len(got["devices"]), got["said"]) == (n, said), (env, got)


def test_order_of_unequal_gpus(program, root):
    """CUDA numbers them by speed, so a number says nothing of the device; PCI_BUS_ID and UUIDs do."""
    machines.nvidia(root, [1, 2], models=("NVIDIA T4", "NVIDIA A100"))
    m = Machine(program, root)
    all_, number, pci, uuid = m.ask({}, {"CUDA_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, {"CUDA_VISIBLE_DEVICES": "GPU-1"})
    assert all_["unordered"] and len(all_["devices"]) == 2 and "CUDA_DEVICE_ORDER=PCI_BUS_ID" in all_["said"], all_
    assert number["unordered"] and (number["devices"][0]["uuid"], number["devices"][0]["known"]) == ("", False), number
    assert not pci["unordered"] and pci["devices"][0]["pci"] == "0000:02:00.0" and not pci["said"], pci
    assert not uuid["unordered"] and uuid["devices"][0]["pci"] == "0000:02:00.0", uuid


# Properties. ----------------------------------------------------------------------------------------------------------


def some_list(rng, words):
    return ",".join(rng.choice(words) for _ in range(rng.choice([0, 1, 1, 2, 3, 4, 9])))


def some_env(rng, lists):
    return {name: some_list(rng, words) for name, words in lists.items() if rng.random() < 0.6}


def test_amd_as_the_model(program, root):
    rng = random.Random(1)
    uuids = [uuid for _, uuid, _ in machines.mi250(root)]
    numbers = [str(i) for i in range(9)] * 3
    rocr = numbers + [" 3", "0x2", "010", "-1", "x", "8", "99", *uuids, uuids[3][:18].upper(), "GPU-a1b2c3d4", "GPU-", "gpu", "G"]
    hip = numbers + [" 1", "+1", "01", "-1", "x", "99999999999", *uuids, uuids[2][4:], uuids[2].upper(), "GPU-a1b2"]
    envs = [some_env(rng, {"ROCR_VISIBLE_DEVICES": rocr, "HIP_VISIBLE_DEVICES": hip, "CUDA_VISIBLE_DEVICES": hip}) for _ in range(CASES)]
    seen = set()
    for env, got in zip(envs, Machine(program, root).ask(*envs)):
        want = model_amd(uuids, env)
        assert ([d["index"] for d in got["devices"]], [int(d["entry"]) for d in got["devices"]]) == want, (env, got, want)
        seen.add(len(want[0]))
    assert len(seen) > 5, seen


def test_one_entry_shows_one_device(program, root):
    """The list that a worker gets shows exactly its device: narrowing and seeing are inverse."""
    rng = random.Random(2)
    machines.mi250(root / "amd")
    machines.pvc(root / "intel")
    numbers = [str(i) for i in range(12)]
    for machine, lists, own in (
        ("amd", {"ROCR_VISIBLE_DEVICES": numbers, "HIP_VISIBLE_DEVICES": numbers}, "HIP_VISIBLE_DEVICES"),
        ("intel", {"ZE_AFFINITY_MASK": numbers + ["3.0", "3.1", "4.1"], "ZE_FLAT_DEVICE_HIERARCHY": ["FLAT", "COMPOSITE"]}, "ZE_AFFINITY_MASK"),
    ):
        m = Machine(program, root / machine)
        envs = [some_env(rng, lists) for _ in range(200)]
        pairs = [(env, d) for env, got in zip(envs, m.ask(*envs)) for d in got["devices"]]
        assert len(pairs) > 200
        for (env, d), got in zip(pairs, m.ask(*[{**env, own: d["entry"]} for env, d in pairs])):
            assert [(g["pci"], g["part"]) for g in got["devices"]] == [(d["pci"], d["part"])], (env, d, got)


def test_intel_as_the_model(program, root):
    rng = random.Random(3)
    machines.pvc(root)
    numbers = [str(i) for i in range(13)] * 2
    envs = [some_env(rng, {"ZE_AFFINITY_MASK": numbers + [f"{c}.{t}" for c in range(7) for t in range(3)] + [" 2", "99"]}) for _ in range(CASES)]
    terms = ["level_zero:gpu", "level_zero:*", "*:*", "*:gpu", "level_zero:0", "level_zero:1,3", "opencl:gpu", "level_zero:11", "!level_zero:2", "!opencl:cpu"]
    for env in envs:
        env.update({"ZE_FLAT_DEVICE_HIERARCHY": rng.choice(["FLAT", "COMPOSITE", "COMBINED"])} if rng.random() < 0.7 else {})
        env.update({"ONEAPI_DEVICE_SELECTOR": ";".join(sorted(rng.sample(terms, rng.randint(1, 3)), key=lambda t: t[0] == "!"))} if rng.random() < 0.5 else {})
    seen = set()
    for env, got in zip(envs, Machine(program, root).ask(*envs)):
        want = model_intel(6, 2, env)
        assert [(d["index"], d["entry"]) for d in got["devices"]] == want, (env, got, want)
        seen.add(len(want))
    assert len(seen) > 8, seen


def test_cuda_as_the_model(program, root):
    rng = random.Random(4)
    machines.nvidia(root, [1, 2, 3, 4])
    envs = [some_env(rng, {"CUDA_VISIBLE_DEVICES": ["0", "1", "2", "3"] * 3 + [" 1", "+2", "2x", "4", "-1", "x", ""]}) for _ in range(CASES)]
    for env, got in zip(envs, Machine(program, root).ask(*envs)):
        want = model_cuda(4, env["CUDA_VISIBLE_DEVICES"]) if "CUDA_VISIBLE_DEVICES" in env else [0, 1, 2, 3]
        assert [d["index"] for d in got["devices"]] == want, (env, got, want)


def test_rubbish(program, root):
    """Files and lists of any text: an answer, and no more devices than there are."""
    rng = random.Random(5)
    machines.mi300x(root, parts=2)
    machines.pvc(root)
    machines.nvidia(root, [1, 2])
    files = sorted(p for p in root.rglob("*") if p.is_file())
    pieces = ["", "0", "1", "-1", "99999999999999999999", "0x", "simd_count ", "location_id ", "unique_id ", "domain ", "drm_render_minor ", "\n", " ", "GPU UUID:", "x" * 300, "ÿ"]
    words = ["0", "1", "300", "-1", "4294967296", "99999999999999999999", "GPU-", "MIG-", "G", ".", "0.", "0.99", "1.31", "*", "level_zero:", ":", ";", "!", "!level_zero:0", "y" * 200, " "]
    names = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "ZE_FLAT_DEVICE_HIERARCHY"]
    for _ in range(12):
        for file in rng.sample(files, 20):
            file.write_text("".join(rng.choice(pieces) for _ in range(rng.randint(0, 8))))
        envs = [{name: rng.choice([",", ";", ""]).join(rng.choice(words) for _ in range(rng.randint(0, 6))) for name in rng.sample(names, 3)} for _ in range(40)]
        for wish in ANY, INTEL:
            assert all(len(got["devices"]) <= 256 for got in Machine(program, root, wish).ask(*envs))


if __name__ == "__main__":
    tests = [(name, fn) for name, fn in globals().items() if name.startswith("test_")]
    for name, fn in tests:
        with tempfile.TemporaryDirectory() as folder:
            fn(sys.argv[1], Path(folder))
        print(f"ok {name}")
