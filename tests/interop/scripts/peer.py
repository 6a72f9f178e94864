# SPDX-License-Identifier: Apache-2.0
"""A process with torch in it, in a test's hands. A line of JSON on stdin is a request, a line on stdout its answer:

  {"do": "serve"}                                  a new, empty store of PyTorch's own: its port. The one before goes.
  {"do": "case", "name": NAME, "port": P}          cases.NAME against the store at that port: what it returned, or raised
"""

import base64
import json
import os
import sys

import torch.distributed as dist

import cases

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a library prints is no answer


def plain(v):
    """Anything a case returns, as JSON."""
    if isinstance(v, bytes):
        v = v if len(v) <= 64 else v[:32] + b"... %d ..." % len(v) + v[-16:]
        return "b:" + base64.b64encode(v).decode() if not v.isascii() else "b:" + v.decode()
    if isinstance(v, (list, tuple)):
        return [plain(x) for x in v]
    if isinstance(v, dict):
        return {str(k): plain(x) for k, x in v.items()}
    return v


def run(name, port):
    try:
        return {"returned": plain(cases.run(name, port))}
    except Exception as e:
        return {"raised": f"{type(e).__name__}: {e}"[:600]}


def main():
    served = None
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        what = json.loads(line)
        if what["do"] == "serve":
            served = None  # its port is closed before the next one is chosen
            served = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            answer = served.port
        else:
            answer = run(what["name"], what["port"])
        print(json.dumps(answer), file=answers, flush=True)


main()
