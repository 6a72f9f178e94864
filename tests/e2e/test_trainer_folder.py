# SPDX-License-Identifier: Apache-2.0
"""The owner of a checkpoint folder: one job at a time writes to it, no run removes its own checkpoints, and a checkpoint of another run is recognized."""

import os
import re
import signal

import pytest

from harness import until
from trainer_world import SMALL, STOP, TRAINER, Run, train


def names(folder):
    """Whole checkpoints, oldest first."""
    return sorted(p.parent.name for p in folder.glob("*/COMMIT"))


def steps(folder):
    return [int(name[-12:]) for name in names(folder)]


def refused(args, world=None, code=65, **kw):
    """It ends at once with that code; the sentence of rank 0."""
    with Run(args, world, **kw) as run:
        codes, _, errs = run.wait(60)
    assert codes[0] == code, (codes, errs)
    return errs[0]


# ---- which is newer -------------------------------------------------------------------------------------------------


def test_a_run_by_hand_keeps_what_it_wrote(tmp_path):
    """After a run under the agent, in the same folder. Names of lives sort as they like."""
    args = SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10]
    train(args + ["--steps", 40], 2)
    assert steps(tmp_path) == [20, 30, 40]
    out = train(args + ["--steps", 100])
    assert "at step 40" in out["stderr"] and steps(tmp_path) == [80, 90, 100], names(tmp_path)


def test_a_clock_that_was_ahead(tmp_path):
    """The later life of the job has a name that sorts below that of the earlier one."""
    args = SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10]
    train(args + ["--steps", 40], 2, incarnation="ffff00000000-1")
    train(args + ["--steps", 100], 2, incarnation="000000000001-1")
    assert steps(tmp_path) == [80, 90, 100], names(tmp_path)
    assert "at step 100" in train(args + ["--steps", 110], 2, incarnation="000000000001-1", round_=2)["stderr"]


def test_another_runs_checkpoints_stay(tmp_path):
    args = SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10, "--keep-checkpoints", 1]
    train(args + ["--steps", 20])
    train(args + ["--steps", 30, "--resume", "none"])
    train(args + ["--steps", 40])
    assert steps(tmp_path) == [20, 40], names(tmp_path)


# ---- whose it is ----------------------------------------------------------------------------------------------------


def test_two_runs_at_once(tmp_path):
    """The second job names the holder and ends without a restart. The first job loses nothing."""
    args = SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10]
    with Run(args + ["--steps", 100000, "--throttle", 200], 2) as first:
        first.until_step(25)
        for world, kw in ((None, {}), (1, {"incarnation": "20990101T000000-other", "run_id": "other"})):
            err = refused(args + ["--steps", 50, "--resume", "none"], world, **kw)
            assert re.search(rf"{tmp_path} is in use by another run \(job test, round 1, pid {first.workers[0].pid} on ", err), err
        until("the first run goes on", lambda: steps(tmp_path)[-1:] >= [60], 30)
        first.workers[0].send_signal(signal.SIGTERM)
        assert first.wait(20)[0] == [75, 75]
    assert all("-20260101T000000-test-" in name for name in names(tmp_path))
    assert not os.path.lexists(tmp_path / ".lock")


def test_a_later_round_does_not_wait_for_the_earlier_one(tmp_path):
    """Rank 0 of the first round is stopped, as on a host that was cut off. It writes nothing when it goes on."""
    args = SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10, "--throttle", 200]
    args += ["--steps", 100000]
    ours = lambda: all("-r000002-" in name for name in names(tmp_path))
    with Run(args, 1) as first:
        first.until_step(25)
        first.workers[0].send_signal(signal.SIGSTOP)
        with Run(args, 1, round_=2) as second:
            second.until_step(40)
            first.workers[0].send_signal(signal.SIGCONT)
            (code,), _, (err,) = first.wait(30)
            assert code == 66 and re.search(r"was taken by another run \(job test, round 2, pid \d+ on .*\): this run no longer writes", err), err
            # The folder is the second round's as long as that one runs.
            until(lambda: f"only its own stay: {names(tmp_path)}", lambda: names(tmp_path) and ours(), 30)
            second.workers[0].send_signal(signal.SIGTERM)
            assert second.wait(60)[0] == [75]
    assert ours(), names(tmp_path)


