# SPDX-License-Identifier: Apache-2.0
"""with_saver.py FOLDER STEPS: Hugging Face Accelerate with rdzv's saver, as the guide has it."""

import quick  # first
import os
import sys
import time

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

import rdzv

quick.imported()
FOLDER, STEPS = sys.argv[1], int(sys.argv[2])
set_seed(1)
accelerator = Accelerator(cpu=True)
x = torch.randn(8 * STEPS, 8)
layers = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
model, loader = layers, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, generator=torch.Generator())  # its own, so that dropout's numbers do not depend on how often it begins
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

with rdzv.accelerate.Saver(accelerator, FOLDER + "/checkpoints", every=5) as saver:
    begin = saver.load()
    for step, (a, b) in enumerate(skip_first_batches(loader, begin), begin + 1):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        accelerator.backward(loss)
        optimizer.step()
        if rdzv.rank == 0:
            with open(FOLDER + "/losses", "a") as f:
                print(step, loss.item().hex(), file=f)
        saver.step(step, of=STEPS, loss=loss.item(), samples=len(a))
accelerator.end_training()
if rdzv.rank == 0:
    print("trained", step, flush=True)
