# SPDX-License-Identifier: Apache-2.0
"""Defaults of an agent under a scheduler or launcher: the environment is made up, everything else is real."""

import hmac
import os
import re
import secrets
import signal
import socket
import time

import pytest

import harness
import pages
import waits
from harness import BUILD, HOST, environ, free_port

SHOW = 'echo "rank $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE sees ${CUDA_VISIBLE_DEVICES-all} in $RDZV_RUN_ID"'


def slurm(job, *hosts, tasks=1, **more):
    """The environments of a step's tasks, `tasks` on each of the hosts."""
    n = tasks * len(hosts)
    for rank in range(n):
        yield {
            "SLURM_JOB_ID": f"{job}",
            "SLURM_STEP_ID": "0",
            "SLURM_STEP_NUM_TASKS": f"{n}",
            "SLURM_STEP_NUM_NODES": f"{len(hosts)}",
            "SLURM_STEP_NODELIST": ",".join(hosts),
            "SLURM_STEP_TASKS_PER_NODE": f"{tasks}(x{len(hosts)})" if len(hosts) > 1 else f"{tasks}",
            "SLURM_PROCID": f"{rank}",
            "SLURM_NODEID": f"{rank // tasks}",
            "SLURM_LOCALID": f"{rank % tasks}",
            **more,
        }


def job_of_port(port):
    """An id from which that port follows, for step 0."""
    return next(job for job in range(1, 16385) if job * 31 % 16384 == port - 16384)


def new_job():
    return job_of_port(free_port())


def places(agents):
    """rank -> what it says of its place."""
    lines = [l for a in agents for l in a.out]
    return {int(m[1]): m[2] for l in lines if (m := re.search(r"rank (\d+) (of .*)", l))}


def test_srun_needs_no_option(rdzv, lan):
    """Two hosts, one agent on each: they meet on the first, where its agent starts rdzvd; order and job are Slurm's."""
    job = new_job()
    envs = list(slurm(job, "node1", "node2", SLURM_GPUS_ON_NODE="2"))
    agents = [rdzv.agent("--", "sh", "-c", SHOW, env=env, wrap=wrap) for env, wrap in reversed(list(zip(envs, lan)))]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert places(agents) == {r: f"of 4 local {r % 2} of 2 sees all in slurm-{job}.0" for r in range(4)}
    assert all(a.says("2 nodes, 4 workers") for a in agents), rdzv


def test_a_place_that_nobody_has_typed(rdzv):
    """Where Slurm's name is not known, or something else listens at the port made of its numbers: whoever reads that has typed neither."""
    env, _ = slurm(new_job(), "gpu1.invalid", "gpu2.invalid")
    a = rdzv.agent("--join-timeout", "1s", "--", "true", env=env)
    assert a.exit() == 69, a
    assert a.says(r'the name "gpu1.invalid" of SLURM_STEP_NODELIST=gpu1.invalid,gpu2.invalid, .* (is not known|could not be looked up)'), a
    assert not a.says('in --endpoint'), a
    _, env = slurm(new_job(), HOST, tasks=2)
    a = rdzv.agent("--join-timeout", "1s", "--rdzv-conf", "is_host=0", "--", "true", env=env)
    assert a.exit() == 69 and a.says("nothing listens at 127.0.0.1:.*: the agent there has not started rdzvd yet"), a
    with socket.create_server(("127.0.0.1", 0)) as s:
        while not 16384 <= s.getsockname()[1] < 32768:
            s.close()
            s = socket.create_server(("127.0.0.1", free_port()))
        job = job_of_port(s.getsockname()[1])
        a = rdzv.agent("--join-timeout", "1s", "--", "true", env=next(slurm(job, HOST, tasks=2)))
        assert a.exit() == 69, a
        assert a.says(f"give all agents the same --endpoint HOST:PORT with another port than .*SLURM_JOB_ID={job}, SLURM_STEP_ID=0 implies"), a
        assert not a.says("choose another port"), a


