# SPDX-License-Identifier: Apache-2.0
"""Workers' output, log files and error files, with real agents: who sees what, what lies where, and what is left."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
import pages
from harness import AGENT, HOST, SLOW, until

PYTHON = [sys.executable, "-SE"]
# Says something on both streams; in its first round local rank 1 fails.
BOTH = "echo out of $LOCAL_RANK; echo err of $LOCAL_RANK >&2"
# Writes an error file as @record does, and dies with code 3.
BOOM = """
import json, os, sys, time
def boom(message="ValueError: boom", code=3):
    text = {"message": {"message": message, "extraInfo": {"py_callstack": "Traceback\\n  in boom\\n" + message, "timestamp": str(int(time.time()))}}}
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as f: json.dump(text, f)
    sys.exit(code)
"""


@pytest.fixture
def tmp(rdzv):
    """Where temporary folders go."""
    (rdzv.tmp / "T").mkdir()
    return rdzv.tmp / "T"


def agent(rdzv, *args, env=None, **kw):
    return rdzv.agent("--nproc", 2, *args, env={"TMPDIR": str(rdzv.tmp / "T"), **(env or {})}, **kw)


def line(a, pattern):
    """Whether the agent has a line of its own that ends with this."""
    return any(re.search(f"^rdzv-agent: .*{pattern}$", l) for l in a.err)


def run_dir(place):
    """The one folder of the one run."""
    (found,) = [p for p in place.iterdir() if p.is_dir()]
    return found


def tree(place):
    """Files below the run's folder, with their text."""
    top = run_dir(place)
    return {str(p.relative_to(top)): p.read_text() for p in sorted(top.rglob("*.log")) + sorted(top.rglob("*.json"))}


def workers_lines(a):
    return sorted(l for l in a.out + a.err if " of " in l and "rdzv-agent:" not in l)


def script(rdzv, text):
    (rdzv.tmp / "w.py").write_text(BOOM + text)
    return [*PYTHON, "w.py"]


# ---------------------------------------------------------------- log files


def test_log_dir_alone_is_as_tee_without_its_prefix(rdzv, tmp):
    a = agent(rdzv, "--standalone", "--log-dir", "deep/logs", "--", "sh", "-c", BOTH)
    assert a.exit() == 0, a
    assert workers_lines(a) == ["[0] err of 0", "[0] out of 0", "[1] err of 1", "[1] out of 1"]
    top = run_dir(rdzv.tmp / "deep/logs")
    assert re.fullmatch("alone-[0-9a-f]{16}_[a-z0-9]{8}", top.name)
    assert line(a, f"logs go to {top}")
    files = tree(rdzv.tmp / "deep/logs")
    assert {k: v for k, v in files.items() if "/" in k} == {
        f"attempt_0/{i}/std{s}.log": f"{s} of {i}\n" for i in (0, 1) for s in ("out", "err")
    }
    assert set(files) - {k for k in files if "/" in k} == {f"agent-{HOST}.log", f"rdzvd-{HOST}.log"}
    assert "is done" in files[f"agent-{HOST}.log"]
    assert list(tmp.iterdir()) == []


def test_prefix_template(rdzv, tmp):
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${role_name}:${rank}/${local_rank}> "}
    a = agent(rdzv, "--standalone", "--", "sh", "-c", BOTH, env=template)
    assert a.exit() == 0, a
    assert workers_lines(a) == ["<default:0/0> err of 0", "<default:0/0> out of 0", "<default:1/1> err of 1", "<default:1/1> out of 1"]


def test_prefix_option(rdzv, tmp):
    """It wins over the variable, and stands on the terminal, not in files."""
    template = {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "variable "}
    a = agent(rdzv, "--standalone", "--tee", 3, "--log-dir", "logs", "--log-line-prefix-template", "${role_name}/${rank}$$ ", "--", "sh", "-c", BOTH, env=template)
    assert a.exit() == 0, a
    assert workers_lines(a) == ["default/0$ err of 0", "default/0$ out of 0", "default/1$ err of 1", "default/1$ out of 1"]
    assert {text for name, text in tree(rdzv.tmp / "logs").items() if "/" in name} == {"err of 0\n", "out of 0\n", "err of 1\n", "out of 1\n"}


