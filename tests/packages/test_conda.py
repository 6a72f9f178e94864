# SPDX-License-Identifier: Apache-2.0
"""The conda recipe, built by rattler-build itself as its Python module has it. conda's channels are not reached from the tests: a channel in a folder
has an empty package for each requirement, and the compiler, meson and the libraries are those of this machine. rattler-build gives the build an
environment of its own; what a compiler's package sets there, conda-forge's and our stand-in alike, is how ccache gets in."""

import os
import shutil

import pytest

from harness import TOP, VERSION

# What conda-forge's variants choose for compiler("c") and stdlib("c"), and the packages that these become.
VARIANTS = {"c_compiler": ["gcc"], "c_compiler_version": ["13"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"]}
STAND_INS = {"gcc_linux-64": "13", "gcc_linux-aarch64": "13", "sysroot_linux-64": "2.28", "sysroot_linux-aarch64": "2.28", "meson": "1.0", "ninja": "1.11",
             "pkg-config": "0.29", "python": "3.11", "jansson": "2.14", "libcurl": "7.88", "libsodium": "1.0.18", "libuv": "1.44", "openblas": "0.3", "zlib": "1.2"}
STAND_IN = """package:
  name: {name}
  version: "{version}"
source:
  path: .
build:
  noarch: generic
  script: install -D -m 644 stand-in $PREFIX/etc/conda/activate.d/{name}.sh
"""
FILES = {"bin/rdzv-agent", "bin/rdzv-trainer", "bin/rdzvctl", "bin/rdzvd", "libexec/rdzv/librdzv-nccl-profiler.so", "libexec/rdzv/rdzv-claim", "libexec/rdzv/rdzv-devices", "libexec/rdzv/rdzv-kubeflow", "libexec/rdzv/rdzv-nccl", "etc/rdzv/agent.conf", "include/rdzv.h",
         "lib/librdzv.a", "lib/librdzv.so", "lib/librdzv.so.0", f"lib/librdzv.so.{VERSION}", "lib/pkgconfig/rdzv.pc"}


@pytest.fixture(scope="module")
def conda():
    for tool, package in (("patchelf", "patchelf"), ("meson", "meson")):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed (package {package})")
    return pytest.importorskip("rattler_build", reason="py-rattler-build is not installed in the tests' Python")


def activation():
    """What the compiler's stand-in sets: nothing without ccache."""
    folder = os.environ.get("CCACHE_DIR") or os.path.expanduser("~/.cache/ccache")
    lines = [f"export CC='ccache gcc' CCACHE_DIR='{folder}' CCACHE_BASEDIR=$SRC_DIR CCACHE_NOHASHDIR=1"] if shutil.which("ccache") else []
    return "".join(f"{line}\n" for line in lines)


def build(conda, recipe, channel, variants):
    (rendered,) = conda.Stage0Recipe.from_file(recipe).render(conda.VariantConfig(variants))
    (package,) = rendered.run_build(output_dir=channel, channels=[channel.as_uri()]).packages
    return package


@pytest.fixture(scope="module")
def channel(conda, tmp_path_factory):
    folder = tmp_path_factory.mktemp("channel")
    (folder / "noarch").mkdir()
    (folder / "noarch/repodata.json").write_text('{"packages": {}}')
    for name, version in STAND_INS.items():
        recipe = tmp_path_factory.mktemp(name) / "recipe.yaml"
        (recipe.parent / "stand-in").write_text(activation() if name.startswith("gcc_") else "")
        recipe.write_text(STAND_IN.format(name=name, version=version))
        build(conda, recipe, folder, {})
    return folder


def test_it_is_built_and_passes_its_own_test(conda, channel, tmp_path, tools):
    """Its own test is a job: an agent, its daemon and two trainers in an environment that has just this package."""
    tools.run(TOP / "deploy/sources", tmp_path / "rdzv")
    built = build(conda, tmp_path / "rdzv/deploy/conda/recipe.yaml", channel, VARIANTS)
    package = conda.Package.from_file(built)
    assert (package.name, package.version, package.license) == ("rdzv", VERSION, "Apache-2.0")
    assert {f for f in package.files if not f.startswith("share/")} == FILES
    assert {"share/man/man1/rdzv-agent.1", "share/doc/rdzv/README.md", "share/bash-completion/completions/rdzv-agent"} <= set(package.files)
    results = package.run_tests(channel=[channel.as_uri()])
    assert [r.success for r in results] == [True], results
