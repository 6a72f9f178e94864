# SPDX-License-Identifier: Apache-2.0
"""rdzv.lightning.fit(): the loops of Lightning's Trainer in place.

trainer.fit() prepares everything as ever, in a newcomer too, whose groups are silent meanwhile. Then `InPlace.run` takes the place of the fit
loop's run(). It calls what that calls, in the same order. After a fault it goes on from a phase, and not from where Lightning's loops were:

    TAIL    the update is made, and the schedulers have moved; on_train_batch_end is due
    AFTER   validation, and a scheduler that waits for it, are due
    STEP    the next step is due: all batches of an update
    EPOCH   on_train_epoch_end is due
    NEXT    the next epoch is due, or the end

The ranks go on from the newest step, and there from the earliest phase that a rank with this step is in. A rank that was further goes back to
it, with what Lightning counted then (`_kept`). So callbacks may see the last events of a step twice.

With automatic optimization the optimizer's step() runs forward and backward pass as well. So the update begins behind the precision plugin's
_after_closure(), where gradients are complete and clipped, and ends with _optimizer_step(). A rank that was cut in between, or in a scheduler
behind it, has no whole state, and gets that of another one.

A newcomer gets what a checkpoint would give it, the loops' progress, and the metrics that are logged."""

import contextlib
import copy
from typing import Any, Dict, Iterable, List, Optional, Tuple
from unittest import mock

import lightning.pytorch as pl
import torch
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.fabric.utilities.types import _Stateful
from lightning.pytorch.callbacks import LambdaCallback, ModelCheckpoint
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.logger_connector.result import _Metadata, _ResultMetric, _Sync
from torch.utils.data.distributed import DistributedSampler
from torchmetrics import Metric

from . import _replica
from . import torch as _torch
from ._checkpoints import Checkpoints
from ._data import seed_all
from ._errors import Error
from ._job import init

TAIL, AFTER, STEP, EPOCH, NEXT = range(5)
_METRIC = ("value", "_update_count", "_computed", "_forward_cache", "has_reset")
_SAVES = ("dirpath", "current_score", "best_k_models", "kth_best_model_path", "kth_value", "best_model_score", "best_model_path", "last_model_path",
          "_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation")


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.copy(value) if isinstance(value, (list, dict)) else value


def _get(thing: Any, names: Iterable[str]) -> Dict[str, Any]:
    return {n: _copied(vars(thing)[n]) for n in names if n in vars(thing)}


def _put(thing: Any, kept: Dict[str, Any]) -> None:
    vars(thing).update({n: _copied(v) for n, v in kept.items()})


def _get_metric(m: Metric) -> Dict[str, Any]:
    return _get(m, {*m._defaults, *_METRIC} - (set() if getattr(m, "is_tensor", True) else {"value"}))


class _Batches:
    """Where the epoch loop fetches from. The same batches come again until the update is made.

    Random numbers begin anew before each batch is fetched and before each is used."""

    done = False  # the last one is the last of its epoch

    def __init__(self, job: "InPlace") -> None:
        self._job, self._fit = job, job._trainer.fit_loop
        self.epoch = 0
        self.source: Any = None  # Lightning's fetcher, when it is where `_read` says
        self._read = 0  # batches of this epoch that are fetched
        self._held: List[Any] = []  # those that belong to no complete step
        self.used = 0  # of these, in the step that is being made
        self.states: Optional[Tuple[int, List[Any]]] = None  # of loaders with state_dict(), before so many batches of the epoch

    def begin(self, at: int) -> None:
        """The loader begins with batch `at` of the epoch."""
        loaders, source, loop = self._fit._combined_loader, self._fit._data_fetcher, self._fit.epoch_loop
        for loader in loaders.flattened:
            _set_sampler_epoch(loader, self.epoch)
        self._held.clear()
        self.used = self._read = 0
        seed_all(f"{self._job._seed}/epoch {self.epoch}")
        if self.states is not None:
            self._read = self.states[0]
            loaders._load_state_dicts(self.states[1])
        iter(source)
        source.fetched += self._read
        source._start_profiler, source._stop_profiler = loop._on_before_fetch, loop._on_after_fetch
        self.source = source
        while self._read < at:
            self._fetch()

    def begin_step(self, at: int) -> None:
        self.used = 0
        if self.source is None:
            self.begin(at)
        loaders = self._fit._combined_loader
        if not self._held and self.source.length is not None and all(isinstance(one, _Stateful) for one in loaders.flattened):
            self.states = (at, loaders._state_dicts())

    def end_step(self) -> None:
        del self._held[: self.used]
        self.used = 0

    def _fetch(self) -> Tuple[Any, bool]:
        source, self.source = self.source, None  # a fault in a loader makes it begin again
        seed_all(f"{self._job._seed}/epoch {self.epoch}/batch {self._read}/{self._job.rank}")
        value = next(source)
        self.source, self._read = source, self._read + 1
        return value, source.done

    def __next__(self) -> Any:
        if self.used == len(self._held):
            self._held.append(self._fetch())
        value, self.done = self._held[self.used]
        self.used += 1
        seed_all(f"{self._job._seed}/{self._job.step}/{self._job.rank}/{self.used}")
        return value


