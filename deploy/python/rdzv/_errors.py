# SPDX-License-Identifier: Apache-2.0
"""Errors as exceptions. Each one's text is librdzv's sentence. Warnings point at the line that called rdzv."""

import builtins
import errno as _errno
import sys
import warnings
from typing import Optional, Type


def warn(message: str, category: Type[Warning] = RuntimeWarning) -> None:
    """Functions of the module call each other to any depth."""
    depth, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        depth, frame = depth + 1, frame.f_back
    warnings.warn(message, category, stacklevel=depth)


class Error(RuntimeError):
    """A call failed. str() is one sentence; errno is the number, such as errno.EPIPE."""

    errno: Optional[int]

    def __init__(self, sentence: str, number: int = _errno.EIO) -> None:
        super().__init__(sentence)
        self.errno = number


class Timeout(Error, builtins.TimeoutError):
    """The timeout has passed. The sentence names the ranks or keys that are missing."""


class Lost(Error):
    """The agent is gone, or the round is over."""


class Rejoin(Error):
    """A wait ended because the round ends: call rejoin()."""


class Stopped(SystemExit):
    """The agent asked this worker to stop, and its checkpoint is written. The process ends with 75, "not done, run me again"."""

    def __init__(self) -> None:
        super().__init__(75)


for _kind in (Error, Timeout, Lost, Rejoin, Stopped):
    _kind.__module__ = "rdzv"  # tracebacks and verdicts have the name that users write
