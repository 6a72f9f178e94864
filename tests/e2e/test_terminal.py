# SPDX-License-Identifier: Apache-2.0
"""At a real terminal, with an interactive bash: what workers see, who gets the keys, Ctrl-Z, fg, bg, &."""

import os
import re
import signal
import sys
import termios
import time

import pytest

from harness import AGENT, alive, comm, environ, stat, until
from terminal import CTRL_C, CTRL_D, CTRL_Z, Terminal, await_running, is_stopped

SEES = """
import os, sys
print("sees", *(int(os.isatty(i)) for i in range(3)), os.environ.get("TERM"), flush=True)
if os.isatty(1): print("size", *os.get_terminal_size(1), *os.get_terminal_size(2), flush=True)
"""
TICKS = """
import time
i = 0
while True:
    i += 1
    print("tick", i, flush=True)
    time.sleep(0.02)
"""
# A bar as tqdm draws it: the return comes first.
BAR = """
import os, sys, time
rank = os.environ["RANK"]
for i in range(1, 6):
    print("\\r%d/5 |\\x1b[32m%s\\x1b[0m| of %s" % (i, "#" * i, rank), end="", file=sys.stderr, flush=True)
    time.sleep(0.15)
print(file=sys.stderr)
"""


@pytest.fixture
def term(rdzv):
    t = Terminal(rdzv)
    t.expect(r"\$ $")
    yield t
    t.close()


def script(rdzv, text, name="w.py"):
    (rdzv.tmp / name).write_text(text)
    return name


def start(t, rdzv, text, *args, end="\n"):
    """Types the command; `text` is the worker's program."""
    t.type(" ".join([AGENT, "--standalone", *map(str, args), script(rdzv, text)]) + end)


def processes(t):
    """(front, agent) of the shell's only job."""
    front, = [p for p in t.children() if comm(p).startswith("rdzv-agent")]
    with open(f"/proc/{front}/task/{front}/children") as f:
        return front, int(f.read().split()[0])


def all_tick(t, n):
    for rank in range(n):
        t.expect(rf"\[{rank}\] tick 5\r" if rank == 0 else rf"\[{rank}\] tick \d")


def suspend(t, rdzv, n=1):
    """Ctrl-Z, until the shell has its prompt. Returns the processes of workers, all stopped."""
    t.type(CTRL_Z)
    t.expect("Stopped")
    t.expect(r"\$ $")
    pids = [p for p in rdzv.pids() if "RANK" in environ(p)]
    assert len(pids) >= n and all(is_stopped(p) for p in pids), [(p, stat(p)[0]) for p in pids]
    return pids


# ---------------------------------------------------------------- what workers see


def test_the_only_worker_sees_a_terminal(rdzv, term):
    start(term, rdzv, SEES + "print('\\x1b[31mred\\x1b[0m')")
    term.expect("sees 1 1 1 xterm\r")
    term.expect("size 120 40 120 40\r")
    term.expect("\x1b\\[31mred\x1b\\[0m\r")
    term.expect(r"\$ $")


def test_the_only_worker_sees_what_its_agent_has(rdzv, term):
    """stdout is a file: as under torchrun, the worker's is none. stderr is a terminal."""
    term.type(f"{AGENT} --standalone {script(rdzv, SEES)} > out; cat out\n")
    term.expect("sees 1 0 1 xterm\r")


def test_log_files_change_nothing(rdzv, term):
    start(term, rdzv, SEES, "--log-dir", "logs")
    term.expect("^sees 1 1 1 xterm\r|\x1b\\[Ksees 1 1 1 xterm\r")
    term.expect(r"\$ $")
    assert next(rdzv.tmp.glob("logs/*/attempt_0/0/stdout.log")).read_bytes() == b"sees 1 1 1 xterm\nsize 120 40 120 40\n"


def test_several_workers_see_pipes(rdzv, term):
    start(term, rdzv, SEES, "--nproc", 2)
    for _ in range(2):
        term.expect(r"\[[01]\] sees 1 0 0 xterm\r")


