# SPDX-License-Identifier: Apache-2.0
"""One command for several hosts: `rdzv-agent --hosts n1,n2 -- COMMAND`, with a stand-in for ssh that runs the command here.

The stand-in hands what it is given to a shell, as sshd does, so what a remote shell would do to a word it does here. Real ssh, on hosts of their own,
is in tests/cluster/test_ssh.py.
"""

import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time

import pytest

import waits
from harness import AGENT, RDZVCTL, SLOW, describe, environ, free_port, until
from terminal import CTRL_Z, Terminal, is_stopped

# HOST COMMAND, as ssh runs it; its command lines are kept, and some hosts are odd.
SSH = """#!/bin/sh
printf '%s\\n' "$@" >>"$0.log"
while [ "$1" != "${1#-}" ]; do shift; done
host=$1; shift
case $host in
refuses*) echo "ssh: connect to host $host port 22: Connection refused" >&2; exit 255 ;;
nowhere) echo "ssh: Could not resolve hostname nowhere: Name or service not known" >&2; exit 255 ;;
wrongkey) echo "ada@wrongkey: Permission denied (publickey)." >&2; exit 255 ;;
empty) exec sh -c "exec /nowhere/rdzv-agent --launched" ;;
other) echo "RDZV-LAUNCHED 9.9.9/3/2/tidings"; exec sleep 60 ;;
deaf) exec </dev/null ;;
silent) exec </dev/null; E2E_HOST=$host; : | sh -c "$*"; exit 0 ;;
greets) echo "Welcome to"; echo "greets."; echo >&2 "Last login: yesterday" ;;
esac
cd / && E2E_HOST="$host" HOME="/home/$host" exec sh -c "$*"
"""


@pytest.fixture
def launch(rdzv):
    """launch(hosts, *words): the launcher, its hosts behind the stand-in; they meet on this machine."""
    ssh = rdzv.tmp / "ssh-stand-in"
    ssh.write_text(SSH)
    ssh.chmod(0o755)

    def start(hosts, *words, **kw):
        return rdzv.agent("--hosts", hosts, "--ssh", f"'{ssh}' -q", "--endpoint", f"127.0.0.1:{free_port()}", *words, **kw)

    start.ssh, start.log = ssh, lambda: (rdzv.tmp / "ssh-stand-in.log").read_text().splitlines()
    return start


def ready(launcher, n, timeout=20):
    until(lambda: f"{n} workers are ready:\n{launcher}", lambda: sum("ready" in l for l in launcher.out) == n, timeout)


WAITS = [sys.executable, "-SE", waits.__file__]


def test_words_arrive_as_they_were(rdzv, launch):
    """Whatever stands in arguments, environment and the folder's name: no shell has a say in it."""
    odd = ["", " ", "a b", "$(id)", "`id`", "'", '"', "\\", "\n", "a\nb", "*", "~", "; exit 3", "&", "|", ">x", "!", "#", "é ü 漢", os.fsdecode(b"\xff\xfe")]
    folder = rdzv.tmp / "a folder with 'quotes' $HOME"
    folder.mkdir()
    script = ("import json, os, sys; print(json.dumps([os.environ['RANK'], os.environ['E2E_HOST'], os.environ['HOME'], os.environ['WORLD_SIZE'], "
              "os.environ['LOCAL_WORLD_SIZE'], os.environ['GROUP_RANK'], os.environ['ODD'], os.getcwd(), os.environ['PWD'], "
              "'RDZV_AGENT_LAUNCHER' in os.environ, sys.argv[1:]]))")
    odd_env = "\n".join(odd)
    a = rdzv.spawn("sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", folder, AGENT, "--hosts", "n1:2,n2,greets:1", "--ssh", f"{launch.ssh} -q",
                   "--endpoint", f"127.0.0.1:{free_port()}", "--no-python", "--", sys.executable, "-c", script, *odd, env={"ODD": odd_env})
    assert a.exit(30) == 0, a
    got = {int(row[0]): row[1:] for row in (json.loads(l.split(" ", 1)[1]) for l in a.out)}
    assert {r: row[:5] for r, row in got.items()} == {
        0: ["n1", "/home/n1", "4", "2", "0"], 1: ["n1", "/home/n1", "4", "2", "0"],
        2: ["n2", "/home/n2", "4", "1", "1"], 3: ["greets", "/home/greets", "4", "1", "2"]}
    for row in got.values():
        assert row[5:] == [odd_env, str(folder), str(folder), False, odd], row
    said = "\n".join(launch.log())
    assert "json" not in said and "ODD" not in said and said.count("--launched") == 6, said
    assert sum("round 1: 3 nodes, 4 workers" in l for l in a.err) == 1 and not a.says("Welcome"), a
    rdzv.gone()