def test_another_job_has_taken_the_folder(tmp_path):
    """As after a stop of more than CKPT_STALE_MS: the first job writes nothing more and ends without a restart."""
    args = SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10, "--throttle", 200]
    with Run(args + ["--steps", 100000], 1) as first:
        until("a checkpoint", lambda: steps(tmp_path), 30)
        new = tmp_path / "new"
        new.symlink_to("rdzv-trainer job other incarnation 20250101 round 1 generation 9 host far boot away space 1 pid 4711 started 1")
        new.rename(tmp_path / ".lock")
        before = names(tmp_path)
        (code,), _, (err,) = first.wait(30)
    assert code == 65 and re.search(r"was taken by another run \(job other, round 1, pid 4711 on far\): this run no longer writes there. Give each job a --checkpoint-dir", err), err
    assert len(names(tmp_path)) - len(before) <= 1, "at most the one that was being written"
    assert os.path.lexists(tmp_path / ".lock"), "it is not ours"


def test_a_lock_that_a_killed_run_left(tmp_path):
    args = SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10]
    with Run(args + ["--steps", 100000, "--throttle", 200]) as run:
        until("a checkpoint", lambda: steps(tmp_path), 30)
        run.workers[0].send_signal(signal.SIGKILL)
        run.wait()
    assert os.path.lexists(tmp_path / ".lock")
    out = train(args + ["--steps", 1000])
    assert "resumed from" in out["stderr"] and "waiting" not in out["stderr"] and not os.path.lexists(tmp_path / ".lock")


def test_a_lock_that_a_power_cut_left(tmp_path):
    """Of a host that is not there any more: the same job goes on at once, another one as soon as the lock is old."""
    args = SMALL + ["--checkpoint-dir", tmp_path, "--steps"]
    lock = tmp_path / ".lock"
    text = "rdzv-trainer job test incarnation 20250101 round 7 generation 4 host dark boot gone space 1 pid 4711 started 1"
    train(args + [20])
    lock.symlink_to(text)
    assert "waiting" not in train(args + [30], 1)["stderr"] and not os.path.lexists(lock)
    assert names(tmp_path)[-1].startswith("000005-"), "the generation that the dead one had claimed is not used twice"
    lock.symlink_to(text)
    os.utime(lock, (1, 1), follow_symlinks=False)
    assert "waiting" not in train(args + [40])["stderr"] and not os.path.lexists(lock)


# ---- what it goes on from -------------------------------------------------------------------------------------------


def test_a_run_with_other_options_is_refused(tmp_path):
    args = SMALL + ["--checkpoint-dir", tmp_path]
    train(args + ["--steps", 20], 2)
    (newest,) = names(tmp_path)
    for world in (None, 1):
        err = refused(args + ["--steps", 30, "--lr", 0.01, "--eps", 1e-6], world, **({"incarnation": "x", "run_id": "other"} if world else {}))
        assert "was made with other options (--lr 0.001 there and 0.01 here, --eps 1e-08 there and 1e-06 here)" in err, err
        assert f"checkpoint {tmp_path}/{newest} of another run" in err and "use those options, or start over with --resume none" in err
    assert names(tmp_path) == [newest]
    assert "at step 20" in train(args + ["--steps", 30])["stderr"], "the same options: another job goes on"


def test_the_same_job_goes_on_with_other_options_and_says_so(tmp_path):
    args = SMALL + ["--checkpoint-dir", tmp_path]
    train(args + ["--steps", 20], 2)
    err = train(args + ["--steps", 30, "--lr", 0.01], 2, incarnation="20260102T000000-test")["stderr"]
    assert re.search(r"was made with other options \(--lr 0.001 there and 0.01 here\); it belongs to this job \(test\)", err), err


