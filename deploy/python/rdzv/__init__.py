# SPDX-License-Identifier: Apache-2.0
"""rdzv for the workers that rdzv-agent has started.

    import rdzv

    with rdzv.init() as job:
        for step in range(1000):
            loss = train()
            job.progress(step + 1, of=1000, loss=loss, samples=64)

Without an agent this is a world of one, so the same script also runs by hand. rdzv.rank, rdzv.barrier() and so on are those of init().
rdzv.huggingface, rdzv.accelerate and rdzv.lightning connect the trainers of these names. deploy/guide/python.md is the tutorial."""

import importlib
from typing import TYPE_CHECKING, Any, ContextManager, List, Optional

from ._checkpoints import Checkpoints
from ._errors import Error, Lost, Rejoin, Stopped, Timeout
from ._job import Job, Request, init
from ._lib import load as _load
from ._store import Duration, Store

if TYPE_CHECKING:
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node_count: int
    round: int
    restart_count: int
    run_id: str
    incarnation: str
    head_addr: str
    node_addr: str
    alone: bool
    end_time: Optional[float]
    saved_step: int
    store_port: int
    store: Store
    __version__: str
    from . import accelerate as accelerate
    from . import huggingface as huggingface
    from . import lightning as lightning
    from . import torch as torch
else:

    def __getattr__(name):
        # The values change with rejoin(), so they are read when they are asked for. Type checkers do not see this function, so that
        # they report a name that is misspelt.
        if name in _ATTRIBUTES:
            return getattr(init(), name)
        if name == "__version__":
            return _load().rdzv_version().decode()
        if name in _MODULES:
            return importlib.import_module("." + name, __name__)
        raise AttributeError(f"module 'rdzv' has no attribute {name!r}")


__all__ = ["Checkpoints", "Error", "Job", "Lost", "Rejoin", "Request", "Stopped", "Store", "Timeout", "barrier", "can_checkpoint", "can_rejoin",
           "checkpointed", "done", "exchange", "init", "progress", "rejoin", "requested", "resumed", "saved", "saving"]

_ATTRIBUTES = ("rank", "world_size", "local_rank", "local_world_size", "node_rank", "node_count", "round", "restart_count", "run_id", "incarnation",
               "head_addr", "node_addr", "alone", "end_time", "saved_step", "store_port", "store")
_MODULES = ("huggingface", "accelerate", "lightning", "torch")


def __dir__() -> List[str]:
    # Without the modules: help() reads each of these names, and not every environment has the trainers.
    return sorted([*__all__, *_ATTRIBUTES, "__version__"])


def barrier(name: str = "barrier", timeout: Duration = None) -> None:
    """Job.barrier of init()."""
    init().barrier(name, timeout)


def exchange(value: bytes, name: str = "exchange", timeout: Duration = None) -> List[bytes]:
    """Job.exchange of init()."""
    return init().exchange(value, name, timeout)


def progress(step: int, of: Optional[int] = None, loss: Any = None, samples: Optional[int] = None) -> None:
    """Job.progress of init()."""
    init().progress(step, of, loss, samples)


def resumed(step: int) -> None:
    """Job.resumed of init()."""
    init().resumed(step)


def saving() -> ContextManager[None]:
    """Job.saving of init()."""
    return init().saving()


def requested() -> Request:
    """Job.requested of init()."""
    return init().requested()


def can_checkpoint() -> None:
    """Job.can_checkpoint of init()."""
    init().can_checkpoint()


def checkpointed(step: int) -> None:
    """Job.checkpointed of init()."""
    init().checkpointed(step)


def saved(step: int) -> None:
    """Job.saved of init()."""
    init().saved(step)


def can_rejoin() -> None:
    """Job.can_rejoin of init()."""
    init().can_rejoin()


def rejoin(reason: Optional[str] = None, timeout: Duration = None) -> None:
    """Job.rejoin of init()."""
    init().rejoin(reason, timeout)


def done() -> None:
    """Job.done of init()."""
    init().done()