class InPlace(_torch.Elastic):
    """`callback`: the trainer's rdzv.lightning.Callback."""

    def __init__(self, trainer: Any, callback: Any) -> None:
        self._trainer, self._callback = trainer, callback
        self._fit, self._loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        # Without optimizers: their hooks would be around the forward pass as well.
        super().__init__(trainer.strategy.model, None, {} if scaler is None else {"scaler": scaler})
        model, hook = trainer.lightning_module, pl.Callback.on_save_checkpoint
        self._forward = model.forward
        self._batches = _Batches(self)
        saves = [c for c in trainer.callbacks if isinstance(c, ModelCheckpoint)]
        # What a callback saves by a hook is not copied at each step. It sees an event again with its newer state.
        self._callbacks = [c for c in trainer.callbacks if c not in saves and type(c).on_save_checkpoint is hook and c.state_dict()]
        metrics = [m for m in model.modules() if isinstance(m, Metric)]
        self._counted: List[Tuple[Any, Iterable[str]]] = [
            (trainer, ("should_stop", "accumulate_grad_batches")), (self._fit, ("_restarting",)), (self._batches, ("epoch",)),
            (trainer._logger_connector, ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics", "_current_fx", "_first_loop_iter")),
            *((c, _SAVES) for c in saves), *((m, [*m._defaults, *_METRIC]) for m in metrics)]
        self._done, self._seed = trainer.global_step, callback.place.get("seed")
        for d, order in zip(self._ddps, callback.place.get("orders", ())):
            d.order = order
        self._world, self._rank = init().world_size, init().rank
        self._turn, self._phase, self._began = 0, NEXT, False
        self._kept: Dict[Tuple[int, int], Dict[str, Any]] = {}  # (turn, phase) -> what Lightning counted, of this step
        self._outcome: Optional[Tuple[Any, Any]] = None  # outputs and batch of the last update
        self._loss: Optional[torch.Tensor] = None  # another rank's, if this one has not made the last update

    # The loops -----------------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        t, fit, newcomer = self._trainer, self._fit, self._the_groups.silent
        loaded = list(fit._combined_loader_states_to_load)
        fit.setup_data()
        if fit.skip and not (newcomer and t.limit_train_batches and fit.max_batches):  # a newcomer may have loaded the last checkpoint
            return
        if t.enable_validation:
            t.validating = True
            self._loop.val_loop.setup_data()
            t.training = True
        fit.reset()
        fit.on_run_start()
        plugin, optimization = t.precision_plugin, self._loop.automatic_optimization
        after_closure, update = plugin._after_closure, optimization._optimizer_step
        events = LambdaCallback(on_train_batch_end=lambda trainer, module, outputs, batch, index: self._end_step(outputs, batch))

        def begin_update(*given: Any, **named: Any) -> None:
            after_closure(*given, **named)
            self._before_update()

        def do_update(*given: Any, **named: Any) -> None:
            update(*given, **named)
            self._after_update()

        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.object(plugin, "_after_closure", begin_update))
            stack.enter_context(mock.patch.object(optimization, "_optimizer_step", do_update))
            t.callbacks.insert(0, events)
            stack.callback(t.callbacks.remove, events)
            stack.enter_context(self)
            while not self._unless_cut(lambda: self._run_on(loaded)):
                self._undo()
                self._recover()
        fit._restarting = False
        fit.on_run_end()

    def _run_on(self, loaded: List[Any]) -> None:
        while self._phase != NEXT or not self._fit.done:
            self._do_phase(loaded)
        self._meet(self._done)

    def _do_phase(self, loaded: List[Any]) -> None:
        fit, loop = self._fit, self._loop
        if self._phase == STEP and loop.done:
            self._phase = EPOCH
        self._remember()
        if self._cut():
            raise _torch._Cut("the round ends")
        seed_all(f"{self._seed}/{self._done}/{self.rank}/phase {self._phase}")
        if self._phase == STEP:
            self._do_step()
        elif self._phase == TAIL:
            self._end_batch()
            self._phase = AFTER
        elif self._phase == AFTER:
            loop.on_advance_end(self._batches)
            loop.on_iteration_done()
            self._phase = STEP
        elif self._phase == EPOCH:
            fit.on_advance_end()
            fit.on_iteration_done()
            self._phase = NEXT
        else:
            fit.on_advance_start()
            loop.reset()
            self._batches.states = (loop.batch_progress.current.ready, loaded[:]) if loaded else None
            loaded.clear()
            self._batches.epoch, self._batches.source = fit.epoch_progress.current.processed, None
            self._turn, self._phase = self._turn + 1, STEP

    def _do_step(self) -> None:
        loop = self._loop
        self._batches.begin_step(loop.batch_progress.current.ready)
        self._inside, self._updates, self._updating = True, 0, False
        if self._watch is not None:
            self._keep_what_a_step_changes()
        while self._inside:
            ends = False
            try:
                loop.advance(self._batches)
                if self._inside:  # gradients are accumulated
                    loop.on_advance_end(self._batches)
            except StopIteration:
                ends = True
            finally:
                loop.on_iteration_done()
            if self._inside and (ends or loop.done):
                self._inside, self._phase = False, EPOCH
        if self._phase == TAIL:
            self._phase = AFTER

    def _end_step(self, outputs: Any, batch: Any) -> None:
        if not self._inside or not self._updates:  # the event comes again, or gradients are accumulated
            return
        self._inside, self._updates, self._phase = False, 0, TAIL
        self._done, self._has_state = self._trainer.global_step, True
        self._batches.end_step()
        self._outcome, self._kept = (outputs, batch), {}
        for d in self._ddps:
            d.keep_order()
        self._callback.place = self._place()
        self._remember()

    def _end_batch(self) -> None:
        """What advance() does behind an update."""
        t, loop, connector = self._trainer, self._loop, self._trainer._logger_connector
        if self._outcome is None:
            self._batches.begin(loop.batch_idx)
            batch = t.precision_plugin.convert_input(next(self._batches)[0])
            batch = t.lightning_module._on_before_batch_transfer(batch, dataloader_idx=0)
            self._outcome = {"loss": self._loss}, call._call_strategy_hook(t, "batch_to_device", batch, dataloader_idx=0)
            self._batches.end_step()
        first = connector._first_loop_iter
        connector.on_batch_start(self._outcome[1])
        connector._first_loop_iter = first
        call._call_callback_hooks(t, "on_train_batch_end", *self._outcome, loop.batch_idx)
        call._call_lightning_module_hook(t, "on_train_batch_end", *self._outcome, loop.batch_idx)
        connector.on_batch_end()
        loop.batch_progress.increment_completed()
        connector.update_train_step_metrics()

    # A fault -------------------------------------------------------------------------------------------------------------------------

    def _undo(self) -> None:
        t, model, validation = self._trainer, self._trainer.lightning_module, self._loop.val_loop
        if t.validating:
            validation._module_mode.restore(model)
        t.training = True
        model._current_fx_name, model.forward = None, self._forward  # Lightning's own is in its place while DDP prepares a forward pass
        if self._inside:
            self._inside = False
            self._undo_step()
        if self._has_state:
            self._put_counts(self._kept[self._turn, self._phase])

    # Rounds --------------------------------------------------------------------------------------------------------------------------

    def _enter_round(self, renew: bool) -> bool:
        self._callback.begin_round(None)
        self._loop.val_loop._results.clear()  # a new rank has none, and the ranks add up their metrics in this order
        self._trainer.strategy.set_world_ranks()
        if self._rank != self.rank:
            self._rank, self._batches.source = self.rank, None
            for loaders in (self._fit._combined_loader, self._loop.val_loop._combined_loader):
                for loader in loaders.flattened if loaders is not None else []:
                    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
                    if isinstance(sampler, DistributedSampler):
                        sampler.rank = self.rank
        received = super()._enter_round(renew)
        self._began = True
        self._callback.begin_round(Checkpoints(ends=self._cut))
        return received

    def _standing(self) -> Dict[str, Any]:
        return {**super()._standing(), "at": [self._turn, self._phase], "began": self._began, "world": self._world}

    def _root(self, all: List[Dict[str, Any]], newest: Optional[int]) -> int:
        if any(s["world"] != len(all) for s in all):
            raise Error(f"there are {len(all)} ranks now, and Lightning was prepared for another number: all workers start again from the checkpoint")
        if newest is None:
            if any(s["began"] for s in all):
                raise Error("no rank has a whole state, so all workers start again from the checkpoint")
            return 0
        ranks = [i for i, s in enumerate(all) if s["has"] and s["step"] == newest]
        root = min(ranks, key=lambda i: all[i]["at"])
        if self.rank in ranks and [self._turn, self._phase] != all[root]["at"]:
            self._turn, self._phase = all[root]["at"]
            self._put_counts(self._kept[self._turn, self._phase])
        return root

    # State ---------------------------------------------------------------------------------------------------------------------------

    def _remember(self) -> None:
        if self._watch is not None:
            self._kept[self._turn, self._phase] = self._counts()

    def _counts(self) -> Dict[str, Any]:
        """What Lightning counts and logs."""
        t = self._trainer
        return {"epoch": self._fit.epoch_progress.state_dict(), "loop": self._loop.state_dict(), "counted": [_get(o, names) for o, names in self._counted],
                "results": {key: _get_metric(m) for key, m in self._loop._results.items()},
                "callbacks": [copy.deepcopy(c.state_dict()) for c in self._callbacks],
                "schedulers": [copy.deepcopy(c.scheduler.state_dict()) for c in t.lr_scheduler_configs],
                "rates": [{k: _copied(v) for k, v in g.items() if k != "params"} for o in t.optimizers for g in o.param_groups]}

    def _put_counts(self, kept: Dict[str, Any]) -> None:
        t, results = self._trainer, self._loop._results
        self._fit.epoch_progress.load_state_dict(kept["epoch"])
        self._loop.load_state_dict(kept["loop"])
        for loop in (self._loop, self._loop.val_loop, self._loop.automatic_optimization, self._loop.manual_optimization, self._fit):
            loop.on_iteration_done()  # none of them restarts
        for (thing, _), one in zip(self._counted, kept["counted"]):
            _put(thing, one)
        for key in list(results):
            if key in kept["results"]:
                _put(results[key], kept["results"][key])
            else:
                del results[key]
        for callback, one in zip(self._callbacks, kept["callbacks"]):
            callback.load_state_dict(copy.deepcopy(one))
        for config, one in zip(t.lr_scheduler_configs, kept["schedulers"]):
            config.scheduler.load_state_dict(copy.deepcopy(one))
        for group, one in zip((g for o in t.optimizers for g in o.param_groups), kept["rates"]):
            group.update({k: _copied(v) for k, v in one.items()})

    def _dump(self) -> Dict[str, Any]:
        left_out = ("hparams", "hyper_parameters", "loops")  # a new rank's script makes them
        saved = self._trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        metas = {key: ({k: v for k, v in vars(m.meta).items() if k not in ("reduce_fx", "_sync")}, m.meta.reduce_fx.__name__, m.meta.sync.should,
                       m.meta.sync.rank_zero_only, m.is_tensor) for key, m in self._loop._results.items()}
        loss = self._outcome[0].get("loss") if self._outcome is not None and isinstance(self._outcome[0], dict) else self._loss
        return {"saved": {k: v for k, v in saved.items() if not any(word in k for word in left_out)}, "metas": metas,
                "kept": {**self._counts(), "callbacks": [], "schedulers": [], "rates": []},  # which `saved` has
                "at": (self._turn, self._phase), "step": self._done, "loss": loss, "states": self._batches.states}

    def _place(self) -> Dict[str, Any]:
        return {"seed": self._seed, "orders": [d.order for d in self._ddps]}

    def _tree(self) -> Dict[str, Any]:
        if self._seed is None:
            self._seed = torch.initial_seed()
        if self._stayed:
            return {"trainer": self._place(), **self._dump()}
        try:
            _replica.read(_replica.write(_replica.split(self._dump(), [])))
        except Exception as e:
            raise Error(f"the state that checkpoints have could not be sent to a new rank: {str(e).splitlines()[0]}. Use tensors, numbers and texts in "
                        "the state of callbacks and modules") from None
        return {"trainer": self._place()}

    def _put(self, tree: Dict[str, Any]) -> None:
        t, self._seed = self._trainer, tree["trainer"]["seed"]
        if not self._stayed:  # all ranks have loaded the same checkpoint
            return
        connector, results, kept = t._checkpoint_connector, self._loop._results, tree["kept"]
        for (thing, _), one in zip(self._counted, kept["counted"]):
            _put(thing, one)  # a ModelCheckpoint takes no state of another folder
        connector._loaded_checkpoint = tree["saved"]
        connector.restore_datamodule()
        connector.restore_model()
        connector.restore_callbacks()
        connector.restore_precision_plugin_state()
        connector.restore_optimizers_and_schedulers()
        connector._loaded_checkpoint = {}
        results.clear()
        for key, (plain, reduce, syncs, rank_zero_only, is_tensor) in tree["metas"].items():
            meta = _Metadata(reduce_fx=getattr(torch, reduce), **plain)
            meta.sync = _Sync(fn=t.strategy.reduce, _should=syncs, rank_zero_only=rank_zero_only)
            results[key] = _ResultMetric(meta, is_tensor)
            if not is_tensor:
                results[key].value = t.lightning_module.get_submodule(plain["metric_attribute"])
        self._put_counts(kept)
        (self._turn, self._phase), self._done, self._loss, self._batches.states = tree["at"], tree["step"], tree["loss"], tree["states"]
        self._outcome, self._batches.source, self._has_state = None, None, True
        self._kept = {(self._turn, self._phase): self._counts()}
