# SPDX-License-Identifier: Apache-2.0
"""The job, as one of its workers sees it."""

import atexit
import contextlib
import ctypes
import enum
import itertools
import math
import os
import struct
import threading
import time
from types import TracebackType
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Type

from ._errors import Error, Rejoin, Stopped
from ._lib import Context
from ._store import Duration, Store, as_bytes, as_name, milliseconds

U64_MAX = 2**64 - 1
CONNECT_S = 10.0
WAIT_S = 300.0  # for a barrier or an exchange, as torch's store waits
RATE_S = 1.0  # the time over which samples are counted before their rate is computed anew
READ_S = 0.5  # a loss that is a tensor is read so often: reading one waits for the device


class Request(enum.IntFlag):
    """What the agent asks of this worker."""

    CHECKPOINT = 1  # write a checkpoint and go on; only after can_checkpoint(), until checkpointed()
    STOP = 2  # write a checkpoint and exit; SIGTERM comes too
    REJOIN = 4  # call rejoin(); only after can_rejoin()
    LOST = 8  # with STOP: the agent is gone. Exit, and do not stop the other ranks


def _step(step: int) -> int:
    number = int(step)
    if not 0 <= number <= U64_MAX:
        raise ValueError(f"a step is 0 or more, not {step}")
    return number


def _number(value: Any) -> float:
    """item() and not float(), which warns of a tensor that has a gradient."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (TypeError, ValueError) as e:
        raise ValueError(f"loss is {value!r:.80}: it must be a number, or a tensor with one element ({e})") from None


class _Reports:
    """What progress() computes from call to call."""

    def __init__(self) -> None:
        self.rate = 0.0
        self.count = 0
        self.since: Optional[float] = None
        self.loss = math.nan
        self.read_at = -math.inf

    def add_samples(self, samples: int, now: float) -> None:
        """The first call only starts the clock, since it is not known how long its samples took."""
        if self.since is None:
            self.since = now
            return
        self.count += samples
        if now > self.since and (now - self.since >= RATE_S or not self.rate):
            self.rate = self.count / (now - self.since)
        if now - self.since >= RATE_S:
            self.since, self.count = now, 0

    def read_loss(self, loss: Any, now: float, last: bool) -> None:
        if isinstance(loss, (int, float)) or last or now - self.read_at >= READ_S:
            self.loss, self.read_at = _number(loss), now


class _Place(NamedTuple):
    """A worker's identity. It is read once a round, so that any thread may ask for it while another one rejoins."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    node_count: int
    round: int
    restart_count: int
    run_id: str
    incarnation: str
    head_addr: str
    node_addr: str
    saved_step: int
    store_port: int
    alone: bool


def _read_place(context: Context) -> _Place:
    values: Dict[str, Any] = {}
    for name in _Place._fields:
        value = context.read(name)
        values[name] = value.decode() if isinstance(value, bytes) else value
    return _Place(**values)


def _set_environment(place: _Place) -> None:
    """What a worker that starts in this round would find. Libraries read these when they make groups of their own."""
    values: Dict[str, Any] = {
        "RANK": place.rank, "WORLD_SIZE": place.world_size, "LOCAL_WORLD_SIZE": place.local_world_size, "MASTER_ADDR": place.head_addr,
        "GROUP_RANK": place.node_rank, "NODE_RANK": place.node_rank, "GROUP_WORLD_SIZE": place.node_count, "RDZV_HEAD_ADDR": place.head_addr,
        "RDZV_ROUND": place.round, "RDZV_RESTART_COUNT": place.restart_count, "TORCHELASTIC_RESTART_COUNT": place.restart_count}
    if place.store_port:  # with --store worker the next port is not known here
        values["MASTER_PORT"] = place.store_port
    os.environ.update({name: str(value) for name, value in values.items()})


def exchange(context: Context, world_size: int, value: bytes, name: str, ms: int) -> List[bytes]:
    """All values in the order of ranks, whatever their sizes."""
    until = time.monotonic() + ms / 1000

    def gather(name: str, value: bytes, ms: int) -> List[bytes]:
        size, room = len(value), len(value) * world_size
        values = ctypes.create_string_buffer(room)
        context.wait("exchange", as_name(name), value, size, values, room, ms)
        return [values.raw[at : at + size] for at in range(0, room, size)]

    # librdzv's exchange is for values of one size, so the ranks exchange their sizes first.
    sizes = [struct.unpack("<Q", s)[0] for s in gather(name + "/size", struct.pack("<Q", len(value)), ms)]
    left = max(0, int((until - time.monotonic()) * 1000))
    return [v[:n] for v, n in zip(gather(name, value.ljust(max(1, *sizes), b"\0"), left), sizes)]


