# SPDX-License-Identifier: Apache-2.0
"""crash_once.py FOLDER RANK STEP HOW: a training in which one rank dies once."""

import sys

import torch.distributed as dist

import training

out, rank, step, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo")
training.train(out, (rank, step, how))
dist.destroy_process_group()
