# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel across rounds.

A DDP module keeps its parameters and gets a new reducer: the old one has the old group, and may have stopped in the middle of a backward pass.
DDP's own __setstate__, made for pickling, does that in place.

DDP arranges gradients in buckets twice: when it is made, in the order of parameters, and after the first backward pass, in the order in which
the gradients came. Ranks that disagree about the buckets would add up different gradients. And an all-reduce adds an element's values in an
order that depends on its place in the bucket. So a new reducer begins with the second arrangement, on all ranks, if a backward pass has been
made before. Then the sums are bit for bit those of an undisturbed run."""

import contextlib
from typing import Any, Iterator, List, Optional, Sequence
from unittest import mock

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

Order = List[int]  # indices of parameters that require gradients, in the order in which these came


class Ddp:
    """One DDP module."""

    def __init__(self, module: DDP) -> None:
        self._module = module
        self.order: Optional[Order] = None
        self._came: Order = []
        self._hooks: List[Any] = []

    def _parameters(self) -> List[torch.nn.Parameter]:
        return list(self._module._build_params_for_reducer()[0])

    def first_parameter(self) -> torch.nn.Parameter:
        return self._parameters()[0]

    def watch_order(self) -> None:
        """Before the first backward pass."""
        self._came = []
        for i, parameter in enumerate(self._parameters()):
            self._hooks.append(parameter.register_post_accumulate_grad_hook(self._noted(i)))

    def _noted(self, i: int) -> Any:
        def note(_: torch.Tensor) -> None:
            if i in self._came:  # the next backward pass of an accumulated gradient
                self._came.clear()
            self._came.append(i)

        return note

    def keep_order(self) -> None:
        """Behind it."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self.order is None and self._came:
            self.order = list(self._came)

    def rebuild(self) -> None:
        """A new reducer, for the default group as it is now. All ranks call it, with the same order."""
        module, hooks = self._module, list(self._module._comm_hooks)
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        module.reducer = module.logger = None  # before the new one: both hook into the same nodes of the graph
        kept = {k: v for k, v in module.__dict__.items() if k not in ("process_group", "reducer", "logger")}
        with self._arranged():
            module.__setstate__(kept)
        for hook, state in hooks:
            dist._register_comm_hook(module.reducer, state, hook)
        if self.order is None:
            self.watch_order()

    def _limits(self) -> List[int]:
        """Of the first bucket and of further ones, as the reducer arranges them behind the first backward pass."""
        module = self._module
        config = getattr(module, "_bucket_config", None)  # PyTorch 2.13
        if config is not None:
            return list(config.per_bucket_bytes_caps) or [config.first_bucket_bytes_cap, config.bucket_bytes_cap]
        first = dist._DEFAULT_FIRST_BUCKET_BYTES if getattr(module, "bucket_bytes_cap_default", True) else module.bucket_bytes_cap
        return [first, module.bucket_bytes_cap]

    @contextlib.contextmanager
    def _arranged(self) -> Iterator[None]:
        arrange, order, module = dist._compute_bucket_assignment_by_size, self.order, self._module
        rebuilds = module.static_graph or not module.find_unused_parameters
        if order is None or not rebuilds:
            yield
            return

        def again(parameters: Sequence[torch.Tensor], limits: Sequence[int], sparse: Sequence[bool], *more: Any, **named: Any) -> Any:
            buckets, sizes = arrange([parameters[i] for i in order], self._limits(), list(sparse), list(order))
            return list(reversed(buckets)), list(reversed(sizes))  # DDP reverses them, since it takes them to be in the order of parameters

        with mock.patch.object(dist, "_compute_bucket_assignment_by_size", again):
            yield
