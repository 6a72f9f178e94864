# SPDX-License-Identifier: Apache-2.0
"""rdzv-trainer --bench allreduce: its figures add up, and it reports a network that changes bytes and ranks that die, fall silent or are stopped."""

import contextlib
import json
import re
import signal
import socket
import struct
import subprocess
import threading

import pytest

from trainer_world import BUILD, TRAINER, Run, Store

QUICK = ["--bench", "allreduce", "-b", "8", "-e", "256k", "-f", "8", "-n", "3", "-w", "1"]
LONG = ["--bench", "allreduce", "-b", "4k", "-e", "4k", "-n", "1000000"]  # many minutes


def rows(text):
    """Rows as nccl-tests' readers take them apart: by white space."""
    out = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            f = line.split()
            assert len(f) == 13 and f[2:9] == ["float", "sum", "-1", "N/A", "N/A", "N/A", "N/A"], line
            out.append({"size": int(f[0]), "count": int(f[1]), "us": float(f[9]), "algbw": float(f[10]), "busbw": float(f[11]), "wrong": f[12]})
    return out


def last_words(text):
    wrong = re.search(r"^# Out of bounds values : (\d+) (OK|FAILED)$", text, re.M)
    return int(wrong[1]), wrong[2], float(re.search(r"^# Avg bus bandwidth    : (\S+)$", text, re.M)[1])


@pytest.mark.parametrize("world", [1, 2, 4])
def test_rows_agree_with_the_definitions(world, tmp_path):
    metrics = tmp_path / "m.jsonl"
    with Run(QUICK + ["--metrics", metrics], world) as run:
        codes, outs, errs = run.wait()
        assert codes == [0] * world, (codes, errs)
        run.agent.wait_done()
    assert not any(outs[1:]) and not any(errs)
    table = rows(outs[0])
    assert [r["size"] for r in table] == [8, 64, 512, 4096, 32768, 262144]
    assert all(r["count"] * 4 == r["size"] and r["wrong"] == "0" for r in table)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["bench"] * 6 + ["bench_end"]
    for row, line in zip(table, lines):
        assert (line["size"], line["count"], line["wrong"], line["world"]) == (row["size"], row["count"], 0, world)
        assert line["algbw"] == pytest.approx(line["size"] / line["time_us"] / 1e3, rel=1e-6)
        assert line["busbw"] == pytest.approx(line["algbw"] * 2 * (world - 1) / world, rel=1e-6)
        assert row["us"] == pytest.approx(line["time_us"], rel=1e-3, abs=0.006)
        assert row["busbw"] == pytest.approx(line["busbw"], rel=0.2, abs=0.006)
    mean = sum(line["busbw"] for line in lines[:6]) / 6
    assert lines[6]["busbw"] == pytest.approx(mean, rel=1e-6, abs=1e-12)
    wrong, word, shown = last_words(outs[0])
    assert (wrong, word) == (0, "OK") and shown == pytest.approx(mean, rel=1e-4, abs=1e-9)
    for rank in range(world):
        assert re.search(rf"^#  Rank +{rank} Pid +{run.workers[rank].pid} on \S+ device cpu", outs[0], re.M), outs[0]


def test_without_a_check_nothing_is_said_of_sums():
    with Run(QUICK + ["-c", "0"], 2) as run:
        codes, outs, _ = run.wait()
    assert codes == [0, 0] and all(r["wrong"] == "N/A" for r in rows(outs[0]))


class Corrupting(Store):
    """A store that leads rank 0's neighbour to a port of ours, where the lowest byte of each float in large frames is changed."""

    def op_9(self, conn, number, text):  # APPEND
        key, value = text(), text()
        rank, size = struct.unpack_from("<II", value)
        if b"coll_tcp" in key and rank == 0:
            listener = socket.create_server(("127.0.0.1", 0))
            real = struct.unpack_from("<H", value, 8 + 64)[0]
            value = value[:8 + 64] + struct.pack("<H", listener.getsockname()[1]) + value[8 + 66:]
            assert len(value) == 8 + size
            threading.Thread(target=self.between, args=(listener, real), daemon=True).start()
        self.values[key] = self.values.get(key, b"") + value

    def between(self, listener, real):
        near, _ = listener.accept()
        listener.close()
        far = socket.create_connection(("127.0.0.1", real))
        threading.Thread(target=self.back, args=(far, near), daemon=True).start()
        data = near.makefile("rb")
        far.sendall(data.read(40))  # the hello
        while head := data.read(8):
            kind, _, text, n = struct.unpack("<BBHI", head)
            body = data.read(n if kind == 1 else text if kind == 3 else 0)
            if kind == 1 and n >= 4096:
                body = body[:4] + bytes([body[4] ^ 0x80]) + body[5:]
            far.sendall(head + body)
        with contextlib.suppress(OSError):  # it may have gone already
            far.shutdown(socket.SHUT_WR)

    @staticmethod
    def back(far, near):
        with contextlib.suppress(OSError):
            while data := far.recv(4096):
                near.sendall(data)


