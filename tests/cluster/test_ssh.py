# SPDX-License-Identifier: Apache-2.0
"""`rdzv-agent --hosts`: one command, real ssh, hosts that are there, refuse, die; and after each of it nothing is left on any host."""

import re
import signal

import pages
import pytest
import waits
from harness import until
from job import PYTHON

PAGE = "deploy/ssh.md"

ROW = 'echo "rank $RANK of $WORLD_SIZE on $(hostname) at $MASTER_ADDR in $PWD: $WORD"'
WAITS = [PYTHON, "-SE", waits.__file__]
LEASE = "3s"  # what a host that lives may be silent for on a busy machine, and less than the 15 s of the launcher
WORD = "it's \"$(hostname)\" & a\nnew line"


def rows(a, n, hosts, cwd):
    got = sorted(re.fullmatch(r"\[(\d+)\] rank (\d+) of (\d+) on (\S+) at (\S+) in (.*): it's \"\$\(hostname\)\" & a", l).groups()
                 for l in a.out if "rank" in l)
    assert got == sorted((str(i), str(i), str(n), hosts[i], "10.77.0.1", str(cwd)) for i in range(n)), a
    assert sum(l.endswith("new line") for l in a.out) == n


def ready(a, n):
    until(lambda: f"{n} workers are ready:\n{a}", lambda: sum("ready" in l for l in a.out) == n, 20)


def test_three_hosts(make_ssh):
    """From one of them, which needs no connection to itself; its agent serves the endpoint."""
    c = make_ssh(3)
    a = c.launch(1, "--hosts", "node1:2,node2,node3", "--", "sh", "-c", ROW, WORD=WORD)
    assert a.exit(20) == 0, a
    rows(a, 4, ["node1", "node1", "node2", "node3"], c.tmp)
    a.expect(r"^rdzv-agent: round 1: 3 nodes, 4 workers; this is node 0 with ranks 0-1, node 0 is node1 \(10.77.0.1\)$", 1)
    a.expect(r"^rdzv-agent: job job-[0-9a-f]{12} is done", 1)
    assert not c.sshd[1].says("Accepted") and c.sshd[2].says("Accepted publickey") and c.sshd[3].says("Accepted publickey"), c
    c.gone()


@pytest.mark.parametrize("fan_out", [32, 2])
def test_a_login_node(make_ssh, fan_out):
    """It is none of the hosts. With a fan-out of 2 the third host is reached from the first one."""
    c = make_ssh(4)
    a = c.launch(4, "--hosts", "node[1-3]:2", "--fan-out", fan_out, "--", "sh", "-c", ROW, WORD=WORD)
    assert a.exit(20) == 0, a
    rows(a, 6, ["node1", "node1", "node2", "node2", "node3", "node3"], c.tmp)
    by = {i: re.findall(r"Accepted publickey for root from (\S+)", c.sshd[i].text) for i in (1, 2, 3)}
    assert by == ({1: ["10.77.0.4"], 2: ["10.77.0.4"], 3: ["10.77.0.4"]} if fan_out == 32 else {1: ["10.77.0.4"], 2: ["10.77.0.1"], 3: ["10.77.0.4"]}), by
    c.gone()


def test_by_addresses_and_users(make_ssh):
    c = make_ssh(3)
    a = c.launch(3, "--hosts", "10.77.0.1,root@node2,[fd77::3]", "--", "sh", "-c", ROW, WORD=WORD)
    assert a.exit(20) == 0, a
    rows(a, 3, ["node1", "node2", "node3"], c.tmp)
    c.gone()


