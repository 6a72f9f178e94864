# SPDX-License-Identifier: Apache-2.0
"""Warm start: workers are forked from a template. A script that runs both ways sees the same of its process, and a fault of the template costs nobody a job."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time

import pages
import pytest

from harness import TOP, alive, comm, until

PAGE = "deploy/guide/warm.md"
SCRIPT = TOP / "tests/e2e/warm_script.py"
OBSERVED_MIN = 60
FAULTS_PER_JOB = 2  # more restarts are put off, because rounds are short
# What the program names of its own pid, time and addresses.
CHANGING = re.compile(r"0x[0-9a-f]+|pid \d+|alone-[0-9a-f]+|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[.\d]*|Thread 0x\w+")


@pytest.fixture
def cache(rdzv):
    folder = rdzv.tmp / "cache"
    folder.mkdir()
    return folder


def plain(text):
    return CHANGING.sub("...", text)


def job(rdzv, cache, mode, *command, end="return", nproc=2, env=None, expect=None, restarts=0, **kw):
    """One run of the script, all of its ranks: what they saw, what was printed."""
    out = rdzv.tmp / f"out-{mode}-{len(rdzv.procs)}"
    out.mkdir()
    more = {"XDG_CACHE_HOME": str(cache), "WARM_MODE": mode, "WARM_OUT": str(out), "WARM_END": end, "WARM_UNSET": "1", "PYTHON_EXEC": sys.executable, **(env or {})}
    a = rdzv.agent("--verbose", "--nproc", nproc, "--max-restarts", restarts, "--warm", mode, *command, env=more, **kw)
    code = a.exit(60)
    if expect is not None:
        assert code == expect, a
    seen = [json.loads(p.read_text()) for p in sorted(out.iterdir())]
    if nproc == 1:
        lines = sorted(plain(line) for line in a.text.splitlines() if not line.startswith("rdzv-agent: "))
    else:
        lines = sorted(plain(line[4:]) for line in a.text.splitlines() if line[:4] in ("[0] ", "[1] "))
    return a, code, seen, lines


def forked(a):
    """The template that forks its workers is named once in the agent's words."""
    return re.search(r"template \(pid (\d+)\): forks workers", a.text)


def place(rdzv, form):
    """The script in the form in which a user would start it: the command's words."""
    shutil.copy(SCRIPT, rdzv.tmp / "train.py")
    (rdzv.tmp / "warm_helper.py").write_text("WHO = 'beside the script'\n")
    if form == "script":
        return ["train.py", "--lr", "1 2"]
    if form == "terminal":
        return ["--pty", "train.py"]
    if form == "program":
        return ["--", "python3", "-B", "-X", "dev", "-W", "ignore::UserWarning", "train.py", "x"]
    if form == "link":
        (rdzv.tmp / "jobs").mkdir()
        (rdzv.tmp / "jobs/run.py").symlink_to("../train.py")
        return ["jobs/run.py"]
    if form == "module":
        return ["-m", "train", "x"]
    if form == "package":
        (rdzv.tmp / "pkg").mkdir()
        (rdzv.tmp / "pkg/__init__.py").write_text("")
        shutil.copy(SCRIPT, rdzv.tmp / "pkg/__main__.py")
        return ["-m", "pkg", "x"]
    if form == "folder":
        (rdzv.tmp / "app").mkdir()
        shutil.copy(SCRIPT, rdzv.tmp / "app/__main__.py")
        return ["--", "python3", "app"]
    raise AssertionError(form)


RANDOM = "import os, random\nos.environ['SET_BY_AN_IMPORT'] = '1'\nos.environ.pop('WARM_UNSET', None)\nBY_CHANCE, SEEDED = random.Random(), random.Random(7)\n"
# In a cycle: only the collector finds it, in the end.
LAST = RANDOM + "class Last:\n    def __init__(self):\n        self.me = self\n    def __del__(self, write=os.write):\n        write(1, b'last\\n')\nONE = Last()\n"


