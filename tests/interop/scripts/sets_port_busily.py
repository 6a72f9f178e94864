# SPDX-License-Identifier: Apache-2.0
"""sets_port_busily.py FOLDER PORT: as sets_port.py, but its ranks meet in a thread, while the script computes and is connected elsewhere."""

import os
import socket
import sys
import threading

os.environ["MASTER_ADDR"] = "localhost"
os.environ["MASTER_PORT"] = sys.argv[2]


def meet():
    import sets_no_port  # noqa: F401


elsewhere = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(elsewhere.getsockname())
thread = threading.Thread(target=meet, daemon=True)
thread.start()
while thread.is_alive():
    sum(range(10000))
