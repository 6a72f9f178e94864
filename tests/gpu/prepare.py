# SPDX-License-Identifier: Apache-2.0
"""The output of `tests/gpu/run --prepare DIR`: the libraries that rdzv is built from, for a machine with a compiler, CUDA and NCCL, but without
a package registry, and often without pkg-config.

    DIR/lib/lib*.a            libuv, jansson, libsodium, zlib: linked statically, so that nothing has to be found at run time
    DIR/lib/libopenblas.so    of OpenBLAS what the trainer calls; 25 MB, which each program would have, were it linked statically
    DIR/lib/libcmocka.so*     Debian has no static one; programs find these two here by their run path
    DIR/lib/pkgconfig/*.pc    with paths relative to themselves: DIR can be copied anywhere
    DIR/include
    DIR/bin/pkg-config        pkgconfig.py
    DIR/build                 where there is CUDA: the programs that tests/gpu/run runs, built with these libraries for the devices of RDZV_CUDA_ARCH (90:
                              H100, H200). They find cuBLASLt and NCCL where the other machine has them. Where they do not run, they are built there

They are Debian's packages, fetched by apt-get and unpacked, so no root is needed; whatever distribution the other machine has, objects of an older
libc can be linked there. OpenBLAS in whole has 55 MB: the linker is asked for what is behind the functions that our sources name.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import work

TOP = Path(__file__).resolve().parents[2]
PACKAGES = ["libuv1-dev", "libjansson-dev", "libsodium-dev", "libcmocka-dev", "libcmocka0", "libopenblas-serial-dev", "zlib1g-dev"]
LIMIT_MB = 45
DEADLINE_S = 300
BUILD_S = 1800
ARCH = "90"
BUILT = {**work.PLACES, "rdzv-cuda.so": "agent/trainer/gpu"}

# name: (package of its version and library, our name and theirs of static libraries, folder of its headers, what to link)
PARTS = {
    "libuv": ("libuv1-dev", {"libuv.a": "libuv_a.a"}, "", "-luv -lpthread -ldl -lrt"),
    "jansson": ("libjansson-dev", {"libjansson.a": "libjansson.a"}, "", "-ljansson"),
    "libsodium": ("libsodium-dev", {"libsodium.a": "libsodium.a"}, "", "-lsodium -lpthread"),
    "zlib": ("zlib1g-dev", {"libz.a": "libz.a"}, "", "-lz"),
    "cmocka": ("libcmocka-dev", {}, "", "-lcmocka"),
    "openblas": ("libopenblas-serial-dev", {}, "openblas", "-lopenblas -lm -lpthread"),
}
HEADERS = ["uv.h", "uv", "jansson.h", "jansson_config.h", "sodium.h", "sodium", "zlib.h", "zconf.h", "cmocka.h"]


class Failed(Exception):
    pass


def call(argv, seconds=DEADLINE_S, **kw):
    try:
        p = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=seconds, **kw)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise Failed(str(e)) from None
    if p.returncode:
        raise Failed(f"{' '.join(map(str, argv))} failed with {p.returncode}: {(p.stderr or p.stdout).strip()[-600:]}")
    return p.stdout


def unpack(folder):
    """All packages below folder/usr, and their versions."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Failed("--prepare needs apt-get and dpkg (Debian, Ubuntu)")
    # As root, apt would rather fetch as its own user, who may not write here, and says so.
    call(["apt-get", "-o", "APT::Sandbox::User=root", "download", *PACKAGES], cwd=folder)
    versions = {}
    for deb in folder.glob("*.deb"):
        call(["dpkg", "-x", deb, folder])
        name, version = call(["dpkg-deb", "-W", "--showformat=${Package} ${Version}", deb]).split()
        versions[name] = version
    return versions


def find(root, name):
    found = sorted(root.rglob(name))
    if not found:
        raise Failed(f"no {name} in Debian's packages")
    return found[0]


def used_of_openblas():
    """The functions of OpenBLAS that our sources name."""
    names = set()
    for source in (TOP / "agent/trainer").rglob("*.c"):
        names.update(re.findall(r"\b(?:cblas|openblas)_[a-z0-9_]+\b(?=\s*\()", source.read_text()))
    return sorted(names)


def take_openblas(root, out):
    """A shared library of what is used, and all that this needs, from the static one: it has kernels for every processor, LAPACK it has not."""
    cc, names, script = os.environ.get("CC", "cc"), used_of_openblas(), out / "exported"
    script.write_text("{ global: " + "".join(f"{name}; " for name in names) + "local: *; };\n")
    wanted = [f"-Wl,-u,{name}" for name in names]
    call([cc, "-shared", "-s", "-o", out / "lib/libopenblas.so", "-Wl,-soname,libopenblas.so", "-Wl,--gc-sections", f"-Wl,--version-script,{script}", *wanted,
          find(root, "libopenblas.a"), "-lm", "-lpthread"])
    script.unlink()
    (out / "include/openblas").mkdir()
    for name in ("cblas.h", "openblas_config.h"):
        shutil.copy(find(root, name), out / "include/openblas")


