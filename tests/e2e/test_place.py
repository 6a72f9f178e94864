# SPDX-License-Identifier: Apache-2.0
"""The workers' place on the machine: their number, their CPUs, and the lines about both."""

import os

import pytest

CPUS = sorted(os.sched_getaffinity(0))
SHOW = 'echo "$LOCAL_RANK on $(grep Cpus_allowed_list /proc/self/status | cut -f2)"'


def pinned(*cpus):
    return ["taskset", "-c", ",".join(map(str, cpus))]


def test_nproc_cpu_counts_what_it_may_use(rdzv):
    a = rdzv.agent("--nproc", "cpu", "--", "sh", "-c", "echo $WORLD_SIZE", wrap=pinned(CPUS[-1]))
    assert a.exit() == 0 and a.out == ["1"], a


def test_nproc_auto_counts_gpus_that_are_named(rdzv):
    """CUDA_VISIBLE_DEVICES is believed where no driver can be asked."""
    if os.path.exists("/proc/driver/nvidia/gpus"):
        pytest.skip("not on this machine: it has GPUs")
    for n in "gpu", "auto":
        a = rdzv.agent("--nproc", n, "--", "sh", "-c", "echo $WORLD_SIZE", env={"CUDA_VISIBLE_DEVICES": "0,1,2"})
        assert a.exit() == 0 and set(l.split()[-1] for l in a.out) == {"3"}, a


def test_one_warning_for_too_few_cpus(rdzv):
    a = rdzv.agent("--nproc", 3, "--max-restarts", 1, "--", "sh", "-c", "exit $((1 - $RDZV_RESTART_COUNT))", wrap=pinned(CPUS[0]))
    assert a.exit() == 0, a
    assert [l for l in a.err if "CPU" in l] == ["rdzv-agent: 3 workers share 1 CPU: this process may use no more"], a
    a = rdzv.agent("--nproc", 3, "--", "true", wrap=pinned(CPUS[0]), env={"SLURM_JOB_ID": "7"})
    assert a.exit() == 0 and a.says(r"srun -c 3 \(--cpus-per-task\)"), a
    a = rdzv.agent("--", "true", wrap=pinned(CPUS[0]))
    assert a.exit() == 0 and not a.says("CPU"), a


def test_one_warning_for_too_few_gpus(rdzv):
    """Those of a variable, NVIDIA's or AMD's."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        a = rdzv.agent("--nproc", 4, "--", "true", env={name: "0"})
        assert a.exit() == 0, a
        assert [l for l in a.err if "GPU" in l] == [
            "rdzv-agent: 4 workers share 1 GPU: this process sees no more; ask the scheduler for 4, or start --nproc 1"], a
    a = rdzv.agent("--nproc", 2, "--", "true", env={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert a.exit() == 0 and not a.says("GPU"), a


def test_threads(rdzv):
    """Several workers get one each, said once; a single one, and what was set by hand, are left alone."""
    show = ["--", "sh", "-c", "echo ${OMP_NUM_THREADS-unset}; exit $((1 - $RDZV_RESTART_COUNT))"]
    bare = ["env", "-u", "OMP_NUM_THREADS"]
    a = rdzv.agent("--nproc", 2, *show, wrap=bare)
    assert a.exit() == 0 and {l.split()[-1] for l in a.out} == {"1"}, a
    assert sum("OMP_NUM_THREADS" in l for l in a.err) == 1, a
    a = rdzv.agent(*show, wrap=bare)
    assert a.exit() == 0 and set(a.out) == {"unset"} and not a.says("OMP_NUM"), a
    a = rdzv.agent("--nproc", 2, *show, env={"OMP_NUM_THREADS": "5"})
    assert a.exit() == 0 and {l.split()[-1] for l in a.out} == {"5"} and not a.says("OMP_NUM"), a


def test_a_worker_runs_on_the_cpus_it_is_bound_to(rdzv):
    """exclusive: the workers share this machine's CPUs, each its own core; there is no GPU, and that is said once."""
    if len(CPUS) < 2 or os.path.exists("/proc/driver/nvidia/gpus"):
        pytest.skip("not on this machine: needs two CPUs and no GPU")
    siblings = {open(f"/sys/devices/system/cpu/cpu{c}/topology/thread_siblings_list").read() for c in CPUS}
    if len(siblings) < 2:
        pytest.skip("not on this machine: needs two cores")
    a = rdzv.agent("--nproc", 2, "--numa-binding", "exclusive", "--", "sh", "-c", SHOW)
    assert a.exit() == 0, a
    said = dict(l.split("] ")[1].split(" on ") for l in a.out)
    assert set(said) == {"0", "1"} and said["0"] != said["1"], a
    assert sum("no GPU is visible: workers are spread over" in l for l in a.err) == 1, a


@pytest.mark.parametrize("how", ["node", "socket", "exclusive", "core-complex"])
def test_no_worker_gets_a_cpu_that_the_agent_has_not(rdzv, how):
    a = rdzv.agent("--numa-binding", how, "--", "sh", "-c", SHOW, wrap=pinned(CPUS[-1]))
    assert a.exit() == 0 and a.out == [f"0 on {CPUS[-1]}"], a


def test_virtual_local_rank(rdzv):
    """Every worker is local rank 0 of its own device, and still its own self to the agent."""
    show = 'echo "$RANK $LOCAL_RANK $RDZV_LOCAL_RANK $CUDA_VISIBLE_DEVICES"'
    for visible, one, two in ("5, 7", "5", "7"), ("GPU-x, GPU-y", "GPU-x", "GPU-y"):
        a = rdzv.agent("--nproc", 2, "--virtual-local-rank", "--", "sh", "-c", show, env={"CUDA_VISIBLE_DEVICES": visible})
        assert a.exit() == 0 and sorted(a.out) == [f"[0] 0 0 0 {one}", f"[1] 1 0 1 {two}"], a
    a = rdzv.agent("--nproc", 2, "--virtual-local-rank", "--", "sh", "-c", show, env={"CUDA_VISIBLE_DEVICES": "5, GPU-x"})
    assert a.exit() == 64 and a.says("names only 1"), a  # CUDA does not take both kinds
    a = rdzv.agent("--nproc", 3, "--virtual-local-rank", "--", "sh", "-c", show, env={"CUDA_VISIBLE_DEVICES": "5,6"})
    assert a.exit() == 64 and a.says("3 workers .* names only 2"), a


@pytest.mark.parametrize("option", ["--virtual-local-rank", "--exclude-busy"])
def test_options_of_devices_where_there_are_none(rdzv, option):
    if os.path.exists("/proc/driver/nvidia/gpus"):
        pytest.skip("not on this machine: needs no GPU")
    a = rdzv.agent("--nproc", 2, option, "--", "true")
    assert a.exit() == 0, a
