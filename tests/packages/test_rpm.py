# SPDX-License-Identifier: Apache-2.0
"""The RPM packages: built by the command that people use, with an rpmbuild of Debian. It has neither Fedora's macros, for which there are stand-ins
(fedora.macros), nor a database of Fedora's packages, so that nothing checks what the build needs (--nodeps). The unit tests of %check run elsewhere."""

import os
import re
import shutil
import subprocess

import pytest

import pages
from harness import TOP, VERSION, free_port

HERE = TOP / "tests/packages"
LIB = "/usr/lib64"
COMPLETIONS = ("bash-completion/completions/{}", "zsh/site-functions/_{}", "fish/vendor_completions.d/{}.fish")
TEXTS = r"/usr/share/(doc/rdzv|licenses)(/|$)|/usr/lib/.build-id"


def of(program, section):
    """A program with its manual page and completions."""
    return {f"/usr/bin/{program}", f"/usr/share/man/man{section}/{program}.{section}", *(f"/usr/share/{c.format(program)}" for c in COMPLETIONS)}


# What is in which package, but for the texts.
HAVE = {
    "rdzv": {*of("rdzv-agent", 1), *of("rdzvctl", 1), *of("rdzvd", 8), "/usr/share/man/man7/rdzv.7", "/usr/share/rdzv", "/usr/share/rdzv/rdzv-agent.tcsh", "/usr/libexec/rdzv", "/usr/libexec/rdzv/rdzv-claim", "/usr/libexec/rdzv/rdzv-devices",
             "/usr/libexec/rdzv/rdzv-kubeflow", "/usr/libexec/rdzv/librdzv-nccl-profiler.so",
             "/usr/libexec/rdzv/rdzv-nccl", "/etc/rdzv", "/etc/rdzv/agent.conf", "UNITS/rdzvd.service", "UNITS/rdzv-agent@.service", "/usr/lib/sysusers.d/rdzv.conf"},
    "rdzv-trainer": of("rdzv-trainer", 1),
    "rdzv-libs": {f"{LIB}/librdzv.so.0", f"{LIB}/librdzv.so.{VERSION}"},
    "rdzv-devel": {"/usr/include/rdzv.h", f"{LIB}/librdzv.so", f"{LIB}/pkgconfig/rdzv.pc", "/usr/share/man/man3/librdzv.3"},
    "rdzv-static": {f"{LIB}/librdzv.a"},
}
# Libraries and packages that each needs, without versions.
NEED = {
    "rdzv": {"/bin/sh", "systemd", "libc", "libcurl", "libjansson", "libm", "libsodium", "libuv"},
    "rdzv-trainer": {"libc", "libjansson", "libm", "libopenblas", "libz"},
    "rdzv-libs": {"libc"},
    "rdzv-devel": {"rdzv-libs", "/usr/bin/pkg-config"},
    "rdzv-static": {"rdzv-devel"},
}
# Debian's rpmlint knows Mandriva's rules. What only these want, or Fedora's rpmbuild would have done: signed, stripped, compressed pages, another hash.
RPMLINT_OF_OTHERS = {"no-signature", "no-packager-tag", "no-group-tag", "no-buildroot-tag", "no-major-in-name", "no-manual-page-for-binary", "manpage-not-compressed",
                     "missing-hash-section", "library-without-ldconfig-postin", "library-without-ldconfig-postun", "lib-package-without-%mklibname", "invalid-license",
                     "invalid-url", "no-documentation", "files-duplicate", "unstripped-binary-or-object", "static-library-without-debuginfo", "requires-on-release",
                     "outside-libdir-files", "non-versioned-file-in-library-package"}


@pytest.fixture(scope="module")
def units(tools):
    if not shutil.which("rpmbuild"):
        pytest.skip("rpmbuild is not installed (package rpm)")
    return tools.run("pkg-config", "--variable=systemdsystemunitdir", "systemd").strip()


