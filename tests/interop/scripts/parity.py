#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's results of a training run: `parity.py CASES.json` prints, for each case, the loss and the norm of the gradients of every step, as JSON.

    layers, loss      as rdzv-trainer's; weights: its file of first weights
    data, labels      .npy files: float32 rows, and int64 classes for cross-entropy
    batches           for each step the list of its rows
    optimizer         [class in torch.optim, its arguments]
    precision         fp32, or bf16: torch.autocast, with weights, optimizer and loss in float
    ddp               true: two processes with DistributedDataParallel over gloo, each with one half of every batch; the losses are the mean of both
    device            cpu or cuda
    shaken            true: several times more, with the rows of each batch in other orders, which changes nothing but the order of sums
"""

import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "rig"))
import weights  # noqa: E402

LOSSES = {"mse": nn.functional.mse_loss, "rmse": lambda y, t: torch.sqrt(nn.functional.mse_loss(y, t)), "cross-entropy": nn.functional.cross_entropy}


def make_net(case):
    widths, parts = case["layers"], []
    for k, (a, b) in enumerate(zip(widths, widths[1:])):
        parts += [nn.Linear(a, b)] + ([nn.ReLU()] if k + 2 < len(widths) else [])
    net = nn.Sequential(*parts)
    flat, at = np.frombuffer(weights.read(Path(case["weights"])), "<f4"), 0
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.from_numpy(flat[at:at + p.numel()].copy()).view_as(p))
            at += p.numel()
    assert at == flat.size
    return net.to(case["device"])


def run(case, part=lambda rows: rows):
    # Else cuBLAS may add up products in bf16, which is another arithmetic than bf16's with sums in float.
    if case["device"] == "cuda":
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    net = plain = make_net(case)
    if case.get("ddp"):
        net = nn.parallel.DistributedDataParallel(plain)
    kind, args = case["optimizer"]
    optimizer = getattr(torch.optim, kind)(net.parameters(), **args)
    x = torch.from_numpy(np.load(case["data"])).to(case["device"])
    target = torch.from_numpy(np.load(case["labels"])).to(case["device"]) if case.get("labels") else x
    losses, norms = [], []
    for batch in case["batches"]:
        optimizer.zero_grad()
        rows = torch.tensor(part(batch), device=case["device"])
        with torch.autocast(case["device"], torch.bfloat16, enabled=case["precision"] == "bf16"):
            y = net(x[rows])
        loss = LOSSES[case["loss"]](y.float(), target[rows])
        loss.backward()
        total = loss.detach()
        norms.append(nn.utils.clip_grad_norm_(plain.parameters(), math.inf))
        optimizer.step()
        if case.get("ddp"):
            dist.all_reduce(total)
            total = total / dist.get_world_size()
        losses.append(total)
    return [float(v) for v in losses], [float(v) for v in norms]


def ddp_rank(rank, case, meet, out):
    dist.init_process_group("gloo", init_method=f"file://{meet}/store", rank=rank, world_size=2)
    result = run(case, lambda rows: rows[rank * len(rows) // 2:(rank + 1) * len(rows) // 2])
    if rank == 0:
        out.put(result)
    dist.destroy_process_group()


def run_ddp(case):
    ctx = torch.multiprocessing.get_context("fork" if case["device"] == "cpu" else "spawn")
    with tempfile.TemporaryDirectory() as meet:
        out = ctx.SimpleQueue()
        ranks = [ctx.Process(target=ddp_rank, args=(r, case, meet, out), daemon=True) for r in range(2)]
        for p in ranks:
            p.start()
        for p in ranks:
            p.join(60)
        assert [p.exitcode for p in ranks] == [0, 0], "a rank failed, or is not done after 60 s"
        return out.get()


if __name__ == "__main__":
    torch.set_num_threads(1)  # also: a fork with threads would hang
    with open(sys.argv[1]) as f:
        cases = json.load(f)
    # First what forks: before anything has started a thread.
    answers = {name: run_ddp(case) for name, case in cases.items() if case.get("ddp")}
    answers.update((name, run(case)) for name, case in cases.items() if not case.get("ddp"))
    orders = [lambda rows: rows[::-1], lambda rows: np.roll(rows, len(rows) // 3), lambda rows: np.roll(rows[::-1], len(rows) // 2),
              lambda rows: np.concatenate([rows[::2], rows[1::2]])]
    shaken = {name: [run(case, order)[0] for order in orders] for name, case in cases.items() if case.get("shaken")}
    json.dump({name: {"losses": losses, "norms": norms, "shaken": shaken.get(name)} for name, (losses, norms) in answers.items()}, sys.stdout)
