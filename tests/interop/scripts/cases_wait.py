# SPDX-License-Identifier: Apache-2.0
"""Cases of waiting: check and wait, queues, barriers."""

import threading
import time

from case_help import KEYS_MAX, later, raised, seconds


# ---- check and wait -------------------------------------------------------------------------------------------------


def check(open):
    s = open()
    s.set("a", "")
    return [s.check([]), s.check(["a"]), s.check(["b"]), s.check(["a", "b"]), s.check(["a", "a"]), s.check([""])]


def check_does_not_wait(open):
    s = open(timeout=10)
    began = time.monotonic()
    return [s.check(["never"]), time.monotonic() - began < 5]


def wait_for_what_is_there(open):
    s = open()
    s.set("a", "1")
    s.set("b", "1")
    return [s.wait(["a", "b"]), s.wait([]), s.wait(["a"], seconds(1)), s.wait(["a", "a"], seconds(1))]


def wait_for_every_way_to_write(open):
    s, t = open(), open()
    ways = [lambda: t.set("k0", "1"), lambda: t.add("k1", 1), lambda: t.append("k2", "1"), lambda: t.compare_set("k3", "", "1"),
            lambda: t.multi_set(["k4"], ["1"]), lambda: t.queue_push("k5", "1")]
    got = []
    for i, way in enumerate(ways):
        thread = later(way)
        got.append(raised(s.wait, [f"k{i}"], seconds(5)))
        thread.join()
    return got


def wait_for_several(open):
    s, t = open(), open()
    s.set("b", "1")
    threads = [later(t.set, k, "1", after=0.05 * i) for i, k in enumerate("acde")]
    got = raised(s.wait, list("abcde"), seconds(5))
    [x.join() for x in threads]
    return got


def wait_for_a_key_twice(open):
    s, t = open(), open()
    thread = later(t.set, "k", "1")
    got = raised(s.wait, ["k", "k"], seconds(5))
    thread.join()
    return got


def wait_survives_a_delete(open):
    """A key that came and went again has been seen."""
    s, t = open(), open()

    def work():
        t.set("a", "1")
        t.delete_key("a")
        t.set("b", "1")

    thread = later(work)
    got = raised(s.wait, ["a", "b"], seconds(5))
    thread.join()
    return [got, s.check(["a"])]


def wait_is_not_ended_by_delete(open):
    s, t = open(), open()
    t.set("a", "1")
    thread = later(lambda: (t.delete_key("a"), t.delete_key("b")), after=0.05)
    got = raised(s.wait, ["a", "b"], seconds(0.4))
    thread.join()
    return got


def wait_times_out_and_goes_on(open):
    s = open()
    got = []
    for i in range(5):
        began = time.monotonic()
        got.append(raised(s.wait, ["never"], seconds(0.2)))
        got.append(0.15 < time.monotonic() - began < 2)
        s.set(f"k{i}", str(i))
        got += [s.get(f"k{i}"), s.add("n", 1), s.check(["never"])]
    return got


def wait_timed_out_is_forgotten(open):
    """The key that comes after the timeout answers nobody: the replies that follow are not shifted."""
    s, t = open(), open()
    got = raised(s.wait, ["late"], seconds(0.2))
    t.set("late", "1")
    s.set("k", "v")
    return [got, s.add("n", 41), s.get("k"), s.add("n", 1), s.get("late")]


def wait_of_many_that_race_with_their_timeout(open):
    """CANCEL_WAIT and the answer cross: whichever came first, the connection is in step."""
    s, t = open(), open()
    for i in range(60):
        thread = later(t.set, f"r{i}", "1", after=0.02)
        raised(s.wait, [f"r{i}"], seconds(0.02))
        thread.join()
        if s.add("n", 1) != i + 1:
            return f"out of step at {i}"
    return s.get("n")


def get_waits(open):
    s, t = open(), open()
    thread = later(t.set, "k", "v")
    got = s.get("k")
    thread.join()
    return got


def get_times_out(open):
    s = open(timeout=0.3)
    return [raised(s.get, "never"), raised(s.get, "never"), s.num_keys()]


def set_timeout(open):
    s = open()
    s.set_timeout(seconds(0.2))
    began = time.monotonic()
    return [str(s.timeout), raised(s.get, "never"), time.monotonic() - began < 3]


def wait_for_131072_keys(open):
    s, t = open(timeout=60), open(timeout=60)
    keys = [str(i) for i in range(KEYS_MAX)]

    def work():
        for i in range(0, KEYS_MAX, 8192):
            t.multi_set(keys[i : i + 8192], ["v"] * 8192)

    thread = later(work, after=0.3)
    got = raised(s.wait, keys, seconds(50))
    thread.join()
    return [got, s.num_keys()]