@pytest.mark.parametrize("form", ["script", "terminal", "program", "link", "module", "package", "folder"])
def test_a_script_sees_the_same(rdzv, cache, form):
    command, env = place(rdzv, form), library(rdzv, warm_library=RANDOM)
    _, _, cold, _ = job(rdzv, cache, "off", *command, expect=0, env=env)
    for _ in range(2):  # with nothing learned, and with what the first run has learned
        a, _, warm, _ = job(rdzv, cache, "auto", *command, expect=0, env=env)
        assert forked(a), a
        assert len(warm) == len(cold) == 2, a
        for before, after in zip(cold, warm):
            assert len(before["seen"]) >= OBSERVED_MIN
            different = {n: (v, after["seen"].get(n)) for n, v in before["seen"].items() if after["seen"].get(n) != v}
            assert not different, "\n".join(f"{n}:\n  exec {x}\n  fork {y}" for n, (x, y) in different.items())
            assert set(before["seen"]) == set(after["seen"])
        for name, value in warm[0]["draws"].items():
            assert value != warm[1]["draws"][name], f"both workers draw the same {name}"


@pytest.mark.parametrize("end", ["return", "raise", "exit", "exit text", "signal", "abort", "interrupt", "exception group"])
def test_a_script_ends_the_same(rdzv, cache, end):
    command, env = place(rdzv, "script"), library(rdzv, warm_library=LAST)
    _, code, _, lines = job(rdzv, cache, "off", *command, end=end, nproc=1, env=env)
    a, warm_code, _, warm_lines = job(rdzv, cache, "auto", *command, end=end, nproc=1, env=env)
    assert forked(a), a
    assert warm_code == code, a
    assert warm_lines == lines, a
    assert lines, a


# What a template must not have in it: a module beside neither the script nor the interpreter, on PYTHONPATH.
BAD = {
    "reads RANK": ("import os\nMINE = os.environ.get('RANK')\n", "reads RANK"),
    "keeps a thread": ("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n", "starts a thread"),
    "keeps a socket": ("import socket\nS = socket.socket()\n", "opens socket:"),
    "keeps a pipe": ("import os\nP = os.pipe()\n", "opens pipe:"),
    "starts a process": ("import subprocess\nP = subprocess.Popen(['sleep', '60'], stdin=subprocess.DEVNULL)\n", "starts a process"),
    "keeps the time": ("import time\nT = time.time()\n", "keeps the time of its import"),
    "makes a folder": ("import tempfile\nF = tempfile.mkdtemp()\n", "keeps the name "),
    "changes sys.path": ("import sys\nsys.path.insert(0, '/elsewhere')\n", "changes the beginning of sys.path"),
    "changes the folder": ("import os\nos.chdir('/')\n", "changes the working directory"),
    "sets RANK": ("import os\nos.environ['RANK'] = '0'\n", "sets RANK"),
    "prints": ("print('hello from an import')\n", "prints"),
    "holds a lock": ("import fcntl, os\nF = open(__file__ + '.lock', 'w')\nfcntl.lockf(F, fcntl.LOCK_EX)\n", "holds a lock"),
    "reads what the script sets": ("import os\nLEVEL = os.environ.get('LIB_LEVEL')\n", "the script sets"),
}


def library(rdzv, **modules):
    folder = rdzv.tmp.with_name(rdzv.tmp.name + "-lib")  # what lies below the script's folder is the script's own
    folder.mkdir(exist_ok=True)
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return {"PYTHONPATH": str(folder)}


def script(rdzv, text):
    (rdzv.tmp / "train.py").write_text(text)
    return "train.py"


@pytest.mark.parametrize("bad", BAD)
def test_a_module_at_fault_is_left_out_and_remembered(rdzv, cache, bad):
    text, reason = BAD[bad]
    env = library(rdzv, bad_one=text, good_one="import os\nPID = os.getpid()\n")
    main = script(rdzv, "import os, sys\nos.environ['LIB_LEVEL'] = '3'\nimport good_one, bad_one\nmine = bad_one.__dict__.get('MINE')\n"
                  "print('own' if good_one.PID == os.getpid() else 'shared', mine == os.environ['RANK'] or mine, vars(bad_one).get('LEVEL'), flush=True)\nos._exit(0)\n")
    a, _, _, _ = job(rdzv, cache, "auto", main, env=env, nproc=1, expect=0)
    assert re.search(rf"begins again: bad_one is left out: it {reason}|begins again: bad_one is left out: .*{reason}", a.text), a
    assert forked(a) and "[0] " not in a.text, a
    assert a.says("shared"), a
    assert ("True" in a.text) == (bad == "reads RANK") and ("3" in a.text.split("shared")[1].split("\n")[0]) == (bad == "reads what the script sets"), a
    a, _, _, _ = job(rdzv, cache, "auto", main, env=env, nproc=1, expect=0)
    assert forked(a) and not a.says("begins again"), a
    a = rdzv.agent("--explain", main, env={"XDG_CACHE_HOME": str(cache)})
    assert a.exit() == 0 and a.says(f"warm 'auto'  # without bad_one: .*{reason}"), a


