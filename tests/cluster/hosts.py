# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces: what one machine can show of a cluster in which hosts die and wires break.

A host is a process 1 in namespaces of its own: network, host name, PIDs, mounts (its own /proc, /run and /etc/hosts), and the time since its boot.
Its wire is a pair of virtual interfaces, the other end of which is a port of a bridge, and the bridge is in a namespace of its own too, so nothing of this ever
touches the machine's network, and several clusters do not know of each other: no name is given that somebody else could have. Whatever runs
on a host is a member of its PID namespace: so "is anything left?" is one look through /proc that nobody escapes, and "power cut" is the
death of process 1, by which the kernel kills all others at once. Process 1 in turn dies with the process that made it, and so nothing of a
cluster is left however a test ends.

A power cut pulls the wire first: no FIN, no RST leaves a host that dies. A cut drops packets where they arrive, on both sides of the wire,
so no sender is told. A cut that rejects answers the host's own packets with RST, as a firewall may. See test_hosts.py, which proves all that.
"""

import contextlib
import os
import signal
import subprocess
import time

import harness

PRIVATE = ["--net", "--uts", "--ipc", "--mount", "--pid", "--time", "--fork", "--kill-child", "--mount-proc"]
# The first lines of a host's life. Process 1 ignores SIGCHLD, so the kernel reaps orphans, as an init would.
BOOT = """
set -e
hostname "$1"
mount -t tmpfs -o mode=755 run /run
[ -z "$2" ] || mount --bind "$2" /etc/hosts
ip link set lo up
echo ready
exec env --ignore-signal=CHLD sleep infinity
"""


def missing():
    """Why there can be no such hosts here, "" if there can."""
    if os.geteuid() != 0:
        return "hosts in network namespaces need root"
    for tool in ("ip", "nft", "tc", "unshare", "nsenter", "setpriv"):
        if subprocess.run(["sh", "-c", f"command -v {tool}"], capture_output=True).returncode:
            return f"{tool} is not installed (packages iproute2, nftables, util-linux)"
    script = (
        "ip link add b0 type bridge && ip link add v0 type veth peer name v1 && nft 'add table netdev t; "
        "add chain netdev t c { type filter hook ingress device v0 priority 0; }; add rule netdev t c numgen random mod 100 < 20 drop'"
    )
    done = subprocess.run(["unshare", *PRIVATE, "sh", "-c", script], capture_output=True, text=True)
    return f"no namespaces, bridges or nftables here: {done.stderr.strip()}" if done.returncode else ""


def children(pid):
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and harness.stat(p)[1] == str(pid) and harness.alive(p)]


class Namespaces:
    """A process 1 that only waits, and its namespaces. They go when it dies, and it dies with us."""

    def __init__(self, name, hosts_file=""):
        up = int(time.clock_gettime(time.CLOCK_BOOTTIME))
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", *PRIVATE, "--boottime", f"-{up}", "sh", "-c", BOOT, "sh", name, str(hosts_file)]
        self.outer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        line = self.outer.stdout.readline()
        assert line == b"ready\n", f"{name} does not boot: {self.outer.stderr.read().decode()}"
        (self.init,) = children(self.outer.pid)
        self.pid_namespace = os.readlink(f"/proc/{self.init}/ns/pid")

    def enter(self, *more):
        return ["nsenter", "-t", str(self.init), "-m", "-u", "-n", "-p", "-i", "-T", *more, "--"]

    def sh(self, script, check=True):
        done = subprocess.run([*self.enter(), "sh", "-ec", script], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60 * harness.SLOW)
        assert not check or done.returncode == 0, f"{script}\n{done.stderr}"
        return done.stdout

    def pids(self):
        """All that runs in there, but process 1."""
        found = []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == self.pid_namespace and harness.alive(name):
                    found.append(int(name))
            except OSError:
                pass
        return [p for p in found if p != self.init]

    def kill(self):
        """With process 1 everything in there is dead when this returns: the kernel lets it go last."""
        os.kill(self.init, signal.SIGKILL)
        self.outer.wait(30)
        self.outer.stdout.close()
        self.outer.stderr.close()


class Inside(harness.Proc):
    """A process on a host. .popen is nsenter's, which waits for it outside and exits as it does; .pid is its own."""

    def __init__(self, argv, **kw):
        super().__init__(argv, **kw)
        self.argv = [kw["env"]["E2E_NODE"] + "$", *self.argv[self.argv.index("--") + 5 :]]  # what people want to read
        self.outer, deadline = self.pid, time.monotonic() + 20
        while not (found := children(self.outer)) and self.running and time.monotonic() < deadline:
            time.sleep(0.002)
        self.pid = found[0] if found else None  # None: it has ended already

    def kill(self, signo=signal.SIGKILL):
        if self.pid and self.running:
            with contextlib.suppress(ProcessLookupError):  # nsenter may not have seen its end yet
                os.kill(self.pid, signo)
            if signo == signal.SIGCONT:  # nsenter has stopped itself with its child
                os.kill(self.outer, signo)


