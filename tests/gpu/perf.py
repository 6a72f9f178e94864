# SPDX-License-Identifier: Apache-2.0
"""The steps `perf-...` of tests/gpu/run: what a training step costs, beside PyTorch and beside what the device could do at best, in one run.

Ours is measured before and after PyTorch, with its input: a device keeps the samples, and each step's rows are gathered from them, or, where they were too
large, sent by the host, which is said then. PyTorch has its one batch on the device already, but for "eager with input".

The floor of a step is the time of its matrix products alone, and of the bytes that no product moves (other_bytes) at the rate of a copy: by rates.c, and by
torch.mm and copy_ where PyTorch is installed; whichever is faster counts. Without PyTorch our time and the floor remain. No step is faster than its floor, and
the aim for the large model is a share of that. An aim of 85 % of the matrix rate, which it replaces, no program can reach on an H100 (798 TFLOP/s, 3.0 TB/s
read and written), for 8192-8192-8192 in bf16 with 8192 rows:

    products   5 of 2 x 8192^3 FLOP                              6.89 ms
    Adam       134 million weights x 30 bytes      4.03 GB       1.34 ms    these two: 84 % of the matrix rate at most
    norm       x 4 bytes                           0.54 GB       0.18 ms
    input      67 million values x 10 bytes        0.67 GB       0.22 ms
    loss       67 million values x 8 bytes         0.54 GB       0.18 ms    all of them: 78 %

The two small models live in the caches, and take what their launches take: a floor says little of them.
"""

import functools
import json
import statistics

import steps
import work as w

WIDE = {"layers": [8192, 8192, 8192], "batch": 8192, "loss": "mse", "lr": 1e-4, "betas": [0.9, 0.999]}
# step: name, model, precision, steps of ours, reported every, torch's steps in a stretch, aims: (times eager, times the best, share of the floor)
MODELS = {
    "perf-autoencoder": ("1000-100-1000, batch 50, fp32", steps.AUTOENCODER, "fp32", 20000, 500, 200, (5, 1.5, None)),
    "perf-mlp": ("784-128-128-128-784, batch 64, fp32", steps.MLP, "fp32", 20000, 500, 200, (5, 1.5, None)),
    "perf-wide": ("8192-8192-8192, batch 8192, bf16", WIDE, "bf16", 60, 4, 5, (None, None, 0.9)),
}
TINY_MODEL = ("64-32-64, batch 16, fp32", steps.TINY, "fp32", 200, 10, 10, (5, 1.5, 0.9))
PARTS_MS = ("input_ms", "wait_ms", "compute_ms", "device_input_ms", "device_idle_ms")
# Adam reads gradient, weight and two moments, and writes three of them and, beside floats, a copy in the precision.
ADAM_BYTES = {"fp32": 28, "bf16": 30}
NORM_BYTES = 4
# The rows are written as floats, and in bf16 read and converted. The loss reads output and target, and writes the gradient.
INPUT_BYTES = {"fp32": 4, "bf16": 10}
LOSS_BYTES = {"fp32": 12, "bf16": 8}


