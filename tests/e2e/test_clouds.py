# SPDX-License-Identifier: Apache-2.0
"""Clouds: two nodes with the variables that each cloud documents, and the commands of deploy/clouds.md. Nothing but the environment is made up."""

import json
import re
import shlex
import subprocess

import pytest

import harness
import pages

yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
PAGE = "deploy/clouds.md"
SHOW = 'echo "rank $RANK of $WORLD_SIZE local $LOCAL_RANK of $LOCAL_WORLD_SIZE in $RDZV_RUN_ID"'


def skypilot(name, hosts, gpus=2):
    for rank in range(len(hosts)):
        yield {"SKYPILOT_NODE_IPS": "\n".join(hosts), "SKYPILOT_NODE_RANK": f"{rank}", "SKYPILOT_NUM_NODES": f"{len(hosts)}",
               "SKYPILOT_NUM_GPUS_PER_NODE": f"{gpus}", "SKYPILOT_TASK_ID": name}


def dstack(name, hosts, gpus=2):
    for rank in range(len(hosts)):
        yield {"DSTACK_NODES_IPS": "\n".join(hosts), "DSTACK_NODE_RANK": f"{rank}", "DSTACK_NODES_NUM": f"{len(hosts)}", "DSTACK_MASTER_NODE_IP": hosts[0],
               "DSTACK_GPUS_PER_NODE": f"{gpus}", "DSTACK_GPUS_NUM": f"{gpus * len(hosts)}", "DSTACK_RUN_NAME": name}


def batch(name, hosts, gpus=2):
    """It reports no GPUs: those are counted that are visible."""
    for rank in range(len(hosts)):
        yield {"AWS_BATCH_JOB_NUM_NODES": f"{len(hosts)}", "AWS_BATCH_JOB_NODE_INDEX": f"{rank}", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
               "AWS_BATCH_JOB_ID": f"{name}#{rank}", "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))),
               **({"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": hosts[0]} if rank else {})}


def sagemaker(name, hosts, gpus=2):
    for host in hosts:
        config = {"current_host": host, "hosts": hosts, "network_interface_name": "eth0"}
        yield {"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": host, "SM_NUM_GPUS": f"{gpus}", "SM_RESOURCE_CONFIG": json.dumps(config),
               "TRAINING_JOB_NAME": name, "TRAINING_JOB_ARN": f"arn:aws:sagemaker:eu-central-1:123456789012:training-job/{name}"}


CLOUDS = {"SkyPilot": skypilot, "dstack": dstack, "AWS Batch": batch, "SageMaker": sagemaker}
KIND = {"SkyPilot": "sky", "dstack": "dstack", "AWS Batch": "batch", "SageMaker": "sagemaker"}


def port_of(job):
    """The one that agents derive from a job's name."""
    h = 2166136261
    for byte in job.encode():
        h = (h ^ byte) * 16777619 % 2**32
    return 16384 + h % 16384


def new_name(cloud):
    return next(name for name in (f"train-{i}" for i in range(1000)) if harness.take_port(port_of(f"{KIND[cloud]}-{name}")))


def check_places(agents, job):
    lines = [l for a in agents for l in a.out]
    places = {int(m[1]): m[2] for l in lines if (m := re.search(r"rank (\d+) (of .*)", l))}
    assert places == {r: f"of 4 local {r % 2} of 2 in {job}" for r in range(4)}, lines
    for i, a in enumerate(agents):
        assert a.says(f"2 nodes, 4 workers; this is node {i} "), a


@pytest.mark.parametrize("cloud", CLOUDS)
def test_two_nodes_need_no_option(rdzv, cloud):
    """Here, without root: two names of this host are two nodes."""
    name = new_name(cloud)
    agents = [rdzv.agent("--", "sh", "-c", SHOW, env=env) for env in CLOUDS[cloud](name, ["127.0.0.1", "localhost"])]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    check_places(agents, f"{KIND[cloud]}-{name}")


