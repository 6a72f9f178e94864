# SPDX-License-Identifier: Apache-2.0
"""Under a real Slurm (slurm.py): the commands of deploy/slurm.md, and the scripts beside it as they stand there, with sbatch's own options in place of theirs.

Where a run is disturbed, its weights in the end are those of an undisturbed one, byte for byte. After each test nothing but Slurm is left on any host.
"""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

import pages
import waits
from harness import TOP, until
from job import PYTHON, Clock

sys.path.insert(0, str(TOP / "tests/rig"))
import machines  # noqa: E402

PAGE, AWS = "deploy/slurm.md", "deploy/aws.md"
SCRIPTS = TOP / "deploy/slurm"
SMALL = ("--nodes", 2, "--gpus-per-node", 2, "--cpus-per-task", 1)
TRAIN = ("--layers", "60,12,60", "--data", "synthetic:500", "--scale", "0.01", "--batch", 16, "--loss", "rmse", "--seed", 3, "--coll-timeout", "20s")
torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed: tests/run --torch installs it")
# What the page's ./train.py is here: it says where it is, and waits for the file `go` if it is not there.
STAND_IN = """import os, socket, time
e = os.environ
print(f"{socket.gethostname()}: round {e['RDZV_ROUND']}, rank {e['RANK']} of {e['WORLD_SIZE']}, local {e['LOCAL_RANK']}, {e.get('FI_PROVIDER')}", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""
WAIT = "echo $(hostname): round $RDZV_ROUND, rank $RANK of $WORLD_SIZE; while [ ! -e go ]; do sleep 0.1; done"


def train(steps, *more):
    return (*TRAIN, "--steps", steps, *more)


def checksum(said, steps):
    (found,) = set(re.findall(rf"done: {steps} steps, .*checksum (\w+)", said))  # said twice, where it was told to stop when it was done
    return found


def undisturbed(c, steps, command=None, gpus=2):
    """The weights' checksum of a run on which nobody lays hands."""
    p = c.srun("--nodes", 2, "--gpus-per-node", gpus, "rdzv-agent", "--", *(command or train(steps)))
    assert p.exit(60) == 0, p
    return checksum(p.text, steps)


def stand_in(c, go=True):
    (c.tmp / "train.py").write_text(STAND_IN)
    if go:
        (c.tmp / "go").touch()


def test_srun_needs_no_option(make_slurm):
    """The number of nodes, of workers and the place to meet are Slurm's affair."""
    c = make_slurm(3)
    stand_in(c)
    p = c.type(pages.block(PAGE, "bare"))
    assert p.exit(30) == 0, c
    assert sorted(p.out) == [f"[{r}] node{1 + r // 4}: round 1, rank {r} of 8, local {r % 4}, None" for r in range(8)], c
    said = [l for l in p.err if "rdzv-agent" in l and not re.search("wait|trying again", l)]  # which it is told when that takes longer than a second
    assert len(said) <= 9, f"it says too much\n{c}"  # threads, CPUs, the round, the end; from each node; and from one where the page is
    c.gone()


def test_a_key_by_munge(make_slurm):
    """Each node has a home folder of its own, so agents begin with different keys. MUNGE, which Slurm uses itself, brings the key of the daemon."""
    c = make_slurm(2)
    own = "XDG_CONFIG_HOME=$PWD/home.$SLURM_PROCID exec rdzv-agent --verbose -- sh -c 'echo rank $RANK of $WORLD_SIZE'"
    p = c.srun("--nodes", 2, "sh", "-c", own)
    assert p.exit(30) == 0, p
    assert p.says("rank 0 of 2") and p.says("rank 1 of 2"), p
    keys = {path.read_text() for path in c.tmp.glob("home.*/rdzv/key")}
    assert len(keys) == 2, "each node has made a key of its own"
    assert len(re.findall("MUNGE has brought the key of this user", p.text)) == 1, f"one agent runs the daemon, the other asks it:\n{p}"
    assert not any(key.strip() in p.text for key in keys), "a key is in the output"


