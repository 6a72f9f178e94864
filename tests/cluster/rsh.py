"""Hosts that reach each other by ssh: n1 .. nN, a real sshd on each, and our programs in PATH. For what starts programs elsewhere by a remote shell: mpirun,
Hydra, the stand-ins for schedulers' programs (standin.py).
"""

import os
import shutil
import subprocess

import harness
import hosts

SERVER = """
HostKey {folder}/key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
MaxStartups 100
SetEnv PATH={bin}:/usr/bin:/bin
LogLevel ERROR
"""
CLIENT = """
IdentityFile {folder}/key
IdentitiesOnly yes
User root
BatchMode yes
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
ConnectTimeout 10
LogLevel ERROR
"""
PATH = os.environ["PATH"] + ":/usr/sbin"


def missing():
    gone = [tool for tool in ("ssh", "sshd", "ssh-keygen") if not shutil.which(tool, path=PATH)]
    return f"{', '.join(gone)} not installed (packages openssh-client, openssh-server)" if gone else ""


class Cluster(hosts.Cluster):
    def __init__(self, tmp, n, say=print):
        super().__init__(tmp, n, say, [f"n{i}" for i in range(1, n + 1)])
        with open(self.hosts_file, "a") as f:  # the same file that all hosts have as /etc/hosts
            f.writelines(f"{h.addr} {h.name}.example.org\n" for h in self.hosts)
        try:
            self.bin = self.tmp / "bin"
            self.bin.mkdir()
            self.start_sshd()
            for program in (harness.AGENT, harness.TRAINER, harness.RDZVD):
                (self.bin / os.path.basename(program)).symlink_to(program)
        except BaseException:
            self.tear_down()
            raise

    def start_sshd(self):
        folder = self.tmp / "ssh"
        folder.mkdir()
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
        (folder / "sshd_config").write_text(SERVER.format(folder=folder, bin=self.bin))
        (folder / "config").write_text(CLIENT.format(folder=folder))
        # What `ssh` means to whoever calls it by its name.
        self.ssh = self.program("ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        for host in self.hosts:
            host.ns.sh("mkdir -p /run/sshd")
            self.daemons.append(host.spawn(shutil.which("sshd", path=PATH), "-D", "-e", "-f", folder / "sshd_config"))
        # A bare look: whoever says nothing to sshd leaves a line in its log.
        for host in self.hosts:
            harness.until(f"sshd listens on {host.name}", lambda: "LISTEN" in host.ns.sh("ss -Hltn 'sport = :22'"))

    def program(self, name, text):
        """A script that is in PATH on all hosts."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def run(self, i, *argv, env=None):
        """On host i, with our programs in PATH. One string is for a shell, as from a page."""
        if len(argv) == 1:
            argv = ["sh", "-c", argv[0]]
        return self[i].spawn(*argv, env={"PATH": f"{self.bin}:{os.environ['PATH']}", **(env or {})})
