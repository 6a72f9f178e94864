# SPDX-License-Identifier: Apache-2.0
"""``torchrun --rdzv-backend rdzv``: PyTorch finds `get_creator` by the entry point `torchrun.handlers`.

PyTorch offers two forms. A RendezvousBackend keeps the whole rendezvous as one value, which every node overwrites with compare-and-set.
rdzvd serves PyTorch's store, so that works, and tests/interop/test_torchrun_on_rdzvd.py does it with the c10d backend. But that store
has no authentication, is lost with its daemon, and cannot name a node that never came.

So this is the other form, a RendezvousHandler of its own. It starts rdzv-agent beside torchrun, as one node of the job with one worker, the
member (_member.py). All else is the agent's: the key, the channel, leases, a daemon that is started or moves, missing nodes by name,
the store of each round. What the handler adds is a translation:

    torchrun                                    the member
    next_rendezvous, for the first time         is started in a round: rank, number of nodes, the round's store
    num_nodes_waiting() > 0                     was told to stop, or died: its round is over
    next_rendezvous, when the round is over     exits, so the agent reports that nothing of the round is left here
    next_rendezvous, unasked                    exits with 1: torchrun's workers failed, and the round ends for all nodes
    all workers here have succeeded             exits with 0: this node has finished
    shutdown with an error                      exits with a failure that is final: the job ends on all nodes, with this verdict
    torchrun dies                               its agent leaves the job

torchrun counts restarts itself, so the agent's budget is unlimited. torchrun's own workers are not the agent's: they survive a torchrun that is
killed, as with any backend. A round that is over has a store that is gone, so no worker of it meets one of the next."""

import json
import logging
import os
import secrets
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import torch.distributed as dist
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ._member import LEFT, PLACE
from .run import find_agent

log = logging.getLogger(__name__)

CONNECT_S = 10  # one attempt to reach the round's store
JOIN_S, CLOSE_S = 600, 30  # PyTorch's defaults of join_timeout and close_timeout
STOP = "2m"  # --stop-timeout: torchrun gives its workers 30 s
CONF = "join_timeout", "last_call_timeout", "keep_alive_interval", "keep_alive_max_attempt", "is_host"
# What torchrun got from its starter is not for the agent, which would read it as torchrun does.
TORCHRUNS = "PET_", "TORCHELASTIC_", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
EXIT_BARRIER = "torchelastic/agent/terminal_state"
LINE_MAX = 65536
# Lines of the agent that are about its own restarts. torchrun counts and announces its own.
NOT_TORCHRUNS = "rdzv-agent: restart ", "rdzv-agent: no worker reported progress or a checkpoint"
# Lines that may follow the one that says why the agent ends: details of a failure, and what the job's time went to.
NO_REASON = "rdzv-agent:  ", "rdzv-agent: ran ", "rdzv-agent: useful "
ERRORS = {73: RendezvousTimeoutError, 69: RendezvousConnectionError, 74: RendezvousConnectionError, 76: RendezvousConnectionError,
          64: RendezvousError, 71: RendezvousError, 72: RendezvousError}  # the others: RendezvousClosedError


def get_creator() -> Callable[[RendezvousParameters], RendezvousHandler]:
    return Handler


def describe_failure(error: BaseException) -> "tuple[int, str]":
    """Exit code and sentence for the job's verdict. A ChildFailedError knows the worker that failed first."""
    find = getattr(error, "get_first_failure", None)
    if not find:
        return 1, f"torchrun: {type(error).__name__}: {error}"
    rank, failure = find()
    how = f"was killed by {failure.signal_name()}" if failure.exitcode < 0 else f"exited with code {failure.exitcode}"
    code = 128 - failure.exitcode if failure.exitcode < 0 else failure.exitcode
    return min(code, 255), f"torchrun: its worker of rank {rank} (local {failure.local_rank}), pid {failure.pid}, {how}"