def test_explain(make_slurm):
    """And where they come from. What the page shows is what is said."""
    c = make_slurm(2)
    stand_in(c)
    p = c.type("srun -N 1 true\n" + pages.block(PAGE, "explain"))
    assert p.exit() == 0, c
    shown = next(b.text for b in pages.blocks(PAGE) if b.text.startswith("nnodes ")).splitlines()
    assert set(shown) <= set(p.out) and len(p.out) == 2 * len(shown), f"{shown}\n{c}"
    c.gone()


def test_scripts(make_slurm):
    """As the page has them, and one that forgets srun. Each of them is a script that bash can read."""
    c = make_slurm(2)
    stand_in(c)
    for script in (TOP / "deploy").glob("*/*.sbatch"):
        assert subprocess.run(["bash", "-n", script]).returncode == 0, script
    (c.tmp / "forgets.sh").write_text("#!/bin/sh\nrdzv-agent -- ./train.py\n")
    jobs = c.submitted(pages.block(PAGE, "scripts"))
    forgets = c.sbatch("--nodes", 2, "--output", "%x-%j.out", "forgets.sh")
    assert [job.exit() for job in jobs] == [0, 0] and forgets.exit() == 64, c
    for job in jobs:
        for r in range(8):
            assert job.says(rf"node{1 + r // 4}: round 1, rank {r} of 8, local {r % 4}, None$"), c
    assert forgets.says("write srun rdzv-agent"), c
    c.gone()


def test_looking_at_a_job(make_slurm):
    c = make_slurm(2)
    stand_in(c, go=False)
    (job,) = c.submitted("sbatch two-nodes.sbatch ./train.py")
    for rank in range(8):
        job.expect(f"rank {rank} of 8")

    def runs():  # the daemon hears of it later than we do
        p = c.type(f"job={job.id}\n" + pages.block(PAGE, "status"))
        return p.exit() == 0 and p.says(f"slurm-{job.id}.0: running .*, 2 nodes, 8 workers") and p.says("node2 .*4-7 +running")

    until(lambda: f"the status of a job that runs\n{c}", runs, 20)
    for words, name in (("scontrol show partition", "GraceTime"), ("scontrol show config", "KillWait")):
        p = c.type(pages.inline(PAGE, words))
        assert p.exit() == 0 and p.says(rf"\b{name} *="), p
    (c.tmp / "go").touch()
    assert job.exit() == 0, c
    c.gone()


def test_parallelcluster(make_slurm):
    """deploy/aws: without EFA and GPUs, so that all that can be seen is that what libfabric is told reaches the workers."""
    c = make_slurm(2)
    stand_in(c)
    (job,) = c.submitted(pages.block(AWS, "job"), {"SBATCH_GPUS_PER_NODE": "2"})
    assert job.exit() == 0, c
    for r in range(4):
        assert job.says(rf"node{1 + r // 2}: round 1, rank {r} of 4, local {r % 2}, efa$"), c
    c.gone()


# A container shows what it is told to show; here, all of the node but the folder for temporary files.
APPTAINER = """#!/bin/bash
[ "$1" = exec ] || exit 255
shift
bound='' folder=''
while :; do
  case $1 in
    --nv) shift ;;
    --bind) [ "$2" != "$TMPDIR" ] || bound=yes; folder+=" $2"; shift 2 ;;
    --pwd) cd "$2" || exit 255; shift 2 ;;
    *) break ;;
  esac
done
[ -s "$1" ] || { echo "FATAL: could not open image $1" >&2; exit 255; }
shift
case " $folder " in *" $PWD "*) ;; *) echo "FATAL: $PWD is not mounted" >&2; exit 255 ;; esac
[ -n "$bound" ] || exec unshare --mount sh -c 'mount -t tmpfs none "$TMPDIR" && exec "$@"' sh "$@"
exec "$@"
"""
FAILS = """import json, os
path = os.environ["TORCHELASTIC_ERROR_FILE"]
assert path.startswith("/run/scratch/"), path
if os.path.isdir(os.path.dirname(path)):
    json.dump({"message": {"message": "the worker's own words", "extraInfo": {}}}, open(path, "w"))
raise SystemExit(3)
"""