def test_a_host_file(rdzv, launch):
    (rdzv.tmp / "hosts").write_text("# mine\r\nn1 slots=2 max_slots=4\r\nn2 slots=1\r\n")
    a = rdzv.agent("--hostfile", "hosts", "--ssh", launch.ssh, "--endpoint", f"127.0.0.1:{free_port()}", "--", "sh", "-c", "echo $RANK $E2E_HOST")
    assert a.exit(30) == 0, a
    assert sorted(a.out) == ["[0] 0 n1", "[1] 1 n1", "[2] 2 n2"]


def test_the_only_host_needs_no_place_to_meet(rdzv, launch):
    a = rdzv.agent("--hosts", "n1:2", "--ssh", launch.ssh, "--", "sh", "-c", "echo $RANK $E2E_HOST")
    assert a.exit(30) == 0, a
    assert sorted(a.out) == ["[0] 0 n1", "[1] 1 n1"]
    rdzv.gone()


def test_this_machine_needs_no_ssh(rdzv):
    a = rdzv.agent("--hosts", "localhost:2", "--ssh", "/nowhere/ssh", "--", "sh", "-c", "echo $RANK")
    assert a.exit(30) == 0, a
    assert sorted(a.out) == ["[0] 0", "[1] 1"]


def test_the_command_line_wins(rdzv, launch):
    """--nproc over slots; --nnodes 2 makes the third host a spare."""
    a = launch("n1:4,n2:4,n3:4", "--nproc", 1, "--nnodes", 2, "--", "sh", "-c", "echo $RANK/$WORLD_SIZE; until [ -e go ]; do sleep 0.1; done")
    port = a.argv[a.argv.index("--endpoint") + 1].split(":")[1]
    until(lambda: f"the third has joined:\n{a}", lambda: subprocess.run([RDZVCTL, "-p", port, "status"], env=rdzv.env(), capture_output=True, text=True).stdout.count("spare"), 30)
    rdzv.go(a)
    assert sorted(a.out) == ["[0] 0/2", "[1] 1/2"] and sum("it was a spare" in l for l in a.err) == 1, a


def test_a_verdict_is_told_once(rdzv, launch):
    a = launch("n1,n2,n3", "--max-restarts", 0, "--", "sh", "-c", '[ $RANK = 2 ] || sleep 60; echo "boom" >&2; exit 7')
    assert a.exit(30) == 7, a
    for line in (r"rdzv-agent: rank 2 \(local 0\) on \S+, pid \d+, exited with code 7: boom$", r"^\[2\] boom$", r"^rdzv-agent: job .* failed in round 1"):
        a.expect(line, 1)
    assert not a.says(r"  \| boom"), a  # all agents' output is on this terminal
    assert sum("failed in round" in l for l in a.err) == 1 and not a.says("n[23]: "), a
    rdzv.gone()


