# SPDX-License-Identifier: Apache-2.0
"""A machine in a folder: Debian's base system made by debootstrap, with nothing but what it ships, and a process 1 in namespaces of its own (PIDs,
mounts, host name) that reaps orphans and waits. Mounts are private: nobody else sees them, and they go with process 1, which in turn goes with
the process that made it; so does all that runs in there. The network is the machine's own, since packages come by it; a command may be given
one of its own with nothing but loopback, where fixed ports clash with nobody's.

The mirror is the one that apt uses here, asked of apt; it is written into no file but the new machine's."""

import os
import shlex
import shutil
import signal
import subprocess

import harness

SUITE = "bookworm"
PRIVATE = ["--uts", "--ipc", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
# Process 1 ignores SIGCHLD, so the kernel reaps orphans, as an init would. Devices are those that every program expects. The folder becomes the root of the
# namespace, not of processes (chroot): then tests may make namespaces in there, and enter them, and are still in there.
BOOT = """
set -e
mount --bind "$1" "$1"
cd "$1"
hostname fresh
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs shm dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ln -s fd/0 dev/stdin
ln -s fd/1 dev/stdout
ln -s fd/2 dev/stderr
for d in null zero full random urandom tty; do : >dev/$d; mount --bind /dev/$d dev/$d; done
pivot_root . .
umount -l .
cd /
echo ready
exec env --ignore-signal=CHLD sleep infinity
"""


def missing():
    """Why there can be no such machine here, "" if there can."""
    if os.geteuid() != 0:
        return "a machine in a folder needs root"
    for tool, package in (("debootstrap", "debootstrap"), ("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2"), ("apt-get", "apt")):
        if not shutil.which(tool):
            return f"{tool} is not installed (package {package})"
    if not sources():
        return "apt knows no mirror of Debian's here (apt-get update?)"
    done = subprocess.run(["unshare", *PRIVATE, "true"], capture_output=True, text=True)
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


def sources():
    """[(mirror, suite)] of Debian's own main archive for our suite, as apt has it here: the base suite first."""
    ask = ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(COMPONENT)|$(REPO_URI)|$(RELEASE)", "Identifier: Packages"]
    rows = [line.split("|") for line in subprocess.run(ask, capture_output=True, text=True).stdout.splitlines()]
    found = {(uri, release) for origin, component, uri, release in rows if origin == "Debian" and component == "main" and release.startswith(SUITE)}
    return sorted(found, key=lambda at: (len(at[1]), at)) if (SUITE in {release for _, release in found}) else []


def proxies():
    lines = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True).stdout.splitlines()
    return "".join(line + "\n" for line in lines if "::Proxy" in line)


def bootstrap(root, suite=SUITE):
    """Debian's base system in a new folder, and its package lists."""
    at = sources()
    if suite != SUITE:
        at = [(at[0][0], suite)]
    log = str(root) + ".log"
    with open(log, "w") as f:
        done = subprocess.run(["debootstrap", "--variant=minbase", suite, str(root), at[0][0]], stdout=f, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=600)
    assert done.returncode == 0, open(log).read()[-2000:]
    (root / "etc/apt/sources.list").write_text("".join(f"deb {uri} {suite} main\n" for uri, suite in at))
    (root / "etc/apt/apt.conf.d/90fresh").write_text(proxies() + 'APT::Get::Assume-Yes "true";\n')
    (root / "etc/hosts").write_text("127.0.0.1 localhost fresh\n")
    (root / "etc/hostname").write_text("fresh\n")


class Machine:
    def __init__(self, root):
        self.root = root
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare", *PRIVATE, "sh", "-c", BOOT, "sh", str(root)]
        self.outer = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        line = self.outer.stdout.readline()
        assert line == b"ready\n", f"{root} does not boot: {self.outer.stderr.read().decode()}"
        (self.init,) = [int(p) for p in os.listdir("/proc") if p.isdigit() and harness.stat(p)[1] == str(self.outer.pid)]
        self.pid_namespace = os.readlink(f"/proc/{self.init}/ns/pid")

    def argv(self, script, user="root", alone=False):
        """What runs a script of bash in there; alone: without any network but loopback."""
        home = "/root" if user == "root" else f"/home/{user}"
        env = ["env", "-i", f"HOME={home}", f"USER={user}", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
               "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        inside = ["/usr/sbin/chroot", f"--userspec={user}", "/", *env, "bash", "-c", 'cd && eval "$1"', "bash", script]
        enter = ["nsenter", "-t", str(self.init), "-m", "-u", "-p", "-i", "--", *inside]
        # The host's own tools, as long as its files are there.
        return ["unshare", "--net", "sh", "-c", "ip link set lo up; " + shlex.join(enter)] if alone else enter

    def run(self, script, seconds=300, fails=False, **kw):
        """Its output, both streams together. What it has left running in the background goes on."""
        done = subprocess.run(self.argv(script, **kw), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds)
        assert (done.returncode != 0) == fails, f"$ {script}\nexit {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout

    def processes(self):
        """All that runs in there, but process 1."""
        found = []
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and os.readlink(f"/proc/{name}/ns/pid") == self.pid_namespace and harness.alive(name) and int(name) != self.init:
                    found.append(harness.describe(name))
            except OSError:
                pass
        return found

    def gone(self, seconds=5):
        """Nothing is left running: what was told to end may take its time, but has to."""
        harness.until(lambda: f"nothing is left running: {self.processes()}", lambda: not self.processes(), seconds)

    def close(self):
        os.kill(self.init, signal.SIGKILL)
        self.outer.wait(10)
        self.gone()
