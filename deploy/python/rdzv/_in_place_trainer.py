# SPDX-License-Identifier: Apache-2.0
"""rdzv.huggingface.train(): the loop of a Trainer in place.

trainer.train() prepares everything as ever, in a newcomer too, whose groups are silent meanwhile. Then `InPlace.run` takes the place of
Trainer._run_epoch: it enters the round, gets the state, and calls the original for each epoch, or for what is left of it. A fault ends the
original with an exception. The rank recovers, and calls it again. So nobody leaves train().

A step is what comes between on_step_begin and on_step_end: all batches of an update. Behind it the Trainer logs, evaluates and saves, and does
so again behind an epoch. A fault there is no reason to train the step again, but what was cut must be done. So a rank's place has a phase:

    START   step 0, and eval_on_start is due
    TAIL    the update is made; on_step_end, log, evaluation and save are due
    STEP    the next step is due
    EPOCH   on_epoch_end, log, evaluation and save are due
    NEXT    the next epoch is due

The ranks go on from the newest step, and from the earliest phase that a rank with this step is in. A rank that was further goes back to it, with
what the Trainer counted then (`_kept`). So callbacks may see an event of that step twice, and never miss one.

The loss that the Trainer logs is a sum over steps and ranks, whose parts only their ranks know. So that a lost rank's part is not lost,
the ranks exchange their parts before each update (`_shares`)."""

import contextlib
import copy
import json
from typing import Any, Dict, List, Optional
from unittest import mock

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from . import torch as _torch
from ._checkpoints import Checkpoints
from ._data import seed_all
from ._errors import Error
from ._job import init
from ._shards import Shards, follow_world

START, TAIL, STEP, EPOCH, NEXT = range(5)
_PLAIN = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "_initial_num_input_tokens_seen", "current_flos")


def _plain(value: Any) -> Any:
    """Numbers of NumPy and of tensors, as metrics have them."""
    return value.item() if hasattr(value, "item") else str(value)


