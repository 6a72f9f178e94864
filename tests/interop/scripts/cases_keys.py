# SPDX-License-Identifier: Apache-2.0
"""Cases of keys and values: kinds and sizes, numbers, compare_set, append, many at once."""

import threading

from case_help import KEY_MAX, KEYS_MAX, VALUE_MAX, later, raised


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
    s.get("k")  # set has no answer: what another connection asks may overtake it, with any server
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
