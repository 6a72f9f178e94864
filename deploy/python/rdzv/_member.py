# SPDX-License-Identifier: Apache-2.0
"""The processes between torchrun and rdzv-agent with --rdzv-backend rdzv: see _rendezvous.py. This file is a program of its own. It imports
nothing of this package, so it starts in milliseconds.

    _member.py agent TORCHRUN COMMAND...   becomes COMMAND, which gets SIGTERM when TORCHRUN dies
    _member.py member                      the one worker of that agent; RDZV_TORCHRUN_PID and RDZV_TORCHRUN_SOCKET name torchrun

The member reports its place in the round to torchrun, and SIGTERM, by which the agent stops the round. It exits as torchrun orders, so the
agent reports to the daemon how torchrun's workers are. Each message is a line of JSON:

    member                                        torchrun
    {"rank": ..., "nodes": ..., "round": ...} ->
                                              <-  []: it has the place
    {"stop": true}, for SIGTERM               ->
                                              <-  [exit code, content of the error file or null]"""

import ctypes
import json
import os
import signal
import socket
import struct
import sys
import time
from typing import Any, List, NoReturn

ANSWER_S = 30  # the answer comes from a thread of torchrun that does nothing else
LEFT = 75  # rdzv-agent's code for a node that leaves
PLACE = {"rank": "GROUP_RANK", "nodes": "GROUP_WORLD_SIZE", "round": "RDZV_ROUND", "addr": "MASTER_ADDR", "port": "MASTER_PORT", "run_id": "RDZV_RUN_ID"}


def become(torchrun: int, command: List[str]) -> NoReturn:
    ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG, which execv keeps
    if os.getppid() != torchrun:
        sys.exit(f"torchrun (pid {torchrun}) has died")
    os.execv(command[0], command)


def end(code: int, error: Any) -> NoReturn:
    if error:
        with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f:
            json.dump(error, f)
    sys.exit(code)


def end_job(text: str) -> NoReturn:
    end(1, {"message": {"message": text, "extraInfo": {"final": True, "timestamp": int(time.time())}}})


def member(torchrun: int, name: str) -> NoReturn:
    link = socket.socket(socket.AF_UNIX)
    who = f"torchrun (pid {torchrun}) on {socket.gethostname()}"
    stops: List[int] = []

    def on_stop(signo: int, _: Any) -> None:
        stops.append(signo)
        try:
            link.sendall(b'{"stop": true}\n')
        except OSError:  # torchrun has died
            sys.exit(LEFT)

    signal.signal(signal.SIGTERM, on_stop)
    try:
        link.settimeout(ANSWER_S)
        link.connect("\0" + name)
        if struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1] != os.getuid():
            raise ConnectionRefusedError  # another user has taken the name of a dead torchrun
        link.sendall(json.dumps({key: os.environ[variable] for key, variable in PLACE.items()}).encode() + b"\n")
        if stops:  # the word of it may have come before the place, and then it counted for nothing
            link.sendall(b'{"stop": true}\n')
        answers = link.makefile("rb")
        if answers.readline():
            link.settimeout(None)
            order = answers.readline()
            if order:
                end(*json.loads(order))
    except socket.timeout:
        end_job(f"{who} has not answered for {ANSWER_S} s: it is stopped, or its machine is overloaded")
    except OSError:
        pass
    # torchrun has died, so the kernel sends SIGTERM to its agent, which leaves the job and stops this process. It may have done so already.
    if stops:
        sys.exit(LEFT)
    time.sleep(ANSWER_S)
    end_job(f"{who} has died")


if __name__ == "__main__":
    if sys.argv[1] == "agent":
        become(int(sys.argv[2]), sys.argv[3:])
    member(int(os.environ["RDZV_TORCHRUN_PID"]), os.environ["RDZV_TORCHRUN_SOCKET"])
