# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces (hosts.py) with a real sshd each, on port 22, and keys by which root may go from each to each.

/root is a folder of the host's own, so that ssh's and sshd's defaults are what is tested: ~/.ssh/id_ed25519, ~/.ssh/known_hosts,
~/.ssh/authorized_keys. ~/.config is one folder of all hosts, as in clusters: rdzv's key lies there. Nothing of the machine's own configuration is read but the user root.
"""

import shutil
import subprocess

import harness
import hosts

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"

CONF = """
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile .ssh/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
"""

READY = """
mount -t tmpfs -o mode=700 root /root
mkdir -m 700 /root/.ssh /root/.config /run/sshd
mount --bind {config} /root/.config
cp {folder}/id_ed25519 {folder}/authorized_keys {folder}/known_hosts /root/.ssh/
chmod 600 /root/.ssh/*
"""


def missing():
    """Why there can be no sshd here, "" if there can."""
    gone = [t for t in ("ssh", "ssh-keygen", SSHD) if not shutil.which(t)]
    return f"{', '.join(gone)} not installed (package openssh-server)" if gone else ""


class Ssh(hosts.Cluster):
    """node1 .. nodeN, or hosts of other names; .sshd[i] is that of the i-th. more: further lines of its configuration."""

    def __init__(self, tmp, n, say=print, names=(), more=""):
        super().__init__(tmp, n, say, names)
        self.folder, self.sshd = self.tmp / "ssh", {}
        try:
            self.keys(more)
            for i in range(1, n + 1):
                self.start(i)
        except BaseException:
            self.tear_down()
            raise

    def keys(self, more):
        self.folder.mkdir(mode=0o700)
        for name in ("host_key", "id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", self.folder / name], check=True)
        public = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text("".join(f"{h.name},{h.name}.example.org,{h.addr},{h.addr6} {public}" for h in self.hosts))
        (self.folder / "authorized_keys").write_text((self.folder / "id_ed25519.pub").read_text())
        (self.folder / "config").write_text(CONF.format(folder=self.folder) + more)

    def start(self, i):
        host = self[i]
        host.ns.sh(READY.format(folder=self.folder, config=self.config))
        p = self.sshd[i] = host.spawn(SSHD, "-D", "-e", "-f", self.folder / "config")
        p.expect("Server listening on 0.0.0.0 port 22", 10)
        self.daemons.append(p)

    def launch(self, i, *words, **kw):
        """rdzv-agent on the i-th host, as a person types it there."""
        return self[i].agent(*words, env={"HOME": "/root", "USER": "root", **kw})

    def kept(self):
        return {p.pid for p in self.daemons}

    def left(self):
        return [harness.describe(p) for h in self.hosts if h.up for p in h.pids() if p not in self.kept()]
