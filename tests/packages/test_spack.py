# SPDX-License-Identifier: Apache-2.0
"""The Spack package. No registry of the tests has Spack, so a stand-in records its directives, and meson gets the arguments that Spack's MesonBuilder
would give, with the package's own and in its environment. The files that Spack would check are among those that meson would install."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import types

import pytest

from harness import TOP, VERSION

REPO = TOP / "deploy/spack/spack_repo/rdzv"
DIRECTIVES = ("version", "variant", "depends_on", "conflicts", "license", "maintainers", "patch", "provides")


@pytest.fixture
def package(monkeypatch):
    """(the package's class, the directives in its body)"""
    said = []
    spack, meson = types.ModuleType("spack.package"), types.ModuleType("spack_repo.builtin.build_systems.meson")
    for name in DIRECTIVES:
        setattr(spack, name, lambda *args, _name=name, **kw: said.append((_name, args, kw)))
    meson.MesonPackage = type("MesonPackage", (), {})
    for name in ("spack", "spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "spack.package", spack)
    monkeypatch.setitem(sys.modules, "spack_repo.builtin.build_systems.meson", meson)
    spec = importlib.util.spec_from_file_location("package", REPO / "packages/rdzv/package.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(module)
    return module.Rdzv, said


class Environment(dict):
    def set(self, name, value):
        self[name] = value


def test_it_builds_by_its_arguments(package, tmp_path, tools):
    """One program and the library; test_prefix.py builds all."""
    if not shutil.which("meson"):
        pytest.skip("meson is not installed")
    # Inside the sources, as conda's build: then the compiler gets the same words, and ccache knows what it compiled there.
    tools.run(TOP / "deploy/sources", tmp_path / "rdzv")
    rdzv, env, prefix, out = package[0](), Environment(), tmp_path / "prefix", tmp_path / "rdzv/out"
    rdzv.setup_build_environment(env)
    standard = [f"-Dprefix={prefix}", f"-Dlibdir={prefix}/lib", "-Dbuildtype=release", "-Dstrip=false", "-Ddefault_library=shared", "-Dwrap_mode=nodownload"]
    env.update(CCACHE_BASEDIR=str(out.parent), CCACHE_NOHASHDIR="1")
    tools.run("meson", "setup", "..", *standard, *rdzv.meson_args(), cwd=make(out), env={**os.environ, **env})
    options = {o["name"]: o["value"] for o in json.loads(tools.run("meson", "introspect", "--buildoptions", out))}
    assert (options["libdir"], options["sysconfdir"], options["prefix"]) == ("lib", "etc", str(prefix)), options
    to = set(json.loads(subprocess.run(["meson", "introspect", "--installed", out], capture_output=True, text=True, check=True).stdout).values())
    missing = [f for f in rdzv.sanity_check_is_file if str(prefix / f) not in to]
    assert not missing, missing
    tools.run("ninja", "-C", out, "daemon/rdzvctl", env={**os.environ, **env})
    assert f"rdzvctl {VERSION}" in tools.run(out / "daemon/rdzvctl", "--version")


def make(folder):
    folder.mkdir()
    return folder


def test_what_it_needs_is_what_meson_asks_for(package):
    needs = {args[0] for name, args, _ in package[1] if name == "depends_on"}
    assert {"c", "curl@7.66:", "libuv@1.42:", "jansson@2.13:", "libsodium@1.0.18:", "meson@0.61:", "openblas", "zlib-api"} <= needs
    assert (VERSION,) in [args for name, args, _ in package[1] if name == "version"]
    assert re.search(r"namespace: rdzv\n  api: v2", (REPO / "repo.yaml").read_text())


def test_all_recipes_name_the_versions_that_meson_asks_for():
    """A dependency that meson.build has with another version, or a version of our own, would be forgotten in one of them."""
    top = (TOP / "meson.build").read_text()
    version, meson = re.search(r"version: '([\d.]+)'", top)[1], re.search(r"meson_version: '>=([\d.]+)'", top)[1]
    wanted = [("meson", meson), *re.findall(r"dependency\('(libuv|jansson|libsodium)', version: '>=([\d.]+)'\)", top)]
    assert len(wanted) == 4
    forms = {"deploy/rpm/rdzv.spec": r"(pkgconfig\()?{}\)? >= {}\n", "deploy/conda/recipe.yaml": r"- {} >={}\n", "deploy/debian/control": r"(lib)?{}(1)?(-dev)? \(>= {}\)",
             "deploy/spack/spack_repo/rdzv/packages/rdzv/package.py": r'"{}@{}:"'}
    for file, form in forms.items():
        text = (TOP / file).read_text()
        for name, least in wanted:
            assert re.search(form.format(name, re.escape(least)), text), f"{file}: {name} {least}"
    for file in ("deploy/rpm/rdzv.spec", "deploy/conda/recipe.yaml", "deploy/spack/spack_repo/rdzv/packages/rdzv/package.py"):
        assert version in (TOP / file).read_text(), file
