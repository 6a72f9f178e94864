# SPDX-License-Identifier: Apache-2.0
"""light.py FOLDER FAIL: a worker without torch, which says where torchrun has put it. With "fail", rank 0 fails once, when all are there; torchrun's
own count of restarts differs from node to node."""

import os
import sys
import time

out, fail = sys.argv[1], sys.argv[2] == "fail"
names = "RANK", "WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID"
rank, world, _, tried, run = place = [os.environ[n] for n in names]
with open(f"{out}/{run}.{tried}.{rank}", "a") as f:
    print(*place, file=f)
if fail and not os.path.exists(f"{out}/failed"):
    deadline = time.monotonic() + 30
    while len([n for n in os.listdir(out) if n.startswith(f"{run}.0.")]) < int(world) and time.monotonic() < deadline:
        time.sleep(0.02)
    if rank == "0":
        open(f"{out}/failed", "w").close()
        sys.exit(3)
    time.sleep(60)
