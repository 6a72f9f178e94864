# SPDX-License-Identifier: Apache-2.0
"""--warm-keep: a template stays when its job has ended, and the next start of the script is forked from it."""

import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pages
import pytest

from harness import AGENT, RDZVCTL, alive, comm, environ, stat, until
from test_warm import OBSERVED_MIN, RANDOM, cache, library, place, script  # noqa: F401

PAGE = "deploy/guide/warm.md"
SHOWS = """import json, os, sys, lib_one
print("seen", json.dumps([os.getpid() == lib_one.PID, lib_one.VERSION, sys.argv[1:], sys.orig_argv[-1], os.environ.get("MORE"), os.getcwd(),
                          open("/proc/self/cmdline").read().split("\\0")[-2], sys.stdin.read()]), flush=True)
"""
LIBRARY = "import os\nVERSION = 1\nPID = os.getpid()\n"


@pytest.fixture
def keep(rdzv, cache):  # noqa: F811
    """Starts a script, with a place of its own for what stays. The library on PYTHONPATH tells whether a worker was forked."""
    run = tempfile.mkdtemp(prefix="rk", dir="/tmp")
    k = Keep(rdzv, {"XDG_RUNTIME_DIR": run, "XDG_CACHE_HOME": str(cache), "PYTHON_EXEC": sys.executable, **library(rdzv, lib_one=LIBRARY)})
    yield k
    k.ctl("warm", "end")
    until(lambda: f"nothing is left: {k.all()}", lambda: not rdzv.pids(XDG_RUNTIME_DIR=run))
    shutil.rmtree(run)


class Keep:
    def __init__(self, rdzv, env):
        self.rdzv, self.env = rdzv, env

    def start(self, *words, keep="60s", nproc=1, env=None, **kw):
        return self.rdzv.agent("--verbose", "--nproc", nproc, "--warm-keep", keep, *(words or ["train.py"]), env={**self.env, **(env or {})}, **kw)

    def run(self, *words, expect=0, **kw):
        """One job: what its worker saw, and whether it was forked from what an earlier one has left."""
        before = {k["template"] for k in self.all()}
        a = self.start(*words, **kw)
        assert a.exit(60) == expect, a
        a.seen = [json.loads(s) for s in re.findall("seen (.*)", a.text)]
        a.again = bool(before & {int(pid) for pid in re.findall(r"template \(pid (\d+)\): forks", a.text)})
        return a

    def ctl(self, *words, expect=0):
        p = subprocess.run([RDZVCTL, *map(str, words)], env={**os.environ, **self.env}, capture_output=True, text=True)
        assert p.returncode == expect, p
        return p.stdout + p.stderr

    def all(self):
        return json.loads(self.ctl("warm", "--json"))["templates"]


def test_the_next_start_is_forked_from_it(rdzv, keep):
    """Whatever the script's arguments, its own text and the variables that imports have not read are by now."""
    script(rdzv, SHOWS)
    first = keep.run("train.py", "one")
    assert first.seen == [[False, 1, ["one"], "one", None, str(rdzv.tmp), "one", ""]] and not first.again, first
    (kept,) = keep.all()
    assert comm(kept["pid"]) == "rdzv-guard" and re.fullmatch(r".*python.* -u train.py", kept["command"]) and kept["memory_bytes"] > 0
    assert 0 < kept["left_seconds"] <= 60 and str(kept["pid"]) in keep.ctl("warm")
    for words in (["two", "more words"], ["three"], []):
        a = keep.run("train.py", *words)
        assert a.again and a.seen == [[False, 1, words, (words or ["train.py"])[-1], None, str(rdzv.tmp), (words or ["train.py"])[-1], ""]], a
        assert [k["template"] for k in keep.all()] == [kept["template"]]
    script(rdzv, SHOWS + "print('edited')\n")
    a = keep.run()
    assert a.again and a.seen[0][0] is False and a.says("edited"), a


