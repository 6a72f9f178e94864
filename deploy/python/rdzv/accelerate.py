# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: save_state() on request and at intervals, load_state() of the newest complete checkpoint.

    with rdzv.accelerate.Saver(accelerator, "checkpoints", every=100) as saver:
        for step in range(saver.load(), steps):
            ...
            saver.step(step + 1, of=steps, loss=loss, samples=len(batch))

A checkpoint is a folder step-N, which gets its name when all ranks have written their part. So what has the name is complete."""

import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, List, Optional, Tuple, Type, Union

from ._checkpoints import Checkpoints
from ._errors import Stopped
from ._resume import choose
from ._job import init

if TYPE_CHECKING:
    from accelerate import Accelerator  # type: ignore[import-untyped,unused-ignore]

_FOLDER = re.compile(r"step-(\d+)$")


class Saver:
    """Progress and checkpoints of a loop that uses an Accelerator. All ranks use it alike.

    `folder`: where the checkpoints are, a folder that all nodes see. `every`: steps between checkpoints; 0: on request only. `keep`: how
    many of them stay."""

    def __init__(self, accelerator: "Accelerator", folder: Union[str, Path], every: int = 0, keep: int = 2) -> None:
        if every < 0 or keep < 1:
            raise ValueError(f"every is {every} and keep is {keep}: every must be 0 or more, keep 1 or more")
        self._accelerator, self._folder, self._every, self._keep = accelerator, Path(folder), every, keep
        self._checkpoints = Checkpoints()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._checkpoints.close()

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
        self._accelerator.wait_for_everyone()
        if first:
            shutil.rmtree(named, ignore_errors=True)
            unnamed.rename(named)
            for _, old in self._found()[: -self._keep]:
                shutil.rmtree(old, ignore_errors=True)
