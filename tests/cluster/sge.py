# SPDX-License-Identifier: Apache-2.0
"""A real Grid Engine on hosts in network namespaces (hosts.py): node1 .. nodeN, and `login`, where its qmaster runs and jobs are submitted.

sge_qmaster runs on login and sge_execd on each node, as root, from the machine's own packages. All that they need or leave lies in the cluster's folder:
the cell is mounted over each host's /var/lib/gridengine/default, the spool over /var/spool/gridengine. So nothing of the machine's own Grid Engine is
touched, and several such clusters do not know of each other. The configuration is the package's, but root may submit, and scheduling and reports
are fast. The parallel environment `mpi` takes one slot of each node: -pe mpi 2 is two nodes. The queue all.q sends the signals of -notify NOTIFY before the end.
"""

import re
import shutil
import subprocess
import time

import harness
import hosts
from harness import BUILD, SLOW, TOP, until

ROOT, SPOOL, BIN = "/var/lib/gridengine", "/var/spool/gridengine", "/usr/lib/gridengine"
OURS = {"sge_qmaster", "sge_execd"}  # what a job does not leave behind
NOTIFY = "00:00:20"

BOOTSTRAP = f"""admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {ROOT}/default/common;{SPOOL}/qmaster
binary_path /usr/sbin
qmaster_spool_dir {SPOOL}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""

CELL = f"""
cd {BIN}
./spoolinit classic libspoolc '{ROOT}/default/common;{SPOOL}/qmaster' init
./spooldefaults configuration $1
./spooldefaults complexes /usr/share/gridengine/util/resources/centry
./spooldefaults usersets /usr/share/gridengine/util/resources/usersets
./spooldefaults managers root
"""

PE = """pe_name mpi
slots 999
user_lists NONE
xuser_lists NONE
start_proc_args NONE
stop_proc_args NONE
allocation_rule 1
control_slaves TRUE
job_is_first_task FALSE
urgency_slots min
accounting_summary TRUE
qsort_args NONE
"""

# The attributes of a queue that are not the default's.
QUEUE = {"qname": "all.q", "hostlist": "@allhosts", "pe_list": "mpi", "slots": "8", "shell": "/bin/csh", "shell_start_mode": "posix_compliant",
         "notify": NOTIFY, "rerun": "FALSE", "load_thresholds": "NONE"}


def missing():
    """Why there can be no Grid Engine here, "" if there can."""
    gone = [t for t in ("sge_qmaster", "sge_execd", "qsub", "qconf") if not shutil.which(t) and not shutil.which(f"/usr/sbin/{t}")]
    return f"{', '.join(gone)} not installed (packages gridengine-master, gridengine-exec, gridengine-client)" if gone else ""


class Sge(hosts.Batch):
    def __init__(self, tmp, n, say=print):
        super().__init__(tmp, n, say)
        self.folder, self.jobs, self.said = self.tmp / "sge", [], ""
        try:
            self.configure()
            for host in self.hosts:
                self.mount(host)
            self.start()
        except BaseException:
            self.tear_down()
            raise

    def configure(self):
        (self.folder / "cell/common").mkdir(parents=True)
        (self.folder / "cell/common/bootstrap").write_text(BOOTSTRAP)
        (self.folder / "cell/common/act_qmaster").write_text("login\n")
        mine = {"min_uid": "0", "min_gid": "0", "load_report_time": "00:00:01", "mailer": "/bin/true", "administrator_mail": "none", "loglevel": "log_info",
                "reporting_params": "accounting=true reporting=false flush_time=00:00:01 joblog=false sharelog=00:00:00"}
        given = open("/usr/share/gridengine/default-configuration").read()
        for name, value in mine.items():
            given, found = re.subn(rf"^{name}\b.*$", f"{name} {value}", given, flags=re.M)
            assert found == 1, f"{name} in the package's configuration:\n{given}"
        (self.folder / "configuration").write_text(given)
        (self.folder / "pe").write_text(PE)

    def mount(self, host):
        """The cell, which is all hosts', and a spool of its own."""
        spool = self.folder / f"spool.{host.name}"
        for name in ("qmaster/job_scripts", "execd"):
            (spool / name).mkdir(parents=True)
        host.ns.sh(f"mount --bind {self.folder}/cell {ROOT}/default; mount --bind {spool} {SPOOL}")

    def qconf(self, *argv):
        said = self.run("qconf", *argv)
        self.said += f"\n    qconf {' '.join(map(str, argv))}: {said}"
        return said

    def start(self):
        self.login.ns.sh(f"export SGE_ROOT={ROOT} SGE_CELL=default; set -- {self.folder}/configuration; {CELL} cd /; /usr/sbin/sge_qmaster")
        until(lambda: f"the qmaster answers: {self.run('qconf', '-sh')}\n{self.logs()}", lambda: self.run("qconf", "-sh") == "login", 30)
        self.qconf("-as", "login")
        (self.folder / "group").write_text(f"group_name @allhosts\nhostlist {' '.join(h.name for h in self.nodes)}\n")
        for host in self.nodes:
            self.qconf("-ah", host.name)
            host.ns.sh(f"export SGE_ROOT={ROOT} SGE_CELL=default; cd /; /usr/sbin/sge_execd")
        up = lambda: len(re.findall(r"^node\d+ +lx-amd64 .*\d", self.run("qhost"), re.M)) == len(self.nodes)
        until(lambda: f"all nodes have reported:\n{self.run('qhost')}\n{self.logs()}", up, 30)
        self.qconf("-Ahgrp", self.folder / "group")
        self.qconf("-Ap", self.folder / "pe")
        template = self.login.ns.sh("EDITOR=cat qconf -aq all.q 2>/dev/null || true")
        lines = re.sub(r"\\\n\s*", "", template).splitlines()
        queue = {line.split(None, 1)[0]: line.split(None, 1)[1] for line in lines if len(line.split(None, 1)) == 2}
        assert "qname" in queue, template
        (self.folder / "queue").write_text("".join(f"{k} {v}\n" for k, v in {**queue, **QUEUE}.items()))
        self.qconf("-Aq", self.folder / "queue")
        self.schedule()
        idle = lambda: len(re.findall(r"^all.q@node\d+ +BIP +0/0/8 +\S+ +lx-amd64 *$", self.run("qstat", "-f"), re.M)) == len(self.nodes)
        until(lambda: f"the queue is ready:\n{self.run('qstat', '-f')}{self.said}\n{self.logs()}", idle, 30)

    def schedule(self):
        """At once, not every 15 s."""
        given = self.run("qconf", "-ssconf")
        for name, value in {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}.items():
            given = re.sub(rf"^{name}\b.*$", f"{name} {value}", given, flags=re.M)
        (self.folder / "schedule").write_text(given + "\n")
        self.qconf("-Msconf", self.folder / "schedule")

    def logs(self):
        """What Grid Engine's daemons have to say."""
        dull = re.compile(r"\|using |registered|starting up|memory accounting|PDC|old jobs")
        lines = lambda p: [line for line in p.read_text(errors="replace").splitlines() if not dull.search(line)][-15:]
        return "\n".join(f"    {p.parent.name} {line}" for p in sorted(self.folder.glob("spool.*/**/messages")) for line in lines(p))

    def __str__(self):
        return f"{super().__str__()}" + "".join(f"\n{j}" for j in self.jobs) + f"\n{self.logs()}"

    # -- what a user does, on login ------------------------------------------------------------------------------------

    def env(self, extra=None):
        env = super().env(extra)
        env.pop("TMPDIR", None)
        return {**env, "HOME": "/root", "USER": "root", "SHELL": "/bin/bash",
                "PATH": f"{BUILD}/agent:{BUILD}/agent/trainer:{BUILD}/daemon:{env['PATH']}"}

    def run(self, *argv, env=None):
        """What it says, without the last newline."""
        done = subprocess.run([*self.login.ns.enter(), "sh", "-c", 'cd "$0" && exec "$@"', self.tmp, *map(str, argv)], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL, env=self.env(env), timeout=30 * SLOW)
        return (done.stdout + done.stderr).strip()

    def submitted(self, text, env=None):
        """The job that a line of a page submits, in a folder with the scripts of deploy/sge."""
        for script in (TOP / "deploy/sge").iterdir():
            if not (self.tmp / script.name).exists():
                (self.tmp / script.name).symlink_to(script)
        said = self.run("bash", "-e", "-c", text, env=env)
        found = re.search(r"Your job(?:-array)? (\d+)", said)
        assert found, f"{text}: {said}"
        self.jobs.append(Job(self, found[1]))
        return self.jobs[-1]

    def left(self):
        """What jobs have left on any host."""
        return [p for h in self.hosts for p in h.pids() if harness.comm(p) not in OURS]


