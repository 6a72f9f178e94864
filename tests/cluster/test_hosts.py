# SPDX-License-Identifier: Apache-2.0
"""The harness itself: hosts are apart, wires break on command, and nothing of a cluster is left."""

import os
import subprocess
import sys
import time

from harness import alive, until

HERE = os.path.dirname(os.path.abspath(__file__))
# Prints what it gets, and how the connection ended.
LISTEN = """
import socket, sys
s = socket.create_server(("::", 7000), family=socket.AF_INET6, dualstack_ipv6=True)
print("listening", flush=True)
c, peer = s.accept()
print("from", peer[0], flush=True)
try:
    while data := c.recv(100):
        print("got", data.decode(), flush=True)
    print("FIN", flush=True)
except OSError as e:
    print(type(e).__name__, flush=True)
"""
TALK = """
import socket, sys, time
s = socket.create_connection((sys.argv[1], 7000), 5)
for i in range(10000):
    s.sendall(b"%d;" % i)
    time.sleep(0.05)
"""
# Datagrams, which nobody acknowledges.
HEAR = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 7000))
print("listening", flush=True)
while True:
    print("got", s.recv(100).decode(), flush=True)
"""
SHOUT = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range(10000):
    s.sendto(b"%d" % i, (sys.argv[1], 7000))
    time.sleep(0.05)
"""


def python(host, script, *args):
    return host.spawn(sys.executable, "-SE", "-c", script, *args)


def talking(cluster, to="node1"):
    listener = python(cluster[1], LISTEN)
    listener.expect("listening")
    talker = python(cluster[2], TALK, to)
    listener.expect("got .*2;")
    return listener, talker


def end(*procs):
    for p in procs:
        p.kill()
        p.exit()


def silent(proc, seconds=0.7):
    """It has come to rest, and stays so. What was on its way, in a busy machine's pipes too, may still come at first."""
    last, since, deadline = -1, 0, time.monotonic() + 10
    while time.monotonic() < deadline:
        if len(proc.out) != last:
            last, since = len(proc.out), time.monotonic()
        if time.monotonic() - since > seconds:
            return True
        time.sleep(0.02)
    return False


def test_names_addresses_and_folders_of_their_own(make_cluster):
    c = make_cluster(2)
    for host in c.hosts:
        p = host.spawn("sh", "-c", "hostname; ip -o addr show dev eth0; ls -A /run; echo $$; ls -d /proc/[0-9]* | wc -l; pwd; echo $TMPDIR")
        assert p.exit() == 0, p
        assert p.out[0] == host.name and p.says(host.addr + "/24") and p.says(host.addr6 + "/64"), p
        assert p.says(str(c.tmp)) and p.out[-1].endswith(host.name) and int(p.out[-3]) < 8, p
    for to in ("node1", "node1-6"):
        listener, talker = talking(c, to)
        listener.expect(f"from .*{'fd77::2' if to.endswith('6') else '10.77.0.2'}")
        talker.kill()
        listener.expect("FIN")
        assert talker.exit() == -9 and listener.exit() == 0
    c.gone()


def test_what_a_host_runs_is_found_wherever_it_hides(make_cluster):
    c = make_cluster(1)
    p = c[1].spawn("sh", "-c", "(setsid env -i sleep 300 &) ; exit 7")
    assert p.exit() == 7, p
    (hidden,) = until("it is found", c[1].pids)
    c[1].power_off()
    assert not alive(hidden)


def test_a_power_cut_tells_nobody(make_cluster):
    c = make_cluster(2)
    listener, talker = talking(c)
    pid = talker.pid
    c[2].power_off()
    assert not alive(pid) and silent(listener) and not listener.says("FIN|Error"), listener
    c[2].boot()  # what comes from the old connection now is answered with a reset, as by every host that was started again
    again = python(c[2], "import socket; s = socket.create_connection(('node1', 7000), 5); print('there')")
    assert again.exit() == 0, again
    end(listener)


