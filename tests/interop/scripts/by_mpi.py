# SPDX-License-Identifier: Apache-2.0
"""by_mpi.py FOLDER: a script that was written for mpirun."""

import os
import sys

import torch
import torch.distributed as dist

place = {k: int(os.environ[f"OMPI_COMM_WORLD_{k}"]) for k in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "NODE_RANK")}
url = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", init_method=url, rank=place["RANK"], world_size=place["SIZE"])
t = torch.ones(1)
dist.all_reduce(t)
with open(f"{sys.argv[1]}/{dist.get_rank()}", "w") as f:
    print(t.item(), *place.values(), file=f)
dist.destroy_process_group()
