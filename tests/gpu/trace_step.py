# SPDX-License-Identifier: Apache-2.0
"""The step `trace` of tests/gpu/run: what each launch of a replayed step takes, by a profiler.

Nsight Systems (nsys) gives a timeline, whose file goes into --pack, and a sum per kernel. Where it is missing, or cannot make a report, Nsight Compute (ncu)
measures the same launches one by one. Each runs alone then, so gaps and overlaps are not seen. A profiler slows steps down: perf-... has their true time."""

import csv
import io
import os
import re
import shutil
import statistics

import steps
from work import Fail, Skip

STEPS = 60  # of the run; a shape is captured after its first step
NCU_SKIP, NCU_COUNT = 120, 60  # launches: those of the first steps, and some steps' worth behind them


def find(name):
    return shutil.which(name) or next((p for p in (f"/usr/local/cuda/bin/{name}",) if os.path.exists(p)), None)


def short(kernel):
    """Without its arguments, and those of templates."""
    name = re.sub(r"[<(].*", "", kernel.replace("void ", "", 1)).strip()
    return name or kernel[:60]


def rows_of(text, first):
    """Of CSV that a program prints behind other lines: from the line that begins with this column on."""
    at = re.search(rf'^"?{re.escape(first)}"?,', text, re.M)
    return list(csv.DictReader(io.StringIO(text[at.start() :]))) if at else []


def by_nsys(work, tool, command):
    report = work.file("replay.nsys-rep")
    report.unlink(missing_ok=True)
    options = ["--trace=cuda", "--cuda-graph-trace=node", "--sample=none", "--cpuctxsw=none", "--force-overwrite=true", "-o", report.with_suffix("")]
    work.call([tool, "profile", *options, *command], "nsys-profile")
    text = work.call([tool, "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv", "--output", "-", report], "nsys-stats")
    found = rows_of(text, "Time (%)")
    if not found:
        raise Fail(f"nsys reported no kernels ({work.file('nsys-stats.out')})")
    return {short(r["Name"]): {"launches": int(r["Instances"]), "us": float(r["Med (ns)"]) / 1e3} for r in found}


def by_ncu(work, tool, command):
    options = ["--csv", "--page", "raw", "--metrics", "gpu__time_duration.sum", "--clock-control", "none", "--launch-skip", NCU_SKIP, "--launch-count", NCU_COUNT]
    text = work.call([tool, *options, *command], "ncu")
    found, units = rows_of(text, "ID"), {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3}
    if len(found) < 2 or not found[0].get("gpu__time_duration.sum"):
        raise Fail(f"ncu reported no kernels ({work.file('ncu.out')})")
    by, took = units.get(found[0]["gpu__time_duration.sum"], 1e-3), {}  # the first row has the units
    for r in found[1:]:
        took.setdefault(short(r["Kernel Name"]), []).append(float(r["gpu__time_duration.sum"].replace(",", "")) * by)
    return {name: {"launches": len(us), "us": statistics.median(us)} for name, us in took.items()}


def trace(work):
    if work.device == "cpu":
        raise Skip("this machine has no GPU")
    images, _ = steps.make_data(work, steps.MLP)
    command = [work.program("rdzv-trainer"), *steps.trainer_options(steps.MLP, images, steps=STEPS), *work.on_device(), "--cuda-graph", "on"]
    without = []
    for name, by in (("nsys", by_nsys), ("ncu", by_ncu)):
        tool = find(name)
        if not tool:
            without.append(f"{name} is not installed")
            continue
        try:
            found = by(work, tool, command)
        except Fail as e:  # the other one may do
            without.append(str(e))
            continue
        told = sorted(found.items(), key=lambda item: -item[1]["launches"] * item[1]["us"])
        return f"by {name}, the most time first: " + ", ".join(f"{k} {v['us']:.1f} us x {v['launches']}" for k, v in told[:12]), {"by": name, "kernels": found}
    raise Skip("; ".join(without))
