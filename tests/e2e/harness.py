# SPDX-License-Identifier: Apache-2.0
"""Real binaries in a test's hands: start them, read their lines, find their descendants, and see that nothing survives.

Every process of a test carries a mark in its environment, which its children inherit, whatever session they flee to. So "nothing
survives" is one look through /proc, and a test that fails leaves nothing behind either. Nothing here sleeps for a while and hopes: each wait
polls for a condition, has a deadline, and says what it waited for.
"""

import ctypes
import hmac
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RDZV_BUILD", TOP / "build")).resolve()
AGENT = str(BUILD / "agent/rdzv-agent")
TRAINER = str(BUILD / "agent/trainer/rdzv-trainer")
RDZVD = str(BUILD / "daemon/rdzvd")
RDZVCTL = str(BUILD / "daemon/rdzvctl")
VERSION = re.search(r"^  version: '(.*)',$", (TOP / "meson.build").read_text(), re.M)[1]
HOST = socket.gethostname()
# What agents conclude something from.
SCHEDULERS = "SLURM_", "PBS_", "SGE_", "PE_HOSTFILE", "JOB_", "LSB_", "KUBERNETES_", "JOBSET_", "OMPI_", "PMIX_", "PMI_", "MPI_LOCAL", "SKYPILOT_", "DSTACK_", "AWS_BATCH_", "SM_", "TRAINING_JOB_"
# Sanitizers slow everything down and hold memory back: limits of time and memory ask this.
SANITIZED = subprocess.run(["grep", "-qa", "__asan_init", RDZVD]).returncode == 0 if Path(RDZVD).exists() else False
SLOW = 5 if SANITIZED else 1
HANG_S = 30.0  # no test is a stopwatch: what has not come then does not come, on a machine that stands still for seconds, too

# Under nohup, or in the background of a script, some signals are ignored from the start, and what we start would ignore them too.
for signo, handler in (signal.SIGHUP, signal.SIG_DFL), (signal.SIGQUIT, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler):
    if signal.getsignal(signo) == signal.SIG_IGN:
        signal.signal(signo, handler)


def until(what, condition, timeout=HANG_S):
    """Polls until condition() is true, and returns what it returned; fails by saying `what` did not happen.

    Seconds in which this process itself did not run do not count: the machine stood still, and what is waited for with it."""
    deadline = time.monotonic() + timeout * SLOW
    while True:
        over = time.monotonic() > deadline  # a look that takes long is followed by another one
        got = condition()
        if got:
            return got
        now = time.monotonic()
        if over:
            raise AssertionError(f"not within {timeout:g} s: {what() if callable(what) else what}")
        time.sleep(0.005)
        if (paused := time.monotonic() - now) > 1:
            deadline += paused


def need(tool, there=None):
    """Skips the test where a program is not installed; in CI, which installs it, that is a failure."""
    import pytest  # scripts use this module too

    if shutil.which(tool) is None if there is None else not there:
        if os.environ.get("RDZV_CI"):
            pytest.fail(f"{tool} is not installed")
        pytest.skip(f"{tool} is not installed", allow_module_level=True)


PORTS = range(20000, 32000)  # below the range that the kernel hands out to outgoing connections
_taken = []  # sockets with a name for each port that is ours
_next_port = PORTS.start + os.getpid() * 7 % len(PORTS)


def take_port(port):
    """Whether that port is free and, from now on, ours: no other free_port() of this machine returns it until this test, or module, is over."""
    name, s = socket.socket(socket.AF_UNIX), socket.socket()
    try:
        name.bind(f"\0rdzv-test-port-{port}")  # it goes with this process, whatever becomes of it
        s.bind(("0.0.0.0", port))
    except OSError:
        name.close()
        return False
    finally:
        s.close()
    _taken.append(name)
    return True


def free_port():
    """A port that nobody uses. It is kept for us until this test, or module, is over: what we start there may end and start again."""
    global _next_port
    for _ in PORTS:
        port, _next_port = _next_port, _next_port + 1 if _next_port + 1 in PORTS else PORTS.start
        if not 29300 <= port < 29600 and take_port(port):  # rdzv's own default and those of its neighbours
            return port
    raise AssertionError("no free port")


def listen_in(namespace=None, addr="127.0.0.1"):
    """A listening socket; in a network namespace of `ip netns` where one is named."""
    if not namespace:
        return socket.create_server((addr, 0))
    made = []

    def make():  # only this thread enters it
        with open(f"/run/netns/{namespace}") as f:
            if ctypes.CDLL(None, use_errno=True).setns(f.fileno(), 0x40000000):
                made.append(OSError(ctypes.get_errno(), f"setns {namespace}"))
            else:
                made.append(socket.create_server((addr, 0)))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]


def stop_accepting(listener, thread):
    """Closes a socket in which a thread of ours waits for connections. close() alone does not wake the thread: it would accept connections of
    the next socket with the same file descriptor."""
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)
    assert not thread.is_alive(), f"a thread still accepts connections at {listener}"
    listener.close()


