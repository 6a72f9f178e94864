# SPDX-License-Identifier: Apache-2.0
"""by_address.py FOLDER PORT: names its own store in init_process_group."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
dist.all_reduce(torch.ones(1))
open(f"{sys.argv[1]}/{dist.get_rank()}", "w").close()
dist.destroy_process_group()
