# SPDX-License-Identifier: Apache-2.0
"""The workers of test_round_store.py: one function for each test, named on the command line. Each notes what it sees in a file of its own in the
working directory, which the test reads."""

import json
import os
import socket
import sys
import time
from pathlib import Path

from c10d import Store

RANK, WORLD, ROUND = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "RDZV_ROUND"))
PATIENCE = 60


def note(**what):
    path = Path(f"seen-{ROUND}-{RANK}.json")
    new = dict(json.loads(path.read_text()) if path.exists() else {}, **what)
    path.with_suffix(".new").write_text(json.dumps(new))
    path.with_suffix(".new").rename(path)


def wait_for(name):
    deadline = time.monotonic() + PATIENCE
    while not Path(name).exists():
        if time.monotonic() > deadline:
            sys.exit(f"no file {name}")
        time.sleep(0.01)


def place():
    return {"addr": os.environ["MASTER_ADDR"], "port": int(os.environ["MASTER_PORT"]),
            "agent_store": os.environ["TORCHELASTIC_USE_AGENT_STORE"], "pid": os.getpid()}


def meet(store, name):
    """All ranks come here before any goes on."""
    if store.add(f"{name}/count", 1) == WORLD:
        store.set(f"{name}/all", b"1")
    store.get(f"{name}/all")


def crash_once():
    """In round 1 the last rank dies when all have left keys, and the file is there that an argument names; later rounds look for those keys."""
    store = Store(timeout=PATIENCE)
    before = store.keys() if RANK == 0 else None
    meet(store, "before")
    note(before=before, **place())
    store.set(f"of round {ROUND} by {RANK}", b"x")
    meet(store, "set")
    if ROUND == 1 and RANK == WORLD - 1:
        for name in sys.argv[2:]:
            wait_for(name)
        sys.exit(3)
    if ROUND == 1:
        wait_for("for ever")
    note(after=store.keys())
    meet(store, "end")


def early_head():
    """Rank 0 ends at once, the last one goes on with the store and says when it has used it."""
    store = Store(timeout=PATIENCE)
    meet(store, "here")
    note(**place())
    if RANK == 0:
        return
    wait_for("rank 0 is gone")
    store.set("late", b"of the old connection")
    note(late=Store(timeout=PATIENCE).get("late").decode())


def daemon_dies():
    """A connection that is used all the time; a new one when the daemon has been away."""
    store = Store(timeout=PATIENCE)
    note(**place())
    while not Path("the daemon is back").exists():
        store.add("ticks", 1)
        time.sleep(0.01)
    store.set(f"rank {RANK}", b"was not disturbed")
    other = Store(timeout=PATIENCE)
    note(others=[other.get(f"rank {r}").decode() for r in range(WORLD)])
    meet(other, "end")


def own_store():
    """--store worker: rank 0 serves on MASTER_PORT itself, which must be free."""
    note(**place())
    if RANK == 0:
        with socket.create_server(("", int(os.environ["MASTER_PORT"]))) as s:
            s.settimeout(PATIENCE)
            s.accept()[0].sendall(b"mine")
        return
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])), 1) as s:
                note(heard=s.recv(4).decode())
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def stay():
    store = Store(timeout=PATIENCE)
    meet(store, "here")
    note(**place())
    wait_for("done")
    meet(store, "end")


globals()[sys.argv[1]]()
