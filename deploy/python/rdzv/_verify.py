# SPDX-License-Identifier: Apache-2.0
"""Silent corruption: a wrong result without an error, and the rank that computed it.

    state       Replicas have the same parameters and the same optimizer state, bit for bit. Each rank's checksum is gathered on all.
    gradients   Each rank computes the gradients of its batch and of a neighbour's, before any sum over ranks, with the same buffers and random
                numbers. The checksums of both are gathered. The neighbour changes from check to check.

A difference blames nobody yet. All ranks look at their state a second time, or compute gradients again: their own, and those of another
neighbour. So a third rank has computed each of them. The rules are those of rdzv-trainer (agent/trainer/run/verify_rule.c): a value that two
ranks have is right, and a rank that gives two answers to one question is wrong.

Gradients have the same bits twice only if all ranks have the same kind of device and software, and if the kernels add in a fixed order. The
first comparison finds out: each rank computes its own gradients twice. What a comparison changes is put back: buffers, random numbers, DDP's
flags. torch.autograd.grad() leaves p.grad alone, and starts no sum over ranks."""

import contextlib
import json
import os
import platform
import random
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP

from ._data import seed_all
from ._errors import Error, warn
from ._replica import _bytes, _shape, join, read, split, write

GOOD, SUSPECT, WRONG = range(3)
AGAIN_ELSEWHERE = 16  # exit code: the agent takes this host last in the next round
CHUNK = 1 << 20  # elements of a tensor whose products with their places are in memory at once
ENDED_S = 5.0  # in which the agent ends this process, because another one has failed
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = (type(None), bool, int, float, str, bytes)


class WrongResult(SystemExit):
    """This rank's result is wrong, as two others have shown. Or ranks differ and no third one can decide. The process ends with 16, for another host.
    The agent reads the sentence from the error file."""

    def __init__(self, sentence: str) -> None:
        super().__init__(AGAIN_ELSEWHERE)
        self.sentence = sentence
        print(f"rdzv: {sentence}", file=sys.stderr, flush=True)
        path = os.environ.get("TORCHELASTIC_ERROR_FILE")
        if path:
            with contextlib.suppress(OSError):
                Path(path).write_text(json.dumps({"message": {"message": sentence, "extraInfo": {"timestamp": str(int(time.time()))}}}))

    def __str__(self) -> str:
        return self.sentence


class WrongPeer(Error):
    """Another rank's result is wrong. It ends, and this one's state is good."""


WrongResult.__module__ = WrongPeer.__module__ = "rdzv.torch"


# Rules -------------------------------------------------------------------------------------------------------------------------------


def neighbour(rank: int, world: int, turn: int) -> int:
    """The rank whose gradients `rank` repeats."""
    return (rank + 1 + turn % (world - 1)) % world


def judge_states(states: Sequence[int]) -> List[int]:
    """A mark for each rank."""
    (right, most), *others = Counter(states).most_common(2)
    if most < 2 or (others and others[0][1] == most):
        return [SUSPECT] * len(states)
    return [GOOD if s == right else WRONG for s in states]


def judge_gradients(all: Sequence[Sequence[int]], turn: int) -> List[int]:
    """A mark for each rank. `all`: of each rank, checksums of its own gradients, the neighbour's, its own again, the next neighbour's."""
    world = len(all)
    marks = [GOOD] * world
    for rank in range(world):
        answers = [(rank, all[rank][0]), (rank, all[rank][2])]
        for i, place in ((0, 1), (1, 3)):
            by = next(r for r in range(world) if neighbour(r, world, turn + i) == rank)
            answers.append((by, all[by][place]))
        values: Dict[int, Set[int]] = {}
        for by, value in answers:
            values.setdefault(by, set()).add(value)
        unstable = [by for by, given in values.items() if len(given) > 1]
        for by in unstable:
            marks[by] = WRONG
        if unstable or len({v for _, v in answers}) == 1:
            continue
        right = next((v for _, v in answers if sum(v in given for given in values.values()) > 1), None)
        for by, value in answers:
            if value != right:
                marks[by] = max(marks[by], SUSPECT if right is None else WRONG)
    return [GOOD if WRONG in marks and m == SUSPECT else m for m in marks]


