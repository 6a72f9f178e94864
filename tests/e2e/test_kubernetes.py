# SPDX-License-Identifier: Apache-2.0
"""The manifests of deploy/kubernetes: what the schemas of Kubernetes, JobSet and Kubeflow Trainer say of them, whether they agree with the programs, and whether their commands
do what they are for.

There is no Kubernetes here. A pod is a process on a host of its own: a root folder with the image's programs and the pod's volumes, the pod's
name, user and variables, and process 1 of it, in one network namespace whose loopback has all pods' addresses and whose /etc/hosts stands for the cluster's DNS.
"""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import pages
from harness import BUILD, SANITIZED, TRAINER, until

yaml = pytest.importorskip("yaml", reason="python3-yaml is not installed")
TOP = pages.TOP
FOLDER = TOP / "deploy/kubernetes"
PAGE = "deploy/kubernetes.md"
FILES = sorted(p.name for p in FOLDER.glob("*.yaml"))
AGAIN = [69, 71, 73, 74, 75, 76, 78]
SINCE = {"jobset-in-place.yaml": "1.35"}  # Kubernetes; the others: 1.31
TRAINJOB = "train"  # whose pods are looked at for the runtime


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def jobs(doc):
    """(name, Job) of everything in a document that is one."""
    if doc["kind"] == "Job":
        return [(doc["metadata"]["name"], doc)]
    if doc["kind"] == "JobSet":
        return [(f"{doc['metadata']['name']}-{r['name']}-0", {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": r["name"]}, **r["template"]})
                for r in doc["spec"]["replicatedJobs"]]
    if doc["kind"] == "ClusterTrainingRuntime":
        return jobs({"kind": "JobSet", "metadata": {"name": TRAINJOB}, "spec": doc["spec"]["template"]["spec"]})
    return []


def image_user():
    """Whom the image runs as where nobody says it: (uid, gid), by number, which is all that kubelet can compare with root."""
    text = (TOP / "deploy/container/Containerfile").read_text()
    (user,) = re.findall(r"^USER (.*)$", text, re.M)
    uid, gid = user.split(":")
    assert f"useradd --create-home --uid {uid} " in text
    return int(uid), int(gid)


def pod_specs():
    """(file, its name, pod's spec) of all of them."""
    for name in FILES:
        for doc in documents(name):
            for job, d in jobs(doc):
                yield name, job, d["spec"]["template"]["spec"]
            if doc["kind"] == "StatefulSet":
                yield name, doc["metadata"]["name"], doc["spec"]["template"]["spec"]


def option(command, name):
    return next((w.split("=", 1)[1] for w in command if w.startswith(f"--{name}=")), None)


# ---- what they say -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, version", [(name, v) for name in FILES for v in ("1.31", "1.35") if v >= SINCE.get(name, v)])
def test_against_the_schemas(name, version):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed: tests/run --ci installs it")
    for doc in documents(name):
        for d in [d for _, d in jobs(doc)] or ([doc] if doc["kind"] != "TrainJob" else []):
            validate.validate(d, version, strict=True)
    # It would say so.
    broken = documents("rdzvd.yaml")[1]
    broken["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, version, strict=True)


def trainers_models():
    """Those of JobSet and Kubeflow Trainer, made of their OpenAPI documents: the package is Trainer's own, and has JobSet's as Trainer 2.3 uses it."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed: tests/run --ci installs it")
    return {"JobSet": models.JobsetV1alpha2JobSet, "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime, "TrainJob": models.TrainerV1alpha1TrainJob}


def lost(given, kept, place):
    """Where a model has dropped something. It adds defaults."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [p for k, v in given.items() for p in ([f"{place}.{k}"] if k not in kept else lost(v, kept[k], f"{place}.{k}"))]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [p for i, (g, k) in enumerate(zip(given, kept)) for p in lost(g, k, f"{place}[{i}]")]
    return [] if given == kept else [place]


@pytest.mark.parametrize("name, kinds", [("jobset.yaml", ["JobSet"]), ("jobset-in-place.yaml", ["JobSet"]), ("kubeflow.yaml", ["ClusterTrainingRuntime", "TrainJob"])])
def test_against_the_models_of_jobset_and_trainer(name, kinds):
    """Types are checked, and a field that the model does not know would be lost on the way through it."""
    models = trainers_models()
    assert [d["kind"] for d in documents(name)] == kinds
    for d in documents(name):
        assert lost(d, models[d["kind"]].from_dict(d).to_dict(), d["kind"]) == []
        # It would say so.
        broken = {**d, "spec": {**d["spec"], "failurePolice": {}}}
        assert lost(broken, models[d["kind"]].from_dict(broken).to_dict(), d["kind"]) == [f"{d['kind']}.spec.failurePolice"]
    broken = documents("jobset.yaml")[0]
    broken["spec"]["failurePolicy"]["maxRestarts"] = "three"
    with pytest.raises(ValueError):
        models["JobSet"].from_dict(broken)


@pytest.mark.parametrize("name", ["jobset.yaml", "jobset-in-place.yaml", "kubeflow.yaml"])
def test_jobset(name):
    """Names and words that the models above take as any text, and what JobSet's webhook asks for. All as of JobSet 0.13: api/jobset/v1alpha2/jobset_types.go,
    pkg/webhooks/jobset_webhook.go."""
    doc = documents(name)[0]
    assert doc["apiVersion"] == {"JobSet": "jobset.x-k8s.io/v1alpha2", "ClusterTrainingRuntime": "trainer.kubeflow.org/v1alpha1"}[doc["kind"]]
    spec = doc["spec"] if doc["kind"] == "JobSet" else doc["spec"]["template"]["spec"]
    names = [r["name"] for r in spec["replicatedJobs"]]
    policy = spec["failurePolicy"]
    for rule in policy["rules"]:
        assert rule["action"] in ("FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts") and set(rule.get("targetReplicatedJobs", [])) <= set(names)
        assert set(rule["onJobFailureReasons"]) <= {"BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy"}
    success = spec.get("successPolicy", {"operator": "All", "targetReplicatedJobs": []})
    assert success["operator"] in ("All", "Any") and set(success["targetReplicatedJobs"]) <= set(names)
    strategy = policy.get("restartStrategy", "Recreate")
    assert strategy == ("InPlaceRestart" if name == "jobset-in-place.yaml" else "Recreate")
    for r in spec["replicatedJobs"]:
        job, (c,) = r["template"]["spec"], r["template"]["spec"]["template"]["spec"]["containers"]
        if strategy == "InPlaceRestart":
            assert job["backoffLimit"] == 2**31 - 1 and job["podReplacementPolicy"] == "Failed" and job["completions"] == job["parallelism"]
        # What the kubelet does not restart is for podFailurePolicy: "again", or the verdict. No code is for both, and none for neither.
        if "restartPolicyRules" in c:
            (rule,) = c["restartPolicyRules"]
            assert c["restartPolicy"] == "Never" and rule == {"action": "Restart", "exitCodes": {"operator": "In", "values": AGAIN + [137, 143]}}
        assert ("restartPolicyRules" in c) == (strategy == "InPlaceRestart" and c["name"] == "agent")


def test_trainjob():
    """What Trainer 2.3 asks of a runtime with torch: pkg/runtime/framework/plugins/torch/torch.go, pkg/constants/constants.go."""
    runtime, job = documents("kubeflow.yaml")
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["name"] == "node" and node["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    (c,) = node["template"]["spec"]["template"]["spec"]["containers"]
    assert c["name"] == "node" and not {e["name"] for e in c["env"]} & {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
    assert job["spec"]["runtimeRef"] == {"name": runtime["metadata"]["name"]} and job["metadata"]["name"] == TRAINJOB
    assert job["spec"]["trainer"]["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"] == 2


def test_they_agree_with_the_programs():
    """Exit codes, ports, times and mounts."""
    codes = dict(re.findall(r"^\s*X\(\w+, (\d+), \"(.*?)\"\)", (TOP / "common/exit_codes.h").read_text(), re.M))
    assert all(int(c) in AGAIN for c, text in codes.items() if "requeue me" in text), codes
    seen = 0
    for name in FILES:
        for doc in documents(name):
            for _, job in jobs(doc):
                spec = job["spec"]
                if spec["template"]["spec"]["containers"][0]["name"] not in ("agent", "node"):
                    continue
                seen += 1
                again, verdict = [r["onExitCodes"] for r in spec["podFailurePolicy"]["rules"] if "onExitCodes" in r]
                assert again["values"] == AGAIN and verdict["values"] == AGAIN + [137, 143], name
                command = spec["template"]["spec"]["containers"][0]["command"]
                if doc["kind"] == "ClusterTrainingRuntime":
                    assert option(command, "nnodes") is None and "completions" not in spec  # both are numNodes
                    continue
                low, high = map(int, option(command, "nnodes").split(":"))
                assert 1 <= low < high == spec["completions"] == spec["parallelism"]
    assert seen == 4
    for name, pod, spec in pod_specs():
        (c,) = spec["containers"]
        stop = option(c["command"], "stop-timeout")
        assert spec["enableServiceLinks"] is False
        assert spec["terminationGracePeriodSeconds"] >= (int(stop.rstrip("s")) + 10 if stop else 3), pod
        mounted = {m["name"] for m in c["volumeMounts"]}
        claimed = {v["name"] for v in spec.get("volumes", [])}
        assert mounted - claimed <= ({"state"} if name == "rdzvd.yaml" else set()), pod
        if c["name"] == "rdzvd":
            assert c["ports"][0]["containerPort"] == 29400
            assert c["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": c["ports"][0]["name"]}
            assert c["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": c["ports"][0]["name"]}


def test_restricted():
    """The Pod Security Standard of that name, as Kubernetes 1.31 has it; and what a volume needs that is root's."""
    seen = 0
    for name, pod, spec in pod_specs():
        who, (c,) = spec["securityContext"], spec["containers"]
        assert who["runAsNonRoot"] is True and who["seccompProfile"]["type"] == "RuntimeDefault", (name, pod)
        assert (who["runAsUser"], who["runAsGroup"]) == image_user() and who["fsGroup"] == who["runAsGroup"], (name, pod)
        assert c["securityContext"]["allowPrivilegeEscalation"] is False and c["securityContext"]["capabilities"] == {"drop": ["ALL"]}, (name, pod)
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec) and not c["securityContext"].get("privileged"), (name, pod)
        kinds = {key for v in spec.get("volumes", []) for key in v} - {"name"}
        assert kinds <= {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}, kinds
        seen += 1
    assert seen == 7


def test_the_claims_are_there():
    """What a pod mounts by name is one of the manifests, for all pods at once, and the page says so."""
    made = {d["metadata"]["name"]: d["spec"] for name in FILES for d in documents(name) if d["kind"] == "PersistentVolumeClaim"}
    wanted = {v["persistentVolumeClaim"]["claimName"] for _, _, spec in pod_specs() for v in spec.get("volumes", []) if "persistentVolumeClaim" in v}
    assert wanted == set(made) and all(s["accessModes"] == ["ReadWriteMany"] for s in made.values())
    assert any("kubectl apply -f deploy/kubernetes/checkpoints.yaml" in b.text for b in pages.blocks(PAGE))


# ---- what they do ------------------------------------------------------------------------------------------------------

POD = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$ROOT"
for d in usr bin sbin lib lib32 lib64 etc; do
  if [ -L "/$d" ]; then cp -P "/$d" "$ROOT/$d"; elif [ -d "/$d" ]; then mkdir "$ROOT/$d"; mount --rbind "/$d" "$ROOT/$d"; fi
done
mount --bind "$IMAGE" "$ROOT/usr/local"
mkdir -p "$ROOT"/{proc,dev,tmp}
mount --rbind /proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
chmod 1777 "$ROOT/tmp"
while read -r from to; do mkdir -p "$ROOT$to"; mount --bind "$from" "$ROOT$to"; done <<<"$MOUNTS"
[ "$READONLY" = 0 ] || mount -o remount,ro "$ROOT"
hostname "$NAME"
who=$WHO
unset POD ROOT IMAGE MOUNTS READONLY NAME WHO
exec /usr/sbin/chroot "$WHERE" env -u WHERE setpriv $who "$@"
"""


class Cluster:
    def __init__(self, rdzv, tmp):
        self.rdzv, self.tmp = rdzv, tmp
        self.ns = f"rdzv-k8s-{os.getpid()}"
        self.hosts, self.pods = {}, {}

    def up(self):
        if os.geteuid() != 0 or not shutil.which("ip"):
            pytest.skip("pods of our own need root and ip(8)")
        done = subprocess.run(["ip", "netns", "add", self.ns], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no network namespaces here: {done.stderr.strip()}")
        self.etc = Path("/etc/netns") / self.ns
        self.etc.mkdir(parents=True, exist_ok=True)
        self.write_hosts()
        self.ip("link", "set", "lo", "up")
        root = self.tmp / "image"
        subprocess.run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet"], env=dict(os.environ, DESTDIR=str(root)), check=True, capture_output=True)
        self.image = next(root.rglob("bin/rdzvd")).parents[1]
        return self

    def ip(self, *args):
        subprocess.run(["ip", "-n", self.ns, *args], check=True)

    def write_hosts(self):
        (self.etc / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{ip} {name}\n" for name, ip in self.hosts.items()))

    def volume(self, pod, mount, spec):
        """Root's, as storage has it: everybody writes to an emptyDir, nobody else to what was claimed. Then kubelet gives it to the fsGroup."""
        v = next((v for v in spec.get("volumes", []) if v["name"] == mount["name"]), None)
        place = self.tmp / (v["persistentVolumeClaim"]["claimName"] if v and "persistentVolumeClaim" in v else f"{pod}-{mount['name']}")
        if not place.exists():
            place.mkdir()
            place.chmod(0o777 if v and "emptyDir" in v else 0o755)
        group = spec.get("securityContext", {}).get("fsGroup")
        if group is not None:
            os.chown(place, -1, group)
            place.chmod(place.stat().st_mode | 0o2770)
        return f"{place} {mount['mountPath']}"

    def who(self, spec):
        """Options of setpriv: the image's user unless the pod says another, fsGroup, and what a process is forbidden."""
        pod, (c,) = spec.get("securityContext", {}), spec["containers"]
        mine, (uid, gid) = c.get("securityContext", {}), image_user()
        uid = pod.get("runAsUser", uid)
        assert uid or not pod.get("runAsNonRoot"), "CreateContainerConfigError: container's runAsUser breaks non-root policy"
        words = [f"--reuid {uid}", f"--regid {pod.get('runAsGroup', gid)}", f"--groups {pod['fsGroup']}" if "fsGroup" in pod else "--clear-groups"]
        words += ["--no-new-privs"] if mine.get("allowPrivilegeEscalation") is False else []
        return " ".join(words + (["--bounding-set=-all"] if "ALL" in mine.get("capabilities", {}).get("drop", []) else []))

    def value(self, source, ip):
        """Of a variable: a fact of the pod, or the Secret that the page creates."""
        if "secretKeyRef" in source:
            assert source["secretKeyRef"] == {"name": "rdzv-key", "key": "key"}, source
            assert "create secret generic rdzv-key --from-file=key=" in (TOP / PAGE).read_text()
            return self.rdzv.key + "\n"
        return {"status.podIP": ip}[source["fieldRef"]["fieldPath"]]

    def start(self, pod, spec, dns, index=None, more=None, ip=None):
        """As kubelet would: address, name, variables, volumes, user. more: variables that a controller has added. ip: of a pod whose container starts again."""
        (c,) = spec["containers"]
        number = len(self.pods) + 2
        if not ip:
            ip = f"10.244.0.{number}"
            self.ip("addr", "add", f"{ip}/32", "dev", "lo")
        self.hosts.update({name: ip for name in (pod, *dns)})
        self.write_hosts()
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOSTNAME": pod, "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_PORT": "tcp://10.96.0.1:443"}
        if c["name"] == "rdzvd":
            env["RDZVD_LISTEN"] = f"{ip}:29400"  # every address would be those of the other pods too
        if index is not None:
            env["JOB_COMPLETION_INDEX"] = str(index)
        env.update(more or {})
        for e in c.get("env", []):
            env[e["name"]] = e["value"] if "value" in e else self.value(e["valueFrom"], ip)
        folder = self.tmp / f"root-{number}"
        folder.mkdir()
        inside = {"ROOT": str(folder), "WHERE": str(folder), "IMAGE": str(self.image), "NAME": pod, "WHO": self.who(spec), "POD": POD,
                  "READONLY": "1" if c.get("securityContext", {}).get("readOnlyRootFilesystem") else "0",
                  "MOUNTS": "\n".join(self.volume(pod, m, spec) for m in c["volumeMounts"])}
        p = self.rdzv.proc(["ip", "netns", "exec", self.ns, "unshare", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "bash", "-c", 'eval "$POD"', "pod", *c["command"], *c.get("args", [])],
                           env={**env, **inside, "E2E_MARK": self.rdzv.mark, "OPENBLAS_NUM_THREADS": "1"})
        self.rdzv.procs.append(p)
        self.pods[pod] = p
        p.ip, p.spec = ip, spec
        return p

    def restart(self, pod, dns, index=None):
        """Another pod of that name: it has another address."""
        old = self.pods.pop(pod)
        self.pods[f"{pod} at {old.ip}"] = old
        return self.start(pod, old.spec, dns, index)

    def again_in_place(self, pod, code, index):
        """The container's next life, where restartPolicyRules has one for that exit code: name, address and volumes stay."""
        old = self.pods.pop(pod)
        (c,) = old.spec["containers"]
        (rule,) = c["restartPolicyRules"]
        assert (code in rule["exitCodes"]["values"]) == (rule["exitCodes"]["operator"] == "In"), code
        self.pods[f"{pod}, life {len(self.pods)}"] = old
        return self.start(pod, old.spec, [], index, ip=old.ip)

    def main(self, pod):
        """The pod's process 1."""
        pid = self.pods[pod].pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text())

    def terminate(self, pod, signo=signal.SIGTERM):
        """As kubelet sends it: to process 1 alone."""
        os.kill(self.main(pod), signo)
        return self.pods[pod]

    def exec(self, pod, *argv):
        """kubectl exec: as the container's user."""
        inner = self.main(pod)
        owner = os.stat(f"/proc/{inner}")
        return subprocess.run(["nsenter", "-t", str(inner), "-S", str(owner.st_uid), "-G", str(owner.st_gid), "-m", "-n", "-u", "-p", f"--root=/proc/{inner}/root", "--wd=/", *argv], capture_output=True, text=True, timeout=30)

    def probe(self, pod, which):
        (c,) = self.pods[pod].spec["containers"]
        get = c[which]["httpGet"]
        port = next(p["containerPort"] for p in c["ports"] if p["name"] == get["port"])
        script = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).status)"
        done = subprocess.run(["ip", "netns", "exec", self.ns, "python3", "-c", script, f"http://{self.pods[pod].ip}:{port}{get['path']}"], capture_output=True, text=True)
        return done.stdout.strip() == "200"

    def down(self):
        subprocess.run(["ip", "netns", "del", self.ns], capture_output=True)
        shutil.rmtree(Path("/etc/netns") / self.ns, ignore_errors=True)


@pytest.fixture
def cluster(rdzv, tmp_path):
    if SANITIZED or not os.path.exists(TRAINER):
        pytest.skip("wants rdzv-trainer, and programs without a sanitizer")
    c = Cluster(rdzv, tmp_path)
    try:
        yield c.up()
    finally:
        for pod, p in c.pods.items():
            if p.running:
                c.terminate(pod, signal.SIGKILL)
        c.down()


def start_job(c, job, spec, longer=False):
    """All pods of an Indexed Job."""
    if longer:
        command = spec["containers"][0]["command"]
        command[command.index("--epochs=3")] = "--epochs=2000"
    return [c.start(f"{job}-{i}", spec, [], i) for i in range(int(option(spec["containers"][0]["command"], "nnodes").split(":")[1]))]


def test_indexed_job(cluster):
    """rdzvd.yaml and indexed-job.yaml: probes, ranks by index, a pod that is evicted and comes again, a daemon that is lost for good, the end."""
    c = cluster
    service, stateful = documents("rdzvd.yaml")
    (job,) = documents("indexed-job.yaml")
    daemon_spec, spec = stateful["spec"]["template"]["spec"], job["spec"]["template"]["spec"]
    assert stateful["spec"]["replicas"] == 2 and stateful["spec"]["podManagementPolicy"] == "Parallel"
    names = {pod: [f"{pod}.{service['metadata']['name']}"] for pod in ("rdzvd-0", "rdzvd-1")}
    daemon, standby = [c.start(pod, daemon_spec, dns) for pod, dns in names.items()]
    for pod in names:
        until(lambda: f"the daemon is ready:\n{c.pods[pod]}", lambda: c.probe(pod, "readinessProbe"))
        assert c.probe(pod, "livenessProbe")
    pods = start_job(c, "train", spec, longer=True)
    line = pods[0].expect(r"round (\d+): 4 nodes, 4 workers; this is node 0 with rank 0, node 0 is train-0 \((.*)\)", 20)
    assert line.group(2) == pods[0].ip
    for i, p in enumerate(pods):
        p.expect(f"this is node {i} with rank {i}")
    status = lambda pod="rdzvd-0": c.exec(pod, *pages.block(PAGE, "status").split(" -- ")[1].split()).stdout
    until(lambda: f"the job runs:\n{status()}", lambda: "k8s-train: running" in status() and "train-3" in status())
    # The daemon's pod dies with its node and is made anew elsewhere, with its volume: no worker notices.
    c.terminate("rdzvd-0", signal.SIGKILL).exit()
    daemon = c.restart("rdzvd-0", names["rdzvd-0"])
    daemon.expect("recovering -> running", 20)
    until(lambda: f"all are back:\n{status()}", lambda: re.search("running.*, round 1, 4 nodes", status()) and "away" not in status())
    # Evicted: SIGTERM, exit code 75, which the Job answers with another pod of that index; the others go on meanwhile.
    assert c.terminate("train-3").exit(30) == 75, pods[3]
    pods[0].expect(r"round 2: 3 nodes, 3 workers", 20)
    again = c.restart("train-3", [], 3)
    # It would join when the round is half a minute old.
    until(lambda: f"the other pod is there:\n{again}", lambda: re.search(r"train-3 .*spare", status()), 20)
    # Its node is lost: the job moves to the standby daemon, and stays there when the first one comes back.
    c.terminate("rdzvd-0", signal.SIGKILL).exit()
    pods[0].expect("the daemon on rdzvd-0.rdzvd did not answer for .*; rdzvd-1.rdzvd has taken over", 20)
    until(lambda: f"all are there:\n{status('rdzvd-1')}", lambda: all(f"train-{i}" in status("rdzvd-1") for i in range(4)), 20)
    daemon = c.restart("rdzvd-0", names["rdzvd-0"])
    daemon.expect("listens on")
    until(lambda: f"the first daemon knows where the job is:\n{status()}", lambda: "moved to the daemon on" in status(), 20)
    assert {p.exit(60) for p in [c.terminate(f"train-{i}") for i in range(4)]} == {75}, c.rdzv
    assert c.terminate("rdzvd-0").exit() == 0, daemon
    assert c.terminate("rdzvd-1").exit() == 0, standby
    for pod in names:
        assert '"job":"k8s-train"' in next(c.tmp.glob(f"{pod}-state/state/rdzvd.state")).read_text()


def test_jobset_runs(cluster):
    """The agents are there before their daemon; everybody ends with 0."""
    c = cluster
    (doc,) = documents("jobset.yaml")
    (daemon_name, daemon), (agents_name, agents) = jobs(doc)
    pods = start_job(c, agents_name, agents["spec"]["template"]["spec"])
    pods[0].expect("train-daemon-0-[01].train", 20)
    daemons = {}
    for i in range(daemon["spec"]["completions"]):
        pod = f"{daemon_name}-{i}"
        daemons[pod] = c.start(pod, daemon["spec"]["template"]["spec"], [f"{pod}.{doc['metadata']['name']}"])
        until(lambda: f"the daemon is ready:\n{daemons[pod]}", lambda: c.probe(pod, "readinessProbe"))
    assert option(pods[0].spec["containers"][0]["command"], "endpoint") == ",".join(f"{pod}.{doc['metadata']['name']}" for pod in daemons)
    assert [p.exit(90) for p in pods] == [0] * 4, c.rdzv
    assert any((c.tmp / "checkpoints").rglob("COMMIT"))
    for pod, d in daemons.items():
        assert c.terminate(pod).exit() == 0, d


def test_in_place(cluster):
    """An agent is killed, as by its memory limit: its container starts again in its pod, and the others keep theirs."""
    c = cluster
    (doc,) = documents("jobset-in-place.yaml")
    (daemon_name, daemon), (agents_name, agents) = jobs(doc)
    for i in range(daemon["spec"]["completions"]):
        pod = f"{daemon_name}-{i}"
        c.start(pod, daemon["spec"]["template"]["spec"], [f"{pod}.{doc['metadata']['name']}"])
        until(lambda: f"the daemon is ready:\n{c.pods[pod]}", lambda: c.probe(pod, "readinessProbe"))
    pods = start_job(c, agents_name, agents["spec"]["template"]["spec"], longer=True)
    pods[0].expect("round 1: 4 nodes, 4 workers", 20)
    inner = [c.main(f"{agents_name}-{i}") for i in range(3)]
    c.terminate(f"{agents_name}-3", signal.SIGKILL).exit()
    again = c.again_in_place(f"{agents_name}-3", 137, 3)
    pods[0].expect(r"round [23]: [34] nodes", 20)
    again.expect("this is node 3 ", 40)
    assert [c.main(f"{agents_name}-{i}") for i in range(3)] == inner, "the others' containers stay"
    assert {p.exit(60) for p in [c.terminate(f"{agents_name}-{i}") for i in range(4)]} == {75}, c.rdzv


def test_kubeflow_runs(cluster):
    """A TrainJob: the variables that Trainer adds for torch. The first pod's agent starts the daemon."""
    c = cluster
    runtime, job = documents("kubeflow.yaml")
    ((name, node),) = jobs(runtime)
    spec, n, train = node["spec"]["template"]["spec"], job["spec"]["trainer"]["numNodes"], job["metadata"]["name"]
    pods = []
    for i in reversed(range(n)):
        pet = {"PET_NNODES": f"{n}", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": f"{i}", "PET_MASTER_ADDR": f"{train}-node-0-0.{train}", "PET_MASTER_PORT": "29500"}
        pods.insert(0, c.start(f"{name}-{i}", spec, [f"{name}-{i}.{train}"], i, pet))
    pods[0].expect(r"round 1: 2 nodes, 2 workers; this is node 0 ", 20)
    assert [p.exit(90) for p in pods] == [0] * n, c.rdzv
    assert all(p.says(f"job k8s-{train}-node-0 ") for p in pods[:1]), c.rdzv
    assert any((c.tmp / "checkpoints").rglob("COMMIT"))
