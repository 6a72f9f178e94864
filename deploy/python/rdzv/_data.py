# SPDX-License-Identifier: Apache-2.0
"""The data of a training whose world changes: which samples a step takes, and where a loader goes on."""

import sys
import itertools
import warnings
import zlib
from typing import Any, Dict, Iterator, List, Optional

import torch
from torch.utils.data.distributed import DistributedSampler

from ._job import init


def seed_all(text: str) -> None:
    """The generators of random numbers that a script may use begin from a text."""
    seed = zlib.crc32(text.encode())
    torch.manual_seed(seed)
    for name in ("random", "numpy.random"):
        if name in sys.modules:
            sys.modules[name].seed(seed)


class Sampler:
    """Batches for a DataLoader that follow the world: DataLoader(dataset, batch_sampler=rdzv.torch.Sampler(len(dataset), batch=32)).

    `batch`: samples of one rank in a step. `global_batch`: samples of all ranks in a step instead; it stays the same when the world changes, and a
    rank's share may then differ by one sample from another's (`weight`). `shuffle`: another order in each epoch, from `seed`.

    All ranks share one order, and a step takes the next samples of it. So no sample is left out or taken twice when the world changes. The last
    samples of an epoch that do not fill a step are left out."""

    def __init__(self, length: int, batch: Optional[int] = None, *, global_batch: Optional[int] = None, shuffle: bool = True, seed: int = 0) -> None:
        if (batch is None) == (global_batch is None):
            raise ValueError("name either batch, the samples of one rank in a step, or global_batch, those of all ranks")
        if (batch or global_batch or 0) < 1 or length < 1:
            raise ValueError(f"length is {length}, batch {batch} and global_batch {global_batch}: they must be 1 or more")
        self._length, self._batch, self._global_batch, self._shuffle, self._seed = length, batch, global_batch, shuffle, seed
        self.epoch = 0
        self.at = 0  # samples of this epoch that steps have taken
        if length < self.step_samples:
            raise ValueError(f"a step of {self.step_samples} samples needs as many; there are {length}")

    @property
    def step_samples(self) -> int:
        """Samples of one step, of all ranks."""
        world = init().world_size
        if self._global_batch is None:
            return (self._batch or 1) * world
        if self._global_batch < world:
            raise ValueError(f"global_batch is {self._global_batch}, and there are {world} ranks: each needs a sample")
        return self._global_batch

    @property
    def weight(self) -> float:
        """What this rank multiplies a mean loss with, so that the mean over the ranks is the mean over the samples. 1 if all shares are equal."""
        low, high = self._share()
        return (high - low) * init().world_size / self.step_samples

    def _share(self) -> "tuple[int, int]":
        job, n = init(), self.step_samples
        return n * job.rank // job.world_size, n * (job.rank + 1) // job.world_size

    def set_epoch(self, epoch: int) -> None:
        self.epoch, self.at = epoch, 0

    def taken(self) -> None:
        """A step has taken its samples."""
        self.at += self.step_samples

    def __len__(self) -> int:
        """Steps in an epoch."""
        return self._length // self.step_samples

    def __iter__(self) -> Iterator[List[int]]:
        """From where the steps are, to the end of the epoch."""
        order = torch.arange(self._length)
        if self._shuffle:
            order = torch.randperm(self._length, generator=torch.Generator().manual_seed(self._seed + self.epoch))
        n = self.step_samples
        low, high = self._share()
        for at in range(self.at, self._length - n + 1, n):
            yield order[at + low : at + high].tolist()

    def state_dict(self) -> Dict[str, int]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        self.epoch, self.at = state["epoch"], state["at"]


class Data:
    """An iterable of batches, from epoch to epoch. The same batch comes again until a step has taken it."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        samplers = [getattr(batches, "batch_sampler", None), getattr(batches, "sampler", None), batches]
        self._ours = next((s for s in samplers if isinstance(s, Sampler)), None)
        self._torchs = next((s for s in samplers if isinstance(s, DistributedSampler)), None)
        self._set_epoch = next((s.set_epoch for s in samplers if hasattr(s, "set_epoch")), None)
        self.epoch = 0
        self._at = 0  # batches of this epoch that steps have taken
        self._iterator: Optional[Iterator[Any]] = None
        self._batch: Any = None
        self._held = False

    def next(self) -> Any:
        """The batch of this step."""
        if self._held:
            return self._batch
        fresh = self._iterator is None
        if self._iterator is None:
            self._iterator = self._begin()
        try:
            self._batch = next(self._iterator)
        except StopIteration:
            if fresh and not self._at:
                raise ValueError("there is no batch in an epoch: the data are too few for this world") from None
            self.epoch, self._at, self._iterator = self.epoch + 1, 0, None
            if self._ours is not None:
                self._ours.set_epoch(self.epoch)
            return Data.next(self)
        self._held = True
        return self._batch

    def _begin(self) -> Iterator[Any]:
        if self._ours is None and self._set_epoch is not None:
            self._set_epoch(self.epoch)
        iterator: Iterator[Any] = iter(self._batches)
        if self._ours is None:
            for _ in itertools.islice(iterator, self._at):
                pass
        return iterator

    def taken(self) -> None:
        self._held, self._batch = False, None
        self._at += 1
        if self._ours is not None:
            self._ours.taken()

    def moved(self, other_world: bool) -> None:
        """This rank's place has changed, or its position. `other_world`: the number of ranks, or this one's number."""
        self._held, self._batch, self._iterator = False, None, None
        t = self._torchs
        if t is not None and (t.rank, t.num_replicas) != (init().rank, init().world_size):
            was = t.num_replicas
            t.__init__(t.dataset, init().world_size, init().rank, t.shuffle, t.seed, t.drop_last)  # type: ignore[misc,unused-ignore]
            self._at = -(-self._at * was // init().world_size)
        elif other_world and t is None and self._ours is None:
            warnings.warn("the world has changed, and the data do not follow it: use rdzv.torch.Sampler or DistributedSampler", RuntimeWarning)

    def state_dict(self) -> Dict[str, Any]:
        state: Dict[str, Any] = {"epoch": self.epoch, "at": self._at, "replicas": self._torchs.num_replicas if self._torchs is not None else 0}
        if self._ours is not None:
            state["sampler"] = self._ours.state_dict()
        return state

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self.epoch, self._at = state["epoch"], state["at"]
        if self._torchs is not None and state["replicas"]:  # a new rank's sampler has the new world already; moved() does it for the others
            self._at = -(-self._at * state["replicas"] // self._torchs.num_replicas)
        if self._ours is not None and "sampler" in state:
            self._ours.load_state_dict(state["sampler"])