class Host:
    def __init__(self, cluster, i):
        self.cluster, self.i, self.boots = cluster, i, 0
        self.name, self.addr, self.addr6 = cluster.names[i - 1], f"10.77.0.{i}", f"fd77::{i}"
        self.ns = None
        self.boot()

    def boot(self):
        """Powers it on, with an empty /run and a whole wire."""
        assert self.ns is None
        self.boots += 1
        self.ns, self.port = Namespaces(self.name, self.cluster.hosts_file), f"port{self.i}.{self.boots}"
        self.mac = f"02:77:00:00:00:{self.i:02x}"
        # Made by the switch, which pushes the other end into the host: both PIDs are as the machine sees them.
        subprocess.run(["nsenter", "-t", str(self.cluster.switch.init), "-n", "ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0",
                        "address", self.mac, "netns", str(self.ns.init)], check=True)
        self.cluster.switch.sh(f"ip link set {self.port} master lan up")
        self.ns.sh(f"ip addr add {self.addr}/24 dev eth0; ip addr add {self.addr6}/64 dev eth0 nodad; ip link set eth0 up")

    @property
    def up(self):
        return self.ns is not None

    def power_off(self):
        """As a power cut: the wire is dead first, then everything is. Nobody is told."""
        self.cluster.switch.sh(f"ip link set {self.port} down")
        ns, self.ns = self.ns, None
        ns.kill()
        self.cluster.on_power_off(self)

    # -- the wire ------------------------------------------------------------------------------------------------------

    def lose(self, percent, way="both"):
        """Drops that many percent of its packets: "in", "out", or "both" ways. No sender is told."""
        assert way in ("in", "out", "both")
        what = f"numgen random mod 100 < {percent} drop" if percent < 100 else "drop"
        rule = lambda device: (
            f"add table netdev loss_{device.replace('.', '_')}; add chain netdev loss_{device.replace('.', '_')} c "
            f"{{ type filter hook ingress device {device} priority 0; }}; add rule netdev loss_{device.replace('.', '_')} c {what}"
        )
        if way != "in":
            self.cluster.switch.sh(f"nft '{rule(self.port)}'")
        if way != "out":
            self.ns.sh(f"nft '{rule('eth0')}'")

    def cut(self, way="both"):
        self.lose(100, way)

    def reject(self):
        """Nothing arrives here, and all TCP packets from here are answered with RST, which nobody else sees."""
        self.cut("in")
        self.ns.sh("nft 'add table inet rejects; add chain inet rejects c { type filter hook output priority 0; }; "
                   "add rule inet rejects c oifname eth0 meta l4proto tcp reject with tcp reset'")

    def refuse(self, hosts):
        """Drops what comes from those."""
        macs = ", ".join(host.mac for host in hosts)
        self.ns.sh(f"nft 'add table netdev part_eth0; add chain netdev part_eth0 c {{ type filter hook ingress device eth0 priority 0; }}; "
                   f"add rule netdev part_eth0 c ether saddr {{ {macs} }} drop'")

    def slow(self, rate):
        """So much passes in a second, in each direction: "20mbit"."""
        what = f"root tbf rate {rate} burst 32kb latency 100ms"
        self.ns.sh(f"tc qdisc replace dev eth0 {what}")
        self.cluster.switch.sh(f"tc qdisc replace dev {self.port} {what}")

    def heal(self):
        self.ns.sh("nft delete table netdev part_eth0 2>/dev/null || true")
        self.cluster.switch.sh(f"nft delete table netdev loss_{self.port.replace('.', '_')} 2>/dev/null || true")
        self.ns.sh("nft delete table netdev loss_eth0 2>/dev/null || true")
        self.ns.sh("nft delete table inet rejects 2>/dev/null || true")

    # -- what runs there -----------------------------------------------------------------------------------------------

    def spawn(self, *argv, env=None, user=None):
        """user: a uid, with the key that a daemon of ours derives for it."""
        tmp = self.cluster.tmp / self.name
        tmp.mkdir(exist_ok=True)
        env, become = {"TMPDIR": str(tmp), **(env or {})}, ""
        if user is not None:
            folder = f"/run/user-{user}"
            self.ns.sh(f"install -d -o {user} {folder}")
            env.update(TMPDIR=folder, XDG_CONFIG_HOME="", XDG_RUNTIME_DIR="", RDZV_KEY=self.cluster.user_key(user))
            become = f"setpriv --reuid {user} --regid {user} --clear-groups "
        return self.cluster.spawn(*argv, node=self.name, env=env,
                                  wrap=[*self.ns.enter(), "sh", "-c", f'cd "$0" && exec {become}"$@"', self.cluster.tmp])

    def agent(self, *args, env=None, user=None):
        p = self.spawn(harness.AGENT, *args, env=env, user=user)
        p.host = self
        return p

    def daemon(self, *args, port=29400):
        """rdzvd on this host's addresses; it listens when this returns."""
        ready = self.cluster.tmp / f"{self.name}-port-{len(self.cluster.procs)}"
        p = self.spawn(harness.RDZVD, "--listen", f"[::]:{port}", "--port-file", ready, *args)
        harness.until(lambda: f"rdzvd listens:\n{p}", lambda: ready.exists() or not p.running)
        assert p.running, f"rdzvd ended:\n{p}"
        self.cluster.daemons.append(p)
        return p

    def ctl(self, *args):
        """rdzvctl, on this host: (exit code, what it said)."""
        done = subprocess.run([*self.ns.enter(), harness.RDZVCTL, *map(str, args)], capture_output=True, text=True, env=self.cluster.env(),
                              timeout=20 * harness.SLOW)
        return done.returncode, done.stdout + done.stderr

    def pids(self):
        return self.ns.pids() if self.ns else []

    def workers(self, job, user=0):
        """rank -> pid of each worker's first process here."""
        found = {}
        for pid in sorted(self.pids()):
            env = harness.environ(pid)
            if "RANK" in env and env.get("RDZV_RUN_ID") == job and harness.stat(pid)[3] == str(pid) and harness.status(pid, "Uid") == user:
                found.setdefault(int(env["RANK"]), pid)
        return found

    def process(self, comm):
        """The one process here that ps calls so."""
        found = [pid for pid in self.pids() if harness.comm(pid) == comm]
        assert len(found) == 1, f"{len(found)} processes {comm} on {self.name}:\n{self.cluster}"
        return found[0]


