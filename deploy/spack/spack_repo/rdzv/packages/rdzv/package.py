# SPDX-License-Identifier: Apache-2.0
from spack_repo.builtin.build_systems.meson import MesonPackage

from spack.package import *


class Rdzv(MesonPackage):
    """rdzv launches distributed training and restarts it after a failure, as torchrun does, with one small daemon and one small agent per node."""

    homepage = "https://rdzv.invalid/"
    # Sources in a folder need no address: spack dev-build, spack develop.
    git = "https://rdzv.invalid/rdzv.git"

    license("Apache-2.0")

    version("main", branch="main")
    version("0.1.0", tag="v0.1.0")

    depends_on("c", type="build")
    depends_on("meson@0.61:", type="build")
    depends_on("python@3:", type="build")
    depends_on("libuv@1.42:")
    depends_on("jansson@2.13:")
    depends_on("libsodium@1.0.18:")
    depends_on("curl@7.66:")
    depends_on("openblas")
    depends_on("zlib-api")

    conflicts("platform=darwin", msg="rdzv needs Linux")
    conflicts("platform=windows", msg="rdzv needs Linux")

    sanity_check_is_file = ["bin/rdzv-agent", "bin/rdzv-trainer", "bin/rdzvctl", "bin/rdzvd", "include/rdzv.h", "lib/pkgconfig/rdzv.pc"]

    def setup_build_environment(self, env):
        env.set("RDZV_TESTS", "no")
        # The module for GPUs was not tried with Spack's CUDA.
        env.set("RDZV_CUDA_ARCH", "none")

    def meson_args(self):
        # etc/rdzv/agent.conf of the prefix has the site's defaults.
        return ["-Dsysconfdir=etc"]
