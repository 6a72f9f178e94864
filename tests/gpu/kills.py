# SPDX-License-Identifier: Apache-2.0
"""The steps `kill-...` of tests/gpu/run: ranks die at random, again and again, by restart and in place, and nothing of it may be seen in the result.

Jobs go on one behind the other, each where the one before it ended, with two kills in each: the third would be made to wait, as rdzvd does with what
dies young. The run that nobody disturbed is the measure: every loss that was told is the same number, the last step is told, and the weights' checksum is the
same. What may be missing are lines: a device runs ahead of what rank 0 has written, so a rank 0 that is killed takes up to as many
lines with it as steps may be under way, though no step.

In kill-staggered a second rank dies some time behind the first: while the others wait for it, leave the round, or have just begun the next one.

In kill-memory nothing of all that ran may be left on the device; and a process that lives through two recoveries must not have more of it behind the second
than behind the first, and little more than before them, when what a broadcast needs was not loaded yet.
"""

import os
import random
import re
import signal
import statistics
import time

import steps
import work as w
from work import Fail

KILLS_EACH = 2
LEFT_MIB = 64  # what the device's memory may differ by, before and after, and what a first recovery may take
GROWN_MIB = 8  # what it may differ by behind one recovery and behind the next
LENGTH, LENGTH_STAGGERED = 60, 200  # steps of a job: 100 a second
STAGGERED = {3: (0, 0.05), 4: (0.005, 0.5)}  # ranks: seconds between two deaths, one pair in each job


class Follow:
    """A metrics file while it grows."""

    def __init__(self, path):
        self.path, self.at, self.found = path, 0, []

    def read(self):
        if self.path.exists():
            with open(self.path, "rb") as f:
                f.seek(self.at)
                for raw in f:
                    if not raw.endswith(b"\n"):
                        break
                    self.at += len(raw)
                    line = w.json.loads(raw)
                    if line["event"] == "step":
                        self.found.append(line)
        return self.found

    def until(self, work, job, what, good):
        """The first step line that is good."""
        seen = 0
        while True:
            over = not job.running()  # before its lines are read: the last ones come as it ends
            for line in self.read()[seen:]:
                seen += 1
                if good(line):
                    return line
            if over:
                raise Fail(f"the job ended while {what} was waited for: {w.last_words(work.file(job.name + '-0.log'))}")
            if work.left() <= 0.1:
                raise Fail(f"no {what} in time")
            time.sleep(0.002)


def kill_one(work, job, follow, rank):
    """The line of the first step that was done after it."""
    pid = job.worker(rank)
    if pid is None:
        raise Fail(f"rank {rank} has no process at step {follow.read()[-1]['step']}")
    now = time.time()
    os.kill(pid, signal.SIGKILL)
    # Lines that were on their way when the rank died do not count: the next round's do.
    was = follow.read()[-1]["round"]
    back = follow.until(work, job, "step after a kill", lambda line: line["round"] == was + 1 and line["time"] > now)
    return back, (back["time"] - now) * 1e3


def start(work, mode, options, metrics, last, name, world=2):
    more = ["--recovery", "inplace"] if mode == "inplace" else []
    return w.Job(work, world, [*options, *more, "--steps", last, "--metrics", metrics], name, agent=["--max-restarts", 1000])


