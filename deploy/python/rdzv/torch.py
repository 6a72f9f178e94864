# SPDX-License-Identifier: Apache-2.0
"""PyTorch in place: when a worker is lost, the others keep their processes, and training goes on with the step that was cut.

    rdzv.torch.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters())
    with rdzv.torch.Elastic(model=model, optimizer=optimizer, state={"scheduler": scheduler}) as job:
        for step, batch in job.steps(10_000, data=loader):
            with step:
                loss = train(batch)             # forward, backward, optimizer.step(), scheduler.step()

What happens in a fault:

    cut      The agent tells each rank of a fault (_watch.py). Collectives end (_groups.py), and the step ends with an exception, which `with step`
             takes. A rank that meets the lost peer first does the same.
    rejoin   The rank waits until all others are dead or have left as well, and gets its place in the next round.
    groups   The process groups get their new peers, or are made anew, and DDP modules get a new reducer (_ddp.py).
    agree    The ranks exchange which state they have. One with the newest sends it to those that have another or none (_replica.py).
    again    job.steps() yields the step that was cut, with the same batch and the same random numbers.

Each step is applied by all ranks or by none, and this rests on three properties:

  1. A rank applies the update of a step only with complete sums. Gloo's all-reduce fails or is complete. NCCL's may be incomplete on a rank
     if another one aborts, so nobody aborts before all have left (_watch.py). The optimizer's step waits for its gradients, and does nothing
     behind a cut.
  2. A state is only ever of one kind: from before the update of a step, or from behind it. What the forward pass changed (buffers, random
     numbers, gradients) is put back. An optimizer that was cut inside step() makes its rank one without a state.
  3. All ranks go on from one state: the newest that any rank has, which is whole by 1 and 2.

So it does not matter how far which rank had come. Gradient accumulation, clipping and GradScaler are inside the step, and need no more."""

import contextlib
import copy
import json
import os
import sys
import time
import zlib
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Type, Union

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

from . import _job
from ._checkpoints import Checkpoints
from ._data import Data, Sampler, seed_all
from ._ddp import Ddp
from ._errors import Error, Rejoin, Stopped, warn
from ._groups import EachRound, Groups, prepare_nccl
from ._replica import broadcast
from ._store import Duration, milliseconds
from ._verify import Verify, WrongPeer, WrongResult
from ._watch import Watch

__all__ = ["Elastic", "Sampler", "Step", "Verify", "WrongPeer", "WrongResult", "each_round", "init_process_group"]

WAIT_S = 600.0  # for ranks that start; their set-up may compile
NCCL_LEAVES_S = 0.05  # how long a rank may take to leave by itself, before it is taken to wait for its GPU
WAITED_EVERY_S = 1.0  # between two reports of waits
SMALL = 64 * 1024  # bytes of an object's state that is copied at each step
_LOST_WORDS = ("connection closed by peer", "connection reset by peer", "broken pipe", "timed out waiting", "socket closed", "connection refused",
               "nccl communicator was aborted", "application timeout caused pair closure")

_groups: Optional[Groups] = None


class _Cut(RuntimeError):
    """The round ends, and this rank must not apply an update any more."""


def init_process_group(backend: Optional[str] = None, timeout: Duration = None) -> None:
    """torch.distributed.init_process_group() for a job whose survivors stay. Call it instead of that, before anything uses a group.

    `backend`: "gloo", "nccl", "cpu:gloo,cuda:nccl"; None: nccl with a GPU, else gloo. `timeout`: of collectives and of ranks that start, 600 s.

    In a process that joins others that train already, collectives return at once and change nothing until it enters Elastic. Without an agent it
    makes a world of one."""
    global _groups
    if _groups is not None or dist.is_initialized():
        raise Error("init_process_group: there is a default group already; call rdzv.torch.init_process_group() in place of PyTorch's")
    job = _job.init()
    wait = milliseconds(timeout, WAIT_S)
    backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
    groups = Groups(job, backend, timedelta(milliseconds=wait))
    if groups.uses_nccl and not job.alone:
        prepare_nccl()
    if not job.alone and not job.store_port:
        raise Error("init_process_group: this job has no store of the agent (--store worker), so its workers cannot stay for the next round")

    def exchange(value: bytes, name: str) -> List[bytes]:
        return job.exchange(value, "rdzv.torch/" + name, wait / 1000)

    stayed = not job.alone and any(v == b"1" for v in exchange(b"0", "stayed"))
    groups.begin(stayed, exchange)
    _groups = groups