@pytest.mark.parametrize("form", ["script", "terminal", "program", "module", "package", "folder"])
def test_a_script_sees_the_same(rdzv, keep, form):
    command, out = place(rdzv, form), rdzv.tmp / "out"
    env = {**library(rdzv, warm_library=RANDOM), "WARM_MODE": "auto", "WARM_OUT": str(out), "WARM_END": "return", "WARM_UNSET": "1"}

    def observe(*words):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return keep.run("--max-restarts", 0, *words, *command, env=env, nproc=2), [json.loads(p.read_text()) for p in sorted(out.iterdir())]

    _, cold = observe("--warm", "off")
    for start in range(3):
        a, kept = observe()
        assert a.again == (start > 0), a
        for before, after in zip(cold, kept, strict=True):
            assert len(before["seen"]) >= OBSERVED_MIN
            different = {n: (v, after["seen"].get(n)) for n, v in before["seen"].items() if after["seen"].get(n) != v}
            assert not different, "\n".join(f"{n}:\n  exec {x}\n  fork {y}" for n, (x, y) in different.items())


def test_a_start_that_is_not_alike_makes_its_own(rdzv, keep):
    """What a worker inherits and cannot be given later. At most four stay, and the oldest makes room."""
    script(rdzv, SHOWS)
    (rdzv.tmp / "other").mkdir()
    others = {
        "limits": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        "umask": lambda: os.umask(0o77),
        "priority": lambda: os.nice(1),
        "folder": lambda: os.chdir("other"),
        "CPUs": lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
    }
    keep.run()
    (first,) = keep.all()
    for name, change in others.items():
        a = keep.run(str(rdzv.tmp / "train.py") if name == "folder" else "train.py", preexec_fn=change)
        assert not a.again and a.seen, (name, a)
    assert len(keep.all()) == 4 and first["pid"] not in [k["pid"] for k in keep.all()]
    assert keep.run(preexec_fn=others["priority"]).again
    until("the first one is gone", lambda: not alive(first["pid"]) and not alive(first["template"]))


def test_other_variables_make_another_template(rdzv, keep):
    """An import may have read them where nobody sees it."""
    script(rdzv, SHOWS)
    keep.run()
    a = keep.run(env={"MORE": "yes"})
    assert not a.again and a.seen[0][4] == "yes", a
    assert keep.run(env={"MORE": "yes"}).again and keep.run().again and len(keep.all()) == 2
    assert keep.run(env={"OLDPWD": "/", "SHLVL": "7"}).again


def test_an_import_that_reads_the_arguments(rdzv, keep):
    """Then only a start with the same ones is forked from it."""
    script(rdzv, SHOWS)
    library(rdzv, lib_one=LIBRARY + "import sys\nVERSION = sys.argv[1:]\n")
    a = keep.run("train.py", "one")
    assert a.says("lib_one reads the script's arguments") and a.seen[0][1] == ["one"], a
    a = keep.run("train.py", "one")
    assert a.again and a.seen[0][:2] == [False, ["one"]], a
    a = keep.run("train.py", "two")
    assert not a.again and a.seen[0][1] == ["two"], a


@pytest.mark.parametrize("what", ["library", "imports"])
def test_a_changed_file_is_never_taken_from_it(rdzv, keep, what):
    script(rdzv, SHOWS)
    keep.run()
    if what == "library":
        library(rdzv, lib_one=LIBRARY.replace("1", "'two'"))
    else:
        script(rdzv, "import os\nos.environ['MORE'] = 'set'\n" + SHOWS)
    a = keep.run()
    assert a.seen[0][0] is True, a
    assert a.seen[0][1] == "two" if what == "library" else a.seen[0][4] == "set", a
    a = keep.run()
    assert a.seen[0][0] is False and (a.seen[0][1] == "two" or a.seen[0][4] == "set"), a