def test_container(make_slurm):
    """The error file of a worker in there is the agent's, outside."""
    c = make_slurm(2)
    stand_in(c)
    for host in c.hosts:
        host.ns.sh("mkdir /run/scratch")
    (c.tmp / "bin").mkdir()
    (c.tmp / "bin/apptainer").write_text(APPTAINER)
    (c.tmp / "bin/apptainer").chmod(0o755)
    (c.tmp / "bin/python").symlink_to(sys.executable)
    (c.tmp / "pytorch.sif").write_text("an image")
    env = {"SBATCH_GPUS_PER_NODE": "1", "PATH": f"{c.tmp}/bin:{c.env()['PATH']}", "RDZV_AGENT_MAX_RESTARTS": "0"}
    (job,) = c.submitted("export TMPDIR=/run/scratch\n" + pages.block(PAGE, "container"), env)
    assert job.exit() == 0 and job.says("rank 1 of 2, local 0"), c
    (c.tmp / "train.py").write_text(FAILS)
    (job,) = c.submitted("export TMPDIR=/run/scratch\n" + pages.block(PAGE, "container"), env)
    assert job.exit() == 3 and job.says("the worker's own words"), c
    c.gone()


@pytest.mark.seconds(30)
def test_lines_of_sites(make_slurm):
    """One job each, with all ranks, on the cluster of the script: no line starts two, and none makes a world of one."""
    # What the table says of each: (what is replaced, by what).
    word, module, before = ("torchrun", "rdzv-agent"), ("python -m torch.distributed.run", "rdzv-agent"), ("python", "rdzv-agent -- python")
    sites = {
        "torchrun --standalone --nproc-per-node 4 train.py": word,
        "srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py": word,
        "srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-id $SLURM_JOB_ID --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py": word,
        "srun bash -c 'torchrun --nnodes 2 --nproc-per-node 4 --node-rank $SLURM_PROCID --master-addr $HEAD --master-port 29500 train.py'": word,
        "srun python -m torch.distributed.run --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py": module,
        "srun --ntasks-per-node 4 python train.py": before,
    }
    c = make_slurm(2)
    stand_in(c)
    (c.tmp / "bin").mkdir()
    (c.tmp / "bin/python").symlink_to(sys.executable)
    table = "deploy/README.md"
    head = "#!/bin/bash\nexport HEAD=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
    for n, (line, change) in enumerate(sites.items()):
        (c.tmp / "site.sbatch").write_text(head + pages.with_changes(pages.inline(table, line), [change]) + "\n")
        tasks = ("--ntasks-per-node", 4, "--cpus-per-task", 1) if "ntasks" in line else ("--cpus-per-task", 4)
        job = c.sbatch("--nodes", 2, "--gpus-per-node", 4, *tasks, "--output", f"site{n}-%j.out", "site.sbatch", env={"PATH": f"{c.tmp}/bin:{c.env()['PATH']}"})
        assert job.exit() == 0, c
        size = 4 if "standalone" in line else 8
        assert sorted(re.findall(r"round 1, rank (\d+) of (\d+), local (\d)", job.text)) == [(str(r), str(size), str(r % 4)) for r in range(size)], f"{line}\n{c}"
        assert len(re.findall(r"is done: 1 round", job.text)) >= 1, job
    c.gone()


# Of the host neither the home folder nor MUNGE's socket.
PYXIS = """#!/bin/sh
exec unshare --mount sh -c 'mount -t tmpfs none /run/munge && mount -t tmpfs none /root && exec "$@"' sh "$@"
"""


def test_pyxis(make_slurm):
    """The agent runs in the container, where it finds the job's key in its environment alone. Without it the second node is refused, and not said to be missing."""
    c = make_slurm(2)
    stand_in(c)
    (c.tmp / "container").write_text(PYXIS)
    (c.tmp / "container").chmod(0o755)
    options = ' --container-image=./pytorch.sqsh --container-mounts="$PWD:$PWD" --container-workdir="$PWD"'
    block = pages.with_changes(pages.block(PAGE, "pyxis"), [(options, " ./container"), ("--gpus-per-node 4", "--gpus-per-node 1"), ("-- python", f"-- {PYTHON}")])
    env = {"HOME": "/root", "XDG_CONFIG_HOME": "", "SLURM_WAIT": "0"}
    p = c.type(block, env=env)
    assert p.exit(60) == 0 and p.says("rank 0 of 2, local 0") and p.says("rank 1 of 2, local 0"), c
    p = c.type(block.splitlines()[-1], env={**env, "RDZV_AGENT_JOIN_TIMEOUT": "12s"})
    assert p.exit(60) != 0 and p.says("has another key"), c
    assert p.says(r"too few nodes joined in time: .*node2 \(refused \d+ s ago"), c
    c.gone()


