# SPDX-License-Identifier: Apache-2.0
"""The batch scripts of deploy, as those see them who copy one: no word of shellcheck's, and their module load or activation, which goes where the script
says so, may be as careless as such files are. What schedulers make of the scripts is tested in tests/cluster."""

import os
import re
import shutil
import subprocess

import pytest

from harness import TOP

SCHEDULERS = {"aws", "lsf", "pbs", "sge", "slurm"}
SCRIPTS = sorted(str(p.relative_to(TOP)) for s in SCHEDULERS for p in (TOP / "deploy" / s).glob("*") if p.suffix in (".sbatch", ".pbs", ".sh", ".lsf"))
# What conda's and others' do.
ACTIVATE = '[ "$CONDA_SHLVL" = 7 ] || [ -n "$_CE_CONDA" ] || export ACTIVATED=yes; ls /nowhere 2>/dev/null | true\n'
# srun, pbsdsh, jsrun: here and now, without the environment of a script where the real one has none of it.
START = """#!/bin/bash
while [ $# -gt 0 ]; do case $1 in rdzv-agent | bash | /bin/bash) break ;; *) shift ;; esac; done
[ "${0##*/}" != pbsdsh ] || unset ACTIVATED
exec "$@"
"""
AGENT = '#!/bin/sh\necho "agent: ${ACTIVATED:-bare}: $*"\n'


def test_there_are_all_of_them():
    assert len(SCRIPTS) >= 12 and {s.split("/")[1] for s in SCRIPTS} == SCHEDULERS, SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_shellcheck(script):
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    p = subprocess.run(["shellcheck", TOP / script], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_what_is_loaded_may_be_careless(tmp_path, script):
    """In place of the comment that says module load, or of what the script loads itself, a file as conda's: it reads variables that nobody has set."""
    text, place = (TOP / script).read_text(), re.compile(r"^( *)(#|source /etc/profile.d/modules.sh\n)[^\n]*module load.*$", re.M)
    assert len(place.findall(text)) == 1, "the script does not say where module load goes"
    (tmp_path / "activate").write_text(ACTIVATE)
    (tmp_path / "script").write_text(place.sub(rf"\1. {tmp_path}/activate", text))
    (tmp_path / "bin").mkdir()
    for name, what in {"rdzv-agent": AGENT, "scontrol": "#!/bin/sh\n[ \"$2\" != hostnames ] || printf 'n1\\nn2\\n'\n", "squeue": "#!/bin/sh\necho n1 n[1-2]\n", "scancel": "#!/bin/sh\n", **dict.fromkeys(("srun", "pbsdsh", "jsrun"), START)}.items():
        (tmp_path / "bin" / name).write_text(what)
        (tmp_path / "bin" / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1",
           "PBS_O_WORKDIR": str(tmp_path), "PBS_O_PATH": "/bin", "PBS_JOBID": "7.s", "PBS_NODENUM": "0"}
    p = subprocess.run(["bash", tmp_path / "script", *(["7", "2"] if "spares" in script else []), "./mine", "--lr", "0.1"], capture_output=True, text=True, timeout=60, env=env, cwd=tmp_path)
    assert p.returncode == 0 and not p.stderr and "agent: yes: " in p.stdout, (p.stdout, p.stderr)
    assert "--lr 0.1" in p.stdout or "--epochs 10" in p.stdout, p.stdout  # what is submitted without words has its own
    assert not (tmp_path / "exit.7.s").exists(), "left behind"


@pytest.mark.parametrize("state, again", [("RUNNING", True), ("CANCELLED", False), ("COMPLETING", False)])
@pytest.mark.parametrize("script", ["slurm/requeue", "slurm/elastic", "aws/parallelcluster"])
def test_a_job_that_was_cancelled_is_not_requeued(tmp_path, script, state, again):
    """Its agents leave with 75, as before the time limit. Slurm signals the script of a job only where it is asked to, so the script may outlive scancel."""
    (tmp_path / "bin").mkdir()
    for name, what in {"srun": "#!/bin/sh\nexit 75\n", "scontrol": f'#!/bin/sh\necho "scontrol $*"\n[ "$1" != show ] || echo "JobId=7 JobName=requeue JobState={state} Reason=None"\n'}.items():
        (tmp_path / "bin" / name).write_text(what)
        (tmp_path / "bin" / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path), "SLURM_CPUS_PER_TASK": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    p = subprocess.run(["bash", TOP / f"deploy/{script}.sbatch", "./mine"], capture_output=True, text=True, timeout=60, env=env, cwd=tmp_path)
    assert p.returncode == 75 and not p.stderr, (p.stdout, p.stderr)
    assert ("scontrol requeue 7" in p.stdout) == again and (again or "is to go on" not in p.stdout), p.stdout