def ours(work, name, model, precision, n, every):
    # Whole batches only: the last of an epoch would be a step of another size.
    samples = model["batch"] * max(1, 10000 // model["batch"])
    options = steps.trainer_options(model, f"synthetic:{samples}", scale=1e-4, steps=n, metrics_every=every)
    found = work.train([*options, *work.on_device(precision)], name)
    reports = [line for line in found if line["event"] == "step"]
    share = {k: statistics.median(line[k] for line in reports) for k in PARTS_MS if all(line.get(k) is not None for line in reports)}
    share["input"] = next(line for line in found if line["event"] == "start").get("input")
    return w.ms_per_step(found), share


def other_bytes(model, precision):
    """Those that a step moves at least, beside its products."""
    layers, rows = model["layers"], model["batch"]
    params = sum((a + 1) * b for a, b in zip(layers, layers[1:]))
    return params * (ADAM_BYTES[precision] + NORM_BYTES) + rows * (layers[0] * INPUT_BYTES[precision] + layers[-1] * LOSS_BYTES[precision])


def floor_ms(model, precision, rates):
    return rates["products_ms"] + other_bytes(model, precision) / rates["copy_bytes_per_s"] * 1e3


def products(model):
    """Rows, inner and columns of a step's matrix products: forward, the weights' gradients, and but for the first layer the inputs'."""
    n = model["batch"]
    for i, (a, b) in enumerate(zip(model["layers"], model["layers"][1:])):
        yield n, a, b
        yield b, n, a
        if i:
            yield n, b, a


def own_rates(work, i, model, precision, each):
    """By rates.c; on a CPU there is no such thing."""
    if work.device == "cpu":
        return []
    argv = [work.program("device-rates-fake" if work.rehearse else "device-rates"), "--precision", precision, "--each", each, "--repeats", 3 if work.rehearse else 7,
            "--copy-bytes", 1 << (20 if work.rehearse else 30), *(",".join(map(str, p)) for p in products(model))]
    return [json.loads(work.call(argv, f"rates-{i}"))]


def torchs(work, i, model, precision, each):
    """(milliseconds of a step by variant, its rates)"""
    if work.lacks_torch():
        return {}, []
    common = {"device": "cpu" if work.rehearse else work.device, "precision": precision, "warmup": 2 if work.rehearse else 20, "each": each, "repeats": 3 if work.rehearse else 5, **model}
    # In the rehearsal nothing is compiled: that takes longer than all the rest.
    specs = [{"do": "steps", "backend": "eager" if work.rehearse else "inductor", **common},
             {"do": "rates", "products": list(products(model)), "copy_bytes": (1 << 20) if work.rehearse else (1 << 30), **common}]
    found, rates = work.torch(specs, f"torch-{i}")
    return found, [rates]


def verdicts(row, aims):
    """[(what, figure, aim, reached)] of those that have an aim and a figure."""
    figures = (("times eager", row["times_eager"]), ("times PyTorch's best", row["times_best"]), ("of the floor's speed", row["floor_share"]))
    return [(what, value, aim, value >= aim) for (what, value), aim in zip(figures, aims) if aim is not None and value is not None]


def one(work, i, entry):
    name, model, precision, n, every, each, aims = entry
    before, _ = ours(work, f"ours-{i}-before", model, precision, n, every)
    rates = own_rates(work, i, model, precision, each)
    failed = None
    try:
        torch, more = torchs(work, i, model, precision, each)
    except w.Fail as e:  # ours and the floor remain
        torch, more, failed = {}, [], str(e)
    after, share = ours(work, f"ours-{i}-after", model, precision, n, every)
    mine, rates = statistics.median([before, after]), rates + more
    best_rates = {"products_ms": min(r["products_ms"] for r in rates), "copy_bytes_per_s": max(r["copy_bytes_per_s"] for r in rates)} if rates else None
    known = {k: v for k, v in torch.items() if v and k != "eager with input"}
    best = min(known, key=known.get) if known else None
    row = {"model": name, "torch_failed": failed, "ours_ms": mine, "ours_both_ms": [before, after], **share, "torch_ms": torch, "best": best, "times_eager": torch["eager"] / mine if torch.get("eager") else None,
           "times_best": known[best] / mine if best else None, "rates": rates, "floor_ms": floor_ms(model, precision, best_rates) if rates else None,
           "matrix_share": best_rates["products_ms"] / mine if rates else None}
    row["floor_share"] = row["floor_ms"] / mine if rates else None
    row["aims"] = [{"what": what, "figure": value, "aim": aim, "reached": reached} for what, value, aim, reached in verdicts(row, aims)]
    return row


def in_words(row):
    parts = [f"{row['ours_ms']:.3f} ms"] + ([f"floor {row['floor_ms']:.3f}"] if row["floor_ms"] is not None else [])
    parts += ["its input sent by the host"] if row["input"] == "sent" else []
    parts += [f"{a['figure']:.2f} {a['what']} (aim {a['aim']}{'' if a['reached'] else ': missed'})" for a in row["aims"]]
    return f"{row['model']}: " + ", ".join(parts) + (f"; PyTorch: {row['torch_failed']}" if row["torch_failed"] else "")


def perf(work, name):
    if work.rehearse and name != next(iter(MODELS)):
        raise w.Skip(f"rehearsed by {next(iter(MODELS))}")
    row = one(work, 0, TINY_MODEL if work.rehearse else MODELS[name])
    told = in_words(row) + (f"; nothing was laid beside PyTorch: {work.lacks_torch()}" if work.lacks_torch() else "")
    if row["torch_failed"]:
        raise w.Fail(told, {"rows": [row]})
    return told, {"rows": [row]}


STEPS = {name: functools.partial(perf, name=name) for name in MODELS}