class _Events(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """The first callback: where a step begins and ends."""

    def __init__(self, job: "InPlace") -> None:
        self._job = job

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._job.begin_step()

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._job.exchange_shares()

    def on_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._job.note_learning_rate()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._job.end_step()

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._job.end_epoch()


class InPlace(_torch.Elastic):
    """`callback`: the trainer's rdzv.huggingface.Callback. `loop`: what the Trainer has given to _run_epoch for the first epoch."""

    def __init__(self, trainer: Any, callback: Any, loop: Dict[str, Any]) -> None:
        self._trainer, self._callback, self._loop = trainer, callback, loop
        state = {"scheduler": trainer.lr_scheduler}
        if trainer.accelerator.scaler is not None:
            state["scaler"] = trainer.accelerator.scaler
        super().__init__(trainer.model_wrapped, getattr(trainer.optimizer, "optimizer", trainer.optimizer), state)
        self._shards = Shards(loop["train_dataloader"])
        self._done = trainer.state.global_step
        self._accumulate = trainer.args.gradient_accumulation_steps
        self._epoch, self._at = loop["epoch"], 0  # updates of this epoch that are made
        if loop["epoch"] == loop["epochs_trained"]:
            self._at = loop["steps_trained_in_current_epoch"] // self._accumulate
        self._announced = loop["epoch"]  # by on_epoch_begin
        self._world = init().world_size  # of which _at counts updates
        self._resized = False
        self._phase = STEP
        self._kept: Dict[int, Dict[str, Any]] = {}  # phase -> what the Trainer counted, of this step
        self._all: List[Dict[str, Any]] = []
        self._was = -1  # this rank in the round before
        self._shares: Optional[torch.Tensor] = None  # behind the last step, of each rank: its loss since the last log, its operations
        self._new_shares: Optional[torch.Tensor] = None  # of the step that is being made
        self._grad_norm: Any = None
        self._learning_rate: Optional[float] = None

    # The loop ------------------------------------------------------------------------------------------------------------------------

    def run(self, original: Any, evaluate_first: bool) -> None:
        t = self._trainer
        if 0 < t.state.max_steps <= t.state.global_step:  # a checkpoint of the last step
            self._phase = NEXT
        elif evaluate_first:
            self._phase = START
        tail, norm = t._maybe_log_save_evaluate, t._get_grad_norm

        def do_tail(*given: Any, **named: Any) -> None:
            if t.control.should_evaluate:
                seed_all(f"{self._seed}/{self._done}/{self.rank}/evaluation")
            tail(*given, **named)
            if self._phase == TAIL:
                self._phase = STEP

        def note_norm(*given: Any, **named: Any) -> Any:
            self._grad_norm = norm(*given, **named)
            return self._grad_norm

        with contextlib.ExitStack() as stack:
            for name, value in (("_maybe_log_save_evaluate", do_tail), ("_get_grad_norm", note_norm), ("_load_rng_state", lambda _: None)):
                stack.enter_context(mock.patch.object(t, name, value))
            stack.enter_context(mock.patch.object(t.args, "ignore_data_skip", False))
            events = _Events(self)
            t.callback_handler.callbacks.insert(0, events)
            stack.callback(t.callback_handler.callbacks.remove, events)
            stack.enter_context(self)
            while not self._unless_cut(lambda: self._run_on(original)):
                self._undo()
                self._recover()
        t.control.should_training_stop = True  # the Trainer's own loop over the epochs ends
        if self._callback._stopped:  # the groups are cut already, and the Trainer would use them once more
            t.callback_handler.on_train_end(t.args, t.state, t.control)

    def _run_on(self, original: Any) -> None:
        while not self._ended():
            self._catch_up()
            if not self._ended():
                self._run_epoch(original)
        if not self._callback._stopped:
            self._meet(self._done)

    def _ended(self) -> bool:
        state = self._trainer.state
        if self._phase in (START, TAIL, EPOCH):
            return False
        if self._trainer.control.should_training_stop:
            return self._phase == NEXT or not self._at
        return state.global_step >= state.max_steps > 0 and self._phase == NEXT or not self._resized and self._epoch >= state.num_train_epochs

    def _catch_up(self) -> None:
        """What a fault has cut behind a step."""
        t = self._trainer
        if self._phase == START:
            seed_all(f"{self._seed}/{self._done}/{self.rank}/evaluation")
            t._evaluate(self._loop["trial"], self._loop["ignore_keys_for_eval"], skip_scheduler=True)
            self._phase = STEP
        if self._phase == TAIL:
            t.control = t.callback_handler.on_step_end(t.args, t.state, t.control)
            self._do_tail()
        stop = t.control.should_epoch_stop or t.control.should_training_stop
        if self._phase == EPOCH or (self._phase == STEP and (stop and self._at or self._at >= self._loop["num_update_steps_per_epoch"])):
            t.control = t.callback_handler.on_epoch_end(t.args, t.state, t.control)
            self._do_tail()
            self._begin_epoch()

    def _do_tail(self) -> None:
        t = self._trainer
        t._maybe_log_save_evaluate(t._tr_loss, self._grad_norm, t.model_wrapped, self._loop["trial"], self._epoch, self._loop["ignore_keys_for_eval"],
                                   self._loop["start_time"], learning_rate=self._learning_rate)

    def _run_epoch(self, original: Any) -> None:
        t, at = self._trainer, self._at * self._accumulate
        if self._announced != self._epoch:
            t.control = t.callback_handler.on_epoch_begin(t.args, t.state, t.control)
            self._announced = self._epoch
        if self._phase == NEXT:
            self._phase = STEP
        assert self._seed is not None
        self._shards.begin(self._epoch, self._seed, at)
        original(**{**self._loop, "epoch": self._epoch, "epochs_trained": self._epoch, "steps_trained_in_current_epoch": at,
                    "resume_from_checkpoint": "in memory" if at else None})
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        self._epoch, self._at, self._phase = self._epoch + 1, 0, NEXT

    # Steps ---------------------------------------------------------------------------------------------------------------------------

    def begin_step(self) -> None:
        self._kept[self._phase] = self._counts()
        self._inside, self._updates, self._updating, self._new_shares = True, 0, False, None
        if self._watch is not None:
            self._keep_what_a_step_changes()
        seed_all(f"{self._seed}/{self._done}/{self.rank}")

    def exchange_shares(self) -> None:
        if self._watch is None or self.world_size == 1:
            return
        t = self._trainer
        mine = torch.stack((t._tr_loss.detach().double(), torch.tensor(float(t.current_flos), dtype=torch.float64, device=t._tr_loss.device)))
        parts = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(parts, mine)
        self._new_shares = torch.stack(parts)

    def note_learning_rate(self) -> None:
        self._learning_rate = self._trainer._get_learning_rate()

    def end_step(self) -> None:
        if not self._inside:  # the event comes again
            return
        self._inside = False
        self._done = self._trainer.state.global_step
        self._updates_of_step, self._updates = self._updates, 0
        self._has_state = True
        for d in self._ddps:
            d.keep_order()
        self._complete()

    def _complete(self) -> None:
        self._shares = self._new_shares
        self._at += 1
        self._phase = TAIL
        self._kept = {TAIL: self._counts()}

    def end_epoch(self) -> None:
        self._phase = EPOCH
        self._kept[EPOCH] = self._counts()

    # A fault -------------------------------------------------------------------------------------------------------------------------

    def _undo(self) -> None:
        if self._inside:
            self._inside = False
            done = self._done
            self._undo_step()
            if self._done != done:
                return
        if self._has_state and self._phase in self._kept:
            self._put_counts(self._kept[self._phase])

    def _finish_step(self) -> bool:
        t = self._trainer
        if not super()._finish_step():
            return False
        if t.state.global_step == self._done:
            t.state.global_step += 1
            batches = min((self._at + 1) * self._accumulate, self._loop["steps_in_epoch"])
            t.state.epoch = self._epoch + batches / self._loop["steps_in_epoch"]
        self._complete()
        return True

    def _advance(self, part: Any) -> bool:
        if isinstance(part, LRScheduler) and not self._needs_metric(part):
            part.step()
        return True

    def _needs_metric(self, scheduler: Any) -> bool:
        """The Trainer moves such a scheduler when it evaluates."""
        return isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau) or type(scheduler).__name__ == "GreedyLR"

    # Rounds --------------------------------------------------------------------------------------------------------------------------

    def _enter_round(self, renew: bool) -> bool:
        self._callback.close()
        follow_world()
        self._shards.move()
        received = super()._enter_round(renew)
        self._resize()
        self._callback.begin_round(Checkpoints(ends=self._cut))
        return received

    def _standing(self) -> Dict[str, Any]:
        return {**super()._standing(), "phase": self._phase, "was": self._was}

    def _root(self, all: List[Dict[str, Any]], newest: Optional[int]) -> int:
        self._all = all
        if newest is None:
            if any(s["was"] >= 0 for s in all):
                raise Error("no rank has a whole state, so all workers start again from the checkpoint")
            return 0
        ranks = [i for i, s in enumerate(all) if s["has"] and s["step"] == newest]
        root = min(ranks, key=lambda i: int(all[i]["phase"]))
        if self.rank in ranks and self._phase != all[root]["phase"]:
            self._go_back(all[root]["phase"])
        return root

    def _go_back(self, phase: int) -> None:
        later = [p for p in sorted(self._kept) if p >= phase]
        if later:
            self._put_counts(self._kept[later[0]])
        self._phase = phase

    def _agree(self, renewed: bool) -> bool:
        received = super()._agree(renewed)
        if self._shares is not None:
            self._shares = self._shares[self._places()]
        self._was = self.rank
        return received

    def _places(self) -> List[int]:
        """Where _shares has the part of each rank. Newcomers get those of the ranks that are lost."""
        assert self._shares is not None
        lost = iter(sorted(set(range(len(self._shares))) - {s["was"] for s in self._all}))
        return [s["was"] if 0 <= s["was"] < len(self._shares) else next(lost, 0) for s in self._all]

    def _load(self) -> bool:
        """The Trainer has loaded the checkpoint."""
        return False

    def _resize(self) -> None:
        """The world has changed: an epoch has another number of steps."""
        world, t = init().world_size, self._trainer
        t.state.is_world_process_zero, t.state.is_local_process_zero = t.is_world_process_zero(), t.is_local_process_zero()
        if self._world == world:
            return
        _, per_epoch, _, _, _, batches, _ = t.set_initial_training_values(t.args, self._loop["train_dataloader"])
        self._loop.update(num_update_steps_per_epoch=per_epoch, steps_in_epoch=batches)
        self._at = min(-(-self._at * self._world // world), per_epoch)
        self._world, self._resized = world, True

    # State ---------------------------------------------------------------------------------------------------------------------------

    def _exportable(self) -> List[Any]:
        return [c for c in self._trainer.callback_handler.callbacks if isinstance(c, ExportableState)]

    def _counts(self) -> Dict[str, Any]:
        """What the Trainer counts, without its tensors."""
        t = self._trainer
        kept = {"epoch": self._epoch, "at": self._at, "plain": {name: getattr(t, name) for name in _PLAIN}, "control": dict(vars(t.control)),
                "state": {k: copy.deepcopy(v) for k, v in vars(t.state).items() if k != "log_history" and not k.startswith("is_")},
                "logs": len(t.state.log_history), "callbacks": [copy.deepcopy(c.state().get("attributes", {})) for c in self._exportable()],
                "learning_rate": self._learning_rate, "loss": t._tr_loss.detach().clone(), "grad_norm": self._grad_norm}
        if self._needs_metric(t.lr_scheduler):
            kept["scheduler"] = copy.deepcopy(t.lr_scheduler.state_dict())
            kept["rates"] = [g["lr"] for o in self._optimizers for g in o.param_groups]
        return kept

    def _put_counts(self, kept: Dict[str, Any]) -> None:
        t = self._trainer
        self._epoch, self._at, self._learning_rate, self._grad_norm = kept["epoch"], kept["at"], kept["learning_rate"], kept["grad_norm"]
        for name, value in kept["plain"].items():
            setattr(t, name, value)
        vars(t.control).update(kept["control"])
        vars(t.state).update(copy.deepcopy(kept["state"]))
        del t.state.log_history[kept["logs"] :]
        for callback, attributes in zip(self._exportable(), kept["callbacks"]):
            vars(callback).update(copy.deepcopy(attributes))
        t._tr_loss = kept["loss"].clone()
        if "scheduler" in kept:
            t.lr_scheduler.load_state_dict(copy.deepcopy(kept["scheduler"]))
            for group, rate in zip((g for o in self._optimizers for g in o.param_groups), kept["rates"]):
                group["lr"] = rate

    def _tree(self) -> Dict[str, Any]:
        t, kept = self._trainer, self._counts()
        loss, norm = kept.pop("loss"), kept.pop("grad_norm")
        kept.pop("scheduler", None), kept.pop("rates", None)
        kept.update(phase=self._phase, world=self._world, log_history=t.state.log_history)
        tensors = {"loss": loss, "grad_norm": norm, "shares": self._shares}
        return {**super()._tree(), "loop": json.dumps(kept, default=_plain), "tensors": {k: v for k, v in tensors.items() if v is not None}}

    def _put(self, tree: Dict[str, Any]) -> None:
        t, kept = self._trainer, json.loads(tree["loop"])
        if kept["state"]["max_steps"] != t.state.max_steps and t._created_lr_scheduler:  # this rank began in a world of another size
            t.lr_scheduler = None
            self._state["scheduler"] = t.callback_handler.lr_scheduler = t.create_scheduler(num_training_steps=kept["state"]["max_steps"])
        super()._put(tree)
        device, tensors = t._tr_loss.device, tree["tensors"]
        shares = tensors.get("shares")
        t.state.log_history = kept["log_history"]
        kept["loss"], kept["grad_norm"] = tensors["loss"].to(device), tensors.get("grad_norm")
        self._phase, self._world, self._shares = kept["phase"], kept["world"], shares
        if shares is not None:
            loss, flos = shares[self._places()[self.rank]].tolist()
            logged = kept["plain"]["_globalstep_last_logged"] == self._done
            kept["loss"] = torch.zeros_like(kept["loss"]) if logged else torch.full_like(kept["loss"], loss)
            kept["plain"]["current_flos"] = flos if kept["plain"]["current_flos"] else 0.0  # an int would be gathered as another type
        self._put_counts(kept)
        self._kept = {self._phase: self._counts()}
