# SPDX-License-Identifier: Apache-2.0
"""Hosts that reach each other by ssh (ssh.py): n1 .. nN, as on the pages, with our programs in PATH. For what starts programs elsewhere by a remote shell: mpirun,
Hydra, the stand-ins for schedulers' programs (standin.py).
"""

import os

import harness
import ssh


class Cluster(ssh.Ssh):
    def __init__(self, tmp, n, say=print):
        self.bin = tmp / "bin"
        self.bin.mkdir()
        for program in (harness.AGENT, harness.TRAINER, harness.RDZVD):
            (self.bin / os.path.basename(program)).symlink_to(program)
        super().__init__(tmp, n, say, [f"n{i}" for i in range(1, n + 1)], f"SetEnv PATH={self.bin}:/usr/bin:/bin\n")
        with open(self.hosts_file, "a") as f:  # the same file that all hosts have as /etc/hosts
            f.writelines(f"{h.addr} {h.name}.example.org\n" for h in self.hosts)

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
        return self[i].spawn(*argv, env={"HOME": "/root", "USER": "root", "PATH": f"{self.bin}:{os.environ['PATH']}", **(env or {})})
