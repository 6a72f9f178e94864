# SPDX-License-Identifier: Apache-2.0
"""waits.py [stay]: a worker that says "ready", waits for a signal, and says which one came. It exits with 0 then, unless it is told to stay.

The signals are blocked and read one by one, so none is lost. A shell that traps them and runs `sleep` in a loop loses one now and then: one that comes while
the shell forks (dash 0.5.12 and bash 5.2, once in thousands of runs, more often under load)."""

import signal
import sys

if __name__ == "__main__":
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    print("ready", flush=True)
    while True:
        print(f"got {signal.Signals(signal.sigwait(signals)).name[3:]}", flush=True)
        if sys.argv[1:] != ["stay"]:
            sys.exit(0)
