#!/usr/bin/env bash
# What rattler-build runs in a copy of the sources; PREFIX is the folder that it packs.
set -eu
# The module for GPUs needs NVIDIA's packages.
export RDZV_TESTS=no RDZV_CUDA_ARCH=none
# conda keeps all libraries in lib. Its own flags optimize.
meson setup conda-build --prefix="$PREFIX" --libdir=lib --buildtype=release --wrap-mode=nodownload
ninja -C conda-build -j "${CPU_COUNT:-2}"
meson install -C conda-build --no-rebuild
# The site's file, with all lines as comments: etc/rdzv/agent.conf of the environment is what its rdzv-agent reads.
install -D -m 644 "$PREFIX/share/doc/rdzv/examples/agent.conf" "$PREFIX/etc/rdzv/agent.conf"
# systemd looks for neither in an environment.
rm -rf "$PREFIX/lib/systemd" "$PREFIX/lib/sysusers.d" "$PREFIX/share/modulefiles"
