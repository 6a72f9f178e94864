# SPDX-License-Identifier: Apache-2.0
"""A release, made dry from a clean clone: its steps are the page's, its files are the same bytes as those of another build in another folder at another time, each has a valid
bill of materials, and what is compiled in them is hardened."""

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import pages
from dry_release import ARCH, git, plain, release
from harness import TOP, VERSION, need

PAGE = "deploy/guide/releases.md"


@pytest.fixture(scope="module")
def binaries(dry):
    """{"file: name": bytes} of all that was compiled here, in each file of the release."""
    found = {}
    for file in sorted(dry[0].iterdir()):
        members = {}
        if file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                members = {name: wheel.read(name) for name in wheel.namelist()}
        elif file.name.endswith((".tar.gz", ".deb")):
            data = file.read_bytes() if file.suffix != ".deb" else subprocess.run(["dpkg-deb", "--fsys-tarfile", file], capture_output=True, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                members = {m.name: tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}
        found.update({f"{file.name}: {name}": data for name, data in members.items() if data[:4] == b"\x7fELF" and "openblas" not in name and "-dbgsym" not in file.name})
    return found


def equal(made, built, out):
    """Compares what both have, and returns the names."""
    names = set()
    for file in sorted(out.iterdir()):
        others = [folder / file.name for folder in (made, built) if (folder / file.name).exists()]
        if file.is_file() and others:
            assert file.read_bytes() == others[0].read_bytes(), f"{file.name} differs: compare {file} with {others[0]}, by diffoscope"
            names.add(file.name)
    return names


def kinds(names):
    return {re.sub(rf"[-_]{re.escape(VERSION)}.*?(?=(\.whl|\.tar\.gz|\.deb)(\.spdx\.json)?$)", "", name) for name in names}


def test_two_builds_give_the_same_bytes(dry, made, built):
    names = kinds(equal(made, built[0], dry[0]))
    files = {"rdzv.whl", "rdzv_trainer.whl", "rdzv_torchrun.whl", "rdzv.tar.gz", "rdzv-daemon.deb", "rdzv-agent.deb", "rdzv-trainer.deb", "librdzv0.deb", "librdzv-dev.deb"}
    assert names >= files | {f"{name}.spdx.json" for name in files}


def test_the_archive_of_the_sources(dry):
    """git writes it, of what is committed and of nothing else."""
    with tarfile.open(dry[0] / f"rdzv-{VERSION}.tar.gz") as tar:
        members = {m.name.partition("/")[2]: m for m in tar.getmembers() if not m.isdir()}
    assert set(members) == set(git("ls-files", cwd=TOP).stdout.split("\n")[:-1])
    assert {m.mtime for m in members.values()} == {int(git("log", "-1", "--format=%ct").stdout)} and {m.uid for m in members.values()} == {0}


def test_what_the_release_prints(dry):
    """The fixture runs the page's command."""
    assert pages.lines(PAGE, "dry") == ["deploy/release --dry"]
    out, said = dry
    commit = git("rev-parse", "HEAD").stdout.strip()
    assert f"rdzv {VERSION}, commit {commit}" in said and re.search(rf"dry: git tag -s -m 'rdzv {VERSION}' v{VERSION} {commit}", said)
    assert git("tag", cwd=out.parents[1]).stdout == ""
    sums = dict(reversed(line.split()) for line in (out / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {f.name for f in out.iterdir()} - {"work", "SHA256SUMS"} and {f"{name}.spdx.json" for name in sums if not name.endswith(".json")} <= set(sums)
    assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=out).returncode == 0


def test_a_release_refuses(tmp_path, tools):
    """What is not committed, a section of NEWS.md without a date, and a version that is tagged already."""
    clone = tmp_path / "clone"
    tools.run("git", "clone", "-q", TOP, clone)

    def refused(*words):
        done = subprocess.run([clone / "deploy/release", *words], capture_output=True, text=True, env=plain())
        assert done.returncode == 1, done
        return done.stderr
    (clone / "stray").write_text("")
    assert "not as in the commit" in refused("--dry") and "?? stray" in refused("--dry")
    (clone / "stray").unlink()
    if f"## {VERSION} (unreleased)" in (clone / "NEWS.md").read_text():
        assert f"section {VERSION} is unreleased" in refused()
    tools.run("git", "tag", f"v{VERSION}", cwd=clone)
    assert f"the tag v{VERSION} is there already" in refused("--dry")
    assert "--nonsense" in refused("--nonsense")
    assert not (clone / "build").exists()


def test_bills_of_materials(dry, tools):
    """SPDX's own validator accepts them, and they have what the files have."""
    need("pyspdxtools", shutil.which("pyspdxtools") or (Path(sys.executable).parent / "pyspdxtools").exists())
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    out, inside = dry[0], {}
    for file in sorted(out.glob("*.spdx.json")):
        document = parse_file(str(file))
        assert not (errors := validate_full_spdx_document(document)), errors
        text = json.loads(file.read_text())
        assert text["spdxVersion"] == "SPDX-2.3" and text["name"] + ".spdx.json" == file.name
        (it,) = [p for p in text["packages"] if p["SPDXID"] == "SPDXRef-rdzv"]
        assert it["checksums"][0]["checksumValue"] == subprocess.run(["sha256sum", out / text["name"]], capture_output=True, text=True).stdout.split()[0]
        names = {p["SPDXID"]: p["name"] for p in text["packages"]}
        inside[text["name"]] = {(r["relationshipType"], names[r["relatedSpdxElement"]]) for r in text["relationships"]} - {("DESCRIBES", it["name"])}
    static = {name for kind, name in inside[f"rdzv-{VERSION}-linux-{ARCH}.tar.gz"] if kind == "STATIC_LINK"}
    assert static == {"libuv", "jansson", "libsodium", "zlib"} and ("CONTAINS", "openblas") in inside[f"rdzv-{VERSION}-linux-{ARCH}.tar.gz"]
    (wheel,) = [parts for name, parts in inside.items() if name.startswith("rdzv-") and name.endswith(".whl")]
    assert {name for kind, name in wheel if kind == "STATIC_LINK"} == {"libuv", "jansson", "libsodium"} and ("DYNAMIC_LINK", "glibc") in wheel
    (trainer,) = [parts for name, parts in inside.items() if name.startswith("rdzv_trainer-")]
    assert ("STATIC_LINK", "zlib") in trainer and ("CONTAINS", "openblas") in trainer
    (agent,) = [parts for name, parts in inside.items() if name.startswith("rdzv-agent_")]
    assert {("DEPENDS_ON", "libuv1"), ("DEPENDS_ON", "libsodium23"), ("DEPENDS_ON", "libjansson4"), ("DEPENDS_ON", "libc6")} <= agent
    assert inside[f"rdzv-{VERSION}.tar.gz"] == set()


def readelf(words, data, tmp_path):
    (tmp_path / "elf").write_bytes(data)
    return subprocess.run(["readelf", *words, tmp_path / "elf"], capture_output=True, text=True, check=True).stdout


def test_all_that_is_shipped_is_hardened(binaries, tmp_path):
    """PIE, full RELRO, no executable stack, no folder to look for libraries; canaries, checked calls and marked targets of jumps in all code but the smallest helpers'."""
    assert len(binaries) > 20, list(binaries)
    mark = {"x86_64": b"\xf3\x0f\x1e\xfa", "aarch64": b"\x3f\x23\x03\xd5"}[ARCH]  # endbr64, paciasp
    small = {"rdzv-kubeflow", "rdzv-nccl", "librdzv-nccl-profiler"}  # the first one has one sentence where there is no libcurl
    for name, data in binaries.items():
        head, segments, dynamic = (readelf(w, data, tmp_path) for w in (["-hW"], ["-lW"], ["-dW"]))
        short = re.sub(r"\.so[.\d]*$", "", Path(name).name)
        assert "DYN (" in head and "GNU_RELRO" in segments and "BIND_NOW" in dynamic, name
        assert re.search(r"GNU_STACK.*RW ", segments) and not re.search(r"GNU_STACK.*RWE", segments), f"{name} has an executable stack"
        assert not re.search(r"LOAD.*RWE", segments), f"{name} has memory that can be written and executed"
        assert ".so" in name or re.search(r"FLAGS_1.*PIE", dynamic), f"{name} is not a PIE"
        assert not (paths := set(re.findall(r"R(?:UN)?PATH\).*\[(.*)\]", dynamic)) - {"$ORIGIN/../lib/rdzv:$ORIGIN/../data/lib/rdzv"}), f"{name} looks in {paths}"
        assert data.count(mark) >= (1 if short in small else 20), f"{name} has {data.count(mark)} marked functions"
        symbols = readelf(["--dyn-syms", "-W"], data, tmp_path)
        # A program that links another library has zig's own __stack_chk_fail; then the code shows where canaries are read.
        canaries = "__stack_chk_fail" in symbols or len(re.findall(rb"\x64\x48[\x2b\x33\x3b\x8b].\x25\x28\0\0\0", data, re.S)) >= 20
        assert short in small or canaries, f"{name} has no canaries"
        assert short in small or re.search(r"_chk@", symbols), f"{name} has no checked calls"
        if short == "librdzv":  # each function that programs call begins with the mark
            (address,) = re.findall(r"(?m)^ *\d+: ([0-9a-f]+) .* rdzv_init@", symbols)
            at = ["objdump", "-d", f"--start-address=0x{address}", f"--stop-address={int(address, 16) + 4}", tmp_path / "elf"]
            assert re.search("endbr64|paciasp", subprocess.run(at, capture_output=True, text=True).stdout), name


def test_fortify_is_3_where_the_compiler_has_it(dry, tmp_path):
    """In every command that compiled, the last word counts; and the headers of each compiler agree to it."""
    work = dry[0] / "work"
    log = (work / "debian/build.log").read_text()
    commands = [line for line in log.splitlines() if " -MF " in line and line.rstrip().endswith(".c")]
    rules = re.findall(r"(?m)^build \S+\.c\.o: c_COMPILER.*\n(?: .*\n)*? ARGS = (.*)$", (work / f"python/{ARCH}/rdzv/build.ninja").read_text())
    assert len(commands) > 100 and len(rules) > 100
    for words in [*commands, *rules]:
        assert re.findall(r"-D_FORTIFY_SOURCE=(\d)", words)[-1:] == ["3"], words
    (tmp_path / "level.c").write_text("#include <features.h>\nlevel=__USE_FORTIFY_LEVEL\n")
    for compiler in ("cc", work / f"python/{ARCH}/tools/cc"):
        version = subprocess.run([compiler, "-dumpversion"], capture_output=True, text=True).stdout
        said = subprocess.run([compiler, "-E", "-P", "-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3", tmp_path / "level.c"], capture_output=True, text=True).stdout
        assert f"level={3 if int(version.split('.')[0]) >= 12 else 2}" in said.replace(" ", ""), f"{compiler}: {said}"


@pytest.mark.fresh
def test_two_builds_from_nothing(made, tmp_path, tools):
    """The same with libraries that are compiled anew."""
    out, _ = release(made, tmp_path / "clone", tools, with_libraries=False)
    assert len(kinds(equal(made, made, out))) >= 8
