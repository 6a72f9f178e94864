# SPDX-License-Identifier: Apache-2.0
"""waits.py [FILE] | stay [SIGNAL]...: a worker that says "ready", and makes the FILE, waits for a signal, and says which one came. It exits with 0 then, unless it
is told to stay; if signals are named (USR1, say), it stays at these alone.

The signals are blocked and read one by one, so none is lost. A shell that traps them and runs `sleep` in a loop loses one now and then: one that comes while
the shell forks (dash 0.5.12 and bash 5.2, once in thousands of runs, more often under load)."""

import signal
import sys

COMMAND = f"exec {sys.executable} -SE {__file__}"  # for a shell

if __name__ == "__main__":
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    print("ready", flush=True)
    if sys.argv[1:2] not in ([], ["stay"]):
        open(sys.argv[1], "w").close()
    while True:
        name = signal.Signals(signal.sigwait(signals)).name[3:]
        print(f"got {name}", flush=True)
        if sys.argv[1:2] != ["stay"] or (sys.argv[2:] and name not in sys.argv[2:]):
            sys.exit(0)