def write_pc(out, name, version):
    _, _, below, libs = PARTS[name]
    (out / f"lib/pkgconfig/{name}.pc").write_text(
        "prefix=${pcfiledir}/../..\n"
        f"libdir=${{prefix}}/lib\nincludedir=${{prefix}}/include{'/' + below if below else ''}\n\n"
        f"Name: {name}\nDescription: {name}, for tests/gpu/run\nVersion: {version}\nLibs: -L${{libdir}} {libs}\nCflags: -I${{includedir}}\n"
    )


def upstream(version):
    """1:1.2.13.dfsg-1 is 1.2.13."""
    return re.match(r"(?:\d+:)?([0-9.]*[0-9])", version)[1]


def fill(root, out, versions):
    (out / "lib/pkgconfig").mkdir(parents=True)
    (out / "include").mkdir()
    (out / "bin").mkdir()
    for name in HEADERS:
        at = find(root / "usr/include", name)
        (shutil.copytree if at.is_dir() else shutil.copy)(at, out / "include" / name)
    for name, (package, files, _, _) in PARTS.items():
        for ours, theirs in files.items():
            shutil.copy(find(root, theirs), out / "lib" / ours)
        write_pc(out, name, upstream(versions[package]))
    shutil.copy(find(root, "libcmocka.so.0.*"), out / "lib/libcmocka.so.0")
    shutil.copy(out / "lib/libcmocka.so.0", out / "lib/libcmocka.so")  # not a link: not everything that copies folders keeps them
    take_openblas(root, out)
    shutil.copy(Path(__file__).with_name("pkgconfig.py"), out / "bin/pkg-config")
    (out / "bin/pkg-config").chmod(0o755)


def target(name):
    """ninja's name of a file in the build: a shared library has the whole version, behind a link."""
    version = re.search(r"^ *version: '([0-9.]+)'", (TOP / "meson.build").read_text(), re.M)[1]
    return re.sub(r"\.so\.\d+$", f".so.{version}", name)


def build(out, tmp):
    """(the devices, or "", and why not)"""
    missing = re.search(r"^missing=(.*)", call(["python3", TOP / "agent/trainer/gpu/find_cuda.py"]), re.M)
    if missing:
        return "", f"not found: {missing[1]}"
    arch = os.environ.get("RDZV_CUDA_ARCH") or ARCH
    env = {**os.environ, "PKG_CONFIG_LIBDIR": str(out / "lib/pkgconfig"), "RDZV_CUDA_ARCH": arch}
    call(["meson", "setup", tmp / "build", TOP, "--buildtype=release"], env=env)
    wanted = {f"{at}/{name}" for name, at in BUILT.items()} - {"tests/fakegpu/device-rates-fake"}
    made = {name: target(name) for name in wanted}
    call(["ninja", "-C", tmp / "build", *sorted(made.values())], BUILD_S, env=env)
    for name, at in made.items():
        (out / "build" / name).parent.mkdir(parents=True, exist_ok=True)
        call(["strip", "-o", out / "build" / name, tmp / "build" / at])
    return arch, ""


def size_mb(folder):
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink()) / 1e6


def prepare(folder):
    out = Path(folder).resolve()
    if out.exists() and not (out / "lib/pkgconfig/libuv.pc").exists() and any(out.iterdir()):
        raise Failed(f"{out} exists, and is not what --prepare made: name another folder")
    with tempfile.TemporaryDirectory(prefix="rdzv-prepare.") as tmp:
        versions = unpack(Path(tmp))
        fresh = out.with_name(out.name + ".new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        fill(Path(tmp), fresh, versions)
        arch, why = build(fresh, Path(tmp))
        if size_mb(fresh) > LIMIT_MB:
            raise Failed(f"{fresh} has {size_mb(fresh):.0f} MB; {LIMIT_MB} are the limit")
        shutil.rmtree(out, ignore_errors=True)
        fresh.rename(out)
    names = ", ".join(f"{name} {upstream(versions[PARTS[name][0]])}" for name in PARTS)
    print(f"{out}: {names}; {size_mb(out):.1f} MB\n"
          f"programs: {f'for sm_{arch}' if arch else f'none, so they are built there: {why}'}\ncopy it to the other machine, and there: tests/gpu/run --deps {folder}")
