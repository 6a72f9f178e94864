# SPDX-License-Identifier: Apache-2.0
"""The commands of the front page and the guide, taken from there and executed: on one machine, or on the hosts node1 and node2 of a wire of their own, with small programs
and small files in place of the user's. What a page shows as printed is what they print, but for numbers."""

import difflib
import gzip
import os
import re
import shutil
import signal
import struct
import subprocess
import sys

import pytest

import pages
from harness import SLOW, TOP, free_port, until

README = "README.md"
JOBS = "deploy/guide/jobs.md"
PYTORCH = "deploy/guide/pytorch.md"
LOGS_PAGE = "deploy/guide/output-and-logs.md"
OPERATING = "deploy/guide/operating.md"
HANGS = "deploy/guide/hangs.md"
TRAINER = "deploy/guide/trainer.md"

TRAIN = '''import os, sys
name = f"{os.path.basename(sys.argv[0])}.{os.environ['RANK']}"
open("out/" + name, "a").write(" ".join([os.environ["WORLD_SIZE"], os.environ["LOCAL_RANK"], *sys.argv[1:]]) + "\\n")
'''
OWN_STORE = '''import os, socket
rank, at = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
assert os.environ["TORCHELASTIC_USE_AGENT_STORE"] == "False"
if rank == 0:
    s = socket.create_server(("", at[1]))
    s.settimeout(20)
    s.accept()[0].sendall(b"here")
else:
    for i in range(200):
        try:
            assert socket.create_connection(at, 5).recv(4) == b"here"
            break
        except ConnectionRefusedError:
            __import__("time").sleep(0.1)
open(f"out/own.{rank}", "w").write("met\\n")
'''
MPI = '''import os
E = os.environ
open("out/mpi." + E["OMPI_COMM_WORLD_RANK"], "w").write(" ".join(E["OMPI_COMM_WORLD_" + k] for k in ("SIZE", "LOCAL_RANK", "LOCAL_SIZE")) + "\\n")
'''


def took(rdzv, name):
    """rank -> what the worker has written, and then nothing of it is left."""
    out = rdzv.tmp / "out"
    found = {int(p.suffix[1:]): p.read_text().split() for p in out.glob(f"{name}.*")}
    for p in out.iterdir():
        p.unlink()
    return found


def on_both(rdzv, lan, command, **kw):
    both = [pages.shell(rdzv, command, wrap=host, **kw) for host in lan]
    for p in both:
        assert p.exit(40) == 0, rdzv
    return both


def alone(rdzv, command, code=0, timeout=40, **kw):
    p = pages.shell(rdzv, command, **kw)
    assert p.exit(timeout) == code, p
    return p


def test_scripts(rdzv, lan):
    (rdzv.tmp / "out").mkdir()
    (rdzv.tmp / "package").mkdir()
    for name, text in (("train.py", TRAIN), ("package/train.py", TRAIN), ("old.py", TRAIN), ("spawns_its_own_ranks.py", OWN_STORE), ("reads_mpirun_variables.py", MPI)):
        (rdzv.tmp / name).write_text(text)
    one, two, module, old, own, mpi = pages.lines(PYTORCH, "scripts")
    alone(rdzv, one)
    assert took(rdzv, "train.py") == {r: ["4", str(r), "--epochs", "3"] for r in range(4)}
    on_both(rdzv, lan, two)
    assert took(rdzv, "train.py") == {r: ["8", str(r % 4), "--epochs", "3"] for r in range(8)}
    alone(rdzv, module)
    assert took(rdzv, "train.py") == {r: ["4", str(r)] for r in range(4)}
    alone(rdzv, old)
    assert took(rdzv, "old.py") == {r: ["4", str(r), f"--local-rank={r}"] for r in range(4)}
    on_both(rdzv, lan, own)
    assert took(rdzv, "own") == {0: ["met"], 1: ["met"]}
    alone(rdzv, mpi)
    assert took(rdzv, "mpi") == {r: ["4", str(r), "4"] for r in range(4)}


