# SPDX-License-Identifier: Apache-2.0
"""PyTorch's process groups across rounds.

A round has its own store, ranks and peers. The default group follows in one of two ways:

    reconfigure   PyTorch 2.14 and later, gloo and nccl2: the same group object gets new peers. It keeps the store that it was made with, so
                  that is `_RoundStore`, behind which the rounds change.
    anew          The old group is destroyed, and a new one is made. What holds the old one must be built again (_ddp.py).

Groups that each_round() makes are made again in either way.

A newcomer runs the script from its first line, and the others do not. So until all meet in Elastic, its default group has the true rank and
size, and PyTorch's "fake" backend: collectives of the set-up return at once and change nothing.

Gloo has no way to end a collective that runs: abort() leaves it waiting. So cut() shuts the connections between the ranks, on each rank and at
both ends, and each collective fails within a millisecond. They are recognized by the ports at which the groups listen, which the ranks
exchange when the groups are made.

A collective fails when a read of it ends. Gloo forgets a write that fails (EPIPE, ECONNRESET), and then waits for it for ever. So cut() shuts
the connections for reading alone, and holds them open until no rank is in the round: until then a write succeeds, and goes nowhere."""

import contextlib
import errno
import json
import os
import socket
import threading
import time
from datetime import timedelta
from hashlib import blake2b
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Union
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ._errors import Error, Rejoin
from ._job import Job
from ._lib import Context
from ._store import Store

CONNECT_S = 2.0  # for gloo's connections between all ranks, which are at hand; gloo waits five times as long for one that does not come
NVLS = "NCCL_NVLS_ENABLE"
KEEP_S = 60.0  # for what still holds a group of the round before to let it go

Address = Tuple[str, int]
Exchange = Callable[[bytes, str], List[bytes]]  # a value, and a name: the values of all ranks


class _RoundStore(dist.Store):  # type: ignore[misc,unused-ignore]
    """The store of the current round, for groups that outlive it. Its waits end with the round, and log nothing then, unlike TCPStore's."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: Union[str, bytes]) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount)

    def compare_set(self, key: str, expected: Union[str, bytes], desired: Union[str, bytes]) -> bytes:
        return self._store.compare_set(key, expected, desired)

    def wait(self, keys: List[str], timeout: Optional[timedelta] = None) -> None:
        self._store.wait(keys, timeout)

    def check(self, keys: List[str]) -> bool:
        return self._store.check(keys)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)

    def num_keys(self) -> int:
        return self._store.num_keys()

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.set_timeout(timeout)
        self._shared = _RoundStore(self._store)  # C++ calls it for as long as a group has it


def _sockets() -> Iterator[socket.socket]:
    """This process's TCP sockets, each as a duplicate that is closed behind the loop's body."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            s = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with s:
            if s.type == socket.SOCK_STREAM and s.family in (socket.AF_INET, socket.AF_INET6):
                yield s


def _plain(address: Any) -> Address:
    host = str(address[0]).partition("%")[0]
    return (host[7:] if host.startswith("::ffff:") else host, int(address[1]))


def _let_go(groups: List[Any]) -> None:
    """The end of a gloo group waits for its threads, and one that was cut in a collective may never end. So another thread waits for it."""

    def wait(held: List[Any]) -> None:
        time.sleep(KEEP_S)
        held.clear()

    threading.Thread(target=wait, args=(groups,), name="rdzv-groups", daemon=True).start()


def _nccl_version() -> Optional[Tuple[int, ...]]:
    """None: this PyTorch has no NCCL."""
    try:
        return tuple(torch.cuda.nccl.version()[:3])
    except (AttributeError, RuntimeError, TypeError):
        return None


def _chosen_by_user(name: str) -> bool:
    """In the environment, or in a file that NCCL reads."""
    if name in os.environ:
        return True
    for path in (os.environ.get("NCCL_CONF_FILE") or os.path.expanduser("~/.nccl.conf"), "/etc/nccl.conf"):
        with contextlib.suppress(OSError), open(path, errors="replace") as f:
            if any(line.startswith(name + "=") for line in f):
                return True
    return False


def prepare_nccl() -> None:
    """Before the first communicator. A collective that NCCL registers with NVLink's switches, as in a CUDA graph, gathers all ranks of the host
    without reading the abort flag, so an abort would wait for a rank that has died. In NCCL before 2.26.2 a communicator that does not block
    races with another one. From 2.28.3 to 2.28.8 a collective may hang."""
    version = _nccl_version()
    if version and (version < (2, 26, 2) or (2, 28, 3) <= version < (2, 28, 9)):
        raise Error(f"init_process_group: in place needs NCCL 2.26.2 or newer, but not 2.28.3 to 2.28.8, which may hang; PyTorch {torch.__version__} "
                    f"has {'.'.join(map(str, version))}: install another PyTorch, or call torch.distributed.init_process_group() and restart")
    if not _chosen_by_user(NVLS):
        os.environ[NVLS] = "0"


def _listening() -> Set[Address]:
    return {_plain(s.getsockname()) for s in _sockets() if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)}


