"""The step `perf` of tests/gpu/run: what a training step costs, beside PyTorch and beside what the device could do at best, in one run.

Ours is measured before and after PyTorch, with its input (it is read, staged and copied in every step); PyTorch has its data on the device
already, but for "eager with input". The floor is the time of the step's matrix products alone, at the rate that torch.mm reaches on these shapes,
and of the optimizer's bytes at the rate of a copy.
"""

import statistics

import steps
import work as w

WIDE = {"layers": [8192, 8192, 8192], "batch": 8192, "loss": "mse", "lr": 1e-4, "betas": [0.9, 0.999]}
# name, model, precision, steps of ours, reported every, torch's steps in a stretch, aims: (times eager, times the best, share of the matrix rate)
MODELS = [
    ("1000-100-1000, batch 50, fp32", steps.AUTOENCODER, "fp32", 20000, 500, 200, (5, 1.5, None)),
    ("784-128-128-128-784, batch 64, fp32", steps.MLP, "fp32", 20000, 500, 200, (5, 1.5, None)),
    ("8192-8192-8192, batch 8192, bf16", WIDE, "bf16", 60, 4, 5, (None, None, 0.85)),
]
TINY_MODELS = [("64-32-64, batch 16, fp32", steps.TINY, "fp32", 200, 10, 10, (5, 1.5, 0.85))]
# Adam reads gradient, weight and two moments, and writes three of them and, beside floats, a copy in the precision.
ADAM_BYTES = {"fp32": 28, "bf16": 30}


def ours(work, name, model, precision, n, every):
    # Whole batches only: the last of an epoch would be a step of another size.
    samples = model["batch"] * max(1, 10000 // model["batch"])
    options = steps.trainer_options(model, f"synthetic:{samples}", scale=1e-4, steps=n, metrics_every=every)
    found = work.train([*options, *work.on_device(precision)], name)
    reports = [line for line in found if line["event"] == "step"]
    share = {k: statistics.median(line[k] for line in reports) for k in ("input_ms", "wait_ms") if all(line.get(k) is not None for line in reports)}
    return w.ms_per_step(found), share


def floor_ms(model, precision, rates):
    params = sum((a + 1) * b for a, b in zip(model["layers"], model["layers"][1:]))
    return rates["products_ms"] + params * ADAM_BYTES[precision] / rates["copy_bytes_per_s"] * 1e3


def torch_specs(work, model, precision, each):
    common = {"device": "cpu" if work.rehearse else work.device, "precision": precision, "warmup": 2 if work.rehearse else 20, "each": each, "repeats": 3 if work.rehearse else 5, **model}
    # In the rehearsal nothing is compiled: that takes longer than all the rest.
    return [{"do": "steps", "backend": "eager" if work.rehearse else "inductor", **common},
            {"do": "rates", "copy_bytes": (1 << 20) if work.rehearse else (1 << 30), **common}]


def verdicts(row, aims):
    """[(what, figure, aim, reached)] of those that have an aim and a figure."""
    figures = (("times eager", row["times_eager"]), ("times PyTorch's best", row["times_best"]), ("of the matrix rate", row["matrix_share"]))
    return [(what, value, aim, value >= aim) for (what, value), aim in zip(figures, aims) if aim is not None and value is not None]


def one(work, i, entry):
    name, model, precision, n, every, each, aims = entry
    before, _ = ours(work, f"ours-{i}-before", model, precision, n, every)
    torch, rates = work.torch(torch_specs(work, model, precision, each), f"torch-{i}")
    after, share = ours(work, f"ours-{i}-after", model, precision, n, every)
    mine = statistics.median([before, after])
    known = {k: v for k, v in torch.items() if v and k != "eager with input"}
    best = min(known, key=known.get) if known else None
    row = {"model": name, "ours_ms": mine, "ours_both_ms": [before, after], **share, "torch_ms": torch, "best": best, "times_eager": torch["eager"] / mine if torch.get("eager") else None,
           "times_best": known[best] / mine if best else None, "rates": rates, "floor_ms": floor_ms(model, precision, rates), "matrix_share": rates["products_ms"] / mine}
    row["aims"] = [{"what": what, "figure": value, "aim": aim, "reached": reached} for what, value, aim, reached in verdicts(row, aims)]
    return row


def perf(work):
    rows = [one(work, i, entry) for i, entry in enumerate(TINY_MODELS if work.rehearse else MODELS)]
    told = [f"{row['model']}: {row['ours_ms']:.3f} ms, " + ", ".join(f"{a['figure']:.2f} {a['what']} (aim {a['aim']}{'' if a['reached'] else ': missed'})" for a in row["aims"]) for row in rows]
    return "; ".join(told), {"rows": rows}
