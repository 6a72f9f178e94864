# SPDX-License-Identifier: Apache-2.0
"""spawns.py FOLDER PER_NODE: one process per node, which makes its own workers by torch.multiprocessing."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(local, out, each):
    node, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rank, world = node * each + local, nodes * each
    dist.init_process_group("gloo", init_method=f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", rank=rank, world_size=world)
    t = torch.ones(1) * rank
    dist.all_reduce(t)
    with open(f"{out}/{rank}", "w") as f:
        print(t.item(), world, file=f)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1], int(sys.argv[2])), nprocs=int(sys.argv[2]))
