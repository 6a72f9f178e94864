# SPDX-License-Identifier: Apache-2.0
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import claims
import deadlines
import harness


pytest_configure = deadlines.configure


def pytest_runtestloop(session):
    return claims.run(session, claims.by_file)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    # What the programs said belongs to the report of a failed test.
    rdzv = getattr(item, "funcargs", {}).get("rdzv")
    if report.failed and rdzv:
        report.sections.append(("programs", str(rdzv)))
    setattr(item, "outcome_" + report.when, report)


@pytest.fixture
def rdzv(tmp_path, request):
    if not Path(harness.RDZVD).exists():
        pytest.fail(f"{harness.RDZVD} is not built; RDZV_BUILD names the build")
    r = harness.Rdzv(tmp_path)
    yield r
    left = r.close()
    for p in r.procs:
        assert "ERROR: AddressSanitizer" not in p.text and "runtime error:" not in p.text, str(p)
    report = getattr(request.node, "outcome_call", None)
    assert not left or (report and report.failed), "left running: " + "; ".join(left)


@pytest.fixture
def lan():
    """Two hosts on one wire: network namespaces with their own /etc/hosts. Yields what to put in front of a command for each host."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and ip(8)")
    names = [f"rdzv-e2e-{os.getpid()}-{i}" for i in (1, 2)]
    try:
        try:
            yield [lan_host(names, i) for i in (1, 2)]
        except subprocess.CalledProcessError as e:
            pytest.skip(f"no network namespaces here: {' '.join(e.cmd)}: {e.stderr.decode().strip()}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def lan_host(names, i):
    """Host node<i>, 10.99.0.<i>; the second one brings the wire. What to put in front of a command that is to run there."""
    run = lambda *a: subprocess.run(["ip", *a], check=True, capture_output=True, timeout=30)
    name = names[i - 1]
    run("netns", "add", name)
    run("-n", name, "link", "set", "lo", "up")
    if i == 2:
        run("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for j in (1, 2):
            run("-n", names[j - 1], "addr", "add", f"10.99.0.{j}/24", "dev", "eth0")
            run("-n", names[j - 1], "link", "set", "eth0", "up")
    # As Debian's installer leaves it: a host's own name is 127.0.1.1 on that host, and only there.
    etc = Path("/etc/netns") / name
    etc.mkdir(parents=True)
    table = "".join(f"{'127.0.1.1' if j == i else f'10.99.0.{j}'} node{j}\n" for j in (1, 2))
    (etc / "hosts").write_text("127.0.0.1 localhost\n" + table)
    return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', f"node{i}"]


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a file system of 512 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    path = tmp_path / "small"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", path], capture_output=True, text=True, timeout=30)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "-l", path], check=True, timeout=30)
