# SPDX-License-Identifier: Apache-2.0
"""A rank of the step torch-nccl: torch_job.py FOLDER STEPS BACKEND restarted|inplace. Each step's batch follows from its number, so that a run which was
disturbed ends with the loss of one that was not. DIE=STEP: rank 1 kills itself there in the job's first round, once."""

import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

folder, steps, backend, mode = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
first_round, die = os.environ["RDZV_ROUND"] == "1", int(os.environ.get("DIE", -1))
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count()) if backend == "nccl" else torch.device("cpu")
if device.type == "cuda":
    torch.cuda.set_device(device)
torch.manual_seed(1)


def network():
    return DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32)).to(device))


def update(step, rank, model, optimizer):
    if first_round and step == die and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(1000 * step + rank)).to(device)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    return loss.detach()


def restarted():
    dist.init_process_group(backend)
    model, rank, saved = network(), dist.get_rank(), folder / "state.pt"
    optimizer, step = torch.optim.Adam(model.parameters(), lr=1e-3), 0
    if saved.exists():
        state = torch.load(saved, map_location=device)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    while step < steps:
        loss = update(step, rank, model, optimizer)
        step += 1
        if rank == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, folder / "state.new")
            (folder / "state.new").replace(saved)
        dist.barrier()
    dist.all_reduce(loss)
    print(f"done: {float(loss):.9g}", flush=True)
    dist.destroy_process_group()


def inplace():
    import rdzv.torch

    rdzv.torch.init_process_group(backend)
    model, total = network(), torch.zeros(1, device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with rdzv.torch.Elastic(model=model, optimizer=optimizer) as job:
        for step in job.steps(steps):
            with step:
                total = update(int(step), job.rank, model, optimizer).reshape(1)
    dist.all_reduce(total)
    print(f"done: {float(total):.9g}", flush=True)


inplace() if mode == "inplace" else restarted()
