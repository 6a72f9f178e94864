# SPDX-License-Identifier: Apache-2.0
"""The first steps of tests/gpu/run: what breaks first on a machine that this code has never seen, and what PyTorch's users need.

What describes the machine is kept whatever happens: nvidia-smi -q and topo -m, the paths of libraries, and NCCL_DEBUG=INFO of the first job."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import steps
import work as w
from work import Fail, Skip

TORCH_STEPS, DIES_AT = 30, 11
HUNG = 67  # the agent's exit code


def keep_evidence(work):
    for name, argv in (("nvidia-smi-q", ["nvidia-smi", "-q"]), ("nvidia-smi-topo", ["nvidia-smi", "topo", "-m"]), ("ldd", ["ldd", work.cuda_module()])):
        if shutil.which(argv[0]):
            with open(work.file(name + ".out"), "wb") as f:
                subprocess.run(list(map(str, argv)), stdout=f, stderr=f, timeout=60, env=work.env())


def smoke(work):
    """One rank, then two with a captured step, without and with --slow-ranks."""
    keep_evidence(work)
    model = steps.TINY if work.rehearse else steps.MLP
    (images, _), first = steps.make_data(work, model), steps.make_weights(work, model)
    graphs = ["--cuda-graph", "on"] if work.device == "cuda" else []
    options = [*steps.trainer_options(model, images, steps=20, init_weights=first, metrics_every=1), *work.on_device(), *graphs]
    alone = w.curve(work.train(options, "smoke-1"))
    two = w.curve(work.train(options, "smoke-2", 2, NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=str(work.file("nccl.%h.%p.log"))))
    watched = w.curve(work.train(options, "smoke-slow-ranks", 2, RDZV_AGENT_SLOW_RANKS="3m"))  # librdzv-nccl-profiler.so in a real NCCL, to ncclCommDestroy
    far = max(w.apart(two, alone), w.apart(watched, alone))
    if far > steps.RANKS_APART or alone[20] >= alone[1]:
        raise Fail(f"2 ranks are {far:.2g} apart from 1, whose loss went from {alone[1]:.3g} to {alone[20]:.3g}")
    return f"20 steps{', captured,' if graphs else ''} by 1 and 2 ranks: at most {far:.1g} apart", {"apart": far}


# ---- PyTorch --------------------------------------------------------------------------------------------------------


def torch_job(work, mode):
    """The loss behind the last step, summed over two ranks, one of which is killed on the way."""
    if work.lacks_torch():
        raise Skip(work.lacks_torch())
    folder = work.file(mode)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    env = {"PYTHONPATH": str(w.TOP / "deploy/python"), "RDZV_LIBRARY": str(work.program("librdzv.so.0")), "DIE": DIES_AT}
    options = [folder, TORCH_STEPS, "gloo" if work.rehearse else "nccl", mode]
    job = w.Job(work, 2, options, mode, agent=["--max-restarts", 2, "--warm", "off"], program=[w.HERE / "torch_job.py"], **env)
    try:
        job.wait()
    finally:
        job.close()
    logs = [work.file(f"{mode}-{i}.log").read_text(errors="replace") for i in range(2)]
    done = [re.search(r"done: (\S+)", text) for text in logs]
    if not all(done) or "SIGKILL" not in logs[1] or (mode == "inplace" and "stayed in place" not in logs[0]):
        raise Fail(f"{mode}: a rank did not end, rank 1 was not killed, or rank 0 did not stay in place ({work.file(mode)}-0.log)")
    return float(done[0][1])


def torch_nccl(work):
    """DDP under rdzv-agent, killed: restarted from a file, and in place from the other rank. No step is lost or made twice, so both end with one loss."""
    said = {"restarted": torch_job(work, "restarted"), "in place": torch_job(work, "inplace")}
    one, two = said.values()
    if abs(one - two) > 1e-4 * abs(one):
        raise Fail(f"the losses differ: {one:.9g} behind a restart, {two:.9g} in place", said)
    return f"{'gloo' if work.rehearse else 'NCCL'}, 2 ranks, one killed: a restart and one in place end with the loss {one:.6g}", said


# ---- rdzv-devices, and what waits for memory ------------------------------------------------------------------------


def ask_devices(work, name="devices"):
    found = json.loads(work.call([work.program("rdzv-devices")], name))
    if "devices" not in found:
        raise Fail(f"rdzv-devices found none: {found}")
    return found["devices"]


def devices(work):
    """rdzv-devices beside nvidia-smi."""
    theirs = w.gpu_query("uuid,name,memory.total,memory.used")
    if theirs is None:
        raise Skip("nvidia-smi is not installed")
    from_ms = time.monotonic()
    ours = ask_devices(work)
    took = (time.monotonic() - from_ms) * 1e3
    for one, (uuid, name, total, used) in zip(ours, theirs):
        if (one.get("uuid"), one.get("name")) != (uuid, name) or abs(one.get("total_mib", 0) - float(total)) > 1024 or abs(one["used_mib"] - float(used)) > 1024:
            raise Fail(f"rdzv-devices has {one}; nvidia-smi {uuid}, {name}, {total}, {used}")
    if len(ours) != len(theirs):
        raise Fail(f"rdzv-devices has {len(ours)} GPUs, nvidia-smi {len(theirs)}")
    return f"{len(ours)} as nvidia-smi has them, in {took:.0f} ms", {"devices": len(ours), "ms": took}


class Holder:
    """A process that computes on the first device until it is ended."""

    def __init__(self, work):
        self.work, self.script = work, os.environ.get("RDZV_FAKE_NVML")
        (images, _) = steps.make_data(work, steps.TINY)
        options = [*steps.trainer_options(steps.TINY, images, steps=10**9), *work.on_device(), "--throttle", "100"]
        self.p = work.start([work.program("rdzv-trainer"), *options], work.file("holder.log"))
        if self.script:  # the stand-in for NVML sees no processes
            self.say(f"process {self.p.pid} 600")
        while not any(p["pid"] == self.p.pid for p in ask_devices(work, "held")[0]["processes"]):
            if self.p.poll() is not None or work.left() <= 1:
                raise Fail(f"the process that holds the device is not listed: {w.last_words(work.file('holder.log'))}")
            time.sleep(0.2)

    def say(self, line):
        """Replaces what the stand-in says of processes."""
        with open(self.script) as f:
            kept = [text for text in f if not text.startswith("process ")]
        with open(self.script + ".new", "w") as f:
            f.write(kept[0] + (line + "\n" if line else "") + "".join(kept[1:]))
        os.replace(self.script + ".new", self.script)

    def end(self):
        self.work.stop(self.p)
        if self.script:
            self.say("")


def agent_alone(work, name, script, *options, ok=(0,)):
    argv = [work.program("rdzv-agent"), "--standalone", "--nproc", "gpu", "-v", *options, "--", "sh", "-c", script]
    work.call(argv, name, work.env(FOLDER=str(work.file(""))), ok=ok)
    return work.file(name + ".log").read_text(errors="replace")


def busy(work):
    """--exclude-busy leaves out what another process computes on. A worker is started again when its device's memory is back."""
    if w.gpu_query("uuid") is None:
        raise Skip("nvidia-smi is not installed")
    holder, count = Holder(work), len(ask_devices(work))
    try:
        text = agent_alone(work, "excluded", "true", "--exclude-busy", ok=(0, 79))
        if not re.search(rf"pid {holder.p.pid} \(", text):
            raise Fail(f"--exclude-busy did not name pid {holder.p.pid} ({work.file('excluded.log')})")
    finally:
        holder.end()
    for name in ("began", "go"):
        work.file(name).unlink(missing_ok=True)
    # The first round ends while another process has the memory, which it gives back a moment later.
    script = '[ "$RDZV_ROUND" != 1 ] && exit 0; touch "$FOLDER/began"; until [ -e "$FOLDER/go" ]; do sleep 0.1; done; exit 1'
    argv = [work.program("rdzv-agent"), "--standalone", "--nproc", "gpu", "-v", "--max-restarts", 1, "--", "sh", "-c", script]
    p = work.start(argv, work.file("waited.log"), work.env(FOLDER=str(work.file("began").parent)))
    while not work.file("began").exists():
        if p.poll() is not None or work.left() <= 1:
            raise Fail(f"the first round did not begin: {w.last_words(work.file('waited.log'))}")
        time.sleep(0.05)
    holder = Holder(work)
    work.file("go").touch()
    time.sleep(3)
    still = p.poll() is None
    holder.end()
    try:
        rc = p.wait(work.left())
    except subprocess.TimeoutExpired:
        raise Fail(f"the job did not go on when the memory was free ({work.file('waited.log')})") from None
    text = work.file("waited.log").read_text(errors="replace")
    if rc or not still or "devices are free after" not in text:
        raise Fail(f"the job ended with {rc}, {'and' if still else 'but did not wait,'} said: {w.last_line(text)} ({work.file('waited.log')})")
    return f"--exclude-busy named the holder, {count} device{'s' * (count != 1)}; a restart waited for its memory", {"devices": count}