def test_a_restart_of_a_run_that_began_anew(tmp_path):
    """--resume none is where the job begins; its next round goes on."""
    args = SMALL + ["--checkpoint-dir", tmp_path, "--resume", "none", "--checkpoint-every", 10]
    train(args + ["--steps", 100], 2, incarnation="20250101")
    assert "resumed" not in train(args + ["--steps", 20], 2)["stderr"]
    assert "at step 20" in train(args + ["--steps", 40], 2, round_=2)["stderr"]
    assert steps(tmp_path)[-1] == 40


# ---- what is not a checkpoint ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["COMMIT", "model.safetensors"])
def test_a_pipe_is_not_waited_for(tmp_path, file):
    args = SMALL + ["--checkpoint-dir", tmp_path]
    train(args + ["--steps", 40, "--checkpoint-every", 20])
    pipe = tmp_path / names(tmp_path)[-1] / file
    pipe.unlink()
    os.mkfifo(pipe)
    with Run(args + ["--steps", 60]) as run:
        (code,), _, (err,) = run.wait(20)
    assert code == 0 and f"{pipe} is not a regular file" in err and "at step 20" in err, err


# ---- a disk without room --------------------------------------------------------------------------------------------


def fill(path):
    """To the last byte."""
    with open(path, "wb", buffering=0) as f:
        try:
            while True:
                f.write(b"x" * 4096)
        except OSError:
            pass


def test_a_full_disk_heals(small_disk):
    """The run goes on without checkpoints, never removes its only one, and writes again when there is room."""
    args = SMALL + ["--checkpoint-dir", small_disk / "c", "--checkpoint-every", 10, "--keep-checkpoints", 1]
    with Run(args + ["--steps", 100000, "--throttle", 200], 2) as run:
        there = lambda: f"{sorted(p.name for p in small_disk.glob('*/*'))}, the ranks' exit codes are {[w.poll() for w in run.workers]}"
        until(lambda: f"one checkpoint; there is {there()}", lambda: len(names(small_disk / "c")) == 1, 30)
        for ballast in "ballast", "more":  # an old checkpoint may have been removed while the first one was written
            fill(small_disk / ballast)
            run.until_step(run.agent.progress.get(0, (0,))[0] + 30)
        kept = steps(small_disk / "c")
        assert len(kept) == 1
        until(lambda: f"what was begun is removed; there is {there()}", lambda: not list(small_disk.glob("c/.tmp-*")), 10)
        (small_disk / "ballast").unlink()
        (small_disk / "more").unlink()
        until(lambda: f"the next one; there is {there()}", lambda: steps(small_disk / "c")[-1:] > kept, 30)
        run.workers[0].send_signal(signal.SIGTERM)
        codes, _, errs = run.wait(20)
    assert codes == [75, 75], errs
    assert errs[0].count("No space left on device") == 1 and "tries again at the next checkpoint" in errs[0], errs[0]
    assert len(names(small_disk / "c")) == 1


def test_a_disk_that_stays_full(small_disk):
    """At the end the checkpoint is needed, and the one before stays. The same run begins on the full disk, and ends well once there is room."""
    args = SMALL + ["--checkpoint-dir", small_disk / "c", "--keep-checkpoints", 1]
    train(args + ["--steps", 20])
    fill(small_disk / "ballast")
    for _ in range(2):
        assert "No space left on device" in refused(args + ["--steps", 40, "--checkpoint-every", 5], code=66)
        assert steps(small_disk / "c") == [20]
    (small_disk / "ballast").unlink()
    assert "at step 20" in train(args + ["--steps", 40])["stderr"] and steps(small_disk / "c") == [40]


def test_what_a_dead_writer_left_makes_room(small_disk):
    args = SMALL + ["--checkpoint-dir", small_disk / "c", "--keep-checkpoints", 1]
    train(args + ["--steps", 20])
    torn = small_disk / "c/.tmp-000001-alone-r000001-s000000000030-77"
    torn.mkdir()
    fill(torn / "model.safetensors")
    out = train(args + ["--steps", 40])
    assert "at step 20" in out["stderr"] and steps(small_disk / "c") == [40] and not torn.exists()


# ---- a folder that is gone ------------------------------------------------------------------------------------------


