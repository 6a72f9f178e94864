# SPDX-License-Identifier: Apache-2.0
"""Under a real Grid Engine (sge.py): the lines of deploy/sge.md and the scripts beside it as they stand there. After each test nothing but Grid Engine is left on any host."""

import os
import re
import shutil
import time

import pages
import pytest
from harness import SLOW, until
from test_batch import TRAIN

PAGE = "deploy/sge.md"


def train(c, text=TRAIN):
    (c.tmp / "train.py").write_text(text)
    (c.tmp / "train.py").chmod(0o755)


def typed(c, name, *options, env=None):
    """The job that the page's line submits, with further options of qsub."""
    (line,) = pages.lines(PAGE, name)
    return c.submitted(line.replace("qsub ", " ".join(("qsub", *options, ""))), env)


def ranks(job, n=2, life=1):
    """Until all n ranks have said where they are, in this life of the job: {(rank, host)}."""
    found = lambda: re.findall(rf"rank (\d+) of {n} local 0 of 1 on (\S+)", job.text)
    until(lambda: f"{n} ranks in life {life}:\n{job}\n{job.sge.logs()}", lambda: len(found()) >= n * life, 30)
    return set(found())


BOTH = {("0", "node1"), ("1", "node2")}, {("0", "node2"), ("1", "node1")}  # the script may run on either


@pytest.mark.seconds(25)
def test_train(make_sge):
    """The page's first line; the same as an array, each element of which is a job of its own; and a worker that fails."""
    c = make_sge(2)
    train(c)
    job, array = typed(c, "train"), typed(c, "train", "-t", "1-2")
    assert ranks(job) in BOTH, job
    until(lambda: f"two jobs of two ranks each:\n{array}", lambda: len(re.findall(r"rank [01] of 2 local 0 of 1", array.text)) == 4, 30)
    assert {n for n in re.findall(r"sge-(\S+)", array.text)} == {f"{array.id}.1", f"{array.id}.2"}, array
    (c.tmp / "go").touch()
    assert job.end().exits() == [(0, "0")] and array.end(2).exits() == [(0, "0")] * 2, c
    train(c, "#!/usr/bin/env python3\nimport os\nraise SystemExit(7 if os.environ['RANK'] == '1' else 0)\n")
    failing = typed(c, "train", env={"RDZV_AGENT_MAX_RESTARTS": "0"})
    assert [code for code, _ in failing.end().exits()] == [7], failing
    assert failing.says(r"failed in round 1: rank 1 .* exited with code 7"), failing
    c.gone()


@pytest.mark.seconds(40)
def test_requeue(make_sge):
    """It leaves before its end with a checkpoint, and Grid Engine runs it again. The script reads the time from `date`: here its first life ends in
    ten minutes and the seconds in which a busy machine starts the workers. Grid Engine keeps a requeued job away from a host that had only its task: hence three."""
    c = make_sge(3)
    train(c)
    (c.tmp / "bin").mkdir()
    early = f"mkdir {c.tmp}/first 2>/dev/null && exec echo {int(time.time()) - 24 * 3600 + 600 + 20 * SLOW}"
    (c.tmp / "bin/date").write_text(f"#!/bin/sh\n{early}\nexec {shutil.which('date')} \"$@\"\n")
    (c.tmp / "bin/date").chmod(0o755)
    job = typed(c, "requeue", env={"PATH": f"{c.tmp}/bin:{c.env()['PATH']}"})
    ranks(job)
    job.expect("leaving with exit code 75", 40)
    ranks(job, life=2)
    assert len(re.findall(r"^\[\d\] checkpoint", job.text, re.M)) == 2, job
    (c.tmp / "go").touch()
    assert sorted(code for code, _ in job.end(2, 60).exits()) == [0, 99], job
    c.gone()


@pytest.mark.seconds(25)
def test_qdel(make_sge):
    """With -notify all tasks get SIGUSR2 before the end, those of `qrsh -inherit` too: the workers of both hosts write a checkpoint. Without it nothing is left either."""
    c = make_sge(2)
    train(c)
    job = typed(c, "requeue")
    ranks(job)
    c.run("qdel", job.id)
    until(lambda: f"two checkpoints:\n{job}", lambda: len(re.findall(r"^\[\d\] checkpoint", job.text, re.M)) == 2, 30)
    job.end(timeout=40)
    assert not job.says("was lost") and not job.says("killing job"), job
    c.gone()
    job = typed(c, "train")
    ranks(job)
    c.run("qdel", job.id)
    job.end(timeout=40)
    c.gone(20)


@pytest.mark.seconds(20)
def test_tasks_know_the_job(make_sge):
    """Son of Grid Engine sets NHOSTS=1 in each task. mpirun's tasks say nothing of it; a task by hand is no world of its own."""
    c = make_sge(2)
    (c.tmp / "by-hand.sh").write_text(
        "#$ -S /bin/bash\n#$ -pe mpi 2\n#$ -cwd\n#$ -j y\n#$ -V\nPATH=$SGE_O_PATH\n"
        "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1\n"
        f"cp $PE_HOSTFILE {c.tmp}/list; export PE_HOSTFILE={c.tmp}/list\n"  # as where all hosts have one spool
        "[ ! -x /usr/bin/mpirun.openmpi ] || mpirun.openmpi --bind-to none -N 1 rdzv-agent -- sh -c 'echo rank $RANK of $WORLD_SIZE'\n"
        "for host in $(cut -d' ' -f1 $PE_HOSTFILE); do qrsh -inherit -V -nostdin $host rdzv-agent -- sh -c '\"echo task \\$RANK of \\$WORLD_SIZE\"' & done; wait\n"
        "export PE_HOSTFILE=/nowhere\n"
        f"other=$(cut -d' ' -f1 {c.tmp}/list | grep -v $HOSTNAME)\n"
        "qrsh -inherit -V -nostdin $other rdzv-agent -- echo alone\n"
    )
    job = c.submitted("qsub by-hand.sh").end(timeout=60)
    mpirun = {"rank 0 of 2", "rank 1 of 2"} if os.path.exists("/usr/bin/mpirun.openmpi") else set()
    assert set(re.findall(r"(?:rank|task) \d of \d", job.text)) == {"task 0 of 2", "task 1 of 2"} | mpirun, job
    assert not job.says("NHOSTS") and not job.says(r"^(\[0\] )?alone"), job
    assert job.says("qrsh does not report how many agents it started: give --nnodes N"), job
    c.gone()
