# SPDX-License-Identifier: Apache-2.0
"""The steps of tests/gpu/run that have no file of their own. Each takes the Work, gives back (one line for people, figures), or raises Skip or Fail."""

import array
import functools
import json
import os
import random
import re
import shutil
import statistics
import sys
from pathlib import Path

import work as w

sys.path.append(str(Path(__file__).resolve().parents[1] / "rig"))
import weights
from work import Fail, Skip

AUTOENCODER = {"layers": [1000, 100, 1000], "batch": 50, "loss": "rmse", "lr": 1e-4, "betas": [0.0, 0.99]}
MLP = {"layers": [784, 128, 128, 128, 784], "batch": 64, "loss": "mse", "lr": 1e-3, "betas": [0.9, 0.999]}
TINY = {"layers": [64, 32, 64], "batch": 16, "loss": "mse", "lr": 1e-3, "betas": [0.9, 0.999]}
CLASSIFIER = {"layers": [784, 128, 10], "batch": 64, "loss": "cross-entropy", "lr": 1e-3, "betas": [0.9, 0.999]}
RANKS_APART = 2e-3  # how far two curves may be apart, relative to the loss: sums are made in another order, and Adam makes much of small gradients


def trainer_options(model, data, labels=None, **more):
    given = {"layers": ",".join(map(str, model["layers"])), "batch": model["batch"], "loss": model["loss"], "lr": model["lr"], "beta1": model["betas"][0],
             "beta2": model["betas"][1], "data": data, "labels": labels, **{k.replace("_", "-"): v for k, v in more.items()}}
    return [str(word) for k, v in given.items() if v is not None for word in (f"--{k}", v)]


# ---- build ----------------------------------------------------------------------------------------------------------


def build_env(work):
    env = work.env()
    if not work.args.deps:
        return env
    deps = os.path.realpath(work.args.deps)
    env["PKG_CONFIG_LIBDIR"] = f"{deps}/lib/pkgconfig"
    if not shutil.which("pkg-config"):
        env["PKG_CONFIG"] = f"{deps}/bin/pkg-config"
    return env


def build(work):
    """Release, with CUDA and NCCL. Only libcurl may be missing, which --deps has not: the claim that needs it is not for these machines."""
    if work.args.build:
        return f"{work.build} was given", {}
    if work.carried and not work.why_not_carried():
        return f"{work.carried} was built elsewhere, and runs here", {}
    for tool in ("meson", "ninja"):
        if not shutil.which(tool):
            raise Fail(f"{tool} is not installed")
    env = build_env(work)
    fresh = not (work.build / "build.ninja").exists()
    features = "-Dauto_features=" + ("auto" if work.args.deps else "enabled")
    said = work.call(["meson", "setup", work.build, w.TOP, "--buildtype=release", features] if fresh else ["meson", "configure", work.build, features], "meson", env)
    left_out = re.search(r"rdzv-cuda.so *: (left out.*)", said)
    if left_out:
        raise Fail(f"rdzv-cuda.so was {left_out[1]}")
    again = False
    try:
        work.call(["ninja", "-C", work.build], "ninja", env)
    except Fail:  # another compiler warns of other things
        work.call(["meson", "configure", work.build, "-Dwerror=false"], "meson-again", env)
        work.call(["ninja", "-C", work.build], "ninja-again", env)
        again = True
    ldd = work.call(["ldd", work.program("rdzv-trainer"), work.program("rdzv-agent"), work.program("rdzvd")], "ldd")
    if "not found" in ldd:
        raise Fail("a library is missing: " + re.search(r"\S+ => not found", ldd)[0])
    instead = f"; {work.carried} does not run here: {work.why_not_carried()}" if work.carried else ""
    return f"release, CUDA and NCCL required, in {os.path.relpath(work.build, w.TOP)}{', without -Werror' if again else ''}{instead}", {}


# ---- the seam -------------------------------------------------------------------------------------------------------


def seam_command(work, precision):
    return [work.program("test_compute_seam"), "--device", work.device, "--precision", precision, *(["--cuda-module", work.cuda_module()] if work.device == "cuda" else [])]