def test_several_workers_with_pty(rdzv, term):
    start(term, rdzv, SEES, "--nproc", 2, "--pty")
    for _ in range(2):
        term.expect(r"\[[01]\] sees 1 1 1 xterm\r")
    term.expect(r"\$ $")
    assert len(re.findall(r"\[[01]\] size 120 40 120 40\r", term.text)) == 2, term.text


NO_PTMX = ["unshare", "-m", "sh", "-c", 'mount --bind /dev/null /dev/ptmx && exec "$@"', "sh"]


def test_where_no_pseudo_terminal_can_be_had(rdzv):
    """As in a container without /dev/ptmx: the job runs with pipes and without a keyboard, unless --pty asks for more."""
    for option, says in (("--nproc=1", r"sees 0 0 0 xterm"), ("--pty", r"no pseudo-terminals \(--pty\) for the output of local rank 0")):
        t = Terminal(rdzv, argv=[*NO_PTMX, AGENT, "--standalone", "--max-restarts", 0, option, script(rdzv, SEES)])
        t.expect("no pseudo-terminal can be opened, so workers do not see what is typed")
        t.expect(says)
        t.close()
        rdzv.gone()


def test_pty_without_a_terminal(rdzv):
    """srun --pty or not: the agent has pipes, its workers see terminals of the usual size, and no byte is changed."""
    a = rdzv.agent("--standalone", "--pty", "--nproc", 2, "--", sys.executable, "-u", script(rdzv, SEES), env={"TERM": "vt100"})
    assert a.exit() == 0, a
    assert sorted(a.out) == [f"[{r}] {l}" for r in (0, 1) for l in ("sees 0 1 1 vt100", "size 80 24 80 24")], a


def test_output_after_the_end_is_not_lost(rdzv):
    """A large burst, and the last words come just before the end. So does what a child writes that holds the terminal longer."""
    text = "import os, sys, time\nfor i in range(20000): print('line', i)\nprint('last words', end='')\nsys.stdout.flush()\n" \
           "if os.fork() == 0:\n    time.sleep(0.1); print('child', flush=True)"
    a = rdzv.agent("--standalone", "--pty", "--", sys.executable, script(rdzv, text))
    assert a.exit() == 0, a
    assert a.out == [f"line {i}" for i in range(20000)] + ["last wordschild"], a.out[-5:]


def test_the_window_changes(rdzv, term):
    text = "import os, signal\nsignal.signal(signal.SIGWINCH, lambda *_: print('now', *os.get_terminal_size(1), *os.get_terminal_size(0), flush=True))\n" \
           "print('ready', flush=True)\nwhile True: signal.pause()"
    start(term, rdzv, text)
    term.expect("ready")
    term.resize(50, 90)
    term.expect("now 90 50 90 50\r")
    term.type(CTRL_C)
    term.expect(r"\$ $")


# ---------------------------------------------------------------- progress bars


def test_a_bar_of_the_only_worker(rdzv, term):
    start(term, rdzv, BAR)
    for i in range(1, 6):
        term.expect(re.escape(f"\r{i}/5 |\x1b[32m{'#' * i}\x1b[0m| of 0"))
    term.expect(r"\$ $")


def test_bars_of_several_workers(rdzv, term):
    """Each has a row at the bottom, with its prefix, and stays as one line."""
    start(term, rdzv, BAR, "--nproc", 4, "--pty")
    term.expect(r"\$ $", 20)
    rows = re.findall(r"\r\[(\d)\] (\d)/5 \|\x1b\[32m#+\x1b\[0m\| of (\d)\x1b\[0m\x1b\[K", term.text)
    assert {r for r, _, _ in rows} == set("0123") and all(r == of for r, _, of in rows), term.text
    screen = render(term.text)
    assert sorted(l for l in screen if "/5" in l) == [f"[{r}] 5/5 |#####| of {r}" for r in range(4)], "\n".join(screen)