class Cluster(harness.Rdzv):
    """node1 .. nodeN, or hosts of other names, on one bridge."""

    proc = Inside

    def __init__(self, tmp, n, say=print, names=()):
        super().__init__(tmp)
        self.names = names or [f"node{i}" for i in range(1, n + 1)]
        self.say, self.hosts, self.switch, self.daemons = say, [], None, []
        self.hosts_file = self.tmp / "hosts"
        each = "".join(f"10.77.0.{i} {name}\nfd77::{i} {name}-6\n" for i, name in enumerate(self.names, 1))
        self.hosts_file.write_text("127.0.0.1 localhost\n::1 localhost\n" + each)
        try:
            self.switch = Namespaces("switch")
            self.switch.sh("ip link add lan type bridge forward_delay 0 mcast_snooping 0 && ip link set lan up")
            for i in range(1, n + 1):
                self.hosts.append(Host(self, i))
        except BaseException:
            self.tear_down()
            raise

    def __getitem__(self, i):
        """Hosts are counted from 1, as they are named."""
        return self.hosts[i - 1]

    def fact(self, text):
        """A time that was measured, for people to read; nothing depends on it."""
        self.say(text)

    def on_power_off(self, host):
        """For those that manage hosts."""

    # -- all hosts -----------------------------------------------------------------------------------------------------

    def part(self, *sides):
        """Of these hosts, by number, those of different sides do not hear each other. Host.heal ends it."""
        for side in sides:
            for i in side:
                self[i].refuse([self[other] for others in sides if others is not side for other in others])

    def workers(self, job, user=0):
        """rank -> pid on all hosts. Nowhere runs a rank that runs elsewhere too."""
        found = {}
        for host in self.hosts:
            for rank, pid in host.workers(job, user).items():
                # Those seen first may have ended since.
                twice = rank in found and harness.alive(found[rank]) and harness.alive(pid)
                assert not twice, f"rank {rank} runs twice: {found[rank]} and {pid}\n{self}"
                found[rank] = pid
        return found

    def left(self):
        """What runs on any host, daemons aside."""
        kept = {p.pid for p in self.daemons}
        return [p for h in self.hosts for p in h.pids() if p not in kept]

    def gone(self, timeout=harness.HANG_S):
        """Fails unless nothing runs on any host, daemons aside, in time."""
        left = self.left
        harness.until(lambda: "nothing is left, but there is " + "; ".join(map(harness.describe, left())) + f"\n{self}",
                      lambda: not left(), timeout)

    def tear_down(self):
        for host in self.hosts:
            if host.ns:
                host.ns.kill()
        if self.switch:
            self.switch.kill()

    def close(self):
        """Powers everything off. What had been left running, daemons aside, and did not end in a moment."""
        deadline = time.monotonic() + harness.HANG_S * harness.SLOW
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.01)
        left = [harness.describe(p) for p in left]
        self.tear_down()
        for p in self.procs:
            p.exit()
        return left


class Batch(Cluster):
    """node1 .. nodeN, and a host `login` behind them, for a scheduler."""

    def __init__(self, tmp, n, say=print):
        super().__init__(tmp, n + 1, say, [*(f"node{i}" for i in range(1, n + 1)), "login"])

    @property
    def login(self):
        return self.hosts[-1]

    @property
    def nodes(self):
        return self.hosts[:-1]