def seam(work):
    """Every operation and whole steps against a reference in double."""
    kinds = [["fp32"], ["bf16", "--deterministic"], ["bf16"], ["fp32", "--deterministic"]]

    def one(name, words):
        name = "seam-" + name.replace(" ", "-")
        text = work.call([*seam_command(work, words[0]), *words[1:]], name, ok=(0, 77))
        log = work.file(name + ".log").read_text(errors="replace") + text
        if text.startswith("skipped: "):
            raise Skip(text.strip()[len("skipped: ") :])
        count = len(re.findall(r"^\[       OK \]", log, re.M))
        if not count:
            raise Fail(f"{name}: no test was run")
        return count

    counts, bad = w.each({" ".join(words).replace("--", ""): words for words in kinds[: 2 if work.rehearse else None]}, one)
    if bad:
        raise Fail("; ".join(bad), counts)
    return ", ".join(f"{k} {n}" for k, n in counts.items()) + " tests", counts


# ---- the collectives ------------------------------------------------------------------------------------------------


def coll(work, world):
    """What coll.h promises, by NCCL, in worlds of this size: sums, orders, captured steps; ranks that die, fall silent, give up; the survivors' next communicator."""
    if work.device == "cpu":
        raise Skip("this machine has no GPU")
    # A communicator has to come up in the time for which somebody is missed.
    several = work.devices >= world
    common = ["--cuda-module", work.cuda_module(), "--timeout-ms", 12000, "--world", world, *(["--devices", work.devices] if several else [])]
    only = ["--only", "alone,more_buckets_than_tickets,captured_steps,a_killed_rank"] if work.rehearse else []  # the unit tests run all of them on the stand-ins
    log = work.file("coll-nccl.log")
    text = work.call([work.program("test_coll_nccl"), *common, *only], "coll-nccl", work.env(**({} if several else w.ONE_DEVICE)), ok=(0, 1))
    bad, count = re.findall(r"^FAILED +(\w+)", text, re.M), len(re.findall(r"^ok ", text, re.M))
    if bad or not count:
        raise Fail(f"{', '.join(bad) or 'no test was run'}; {count} are ok: {w.last_words(log)} ({log})", {"nccl": count})
    return f"{count} tests of {world} ranks, {'a device for each' if several else 'on one device'}", {"nccl": count}


COLL = {f"coll-{world}": functools.partial(coll, world=world) for world in range(1, 5)}


# ---- curves ---------------------------------------------------------------------------------------------------------


def write_idx(path, dims, values):
    path.write_bytes(bytes([0, 0, 8, len(dims)]) + b"".join(n.to_bytes(4, "big") for n in dims) + values)
    return path


def make_data(work, model, seed=1):
    """One batch of images, and its labels, as files."""
    r, rows, name = random.Random(seed), model["batch"], "-".join(map(str, model["layers"]))
    images = write_idx(work.file(f"{name}.images"), (rows, 1, model["layers"][0]), r.randbytes(rows * model["layers"][0]))
    labels = bytes(r.randrange(10) for _ in range(rows))
    return images, write_idx(work.file(f"{name}.labels"), (rows,), labels) if model["loss"] == "cross-entropy" else None


def make_weights(work, model, seed=2):
    """As torch.nn.Linear begins, so that curves look like anybody's."""
    r, flat = random.Random(seed), array.array("f")
    for a, b in zip(model["layers"], model["layers"][1:]):
        flat.extend(r.uniform(-1, 1) / a**0.5 for _ in range((a + 1) * b))
    return weights.write(work.file("-".join(map(str, model["layers"])) + ".safetensors"), model["layers"], flat.tobytes())


def parity(work):
    """tests/interop/test_trainer_parity.py's runs, by the trainer and by PyTorch on this device."""
    if work.lacks_torch():
        raise Skip(work.lacks_torch())
    sys.path.insert(0, str(w.TOP / "tests/interop"))
    import test_trainer_parity as cases

    data, said, too_far = cases.Data(work.file("ramps.npy").parent), {}, []
    pairs = [("classifier", None), ("classifier", 2), ("classifier-bf16", None)] if work.rehearse else cases.pairs()
    path = data.for_torch(dict(pairs), "cpu" if work.rehearse else work.device)
    theirs = json.loads(work.call([sys.executable, cases.SCRIPT, path], "torch"))
    for name, world in pairs:
        each = f"{name}-{world or 1}"
        found = work.train([*data.for_us(name), *work.on_device(None)], each, world or 1)
        first, loss, norm, part = cases.compare([line for line in found if line["event"] == "step"], theirs, name, work.device)
        said[each] = {"first_loss": first, "any_loss": loss, "norms": norm, "of_allowed": part}
        if part > 1:
            too_far.append(f"{each}: the first loss is {first:.2g} apart, some loss {loss:.2g}, a norm {norm:.2g}: {part:.2g} times what is allowed")
    if too_far:
        raise Fail("; ".join(too_far) + f" ({work.file('')})", said)
    return f"{len(said)} runs of {cases.STEPS} steps, apart by (first loss, any loss): " + ", ".join(f"{k} {v['first_loss']:.0e} {v['any_loss']:.0e}" for k, v in said.items()), said


