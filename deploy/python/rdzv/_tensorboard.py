# SPDX-License-Identifier: Apache-2.0
"""Curves for TensorBoard, which librdzv writes.

Curves must not end a training. A folder that cannot be written, or a disk that is full, is one warning. Writing goes on as soon as it works
again."""

import ctypes
import errno
import os
import threading
from typing import Dict, List, Mapping, Optional

from ._errors import warn
from ._lib import failure, load

FOLDER = "RDZV_TENSORBOARD_DIR"


class Board:
    """The file of one rank in one folder."""

    def __init__(self, folder: str) -> None:
        self._lib, self._handle, self._failed = load(), ctypes.c_void_p(), False
        self._check(self._lib.rdzv_tensorboard_open(ctypes.byref(self._handle), os.fsencode(folder)), f"{folder} stays without curves")

    def _check(self, code: int, result: str) -> None:
        """A value that the caller can mend is an exception."""
        if not code:
            self._failed = False
            return
        error = failure(code, self._lib.rdzv_error(None))
        if code == -errno.EINVAL:
            raise error
        if not self._failed:
            warn(f"{error}; training goes on, and {result}")
        self._failed = True

    def resumed(self, step: int) -> None:
        if self._handle:
            self._check(self._lib.rdzv_tensorboard_resumed(self._handle, step), "steps that are done again may show twice")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if self._handle:
            tags = (ctypes.c_char_p * len(values))(*[tag.encode() for tag in values])
            numbers = (ctypes.c_double * len(values))(*values.values())
            self._check(self._lib.rdzv_tensorboard_log(self._handle, step, tags, numbers, len(values)), "the curves lack steps until that works again")

    def close(self) -> None:
        self._lib.rdzv_tensorboard_close(self._handle)
        self._handle = ctypes.c_void_p()


class Boards:
    """The files of this process, by folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._boards: Dict[str, Board] = {}
        self._step: Optional[int] = None  # of resumed(), in this round
        self._warned = False

    def resumed(self, step: int) -> None:
        with self._lock:
            self._step = step
            for board in self._boards.values():
                board.resumed(step)

    def log(self, folder: Optional[str], step: int, values: Mapping[str, float]) -> None:
        with self._lock:
            if folder is None:
                self._warn_once()
                return
            board = self._boards.get(folder)
            if board is None:
                board = self._boards[folder] = Board(folder)
                if self._step is not None:
                    board.resumed(self._step)
            board.log(step, values)

    def _warn_once(self) -> None:
        if not self._warned:
            warn(f"log() writes nothing: give it a folder, or set {FOLDER}")
        self._warned = True

    def close(self) -> None:
        """The next round may give this process another rank, and begin behind another step."""
        with self._lock:
            closed: List[Board] = list(self._boards.values())
            self._boards, self._step = {}, None
            for board in closed:
                board.close()
