# SPDX-License-Identifier: Apache-2.0
"""librdzv, as ctypes sees it: where it is found, and the types of its functions.

rdzv.h is the contract. Nothing here waits or decides; the other files of this package call the functions through `Context`, which turns a
negative result into an exception with librdzv's sentence."""

import ctypes
import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple, Type

from ._errors import Error, Lost, Rejoin, Timeout

SONAME = "librdzv.so.0"

_int, _u32, _u64, _size, _i64 = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int64
_text, _double, _bool, _context = ctypes.c_char_p, ctypes.c_double, ctypes.c_bool, ctypes.c_void_p
# A buffer that librdzv returns is free()d here, so it stays a pointer: c_char_p would be converted and lost.
_buffer = ctypes.POINTER(ctypes.c_void_p)
_texts, _sizes = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(_size)
_i64_out, _size_out, _bool_out = ctypes.POINTER(_i64), ctypes.POINTER(_size), ctypes.POINTER(_bool)

# name: (result, arguments behind the context)
_FUNCTIONS = {
    "finish": (None,),
    "error": (_text,),
    "rank": (_int,),
    "world_size": (_int,),
    "local_rank": (_int,),
    "local_world_size": (_int,),
    "node_rank": (_int,),
    "node_count": (_int,),
    "round": (_u32,),
    "restart_count": (_u32,),
    "run_id": (_text,),
    "incarnation": (_text,),
    "head_addr": (_text,),
    "node_addr": (_text,),
    "store_port": (_int,),
    "alone": (_bool,),
    "progress": (_int, _u64, _u64, _double, _double),
    "requested": (ctypes.c_uint,),
    "fd": (_int,),
    "can_checkpoint": (_int,),
    "checkpointed": (_int, _u64),
    "resumed": (_int, _u64),
    "saving": (_int, _bool),
    "saved": (_int, _u64),
    "waited": (_int, _u64, _u64),
    "saved_step": (_u64,),
    "can_rejoin": (_int,),
    "rejoin": (_int, _text, _int),
    "exchange": (_int, _text, ctypes.c_char_p, _size, ctypes.c_void_p, _size, _int),
    "barrier": (_int, _text, _int),
    "done": (_int,),
    "store_set": (_int, _text, ctypes.c_char_p, _size, _int),
    "store_get": (_int, _text, _buffer, _size_out, _int),
    "store_try_get": (_int, _text, _buffer, _size_out, _int),
    "store_add": (_int, _text, _i64, _i64_out, _int),
    "store_compare_set": (_int, _text, ctypes.c_char_p, _size, ctypes.c_char_p, _size, _buffer, _size_out, _int),
    "store_wait": (_int, _texts, _size, _int),
    "store_check": (_int, _texts, _size, _bool_out, _int),
    "store_delete_key": (_int, _text, _bool_out, _int),
    "store_append": (_int, _text, ctypes.c_char_p, _size, _int),
    "store_multi_get": (_int, _texts, _size, _buffer, _sizes, _int),
    "store_multi_set": (_int, _texts, _size, _texts, _sizes, _int),
    "store_num_keys": (_int, _i64_out, _int),
    "store_list_keys": (_int, ctypes.POINTER(_texts), _size_out, _int),
    "store_queue_push": (_int, _text, ctypes.c_char_p, _size, _int),
    "store_queue_pop": (_int, _text, _buffer, _size_out, _int),
    "store_queue_try_pop": (_int, _text, _buffer, _size_out, _int),
    "store_queue_len": (_int, _text, _i64_out, _int),
}

_lock = threading.Lock()
_loaded: Optional[ctypes.CDLL] = None


def _candidates() -> List[str]:
    """Paths and names in the order in which they are tried."""
    if os.environ.get("RDZV_LIBRARY"):
        return [os.environ["RDZV_LIBRARY"]]
    here = Path(__file__).resolve().parent
    found = [str(here / "lib" / SONAME)] if (here / "lib" / SONAME).exists() else []
    agent = shutil.which("rdzv-agent")
    if agent:
        # Below the prefix of the agent in PATH: lib, lib64, lib/x86_64-linux-gnu; or in a build folder.
        prefix = Path(agent).resolve().parent.parent
        found += [str(p) for pattern in ("lib*/" + SONAME, "lib/*/" + SONAME, "agent/sdk/" + SONAME) for p in sorted(prefix.glob(pattern))]
    return found + [SONAME]


def load() -> ctypes.CDLL:
    """The library, once for the process. Error: it is not there, or is not librdzv."""
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _open()
        return _loaded


def _open() -> ctypes.CDLL:
    failures = []
    for name in _candidates():
        try:
            lib = ctypes.CDLL(name)
        except OSError as e:
            failures.append(str(e))
            continue
        try:
            _declare(lib)
        except AttributeError as e:
            raise Error(f"{name} does not fit this Python module, it lacks a function ({e}): install librdzv and the module from one release",
                        errno.ELIBACC) from None
        return lib
    raise Error(f"librdzv is not found ({'; '.join(failures)}): set RDZV_LIBRARY to the path of {SONAME}", errno.ELIBACC)


