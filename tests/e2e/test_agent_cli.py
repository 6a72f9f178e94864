# SPDX-License-Identifier: Apache-2.0
"""rdzv-agent's command line: what is refused, in which words and with which exit code; the help; the environment. No job runs here."""

import os
import re
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RDZV_BUILD", TOP / "build")).resolve()
AGENT = str(BUILD / "agent/rdzv-agent")

OPTIONS = """nnodes expect nproc store store-port mpi-env explain nproc-per-node endpoint rdzv-endpoint rdzv-id max-restarts repeat-limit node-rank local-addr join-timeout last-call
stop-timeout lease orphan-grace sole-agent scale-up after-finish exclude-after slow-ranks slow-limit standalone log-dir verdict-file quiet verbose version help""".split()


def agent(*words, env=None, timeout=20, **kw):
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RDZV_AGENT_")}
    return subprocess.run(
        [AGENT, *map(str, words)], env={**inherited, **(env or {})}, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, **kw
    )


def refused(done, code, *says):
    """Exit code, and one clear sentence that says all of it, on stderr alone."""
    assert done.returncode == code, done
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("rdzv-agent: ")
    assert not re.search(r"error -?\d|errno|\(null\)", lines[0], re.I), lines[0]
    for s in says:
        assert s in lines[0], lines[0]


# All other mistakes: tests/unit/agent/options.
USAGE = [
    (["--nproc", "0"], ["--nproc=0", "from 1 to 1024"]),
    (["--nproc", "gpu"], ["--nproc=gpu: no GPU is visible", "auto"]),
    (["--nproc_per_node=gpu"], ["--nproc_per_node=gpu: no GPU is visible", "auto"]),
    (["--nnodes", "1:4"], ["rdzv-agent --nnodes 1:4 --endpoint HOST"]),
    (["--nprox", "2"], ["--nprox", "did you mean --nproc?"]),
]


@pytest.mark.parametrize("words, says", USAGE, ids=[" ".join(w) for w, _ in USAGE])
def test_what_is_wrong_is_told_in_one_sentence(words, says):
    refused(agent(*words, "--", "/bin/true"), 64, *says)


def test_garbage_in_the_environment_is_told():
    refused(agent("--", "/bin/true", env={"RDZV_AGENT_ENDPOINT": "\x1b[31m"}), 64, "RDZV_AGENT_ENDPOINT=", "\\x1b")


def test_a_worker_may_start_an_agent():
    done = agent("--version", env={"RDZV_AGENT_SOCKET": "@somewhere"})
    assert done.returncode == 0
    refused(agent("--nproc", "0", env={"RDZV_AGENT_SOCKET": "@somewhere"}), 64, "--nproc=0")


def test_a_command_that_is_not_there():
    refused(agent("--standalone", "--", "no-such-command-here"), 127, "no-such-command-here: command not found in PATH")
    refused(agent("./no-such-file"), 127, "./no-such-file: command not found")


def test_what_to_type_instead(tmp_path):
    """The folder has something under that name, or nearly that name."""
    for name, text, mode in [("good.sh", "#!/bin/sh\n", 0o755), ("noexec.sh", "#!/bin/sh\n", 0o644), ("plain.sh", "echo\n", 0o644),
                             ("data.txt", "1\n", 0o644), ("train.py", "", 0o644), ("pkg/train.py", "", 0o644), ("dir.py/x", "", 0o644), ("crlf.sh", "#!/bin/sh\r\n", 0o755),
                             ("crlf-env", "#!/usr/bin/env python3\r\n", 0o755)]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, newline="")
        (tmp_path / name).chmod(mode)
    for code, words, *says in [
        (127, ["good.sh"], "good.sh: command not found in PATH; to run the file in this folder write ./good.sh"),
        (127, ["noexec.sh"], "to run the file in this folder type chmod +x noexec.sh, and write ./noexec.sh"),
        (126, ["./noexec.sh"], "./noexec.sh cannot be run: it is not executable: chmod +x ./noexec.sh"),
        (127, ["plain.sh"], "no first line such as #!/bin/sh: write what runs it in front, such as bash plain.sh"),
        (126, ["./plain.sh"], "write what runs it in front, such as bash ./plain.sh"),
        (127, ["data.txt"], "such as python3 data.txt"),
        (127, ["pkg"], "pkg: command not found in PATH; the folder of that name has no __main__.py, so name a script in it"),
        (126, ["./pkg"], "./pkg is a folder without __main__.py: name a script in it"),
        (126, ["dir.py"], "the script dir.py is a folder without __main__.py: name a script in it"),
        (127, ["trian.py"], f"the script trian.py cannot be read, from the folder {tmp_path}: No such file or directory; did you mean train.py?"),
        (127, ["pkg/tran.py"], "did you mean pkg/train.py?"),
        (127, ["nothing.py"], f"the script nothing.py cannot be read, from the folder {tmp_path}: No such file or directory"),
        (127, ["goodsh"], "goodsh: command not found in PATH; did you mean ./good.sh?"),
        (127, ["pkg.train"], "pkg.train: command not found in PATH; to run the module write -m pkg.train"),
        (127, ["nproc_per_node=2", "train.py"], "nproc_per_node=2: command not found in PATH; did you mean --nproc_per_node=2?"),
        (127, ["--no_python", "train.py"], "train.py: command not found in PATH; without --no-python it runs under Python"),
        (127, ["./crlf.sh"], r"""./crlf.sh cannot be run: its first line ends in \r, as Windows writes lines, so it asks for a program "/bin/sh\r": sed -i 's/\r$//' ./crlf.sh"""),
        (127, ["./crlf-env"], r'so it asks for a program "python3\r": sed'),
        (64, [" "], "the command is a blank: remove the blank behind the backslash that ends the line"),
        (64, ["\u2013\u2013nproc=2", "train.py"], "\u2013\u2013nproc begins with U+2013, a dash of print, and not with a hyphen: write --nproc"),
        (64, ["\u2014nproc-per-node", "2", "train.py"], "begins with U+2014, a dash of print, and not with a hyphen: write --nproc-per-node"),
        (64, ["\u2212m", "train"], "begins with U+2212, a dash of print, and not with a hyphen: write -m"),
        (64, ["-m", "train.py"], "-m train.py: that is a file, not the name of a module: write -m train, or train.py without -m"),
        (64, ["-m", "pkg/train.py"], "write -m pkg.train, or pkg/train.py without -m"),
    ]:
        refused(agent(*words, cwd=tmp_path), code, *says)