def test_values_of_modules_are_not_asked(rdzv, cache):
    """Some of PyTorch's warn when somebody asks for their class, and the module that came next was at fault then."""
    main = script(rdzv, "import lib_one, lib_two\n")
    shy = "class Shy:\n    @property\n    def __class__(self):\n        print('asked')\n        return int\nVALUE = Shy()\n"
    a, _, _, _ = job(rdzv, cache, "auto", main, env=library(rdzv, lib_one="import datetime\n" + shy, lib_two=shy), nproc=1, expect=0)
    assert forked(a) and not a.says("is left out|asked"), a


def test_a_script_that_changes_sys_path(rdzv, cache):
    """Only its workers know where they find a module: the first template has none, and the next what the workers found."""
    env = library(rdzv, lib_one="WHO = 'elsewhere'\n")
    found = rdzv.tmp.with_name(rdzv.tmp.name + "-found")
    found.mkdir()
    (found / "lib_one.py").write_text("WHO = 'found'\n")
    main = script(rdzv, f"import sys\nsys.path.insert(0, {str(found)!r})\nimport lib_one\nprint('who', lib_one.WHO)\n")
    for _ in range(2):
        a, _, _, _ = job(rdzv, cache, "auto", main, env=env, nproc=1, expect=0)
        assert forked(a) and a.says("who found"), a


@pytest.mark.parametrize("text, reason", [
    ("import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n", "keeps a thread"),
    ("import os\nos.environ.get('LOCAL_RANK')\n", "sitecustomize reads LOCAL_RANK"),
    ("import os\nP = os.pipe()\n", "opens pipe:"),
    ("import os\nos.environ['SITE'] = 'was here'\n", None),
])
def test_what_a_site_does_first(rdzv, cache, text, reason):
    """Its sitecustomize runs in each worker, or in the template once if no worker can see the difference."""
    main = script(rdzv, "import os, threading, lib_one\nprint('threads', threading.active_count(), os.environ.get('SITE'))\n")
    env = library(rdzv, sitecustomize=text, lib_one="")
    a, _, _, _ = job(rdzv, cache, "auto", main, env=env, nproc=1, expect=0)
    assert bool(forked(a)) == (reason is None) and (not reason or a.says(f"no warm start, .*{reason}")), a
    assert a.says("threads 2" if reason == "keeps a thread" else "threads 1 was here" if not reason else "threads 1"), a


def test_an_import_sees_the_terminal_that_workers_have(rdzv, cache):
    """And one that prints there is left out, however much it prints."""
    main = script(rdzv, "import sys, lib_one, lib_two\nprint('terminal', sys.stdout.isatty(), lib_one.TTY)\n")
    env = library(rdzv, lib_one="import sys\nTTY = [s.isatty() for s in (sys.stdout, sys.stderr)]\n", lib_two="print('x' * 100000)\n")
    a, _, _, _ = job(rdzv, cache, "auto", "--pty", main, env=env, expect=0)
    assert forked(a) and a.says("lib_two is left out: it prints when it is imported") and a.says(r"terminal True \[True, True\]"), a


