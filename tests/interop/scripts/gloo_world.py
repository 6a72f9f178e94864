# SPDX-License-Identifier: Apache-2.0
"""gloo_world.py FOLDER: every collective that scripts lean on, then a training. result.RANK gets what came out of them."""

import datetime
import json
import os
import sys

import torch
import torch.distributed as dist

import training

out = sys.argv[1]
dist.init_process_group("gloo", init_method="env://", timeout=datetime.timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
got = {"place": [rank, world]}


def all_reduce(group=None):
    t = torch.arange(4.0) + rank
    dist.all_reduce(t, group=group)
    return t.tolist()


def all_gather():
    parts = [torch.zeros(2) for _ in range(world)]
    dist.all_gather(parts, torch.tensor([rank, rank * rank], dtype=torch.float))
    return [p.tolist() for p in parts]


got["all_reduce"] = all_reduce()
got["all_gather"] = all_gather()

halves = [dist.new_group(range(world // 2)), dist.new_group(range(world // 2, world))]
got["new_group"] = all_reduce(halves[rank // (world // 2)])
got["group rank"] = dist.get_rank(halves[rank // (world // 2)])

dist.monitored_barrier(timeout=datetime.timedelta(seconds=30))
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank, "local": int(os.environ["LOCAL_RANK"])})
got["all_gather_object"] = [o["rank"] for o in objects]
words = ["from 0", {"a": [1, 2]}, None] if rank == 0 else [None] * 3
dist.broadcast_object_list(words, src=0)
got["broadcast_object_list"] = words
parts = [torch.full((2,), float(rank * world + i)) for i in range(world)]
mine = torch.zeros(2)
dist.scatter(mine, parts if rank == 1 else None, src=1)
got["scatter"] = mine.tolist()
if rank == 0:
    dist.send(torch.tensor([42.0]), world - 1)
elif rank == world - 1:
    t = torch.zeros(1)
    dist.recv(t, 0)
    got["recv"] = t.tolist()
dist.barrier()

store = dist.distributed_c10d._get_default_store()
store.set(f"mine {rank}", str(rank))
got["store"] = [store.get(f"mine {(rank + 1) % world}").decode(), store.add("all", 1) <= world]

got["steps"] = training.train(out)
dist.barrier()
with open(os.path.join(out, f"result.{rank}"), "w") as f:
    json.dump(got, f)
os._exit(0)  # PyTorch 2.13 aborts now and then when it takes several gloo groups down: "terminate called without an active exception"