def test_bars_without_a_terminal(rdzv):
    """In a file or another agent's pipe, only the states that stand for a while become lines: the first and the last."""
    a = rdzv.agent("--standalone", "--pty", "--nproc", 2, "--", sys.executable, script(rdzv, BAR))
    assert a.exit() == 0, a
    lines = [re.sub(r"\x1b\[\d*m", "", l) for l in a.err if "/5" in l]
    assert lines.count("[0] 5/5 |#####| of 0") == 1 and lines.count("[1] 5/5 |#####| of 1") == 1, a
    assert len(lines) <= 4 and not any("\r" in l for l in lines), a


def render(text):
    """The lines that a terminal shows in the end, without colours."""
    rows, y, x = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|[\r\n]|[^\x1b\r\n]", text):
        if part == "\r":
            x = 0
        elif part == "\n":
            y += 1
            rows += [""] * (y + 1 - len(rows))
        elif part == "\x1b[K":
            rows[y] = rows[y][:x]
        elif part == "\x1b[A":
            y = max(0, y - 1)
        elif part[0] != "\x1b":
            rows[y] = rows[y].ljust(x)[:x] + part + rows[y][x + 1:]
            x += 1
    return rows


# ---------------------------------------------------------------- the keyboard


def test_pdb(rdzv, term):
    """Line editing, history, a password that is not shown, the end of a file."""
    modes = lambda: term.type("stty -a; echo e''d\n") or term.expect(r"(?s)speed.*?ed\r")[0]
    before = modes()
    start(term, rdzv, "import getpass, sys\nn = input('name? ')\nbreakpoint()\nprint('secret', len(getpass.getpass()))\nprint('rest', repr(sys.stdin.read()))")
    term.expect(r"name\? ")
    term.type("Adax\x7f\n")
    term.expect(r"\(Pdb\) ")
    term.type("p n\n")
    term.expect("'Ada'")
    term.expect(r"\(Pdb\) ")
    term.type("c\n")
    term.expect("assword: ")
    term.type("hunter2\n")
    term.expect("secret 7")
    term.type("more\n" + CTRL_D)
    term.expect(re.escape(r"rest 'more\n'"))
    term.expect(r"\$ $")
    assert "hunter2" not in term.text
    assert modes() == before


def test_the_worker_that_reads_gets_the_keys(rdzv, term):
    """Several workers: as under torchrun, all have the keyboard, and one asks."""
    start(term, rdzv, "import os, sys\nif os.environ['RANK'] == '1': print('hello', input('name? '))", "--nproc", 2)
    term.expect(r"\[1\] name\? ")
    term.type("Ada\n")
    term.expect(r"\[1\] hello Ada\r")


PAGER = """
import os, sys, termios, time, tty
keys = open("/dev/tty", "rb", buffering=0)
before = termios.tcgetattr(keys)
tty.setcbreak(keys)
open("ready", "w").close()
print("pager has", sys.stdin.readline(), end="", flush=True)
got = b""
while not got.endswith(b"q"): got += keys.read(1)
print("pager got", got, flush=True)
termios.tcsetattr(keys, termios.TCSADRAIN, before)
"""


def test_a_pager_keeps_the_keys(rdzv, term):
    """rdzv-agent | less: the pager has the terminal, and at the end the terminal is as it was."""
    pager = script(rdzv, PAGER, "pager.py")
    worker = script(rdzv, "import time\nfor _ in range(40): print('line', flush=True); time.sleep(0.05)")
    term.type(f"(until [ -e ready ]; do sleep 0.02; done; exec {AGENT} --standalone {worker}) 2>/dev/null | {sys.executable} {pager}; stty -a\n")
    term.expect("pager has line")
    for key in "abcdefgh":
        term.type(key)
        time.sleep(0.02)
    term.type("q")
    term.expect("pager got b'abcdefghq'")
    term.expect(r" icanon .* echo ")


