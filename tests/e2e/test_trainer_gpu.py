# SPDX-License-Identifier: Apache-2.0
"""rdzv-trainer --device cuda through the real agent, on the stand-ins of tests/fakegpu: what the module and NCCL's code do in whole runs.

The stand-ins do everything late and in an order that FAKEGPU_SEED draws, so a run that ends with the bytes of another seed has no
dependency missing that this order would have shown. Every run must leave nothing of the device behind and no word of a sanitizer.
"""

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness import BUILD, SLOW, TRAINER

FAKE = BUILD / "tests/fakegpu/rdzv-cuda-fake.so"
SMALL = ["--layers", "20,9,20", "--data", "synthetic:200", "--scale", "0.005", "--batch", "24", "--lr", "0.003", "--report-every", "0"]
# What is on a device that is gone cannot be freed, and is not; with the stand-in it is memory of this process.
GONE = {"ASAN_OPTIONS": "detect_leaks=0"}
BAD = ("AddressSanitizer", "LeakSanitizer", "runtime error", "fakegpu:")


def missing():
    if not FAKE.exists():
        return "not on this machine: the stand-ins are built where CUDA's, cuBLASLt's and NCCL's headers are"
    words = subprocess.run([TRAINER, "--help"], capture_output=True, text=True).stdout
    return "" if "--cuda-module" in words else "this trainer has no --cuda-module"


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def start(rdzv, world, *options, device="cuda", seed=1, agent=(), env=None):
    cuda = ["--cuda-module", FAKE] if device == "cuda" else []
    own = {"FAKEGPU_SEED": str(seed), "LD_LIBRARY_PATH": str(FAKE.parent), **(env or {})}
    return rdzv.agent("--standalone", "--nproc", world, "--max-restarts", 0, *agent, "--", TRAINER, *SMALL, "--device", device, *cuda,
                      "--metrics", rdzv.tmp / f"metrics-{len(rdzv.procs)}", *options, env=own)


def clean(a):
    for word in BAD:
        assert word not in a.text, a


def losses(rdzv, a):
    at = a.argv[a.argv.index("--metrics") + 1]
    return [line["loss"] for line in map(json.loads, open(at)) if line["event"] == "step"]


def run(rdzv, world, *options, **kw):
    """(losses, checksum) of a run that succeeds."""
    a = start(rdzv, world, *options, **kw)
    assert a.exit(60) == 0, a
    clean(a)
    return losses(rdzv, a), a.expect(r"checksum (\w+)").group(1)


def near(got, want, rel):
    assert len(got) == len(want) > 0
    for i, (x, y) in enumerate(zip(got, want)):
        assert abs(x - y) <= rel * abs(want[0]), (i, x, y)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_curve_is_the_cpus(rdzv, world):
    near(run(rdzv, world, "--steps", 20)[0], run(rdzv, 1, "--steps", 20, device="cpu")[0], 1e-4)


def test_bf16(rdzv):
    options = ["--steps", 15, "--precision", "bf16"]
    near(run(rdzv, 2, *options)[0], run(rdzv, 2, *options, device="cpu")[0], 1e-2)


@pytest.mark.parametrize("options", [
    ["--loss", "rmse", "--beta1", "0", "--beta2", "0.99", "--bucket-cap-mb", "0.0004"],
    ["--layers", "20,9,7,20"],
])
def test_losses_and_options(rdzv, options):
    near(run(rdzv, 2, "--steps", 15, *options)[0], run(rdzv, 2, "--steps", 15, *options, device="cpu")[0], 1e-4)


def test_graphs_and_schedules_change_no_byte(rdzv):
    options = ["--steps", 12, "--bucket-cap-mb", "0.0004"]
    sums = {run(rdzv, 2, *options, "--cuda-graph", graph, seed=seed)[1] for graph, seed in [("on", 1), ("off", 2), ("auto", 3), ("on", 4)]}
    assert len(sums) == 1, sums


@pytest.mark.parametrize("how", ["none", "plain", "align16", "refuse"])
def test_products_that_the_library_does_not_offer(rdzv, how):
    options = ["--steps", 8]
    near(run(rdzv, 1, *options, env={"FAKEGPU_LT": how})[0], run(rdzv, 1, *options, device="cpu")[0], 1e-4)


@pytest.mark.parametrize("call, says", [
    ("cudaMalloc:2", "no device memory for 1 MB; the device ("),
    ("kernel:5", "failed in a mark: an illegal memory access was encountered (cudaErrorIllegalAddress); the last queued operation was "),
    ("cublasLtMatmul:4", ": cuBLASLt: CUBLAS_STATUS_INTERNAL_ERROR\n"),
    ("cudaEventRecord:4", "failed in a mark: unknown error (cudaErrorUnknown); the last queued operation was "),
    ("cudaMemcpyAsync:1", "failed in a copy: unknown error (cudaErrorUnknown)"),
])
def test_a_call_that_fails_is_named(rdzv, call, says):
    a = start(rdzv, 1, "--steps", 10, "--cuda-graph", "off", env={"FAKEGPU_FAIL": call, **(GONE if "kernel" in call else {})})
    assert a.exit(30) == 71 and says in a.text, a
    for word in BAD[:3]: # what a fault leaves on the device goes with the process
        assert word not in a.text, a
    rdzv.gone()


