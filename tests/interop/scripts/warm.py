# SPDX-License-Identifier: Apache-2.0
"""Workers that need not wait for `import torch`, which takes longer than all that twenty small jobs do:

  warm.py serve SOCKET              has torch imported, and forks for everybody who asks; ends with its stdin
  warm.py SOCKET SCRIPT ARGS...     a worker: has SCRIPT run there with its own environment and output, and dies when and as it dies

A fork is a process of its own that has imported torch and done nothing else with it. When the worker is killed, so is the fork."""

import array
import json
import os
import resource
import select
import signal
import socket
import sys


def receive(conn):
    size = int.from_bytes(conn.recv(4, socket.MSG_WAITALL), "little")
    space = array.array("i", [0, 0])
    first, extra, _, _ = conn.recvmsg(1, socket.CMSG_SPACE(8))
    space.frombytes(extra[0][2][:8])
    body = first
    while len(body) < size:
        body += conn.recv(size - len(body))
    return json.loads(body), list(space)[-2:]


def become(what, fds):
    """In the fork: what the worker would have been."""
    import runpy

    os.setsid()
    os.environ.clear()
    os.environ.update(what["env"])
    for fd, to in zip(fds, (1, 2)):
        os.dup2(fd, to)
    sys.argv = what["argv"]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    os.chdir(what["cwd"])
    runpy.run_path(sys.argv[0], run_name="__main__")


def attend(conn):
    """Between a worker and its fork: tells the one how the other ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    what, fds = receive(conn)
    pid = os.fork()
    if pid == 0:
        conn.close()
        become(what, fds)
        return
    ended = os.pidfd_open(pid)
    if ended not in select.select([conn, ended], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    try:
        conn.sendall(code.to_bytes(4, "little", signed=True))
    except OSError:
        pass  # the worker is dead
    os._exit(0)


def serve(path):
    import torch._dynamo  # noqa: F401, what DistributedDataParallel and every optimizer import when they are first used
    import torch.distributed  # noqa: F401
    from torch.nn.parallel import DistributedDataParallel  # noqa: F401
    from torch.utils.data.distributed import DistributedSampler  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
        s.listen(64)
        print("ready", flush=True)
        while 0 not in select.select([s, 0], [], [])[0]:
            conn, _ = s.accept()
            if os.fork() == 0:
                s.close()
                return attend(conn)
            conn.close()


def work(path, argv):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with socket.socket(socket.AF_UNIX) as s:
        s.connect(path)
        body = json.dumps({"argv": argv, "cwd": os.getcwd(), "env": dict(os.environ)}).encode()
        s.sendall(len(body).to_bytes(4, "little"))
        n = s.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1, 2]))])
        s.sendall(body[n:])
        code = int.from_bytes(s.recv(4, socket.MSG_WAITALL) or b"\1", "little", signed=True)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    sys.exit(code)


serve(sys.argv[2]) if sys.argv[1] == "serve" else work(sys.argv[1], sys.argv[2:])
