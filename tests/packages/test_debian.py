# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: built by the script that people use, with the module for CUDA where it can be built, and without; lintian has nothing to say of either; each file is
in the package where it belongs, and what is in them runs. That they install and leave nothing behind is shown on a fresh machine (test_fresh.py)."""

import os
import re
import shutil
import subprocess

import pytest

import pages
from harness import TOP, VERSION, free_port

BUILD = TOP / "deploy/debian/build"
LIB = r"usr/lib/[a-z0-9_]+-linux-gnu/"
# What is in which package, but for texts: programs and libraries.
HAVE = {
    "rdzv-daemon": {"usr/bin/rdzvd", "usr/bin/rdzvctl", "usr/libexec/rdzv/rdzv-claim"},
    "rdzv-agent": {"usr/bin/rdzv-agent", "usr/libexec/rdzv/librdzv-nccl-profiler.so", "usr/libexec/rdzv/rdzv-devices", "usr/libexec/rdzv/rdzv-kubeflow", "usr/libexec/rdzv/rdzv-nccl"},
    "rdzv-trainer": {"usr/bin/rdzv-trainer"},
    "rdzv-trainer-cuda": {"LIB/rdzv/rdzv-cuda.so"},
    "librdzv0": {"LIB/librdzv.so.0", f"LIB/librdzv.so.{VERSION}"},
    "librdzv-dev": {"usr/include/rdzv.h", "LIB/librdzv.a", "LIB/librdzv.so", "LIB/pkgconfig/rdzv.pc"},
}
TEXTS = r"etc/rdzv/agent.conf$|usr/share/(doc/PACKAGE/|lintian/overrides/PACKAGE$|man/man[1-8]/|bash-completion/completions/|zsh/vendor-completions/|fish/vendor_completions.d/|rdzv/)|(usr/)?lib/systemd/system/rdzv|usr/lib/sysusers.d/rdzv"
# What a package needs of others, without numbers.
NEED = {
    "rdzv-daemon": {"libc6", "libcurl4", "libjansson4", "libsodium23", "libuv1"},
    "rdzv-agent": {"rdzv-daemon", "libc6", "libcurl4", "libjansson4", "libsodium23", "libuv1"},
    "rdzv-trainer": {"libc6", "libjansson4", "libopenblas0", "zlib1g"},
    "rdzv-trainer-cuda": {"rdzv-trainer", "libc6"},
    "librdzv0": {"libc6"},
    "librdzv-dev": {"librdzv0"},
}


def debs(out):
    """package -> file, without those of debugging symbols"""
    return {f.name.split("_")[0]: f for f in out.glob("*.deb") if "-dbgsym" not in f.name}


@pytest.fixture(scope="module")
def unpacked(built, tmp_path_factory, tools):
    """package -> the folder with its files"""
    root = tmp_path_factory.mktemp("unpacked")
    for package, deb in debs(built[0]).items():
        tools.run("dpkg-deb", "-x", deb, root / package)
    return {package: root / package for package in debs(built[0])}


def test_lintian_finds_nothing(built):
    assert "lintian found nothing" in built[1], built[1]


def test_lintian_finds_nothing_without_cuda(dry):
    out, said = dry
    assert "lintian found nothing" in said, said
    assert set(debs(out)) == {name for name in HAVE if "cuda" not in name}


def test_the_command_for_cuda(unpacked, tools):
    """The page's; only where it can be built, and elsewhere without the option."""
    assert tools.cuda_is_here() == ("rdzv-trainer-cuda" in unpacked)
    assert "--cuda" in pages.block("deploy/packages.md", "cuda")


def test_which_file_is_where(unpacked, tools):
    expected = dict(HAVE) if "rdzv-trainer-cuda" in unpacked else {k: v for k, v in HAVE.items() if "cuda" not in k}
    assert set(unpacked) == set(expected)
    for package, root in unpacked.items():
        found = tools.files(root)
        texts = {f for f in found if re.match(TEXTS.replace("PACKAGE", package), f)}
        assert {re.sub(f"^{LIB}", "LIB/", f) for f in found - texts} == expected[package], package
        assert f"usr/share/doc/{package}/copyright" in texts


