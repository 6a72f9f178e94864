# SPDX-License-Identifier: Apache-2.0
"""Folders that stand for / of machines with GPUs: /sys, /proc and /dev as far as rdzv reads them, in the forms of the kernel's amdkfd, amdgpu, xe and i915.

A machine is a list of GPUs; `put` writes it. No machine of these was at hand: the forms are those of the drivers' sources.
"""
from pathlib import Path

GIB = 1 << 30


def put(root, path, text):
    file = Path(root) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def amd(root, gpus, *, gfx, name=None, total_gib=64, minor=128, cpus=2, parts=1, unique=True):
    """A list of (PCI bus, NUMA node), each `parts` devices. Nodes of the topology: CPUs first. Returns the GPUs' (gpu_id, UUID, PCI address)."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    for cpu in range(cpus):
        put(root, f"{nodes}/{cpu}/properties", f"cpu_cores_count 64\nsimd_count 0\nmem_banks_count 1\ndrm_render_minor 0\ngfx_target_version 0\nunique_id 0")
        put(root, f"{nodes}/{cpu}/gpu_id", 0)
    found = []
    for i, (bus, numa) in enumerate(gpus):
        pci = f"0000:{bus:02x}:00.0"
        device = f"sys/bus/pci/devices/{pci}"
        for file, text in {"vendor": "0x1002", "class": "0x038000", "numa_node": numa, "mem_info_vram_total": total_gib * GIB, "mem_info_vram_used": 300 << 20}.items():
            put(root, f"{device}/{file}", text)
        if name:
            put(root, f"{device}/product_name", name)
        for part in range(parts):
            k = i * parts + part
            node, gpu_id, id = cpus + k, 10000 + 37 * k, 0xA1B2C3D4E5F60000 + i * 0x1111 if unique else 0
            put(root, f"{nodes}/{node}/properties",
                f"cpu_cores_count 0\nsimd_count 440\nmem_banks_count 1\ncaches_count 0\ngfx_target_version {gfx}\nvendor_id 4098\ndevice_id 29704\n"
                f"location_id {bus << 8 | part}\ndomain 0\ndrm_render_minor {minor + k}\nhive_id 7\nunique_id {id}\nnum_xcc 1")
            put(root, f"{nodes}/{node}/gpu_id", gpu_id)
            put(root, f"{nodes}/{node}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {total_gib * GIB}")
            put(root, f"dev/dri/renderD{minor + k}", "")
            put(root, f"sys/class/drm/renderD{minor + k}/device/vendor", "0x1002")
            found.append((gpu_id, f"GPU-{id:016x}", pci))
    return found


def intel(root, gpus, *, tiles, driver="xe", device="0x0bd5", minor=128, klass="0x038000"):
    """A list of (PCI bus, NUMA node). Returns the PCI addresses."""
    for i, (bus, numa) in enumerate(gpus):
        folder = f"sys/bus/pci/devices/0000:{bus:02x}:00.0"
        for file, text in {"vendor": "0x8086", "class": klass, "device": device, "numa_node": numa}.items():
            put(root, f"{folder}/{file}", text)
        put(root, f"{folder}/drm/renderD{minor + i}/dev", f"226:{minor + i}")
        put(root, f"dev/dri/renderD{minor + i}", "")
        put(root, f"sys/class/drm/renderD{minor + i}/device/vendor", "0x8086")
        for tile in range(tiles):
            put(root, f"{folder}/tile{tile}/gt0/id" if driver == "xe" else f"{folder}/drm/card{i}/gt/gt{tile}/id", tile)
    return [f"0000:{bus:02x}:00.0" for bus, _ in gpus]


def display(root):
    """A processor's own."""
    folder = "sys/bus/pci/devices/0000:00:02.0"
    for file, text in {"vendor": "0x8086", "class": "0x030000", "device": "0x4680", "numa_node": -1}.items():
        put(root, f"{folder}/{file}", text)
    put(root, f"{folder}/drm/renderD200/dev", "226:200")
    put(root, "dev/dri/renderD200", "")


def nvidia(root, gpus, *, models=("NVIDIA H100",)):
    for i, bus in enumerate(gpus):
        put(root, f"proc/driver/nvidia/gpus/0000:{bus:02x}:00.0/information", f"Model: \t\t {models[i % len(models)]}\nGPU UUID: \t GPU-{i}aaaaaaa-0000-0000-0000-000000000000")
        put(root, f"sys/bus/pci/devices/0000:{bus:02x}:00.0/numa_node", i % 2)


def mi250(root):
    """Four cards of two GPUs each, as on LUMI: GPUs are not in the order of NUMA nodes."""
    return amd(root, [(0xC1, 3), (0xC6, 3), (0xC9, 1), (0xCE, 1), (0xD1, 0), (0xD6, 0), (0xD9, 2), (0xDE, 2)], gfx=90010, cpus=4)


def mi300x(root, parts=1):
    return amd(root, [(0x05, 0), (0x26, 0), (0x46, 0), (0x65, 0), (0x85, 1), (0xA6, 1), (0xC6, 1), (0xE5, 1)], gfx=90402, name="AMD Instinct MI300X", total_gib=192, parts=parts)


def pvc(root, driver="xe"):
    """Six cards of two tiles, as on Aurora."""
    return intel(root, [(0x18, 0), (0x42, 0), (0x6C, 0), (0x18 + 0x80, 1), (0x42 + 0x80, 1), (0x6C + 0x80, 1)], tiles=2, driver=driver)


def holds_kfd(root, pid, gpu_id, mib):
    put(root, f"sys/class/kfd/kfd/proc/{pid}/pasid", 32770)
    put(root, f"sys/class/kfd/kfd/proc/{pid}/vram_{gpu_id}", mib << 20)


def uses_vram(root, pci, mib):
    put(root, f"sys/bus/pci/devices/{pci}/mem_info_vram_used", mib << 20)


def holds_drm(root, pid, pci, mib, *, tile=0, client=7, fd=33, driver="xe"):
    region = "vram" if driver == "xe" else "local"
    put(root, f"proc/{pid}/fdinfo/{fd}", f"pos:\t0\nflags:\t02100002\ndrm-driver:\t{driver}\ndrm-client-id:\t{client}\ndrm-pdev:\t{pci}\n"
        f"drm-total-system:\t0\ndrm-resident-{region}{tile}:\t{mib << 10} KiB\ndrm-cycles-ccs:\t12")