# ---- the pair check over NCCL ---------------------------------------------------------------------------------------


def ask_pairs(work, meet, env):
    """rdzvctl check, while two of three nodes are here."""
    while True:
        text = work.call([work.program("rdzvctl"), "check", "pairs", "--json", "--endpoint", meet], "check", env, ok=(0, 1, 69, 72))
        told = json.loads(text)
        if told["ok"]:
            return told
        if work.left() <= 1:
            raise Fail(f"no check began: {told['text']}")
        time.sleep(0.2)


def pairs(work):
    """NCCL refuses two ranks on one device unless their NCCL_HOSTID differs."""
    if work.device == "cpu":
        raise Skip("this machine has no GPU")
    before, meet = w.memory_used(), f"127.0.0.1:{w.free_port()}"
    library = os.environ.get("RDZV_CUDA_LIBRARY") or work.nccl()
    env = [work.env(XDG_CONFIG_HOME=str(work.file("config")), CUDA_VISIBLE_DEVICES=0, NCCL_HOSTID=f"node-{i}", **w.ONE_DEVICE) for i in range(2)]
    argv = [work.program("rdzv-agent"), "--nnodes", 3, "--nproc", 1, "--endpoint", meet, "--rdzv-id", "pairs", "--device-timeout", 0, *(["--nccl-library", library] if library else [])]
    for i in range(2):
        work.start([*argv, "--", "true"], work.file(f"pairs-{i}.log"), env[i])
    told = ask_pairs(work, meet, env[0])
    work.stop_all()
    (pair,) = told["pairs"]
    if pair["over"] != "NCCL" or "text" in pair:
        raise Fail(f"{pair.get('text', '')} {told['sentence']} ({work.file('pairs-0.log')})", told)
    after = w.memory_used()
    if before is not None and after > before + 64:
        raise Fail(f"{after - before:.0f} MiB are still in use behind the check", told)
    speeds = [pair["bytes"] / pair[way] / 1e3 for way in ("out_us", "in_us")]
    return f"{pair['bytes']} bytes at {speeds[0]:.3g} and {speeds[1]:.3g} GB/s, {pair['rtt_us']} us there and back, in {told['took_ms'] / 1e3:.1f} s", told


