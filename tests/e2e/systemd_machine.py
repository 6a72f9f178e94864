# SPDX-License-Identifier: Apache-2.0
"""A real systemd, as process 1 of namespaces of its own: what units do there they do on a machine that was booted with it.

It has its own mounts (/etc is a copy, /run and /var/lib are empty, /usr/local is what `meson install` makes), processes and cgroups, and of all the
units of this machine none: an own unit path keeps it from mounting, cleaning and configuring anything. There is no journal; what services
print goes to files. The network is ours: units listen on loopback.
"""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness import BUILD, SLOW, until

SYSTEMD = next((p for p in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if os.path.exists(p)), None)
TARGETS = ["sysinit", "basic", "shutdown", "multi-user", "network-online"]

BOOT = r"""
set -e
mount --make-rprivate /
mount --bind "$W/etc" /etc
mount --bind "$W/local" /usr/local
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/systemd/system
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cd /
exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin container=rdzv SYSTEMD_UNIT_PATH=/etc/systemd/system:/usr/local/lib/systemd/system \
  "$SYSTEMD" --system --unit=multi-user.target --show-status=0 --log-target=null
"""


def cgroup2():
    for line in open("/proc/self/mounts"):
        _, place, kind = line.split()[:3]
        if kind == "cgroup2":
            return Path(place)
    return None


class Machine:
    def __init__(self, tmp):
        self.tmp = Path(tmp)
        self.pid = self.popen = self.cgroup = None

    def boot(self):
        if os.geteuid() != 0 or not SYSTEMD or not cgroup2():
            pytest.skip("a systemd of our own needs root, the package systemd, and cgroup v2")
        self.install()
        self.configure()
        self.cgroup = cgroup2() / f"rdzv-e2e-{os.getpid()}"
        try:
            self.cgroup.mkdir(exist_ok=True)
        except OSError as e:
            pytest.skip(f"no cgroup can be made here: {e}")
        enter = f'echo $$ >{self.cgroup}/cgroup.procs; exec setpriv --pdeathsig KILL unshare -m -p -f -C -u -i --mount-proc --kill-child bash -c "$BOOT"'
        env = dict(os.environ, W=str(self.tmp), BOOT=BOOT, SYSTEMD=SYSTEMD)
        self.log = open(self.tmp / "boot.log", "w+")
        self.popen = subprocess.Popen(["bash", "-c", enter], env=env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True)
        until(self.why_not, lambda: self.find_pid() or self.popen.poll() is not None, 10)
        if self.popen.poll() is None:
            until(self.why_not, lambda: self.run("systemctl", "is-active", "multi-user.target", check=False).stdout == "active\n" or self.popen.poll() is not None)
        if self.popen.poll() is not None:
            pytest.skip(f"no systemd can be started here: {self.why_not()}")
        return self

    def install(self):
        """As `meson install` lays it out, below /usr/local whatever the build's prefix is."""
        root = self.tmp / "root"
        subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet"], env=dict(os.environ, DESTDIR=str(root)), check=True, capture_output=True)
        (unit,) = root.rglob("rdzvd.service")
        prefix = next(p for p in unit.parents if p.name == "lib").parent
        assert str(prefix).endswith("/usr/local"), f"this build's prefix is {prefix}"
        shutil.move(prefix, self.tmp / "local")

    def configure(self):
        subprocess.run(["cp", "-a", "/etc", self.tmp / "etc"], check=True)
        units = self.tmp / "etc/systemd/system"
        shutil.rmtree(units, ignore_errors=True)
        units.mkdir(parents=True)
        for name in TARGETS:
            (units / f"{name}.target").write_text(f"[Unit]\nDescription={name}\nDefaultDependencies=no\n")
        (units / "service.d").mkdir()
        (units / "service.d/log.conf").write_text("[Service]\nStandardOutput=append:/var/lib/log-%N\nStandardError=inherit\n")
        (self.tmp / "etc/rdzv").mkdir(exist_ok=True)

    def find_pid(self):
        """Process 1 of the namespace: the only child of unshare, which our shell has become."""
        children = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children")
        try:
            self.pid = int(children.read_text())
        except (OSError, ValueError):
            return None
        return self.pid

    def why_not(self):
        return (self.tmp / "boot.log").read_text().strip() or "it said nothing"

    # -- inside -------------------------------------------------------------------------------------------------------

    def run(self, *argv, check=True, timeout=60, **kw):
        done = subprocess.run(["nsenter", "-t", str(self.pid), "-m", "-p", "-C", "-u", "-i", *map(str, argv)], capture_output=True, text=True, timeout=timeout * SLOW, **kw)
        assert not check or done.returncode == 0, f"{argv} exits with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done

    def sh(self, text, **kw):
        return self.run("bash", "-e", "-c", text, **kw)

    def show(self, unit, name):
        return self.run("systemctl", "show", "-P", name, unit).stdout.strip()

    def lines(self, unit):
        return self.run("cat", f"/var/lib/log-{unit}", check=False).stdout

    def drop_in(self, unit, text):
        folder = self.tmp / f"etc/systemd/system/{unit}.d"
        folder.mkdir(exist_ok=True)
        (folder / "test.conf").write_text(text)
        self.run("systemctl", "daemon-reload")

    def until(self, unit, name, value, timeout=10):
        until(lambda: f"{unit}: {name} is {value!r} and not {self.show(unit, name)!r}:\n{self.lines(unit.removesuffix('.service'))}",
              lambda: value in self.show(unit, name), timeout)

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self):
        if self.pid:
            try:
                os.kill(self.pid, signal.SIGKILL)  # and with it all of the namespace
            except ProcessLookupError:
                pass
        if self.popen:
            self.popen.kill()
            self.popen.wait()
            self.log.close()
        deadline = time.monotonic() + 5
        while self.cgroup and self.cgroup.exists() and time.monotonic() < deadline:
            for folder, _, _ in os.walk(self.cgroup, topdown=False):
                try:
                    os.rmdir(folder)
                except OSError:
                    pass
            time.sleep(0.02)
