# SPDX-License-Identifier: Apache-2.0
"""Cases of clients: how they connect and go, PrefixStore, what PyTorch builds of a store, and many at once."""

import threading

from case_help import dist, later, raised, seconds


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


# ---- several at once ------------------------------------------------------------------------------------------------


def store_collectives(open):
    """What PyTorch itself built of a store, until 2.13."""
    try:
        from torch._C._distributed_c10d import _StoreCollectives
    except ImportError:
        return "gone"

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
