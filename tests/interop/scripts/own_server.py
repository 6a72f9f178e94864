# SPDX-License-Identifier: Apache-2.0
"""own_server.py FOLDER: a script that serves its own stores: rank 0 at MASTER_PORT (by init_method), then at a port of its choice (by hand)."""

import os
import sys

import torch
import torch.distributed as dist

rank, world, addr = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
dist.init_process_group("gloo", init_method=f"tcp://{addr}:{os.environ['MASTER_PORT']}", rank=rank, world_size=world)
mine = dist.TCPStore(addr, 0, world, True, wait_for_workers=False) if rank == 0 else None
port = [mine.port if mine else None]
dist.broadcast_object_list(port, src=0)
store = mine or dist.TCPStore(addr, port[0], world, False)
n = store.add("here", 1)
store.barrier("all", world)
t = torch.ones(1)
dist.all_reduce(t)
with open(f"{sys.argv[1]}/{rank}", "w") as f:
    print(t.item(), store.get("here").decode(), file=f)
dist.barrier()
dist.destroy_process_group()
