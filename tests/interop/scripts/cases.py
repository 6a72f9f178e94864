"""Cases for a store: each is a function of `open`, which connects another client, and returns what the store answered. Two servers are equal if all cases
return the same from both. torch is imported when a case runs only: pytest collects the names without it."""

import threading
import time
from datetime import timedelta

try:
    import torch.distributed as dist
except ImportError:
    dist = None

KEY_MAX, VALUE_MAX, KEYS_MAX = 8192, 8 << 20, 131072


class Opener:
    def __init__(self, port):
        self.port = port

    def __call__(self, host="localhost", timeout=10, world_size=None, **kw):
        return dist.TCPStore(host, self.port, world_size, False, timeout=timedelta(seconds=timeout), **kw)


def seconds(s):
    return timedelta(seconds=s)


def raised(fn, *args):
    """The exception's type (and what is sure to stand in its text), or what came back."""
    try:
        return ["returned", fn(*args)]
    except Exception as e:
        return [type(e).__name__]


def later(fn, *args, after=0.15):
    def run():
        time.sleep(after)
        fn(*args)

    t = threading.Thread(target=run)
    t.start()
    return t


# ---- keys and values ------------------------------------------------------------------------------------------------


def set_and_get(open):
    a, b = open(), open()
    a.set("k", "v1")
    first = b.get("k")
    b.set("k", "v2")
    return [first, b.get("k"), a.get("k"), a.num_keys()]


def values_of_all_bytes(open):
    s = open()
    for i, v in enumerate((b"", b"\0", b"a\0b", bytes(range(256)), b"\xff" * 1500, b"\n", "\u00fc\u4e2d".encode())):
        s.set(f"v{i}", v)
    return [s.get(f"v{i}") for i in range(7)]


def keys_of_all_kinds(open):
    s = open()
    keys = ["", " ", "/", "//", "a/b", "\0", "a\0b", "\n", "\u00fc\u4e2d\U0001f600", "init/", "x" * 1500]
    for i, k in enumerate(keys):
        s.set(k, f"value {i}")
    return [[s.get(k) for k in keys], s.num_keys(), sorted(s.list_keys())]


def overwrite_by_shorter_and_longer(open):
    s = open()
    got = []
    for n in (10, 3, 0, 5000, 1, 100000):
        s.set("k", b"x" * n)
        got.append(len(s.get("k")))
    return got