@pytest.mark.parametrize("call, says", [
    ("cudaStreamWaitEvent:9", "failed in "),
    ("cublasLtMatmul:4", "cuBLASLt: CUBLAS_STATUS_INTERNAL_ERROR"),
    ("kernel:300", "illegal memory access|unhandled cuda error"),
])
def test_a_device_that_fails_among_ranks_is_no_lost_rank(rdzv, call, says):
    """Whoever has the fault leaves with 71, and says what it was."""
    # The wrapper gives the fault to rank 1 alone, and tells how it has ended.
    wrapper = f'[ "$RANK" = 1 ] && export FAKEGPU_FAIL={call}; "$0" "$@"; rc=$?; echo "rank $RANK left with $rc"; exit $rc'
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--nccl-ids", "always", "--shutdown-timeout", "20s", "--", "sh", "-c", wrapper, TRAINER, *SMALL,
                   "--device", "cuda", "--cuda-module", FAKE, "--steps", 40, "--cuda-graph", "off",
                   env={"LD_LIBRARY_PATH": str(FAKE.parent), **(GONE if "kernel" in call else {})})
    assert a.exit(60) == 71 and re.search(says, a.text) and "rank 1 left with 71" in a.text, a
    rdzv.gone()


def test_a_capture_that_fails_is_gone_without(rdzv):
    want = run(rdzv, 1, "--steps", 8)
    a = start(rdzv, 1, "--steps", 8, env={"FAKEGPU_FAIL": "cudaStreamBeginCapture:1"})
    assert a.exit(30) == 0 and "steps are not captured: " in a.text, a
    clean(a)
    assert a.expect(r"checksum (\w+)").group(1) == want[1]


def one_fails(rdzv, call, *options):
    """Three ranks, and the call fails on rank 1 alone."""
    wrapper = f'[ "$RANK" = 1 ] && export FAKEGPU_FAIL={call}; export FAKEGPU_SEED=$RANK; "$0" "$@"; rc=$?; echo "rank $RANK left with $rc"; exit $rc'
    return rdzv.agent("--standalone", "--nproc", 3, "--max-restarts", 0, "--shutdown-timeout", "20s", "--", "sh", "-c", wrapper, TRAINER, *SMALL,
                      "--device", "cuda", "--cuda-module", FAKE, "--steps", 12, "--metrics", rdzv.tmp / f"metrics-{len(rdzv.procs)}", *options,
                      env={"LD_LIBRARY_PATH": str(FAKE.parent)})


@pytest.mark.parametrize("call, says", [
    ("cudaStreamBeginCapture:1", "rank 1 cannot: .*a capture"),
    ("cublasLtMatmul:7", "rank 1 cannot: .*cuBLASLt"),  # the second product of the second step
    ("cudaGraphInstantiate:1", "rank 1 cannot: .*building a graph from a capture"),
    ("cudaStreamCreateWithPriority:3", "rank 1 cannot: .*creating a stream"),  # of the rehearsal's communicator
    ("ncclAllReduce:3", "rank 1 cannot: .*NCCL failed"),  # in the rehearsal
    ("ncclGetUniqueId:1", None),  # only rank 0 makes one
])
def test_all_ranks_capture_or_none_does(rdzv, call, says):
    want = run(rdzv, 3, "--steps", 12, "--cuda-graph", "off")[1]
    a = one_fails(rdzv, call)
    assert a.exit(50) == 0, a  # nobody waits for --coll-timeout, a minute
    clean(a)
    assert a.expect(r"checksum (\w+)").group(1) == want
    assert (says is None) == ("steps are not captured: " not in a.text), a
    if says:
        assert re.search(f"steps are not captured: .*{says}", a.text), a
        b = one_fails(rdzv, call, "--cuda-graph", "on")
        assert b.exit(60) == 71 and re.search(f"--cuda-graph on: the step cannot be captured: .*{says}", b.text), b


@pytest.mark.parametrize("graph", ["auto", "on"])
def test_a_capture_that_fails_after_all_could_is_that_ranks_error(rdzv, graph):
    a = one_fails(rdzv, "cudaGraphInstantiate:2", "--cuda-graph", graph)
    assert a.exit(60) == 71 and "rank 1 left with 71" in a.text and "not captured" not in a.text, a
    assert "the step cannot be captured, although all ranks could before: the device (" in a.text, a
    rdzv.gone()


@pytest.mark.parametrize("graph", ["on", "off"])
def test_the_device_tells_its_times(rdzv, graph):
    for world in (1, 2):
        a = start(rdzv, world, "--steps", 12, "--cuda-graph", graph)
        assert a.exit(60) == 0, a
        lines = [line for line in map(json.loads, open(a.argv[a.argv.index("--metrics") + 1])) if line["event"] == "step"]
        assert len(lines) == 12
        for line in lines:
            device = [line[key] for key in ("compute_ms", "comm_exposed_ms", "device_input_ms")]
            assert None not in device and device[0] > 0 and device[2] > 0 and (device[1] > 0) == (world > 1), line
            assert (line["device_idle_ms"] is None) == (line["step"] == 1) and line["steps_per_second"] > 0, line