@pytest.fixture(scope="module")
def built(units, tmp_path_factory, tools):
    """package -> file; "src": the source package"""
    # The same folder each time: ccache then knows what an earlier build has compiled.
    out = tmp_path_factory.getbasetemp() / "rpm"
    macros = tmp_path_factory.mktemp("macros") / "fedora.macros"
    macros.write_text((HERE / "fedora.macros").read_text().replace("%_unitdir UNITS", f"%_unitdir {units}"))
    env = {**os.environ, "RDZV_RPM_OUT": str(out), "CCACHE_BASEDIR": str(out), "CCACHE_NOHASHDIR": "1"}
    command = pages.block("deploy/packages.md", "rpm").strip()
    tools.run("sh", "-c", f"{command} --load={macros} --nodeps --without check", cwd=TOP, env=env)
    found = {re.sub(r"-[\d.]+-\d+\..*", "", f.name): f for f in out.glob("RPMS/*/*.rpm")}
    return {**found, "src": next(out.glob("SRPMS/*.src.rpm"))}


def query(tools, rpm, *what):
    return tools.run("rpm", "-qp", *what, rpm).splitlines()


def test_which_file_is_where(built, units, tools):
    assert set(built) == {*HAVE, "src"}
    for package, files in HAVE.items():
        found = {f for f in query(tools, built[package], "-l") if not re.match(TEXTS, f)}
        assert {f.replace(units + "/", "UNITS/") for f in found} == files, package
    assert "/usr/share/doc/rdzv/deploy/packages.md" in query(tools, built["rdzv"], "-l")
    assert {f.split("/")[-1] for f in query(tools, built["src"], "-l")} == {"rdzv.spec", f"rdzv-{VERSION}.tar.gz"}


def test_what_each_needs(built, tools):
    for package, needs in NEED.items():
        found = {re.split(r"[\s(=]|\.so", need)[0] for need in query(tools, built[package], "--requires")}
        assert {n for n in found if not n.startswith(("rpmlib", "rtld", "ld-linux", "config"))} == needs, package


def test_rpmlint_finds_nothing(built):
    if not shutil.which("rpmlint"):
        pytest.skip("rpmlint is not installed")
    said = subprocess.run(["rpmlint", *map(str, built.values())], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120).stdout
    assert "packages and 0 specfiles checked" in said, said
    lines = [line for line in said.splitlines() if (found := re.match(r"\S+: [EW]: (\S+)", line)) and found[1] not in RPMLINT_OF_OTHERS]
    assert not lines, "\n".join(lines)


def test_installed_upgraded_removed(rdzv, built, tools):
    """By rpm, in a folder with a database of its own. Scripts are not run there, since there is no shell; an upgrade keeps the site's settings."""
    if os.geteuid() != 0:
        pytest.skip("not on this machine: rpm needs root for another root")
    root = rdzv.tmp / "root"
    root.mkdir()
    rpm = ["rpm", "--root", root, "--nodeps", "--noscripts"]
    packages = [f for name, f in built.items() if name != "src"]
    tools.run(*rpm, "-i", *packages)
    conf = root / "etc/rdzv/agent.conf"
    lines = conf.read_text().splitlines()
    assert len(lines) > 50 and all(not line or line.startswith("#") for line in lines)
    agent = rdzv.spawn(root / "usr/bin/rdzv-agent", "--explain", "--", "true", env={"RDZV_AGENT_CONF": str(conf)})
    assert agent.exit() == 0 and "lease 5" in agent.out, agent
    train = ["--data", "synthetic:200", "--layers", "8,4,8", "--loss", "rmse", "--batch", "8", "--device", "cpu", "--steps", 200]
    job = ["--nnodes", 2, "--nproc", 2, "--endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "rpm"]
    agents = [rdzv.spawn(root / "usr/bin/rdzv-agent", *job, "--", *train, env={"PATH": "/usr/bin:/bin"}) for _ in (0, 1)]
    assert [a.exit(30) for a in agents] == [0, 0] and agents[0].says("200 steps|is done"), rdzv
    conf.write_text("lease = 21s\n")
    tools.run(*rpm, "-U", "--force", *packages)
    assert conf.read_text() == "lease = 21s\n"
    tools.run(*rpm, "-e", *HAVE)
    left = {f for f in tools.files(root) if not f.startswith(("var/lib/rpm/", "root/.rpmdb/", "usr/lib/sysimage/rpm/"))}
    assert left == {"etc/rdzv/agent.conf.rpmsave"}, left


def test_the_spec_runs_the_unit_tests_and_leaves_daemons_alone():
    spec = (TOP / "deploy/rpm/rdzv.spec").read_text()
    check = spec[spec.index("%check") : spec.index("%post\n")]
    assert "%meson_test --suite unit" in check and "%bcond_without check" in spec
    assert "systemctl" not in spec  # Fedora's macros, which ask the presets, are all that touches units
