# SPDX-License-Identifier: Apache-2.0
"""PyTorch Lightning: progress, checkpoints on request, and a clean stop.

    trainer = lightning.Trainer(callbacks=[rdzv.lightning.Callback()], ...)
    trainer.fit(model, data, ckpt_path=rdzv.lightning.last_checkpoint(trainer))

A training that the agent has stopped leaves fit() with rdzv.Stopped, so that nothing behind it takes the model for a complete one.

With rdzv.lightning.fit() the workers that are left keep their processes when one is lost, as with rdzv.torch.Elastic:

    rdzv.torch.init_process_group()         # before the Trainer
    ...
    rdzv.lightning.fit(trainer, model, data, ckpt_path=rdzv.lightning.last_checkpoint(trainer))"""

import contextlib
import math
from pathlib import Path
from typing import Any, ContextManager, Dict, List, Mapping, Optional, Union
from unittest import mock

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.connectors import data_connector

from ._checkpoints import Checkpoints
from ._errors import Error, Stopped
from ._resume import choose
from ._job import init

_PREFIX = "rdzv-step="


def _samples(batch: Any) -> Optional[int]:
    """The length of the first tensor in a batch."""
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.ndim else None
    values = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((n for n in map(_samples, values) if n is not None), None)


class Callback(pl.Callback):
    """One line of a Trainer: callbacks=[rdzv.lightning.Callback()].

    `dirpath`: where requested checkpoints go; None: default_root_dir. The newest one replaces the one before."""

    def __init__(self, dirpath: Union[str, Path, None] = None) -> None:
        self._dirpath = dirpath
        self._batches = 0
        self._checkpoints: Optional[Checkpoints] = None
        self._saving: Optional[ContextManager[None]] = None
        self._step = 0  # of the checkpoint that is being saved
        self._in_place = False  # inside fit()
        self.place: Dict[str, Any] = {}  # in place: what else the steps go on from

    def state_dict(self) -> Dict[str, Any]:
        return self.place if self._in_place else {}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.place = state_dict

    def begin_round(self, checkpoints: Optional[Checkpoints]) -> None:
        """In place: another round. What was cut is not saved."""
        self._close()
        if self._saving is not None:
            self._saving.__exit__(None, None, None)
        self._saving, self._checkpoints = None, checkpoints

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if self._in_place:
            return
        self._batches = 0
        self._checkpoints = Checkpoints()
        init().resumed(trainer.global_step)

    # Lightning calls on_save_checkpoint when it begins to save a whole state, and nothing when that is done. It is done at its next call.

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: Dict[str, Any]) -> None:
        if self._saving is None and self._checkpoints is not None:
            self._step, self._saving = trainer.global_step, init().saving()
            self._saving.__enter__()

    def _end_saving(self, trainer: pl.Trainer) -> None:
        if self._saving is None:
            return
        self._saving.__exit__(None, None, None)
        self._saving = None
        if not isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            init().saved(self._step)

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self._end_saving(trainer)

    def on_validation_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end_saving(trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._end_saving(trainer)
        if self._in_place and trainer.fit_loop._should_accumulate():  # the state is whole behind an update
            return
        self._batches = trainer.global_step if self._in_place else self._batches + 1
        last = trainer.estimated_stepping_batches
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        init().progress(trainer.global_step, int(last) if 0 < last < math.inf else None, loss, _samples(batch))
        # With gradient accumulation a step has several batches. The ranks agree on a batch, since Lightning can resume behind any.
        if self._checkpoints is not None and self._checkpoints.due(self._batches):
            self._save(trainer, self._checkpoints)

    def _save(self, trainer: pl.Trainer, checkpoints: Checkpoints) -> None:
        folder = Path(self._dirpath or trainer.default_root_dir)
        path = folder / f"{_PREFIX}{trainer.global_step}.ckpt"
        before = list(folder.glob(_PREFIX + "*.ckpt"))
        trainer.save_checkpoint(path)
        self._end_saving(trainer)
        if trainer.is_global_zero:
            for old in before:
                if old != path and old.is_file():
                    old.unlink()
        if checkpoints.written(trainer.global_step):
            raise Stopped

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end_saving(trainer)
        self._close()

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._end_saving(trainer)  # a ModelCheckpoint saves last, behind this callback

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()


def _find(folder: Path) -> Optional[Path]:
    # Lightning writes a file beside its place and renames it. A sharded checkpoint is a folder, whose meta.pt comes last.
    found: List[Path] = [p for p in folder.rglob("*.ckpt") if p.is_file() or (p / "meta.pt").exists()]
    return max(found, key=lambda p: p.stat().st_mtime_ns) if found else None


def last_checkpoint(where: Union[str, Path, pl.Trainer]) -> Optional[str]:
    """The newest checkpoint below a folder, or below a trainer's default_root_dir, the same on all ranks. None: there is none. All ranks call it."""
    folder = Path(where.default_root_dir if isinstance(where, pl.Trainer) else where)
    return choose(lambda: _find(folder), "rdzv.lightning/last")


def fit(trainer: pl.Trainer, model: pl.LightningModule, *data: Any, **more: Any) -> None:
    """trainer.fit() in place, with its arguments: when a worker is lost, the others go on in their processes with the step that was cut.

    For strategy="ddp" and automatic optimization. A new worker gets from another one what a checkpoint would give it. Random numbers begin anew in
    each step, so that a step that is done again is the same. A callback may see the last events of a step again."""
    from . import torch as _torch

    groups, strategy = _torch._groups, trainer.strategy
    if groups is None:
        raise Error("rdzv.lightning.fit(): call rdzv.torch.init_process_group() before the Trainer is made")
    if type(strategy) is not DDPStrategy or strategy._model_averaging_period is not None:
        raise Error(f'rdzv.lightning.fit() is for strategy="ddp", and this is {type(strategy).__name__}: use trainer.fit(), or another strategy')
    if not model.automatic_optimization:
        raise Error("rdzv.lightning.fit() cannot see the steps of manual optimization: use trainer.fit(), or rdzv.torch.Elastic in a loop of your own")
    if trainer.reload_dataloaders_every_n_epochs or getattr(trainer, "_val_check_time_interval", None) is not None:
        raise Error("rdzv.lightning.fit(): reload_dataloaders_every_n_epochs and a val_check_interval in time differ on a new rank; leave them out")
    loop = trainer.fit_loop
    try:
        from ._in_place_lightning import InPlace

        _ = (trainer.precision_plugin._after_closure, loop.epoch_loop.automatic_optimization._optimizer_step, loop.epoch_loop.val_loop._module_mode,
             loop.on_iteration_done, loop._combined_loader_states_to_load, trainer._checkpoint_connector.dump_checkpoint)
    except (ImportError, AttributeError) as e:
        raise Error(f"rdzv.lightning.fit() needs Lightning 2.6, and this is {pl.__version__} ({e}): use trainer.fit()") from None
    callback = next((c for c in trainer.callbacks if isinstance(c, Callback)), None)  # type: ignore[attr-defined,unused-ignore]
    if callback is None:
        trainer.callbacks.insert(0, callback := Callback())  # type: ignore[attr-defined,unused-ignore]
    broadcast = strategy.broadcast
    with contextlib.ExitStack() as stack:

        def patch(target: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(target, name, value))

        patch(loop, "run", lambda: InPlace(trainer, callback).run())
        patch(strategy, "broadcast", lambda value, src=0: value if groups.silent else broadcast(value, src))
        patch(callback, "_in_place", True)
        if groups.silent:
            patch(data_connector, "_InfiniteBarrier", contextlib.nullcontext)
            patch(trainer, "num_sanity_val_steps", 0)
        trainer.fit(model, *data, **more)
