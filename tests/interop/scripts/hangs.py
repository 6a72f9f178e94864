# SPDX-License-Identifier: Apache-2.0
"""One rank stops taking part, and the others wait for it in a collective. WHAT: all (it sleeps), stop (it stops its process), pair (its partner
waits for it in a group of two), timeout (gloo gives up after some seconds)."""

import datetime
import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.debug as debug

what, culprit = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8 if what == "timeout" else 600))
rank = dist.get_rank()
pair = dist.new_group([0, 1], group_desc="pair")
try:
    debug.start_debug_server(port=0)
except ModuleNotFoundError:
    pass  # only rank 0's page for people needs more modules: the servers of workers run
for step in range(1, 20):
    pathlib.Path(f"{rank}.beat").touch()
    if step == 8 and rank == culprit:
        if what == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(600)
    if what == "pair" and rank in (0, 1):
        dist.broadcast(torch.ones(1), 0 if culprit else 1, group=pair)
    dist.all_reduce(torch.ones(1))