def _declare(lib: ctypes.CDLL) -> None:
    lib.rdzv_init.argtypes, lib.rdzv_init.restype = [ctypes.POINTER(_context), _int], _int
    lib.rdzv_version.argtypes, lib.rdzv_version.restype = [], _text
    for name, (result, *arguments) in _FUNCTIONS.items():
        f = getattr(lib, "rdzv_" + name)
        f.restype, f.argtypes = result, [_context, *arguments]


_libc = ctypes.CDLL(None)
_libc.free.argtypes, _libc.free.restype = [ctypes.c_void_p], None


def take(pointer: Any, size: int) -> bytes:
    """The bytes of a buffer that librdzv has allocated; frees it."""
    try:
        return ctypes.string_at(pointer, size)
    finally:
        _libc.free(pointer)


def free(pointer: Any) -> None:
    _libc.free(pointer)


_CLASSES: List[Tuple[int, Type[Error]]] = [
    (errno.ETIMEDOUT, Timeout), (errno.ECANCELED, Rejoin), (errno.EPIPE, Lost), (errno.ESTALE, Lost), (errno.ECONNRESET, Lost)]


def failure(code: int, sentence: bytes) -> Error:
    for number, kind in _CLASSES:
        if -code == number:
            return kind(sentence.decode(errors="replace"), number)
    return Error(sentence.decode(errors="replace"), -code)


def interruptible(call: Callable[[], Any]) -> Any:
    """Runs a call that may wait, so that the main thread still handles signals: Ctrl-C raises KeyboardInterrupt at once.

    Python runs the handlers of signals in the main thread, between two instructions, and a function of C is one instruction. So the
    call runs in another thread, and the main thread waits in Python. After an interrupt that thread stays until the call's deadline."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    box: List[Any] = []
    done = threading.Event()

    def run() -> None:
        try:
            box.append((call(), None))
        except BaseException as e:  # it is raised again in the main thread
            box.append((None, e))
        done.set()

    threading.Thread(target=run, name="rdzv-call", daemon=True).start()
    done.wait()
    value, error = box[0]
    if error is not None:
        raise error
    return value


class Context:
    """One connection to the agent, with the store's connection behind it: a `struct rdzv`.

    librdzv lets any thread report at any time. All other calls take turns here, so a call may wait for one that waits."""

    def __init__(self, timeout_ms: int) -> None:
        self.lib = load()
        self.pid = os.getpid()
        self._turn = threading.Lock()
        self._busy, self._closed, self._count = 0, False, threading.Lock()
        self._handle = interruptible(lambda: self._connect(timeout_ms))

    def _connect(self, timeout_ms: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        code = self.lib.rdzv_init(ctypes.byref(handle), timeout_ms)
        if code:
            raise failure(code, self.lib.rdzv_error(None))  # in the same thread: the sentence is kept per thread
        return handle

    def _enter(self) -> None:
        if os.getpid() != self.pid:
            raise Error(f"this process was forked from pid {self.pid}, and shares its connection: call rdzv.init() here", errno.EINVAL)
        with self._count:
            if self._closed:
                raise Error("the connection to the agent was closed: call rdzv.init() again", errno.EINVAL)
            self._busy += 1

    def _leave(self) -> None:
        with self._count:
            self._busy -= 1
            last = self._closed and self._busy == 0
        if last:
            self.lib.rdzv_finish(self._handle)

    def read(self, name: str) -> Any:
        """A value that never fails."""
        self._enter()
        try:
            return getattr(self.lib, "rdzv_" + name)(self._handle)
        finally:
            self._leave()

    def report(self, name: str, *arguments: Any) -> None:
        """progress, resumed, saving, saved or waited, from any thread at any time."""
        self._enter()
        try:
            code = getattr(self.lib, "rdzv_" + name)(self._handle, *arguments)
            if code:
                raise failure(code, self.lib.rdzv_error(self._handle))
        finally:
            self._leave()

    def requested(self) -> Optional[int]:
        """None: another thread waits in a call."""
        if not self._turn.acquire(blocking=False):
            return None
        try:
            return int(self.read("requested"))
        finally:
            self._turn.release()

    def attempt(self, name: str, *arguments: Any) -> Tuple[int, bytes]:
        """The result of a function, and the sentence if it is negative."""
        self._enter()
        try:
            with self._turn:
                code: int = getattr(self.lib, "rdzv_" + name)(self._handle, *arguments)
                return code, self.lib.rdzv_error(self._handle) if code else b""
        finally:
            self._leave()

    def call(self, name: str, *arguments: Any) -> None:
        """A function that does not wait, or for a second at most."""
        code, sentence = self.attempt(name, *arguments)
        if code:
            raise failure(code, sentence)

    def wait(self, name: str, *arguments: Any) -> None:
        """A function with a timeout."""
        interruptible(lambda: self.call(name, *arguments))

    def close(self) -> None:
        """Frees the connection as soon as no thread uses it."""
        with self._count:
            if self._closed or os.getpid() != self.pid:
                return
            self._closed = True
            last = self._busy == 0
        if last:
            self.lib.rdzv_finish(self._handle)