class Groups:
    """The groups of this process. `made`: the functions that each_round() was given, in order."""

    def __init__(self, job: Job, backend: Optional[str], timeout: timedelta) -> None:
        self._job, self.backend, self._timeout = job, backend, timeout
        self.context: Callable[[], Context] = job._mine  # of the store
        self._store = Store(lambda: self.context())
        self._store.set_timeout(timeout)
        self._shared = _RoundStore(self._store)  # C++ calls it for as long as a group has it
        self._mine: Set[Address] = set()  # where this rank's groups listen
        self._all: Set[Address] = set()  # where all ranks' do
        self._shut: List[socket.socket] = []  # by cut(), until end_round()
        self.is_cut: Callable[[], bool] = lambda: False  # the round ends
        self.silent = False  # a newcomer's set-up: nothing is sent
        self.connecting = False  # gloo's wait for a peer that does not come ends by itself
        self.made: List["EachRound"] = []

    @property
    def uses_nccl(self) -> bool:
        return self.backend is not None and "nccl" in self.backend

    @property
    def _reconfigures(self) -> bool:
        return dist.is_initialized() and not self.silent and bool(getattr(c10d._get_default_group(), "supports_reconfigure", False))

    # Making --------------------------------------------------------------------------------------------------------------------------

    def begin(self, newcomer: bool, exchange: Exchange) -> None:
        """The groups of a process that has none."""
        job = self._job
        if job.alone:
            dist.init_process_group(self.backend, store=dist.HashStore(), rank=0, world_size=1, timeout=self._timeout)
        elif newcomer:
            from torch.testing._internal.distributed.fake_pg import FakeStore

            dist.init_process_group("fake", store=FakeStore(), rank=job.rank, world_size=job.world_size)
            self.silent = True
        else:
            with self._note_listeners(exchange):
                self._make_default(exchange)
                self._set_timeouts()

    def renew(self, exchange: Exchange) -> None:
        """The groups of the round that has begun. The round before has been cut, or the groups were silent. All ranks call it."""
        exchange(b"", "all ranks are here")  # this wait ends with the round; those of PyTorch would not
        if not self.uses_nccl and not self._reconfigures:
            _let_go(list(c10d._world.pg_map))
        with self._note_listeners(exchange):
            if self._reconfigures:
                default = c10d._get_default_group()
                for group in [g for g in c10d._world.pg_map if g is not default]:
                    dist.destroy_process_group(group)
                self._reconfigure(exchange)
            else:
                if dist.is_initialized():  # another fault may have come before the last ones were made
                    dist.destroy_process_group()
                self._make_default(exchange)
            # The numbers in the names of further groups, which are the same on all ranks.
            c10d._world.group_count = 1
            with mock.patch.object(c10d, "_get_default_timeout", lambda backend: self._connect_timeout):
                for each in self.made:
                    each.make()
            self._set_timeouts()

    @property
    def _connect_timeout(self) -> timedelta:
        """Nothing ends this wait before its time, and the agent waits 15 s for a rank to leave a round (half of --stop-timeout)."""
        return self._timeout if self.uses_nccl else min(self._timeout, timedelta(seconds=CONNECT_S + self._job.world_size / 500))

    def _set_timeouts(self) -> None:
        if not self.uses_nccl:
            for group in c10d._world.pg_map:
                getattr(dist, "set_timeout", c10d._set_pg_timeout)(self._timeout, group)

    def _make_default(self, exchange: Exchange) -> None:
        job = self._job
        more: Dict[str, Any] = {}
        self.silent = False
        if hasattr(dist, "_reconfigure") and self.backend in ("gloo", "nccl2"):
            more["enable_reconfigure"] = True
        if self.backend == "nccl":  # its threads use the store, and must not wait for Python
            store: Any = dist.TCPStore(job.head_addr, job.store_port, is_master=False, timeout=self._timeout)
        else:
            store = self._shared
        # A fault may have come in the middle of this before. The number is in the names of the store's keys, so it must be the same everywhere.
        c10d._world.group_count = 0
        dist.init_process_group(self.backend, store=store, rank=job.rank, world_size=job.world_size, timeout=self._connect_timeout, **more)
        if self._reconfigures:
            self._reconfigure(exchange)

    def _reconfigure(self, exchange: Exchange) -> None:
        job, group = self._job, c10d._get_default_group()
        handles = [h.decode() for h in exchange(dist._get_reconfigure_handle().encode(), "handles")]
        token = blake2b(f"{job.incarnation}/{job.round}".encode(), digest_size=7)
        work = dist._reconfigure(uuid=int.from_bytes(token.digest(), "big"), handles=handles, timeout=self._connect_timeout)
        work.wait()
        c10d._world.pg_group_ranks[group] = {i: i for i in range(job.world_size)}

    @contextlib.contextmanager
    def _note_listeners(self, exchange: Exchange) -> Iterator[None]:
        before = _listening() - self._mine
        self.connecting = True
        try:
            yield
        finally:
            self.connecting = False
            self._mine = _listening() - before  # also when a fault ends this: a group that is reconfigured keeps where it listens
        lists = exchange(json.dumps(sorted(self._mine)).encode(), "listeners")
        self._all = {(host, port) for text in lists for host, port in json.loads(text)}
        if self.is_cut():  # a cut that came before did not know these groups, and a collective on them would not end
            raise Rejoin("the round ends while its groups are made", errno.ECANCELED)

    # Ending --------------------------------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Ends what runs on gloo groups, and waits for the round's store, from any thread. What runs on NCCL must go on until end_round()."""
        store = (self._job.head_addr, self._job.store_port)
        for s in _sockets():
            try:
                if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue
                if _plain(s.getpeername()) == store:
                    s.shutdown(socket.SHUT_RDWR)
                elif _plain(s.getsockname()) in self._mine or _plain(s.getpeername()) in self._all:
                    self._shut.append(s.dup())
                    s.shutdown(socket.SHUT_RD)
            except OSError:
                pass  # it has ended by itself

    def end_round(self) -> None:
        """No other rank is in a collective with this one. Ends what runs on NCCL groups, from any thread."""
        while self._shut:
            self._shut.pop().close()
        if not self.uses_nccl:
            return
        for group in list(c10d._world.pg_map):
            group.abort()


class EachRound:
    """What each_round() returns: call it for the current value."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._value: Any = None

    def make(self) -> None:
        self._value = self._make()

    def __call__(self) -> Any:
        return self._value