# Checksums ---------------------------------------------------------------------------------------------------------------------------

_places: Dict[torch.device, torch.Tensor] = {}


def checksum(tensors: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """One number on `device` for the bits of tensors, which lie anywhere. Every device computes the same. The factor of each word is odd, so a
    flipped bit always changes the sum, modulo 2^64."""
    total = torch.zeros(1, dtype=torch.int64, device=device)
    number = 0
    for tensor in tensors:
        flat = tensor.detach().contiguous()
        flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
        words = flat.view(_WORDS[flat.element_size()])
        places = _places.get(words.device)
        if places is None:
            places = _places[words.device] = torch.arange(CHUNK, dtype=torch.int64, device=words.device) * 0x3C6EF372 + 1
        for part in words.split(CHUNK):
            number += 1
            total += ((part.to(torch.int64) * places[: part.numel()]).sum() * (2 * number + 1)).to(device)
    return total


# Batches -----------------------------------------------------------------------------------------------------------------------------


def _check_plain(tree: Any) -> None:
    if isinstance(tree, dict):
        tree = [*tree.keys(), *tree.values()]
    if isinstance(tree, (list, tuple)):
        for value in tree:
            _check_plain(value)
    elif not isinstance(tree, _PLAIN):
        raise TypeError(f"the batch has a {type(tree).__name__}: another rank can only receive tensors, numbers, strings, lists, tuples and dicts")


def _swap(out: torch.Tensor, room: torch.Tensor, to: int, source: int) -> torch.Tensor:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, room, source)]):
        work.wait()
    return room


def pass_on(tree: Any, to: int, source: int, device: torch.device) -> Any:
    """Sends a tree to one rank, and returns the one that `source` sends. Nothing that is received is executed. `device`: of the group."""
    tensors: List[torch.Tensor] = []
    plain = split(tree, tensors)
    _check_plain(plain)
    head = torch.frombuffer(bytearray(write((plain, [_shape(t) for t in tensors]))), dtype=torch.uint8).to(device)
    body = [_bytes(t.contiguous()).to(device) for t in tensors]
    flat = torch.cat(body) if body else torch.empty(0, dtype=torch.uint8, device=device)
    sizes = torch.tensor([head.numel(), flat.numel()], device=device)
    theirs = [int(n) for n in _swap(sizes, torch.empty_like(sizes), to, source)]
    data = _swap(torch.cat([head, flat]), torch.empty(sum(theirs), dtype=torch.uint8, device=device), to, source)
    plain, shapes = read(bytes(data[: theirs[0]].cpu().numpy().tobytes()))
    received, at = [], theirs[0]
    for shape, dtype, where in shapes:
        place = torch.device("cpu") if where == "cpu" or not torch.cuda.is_available() else torch.device("cuda", torch.cuda.current_device())
        t = torch.empty(shape, dtype=dtype, device=place)
        size = t.numel() * t.element_size()
        _bytes(t).copy_(data[at : at + size])
        at += size
        received.append(t)
    return join(plain, received)


@contextlib.contextmanager
def _random_numbers(text: str) -> Iterator[None]:
    """Those of a text, and then those from before again."""
    numpy = sys.modules.get("numpy")
    kept = random.getstate(), numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        seed_all(text)
        try:
            yield
        finally:
            random.setstate(kept[0])
            if numpy:
                numpy.random.set_state(kept[1])


def _kind(device: torch.device) -> int:
    """Of the hardware and the software that decide the bits of a product."""
    text = [torch.__version__, str(torch.get_num_threads()), torch.backends.cpu.get_cpu_capability(), platform.machine()]
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as f:
        text += [line for line in f if line.startswith("model name")][:1]
    if device.type == "cuda":
        text += [torch.cuda.get_device_name(device), str(torch.version.cuda), str(torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else 0)]
    return zlib.crc32("\n".join(text).encode())


