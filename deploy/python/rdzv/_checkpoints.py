# SPDX-License-Identifier: Apache-2.0
"""Checkpoints on request: all ranks write the state of the same step.

The agent's request reaches the ranks at slightly different times, so the ranks agree on a step. No step pays for that, and no rank waits
for another one that cannot answer:

    due(step)   The training loop, after each step. A rank that finds a request sets a key in the round's store.
    _listen     A thread of each rank waits for that key. It answers with the first step that its rank can still save, and learns the
                answers of all others. The highest one is the step of the checkpoint.
    due(step)   From the answer on, the loop waits here until that step is known. No rank can pass it: each has promised its own.
    written     All ranks are through with the step's checkpoint, and report it to their agents. The agents then stop the workers. So
                the ranks wait a moment, each behind the same step, and nothing is trained that would be lost.

A thread answers even while its loop is inside a collective that waits for a rank which waits here. Without it the ranks would block each
other. The thread has connections of its own (Job._mine), and so has this object: the agent stops asking when it is closed."""

import errno
import os
import signal
import struct
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Callable, Dict, List, Optional, Type

from ._errors import Error, Lost, Timeout, warn
from ._job import CONNECT_S, Job, Request, init
from ._lib import Context
from ._store import milliseconds

AGREE_S = 600.0  # for the answers of all ranks; one that does not come is an error, which names the rank
LISTEN_S = 30.0  # a thread that is no longer needed ends within this time
STOP_S = 10.0  # how long the ranks wait for the stop behind a checkpoint; a planned end is rarely called off
SIGNAL_S = 1.0  # how long a signal may come after the request to stop
POLL_S = 0.01


def _signals_to_handle() -> List[signal.Signals]:
    """The signals that the agent passes on."""
    names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    return [s for s in signal.Signals if s.name in names.replace(" ", "").split(",")]


class Checkpoints:
    """Answers the agent's requests for a checkpoint.

        with rdzv.Checkpoints() as checkpoints:
            for step in range(begin, end):
                train()
                if checkpoints.due(step + 1):
                    save(step + 1)
                    if checkpoints.written(step + 1):
                        raise rdzv.Stopped

    All ranks make it alike, and call due() with the same steps. Without an agent it is never True. `ends`: whether the round ends and this
    process stays, so that no stop is to be waited for."""

    def __init__(self, job: Optional[Job] = None, ends: Callable[[], bool] = lambda: False) -> None:
        self._job, self._ends = job or init(), ends
        self._name = f"rdzv.checkpoint/{next(self._job._checkpoints)}"
        self._changed = threading.Condition()
        self._next = 0  # the first step that this rank can still save
        self._number = 0  # of requests that were answered in this round
        self._asked = False  # this rank has set the key of the current one
        self._target: Optional[int] = None
        self._due = False  # due() was True, and written() has not been called
        self._answered = self._closed = False
        self._error: Optional[Error] = None
        self._signalled = self._stopping = False
        self._handlers: Dict[int, Any] = {}
        self._context: Optional[Context] = None
        self._single = self._job.world_size == 1
        if self._job.alone or not (self._single or self._has_store()):
            return
        self._context = Context(milliseconds(None, CONNECT_S))
        self._context.call("can_checkpoint")
        if not self._single:
            threading.Thread(target=self._listen, name="rdzv-checkpoints", daemon=True).start()

    def _has_store(self) -> bool:
        try:
            self._job.store.check([self._name])
            return True
        except Error as e:
            if e.errno != errno.ENOTSUP:
                raise
            warn(f"requests for a checkpoint are not answered: {e}", UserWarning)
            return False

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def close(self) -> None:
        """This worker no longer answers requests."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._context is not None:
            self._context.close()
        self._restore_signals()

    # The thread ----------------------------------------------------------------------------------------------------------------------

    def _key(self, number: int) -> str:
        return f"{self._name}/{number}"

    def _listen(self) -> None:
        try:
            while not self._closed:
                try:
                    self._job.store.wait([self._key(self._number)], LISTEN_S)
                except Timeout:
                    continue
                if not self._closed:
                    self._agree()
        except Error as e:
            with self._changed:
                # A round that is over needs no checkpoint.
                self._error = None if isinstance(e, Lost) else e
                self._closed = self._closed or isinstance(e, Lost)
                self._changed.notify_all()

    def _agree(self) -> None:
        with self._changed:
            self._answered, mine = True, self._next
        answers = self._job.exchange(struct.pack("<Q", mine), self._name, AGREE_S)
        with self._changed:
            self._target = max(struct.unpack("<Q", a)[0] for a in answers)
            self._changed.notify_all()
            while self._answered and not self._closed:
                self._changed.wait()

    # The loop ------------------------------------------------------------------------------------------------------------------------

    def _requested(self) -> Request:
        assert self._context is not None
        return Request(self._context.requested() or 0)

    def due(self, step: int) -> bool:
        """Whether all ranks save the state after `step` now, because the agent asks for it. Call it after every step."""
        due = self._context is not None and not self._closed and self._is_due(step)
        self._due = self._due or due
        return due

    def _is_due(self, step: int) -> bool:
        if self._single:
            return bool(self._requested() & Request.CHECKPOINT)
        if not self._asked and self._requested() & Request.CHECKPOINT:
            self._asked = True
            self._job.store.set(self._key(self._number), b"")
        with self._changed:
            while self._answered and self._target is None and self._error is None and not self._closed:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            self._next = step + 1
            return self._target is not None and step >= self._target

    def written(self, step: int) -> bool:
        """The checkpoint that was due is written on this rank. Waits for the other ranks, and reports it. True: stop now.

        `step`: of the state that was saved. The agent asks because a round is about to end, so in most cases it is True."""
        if not self._due or self._context is None:
            raise Error(f"written({step}): no checkpoint was asked for. Call it only after due() has returned True", errno.EINVAL)
        self._due = False
        self._job.barrier(self._name, AGREE_S)
        self._catch_signals()
        self._job.saved(step)
        self._context.call("checkpointed", step)
        with self._changed:
            self._number += 1
            self._asked = self._answered = False
            self._target = None
            self._changed.notify_all()
        return self._await_stop()

    def _await_stop(self) -> bool:
        """The agent's request and its signal are on their way, in most cases. Both should come before the clean-up begins."""
        until = time.monotonic() + STOP_S
        while not self._signalled and not self._ends() and time.monotonic() < until:
            if not self._stopping and self._requested() & Request.STOP:
                self._stopping, until = True, min(until, time.monotonic() + SIGNAL_S)
            time.sleep(POLL_S)
        self._stopping = self._stopping or self._signalled
        if not self._stopping:
            self._restore_signals()
        return self._stopping

    # Signals -------------------------------------------------------------------------------------------------------------------------

    # With the stop comes a signal. From the checkpoint on it only means "stop", whatever the program has installed: its default action would
    # end the process in the middle of the clean-up. Before that it is left alone, because a worker may be inside a collective that never
    # ends, and should die at once.

    def _catch_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for s in _signals_to_handle():
            if signal.getsignal(s) is not None:  # None: a handler in C, which could not be put back
                self._handlers[s] = signal.signal(s, self._note_signal)

    def _note_signal(self, number: int, frame: Optional[FrameType]) -> None:
        self._signalled = True

    def _restore_signals(self) -> None:
        if threading.current_thread() is threading.main_thread() and not self._stopping:
            while self._handlers:
                number, handler = self._handlers.popitem()
                signal.signal(number, handler)
