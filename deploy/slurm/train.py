#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A PyTorch script that may be stopped at any time and resumes: the default command of the batch scripts here.

    rdzv-agent --standalone --nproc 2 -- ./train.py --epochs 3

(1) to (4) mark the parts that matter. The rest is a small training; replace it by yours.
"""

import argparse
import os
import signal
import sys
import time

# (1) Before a time limit, and at a preemption, every process gets SIGTERM. It may come at any time: only note it.
told_to_stop = False


def on_term(*_):
    global told_to_stop
    told_to_stop = True


signal.signal(signal.SIGTERM, on_term)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--steps", type=int, default=100, help="of an epoch")
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--checkpoint", default="checkpoint.pt", help="a file in a folder that all nodes see")
parser.add_argument("--pause", type=float, default=0, help="seconds after each step, to have time to look")
args = parser.parse_args()

gpu = torch.cuda.is_available()
if gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = torch.device("cuda" if gpu else "cpu")
dist.init_process_group("nccl" if gpu else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()

torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device))
optimizer = torch.optim.Adam(model.parameters(), args.lr)


def save(step):
    """(2) Written beside the old one, then renamed: whoever reads sees a whole one, whenever the power goes."""
    if rank == 0:
        torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, args.checkpoint + ".new")
        os.replace(args.checkpoint + ".new", args.checkpoint)


# (3) Every start resumes from the checkpoint, if there is one: the first, one after a failure, one in the job's next life.
begun = 0
if os.path.exists(args.checkpoint):
    saved = torch.load(args.checkpoint, map_location=device)
    begun = saved["step"]
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
if rank == 0:
    print(f"{world} ranks, from step {begun} on", flush=True)
dist.barrier()  # no rank writes the next checkpoint before all have read this one

for step in range(begun, args.epochs * args.steps):
    data = torch.Generator().manual_seed(step * world + rank)  # the samples of a step depend on its number alone
    x = torch.randn(16, 32, generator=data).to(device)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(args.pause)
    # (4) The signal reaches ranks at different steps. So they agree to stop after the same step, as soon as one has it.
    stop = torch.tensor(int(told_to_stop), device=device)
    dist.all_reduce(stop, op=dist.ReduceOp.MAX)
    if stop.item() or (step + 1) % args.steps == 0:
        save(step + 1)
        if rank == 0:
            print(f"step {step + 1}, loss {loss.item():.6f}" + (": told to stop, checkpoint written" if stop.item() else ""), flush=True)
    if stop.item():
        dist.barrier()  # no rank leaves before it is written
        dist.destroy_process_group()
        sys.exit(75)  # "not done"; 0 would mean that the training is complete

if rank == 0:
    weights = torch.cat([p.detach().double().flatten() for p in model.parameters()])
    print(f"done: {args.epochs * args.steps} steps, weights {weights.sum().item():.12f}", flush=True)
dist.destroy_process_group()