class Job:
    """A batch job: what Grid Engine knows of it, and what it has written."""

    def __init__(self, sge, id_):
        self.sge, self.id = sge, id_

    @property
    def state(self):
        """As in qstat: qw, r, ...; "" if it has ended."""
        found = re.search(rf"^ *{self.id} +\S+ +\S+ +\S+ +(\S+)", self.sge.run("qstat"), re.M)
        return found[1] if found else ""

    @property
    def text(self):
        files = sorted([*self.sge.tmp.glob(f"*.o{self.id}"), *self.sge.tmp.glob(f"*.o{self.id}.*")])  # of an array
        return "".join(p.read_text(errors="replace") for p in files)

    def says(self, pattern):
        return re.search(pattern, self.text, re.I | re.M)

    def expect(self, pattern, timeout=20.0):
        """The first match, already there or still to come, in what it has written."""
        return until(lambda: f"/{pattern}/ is said:\n{self}\n{self.sge.logs()}", lambda: self.says(pattern), timeout)

    def exits(self):
        """(exit code, why) of each of its lives and elements, as qacct has them; those of qrsh's tasks are not among them."""
        said = self.sge.run("qacct", "-j", self.id)
        lives = re.findall(r"^failed +(.*?)\s*$.*?^exit_status +(\d+)", said, re.M | re.S)
        return [(int(code), why) for why, code in lives]

    def end(self, lives=1, timeout=30.0):
        """Waits for its end, and until so many lives and elements are accounted for."""
        deadline = time.monotonic() + timeout * SLOW
        while self.state:
            assert time.monotonic() < deadline, f"job {self.id} is {self.state}:\n{self}\n{self.sge.logs()}"
            time.sleep(0.1)
        until(lambda: f"job {self.id} is accounted for: {self.sge.run('qacct', '-j', self.id)}\n{self}", lambda: len(self.exits()) >= lives, 20)
        return self

    def __str__(self):
        return f"job {self.id}: {self.state or 'ended'}" + "".join(f"\n    {line}" for line in self.text.splitlines()[-80:])
