# SPDX-License-Identifier: Apache-2.0
"""clang-tidy over every C file that ships: `tidy.py -p BUILD [-j N]`. Exit status 1 on any finding. Tests are left to the sanitizers,
which see what really happens in them, and to clang's warnings. BUILD is one with clang, and need not be built.

A file that was clean is not checked again until its preprocessed text, its flags or .clang-tidy change: $RDZV_TESTS_CACHE/tidy-clean keeps the hashes
(without that variable BUILD/tidy-clean). So a developer waits seconds, in another clone as well, and a new machine checks everything.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import shlex
import subprocess
import sys

FILE_S = 600  # the bound for hangs, of one file
KEPT_MAX = 5000  # hashes of other trees

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def arguments(entry):
    """The compiler and its flags, without those about what it writes, and without ccache, which does not keep what is not compiled."""
    args = [a for a in shlex.split(entry["command"]) if a not in ("-c", "ccache")]
    for flag in ("-o", "-MF", "-MQ", "-MT"):
        while flag in args:
            at = args.index(flag)
            del args[at:at + 2]
    return [a for a in args if a not in ("-MD", "-MMD")]


def fingerprint(entry, base):
    """Hash of all that clang-tidy will see of this file, or None where it cannot be preprocessed (clang-tidy says why)."""
    text = subprocess.run(arguments(entry) + ["-E", "-P"], cwd=entry["directory"], capture_output=True, timeout=FILE_S)
    if text.returncode:
        return None
    # A comment may hold NOLINT, which preprocessing drops.
    with open(os.path.join(entry["directory"], entry["file"]), "rb") as f:
        return hashlib.sha256(base + entry["command"].encode() + text.stdout + f.read()).hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", dest="build", required=True)
    parser.add_argument("-j", dest="jobs", type=int, default=2)
    options = parser.parse_args()
    with open(os.path.join(options.build, "compile_commands.json")) as f:
        entries = {}
        for entry in json.load(f):
            path = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
            inside = path.startswith(TOP + os.sep) and not path.startswith(os.path.realpath(options.build) + os.sep)
            if inside and path.endswith(".c"):
                entries.setdefault(path, entry)
    with open(os.path.join(TOP, ".clang-tidy"), "rb") as f:
        base = f.read() + subprocess.run(["clang-tidy", "--version"], capture_output=True).stdout
    clean_path = os.path.join(os.environ.get("RDZV_TESTS_CACHE", options.build), "tidy-clean")
    os.makedirs(os.path.dirname(clean_path), exist_ok=True)
    try:
        with open(clean_path) as f:
            known = f.read().split()
    except FileNotFoundError:
        known = []
    clean = set(known)

    def check(path):
        print_hash = fingerprint(entries[path], base)
        if print_hash in clean:
            return path, print_hash, 0, ""
        command, cwd = ["clang-tidy", "--quiet", "-p", options.build, path], None
        if path.startswith(os.path.join(TOP, "tests") + os.sep):
            command, cwd = arguments(entries[path]) + ["-fsyntax-only"], entries[path]["directory"]
        try:
            run = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=FILE_S)
        except subprocess.TimeoutExpired:
            return path, print_hash, 1, f"{path}: {command[0]} was not done within its deadline of {FILE_S} s"
        return path, print_hash, run.returncode, run.stdout + (run.stderr if run.returncode else "")

    bad, hashes = 0, []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for path, print_hash, code, output in pool.map(check, sorted(entries)):
            if code:
                bad += 1
                print(output.replace(options.build + os.sep + "../../../", ""))
            elif print_hash:
                hashes.append(print_hash)
    # Those of other trees stay, the newest of them.
    keep = [h for h in known if h not in set(hashes)][-KEPT_MAX:] + hashes
    with open(clean_path + f".{os.getpid()}", "w") as f:
        f.write("\n".join(keep))
    os.replace(f.name, clean_path)
    print(f"{len(entries)} files, {bad} with findings")
    return 1 if bad or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