def test_prefix_of_the_guide(rdzv, tmp):
    (rdzv.tmp / "train.py").write_text("print('one of two')")
    command = pages.block("deploy/guide/output-and-logs.md", "prefix").replace("rdzv-agent", str(AGENT))
    a = rdzv.spawn("sh", "-c", command, env={"TMPDIR": str(tmp)})
    assert a.exit() == 0, a
    assert workers_lines(a) == [f"{HOST}:0: one of two", f"{HOST}:1: one of two"]


def test_prefix_with_the_nodes_name(rdzv, tmp, lan):
    """Two hosts: each line says where its worker runs, and which of all it is."""
    job = ["--endpoint", "10.99.0.1:29400", "--nnodes", 2, "--log-line-prefix-template", "${hostname} ${rank}: ", "--", "sh", "-c", "echo here"]
    agents = [agent(rdzv, "--node-rank", i, *job, wrap=host, node=str(i)) for i, host in enumerate(lan)]
    for i, a in enumerate(agents):
        assert a.exit() == 0, rdzv
        assert sorted(a.out) == [f"node{i + 1} {2 * i}: here", f"node{i + 1} {2 * i + 1}: here"], rdzv


def test_no_attempt_is_lost(rdzv, tmp):
    """A restart, and then a membership change, which torchrun would let write over the attempt before."""
    d = rdzv.daemon()
    text = """echo round $RDZV_ROUND; touch said.$RDZV_ROUND.$RANK
        [ $RDZV_ROUND != 1 ] || [ $RANK != 0 ] || { until [ -e said.1.1 ]; do sleep 0.01; done; exit 3; }
        [ $RDZV_ROUND != 3 ] || exit 0; echo up > up.$RDZV_ROUND.$GROUP_RANK; exec sleep 60"""
    job = ["--nnodes", "1:2", "--nproc", 1, "--last-call", "30s", "--log-dir", "logs", "--", "sh", "-c", text]
    one, two = (rdzv.agent("--endpoint", d.endpoint, *job, node=str(i), env={"TMPDIR": str(tmp)}) for i in range(2))
    until(lambda: f"round 2 runs\n{rdzv}", lambda: all((rdzv.tmp / f"up.2.{i}").exists() for i in range(2)))
    two.kill()
    assert one.exit() == 0, rdzv
    (top,) = [p for p in (rdzv.tmp / "logs").iterdir() if (p / "attempt_2").exists()]
    assert [(top / f"attempt_{n}/0/stdout.log").read_text() for n in range(3)] == ["round 1\n", "round 2\n", "round 3\n"]


def test_a_place_that_cannot_be_written(rdzv, tmp):
    a = rdzv.agent("--standalone", "--redirects", 3, "--", "true", env={"TMPDIR": "/proc"})
    assert a.exit() == 71 and a.says("folder.*/proc"), a
    a = rdzv.agent("--standalone", "--log-dir", "/proc/x", "--", "true")
    assert a.exit() == 71 and a.says("--log-dir /proc/x cannot be made"), a


def test_no_temporary_folder_is_no_reason_to_stop(rdzv, tmp):
    """Nobody asked for files: a machine without a writable /tmp runs its workers all the same."""
    a = rdzv.agent("--standalone", "--", "sh", "-c", "echo \"file:$TORCHELASTIC_ERROR_FILE:\"", env={"TMPDIR": "/proc"})
    assert a.exit() == 0 and a.out == ["file::"] and a.says("no folder for error files"), a


def test_dev_null_is_no_files(rdzv, tmp):
    a = agent(rdzv, "--standalone", "--log-dir", "/dev/null", "-r", 3, "--", "sh", "-c", "echo \"file of:$TORCHELASTIC_ERROR_FILE:\"")
    assert a.exit() == 0 and sorted(a.out) == ["[0] file of::", "[1] file of::"], a
    assert list(tmp.iterdir()) == []


# ---------------------------------------------------------- temporary folders


