# SPDX-License-Identifier: Apache-2.0
"""module_world.py CASE: a worker that uses the Python module as the guide describes it. tests/interop/test_python_module.py starts it."""

import os
import signal
import sys
import threading
import time

import rdzv


def everything():
    with rdzv.init() as job:
        assert rdzv.init() is job and (job.rank, job.world_size) == (int(os.environ["RANK"]), 2)
        assert (rdzv.local_rank, rdzv.node_count, rdzv.round, rdzv.run_id, rdzv.alone) == (job.rank, 1, 1, os.environ["RDZV_RUN_ID"], False)
        assert rdzv.end_time == 4102444800 and rdzv.saved_step == 0
        assert rdzv.exchange(b"ab" * job.rank) == [b"", b"ab"] and rdzv.exchange(b"x", "again") == [b"x", b"x"]
        s = rdzv.store
        s.set(f"k{job.rank}", f"v{job.rank}\0")
        assert (s.get("k0"), s.get("k1")) == (b"v0\0", b"v1\0") and s.try_get("k2") is None
        s.wait(["k0", "k1"], 10)
        assert s.check(["k0", "k1"]) and not s.check(["k0", "k2"])
        rdzv.barrier()
        assert s.add("n", 2) in (2, 4)
        rdzv.barrier()
        assert s.add("n", 0) == 4
        rdzv.barrier()
        if job.rank == 0:
            assert s.compare_set("c", "", "1") == b"1" and s.compare_set("c", b"0", b"2") == b"1" and s.compare_set("c", "1", "2") == b"2"
            s.append("c", "3")
            s.multi_set(["a", "b"], ["A", b"\0B"])
            assert s.multi_get(["a", "b", "c"]) == [b"A", b"\0B", b"23"] and s.delete_key("a") and not s.delete_key("a")
            assert {"b", "c", "k0", "k1", "n"} <= set(s.list_keys()) and s.num_keys() >= 5
            s.queue_push("q", b"")
            s.queue_push("q", "2")
            assert s.queue_len("q") == 2 and s.queue_pop("q") == b"" and s.queue_pop("q") == b"2"
            try:
                s.queue_pop("q", block=False)
            except rdzv.Error as e:
                assert "the queue is empty" in str(e)
        rdzv.barrier()
        if job.rank == 0:
            for call, sentence in [(lambda: rdzv.barrier("late", 0.2), 'barrier "late": rank 1 did not come within 200 ms'),
                                   (lambda: s.get("none", 0.2), 'store get "none": it did not come within 200 ms')]:
                try:
                    call()
                except TimeoutError as e:
                    assert isinstance(e, rdzv.Timeout) and str(e) == sentence, e
                else:
                    raise AssertionError(sentence)
        rdzv.barrier("end")
        rdzv.progress(7, of=7, loss=0.25, samples=1)
        print("all is well", flush=True)


def threads():
    """Rank 0's main thread waits in a barrier, and another thread for a key. Further threads report and use the store meanwhile."""
    job = rdzv.init()
    if job.rank == 1:
        job.store.get("reported", 60)
        job.store.set("held", "1")
        job.barrier("gate", 60)
        return

    held = []
    waits = threading.Thread(target=lambda: held.append(job.store.get("held", 60)))
    waits.start()

    def report(n):
        for i in range(200):
            rdzv.progress(n * 200 + i, loss=1.0, samples=1)

    def work():
        reports = [threading.Thread(target=report, args=(n,)) for n in range(4)]
        for t in reports:
            t.start()
        for t in reports:
            t.join()
        assert rdzv.requested() == rdzv.Request(0) and not held
        rdzv.saved(5)
        rdzv.store.set("reported", "1")  # rank 1 comes to the barrier only now

    threading.Thread(target=work).start()
    job.barrier("gate", 60)
    waits.join()
    print("held", held, flush=True)


def interrupted():
    """Ctrl-C in the middle of a wait of ten minutes."""
    job = rdzv.init()
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        job.store.get("never", 600)
    except KeyboardInterrupt:
        print(f"interrupted after {time.monotonic() - began:.1f} s", flush=True)
    job.progress(1)  # what needs no wait still works


def forked():
    job = rdzv.init()
    pid = os.fork()
    if pid == 0:
        try:
            job.progress(1)
        except rdzv.Error as e:
            print(e, flush=True)
        print("in the child: rank", rdzv.rank, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)


def watched():
    """Steps with loss and speed, until the agent asks to stop."""
    job = rdzv.init()
    with rdzv.Checkpoints() as checkpoints:
        step = 0
        while True:
            step += 1
            time.sleep(0.02)
            if step % 10 == 0:
                job.barrier("epoch")
            job.progress(step, of=100000, loss=0.125, samples=64)
            if checkpoints.due(step):
                with open(f"saved.{job.round}.{job.rank}", "a") as f:
                    print(step, file=f)
                if checkpoints.written(step):
                    raise rdzv.Stopped


def no_store():
    """--store worker: there is no store of the agent's."""
    job = rdzv.init()
    checkpoints = rdzv.Checkpoints()
    job.progress(1)
    assert not checkpoints.due(1)
    try:
        job.barrier("b")
    except rdzv.Error as e:
        print(e, flush=True)


def calls_off():
    """Two requests, which a stand-in of the agent's makes and no stop follows; with a new Checkpoints for the second."""
    import rdzv._checkpoints

    rdzv._checkpoints.STOP_S = 0.2
    job = rdzv.init()
    for number in range(2):
        with rdzv.Checkpoints() as checkpoints:
            if job.rank == number:
                job.store.set(checkpoints._key(0), b"")  # as a rank does that finds a request
            step = 0
            while step < 100000:
                step += 1
                job.barrier("step")
                if checkpoints.due(step):
                    assert not checkpoints.written(step)
                    print("saves", number, flush=True)
                    break
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    job.done()


def uneven():
    """Ranks that step at different speeds and seldom wait for each other, as with a device that runs ahead."""
    job = rdzv.init()
    with rdzv.Checkpoints() as checkpoints:
        step = 0
        while True:
            step += 1
            if step % 20 == 0:
                job.barrier("meet")
                print("met", step, flush=True)
            time.sleep(0.002 if job.rank else 0.006)
            job.progress(step)
            if checkpoints.due(step):
                print("saves", step, flush=True)
                if checkpoints.written(step):
                    raise rdzv.Stopped


def rejoins():
    """Rank 1 leaves its first round unasked by dying; rank 0 keeps its process."""
    job = rdzv.init()
    job.can_rejoin()
    first = job.round
    if job.rank == 1 and first == 1:
        job.store.get("rank 0 is ready", 30)
        os._exit(3)
    if first == 1:
        job.store.set("rank 0 is ready", "")
        try:
            job.store.get("never", 60)
        except (rdzv.Rejoin, rdzv.Lost) as e:
            print("left:", e, flush=True)
        job.rejoin()
        assert job.round == 2 and os.environ["RDZV_ROUND"] == "2"
        print("rejoined", os.getpid() == PID, flush=True)
    assert sorted(job.exchange(str(job.rank).encode(), "both")) == [b"0", b"1"]
    thread = threading.Thread(target=lambda: job.store.set("from a thread", "1"))  # with a connection of its own, in the new round
    thread.start()
    thread.join()
    assert job.store.get("from a thread", 10) == b"1"
    job.barrier("end")
    job.done()


PID = os.getpid()
globals()[sys.argv[1]]()