SELECT_GPU = """#!/bin/bash
export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID
exec "$@"
"""


def test_amd(make_slurm):
    """LUMI's wrapper: each task sees one GPU, whose number is 0. Slurm alone: a worker for each GPU, numbered by LOCAL_RANK. The machine's files are made."""
    c = make_slurm(2)
    gpus = machines.mi250(c.tmp / "root")
    env = {"RDZV_DEVICES_ROOT": str(c.tmp / "root")}
    wanted = {(str(r), str(r % 4), gpus[r % 4][1]) for r in range(8)}
    stand_in(c)
    (c.tmp / "select_gpu").write_text(SELECT_GPU)
    (c.tmp / "select_gpu").chmod(0o755)
    (c.tmp / "train.py").write_text("#!/usr/bin/env python3\n" + STAND_IN.replace("{e.get('FI_PROVIDER')}", "{e.get('RDZV_DEVICE_UUID')}"))
    (c.tmp / "train.py").chmod(0o755)
    fewer = [("--gpus-per-node 8", "--gpus-per-node 4")]
    p = c.type(pages.with_changes(pages.block("deploy/amd.md", "node"), fewer), env=env)
    assert p.exit(60) == 0, c
    assert set(re.findall(r"rank (\d) of 8, local (\d), (\S+)", p.text)) == wanted, c
    p = c.type(pages.with_changes(pages.block("deploy/amd.md", "wrapper"), [*fewer, ("--ntasks-per-node 8", "--ntasks-per-node 4")]), env=env)
    assert p.exit(60) == 0, c
    assert set(re.findall(r"rank (\d) of 8, local (\d), (\S+)", p.text)) == {(rank, "0", uuid) for rank, _, uuid in wanted}, c
    c.gone()


@pytest.mark.parametrize("label", [False, True])
def test_output_is_whole(make_slurm, label):
    """Four workers write lines of many lengths as fast as they can: each arrives once, whole, with the prefix of its rank, and with srun -l that of its task."""
    c = make_slurm(2)
    script = "i=0; while [ $i -lt 300 ]; do printf '%d:%0*d.\\n' $i $((i % 97 + 1)) 7; i=$((i + 1)); done; echo to stderr >&2"
    p = c.srun(*(["-l"] if label else []), "-N", 2, "--gpus-per-node", 2, "rdzv-agent", "--", "sh", "-c", script)
    assert p.exit(30) == 0, c
    mine = lambda r, text: f"{f'{r // 2}: ' if label else ''}[{r}] {text}"
    for r in range(4):
        want = [mine(r, f"{i}:{7:0{i % 97 + 1}d}.") for i in range(300)]
        assert [l for l in p.out if l.startswith(mine(r, ""))] == want, f"rank {r}\n{c}"
        assert p.err.count(mine(r, "to stderr")) == 1, c
    assert len(p.out) == 1200, c
    c.gone()


def test_two_nodes(make_slurm):
    c = make_slurm(2)
    job = c.sbatch(*SMALL, SCRIPTS / "two-nodes.sbatch", *train(200))
    assert job.exit() == 0, c
    assert job.says("round 1: 2 nodes, 4 workers") and checksum(job.text, 200) == undisturbed(c, 200), c
    c.gone()


@torch
@pytest.mark.seconds(25)
def test_pytorch(make_slurm):
    """deploy/slurm/train.py, on gloo, as a user starts it."""
    c = make_slurm(2)
    job = c.sbatch(*SMALL, SCRIPTS / "two-nodes.sbatch", SCRIPTS / "train.py", "--epochs", 2, env={"PYTHON_EXEC": sys.executable})
    assert job.exit(120) == 0, c
    assert job.says("4 ranks, from step 0 on") and job.says(r"step 200, loss 0\.\d+$") and job.says("done: 200 steps"), c
    c.gone()