@pytest.mark.parametrize("typed_over_ssh", [False, True])
def test_bash_reads_no_start_files(make_ssh, typed_over_ssh):
    """`bash -c` as a worker finds the same environment on all hosts, the launcher's own included: bash reads ~/.bashrc where it thinks that sshd has started it."""
    c = make_ssh(2)
    for host in c.hosts:
        host.ns.sh("echo 'export PATH=/from/bashrc:$PATH' >/root/.bashrc")
    login = {"SSH_CLIENT": "10.77.0.9 4711 22", "SSH_CONNECTION": "10.77.0.9 4711 10.77.0.1 22", "SHLVL": "0"} if typed_over_ssh else {}
    a = c.launch(1, "--hosts", "node1,node2", "--", "bash", "-c", "echo rank $RANK has $PATH", PATH="/usr/bin:/bin", **login)
    assert a.exit(20) == 0, a
    assert sorted(a.out) == [f"[{r}] rank {r} has /usr/bin:/bin" for r in range(2)], a
    c.gone()


def test_another_python_on_another_host(make_ssh):
    """PATH is the same, and what lies there is not: the launcher names both."""
    c = make_ssh(3)
    c[2].ns.sh("mkdir /run/env && ln -s /usr/bin/python3 /run/env/python3")
    (c.tmp / "train.py").write_text("print('trained')")
    a = c.launch(1, "--hosts", "node[1-3]", "train.py", PATH="/run/env:/usr/bin:/bin")
    assert a.exit(20) == 0 and sorted(a.out) == [f"[{r}] trained" for r in range(3)], a
    a.expect(r"^rdzv-agent: the command is not the same program on all hosts: /usr/bin/python3( \(python3[.\d]+\))? on node\[1,3\], "
             r"/run/env/python3( \(python3[.\d]+\))? on node2; give a path that exists on all hosts$", 1)
    a = c.launch(1, "--hosts", "node[1-3]", "--", "/usr/bin/python3", "train.py", PATH="/run/env:/usr/bin:/bin")
    assert a.exit(20) == 0 and not a.says("the same program"), a
    c.gone()


def test_a_killed_launcher(make_ssh):
    c = make_ssh(4)
    a = c.launch(4, "--hosts", "node[1-3]", "--fan-out", 2, "--", *WAITS)
    ready(a, 3)
    a.kill(signal.SIGKILL)
    a.exit()
    c.gone(10)


@pytest.mark.seconds(25)
def test_a_killed_host(make_ssh):
    """A power cut, by which nobody is told: the job needs all, so all is over when the silence has lasted."""
    c = make_ssh(4)
    a = c.launch(4, "--hosts", "node[1-3]", "--", *WAITS)
    ready(a, 3)
    c[3].power_off()
    assert a.exit(40) == 78, a
    a.expect(r"node3 was lost: it was silent for (1[5-9]|[2-9]\d) s", 1)
    a.expect("the job needs 3 hosts, but only 2 are left: stopping them", 1)
    c.gone(5)


def test_a_killed_host_that_is_not_needed(make_ssh):
    """The others are in a new round when its lease is over, and the launcher does not wait for it in the end."""
    c = make_ssh(4)
    a = c.launch(4, "--hosts", "node[1-3]", "--nnodes", "2:3", "--lease", LEASE, "--", "sh", "-c", "echo ready; sleep 60")
    ready(a, 3)
    c[3].power_off()
    ready(a, 5)
    a.expect("round 2: 2 nodes, 2 workers", 5)
    a.kill(signal.SIGTERM)
    assert a.exit(10) == 75, a
    c.gone(5)


def test_a_job_that_finishes_without_a_dead_host(make_ssh):
    c = make_ssh(4)
    a = c.launch(4, "--hosts", "node[1-3]", "--nnodes", "2:3", "--lease", LEASE, "--", "sh", "-c", "echo ready; [ $WORLD_SIZE = 2 ] || sleep 60")
    ready(a, 3)
    c[3].power_off()
    assert a.exit(40) == 0, a
    a.expect(r"node3 was lost: it was silent for (\d|1[0-4]) s", 1)  # after 15 s it would be lost in any case
    assert sum("ready" in l for l in a.out) == 5, a
    c.gone(5)