def test_restarts_are_the_agents_business(rdzv, launch):
    a = launch("n1,n2", "--", "sh", "-c", '[ $RDZV_RESTART_COUNT = 1 ] && echo again && exit 0; [ $RANK = 1 ] || sleep 60; exit 7')
    assert a.exit(30) == 0, a
    assert sorted(a.out) == ["[0] again", "[1] again"], a


@pytest.mark.parametrize("host, says", [
    ("refuses", "refuses: ssh: connect to host refuses port 22: Connection refused"),
    ("nowhere", "nowhere: ssh: Could not resolve hostname nowhere: Name or service not known"),
    ("wrongkey", "wrongkey: ada@wrongkey: Permission denied (publickey)."),
    ("other", "other: its rdzv-agent has release 9.9.9 (protocol 2 to 3), and this rdzv-agent "),
    ("empty", "empty: it has no rdzv-agent: not "),
    ("deaf", "deaf: rdzv-agent: --launched is used by rdzv-agent --hosts and needs pipes to it"),
    ("silent", "silent: rdzv-agent started there, but received no input: "),
])
def test_a_host_that_cannot_be_used(rdzv, launch, host, says):
    a = launch(f"n1,{host},n2", "--", *WAITS)
    assert a.exit(20) == 85, a
    assert [l for l in a.err if l.startswith("rdzv-agent: " + says)], a
    a.expect("the job needs 3 hosts, but only 2 are left: stopping them", 1)
    assert not a.says("leaving with exit code"), a
    rdzv.gone()


def test_an_elastic_job_goes_on_without_it(rdzv, launch):
    a = launch("n1,refuses,n2", "--nnodes", "2:3", "--last-call", "1s", "--", "sh", "-c", "echo $RANK/$WORLD_SIZE")
    assert a.exit(30) == 0, a
    assert sorted(a.out) == ["[0] 0/2", "[1] 1/2"], a
    assert sum("Connection refused" in l for l in a.err) == 1
    rdzv.gone()


def test_a_folder_that_is_not_there(rdzv, launch):
    (rdzv.tmp / "here").mkdir()
    a = rdzv.spawn("sh", "-c", 'cd here && rmdir ../here && PWD=/ exec "$@"', "sh", AGENT, "--hosts", "n1", "--ssh", launch.ssh, "--", "true")
    assert a.exit() == 64 and a.says("the folder of this process: No such file"), a


def test_ssh_itself_is_missing(rdzv, launch):
    a = rdzv.agent("--hosts", "n1,n2,n3", "--ssh", "/nowhere/ssh -q", "--", "true")
    assert a.exit() == 85 and a.says("n1: /nowhere/ssh cannot be started: no such file or directory"), a


def test_interrupt(rdzv, launch):
    a = launch("n1:2,n2", "--", *WAITS)
    ready(a, 3)
    assert a.end(signal.SIGINT, 20) == 130, a
    # Whose agent hears first of another's leaving stops its workers by SIGTERM.
    assert sum("got " in l for l in a.out) == 3 and a.says("got INT"), a
    rdzv.gone()


