#!/usr/bin/env bash
# OSS-Fuzz runs this in the sources, with its compiler, its sanitizers and LIB_FUZZING_ENGINE in the environment. It puts each target of tests/fuzz into
# $OUT, with its corpus. The targets run in an image without our libraries, so these lie in $OUT/lib.
set -eu
build=$WORK/rdzv
export RDZV_CUDA_ARCH=none
# shellcheck disable=SC2016 # the loader expands $ORIGIN
LDFLAGS="${LDFLAGS:-} -Wl,-rpath,"'$ORIGIN/lib' meson setup "$build" . --buildtype=plain
ninja -C "$build" fuzzers
mkdir -p "$OUT/lib"
for program in "$build"/tests/fuzz/fuzz_*; do
  [ -f "$program" ] || continue
  name=${program##*/}
  cp "$program" "$OUT/"
  (cd "tests/fuzz/corpus/${name#fuzz_}" && python3 -m zipfile -c "$OUT/${name}_seed_corpus.zip" ./*)
  ldd "$program" | sed -n 's/.* => \(.*lib\(uv\|jansson\|sodium\)\.so[^ ]*\) .*/\1/p' | xargs -r cp -L -t "$OUT/lib"
done
