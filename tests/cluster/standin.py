#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""qsub, bsub, and pbsdsh, qrsh, blaunch, jsrun: what people and scripts call, doing what their manuals say, by ssh to hosts of tests/cluster. Named by what it is called as.

They are no schedulers: they start tasks with the environment that the real ones give them, carry or do not carry input and output as those do, and
refuse what those refuse. qsub and bsub run the job at once, in their own place, on the host where they are called. STANDIN_LOG is a file that gets a line for each task.
"""

import os
import shlex
import socket
import subprocess
import sys

CSH = "/bin/csh"  # what queues run a script with that names no shell: the default of many sites, and some users' login shell
WITH = {"-S", "-N", "-P", "-q", "-l", "-v", "-W", "-j", "-g", "-pe", "-r"}  # options of qsub that have a value; -pe has two
SSH = ["ssh", "-o", "BatchMode=yes"]
PLAIN = {"PATH": "/usr/bin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}  # what a daemon of the scheduler's gives
OURS = ("STANDIN_", "E2E_", "TMPDIR")  # so that a task may call us too, and the harness knows its own


def start(host, env, argv, folder="/", stdin=None, shell=False):
    """A task on a host. shell: argv is for the shell there, as with ssh."""
    env = {**{k: v for k, v in os.environ.items() if k.startswith(OURS)}, **env}
    words = ["env", "-i", *(f"{k}={v}" for k, v in env.items())]
    words += ["/bin/sh", "-c", " ".join(argv)] if shell else argv
    if log := os.environ.get("STANDIN_LOG"):
        with open(log, "a") as f:
            f.write(f"{os.path.basename(sys.argv[0])} {socket.gethostname()} {host} {' '.join(argv)[:200]!r}\n")
    return subprocess.Popen([*SSH, host, f"cd {shlex.quote(folder)} && exec " + shlex.join(words)], stdin=stdin)


def codes(tasks):
    return [t.wait() for t in tasks]


def refuse(why):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {why}")


def options(args, kind):
    """Of qsub, up to the script's name: [(option, value)]; those of the script are in lines that begin with kind."""
    found = []
    while args and args[0].startswith("-"):
        option = args.pop(0)
        if option == "-pe":
            args.pop(0)
        if option in WITH:
            found.append((option, args.pop(0)))
        elif option in ("-V", "-cwd", "-notify"):
            found.append((option, ""))
        else:
            refuse(f"unknown option {option}")
    if kind and args:
        for line in open(args[0]):
            if line.startswith(kind + " "):
                found += options(line[len(kind) :].split(" #")[0].split(), "")
    return found


def become(shell, script, args, env):
    if shell == CSH or not os.path.exists(shell):
        refuse(f"{script} would be run by {shell}")
    os.execve(shell, [shell, script, *args], env)


def qsub(args):
    """[OPTION...] SCRIPT [ARGUMENT...]: of PBS or, where there is a PE, Grid Engine, which looks at no #! where its queues are posix_compliant, and hands the
    environment on only for -V."""
    sge = "PE" in os.environ
    given = options(args, "#$" if sge else "#PBS")
    env = dict(os.environ)
    if sge and ("-V", "") not in given:
        mine = ("SGE_", "PE", "JOB_", "NHOSTS", "NSLOTS", "NQUEUES", "RESTARTED", *OURS)
        env = {**PLAIN, **{k: v for k, v in env.items() if k.startswith(mine)}}
    env.update(word.split("=", 1) for option, value in given if option == "-v" for word in value.split(","))
    become(dict(reversed(given)).get("-S", CSH), args[0], args[1:], env)


def bsub(args):
    """< SCRIPT, or SCRIPT where the site has bsub read it: by what its #! names."""
    text = sys.stdin.read() if not args else open(args[0]).read()
    spool = f"{os.environ['STANDIN_LOG']}.{os.getpid()}"
    with open(spool, "w") as f:
        f.write(text)
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    become(text.split("\n")[0].removeprefix("#!") if text.startswith("#!") else CSH, spool, args[1:], dict(os.environ))


