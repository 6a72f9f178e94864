# SPDX-License-Identifier: Apache-2.0
"""Shared by the steps of tests/gpu/run: where things are, processes with a deadline, jobs of rdzv-trainer, and their metrics."""

import copy
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
STOP_S = 10  # for whom we ask to end
# Of programs, in a build.
PLACES = {"rdzv-trainer": "agent/trainer", "rdzv-agent": "agent", "rdzv-nccl": "agent", "rdzv-devices": "agent", "rdzvd": "daemon", "rdzvctl": "daemon", "test_compute_seam": "tests/unit",
          "librdzv.so.0": "agent/sdk", "test_coll_nccl": "tests/unit", "device-rates": "tests/gpu", "device-rates-fake": "tests/fakegpu"}
ONE_DEVICE = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": 1}  # ranks on one device, each a host of its own to NCCL, meet by sockets


class Skip(Exception):
    """This cannot be done here, and why."""


class Fail(Exception):
    """This was done, and is not as it should be; with the figures that there are."""

    def __init__(self, why, figures=None):
        super().__init__(why)
        self.figures = figures or {}


class Work:
    """One run: the options, the build, and what is under way."""

    def __init__(self, args):
        self.args, self.rehearse = args, args.rehearse
        self.device = "cuda" if args.cuda_module or not args.rehearse else "cpu"
        self.out = Path(args.out).resolve()
        self.build = Path(args.build or TOP / "build/gpu").resolve()
        self.carried = Path(args.deps).resolve() / "build" if args.deps and (Path(args.deps) / "build").exists() and not args.build else None
        self.libraries = self.cuda_libraries() if self.carried else []
        if self.carried and not self.why_not_carried():
            self.build = self.carried
        self.deadline, self.started, self.of_torch = 0, [], {}
        self.step = ""
        self.torch_lock = threading.Lock()
        self.devices = len(gpu_query("index") or []) if self.device == "cuda" and not self.rehearse else 0

    def fork(self):
        """For a step that runs beside others: with processes and a deadline of its own."""
        other = copy.copy(self)
        other.started = []
        return other

    # -- where things are

    def program(self, name):
        at = self.build / PLACES[name] / name
        if not at.exists():
            raise Fail(f"{at} is not built")
        return at

    def module(self):
        """rdzv-cuda.so, where it is not to be found by the trainer itself."""
        return Path(self.args.cuda_module).resolve() if self.args.cuda_module else None

    def cuda_module(self):
        return self.module() or self.build / "agent/trainer/gpu/rdzv-cuda.so"

    def file(self, name):
        """In the folder of this step."""
        folder = self.out / self.step
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name

    def env(self, **more):
        hidden = ("RDZV_", "MASTER_", "TORCHELASTIC", "PET_", "SLURM_")
        stand_ins = ("RDZV_NVML_LIBRARY", "RDZV_FAKE_NVML", "RDZV_CUDA_LIBRARY")  # of --dry
        env = {k: v for k, v in os.environ.items() if (k in stand_ins or not k.startswith(hidden)) and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
        # The python that has PyTorch comes first: NCCL and cuBLASLt may be its wheels.
        if self.libraries:
            env["LD_LIBRARY_PATH"] = ":".join([*self.libraries, *filter(None, [env.get("LD_LIBRARY_PATH")])])
        env.update(OMP_NUM_THREADS="1", PATH=f"{os.path.dirname(sys.executable)}:{env['PATH']}", **{k: str(v) for k, v in more.items()})
        return env

    def cuda_libraries(self):
        """The folders of cuBLASLt and NCCL on this machine: those of a build that was made elsewhere are where they were there."""
        env = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
        said = subprocess.run([sys.executable, TOP / "agent/trainer/gpu/find_cuda.py"], env=env, capture_output=True, text=True, timeout=60).stdout
        return [*re.findall(r"^(?:cublas|nccl)_folder=(/\S+)", said, re.M), str(self.carried.parent / "lib")]

    def why_not_carried(self):
        """Why what --prepare built cannot be used here, or nothing."""
        programs = [self.carried / at / name for name, at in PLACES.items() if (self.carried / at / name).exists()]
        p = subprocess.run(["ldd", *programs, self.carried / "agent/trainer/gpu/rdzv-cuda.so"], env=self.env(), capture_output=True, text=True, timeout=30)
        bad = re.search(r"\S+ => not found|version `\S+' not found[^\n]*", p.stdout + p.stderr)
        return bad[0] if bad else "" if p.returncode == 0 else last_line(p.stderr or p.stdout)

    # -- processes

    def left(self):
        return max(0.1, self.deadline - time.monotonic())

    def start(self, argv, log, env=None, out=None):
        """In a session of its own, which stop() ends."""
        with open(log, "ab") as f:
            p = subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=out or f, stderr=f, env=env or self.env(), start_new_session=True)
        self.started.append(p)
        return p

    def call(self, argv, name, env=None, ok=(0,)):
        """Until it ends; what it printed. Its messages are in the log."""
        log = self.file(name + ".log")
        with open(log.with_suffix(".out"), "w+b") as out:
            p = self.start(argv, log, env, out)
            try:
                rc = p.wait(self.left())
            except subprocess.TimeoutExpired:
                self.stop(p)
                raise Fail(f"{name} did not end in time; {log} has what it said")
            out.seek(0)
            text = out.read().decode(errors="replace")
        if rc not in ok:
            raise Fail(f"{name} ended with {rc}: {last_words(log, text)} ({log})")
        return text

    def stop(self, p):
        """An agent takes its workers with it; what is left of the session is killed."""
        if p.poll() is None:
            p.terminate()
            try:
                p.wait(STOP_S)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        p.wait()

    def stop_all(self):
        for p in self.started:
            if p.poll() is None:
                self.stop(p)
        self.started = []

    def torch(self, specs, name):
        """Runs torch_side.py on a list of things to do, in one process since its start costs seconds."""
        spec = self.file(name + ".spec.json")
        spec.write_text(json.dumps(specs))
        text = self.call([sys.executable, HERE / "torch_side.py", spec], name)
        return json.loads(text.splitlines()[-1])

    def torch_facts(self):
        """What PyTorch says of itself; "why" where it cannot be used here. An import that did not end in time is asked for again by the next step."""
        with self.torch_lock:
            if self.of_torch:
                return self.of_torch
            missing = [m for m in ("torch", "numpy") if not importlib.util.find_spec(m)]
            try:
                found = {"why": f"{missing[0]} is not installed"} if missing else self.torch([{"do": "facts"}], "torch-facts")[0]
            except Fail as e:
                return {"why": f"PyTorch cannot be used: {e}"}
            if not self.rehearse and found.get("devices") == 0:
                found["why"] = f"PyTorch {found['torch']} has no CUDA device"
            self.of_torch.update(found)
            return self.of_torch

    def lacks_torch(self):
        """Why nothing can be laid beside PyTorch, or nothing."""
        return self.torch_facts().get("why")

    # -- the trainer

    def on_device(self, precision="fp32"):
        """Options that say where to compute, and how; None: that is said already."""
        return ["--device", self.device, *(["--precision", precision] if precision else []), *(["--cuda-module", self.module()] if self.module() else [])]

    def of_agent(self):
        """Options of an agent whose trainers use NCCL."""
        if self.device == "cpu":
            return []
        return ["--nccl-ids", "always", *(["--nccl-library", self.nccl()] if self.nccl() else [])]

    def nccl(self):
        """The library that the module uses: the agents have to mint ids with the same, wherever it is."""
        if self.module():
            stand_in = self.module().parent / "libnccl.so.2"
            return stand_in if stand_in.exists() else None
        said = subprocess.run(["ldd", self.cuda_module()], env=self.env(), capture_output=True, text=True, timeout=30).stdout
        found = re.search(r"libnccl\.so\S* => (/\S+)", said)
        return found and found[1]

    def train(self, options, name, world=1, **env):
        """To the end; the lines of its metrics. World 1: without an agent."""
        metrics = self.file(name + ".jsonl")
        metrics.unlink(missing_ok=True)
        if world == 1:
            self.call([self.program("rdzv-trainer"), *options, "--metrics", metrics], name, self.env(**env))
        else:
            job = Job(self, world, [*options, "--metrics", metrics], name, **env)
            try:
                job.wait()
            finally:
                job.close()
        return lines(metrics)


