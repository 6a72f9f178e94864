# SPDX-License-Identifier: Apache-2.0
"""Clusters for tests: see hosts.py.

These tests mostly wait: for leases to pass, for a round to be old enough to grow. Clusters know nothing of each other, so several pytest
processes share the tests, the longest first (../e2e/claims.py). RDZV_CLUSTER_FACTS=FILE collects the times that the tests measured.
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
sys.path.insert(0, str(HERE))

import claims  # noqa: E402
import deadlines  # noqa: E402
import harness  # noqa: E402
import hosts  # noqa: E402
import rsh  # noqa: E402
import sge  # noqa: E402
import slurm  # noqa: E402
import ssh  # noqa: E402

_spec = importlib.util.spec_from_file_location("e2e_conftest", HERE.parent / "e2e/conftest.py")
e2e = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(e2e)

facts = []


def pytest_configure(config):
    deadlines.configure(config)
    config.addinivalue_line("markers", "seconds(n): about how long it takes, if that is more than 15 s; the longest are begun first")
    config.addinivalue_line("markers", "soak: only with --soak")


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="the long ones, marked soak, and no others")


def pytest_collection_modifyitems(config, items):
    items[:] = [i for i in items if bool(i.get_closest_marker("soak")) == config.getoption("--soak")]
    seconds = lambda item: (item.get_closest_marker("seconds") or pytest.mark.seconds(0).mark).args[0]
    items.sort(key=seconds, reverse=True)
    for item in items:
        item.add_marker(pytest.mark.deadline(max(deadlines.SECONDS, 5 * seconds(item))))
    if why := hosts.missing():
        for item in items:
            item.add_marker(pytest.mark.skip(reason=why))


def pytest_runtestloop(session):
    return claims.run(session, lambda item: item.nodeid)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    made = getattr(item, "cluster_made", None)
    if report.failed and made:
        report.sections.append(("programs", str(made)))
    setattr(item, "outcome_" + report.when, report)


def pytest_terminal_summary(terminalreporter):
    for line in facts:
        terminalreporter.write_line("fact: " + line)


def makes(tmp_path, request, kind):
    """A function that makes a cluster, one a test. At the end nothing of rdzv may be left on its hosts but daemons."""
    if not Path(harness.RDZVD).exists():
        pytest.fail(f"{harness.RDZVD} is not built; RDZV_BUILD names the build")
    made = []

    def say(text):
        line = f"{request.node.name.removeprefix('test_')}: {text}"
        facts.append(line)
        if path := os.environ.get("RDZV_CLUSTER_FACTS"):
            with open(path, "a") as f:
                f.write(line + "\n")

    def make(n, **more):
        assert not made, "one cluster a test"
        made.append(kind(tmp_path, n, say, **more))
        request.node.cluster_made = made[0]
        return made[0]

    yield make
    for c in made:
        left = c.close()
        for p in c.procs:
            assert "ERROR: AddressSanitizer" not in p.text and "runtime error:" not in p.text, str(p)
        report = getattr(request.node, "outcome_call", None)
        assert not left or (report and report.failed), "left running: " + "; ".join(left)


@pytest.fixture
def make_cluster(tmp_path, request):
    """make_cluster(N): N hosts, node1 .. nodeN."""
    yield from makes(tmp_path, request, hosts.Cluster)


@pytest.fixture
def make_rsh(tmp_path, request):
    """make_rsh(N): N hosts, n1 .. nN, that reach each other by ssh: see rsh.py."""
    if why := ssh.missing():
        pytest.skip(why)
    yield from makes(tmp_path, request, rsh.Cluster)


@pytest.fixture
def make_slurm(tmp_path, request):
    """make_slurm(N): a Slurm of N nodes, and login: see slurm.py."""
    if why := slurm.missing():
        pytest.skip(why)
    yield from makes(tmp_path, request, slurm.Slurm)


@pytest.fixture
def make_sge(tmp_path, request):
    """make_sge(N): a Grid Engine of N nodes, and login: see sge.py."""
    if why := sge.missing():
        pytest.skip(why)
    yield from makes(tmp_path, request, sge.Sge)


@pytest.fixture
def make_ssh(tmp_path, request):
    """make_ssh(N): N hosts with an sshd each: see ssh.py."""
    if why := ssh.missing():
        pytest.skip(why)
    yield from makes(tmp_path, request, ssh.Ssh)
