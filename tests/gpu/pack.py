# SPDX-License-Identifier: Apache-2.0
"""The one file of tests/gpu/run --pack: results.json, results.md, the ends of all logs and small reports of profilers, as a tar file with gzip.

A machine that is lent gives few and small files back, so the whole is bounded: what does not fit in is named in the pack."""

import io
import tarfile
from pathlib import PurePosixPath

END = 64 << 10  # of a log
WHOLE = 4 << 20  # of a file that is of no use in part
ROOM = 12 << 20  # of all, before it is compressed
TEXTS = (".log", ".out", ".csv", ".json", ".md")
REPORTS = (".nsys-rep", ".ncu-rep")
RESULTS = ("results.json", "results.md")


class Bad(Exception):
    """This is not a pack, and why."""


def end_of(path):
    """The last END bytes; a report whole, or None."""
    size = path.stat().st_size
    if path.suffix in REPORTS:
        return path.read_bytes() if size <= WHOLE else None
    with open(path, "rb") as f:
        f.seek(max(0, size - END))
        return f.read()


def add(tar, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def write(out, path):
    """Replaces path when all is written."""
    fresh, room, left_out = path.with_name(path.name + ".new"), ROOM, []
    files = sorted((f for f in out.rglob("*") if f.is_file() and f.suffix in TEXTS + REPORTS and f.name not in RESULTS), key=lambda f: f.stat().st_size)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fresh, "w:gz") as tar:
        for name in RESULTS:
            add(tar, name, (out / name).read_bytes())
        for f in files:
            data = end_of(f)
            if data is None or len(data) > room:
                left_out.append(f"{f.relative_to(out)}\n")
                continue
            room -= len(data)
            add(tar, str(f.relative_to(out)), data)
        if left_out:
            add(tar, "left-out.txt", "".join(left_out).encode())
    fresh.replace(path)


def read(path, out):
    """Into out, where such a file is not there yet."""
    try:
        with tarfile.open(path, "r:gz") as tar:
            members = {m.name: tar.extractfile(m).read() for m in tar if m.isreg()}
    except (tarfile.TarError, OSError, EOFError) as e:
        raise Bad(f"cannot be read: {e}") from None
    if "results.json" not in members:
        raise Bad("has no results.json: tests/gpu/run --pack did not write it")
    for name, data in members.items():
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts:
            raise Bad(f"names {name}, outside its folder")
        at = out.joinpath(*parts)
        if not at.exists():
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_bytes(data)