def test_a_network_that_changes_bytes_is_found_out():
    store = Corrupting()
    with Run(QUICK, 2, store_port=store.port) as run:
        codes, outs, errs = run.wait()
    store.close()
    assert codes == [84, 84], (codes, errs)
    wrong = {r["size"]: int(r["wrong"]) for r in rows(outs[0])}
    assert all(wrong[s] == 0 for s in (8, 64, 512)) and all(wrong[s] > 0 for s in (32768, 262144)), wrong
    assert last_words(outs[0])[:2] == (sum(w > 0 for w in wrong.values()), "FAILED")
    assert "sizes had wrong sums; find the cause" in errs[0]


def head_is_there(run):
    """Rank 0 has printed its first row's titles: everybody has met."""
    lines = run.workers[0].stdout
    while "(elements)" not in (line := lines.readline()):
        assert line, run.workers[0].stderr.read()


def test_a_killed_rank_is_named():
    with Run(LONG + ["--coll-timeout", "20s"], 4) as run:
        head_is_there(run)
        run.workers[2].kill()
        codes, _, errs = run.wait(30)
    assert codes == [82, 82, -9, 82], (codes, errs)
    assert all("rank 2" in errs[r] for r in (0, 1, 3)), errs


def test_a_silent_rank_is_named_within_the_deadline():
    with Run(LONG + ["--coll-timeout", "1s"], 3) as run:
        head_is_there(run)
        run.workers[1].send_signal(signal.SIGSTOP)
        for w in (run.workers[0], run.workers[2]):
            assert w.wait(20) == 82
            assert "rank 1" in w.stderr.read()


def test_told_to_stop_all_ranks_leave_after_the_size():
    with Run(["--bench", "allreduce", "-b", "64k", "-e", "1g", "-n", "20"], 2) as run:
        head_is_there(run)
        run.workers[1].terminate()
        codes, outs, errs = run.wait(60)
    assert codes == [75, 75], (codes, errs)
    assert last_words(outs[0])[1] == "OK" and "stopped as requested" in errs[0]


@pytest.mark.parametrize("args, words", [
    (["--bench", "allgather"], "--bench=allgather: must be allreduce"),
    (["--bench", "allreduce", "-b", "64k", "-e", "1k"], "--bench-min 65536 is more than --bench-max 1024"),
    (["--bench", "allreduce", "-b", "3"], "must be from 4"),
    (["--bench", "allreduce", "-f", "1"], "must be from 2"),
    (["--bench", "allreduce", "--layers", "3,3"], "--layers is for training; --bench trains nothing"),
    (["--bench", "allreduce", "--checkpoint-dir", "x"], "--checkpoint-dir is for training; --bench trains nothing"),
    (["-n", "5"], "--bench-iters is for --bench allreduce, which is not given"),
])
def test_options_that_make_no_sense_are_refused(args, words):
    out = subprocess.run([TRAINER, *args], capture_output=True, text=True, timeout=20)
    assert out.returncode == 64 and words in out.stderr and out.stderr.count("\n") == 1, out


FAKE = BUILD / "tests/fakegpu/rdzv-cuda-fake.so"


on_stand_ins = pytest.mark.skipif(not FAKE.exists(), reason="the stand-ins for a GPU are built where CUDA's and NCCL's headers are")


@on_stand_ins
@pytest.mark.parametrize("world", [1, 3])
def test_on_a_device(rdzv, world):
    """The module and NCCL's code, on the stand-ins of tests/fakegpu: small sizes, which are watched as one, and one that is not."""
    on_device(rdzv, world, ", all iterations in one graph", "-e", "4m", "-f", "64")


@on_stand_ins
@pytest.mark.parametrize("graph", [["--cuda-graph", "off"], ["-n", "1500", "-e", "8"]])
def test_on_a_device_in_other_ways(rdzv, graph):
    on_device(rdzv, 2, "" if "off" in graph else ", all iterations in one graph", *graph)


@on_stand_ins
def test_a_capture_that_fails_is_gone_without(rdzv):
    a = on_device(rdzv, 2, ", all iterations in one graph", env={"FAKEGPU_FAIL": "cudaStreamBeginCapture:1"})
    assert len(re.findall("the host queues each all-reduce, and its time is included: ", a.text)) == 1, a


def test_where_nothing_can_be_captured():
    out = subprocess.run([TRAINER, *QUICK, "--device", "cpu", "--cuda-graph", "on"], capture_output=True, text=True, timeout=20)
    assert out.returncode == 64 and "--cuda-graph on: " in out.stderr, out


def on_device(rdzv, world, how, *more, env=None):
    a = rdzv.agent("--standalone", "--nproc", world, "--max-restarts", 0, "--", *QUICK, *more, "--device", "cuda", "--cuda-module", FAKE,
                   env={"LD_LIBRARY_PATH": str(FAKE.parent), **(env or {})})
    assert a.exit(60) == 0, a
    assert f"--bench allreduce: {world} rank{'s' if world > 1 else ''}, nccl{how}\n" in a.text and "# Out of bounds values : 0 OK" in a.text, a
    assert not any(word in a.text for word in ("Sanitizer", "runtime error", "fakegpu:")), a
    return a


def test_through_the_agent(rdzv):
    a = rdzv.agent("--standalone", "--nproc", 2, "--", *QUICK)
    assert a.exit(60) == 0, a
    assert "# Out of bounds values : 0 OK" in a.text
