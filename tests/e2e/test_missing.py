# SPDX-License-Identifier: Apache-2.0
"""Missing nodes: the lines for a person while a round forms, on a terminal and in a file, and while there is no daemon."""
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path

import pytest

from harness import AGENT, HOST, until, write_key

WAIT = ["--", "sh", "-c", "exit 0"]
LINE = r"(\d+) of (\d+) nodes? (?:is|are) here"


class Terminal:
    """An agent whose stdout and stderr are a terminal. `text` is all that it wrote."""

    def __init__(self, rdzv, *args, columns=100, env=None):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.popen = subprocess.Popen([AGENT, *map(str, args)], stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                                      env=rdzv.env(env), cwd=rdzv.tmp, start_new_session=True)
        os.close(slave)
        self.text = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        while True:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the last writer is gone
                return
            if not data:
                return
            self.text += data.decode(errors="replace")

    @property
    def drawn(self):
        """Every state of the living line: drawn over itself, so what follows a carriage return, up to the erasing of the rest."""
        return re.findall(r"\r([^\r\n\x1b]+)\x1b\[K", self.text)

    @property
    def said(self):
        """Lines that stay."""
        return [l for l in re.findall(r"rdzv-agent: ([^\r\n]*)\r?\n", self.text)]

    def end(self, signo=None):
        if signo:
            self.popen.send_signal(signo)
        code = self.popen.wait(20)
        self.reader.join(5)
        os.close(self.master)
        return code


@pytest.fixture
def terminal(rdzv):
    made = []

    def make(*args, **kw):
        made.append(Terminal(rdzv, *args, **kw))
        return made[-1]

    yield make
    for t in made:
        if t.popen.poll() is None:
            t.popen.kill()
            t.end()


def test_alone_nothing_is_said_of_it(rdzv, terminal):
    t = terminal("--standalone", "--nproc", 2, "--", "sleep", 0.3)
    assert t.end() == 0, t.text
    assert not re.search(LINE, t.text), t.text


def test_a_living_line(rdzv, terminal):
    d = rdzv.daemon()
    t = terminal("--endpoint", d.endpoint, "--nnodes", 4, "--expect", f"{HOST},gpu[001-003]", "--join-timeout", "5m", *WAIT)
    until(lambda: f"four seconds are counted:\n{t.text!r}", lambda: len(t.drawn) >= 4)
    seconds = [int(re.search(r"after (\d+) s", l)[1]) for l in t.drawn]
    assert seconds == sorted(set(seconds)) and seconds[0] >= 1, t.drawn
    assert re.match(r"1 of 4 nodes is here after \d+ s, giving up in 4 min \d+ s \(--join-timeout\); missing 3: gpu\[001", t.drawn[0]), t.drawn
    assert all(len(l) <= 99 for l in t.drawn) and any(len(l) == 99 for l in t.drawn), t.drawn
    assert not any(re.search(LINE, l) for l in t.said), t.said
    assert t.end(signal.SIGTERM) == 75
    assert t.said[-1].endswith("leaving with exit code 75"), t.text
    assert re.search(r"\r\x1b\[K(rdzv-agent: [^\r\n]*\r\n)?$", t.text), t.text  # the living line is wiped


def test_a_mistake_has_a_line_of_its_own_on_a_narrow_terminal(rdzv, terminal):
    """80 columns cut the living line off before the host that was refused."""
    d = rdzv.daemon()
    job = ["--endpoint", d.endpoint, "--rdzv-id", "x", "--nnodes"]
    t = terminal(*job, 2, *WAIT, columns=80)
    until(lambda: f"a line:\n{t.text!r}", lambda: t.drawn)
    assert rdzv.agent(*job, 3, *WAIT).exit() == 72, rdzv
    line = rf"1 of 2 nodes is here .*; missing 1; {HOST} was refused \d+ s ago: --nnodes \(minimum\) is 3 there and 2 in the job$"
    until(lambda: f"the mistake:\n{t.text!r}", lambda: any(re.match(line, l) for l in t.said))
    assert all(len(l) < 80 and "refused" not in l for l in t.drawn), t.drawn
    assert t.end(signal.SIGTERM) == 75


def test_the_line_goes_when_the_round_begins(rdzv, terminal):
    d = rdzv.daemon()
    job = ["--endpoint", d.endpoint, "--nnodes", 2, "--", "sleep", 1]
    t = terminal(*job)
    until(lambda: f"a line:\n{t.text!r}", lambda: t.drawn)
    other = rdzv.agent(*job)
    assert (t.end(), other.exit()) == (0, 0), t.text
    assert not re.search(LINE, t.text[t.text.index("round 1:"):]), t.text
    assert not other.says(LINE), other


def test_without_a_terminal_a_line_with_names(rdzv):
    """As under srun: the list comes from the environment."""
    d = rdzv.daemon()
    env = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": f"{HOST},gpu[3,7-8]"}
    begun = time.monotonic()
    a = rdzv.agent("--endpoint", d.endpoint, "--nnodes", "4", "--join-timeout", "5s", *WAIT, env=env)
    a.expect(r"1 of 4 nodes is here after [1-4] s, giving up in [1-4] s \(--join-timeout\); missing 3: gpu\[3,7-8\] \(never came\)$")
    assert time.monotonic() - begun > 1
    assert a.exit() == 73, a
    assert a.says(r"failed before its first round: too few nodes joined in time: 1 of 4 nodes came within 5 s \(--join-timeout\); "
                  r"missing 3: gpu\[3,7-8\] \(never came\); 0 of 3"), a
    assert sum(bool(re.search(LINE, l)) for l in a.err) == 1, a