def environ(pid):
    """A process's environment, {} where it is gone, a zombie, or not ours."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            pairs = f.read().decode(errors="replace").split("\0")
    except OSError:
        return {}
    return dict(p.split("=", 1) for p in pairs if "=" in p)


def status(pid, field):
    """A number of /proc/PID/status, None where the process is gone."""
    try:
        with open(f"/proc/{pid}/status") as f:
            for line in f:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
    except OSError:
        pass
    return None


def stat(pid):
    """/proc/PID/stat from the third field on: state, parent, group, session; a dead one's where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()
    except OSError:
        return ["X", "0", "0", "0"]


def alive(pid):
    """Whether a process is there and not a zombie."""
    return stat(pid)[0] not in "ZX"


def comm(pid):
    """Its name, as ps calls it, "" where it is gone."""
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as f:
            return f.read().strip()
    except OSError:
        return ""


def describe(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f"{pid}: " + f.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"{pid}: gone"


def write_key(path, text=None):
    """A key file as the programs accept it. Returns its text."""
    text = str(text or secrets.token_hex(32))
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
        f.write(text + "\n")
    return text


class Proc:
    """A child in a session of its own, its output collected line by line."""

    def __init__(self, argv, **kw):
        self.argv = [str(a) for a in argv]
        self.out, self.err, self.killed = [], [], False
        self._news = threading.Condition()
        self.popen = subprocess.Popen(
            self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, **kw
        )
        self.pid = self.popen.pid
        self._readers = [
            threading.Thread(target=self._read, args=(self.popen.stdout, self.out), daemon=True),
            threading.Thread(target=self._read, args=(self.popen.stderr, self.err), daemon=True),
        ]
        for t in self._readers:
            t.start()

    def _read(self, stream, lines):
        for raw in stream:
            with self._news:
                lines.append(raw.decode(errors="replace").rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def text(self):
        return "\n".join(self.out + self.err)

    def __str__(self):
        show = lambda name, lines: "".join(f"\n    {name} {l}" for l in lines[-60:])
        end = "" if self.running else f"\n    exit {self.popen.returncode}"
        return f"$ {' '.join(self.argv)}{show('1>', self.out)}{show('2>', self.err)}{end}"

    def expect(self, pattern, timeout=HANG_S):
        """The first line, already there or still to come, in which `pattern` is found (case does not matter)."""
        rx, deadline = re.compile(pattern, re.I), time.monotonic() + timeout * SLOW
        with self._news:
            while True:
                for text in self.out + self.err:
                    if m := rx.search(text):
                        return m
                over = not any(t.is_alive() for t in self._readers)
                now = time.monotonic()
                left = deadline - now
                if over or left <= 0:
                    why = "it has ended" if over else f"{timeout:g} s passed"
                    raise AssertionError(f"no line with /{pattern}/ and {why}:\n{self}")
                self._news.wait(min(left, 0.5))
                if (paused := time.monotonic() - now) > 1.5:  # as in until()
                    deadline += paused

    def says(self, pattern):
        return re.search(pattern, self.text, re.I) is not None

    def exit(self, timeout=HANG_S):
        """Waits for its end and the end of its output: the exit code, -N where signal N ended it."""
        try:
            code = self.popen.wait(timeout * SLOW)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g} s:\n{self}") from None
        for t in self._readers:
            t.join(5)
        return code

    def kill(self, signo=signal.SIGKILL):
        self.popen.send_signal(signo)
        self.killed = self.killed or signo == signal.SIGKILL

    def end(self, signo=signal.SIGKILL, timeout=20.0):
        """Both."""
        self.kill(signo)
        return self.exit(timeout)

    @property
    def running(self):
        return self.popen.poll() is None


_key, _plain = None, set()  # of the test that runs: the key of its daemons, and the ports of those that have none


def key_of(port):
    """The key of the daemon at that port; None where it runs with --insecure."""
    return None if port in _plain else _key


class Rdzv:
    """Everything that one test starts. Its programs find their key where a user's do: in the folder that XDG_CONFIG_HOME names."""

    proc = Proc

    def __init__(self, tmp):
        global _key
        self.tmp = Path(tmp)
        self.mark = uuid.uuid4().hex
        self.procs = []
        self.wrap = []  # put in front of every command: "ip netns exec ..."
        self.config = self.tmp / "config"
        self.key = _key = write_key(self.config / "rdzv/key")
        self.ports_before = len(_taken)
        _plain.clear()

    def env(self, extra=None):
        # What a developer has set for rdzv must not decide what a test sees.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("RDZV", "PET_", "PYTHON_EXEC", "MASTER_", *SCHEDULERS))}
        env.update(E2E_MARK=self.mark, OPENBLAS_NUM_THREADS="1", XDG_CONFIG_HOME=str(self.config))
        env.update(extra or {})
        return env

    def user_key(self, uid):
        """The key that a daemon with this test's key derives for a user."""
        digest = hmac.digest(bytes.fromhex(self.key), b"rdzv user key\0" + uid.to_bytes(4, "little"), "sha256")
        return f"{uid}:{digest.hex()}"

    def spawn(self, *argv, env=None, wrap=None, node="", **kw):
        env = dict(self.env(env), E2E_NODE=node) if node else self.env(env)
        if kw.get("user") and not any(name in env for name in ("RDZV_KEY", "RDZV_KEY_FILE", "RDZV_INSECURE")):
            env.update(XDG_CONFIG_HOME="", RDZV_KEY=self.key)  # another user does not reach our folder
        p = self.proc([*(self.wrap if wrap is None else wrap), *argv], env=env, cwd=self.tmp, **kw)
        self.procs.append(p)
        return p

    def agent(self, *args, **kw):
        return self.spawn(AGENT, *args, **kw)

    def daemon(self, *args, port=None, listen="127.0.0.1", **kw):
        """An rdzvd of its own; .port says where it listens, .endpoint what agents are told. It may be killed and follow itself at the same port."""
        for p in self.procs:
            if p.killed:
                p.popen.wait(60)  # it holds its port and its folder until then
        port_file = self.tmp / f"port-{len(self.procs)}"
        p = self.spawn(RDZVD, "--listen", f"{listen}:{free_port() if port is None else port}", "--port-file", port_file, *args, **kw)
        until(lambda: f"rdzvd writes its port file:\n{p}", lambda: port_file.exists() and port_file.read_text().strip() or not p.running)
        assert p.running, f"rdzvd ended:\n{p}"
        p.port = int(port_file.read_text().split()[0])
        p.endpoint = f"127.0.0.1:{p.port}"
        if "--insecure" in args:
            _plain.add(p.port)
        return p

    def agents(self, n, endpoint, *args, env=None, **kw):
        """n agents of one job; each one's processes are told apart by node=str(i)."""
        return [self.agent("--endpoint", endpoint, *args, env=env, node=str(i), **kw) for i in range(n)]

    # -- looking at the processes -------------------------------------------------------------------------------------

    def pids(self, **want):
        """All live processes of this test whose environment has what is wanted, e.g. E2E_NODE="1"."""
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit():
                env = environ(name)
                if env.get("E2E_MARK") == self.mark and all(env.get(k) == v for k, v in want.items()) and alive(name):
                    found.append(int(name))
        return found

    def leaders(self, **want):
        """rank -> the session leaders among a worker's processes, oldest first: the worker itself, then who fled."""
        by_rank = {}
        born = lambda pid: int((stat(pid) + ["0"] * 20)[19])  # pids begin again at some time
        for pid in sorted(self.pids(**want), key=lambda pid: (born(pid), pid)):
            rank = environ(pid).get("RANK")
            if rank is not None and stat(pid)[3] == str(pid):
                by_rank.setdefault(int(rank), []).append(pid)
        return by_rank

    def workers(self, **want):
        """rank -> pid of the worker's first process."""
        return {rank: pids[0] for rank, pids in self.leaders(**want).items()}

    def await_workers(self, n, each=1, timeout=HANG_S, **want):
        """Until n workers run, with `each` sessions per worker; as workers()."""
        there = lambda: [len(v) for v in self.leaders(**want).values()] == [each] * n
        until(lambda: f"{n} workers run, now {self.leaders(**want)}:\n{self}", there, timeout)
        return self.workers(**want)

    def daemons(self):
        """All rdzvd, ours and those that agents have started."""
        return [pid for pid in self.pids() if describe(pid).split(": ")[1].split(" ")[0].endswith("rdzvd")]

    def state_dirs(self):
        """Where the daemons of now keep their state."""
        return re.findall(r" --state-dir (\S+)", " ".join(describe(pid) for pid in self.daemons()))

    def go(self, *agents):
        """Lets workers end that wait for the file, and their agents with 0."""
        (self.tmp / "go").touch()
        assert [a.exit() for a in agents] == [0] * len(agents), self

    def gone(self, timeout=HANG_S, **want):
        """Fails unless all of them are gone in time."""
        until(lambda: "everything is gone, but there is " + "; ".join(map(describe, self.pids(**want))) + f"\n{self}",
              lambda: not self.pids(**want), timeout)

    def __str__(self):
        return "\n".join(map(str, self.procs))

    # -- the end of a test --------------------------------------------------------------------------------------------

    def close(self):
        """Kills what is left and returns its description; a test that passed has nothing left but its own daemons."""
        for p in self.procs:
            if p.running and p.argv[len(self.wrap)].endswith("/rdzvd"):
                p.kill()
        deadline = time.monotonic() + HANG_S * SLOW
        while (left := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.01)
        names = [describe(pid) for pid in left]
        while left := self.pids():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        for p in self.procs:
            p.exit()
        for name in _taken[self.ports_before :]:
            name.close()
        del _taken[self.ports_before :]
        return names