def each_round(make: Callable[[], Any]) -> EachRound:
    """Groups and device meshes: `make` is called now, and again in each round. The result is a function that returns the current value.

        mesh = rdzv.torch.each_round(lambda: init_device_mesh("cuda", (dist.get_world_size() // 2, 2)))
        dist.all_reduce(tensor, group=mesh().get_group(0))

    All ranks call it in the same order, before Elastic."""
    if _groups is None:
        raise Error("each_round: call rdzv.torch.init_process_group() first")
    each = EachRound(make)
    each.make()
    _groups.made.append(each)
    return each


def _is_lost_peer(error: Optional[BaseException]) -> bool:
    """Whether an exception, or one behind it, says that a peer is gone."""
    seen: List[int] = []
    while error is not None and id(error) not in seen:
        seen.append(id(error))
        if isinstance(error, (_Cut, Rejoin, WrongPeer)) or isinstance(error, getattr(dist, "DistError", ())):
            return True
        if isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _LOST_WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _list(given: Any) -> List[Any]:
    return [] if given is None else list(given) if isinstance(given, (list, tuple)) else [given]


class Step(int):
    """The number of a step, from 0. `with step:` is the step: forward pass, backward pass, update."""

    _job: "Elastic"

    def __enter__(self) -> "Step":
        self._job._enter_step()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> bool:
        return self._job._exit_step(error)

    def report(self, loss: Any = None, samples: Optional[int] = None) -> None:
        """The loss of this step, a number or a tensor, and the samples that this rank has used: for progress reports."""
        self._job._report = {"loss": loss, "samples": samples}


class _Waits:
    """How long backward passes wait for the gradients of other ranks: from this rank's last own gradient to the update.

    DDP computes the gradient of its first parameter last. NCCL's waits are seen in NCCL itself."""

    def __init__(self, ddps: List[Ddp]) -> None:
        self._ready: Optional[float] = None
        self._steps, self._seconds, self._told = 0, 0.0, time.monotonic()
        self.hooks = [d.first_parameter().register_hook(self._on_gradient) for d in ddps]

    def _on_gradient(self, _: Any) -> None:
        self._ready = time.monotonic()

    def note_update(self) -> None:
        if self._ready is None:
            return
        now = time.monotonic()
        self._steps, self._seconds, self._ready = self._steps + 1, self._seconds + now - self._ready, None
        if now - self._told >= WAITED_EVERY_S:
            self._told = now
            with contextlib.suppress(Error):  # the agent is gone: whoever needs it says so
                _job.init().waited(self._steps, self._seconds)