def test_a_place_outside_of_the_step(rdzv, lan):
    """$SLURM_SUBMIT_HOST and the like: Slurm's list shows that no agent is there. Other names of a listed host, addresses and two daemons prove nothing."""
    env = next(slurm(new_job(), "node2", "far"))
    port = free_port()
    for words in ["--endpoint", f"node1:{port}"], ["--master_addr", "node1", "--master_port", str(port)]:
        a = rdzv.agent(*words, "--", "true", env=env, wrap=lan[1])
        a.expect(rf"node1 is not one of this step's hosts, far,node2: leave {words[0]} out; trying again for \d\d s$")
        a.kill(signal.SIGTERM)
    for place in f"10.99.0.1:{port}", f"far.example:{port}", f"node1:{port},node1:{port + 1}":
        a = rdzv.agent("--endpoint", place, "--join-timeout", "1s", "--", "true", env=env, wrap=lan[1])
        assert a.exit() == 69 and not a.says("step's hosts"), a
    a = rdzv.agent("--endpoint", f"node1:{port}", "--join-timeout", "1s", "--", "true", env=env, wrap=lan[1])
    assert a.exit() == 69 and a.says(r"no rdzvd could be reached at .* within 1 s \(--join-timeout\): .*; node1 is not one of this step's hosts"), a
    d = rdzv.daemon()  # where one listens all the same, nothing is said
    envs = list(slurm(new_job(), "gpu1", "gpu2"))
    agents = [rdzv.agent("--endpoint", f"{HOST}:{d.port}", "--", "true", env=env) for env in envs]
    assert [a.exit() for a in agents] == [0, 0] and not any(a.says("step's hosts") for a in agents), rdzv


def test_two_terminals_of_one_allocation(rdzv):
    """torchrun's line on each node, in a shell of srun and in one of ssh, which has none of Slurm's variables: one job, named by the place."""
    place = ("--nnodes", 2, "--nproc", 1, "--master_addr", "127.0.0.1", "--master_port", free_port())
    envs = next(slurm(new_job(), HOST, "other")), {}
    agents = [rdzv.agent(*place, "--node_rank", r, "--", "sh", "-c", SHOW, env=env) for r, env in enumerate(envs)]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert {p.split(" in ")[1] for p in places(agents).values()} == {f"{os.environ.get('USER', 'root')}@127.0.0.1:{place[-1]}"}, rdzv


def test_who_is_missing_is_named(rdzv, lan):
    env, _ = slurm(new_job(), "node1", "node2")
    a = rdzv.agent("--join-timeout", "2s", "--", "true", env=env, wrap=lan[0])
    assert a.exit() == 73 and a.says(r"missing 1: node2 \(never came\)"), a


@pytest.mark.parametrize(
    "visible, expected",
    [
        (None, "local {i} of 3 sees all"),  # there are none
        ("5,6,7", "local {i} of 3 sees 5,6,7"),  # of all
        ("{i}", "local 0 of 1 sees {i}"),  # its own
    ],
)
def test_one_agent_for_each_gpu(rdzv, visible, expected):
    envs = list(slurm(new_job(), HOST, tasks=3))
    for i, env in enumerate(envs):
        if visible:
            env["CUDA_VISIBLE_DEVICES"] = visible.format(i=i)
    agents = [rdzv.agent("--", "sh", "-c", SHOW, env=env) for env in envs]
    assert [a.exit() for a in agents] == [0, 0, 0], rdzv
    assert {r: p.split(" in ")[0] for r, p in places(agents).items()} == {i: "of 3 " + expected.format(i=i) for i in range(3)}
    assert all(a.says("node 0 is .*127.0.0.1") for a in agents), rdzv


def test_local_ranks_are_those_that_workers_see(rdzv, tmp_path):
    """Files, the filter and ${local_rank}, with an agent for each GPU: the place among all of the host's workers."""
    agents = [
        rdzv.agent("--log-dir", tmp_path / f"logs{i}", "--local-ranks-filter", "1", "--", "echo", "here is ${local_rank}", env=env)
        for i, env in enumerate(slurm(new_job(), HOST, tasks=2))
    ]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert [len(a.out) for a in agents] == [0, 1], rdzv
    for i in 0, 1:
        assert [p.read_text() for p in tmp_path.glob(f"logs{i}/*/attempt_0/{i}/stdout.log")] == [f"here is {i}\n"]