def wait_for_131073_keys(open):
    s = open(timeout=10)
    return [raised(s.wait, [str(i) for i in range(KEYS_MAX + 1)], seconds(10)), open().num_keys()]


def check_of_131073_keys(open):
    s = open(timeout=10)
    return [raised(s.check, [str(i) for i in range(KEYS_MAX + 1)]), open().num_keys()]


def a_hundred_waiters_of_one_key(open):
    stores = [open(timeout=20) for _ in range(100)]
    got = [None] * 100

    def work(i):
        got[i] = raised(stores[i].get, "k")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(100)]
    [t.start() for t in threads]
    time.sleep(0.2)
    open().set("k", "v")
    [t.join() for t in threads]
    return [got[0], all(g == got[0] for g in got)]


# ---- queues ---------------------------------------------------------------------------------------------------------


def queue(open):
    s = open()
    for v in ("1", "", "3"):
        s.queue_push("q", v)
    got = [s.queue_len("q"), s.queue_pop("q"), s.queue_pop("q"), s.queue_len("q"), s.queue_pop("q", False), s.queue_len("q")]
    return got + [raised(s.queue_pop, "q", False), s.queue_len("none"), s.num_keys()]


def queue_is_beside_the_keys(open):
    s = open()
    s.set("k", "value")
    s.queue_push("k", "element")
    got = [s.get("k"), s.queue_len("k"), s.num_keys(), s.delete_key("k"), s.queue_pop("k"), s.check(["k"])]
    s.queue_push("only", "x")
    return got + [s.check(["only"]), s.wait(["only"]), s.delete_key("only"), s.queue_len("only"), s.list_keys(), s.queue_pop("only"), s.check(["only"])]


def queue_pop_waits(open):
    s, t = open(), open()
    thread = later(lambda: t.queue_push("q", "late"))
    got = s.queue_pop("q")
    thread.join()
    return got


def queue_pop_times_out(open):
    s = open(timeout=0.3)
    return [raised(s.queue_pop, "q"), s.queue_len("q"), s.queue_push("q", "x"), s.queue_pop("q")]


def queue_of_a_value_for_each(open):
    """Every element reaches exactly one of those who wait."""
    got = []

    def work():
        s = open(timeout=20)
        while True:
            try:
                v = s.queue_pop("q")
            except Exception:
                continue  # somebody else was faster
            if v == b"end":
                return
            got.append(int(v))

    threads = [threading.Thread(target=work) for _ in range(4)]
    [t.start() for t in threads]
    s = open()
    for i in range(100):
        s.queue_push("q", str(i))
    for _ in range(4):
        s.queue_push("q", "end")
    [t.join() for t in threads]
    return [sorted(got) == list(range(100)), s.queue_len("q")]


def queue_of_big_elements(open):
    s = open(timeout=60)
    for i in range(3):
        s.queue_push("q", bytes([65 + i]) * (2 << 20))
    return [[len(v), v[:1]] for v in (s.queue_pop("q") for _ in range(3))]


# ---- barrier --------------------------------------------------------------------------------------------------------


def barrier_alone(open):
    s = open()
    return [s.barrier("b", 1, seconds(2)), s.get("b"), s.barrier("b", 1, seconds(2)), s.get("b"), s.num_keys()]


def barrier_of_eight(open):
    stores = [open(timeout=20) for _ in range(8)]
    passed = []

    def work(i):
        stores[i].barrier("b", 8, seconds(10))
        passed.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [t.start() for t in threads[:7]]
    time.sleep(0.3)
    early = len(passed)
    threads[7].start()
    [t.join() for t in threads]
    return [early, sorted(passed), stores[0].get("b")]


def barrier_passes_who_comes_late(open):
    s = open()
    s.set("b", "5")
    return [s.barrier("b", 3, seconds(2)), s.get("b")]


def barrier_times_out_and_goes_on(open):
    s, t = open(), open()
    got = [raised(s.barrier, "b", 2, seconds(0.3)), s.get("b"), s.add("n", 1)]
    return got + [raised(t.barrier, "b", 2, seconds(2)), s.get("b"), s.add("n", 1)]


def barrier_by_the_stores_timeout(open):
    s = open(timeout=0.3)
    return [raised(s.barrier, "b", 2), s.add("n", 1)]


def barrier_wakes_who_waits_for_its_key(open):
    s, t = open(), open()
    thread = later(lambda: t.barrier("b", 1, seconds(2)))
    got = raised(s.wait, ["b"], seconds(5))
    thread.join()
    return got