def test_a_cut_is_silent_and_heals(make_cluster):
    c = make_cluster(2)
    listener, talker = talking(c)
    for way in ("both", "out"):
        c[2].cut(way)
        assert silent(listener), listener
        c[2].heal()
        n = len(listener.out)
        until("what was held back arrives", lambda: len(listener.out) > n, 10)
    # Nothing tells it that anything arrived, so TCP soon only repeats itself. Datagrams go on arriving.
    target = python(c[1], HEAR)
    target.expect("listening")
    shouter = python(c[2], SHOUT, c[1].addr)
    target.expect("got")
    c[2].cut("in")
    n = len(target.out)
    until("what it sends still arrives", lambda: len(target.out) > n + 10)
    c[2].heal()
    n = len(listener.out)
    until("it goes on", lambda: len(listener.out) > n)
    assert talker.running and not listener.says("FIN|Error"), listener
    end(listener, talker, target, shouter)


def test_a_cut_that_rejects(make_cluster):
    """The host's own packets are answered with a reset, on a connection that is there and on a new one. The other side hears nothing."""
    c = make_cluster(2)
    listener, talker = talking(c)
    c[2].reject()
    talker.expect("ConnectionResetError")
    assert silent(listener) and not listener.says("FIN|Error"), listener
    again = python(c[2], "import socket; socket.create_connection(('node1', 7000), 5)")
    assert again.exit() == 1 and again.says("ConnectionRefusedError"), again
    c[2].heal()
    again = python(c[2], "import socket; socket.create_connection(('node1', 7000), 5)")
    assert again.exit() == 0, again
    end(listener)


def test_a_host_counts_from_its_boot(make_cluster):
    c = make_cluster(1)
    time.sleep(2)
    c[1].power_off()
    began = time.monotonic()
    c[1].boot()
    up = float(c[1].ns.sh("cat /proc/uptime").split()[0])
    assert up <= time.monotonic() - began + 1, "whole seconds are all that a host can be set to"


def test_two_sides_of_a_cut(make_cluster):
    """Hosts of one side hear each other, and nobody hears the other side."""
    c = make_cluster(3)
    listener, talker = talking(c)
    c.part([1, 2], [3])
    refused = "import socket, sys; s = socket.socket(); s.settimeout(0.5); sys.exit(s.connect_ex((sys.argv[1], 9)) != 111)"  # so it was asked
    reaches = lambda a, b: python(c[a], refused, f"node{b}").exit() == 0
    n = len(listener.out)
    until("the talk of one side goes on", lambda: len(listener.out) > n + 10)
    assert reaches(1, 2) and reaches(2, 1) and not any(reaches(a, b) for a, b in ((1, 3), (2, 3), (3, 1), (3, 2)))
    for host in c.hosts:
        host.heal()
    until("the sides hear each other", lambda: reaches(1, 3) and reaches(3, 2))
    end(listener, talker)


def test_losing_some_packets_is_not_losing_all(make_cluster):
    c = make_cluster(2)
    listener, talker = talking(c)  # before: a lost SYN is sent again after 1, 2, 4 s
    c[2].lose(20)
    rules = c[2].ns.sh("nft list ruleset") + c.switch.sh("nft list ruleset")
    assert rules.count("numgen random mod 100 < 20 drop") == 2, rules
    listener.expect(r"\b50;", 60)
    end(listener, talker)


def test_nothing_is_left_of_a_cluster_whose_maker_is_killed(tmp_path):
    """As when a test run is killed with SIGKILL."""
    script = (
        f"import sys, time; sys.path[:0] = ['{HERE}', '{HERE}/../e2e']; import hosts; c = hosts.Cluster('{tmp_path}', 2)\n"
        "p = c[1].spawn('sleep', '300'); print(p.pid, c[1].ns.init, c[2].ns.init, c.switch.init, flush=True); time.sleep(300)"
    )
    maker = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = [int(p) for p in maker.stdout.readline().split()]
    assert len(pids) == 4 and all(map(alive, pids))
    maker.kill()
    maker.wait()
    maker.stdout.close()
    until(lambda: f"all of {pids} are gone", lambda: not any(map(alive, pids)))
