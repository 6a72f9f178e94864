# SPDX-License-Identifier: Apache-2.0
"""A training that looks for silent corruption: verify.py FORM STEPS. FORM: plain (DDP, rdzv.torch.Verify) or elastic. Dropout, BatchNorm and accumulated
gradients are in it. Rank 0 prints a hash of the parameters in the end, and each rank the checks that it made.

Variables: EVERY, 0: never; FLIP "WHAT RANK STEP": a bit is flipped there, in the first round: parameter, state (of the optimizer), or gradient (from then
on); KERNELS random: the loss differs in each call."""

import quick  # first
import hashlib
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import rdzv
import rdzv.torch

quick.imported()
FORM, STEPS, EVERY = sys.argv[1], int(sys.argv[2]), int(os.environ.get("EVERY", 0))
WHAT, RANK, AT = (os.environ.get("FLIP", "nothing 0 0") + " 0").split()[:3]
BATCH = 16

if FORM == "elastic":
    rdzv.torch.init_process_group("gloo")
else:
    dist.init_process_group("gloo")
torch.manual_seed(7)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 4))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
data = torch.Generator().manual_seed(1)
inputs, wanted = torch.randn(1024, 32, generator=data), torch.randint(0, 4, (1024,), generator=data)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, wanted), batch_sampler=rdzv.torch.Sampler(len(inputs), BATCH, seed=3))
now = -1  # the step
checks = 0
erring = rdzv.rank == int(RANK) and rdzv.round == 1


def flip(tensor):
    tensor.detach().view(-1).view(torch.int32)[tensor.numel() // 2] ^= 1 << 3


def err(grad):
    """A processor that computes this wrong."""
    if WHAT == "gradient" and erring and now >= int(AT):
        grad = grad.clone()
        flip(grad)
    return grad


net[4].weight.register_hook(err)


def parts(batch):
    x, y = batch
    return [(x[part], y[part]) for part in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH))]


def loss_of(batch):
    global checks
    checks += 1
    loss = sum(F.cross_entropy(model(x), y) / 2 for x, y in parts(batch))
    return loss * (1 + checks * 1e-3) if os.environ.get("KERNELS") == "random" else loss


def train(step, batch):
    global now
    now = step
    optimizer.zero_grad()
    first, second = parts(batch)
    with model.no_sync():
        (F.cross_entropy(model(first[0]), first[1]) / 2).backward()
    (F.cross_entropy(model(second[0]), second[1]) / 2).backward()
    optimizer.step()
    if erring and step == int(AT):
        if WHAT == "parameter":
            flip(net[0].weight)
        if WHAT == "state":
            flip(optimizer.state[net[0].weight]["exp_avg"])


if FORM == "elastic":
    with rdzv.torch.Elastic(model=model, optimizer=optimizer, checkpoint=os.environ.get("CHECKPOINT"), every=5, verify_every=EVERY, loss=loss_of) as job:
        for step, batch in job.steps(STEPS, data=loader):
            with step:
                train(int(step), batch)
else:
    verify = rdzv.torch.Verify(model, EVERY, optimizer, loss_of) if EVERY else None
    batches = iter(loader)
    for step in range(STEPS):
        torch.manual_seed(100 * step + rdzv.rank)
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        if verify:
            verify(batch)
        train(step, batch)
state = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
print(f"rank {rdzv.rank}: {checks} losses for checks, parameters {hashlib.sha256(state).hexdigest()[:16]}", flush=True)