def test_the_manual_of_librdzv(unpacked, tools):
    """In the package that has rdzv.h."""
    assert [f.name for f in (unpacked["librdzv-dev"] / "usr/share/man/man3").iterdir()] == ["librdzv.3.gz"]
    assert "rdzv_exchange" in tools.manual(unpacked["librdzv-dev"] / "usr/share/man", "3", "librdzv")


def test_what_each_needs(built, tools):
    for package, deb in debs(built[0]).items():
        depends = tools.run("dpkg-deb", "-f", deb, "Depends")
        assert {word.split()[0] for word in depends.split(",")} == NEED[package], f"{package}: {depends}"
        assert tools.run("dpkg-deb", "-f", deb, "Architecture") == tools.run("dpkg", "--print-architecture")
    version = tools.run("dpkg-deb", "-f", debs(built[0])["rdzv-agent"], "Version").strip()
    assert f"rdzv-daemon (= {version})" in tools.run("dpkg-deb", "-f", debs(built[0])["rdzv-agent"], "Depends")


def test_the_sites_file_survives_an_upgrade(built, unpacked, tools):
    """dpkg asks before it replaces a conffile that was changed; what comes with the package changes nothing."""
    assert tools.run("dpkg-deb", "-I", debs(built[0])["rdzv-agent"], "conffiles").split() == ["/etc/rdzv/agent.conf"]
    lines = (unpacked["rdzv-agent"] / "etc/rdzv/agent.conf").read_text().splitlines()
    assert len(lines) > 50 and all(not line or line.startswith("#") for line in lines)


def test_hardened(unpacked, tools):
    """By hardening-check, where it is installed; and no library is looked for outside of the system's folders."""
    for root in unpacked.values():
        for name in tools.files(root):
            at = root / name
            if at.is_symlink() or at.read_bytes()[:4] != b"\x7fELF":
                continue
            dynamic = tools.run("readelf", "-dW", at)
            assert "RUNPATH" not in dynamic and "RPATH" not in dynamic, dynamic
            if "rdzv-cuda" not in name:
                assert "BIND_NOW" in dynamic or "NOW" in dynamic, f"{name} is not linked with -z now"


def test_a_job_from_the_packages_files(rdzv, unpacked):
    """All of them in one folder, as they are on a machine."""
    root = rdzv.tmp / "root"
    for at in unpacked.values():
        shutil.copytree(at, root, symlinks=True, dirs_exist_ok=True)
    train = ["--data", "synthetic:200", "--layers", "8,4,8", "--loss", "rmse", "--batch", "8", "--device", "cpu", "--steps", 200]
    job = ["--nnodes", 2, "--nproc", 2, "--endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "packed"]
    agents = [rdzv.spawn(root / "usr/bin/rdzv-agent", *job, "--", *train, env={"PATH": "/usr/bin:/bin"}) for _ in (0, 1)]
    assert [a.exit(30) for a in agents] == [0, 0] and agents[0].says("200 steps|is done"), rdzv


def test_the_maintainer_may_be_another(tmp_path, tools):
    """A site's own packages have its own name: --source makes what can be looked at without a build."""
    env = {**os.environ, "DEBFULLNAME": "A Site", "DEBEMAIL": "admin@site.example"}
    tools.run(BUILD, "--source", "--out", tmp_path, env=env)
    dsc = next(tmp_path.glob("*.dsc")).read_text()
    assert "Maintainer: A Site <admin@site.example>" in dsc and "maintainers@rdzv" not in dsc
    tools.run("dpkg-source", "-x", next(tmp_path.glob("*.dsc")), tmp_path / "x")
    log = tools.run("dpkg-parsechangelog", "-l", tmp_path / "x/debian/changelog")
    assert "A Site <admin@site.example>" in log and "* Launcher. rdzv-agent takes" in log
    assert not {f for f in tools.files(tmp_path / "x") if f.startswith(("build/", ".git/")) or f.endswith(".pyc")}


def test_a_mistake_gets_a_sentence(tmp_path):
    for args, words in ((["--nonsense"], "--nonsense"), (["--out"], "--out needs a folder")):
        done = subprocess.run([BUILD, *args], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 1 and words in done.stderr, done
