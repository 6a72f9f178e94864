# SPDX-License-Identifier: Apache-2.0
"""A process group on CPUs that behaves as NCCL does when a rank is lost. It is slow: each rank puts its tensor into the round's store.

    A dead rank        the others wait for ever. No error comes.
    abort()            this rank's collective ends with what has come so far, and without an error. So do the others', if they wait for this rank.

With ABORT_FIRST a rank aborts when it is cut, before the others have left: the mistake that the tests must notice. SLOW_CUT names a rank that
learns of the cut late."""

import io
import os
import time

import torch
import torch.distributed as dist

import rdzv
from rdzv import _groups, _watch

POLL_S = 0.001


def pack(tensor):
    out = io.BytesIO()
    torch.save(tensor.detach().clone(), out)
    return out.getvalue()


class Done(dist._Work if hasattr(dist, "_Work") else dist.Work):
    def wait(self, timeout=None):
        return True


class StandIn(dist.ProcessGroup):
    def __init__(self, rank, size):
        super().__init__(rank, size)
        self.mine, self.count, self.number, self.ended = rank, size, 0, False
        self.store = rdzv.Store(rdzv.init()._mine)

    def getBackendName(self):
        return "standin_nccl"

    def _gather(self, tensor):
        """rank -> tensor, of all ranks, or of those whose tensors are there if somebody has aborted."""
        self.number += 1
        key = f"standin/{self.number}"
        self.store.set(f"{key}/{self.mine}", pack(tensor))
        while True:
            there = {r: v for r in range(self.count) for v in [self.store.try_get(f"{key}/{r}")] if v is not None}
            if len(there) == self.count or self.ended or self.store.try_get("standin/aborted") is not None:
                return {r: torch.load(io.BytesIO(v)) for r, v in there.items()}
            time.sleep(POLL_S)

    def allreduce(self, tensors, options=None):
        for tensor in tensors:
            total = None
            for _, other in sorted(self._gather(tensor).items()):
                total = other if total is None else total + other
            tensor.copy_(total)
        return Done()

    def broadcast(self, tensors, options):
        for tensor in tensors:
            there = self._gather(tensor)
            if options.rootRank in there:
                tensor.copy_(there[options.rootRank])
        return Done()

    def abort(self):
        self.ended = True
        try:
            self.store.set("standin/aborted", b"")  # in the store of this rank's round: nobody of a later one reads it
        except rdzv.Error:
            pass


def make(store, rank, size, timeout):
    return StandIn(rank, size)


def install():
    dist.Backend.register_backend("standin_nccl", make, devices=["cpu"])
    cut = _groups.Groups.cut

    def cut_and_abort(groups):
        groups.end_round()
        cut(groups)

    if os.environ.get("ABORT_FIRST"):
        _groups.Groups.cut = cut_and_abort
    late = _watch.Watch._cut

    def cut_late(watch):
        time.sleep(0.5)
        late(watch)

    if os.environ.get("SLOW_CUT") == os.environ["RANK"]:
        _watch.Watch._cut = cut_late
