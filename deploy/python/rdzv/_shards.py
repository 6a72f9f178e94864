# SPDX-License-Identifier: Apache-2.0
"""What Accelerate keeps of the world, and its data loaders, across rounds. Accelerate reads the rank and the number of ranks once."""

from typing import Any, Callable, Iterator

from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, IterableDatasetShard  # type: ignore[import-untyped,unused-ignore]
from accelerate.state import AcceleratorState, GradientState, PartialState  # type: ignore[import-untyped,unused-ignore]

from ._data import seed_all
from ._errors import Error, warn
from ._job import init


def follow_world() -> None:
    """Accelerate's state has the rank and the world of the current round. What was cut has left no data loader open."""
    job, state = init(), PartialState()
    if job.world_size > 1 and state.distributed_type == "NO":
        raise Error(f"this worker began as the only one, so Accelerate did not prepare its model for {job.world_size} ranks: it starts again")
    for shared in (PartialState._shared_state, AcceleratorState._shared_state):
        if "num_processes" in shared:
            shared.update(num_processes=job.world_size, process_index=job.rank)
    GradientState().dataloader_references = [None]


class _Seeded:
    """The batches of all ranks. Random numbers begin anew before each of this rank's, so that they do not depend on how far a loader reads ahead."""

    def __init__(self, batches: Any, seed: Callable[[int], None]) -> None:
        self._batches, self._seed = batches, seed

    def __iter__(self) -> Iterator[Any]:
        for i, batch in enumerate(self._batches):
            self._seed(i)
            yield batch
        self._seed(-1)  # the last batches of an epoch may come behind all of them

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle ask before there are attributes
            raise AttributeError(name)
        return getattr(self.__dict__["_batches"], name)


class Shards:
    """A loader from accelerator.prepare(). An epoch's batches depend on its number, the seed and the world alone."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._epoch = self._seed = self._skip = 0
        self._world = init().world_size
        self._shard: Any = next((s for s in (getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None), getattr(loader, "dataset", None))
                            if isinstance(s, (BatchSamplerShard, IterableDatasetShard))), None)
        if isinstance(self._shard, BatchSamplerShard) and not isinstance(self._shard.batch_sampler, _Seeded):
            self._shard.batch_sampler = _Seeded(self._shard.batch_sampler, self._draw)

    def _draw(self, i: int) -> None:
        """A rank's batch is read when those of all ranks for a step have come."""
        each = 1 if self._shard.split_batches else self._shard.num_processes
        if i < 0 or (i >= self._skip * each and (i + 1) % each == 0):
            seed_all(f"{self._seed}/epoch {self._epoch}/batch {i}/{init().rank}")

    def begin(self, epoch: int, seed: int, skip: int = 0) -> None:
        """Before the loader is iterated for an epoch, or for what is left of it behind `skip` batches. All ranks call it."""
        self._epoch, self._seed, self._skip = epoch, seed, skip
        generator = getattr(self.loader, "synchronized_generator", None)
        if generator is not None:
            generator.manual_seed(seed + epoch)
        seed_all(f"{seed}/epoch {epoch}")
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)

    def move(self) -> None:
        """The world may have changed."""
        job, shard = init(), self._shard
        changed, self._world = self._world != job.world_size, job.world_size
        if shard is not None:
            if shard.split_batches and shard.batch_size % job.world_size:
                raise Error(f"a batch of {shard.batch_size} samples cannot be split over {job.world_size} ranks (split_batches=True)")
            shard.num_processes, shard.process_index = job.world_size, job.rank
        elif changed and not isinstance(self.loader, DataLoaderDispatcher):  # that one asks Accelerate's state
            warn("the number of ranks has changed, and the data do not follow: Accelerate has put no sampler into the loader")