class RoundStore(dist.PrefixStore):
    """torchrun's own keys in the round's store. Its exit barrier is the first sign that all workers of this node have succeeded."""

    def __init__(self, store: dist.Store, on_exit_barrier: Callable[[], None]) -> None:
        super().__init__("torchrun", store)
        self._on_exit_barrier = on_exit_barrier

    def wait(self, keys: List[str], *timeout: timedelta) -> None:
        if any(key.startswith(EXIT_BARRIER) for key in keys):
            self._on_exit_barrier()
        super().wait(keys, *timeout)


class Agent:
    """rdzv-agent and its member of the current round. One thread reads what both say; `changed` guards what it learns."""

    def __init__(self, arguments: List[str]) -> None:
        path = find_agent()
        if not path:
            raise RendezvousError(f"there is no rdzv-agent beside {sys.executable}, and none in PATH: pip install rdzv")
        self.changed = threading.Condition()
        self.place: Optional[Dict[str, str]] = None  # of the member that runs
        self.used: Optional[Dict[str, str]] = None  # what torchrun's workers run in
        self.over = False  # the agent stops the round of `place`
        self.code: Optional[int] = None  # the agent's exit code
        self._reason = ""
        self._member: Optional[socket.socket] = None
        self._listener = socket.socket(socket.AF_UNIX)
        name = f"rdzv-torchrun-{secrets.token_hex(8)}"  # in the abstract namespace: it leaves nothing behind
        self._listener.bind("\0" + name)
        self._listener.listen()
        own = [sys.executable, "-I", "-S", str(Path(__file__).with_name("_member.py"))]
        me = str(os.getpid())
        env = {k: v for k, v in os.environ.items() if not k.startswith(TORCHRUNS)}
        env.update({"RDZV_TORCHRUN_PID": me, "RDZV_TORCHRUN_SOCKET": name})  # not in the command, which all nodes have alike
        self._process = subprocess.Popen(
            [*own, "agent", me, path, *arguments, "--no-python", "--", *own, "member"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, env=env, start_new_session=True)  # Ctrl-C is for torchrun, whose end is that of the agent
        self._ended, ended = socket.socketpair()
        threading.Thread(target=self._wait, args=(ended,), name="rdzv-agent-wait", daemon=True).start()
        threading.Thread(target=self._read, name="rdzv-agent-read", daemon=True).start()

    def _wait(self, ended: socket.socket) -> None:
        self._process.wait()
        ended.close()

    def _read(self) -> None:
        try:
            self._read_all()
        finally:  # whatever ended this, nobody waits for it
            self._process.terminate()
            with self.changed:
                self.code = self._process.wait()
                self.changed.notify_all()
            self._listener.close()

    def _read_all(self) -> None:
        stderr = self._process.stderr
        assert stderr
        os.set_blocking(stderr.fileno(), False)
        parts: Dict[Any, bytes] = {stderr: b""}
        with selectors.DefaultSelector() as select:
            for always in (stderr, self._ended, self._listener):
                select.register(always, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in select.select()]
                for source in ready:
                    if source is self._listener:
                        member = self._accept()
                        if member:
                            parts[member] = b""
                            select.register(member, selectors.EVENT_READ)
                    elif source in parts:
                        self._read_lines(source, parts, select)
                if self._ended in ready:
                    if stderr in parts:
                        self._read_lines(stderr, parts, select)
                    return

    def _accept(self) -> Optional[socket.socket]:
        member, _ = self._listener.accept()
        _, uid, _ = struct.unpack("3i", member.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid == os.getuid():
            return member
        member.close()
        return None

    def _read_lines(self, source: Any, parts: Dict[Any, bytes], select: selectors.BaseSelector) -> None:
        while True:
            try:
                got = os.read(source.fileno(), LINE_MAX)
            except BlockingIOError:
                return
            except OSError:
                got = b""
            *lines, parts[source] = (parts[source] + got).split(b"\n")
            for line in lines:
                (self._on_stderr if source is self._process.stderr else self._on_member)(line, source)
            if not got or len(parts[source]) > LINE_MAX:
                select.unregister(source)
                del parts[source]
                source.close()
                self._on_closed(source)
                return
            if source is not self._process.stderr:
                return

    def _on_stderr(self, line: bytes, _: Any) -> None:
        text = line.decode(errors="replace")
        if not text.startswith(NO_REASON):
            self._reason = text
        if not text.startswith(NOT_TORCHRUNS):
            try:
                print(text, file=sys.stderr, flush=True)
            except (OSError, ValueError):
                pass  # torchrun's stderr is closed, and its job goes on

    def _on_member(self, line: bytes, member: socket.socket) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return  # not a member of ours
        with self.changed:
            if said == {"stop": True}:
                self.over = self.over or member is self._member
            elif isinstance(said, dict) and set(said) == set(PLACE):
                try:
                    member.sendall(b"[]\n")
                except OSError:  # it has died, and its connection says so next
                    return
                self._member, self.place, self.over = member, said, False
            self.changed.notify_all()

    def _on_closed(self, source: Any) -> None:
        with self.changed:
            if source is self._member:
                self._member, self.over = None, True
            self.changed.notify_all()

    def end_member(self, code: int, message: str = "", final: bool = False) -> None:
        """The member of this round exits with that code."""
        extra = {"timestamp": int(time.time()), "final": final}
        error = {"message": {"message": message, "extraInfo": extra}} if message else None
        with self.changed:
            member, self._member, self.place = self._member, None, None
        if member:
            try:
                member.sendall(json.dumps([code, error]).encode() + b"\n")
            except OSError:
                pass  # it has died, and the agent knows

    def wait_for_place(self) -> Dict[str, str]:
        """The agent's --join-timeout bounds the wait."""
        with self.changed:
            while self.code is None:
                if self.place and not self.over:
                    self.used = self.place
                    return self.place
                self.changed.wait()
        raise self.get_error()

    def is_over(self) -> bool:
        with self.changed:
            return self.over or self.place is not self.used or self.code is not None

    def leave(self, why: str) -> None:
        """Nothing of the used round is left here. why: the reason, if the round is not over."""
        with self.changed:
            waits = self.place is not self.used and self.place is not None and not self.over  # a member that took the place of a dead one
        if not waits:
            self.end_member(LEFT) if self.is_over() else self.end_member(1, why)

    def get_error(self) -> RendezvousError:
        code = self.code or 0
        if code < 0:
            return RendezvousConnectionError(f"rdzv-agent (pid {self._process.pid}) was killed by {signal.Signals(-code).name}")
        return ERRORS.get(code, RendezvousClosedError)(self._reason or f"rdzv-agent exited with code {code}")

    def finish(self, timeout: float) -> bool:
        """Whether the agent ended by itself, and the job is done."""
        with self.changed:
            if not self.changed.wait_for(lambda: self.code is not None, timeout):
                log.warning("rdzv-agent has not ended within %g s: other nodes are still at work", timeout)
                self._process.terminate()
                self.changed.wait_for(lambda: self.code is not None, CLOSE_S)
            return self.code == 0


class Handler(RendezvousHandler):
    def __init__(self, params: RendezvousParameters) -> None:
        if not params.endpoint and params.max_nodes > 1:
            raise ValueError(
                "--rdzv-backend rdzv needs --rdzv-endpoint HOST[:PORT], the same on all nodes: where rdzvd listens, or one of the nodes, which "
                "then starts it (accelerate: --main_process_ip, and same_network: false)")
        # LaunchConfig adds timeout to any backend.
        ignored = sorted(set(params.config) - {*CONF, "close_timeout", "timeout"})
        if ignored:
            log.warning("--rdzv-conf: %s: no effect with --rdzv-backend rdzv; other options of rdzv-agent are variables, such as RDZV_AGENT_LEASE", ", ".join(ignored))
        self._params = params
        self._agent: Optional[Agent] = None
        self._run_id: str = params.run_id

    def _arguments(self) -> List[str]:
        p = self._params
        place = ["--endpoint", p.endpoint] if p.endpoint else ["--standalone"]
        # torchrun's default name is the same for all jobs; the agent's is not.
        name = ["--rdzv-id", p.run_id] if p.run_id and p.run_id != "none" else []
        addr = ["--local-addr", p.local_addr] if p.local_addr else []
        conf = ",".join(f"{key}={p.get(key)}" for key in CONF if p.get(key) is not None)
        stop = [] if "RDZV_AGENT_STOP_TIMEOUT" in os.environ else ["--stop-timeout", STOP]
        return [*place, *name, *addr, *(["--rdzv-conf", conf] if conf else []), *stop, "--nnodes", f"{p.min_nodes}:{p.max_nodes}", "--nproc", "1",
                "--max-restarts", "1000000", "--repeat-limit", "0", "--warm", "off", "--device-timeout", "0", "--nccl-ids", "never"]

    def get_backend(self) -> str:
        return "rdzv"

    @property
    def use_agent_store(self) -> bool:
        return os.environ.get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"

    def next_rendezvous(self) -> RendezvousInfo:
        if not self._agent:
            self._agent = Agent(self._arguments())
        else:
            self._agent.leave(f"torchrun: its workers on {socket.gethostname()} failed")
        while True:
            place = self._agent.wait_for_place()
            rank, nodes, addr, port = int(place["rank"]), int(place["nodes"]), place["addr"], int(place["port"])
            self._run_id = place["run_id"]
            try:
                timeout = timedelta(seconds=self._params.get_as_int("join_timeout", JOIN_S) or JOIN_S)
                tcp = self._connect(addr, port, timeout)
                store = RoundStore(tcp, lambda: self._finish(place))
                if self.use_agent_store:
                    info = RendezvousStoreInfo(addr, port)
                else:
                    info = RendezvousStoreInfo.build(rank, store, addr)  # addr is that of rank 0, which is the one that counts
                return RendezvousInfo(store, rank, nodes, info)
            except (RuntimeError, ValueError) as e:
                if not self._agent.is_over():
                    raise RendezvousConnectionError(f"the store of round {place['round']} at {addr}:{port} cannot be used: {e}") from e
                self._agent.leave("")

    def _connect(self, addr: str, port: int, timeout: timedelta) -> dist.TCPStore:
        """The round's store. TCPStore's own wait would go on when the node that has it is lost, and the round over."""
        assert self._agent
        end = time.monotonic() + timeout.total_seconds()
        while True:
            try:
                tcp = dist.TCPStore(addr, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=CONNECT_S))
                tcp.set_timeout(timeout)
                return tcp
            except RuntimeError:
                if self._agent.is_over() or time.monotonic() > end:
                    raise

    def _finish(self, place: Dict[str, str]) -> None:
        if self._agent and self._agent.used is place and not self._agent.is_over():
            self._agent.end_member(0)

    def num_nodes_waiting(self) -> int:
        """torchrun only asks whether it is more than none: then the round is over."""
        return 1 if self._agent and self._agent.is_over() else 0

    def is_closed(self) -> bool:
        return self._agent is not None and self._agent.code is not None

    def set_closed(self) -> None:
        if self._agent:
            self._agent.end_member(1, "torchrun: the rendezvous was closed", final=True)

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        """torchrun calls it at its end, while the exception that ends it is in flight."""
        if not self._agent:
            return True
        error = sys.exc_info()[1]
        if self._agent.code is None:
            if error:
                code, text = describe_failure(error)
                self._agent.end_member(code, text, final=True)
            else:
                self._agent.end_member(LEFT if self._agent.is_over() else 0)
        return self._agent.finish(self._params.get_as_int("close_timeout", CLOSE_S) or CLOSE_S)
