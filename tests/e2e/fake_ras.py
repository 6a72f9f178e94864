# SPDX-License-Identifier: Apache-2.0
"""A worker whose process answers as one with NCCL does at NCCL_RAS_ADDR: conversation, answers and sockets after NCCL's src/ras/client_support.cc
and its guide, docs/userguide/source/troubleshooting/ras.rst. It knows what the whole job looks like: all ranks have launched AllReduce #412,
except the one that $BEHIND names; $DEAD does not answer. $RAS is json, old (before 2.28.7,
without JSON), or what a broken server does."""

import json
import os
import socket
import sys
import threading
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BEHIND, DEAD, RAS = int(os.environ.get("BEHIND", -1)), int(os.environ.get("DEAD", -1)), os.environ.get("RAS", "json")


def place(rank):
    return {"rank": rank, "host": "127.0.0.1", "pid": 4000 + rank, "cuda_dev": 0, "nvml_dev": 0}


def as_json():
    counts = [412 if rank != BEHIND else 411 for rank in range(WORLD)]
    ranks = [{**place(rank), "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False},
              "collective_counts": {"Broadcast": 2, "Reduce": 0, "AllGather": 0, "ReduceScatter": 0, "AllReduce": counts[rank]}}
             for rank in range(WORLD) if rank != DEAD]
    missing = [{**place(DEAD), "status": {"unresponsive": True, "considered_dead": False}}] if DEAD >= 0 else []
    return json.dumps({"nccl_version": "2.29.1", "timestamp": "2025-12-19 13:06:53", "communicators_count": 1, "communicators": [
        {"hash": "0xae94423cfbb2ef4a", "secondary_hash": "0x1:0x2", "size": WORLD, "ranks_count": len(ranks),
         "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": missing}],
        "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}, indent=2) + "\n"


def answer(conn):
    send = lambda text: conn.sendall(text.encode())
    for line in conn.makefile("r"):
        said = line.strip().lower()
        if RAS == "mute":
            time.sleep(600)
        elif RAS == "hostile":
            send("SERVER PROTOCOL 2\nOK\nOK\n" if said.startswith("client") else "")
            if "status" in said:
                send('{"communicators": [{"size": 2, "ranks": [{"rank": 0, "collective_counts": {"\\u001b[2J\\n\\"": 7}}, '
                     '{"rank": 99999999999, "host": "\\u001b[31m", "pid": -5}], "missing_ranks": "no"}]}')
                return
        elif RAS == "endless":
            send("SERVER PROTOCOL 2\nOK\nOK\n" if said.startswith("client") else "")
            while "status" in said:
                send("x" * 65536)
        elif said.startswith("client protocol "):
            send("SERVER PROTOCOL 2\n")
        elif said.startswith("timeout ") or (said == "set format json" and RAS == "json"):
            send("OK\n")
        elif said == "status":
            send(as_json())
            return
        else:
            send(f"ERROR: Unknown command {line}")


def serve(listener):
    while True:
        conn, _ = listener.accept()
        threading.Thread(target=lambda: (answer(conn), conn.close()), daemon=True).start()


host, port = os.environ["NCCL_RAS_ADDR"].rsplit(":", 1)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind((host, int(port)))
listener.listen(16384)
threading.Thread(target=serve, args=(listener,), daemon=True).start()
print("serves", os.environ["NCCL_RAS_ADDR"], flush=True)
if sys.argv[1:] == ["dies"] and RANK == 0:
    time.sleep(1)
    print("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=412, OpType=ALLREDUCE, Timeout(ms)=600000)", file=sys.stderr, flush=True)
    os.abort()
time.sleep(600)