def test_a_temporary_folder_goes(rdzv, tmp):
    text = """
assert os.environ["TORCHELASTIC_ERROR_FILE"].startswith(os.environ["TMPDIR"] + "/torchelastic_")
folder = os.path.dirname(os.environ["TORCHELASTIC_ERROR_FILE"])
assert os.stat(os.path.dirname(os.path.dirname(os.path.dirname(folder)))).st_mode & 0o777 == 0o700
os.makedirs(folder + "/more/and/more"); open(folder + "/more/x", "w").close(); os.symlink("/", folder + "/root")
if os.environ["RDZV_ROUND"] == "1": time.sleep(60) if os.environ["RANK"] == "0" else sys.exit(3)
"""
    a = agent(rdzv, "--standalone", "--", *script(rdzv, text))
    assert a.exit() == 0 and line(a, "exited with code 3.*") and not a.says("error file|logs go"), a
    assert list(tmp.iterdir()) == [] and os.path.exists("/etc/passwd")


def test_a_temporary_folder_stays_for_those_who_asked_for_files(rdzv, tmp):
    a = agent(rdzv, "--standalone", "-r", 1, "--", "sh", "-c", BOTH)
    assert a.exit() == 0 and workers_lines(a) == ["[0] err of 0", "[1] err of 1"], a
    (place,) = tmp.iterdir()
    assert line(a, f"logs go to {run_dir(place)}")
    assert (run_dir(place) / "attempt_0/1/stdout.log").read_text() == "out of 1\n"


def test_a_temporary_folder_stays_for_an_error_file_that_was_told(rdzv, tmp):
    a = agent(rdzv, "--standalone", "--max-restarts", 0, "--", *script(rdzv, "os.environ['RANK'] != '1' or boom()\ntime.sleep(60)"))
    assert a.exit() == 3, a
    (place,) = tmp.iterdir()
    file = run_dir(place) / "attempt_0/1/error.json"
    assert line(a, rf"  at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d, error file {file}"), a
    assert json.loads(file.read_text())["message"]["message"] == "ValueError: boom"


# ---------------------------------------------------------------- error files


def test_every_agent_quotes_the_error(rdzv, tmp):
    d = rdzv.daemon()
    w = script(rdzv, "os.environ['RANK'] != '3' or boom()\ntime.sleep(60)")
    job = ["--nnodes", 2, "--max-restarts", 0, "--", *w]
    agents = [agent(rdzv, "--endpoint", d.endpoint, *job, node=str(i)) for i in range(2)]
    assert [a.exit() for a in agents] == [3, 3], rdzv
    for a in agents:
        assert line(a, rf"rank 3 \(local 1\) on {HOST}, pid \d+, exited with code 3: ValueError: boom"), a
        assert a.says(r"failed in round 1: rank 3 .* exited with code 3: ValueError: boom; 0 of 0"), a
        assert a.says(r"  \| Traceback") and a.says("  |   in boom"), a  # stderr said nothing: the call stack
    assert sum(a.says("error file /") for a in agents) == 1, rdzv


def test_last_words_of_a_worker_that_writes_to_a_file(rdzv, tmp):
    a = agent(rdzv, "--standalone", "-r", 3, "--max-restarts", 0, "--", "sh", "-c", "echo out; echo the reason >&2; exit 4")
    assert a.exit() == 4 and line(a, r"  \| the reason"), a
    assert a.out == []


@pytest.mark.parametrize("text, reason", [("{", "ignored: line 1"), ("[1]", "no \"message\""), (" " * 1100000, "more than 1048576")], ids=["cut", "list", "large"])
def test_what_is_no_error_file(rdzv, tmp, text, reason):
    (rdzv.tmp / "content").write_text(text)
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", "cp content $TORCHELASTIC_ERROR_FILE; exit 5", env={"TMPDIR": str(tmp)})
    assert a.exit() == 5 and line(a, "exited with code 5"), a
    assert a.says(f"error file of local rank 0.*{reason}"), a


def test_a_pipe_for_an_error_file_holds_up_nobody(rdzv, tmp):
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", "sh", "-c", "mkfifo $TORCHELASTIC_ERROR_FILE; exit 5", env={"TMPDIR": str(tmp)})
    assert a.exit() == 5 and a.says("ignored: it cannot be read"), a


def test_escaped(rdzv, tmp):
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", *script(rdzv, "boom('E: \\x1b[31m\\nsecond line')"), env={"TMPDIR": str(tmp)})
    assert a.exit() == 3 and "code 3: E: \\x1b[31m\\nsecond line" in a.text and "\x1b" not in a.text, a