WANDB = """import os, sys
e = os.environ
open(f"out/{e['RDZV_ROUND']}.{e['RANK']}", "w").write(" ".join((e["WANDB_RUN_ID"], e["WANDB_RESUME"])))
sys.exit(e["RDZV_ROUND"] == "1" and e["RANK"] == "2")
"""


def test_wandb(rdzv):
    """Of a job with a restart."""
    (rdzv.tmp / "out").mkdir()
    (rdzv.tmp / "train.py").write_text(WANDB)
    (command,) = pages.lines(PYTORCH, "wandb")
    p = pages.shell(rdzv, command, more={"python": f'#!/bin/sh\nexec {sys.executable} "$@"\n'})
    assert p.exit(30) == 0 and p.says("restart 1 of"), p
    for name in "1.2", *(f"2.{r}" for r in range(4)):
        assert (rdzv.tmp / "out" / name).read_text() == "nightly allow", p


def test_programs(rdzv, lan):
    (rdzv.tmp / "out").mkdir()
    (rdzv.tmp / "my-trainer").write_text('#!/bin/sh\necho $WORLD_SIZE $LOCAL_RANK "$@" >out/mine.$RANK\n')
    (rdzv.tmp / "my-trainer").chmod(0o755)
    one, two, elastic = pages.lines(JOBS, "programs")
    alone(rdzv, one)
    assert took(rdzv, "mine") == {r: ["4", str(r), "--epochs", "3"] for r in range(4)}
    on_both(rdzv, lan, two)
    assert took(rdzv, "mine") == {r: ["8", str(r % 4), "--epochs", "3"] for r in range(8)}
    on_both(rdzv, [*lan, *lan], elastic)  # all four that there may be: else the first round waits for --last-call
    assert took(rdzv, "mine") == {r: ["16", str(r % 4)] for r in range(16)}


def named(host):
    """In front of a command that is to run as if on that host."""
    wrap = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', host]
    if os.geteuid() != 0 or not shutil.which("unshare") or subprocess.run([*wrap, "true"], capture_output=True).returncode:
        pytest.skip("host names of one's own need root and unshare(1)")
    return wrap


def test_who_is_missing(rdzv):
    (rdzv.tmp / "out").mkdir()
    (rdzv.tmp / "train.py").write_text(TRAIN)
    (command,) = pages.lines(JOBS, "expected")
    command = pages.with_changes(command, [("--nnodes 64", "--nnodes 3"), ("[001-064]", "[001-003]"), ("--endpoint gpu001", f"--endpoint 127.0.0.1:{free_port()}")])
    agents = [pages.shell(rdzv, command, wrap=named(f"gpu00{i}")) for i in (1, 2)]
    agents[0].expect(r"2 of 3 nodes are here .*giving up in .* \(--join-timeout\); missing 1: gpu003 \(never came\)", 20)
    agents.append(pages.shell(rdzv, command, wrap=named("gpu003")))
    for a in agents:
        assert a.exit(30) == 0, rdzv
    assert took(rdzv, "train.py") == {r: ["3", "0"] for r in range(3)}


