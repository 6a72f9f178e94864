# SPDX-License-Identifier: Apache-2.0
"""--events, read by PyTorch's own torch.distributed.elastic.events."""

import pytest
from torch.distributed.elastic.events import Event, EventSource


def test_torchelastic_reads_each_line(rdzv):
    a = rdzv.agent("--standalone", "--events", "ev", "--", "sh", "-c", "exit $((2 - RDZV_ROUND > 0 ? 3 : 0))")
    assert a.exit() == 0, a
    found = [Event.deserialize(line) for line in (rdzv.tmp / "ev").read_text().splitlines()]
    assert [e.name for e in found][-1] == "rdzv.job.ended" and len(found) == 7, found
    for e in found:
        assert e.source == EventSource.AGENT and e.timestamp > 1.7e12 and e.metadata["run_id"], e
        assert Event.deserialize(e.serialize()) == e


@pytest.mark.parametrize("key", ["run_id", "global_rank", "group_rank", "role", "hostname", "state", "total_run_time", "raw_error", "agent_restarts"])
def test_its_names_are_used(key):
    """What torchelastic's agent puts into metadata has the same name here."""
    import inspect

    from torch.distributed.elastic.agent.server import api

    import pages

    assert f'"{key}"' in inspect.getsource(api), "PyTorch has another name for it now"
    assert f'"{key}"' in (pages.TOP / pages.EVENT_LIST).read_text()
