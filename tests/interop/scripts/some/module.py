# SPDX-License-Identifier: Apache-2.0
"""python -m some.module FOLDER"""

import os
import sys

import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group()  # the backend is PyTorch's to choose
    t = torch.ones(1)
    dist.all_reduce(t)
    with open(f"{sys.argv[1]}/{dist.get_rank()}", "w") as f:
        print(t.item(), __package__, os.environ["LOCAL_RANK"], file=f)
    dist.destroy_process_group()