def value_of_8_mib(open):
    s = open(timeout=60)
    v = bytes(range(256)) * (VALUE_MAX // 256)
    s.set("big", v)
    return [s.get("big") == v, len(v)]


def value_of_8_mib_and_one(open):
    s = open(timeout=5)
    s.set("k", "v")
    return [raised(lambda: (s.set("big", b"x" * (VALUE_MAX + 1)), s.get("k"))), open().get("k")]


def key_of_8192_bytes(open):
    s = open()
    s.set("x" * (KEY_MAX - 1), "v")  # the client puts a slash before it
    return [s.get("x" * (KEY_MAX - 1)), s.num_keys()]


def key_of_8193_bytes(open):
    s = open(timeout=5)
    return [raised(lambda: (s.set("x" * KEY_MAX, "v"), s.get("k"))), open().num_keys()]


def many_keys(open):
    s = open(timeout=60)
    for i in range(2000):
        s.set(f"k{i}", str(i))
    return [s.num_keys(), s.get("k1999"), len(s.list_keys()), [s.delete_key(f"k{i}") for i in range(0, 2000, 500)], s.num_keys()]


def delete(open):
    s, t = open(), open()
    s.set("k", "v")
    return [t.delete_key("k"), t.delete_key("k"), s.check(["k"]), s.num_keys(), s.delete_key("never"), s.delete_key("")]


def list_keys(open):
    s = open()
    before = s.list_keys()
    s.set("a", "1")
    s.add("b", 1)
    s.append("c", "1")
    s.queue_push("q", "1")
    s.multi_set(["d", "e"], ["1", "2"])
    s.delete_key("a")
    return [before, sorted(s.list_keys())]


# ---- numbers --------------------------------------------------------------------------------------------------------


def add(open):
    s = open()
    return [s.add("n", 5), s.add("n", -7), s.get("n"), s.add("n", 0), s.add("m", 0), s.get("m"), s.num_keys()]


def add_to_what_was_set(open):
    s = open()
    got = []
    for text in ("41", " 12abc", "-3", "+4", "007", "\t\n 9", "0x10", "9223372036854775806"):
        s.set("n", text)
        got.append([text, s.add("n", 1), s.get("n")])
    return got


def add_wraps(open):
    s = open()
    s.set("n", "9223372036854775807")
    return [s.add("n", 1), s.add("n", -1), s.add("m", -(2**63)), s.add("m", -1), s.get("m")]


def add_to_no_number(open):
    got = []
    for text in ("abc", "", "-", "99999999999999999999"):
        s = open(timeout=3)
        s.set("n", text)
        got.append(raised(s.add, "n", 1))
    return got + [open().get("n")]


def add_from_many(open):
    def work():
        s = open(timeout=60)
        for _ in range(100):
            s.add("n", 1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return open().get("n")


# ---- compare_set, append, many at once ------------------------------------------------------------------------------


def compare_set_absent(open):
    s = open()
    return [s.compare_set("a", "", "new"), s.get("a"), s.compare_set("b", "old", "new"), s.check(["b"]), s.num_keys()]


def compare_set_present(open):
    s = open()
    s.set("k", "old")
    got = [s.compare_set("k", "other", "new"), s.get("k"), s.compare_set("k", "", "new"), s.get("k")]
    got += [s.compare_set("k", "old", "new"), s.get("k"), s.compare_set("k", "new", ""), s.get("k")]
    return got + [s.compare_set("k", "", "again"), s.get("k"), s.compare_set("k", "x", "x"), s.compare_set("", "", "e"), s.get("")]


def compare_set_of_bytes(open):
    s = open()
    s.set("k", "a\0b")
    return [s.compare_set("k", "a", "no"), s.compare_set("k", "a\0b", "c\0d"), s.get("k"), s.compare_set("k", "c\0d", "x" * 5000), len(s.get("k"))]


def append(open):
    s = open()
    s.append("a", "12")
    s.append("a", "")
    s.append("a", "34")
    s.append("e", "")
    s.set("b", "x")
    s.append("b", "y\0z")
    s.add("n", 4)
    s.append("n", "2")
    return [s.get("a"), s.get("e"), s.get("b"), s.add("n", 0), s.num_keys()]


def append_beyond_one_value(open):
    s = open(timeout=60)
    for _ in range(2):
        s.append("a", "x" * (6 << 20))
    return len(s.get("a"))


def multi(open):
    s = open()
    s.multi_set(["a", "b", "a", ""], ["1", "", "2", "e"])
    return [s.multi_get(["a", "b", "", "a"]), s.multi_get([]), s.multi_set([], []), s.num_keys(), s.multi_set(["f"] * 3, ["1", "2", "3"]), s.get("f")]


def multi_of_unequal_lengths(open):
    s = open()
    return [raised(s.multi_set, ["a", "b"], ["1"]), s.num_keys()]


def multi_get_waits(open):
    s, t = open(), open()
    s.set("a", "1")
    thread = later(lambda: t.set("b", "2"))
    got = s.multi_get(["a", "b"])
    thread.join()
    return got


def multi_get_times_out(open):
    s = open(timeout=0.3)
    s.set("a", "1")
    return [raised(s.multi_get, ["a", "b"]), s.multi_get(["a"])]


def multi_of(n, open):
    s = open(timeout=60)
    keys = [str(i) for i in range(n)]
    s.multi_set(keys, keys)
    got = s.multi_get(keys)
    return [s.num_keys(), len(got), got[0], got[-1], s.check(keys)]


def multi_of_4096_keys(open):
    return multi_of(4096, open)


def multi_of_131072_keys(open):
    return multi_of(KEYS_MAX, open)


def multi_set_of_131073_keys(open):
    s = open(timeout=10)
    keys = ["k"] * (KEYS_MAX + 1)
    return [raised(lambda: (s.multi_set(keys, keys), s.get("k"))), raised(open().multi_get, keys), open().num_keys()]


def multi_get_of_long_values(open):
    s = open(timeout=60)
    for i in range(4):
        s.set(f"k{i}", bytes([i]) * (4 << 20))
    return [[len(v), v[0]] for v in s.multi_get([f"k{i}" for i in range(4)])]


# ---- check and wait -------------------------------------------------------------------------------------------------


def check(open):
    s = open()
    s.set("a", "")
    return [s.check([]), s.check(["a"]), s.check(["b"]), s.check(["a", "b"]), s.check(["a", "a"]), s.check([""])]


def check_does_not_wait(open):
    s = open(timeout=10)
    began = time.monotonic()
    return [s.check(["never"]), time.monotonic() - began < 1]


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


# ---- clients --------------------------------------------------------------------------------------------------------


def clone(open):
    s = open()
    s.set("a", "1")
    c = s.clone()
    c.set("b", "2")
    thread = later(c.set, "k", "v")
    got = [c.get("a"), s.get("b"), s.get("k"), s.num_keys(), c.num_keys()]
    thread.join()
    del s
    return got + [c.get("a")]


def extended_api(open):
    s = open()
    return [s.has_extended_api(), dist.PrefixStore("p", s).has_extended_api()]


def host_and_port(open):
    s = open()
    return [s.host, s.port == open.port, s.libuvBackend]


def by_ipv4(open):
    s = open(host="127.0.0.1")
    s.set("k", "v")
    return [s.host, s.get("k")]


def by_ipv6(open):
    s = open(host="::1")
    s.set("k", "v")
    return [s.host, s.get("k")]


def world_size_counts(open):
    stores = [open(world_size=3) for _ in range(3)]
    return [stores[0].num_keys(), stores[0].list_keys(), len(stores)]


def world_size_and_no_wait(open):
    s = open(world_size=5, wait_for_workers=False)
    return [s.num_keys(), s.add("x", 1)]


def multi_tenant_clients(open):
    a, b = open(multi_tenant=True), open(multi_tenant=True)
    a.set("k", "v")
    return [b.get("k"), a.num_keys()]


def without_libuv(open):
    s = open(use_libuv=False)
    s.set("k", "v")
    return [s.get("k"), s.add("n", 2)]


def a_client_that_goes_leaves_its_keys(open):
    s = open()
    s.set("k", "v")
    del s
    return open().get("k")


def a_client_that_goes_while_it_waits(open):
    s = open(timeout=20)
    t = threading.Thread(target=lambda: raised(s.wait, ["never"], seconds(0.3)))
    t.start()
    del s
    t.join()
    s = open()
    s.set("never", "1")
    return s.num_keys()


# ---- PrefixStore ----------------------------------------------------------------------------------------------------


def prefix(open):
    s = open()
    p = dist.PrefixStore("p", s)
    p.set("k", "v")
    got = [s.get("p/k"), p.get("k"), p.add("n", 3), s.get("p/n"), p.compare_set("c", "", "x"), p.check(["k", "c"]), s.check(["k"])]
    got += [p.delete_key("k"), p.num_keys(), p.multi_set(["a", "b"], ["1", "2"]), p.multi_get(["a", "b"]), p.append("a", "1"), p.get("a")]
    got += [p.queue_push("q", "e"), p.queue_len("q"), s.queue_len("p/q"), p.queue_pop("q"), p.wait(["a"], seconds(1)), raised(p.wait, ["z"], seconds(0.2))]
    return got + [p.barrier("bar", 1, seconds(2)), sorted(s.list_keys()), raised(lambda: sorted(p.list_keys()))]


def prefix_nesting(open):
    s = open()
    p = dist.PrefixStore("outer", dist.PrefixStore("in", s))
    p.set("k", "v")
    e = dist.PrefixStore("", s)
    e.set("x", "1")
    return [sorted(s.list_keys()), p.get("k"), s.get("in/outer/k"), type(p.underlying_store).__name__, type(p._underlying_non_prefix_store).__name__]


def prefix_clone_and_timeout(open):
    p = dist.PrefixStore("p", open())
    p.set("k", "v")
    c = p.clone()
    p.set_timeout(seconds(0.2))
    return [c.get("k"), raised(p.get, "never"), str(p.timeout)]


def prefix_of_8192_bytes(open):
    s = open(timeout=5)
    p = dist.PrefixStore("p" * 4000, s)
    p.set("k" * 4190, "v")
    return [p.get("k" * 4190), raised(lambda: (p.set("k" * 4191, "v"), p.get("k")))]


def store_collectives(open):
    """What PyTorch itself builds of a store."""
    from torch._C._distributed_c10d import _StoreCollectives

    got = [None] * 4

    def work(rank):
        c = _StoreCollectives(open(timeout=20), rank, 4)
        t = seconds(10)
        c.barrier("b", t, True)
        if rank == 0:
            c.broadcast_send("bc", "hello", t)
        mine = [rank == 0 or c.broadcast_recv("bc", t), c.all_gather("g", str(rank), t), c.all_sum("s", rank + 1, t)]
        if rank == 3:
            mine.append(c.gather_recv("r", str(rank), t))
        else:
            c.gather_send("r", str(rank), t)
        got[rank] = mine

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return got


def together_two_hundred_clients(open):
    """In two processes at once, a hundred threads each; every client reads what another one wrote."""
    base = (open().add("processes", 1) - 1) * 100
    got = [None] * 100

    def work(i):
        s = open(timeout=60)
        s.set(f"k{base + i}", f"v{base + i}")
        s.barrier("all written", 200, seconds(60))
        other = (base + i + 77) % 200
        same = s.get(f"k{other}") == b"v%d" % other
        s.add("sum", base + i)
        s.queue_push("q", "x")
        s.barrier("all added", 200, seconds(60))
        got[i] = [same, s.get("sum"), s.queue_len("q")]
        s.barrier("all read", 200, seconds(60))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(100)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return [got[0], all(g == got[0] for g in got)]


def names():
    skip = {"seconds", "raised", "later", "names", "multi_of"}
    return [n for n, f in globals().items() if callable(f) and getattr(f, "__module__", "") == __name__ and n not in skip and n != "Opener" and not n.startswith("together_")]
