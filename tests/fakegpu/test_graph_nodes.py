#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pins what a captured step launches, node by node, on the stand-ins: a launch that a change adds is seen here.

test_graph_nodes.py AGENT TRAINER FAKE_MODULE
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

AGENT, TRAINER, MODULE = (str(Path(a).resolve()) for a in sys.argv[1:])
# Two layers; the first one is large enough for three parts with the small bucket below.
COMMON = ["--layers", "20,300,20", "--data", "synthetic:96", "--batch", "24", "--scale", "0.005", "--steps", "6", "--report-every", "0",
          "--device", "cuda", "--cuda-module", MODULE, "--cuda-graph", "on"]

BEGIN = ["copy_and_stamp_kernel", "ramps_kernel", "copy_and_stamp_kernel"]  # flags; rows; time of the input
FORWARD = ["matmul", "matmul"]
LOSS = {"mse": ["squared_kernel"], "rmse": ["squared_kernel", "root_kernel"]}
SUM = ["trace_begin_kernel", "ncclAllReduce", "trace_end_kernel"]
SECOND, INPUT, FIRST = ["matmul"], ["matmul"], ["matmul"]  # gradients: of the second layer, of its input, of the first layer
TIMES = ["copy_and_stamp_kernel"] * 2
END = ["decide_kernel", "update_kernel", "copy_and_stamp_kernel"]  # the last one: results and time

CASES = [
    (1, "mse", [], BEGIN + FORWARD + LOSS["mse"] + SECOND + INPUT + FIRST + END),
    (1, "rmse", [], BEGIN + FORWARD + LOSS["rmse"] + SECOND + INPUT + FIRST + END),
    (2, "mse", [], BEGIN + FORWARD + LOSS["mse"] + SECOND + INPUT + FIRST + SUM + TIMES + END),
    # The sum of a layer begins before the gradient of its input, and the first layer is summed in parts, the bias with the first of them.
    (2, "mse", ["--bucket-cap-mb", "0.0001"], BEGIN + FORWARD + LOSS["mse"] + SECOND + SUM + INPUT + FIRST + ["column_sums_kernel"] + SUM
     + (FIRST + SUM) * 2 + TIMES + END),
]


def graphs(world, *options):
    """The names of the nodes of each graph that was built, without the arguments of templates."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graphs")
        env = {**os.environ, "FAKEGPU_GRAPHS": str(path), "LD_LIBRARY_PATH": str(Path(MODULE).parent)}
        run = [AGENT, "--standalone", "--nproc", str(world), "--max-restarts", "0", "--", TRAINER, *COMMON, *options]
        p = subprocess.run(run, env=env, capture_output=True, text=True, timeout=100)
        if p.returncode:
            sys.exit(f"{' '.join(run)}: exit code {p.returncode}\n{p.stdout}{p.stderr}")
        return [[re.sub(r"\W*(\w+).*", r"\1", line) for line in graph.split("\n")] for graph in path.read_text().strip().split("\n\n")]


for world, loss, options, want in CASES:
    for got in graphs(world, "--loss", loss, *options):
        if got != want:
            sys.exit(f"world {world}, {loss} {' '.join(options)}: a captured step has {len(got)} nodes:\n  {' '.join(got)}\n"
                     f"but should have {len(want)}:\n  {' '.join(want)}")
    print(f"world {world}, {loss} {' '.join(options)}: {len(want)} nodes")
