# SPDX-License-Identifier: Apache-2.0
"""A small training in PyTorch's words, which says nothing about who started it: DistributedDataParallel, DistributedSampler, a checkpoint by rank 0 after
every step, from which it goes on. losses.RANK in the folder gets one line per step: the step and the loss, every bit of it."""

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

EPOCHS, SAMPLES, BATCH = 2, 96, 6


def crash(how):
    if how == "exception":
        raise RuntimeError("a planned failure")
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))


def train(out, plan=None):
    """plan: (rank, step, how): who is to die where, in the first try of all only."""
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, 8)
    data = TensorDataset(x, x[:, :1] * 2 - x[:, 1:2] + 0.5)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = DistributedSampler(data, world, rank, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    begun, step, path = 0, 0, os.path.join(out, "checkpoint.pt")
    if os.path.exists(path):
        saved = torch.load(path)
        begun = saved["step"]
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    dist.barrier()  # nobody writes the next one before all have read this one
    losses = open(os.path.join(out, f"losses.{rank}"), "a")
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for a, b in loader:
            step += 1
            if step <= begun:
                continue
            if plan and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and (rank, step) == plan[:2]:
                crash(plan[2])
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(a), b)
            losses.write(f"{step} {loss.item().hex()}\n")  # before all ranks meet: behind that, rank 0 may have saved the step while we have not told of it
            losses.flush()
            loss.backward()
            optimizer.step()
            if rank == 0:
                torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path + ".new")
                os.replace(path + ".new", path)
    return step
