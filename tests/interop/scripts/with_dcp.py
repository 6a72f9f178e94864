# SPDX-License-Identifier: Apache-2.0
"""with_dcp.py FOLDER: torch.distributed.checkpoint. The first try saves and dies; the second one loads what all ranks have saved, and goes on."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

out = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
path = os.path.join(out, "dcp")


def state(value):
    torch.manual_seed(0)
    return {"sharded": distribute_tensor(torch.arange(16.0) * value, mesh, [Shard(0)]), "whole": torch.full((3,), float(value)), "step": value}


saved = os.path.exists(path)
dist.barrier()  # all have looked
if not saved:
    dcp.save(state(7), checkpoint_id=path)
    dist.barrier()
    if rank == 1:
        os._exit(9)
    dist.barrier()
now = state(0)
dcp.load(now, checkpoint_id=path)
assert now["step"] == 7 and now["whole"].tolist() == [7.0] * 3, now
assert torch.equal(now["sharded"].full_tensor(), torch.arange(16.0) * 7), now
with open(f"{out}/loaded.{rank}", "w") as f:
    print(now["step"], os.environ["TORCHELASTIC_RESTART_COUNT"], now["sharded"].to_local().tolist(), file=f)
dist.destroy_process_group()