def pbsdsh(args):
    """A task for each line of the file; each gets the job's variables, no file, no input and no environment of the caller's. Always 0."""
    args = args[args.index("--") + 1 :] if "--" in args else args
    lines = open(os.environ["PBS_NODEFILE"]).read().split()
    hosts = list(dict.fromkeys(lines))
    # RDZV_AGENT_*: as if `qsub -v` had named them.
    given = {k: v for k, v in os.environ.items() if k.startswith(("PBS_", "RDZV_AGENT_")) and k not in ("PBS_NODEFILE", "PBS_GPUFILE")}
    seen, tasks = {h: 1 if i == 0 else 0 for i, h in enumerate(hosts)}, []
    for host in lines:
        node, seen[host] = hosts.index(host), seen[host] + 1
        task = node << 32 - len(lines).bit_length() | seen[host]
        env = {**PLAIN, **given, "PBS_NODENUM": str(node), "PBS_TASKNUM": f"{task:08X}", "PBS_ENVIRONMENT": "PBS_BATCH"}
        tasks.append(start(host, env, args, stdin=subprocess.DEVNULL))
    codes(tasks)
    return 0


def qrsh(args):
    """-inherit [-V] HOST COMMAND: only from the job's first host, on one of its hosts; COMMAND is for a shell."""
    if "JOB_ID" not in os.environ or args.pop(0) != "-inherit":
        refuse("only -inherit, within a job")
    options = []
    while args and args[0].startswith("-"):
        options.append(args.pop(0))
    host, *command = args
    hosts = [line.split()[0] for line in open(os.environ["PE_HOSTFILE"])]
    if socket.gethostname() != hosts[0].split(".")[0]:
        refuse(f"executing task of job {os.environ['JOB_ID']} failed: this is not the job's master host")
    if host not in hosts and host not in [h.split(".")[0] for h in hosts]:
        refuse(f"executing task of job {os.environ['JOB_ID']} failed: {host} is none of its hosts")
    sge = ("SGE_", "JOB_", "NHOSTS", "NSLOTS", "NQUEUES", "RESTARTED")
    given = {k: v for k, v in os.environ.items() if "-V" in options or k.startswith(sge)}
    spool = f"/var/spool/sge/{host}/active_jobs/{os.environ['JOB_ID']}.1/1.{host}"
    env = {**PLAIN, **given, "SGE_JOB_SPOOL_DIR": spool}
    return codes([start(host, env, command, stdin=subprocess.DEVNULL if "-nostdin" in options else None, shell=True)])[0]


def blaunch(args):
    """[HOST] COMMAND: with the caller's environment and folder, on one of the job's hosts, or a task for each slot."""
    if "LSB_JOBID" not in os.environ:
        refuse("only within a job")
    pairs = os.environ["LSB_MCPU_HOSTS"].split()
    slots = dict(zip(pairs[::2], map(int, pairs[1::2])))
    env = {k: v for k, v in os.environ.items() if k not in ("LSF_PM_TASKID",)}
    task = lambda host, i, argv, **kw: start(host, {**env, "LSF_PM_TASKID": str(i), "LS_EXEC_T": "START"}, argv, os.getcwd(), **kw)
    if args[0] in slots:
        return codes([task(args[0], 1, args[1:], shell=True)])[0]
    if "/" not in args[0] and "." in args[0]:
        refuse(f"{args[0]} is none of the job's hosts")
    where = [host for host, n in slots.items() for _ in range(n)]
    return max(codes([task(h, i, args, stdin=subprocess.DEVNULL) for i, h in enumerate(where, 1)]))


def jsrun(args):
    """-r N -a 1 -c CPUS -g GPUS -b none COMMAND: N tasks on each host but the launch node, with the caller's environment and folder."""
    options = {}
    while args[0].startswith("-"):
        option = args.pop(0)
        options[option] = args.pop(0)
    hosts = list(dict.fromkeys(open(os.environ["LSB_DJOB_RANKFILE"]).read().split()))[1:]
    each, tasks = int(options["-r"]) * int(options["-a"]), []
    for node, host in enumerate(hosts):
        for i in range(each):
            name = lambda n: f"JSM_NAMESPACE_{n}"
            jsm = {name("SIZE"): each * len(hosts), name("RANK"): node * each + i, name("LOCAL_SIZE"): each, name("LOCAL_RANK"): i}
            env = {**os.environ, **{k: str(v) for k, v in jsm.items()}}
            tasks.append(start(host, env, args, os.getcwd(), stdin=subprocess.DEVNULL))
    return max(codes(tasks))


if __name__ == "__main__":
    sys.exit({"qsub": qsub, "bsub": bsub, "pbsdsh": pbsdsh, "qrsh": qrsh, "blaunch": blaunch, "jsrun": jsrun}[os.path.basename(sys.argv[0])](sys.argv[1:]))
