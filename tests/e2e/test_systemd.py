# SPDX-License-Identifier: Apache-2.0
"""The units of deploy/systemd: what systemd-analyze says of them, and what they do under a real systemd."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import pages
from harness import BUILD, SANITIZED, free_port, until
from systemd_machine import Machine

UNITS = BUILD / "deploy/systemd"
PAGE = "deploy/systemd.md"

needs_analyze = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed (package systemd)")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    if SANITIZED:
        pytest.skip("AddressSanitizer does not go with the daemon's sandbox")
    m = Machine(tmp_path_factory.mktemp("machine"))
    try:
        yield m.boot()
    finally:
        m.close()


@pytest.fixture
def units(tmp_path):
    """The units, with programs that are there."""
    for name in ("rdzvd.service", "rdzv-agent@.service"):
        text = (UNITS / name).read_text()
        program, = re.findall(r"^ExecStart=(\S+)", text, re.M)
        (tmp_path / name).write_text(text.replace(program, str(BUILD / ("daemon" if program.endswith("rdzvd") else "agent") / Path(program).name)))
    return tmp_path


# ---- systemd-analyze ---------------------------------------------------------------------------------------------------


@needs_analyze
def test_units_are_understood(units):
    for name in ("rdzvd.service", "rdzv-agent@.service"):
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", units / name], capture_output=True, text=True)
        assert done.returncode == 0 and not done.stdout + done.stderr, done.stdout + done.stderr
    # It would say so.
    text = (units / "rdzvd.service").read_text()
    (units / "rdzvd.service").write_text(text.replace("WatchdogSec=", "WatchdogSecs="))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", units / "rdzvd.service"], capture_output=True, text=True)
    assert "WatchdogSecs" in done.stderr, done


@needs_analyze
def test_exposure(units):
    """As the page says them."""
    command = pages.block(PAGE, "exposure").replace("/usr/lib/systemd/system", str(units))
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    levels = {unit: float(level) for unit, level in re.findall(r"Overall exposure level for (rdzv\S+?)(?:@\w*)?\.service: ([\d.]+)", done.stdout)}
    said = re.search(r"holds the daemon's level below (\d\.\d) and the agent's below (\d\.\d)", (Path(pages.TOP) / PAGE).read_text())
    assert levels["rdzvd"] < float(said[1]) and levels["rdzv-agent"] < float(said[2]), levels


def test_examples_are_settings_that_programs_take(rdzv):
    """Each line of the example files, also what is commented out, is an option's."""
    from harness import AGENT, RDZVD
    examples = Path(pages.TOP) / "deploy/systemd"
    for name, program, args in ("rdzvd.conf.example", RDZVD, ["--help"]), ("agent-train.conf.example", AGENT, ["--explain", "--", "true"]):
        text = (examples / name).read_text()
        env = dict(re.findall(r"^#?([A-Z_]+)=(.*)$", text, re.M))
        assert env, name
        p = rdzv.spawn(program, *args, env={k: v for k, v in env.items() if k != "COMMAND"})
        assert p.exit() == 0, p
    p = rdzv.spawn(AGENT, "--explain", "--", "true", env={"RDZV_AGENT_NNODSE": "2"})
    assert p.exit() == 64, p


# ---- a real systemd ----------------------------------------------------------------------------------------------------


def start_daemon(m, watchdog="10s"):
    """rdzvd.service on a port of its own."""
    port = free_port()
    m.sh(f"echo RDZVD_LISTEN=127.0.0.1:{port} >/etc/rdzv/rdzvd.conf")
    m.drop_in("rdzvd.service", f"[Service]\nWatchdogSec={watchdog}\n")
    m.sh(pages.block(PAGE, "daemon"))
    m.until("rdzvd.service", "ActiveState", "active")
    return port


