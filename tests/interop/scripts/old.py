# SPDX-License-Identifier: Apache-2.0
"""old.py PORT|env FOLDER: PyTorch 1.13. With a port, one process plays all parts of TCPStore's interface, and then rests for three seconds; by the environment,
a worker of a gloo job. Prints JSON."""

import datetime
import json
import os
import sys
import threading
import time

import torch
import torch.distributed as dist


def connect(port, world=None, timeout=10):
    return dist.TCPStore("localhost", port, world, False, timeout=datetime.timedelta(seconds=timeout))


def raised(fn, *args):
    try:
        return fn(*args)
    except Exception as e:
        return type(e).__name__


def play(port):
    a, b = connect(port), connect(port)
    a.set("k", "v1")
    got = {"get": b.get("k").decode(), "add": [a.add("n", 5), b.add("n", -7)], "keys": a.num_keys()}
    got["compare_set"] = [a.compare_set("c", "", "x").decode(), b.compare_set("c", "y", "z").decode(), b.compare_set("c", "x", "z").decode()]
    got["delete"] = [b.delete_key("k"), b.delete_key("k"), a.num_keys()]
    thread = threading.Thread(target=lambda: (time.sleep(0.2), b.set("late", "1")))
    thread.start()
    a.wait(["late"], datetime.timedelta(seconds=5))
    thread.join()
    got["wait"] = a.get("late").decode()
    p = dist.PrefixStore("p", a)
    p.set("k", "prefixed")
    got["prefix"] = b.get("p/k").decode()
    a.set("big", "x" * (1 << 20))
    got["big"] = len(b.get("big"))
    impatient = connect(port, timeout=1)
    got["timeout"] = raised(impatient.get, "never")
    time.sleep(0.2)
    before = os.times()
    time.sleep(3)
    after = os.times()
    got["rest"] = after.user - before.user + after.system - before.system
    got["still there"] = b.add("n", 1)
    return got


def work(folder):
    dist.init_process_group("gloo")
    t = torch.ones(2) * (dist.get_rank() + 1)
    dist.all_reduce(t)
    dist.barrier()
    with open(f"{folder}/{dist.get_rank()}", "w") as f:
        print(torch.__version__, t.tolist(), os.environ.get("TORCHELASTIC_RESTART_COUNT"), file=f)
    dist.destroy_process_group()


if sys.argv[1] == "env":
    work(sys.argv[2])
else:
    print(json.dumps(play(int(sys.argv[1]))))
