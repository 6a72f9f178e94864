# SPDX-License-Identifier: Apache-2.0
"""Several pytest processes share the work: with RDZV_TEST_CLAIMS=DIR each runs what no other has claimed there yet. tests/run does that.

Most of these tests wait, for leases, grace and Python; nothing of one is known to another. What is claimed at once is a file's tests, which
may share what was costly to make, or a single test, where each makes all its own (tests/cluster)."""

import itertools
import os
from pathlib import Path


def claim(name):
    """Whether it is ours; always, where nobody shares."""
    folder = os.environ.get("RDZV_TEST_CLAIMS")
    if not folder:
        return True
    try:
        os.close(os.open(Path(folder) / name.replace("/", ":"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def run(session, name_of):
    """pytest's own loop, but for what somebody else runs: a pytest_runtestloop. name_of(item): what it is claimed by."""
    if not os.environ.get("RDZV_TEST_CLAIMS") or session.testsfailed or session.config.option.collectonly:
        return None
    for name, items in itertools.groupby(session.items, name_of):
        if not claim(name):
            continue
        items = list(items)
        for item, after in zip(items, items[1:] + [None]):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    return True


def by_file(item):
    return item.nodeid.split("::")[0]
