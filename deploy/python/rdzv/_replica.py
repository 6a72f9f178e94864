# SPDX-License-Identifier: Apache-2.0
"""The state of a training as a tree, and its way from one rank to the others.

A tree has dicts, lists, tuples, tensors and plain values, as state_dict() returns them. Its tensors are taken out, and what is left travels as
torch.save() writes it, and is read with weights_only=True: nothing that is received is executed. The tensors follow in chunks. Each chunk
ends with a sum of its bytes, which the receiver compares."""

import ctypes
import io
from typing import Any, List, Tuple

import torch
import torch.distributed as dist

from ._errors import Error

CHUNK = 16 * 1024 * 1024  # bytes of one broadcast
SUM = 8  # bytes of the sum behind them
_MARK = "rdzv.tensor"  # (_MARK, index) stands for a tensor


def split(tree: Any, tensors: List[torch.Tensor]) -> Any:
    """The tree without its tensors, which are appended."""
    if isinstance(tree, torch.Tensor):
        tensors.append(tree.detach())
        return (_MARK, len(tensors) - 1)
    if isinstance(tree, dict):
        return {key: split(value, tensors) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        items = [split(value, tensors) for value in tree]
        return items if isinstance(tree, list) else tuple(items)
    return tree


def join(tree: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(tree, dict):
        return {key: join(value, tensors) for key, value in tree.items()}
    if isinstance(tree, tuple) and len(tree) == 2 and tree[0] == _MARK:
        return tensors[tree[1]]
    if isinstance(tree, (list, tuple)):
        items = [join(value, tensors) for value in tree]
        return items if isinstance(tree, list) else tuple(items)
    return tree


def write(tree: Any) -> bytes:
    out = io.BytesIO()
    torch.save(tree, out)
    return out.getvalue()


def read(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A view of a contiguous tensor's bytes."""
    return tensor.reshape(-1).view(torch.uint8)


def _sum(data: torch.Tensor) -> int:
    """Depends on each word's value and place."""
    words = data[: data.numel() // 8 * 8].view(torch.int64)
    places = torch.arange(1, words.numel() + 1, device=data.device, dtype=torch.int64)
    rest = sum(int(b) << (8 * i) for i, b in enumerate(data[words.numel() * 8 :].tolist()))
    total = int((words * (places * 0x9E3779B1 | 1)).sum()) + rest + data.numel()
    return int((total + 2**63) % 2**64 - 2**63)


class _Chunks:
    """Bytes that one rank broadcasts and the others receive, in the same order."""

    def __init__(self, root: int, device: torch.device) -> None:
        self._root, self._sends = root, dist.get_rank() == root
        self._buffer = torch.empty(CHUNK + SUM, dtype=torch.uint8, device=device)
        self._sum = torch.empty(1, dtype=torch.int64)

    def move(self, parts: List[torch.Tensor]) -> None:
        """All parts, as one stream of bytes. Each is a view of bytes."""
        places: List[Tuple[int, torch.Tensor]] = []
        used = 0
        for part in parts:
            at = 0
            while at < part.numel():
                n = min(CHUNK - used, part.numel() - at)
                places.append((used, part[at : at + n]))
                used, at = used + n, at + n
                if used == CHUNK:
                    self._broadcast(places, used)
                    places, used = [], 0
        if used:
            self._broadcast(places, used)

    def _broadcast(self, places: List[Tuple[int, torch.Tensor]], used: int) -> None:
        room = (used + 7) // 8 * 8  # the sum is a number of 8 bytes, which begins at a multiple of 8
        data, tail = self._buffer[:used], self._buffer[room : room + SUM]
        if self._sends:
            for at, part in places:
                data[at : at + part.numel()].copy_(part)
            self._sum[0] = _sum(data)
            tail.copy_(_bytes(self._sum))
        dist.broadcast(self._buffer[: room + SUM], self._root)
        if self._sends:
            return
        _bytes(self._sum).copy_(tail)
        if int(self._sum[0]) != _sum(data):
            raise Error(f"the state from rank {self._root} was damaged on its way: a chunk of {used} bytes has another sum. Look for bad memory on "
                        "either host")
        for at, part in places:
            part.copy_(data[at : at + part.numel()])


def _shape(tensor: torch.Tensor) -> Tuple[Any, ...]:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise Error(f"a tensor of shape {tuple(tensor.shape)} is {tensor.layout}: only plain tensors can be sent to another rank")
    return (list(tensor.shape), tensor.dtype, "cpu" if tensor.device.type == "cpu" else "device")


def broadcast(tree: Any, root: int, device: torch.device) -> Any:
    """The tree of `root`, on all ranks of the default group. `tree`: anything on the other ranks. `device`: where the group can broadcast.

    Tensors that root has on the CPU arrive there; others arrive on `device`."""
    chunks, tensors = _Chunks(root, device), []  # type: ignore[var-annotated]
    size = torch.zeros(1, dtype=torch.int64)
    head = torch.empty(0, dtype=torch.uint8)
    if dist.get_rank() == root:
        plain = split(tree, tensors)
        head = torch.frombuffer(bytearray(write((plain, [_shape(t) for t in tensors]))), dtype=torch.uint8)
        tensors = [t.contiguous() for t in tensors]
        size[0] = head.numel()
    chunks.move([_bytes(size)])
    if dist.get_rank() != root:
        head = torch.empty(int(size[0]), dtype=torch.uint8)
    chunks.move([head])
    if dist.get_rank() != root:
        plain, shapes = read(ctypes.string_at(head.data_ptr(), head.numel()))
        tensors = [torch.empty(shape, dtype=dtype, device="cpu" if where == "cpu" else device) for shape, dtype, where in shapes]
    chunks.move([_bytes(t) for t in tensors])
    return tree if dist.get_rank() == root else join(plain, tensors)
