#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's part in tests/gpu/run: `torch_side.py SPECS.json` does one thing after the other and prints a list of results as JSON.

A spec has "do", "device" (cpu, cuda) and, of a model, "layers", "precision" (fp32, bf16), "loss" (mse, rmse, cross-entropy), "lr", "betas":

  steps      milliseconds of a step, medians, by eager, torch.compile and CUDA graphs, with fused Adam and its data on the device
  rates      of the matrix "products" of one step alone, each shape by itself, and of a copy on the device
  allreduce  algbw and busbw over all devices of the machine, by NCCL, where there are several

bf16 is torch.autocast: weights, optimizer and loss in float, products in bf16.
"""

import json
import statistics
import sys
import time

import torch
from torch import nn


class Model:
    def __init__(self, spec):
        self.spec, self.device = spec, spec["device"]
        widths, parts = spec["layers"], []
        for i, (a, b) in enumerate(zip(widths, widths[1:])):
            parts += [nn.Linear(a, b)] + ([nn.ReLU()] if i + 2 < len(widths) else [])
        self.net = nn.Sequential(*parts).to(self.device)
        self.kind = {"mse": nn.functional.mse_loss, "rmse": lambda y, t: torch.sqrt(nn.functional.mse_loss(y, t)), "cross-entropy": nn.functional.cross_entropy}[spec["loss"]]

    def adam(self, capturable=False):
        return torch.optim.Adam(self.net.parameters(), lr=self.spec["lr"], betas=tuple(self.spec["betas"]), fused=True, capturable=capturable and self.device == "cuda")

    def loss(self, x, t):
        with torch.autocast(self.device, torch.bfloat16, enabled=self.spec["precision"] == "bf16"):
            y = self.net(x)
        return self.kind(y.float(), t)


def sync(device):
    if device == "cuda":
        torch.cuda.synchronize()


def median_ms(device, call, spec):
    """Of `repeats` stretches of some steps each, behind a warm-up."""
    for _ in range(spec["warmup"]):
        call()
    found = []
    for _ in range(spec["repeats"]):
        sync(device)
        t = time.perf_counter()
        for _ in range(spec["each"]):
            call()
        sync(device)
        found.append((time.perf_counter() - t) * 1e3 / spec["each"])
    return statistics.median(found)


def training_step(m, x, t, opt, wrap=lambda f: f):
    forward = wrap(m.loss)

    def step():
        opt.zero_grad(set_to_none=True)
        forward(x, t).backward()
        opt.step()

    return step


def graph_of(m, x, t):
    """The whole step as one CUDA graph, as PyTorch's own notes on graphs have it."""
    opt = m.adam(capturable=True)
    step = training_step(m, x, t, opt)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    opt.zero_grad(set_to_none=True)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        m.loss(x, t).backward()
        opt.step()
    return g.replay


def with_input(m, x, opt):
    """As eager, but each step's data comes from pinned memory."""
    pinned = x.cpu().pin_memory()
    step = training_step(m, x, x, opt)

    def call():
        x.copy_(pinned, non_blocking=True)
        step()

    return call


def do_steps(spec):
    device, found = spec["device"], {}
    x = torch.rand(spec["batch"], spec["layers"][0], device=device)

    def measure(name, make):
        torch.manual_seed(1)
        m = Model(spec)
        try:
            found[name] = median_ms(device, make(m), spec)
        except Exception as e:  # this variant does not work on this machine: said, and the others count
            found[name] = None
            print(f"{name}: {type(e).__name__}: {e}", file=sys.stderr)
        if hasattr(torch, "_dynamo"):
            torch._dynamo.reset()
        if device == "cuda":
            torch.cuda.empty_cache()

    def compiled(m, **how):
        return training_step(m, x, x, m.adam(), lambda f: torch.compile(f, **how))

    measure("eager", lambda m: training_step(m, x, x, m.adam()))
    measure("compile", lambda m: compiled(m, backend=spec["backend"]))
    if device == "cuda":
        measure("compile, reduce-overhead", lambda m: compiled(m, mode="reduce-overhead"))
        measure("CUDA graph", lambda m: graph_of(m, x, x))
        measure("eager with input", lambda m: with_input(m, x, m.adam()))
    return found


def do_rates(spec):
    device, flops, ms = spec["device"], 0, 0.0
    kind = torch.bfloat16 if spec["precision"] == "bf16" else torch.float32
    for m, k, n in spec["products"]:
        a, b = torch.rand(m, k, device=device, dtype=kind), torch.rand(k, n, device=device, dtype=kind)
        out = torch.empty(m, n, device=device, dtype=kind)
        call = lambda: torch.mm(a, b, out=out)  # noqa: E731: it is called before the next turn
        if device == "cuda":
            call()
            g = torch.cuda.CUDAGraph()
            with torch.cuda.graph(g):
                call()
            call = g.replay
        ms += median_ms(device, call, spec)
        flops += 2 * m * k * n
    src = torch.empty(spec["copy_bytes"] // 4, device=device)
    dst = torch.empty_like(src)
    copy_ms = median_ms(device, lambda: dst.copy_(src), spec)
    return {"flops": flops, "products_ms": ms, "flops_per_s": flops / ms * 1e3, "copy_bytes_per_s": 2 * spec["copy_bytes"] / copy_ms * 1e3}


def all_reduce_rank(rank, world, spec, meet, answers):
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{meet}", rank=rank, world_size=world)
    rows = []
    for size in spec["sizes"]:
        x = torch.zeros(size // 4, device="cuda")
        ms = median_ms("cuda", lambda: dist.all_reduce(x), spec)
        rows.append({"size": size, "time_us": ms * 1e3, "busbw": size / ms / 1e6 * 2 * (world - 1) / world})
    if rank == 0:
        answers.put(rows)
    dist.destroy_process_group()


def do_allreduce(spec):
    import tempfile

    import torch.multiprocessing as mp

    world = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        answers = mp.get_context("spawn").SimpleQueue()
        mp.spawn(all_reduce_rank, (world, spec, folder + "/store", answers), nprocs=world)
        return answers.get()


def do_facts(spec):
    cuda = torch.cuda.is_available()
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if cuda else None
    return {"torch": torch.__version__, "cuda": torch.version.cuda, "nccl": nccl, "devices": torch.cuda.device_count() if cuda else 0}


def main():
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    print(json.dumps([globals()[f"do_{spec['do']}"](spec) for spec in json.load(open(sys.argv[1]))]))


if __name__ == "__main__":
    main()
