# SPDX-License-Identifier: Apache-2.0
"""in_place_saver.py FOLDER STEPS: Accelerate in place, as the guide has it. ACCUMULATE: batches of a step. Each rank writes the losses of its steps,
and its parameters at the end."""

import quick  # first
import hashlib
import os
import sys
import time

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import rdzv
import rdzv.torch

quick.imported()
FOLDER, STEPS, ACCUMULATE = sys.argv[1], int(sys.argv[2]), int(os.environ.get("ACCUMULATE", 1))
torch.manual_seed(1)
x = torch.randn(336, 8)


def corrupt(rows):
    """Random numbers in the loader, as collators for language models draw them."""
    a, b = (torch.stack(column) for column in zip(*rows))
    return a * (torch.rand(a.shape) > 0.1), b


rdzv.torch.init_process_group("gloo")
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
data = TensorDataset(x, x.sum(1, keepdim=True))
loader = DataLoader(data, batch_size=4, shuffle=True, collate_fn=corrupt)
optimizer = torch.optim.Adam(layers.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
model, optimizer, loader, scheduler = accelerator.prepare(layers, optimizer, loader, scheduler)


def train(batch):
    a, b = batch
    with accelerator.accumulate(model):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
    return loss.detach()


with rdzv.accelerate.Saver(accelerator, FOLDER + "/checkpoints", every=20, in_place=True) as saver:
    for step, batch in saver.steps(STEPS, loader):
        with step:
            loss = sum(train(b) for b in batch) if ACCUMULATE > 1 else train(batch)
            losses = accelerator.gather(loss.reshape(1)).tolist()
            step.report(loss=losses[0], samples=4 * ACCUMULATE)
            time.sleep(float(os.environ.get("PAUSE", 0)))
            with open(f"{FOLDER}/losses-{rdzv.rank}", "a") as f:
                print(step + 1, ",".join(n.hex() for n in [*losses, scheduler.get_last_lr()[0]]), file=f)
with open(f"{FOLDER}/end-{rdzv.rank}", "w") as f:
    parts = layers.parameters()  # the buffers of rank 0 are gone with it
    print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parts)).hexdigest(), os.getpid(), file=f)