def test_all_that_the_scheduler_lists_are_enough(rdzv):
    """Two agents on each of its hosts, and room for more: nobody waits for --last-call."""
    d = rdzv.daemon()
    env = {"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": HOST}
    agents = rdzv.agents(2, d.endpoint, "--nnodes", "1:4", "--last-call", "60s", "--", "true", env=env)
    assert [a.exit() for a in agents] == [0, 0], rdzv


def test_a_lost_node_is_missed(rdzv):
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--", "sleep", "60")
    rdzv.await_workers(2)
    agents[1].kill(signal.SIGKILL)
    agents[0].expect(rf"1 of 2 nodes is here after \d+ s, giving up in .*; missing 1: {HOST} \(lost \d+ s ago: its agent died; the guard "
                     r"killed its workers\)$")
    assert agents[0].end(signal.SIGTERM) == 75
    agents[1].exit()


def test_a_node_with_another_key_is_named_at_once(rdzv, lan):
    """As under Slurm with a home directory on each host: the scheduler's list has the node, and the daemon has its address alone."""
    env = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "node[1-2]",
           "RDZV_MUNGE_SOCKET": str(rdzv.tmp / "no/munged")}
    write_key(rdzv.tmp / "elsewhere/rdzv/key")
    a = rdzv.agent("--", "true", wrap=lan[0], env=env)
    a.expect(r"1 of 2 nodes is here after \d+ s, giving up in .*; missing 1: node2 \(never came\)$")
    b = rdzv.agent("--", "true", wrap=lan[1], env={**env, "XDG_CONFIG_HOME": str(rdzv.tmp / "elsewhere")})
    assert b.exit() == 72 and b.says("has another key"), b
    a.expect(r"1 of 2 nodes is here after \d+ s, giving up in (60|5\d) s, since no other node can come; missing 1: node2 \(refused \d+ s ago: its agent has "
             r"another key than the daemon: give both the same one, by --key-file or RDZV_KEY, or run munged\)$")
    c = rdzv.agent("--", "true", wrap=lan[1], env=env)
    assert (a.exit(), c.exit()) == (0, 0), rdzv


def test_a_list_without_this_host(rdzv):
    d = rdzv.daemon()
    a = rdzv.agent("--endpoint", d.endpoint, "--nnodes", 2, "--expect", "gpu[1-2]", "--join-timeout", "5s", "--", "true")
    a.expect(rf"--expect gpu\[1-2\] does not name this host, {HOST}")
    a.expect(r"1 of 2 nodes is here after [1-4] s, .*; missing 2: gpu\[1-2\] \(never came\)$")
    assert a.exit() == 73, a


# No daemon. ----------------------------------------------------------------------------------------------------------


def test_no_daemon_on_a_terminal(rdzv, terminal):
    t = terminal("--endpoint", "127.0.0.1:1", "--rdzv-conf", "is_host=0", "--nnodes", 2, "--join-timeout", "4s", *WAIT, columns=200)
    assert t.end() == 69, t.text
    assert re.match(r"no daemon for \d s, giving up in \d s \(--join-timeout\): nothing listens at 127.0.0.1:1: start rdzvd there", t.drawn[0]), t.drawn
    assert len(t.drawn) >= 2, t.drawn
    assert len([l for l in t.said if re.match(r"nothing listens at 127.0.0.1:1: .*; trying again for \d s", l)]) == 1, t.said  # where the terminal is narrow
    assert any(re.search(r"no rdzvd could be reached at 127.0.0.1:1 within 4 s \(--join-timeout\): nothing listens", l) for l in t.said), t.said


def test_each_address_has_its_reason(rdzv, lan):
    """A name with two addresses: one where nobody listens, and one that is no host."""
    hosts = Path("/etc/netns") / lan[0][3] / "hosts"
    hosts.write_text(hosts.read_text() + "10.99.0.2 two\n10.99.0.77 two\n")
    a = rdzv.agent("--endpoint", "two", "--nnodes", 2, "--join-timeout", "8s", "--", "true", wrap=lan[0])
    m = a.expect(r"no connection to two:29400: (.*); trying again for \d+ s \(--join-timeout\)")
    assert {*m[1].split(", ")} in ({"10.99.0.2 (nothing listens)", "10.99.0.77 (no answer)"},
                                   {"10.99.0.2 (nothing listens)", "10.99.0.77 (no route)"}), a
    assert a.exit(30) == 69, a
    assert a.says(r"no rdzvd could be reached at two:29400 within 8 s \(--join-timeout\): no connection to two:29400: 10.99"), a


def test_a_name_that_is_known_later(rdzv, lan):
    """As in Kubernetes, where the name of a pod is known when the pod is: it is said, looked up again, and then found."""
    hosts = Path("/etc/netns") / lan[0][3] / "hosts"
    a = rdzv.agent("--endpoint", "late", "--nnodes", 1, "--rdzv-backend", "c10d", "--", "true", wrap=lan[0])
    a.expect(r"the name \"late\" in --endpoint (is not known|could not be looked up|was not found within).*; trying again for \d+ s \(--join-timeout\)")
    d = rdzv.daemon(listen="10.99.0.2", port=29400, wrap=lan[1])
    hosts.write_text(hosts.read_text() + "10.99.0.2 late\n")
    assert a.exit(30) == 0, a
    d.kill()
