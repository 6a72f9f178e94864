# SPDX-License-Identifier: Apache-2.0
"""by_argument.py FOLDER --local-rank=N: from the days of torch.distributed.launch."""

import argparse
import os

import torch
import torch.distributed as dist

p = argparse.ArgumentParser()
p.add_argument("out")
p.add_argument("--local-rank", "--local_rank", type=int, required=True)
a = p.parse_args()
dist.init_process_group("gloo")
t = torch.ones(1) * (a.local_rank + 1)
dist.all_reduce(t)
with open(f"{a.out}/{dist.get_rank()}", "w") as f:
    print(a.local_rank, os.environ["LOCAL_RANK"], t.item(), file=f)
dist.destroy_process_group()