def test_tasks_of_one_gpu(make_slurm):
    """One agent for each GPU. Where all see all GPUs of the node, LOCAL_RANK is the number there; where each sees its own alone, it is 0."""
    c = make_slurm(2)
    said = "echo rank $RANK of $WORLD_SIZE, local $LOCAL_RANK of $LOCAL_WORLD_SIZE, sees $CUDA_VISIBLE_DEVICES, on $(hostname)"
    both = ("--ntasks-per-node", 2, "--cpus-per-task", 1)
    all_ = c.sbatch("--gpus-per-node", 2, *both, SCRIPTS / "task-per-gpu.sbatch", "sh", "-c", said)
    assert all_.exit() == 0, c
    own = c.sbatch("--gpus-per-node", 2, "--gpus-per-task", 1, *both, SCRIPTS / "task-per-gpu.sbatch", "sh", "-c", said)
    assert own.exit() == 0, c
    for rank in range(4):
        host, n = f"node{1 + rank // 2}", rank % 2
        assert all_.says(rf"rank {rank} of 4, local {n} of 2, sees 0,1, on {host}$"), c
        assert own.says(rf"rank {rank} of 4, local 0 of 1, sees {n}, on {host}$"), c
    uneven = c.srun("--nodes", 2, "--ntasks", 4, "--gpus-per-node", 2, "rdzv-agent", "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE on $(hostname)")
    assert uneven.exit() == 0 and len(uneven.out) == 4 and all("of 4" in l for l in uneven.out), c  # Slurm may put three on one node
    c.gone()


def test_ranks_follow_the_topology(make_slurm):
    """As srun numbers its tasks: since 26.05 switch by switch, before that as the node list. In both cases every agent finds its own workers' numbers."""
    c = make_slurm(4, topology="SwitchName=s1 Nodes=node[1,3]\nSwitchName=s2 Nodes=node[2,4]\nSwitchName=top Switches=s[1-2]\n")
    p = c.srun("-N", 4, "sh", "-c", "echo $SLURM_PROCID $(hostname) $SLURM_TOPOLOGY_ADDR")
    assert p.exit() == 0, c
    placed = [line.split()[1:] for line in sorted(p.out)]
    assert [host for host, _ in placed] == [f"node{i}" for i in ((1, 3, 2, 4) if c.version() >= (26, 5) else (1, 2, 3, 4))], p
    assert all(at == f"top.s{1 + (int(host[-1]) + 1) % 2}.{host}" for host, at in placed), p
    p = c.srun("-N", 4, "--gpus-per-node", 2, "rdzv-agent", "--", "sh", "-c", "echo $RANK $GROUP_RANK $LOCAL_RANK $(hostname)")
    assert p.exit(30) == 0, c
    assert sorted(p.out) == [f"[{r}] {r} {r // 2} {r % 2} {placed[r // 2][0]}" for r in range(8)], c
    # The place to meet is the list's first host, which need not have the first rank.
    p = c.srun("-N", 3, "-w", "node[2-4]", "rdzv-agent", "--", "sh", "-c", "echo $RANK $(hostname)")
    assert p.exit(30) == 0, c
    assert sorted(p.out) == [f"[{r}] {r} {host}" for r, host in enumerate(host for host, _ in placed if host != "node1")], c
    c.gone()


def test_a_step_smaller_than_its_job(make_slurm):
    c = make_slurm(3)
    p = c.srun("-N", 3, "--gpus-per-node", 1, "sh", "-c", "true")
    assert p.exit() == 0, c
    script = c.tmp / "job.sh"
    script.write_text(f"#!/bin/sh\nsrun -N 2 rdzv-agent -- sh -c 'echo $RDZV_RUN_ID: rank $RANK of $WORLD_SIZE on $(hostname)'\n"
                      f"srun -N 1 -w node3 rdzv-agent -- sh -c 'echo $RDZV_RUN_ID: rank $RANK of $WORLD_SIZE on $(hostname)'\n")
    job = c.sbatch("-N", 3, "-o", "%x-%j.out", script)
    assert job.exit() == 0, c
    for line in (f"slurm-{job.id}.0: rank 0 of 2 on node1", f"slurm-{job.id}.0: rank 1 of 2 on node2", f"slurm-{job.id}.1: rank 0 of 1 on node3"):
        assert job.says(line), c
    c.gone()