class _Held:
    """A connection of another thread. It is closed with its thread."""

    def __init__(self, round: int) -> None:
        self.context, self.round = Context(milliseconds(None, CONNECT_S)), round

    def __del__(self) -> None:
        if hasattr(self, "context"):
            self.context.close()


class Job:
    """A worker's place in its job. init() makes it; without an agent it is a world of one.

    All methods may be called from any thread. A name of a barrier or an exchange belongs to one thread. A call that waits has a timeout in
    seconds, raises Timeout with the names of what is missing, and is interrupted by Ctrl-C."""

    def __init__(self, timeout: Duration = None) -> None:
        self._context = Context(milliseconds(timeout, CONNECT_S))
        self._place = _read_place(self._context)
        self._owner = threading.get_ident()
        self._others = threading.local()
        self._seen = Request(0)
        self._checkpoints = itertools.count()  # each Checkpoints of a round has names of its own in the store
        self._lock = threading.Lock()
        self._reports = _Reports()
        #: The round's store.
        self.store = Store(self._mine)

    def _mine(self) -> Context:
        """For calls that wait, a thread has a connection of its own, so that no thread waits for another's wait.

        A world of one has its store in the connection, so there all threads share it; there a wait ends at once."""
        if self.alone or threading.get_ident() == self._owner:
            return self._context
        held = getattr(self._others, "held", None)
        if held is None or held.round != self.round:
            if held is not None:
                held.context.close()
            held = self._others.held = _Held(self.round)
        return held.context

    # Place ---------------------------------------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """0 .. world_size - 1."""
        return self._place.rank

    @property
    def world_size(self) -> int:
        """The number of ranks in the round."""
        return self._place.world_size

    @property
    def local_rank(self) -> int:
        """The rank on this node."""
        return self._place.local_rank

    @property
    def local_world_size(self) -> int:
        """The number of ranks on this node."""
        return self._place.local_world_size

    @property
    def node_rank(self) -> int:
        """0 .. node_count - 1."""
        return self._place.node_rank

    @property
    def node_count(self) -> int:
        """The number of nodes in the round."""
        return self._place.node_count

    @property
    def round(self) -> int:
        """Increases with every round of the job. 0 without an agent."""
        return self._place.round

    @property
    def restart_count(self) -> int:
        """Restarts charged to the job so far."""
        return self._place.restart_count

    @property
    def run_id(self) -> str:
        """The name of the job. "" without an agent."""
        return self._place.run_id

    @property
    def incarnation(self) -> str:
        """Identifies this life of the job: text that sorts by age. "" without an agent."""
        return self._place.incarnation

    @property
    def head_addr(self) -> str:
        """The address of node rank 0."""
        return self._place.head_addr

    @property
    def node_addr(self) -> str:
        """The address of this node, as other nodes reach it."""
        return self._place.node_addr

    @property
    def store_port(self) -> int:
        """The port of the round's store, at head_addr. 0: there is none (--store worker), or no agent."""
        return self._place.store_port

    @property
    def saved_step(self) -> int:
        """The step of the last saved() on this node in an earlier round. 0: none."""
        return self._place.saved_step

    @property
    def alone(self) -> bool:
        """True without an agent."""
        return self._place.alone

    @property
    def end_time(self) -> Optional[float]:
        """When the scheduler ends the job, as time.time() counts. None: not known."""
        text = os.environ.get("RDZV_END_TIME", "")
        return float(text) if text.isdigit() else None

    # Together ------------------------------------------------------------------------------------------------------------------------

    def barrier(self, name: str = "barrier", timeout: Duration = None) -> None:
        """Waits until all ranks have called it with this name. A name can be used again."""
        self._mine().wait("barrier", as_name(name), milliseconds(timeout, WAIT_S))

    def exchange(self, value: bytes, name: str = "exchange", timeout: Duration = None) -> List[bytes]:
        """All values in the order of ranks, whatever their sizes. Every rank calls it with the same name."""
        return exchange(self._mine(), self.world_size, as_bytes(value), name, milliseconds(timeout, WAIT_S))

    # Reports and requests ------------------------------------------------------------------------------------------------------------

    def progress(self, step: int, of: Optional[int] = None, loss: Any = None, samples: Optional[int] = None) -> None:
        """Reports progress. Call it after every step; it does not wait.

        `step`: steps done. `of`: the last step of the job. `loss`: a number, or a tensor, which is read twice a second. `samples`: samples
        that this rank has used since its last report; the rate is computed from them."""
        now, done, last = time.monotonic(), _step(step), 0 if of is None else _step(of)
        with self._lock:
            r = self._reports
            if samples is not None:
                r.add_samples(samples, now)
            if loss is not None:
                r.read_loss(loss, now, done == last)
            loss_now, rate = r.loss, r.rate
        self._context.report("progress", done, last, loss_now, rate)

    def waited(self, collectives: int, seconds: float) -> None:
        """Collectives of all ranks that have ended since this worker's start, and how long it was in them, from its own entry to their end.

        The rank for which the others wait is named (--slow-ranks). With that option NCCL's are measured without this. Once a second is enough."""
        self._context.report("waited", int(collectives), int(seconds * 1e6))

    def resumed(self, step: int) -> None:
        """Training goes on with the state after `step`: a checkpoint was loaded, or training begins (0). Call it before the first step.

        The agents then know which steps are done again."""
        self._context.report("resumed", _step(step))

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """`with job.saving():` around a save for which training waits. The time counts as time for checkpoints."""
        self._context.report("saving", True)
        try:
            yield
        finally:
            self._context.report("saving", False)

    def requested(self) -> Request:
        """What the agent asks of this worker now. Does not wait. Without an agent: Request(0)."""
        bits = self._context.requested()
        if bits is not None:
            self._seen = Request(bits)
        return self._seen

    def can_checkpoint(self) -> None:
        """This worker answers Request.CHECKPOINT. Checkpoints does this, and makes all ranks write the same step."""
        self._context.call("can_checkpoint")

    def checkpointed(self, step: int) -> None:
        """The requested checkpoint, of the state after `step`, is complete. All ranks call it."""
        self._context.call("checkpointed", _step(step))

    def saved(self, step: int) -> None:
        """A checkpoint, requested or not, is complete. All ranks call it; saved_step of later rounds returns it."""
        self._context.report("saved", _step(step))

    def can_rejoin(self) -> None:
        """This worker keeps its process when the round ends, and calls rejoin()."""
        self._context.call("can_rejoin")

    def rejoin(self, reason: Optional[str] = None, timeout: Duration = None) -> None:
        """Leaves the round and waits for the next one. Afterwards rank, world_size, store and the environment (RANK, MASTER_PORT ...) are
        those of the next round.

        `reason`: a phrase, if this worker was not asked. Raises Stopped if the agent asks it to stop; Timeout: call it again, or exit."""
        try:
            self._context.wait("rejoin", None if reason is None else as_name(reason), milliseconds(timeout, WAIT_S))
        except Rejoin:
            raise Stopped from None
        self._enter(self._context)

    def _enter(self, context: Context) -> None:
        """The next round, whose place a connection that has rejoined knows. One that has not belongs to the round before."""
        self._place = _read_place(context)
        self._checkpoints = itertools.count()
        _set_environment(self._place)  # for further connections of this process, too
        if context is not self._context:
            self._context.close()
            self._context = Context(milliseconds(None, CONNECT_S))
            self._owner = threading.get_ident()
        with self._lock:
            self._reports = _Reports()

    # End -----------------------------------------------------------------------------------------------------------------------------

    def done(self) -> None:
        """This worker has done its work and exits with 0 next. The end of `with rdzv.init()` calls it."""
        self._context.call("done")

    def close(self) -> None:
        """Closes the connection to the agent."""
        global _job
        with _init_lock:
            if _job is self:
                _job = None
        self._context.close()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            if kind is None:
                self.done()
        finally:
            self.close()


_init_lock = threading.Lock()
_job: Optional[Job] = None


def init(timeout: Duration = None) -> Job:
    """The job of this process. The first call connects to the agent, 10 s at most; later calls return the same job."""
    global _job
    with _init_lock:
        if _job is None or _job._context.pid != os.getpid():
            _job = Job(timeout)
        return _job


def _close_at_exit() -> None:
    if _job is not None:
        _job.close()


atexit.register(_close_at_exit)
