# SPDX-License-Identifier: Apache-2.0
"""Shared by the cases: clients, the exception of a call, and delayed actions. torch is needed when a case runs only: pytest collects
the names without it."""

import threading
import time
from datetime import timedelta

try:
    import torch.distributed as dist
except ImportError:
    dist = None

KEY_MAX, VALUE_MAX, KEYS_MAX = 8192, 8 << 20, 131072


class Opener:
    def __init__(self, port):
        self.port = port

    def __call__(self, host="localhost", timeout=10, world_size=None, **kw):
        return dist.TCPStore(host, self.port, world_size, False, timeout=timedelta(seconds=timeout), **kw)


def seconds(s):
    return timedelta(seconds=s)


def raised(fn, *args):
    """The exception's type (and what is sure to stand in its text), or what came back."""
    try:
        return ["returned", fn(*args)]
    except Exception as e:
        return [type(e).__name__]


def later(fn, *args, after=0.15):
    def run():
        time.sleep(after)
        fn(*args)

    t = threading.Thread(target=run)
    t.start()
    return t
