# SPDX-License-Identifier: Apache-2.0
"""Imported first by scripts whose processes end soon. A third of what such a process costs is the search for garbage among the half million objects that
imports of PyTorch make: there is none among them, neither while modules are imported nor at the exit. What is made after imported() is searched as always."""

import atexit
import gc

gc.disable()
atexit.unregister(gc.unfreeze)  # of a worker that was forked from the template: tests/e2e/test_warm.py has the last collection of those
atexit.register(gc.freeze)


def imported():
    gc.freeze()
    gc.enable()