def test_a_job_in_the_background_reads_nothing(rdzv, term):
    """Started with &: it is not stopped, the keys are the shell's, and the modes are not touched. fg gives it the keyboard."""
    start(term, rdzv, "print('ready', flush=True)\nprint('got', input('name? '), flush=True)", end=" &\n")
    term.expect("ready")
    term.drain(0.3)
    for i in range(20):
        term.type(f"echo key-{i}-$((1 + 1))\n")
        term.expect(f"key-{i}-2\r")
    front, agent = processes(term)
    assert alive(front) and not is_stopped(front) and not is_stopped(agent)
    term.type("fg\n")
    until("the terminal is the job's", lambda: not term.modes()[3] & termios.ICANON)
    term.type("Ada\n")
    term.expect("got Ada")
    term.expect(r"\$ $")


def test_tostop_does_not_stop_it(rdzv, term):
    term.type("stty tostop\n")
    start(term, rdzv, TICKS, end=" &\n")
    term.expect("tick 20")
    term.type("kill %1\n")
    rdzv_gone_but(rdzv, term)


# ---------------------------------------------------------------- Ctrl-Z


TREE = "import os, subprocess\nsubprocess.Popen(['setsid', 'sleep', '600'])\nsubprocess.Popen(['sleep', '600'])\n" + TICKS


def rdzv_gone_but(rdzv, t):
    """Nothing is left but the shell."""
    until(lambda: f"all are gone, but there is {rdzv.pids()}", lambda: set(rdzv.pids()) <= {t.pid}, 5)


def test_suspend_and_foreground(rdzv, term):
    start(term, rdzv, TREE, "--nproc", 2)
    all_tick(term, 2)
    pids = suspend(term, rdzv, 6)
    shown = len(term.drain(0.3))
    assert len(term.drain(0.3)) == shown  # silence
    term.type("fg\n")
    term.expect("the job goes on")
    await_running(*pids)
    term.expect(r"\[0\] tick")
    term.type(CTRL_C)
    term.expect(r"\$ $")
    term.type("echo code $?\n")
    term.expect("code 130\r")
    rdzv_gone_but(rdzv, term)


def test_suspend_and_background(rdzv, term):
    """bg continues it, keys stay the shell's, and Ctrl-Z works again after fg."""
    start(term, rdzv, TICKS)
    term.expect("tick 5")
    pids = suspend(term, rdzv)
    term.type("bg\n")
    term.expect("the job goes on")
    term.expect("tick")
    term.type("echo to-the-$((1 + 1))-shell\n")
    term.expect("to-the-2-shell\r")
    term.type("fg\n")
    term.expect("tick")
    until("the terminal is the job's", lambda: not term.modes()[3] & termios.ICANON)
    assert suspend(term, rdzv) == pids
    term.type("kill %1\n")
    term.expect(r"SIGTERM: leaving with exit code 75")
    rdzv_gone_but(rdzv, term)


def test_sigcont(rdzv, term):
    start(term, rdzv, TICKS)
    term.expect("tick 5")
    pids = suspend(term, rdzv)
    os.kill(processes(term)[0], signal.SIGCONT)
    await_running(*pids)
    term.expect("tick")
    term.type("kill -9 %1\n")
    rdzv_gone_but(rdzv, term)


def test_an_import_in_a_template_sees_the_terminal(rdzv, term):
    """Its size, too, and what is typed is for the worker that is forked from it."""
    text = "import shutil, sys, sees\nprint('seen', sees.SEEN, shutil.get_terminal_size()[:2])\nprint('typed', input())\n"
    for folder in ("lib", "job"):
        (rdzv.tmp / folder).mkdir()
    (rdzv.tmp / "lib/sees.py").write_text("import shutil, sys\nSEEN = sys.stdin.isatty(), sys.stdout.isatty(), shutil.get_terminal_size()[:2]\n")
    term.type("export PYTHONPATH=lib XDG_CACHE_HOME=$PWD/cache\n")
    term.type(f"{AGENT} --standalone --verbose --warm sees {script(rdzv, text, 'job/w.py')}\n")
    term.expect("forks workers, modules: 1 sees")
    term.expect(r"seen \(True, True, \((\d+, \d+)\)\) \(\1\)")
    term.type("for you\n")
    term.expect("typed for you")
    rdzv_gone_but(rdzv, term)


