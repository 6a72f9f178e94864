# SPDX-License-Identifier: Apache-2.0
"""A thread that learns of the end of the round, and waits for this worker's place in the next one.

    agent asks (REJOIN), or the main thread has lost a peer
      cut        The round is over for this rank. `on_cut` ends what the main thread may wait for.
      out        The main thread has left the step, and makes no use of the round any more.
      rejoin     The agent learns that this worker waits. On its answer no rank is in the round before: each is dead or has left.
      on_placed  What must not happen before that: an abort of NCCL completes collectives with incomplete data elsewhere.
      placed     The main thread goes on, in the next round.

The thread has a connection of its own: only its owner may use a connection that can rejoin. When it is closed, the agent stops this worker
at the end of a round like any other."""

import errno
import os
import select
import sys
import threading
import time
from typing import Callable, Optional

from ._errors import Lost, Rejoin, Stopped, Timeout
from ._job import CONNECT_S, Request
from ._lib import Context
from ._store import as_name, milliseconds

LOOK_S = 5.0  # the agent wakes the thread; this is for what nobody foresaw
LEAVE_S = 15.0  # for the main thread, when nothing keeps it in a collective any more
HELD_S = 3.0  # asleep in a collective without connections: gloo has forgotten a write to a rank that died
HELD_IN = ("/torch/distributed/", "/torch/autograd/", "/torch/nn/parallel/")  # where a thread is that waits for a collective
SLICE_S = 1.0  # of the wait for the next round, so that close() ends it
REASON_MAX = 190  # bytes; librdzv cuts a longer one


class _Thread:
    """The thread that made this, as others see it."""

    def __init__(self) -> None:
        self._ident, self._native = threading.get_ident(), threading.get_native_id()

    def asleep_in_collective(self) -> Optional[str]:
        """None: it is not, as far as one can see. Two equal answers: it has not run in between."""
        frame = sys._current_frames().get(self._ident)
        if frame is None or not any(folder in frame.f_code.co_filename for folder in HELD_IN):
            return None
        with open(f"/proc/self/task/{self._native}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return f"{fields[11]} {fields[12]}" if fields[0] == "S" else None


class Watch:
    """`patience_s`: None: the thread rejoins when the main thread has left, and the agent stops a worker that takes too long. A number: the thread
    rejoins after so many seconds, although the main thread may still wait for its GPU. The process exits if that wait does not end."""

    def __init__(self, on_cut: Callable[[], None], on_placed: Callable[[], None], patience_s: Optional[float],
                 connects: Callable[[], bool] = lambda: False) -> None:
        self.link = Context(milliseconds(None, CONNECT_S))
        self.link.call("can_rejoin")
        self.cut = threading.Event()
        self.cut_at = 0.0  # time.monotonic()
        self._out, self._placed = threading.Event(), threading.Event()
        self._on_cut, self._on_placed, self._patience_s = on_cut, on_placed, patience_s
        self._reason: Optional[str] = None
        self._failure: Optional[BaseException] = None
        self._closed = False
        self._main, self._connects = _Thread(), connects
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="rdzv-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The agent no longer asks this worker to rejoin."""
        self._closed = True
        self._out.set()
        os.write(self._wake_write, b"x")
        self._thread.join(2 * SLICE_S)
        self.link.close()
        if not self._thread.is_alive():
            os.close(self._wake_read)
            os.close(self._wake_write)

    # The main thread -----------------------------------------------------------------------------------------------------------------

    def leave(self, reason: Optional[str]) -> None:
        """The main thread has left the step. `reason`: why, if the agent has not asked for it. Then await_place()."""
        if not self.cut.is_set():
            self._reason = (reason or "left the round")[:REASON_MAX].split("\n")[0].rstrip(".")
            os.write(self._wake_write, b"x")
            self.cut.wait()
        self._out.set()

    def await_place(self) -> None:
        """Waits for the next round. Afterwards `link` is a connection of that round. Raises Stopped or Lost."""
        self._placed.wait()
        if self._failure is not None:
            raise self._failure
        self._placed.clear()

    # The thread ----------------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            descriptor = int(self.link.read("fd"))
            while not self._closed:
                asked = Request(self.link.requested() or 0)  # None: the main thread waits in a call, and sees the request itself
                if asked & Request.LOST:
                    raise Lost("the agent is gone", errno.EPIPE)
                if asked & Request.STOP:
                    raise Stopped
                if asked & Request.REJOIN or self._reason is not None:
                    self._change_rounds(None if asked & Request.REJOIN else self._reason)
                elif self._wake_read in select.select([descriptor, self._wake_read], [], [], LOOK_S)[0]:
                    os.read(self._wake_read, 64)
        except BaseException as e:  # it is raised again in the main thread
            self._failure = e
            self._cut()
            self._placed.set()

    def _cut(self) -> None:
        if not self.cut.is_set():
            self.cut_at = time.monotonic()
            self.cut.set()
            self._on_cut()

    def _change_rounds(self, reason: Optional[str]) -> None:
        self._cut()
        if self._patience_s is None:
            self._await_main()
        else:
            self._out.wait(self._patience_s)
        while not self._rejoin(reason):
            if self._closed:
                return
        self._on_placed()
        # With patience the main thread may still be in the step. The agent takes it for one that has left, so nobody else would end this wait.
        if not self._out.wait(LEAVE_S):
            _start_again(f"this worker has not left its step {LEAVE_S:.0f} s after the round ended, and its collectives with it")
        self._out.clear()
        self._reason = None
        self.cut.clear()
        self._placed.set()

    def _await_main(self) -> None:
        """Until the main thread has left. One whose collective does not end would keep the others waiting until the agent stops it."""
        was, since = None, 0.0
        while not self._out.wait(HELD_S / 6):
            now = None if self._connects() else self._main.asleep_in_collective()
            if now is None or now != was:
                was, since = now, time.monotonic()
            elif time.monotonic() - since >= HELD_S:
                _start_again(f"a collective of this worker has not ended {HELD_S:.0f} s after its connections")

    def _rejoin(self, reason: Optional[str]) -> bool:
        try:
            self.link.call("rejoin", None if reason is None else as_name(reason), milliseconds(SLICE_S, 0))
            return True
        except Timeout:
            return False
        except Rejoin:
            raise Stopped from None


def _start_again(why: str) -> None:
    print(f"rdzv: {why}; it exits, and starts again", file=sys.stderr, flush=True)
    os._exit(1)
