# SPDX-License-Identifier: Apache-2.0
"""A command that is not the worker itself but starts it: container launchers. They keep what the agent gives (environment, folder, signals
and death as far as they pass them on), and nothing of what they started survives.

The stand-ins: unshare, whose child is process 1 of a new PID namespace (what docker, apptainer --pid, enroot make); a launcher that closes
all descriptors it does not know, forks, passes signals on and exits as its child did; one that keeps its child in another session.
"""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from harness import alive, describe, stat, until

NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child"]
CLOSING = """
import os, signal, sys
os.closerange(3, 65536)
if sys.argv[1] == "setsid":
    attach = os.setsid
else:
    attach = lambda: None
pid = os.fork()
if pid == 0:
    attach()
    os.execvp(sys.argv[2], sys.argv[2:])
for s in signal.SIGTERM, signal.SIGHUP, signal.SIGINT:
    signal.signal(s, lambda signo, _: os.kill(pid, signo))
while True:
    try:
        status = os.waitpid(pid, 0)[1]
        break
    except InterruptedError:
        pass
code = os.waitstatus_to_exitcode(status)
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if code != -9 else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
# A worker with a child in a session of its own, and a grandchild that its parent has left.
WORKER = """
setsid sleep 300 &
(setsid sh -c 'trap "" TERM; sleep 300 & wait' &)
trap 'echo "$RANK got TERM"; exit 0' TERM
echo "$RANK of $WORLD_SIZE is ready"
wait # for the first one. A shell that forks meanwhile loses a signal now and then (waits.py).
"""


def works(*argv):
    return shutil.which(argv[0]) and subprocess.run([*argv, "true"], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(not works(*NAMESPACE), reason="unshare --pid is not permitted here")
launchers = pytest.mark.parametrize("kind", [pytest.param("namespace", marks=needs_namespaces), "closing", "setsid"])


def launcher(rdzv, kind):
    if kind == "namespace":
        return NAMESPACE
    (rdzv.tmp / "launcher.py").write_text(CLOSING)
    return [sys.executable, "-S", rdzv.tmp / "launcher.py", kind]


def comm(pid):
    """What ps calls it; "" where it is gone."""
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except OSError:
        return ""


def ready(agents, n):
    until(lambda: "the workers are ready:\n" + "\n".join(map(str, agents)),
          lambda: sum("is ready" in l for a in agents for l in a.out) == n)


@launchers
def test_environment_and_output(rdzv, kind):
    a = rdzv.agent("--nproc", 2, "--", *launcher(rdzv, kind), "sh", "-c", "echo $RANK $LOCAL_RANK $WORLD_SIZE $PWD; echo words >&2")
    assert a.exit() == 0, a
    assert sorted(a.out) == [f"[0] 0 0 2 {rdzv.tmp}", f"[1] 1 1 2 {rdzv.tmp}"], a
    assert sum("words" in l for l in a.err) == 2
    rdzv.gone()


@launchers
def test_its_exit_code_is_the_workers(rdzv, kind):
    a = rdzv.agent("--max-restarts", 0, "--", *launcher(rdzv, kind), "sh", "-c", "exit 7")
    assert a.exit() == 7 and a.says("exited with code 7|exit code 7"), a
    rdzv.gone()


@pytest.mark.parametrize("kind", ["closing", "setsid"])  # unshare cannot pass on a SIGKILL, and process 1 is shielded from the rest
def test_its_death_by_a_signal_is_the_workers(rdzv, kind):
    a = rdzv.agent("--max-restarts", 0, "--", *launcher(rdzv, kind), "sh", "-c", WORKER)
    ready([a], 1)
    (inner,) = [p for p in rdzv.pids() if "is ready" in describe(p) and stat(p)[1] in map(str, rdzv.workers().values())
                and comm(p) == "sh"]
    os.kill(inner, signal.SIGKILL)
    assert a.exit() == 137 and a.says("SIGKILL"), a
    rdzv.gone()


@launchers
def test_sigterm_reaches_the_worker(rdzv, kind):
    a = rdzv.agent("--nproc", 2, "--", *launcher(rdzv, kind), "sh", "-c", WORKER)
    ready([a], 2)
    assert a.end(signal.SIGTERM, 10) == 75, a
    # The launcher `closing` passes the signal on to a worker that has it already, as a member of the same group.
    assert {l[4:] for l in a.out if "got TERM" in l} == {"0 got TERM", "1 got TERM"}, a
    rdzv.gone()


@launchers
def test_nothing_survives_sigkill(rdzv, kind):
    """A worker that ignores SIGTERM, and a peer that fails."""
    script = 'trap "" TERM;' + WORKER.replace("trap 'echo", ": 'echo")
    a = rdzv.agent("--nproc", 2, "--max-restarts", 0, "--stop-timeout", "1s", "--", *launcher(rdzv, kind), "sh", "-c",
                   script.replace("\nwait", "\nwhile [ ! -e fail.$RANK ]; do sleep 0.05; done") + "exit 5")
    ready([a], 2)
    (rdzv.tmp / "fail.1").touch()
    assert a.exit(10) == 5, a
    rdzv.gone()


@launchers
@pytest.mark.parametrize("victim", ["agent", "guard"])
def test_kill_9_leaves_nothing(rdzv, kind, victim):
    """Two nodes, one loses its agent or guard: nothing of it is left, launcher, worker and grandchildren; the other node goes on."""
    d = rdzv.daemon()
    agents = rdzv.agents(2, d.endpoint, "--nnodes", "1:2", "--last-call", "5s", "--stop-timeout", "2s", "--", *launcher(rdzv, kind), "sh",
                         "-c", WORKER)
    ready(agents, 2)
    pid = agents[0].pid
    if victim == "guard":
        (pid,) = [p for p in rdzv.pids(E2E_NODE="0") if comm(p) == "rdzv-guard"]
    os.kill(pid, signal.SIGKILL)
    agents[0].exit(10)
    rdzv.gone(E2E_NODE="0")
    agents[1].expect("round 2: 1 node")
    assert agents[1].end(signal.SIGTERM, 10) == 75, rdzv
    rdzv.gone(E2E_NODE="1")


def inside(rdzv, *args):
    """An agent in a PID namespace whose process 1 is a shell that stays. Returns the launcher, and the agent's pid out here."""
    enter = [*NAMESPACE, "--mount-proc"]
    if not works(*enter):
        pytest.skip("unshare --mount-proc is not permitted here")
    a = rdzv.agent("--nproc", 2, *args, wrap=[*enter, "sh", "-c", '"$@"; echo "it ended with $?"; sleep 300', "sh"])
    ready([a], 2)
    (agent,) = [p for p in rdzv.pids() if comm(p) == "rdzv-agent"]
    return a, agent