def test_help_is_whole():
    done = agent("--help")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("usage: rdzv-agent ")
    for name in OPTIONS:
        assert re.search(rf"--{name}\b", done.stdout), name
    for say in ["default: 10m", "default: 3", "RDZV_AGENT_", "Examples:", "Exit status:", "MIN:MAX", "29400"]:
        assert say in done.stdout, say
    for line in done.stdout.splitlines():
        assert len(line) <= 100 and line == line.rstrip(), line


def test_short_help():
    """What most people need, on one screen, in all programs that have many options."""
    for program in "agent/rdzv-agent", "daemon/rdzvd", "daemon/rdzvctl", "agent/trainer/rdzv-trainer":
        if not (BUILD / program).exists():
            continue
        short, whole = (subprocess.run([BUILD / program, word], capture_output=True, text=True) for word in ("-h", "--help"))
        assert short.returncode == whole.returncode == 0 and not short.stderr + whole.stderr
        lines, options = short.stdout.splitlines(), set(re.findall(r"^  (--\S+)", whole.stdout, re.M))
        assert len(lines) <= 36 and all(len(line) <= 100 for line in lines), short.stdout
        assert set(re.findall(r"^  (--\S+)", short.stdout, re.M)) < options, short.stdout
        assert f"{Path(program).name} --help prints all {len(options)} options." in lines, short.stdout
        assert "Examples:" in lines and lines[0] == whole.stdout.splitlines()[0]
    assert agent("-qh").stdout == agent("-h", "--nproc", "0").stdout == agent("-h").stdout


def test_helpers_tell_a_person_what_they_are():
    for folder, helper, runs_it in ("agent", "rdzv-devices", "rdzv-agent"), ("agent", "rdzv-nccl", "rdzv-agent"), ("daemon/claim", "rdzv-claim", "rdzvd"):
        for word in "--help", "-h":
            done = subprocess.run([BUILD / folder / helper, word], capture_output=True, text=True, timeout=20)
            assert done.returncode == 0 and not done.stderr and done.stdout.startswith(f"usage: {helper}"), done
            assert runs_it in done.stdout
        for words in (["--nope"], ["a", "b"]):
            done = subprocess.run([BUILD / folder / helper, *words], capture_output=True, text=True, timeout=20)
            assert done.returncode == 64 and not done.stdout and len(done.stderr.splitlines()) == 1 and "--help" in done.stderr, done


NO_COMMAND = ["a command is missing", "... train.py runs a script", "... -- ./program a program", "... -- --epochs 1 rdzv-trainer"]


@pytest.mark.parametrize("words, says", [
    (["--nproc", "2"], NO_COMMAND),
    (["--nproc", "2", "--"], NO_COMMAND),
    ([], NO_COMMAND),
    (["--"], NO_COMMAND),
    (["--hosts", "n1:2,n2:2"], NO_COMMAND),
    (["--nproc", "2", "--rdzv_id", "train.py"], ["a command is missing: --rdzv_id took train.py as its value; is a variable in front of it unset?"]),
    (["--nproc", "2", ""], ["the command is empty"]),
    (["-m"], ["-m needs a module"]),
    (["--no_python"], ["--no_python needs a program"]),
    (["--run-path", "--"], ["--run-path needs a script"]),
], ids=lambda v: " ".join(v))
def test_a_command_that_is_missing(words, says):
    """An unset variable in a batch script trains nothing, and says what to type."""
    refused(agent(*words), 64, *says)


def test_explain_needs_no_command():
    done = agent("--explain")
    assert done.returncode == 0 and "command -" in done.stdout.splitlines() and not done.stderr


def test_help_whatever_else_is_wrong():
    assert agent("--help", "--nproc", "0", env={"RDZV_AGENT_NPROC": "x"}).returncode == 0
    done = agent("--version")
    assert re.fullmatch(r"rdzv-agent \d+\.\d+\.\d+\n", done.stdout) and done.returncode == 0


def test_help_knows_every_exit_code():
    text = agent("--help").stdout
    header = (TOP / "common/exit_codes.h").read_text()
    codes = re.findall(r'^  X\((\w+), (\d+), "(.*)"\)', header, re.M)
    assert len(codes) > 8
    for _, code, words in codes:
        shown = re.search(rf"^ +{code} +{re.escape(words)}$", text, re.M)
        assert bool(shown) == (code != "68"), words  # 68 is rdzvd's alone
