# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: save_state() on request and at intervals, load_state() of the newest complete checkpoint.

    with rdzv.accelerate.Saver(accelerator, "checkpoints", every=100) as saver:
        for step in range(saver.load(), steps):
            ...
            saver.step(step + 1, of=steps, loss=loss, samples=len(batch))

A checkpoint is a folder step-N, which gets its name when all ranks have written their part. So what has the name is complete.

With in_place=True the workers that are left keep their processes when one is lost, as with rdzv.torch.Elastic:

    rdzv.torch.init_process_group()         # before Accelerator()
    ...
    with rdzv.accelerate.Saver(accelerator, "checkpoints", every=100, in_place=True) as saver:
        for step, batch in saver.steps(steps, loader):
            with step:
                ...
                step.report(loss=loss, samples=len(batch))"""

import json
import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterator, List, Optional, Tuple, Type, Union

from ._checkpoints import Checkpoints
from ._errors import Error, Stopped
from ._resume import choose
from ._job import init

if TYPE_CHECKING:
    from accelerate import Accelerator  # type: ignore[import-untyped,unused-ignore]

    from ._in_place_accelerate import InPlace

_FOLDER = re.compile(r"step-(\d+)$")
PLACE = "rdzv.json"  # in a checkpoint of Saver(in_place=True): what else the steps go on from


class Saver:
    """Progress and checkpoints of a loop that uses an Accelerator. All ranks use it alike.

    `folder`: where the checkpoints are, a folder that all nodes see. `every`: steps between checkpoints; 0: on request only. `keep`: how
    many of them stay. `in_place`: the loop is over steps(), and goes on in this process when another worker is lost."""

    def __init__(self, accelerator: "Accelerator", folder: Union[str, Path], every: int = 0, keep: int = 2, in_place: bool = False) -> None:
        if every < 0 or keep < 1:
            raise ValueError(f"every is {every} and keep is {keep}: every must be 0 or more, keep 1 or more")
        self._accelerator, self._folder, self._every, self._keep = accelerator, Path(folder), every, keep
        self._in_place = in_place
        self._steps: Optional["InPlace"] = None
        self._checkpoints = None if in_place else Checkpoints()  # in place there is one in each round

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._steps is not None:
            self._steps.close()

    def steps(self, n: int, loader: Any) -> Iterator[Tuple[Any, Any]]:
        """With in_place=True: the steps that are left of n, each with its batch. The loop's body is `with step:`.

        It begins with the newest checkpoint. `loader` is iterated from epoch to epoch. With gradient accumulation a step has all batches of its
        update: `for batch in batches: with accelerator.accumulate(model): ...`. All batches of an epoch's last step may be fewer."""
        if not self._in_place:
            raise Error("steps() needs Saver(..., in_place=True); without it use load() and step()")
        from ._in_place_accelerate import InPlace, Loader

        job = self._steps = InPlace(self._accelerator, self, self._folder, self._every, self._keep)
        with job:
            yield from job.steps(n, Loader(self._accelerator, loader, job))

    def _found(self) -> List[Tuple[int, Path]]:
        return sorted((int(m[1]), p) for p in self._folder.glob("step-*") for m in [_FOLDER.search(p.name)] if m)

    def load(self) -> int:
        """Loads the newest checkpoint and returns its step; 0 if there is none. Call it after accelerator.prepare()."""
        path = choose(lambda: self._found()[-1][1] if self._found() else None, "rdzv.accelerate/last")
        if path is not None:
            self._accelerator.load_state(path)
        step = 0 if path is None else int(path.rsplit("-", 1)[1])
        init().resumed(step)
        return step

    def step(self, step: int, of: Optional[int] = None, loss: Any = None, samples: Optional[int] = None) -> None:
        """After each step: reports progress, and saves if it is time or the agent asks. Raises Stopped if the agent then asks to stop."""
        if self._checkpoints is None:
            raise Error("step() is for a Saver without in_place=True; with it the loop is over steps()")
        init().progress(step, of, loss, samples)
        due = self._checkpoints.due(step)
        if not due and not (self._every and step % self._every == 0):
            return
        self.save(step)
        if due and self._checkpoints.written(step):
            raise Stopped

    def save(self, step: int) -> None:
        """Saves the state after `step`. All ranks call it."""
        with init().saving():
            self._save(step)
        init().saved(step)

    def _save(self, step: int) -> None:
        first = self._accelerator.is_main_process
        unnamed, named = self._folder / f"unfinished-{step}", self._folder / f"step-{step}"
        if first:
            self._folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(unnamed, ignore_errors=True)
        self._accelerator.wait_for_everyone()
        self._accelerator.save_state(str(unnamed))
        if first and self._steps is not None:
            (unnamed / PLACE).write_text(json.dumps(self._steps.place()))
        self._accelerator.wait_for_everyone()
        if first:
            shutil.rmtree(named, ignore_errors=True)
            unnamed.rename(named)
            for _, old in self._found()[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)