def each(things, call):
    """{name: what call(name, thing) gave}, and what failed: a failure does not keep the others from their answers."""
    found, bad = {}, []
    for name, thing in things.items():
        try:
            found[name] = call(name, thing)
        except Fail as e:
            bad.append(str(e))
            found.update({name: e.figures} if e.figures else {})
    return found, bad


def last_line(text):
    said = text.strip().splitlines()
    return said[-1][:300] if said else "without a word"


def last_words(log, text=""):
    return last_line(text + Path(log).read_text(errors="replace"))


def lines(path):
    """Of a metrics file: whole lines; the last one may be half written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def curve(found):
    """{step: loss}; a step that was made again after a failure has its last loss."""
    return {line["step"]: line["loss"] for line in found if line["event"] == "step"}


def apart(a, b):
    """The greatest relative difference of two curves over the same steps."""
    if set(a) != set(b):
        raise Fail(f"curves of {len(a)} and {len(b)} steps")
    if any(v is None for v in [*a.values(), *b.values()]):
        raise Fail("a loss is not a number")
    return max(abs(a[k] - b[k]) / max(abs(b[k]), 1e-12) for k in a)


def ms_per_step(found):
    """The median over the reports after the first third: where start-up and capture are over. None if there are too few."""
    steps = [line for line in found if line["event"] == "step"]
    steps = steps[len(steps) // 3 :]
    each = [(b["time"] - a["time"]) * 1e3 / (b["step"] - a["step"]) for a, b in zip(steps, steps[1:])]
    if not each:
        raise Fail("too few steps were reported to say how long one takes")
    return statistics.median(each)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Job:
    """A world of ranks on this machine: an agent for each. With a device for each rank they are one host to NCCL, which then uses NVLink, NVLS and shared
    memory. Otherwise each is a host of its own, so that several may use one device. program: what the agents run instead of rdzv-trainer."""

    def __init__(self, work, world, options, name, agent=(), program=(), **env):
        self.work, self.name, self.mark = work, name, f"gpurun-{os.getpid()}-{time.monotonic_ns()}"
        meet = f"127.0.0.1:{free_port()}"
        self.agents = []
        for i in range(world):
            # Devices are not asked for: each agent would wait for the memory that the others use.
            argv = [work.program("rdzv-agent"), "--nnodes", world, "--nproc", 1, "--endpoint", meet, "--rdzv-id", self.mark, "--node-rank", i, "--device-timeout", 0, *work.of_agent(), *agent]
            place = {"CUDA_VISIBLE_DEVICES": i} if work.devices >= world else {"NCCL_HOSTID": f"node-{i}", **ONE_DEVICE}
            own = work.env(GPURUN_MARK=f"{self.mark}-{i}", XDG_CONFIG_HOME=str(work.file("config")), **place, **env)
            self.agents.append(work.start([*argv, "--", *program, *options], work.file(f"{name}-{i}.log"), own))

    def wait(self):
        """Until all agents have ended, well."""
        for i, p in enumerate(self.agents):
            try:
                rc = p.wait(self.work.left())
            except subprocess.TimeoutExpired:
                raise Fail(f"{self.name}: agent {i} did not end in time ({self.work.file(self.name)}-{i}.log)")
            if rc:
                log = self.work.file(f"{self.name}-{i}.log")
                raise Fail(f"{self.name}: agent {i} ended with {rc}: {last_words(log)} ({log})")

    def running(self):
        return all(p.poll() is None for p in self.agents)

    def worker(self, rank):
        """The pid of a rank's trainer, or None."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                if Path(f"/proc/{name}/comm").read_text().strip() == "rdzv-trainer" and f"GPURUN_MARK={self.mark}-{rank}\0".encode() in Path(f"/proc/{name}/environ").read_bytes():
                    return int(name)
            except OSError:
                continue
        return None

    def close(self):
        for p in self.agents:
            self.work.stop(p)


def gpu_query(what, apps=False):
    """Rows of nvidia-smi, or None where there is none."""
    if not shutil.which("nvidia-smi"):
        return None
    p = subprocess.run(["nvidia-smi", f"--query-{'compute-apps' if apps else 'gpu'}={what}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=30)
    return [[cell.strip() for cell in row.split(",")] for row in p.stdout.splitlines() if row.strip()] if p.returncode == 0 else None


def memory_used():
    """MiB on all devices; None where nobody can say."""
    rows = gpu_query("memory.used")
    return sum(float(r[0]) for r in rows) if rows else None
