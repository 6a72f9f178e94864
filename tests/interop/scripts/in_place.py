# SPDX-License-Identifier: Apache-2.0
"""A training whose survivors stay: in_place.py FOLDER STEPS. Each rank writes to FOLDER: the losses and samples of the steps that it has completed,
and in the end its parameters.

Variables: FORM ddp | plain | scaler; DIE "RANK STEP WHERE": that rank kills itself there, once; SLEEPS "RANK STEP": that rank sleeps there, once; "RANK STEP collective": as
if in a collective that does not end; PAUSE seconds per step; CHECKPOINT a folder; HOLD a
step before which all ranks wait for FOLDER/go."""

import quick  # first
import hashlib
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import rdzv
import rdzv.torch

quick.imported()
OUT, STEPS, FORM = sys.argv[1], int(sys.argv[2]), os.environ.get("FORM", "ddp")
PAUSE, BATCH = float(os.environ.get("PAUSE", 0)), 16
DIE = os.environ.get("DIE", "").split(" ", 2)
SLEEPS = os.environ.get("SLEEPS", "").split()


def die(where, step, rank):
    if DIE == [str(rank), str(int(step)), where] and not os.path.exists(f"{OUT}/died"):
        open(f"{OUT}/died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)


def note(name, **what):
    with open(f"{OUT}/{name}-{rdzv.rank}", "a") as f:
        f.write(json.dumps({"pid": os.getpid(), **what}) + "\n")


BACKEND = os.environ.get("BACKEND", "gloo")
if BACKEND == "standin_nccl":
    import standin_nccl

    standin_nccl.install()
rdzv.torch.init_process_group(BACKEND)
torch.manual_seed(7)
net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 64),
                          torch.nn.ReLU(), torch.nn.Linear(64, 4))
model = net if FORM == "plain" else DistributedDataParallel(net, bucket_cap_mb=0.01)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
state = {"scheduler": scheduler}
if FORM == "scaler":
    state["scaler"] = scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=7)
# A subgroup: this rank and its neighbour.
pairs = rdzv.torch.each_round(lambda: [] if BACKEND != "gloo" else [dist.new_group([r for r in (i, i + 1) if r < dist.get_world_size()]) for i in range(0, dist.get_world_size(), 2)])
data = torch.Generator().manual_seed(1)
inputs, wanted = torch.randn(1024, 32, generator=data), torch.randint(0, 4, (1024,), generator=data)
sampler = rdzv.torch.Sampler(len(inputs), BATCH, seed=3)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(1024), inputs, wanted), batch_sampler=sampler)
die("set-up", 0, rdzv.rank)


def backward(x, y, step, job):
    """The gradients of all ranks, and this rank's loss."""
    loss = 0.0
    for part in (slice(0, BATCH // 2), slice(BATCH // 2, BATCH)):  # accumulated
        last = part.stop == BATCH
        with torch.autocast("cpu", torch.bfloat16, enabled=FORM == "scaler"):
            if last and FORM != "plain":
                out = model(x[part])
            else:
                out = net(x[part])
        one = F.cross_entropy(out.float(), y[part]) / 2
        die("forward", step, job.rank)
        if last:
            net[0].weight.register_hook(lambda g: die("backward", step, job.rank))
        (scaler.scale(one) if FORM == "scaler" else one).backward()
        loss += one.item()
    if FORM == "plain":
        for p in net.parameters():
            dist.all_reduce(p.grad)
            p.grad /= job.world_size
    return loss


with rdzv.torch.Elastic(model=model, optimizer=optimizer, state=state, checkpoint=os.environ.get("CHECKPOINT"), every=10) as job:
    note("began", round=rdzv.round, world=job.world_size, step=job.step)
    for step, (which, x, y) in job.steps(STEPS, data=loader):
        whole = False
        while step == int(os.environ.get("HOLD", -1)) and not os.path.exists(f"{OUT}/go") and not job.interrupted:
            time.sleep(0.01)
        with step:
            optimizer.zero_grad()
            loss = backward(x, y, step, job)
            if FORM == "scaler":
                scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            die("before the update", step, job.rank)
            if FORM == "scaler":
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            die("behind the update", step, job.rank)
            near = torch.tensor([loss])
            if BACKEND == "gloo":
                dist.all_reduce(near, group=pairs()[job.rank // 2])
            scheduler.step()
            total = torch.tensor([loss])
            dist.all_reduce(total)
            die("behind the last sum", step, job.rank)
            step.report(loss=total / job.world_size, samples=len(x))
            time.sleep(PAUSE)
            if os.environ.get("BAD") == f"{job.rank} {int(step)}":
                raise ValueError("a mistake of the script")
            if SLEEPS[:2] == [str(job.rank), str(int(step))] and not os.path.exists(f"{OUT}/slept"):
                open(f"{OUT}/slept", "w").close()
                exec(compile("time.sleep(600)", dist.__file__ if SLEEPS[2:] else __file__, "exec"))
            whole = True
        if whole:
            note("steps", step=int(step), loss=total.item(), near=near.item(), lr=scheduler.get_last_lr()[0], world=job.world_size, which=which.tolist(),
                 round=rdzv.round)
parameters = b"".join(p.detach().numpy().tobytes() for p in net.parameters())
note("end", sha=hashlib.sha256(parameters).hexdigest(), world=rdzv.world_size)