def disturbed(work, mode, options, metrics, first, last, world=2):
    """One job, from step `first` to `last`, whose ranks are killed at random; the milliseconds until steps went on, for each."""
    r, took, every = random.Random(last), [], (last - first) // (KILLS_EACH + 1)
    job, follow = start(work, mode, options, metrics, last, mode, world), Follow(metrics)
    try:
        for k in range(KILLS_EACH):
            at = first + k * every + r.randrange(every // 4, every)
            follow.until(work, job, f"step {at}", lambda line: line["step"] >= at)
            took.append(kill_one(work, job, follow, r.randrange(world))[1])
        job.wait()
    finally:
        job.close()
    return took


def disturbed_twice(work, options, metrics, first, last, world, apart_s):
    """The same with one pair of deaths, the second so much later; the milliseconds from the second until steps went on."""
    r = random.Random(last)
    job, follow = start(work, "inplace", options, metrics, last, f"staggered-{world}", world), Follow(metrics)
    try:
        at = first + r.randrange((last - first) // 4, (last - first) // 2)
        follow.until(work, job, f"step {at}", lambda line: line["step"] >= at)
        one, two = r.sample(range(world), 2)
        was, pid = follow.read()[-1]["round"], job.worker(one)
        if pid is None:
            raise Fail(f"rank {one} has no process at step {follow.read()[-1]['step']}")
        os.kill(pid, signal.SIGKILL)
        time.sleep(apart_s)
        pid = job.worker(two)
        if pid is None:
            raise Fail(f"rank {two} has no process {apart_s * 1e3:.0f} ms behind the death of rank {one}")
        now = time.time()
        os.kill(pid, signal.SIGKILL)
        back = follow.until(work, job, "step behind two deaths", lambda line: line["round"] > was and line["time"] > now)
        job.wait()
    finally:
        job.close()
    return (back["time"] - now) * 1e3


# ---- what must be as if nothing had been ----------------------------------------------------------------------------


def ahead(work):
    """How many steps may be under way."""
    header = w.TOP / "agent/trainer/gpu/cuda_compute.h"
    return int(re.search(r"CUDA_DEPTH = (\d+)", header.read_text())[1]) if work.device == "cuda" else 1


def gaps(missing):
    """Lengths of the rows of steps that follow each other."""
    rows, last = [], None
    for step in sorted(missing):
        if last is not None and step == last + 1:
            rows[-1] += 1
        else:
            rows.append(1)
        last = step
    return rows


def ending(found):
    ends = [line for line in found if line["event"] == "end"]
    return (ends[-1]["step"], ends[-1]["checksum"]) if ends else None


def compare(mode, found, calm, kills, depth):
    """How many lines are missing; Fail for anything that is not as in the calm run."""
    want, told = w.curve(calm), [line for line in found if line["event"] == "step"]
    for line in told:
        if line["loss"] != want.get(line["step"]):
            raise Fail(f"{mode}: step {line['step']}, in round {line['round']}, has loss {line['loss']}; undisturbed it is {want.get(line['step'])}")
    rows = gaps(set(want) - {line["step"] for line in told})
    if len(rows) > kills or max(rows, default=0) > depth:
        raise Fail(f"{mode}: {kills} kills took {len(rows)} times lines with them, {max(rows)} at once; {depth} at once are what the device may be ahead")
    if told[-1]["step"] != max(want) or ending(found) != ending(calm):
        raise Fail(f"{mode}: it ended with {ending(found)}, last told step {told[-1]['step']}; undisturbed {ending(calm)}")
    return sum(rows)


# ---- kills in a row -------------------------------------------------------------------------------------------------


def killed_often(work, mode, options, jobs, length, until):
    """Job after job, as many as there is time for; then a calm run as long as they were."""
    metrics, took, end = work.file(f"{mode}.jsonl"), [], 0
    own = [*options, "--resume", "auto", "--throttle", "100", "--checkpoint-dir", work.file(f"{mode}-ckpt"), "--checkpoint-every", "10"]
    for k in range(jobs):
        began = time.monotonic()
        took += disturbed(work, mode, own, metrics, k * length, (k + 1) * length)
        end = (k + 1) * length
        if time.monotonic() + 1.5 * (time.monotonic() - began) > until:
            break
    calm = work.train([*options, "--steps", end], f"{mode}-calm", 2)
    lost = compare(mode, w.lines(metrics), calm, len(took), ahead(work))
    first = took[::KILLS_EACH]  # the others wait for rdzvd's delay after short rounds too
    return {"kills": len(took), "median_ms": statistics.median(first), "max_ms": max(first), "lines_lost": lost}


# ---- memory ---------------------------------------------------------------------------------------------------------


def survive(work, options, victim):
    """MiB in use: before a kill, behind the first recovery, behind the second; the other rank has lived through both."""
    name, used = f"survivor-{1 - victim}", []
    metrics = work.file(f"{name}.jsonl")
    # Slow: nvidia-smi may take a second, and what is captured must have been captured.
    job, follow = start(work, "inplace", [*options, "--throttle", "100" if work.rehearse else "20"], metrics, 100000, name), Follow(metrics)
    try:
        back = {"step": 0, "round": 0}
        for _ in range(KILLS_EACH + 1):
            follow.until(work, job, "step between kills", lambda line: line["step"] >= back["step"] + 20 and line["round"] >= back["round"])
            used.append(w.memory_used())
            if len(used) <= KILLS_EACH:
                back, _ = kill_one(work, job, follow, victim)
    finally:
        job.close()
    return used


def survivors(work, options):
    """({survivor: MiB}, what is wrong with them)"""
    def one(name, victim):
        used = survive(work, options, victim)
        if used[2] - used[1] > GROWN_MIB or used[2] - used[0] > LEFT_MIB:
            raise Fail(f"{name} lived through two recoveries, and the device had {used[0]:.0f} MiB in use before, {used[1]:.0f} behind the first, {used[2]:.0f} behind the second", used)
        return used

    return w.each({"rank 0": 1, "rank 1": 0}, one)


def free_again(before, patience_s=15):
    """MiB that are left on the devices."""
    end = time.monotonic() + patience_s
    while (left := w.memory_used() - before) > LEFT_MIB and time.monotonic() < end:
        time.sleep(0.2)
    return left


def of_memory(work, options, before, said):
    """What is wrong with the memory."""
    said["survivors_mib"], bad = survivors(work, options)
    left = said["memory_left_mib"] = free_again(before)
    return bad + ([f"{left:.0f} MiB more are in use on the device than before"] if left > LEFT_MIB else [])


def prepared(work):
    """Options of every job."""
    model = steps.TINY if work.rehearse else steps.MLP
    (images, _), weights = steps.make_data(work, model), steps.make_weights(work, model)
    return [*steps.trainer_options(model, images, init_weights=weights, metrics_every=1), *work.on_device(), *(["--deterministic"] if work.device == "cuda" else [])]


def in_words(name, v):
    return f"{name} {v['median_ms']:.0f} ms (most {v['max_ms']:.0f}; {v['kills']} kills, {v['lines_lost']} lines lost, losses and checksum as undisturbed)"


def kill_by(work, mode):
    jobs = max(1, work.args.kills // KILLS_EACH)
    v = killed_often(work, mode, prepared(work), jobs, LENGTH, time.monotonic() + work.left())
    return "until steps went on: " + in_words(mode, v), v


def staggered(work, options, world):
    metrics, took, end = work.file(f"staggered-{world}.jsonl"), [], 0
    own = [*options, "--resume", "auto", "--throttle", "100", "--checkpoint-dir", work.file(f"staggered-{world}-ckpt"), "--checkpoint-every", "10"]
    length = LENGTH if work.rehearse else LENGTH_STAGGERED
    for apart_s in STAGGERED[world][: 1 if work.rehearse else None]:
        took.append(disturbed_twice(work, own, metrics, end, end + length, world, apart_s))
        end += length
    calm = work.train([*options, "--steps", end], f"staggered-{world}-calm", world)
    lost = compare(f"{world} ranks", w.lines(metrics), calm, 2 * len(took), ahead(work))
    return {"kills": 2 * len(took), "median_ms": statistics.median(took), "max_ms": max(took), "lines_lost": lost}


def kill_staggered(work):
    options = prepared(work)
    said, bad = w.each({f"{world} ranks": world for world in STAGGERED}, lambda name, world: staggered(work, options, world))
    told = [in_words(name, v) for name, v in said.items()]
    if bad:
        raise Fail("; ".join(bad + told), said)
    return "until steps went on behind two deaths: " + "; ".join(told), said


def kill_memory(work):
    before = w.memory_used() if work.device == "cuda" else None
    if before is None:
        raise w.Skip("nvidia-smi says nothing of a device's memory")
    said = {}
    bad = of_memory(work, prepared(work), before, said)
    if bad:
        raise Fail("; ".join(bad), said)
    return "no device memory left over, and no more of it behind a second recovery than behind the first", said


STEPS = {"kill-restart": lambda work: kill_by(work, "restart"), "kill-inplace": lambda work: kill_by(work, "inplace"), "kill-staggered": kill_staggered, "kill-memory": kill_memory}