def test_a_module_that_is_missing_is_told_at_once(rdzv, cache):
    """Without the imports behind it. One that the script can do without changes nothing."""
    env = library(rdzv, lib_one="import os\nopen(os.environ['WARM_OUT'] + '/imported', 'w')\n")
    main = script(rdzv, "import no_such_module\nimport lib_one\n")
    a, code, _, _ = job(rdzv, cache, "auto", main, env=env, nproc=1)
    assert code == 1 and a.says("No module named 'no_such_module'") and not forked(a) and not a.says("no warm start"), a
    assert not list(rdzv.tmp.glob("out-*/imported")), a
    main = script(rdzv, "import os\ntry:\n    import no_such_module\nexcept ImportError:\n    pass\nimport lib_one\nos.unlink(os.environ['WARM_OUT'] + '/imported')\n")
    a, _, _, _ = job(rdzv, cache, "auto", main, env=env, nproc=1, expect=0)
    assert forked(a), a


def test_pytorch_whose_forks_refuse_cuda(rdzv, cache):
    """A stand-in: lib_one asks for devices when it is imported, so lib_one is left out."""
    torch = """import os, types
ASKED, Generator = [], type("Generator", (), {"seed": lambda self: 1, "initial_seed": lambda self: 1})
default_generator = Generator()
cuda = types.SimpleNamespace(_is_in_bad_fork=lambda: bool(ASKED) and os.getpid() not in ASKED)
"""
    main = script(rdzv, "import torch, lib_one\nprint('bad fork:', torch.cuda._is_in_bad_fork())\n")
    env = library(rdzv, torch=torch, lib_one="import os, torch\ntorch.ASKED.append(os.getpid())\n")
    a, _, _, _ = job(rdzv, cache, "auto", main, env=env, nproc=1, expect=0)
    assert a.says("lib_one is left out: it asks CUDA for devices") and a.says("modules: . torch") and a.says("bad fork: False"), a


WAIT = "import os, time, lib_one\nprint('round', os.environ['RDZV_ROUND'], 'version', lib_one.VERSION, lib_one.PID == os.getpid(), flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


def waiting_job(rdzv, cache, lib_one="import os\nVERSION = 1\nPID = os.getpid()\n", nproc=2):
    env = library(rdzv, lib_one=lib_one)
    env.update(XDG_CACHE_HOME=str(cache), PYTHON_EXEC=sys.executable)
    a = rdzv.agent("--verbose", "--nproc", nproc, "--max-restarts", 9, "--warm", "auto", script(rdzv, WAIT), env=env)
    found = lambda: re.findall(r"round 1 version 1 False", a.text)
    until(lambda: f"{nproc} workers share the library: {a}", lambda: len(found()) == nproc, 20)
    return a, int(forked(a)[1])


def go(rdzv, a):
    rdzv.go(a)


def hit(rdzv):
    """SIGKILL to rank 0."""
    os.kill(rdzv.await_workers(2)[0], signal.SIGKILL)


def test_after_a_fault_workers_are_forked_again(rdzv, cache):
    a, template = waiting_job(rdzv, cache)
    for n in range(2, 5):
        hit(rdzv)
        until(lambda: f"round {n} runs: {a}", lambda: len(re.findall(f"round {n} version 1 False", a.text)) == 2, 20)
    assert alive(template) and comm(template).startswith("python"), a
    go(rdzv, a)
    until("the template ends with the agent", lambda: not alive(template), 10)


@pytest.mark.parametrize("who", ["agent", "guard"])
def test_nothing_outlives_agent_or_guard(rdzv, cache, who):
    a, template = waiting_job(rdzv, cache)
    victims = {"agent": a.pid, "guard": next(p for p in rdzv.pids() if comm(p) == "rdzv-guard")}
    workers = list(rdzv.await_workers(2).values())
    os.kill(victims[who], signal.SIGKILL)
    until(lambda: f"all are gone: {a}", lambda: not any(alive(p) for p in [template, *workers]), 20)


@pytest.mark.parametrize("fate", ["killed", "stopped"])
def test_a_template_that_dies_or_hangs_is_made_again(rdzv, cache, fate):
    """The round that finds it so starts by exec."""
    a, template = waiting_job(rdzv, cache)
    os.kill(template, signal.SIGKILL if fate == "killed" else signal.SIGSTOP)
    hit(rdzv)
    until(lambda: f"round 2 runs: {a}", lambda: len(re.findall("round 2 version 1", a.text)) == 2, 30)
    until(lambda: f"the template is gone: {a}", lambda: not alive(template), 30)
    until(lambda: f"another one is ready: {a}", lambda: len(re.findall("forks workers", a.text)) == 2, 30)
    assert fate == "killed" or len(re.findall("round 2 version 1 True", a.text)) == 2, a
    hit(rdzv)
    until(lambda: f"round 3 is forked: {a}", lambda: len(re.findall("round 3 version 1 False", a.text)) == 2, 30)
    go(rdzv, a)


