# SPDX-License-Identifier: Apache-2.0
"""sets_port.py FOLDER PORT: sets where its ranks meet inside of the process, before PyTorch reads it."""

import os
import sys

os.environ["MASTER_ADDR"] = "localhost"
os.environ["MASTER_PORT"] = sys.argv[2]
import sets_no_port  # noqa: E402, F401