def test_a_data_set_that_is_too_large_is_sent(rdzv):
    images = rdzv.tmp / "images"
    images.write_bytes(bytes([0, 0, 8, 2, 0, 0, 4096 >> 8, 0, 0, 0, 3, 0]) + bytes(k * 37 % 256 for k in range(4096 * 768)))
    options = ["--layers", "768,8,768", "--data", images, "--steps", 6]
    kept, sent = run(rdzv, 2, *options), start(rdzv, 2, *options, env={"FAKEGPU_MEMORY_MB": "40"})
    assert {run(rdzv, 2, *options, seed=seed, env={"FAKEGPU_MEMORY_MB": "40"})[1] for seed in (2, 3)} == {kept[1]}
    assert sent.exit(60) == 0 and "batches are sent to the device: the data set's 3 MB are more than 1/4 of the " in sent.text, sent
    clean(sent)
    assert (losses(rdzv, sent), sent.expect(r"checksum (\w+)").group(1)) == kept


def test_a_checkpoint_goes_from_device_to_device(rdzv):
    want = run(rdzv, 1, "--steps", 18, device="cpu")[0]
    got = []
    for steps, world, device in [(6, 2, "cuda"), (12, 1, "cpu"), (18, 2, "cuda")]:
        got += run(rdzv, world, "--steps", steps, "--checkpoint-dir", rdzv.tmp / "ckpt", device=device)[0]
    near(got, want, 1e-4)


def test_a_state_that_is_copied_between_steps_is_that_of_its_step(rdzv):
    """From each of its checkpoints, in any order in which the device may have worked."""
    options = ["--steps", 12, "--keep-checkpoints", 100]
    want = run(rdzv, 1, *options)[1]
    for seed in (1, 2, 3):
        kept = rdzv.tmp / f"c{seed}"
        a = start(rdzv, 1, *options, "--checkpoint-dir", kept, "--checkpoint-every", 3, seed=seed)
        assert a.exit(60) == 0 and a.expect(r"checksum (\w+)").group(1) == want, a
        clean(a)
        names = sorted(kept.iterdir(), key=lambda p: p.name[-6:])
        for name in [p for p in names if p.name[-6:] != "000003"]:
            (name / "COMMIT").unlink()
        saved = [line for line in map(json.loads, open(a.argv[a.argv.index("--metrics") + 1])) if line["event"] == "checkpoint"]
        assert all(line["stall_ms"] > 0 for line in saved), saved
        b = start(rdzv, 1, *options, "--checkpoint-dir", kept)
        assert b.exit(60) == 0 and "at step 3" in b.text and b.expect(r"checksum (\w+)").group(1) == want, b


def test_a_killed_rank_is_restarted(rdzv):
    a = start(rdzv, 2, "--steps", 60, "--checkpoint-dir", rdzv.tmp / "ckpt", "--checkpoint-every", 5, "--throttle", 20,
              "--coll-timeout", f"{5 * SLOW}s", agent=["--max-restarts", 2])
    workers = rdzv.await_workers(2, timeout=20)
    end = time.monotonic() + 30 * SLOW
    while not any((rdzv.tmp / "ckpt").glob("*")):
        assert time.monotonic() < end, a
        time.sleep(0.05)
    os.kill(workers[1], signal.SIGKILL)
    assert a.exit(90) == 0, a
    a.expect("checksum")
    for word in BAD[:3]:
        assert word not in a.text, a


def test_a_killed_rank_is_replaced_and_the_other_keeps_its_device(rdzv):
    options = ["--steps", 160, "--throttle", 40, "--recovery", "inplace", "--cuda-graph", "on", "--coll-timeout", f"{5 * SLOW}s"]
    want = run(rdzv, 2, *options)[1]
    a = start(rdzv, 2, *options, agent=["--max-restarts", 2])
    workers = rdzv.await_workers(2, timeout=20)
    metrics, end = Path(a.argv[a.argv.index("--metrics") + 1]), time.monotonic() + 20 * SLOW
    while not (metrics.exists() and metrics.read_text().count('"step"') > 20):
        assert time.monotonic() < end, a
        time.sleep(0.02)
    os.kill(workers[1], signal.SIGKILL)
    assert a.exit(90) == 0, a
    assert a.expect(r"checksum (\w+)").group(1) == want, a
    assert any(line["event"] == "recover" for line in map(json.loads, metrics.open())), a


def test_a_hung_rank_is_named(rdzv):
    a = start(rdzv, 2, "--steps", 100000, "--throttle", 20, "--coll-timeout", "3s")
    workers = rdzv.await_workers(2, timeout=20)
    time.sleep(2 * SLOW)
    os.kill(workers[1], signal.SIGSTOP)
    a.expect("rank 1 does not respond|lost contact with rank 1", 30)
    assert a.exit(60) != 0, a
