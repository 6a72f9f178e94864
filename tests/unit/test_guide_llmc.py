#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the guide adds to llm.c compiles, and so does rdzv.h's example for communicators: with the declarations of the programs around them. There is
no GPU and no llm.c. Without nvcc and nccl.h the test is skipped.

test_guide_llmc.py SOURCE_ROOT [NVCC NCCL_INCLUDE]
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

GUIDE = "deploy/guide/worker-in-c.md"
HUNKS_MAX, LINES_MAX = 6, 25

# A place for each hunk: %(N)s.
LLMC = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <nccl.h>
%(0)s
struct MultiGpuConfig { int process_rank, num_processes, local_device_idx; ncclComm_t nccl_comm; };
MultiGpuConfig multi_gpu_config_init(const char *init_method) {
  MultiGpuConfig result = {};
  ncclUniqueId nccl_id = {};
  if (strcmp(init_method, "mpi") == 0) {
%(1)s
  }
  ncclCommInitRank(&result.nccl_comm, result.num_processes, nccl_id, result.process_rank);
%(2)s
  return result;
}
struct Model { float mean_loss; };
int main(int argc, char **argv) {
  int step = argc, train_num_batches = 10, B = 4, grad_accum_steps = 2;
  float time_elapsed_ms = 1;
  Model model = {};
  multi_gpu_config_init(argv[0]);
%(3)s
%(4)s
%(5)s
}
"""

LOOP = r"""
#include <errno.h>
#include <stdint.h>
#include <unistd.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <rdzv.h>
extern int device;
extern cudaStream_t stream;
extern ncclComm_t comm;
void connect_all(struct rdzv *r, ncclComm_t *comm);
void agree_on_the_state(ncclComm_t comm, uint64_t *step);
void queue_gradients(uint64_t step);
void update(uint64_t step);
#define wait wait_for_gpu
%(functions)s
void train(struct rdzv *r, uint64_t step, uint64_t end) {
%(body)s
}
"""


def added_lines(guide):
    """Of each hunk of the guide's diff; nothing else may be in it, so no line of llm.c is copied."""
    diff = re.search(r"^```diff\n(.*?)^```$", guide, re.M | re.S)[1]
    hunks = []
    for line in diff.splitlines():
        if line.startswith(("--- ", "+++ ")):
            continue
        if line.startswith("@@"):
            begin, count = re.fullmatch(r"@@ -\d+,0 \+(\d+)(?:,(\d+))? @@", line).groups()
            hunks.append((int(count or 1), []))
        else:
            assert line[0] == "+", line
            hunks[-1][1].append(line[1:])
    assert all(count == len(lines) for count, lines in hunks), hunks
    return [lines for _, lines in hunks]


def example(header):
    """The code in the comment of rdzv_run_watched: its functions, and what follows them."""
    comment = header[:header.index("RDZV_API int rdzv_run_watched")].rsplit("/*", 1)[1]
    code = "\n".join(line[3:] for line in comment.splitlines() if re.match(r" \*     ", line))
    return re.match(r"(.*?\n)(\s*struct rdzv_comms.*)", code, re.S).groups()


def compile_with(nvcc, name, text, root, include, *options):
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, name)
        source.write_text(text)
        argv = [nvcc, "-c", source, "-o", Path(folder, "out.o"), "-I", f"{root}/agent/sdk", "-isystem", include, "-Xcompiler", "-Wall,-Werror", *options]
        p = subprocess.run(argv, capture_output=True, text=True, timeout=200)
        if p.returncode:
            sys.exit(f"{name} does not compile:\n{p.stdout}{p.stderr}")
    print(f"{name} compiles")


def main():
    root, found = Path(sys.argv[1]), sys.argv[2:]
    hunks = added_lines((root / GUIDE).read_text())
    n = sum(len(lines) for lines in hunks)
    if len(hunks) != HUNKS_MAX or n > LINES_MAX:
        sys.exit(f"{GUIDE}: {len(hunks)} hunks with {n} lines; this test knows {HUNKS_MAX} hunks, with {LINES_MAX} lines at most")
    functions, body = example((root / "agent/sdk/rdzv.h").read_text())
    if not found:
        print("skipped: nvcc or nccl.h is not installed")
        sys.exit(77)
    compile_with(found[0], "llmc.cu", LLMC % {str(i): "\n".join(lines) for i, lines in enumerate(hunks)}, root, found[1], "-std=c++17")
    compile_with(found[0], "loop.c", LOOP % {"functions": functions, "body": body}, root, found[1], "-Xcompiler", "-Wno-unused-function,-std=gnu11")


if __name__ == "__main__":
    main()
