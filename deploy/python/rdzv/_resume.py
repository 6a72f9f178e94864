# SPDX-License-Identifier: Apache-2.0
"""What the callbacks have in common: a meeting of all ranks, and the choice of a checkpoint to resume from.

A job with --store worker has no store of the agent's. Its ranks cannot meet here, and each decides alone."""

import errno
import sys
from pathlib import Path
from typing import Callable, Optional

from ._errors import Error
from ._job import init

MARK = "rdzv-complete"  # an empty file in a checkpoint's folder: all ranks have written their part


def choose(find: Callable[[], Optional[Path]], name: str) -> Optional[str]:
    """What find() finds on rank 0, on all ranks: a folder's list may be old on another host."""
    job, in_place = init(), sys.modules.get("rdzv.torch")
    if in_place is not None and in_place._groups is not None and in_place._groups.silent:
        return None  # the others train, and do not come here; this rank gets the state from one of them
    found = str(find() or "")
    try:
        return job.exchange(found.encode() if job.rank == 0 else b"", name)[0].decode() or None
    except Error as e:
        if e.errno != errno.ENOTSUP:
            raise
        return found or None


def meet(name: str) -> None:
    """All ranks have come here."""
    try:
        init().barrier(name)
    except Error as e:
        if e.errno != errno.ENOTSUP:
            raise
