# SPDX-License-Identifier: Apache-2.0
"""Command lines of torchrun's users, run for real: scripts, modules, ${local_rank}, PET_ variables, notes, --local-addr by name."""

import shlex
import sys
import zipapp

import pytest

import pages
from harness import free_port

SHOW = """import os, sys
print(os.environ["RANK"], __name__, sys.argv, flush=True)
"""


@pytest.fixture
def script(rdzv):
    (rdzv.tmp / "pkg").mkdir()
    for name in ("show.py", "pkg/__init__.py", "pkg/show.py"):
        (rdzv.tmp / name).write_text("" if "__init__" in name else SHOW)


def shown(p, code=0):
    assert p.exit() == code, p
    return sorted(line.split("] ", 1)[-1] for line in p.out)


@pytest.mark.parametrize("words, argv0", [
    (["show.py"], "show.py"),
    (["--run-path", "pkg/show.py"], "pkg/show.py"),
    (["-m", "pkg.show"], None),
])
def test_python_runs_it(rdzv, script, words, argv0):
    got = shown(rdzv.agent("--nproc_per_node=2", *words, "a b", "--rank=${local_rank}", "$0"))
    assert len(got) == 2
    for rank, line in enumerate(got):
        number, name, argv = line.split(" ", 2)
        assert number == str(rank) and name == "__main__"
        assert eval(argv)[1:] == ["a b", f"--rank={rank}", "$0"]
        assert eval(argv)[0] == (argv0 or str(rdzv.tmp / "pkg/show.py"))