def idx(path, n, labels=False):
    head = struct.pack(">BBBBI", 0, 0, 8, 1, n) if labels else struct.pack(">BBBBIII", 0, 0, 8, 3, n, 28, 28)
    path.write_bytes(gzip.compress(head + bytes((i * 7 + i // 784) % (10 if labels else 256) for i in range(n * (1 if labels else 784)))))


def test_the_trainer(rdzv):
    """On files of MNIST's format, with fewer images in them."""
    for kind, n in (("train", 640), ("t10k", 100)):
        idx(rdzv.tmp / f"{kind}-images-idx3-ubyte.gz", n)
        idx(rdzv.tmp / f"{kind}-labels-idx1-ubyte.gz", n, labels=True)
    (command,) = pages.lines(TRAINER, "mnist")
    p = alone(rdzv, pages.with_changes(command, [("--checkpoint-every 500", "--checkpoint-every 20")]), timeout=60)
    assert p.says("done: 50 steps") and len(list((rdzv.tmp / "ckpt").glob("*/COMMIT"))) > 0, p
    (command,) = pages.lines(TRAINER, "classifier")
    p = alone(rdzv, command, timeout=60)
    assert p.says("done: 50 steps"), p


def bare(text):
    """Without numbers and the width of columns."""
    return [re.sub(r" +", " ", re.sub(r"[\d.]+(e[-+]\d+)?", "N", line)).strip() for line in text.strip().split("\n")]


def printed(page, name):
    """What the page shows right below a block of commands."""
    found = pages.blocks(page)
    i = next(i for i, b in enumerate(found) if b.test and b.test[2] == name)
    assert found[i + 1].lang == ""
    return found[i + 1].text


def same(page, name, text, pattern=None):
    """RDZV_WRITE_PAGES=1 in the environment: writes what was printed into the page instead, where all of it is shown."""
    if os.environ.get("RDZV_WRITE_PAGES") and not pattern:
        whole = (TOP / page).read_text()
        (TOP / page).write_text(whole.replace(printed(page, name), text.strip() + "\n"))
    want, got = bare(printed(page, name)), bare(text)
    if pattern:
        want, got = [[line for line in lines if re.search(pattern, line)] for lines in (want, got)]
    assert want == got, "\n".join(difflib.unified_diff(want, got, page, "printed", lineterm=""))


def test_in_place(rdzv):
    (command,) = pages.lines(TRAINER, "in place")
    p = pages.shell(rdzv, pages.with_changes(command, [("--epochs 20", "--epochs 8 --throttle 400 --report-every 100ms")]))
    workers = rdzv.await_workers(4)
    p.expect(r"step \d+ of", 30)
    os.kill(workers[2], signal.SIGKILL)
    assert p.exit(60) == 0, p
    same(TRAINER, "in place", p.text, r"go on in place|: continuing in place at")  # rank 0 says what it lost only if the agent was not quicker


def test_bench(rdzv, lan):
    (command,) = pages.lines(TRAINER, "bench")
    both = on_both(rdzv, lan, pages.with_changes(command, [("--nproc 8", "--nproc 1"), ("-e 1g", "-e 64k")]))
    assert re.search(r"# Out of bounds values : 0 OK", "".join(p.text for p in both)), rdzv
    (command,) = pages.lines(TRAINER, "bench here")
    p = alone(rdzv, pages.with_changes(command, [("-e 64m", "-e 1m")]))
    same(TRAINER, "bench here", re.sub(r"on \S+ device", "on vm device", "\n".join(p.out)), r"^\[N\] #")


LOGS = '''import json, os, sys, time
def main():
    if os.environ["RANK"] == "0":
        print("step 1", flush=True)
        time.sleep(60)
    while not os.path.exists("out/0"): time.sleep(0.05)
    raise ValueError("boom")
if os.environ["RANK"] == "1":  # as PyTorch's @record does it
    told = {"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "", "timestamp": "1"}}}
    open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write(json.dumps(told))
main()
'''


def test_logs(rdzv):
    (rdzv.tmp / "out").mkdir()
    (rdzv.tmp / "train.py").write_text(LOGS)
    (command,) = pages.lines(LOGS_PAGE, "logs")
    p = pages.shell(rdzv, command)
    p.expect(r"\[0\] step 1", 10)
    (rdzv.tmp / "out/0").touch()
    assert p.exit(20) == 1, p
    folder = re.search(r"logs go to (\S+/logs/alone-\w+)", p.text)[1]
    assert p.says(r"rank 1 \(local 1\) on \S+, pid \d+, exited with code 1: ValueError: boom\n") and p.says(r"\[1\] Traceback \(most recent call last\):"), p
    assert not p.says(r"  \| ") and p.says(rf"  at [\d: -]+, error file {folder}/attempt_0/1/error.json"), p
    assert p.says(r"job alone-\w+ failed in round 1: rank 1 \(local 1\) .*; exit code 1"), p
    assert (rdzv.tmp / "logs").exists() and os.path.exists(folder + "/attempt_0/0/stdout.log")


def test_rdzvctl(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "s", wrap=named("gpu2"))
    wait = "while [ ! -e go ]; do sleep 0.02; done"
    agents = [rdzv.agents(1, d.endpoint, "--nnodes", "2:3", "--nproc", 2, "--rdzv-id", "nightly", "--node-rank", i, "--", "sh", "-c", wait, wrap=named(host))[0]
              for i, host in enumerate(("gpu2", "gpu1", "gpu3"))]
    for name in ("kill", "drain", "status", "refused"):
        for a in agents:
            if name in ("kill", "drain"):
                a.expect(f"round {1 if name == 'kill' else 2}: 3 nodes")
        rdzv.await_workers(4 if name in ("status", "refused") else 6)
        (command,) = pages.lines(OPERATING, name)
        until(lambda: f"the round runs:\n{rdzv}", lambda: "running for" in rdzv_status(rdzv))
        p = pages.shell(rdzv, command, env={"RDZVCTL_SOCKET": str(rdzv.tmp / "s")})
        assert p.exit(10) == (72 if name == "refused" else 0), p
        same(OPERATING, name, re.sub(r"by \S+( \(uid \d+\))? from", "by root from", p.text))
    (rdzv.tmp / "go").touch()
    for a in agents[1:]:
        assert a.exit(20) == 0, rdzv
    assert d.end(signal.SIGTERM) == 0, d


def rdzv_status(rdzv):
    p = pages.shell(rdzv, "rdzvctl status", env={"RDZVCTL_SOCKET": str(rdzv.tmp / "s")})
    assert p.exit(10) == 0, p
    return p.text


def test_a_hang(rdzv, lan):
    (rdzv.tmp / "train.py").write_text('import os, signal, time\nfor i in range(20):\n    print("step", i, flush=True)\n    time.sleep(0.02)\n'
                                       'os.kill(os.getpid(), signal.SIGSTOP if os.environ["RANK"] == "1" else 0)\ntime.sleep(300)\n')
    (command,) = pages.lines(HANGS, "hang")
    command = pages.with_changes(command, [("--nproc 4", "--nproc 2"), ("--hang-timeout 5m", "--hang-timeout 2s")])
    both = [pages.shell(rdzv, command, wrap=host, env={"RDZV_AGENT_HANG_START_TIMEOUT": "6s", "RDZV_AGENT_MAX_RESTARTS": "0"}) for host in lan]
    for p in both:
        assert p.exit(30) == 67, rdzv
    assert both[0].says(r"rank 1 \(local 1\) on node1, pid \d+, made no progress for \d.\d s: its process is stopped \(state T\), as by SIGSTOP"), rdzv
    assert both[0].says(r"  rank 1: pid \d+ \(python3[\d.]*\): state T, in do_signal_stop, 1 thread"), rdzv


def test_building(rdzv):
    """The whole takes minutes, so of all that is built only one program."""
    sources = rdzv.tmp / "sources"
    subprocess.run([TOP / "deploy/sources", sources], check=True)
    (command,) = pages.lines(README, "building")
    p = pages.shell(rdzv, "cd sources && " + pages.with_changes(command, [("ninja -C build", "ninja -C build daemon/rdzvctl")]))
    assert p.exit(240 / SLOW) == 0, p
    assert subprocess.run([sources / "build/daemon/rdzvctl", "--version"], capture_output=True).returncode == 0