# ---- a rank that is stopped -----------------------------------------------------------------------------------------


def ras(work):
    """The verdict names the stopped rank, with what NCCL knows of it."""
    (images, _), verdict = steps.make_data(work, steps.TINY), work.file("verdict.json")
    verdict.unlink(missing_ok=True)
    options = [*steps.trainer_options(steps.TINY, images, steps=10**7, metrics=work.file("ras.jsonl"), metrics_every=1), *work.on_device(), "--throttle", "50"]
    work.file("ras.jsonl").unlink(missing_ok=True)
    job = w.Job(work, 2, options, "ras", agent=["--hang-timeout", "4s", "--max-restarts", 0, "--verdict-file", verdict])
    try:
        while len(w.lines(work.file("ras.jsonl"))) < 10:
            if not job.running() or work.left() <= 1:
                raise Fail(f"no step was reported: {w.last_words(work.file('ras-0.log'))}")
            time.sleep(0.05)
        os.kill(job.worker(1), signal.SIGSTOP)
        codes = [p.wait(work.left()) for p in job.agents]
    except subprocess.TimeoutExpired:
        raise Fail(f"the job did not end although a rank is stopped ({work.file('ras-0.log')})") from None
    finally:
        job.close()
    told = json.loads(verdict.read_text())["verdict"] if verdict.exists() else {}
    if HUNG not in codes or told.get("rank") != 1:
        raise Fail(f"the agents ended with {codes}, and the verdict is {told}")
    evidence = told.get("evidence")
    if not evidence and work.device == "cuda" and not work.rehearse:
        raise Fail(f"rank 1 was named, but NCCL gave no evidence: {told}", {"verdict": told})
    return f"rank 1 was named{', and NCCL said: ' + str(evidence) if evidence else '; stand-ins have no RAS'}", {"verdict": told}


STEPS = {"smoke": smoke, "torch-nccl": torch_nccl, "devices": devices, "busy": busy, "pairs": pairs, "ras": ras}
