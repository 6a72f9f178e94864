# SPDX-License-Identifier: Apache-2.0
"""rdzv.accelerate.Saver(in_place=True): rdzv.torch.Elastic with the objects that an Accelerator has prepared, and checkpoints of the Saver."""

import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

import torch
from accelerate import skip_first_batches  # type: ignore[import-untyped,unused-ignore]
from accelerate.data_loader import DataLoaderAdapter  # type: ignore[import-untyped,unused-ignore]
from torch.nn.parallel import DistributedDataParallel as DDP

from . import torch as _torch
from ._data import Data
from ._errors import Error
from ._job import init
from ._shards import Shards, follow_world
from .accelerate import PLACE

if TYPE_CHECKING:
    from .accelerate import Saver


class Loader(Data):
    """The batches of a loader from accelerator.prepare(). Other loaders are what they are in rdzv.torch."""

    def __init__(self, accelerator: Any, loader: Any, job: "InPlace") -> None:
        super().__init__(loader)
        self._job, self._n = job, accelerator.gradient_accumulation_steps
        self._shards = Shards(loader) if isinstance(loader, DataLoaderAdapter) else None
        self._world = init().world_size  # of which _at counts batches
        self._group: Optional["_Group"] = None

    def next(self) -> Any:
        first = super().next()
        if self._n == 1:
            return first
        assert self._iterator is not None
        self._group = _Group(first, self._iterator, self._n)
        return self._group

    def taken(self) -> None:
        super().taken()
        if self._group is not None:
            self._at += self._group.taken - 1
            self._group = None

    def _begin(self) -> Iterator[Any]:
        if self._shards is None:
            return super()._begin()
        self._shards.move()
        world = init().world_size
        self._at, self._world = -(-self._at * self._world // world), world
        assert self._job.seed is not None
        self._shards.begin(self.epoch, self._job.seed, self._at)
        return iter(skip_first_batches(self._batches, self._at) if self._at else self._batches)

    def begin_again(self) -> None:
        """All ranks do, since loaders of Accelerate use the groups when they begin."""
        self._held, self._batch, self._iterator, self._group = False, None, None, None

    def moved(self, other_world: bool) -> None:
        if self._shards is None:
            super().moved(other_world)

    def state_dict(self) -> Dict[str, Any]:
        return {**super().state_dict(), "world": self._world}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._world = state.get("world", self._world)


class _Group:
    """The batches of one update. They are read one by one, because Accelerate looks whether the loader is at its end."""

    def __init__(self, first: Any, rest: Iterator[Any], n: int) -> None:
        self._first, self._rest, self._n = first, rest, n
        self.taken = 0

    def __len__(self) -> int:
        """At most: the last ones of an epoch may be fewer."""
        return self._n

    def __iter__(self) -> Iterator[Any]:
        if self.taken:
            raise Error("the batches of a step can be iterated once")
        self.taken = 1
        yield self._first
        while self.taken < self._n:
            try:
                batch = next(self._rest)
            except StopIteration:
                return
            self.taken += 1
            yield batch


def _wrapped(models: List[Any]) -> List[Any]:
    """The models as prepare() has returned them. The accelerator keeps them as they were before, and DDP modules are known to the script alone."""
    ddps = {id(o.module): o for o in gc.get_objects() if type(o) is DDP}
    return [ddps.get(id(m), m) for m in models]


class InPlace(_torch.Elastic):
    def __init__(self, accelerator: Any, saver: "Saver", folder: Path, every: int, keep: int) -> None:
        if accelerator.distributed_type in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "XLA"):
            raise Error(f"in_place=True is for DDP, and this Accelerator uses {accelerator.distributed_type}")
        self._accelerator, self._saver = accelerator, saver
        state = {f"scheduler {i}": s for i, s in enumerate(accelerator._schedulers)}
        state.update({f"object {i}": o for i, o in enumerate(accelerator._custom_objects)})
        if accelerator.scaler is not None:
            state["scaler"] = accelerator.scaler
        optimizers = [o.optimizer for o in accelerator._optimizers]
        super().__init__(_wrapped(accelerator._models), optimizers, state, checkpoint=folder, every=every, keep=keep)

    @property
    def seed(self) -> Optional[int]:
        return self._seed

    def close(self) -> None:
        self._close()

    def _enter_round(self, renew: bool) -> bool:
        follow_world()
        received = super()._enter_round(renew)
        if isinstance(self._data, Loader):
            self._data.begin_again()
        return received

    def _enter_step(self) -> None:
        self._accelerator.step = 0  # accumulate() counts from here
        super()._enter_step()

    def _advance(self, part: Any) -> bool:
        inner = getattr(part, "scheduler", None)
        if isinstance(inner, torch.optim.lr_scheduler.ReduceLROnPlateau):
            return False
        if isinstance(inner, torch.optim.lr_scheduler.LRScheduler):
            part.step()
            return True
        return super()._advance(part)

    # Checkpoints ---------------------------------------------------------------------------------------------------------------------

    def place(self) -> Dict[str, Any]:
        """What else the steps go on from, as JSON."""
        return {"seed": self._seed, "updates": self._updates_of_step, "orders": [d.order for d in self._ddps],
                "data": self._data_state if self._data is None else self._data.state_dict()}

    def _save(self) -> None:
        self._saver.save(self._done)
        self._saved = self._done

    def _load(self) -> bool:
        found = self._saver._found()
        if not found:
            return False
        step, folder = found[-1]
        self._accelerator.load_state(str(folder))
        if (folder / PLACE).exists():
            place = json.loads((folder / PLACE).read_text())
            self._seed, self._updates_of_step, self._data_state = place["seed"], place["updates"], place["data"]
            for d, order in zip(self._ddps, place["orders"]):
                d.order = order
        else:  # written by a loop over one epoch with load() and step()
            self._data_state = {"epoch": 0, "at": step}
        if self._data is not None and self._data_state is not None:
            self._data.load_state_dict(self._data_state)
        self._done = self._saved = step
        self._has_state = True
        return True