def test_nothing_of_the_old_input_and_output_stays_open(rdzv, keep):
    """A pipeline ends with the job, and a worker reads the new agent's stdin."""
    script(rdzv, SHOWS)
    for text in ("first", "second"):
        read, write = os.pipe()
        os.write(write, text.encode())
        os.close(write)
        command = f"cat | {AGENT} --verbose --warm-keep 60s train.py | cat; echo over"
        p = subprocess.run(["bash", "-c", command], stdin=read, env=rdzv.env(keep.env), cwd=rdzv.tmp, capture_output=True, text=True, timeout=60)
        os.close(read)
        assert json.loads(re.search("seen (.*)", p.stdout)[1])[-1] == text and p.stdout.endswith("over\n"), p
        assert ("earlier start" in p.stderr) == (text == "second"), p
        (kept,) = keep.all()
        for pid in (kept["pid"], kept["template"]):
            links = [os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")]
            assert not [link for link in links if link.startswith("pipe:")], links


def test_it_ends_when_its_time_is_over(rdzv, keep):
    script(rdzv, SHOWS)
    keep.run(keep="1s")
    until("nothing of it is left", lambda: not rdzv.pids(XDG_RUNTIME_DIR=keep.env["XDG_RUNTIME_DIR"]))
    assert keep.all() == [] and not os.listdir(keep.env["XDG_RUNTIME_DIR"] + "/rdzv-warm")


def test_rdzvctl_lists_and_ends(rdzv, keep):
    assert "no template stays" in keep.ctl("warm") and "0 ended" in keep.ctl("warm", "end")
    script(rdzv, SHOWS)
    keep.run()
    (kept,) = keep.all()
    assert "rdzvctl warm end" in keep.ctl("warm", "x", expect=64)
    assert json.loads(keep.ctl("warm", "end", "--json")) == {"ok": True, "ended": 1}
    until("both are gone", lambda: not alive(kept["pid"]) and not alive(kept["template"]))
    assert keep.all() == [] and not keep.run().again


@pytest.mark.parametrize("why, words, env", [
    ("is for jobs of one node", ["--nnodes", "1:2", "--endpoint", "127.0.0.1"], {}),
    ("nothing of a scheduler's job may stay", [], {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1"}),
    ("--warm is off", ["--warm", "off"], {}),
    ("runs in a worker of another job", [], {"TORCHELASTIC_RUN_ID": "outer"}),
])
def test_where_nothing_may_stay(rdzv, keep, why, words, env):
    script(rdzv, SHOWS)
    p = keep.rdzv.agent("--explain", "--warm-keep", "60s", *words, "train.py", env={**keep.env, **env})
    assert p.exit() == 0 and p.says(why), p


@pytest.mark.parametrize("words, env, told", [
    (["--warm-keep", "60s", "--", "/bin/true"], {}, True),
    (["--", "/bin/true"], {"RDZV_AGENT_WARM_KEEP": "60s"}, True),
    (["--", "/bin/true"], {}, False),
])
def test_a_command_without_template(keep, words, env, told):
    a = keep.rdzv.agent(*words, env={**keep.env, **env})
    assert a.exit() == 0 and a.says("--warm-keep has no effect: the command has no template") == told and not keep.all(), a


WAITS = "import os, subprocess, time, lib_one\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('runs', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


def start_again(rdzv, keep, **kw):
    """The second job, which runs in a guard that has stayed. Its processes."""
    script(rdzv, WAITS)
    (rdzv.tmp / "go").touch()
    keep.run(nproc=2)
    (rdzv.tmp / "go").unlink()
    (kept,) = keep.all()
    a = keep.start(nproc=2, **kw)
    until(lambda: f"its workers run: {a}", lambda: len(re.findall("runs", a.text)) == 2, 30)
    a.expect("those of an earlier start")
    backstop = next(p for p in rdzv.pids() if comm(p) == "backstop")
    return a, {"agent": [a.pid], "guard": [kept["pid"]], "backstop": [backstop], "both": [kept["pid"], backstop], "agent and guard": [a.pid, kept["pid"]]}


@pytest.mark.parametrize("who", ["agent", "guard", "both", "agent and guard", "backstop"])
def test_nothing_outlives_what_is_killed(rdzv, keep, who):
    """The guard is no child of this agent, nor are the processes that workers leave behind."""
    a, processes = start_again(rdzv, keep)
    workers = [p for p in rdzv.pids() if "RANK" in environ(p)]
    assert len(workers) == 4, a
    for pid in processes[who]:
        os.kill(pid, signal.SIGSTOP)
    for pid in processes[who]:
        os.kill(pid, signal.SIGKILL)
    if who == "backstop":
        rdzv.go(a)
    until(lambda: f"all are gone: {a}", lambda: not any(alive(p) for p in workers) and not alive(a.pid), 20)
    if who in ("guard", "both"):
        assert a.exit() != 0 and a.says("guard"), a


def test_an_agent_that_dies_beside_a_stopped_guard(rdzv, keep):
    """The backstop watches an agent that is not its parent, and wakes the guard."""
    a, processes = start_again(rdzv, keep)
    workers = [p for p in rdzv.pids() if "RANK" in environ(p)]
    os.kill(processes["guard"][0], signal.SIGSTOP)
    a.kill()
    until(lambda: f"all are gone: {a}", lambda: not any(alive(p) for p in [*workers, *processes["guard"]]), 20)


def test_it_stays_after_an_interrupt_too(rdzv, keep):
    a, processes = start_again(rdzv, keep)
    a.end(signal.SIGINT, 40)
    assert [k["pid"] for k in keep.all()] == processes["guard"], a
    (rdzv.tmp / "go").touch()
    assert keep.run(nproc=2).again


def test_two_starts_at_once(rdzv, keep):
    """One takes it, the other one makes its own."""
    script(rdzv, SHOWS)
    keep.run()
    both = [keep.start() for _ in range(2)]
    assert [a.exit(60) for a in both] == [0, 0], both
    assert sorted(a.says("earlier start") for a in both) == [False, True], both
    assert all(a.says(r"seen \[false, 1") for a in both), both


def test_another_user_gets_nothing(rdzv, keep):
    """Not by the name, and not by a folder that others can write to."""
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    script(rdzv, SHOWS)
    keep.run()
    folder = keep.env["XDG_RUNTIME_DIR"] + "/rdzv-warm"
    (kept,) = keep.all()
    ask = f"import socket; s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('{folder}/{kept['pid']}'); s.send(b'e'); print(len(s.recv(999)))"
    os.chmod(keep.env["XDG_RUNTIME_DIR"], 0o755)
    os.chmod(folder, 0o777)
    os.chmod(f"{folder}/{kept['pid']}", 0o777)
    p = subprocess.run(["/usr/bin/python3", "-c", ask], user=65533, group=65533, capture_output=True, text=True)
    assert p.stdout.strip() in ("", "0"), p
    assert alive(kept["pid"]) and "no template stays" in keep.ctl("warm")
    os.chmod(folder, 0o700)
    assert len(keep.all()) == 1


def test_the_pages_commands(rdzv, keep):
    script(rdzv, SHOWS)
    p = pages.shell(rdzv, pages.block(PAGE, "keep"), env=keep.env)
    assert p.exit(60) == 0 and [json.loads(s)[2] for s in re.findall("seen (.*)", p.text)] == [["--lr", "0.1"], ["--lr", "0.2"]], p
    assert p.says(r"\d+ MiB  .*train.py") and p.says("1 ended"), p

def shell(rdzv, keep, command, **kw):
    return subprocess.run(["bash", "-c", command], env=rdzv.env(keep.env), cwd=rdzv.tmp, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **kw)


@pytest.mark.parametrize("what", ["a package since", "a module in front", "a .pth file", "a new folder", "the interpreter", "another release", "sitecustomize"])
def test_what_a_new_process_would_find(rdzv, keep, what):
    """Nothing that was imported has changed, and yet an exec'd worker would see something else."""
    script(rdzv, SHOWS + "try:\n    import lib_two\n    print('found', lib_two.WHO)\nexcept ImportError:\n    print('found nothing')\nprint('under', sys.prefix)\n")
    beside = {name: rdzv.tmp.with_name(f"{rdzv.tmp.name}-{name}") for name in ("front", "base", "project", "bin")}
    site = beside["base"] / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    words, env = ["train.py"], {"PYTHONPATH": f"{beside['front']}:{keep.env['PYTHONPATH']}", "PYTHONUSERBASE": str(beside["base"]), "PYTHON_EXEC": "/usr/bin/python3"}
    for folder in (site, beside["project"], beside["bin"], *([] if what == "a new folder" else [beside["front"]])):
        folder.mkdir(parents=True)
    python = beside["bin"] / "python3"
    if what == "the interpreter":
        env["PYTHON_EXEC"] = str(python)
        python.symlink_to(sys.executable)
    if what == "a package since":
        library(rdzv, lib_one=LIBRARY + "try:\n    import lib_two\nexcept ImportError:\n    pass\n")
    if what == "sitecustomize":
        library(rdzv, sitecustomize="import os\nos.environ['MORE'] = 'one'\n")
    if what == "another release":
        for release in ("v1", "v2"):
            (rdzv.tmp / release).mkdir()
            shutil.copy(rdzv.tmp / "train.py", rdzv.tmp / release)
        (rdzv.tmp / "current").symlink_to("v1")
        words = ["current/train.py"]
    keep.run(*words, env=env)
    if what == "a package since":
        library(rdzv, lib_two="WHO = 'installed'\n")
    elif what == "a module in front":
        (beside["front"] / "lib_one.py").write_text(LIBRARY.replace("1", "'in front'"))
    elif what == "a .pth file":
        (beside["project"] / "lib_two.py").write_text("WHO = 'editable'\n")
        (site / "project.pth").write_text(str(beside["project"]) + "\n")
    elif what == "a new folder":
        beside["front"].mkdir()
        (beside["front"] / "lib_two.py").write_text("WHO = 'there by now'\n")
    elif what == "the interpreter":
        python.unlink()
        python.symlink_to("/usr/bin/python3")
    elif what == "another release":
        (rdzv.tmp / "v2/lib_one.py").write_text(LIBRARY.replace("1", "'beside'"))
        (rdzv.tmp / "current").unlink()
        (rdzv.tmp / "current").symlink_to("v2")
    else:
        library(rdzv, sitecustomize="import os\nos.environ['MORE'] = 'two'\n")
    saw = lambda a: ([seen[1:5] for seen in a.seen], re.findall("(found|under) (.*)", a.text))
    after, cold = keep.run(*words, env=env), keep.run("--warm", "off", *words, env=env)
    assert saw(after) == saw(cold), (after, cold)


def test_what_imports_keep_of_a_start(rdzv, keep):
    """The moment of a start names a run. sitecustomize may have read the arguments."""
    library(rdzv, lib_one=LIBRARY + "import datetime\nSTART = datetime.datetime.now()\n", sitecustomize="import sys\nWORDS = sys.argv[1:]\n")
    script(rdzv, "import lib_one, sitecustomize\nprint('start', lib_one.START, sitecustomize.WORDS)\n")
    found = [keep.run("train.py", word).expect("start (.*) (\\[.*)") for word in ("one", "two")]
    assert found[0][1] != found[1][1] and [m[2] for m in found] == ["['one']", "['two']"], found


@pytest.mark.parametrize("open_file", ["flock lock", "exec 3<data;"])
def test_a_file_that_is_open_for_workers(rdzv, keep, open_file):
    """A guard that stayed would hold its lock and its offset."""
    script(rdzv, SHOWS)
    (rdzv.tmp / "data").write_text("hello")
    p = shell(rdzv, keep, f"({open_file} {AGENT} --warm-keep 60s train.py); flock -n lock echo it is free")
    assert p.stdout.endswith("it is free\n") and "is open, which no later start can have" in p.stderr and not keep.all(), p


def test_the_kind_of_stdin(rdzv, keep):
    script(rdzv, "import sys, lib_one\nprint('kind', sys.stdin.seekable(), repr(sys.stdin.read()))\n")
    (rdzv.tmp / "data").write_text("a file")
    command = f"{AGENT} --warm-keep 60s train.py"
    said = [shell(rdzv, keep, c).stdout for c in (command, f"echo a pipe | {command}", f"{command} < data", command)]
    assert said == ["kind True ''\n", "kind False 'a pipe\\n'\n", "kind True 'a file'\n", "kind True ''\n"], said


@pytest.mark.parametrize("signo", [signal.SIGTERM, "the backstop's death", "the folder's"])
def test_it_ends(rdzv, keep, signo):
    """A shutdown waits for nobody. Without backstop, or a name, it would be nobody's."""
    script(rdzv, SHOWS)
    keep.run()
    (kept,) = keep.all()
    if signo == signal.SIGTERM:
        os.kill(kept["pid"], signo)
    elif signo == "the folder's":
        shutil.rmtree(keep.env["XDG_RUNTIME_DIR"] + "/rdzv-warm")
        os.kill(kept["pid"], signal.SIGCHLD)  # it looks whenever something happens, and once a minute
    else:
        os.kill(next(p for p in rdzv.pids() if comm(p) == "backstop"), signal.SIGKILL)
        until("the guard has another parent", lambda: comm(stat(kept["pid"])[1]) != "backstop")
        assert not keep.run().again
    until("nothing of it is left", lambda: not alive(kept["pid"]) and not alive(kept["template"]))


def test_the_terminal_is_free(rdzv, keep):
    """Who reads it learns that the job is over."""
    script(rdzv, "import sys, lib_one\nprint('tty', sys.stdout.isatty())\n")
    for start in range(2):
        p = shell(rdzv, keep, f"timeout 30 script -qec '{AGENT} --verbose --warm-keep 60s train.py' /dev/null; echo over $?")
        assert "tty True" in p.stdout and p.stdout.endswith("over 0\n") and ("earlier start" in p.stdout) == bool(start), p


def test_folders_of_strangers(rdzv, keep):
    """The guard removes its workers' folders after each job, and no others."""
    tmp = rdzv.tmp / "tmp"
    (tmp / "stranger/empty").mkdir(parents=True)
    script(rdzv, "import os, sys, lib_one\nif sys.argv[1:] == ['fail']:\n    open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w').write('{}')\n    sys.exit(3)\n")
    env = {"TMPDIR": str(tmp)}
    keep.run(env=env)
    library(rdzv, lib_one=LIBRARY + "# it is exec'd\n")
    keep.run("--max-restarts", 0, "train.py", "fail", env=env, expect=3)
    for _ in range(3):
        keep.run(env=env)
    keep.ctl("warm", "end")
    assert (tmp / "stranger/empty").exists()


def test_another_mount_namespace_gets_nothing(rdzv, keep):
    """tests/unit/agent/guard/test_stay.c has a process that lies about what confines it."""
    if os.geteuid():
        pytest.skip("needs root, to make a mount namespace")
    script(rdzv, SHOWS)
    keep.run()
    (kept,) = keep.all()
    a = keep.rdzv.spawn("unshare", "-m", AGENT, "--verbose", "--warm-keep", "1s", "train.py", env=keep.env)
    assert a.exit(60) == 0 and not a.says("earlier start"), a
    assert keep.run().again and kept["pid"] in [k["pid"] for k in keep.all()]


def test_random_faults(rdzv, keep):
    """Starts, interrupts and kills in a row, with whatever stays: each job runs its workers once, and nothing is left."""
    chance = random.Random(int(os.environ.get("RDZV_WARM_SEED", "1")))
    script(rdzv, "import os, time, lib_one\nwith open('starts', 'a') as f: f.write(os.environ['MORE'] + '\\n')\nprint('runs', flush=True)\ntime.sleep(0.05)\n")
    for n in range(int(os.environ.get("RDZV_WARM_FAULTS", "24")) // 2):
        a = keep.start(env={"MORE": f"{n % 3}.{n}"} if n % 4 == 3 else {"MORE": "0"})
        kind = chance.choice(["none", "agent", "guard", "template", "interrupt", "kept"])
        if kind in ("agent", "interrupt"):
            a.expect("round 1: joining")  # before that its daemon waits a minute for other agents
        time.sleep(chance.choice([0, 0.01, 0.05, 0.2]))
        mine = rdzv.pids(XDG_RUNTIME_DIR=keep.env["XDG_RUNTIME_DIR"])
        victims = {"agent": [a.pid], "guard": [p for p in mine if comm(p) == "rdzv-guard"], "template": [int(p) for p in re.findall(r"template \(pid (\d+)\)", a.text)][-1:],
                   "interrupt": [a.pid], "kept": [k["pid"] for k in keep.all()][:1], "none": []}[kind]
        for pid in victims:
            if alive(pid):
                os.kill(pid, signal.SIGINT if kind == "interrupt" else signal.SIGKILL)
        code = a.exit(60)
        assert kind not in ("none", "template") or code == 0, (n, kind, a)
        until(lambda: f"no worker is left: {a}", lambda: not [p for p in rdzv.pids() if "RANK" in environ(p)], 20)
