# SPDX-License-Identifier: Apache-2.0
"""The machine of tests/gpu/run --dry: one GPU that is none. rdzv's own stand-ins for CUDA, NCCL and NVML are in the build; here are those for NVIDIA's
programs, which say what the script of the stand-in for NVML says (tests/rig/fake_nvml.c)."""

import os
from pathlib import Path

GPU = "device GPU-aaaa-1 00000000:01:00.0 NVIDIA_FAKE 81920 4\n"

SMI = r"""#!/bin/sh
case "$1" in
--query-gpu=*)
  awk -v want="${1#*=}" '
    function put() { if (!n++) return; out = ""
      k = split(want, f, ","); for (i = 1; i <= k; i++) out = out (i > 1 ? ", " : "") v[f[i]]; print out }
    $1 == "device" { put(); v["index"] = n - 1; v["uuid"] = $2; v["name"] = $4; gsub("_", " ", v["name"]); v["memory.total"] = $5; v["memory.used"] = $6
      v["driver_version"] = "stand-in" }
    $1 == "process" { v["memory.used"] += $3 }
    END { put() }' "$RDZV_FAKE_NVML" ;;
*) echo "nvidia-smi $*: a stand-in" ;;
esac
"""

SANITIZER = r"""#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
case "$HOW $1" in
"nothing "*) echo "no permission" >&2; exit 1 ;;
"crash "*rdzv-trainer) echo "Segmentation fault" >&2 ;;
"errors "*rdzv-trainer) "$@"; echo "========= ERROR SUMMARY: 3 errors"; exit 99 ;;
*) "$@" ;;
esac
echo "========= ERROR SUMMARY: 0 errors"
"""

NSYS = r"""#!/bin/sh
case "$1" in
profile) [ "$HOW" = fails ] && { echo "no permission" >&2; exit 1; }
  for word; do case "$before" in -o) touch "$word.nsys-rep" ;; esac; before=$word; done ;;
stats) echo 'Processing [replay.sqlite] with [cuda_gpu_kern_sum.py]...'
  echo
  echo 'Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name'
  echo '60.0,6000,60,2100.0,2000.0,1000,3000,5.0,"void update_kernel<(bool)1, float>(const kernel_control *, hyper, float *)"'
  echo '40.0,4000,60,1500.0,1500.0,1000,3000,5.0,"decide_kernel(kernel_decide, unsigned long, kernel_scratch *)"' ;;
esac
"""


def install(args):
    """Into this process's environment, and its options."""
    build, folder = Path(args.build).resolve(), Path(args.out).resolve() / "standins"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("nvidia-smi", SMI), ("compute-sanitizer", SANITIZER), ("nsys", NSYS)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "gpus").write_text(GPU)
    args.rehearse, args.cuda_module = True, str(build / "tests/fakegpu/rdzv-cuda-fake.so")
    os.environ.update(PATH=f"{folder}:{os.environ['PATH']}", RDZV_NVML_LIBRARY=str(build / "tests/rig/fake-nvml.so"), RDZV_FAKE_NVML=str(folder / "gpus"),
                      RDZV_CUDA_LIBRARY=str(build / "tests/fakegpu/fake-nccl-pair.so"))