@pytest.mark.seconds(70)
@pytest.mark.soak
def test_a_killed_login_node(make_ssh):
    """The hosts hear nothing more, and no connection ends; after a minute they are done."""
    c = make_ssh(3)
    a = c.launch(3, "--hosts", "node[1-2]", "--", *WAITS)
    ready(a, 2)
    c[3].power_off()
    until("nothing is left but sshd", lambda: not [p for p in c.left() if "sshd" not in p], 90)
    for i in (1, 2):  # sshd itself goes on to believe in its connection
        c[i].power_off()


def test_a_host_that_refuses(make_ssh):
    c = make_ssh(3)
    c.sshd[2].kill()
    c.sshd[2].exit()
    a = c.launch(1, "--hosts", "node[1-3]", "--", *WAITS)
    assert a.exit(20) == 85, a
    a.expect(r"^rdzv-agent: node2: ssh: connect to host node2 port 22: Connection refused$", 1)
    c.gone()


def test_a_host_without_power(make_ssh):
    """ssh's ConnectTimeout is shorter than any patience of ours."""
    c = make_ssh(3)
    c[2].power_off()
    a = c.launch(1, "--hosts", "node[1-3]", "--", *WAITS)
    assert a.exit(20) == 85, a
    a.expect("^rdzv-agent: node2: ssh: connect to host node2 port 22: (No route to host|Connection timed out)", 1)
    c.gone()


def test_a_name_that_does_not_resolve(make_ssh):
    c = make_ssh(2)
    a = c.launch(1, "--hosts", "node1,nosuch,node2", "--", *WAITS)
    assert a.exit(20) == 85, a
    a.expect("^rdzv-agent: nosuch: ssh: Could not resolve hostname nosuch: ", 1)
    c.gone()


def test_a_key_that_is_wrong(make_ssh):
    c = make_ssh(2)
    c[2].ns.sh("echo > /root/.ssh/authorized_keys")
    a = c.launch(1, "--hosts", "node1,node2", "--", *WAITS)
    assert a.exit(20) == 85, a
    a.expect(r"^rdzv-agent: node2: root@node2: Permission denied \(publickey", 1)
    c.gone()


def test_no_rdzv_agent_there(make_ssh):
    c = make_ssh(2)
    a = c.launch(1, "--hosts", "node1,node2", "--launch-agent", "/nowhere/rdzv-agent", "--", *WAITS)
    assert a.exit(20) == 85, a
    a.expect(r"^rdzv-agent: node2: it has no rdzv-agent: not /nowhere/rdzv-agent \(--launch-agent gives its path\)$", 1)
    c.gone()


TRAIN = """#!/bin/sh
echo "trained $RANK of $WORLD_SIZE on $(hostname)" "$@"
"""


def test_the_page(make_ssh):
    """Every command of it, on three hosts."""
    c = make_ssh(3)
    (c.tmp / "train").write_text(TRAIN)
    (c.tmp / "train").chmod(0o755)
    (c.tmp / "hosts.txt").write_text("node1 slots=1\nnode3 slots=1\n")
    path = pages.with_programs(c)
    able = c[1].spawn("sh", "-c", pages.inline(PAGE, "ssh node2 true"), env={**path, "HOME": "/root"})
    assert able.exit() == 0 and not able.text.strip(), able
    wanted = {"hosts": [(8, 2)], "more": [(6, 3), (6, 3), (4, 2), (2, 2), (4, 2)], "elastic": [(6, 3)]}
    for name, each in wanted.items():
        lines = pages.lines(PAGE, name)
        assert len(lines) == len(each)
        for line, (workers, hosts) in zip(lines, each, strict=True):
            a = c[1].spawn("sh", "-c", line, env={**path, "HOME": "/root"})
            assert a.exit(20) == 0, a
            got = [re.fullmatch(r"\[(\d+)\] trained (\d+) of (\d+) on (\S+)(?: --epochs 3)?", l).groups() for l in a.out]
            assert sorted(int(r) for r, *_ in got) == list(range(workers)) and {g[2] for g in got} == {str(workers)}, a
            assert len({g[3] for g in got}) == hosts, a
    c.gone()
