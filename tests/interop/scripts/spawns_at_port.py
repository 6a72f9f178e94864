# SPDX-License-Identifier: Apache-2.0
"""spawns_at_port.py FOLDER PORT: two ranks by torch.multiprocessing on one machine, as PyTorch's tutorials have it."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, world, out, port):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = port
    dist.init_process_group("gloo", rank=rank, world_size=world)
    t = torch.ones(1)
    dist.all_reduce(t)
    with open(f"{out}/{rank}", "w") as f:
        print(t.item(), file=f)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(2, sys.argv[1], sys.argv[2]), nprocs=2)