def only_the_shell_is_left(rdzv):
    names = lambda: sorted(filter(None, map(comm, rdzv.pids())))
    until(lambda: f"only the shell and its sleep are left, now {names()}", lambda: names() == ["sh", "sleep", "unshare"])


@needs_namespaces
def test_the_proc_of_an_outer_namespace(rdzv):
    """Its numbers are those of other processes in here."""
    a = rdzv.agent("--standalone", "true", wrap=NAMESPACE)
    assert a.exit(10) == 71 and len(a.err) == 1 and a.says("/proc is that of an outer PID namespace.*unshare --mount-proc"), a


@needs_namespaces
def test_agent_inside_a_namespace(rdzv):
    """What ignores SIGTERM, in sessions of its own, is killed inside too; nobody else is."""
    stranger = subprocess.Popen(["sleep", "300"])
    try:
        worker = 'trap "" TERM;' + WORKER.replace("trap 'echo", ": 'echo")
        a, agent = inside(rdzv, "--stop-timeout", "1s", "--", "sh", "-c", worker)
        os.kill(agent, signal.SIGTERM)
        a.expect("it ended with 75", 10)
        only_the_shell_is_left(rdzv)
        assert alive(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()
    a.end(signal.SIGKILL)
    rdzv.gone()


@needs_namespaces
@pytest.mark.parametrize("victim", ["agent", "guard"])
def test_kill_9_inside_a_namespace(rdzv, victim):
    a, pid = inside(rdzv, "--", "sh", "-c", WORKER)
    if victim == "guard":
        (pid,) = [p for p in rdzv.pids() if comm(p) == "rdzv-guard"]
    os.kill(pid, signal.SIGKILL)
    a.expect("it ended with")
    only_the_shell_is_left(rdzv)
    a.end(signal.SIGKILL)
    rdzv.gone()