def test_two_jobs_on_the_same_nodes(make_slurm):
    """At the same time; neither hears of the other."""
    c = make_slurm(2)
    jobs = [c.sbatch(*SMALL, SCRIPTS / "two-nodes.sbatch", "sh", "-c", WAIT) for _ in range(2)]
    for job in jobs:
        for rank in range(4):
            job.expect(f"round 1, rank {rank} of 4")
    (c.tmp / "go").touch()
    assert [job.exit() for job in jobs] == [0, 0], c
    assert not any(job.says("is taken|refused|incarnation") for job in jobs), c
    c.gone()


def test_two_terminals_of_one_allocation(make_slurm):
    """A shell of a step of two tasks, and ssh to the other node: the first one's variables name a job that the other cannot know."""
    c = make_slurm(2)
    line = "rdzv-agent --nnodes 2 --nproc 1 --master_addr node1 --master_port 29501 --node_rank {} -- sh -c 'echo rank $RANK of $WORLD_SIZE in $RDZV_RUN_ID'"
    step = c.srun("-N", 2, "--ntasks-per-node", 1, "sh", "-c", 'if [ $SLURM_PROCID = 0 ]; then eval "$0"; fi', line.format(0))
    by_hand = c[2].agent(*line.format(1).split(" -- ")[0].split()[1:], "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE in $RDZV_RUN_ID")
    assert step.exit(30) == 0 and by_hand.exit(30) == 0, c
    assert step.says(r"rank 0 of 2 in \S+@node1:29501") and by_hand.says(r"rank 1 of 2 in \S+@node1:29501"), c
    c.gone()


def test_a_place_outside_of_the_step(make_slurm):
    """$SLURM_SUBMIT_HOST, as scripts for torchrun have it, where srun was typed on a host that is not of the step."""
    c = make_slurm(2)
    p = c.srun("-N", 1, "-w", "node2", "sh", "-c", "exec rdzv-agent --nnodes 1 --rdzv-endpoint $SLURM_SUBMIT_HOST -- true")
    p.expect("login is not one of this step's hosts, node2: leave --rdzv-endpoint out", 20)
    p.kill()
    assert p.exit(30) != 0, c
    c.gone()


def test_one_node_by_srun_and_the_other_by_hand(make_slurm):
    """`srun --pty` in one terminal, ssh in the other: the same endpoint is typed in both, and only one of them has Slurm's variables."""
    c = make_slurm(2)
    typed = ("--nnodes", 2, "--nproc", 1, "--master_addr", "node1", "--master_port", 29501)
    said = ("--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE on $(hostname) in $RDZV_RUN_ID")
    by_srun = c.srun("-N", 1, "-w", "node1", "rdzv-agent", *typed, "--node_rank", 0, *said)
    by_hand = c[2].agent(*typed, "--node_rank", 1, *said)
    assert by_srun.exit(30) == 0 and by_hand.exit(30) == 0, c
    name = re.search(r"rank 0 of 2 on node1 in (\S+)$", by_srun.text, re.M)[1]
    assert name.endswith("@node1:29501") and by_hand.says(f"rank 1 of 2 on node2 in {name}\n"), c
    c.gone()


