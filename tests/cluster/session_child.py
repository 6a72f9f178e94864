#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker whose child writes when it runs, as beats.py does, but in a session of its own and deaf to SIGTERM: session_child.py FILE.

On a host NAME for which there is a file end-NAME the worker exits with 0, and the child stays behind.
"""

import os
import signal
import sys
import time

import beats

if __name__ == "__main__":
    worker, node = os.getpid(), os.uname().nodename
    if os.fork() == 0:
        os.setsid()
        for signo in signal.SIGTERM, signal.SIGINT, signal.SIGHUP:
            signal.signal(signo, signal.SIG_IGN)
        beats.write(sys.argv[1], worker, lambda: not os.path.exists("go"))
        os._exit(0)
    e = os.environ
    print(f"round {e['RDZV_ROUND']} of {e['GROUP_WORLD_SIZE']}, {e['RDZV_RESTART_COUNT']} charged", flush=True)
    while not os.path.exists("go") and not os.path.exists(f"end-{node}"):
        time.sleep(0.02)