def ranks(work):
    """World 1 against 2 and 4, with the same global batch, on one device."""
    steps, said = 10 if work.rehearse else 100, {}
    for name, model in (("mse", MLP), ("cross-entropy", CLASSIFIER)):
        (images, labels), first = make_data(work, model), make_weights(work, model)
        options = [*trainer_options(model, images, labels, steps=steps, init_weights=first, metrics_every=1), *work.on_device()]
        alone = w.curve(work.train(options, f"{name}-1"))
        for world in (2, 4):
            said[f"{name}, {world} ranks"] = w.apart(w.curve(work.train(options, f"{name}-{world}", world)), alone)
    worst = max(said, key=said.get)
    if said[worst] > RANKS_APART:
        raise Fail(f"{worst}: {said[worst]:.2g} apart from one rank; {RANKS_APART:g} is allowed")
    return f"{steps} steps, 2 and 4 ranks on one device against 1: at most {said[worst]:.1g} apart ({worst})", said


# ---- the bench mode, and what start-up and checkpoints cost ----------------------------------------------------------


def bench_rows(work, world, most):
    options = ["--bench", "allreduce", "-b", "8", "-e", most, "-f", "4", *work.on_device()]
    metrics = work.file(f"bench-{world}.jsonl")
    metrics.unlink(missing_ok=True)
    argv = [work.program("rdzv-agent"), "--standalone", "--nproc", world, *work.of_agent(), "--", *options, "--metrics", metrics]
    text = work.call(argv, f"bench-{world}")
    if not re.search(r"# Out of bounds values : 0 OK", text):
        raise Fail(f"{world} ranks: wrong sums, or none were checked ({work.file(f'bench-{world}.out')})")
    return [line for line in w.lines(metrics) if line["event"] == "bench"]


def bench(work):
    """One rank, and all devices where there are several; those beside PyTorch's all_reduce by NCCL."""
    devices = len(w.gpu_query("index") or []) if work.device == "cuda" else 0
    said = {f"{n} ranks": bench_rows(work, n, "64k" if work.rehearse else "128m") for n in sorted({1, devices or 1, 2 if work.rehearse else 1})}
    if devices > 1 and not work.rehearse and not work.lacks_torch():
        sizes = [row["size"] for row in said[f"{devices} ranks"]]
        said["torch"] = work.torch([{"do": "allreduce", "sizes": sizes, "warmup": 5, "each": 20, "repeats": 3}], "torch-allreduce")[0]
    told = []
    for n, rows in said.items():
        told.append(f"{n}: {rows[-1]['size'] >> 10} KiB in {rows[-1]['time_us']:.0f} us, busbw {rows[-1]['busbw']:.2f} GB/s")
    return "; ".join(told) + ("" if devices > 1 else " (one device: no bandwidth between devices)"), said


def times(work):
    """Phases of start-up, and what a checkpoint holds up."""
    (images, _), ckpt = make_data(work, AUTOENCODER), work.file("ckpt")
    shutil.rmtree(ckpt, ignore_errors=True)
    steps, each = (200, 100) if work.rehearse else (40000, 10000)
    options = [*trainer_options(AUTOENCODER, images, steps=steps, metrics_every=steps // 20, checkpoint_dir=ckpt, checkpoint_every=each), *work.on_device()]
    found = work.train(options, "times")
    phases = {k: v for line in found if line["event"] in ("start", "first-step") for k, v in line.items() if k.endswith("_ms")}
    saved = [line for line in found if line["event"] == "checkpoint"]
    if not saved:
        raise Fail("no checkpoint was written")
    stall, wrote = ([line[k] for line in saved] for k in ("stall_ms", "write_ms"))
    said = {"phases_ms": phases, "stall_ms": statistics.median(stall), "stall_max_ms": max(stall), "write_ms": statistics.median(wrote), "step_ms": w.ms_per_step(found),
            "waited_for": sum(line["waited_for"] for line in saved)}
    told = ", ".join(f"{k[:-3].replace('_', ' ')} {v:.0f}" for k, v in phases.items())
    return (f"start in ms: {told}; a checkpoint of {saved[0]['bytes'] / 1e6:.1f} MB was written in {said['write_ms']:.1f} ms and held steps up for {said['stall_ms']:.2f} "
            f"(most {said['stall_max_ms']:.2f}), where a step takes {said['step_ms']:.3f}"), said
