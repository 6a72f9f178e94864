# SPDX-License-Identifier: Apache-2.0
"""@record writes what went wrong into the file that the launcher named."""

import os
import time

from torch.distributed.elastic.multiprocessing.errors import record


@record
def main():
    if os.environ["RANK"] == "1":
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # only the file tells
        raise ValueError("the learning rate is a banana")
    time.sleep(60)


main()