def test_daemon(machine):
    m = machine
    port = start_daemon(m, "2s")
    m.until("rdzvd.service", "StatusText", "no job")
    assert "no jobs" in m.run("rdzvctl", "status").stdout
    pid = m.show("rdzvd.service", "MainPID")
    status = m.run("cat", f"/proc/{pid}/status").stdout
    fields = dict(re.findall(r"^(\w+):\s*(.*)$", status, re.M))
    assert fields["NoNewPrivs"] == "1" and fields["Seccomp"] == "2" and int(fields["CapBnd"], 16) == 0 and fields["Uid"].split()[0] != "0", status
    assert f"127.0.0.1:{port}" in m.lines("rdzvd") and "warn" not in m.lines("rdzvd").lower(), m.lines("rdzvd")
    # A user's job: who asks is told by the kernel, through the sandbox.
    a = subprocess.Popen(["nsenter", "-t", str(m.pid), "-m", "-p", "-u", "-i", "setpriv", "--reuid", "4711", "--clear-groups", "sh", "-c",
                          f"RDZV_KEY=$(rdzvctl key) exec rdzv-agent --endpoint 127.0.0.1:{port} --rdzv-id mine -- sleep 600"], stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        m.until("rdzvd.service", "StatusText", "1 job: running, round 1, 1 node, 1 worker")
        as_user = lambda uid, *words: m.run("setpriv", "--reuid", uid, "--clear-groups", *words).stdout
        assert "mine" in as_user("4711", "rdzvctl", "jobs") and "mine" not in as_user("4712", "rdzvctl", "jobs")
        # Over HTTP too, with the guide's words.
        ask = pages.block("deploy/guide/monitoring.md", "look").strip().split()
        assert ask[0] == "curl"
        ask = [ask[0], "-sS", "--fail-with-body", *[word.replace("localhost:29400", f"127.0.0.1:{port}") for word in ask[1:]]]
        assert 'job="mine"' in as_user("4711", *ask) and 'job="mine"' not in as_user("4712", *ask)
        # A stuck loop: the watchdog's work. The job runs on, and the new daemon knows it.
        m.run("kill", "-STOP", pid)
        until("it was started again", lambda: m.show("rdzvd.service", "NRestarts") == "1", 10)
        m.until("rdzvd.service", "ActiveState", "active")
        m.until("rdzvd.service", "StatusText", "1 job: running, round 1, 1 node, 1 worker")
        assert m.show("rdzvd.service", "MainPID") != pid and a.poll() is None
        # And one that is asked for, with the page's words; what it looks at meanwhile, too.
        pid = m.show("rdzvd.service", "MainPID")
        m.sh(pages.inline(PAGE, "systemctl restart rdzvd"))
        m.until("rdzvd.service", "StatusText", "1 job: running, round 1, 1 node, 1 worker")
        assert m.show("rdzvd.service", "MainPID") != pid and a.poll() is None
        assert 'Status: "1 job: running, round 1, 1 node, 1 worker' in m.sh(pages.inline(PAGE, "systemctl status rdzvd")).stdout
        assert '"job":"mine"' in m.run("cat", "/var/lib/rdzvd/rdzvd.state").stdout
        m.run("rdzvctl", "stop", "mine")
        assert a.wait(10) == 77
    finally:
        a.kill()
        a.wait()
    m.run("systemctl", "stop", "rdzvd")
    assert m.show("rdzvd.service", "Result") == "success" and m.show("rdzvd.service", "ActiveState") == "inactive"
    assert "stopping: SIGTERM" in m.lines("rdzvd")


def test_second_daemon(machine):
    """It gets the key of the first one before it first starts: here from a file, in place of another machine."""
    m = machine
    m.run("systemctl", "stop", "rdzvd", check=False)
    m.sh("rm -rf /var/lib/rdzvd /var/lib/private/rdzvd")
    port = free_port()
    m.sh(f"echo RDZVD_LISTEN=127.0.0.1:{port} >/etc/rdzv/rdzvd.conf; openssl rand -hex 32 >/etc/rdzv/first.key")
    m.sh(pages.with_changes(pages.block(PAGE, "second"), [("rdzvctl key", "cat /etc/rdzv/first.key"), ("ssh head2", "sh -c")]))
    m.until("rdzvd.service", "ActiveState", "active")
    assert m.run("rdzvctl", "key").stdout == (m.tmp / "etc/rdzv/first.key").read_text(), m.lines("rdzvd")
    m.run("systemctl", "stop", "rdzvd")
    m.sh("rm -rf /var/lib/rdzvd /var/lib/private/rdzvd")


def test_daemon_with_a_wrong_setting_is_not_tried_again(machine):
    m = machine
    m.sh("echo RDZVD_LISTEN=nonsense:x >/etc/rdzv/rdzvd.conf")
    m.run("systemctl", "start", "rdzvd", check=False)
    m.until("rdzvd.service", "ActiveState", "failed")
    assert m.show("rdzvd.service", "ExecMainStatus") == "64"


@pytest.fixture
def job(machine):
    """Writes agent-train.conf, with the command that is wanted; a daemon runs."""
    m = machine
    m.run("systemctl", "reset-failed")
    m.run("systemd-sysusers")
    port = start_daemon(m)
    m.sh(pages.block(PAGE, "key"))

    def write(command, **settings):
        lines = {"RDZV_AGENT_ENDPOINT": f"127.0.0.1:{port}", "RDZV_AGENT_NPROC": "2", "RDZV_AGENT_RDZV_CONF": "is_host=0", "COMMAND": command, **settings}
        (m.tmp / "etc/rdzv/agent-train.conf").write_text("".join(f"{k}={v}\n" for k, v in lines.items()))

    m.drop_in("rdzv-agent@train.service", "[Service]\nRestartSec=200ms\nWatchdogSec=3s\n")
    yield write
    m.run("systemctl", "stop", "rdzv-agent@train", "rdzvd", check=False)
    m.run("systemctl", "reset-failed", check=False)


AGENT = "rdzv-agent@train.service"


def workers(m):
    return m.run("pgrep", "-u", "rdzv", "-x", "sleep", check=False).stdout.split()


def test_agent(machine, job):
    m = machine
    job("sh -c 'exec sleep 600'", RDZV_AGENT_STOP_TIMEOUT="2s")
    m.sh(pages.block(PAGE, "agent"))
    m.until(AGENT, "StatusText", "round 1: node 0 of 1, ranks 0-1 of 2")
    assert m.show(AGENT, "ActiveState") == "active" and "train" in m.run("rdzvctl", "jobs").stdout
    first = workers(m)
    assert len(first) == 2
    # Killed: its workers die with it, and it is back, in the same job.
    m.run("kill", "-KILL", m.show(AGENT, "MainPID"))
    until("it was started again", lambda: m.show(AGENT, "NRestarts") == "1", 10)
    m.until(AGENT, "StatusText", "node 0 of 1, ranks 0-1 of 2")
    until("two other workers", lambda: len(workers(m)) == 2 and not set(first) & set(workers(m)))
    # Stuck: the watchdog's work.
    m.run("kill", "-STOP", m.show(AGENT, "MainPID"))
    until("it was started again", lambda: m.show(AGENT, "NRestarts") == "2", 15)
    m.until(AGENT, "StatusText", "node 0 of 1, ranks 0-1 of 2")
    # Told to leave by somebody else than systemd: 75, again.
    m.run("kill", "-TERM", m.show(AGENT, "MainPID"))
    until("it was started again", lambda: m.show(AGENT, "NRestarts") == "3", 10)
    m.until(AGENT, "StatusText", "node 0 of 1, ranks 0-1 of 2")
    # Stopped: no failure, and nothing left.
    m.run("systemctl", "stop", AGENT)
    assert (m.show(AGENT, "ActiveState"), m.show(AGENT, "Result"), m.show(AGENT, "ExecMainStatus")) == ("inactive", "success", "75"), m.lines("rdzv-agent@train")
    assert workers(m) == []


# What a job's program may do: compile, start a container, have locks in memory, use what others need too.
MAY = r"""
import ctypes, mmap, os, socket, subprocess
mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)() == 7
subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "--mount-proc", "true"], check=True)
socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
for place in "/tmp/rdzv-may", "/dev/shm/rdzv-may", "/var/lib/rdzv/may":
    open(place, "w").close()
    os.unlink(place)
assert open("/dev/urandom", "rb").read(1) and "NoNewPrivs:\t1" in open("/proc/self/status").read()
os.setpriority(os.PRIO_PROCESS, 0, 1)
os.sched_setaffinity(0, os.sched_getaffinity(0))
for place in "/usr/may", "/etc/may":
    try:
        open(place, "w")
        raise SystemExit(place)
    except OSError:
        pass
print("all of it", flush=True)
"""


def test_what_a_worker_may_do(machine, job):
    """The agent's unit keeps its workers from nothing that jobs need."""
    m = machine
    m.run("bash", "-c", "cat >/run/may.py", input=MAY)
    job("python3 /run/may.py", RDZV_AGENT_MAX_RESTARTS="0", RDZV_AGENT_NPROC="1")
    m.run("systemctl", "start", AGENT, check=False)
    m.until(AGENT, "ActiveState", "inactive")
    assert "all of it" in m.lines("rdzv-agent@train") and m.show(AGENT, "ExecMainStatus") == "0", m.lines("rdzv-agent@train")
    # With the page's words a setuid program is one again.
    m.sh("cp /usr/bin/id /run/id; chmod 4755 /run/id; mount -o remount,suid,exec /run")
    setuid = pages.generated(PAGE, "setuid").replace("```", "")
    for word, drop_in in ("with", ""), ("without", setuid):
        m.drop_in(AGENT, "[Service]\nRestartSec=200ms\n" + drop_in)
        job(f"sh -c 'echo {word} the limits: user $(/run/id -u)'", RDZV_AGENT_MAX_RESTARTS="0", RDZV_AGENT_NPROC="1")
        m.run("systemctl", "start", AGENT, check=False)
        m.until(AGENT, "ActiveState", "inactive")
    assert re.search(r"with the limits: user [1-9]\d*\n.*without the limits: user 0\n", m.lines("rdzv-agent@train"), re.S), m.lines("rdzv-agent@train")


def test_agent_takes_its_time_to_stop(machine, job):
    """Workers that need longer than TimeoutStopSec, within --stop-timeout: the agent asks for more, and nobody is killed early."""
    m = machine
    m.drop_in(AGENT, "[Service]\nRestartSec=200ms\nTimeoutStopSec=1s\n")
    # It forks for the last time before it is ready: a shell that forks meanwhile loses a signal now and then.
    job("sh -c 'sleep 600 & trap \"sleep 2.5; echo saved >/var/lib/rdzv/saved; exit 0\" TERM; : >/var/lib/rdzv/ready; wait'", RDZV_AGENT_STOP_TIMEOUT="10s", RDZV_AGENT_NPROC="1")
    m.run("systemctl", "start", AGENT)
    m.until(AGENT, "StatusText", "round 1: node 0")
    until(lambda: f"the worker is ready\n{m.lines('rdzv-agent@train')}", lambda: m.run("test", "-e", "/var/lib/rdzv/ready", check=False).returncode == 0)
    m.run("systemctl", "stop", AGENT)
    assert m.show(AGENT, "Result") == "success" and m.run("cat", "/var/lib/rdzv/saved").stdout == "saved\n", m.lines("rdzv-agent@train")


@pytest.mark.parametrize("command, code", [("true", 0), ("sh -c 'exit 3'", 3)])
def test_job_that_is_over_stays_over(machine, job, command, code):
    m = machine
    job(command, RDZV_AGENT_MAX_RESTARTS="0")
    m.run("systemctl", "start", AGENT, check=False)
    m.until(AGENT, "ActiveState", "failed" if code else "inactive")
    assert m.show(AGENT, "ExecMainStatus") == str(code) and m.show(AGENT, "NRestarts") == "0", m.lines("rdzv-agent@train")


def test_agent_waits_for_a_daemon(machine, job):
    """It is not active before it was welcomed, and waits beyond TimeoutStartSec."""
    m = machine
    m.run("systemctl", "stop", "rdzvd")
    m.drop_in(AGENT, "[Service]\nTimeoutStartSec=1s\n")
    job("sleep 600")
    m.run("systemctl", "start", "--no-block", AGENT)
    m.until(AGENT, "StatusText", "no daemon at 127.0.0.1")
    subprocess.run(["sleep", "1.5"], check=True)
    assert m.show(AGENT, "ActiveState") == "activating" and m.show(AGENT, "NRestarts") == "0", m.lines("rdzv-agent@train")
    m.run("systemctl", "start", "rdzvd")
    m.until(AGENT, "ActiveState", "active")
