#!/usr/bin/env python3
"""usage: cuda_packages.py MODULE   The packages of NVIDIA's that have the libraries which the module is linked with, as a substitution
variable: libcublasLt.so.13 is in libcublas-13-0, -13-1 and so on; libnccl.so.2 is in libnccl2."""
import re
import subprocess
import sys

text = subprocess.run(["objdump", "-p", sys.argv[1]], check=True, capture_output=True, text=True).stdout
version = re.search(r"NEEDED\s+libcublasLt\.so\.(\d+)", text)[1]
assert re.search(r"NEEDED\s+libnccl\.so\.2\b", text), "the module is linked with another NCCL than 2"
# Which minor versions there will be is not known here; the first that exists is taken, and any of them does.
print("cuda:Recommends=" + " | ".join(f"libcublas-{version}-{minor}" for minor in range(10)) + ", libnccl2")
