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
stop-timeout lease orphan-grace scale-up after-finish exclude-after standalone log-dir verdict-file quiet verbose version help""".split()


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


USAGE = [
    (["--after-finish", "again"], ["--after-finish=again", "write fail, or restart"]),
    (["--exclude-after", "-1"], ["--exclude-after"]),
    (["--nproc", "0"], ["--nproc=0", "from 1 to 1024"]),
    (["--nproc=two"], ["--nproc=two", "cpu, gpu or auto"]),
    (["--nproc", "gpu"], ["--nproc gpu", "no GPU is visible", "auto"]),
    (["--nnodes", "3:2"], ["--nnodes=3:2", "did you mean 2:3?"]),
    (["--nnodes", "0"], ["N or MIN:MAX"]),
    (["--nnodes", "2"], ["rdzv-agent --nnodes 2 --endpoint HOST"]),
    (["--nnodes", "1:4"], ["rdzv-agent --nnodes 1:4 --endpoint HOST"]),
    (["--standalone", "--nnodes", "2"], ["--standalone is for one node", "--endpoint HOST"]),
    (["--endpoint", "n1:70000"], ["n1:70000", "0 to 65535"]),
    (["--endpoint", "n1:0", "--nnodes", "2"], ["port 0"]),
    (["--endpoint", "n 1"], ["letters, digits"]),
    (["--endpoint"], ["--endpoint needs a value: --endpoint HOST[:PORT]"]),
    (["--node-rank", "3", "--nnodes", "2", "--endpoint", "n1"], ["--node-rank=3", "from 0 to 1"]),
    (["--local-addr", "eth0,eth1"], ["--local-addr=eth0,eth1", "its name"]),
    (["--lease", "100ms"], ["--lease=100ms", "from 1s to 10m"]),
    (["--join-timeout", "soon"], ["--join-timeout=soon"]),
    (["--max-restarts", "-1"], ["--max-restarts=-1"]),
    (["--repeat-limit", "-1"], ["--repeat-limit=-1"]),
    (["--rdzv-id", "a b"], ["cannot contain blanks"]),
    (["--nprox", "2"], ["--nprox", "did you mean --nproc?"]),
    (["--frobnicate"], ["unknown option --frobnicate", "--help"]),
    (["-z"], ["unknown option -z"]),
    (["--quiet", "--verbose"], ["exclude each other"]),
]


@pytest.mark.parametrize("words, says", USAGE, ids=[" ".join(w) for w, _ in USAGE])
def test_what_is_wrong_is_told_in_one_sentence(words, says):
    refused(agent(*words, "--", "/bin/true"), 64, *says)


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("RDZV_AGENT_NPROC", "garbage", ["RDZV_AGENT_NPROC=garbage"]),
        ("RDZV_AGENT_NNODES", "3:2", ["RDZV_AGENT_NNODES=3:2"]),
        ("RDZV_AGENT_ENDPOINT", "\x1b[31m", ["RDZV_AGENT_ENDPOINT=", "\\x1b"]),
        ("RDZV_AGENT_MAX_RESTART", "1", ["RDZV_AGENT_MAX_RESTART", "did you mean RDZV_AGENT_MAX_RESTARTS?"]),
        ("RDZV_AGENT_FROB", "1", ["RDZV_AGENT_FROB", "names no option"]),
        ("RDZV_AGENT_LEASE", "", ["RDZV_AGENT_LEASE="]),
    ],
)
def test_garbage_in_the_environment_is_told(name, value, says):
    refused(agent("--", "/bin/true", env={name: value}), 64, *says)


def test_a_worker_may_start_an_agent():
    done = agent("--version", env={"RDZV_AGENT_SOCKET": "@somewhere"})
    assert done.returncode == 0
    refused(agent("--nproc", "0", env={"RDZV_AGENT_SOCKET": "@somewhere"}), 64, "--nproc=0")


def test_a_command_that_is_not_there():
    refused(agent("--standalone", "--", "no-such-command-here"), 127, "no-such-command-here: command not found in PATH")
    refused(agent("./no-such-file"), 127, "./no-such-file: command not found")


def test_a_command_that_cannot_be_run(tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    refused(agent("--", script), 126, str(script), "cannot be run", "chmod +x")
    refused(agent("--", tmp_path), 126, "cannot be run")


def test_a_log_folder_that_cannot_be_had(tmp_path):
    (tmp_path / "file").write_text("")
    refused(agent("--log-dir", tmp_path / "file" / "logs", "--", "/bin/true"), 71, "--log-dir", "file/logs")
    refused(agent("--log-dir", tmp_path / "file", "--", "/bin/true"), 71, "--log-dir")


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
    assert agent("-h").stdout == done.stdout


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
