# SPDX-License-Identifier: Apache-2.0
"""rdzvd --state-dir: what outlives the daemon, torn and damaged files, the lock, disks that are full."""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from harness import RDZVD, SANITIZED, until
from native import Native


def sealed(d, job="job", nodes=1):
    """A member of a round that runs."""
    n = Native(d.port)
    n.hello(job=job, nodes=nodes)
    n.started()
    return n


def start(rdzv, **kw):
    return rdzv.daemon("--state-dir", rdzv.tmp / "state", "--socket", rdzv.tmp / "s", **kw)


def kill(p, signo=signal.SIGKILL):
    p.end(signo)


@pytest.fixture
def lines(rdzv):
    """A state file with the daemon's id and three records: its path; the daemon that wrote it was killed."""
    d = start(rdzv)
    for job in ("one", "two", "three"):
        sealed(d, job).close()
    kill(d)
    path = rdzv.tmp / "state/rdzvd.state"
    text = path.read_text().splitlines()
    assert text[0] == "rdzvd-state 1" and len(text) == 5 and '"event":"daemon"' in text[1], text
    assert all(re.match(r"[0-9a-f]{8} \{.*\}$", l) for l in text[1:]), text
    return path


def jobs(rdzv, d):
    with Native(path=rdzv.tmp / "s") as n:
        return n.control("jobs")[1]


def test_a_restarted_daemon_remembers(rdzv):
    d = start(rdzv)
    n = sealed(d)
    kill(d)
    n.close()
    d = start(rdzv)
    with Native(d.port) as again:
        again.agent, again.incarnation, again.round, again.seq = n.agent, n.incarnation, n.round, n.seq
        again.hello(phase="running", node_rank=0, round_nodes=1)
        assert again.expect("WELCOME").incarnation == n.incarnation
        again.finish()
        assert [m.name for m in again.seen if m.name in ("START", "STOP", "STALE")] == [], again.seen


def identity(path):
    ids = re.findall(r'"event":"daemon","id":"([0-9a-f]{32})"', path.read_text())
    assert len(ids) == 1, path.read_text()
    return ids[0]


def test_a_restarted_daemon_is_the_same_one(rdzv, lines):
    """Its id stays through a restart and a rewrite of the file; another folder has another id."""
    before = identity(lines)
    kill(start(rdzv))
    d = start(rdzv)
    assert identity(lines) == before and not d.says("ignored a line"), d
    rdzv.daemon("--state-dir", rdzv.tmp / "other")
    assert identity(rdzv.tmp / "other/rdzvd.state") != before