def test_a_changed_file_is_never_taken_from_a_template(rdzv, cache):
    a, template = waiting_job(rdzv, cache)
    library(rdzv, lib_one="import os\nVERSION = 'two'\nPID = os.getpid()\n")
    hit(rdzv)
    until(lambda: f"round 2 has the new file: {a}", lambda: len(re.findall("round 2 version two", a.text)) == 2, 30)
    go(rdzv, a)


def test_a_changed_script_is_read_again(rdzv, cache):
    """It sets a variable now, before it imports a module that reads it."""
    a, _ = waiting_job(rdzv, cache, "import os\nVERSION = 1\nPID = os.getpid()\nLEVEL = os.environ.get('LIB_LEVEL')\n")
    script(rdzv, "import os\nos.environ['LIB_LEVEL'] = '3'\n" + WAIT + "print('level', lib_one.LEVEL)\n")
    for n in (2, 3):
        hit(rdzv)
        until(lambda: f"round {n} runs: {a}", lambda: len(re.findall(f"round {n} version 1 True", a.text)) == 2, 30)
        until(lambda: f"the library is left out: {a}", lambda: a.says("lib_one is left out: it reads LIB_LEVEL, which the script sets"), 30)
    go(rdzv, a)
    assert len(re.findall("level 3", a.text)) == 2, a


def test_a_module_beside_the_script_is_never_taken_from_elsewhere(rdzv, cache):
    env = library(rdzv, lib_one="import lib_two\n", lib_two="WHO = 'elsewhere'\n")
    main = script(rdzv, "import lib_one, lib_two\nprint('found', lib_two.WHO)\n")
    for who in ("elsewhere", "beside"):
        a, _, _, _ = job(rdzv, cache, "auto", main, env=env, nproc=1, expect=0)
        assert a.says(f"found {who}"), a
        (rdzv.tmp / "lib_two.py").write_text("WHO = 'beside'\n")


