# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer: progress, checkpoints on request, and a clean stop.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[rdzv.huggingface.Callback()])
    trainer.train(resume_from_checkpoint=rdzv.huggingface.last_checkpoint(args.output_dir))

A training that the agent has stopped leaves train() with rdzv.Stopped, so that nothing behind it takes the model for a complete one.

With rdzv.huggingface.train() the workers that are left keep their processes when one is lost, as with rdzv.torch.Elastic:

    rdzv.torch.init_process_group()         # before TrainingArguments()
    ...
    rdzv.huggingface.train(trainer, resume_from_checkpoint=rdzv.huggingface.last_checkpoint(args.output_dir))"""

import json
import re
from pathlib import Path
from typing import Any, ContextManager, Dict, List, Optional, Tuple, Union
from unittest import mock

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ._checkpoints import Checkpoints
from ._errors import Error, Stopped
from ._resume import MARK, choose, meet
from ._job import init

_FOLDER = re.compile(r"checkpoint-(\d+)$")


class Callback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """One line of a Trainer: callbacks=[rdzv.huggingface.Callback()]."""

    def __init__(self) -> None:
        self._checkpoints: Optional[Checkpoints] = None
        self._loss: Optional[float] = None
        self._due = self._stopped = False
        self._saving: Optional[ContextManager[None]] = None
        self._in_place = False  # inside train()

    def begin_round(self, checkpoints: Checkpoints) -> None:
        """In place: the next round. What was cut is not saved."""
        self._end_saving()
        self._due, self._checkpoints = False, checkpoints

    def close(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.close()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._due = self._stopped = False
        if not self._in_place:
            self._checkpoints = Checkpoints()
            init().resumed(state.global_step)

    def _begin_saving(self, control: TrainerControl) -> None:
        # The Trainer saves behind this event, and behind the evaluation if one is due. There is no event of its own.
        if control.should_save and not control.should_evaluate and self._saving is None:
            self._saving = init().saving()
            self._saving.__enter__()

    def _end_saving(self) -> None:
        if self._saving is not None:
            self._saving.__exit__(None, None, None)
            self._saving = None

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end_saving()  # another callback has decided against it

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        samples = args.train_batch_size * args.gradient_accumulation_steps
        init().progress(state.global_step, state.max_steps, self._loss, samples)
        if self._checkpoints is not None and self._checkpoints.due(state.global_step):
            self._due = control.should_save = True
        self._begin_saving(control)

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._begin_saving(control)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._begin_saving(control)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Optional[Dict[str, Any]] = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self._loss = float(logs["loss"])
            init().progress(state.global_step, state.max_steps, self._loss)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        step = state.global_step
        meet("rdzv.huggingface/save")
        if args.should_save:
            (Path(args.output_dir or ".") / f"checkpoint-{step}" / MARK).touch()
        self._end_saving()
        if not self._due:
            init().saved(step)
        elif self._checkpoints is not None:
            self._due = False
            self._stopped = self._checkpoints.written(step)
            control.should_training_stop = control.should_training_stop or self._stopped

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._end_saving()
        self.close()
        if self._stopped:
            raise Stopped


def _find(folder: Path) -> Optional[Path]:
    """The newest checkpoint that all ranks have completed; one of a run without this callback if no other is there."""
    marked: List[Tuple[int, Path]] = []
    others: List[Tuple[int, Path]] = []
    for path in folder.glob("checkpoint-*"):
        m = _FOLDER.search(path.name)
        if m and (path / MARK).exists():
            marked.append((int(m[1]), path))
        elif m and _is_whole(path):
            others.append((int(m[1]), path))
    return max(marked or others)[1] if marked or others else None


def _is_whole(path: Path) -> bool:
    try:
        json.loads((path / "trainer_state.json").read_text())  # rank 0 writes it last
        return True
    except (OSError, ValueError):
        return False


def last_checkpoint(output_dir: Union[str, Path]) -> Optional[str]:
    """The newest complete checkpoint below output_dir, the same on all ranks; None if there is none. All ranks call it.

    transformers' get_last_checkpoint() returns the newest one even if the job died while it was written."""
    return choose(lambda: _find(Path(output_dir)), "rdzv.huggingface/last")


def train(trainer: Any, resume_from_checkpoint: Union[str, bool, None] = None, **more: Any) -> Any:
    """trainer.train() in place: when a worker is lost, the others go on in their processes with the step that was cut. Returns what train() does.

    For DDP. A new worker gets the state from another one, not from a checkpoint. Random numbers begin anew in each step, so that a step that is
    done again is the same. A callback may see the last event of a step again."""
    from . import torch as _torch
    from ._in_place_trainer import InPlace

    if not hasattr(trainer, "_run_epoch"):
        raise Error("rdzv.huggingface.train() needs transformers 5.x: this Trainer has no _run_epoch()")
    if _torch._groups is None:
        raise Error("rdzv.huggingface.train(): call rdzv.torch.init_process_group() before TrainingArguments are made")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or trainer.args.n_gpu > 1 or trainer.args.auto_find_batch_size:
        raise Error("rdzv.huggingface.train() is for DDP with one GPU a worker, without DeepSpeed, FSDP or auto_find_batch_size. Use trainer.train()")
    callback = next((c for c in trainer.callback_handler.callbacks if isinstance(c, Callback)), None)
    if callback is None:
        trainer.add_callback(callback := Callback())
    original, evaluate_first = trainer._run_epoch, trainer.args.eval_on_start

    def run(**loop: Any) -> None:
        InPlace(trainer, callback, loop).run(original, evaluate_first)

    patch = mock.patch.object
    with patch(trainer, "_run_epoch", run), patch(trainer.args, "eval_on_start", False), patch(callback, "_in_place", True):
        return trainer.train(resume_from_checkpoint=resume_from_checkpoint, **more)
