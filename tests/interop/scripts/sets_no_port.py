# SPDX-License-Identifier: Apache-2.0
"""sets_no_port.py FOLDER: as torchrun's documentation has it."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
t = torch.ones(1)
dist.all_reduce(t)
with open(f"{sys.argv[1]}/{dist.get_rank()}", "w") as f:
    print(t.item(), file=f)
dist.destroy_process_group()
