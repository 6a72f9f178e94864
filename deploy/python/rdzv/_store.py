# SPDX-License-Identifier: Apache-2.0
"""The round's store, with the method names of torch.distributed.Store."""

import ctypes
import errno
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Union

from ._errors import Error
from ._lib import Context, failure, free, interruptible, take

Value = Union[str, bytes]
Duration = Union[float, timedelta, None]
MS_MAX = 2**31 - 1


def milliseconds(timeout: Duration, default: float) -> int:
    """None: the default. A longer time than librdzv can count becomes the longest one, 24 days."""
    seconds = default if timeout is None else timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not seconds >= 0:
        raise ValueError(f"timeout is {timeout}: it must be 0 or more seconds")
    return int(min(seconds * 1000, MS_MAX))


def as_bytes(value: Value) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a value is str or bytes, not {type(value).__name__}")


def as_name(name: str) -> bytes:
    """C ends a text at a NUL, so a name with one would be another name."""
    text = name.encode()
    if b"\0" in text:
        raise ValueError(f"{name!r} has a NUL byte")
    return text


def _array(items: Sequence[bytes]) -> Any:
    return (ctypes.c_char_p * len(items))(*items)


class Store:
    """Keys and values that all ranks of the round share. It is the store that TCPStore(MASTER_ADDR, MASTER_PORT) reaches.

    Each round begins with an empty store. A timeout is in seconds, or a timedelta; None stands for `timeout` of the store, 300 s at first.
    Errors: Timeout names the missing keys; Lost; Rejoin, if can_rejoin() was called and the round ends."""

    def __init__(self, context: Callable[[], Context]) -> None:
        self._find_context = context
        self.timeout = 300.0

    @property
    def _context(self) -> Context:
        return self._find_context()

    def set_timeout(self, timeout: Union[float, timedelta]) -> None:
        self.timeout = milliseconds(timeout, 0) / 1000

    def _ms(self, timeout: Duration) -> int:
        return milliseconds(timeout, self.timeout)

    def _value(self, name: str, *arguments: Any, timeout: Duration) -> Optional[bytes]:
        """Of a function that returns a buffer. None: -ENOENT."""
        value, size, context = ctypes.c_void_p(), ctypes.c_size_t(), self._context

        def call() -> Optional[bytes]:
            code, sentence = context.attempt(name, *arguments, ctypes.byref(value), ctypes.byref(size), self._ms(timeout))
            if code == -errno.ENOENT:
                return None
            if code:
                raise failure(code, sentence)
            return take(value, size.value)

        got: Optional[bytes] = interruptible(call)
        return got

    def set(self, key: str, value: Value, timeout: Duration = None) -> None:
        data = as_bytes(value)
        self._context.wait("store_set", as_name(key), data, len(data), self._ms(timeout))

    def get(self, key: str, timeout: Duration = None) -> bytes:
        """Waits until the key exists."""
        return self._value("store_get", as_name(key), timeout=timeout) or b""

    def try_get(self, key: str, timeout: Duration = None) -> Optional[bytes]:
        """None if the key does not exist now."""
        return self._value("store_try_get", as_name(key), timeout=timeout)

    def add(self, key: str, amount: int, timeout: Duration = None) -> int:
        """Adds to a decimal number, which begins at 0, and returns the sum."""
        total = ctypes.c_int64()
        self._context.wait("store_add", as_name(key), amount, ctypes.byref(total), self._ms(timeout))
        return total.value

    def compare_set(self, key: str, expected: Value, desired: Value, timeout: Duration = None) -> bytes:
        """Sets `desired` if the value is `expected`, or if `expected` is empty and there is no key. Returns the value afterwards."""
        old, new = as_bytes(expected), as_bytes(desired)
        return self._value("store_compare_set", as_name(key), old, len(old), new, len(new), timeout=timeout) or b""

    def wait(self, keys: Sequence[str], timeout: Duration = None) -> None:
        """Waits until all keys exist."""
        names = [as_name(k) for k in keys]
        self._context.wait("store_wait", _array(names), len(names), self._ms(timeout))

    def check(self, keys: Sequence[str], timeout: Duration = None) -> bool:
        """Whether all keys exist now."""
        names, there = [as_name(k) for k in keys], ctypes.c_bool()
        self._context.wait("store_check", _array(names), len(names), ctypes.byref(there), self._ms(timeout))
        return there.value

    def delete_key(self, key: str, timeout: Duration = None) -> bool:
        """Whether the key was there."""
        there = ctypes.c_bool()
        self._context.wait("store_delete_key", as_name(key), ctypes.byref(there), self._ms(timeout))
        return there.value

    def append(self, key: str, value: Value, timeout: Duration = None) -> None:
        data = as_bytes(value)
        self._context.wait("store_append", as_name(key), data, len(data), self._ms(timeout))

    def multi_get(self, keys: Sequence[str], timeout: Duration = None) -> List[bytes]:
        """Waits until all keys exist."""
        names = [as_name(k) for k in keys]
        values, sizes, context = (ctypes.c_void_p * len(names))(), (ctypes.c_size_t * len(names))(), self._context

        def call() -> List[bytes]:
            context.call("store_multi_get", _array(names), len(names), values, sizes, self._ms(timeout))
            return [take(values[i], sizes[i]) for i in range(len(names))]

        got: List[bytes] = interruptible(call)
        return got

    def multi_set(self, keys: Sequence[str], values: Sequence[Value], timeout: Duration = None) -> None:
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys and {len(values)} values")
        names, data = [as_name(k) for k in keys], [as_bytes(v) for v in values]
        sizes = (ctypes.c_size_t * len(data))(*[len(d) for d in data])
        self._context.wait("store_multi_set", _array(names), len(names), _array(data), sizes, self._ms(timeout))

    def num_keys(self, timeout: Duration = None) -> int:
        """PyTorch's own keys count too."""
        n = ctypes.c_int64()
        self._context.wait("store_num_keys", ctypes.byref(n), self._ms(timeout))
        return n.value

    def list_keys(self, timeout: Duration = None) -> List[str]:
        keys, n, context = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_size_t(), self._context

        def call() -> List[str]:
            context.call("store_list_keys", ctypes.byref(keys), ctypes.byref(n), self._ms(timeout))
            try:
                return [(keys[i] or b"").decode(errors="surrogateescape") for i in range(n.value)]
            finally:
                free(keys)

        got: List[str] = interruptible(call)
        return got

    def queue_push(self, key: str, value: Value, timeout: Duration = None) -> None:
        data = as_bytes(value)
        self._context.wait("store_queue_push", as_name(key), data, len(data), self._ms(timeout))

    def queue_pop(self, key: str, block: bool = True, timeout: Duration = None) -> bytes:
        """Waits for an element. With block=False an empty queue is an Error."""
        got = self._value("store_queue_pop" if block else "store_queue_try_pop", as_name(key), timeout=timeout)
        if got is None:
            raise Error(f'store queue_pop "{key}": the queue is empty', errno.ENOENT)
        return got

    def queue_len(self, key: str, timeout: Duration = None) -> int:
        n = ctypes.c_int64()
        self._context.wait("store_queue_len", as_name(key), ctypes.byref(n), self._ms(timeout))
        return n.value
