# SPDX-License-Identifier: Apache-2.0
"""The daemon is away: for a while, for long, or another one answers where it was."""

import signal
import socket
import threading
import time

import pytest

import waits
from harness import alive, environ, free_port, stop_accepting, until
from test_rdzvd_control import ctl

LEASE = 2.0
WAIT = "echo round $RDZV_ROUND of $GROUP_WORLD_SIZE; while [ ! -e go ]; do sleep 0.02; done"


class Door:
    """A port of its own that leads to one daemon, and then to another: what a name that is resolved anew does to agents."""

    def __init__(self, to):
        self.to, self.pairs = to, []
        self.listener = socket.create_server(("127.0.0.1", free_port()))
        self.endpoint = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.serving = threading.Thread(target=self.serve, daemon=True)
        self.serving.start()

    def serve(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                return
            self.pairs.append((near, far))
            for a, b in (near, far), (far, near):
                threading.Thread(target=self.carry, args=(a, b), daemon=True).start()

    @staticmethod
    def carry(a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for s in a, b:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def lead(self, to):
        self.to = to
        for pair in self.pairs:
            for s in pair:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.pairs.clear()

    def close(self):
        stop_accepting(self.listener, self.serving)


@pytest.mark.parametrize("nodes, signo", [("1:2", signal.SIGTERM), (2, signal.SIGKILL)], ids=["elastic-stopped", "fixed-killed"])
def test_orphans_are_stopped(rdzv, nodes, signo):
    """No daemon comes back. Workers get SIGTERM after --orphan-grace, and the agent exits with 76. A daemon that is told to stop says so, and no node
    of an elastic job has to fence meanwhile. At fixed size none has to anyway."""
    d = rdzv.daemon("--state-dir", rdzv.tmp / "state")
    agents = rdzv.agents(2, d.endpoint, "--nnodes", nodes, "--lease", f"{LEASE:g}s", "--orphan-grace", "3s", "--last-call", "1m", "--rdzv-conf", "is_host=0",
                         "--", "sh", "-c", waits.COMMAND)
    workers = rdzv.await_workers(2)
    for a in agents:
        a.expect("ready$")
    gone = time.monotonic()
    d.kill(signo)
    until("the workers are stopped", lambda: not any(map(alive, workers.values())), 20)
    assert time.monotonic() - gone > 2, "they were stopped before the grace was over"
    assert [a.exit() for a in agents] == [76, 76], rdzv
    for a in agents:
        assert a.says("--orphan-grace") and a.says("got TERM") and not a.says("killing the workers"), a
    rdzv.gone(E2E_NODE="0")
    rdzv.gone(E2E_NODE="1")


@pytest.mark.parametrize("nodes", ["1:2", "2 and a spare"])
def test_a_killed_daemon_that_stays_dead(rdzv, nodes):
    """Nobody listens any more, and that is silence: anybody on the way could refuse as well. Where the others could go on without a node, its workers
    are dead before its lease is over, whatever --orphan-grace is. Its agent waits for a daemon."""
    d = rdzv.daemon()
    options = ("--nnodes", nodes.split()[0], "--lease", f"{LEASE:g}s", "--orphan-grace", "1h", "--join-timeout", "6s", "--last-call", "1m",
               "--rdzv-conf", "is_host=0")
    agents = rdzv.agents(2, d.endpoint, *options, "--", "sh", "-c", waits.COMMAND)
    workers = rdzv.await_workers(2)
    for a in agents:
        a.expect("ready$")
    if "spare" in nodes:
        spare = rdzv.agent("--endpoint", d.endpoint, *options, "--", "sh", "-c", waits.COMMAND, node="2")
        spare.expect("this node is a spare")
        time.sleep(LEASE / 2)  # a few heartbeats have told both of it
    d.kill()
    for a in agents:
        # An agent that ran late finds that its guard has done it.
        a.expect("no answer from the daemon .* killing the workers before the lease of 2.0 s is over|the daemon .* had not answered, .* its guard has killed its workers", 20)
    until("the workers are killed", lambda: not any(map(alive, workers.values())), 20)
    assert not any(a.says("got TERM") for a in agents), rdzv
    if "spare" not in nodes:
        assert [a.exit() for a in agents] == [74, 74], rdzv
        return
    rdzv.daemon(port=d.port)
    until(f"two run again\n{rdzv}", lambda: sorted(rdzv.workers()) == [0, 1], 30)


@pytest.mark.parametrize("victim, charged", [(0, 0), (3, 1)], ids=["a-node's-agent-dies", "a-spare's-agent-dies"])
def test_joins_and_failures_while_the_daemon_is_away(rdzv, victim, charged):
    """A worker dies, spares come, an agent dies: a daemon with a state file finds it all, and the job goes on. The worker's death costs a restart,
    unless the agent was of the same round: a lost node weighs more, and costs none. Its place is free when an operator has vouched for it."""
    d = rdzv.daemon("--state-dir", rdzv.tmp / "state")
    options = ("--nnodes", 2, "--rdzv-id", "away", "--lease", f"{LEASE:g}s", "--rdzv-conf", "is_host=0", "--stop-timeout", "2s")
    script = f"[ $RANK = 0 ] || [ -e died ] || {{ while [ ! -e die ]; do sleep 0.02; done; touch died; exit 5; }}; {WAIT}"
    agents = rdzv.agents(2, d.endpoint, *options, "--", "sh", "-c", script)
    first = rdzv.await_workers(2)
    d.kill()
    (rdzv.tmp / "die").touch()
    until("rank 1 is gone", lambda: 1 not in rdzv.workers(), 5)
    for i in (2, 3):
        agents.append(rdzv.agent("--endpoint", d.endpoint, *options, "--", "sh", "-c", script, node=str(i)))
        agents[i].expect("no rdzvd|trying again|could not be reached")
    agents[victim].kill()
    rdzv.gone(E2E_NODE=str(victim))
    rdzv.daemon("--state-dir", rdzv.tmp / "state", "--socket", rdzv.tmp / "s", port=d.port)
    if charged:
        for a in agents[:2]:
            a.expect("restart 1 of 3", 20)
    else:
        agents[1].expect("lost|did not report", 20)
        # No daemon heard its guard, so the machine may as well be cut off. A person looks, and says so.
        agents[1].expect("may still run workers of an earlier round: .* then: rdzvctl confirm-dead ", 20)
        assert not rdzv.workers(), rdzv
        p = ctl(rdzv, "--socket", rdzv.tmp / "s", "confirm-dead", "away")
        assert p.code == 0 and "1 lost node counts as dead; the next round waits for it no longer" in p.text, p
    until(f"both run again\n{rdzv}", lambda: len(rdzv.workers()) == 2 and not set(rdzv.workers().values()) & set(first.values()), 20)
    told = {(environ(p)["RDZV_ROUND"], environ(p)["RDZV_RESTART_COUNT"]) for p in rdzv.workers().values()}
    assert told == {("2", str(charged))}, f"{told}\n{rdzv}"
    survivors = [a for i, a in enumerate(agents) if i != victim]
    for a in survivors:  # who has not come back when the job is over waits for another one of that name
        a.expect("round 2: 2 nodes|this node is a spare|this node waits", 20)
    rdzv.go(*survivors)
    assert charged or not any(a.says("restart [1-9] of 3") for a in survivors), rdzv


def test_two_daemons_meet(rdzv):
    """One job's name, two daemons, two whole jobs. Where they meet the older one is over, and its nodes are told in words."""
    old, new = rdzv.daemon(), rdzv.daemon()
    doors = [Door(old.port), Door(old.port), Door(new.port), Door(new.port)]
    options = ("--nnodes", 2, "--rdzv-id", "same", "--rdzv-conf", "is_host=0", "--lease", f"{LEASE:g}s", "--stop-timeout", "1s")
    agents = [rdzv.agent("--endpoint", door.endpoint, *options, "--", "sh", "-c", WAIT, node=str(i)) for i, door in enumerate(doors[:2])]
    rdzv.await_workers(2)
    agents += [rdzv.agent("--endpoint", door.endpoint, *options, "--", "sh", "-c", WAIT, node=str(i + 2)) for i, door in enumerate(doors[2:])]
    until("both jobs run", lambda: len(rdzv.leaders(E2E_NODE="2")) == len(rdzv.leaders(E2E_NODE="3")) == 1, 10)
    newer = rdzv.workers(E2E_NODE="2") | rdzv.workers(E2E_NODE="3")
    doors[0].lead(new.port)
    assert agents[0].exit() == 76 and agents[0].says("a newer run of job same has taken its place"), agents[0]
    doors[1].lead(new.port)
    assert agents[1].exit() == 76 and agents[1].says("a newer run of job same has taken its place"), agents[1]
    assert all(map(alive, newer.values())), "the newer job was touched"
    (rdzv.tmp / "go").touch()
    assert [a.exit() for a in agents[2:]] == [0, 0], rdzv
    for door in doors:
        door.close()