def test_interrupt_at_a_terminal(rdzv, launch):
    """Which signals everybody in the foreground; yet each agent gets it once, from the launcher."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(rdzv.tmp)
        os.execve(AGENT, [AGENT, "--hosts", "n1,n2", "--ssh", str(launch.ssh), "--endpoint", f"127.0.0.1:{free_port()}", "--", *WAITS], rdzv.env())
    said, deadline = b"", time.monotonic() + 20 * SLOW
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                said += os.read(terminal, 65536)
            except OSError:  # its end
                break
        if said.count(b"] ready") == 2 and b"^C" not in said:
            os.write(terminal, b"\x03")
            said += b"^C"
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130 and said.count(b"] got ") == 2 and b"second signal: " not in said, said.decode()
    rdzv.gone()


def test_suspend_at_a_terminal(rdzv, launch):
    """Ctrl-Z at the launcher stops the workers on all hosts; fg continues them."""
    beats = ["sh", "-c", "while :; do echo beat; sleep 0.05; done"]
    t = Terminal(rdzv)
    t.type(" ".join(map(shlex.quote, [AGENT, "--hosts", "n1,n2", "--ssh", str(launch.ssh), "--endpoint", f"127.0.0.1:{free_port()}", "--", *beats])) + "\n")
    for rank in 0, 1:
        t.expect(rf"\[{rank}\] beat", 20)
    t.type(CTRL_Z)
    t.expect("Stopped")
    until("all workers are stopped", lambda: list(map(is_stopped, rdzv.workers().values())) == [True, True])
    workers = rdzv.workers()
    t.type("fg\n")
    for rank in 0, 1:
        t.expect(rf"\[{rank}\] beat")
    assert rdzv.workers() == workers
    t.type(CTRL_Z)
    t.expect("Stopped")
    t.type("kill %1\n")
    until(lambda: f"all are gone, but there is {rdzv.pids()}", lambda: set(rdzv.pids()) <= {t.pid}, 10)
    t.close()


def test_terminate(rdzv, launch):
    a = launch("n1:2,n2", "--", *WAITS)
    ready(a, 3)
    assert a.end(signal.SIGTERM, 20) == 75, a
    assert sum("got TERM" in l for l in a.out) == 3, a
    a.expect("^rdzv-agent: SIGTERM: leaving with exit code 75", 1)
    rdzv.gone()


def test_a_second_interrupt_kills(rdzv, launch):
    a = launch("n1,n2", "--", *WAITS, "stay")
    ready(a, 2)
    a.kill(signal.SIGINT)
    until(lambda: f"both have it:\n{a}", lambda: sum("got INT" in l for l in a.out) == 2)
    time.sleep(0.3)  # at once it would be the same event
    assert a.end(signal.SIGINT, 10) == 130 and a.says("second signal: killing everything"), a
    rdzv.gone()


def launched(rdzv):
    return [p for p in rdzv.pids() if describe(p).endswith("rdzv-agent --launched")]


@pytest.mark.parametrize("fan_out", [32, 2])
def test_a_launcher_that_is_killed_leaves_nothing(rdzv, launch, fan_out):
    a = launch("n1,n2,n3,n4,n5", "--fan-out", fan_out, "--", *WAITS)
    ready(a, 5)
    a.end(signal.SIGKILL)
    rdzv.gone()


def test_an_agents_launcher_that_is_killed(rdzv, launch):
    """--launched on one host dies of -9: its agent goes too, and the job, which has too few then."""
    a = launch("n1,n2,n3", "--", *WAITS)
    ready(a, 3)
    (victim,) = [p for p in launched(rdzv) if environ(p).get("E2E_HOST") == "n2"]
    os.kill(victim, signal.SIGKILL)
    assert a.exit(20) == 78, a
    a.expect("n2 was lost: its connection ended", 1)
    rdzv.gone()


def test_an_agent_that_is_killed(rdzv, launch):
    a = launch("n1,n2,n3", "--nnodes", "2:3", "--", "sh", "-c", 'echo ready; [ $WORLD_SIZE = 2 ] || sleep 60')
    ready(a, 3)
    (victim,) = [p for p in rdzv.pids() if environ(p).get("RDZV_AGENT_NODE_RANK") == "2" and environ(p).get("RANK") is None
                 and "--hosts" in describe(p) and not environ(p).get("RDZV_AGENT_GUARD") and os.path.basename(os.readlink(f"/proc/{p}/exe")) == "rdzv-agent"
                 and int(environ(p)["RDZV_AGENT_LAUNCHER"]) == int(open(f"/proc/{p}/stat").read().rsplit(")", 1)[1].split()[1])]
    os.kill(victim, signal.SIGKILL)
    assert a.exit(20) == 0, a
    a.expect(r"n3 was lost: its agent was killed by signal 9 \(Killed\)", 1)
    assert sum("ready" in l for l in a.out) == 5, a
    rdzv.gone()


def test_a_tree(rdzv, launch):
    """Nine hosts, each starts two: everybody is there once, and only two connections are the launcher's own."""
    a = launch("n[1-9]", "--fan-out", 2, "--", "sh", "-c", "echo $RANK $GROUP_RANK $E2E_HOST ready; until [ -e go ]; do sleep 0.1; done")
    ready(a, 9)
    depth = {}
    for p in launched(rdzv):
        n, up = 0, p
        while (up := int(open(f"/proc/{up}/stat").read().rsplit(")", 1)[1].split()[1])) != a.pid:
            n += describe(up).endswith("--launched")
        depth[environ(p)["E2E_HOST"]] = n
    rdzv.go(a)
    assert sorted(l.split(" ", 1)[1] for l in a.out) == [f"{i} {i} n{i + 1} ready" for i in range(9)], a
    assert sorted(depth.values()) == [0, 0, 1, 1, 1, 1, 2, 2, 2], depth
    rdzv.gone()