def test_every_rank_reports_what_is_written(tmp_path):
    """So that the agents of all nodes know of it, should rank 0 be on another one in the next round."""
    with Run(SMALL + ["--checkpoint-dir", tmp_path, "--checkpoint-every", 10, "--steps", 100000, "--throttle", 200], 3) as run:
        for rank in range(3):
            until("it reports", lambda rank=rank: len(run.agent.saved.get(rank, [])) >= 3, 30)
        run.agent.request(STOP)
        run.wait(20)
    written = set(run.agent.saved[0])
    assert all(set(run.agent.saved[rank]) <= written and not [s for s in run.agent.saved[rank] if s % 10] for rank in (1, 2)), run.agent.saved


def test_a_job_does_not_begin_again_without_a_word(tmp_path):
    """A round after one that wrote checkpoints finds none. A job that has written none begins."""
    args = SMALL + ["--checkpoint-dir", tmp_path / "c", "--steps", 20]
    with Run(args, 2, round_=2, saved_step=400) as run:
        codes, _, errs = run.wait(30)
    assert codes == [65, 82], errs
    assert f"checkpoint directory {tmp_path}/c has no checkpoint, but this job wrote one of step 400" in errs[0], errs
    assert "resumed" not in train(args, 2, round_=3)["stderr"]
    err = train(SMALL + ["--checkpoint-dir", tmp_path / "c", "--steps", 30], 2, round_=4, saved_step=400)["stderr"]
    assert "resuming from step 20, although this job wrote a checkpoint of step 400" in err, err


def job(rdzv, *words, restarts=3):
    return rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", restarts, "--", *SMALL, "--checkpoint-dir", rdzv.tmp / "c", "--checkpoint-every", 10, *words)


def test_a_folder_that_vanishes(rdzv):
    """The agent remembers the step; the job ends, with its restarts unused but for the one of the failed write."""
    a = job(rdzv, "--steps", 100000, "--throttle", 200)
    until("a checkpoint", lambda: names(rdzv.tmp / "c"), 30)
    (rdzv.tmp / "c").rename(rdzv.tmp / "away")
    assert a.exit(60) == 65, a
    assert a.says(r"has no checkpoint, but this job wrote one of step [1-9]\d*0; restore the folder") and a.says("restart 1 of 3"), a
    assert not a.says("restart 2 of 3"), a


def test_another_models_checkpoint_is_final(rdzv):
    assert job(rdzv, "--steps", 20).exit(60) == 0
    a = job(rdzv, "--steps", 40, "--layers", "60,13,60")
    assert a.exit(60) == 65 and a.says("made with --layers 60,12,60") and not a.says("restart 1"), a


@pytest.mark.parametrize("shared", [True, False])
def test_rank_0_moves_to_another_node(rdzv, shared):
    """With a folder that both nodes see the other one resumes; with private folders it says what is missing."""
    folder = "c" if shared else "c.$E2E_NODE"
    script = f"exec {TRAINER} {' '.join(map(str, SMALL))} --checkpoint-dir {rdzv.tmp}/{folder} --checkpoint-every 10 --throttle 200 --steps $(cat {rdzv.tmp}/steps)"
    (rdzv.tmp / "steps").write_text("100000")
    agents = rdzv.agents(2, rdzv.daemon().endpoint, "--nnodes", "1:2", "--nproc", 1, "--last-call", "5s", "--", "sh", "-c", script)
    for a in agents:
        a.expect("round 1: 2 nodes", 30)
    head = next(i for i, a in enumerate(agents) if a.says("this is node 0"))
    seen = rdzv.tmp / ("c" if shared else f"c.{head}")
    until("checkpoints, and reports of the first of them", lambda: steps(seen)[-1:] >= [80], 30)
    (rdzv.tmp / "steps").write_text(str(steps(seen)[-1] + 100))
    agents[head].kill(signal.SIGKILL)
    other = agents[1 - head]
    assert other.exit(60) == (0 if shared else 65), rdzv
    if shared:
        assert other.says(r"resumed from .*-r000001-s\d+ at step [1-9]") and not other.says("is held by"), other
    else:
        assert other.says(rf"checkpoint directory {rdzv.tmp}/c.{1 - head} has no checkpoint, but this job wrote one of step [1-9]"), other