def test_slurms_numbers_are_the_workers(make_slurm):
    """A script that reads Slurm's variables, not torchrun's: each rank is there once, whether a task is an agent or a worker."""
    c = make_slurm(2)
    script = ("rdzv-agent", "--nproc", 2, "--", "sh", "-c", "echo $SLURM_PROCID of $SLURM_NTASKS, $SLURM_LOCALID on $SLURM_NODEID")
    for more, workers in ((script, 2), ((*script[:1], *script[3:]), 1)):
        p = c.srun("-N", 2, "--ntasks-per-node", 2 // workers, *more)
        assert p.exit(30) == 0 and sorted(p.out) == [f"[{r}] {r} of 4, {r % 2} on {r // 2}" for r in range(4)], c
    c.gone()


def test_more_tasks_than_nodes(make_slurm):
    """The first two would take both places, on one host. As many as one on each host may be more than nodes: spares."""
    c = make_slurm(2)
    typed = ("rdzv-agent", "--nnodes", 2, "--nproc", 2, "--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE on $(hostname)")
    p = c.srun("-N", 2, "--ntasks-per-node", 2, *typed)
    assert p.exit(30) == 64, c
    why = r"srun started 4 agents \(SLURM_STEP_NUM_TASKS=4\), several of them on one host, but --nnodes=2 admits 2: start one on each host \(srun --ntasks-per-node=1\)"
    assert p.says(why) and not p.out, c
    p = c.srun("-N", 2, "--ntasks-per-node", 1, *typed)  # as it says
    assert p.exit(30) == 0 and sorted(p.out) == [f"[{r}] rank {r} of 4 on node{1 + r // 2}" for r in range(4)], c
    p = c.srun("-N", 2, "--ntasks-per-node", 2, "rdzv-agent", *typed[5:])
    assert p.exit(30) == 0 and sorted(p.out) == [f"[{r}] rank {r} of 4 on node{1 + r // 2}" for r in range(4)], c
    c.gone()


def test_fewer_tasks_than_nodes(make_slurm):
    c = make_slurm(2)
    p = c.srun("rdzv-agent", "--nnodes", 2, "--", "true")
    assert p.exit(30) == 64 and p.says(r"srun started 1 agent \(SLURM_STEP_NUM_TASKS=1\), but --nnodes=2 needs 2: .*srun --nodes=2 --ntasks-per-node=1"), c
    p = c.srun("rdzv-agent", "--nnodes", 2, "--endpoint", "node1", "--join-timeout", "2s", "--", "true")
    assert p.exit(30) == 73 and p.says(r"srun started 1 agent .* start the others elsewhere, with the same endpoint"), c
    c.gone()


@pytest.mark.parametrize("script", ["two-nodes", "requeue", "elastic"])
def test_scancel(make_slurm, script):
    """A signal for the workers, which have asked for it, ends nothing. Then the end: nothing is left, long before Slurm would send SIGKILL, and the job is not
    requeued, whatever the script does at exit code 75."""
    c = make_slurm(2)
    job = c.sbatch(*SMALL, SCRIPTS / f"{script}.sbatch", PYTHON, "-SE", waits.__file__, "stay", "USR1")
    for rank in range(4):
        job.expect(rf"\[{rank}\] ready")
    c.run("scancel", "--signal", "USR1", job.id)
    for rank in range(4):
        job.expect(rf"\[{rank}\] got USR1")
    clock = Clock(c)
    c.run("scancel", job.id)
    c.gone(20)  # KillWait is 30 s
    clock.fact("nothing of a job that was cancelled is left")
    job.until_state("CANCELLED")
    assert not job.says("round 2|lost contact|is to go on"), c
    until(lambda: f"the queue is empty: {c.run('squeue')}", lambda: not c.run("squeue", "-h"))


@pytest.mark.skipif(not shutil.which("mpirun.openmpi"), reason="Open MPI is not installed (package openmpi-bin)")
def test_mpirun_in_a_batch_script(make_slurm):
    """Open MPI that was built for Slurm: its helper on the other node is a step. From the shell of salloc, on the login node, it needs an endpoint."""
    c = make_slurm(2)
    script = c.tmp / "job.sh"
    said = "sh -c 'echo rank $RANK of $WORLD_SIZE on $(hostname) in $RDZV_RUN_ID'"
    script.write_text(f"#!/bin/sh\nexec mpirun.openmpi --bind-to none --map-by ppr:1:node rdzv-agent --nproc 2 -- {said}\n")
    script.chmod(0o755)
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    job = c.sbatch("-N", 2, "-o", "%x-%j.out", script, env=env)
    assert job.exit() == 0, c
    for r in range(4):
        assert job.says(rf"rank {r} of 4 on node{1 + r // 2} in mpi-\d+$"), c
    p = c.start_there("salloc", "-N", 2, script, env=env)
    assert p.exit(60) == 64 and p.says(r"agents would meet on .* give --endpoint node1 to all of them"), c
    script.write_text(script.read_text().replace("--nproc 2", "--nproc 2 --endpoint node1"))
    p = c.start_there("salloc", "-N", 2, script, env=env)
    assert p.exit(60) == 0 and len(re.findall(r"rank \d of 4 on node\d in mpi-\d+", p.text)) == 4, c
    c.gone()