@pytest.mark.parametrize("damage", ["cut", "of another writer", "a link", "text"])
def test_a_damaged_memory_is_nothing(rdzv, cache, damage):
    env = library(rdzv, lib_one="WHO = 1\n")
    main = script(rdzv, "import lib_one\nprint('found', lib_one.WHO)\n")
    job(rdzv, cache, "auto", main, env=env, nproc=1, expect=0)
    (file,) = (cache / "rdzv/warm").iterdir()
    text = file.read_text()
    assert "module lib_one" in text
    if damage == "cut":
        file.write_text(text[: len(text) // 2])
    elif damage == "of another writer":
        file.chmod(0o666)
    elif damage == "text":
        file.write_bytes(b"\xff\0\n" * 100)
    else:
        file.rename(cache / "elsewhere")
        file.symlink_to(cache / "elsewhere")
    a, _, _, _ = job(rdzv, cache, "auto", main, env=env, nproc=1, expect=0)
    assert forked(a) and a.says("found 1"), a


def test_modules_can_be_named_and_it_can_be_off(rdzv, cache):
    env = library(rdzv, lib_one="import os\nPID = os.getpid()\n")
    main = script(rdzv, "import os\nimport importlib\nlib = importlib.import_module('lib_' + 'one')\nprint(lib.PID == os.getpid())\n")
    for mode, own in (("off", "True"), ("lib_one", "False")):
        a, _, _, _ = job(rdzv, cache, mode, main, env=env, nproc=1, expect=0)
        assert a.says(f"{own}\n") and bool(forked(a)) == (mode != "off"), a
    a, _, _, _ = job(rdzv, cache, "no_such_module", main, env=env, nproc=1, expect=0)
    assert a.says("no warm start, .*: no_such_module, which --warm names, cannot be imported") and a.says("True\n"), a
    a = rdzv.agent("--warm", "torch;", main)
    assert a.exit() == 64 and a.says("--warm.*write off, auto, or modules"), a


@pytest.mark.parametrize("words", [["-I"], ["-S"], ["-E"]])
def test_an_interpreter_that_does_not_look_runs_as_ever(rdzv, cache, words):
    main = script(rdzv, "print('runs', open('count', 'a').write('x'))\n")
    a, _, _, _ = job(rdzv, cache, "auto", "--", "python3", *words, main, nproc=1, expect=0)
    assert a.says(f"no warm start, .*: it has no template with {words[0]}"), a
    assert a.says("runs 1") and (rdzv.tmp / "count").read_text() == "x", a


def test_a_wrapper_that_hides_the_variables_runs_the_script_once(rdzv, cache):
    wrapper = rdzv.tmp / "python3"
    wrapper.write_text(f'#!/bin/sh\nunset PYTHONPATH RDZV_TEMPLATE\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    main = script(rdzv, "print('runs', open('count', 'a').write('x'))\n")
    a, _, _, _ = job(rdzv, cache, "auto", main, nproc=1, expect=0, env={"PYTHON_EXEC": str(wrapper)})
    assert a.says("runs 1") and (rdzv.tmp / "count").read_text() == "x", a


FAULTY = """import os, time, lib_one
with open('starts', 'a') as f:
    f.write(f"{os.environ['RDZV_ROUND']} {os.environ['RANK']} {os.getpid()}\\n")
while not os.path.exists('go'):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("seed", range(int(os.environ.get("RDZV_WARM_FAULTS", "24")) // FAULTS_PER_JOB))
def test_random_faults(rdzv, cache, seed):
    """While templates are made, renewed and used: each worker starts once in a round, nothing hangs, and nothing is left."""
    chance = random.Random(seed)
    env = library(rdzv, lib_one=f"import time\ntime.sleep({chance.choice([0, 0, 0.05, 0.3])})\n")
    a = rdzv.agent("--nproc", 3, "--max-restarts", 9, "--verbose", "--warm", "auto", script(rdzv, FAULTY), env={**env, "XDG_CACHE_HOME": str(cache), "PYTHON_EXEC": sys.executable})
    starts = rdzv.tmp / "starts"
    starts.touch()
    lines = lambda: [tuple(map(int, line.split())) for line in starts.read_text().splitlines()]
    workers = lambda n: [pid for nth, _, pid in lines() if nth == n]
    templates = lambda: [int(p) for p in re.findall(r"template \(pid (\d+)\)", a.text)]
    for n in range(1, FAULTS_PER_JOB + 1):
        kind = chance.choice(["worker", "worker", "template", "template", "stop", "edit", "all"])
        if chance.random() < 0.5:  # else it comes while they start
            until(lambda: f"round {n} runs (seed {seed}): {a}", lambda: len(workers(n)) == 3, 30)
        if kind in ("template", "all", "stop") and templates() and alive(templates()[-1]):
            os.kill(templates()[-1], signal.SIGSTOP if kind == "stop" else signal.SIGKILL)
        if kind == "edit":
            library(rdzv, lib_one=f"EDIT = {n}\n")
        until(lambda: f"a worker of round {n} runs (seed {seed}): {a}", lambda: workers(n), 30)
        time.sleep(chance.choice([0, 0.01, 0.1]))
        for pid in workers(n)[: 3 if kind == "all" else 1]:
            with contextlib.suppress(ProcessLookupError):  # the first one's death stops the others
                os.kill(pid, signal.SIGKILL)
    until(lambda: f"the last round runs (seed {seed}): {a}", lambda: len(workers(FAULTS_PER_JOB + 1)) == 3, 40)
    go(rdzv, a)
    assert len(lines()) == len({line[:2] for line in lines()}), a


def test_the_pages_command(rdzv, cache):
    script(rdzv, "import os\nprint('rank', os.environ['RANK'], flush=True)\n")
    p = pages.shell(rdzv, pages.block(PAGE, "first"), env={"XDG_CACHE_HOME": str(cache)})
    assert p.exit(60) == 0 and len(set(re.findall(r"rank (\d)", p.text))) == 8, p
