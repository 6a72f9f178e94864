#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ABI of librdzv is that of agent/sdk/librdzv.abi, by abidiff; and a change that breaks it is found.

usage: test_abi.py SOURCE_ROOT COMPILER [--write]

The file describes the functions of rdzv.h and their types. What only the library's sources know is left out of it. --write renews it after functions were added, and
refuses if the ABI was broken.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ABI = "agent/sdk/librdzv.abi"
PARTS = ("agent/sdk", "proto", "common")
INCOMPATIBLE, CHANGED = 8, 4  # bits of abidiff's exit status; the lower ones are errors of its own
# name: what it changes in which file, and the bits
PLANTED = {
    "a parameter is added": ([("agent/sdk/rdzv.h", "rdzv_saving(struct rdzv *r, bool on)", "rdzv_saving(struct rdzv *r, bool on, int more)"),
                              ("*.c", "int rdzv_saving(struct rdzv *r, bool on)", "int rdzv_saving(struct rdzv *r, bool on, int more)")], CHANGED),
    "a parameter is wider": ([("agent/sdk/rdzv.h", "rdzv_saved(struct rdzv *r, uint64_t step)", "rdzv_saved(struct rdzv *r, __int128 step)"),
                              ("*.c", "int rdzv_saved(struct rdzv *r, uint64_t step)", "int rdzv_saved(struct rdzv *r, __int128 step)")], CHANGED),
    "a function is removed": ([("agent/sdk/librdzv.map", " rdzv_fd;", "")], INCOMPATIBLE),
    "a function is added": ([("agent/sdk/librdzv.map", "global:", "global: rdzv_more;"), ("agent/sdk/rdzv.h", "struct rdzv;", "struct rdzv; __attribute__((visibility(\"default\"))) int rdzv_more(void);"),
                             ("agent/sdk/rdzv.c", None, "\nint rdzv_more(void) {\n  return 0;\n}\n")], CHANGED),
}


def run(*argv):
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True)


def copy(root, folder):
    for part in PARTS:
        (folder / part).mkdir(parents=True)
        for file in (root / part).iterdir():
            if file.suffix in (".c", ".h", ".map"):
                shutil.copy(file, folder / part)
    (folder / "public").mkdir()
    return folder


def describe(tree, compiler):
    """What abidw writes of the tree's library."""
    shutil.copy(tree / "agent/sdk/rdzv.h", tree / "public")
    sources = [*sorted((tree / "agent/sdk").glob("rdzv*.c")), tree / "proto/c10d.c", tree / "common/printable.c"]
    library, text = tree / "librdzv.so.0", tree / "librdzv.abi"
    made = run(*compiler, "-std=c11", "-D_GNU_SOURCE", "-fPIC", "-fvisibility=hidden", "-g", "-O0", "-pthread", f"-I{tree}", "-shared", "-Wl,-soname,librdzv.so.0",
               f"-Wl,--version-script={tree}/agent/sdk/librdzv.map", "-o", library, *sources)
    assert made.returncode == 0, made.stderr
    made = run("abidw", "--no-show-locs", "--no-corpus-path", "--no-comp-dir-path", "--no-elf-needed", "--drop-private-types", "--headers-dir", tree / "public", "--out-file", text, library)
    assert made.returncode == 0, made.stdout + made.stderr
    # The paths of this folder say nothing of the ABI.
    text.write_text(text.read_text().replace(f"{tree}/", ""))
    return text


def compare(old, new):
    done = run("abidiff", old, new)
    assert done.returncode & 3 == 0, done.stdout + done.stderr
    return done.returncode & (INCOMPATIBLE | CHANGED), done.stdout


def plant(tree, changes):
    for pattern, old, new in changes:
        hits = 0
        for file in (tree / "agent/sdk").glob("*.c") if pattern == "*.c" else [tree / pattern]:
            text = file.read_text()
            if old is None or old in text:
                file.write_text(text + new if old is None else text.replace(old, new))
                hits += 1
        assert hits, f"{pattern} has no {old!r}"


def main():
    root, compiler, write = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2].split(), "--write" in sys.argv
    if not (shutil.which("abidw") and shutil.which("abidiff")):
        print("abidw and abidiff are not installed: apt-get install abigail-tools")
        sys.exit(1 if os.environ.get("RDZV_CI") == "1" else 77)
    with tempfile.TemporaryDirectory(prefix="rdzv-abi-") as folder:
        folder = pathlib.Path(folder)
        now = describe(copy(root, folder / "now"), compiler)
        committed = root / ABI
        bits, report = compare(committed, now) if committed.exists() else (0, "")
        only_added = re.search(r"Functions changes summary: 0 Removed, 0 Changed", report) and bits & INCOMPATIBLE == 0
        if write:
            assert not bits or only_added, f"{report}\nthe ABI of librdzv.so.0 is broken; a change like this needs a new soname"
            committed.write_text(now.read_text())
            return
        if bits:
            print(report)
            sys.exit(f"librdzv is not what {ABI} describes: " + ("functions were added: give them a node in librdzv.map, and renew the file with\n"
                     f"  python3 tests/unit/test_abi.py . cc --write" if only_added else "the ABI is broken; librdzv.so.0 must keep what it has"))
        for name, (changes, wanted) in PLANTED.items():
            tree = copy(root, folder / name.replace(" ", "-"))
            plant(tree, changes)
            bits, report = compare(now, describe(tree, compiler))
            assert bits & wanted, f"{name}, and abidiff finds nothing:\n{report}"
            print(f"{name}: found ({report.splitlines()[0].strip()})")


if __name__ == "__main__":
    main()