@pytest.mark.parametrize("who", ["front", "agent"])
def test_sigterm_while_suspended(rdzv, term, who):
    """Workers get it although they are stopped, and may end in order."""
    start(term, rdzv, "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: (print('bye', flush=True), sys.exit(0)))\n" + TICKS)
    term.expect("tick 5")
    suspend(term, rdzv)
    os.kill(processes(term)[who == "agent"], signal.SIGTERM)
    term.expect("(?s)SIGTERM: leaving with exit code 75.*bye|bye.*SIGTERM: leaving with exit code 75")
    rdzv_gone_but(rdzv, term)
    term.type("wait %1; echo code-$?\n")
    term.expect("code-75\r")


@pytest.mark.parametrize("who", ["front", "agent", "guard"])
def test_sigkill_while_suspended(rdzv, term, who):
    start(term, rdzv, TREE, "--nproc", 2)
    all_tick(term, 2)
    suspend(term, rdzv, 6)
    front, agent = processes(term)
    guard, = [p for p in rdzv.pids() if comm(p) == "rdzv-guard"]
    os.kill({"front": front, "agent": agent, "guard": guard}[who], signal.SIGKILL)
    if who == "agent":
        term.type("fg\n")  # the shell's job is still a stopped process, whose child is dead
        term.expect("Killed")
    rdzv_gone_but(rdzv, term)


def test_a_worker_that_dies_while_suspended(rdzv, term):
    start(term, rdzv, TICKS, "--max-restarts", 1)
    term.expect("tick 5")
    worker, = suspend(term, rdzv)
    os.kill(worker, signal.SIGKILL)
    until("its successor is stopped", lambda: [is_stopped(p) for p in rdzv.workers().values()] == [True] and rdzv.workers()[0] != worker)
    term.type("fg\n")
    term.expect("tick 3")
    term.type(CTRL_C)
    rdzv_gone_but(rdzv, term)


def test_no_hang(rdzv, term):
    start(term, rdzv, TICKS, "--hang-timeout", "2s", "--hang-start-timeout", "20s", "--hang-watch", "output", "--max-restarts", 0)
    term.expect("tick 5")
    pids = suspend(term, rdzv)
    time.sleep(5)  # more than twice the timeout
    term.type("fg\n")
    term.expect("tick")
    time.sleep(2.5)
    assert all(map(alive, pids))
    term.type(CTRL_C)
    term.expect(r"\$ $")
    assert "no progress" not in term.text, term.text
    rdzv_gone_but(rdzv, term)


# Rank 0 waits for rank 1, as in a collective.
PAIR = """
import os, time
seen = 0
while True:
    time.sleep(0.02)
    if os.environ["RANK"] == "1":
        print("x", end="", file=open("beats", "a"))
    elif seen == (seen := os.path.getsize("beats")):
        continue
    print("tick", seen, flush=True)
"""


def test_two_nodes(rdzv, term):
    """One is suspended for longer than the lease, and twice the timeout of the other one's worker, which waits for it."""
    d = rdzv.daemon()
    (rdzv.tmp / "beats").touch()
    args = ["--endpoint", d.endpoint, "--nnodes", 2, "--nproc", 1, "--lease", "4s", "--max-restarts", 0, "--hang-timeout", "3s", "--hang-start-timeout", "20s"]
    command = ["--", sys.executable, "-u", script(rdzv, PAIR)]
    other = rdzv.agent(*args, "--node-rank", 0, *command)
    term.type(" ".join(map(str, [AGENT, *args, "--node-rank", 1, *command])) + "\n")
    term.expect(r"\[1\] tick", 20)
    other.expect(r"\[0\] tick", 20)
    term.type(CTRL_Z)
    term.expect("Stopped")
    workers = rdzv.workers()
    until("one of them is stopped", lambda: sorted(map(is_stopped, workers.values())) == [False, True])
    time.sleep(7)
    term.type("fg\n")
    term.expect("tick")
    assert rdzv.workers() == workers and not other.says("no progress"), other
    assert other.end(signal.SIGTERM, 40) == 75, other
    term.type(CTRL_C)
    term.expect(r"\$ $", 40)