def test_one_line_for_each_host(rdzv):
    """An agent for each GPU: what they all would say of the job, who is waited for and that it is done, the first of them says."""
    job = new_job()
    envs = list(slurm(job, HOST, "elsewhere", tasks=2))
    here = [rdzv.agent("--", "true", env=env) for env in envs[:2]]
    here[0].expect(r"of 4 nodes \w+ here after")
    there = [rdzv.agent("--", "true", env=env) for env in envs[2:]]
    assert [a.exit() for a in (*here, *there)] == [0] * 4, rdzv
    assert not here[1].says("of 4 nodes .* here after"), rdzv
    assert [a.says(rf"job slurm-{job}.0 is done") for a in (*here, *there)] == [True, False, True, False], rdzv
    assert all(a.says("round 1: .*this is node") for a in (*here, *there)), rdzv


def test_the_trainer_takes_the_device_of_its_place(rdzv, tmp_path):
    """Each of the two agents sees both GPUs, and its trainer only its own; nobody is warned of a device that two share."""
    uuids = ["GPU-aaaa-1", "GPU-bbbb-2"]
    script = tmp_path / "gpus"
    script.write_text("".join(f"device {uuid} 00000000:{i}1:00.0 NVIDIA_H100 81920 4\n" for i, uuid in enumerate(uuids)))
    fake = {"RDZV_NVML_LIBRARY": str(BUILD / "tests/rig/fake-nvml.so"), "RDZV_FAKE_NVML": str(script), "CUDA_VISIBLE_DEVICES": "0,1"}
    envs = [{**env, **fake} for env in slurm(new_job(), HOST, tasks=2)]
    agents = [rdzv.agent("--", "--steps", 1000, "--throttle", 10, env=env) for env in envs]
    workers = rdzv.await_workers(2)
    for rank, pid in workers.items():
        env = environ(pid)
        assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"], env["RDZV_LOCAL_RANK"]) == (f"{rank}", "2", "0")
        assert (env["CUDA_VISIBLE_DEVICES"], env["RDZV_DEVICE_UUID"]) == (f"{rank}", uuids[rank])
    for a in agents:
        a.kill(signal.SIGTERM)
    assert [a.exit() for a in agents] == [75, 75], rdzv
    assert not any(a.says("another rdzv-agent") for a in agents), rdzv


def test_two_jobs_at_once(rdzv):
    """Ids that follow each other: ports of their own, nobody meets the other's agents."""
    first = next(job for job in iter(new_job, None) if harness.take_port((job + 1) * 31 % 16384 + 16384))
    agents = [rdzv.agent("--", "sh", "-c", SHOW, env=env) for job in (first, first + 1) for env in slurm(job, HOST, tasks=2)]
    assert [a.exit() for a in agents] == [0] * 4, rdzv
    for i, a in enumerate(agents):
        assert a.says(f"rank {i % 2} of 2 .* in slurm-{first + i // 2}.0"), rdzv


def test_a_batch_script_without_srun(rdzv):
    env = {"SLURM_JOB_ID": "47", "SLURM_JOB_NODELIST": f"{HOST},node2", "SLURM_NNODES": "2", "SLURM_PROCID": "0"}
    a = rdzv.agent("--", "true", env=env)
    assert a.exit() == 64 and a.says(r"on only one of the job's 2 nodes: write srun rdzv-agent \.\.\."), a
    a = rdzv.agent("--standalone", "--", "true", env=env)
    assert a.exit() == 0, a


def test_the_pages_explanation(rdzv):
    """Its command, by a stand-in for srun that is the first of two tasks; what it prints is what the page shows."""
    step = "SLURM_JOB_ID=4711 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_NNODES=2 SLURM_STEP_NODELIST='gpu[1-2]'"
    step += " SLURM_STEP_TASKS_PER_NODE='1(x2)' SLURM_PROCID=0 SLURM_NODEID=0 SLURM_LOCALID=0 SLURM_STEP_GPUS=0,1,2,3 SLURM_GPUS_ON_NODE=4"
    for name, text in ("srun", f'exec env {step} unshare --uts sh -c \'hostname gpu1; exec "$@"\' - "$@"'), ("train", "exit 1"):
        (rdzv.tmp / name).write_text(f"#!/bin/sh\n{text}\n")
        (rdzv.tmp / name).chmod(0o755)
    if os.geteuid():
        pytest.skip("giving a process another host's name needs root")
    (line,) = pages.lines("deploy/README.md", "explain")
    a = rdzv.spawn(*line.split(), env={"PATH": f"{rdzv.tmp}:{os.path.dirname(harness.AGENT)}:{os.environ['PATH']}"})
    assert a.exit() == 0, a
    shown = next(b for b in pages.blocks("deploy/README.md") if b.text.startswith("nnodes 2:2"))
    assert a.out[:5] == shown.text.splitlines(), a


