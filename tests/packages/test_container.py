# SPDX-License-Identifier: Apache-2.0
"""The image of deploy/container/Containerfile, built and run by Podman as deploy/containers.md says. No image can be fetched where this runs: its base
is the tree of a fresh machine. Images and containers lie in a folder of the test's own, and containers run in a network namespace that is gone
with them.

    tests/run --only image"""

import os
import resource
import shutil
import signal
import subprocess

import pytest

import pages
from harness import TOP, until

pytestmark = pytest.mark.fresh

PAGE = "deploy/containers.md"


class Podman:
    def __init__(self, folder):
        self.folder = folder
        # Without systemd, on cgroups of either version; and no more limits than we have ourselves.
        limits = [f"--ulimit={name}={min(resource.getrlimit(number)[1], 4096)}" for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC))]
        self.podman = f"podman --root {folder}/images --runroot {folder}/podman --storage-driver vfs --runtime runc --cgroup-manager cgroupfs"
        self.run_options = " ".join(limits)
        # Its namespace of the network: a process that waits, and dies with us.
        self.net = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", "ip link set lo up; echo up; exec sleep infinity"], stdout=subprocess.PIPE)
        assert self.net.stdout.readline() == b"up\n"

    def command(self, text):
        return (text.replace("podman build", f"{self.podman} build --isolation chroot --network host --build-arg BASE=localhost/base")
                .replace("podman run", f"{self.podman} run {self.run_options}").replace("podman exec", f"{self.podman} exec").replace("podman stop", f"{self.podman} stop"))

    def start(self, text, alone=True):
        enter = ["nsenter", "-t", str(self.net.pid), "--net"] if alone else []
        return subprocess.Popen([*enter, "sh", "-ec", self.command(text)], cwd=TOP if not alone else self.folder / "work", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def end(self, started, seconds=120):
        """Its output; a command has to succeed."""
        try:
            said, _ = started.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            raise
        assert started.returncode == 0, f"{started.args[-1]}\nexit {started.returncode}\n{said[-6000:]}"
        return said

    def do(self, text, seconds=120, alone=True):
        return self.end(self.start(text, alone), seconds)

    def close(self):
        self.do(f"{self.podman} rm -f -a -t 5")
        self.net.kill()
        self.net.wait()


@pytest.fixture(scope="module")
def podman(folder, base):
    for tool in ("podman", "runc"):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed")
    (folder / "work").mkdir()
    p = Podman(folder)
    try:
        p.do(f"tar -C {base} -c . | {p.podman} import - localhost/base")
        yield p
    finally:
        p.close()


def test_it_is_built(podman):
    podman.do(pages.block(PAGE, "image"), seconds=580, alone=False)
    assert "uid=65532(rdzv)" in podman.do("podman run --rm --network host rdzv id")
    assert "usage: rdzv-agent" in podman.do("podman run --rm --network host rdzv")


def test_one_machine(podman):
    said = podman.do(pages.block(PAGE, "one"))
    assert "done: 100 steps" in said and "2 workers" in said, said


def test_two_nodes(podman):
    """As the user of the folder, whom the image does not know. The endpoint is loopback here, and both are on one host."""
    work = podman.folder / "work"
    os.chown(work, 12345, 12345)
    changes = [("node1:29400", "127.0.0.1:29400"), ("$(id -u):$(id -g)", "12345:12345")]
    text = pages.with_changes(pages.block(PAGE, "two"), changes)
    both = [podman.start(text), podman.start(text)]
    said = [podman.end(p) for p in both]
    assert any("is done" in s for s in said) and any("2 nodes, 4 workers" in s for s in said), said
    assert (work / "checkpoints").stat().st_uid == 12345 and any((work / "checkpoints").iterdir())


def test_a_daemon(podman):
    """It is asked, remembers in its volume, and ends by itself when its container is stopped."""
    start, ask = pages.lines(PAGE, "daemon")
    podman.do(start)
    until("the daemon listens", lambda: "listens on" in podman.do(f"{podman.podman} logs rdzvd"), 20)
    podman.do(ask)
    job = "podman run --rm --network host rdzv rdzv-agent --nnodes 1 --rdzv-id seen --endpoint 127.0.0.1:29400 -- true"
    assert "job seen is done" in podman.do(job)
    podman.do(pages.block(PAGE, "stop"))
    assert podman.do(f"{podman.podman} inspect --format '{{{{.State.ExitCode}}}}' rdzvd").strip() == "0"
    assert list((podman.folder / "images").rglob("volumes/rdzvd/_data/*")), "nothing was kept"