class Verify:
    """Looks for silent corruption every `every` calls. All ranks of the default group make it alike, and call it at the beginning of each step:

        verify = rdzv.torch.Verify(model, every=100, optimizer=optimizer, loss=lambda batch: criterion(model(batch[0]), batch[1]))
        for batch in loader:
            verify(batch)
            optimizer.zero_grad() ...

    `model`: a module, or a list of them, with the same parameters on all ranks. `loss`: a function of a batch. With it gradients are compared
    too; it is called up to four times, and should do no more than compute. The wrong rank ends with WrongResult, the others with WrongPeer."""

    def __init__(self, model: Any, every: int, optimizer: Any = None, loss: Optional[Callable[[Any], torch.Tensor]] = None) -> None:
        if every < 1:
            raise ValueError(f"every is {every}: it must be 1 or more")
        self._models = list(model) if isinstance(model, (list, tuple)) else [model]
        self._optimizers = [] if optimizer is None else list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._every, self._loss, self._calls = every, loss, 0
        self._ends_here = True  # the others wait for their end
        self._gradients: Optional[bool] = None  # None: not known yet in this round
        self._equal_at: Optional[int] = None
        modules = [m for top in self._models for m in top.modules()]
        self._ddps = [m for m in modules if isinstance(m, DDP)]
        name = next((n for m in self._models for n, p in m.named_parameters() if isinstance(p, DTensor)), None)
        why = None if name is None else f"the parameter {name} is sharded, and ranks have no copies to compare"
        self._off = why is not None
        if loss is not None and any(isinstance(m, torch.nn.SyncBatchNorm) for m in modules):
            why = "SyncBatchNorm adds up numbers of all ranks, so gradients depend on more than a batch"
            self._loss = None
        if why:
            self._say(f"verify: {why}: {'nothing is' if self._off else 'no gradients are'} compared")

    def __call__(self, batch: Any = None) -> None:
        self._calls += 1
        if self.is_due(self._calls):
            self.check(self._calls, batch)

    # For Elastic ---------------------------------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        self._gradients, self._equal_at, self._ends_here = None, None, False

    def is_due(self, step: int) -> bool:
        return not self._off and dist.get_world_size() > 1 and step % self._every == 0

    def check(self, step: int, batch: Any = None) -> None:
        """`step`: of which this is the beginning, from 1 on. Any batch will do."""
        if self._off or dist.get_world_size() == 1:
            return
        self._compare_states(step)
        if self._loss is not None and batch is not None and self._can_compare_gradients(step, batch):
            self._compare_gradients(step, batch)

    # State ---------------------------------------------------------------------------------------------------------------------------

    def _state(self) -> List[torch.Tensor]:
        """Checksums of parameters and of the optimizer's state."""
        tensors: List[torch.Tensor] = []
        for o in self._optimizers:
            if "ZeroRedundancy" not in type(o).__name__:
                split(o.state_dict()["state"], tensors)
        return [checksum((p for m in self._models for p in m.parameters()), self._device), checksum(tensors, self._device)]

    def _compare_states(self, step: int) -> None:
        if len(set(self._gather(self._state()))) > 1:
            states = self._gather(self._state())  # a second look
            if len(set(states)) > 1:
                self._blame(judge_states([hash(s) for s in states]), "parameters" if len({s[0] for s in states}) > 1 else "optimizer state", step)
            self._say(f"verify: a checksum differed at step {step}, and not at the second look")
        self._equal_at = step - 1

    # Gradients -----------------------------------------------------------------------------------------------------------------------

    def _can_compare_gradients(self, step: int, batch: Any) -> bool:
        if self._gradients is None:
            first, second = (self._gradients_of(batch, self._buffers(), dist.get_rank(), step) for _ in range(2))
            random_kernels = self._device_of_model.type == "cuda" and not torch.are_deterministic_algorithms_enabled()
            kinds = torch.tensor([_kind(self._device_of_model), int(random_kernels)], device=self._device)
            all = self._gather([first, second, kinds])
            unlike = [r for r, v in enumerate(all) if v[2] != all[0][2]]
            unstable = [r for r, v in enumerate(all) if v[0] != v[1]]
            why = ("torch.use_deterministic_algorithms(True) was not called" if any(v[3] for v in all)
                   else f"the device or the software of rank {unlike[0]} is not that of rank 0" if unlike
                   else f"rank {unstable[0]} computed other gradients from the same batch the second time" if unstable else None)
            if why:
                self._say(f"verify: {why}: no gradients are compared, only parameters and optimizer state")
            self._gradients = why is None
        return self._gradients

    def _compare_gradients(self, step: int, batch: Any) -> None:
        turn = step // self._every
        mine = [self._own(step, batch), self._neighbours(step, batch, turn)]
        first = self._gather(mine)
        if all(first[neighbour(r, len(first), turn)][0] == v[1] for r, v in enumerate(first)):
            return
        mine += [self._own(step, batch), self._neighbours(step, batch, turn + 1)]
        self._blame(judge_gradients(self._gather(mine), turn), "gradients", step)

    def _own(self, step: int, batch: Any) -> torch.Tensor:
        return self._gradients_of(batch, self._buffers(), dist.get_rank(), step)

    def _neighbours(self, step: int, batch: Any, turn: int) -> torch.Tensor:
        rank, world = dist.get_rank(), dist.get_world_size()
        owner = neighbour(rank, world, turn)
        by = next(r for r in range(world) if neighbour(r, world, turn) == rank)
        theirs = pass_on({"batch": batch, "buffers": self._buffers()}, by, owner, self._device)
        return self._gradients_of(theirs["batch"], theirs["buffers"], owner, step)

    def _buffers(self) -> List[torch.Tensor]:
        return [b.detach() for m in self._models for b in m.buffers()]

    def _gradients_of(self, batch: Any, buffers: List[torch.Tensor], owner: int, step: int) -> torch.Tensor:
        assert self._loss is not None
        own = self._buffers()
        kept = [b.clone() for b in own]
        flags = [d.require_forward_param_sync for d in self._ddps]
        parameters = [p for m in self._models for p in m.parameters() if p.requires_grad]
        with contextlib.ExitStack() as stack:
            for d in self._ddps:
                stack.enter_context(d.no_sync())
                d.require_forward_param_sync = False
            stack.enter_context(_random_numbers(f"{step}/{owner}"))
            try:
                for b, theirs in zip(own, buffers):
                    b.copy_(theirs)
                gradients = torch.autograd.grad(self._loss(batch), parameters, allow_unused=True)
            finally:
                for b, before in zip(own, kept):
                    b.copy_(before)
                for d, flag in zip(self._ddps, flags):
                    d.require_forward_param_sync = flag
        return checksum((g for g in gradients if g is not None), self._device)

    # Ranks ---------------------------------------------------------------------------------------------------------------------------

    @property
    def _device_of_model(self) -> torch.device:
        return next((p.device for m in self._models for p in m.parameters()), torch.device("cpu"))

    @property
    def _device(self) -> torch.device:
        """Where the default group can send."""
        nccl = "gloo" not in str(dist.get_backend()) and torch.cuda.is_available()
        return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def _gather(self, numbers: List[torch.Tensor]) -> List[Tuple[int, ...]]:
        mine = torch.cat(numbers)
        rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, mine)
        return [tuple(row.tolist()) for row in rows]

    def _say(self, text: str) -> None:
        if not dist.is_initialized() or dist.get_rank() == 0:
            warn(text, UserWarning)

    def _blame(self, marks: List[int], what: str, step: int) -> None:
        wrong, mine = [r for r, m in enumerate(marks) if m == WRONG], marks[dist.get_rank()]
        suspects = [r for r, m in enumerate(marks) if m == SUSPECT]
        if wrong or suspects:
            with contextlib.suppress(Exception):
                self._gather([torch.zeros(1, dtype=torch.int64, device=self._device)])  # all know before one leaves: the end of the round is quicker
        since = "" if self._equal_at is None else f"; at step {self._equal_at} all ranks had the same state"
        if mine == WRONG:
            raise WrongResult(f"rank {dist.get_rank()} has wrong {what} at step {step}: other ranks agree on other bits{since}; test this host's "
                              "memory, processor and GPU")
        if mine == SUSPECT:
            raise WrongResult(f"ranks {', '.join(map(str, suspects))} differ in {what} at step {step}, and no third rank can decide which is "
                              f"wrong{since}")
        if wrong or suspects:
            if self._ends_here:
                time.sleep(ENDED_S)  # the agent ends all workers of the round, and its verdict should name the wrong one
            raise WrongPeer(f"rank {(wrong or suspects)[0]} has wrong {what} at step {step}")
