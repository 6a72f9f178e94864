# SPDX-License-Identifier: Apache-2.0
"""The environment of a worker at its start, under torchrun and under rdzv-agent: the same names, the same values where they must be, the same
process. Both launchers get the same words."""

import json
import os
import re

import pytest

from conftest import EVERY_PYTORCH
from harness import AGENT

pytestmark = EVERY_PYTORCH

# Each worker of each attempt writes down what it sees; the first attempt fails.
DUMP = """
import json, os, sys, time
place = os.environ["TORCHELASTIC_RESTART_COUNT"] + "." + os.environ["RANK"]
status = dict(l.rstrip("\\n").split(":\\t", 1) for l in open("/proc/self/status") if ":\\t" in l)
json.dump({"env": dict(os.environ), "argv": open("/proc/self/cmdline").read().split("\\0")[:-1], "cwd": os.getcwd(),
           "ids": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()], "stdin": os.readlink("/proc/self/fd/0"),
           **{k: status[k] for k in ("SigBlk", "SigIgn", "SigCgt", "Cpus_allowed_list")}},
          open(sys.argv[1] + "/." + place, "w"))
os.rename(sys.argv[1] + "/." + place, sys.argv[1] + "/" + place)
end = time.monotonic() + 30  # whoever fails first takes the other with him
while time.monotonic() < end and not all(os.path.exists(sys.argv[1] + "/" + place[:-1] + r) for r in "01"):
    time.sleep(0.01)
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0")
"""
# What is in the environment of the launcher: of mpirun, and of a torchrun further out.
AROUND = {
    "RANK": "77", "LOCAL_RANK": "8", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "outer", "TORCHELASTIC_RESTART_COUNT": "5",
    "TORCHELASTIC_ERROR_FILE": "/nonexistent/outer.json", "ROLE_NAME": "outer", "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM",
    "PET_MAX_RESTARTS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "CUDA_VISIBLE_DEVICES": "4,5", "NODE_RANK": "6",
}
# Which are another launcher's own: where its store is, what it calls the job, where it keeps error files.
OWN = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
# What ours has beyond torchrun's.
MORE = {"NCCL_RAS_ADDR", "NODE_RANK", "RDZV_ROUND", "RDZV_RESTART_COUNT", "RDZV_RUN_ID", "RDZV_HEAD_ADDR", "RDZV_LOCAL_RANK", "RDZV_AGENT_SOCKET"}

CASES = {
    "plain": (["--max-restarts", "1"], {"OMP_NUM_THREADS": None, "CUDA_VISIBLE_DEVICES": None}),
    "around": (["--role", "ps", "--signals-to-handle", "SIGTERM,SIGINT,SIGUSR1"], AROUND),
    "virtual": (["--max-restarts", "1", "--virtual-local-rank"], dict(AROUND, OMP_NUM_THREADS="2")),
}


def dumps(folder):
    return {name: json.loads((folder / name).read_text()) for name in os.listdir(folder)}


@pytest.fixture(scope="module")
def seen(pytorch, tmp_path_factory):
    """case -> (of torchrun, of rdzv-agent): attempt.rank -> what that worker saw. All of them run at once: torch is slow to start."""
    import harness

    tmp = tmp_path_factory.mktemp("env")
    r = harness.Rdzv(tmp)
    (tmp / "dump.py").write_text(DUMP)
    procs = {}
    try:
        for case, (words, env) in CASES.items():
            unset = [f for k, v in env.items() if v is None for f in ("-u", k)]
            # The same interpreter for both: a python3 that is somebody's wrapper adds names of its own.
            env = {"PYTHON_EXEC": pytorch, **{k: v for k, v in env.items() if v is not None}}
            for kind, launcher in ("torchrun", [pytorch, "-m", "torch.distributed.run"]), ("agent", [AGENT]):
                out = tmp / f"{case}.{kind}"
                out.mkdir()
                argv = ["env", *unset, *launcher, "--standalone", "--nproc-per-node", "2", *words, tmp / "dump.py", out]
                procs[case, kind] = (r.spawn(*argv, env=env), out)
        for p, _ in procs.values():
            assert p.exit(60) == 0, str(p)
        yield {case: (dumps(procs[case, "torchrun"][1]), dumps(procs[case, "agent"][1])) for case in CASES}, procs
    finally:
        r.close()


@pytest.mark.parametrize("case", CASES)
def test_the_same_environment(seen, case):
    theirs, ours = seen[0][case]
    assert sorted(theirs) == sorted(ours) == ["0.0", "0.1", "1.0", "1.1"]
    inherited = CASES[case][1]
    for place in theirs:
        a, b = theirs[place]["env"], ours[place]["env"]
        assert sorted(set(b) - set(a) - MORE) == [], "names that torchrun does not set"
        assert sorted(set(a) - set(b)) == [], "names that are missing"
        differ = {k: (a[k], b[k]) for k in a if a[k] != b[k] and k not in OWN | MORE | {"E2E_MARK"}}
        assert not differ, f"{place}: torchrun's, ours"
        assert b["RDZV_LOCAL_RANK"] == place[-1]
        for k in OWN & set(inherited):
            assert b[k] != inherited[k], f"{k} is the outer one's"


def test_what_is_each_launchers_own(seen):
    for theirs, ours in seen[0].values():
        for who in theirs, ours:
            assert {w["env"]["MASTER_ADDR"] for w in who.values()} <= {"localhost", "127.0.0.1"}
            assert all(0 < int(w["env"]["MASTER_PORT"]) < 65536 for w in who.values())
            assert len({w["env"]["TORCHELASTIC_RUN_ID"] for w in who.values()}) == 1
        port = lambda who, attempt: {w["env"]["MASTER_PORT"] for place, w in who.items() if place[0] == attempt}
        # torchrun meets in the store of the attempt before; every round of ours has its own.
        assert port(theirs, "0") == port(theirs, "1") and not port(ours, "0") & port(ours, "1")


def test_error_files_lie_where_torchrun_puts_them(seen):
    for case, (theirs, ours) in seen[0].items():
        for who in theirs, ours:
            for place, w in who.items():
                attempt, rank = place.split(".")
                run_id = re.escape(w["env"]["TORCHELASTIC_RUN_ID"])
                assert re.fullmatch(rf"/.*/{run_id}_\w{{8}}/attempt_{attempt}/{rank}/error\.json", w["env"]["TORCHELASTIC_ERROR_FILE"])


@pytest.mark.parametrize("case", CASES)
def test_the_same_process(seen, case):
    """argv, folder, stdin, session and group, signals, CPUs."""
    theirs, ours = seen[0][case]
    for place in theirs:
        a, b = theirs[place], ours[place]
        assert [os.path.basename(w) for w in a["argv"][1:-1]] == [os.path.basename(w) for w in b["argv"][1:-1]]
        assert {k: a[k] for k in a if k not in ("env", "argv")} == {k: b[k] for k in b if k not in ("env", "argv")}
        assert b["ids"] == [True, True]


def test_threads_are_told_once(seen):
    """torchrun's notice has three lines of stars; ours has one line, and is not said again for the second round."""
    for case, told in ("plain", 1), ("around", 1), ("virtual", 0):
        theirs, ours = seen[1][case, "torchrun"][0], seen[1][case, "agent"][0]
        if "OMP_NUM_THREADS" in os.environ and case != "plain":
            continue
        assert sum("OMP_NUM_THREADS" in l for l in theirs.err) == sum("OMP_NUM_THREADS" in l for l in ours.err) == told
