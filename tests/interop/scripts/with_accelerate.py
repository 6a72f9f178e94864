# SPDX-License-Identifier: Apache-2.0
"""with_accelerate.py FOLDER: Hugging Face accelerate on the CPU, as its documentation has it."""

import os
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

set_seed(1)
accelerator = Accelerator(cpu=True)
x = torch.randn(64, 8)
model, loader = torch.nn.Linear(8, 1), DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for epoch in range(2):
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item().hex())
accelerator.wait_for_everyone()
if accelerator.is_main_process:
    with open(sys.argv[1] + "/accelerate", "w") as f:
        print(accelerator.num_processes, accelerator.distributed_type, *losses, file=f)
os._exit(0)  # as in gloo_world.py: taking gloo's groups down, as end_training() does, aborts PyTorch 2.13 now and then