@pytest.mark.parametrize("cloud", CLOUDS)
def test_two_hosts_need_no_option(rdzv, lan, cloud):
    """The second one is up before the first."""
    name = new_name(cloud)
    hosts = ["node1", "node2"] if cloud == "SageMaker" else ["10.99.0.1", "10.99.0.2"]
    envs = list(CLOUDS[cloud](name, hosts))
    second = rdzv.agent("--", "sh", "-c", SHOW, env=envs[1], wrap=lan[1])
    second.expect("nothing listens|the agent there has not started")
    agents = [rdzv.agent("--", "sh", "-c", SHOW, env=envs[0], wrap=lan[0]), second]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    check_places(agents, f"{KIND[cloud]}-{name}")


def commands():
    """(cloud, the words that it runs) of each file on the page."""
    for b in pages.blocks(PAGE):
        if b.lang != "yaml":
            continue
        d = yaml.safe_load(b.text)
        if "num_nodes" in d:
            yield "SkyPilot", shlex.split(d["run"]), d["num_nodes"], "RDZV_KEY" in d["secrets"]
        elif d.get("type") == "task":
            (line,) = d["commands"]
            yield "dstack", shlex.split(line), d["nodes"], "RDZV_KEY" in d["env"]
        elif d.get("type") == "multinode":
            (nodes,) = d["nodeProperties"]["nodeRangeProperties"]
            yield "AWS Batch", nodes["container"]["command"], d["nodeProperties"]["numNodes"], nodes["container"]["secrets"][0]["name"] == "RDZV_KEY"
        else:
            yield "SageMaker", d["AlgorithmSpecification"]["ContainerEntrypoint"], d["ResourceConfig"]["InstanceCount"], "RDZV_KEY" in d["Environment"]


def test_each_cloud_has_a_file():
    assert [c[0] for c in commands()] == list(CLOUDS) and all(c[2] == 2 and c[3] for c in commands())


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_key(rdzv, cloud):
    """The page's key and its command, on nodes without a home folder that they share."""
    (line,) = pages.lines(PAGE, "key")
    drawn = subprocess.run(["sh", "-c", f'{line}\nprintf %s "$RDZV_KEY"'], capture_output=True, text=True, check=True).stdout
    assert re.fullmatch("[0-9a-f]{64}", drawn)
    (rdzv.tmp / "train.py").write_text('#!/bin/sh\n' + SHOW + '\necho "key ${RDZV_KEY-none}"\n')
    (rdzv.tmp / "train.py").chmod(0o755)
    (words,) = [c[1] for c in commands() if c[0] == cloud]
    assert words[0] == "rdzv-agent"
    name = new_name(cloud)
    homes = [rdzv.tmp / f"home{i}" for i in range(2)]
    envs = CLOUDS[cloud](name, ["127.0.0.1", "localhost"])
    # Not Python: its options are what matters here.
    agents = [rdzv.agent("--no-python", *words[1:], env={**env, "XDG_CONFIG_HOME": str(home), "RDZV_KEY": drawn}) for env, home in zip(envs, homes)]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    check_places(agents, f"{KIND[cloud]}-{name}")
    assert [l.split("] ")[1] for a in agents for l in a.out if "key" in l] == ["key none"] * 4, rdzv
    assert not any(home.exists() for home in homes)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_what_was_read_is_explained(rdzv, cloud):
    """Each conclusion has its variable behind it, and the page names them all."""
    named = set(re.findall(r"`([A-Z0-9_]{3,})`", "".join(l for l in (pages.TOP / PAGE).read_text().splitlines() if l.startswith("| ["))))
    for env in CLOUDS[cloud]("train", ["10.0.0.1", "10.0.0.2"] if cloud != "SageMaker" else ["algo-1", "algo-2"]):
        a = rdzv.agent("--explain", "--", "true", env=env)
        assert a.exit() == 0, a
        lines = dict(l.split(" ", 1) for l in a.out if " " in l)
        for line, value in {"nnodes": "2:2", "nproc": "2", "job": f"'{KIND[cloud]}-train'", "endpoint": r"\S+:\d+", "order-key": r"\d"}.items():
            assert re.match(rf"{value}  # \w+=", lines[line]), (line, lines[line])
        assert named >= {m for l in a.out for m in re.findall(r"\b((?:SKYPILOT|DSTACK|AWS_BATCH|SM|TRAINING)_[A-Z0-9_]+)=", l)} != set(), a