@pytest.fixture
def slow_disk(tmp_path):
    """An environment in which every fdatasync takes as many milliseconds as SLOW_MS says."""
    if SANITIZED:
        pytest.skip("a sanitizer wants to be the first library that is loaded")
    if not shutil.which("cc"):
        pytest.skip("no C compiler")
    (tmp_path / "slow.c").write_text(
        "#include <stdlib.h>\n#include <unistd.h>\n"
        'int fdatasync(int fd) { usleep(1000 * atoi(getenv("SLOW_MS"))); return fsync(fd); }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "slow.so", tmp_path / "slow.c"], check=True)
    return lambda ms: {"LD_PRELOAD": str(tmp_path / "slow.so"), "SLOW_MS": str(ms)}


def test_sealed_before_it_is_told(rdzv, slow_disk):
    """START is not sent before its line is on the disk."""
    d = start(rdzv, env=slow_disk(300))
    began = time.monotonic()
    with Native(d.port) as n:
        n.hello()
        n.expect("START")
        assert time.monotonic() - began >= 0.3


def test_disk_that_hangs_stops_no_job(rdzv, slow_disk):
    d = start(rdzv, env=slow_disk(3000))
    began = time.monotonic()
    with Native(d.port) as n:
        n.hello()
        n.started()
        assert time.monotonic() - began >= 0.5
        d.expect("state: the disk has not answered for 500 ms; going on without waiting for it")
        while time.monotonic() - began < 2:
            n.send("HEARTBEAT", id=1)
            n.expect("HEARTBEAT_ACK")
            time.sleep(0.1)
        assert not d.says("the disk works again"), d  # all of it went on while the disk hung
        d.expect(r"state: the disk works again after 3\d\d\d ms")
        assert '"job":"job"' in (rdzv.tmp / "state/rdzvd.state").read_text()
        n.report("finished")
        n.expect("END")
        d.kill(signal.SIGTERM)  # while the line of the end hangs
        assert d.exit(5) == 0, d


def test_rewritten_at_start_with_what_is_needed(rdzv, lines):
    first = lines.read_text()
    d = start(rdzv)
    assert lines.read_text().splitlines()[0] == "rdzvd-state 1"
    for job in ("one", "two", "three"):
        assert len(re.findall(f'"job":"{job}"', lines.read_text())) == 1
    with sealed(d, "four"):
        assert '"job":"four"' in lines.read_text() and '"job":"four"' not in first
    assert not (rdzv.tmp / "state/rdzvd.state.new").exists()


def test_zeros_at_the_end_are_dropped(rdzv, lines):
    """As some file systems leave a file after a power failure."""
    with lines.open("ab") as f:
        f.write(bytes(5000))
    d = start(rdzv)
    d.expect("line 6: the last write was cut off; dropped 5000 bytes")
    assert "three" in jobs(rdzv, d)


def test_empty_file_is_a_new_one(rdzv, lines):
    lines.write_bytes(b"")
    assert "one" not in jobs(rdzv, start(rdzv))
    assert re.fullmatch(r'rdzvd-state 1\n[0-9a-f]{8} \{"event":"daemon","id":"[0-9a-f]{32}"\}\n', lines.read_text())


def test_damage_in_the_middle_is_refused(rdzv, lines):
    data = bytearray(lines.read_bytes())
    data[data.index(b'"job":"two"') + 7] ^= 1
    lines.write_bytes(data)
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--state-dir", rdzv.tmp / "state")
    assert p.exit() == 71, p
    assert p.says(r"rdzvd\.state line 4 is damaged .* move the file away and start again"), p
    assert lines.read_bytes() == data, "it must be left as it is for who wants to look at it"


def test_another_file_is_refused(rdzv, lines):
    lines.write_text("[config]\nx = 1\n")
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--state-dir", rdzv.tmp / "state")
    assert p.exit() == 71 and p.says(r"rdzvd\.state line 1: this is not a state file"), p


def test_folder_of_another_daemon(rdzv):
    d = start(rdzv)
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--state-dir", rdzv.tmp / "state")
    assert p.exit() == 71 and p.says(rf"--state-dir \S* is in use by another rdzvd \(pid {d.pid}\)"), p
    kill(d)
    start(rdzv)


def test_folder_that_cannot_be_had(rdzv):
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--state-dir", rdzv.tmp / "no/such")
    assert p.exit() == 71 and p.says("cannot create --state-dir .*no/such: no such file"), p
    (rdzv.tmp / "file").touch()
    p = rdzv.spawn(RDZVD, "--listen", "127.0.0.1:0", "--state-dir", rdzv.tmp / "file")
    assert p.exit() == 71 and p.says("cannot open --state-dir .*file: not a directory"), p


def test_folder_of_an_agents_daemon_goes_with_it(rdzv):
    r, w = os.pipe()
    d = rdzv.daemon("--state-dir", rdzv.tmp / "state", "--owner-fd", r, pass_fds=[r])
    os.close(r)
    with sealed(d) as n:
        os.close(w)
        n.finish()
    assert d.exit(5) == 0 and not (rdzv.tmp / "state").exists(), d


def test_full_disk_stops_no_job(rdzv, small_disk):
    d = rdzv.daemon("--state-dir", small_disk / "state", "--socket", rdzv.tmp / "s")
    with sealed(d, "before"):
        fill = os.open(small_disk / "fill", os.O_CREAT | os.O_WRONLY)
        try:
            while True:
                os.write(fill, bytes(4096))
        except OSError:
            pass
        path = small_disk / "state/rdzvd.state"
        # The file's last page has room; it is used up first.
        full = (path.stat().st_size + 4095) // 4096 * 4096
        for i in range(100):
            if path.stat().st_size + 500 > full and d.says("no space left"):
                break
            sealed(d, f"job-{i}").close()
        d.expect(r"error|no space left on device; the job goes on")
        with sealed(d, "while-full"):
            os.close(fill)
            os.unlink(small_disk / "fill")
            with sealed(d, "after"):
                text = path.read_text()
                for job in ("before", "while-full", "after"):
                    assert f'"job":"{job}"' in text, "the file is written anew once there is room"
    kill(d)
    d = rdzv.daemon("--state-dir", small_disk / "state", "--socket", rdzv.tmp / "s")
    assert "while-full" in jobs(rdzv, d) and not d.says("cut off"), d
    kill(d, signal.SIGTERM)
    until("the disk is let go", lambda: not d.running)
