# SPDX-License-Identifier: Apache-2.0
"""A worker in Python beside one in C (beside_python.c): the same store, the same keys. Prints "Python: ok"."""

import datetime
import os
import sys

from torch.distributed import TCPStore

BIG = 8 * 1024 * 1024
store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False, datetime.timedelta(seconds=20))


def check(got, want, what):
    if got != want:
        sys.exit(f"Python: {what} is {got[:80]!r}, not {want[:80]!r}" if isinstance(got, bytes) else f"Python: {what} is {got!r}, not {want!r}")


store.set("py/text", "from Python")
store.set("py/bytes", b"\0\xff\n")
store.set("py/empty", "")
store.set("py/big", bytes(i % 241 for i in range(BIG)))
store.set("py/cas", "old")
store.queue_push("py/queue", "only")
store.add("both", 2)

for key, want in (("text", b"from C"), ("bytes", b"\0\xff\n"), ("empty", b""), ("big", bytes(i % 251 for i in range(BIG)))):
    check(store.get(f"c/{key}"), want, f"c/{key}")
store.wait(["c/m1", "c/m2"])
check(store.multi_get(["c/m1", "c/m2"]), [b"1", b"22"], "c/m1, c/m2")
check([store.queue_pop("c/queue"), store.queue_pop("c/queue")], [b"first", b"second"], "c/queue")
store.barrier("added", 2, datetime.timedelta(seconds=20))
check(store.get("c/parts"), b"one,two", "c/parts")
check(store.get("both"), b"42", "both")
store.barrier("end", 2, datetime.timedelta(seconds=20))
check(store.get("py/cas"), b"new", "py/cas")
check({"c/text", "py/text", "both"} <= set(store.list_keys()), True, "list_keys")
print("Python: ok")