REFUSED = {
    "no list": (skypilot, ["SKYPILOT_NODE_IPS"], {}, r"SkyPilot started 2 agents, but does not report the host of the first: give --endpoint HOST"),
    "a list of nothing": (skypilot, [], {"SKYPILOT_NODE_IPS": "?"}, r'SKYPILOT_NODE_IPS is not a list of hosts: "\?" is not a host name: it is ignored'),
    "a rank alone": (skypilot, ["SKYPILOT_NODE_IPS", "SKYPILOT_NUM_NODES"], {}, r"SkyPilot does not report how many agents it started: give --nnodes N and --endpoint HOST, the same to all"),
    "a contradiction": (dstack, [], {"DSTACK_NODES_NUM": "3"}, r"DSTACK_NODES_NUM=3 contradicts DSTACK_NODES_IPS, which names 2: neither is used"),
    "no master": (dstack, ["DSTACK_NODES_IPS", "DSTACK_MASTER_NODE_IP"], {}, r"dstack started 2 agents, but does not report the host of the first: give --endpoint HOST"),
    "a count that is none": (batch, [], {"AWS_BATCH_JOB_NUM_NODES": "two"}, r"AWS_BATCH_JOB_NUM_NODES=two is not a number from 1 to \d+: it is ignored"),
    "no main node": (batch, ["AWS_BATCH_JOB_MAIN_NODE_INDEX"], {}, r"AWS Batch started 2 agents, but does not report the host of the first: give --endpoint HOST"),
    "no id": (batch, ["AWS_BATCH_JOB_ID"], {}, r"AWS Batch started 2 agents, but sets no job id from which to derive a port: give --endpoint HOST:PORT"),
    "no JSON": (sagemaker, ["SM_RESOURCE_CONFIG"], {"SM_HOSTS": "algo-1,algo-2"}, r'SM_HOSTS=algo-1,algo-2 is not a list of hosts, as in \["algo-1","algo-2"\]: it is ignored'),
    "another host": (sagemaker, [], {"SM_CURRENT_HOST": "algo-9"}, r"SM_CURRENT_HOST=algo-9 is not one of the 2 nodes of SM_HOSTS: neither is used"),
    "an ARN alone": (sagemaker, ["SM_HOSTS", "SM_RESOURCE_CONFIG", "SM_CURRENT_HOST"], {}, r"SageMaker does not report how many agents it started: give --nnodes N"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_nobody_starts_alone(rdzv, case):
    """Half of the variables, or some that contradict each other: one sentence, and exit code 64. --standalone is the user's own word."""
    cloud, missing, other, sentence = REFUSED[case]
    env = {k: v for k, v in {**next(iter(cloud("train", ["algo-1", "algo-2"]))), **other}.items() if k not in missing}
    a = rdzv.agent("--", "true", env=env)
    assert a.exit() == 64 and a.says(sentence), a
    assert a.says("give --(endpoint|nnodes)"), a
    a = rdzv.agent("--standalone", "--", "true", env=env)
    assert a.exit() == 0, a


def test_one_node_of_a_cloud(rdzv):
    """A task of one node is a job of one, with its GPUs."""
    for cloud in CLOUDS:
        (env,) = CLOUDS[cloud](new_name(cloud), ["127.0.0.1"])
        a = rdzv.agent("--", "sh", "-c", SHOW, env=env)
        assert a.exit() == 0 and len([l for l in a.out if " of 2 local " in l]) == 2, a


def test_torchruns_line_of_the_clouds_pages(rdzv):
    """As SkyPilot's and dstack's own pages have it: typed words go before the variables, and agree with them."""
    port = harness.free_port()
    agents = [rdzv.agent("--nnodes", 2, "--nproc-per-node", 2, "--node-rank", i, "--master-addr", "127.0.0.1", "--master-port", port, "--", "sh", "-c", SHOW, env=env)
              for i, env in enumerate(skypilot("train", ["127.0.0.1", "localhost"]))]
    assert [a.exit() for a in agents] == [0, 0], rdzv


def test_an_agent_of_a_worker_is_not_a_node(rdzv):
    """A worker of a cloud's job that starts an agent: the variables are about the node."""
    env = next(iter(skypilot(new_name("SkyPilot"), ["127.0.0.1", "localhost"])))
    a = rdzv.agent("--standalone", "--nproc", 1, "--", harness.AGENT, "--", "sh", "-c", SHOW, env=env)
    assert a.exit() == 0 and a.says("rank 0 of 1"), a