def test_what_makes_no_sense_is_told_and_stops_nobody(rdzv):
    a = rdzv.agent("--", "true", env={"SLURM_JOB_ID": "47", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NODELIST": "n[1-"})
    assert a.exit() == 0 and a.says(r'SLURM_STEP_NODELIST: "n\[1-" is not a list of hosts'), a


def test_what_makes_no_sense_is_told_with_the_refusal(rdzv):
    a = rdzv.agent("--", "true", env={"SLURM_JOB_ID": "47", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "many"})
    assert a.exit() == 64 and a.says("SLURM_STEP_NUM_TASKS=many is not a number from 1 to 65536") and a.says("give --nnodes N"), a


def test_an_agent_of_a_worker_has_a_job_of_its_own(rdzv):
    env, _ = slurm(new_job(), HOST, "node2")
    a = rdzv.agent("--standalone", "--", harness.AGENT, "--", "sh", "-c", SHOW, env=env)
    assert a.exit() == 0 and a.says("rank 0 of 1 .* in alone-"), a


def mpi(rank, size, host, local_rank=0, local_size=1, port=4711):
    return {
        "OMPI_COMM_WORLD_RANK": f"{rank}",
        "OMPI_COMM_WORLD_SIZE": f"{size}",
        "OMPI_COMM_WORLD_LOCAL_RANK": f"{local_rank}",
        "OMPI_COMM_WORLD_LOCAL_SIZE": f"{local_size}",
        "PMIX_NAMESPACE": f"{port}",
        "OMPI_MCA_orte_hnp_uri": f"1.0;tcp://{host}:42053",
    }


def test_mpirun_on_two_hosts(rdzv, lan):
    """Nobody tells where rank 0 is; where mpirun runs is told."""
    port = free_port()
    envs = [mpi(r, 2, "10.99.0.1", port=port) for r in (0, 1)]
    agents = [rdzv.agent("--", "sh", "-c", SHOW, env=env, wrap=wrap) for env, wrap in zip(envs, lan)]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert places(agents) == {r: f"of 2 local 0 of 1 sees all in mpi-{envs[0]['PMIX_NAMESPACE']}" for r in (0, 1)}


def test_no_worker_of_mpirun_can_make_the_key(rdzv, lan):
    """Open MPI gives all processes a number, from which the agents' key follows. Workers have another one, the same for all, as some networks of Open MPI need."""
    name, number, port = "OMPI_MCA_orte_precondition_transports", f"{secrets.token_hex(8)}-{secrets.token_hex(8)}", free_port()
    key_of = lambda text: hmac.new(b"rdzv open mpi key\0", bytes.fromhex(text.replace("-", "")), "sha256").hexdigest()
    envs = [{**mpi(r, 2, "10.99.0.1", port=port), name: number} for r in (0, 1)]
    explained = rdzv.agent("--explain", "--", "true", env=envs[0], wrap=lan[0])
    assert explained.exit() == 0, explained
    (endpoint,) = re.findall(r"^endpoint (\S+)", "\n".join(explained.out), re.M)
    agents = [rdzv.agent("--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done", env=env, wrap=wrap) for env, wrap in zip(envs, lan)]
    (theirs,) = {environ(pid)[name] for pid in rdzv.await_workers(2).values()}
    assert re.fullmatch("[0-9a-f]{16}-[0-9a-f]{16}", theirs) and theirs != number
    for text, code in (number, 0), (theirs, 72):
        p = rdzv.spawn(harness.RDZVCTL, "--endpoint", endpoint, "jobs", env={"RDZV_KEY": key_of(text)}, wrap=lan[1])
        assert p.exit(15) == code, p
    assert number not in {environ(pid).get(name) for pid in rdzv.pids()}, "not even in what the kernel shows of the agents"
    rdzv.go(*agents)


def test_mpirun_on_a_login_node(rdzv, lan):
    """Where mpirun runs, no agent does: the first one says so at once, and mpirun ends the others."""
    a = rdzv.agent("--", "true", env=mpi(0, 2, "10.99.0.77"), wrap=lan[1])
    assert a.exit() == 64 and a.says(r"would meet on 10.99.0.77 \(OMPI_MCA_.* the first agent that Open MPI started is on node2: .* --endpoint node2"), a


def test_mpirun_on_a_part_of_the_jobs_hosts(rdzv, lan):
    """Where mpirun itself runs it may have started nothing. The job's first host does not matter: agents that are started by ssh do not know it."""
    job = {"SLURM_JOB_ID": "47", "SLURM_JOB_NODELIST": "node[1-2]"}
    a = rdzv.agent("--", "true", env={**mpi(0, 2, "10.99.0.1"), **job}, wrap=lan[1])
    assert a.exit() == 64 and a.says(r"would meet on 10.99.0.1 \(OMPI_MCA_orte_hnp_uri=.*\), .* --endpoint node2"), a


# The end of a job. ------------------------------------------------------------------------------------------------------------


def limited(seconds, **more):
    return {"SLURM_JOB_ID": "47", "SLURM_NNODES": "1", "SLURM_JOB_END_TIME": f"{int(time.time()) + seconds}", **more}


def test_the_end_and_restarts_are_told(rdzv):
    env = limited(3600, SLURM_RESTART_COUNT="2")
    a = rdzv.agent("--", "sh", "-c", "echo $RDZV_END_TIME $RDZV_SCHEDULER_RESTARTS", env=env)
    assert a.exit() == 0 and a.out == [env["SLURM_JOB_END_TIME"] + " 2"], a
    assert a.says(r"the scheduler ends the job at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d, in 59m; the scheduler has started it 2 times before"), a
    a = rdzv.agent("--", "sh", "-c", "echo ${RDZV_END_TIME-none} ${RDZV_SCHEDULER_RESTARTS-none}", env={"SLURM_JOB_ID": "47"})
    assert a.exit() == 0 and a.out == ["none none"] and not a.says("the scheduler"), a


def test_leave_before_end(rdzv):
    """As at SIGTERM: workers get it, the agent exits with 75."""
    a = rdzv.agent("--leave-before-end", "10m", "--", "sh", "-c", waits.COMMAND, env=limited(606))
    a.expect("^ready")
    assert a.exit() == 75, a
    assert "got TERM" in a.out and a.says("the scheduler ends the job in (9|10)m: leaving with exit code 75"), a


def test_leave_before_end_of_a_short_job(rdzv):
    a = rdzv.agent("--leave-before-end", "10m", "--", "true", env=limited(300))
    assert a.exit() == 64 and a.says(r"--leave-before-end is 10m, but the job ends in (4|5)m \(SLURM_JOB_END_TIME="), a


def test_leave_before_end_where_none_is_known(rdzv):
    a = rdzv.agent("--leave-before-end", "10m", "--", "true")
    assert a.exit() == 0 and a.says("--leave-before-end has no effect: no scheduler reports when the job ends"), a


def pals(rank, size, local_size, **more):
    """What PALS' mpiexec gives to a rank, with the PBS job's own variables, which it passes on to each."""
    local = f"{rank % local_size}"
    return {"PALS_RANKID": f"{rank}", "PALS_NODEID": f"{rank // local_size}", "PALS_LOCAL_RANKID": local, "PALS_LOCAL_SIZE": f"{local_size}",
            "PMI_RANK": f"{rank}", "PMI_SIZE": f"{size}", "PMI_LOCAL_RANK": local, "PMI_LOCAL_SIZE": f"{local_size}", **more}


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("apid", [None, "6a3c1f52-9d3e-4c1b"])
def test_pals_starts_one_job(rdzv, lan, remote, each, apid):
    """Every rank sees PBS' file of hosts. None of them goes round by ssh: they are one job."""
    ssh, _ = remote("ssh")
    job = {**pbs(rdzv, "node1", "node2"), "PBS_JOBID": f"{new_job()}.p", "RDZV_AGENT_SSH": str(ssh), **({"PALS_APID": apid} if apid else {})}
    n = 2 * each
    agents = [rdzv.agent("--", "sh", "-c", SHOW, env=pals(r, n, each, **job), wrap=lan[r // each]) for r in range(n)]
    assert [a.exit() for a in agents] == [0] * n, rdzv
    name = f"pals-{apid}" if apid else f"pbs-{job['PBS_JOBID']}"
    assert places(agents) == {r: f"of {n} local {r % each} of {each} sees all in {name}" for r in range(n)}, rdzv
    assert not ssh.with_name("ssh.log").exists(), ssh.with_name("ssh.log").read_text()


def test_ranks_of_a_launcher_do_not_launch(rdzv, remote):
    """Not even where the hosts are named: each rank would start the whole job."""
    ssh, _ = remote("ssh")
    job = pbs(rdzv, HOST, "far")
    for env, by in (pals(1, 2, 1), "PALS"), (slurm_task(), "srun"):
        a = rdzv.agent("--ssh", ssh, "--hostfile", job["PBS_NODEFILE"], "--", "true", env={**job, **env})
        assert a.exit() == 64 and a.says(rf"--hostfile starts the whole job, but {by} started 2 agents \(\w+=2\)"), a
    assert not ssh.with_name("ssh.log").exists()


def slurm_task():
    return next(slurm(new_job(), HOST, "far"))


FLUX = {"FLUX_JOB_ID": "\u01922oKw", "FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "2", "FLUX_URI": "local:///run/flux/local"}


def test_flux_tells_no_host(rdzv, lan):
    """Without an endpoint an agent of Flux is no world of one; with one they meet."""
    envs = [{**FLUX, "FLUX_TASK_RANK": f"{r}", "FLUX_TASK_LOCAL_ID": "0", "PMI_RANK": f"{r}", "PMI_SIZE": "2", "PMI_FD": "9"} for r in (0, 1)]
    a = rdzv.agent("--", "true", env=envs[0], wrap=lan[0])
    assert a.exit() == 64 and a.says(r"Flux started 2 agents, .* give --endpoint HOST, .*flux hostlist --nth=0 local"), a
    agents = [rdzv.agent("--endpoint", "node1", "--", "sh", "-c", SHOW, env=env, wrap=wrap) for env, wrap in zip(envs, lan)]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert places(agents) == {r: f"of 2 local 0 of 1 sees all in flux-f2oKw" for r in (0, 1)}, rdzv


# Batch scripts of schedulers that start nothing on the job's other hosts. ---------------------------------------------------------


REMOTE = '#!/bin/sh\necho "$@" >>"$0.log"\nwhile [ "$1" != "${1#-}" ]; do shift; done\nshift\nexec sh -c "$*"\n'


@pytest.fixture
def remote(rdzv):
    """A stand-in for a remote shell, which runs its command here; its name, and what it was called with."""

    def make(name):
        program = rdzv.tmp / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(REMOTE)
        program.chmod(0o755)
        return program, lambda: program.with_name(name + ".log").read_text()

    return make


def pbs(rdzv, *hosts):
    (rdzv.tmp / "nodes").write_text("".join(f"{h}\n" for h in hosts))
    return {"PBS_JOBID": "12.server", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": str(rdzv.tmp / "nodes")}


def pbsdsh(rdzv, *numbers, **more):
    """The environments of OpenPBS' tasks on this host, the job's only one, by their numbers."""
    given = pbs(rdzv, *[HOST] * len(numbers))
    return [{**given, "PBS_NODENUM": "0", "PBS_TASKNUM": number, **more} for number in numbers]


def test_pbsdsh_with_an_agent_for_each_gpu(rdzv):
    """Each sees both and takes its own; the script was task 1."""
    envs = pbsdsh(rdzv, "00000002", "00000003", CUDA_VISIBLE_DEVICES="0,1")
    agents = [rdzv.agent("--", "sh", "-c", SHOW, env=env) for env in reversed(envs)]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert places(agents) == {r: f"of 2 local {r} of 2 sees 0,1 in pbs-12.server" for r in (0, 1)}, rdzv


def test_agents_that_would_take_the_same_gpu(rdzv):
    """Nothing tells them apart: that is said, unless each sees its own."""
    envs = pbsdsh(rdzv, "2", "3", CUDA_VISIBLE_DEVICES="0,1")
    a = rdzv.agent("--", "true", env=envs[0])
    assert a.exit() == 64 and a.says(r"several agents share this host \(PBS_NODEFILE=.*, and each sees all 2 GPUs: .* or set CUDA_VISIBLE_DEVICES for each"), a
    agents = [rdzv.agent("--", "sh", "-c", SHOW, env={**env, "CUDA_VISIBLE_DEVICES": str(i)}) for i, env in enumerate(envs)]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    assert sorted(p.split(" in ")[0] for p in places(agents).values()) == [f"of 2 local 0 of 1 sees {i}" for i in (0, 1)], rdzv


def test_a_batch_script_of_pbs(rdzv, remote):
    """Two lines of the file are one host; the first is this one, the other is reached by ssh."""
    ssh, calls = remote("ssh")
    env = pbs(rdzv, HOST, HOST, "far")
    a = rdzv.agent("--ssh", ssh, "--", "sh", "-c", SHOW, env=env)
    assert a.exit() == 0 and len(places([a])) == 2 and a.says("rank 1 of 2 local 0 of 1"), a
    assert re.fullmatch(r"far .*rdzv-agent.* --launched.*\n", calls()), calls()


def explained(rdzv, env, *words):
    """Name -> what --explain says of it."""
    a = rdzv.agent("--explain", *words, "--", "true", env=env)
    assert a.exit() == 0, a
    return dict(line.split(" ", 1) for line in a.out if not line.startswith("host "))


def test_what_a_batch_script_is_told(rdzv):
    """Each conclusion with the scheduler's variable; what was drawn is marked as that."""
    env = {**pbs(rdzv, HOST, "far"), "CUDA_VISIBLE_DEVICES": "0,1,2,3", "RDZV_END_TIME": f"{int(time.time()) + 3600}"}
    file = f"PBS_NODEFILE={rdzv.tmp}/nodes"
    a = rdzv.agent("--explain", "--", "true", env=env)
    assert a.exit() == 0 and a.out[:2] == [f"host {HOST} here  # {file}", "host far"], a
    e = explained(rdzv, env)
    assert e["nnodes"] == f"2:2  # {file}" and e["expect"].endswith(f"  # {file}") and e["node-rank"] == f"0  # {file}", e
    assert e["job"] == "'pbs-12.server'  # PBS_JOBID=12.server", e
    assert re.fullmatch(rf"{HOST}:\d+  # {file}; port: drawn at random", e["endpoint"]), e
    assert e["nproc"] == "4  # CUDA_VISIBLE_DEVICES=0,1,2,3" and e["local-rank"] == "0-3 of 4", e
    assert re.fullmatch(r"(\d+)  # RDZV_END_TIME=\1: 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", e["end-time"]), e
    lsf = explained(rdzv, {"LSB_JOBID": "7", "LSB_MCPU_HOSTS": f"{HOST} 4 far 4"})
    assert lsf["ssh"].startswith("blaunch  # LSB_JOBID=7") and lsf["nproc"] == "1  # no GPU is visible", lsf
    given = explained(rdzv, {"RDZV_AGENT_HOSTS": f"{HOST}:2,far"})
    assert given["nproc"] == f"2  # RDZV_AGENT_HOSTS={HOST}:2,far" and given["job"].endswith("  # drawn at random"), given
    typed = explained(rdzv, {"RDZV_AGENT_SSH": "rsh -n"}, "--hosts", f"{HOST},far", "--nproc", "3")
    assert typed["nnodes"] == "2:2  # --hosts" and typed["nproc"] == "3" and typed["ssh"] == "rsh -n  # RDZV_AGENT_SSH=rsh -n", typed


def test_slurm_must_be_asked_for_another_life(rdzv):
    """By the script: exit code 75 alone does nothing. A job that was requeued has such a script."""
    (env,) = slurm(new_job(), HOST, tasks=1)
    for more, says in ({}, 1), ({"SLURM_RESTART_COUNT": "1"}, 0):
        a = rdzv.agent("--", "sh", "-c", "echo up; exec sleep 60", env={**env, **more})
        a.expect("up")
        assert a.end(signal.SIGTERM) == 75 and a.text.count("exit code 75: Slurm does not requeue a job for its exit code: the script must call scontrol requeue") == says, a


def test_an_agent_for_each_gpu_tells_a_crash_once(rdzv):
    """The first agent of the host, and the one whose worker it was."""
    (rdzv.tmp / "crash.py").write_text("import os, time\nif os.environ['RANK'] == '3':\n    raise ValueError('loss is nan')\ntime.sleep(60)\n")
    agents = [rdzv.agent("--max-restarts", 0, "--", "crash.py", env=env) for env in slurm(new_job(), HOST, tasks=6)]
    assert [a.exit() for a in agents] == [1] * 6, rdzv
    assert [len([l for l in a.err if "ValueError: loss is nan; 0 of 0 restarts used; exit code 1" in l]) for a in agents] == [1, 0, 0, 1, 0, 0], rdzv
    for i in 1, 2, 4, 5:
        assert [l for l in agents[i].out + agents[i].err if "round 1: 6 nodes" not in l] == [], agents[i]


def test_where_local_ranks_come_from(rdzv):
    """Of agents that each see all devices, and of one that sees its own alone."""
    envs = list(slurm(new_job(), HOST, tasks=4))
    assert explained(rdzv, {**envs[2], "CUDA_VISIBLE_DEVICES": "0,1,2,3"})["local-rank"] == "2 of 4  # SLURM_LOCALID=2"
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):  # ROCR: LUMI's wrapper script
        assert explained(rdzv, {**envs[2], name: "2"})["local-rank"] == f"0 of 1  # SLURM_LOCALID=2, {name}=2"
    both = {**envs[2], "ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "0,1,2,3"}
    assert explained(rdzv, both)["local-rank"] == "2 of 4  # SLURM_LOCALID=2"


def test_a_batch_script_of_grid_engine(rdzv, remote):
    """By its own remote shell."""
    qrsh, calls = remote("qrsh")
    (rdzv.tmp / "hosts").write_text(f"{HOST} 8 all.q@x UNDEFINED\nfar 8 all.q@y UNDEFINED\n")
    env = {"JOB_ID": "7", "SGE_TASK_ID": "undefined", "PE_HOSTFILE": str(rdzv.tmp / "hosts"), "NHOSTS": "2"}
    a = rdzv.agent("--", "sh", "-c", SHOW, env={**env, "PATH": f"{qrsh.parent}:/usr/bin:/bin"})
    assert a.exit() == 0 and sorted(places([a])) == [0, 1], a
    assert calls().startswith("-inherit far "), calls()


def test_a_batch_script_that_says_otherwise(rdzv):
    """Alone, or with agents that somebody else starts: nothing is launched."""
    env = pbs(rdzv, HOST, "far")
    for words in ["--standalone"], ["--nnodes", "1"], ["--endpoint", f"127.0.0.1:{free_port()}", "--nnodes", "1"]:
        a = rdzv.agent(*words, "--ssh", "false", "--", "sh", "-c", SHOW, env=env)
        assert a.exit() == 0 and a.says("rank 0 of 1"), a


def test_two_jobs_that_wait_for_each_other(rdzv):
    """Two halves of one job have different names. While they wait, each agent names the other half."""
    d = rdzv.daemon()
    halves = [rdzv.agent("--endpoint", d.endpoint, "--nnodes", 2, "--rdzv-id", name, "--join-timeout", "6s", "--", "true") for name in ("mine", "theirs")]
    for half, other in zip(halves, ("theirs", "mine")):
        half.expect(rf"1 of 2 nodes is here .*; job {other} of the same user waits here for 2 nodes too: if both are one job, give both the same --rdzv-id$")
    assert [a.exit() for a in halves] == [73, 73], rdzv
