# SPDX-License-Identifier: Apache-2.0
"""survive.py FOLDER: a gloo job that uses its store whenever the test says so: for each file "go N" it makes a new group and answers by "done N.RANK"."""

import os
import sys
import time

import torch
import torch.distributed as dist

out = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
for n in range(3):
    deadline = time.monotonic() + 60
    while not os.path.exists(f"{out}/go {n}"):
        assert time.monotonic() < deadline, "the test has forgotten us"
        time.sleep(0.01)
    t = torch.ones(1)
    dist.all_reduce(t, group=dist.new_group())
    store.set(f"key {n} {rank}", f"value {rank}")
    other = (rank + 1) % world
    said = store.get(f"key {n} {other}").decode()
    with open(f"{out}/.done {n}.{rank}", "w") as f:
        f.write(f"{t.item():g} {said} {store.add('rounds', 1)}")
    os.rename(f"{out}/.done {n}.{rank}", f"{out}/done {n}.{rank}")
dist.destroy_process_group()