class Elastic:
    """Training that survives the loss of workers in place. All ranks make it alike, behind init_process_group().

    `model`: a module or a list of them; DDP modules among them, or inside, follow the rounds. `optimizer`: one or a list. `state`: other objects
    with state_dict() and load_state_dict(): schedulers, GradScaler, averages. What is in none of these is not sent to a new rank.
    `checkpoint`: a folder for step-N.pt, which rank 0 writes `every` steps, on request and at the end; the newest `keep` stay. Training begins
    with the newest one if no rank has a newer state. `seed`: of the random numbers of each step; None: torch.initial_seed() of rank 0.
    `timeout`: for ranks that start. `verify_every`: look for silent corruption every so many steps, and before a checkpoint (Verify). `loss`:
    a function of a batch of `data`; with it gradients are compared too."""

    def __init__(self, model: Any, optimizer: Any = None, state: Optional[Dict[str, Any]] = None, checkpoint: Union[str, Path, None] = None,
                 every: int = 0, keep: int = 2, seed: Optional[int] = None, timeout: Duration = None, verify_every: int = 0,
                 loss: Optional[Callable[[Any], torch.Tensor]] = None) -> None:
        if every < 0 or keep < 1:
            raise ValueError(f"every is {every} and keep is {keep}: every must be 0 or more, keep 1 or more")
        for name, part in (state or {}).items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise TypeError(f'state["{name}"] is a {type(part).__name__}: it needs state_dict() and load_state_dict()')
        self._models, self._optimizers, self._state = _list(model), _list(optimizer), dict(state or {})
        self._folder, self._every, self._keep = None if checkpoint is None else Path(checkpoint), every, keep
        self._seed, self._wait_ms = seed, milliseconds(timeout, WAIT_S)
        self._verify = Verify(self._models, verify_every, self._optimizers, loss) if verify_every else None
        self._ddps = [Ddp(m) for top in self._models for m in top.modules() if isinstance(m, DDP)]
        self._data: Optional[Data] = None
        self._batch: Any = None  # of the last step
        self._data_state: Optional[Dict[str, Any]] = None
        self._watch: Optional[Watch] = None
        self._checkpoints: Optional[Checkpoints] = None
        self._hooks: List[Any] = []
        self._waits: Optional[_Waits] = None
        self._report: Dict[str, Any] = {}
        self._done = 0  # steps that are complete
        self._begun: Optional[int] = None  # the last step, which is complete if it is less than _done
        self._inside = self._entered = False  # of `with step`
        self._updating = False  # inside an optimizer's step()
        self._updates = 0  # of this step
        self._updates_of_step: Optional[int] = None  # of the last complete one
        self._has_state = self._sharded = False
        self._buffers: List[Tuple[torch.Tensor, torch.Tensor]] = []
        self._small: Dict[str, Any] = {}
        self._stayed: List[int] = []  # ranks that had a state when this round began
        self._fault: Optional[str] = None  # why this rank left, if it was not asked
        self._saved = 0

    # The job -------------------------------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This rank's number in the current round."""
        return _job.init().rank

    @property
    def world_size(self) -> int:
        """The number of ranks in the current round."""
        return _job.init().world_size

    @property
    def step(self) -> int:
        """Steps that are complete."""
        return self._done

    @property
    def interrupted(self) -> bool:
        """The round ends: a loop of the script's own, which calls no collective, should leave the step soon. It has half of --stop-timeout."""
        return self._cut()

    @property
    def in_place(self) -> bool:
        """Whether this process stays when another worker is lost."""
        return self._watch is not None

    def __enter__(self) -> "Elastic":
        if _groups is None:
            init_process_group()
        for o in self._optimizers:
            self._hooks += [o.register_step_pre_hook(self._before_update), o.register_step_post_hook(self._after_update)]
        if not self._the_groups.uses_nccl:
            self._waits = _Waits(self._ddps)
            self._hooks += self._waits.hooks
        self._look_for_shards()
        if not _job.init().alone and not self._sharded:
            groups = self._the_groups
            watch = self._watch = Watch(groups.cut, groups.end_round, NCCL_LEAVES_S if groups.uses_nccl else None, lambda: groups.connecting)
            groups.context, groups.is_cut = lambda: watch.link, watch.cut.is_set
        try:
            self._enter_round(renew=self._the_groups.silent)
        except Exception as e:
            if not self._is_fault(e):
                self._close()
                raise
            self._fault = _first_line(e)
            self._recover()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._close()

    def _close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
            self._the_groups.context, self._the_groups.is_cut = _job.init()._mine, lambda: False

    @property
    def _the_groups(self) -> Groups:
        assert _groups is not None
        return _groups

    def _look_for_shards(self) -> None:
        name = next((n for m in self._models for n, p in m.named_parameters() if isinstance(p, DTensor)), None)
        self._sharded = name is not None
        if self._sharded and self._folder is not None:
            raise ValueError(f"checkpoint: the parameter {name} is sharded over the ranks, and rank 0 has its own part only; save with torch.distributed.checkpoint")
        if self._sharded and self.rank == 0:
            warn(f"the parameter {name} is sharded over the ranks, and no other rank has its parts: after a fault all workers start again, and load "
                 "the checkpoint", UserWarning)

    # Steps ---------------------------------------------------------------------------------------------------------------------------

    def steps(self, n: int, data: Union[Iterable[Any], Data, None] = None) -> Iterator[Any]:
        """The steps that are left of n. With `data`, an iterable of batches such as a DataLoader: pairs of a step and its batch.

        The loop's body is `with step:`. After a fault the step that was cut comes again. `data` is iterated from epoch to epoch."""
        if data is not None:
            self._data = data if isinstance(data, Data) else Data(data)
            if self._data_state is not None:
                self._data.load_state_dict(self._data_state)
        while True:
            if self._cut():
                self._recover()
            if self._done >= n:
                if self._all_done(n):
                    return
                continue
            if self._begun == self._done and not self._entered:
                raise Error(f"step {self._done} was not run: the body of the loop over steps() must be inside `with step:`")
            self._begin_step(n)
            step = Step(self._done)
            step._job = self
            try:
                batch = self._batch = None if self._data is None else self._next_batch()
                if self._verify is not None and self._verify.is_due(self._done + 1):
                    self._verify.check(self._done + 1, batch)
            except Exception as e:  # loaders may use the groups
                if not self._is_fault(e):
                    raise
                self._leave(e)
                self._begun = None
                continue
            yield step if self._data is None else (step, batch)

    def _cut(self) -> bool:
        return self._fault is not None or (self._watch is not None and self._watch.cut.is_set())

    def _next_batch(self) -> Any:
        assert self._data is not None
        self._draw(1)
        return self._data.next()

    def _begin_step(self, n: int) -> None:
        self._last, self._begun, self._entered = n, self._done, False

    def _draw(self, what: int) -> None:
        """Random numbers of this step and rank: of the data (1), of the step (0)."""
        seed_all(f"{self._seed}/{self._done}/{self.rank}/{what}")

    def _enter_step(self) -> None:
        if self._inside or self._begun != self._done:
            raise Error("`with step:` is for the current step, once")
        self._inside = self._entered = True
        self._updates, self._updating, self._report = 0, False, {}
        if self._watch is not None:
            self._keep_what_a_step_changes()
        self._draw(0)

    def _exit_step(self, error: Optional[BaseException]) -> bool:
        self._inside = False
        if error is None:
            self._complete_step()
            return False
        if not isinstance(error, Exception) or not self._is_fault(error):
            return False
        self._leave(error)
        self._undo_step()
        return True

    def _leave(self, error: Exception) -> None:
        """A fault has ended what this rank did in the round."""
        if isinstance(error, WrongPeer) and self._folder is not None:
            self._has_state = False  # gradients of the wrong rank are in it since the last check; no checkpoint has them
        self._fault = None if self._watch is not None and self._watch.cut.is_set() else _first_line(error)
        error.__traceback__ = None  # its frames hold what the step made

    def _complete_step(self) -> None:
        self._done += 1
        self._updates_of_step, self._updates = self._updates, 0
        self._has_state = True
        if self._data is not None:
            self._data.taken()
        for d in self._ddps:
            d.keep_order()
        job = _job.init()

        def tell_and_save() -> None:
            job.progress(self._done, self._last, **self._report)
            self._save_if_due()

        self._unless_cut(tell_and_save)  # a save may use the groups

    def _all_done(self, n: int) -> bool:
        """All ranks have completed the last step. False: one is lost, and the others may need this one's state."""

        def save_and_meet() -> None:
            if self._folder is not None and self._saved != self._done:
                self._save()
            self._meet(n)

        return self._unless_cut(save_and_meet)

    def _meet(self, n: int) -> None:
        """All ranks are behind their last step, n."""
        if self.world_size > 1 and self._watch is not None:
            self._exchange(b"", f"all done {n}")

    def _unless_cut(self, part: Callable[[], None]) -> bool:
        """Runs it. False: a fault has ended it."""
        try:
            part()
            return True
        except Exception as e:
            if not self._is_fault(e):
                raise
            self._leave(e)
            return False

    # Updates -------------------------------------------------------------------------------------------------------------------------

    def _before_update(self, *_: Any) -> None:
        if self._the_groups.uses_nccl and torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # the gradients are there, or a cut has ended the wait
        if self._cut():
            raise _Cut("the round ends")
        if self._waits is not None:
            self._waits.note_update()
        self._updating = True

    def _after_update(self, *_: Any) -> None:
        self._updating = False
        self._updates += 1

    def _keep_what_a_step_changes(self) -> None:
        if not self._buffers:
            self._buffers = [(b, b.detach().clone()) for m in self._models for b in m.buffers()]
        else:
            torch._foreach_copy_([kept for _, kept in self._buffers], [b.detach() for b, _ in self._buffers])
        for name, part in self._state.items():
            kept = part.state_dict()
            if _is_small(kept):
                self._small[name] = copy.deepcopy(kept)

    def _undo_step(self) -> None:
        """The state before the step, or behind it if its update is made. If it is neither, this rank has no state."""
        for m in self._models:
            for p in m.parameters():
                p.grad = None
        for part in self._state.values():
            getattr(part, "_per_optimizer_states", {}).clear()  # a GradScaler knows which gradients it has unscaled
        if self._updates == 0 and not self._updating:
            for b, kept in self._buffers:
                b.detach().copy_(kept)
            for name, kept in self._small.items():
                self._state[name].load_state_dict(kept)
        elif not self._updating and self._updates == (self._updates_of_step or len(self._optimizers)) and self._finish_step():
            self._done += 1
            self._updates_of_step = self._updates
            if self._data is not None:
                self._data.taken()
        else:
            self._has_state = False
        self._updates, self._updating = 0, False

    def _finish_step(self) -> bool:
        """What a step does behind its update, if the cut came in between."""
        for name, part in self._state.items():
            if name not in self._small or part.state_dict() != self._small[name]:
                continue
            if not self._advance(part):
                return False
        return True

    def _advance(self, part: Any) -> bool:
        """The step of a scheduler, if `part` is one. False: it needs a value that only the script knows."""
        if isinstance(part, torch.optim.lr_scheduler.ReduceLROnPlateau):
            return False
        if isinstance(part, torch.optim.lr_scheduler.LRScheduler):
            part.step()
        return True

    # Rounds --------------------------------------------------------------------------------------------------------------------------

    def _is_fault(self, error: Exception) -> bool:
        return self._watch is not None and (self._watch.cut.is_set() or _is_lost_peer(error))

    def _exchange(self, value: bytes, name: str) -> List[bytes]:
        """Values of all ranks. The wait ends with the round."""
        if self._watch is None:
            return _job.init().exchange(value, "rdzv.torch/" + name, self._wait_ms / 1000)
        return _job.exchange(self._watch.link, self.world_size, value, "rdzv.torch/" + name, self._wait_ms)

    def _recover(self) -> None:
        watch, job = self._watch, _job.init()
        assert watch is not None
        began = time.monotonic()
        if self._checkpoints is not None:
            self._checkpoints.close()
        while True:
            was = (job.rank, job.world_size)
            watch.leave(self._fault)
            self._fault = None
            watch.await_place()
            placed = time.monotonic()
            try:
                job._enter(watch.link)
                self._exchange(b"1", "stayed")
                moved = self._enter_round(renew=True)
                if self._data is not None and (moved or was != (job.rank, job.world_size)):
                    self._data.moved(was != (job.rank, job.world_size))
            except Exception as e:
                if not self._is_fault(e):
                    raise
                self._fault = None if watch.cut.is_set() else _first_line(e)
                continue
            break
        if self._stayed and job.rank == self._stayed[0]:
            now = time.monotonic()
            print(f"rdzv: round {job.round}: {len(self._stayed)} of {job.world_size} ranks stayed in place, and go on with step {self._done}, "
                  f"{now - min(began, watch.cut_at):.3f} s after the fault ({now - placed:.3f} s of it for groups and state)", file=sys.stderr, flush=True)

    def _enter_round(self, renew: bool) -> bool:
        """Groups, and the state that all ranks have. True: this rank has received it."""
        if renew:
            self._the_groups.renew(self._exchange)
        received = self._agree(renew)
        if self._verify is not None:
            self._verify.begin_round()
        if self._folder is not None:
            self._checkpoints = Checkpoints(ends=self._cut)
        _job.init().resumed(self._done)
        return received

    def _standing(self) -> Dict[str, Any]:
        """What the ranks compare."""
        orders = [d.order for d in self._ddps]
        return {"has": self._has_state, "step": self._done, "orders": zlib.crc32(json.dumps(orders).encode())}

    def _root(self, all: List[Dict[str, Any]], newest: Optional[int]) -> int:
        """The rank whose state the others get. `newest`: the newest step of which a rank has the state."""
        return 0 if newest is None else next(i for i, s in enumerate(all) if s["has"] and s["step"] == newest)

    def _agree(self, renewed: bool) -> bool:
        if self._sharded:
            self._seed = int(self._exchange(str(torch.initial_seed() if self._seed is None else self._seed).encode(), "seed")[0])
            return False
        all = [json.loads(v) for v in self._exchange(json.dumps(self._standing()).encode(), "standing")]
        steps = [s["step"] for s in all if s["has"]]
        self._stayed = [i for i, s in enumerate(all) if s["has"]]
        newest = max(steps, default=None)
        root = self._root(all, newest)
        received = newest is None and self.rank == 0 and self._load()
        behind = not self._has_state or self._done != newest
        if self.world_size > 1 and (newest is None or any(s[name] != all[root][name] for s in all for name in ("has", "step", "orders"))):
            tree = broadcast(self._tree() if self.rank == root else None, root, self._group_device())
            if behind and self.rank != root:
                self._put(tree)
                received = True
            for d, order in zip(self._ddps, tree["trainer"]["orders"]):
                d.order = order
        if self._seed is None:
            self._seed = torch.initial_seed()
        for d in self._ddps:
            if renewed or d.order is not None:
                d.rebuild()
            else:
                d.watch_order()
        self._has_state = True
        return received

    def _group_device(self) -> torch.device:
        alone = self._the_groups.uses_nccl and "gloo" not in (self._the_groups.backend or "")
        return torch.device("cuda", torch.cuda.current_device()) if alone and torch.cuda.is_available() else torch.device("cpu")

    # State ---------------------------------------------------------------------------------------------------------------------------

    def _plain_models(self) -> List[torch.nn.Module]:
        return [m.module if isinstance(m, DDP) else m for m in self._models]

    def _tree(self) -> Dict[str, Any]:
        if self._seed is None:
            self._seed = torch.initial_seed()
        return {"models": [m.state_dict() for m in self._plain_models()], "optimizers": [o.state_dict() for o in self._optimizers],
                "state": {name: part.state_dict() for name, part in self._state.items()},
                "trainer": {"step": self._done, "seed": self._seed, "orders": [d.order for d in self._ddps], "updates": self._updates_of_step,
                            "data": self._data_state if self._data is None else self._data.state_dict()}}

    def _put(self, tree: Dict[str, Any]) -> None:
        for kind, ours in (("models", self._models), ("optimizers", self._optimizers)):
            if len(tree[kind]) != len(ours):
                raise Error(f"the state has {len(tree[kind])} {kind}, and this rank {len(ours)}: all ranks and checkpoints need the same")
        for m, s in zip(self._plain_models(), tree["models"]):
            m.load_state_dict(s)
        for o, s in zip(self._optimizers, tree["optimizers"]):
            o.load_state_dict(s)
        for name, part in self._state.items():
            if name not in tree["state"]:
                raise Error(f'the state has no "{name}": all ranks and checkpoints need the same names in `state`')
            part.load_state_dict(tree["state"][name])
        own = tree["trainer"]
        self._done, self._seed, self._updates_of_step, self._data_state = own["step"], own["seed"], own["updates"], own["data"]
        self._begun = None
        if self._data is not None and self._data_state is not None:
            self._data.load_state_dict(self._data_state)
        for d, order in zip(self._ddps, own["orders"]):
            d.order = order
        self._has_state = True

    # Checkpoints ---------------------------------------------------------------------------------------------------------------------

    def _found(self) -> List[Path]:
        assert self._folder is not None
        found = [p for p in self._folder.glob("step-*.pt") if p.stem[5:].isdigit()]
        return sorted(found, key=lambda p: int(p.stem[5:]))

    def _load(self) -> bool:
        if self._folder is None or not self._found():
            return False
        newest = self._found()[-1]
        tree = torch.load(newest, map_location="cpu", weights_only=True)
        self._put(tree)
        self._saved = self._done
        return True

    def _save(self) -> None:
        job = _job.init()
        if self._verify is not None:
            self._verify.check(self._done + 1, self._batch)
        with job.saving():
            if job.rank == 0:
                assert self._folder is not None
                self._folder.mkdir(parents=True, exist_ok=True)
                unnamed, named = self._folder / f"unfinished-{self._done}", self._folder / f"step-{self._done}.pt"
                with open(unnamed, "wb") as f:
                    torch.save(self._tree(), f)
                    f.flush()
                    os.fsync(f.fileno())
                unnamed.rename(named)
                for old in self._found()[: -self._keep]:
                    old.unlink()
        self._saved = self._done
        job.saved(self._done)

    def _save_if_due(self) -> None:
        if self._folder is None:
            return
        due = self._checkpoints is not None and self._checkpoints.due(self._done)
        if due or (self._every and self._done % self._every == 0):
            self._save()
        if due and self._checkpoints is not None and self._checkpoints.written(self._done):
            raise Stopped


def _first_line(error: BaseException) -> str:
    text = str(error).split("\n")[0]
    return text[text.rfind("] ") + 1 :].strip()[:180] if text.startswith("[") else text[:180]


def _is_small(state: Any) -> bool:
    """Whether it has no tensor, and is cheap to copy."""
    left = [SMALL // 16]

    def small(value: Any) -> bool:
        left[0] -= 1
        if left[0] < 0 or isinstance(value, torch.Tensor):
            return False
        if isinstance(value, dict):
            return all(small(v) for v in value.values())
        return all(small(v) for v in value) if isinstance(value, (list, tuple)) else not isinstance(value, (str, bytes)) or len(value) < SMALL

    return small(state)