# ------------------------------------------------------------ handing it up


def handed_up(rdzv, expected_code, *args, env=None):
    file = rdzv.tmp / "up.json"
    file.write_text("an old one, longer than what comes: " + "x" * 5000)
    a = agent(rdzv, "--standalone", "--max-restarts", 0, *args, env={"TORCHELASTIC_ERROR_FILE": str(file), **(env or {})})
    assert a.exit() == expected_code, a
    return json.loads(file.read_text())["message"]


def test_handed_up_with_the_exit_code(rdzv, tmp):
    m = handed_up(rdzv, 3, "--", *script(rdzv, "os.environ['RANK'] != '1' or boom()\ntime.sleep(60)"))
    assert m["message"] == "ValueError: boom" and m["errorCode"] == 3 and "in boom" in m["extraInfo"]["py_callstack"]


def test_handed_up_of_the_worker_in_the_verdict(rdzv, tmp):
    """Both workers fail at once, and the file names the one that the verdict names."""
    file = rdzv.tmp / "up.json"
    text = "open('here' + os.environ['RANK'], 'w')\nwhile not all(os.path.exists(f'here{i}') for i in (0, 1)): pass\nboom('of ' + os.environ['RANK'])"
    a = agent(rdzv, "--standalone", "--max-restarts", 0, "--", *script(rdzv, text), env={"TORCHELASTIC_ERROR_FILE": str(file)})
    assert a.exit() == 3, a
    rank, of = re.search(r"rank (\d) .*exited with code 3: of (\d)", a.text).groups()
    assert rank == of and json.loads(file.read_text())["message"]["message"] == f"of {of}", a


def test_handed_up_with_a_signal(rdzv, tmp):
    text = "import signal\ntry: os.environ['RANK'] != '1' or boom()\nexcept SystemExit: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(60)"
    assert handed_up(rdzv, 139, "--", *script(rdzv, text))["errorCode"] == -11


def test_handed_up_of_the_verdict(rdzv, tmp):
    m = handed_up(rdzv, 6, "--", "sh", "-c", "[ $RANK = 0 ] || exec sleep 60; exit 6")
    assert re.fullmatch(rf"rank 0 \(local 0\) on {HOST}, pid \d+, exited with code 6", m["message"]) and m["errorCode"] == 6
    assert abs(int(m["extraInfo"]["timestamp"]) - time.time()) < 60


def test_an_agent_in_an_agent(rdzv, tmp):
    """The inner one's worker fails, and the outer one quotes it."""
    inner = [AGENT, "--standalone", "--max-restarts", 0, "--", *script(rdzv, "boom()")]
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--", *inner, env={"TMPDIR": str(tmp)})
    assert a.exit() == 3, a
    told = [l for l in a.err if re.match(r"(rdzv-agent:   \| )?rdzv-agent: rank 0 .* exited with code 3: ValueError: boom$", l)]
    assert len(told) >= 2, a  # the inner agent's own line, and the outer one's
    assert json.loads(next(tmp.rglob("attempt_0/0/error.json")).read_text())


# ---------------------------------------------------------------- a terminal


def test_a_prompt_shows_and_is_answered(rdzv, tmp):
    """input() in a worker, at a terminal: its prompt has no newline."""
    master, slave = pty.openpty()
    text = "answer = input('your name? ')\nprint('hello ' + answer)"
    (rdzv.tmp / "w.py").write_text(text)
    p = subprocess.Popen([AGENT, "--standalone", "--quiet", "--", sys.executable, "-u", "w.py"], stdin=slave, stdout=slave, stderr=slave,
                         cwd=rdzv.tmp, env=rdzv.env({"TMPDIR": str(tmp)}), start_new_session=True)
    os.close(slave)
    seen = b""

    def read_until(what):
        nonlocal seen
        deadline = time.monotonic() + 10 * SLOW
        while what not in seen:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([master], [], [], left)[0], f"no {what} in {seen}"
            seen += os.read(master, 4096)

    try:
        read_until(b"your name? ")
        os.write(master, b"Ada\n")
        read_until(b"hello Ada")
        assert p.wait(10 * SLOW) == 0
    finally:
        p.kill() if p.poll() is None else None
        p.wait()
        os.close(master)