def test_a_dead_host_does_not_cost_those_behind_it(rdzv, launch):
    """Two branches of four: the head of the second one is dead, so the launcher starts the three behind it itself."""
    a = launch("n1,n2,n3,n4,refuses1,refuses2,n5,n6", "--fan-out", 2, "--nnodes", "4:8", "--last-call", "6s", "--",
               "sh", "-c", "echo $RANK/$WORLD_SIZE $E2E_HOST")
    assert a.exit(60) == 0, a
    assert sorted(l.split()[-1] for l in a.out) == ["n1", "n2", "n3", "n4", "n5", "n6"], a
    assert sum("Connection refused" in l for l in a.err) == 2, a


@pytest.mark.parametrize("lines", [12000, 60000])
def test_much_output_arrives_whole(rdzv, launch, lines):
    """And waits while nobody reads, whether the job could end meanwhile or not; nor is the launcher's memory what it waits in."""
    ssh = ["--ssh", str(launch.ssh), "--endpoint", f"127.0.0.1:{free_port()}"]
    script = f"i=0; while [ $i -lt {lines} ]; do echo $i a line of some length, as loggers write them; i=$((i+1)); done"
    p = subprocess.Popen([AGENT, "--hosts", "n1,n2", *ssh, "--", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                         env=rdzv.env(), cwd=rdzv.tmp)
    first = p.stdout.readline()
    with open(f"/proc/{p.pid}/status") as f:
        time.sleep(2.5)
        kib = int(f.read().split("VmRSS:")[1].split()[0])
    got = {0: [], 1: []}
    for line in [first, *p.stdout]:
        rank, i, rest = line.decode().rstrip("\n").split(" ", 2)
        assert rest == "a line of some length, as loggers write them"
        got[int(rank[1:-1])].append(int(i))
    assert p.wait(20) == 0
    assert got == {0: list(range(lines)), 1: list(range(lines))}
    assert kib < 32 * 1024 or SLOW > 1, kib


@pytest.mark.parametrize("how", ["{agent} --hostfile <(echo 'n1 slots=2'; sleep 0.2; echo n2) {rest}", "printf 'n1:2\\nn2:1\\n' | {agent} --hostfile /dev/stdin {rest}"])
def test_a_host_file_that_is_a_pipe(rdzv, launch, how):
    rest = f"--ssh '{launch.ssh} -q' --endpoint 127.0.0.1:{free_port()} -- sh -c 'echo $RANK $E2E_HOST'"
    a = rdzv.spawn("bash", "-c", how.format(agent=AGENT, rest=rest))
    assert a.exit(30) == 0 and sorted(l.split(" ", 1)[1] for l in a.out) == ["0 n1", "1 n1", "2 n2"], a


def test_it_says_what_it_understood(rdzv, launch):
    a = launch("n1:4,n2:2", "--explain", "--", "true")
    assert a.exit() == 0, a
    assert not a.says("does not name this host"), a  # it is the hosts' affair, not this one's
    assert a.out[:3] == ["host n1 slots=4", "host n2 slots=2", f"ssh {launch.ssh} -q"]
    for line in ("nnodes 2:2", "nproc 4", "command 'true'"):
        assert [l for l in a.out if l.startswith(line)], a


@pytest.mark.parametrize("words, says", [
    (["--hosts", "n1:x"], '--hosts: "x" is not a number of slots'),
    (["--hosts", "n1,localhost"], "localhost is a different machine on each host: use a name by which the others know this one"),
    (["--hosts", "n1,n2", "--nnodes", "3"], "--nnodes asks for 3 nodes, but only 2 hosts are named"),
    (["--hosts", "n1,n2", "--standalone"], "--standalone uses this machine only, but --hosts names others"),
    (["--hosts", "n1,n2", "--node-rank", "1"], "--node-rank is for one host, but with --hosts all agents would get it"),
    (["--hosts", "n1", "--hostfile", "f"], "--hosts and --hostfile exclude each other"),
    (["--hostfile", "/nowhere/hosts"], "/nowhere/hosts"),
    (["--hostfile", "/dev/null"], "--hostfile: /dev/null cannot be read: it is neither a file nor a pipe"),
    (["--hostfile", "bad"], "bad, line 2: \"slits=...\" is unknown"),
    (["--hosts", "n1,n2", "--ssh", "ssh 'x"], "--ssh: a quotation mark is missing"),
    (["--hosts", "n1,n2", "--fan-out", "1"], "--fan-out=1: must be from 2 to"),
])
def test_mistakes(rdzv, words, says):
    (rdzv.tmp / "bad").write_text("n1 slots=2\nn2 slits=2\n")
    a = rdzv.agent(*words, "--", "true")
    assert a.exit() == 64 and says in a.text, a
    assert len(a.err) == 1, a


def test_launched_by_hand(rdzv):
    """What only --hosts may start says so."""
    p = subprocess.run([AGENT, "--launched"], input=b"hello\n", capture_output=True, env=rdzv.env(), timeout=20)
    assert p.returncode == 64 and b"--launched is used by rdzv-agent --hosts" in p.stderr
    p = subprocess.run([AGENT, "--launched"], input=b"RDZV-LAUNCH 9.9/3/2 5\n", capture_output=True, env=rdzv.env(), timeout=20)
    assert p.returncode == 64 and b"its launcher has release 9.9 (protocol 2 to 3), and this rdzv-agent " in p.stderr and p.stdout.startswith(b"RDZV-LAUNCHED ")
    p = subprocess.run([AGENT, "--launched"], input=b"", capture_output=True, env=rdzv.env(), timeout=20)
    assert p.returncode == 0 and not p.stderr


def test_the_environment_names_hosts_too(rdzv, launch):
    a = rdzv.agent("--endpoint", f"127.0.0.1:{free_port()}", "--", "sh", "-c", "echo $RANK",
                   env={"RDZV_AGENT_HOSTS": "n1,n2", "RDZV_AGENT_SSH": str(launch.ssh)})
    assert a.exit(30) == 0 and sorted(a.out) == ["[0] 0", "[1] 1"], a
    rdzv.gone()


def test_events_are_in_one_file(rdzv, launch):
    """All agents get --events, and one of them writes each event, for both hosts."""
    a = launch("n1,n2", "--events", "ev", "--", "true")
    assert a.exit(30) == 0, a
    found = [json.loads(line) for line in (rdzv.tmp / "ev").read_text().splitlines()]
    assert [e["name"].removeprefix("rdzv.") for e in found] == ["node.joined", "node.joined", "round.sealed", "round.started", "job.ended"], found
    assert found[2]["metadata"]["group_world_size"] == 2, found