def test_python_exec(rdzv, script):
    """Another interpreter: one that says its name."""
    other = rdzv.tmp / "python-of-ours"
    other.write_text(f'#!/bin/sh\necho "ours $1 $2"\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    got = shown(rdzv.agent("show.py", env={"PYTHON_EXEC": str(other)}))
    assert got == ["0 __main__ ['show.py']", "ours -u show.py"]


def test_no_python(rdzv):
    program = rdzv.tmp / "program.py"
    program.write_text('#!/bin/sh\necho "shell $1"\n')
    program.chmod(0o755)
    assert shown(rdzv.agent("--no-python", "./program.py", "x")) == ["shell x"]


def test_python_that_is_not_there(rdzv, script):
    for env, name in (({"PATH": "/nowhere"}, "python3"), ({"PYTHON_EXEC": "/no/python"}, "/no/python")):
        a = rdzv.agent("show.py", env=env)
        assert a.exit() == 127 and len(a.err) == 1, a
        assert f"{name}: command not found" in a.err[0] and "show.py needs Python" in a.err[0] and "PYTHON_EXEC" in a.err[0]


@pytest.mark.parametrize("first", [b"#!/bin/sh\n", b"\x7fELF\x02\x01\x01\x00"])
def test_program_without_the_bit(rdzv, first):
    (rdzv.tmp / "train").write_bytes(first + b"echo 1\n")
    a = rdzv.agent("./train")
    assert a.exit() == 126 and len(a.err) == 1, a
    assert "./train cannot be run" in a.err[0] and "chmod +x ./train" in a.err[0]
    many = rdzv.agent("--endpoint", rdzv.daemon().endpoint, "--max-restarts", 0, "./train")
    assert many.exit() == 126 and "chmod +x ./train" in many.err[0] and "could not be started" in many.err[-1], many


def test_python_files_of_any_name(rdzv):
    """What torchrun runs: a script without a suffix or a permission, a folder with __main__.py, a .pyz."""
    show = "import os, sys\nprint(os.environ['RANK'], __name__, sys.argv[1:], flush=True)\n"
    (rdzv.tmp / "train-it").write_text(show)
    (rdzv.tmp / "app-folder").mkdir()
    (rdzv.tmp / "app-folder/__main__.py").write_text(show)
    zipapp.create_archive(rdzv.tmp / "app-folder", rdzv.tmp / "app.pyz")
    zipapp.create_archive(rdzv.tmp / "app-folder", rdzv.tmp / "app2.pyz", interpreter="/usr/bin/env python3")
    zipapp.create_archive(rdzv.tmp / "app-folder", rdzv.tmp / "archive")
    (rdzv.tmp / "app.pyz").chmod(0o755)  # nothing but Python can run it all the same
    for word in "train-it", "./train-it", "app-folder", "./app-folder", "app.pyz", "./app.pyz", "./app2.pyz", "./archive":
        assert shown(rdzv.agent(word, "a", "--b")) == ["0 __main__ ['a', '--b']"], word
    (rdzv.tmp / "true").write_text(show)
    assert shown(rdzv.agent("true", "a")) == [], "a command in PATH comes first"
    for name, text in ("shell-script", "#!/bin/sh\n"), ("train.sh", "echo\n"), ("program", "\x7fELF\0"):
        (rdzv.tmp / name).write_text(text)
        a = rdzv.agent(name)
        assert a.exit() == 127 and f"{name}: command not found" in a.text, a
    (rdzv.tmp / "run.me").write_text("#!/usr/bin/env python3\n" + show)
    assert shown(rdzv.agent("run.me")) == ["0 __main__ []"]


def test_pass_local_rank(rdzv):
    """A script of the days of --local-rank."""
    (rdzv.tmp / "old.py").write_text("import argparse\np = argparse.ArgumentParser()\np.add_argument('--local-rank', type=int)\n"
                                     "p.add_argument('--lr')\na = p.parse_args()\nprint(a.local_rank, a.lr, flush=True)\n")
    assert shown(rdzv.agent("--nproc", 2, "--pass-local-rank", "old.py", "--lr", 3)) == ["0 3", "1 3"]
    assert shown(rdzv.agent("--use-env", "old.py", "--lr", 3)) == ["None 3"]


def test_pass_local_rank_to_a_command_of_python(rdzv):
    """fairseq 0.9: $(which fairseq-train), with the spelling of its PyTorch's torch.distributed.launch."""
    env = rdzv.tmp / "venv"
    (env / "bin").mkdir(parents=True)
    (env / "bin/python3").symlink_to(sys.executable)
    script = env / "bin/fairseq-train"
    script.write_text(f"#!{env}/bin/python3\nimport sys\nprint(sys.argv[1:], flush=True)\n")
    script.chmod(0o755)
    torch = env / "lib/python3.7/site-packages/torch"
    torch.mkdir(parents=True)
    (line,) = pages.lines("deploy/guide/from-torchrun.md", "fairseq")
    for version, option in ("1.13.1+cu117", "--local_rank"), ("2.1.0", "--local-rank"):
        (torch / "version.py").write_text(f"from typing import Optional\n__version__ = '{version}'\n")
        agent = pages.shell(rdzv, line, more={"fairseq-train": script.read_text()})
        assert shown(agent) == [f"['{option}={i}', 'data-bin']" for i in range(2)], agent
    shell = env / "bin/train"
    shell.write_text("#!/bin/sh\n")
    shell.chmod(0o755)
    a = rdzv.agent("--pass-local-rank", shell)
    assert a.exit() == 64 and a.says("but .*/bin/train is a program"), a


LOGS = "echo out; echo err >&2"


@pytest.mark.parametrize("words, env, kept", [
    (["--redirects", "0", "--tee", "0"], {}, False),
    (["-r0"], {}, False),
    ([], {"PET_TEE": "0"}, False),
    ([], {}, True),
])
def test_an_explicit_zero_counts(rdzv, words, env, kept):
    """--log-dir with --redirects 0 keeps no output of workers; the agent's own log and error files have their place."""
    a = rdzv.agent("--standalone", "--log-dir", "logs", *words, "--", "sh", "-c", LOGS, env=env)
    assert a.exit() == 0 and a.out == ["out"], a
    files = [f.name for f in (rdzv.tmp / "logs").rglob("*") if f.is_file()]
    assert ("stdout.log" in files) == ("stderr.log" in files) == kept and any(f.startswith("agent-") for f in files), files


def test_options_behind_the_script(rdzv, script):
    """They are the script's, as under torchrun; a line says so."""
    a = rdzv.agent("show.py", "--nproc_per_node", 2)
    assert shown(a) == ["0 __main__ ['show.py', '--nproc_per_node', '2']"], a
    assert a.says("--nproc_per_node goes to show.py, because it stands behind it: options of rdzv-agent stand in front"), a
    a = rdzv.agent("--nproc_per_node=2", "show.py", "--nproc_per_node", 2)
    assert len(shown(a)) == 2 and not a.says("stands behind"), a


def test_backends_of_torchrun(rdzv, script):
    a = rdzv.agent("--rdzv_backend=etcd", f"--rdzv_endpoint=127.0.0.1:{free_port()}", "show.py")
    assert len(shown(a)) == 1 and a.says("--rdzv_backend etcd has no effect: nodes meet at rdzvd with any backend"), a


def test_notes_are_told_once(rdzv):
    words = ["--standalone", "--rdzv-endpoint", "node9:1", "--monitor-interval", "5", "--rdzv-conf", "close_timeout=3,wrong=1,join_timeot=3", "true"]
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_HEALTH_CHECK_PORT": "12345"}
    a = rdzv.agent(*words, env=env)
    assert a.exit() == 0, a
    for note in ("TORCHELASTIC_ENABLE_FILE_TIMER has no effect", "TORCHELASTIC_HEALTH_CHECK_PORT has no effect", "--rdzv-endpoint has no effect", "--monitor-interval has no effect", "--rdzv-conf close_timeout", "--rdzv-conf wrong is not a known key",
                 "--rdzv-conf join_timeot is not a known key and has no effect: did you mean join_timeout?"):
        assert len([line for line in a.err if note in line]) == 1, a
    assert rdzv.agent("--quiet", *words, env=env).exit() == 0
    assert not rdzv.procs[-1].err


def test_two_nodes_by_master_addr(rdzv, script):
    """The line of a batch script, with nothing but its first word changed."""
    line = f"--nnodes=2 --nproc_per_node=2 --master_addr=127.0.0.1 --master_port={free_port()} --node_rank=%d show.py"
    agents = [rdzv.agent(*shlex.split(line % rank)) for rank in (1, 0)]
    ranks = [[int(x[0]) for x in shown(a)] for a in agents]
    assert ranks == [[2, 3], [0, 1]], rdzv


def test_is_host(rdzv):
    """is_host=0: this agent starts no daemon, though the endpoint is its own machine."""
    point = f"127.0.0.1:{free_port()}"
    a = rdzv.agent("--rdzv-endpoint", point, "--rdzv-conf", "is_host=0", "--join-timeout", "1s", "true")
    assert a.exit() == 69 and not rdzv.daemons(), a
    assert rdzv.agent("--rdzv-endpoint", point, "--rdzv-conf", "is_host=1", "true").exit() == 0, rdzv
    rdzv.gone()


def test_local_addr_by_name(rdzv, lan):
    """A name of this node that others can reach; and one that nobody knows."""
    job = ["--endpoint", "10.99.0.1:29400", "--nnodes", 2, "--", "sh", "-c", "echo head $RDZV_HEAD_ADDR"]
    agents = [rdzv.agent("--local-addr", name, "--node-rank", rank, *job, wrap=lan[rank ^ 1], node=name)
              for rank, name in enumerate(("node2", "10.99.0.1"))]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert {line.split("] ")[-1] for a in agents for line in a.out} == {"head 10.99.0.2"}, rdzv
    a = rdzv.agent("--local-addr", "no-such-host.invalid", "--standalone", "true", wrap=lan[0])
    assert a.exit(20) == 64 and len(a.err) == 1 and "no-such-host.invalid" in a.text and "--local-addr" in a.text, a
    rdzv.gone()


EPOCHS = """import os, sys
start = int(open("saved").read()) if "resume" in sys.argv and os.path.exists("saved") else 0
for epoch in range(start, 3):
    print("epoch", epoch, flush=True)
    open("saved", "w").write(str(epoch))
    if epoch == 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(1)
"""


def test_a_script_that_cannot_resume_starts_over(rdzv):
    """The first restart says what happens, and how to turn restarts off."""
    (rdzv.tmp / "train.py").write_text(EPOCHS)
    line = "so the script starts from the beginning unless it loads a checkpoint itself; --max-restarts 0 turns restarts off"
    a = rdzv.agent("train.py")
    assert a.exit() == 0 and a.out == [f"epoch {n}" for n in (0, 1, 2, 0, 1, 2)], a
    assert len([t for t in a.err if line in t]) == 1, a
    none = rdzv.agent("--max-restarts", 0, "train.py")
    assert none.exit() == 1 and len(none.out) == 3 and not none.says("from the beginning"), none
    two = rdzv.agents(2, rdzv.daemon().endpoint, "--nnodes", 2, "train.py")
    assert [p.exit() for p in two] == [0, 0] and len([t for p in two for t in p.err if line in t]) == 1, rdzv


UPLOADER = """import os, signal, sys, time
ready, tell = os.pipe()
if os.fork():
    os._exit(0 if os.read(ready, 1) else 1)
os.setsid()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
os.write(tell, b"x")
while signal.sigwait([signal.SIGTERM]) and sys.argv[1:]: pass
open("saved", "w").close()"""


def test_what_a_finished_worker_leaves_running(rdzv):
    """It hears SIGTERM first, and a line names it."""
    a = rdzv.agent("--no-python", "--", sys.executable, "-SEc", UPLOADER)
    assert a.exit() == 0 and (rdzv.tmp / "saved").exists(), a
    a.expect(r"pid \d+ \(python\S*\), which a finished worker left running, gets SIGTERM: all workers have finished; it has 5 s to end")
    assert not a.says("SIGKILL"), a
    a = rdzv.agent("--no-python", "--", sys.executable, "-SEc", UPLOADER, "deaf")
    assert a.exit() == 0, a
    a.expect(r"pid \d+ \(python\S*\), which a finished worker left running, gets SIGKILL: it has not ended in the 5 s since SIGTERM")
    rdzv.gone()


def test_helpers_that_end_by_themselves_are_not_named(rdzv):
    a = rdzv.agent("--", "sh", "-c", "setsid sleep 0.05 & exit 0")
    assert a.exit() == 0 and not a.says("left running"), a
