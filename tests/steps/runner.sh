# shellcheck shell=bash
# Runs the steps. Every step has a process group, a log, a deadline and a result of its own.
#
#   $logs/NAME.log      what the step printed
#   $logs/NAME.began    when it began, in seconds since 1970
#   $logs/NAME.group    its process group
#   $logs/NAME.result   how it ended: "exit-status seconds", "needs STEP", "late LIMIT seconds", or "never" for a step that did not begin
#                       before the deadline of the whole run
#   $logs/NAME.cpu      the CPU time that it and its processes took, as bash prints it
#   $logs/NAME.counts   "passed failed skipped", if the step ran several tests
#   $logs/NAME.failed   the names of the tests that failed, and below each name, indented, its output
#   $logs/NAME.second   the tests that passed only at their second try: the test, where its first and its second output are, and why it failed, between tabs
#   $logs/NAME-N.running   for each of its pytest processes: the pid, since when, and the test that runs
#
# A step that passes its deadline gets SIGTERM, which lets pytest and meson count what they have. After that it gets SIGKILL, and so does every process
# that inherited the step's mark in its environment, in whatever session it is.

set -m # background jobs get process groups of their own

lanes='' # the process groups of the subshells that run steps, as kill takes them

# The bound for hangs of each step, in seconds: several times what it takes on two busy cores. The steps that compute give way to others.
deadline_of() {
  case $1 in
    format | corpus) echo 300 ;;
    gcc | asan | bench) echo 900 ;;
    unit | features) echo 1200 ;;
    cluster | interop | e2e | slurm) echo 1800 ;;
    clang | tidy | packages | sim | model) echo 2400 ;;
    image) echo 3000 ;;
    fresh | faults) echo 5400 ;;
    soak | fresh-tests | worlds) echo 9000 ;;
    *) echo 600 ;;
  esac
}

# seconds_left LIMIT: LIMIT, or what is left until the deadline of the whole run if that is less.
seconds_left() {
  local left=$1
  if [ "$ends" != 0 ] && [ $((ends - $(date +%s))) -lt "$left" ]; then left=$((ends - $(date +%s))); fi
  echo "$left"
}

put_result() { # NAME TEXT: in one piece, for the process that waits for it
  echo "$2" >"$logs/$1.result.new"
  mv "$logs/$1.result.new" "$logs/$1.result"
}

# run_step NAME FUNCTION [NEEDED STEP...]: runs FUNCTION, unless a step that it needs did not succeed. Exit status 77 means
# skipped, and the log's last line says why. The function may write $counts, $told, $again, $second and $logs/NAME.show.
run_step() {
  local name=$1 fn=$2 need limit t0 pid dog rc
  shift 2
  wanted "$name" || return 0
  for need; do
    if ! wanted "$need" && [ -e "$out/$need/build.ninja" ]; then continue; fi # built by an earlier run
    case $(cat "$logs/$need.result" 2>/dev/null) in
      "0 "*) ;;
      *) put_result "$name" "needs $need"; return 0 ;;
    esac
  done
  limit=$(seconds_left "$(deadline_of "$name")")
  [ "$limit" -gt 0 ] || { put_result "$name" never; return 0; }
  counts=$logs/$name.counts told=$logs/$name.failed again=$logs/$name.again second=$logs/$name.second mark=$$-$name
  : >"$second"
  date +%s >"$logs/$name.began"
  t0=$(date +%s%N)
  set -m
  (
    set +m
    trap : TERM # its programs get the signal; this shell counts what they did
    trap 'times >"$logs/$name.cpu"' EXIT
    export TESTS_RUN_STEP=$mark
    set -e
    "$fn"
  ) >"$logs/$name.log" 2>&1 </dev/null &
  pid=$!
  echo $pid >"$logs/$name.group"
  set +m # with it `wait` returns when a job is stopped, too
  stop_late "$name" $pid "$mark" "$limit" &
  dog=$!
  wait $pid
  rc=$?
  t0=$(awk "BEGIN{printf \"%.1f\", ($(date +%s%N) - $t0) / 1e9}")
  if [ -e "$logs/$name.late" ]; then
    wait $dog # it kills what is left
    put_result "$name" "late $limit $t0"
  else
    kill $dog 2>/dev/null
    [ $rc = 0 ] || kill_step $pid "$mark" # a test that failed may have left processes behind
    put_result "$name" "$rc $t0"
  fi
  rm -f "$logs/$name.group"
}

# stop_late NAME PID MARK LIMIT: sleeps until the deadline, writes down what the step is doing, and ends it.
stop_late() {
  local name=$1 pid=$2 mark=$3 limit=$4 end quiet
  exec {quiet}<> <(:)
  read -rt "$limit" -u "$quiet" # sleeps without a process that might be left behind
  what_runs "$name" >"$logs/$name.late"
  kill -TERM -- "-$pid" 2>/dev/null
  end=$(($(date +%s) + 30))
  while kill -0 "$pid" 2>/dev/null && [ "$(date +%s)" -lt $end ]; do sleep 0.2; done
  kill_step "$pid" "$mark"
}

# Every process of a step: its group, and what inherited its mark.
kill_step() { # GROUP MARK
  kill -KILL -- "-$1" 2>/dev/null
  grep -lzs "^TESTS_RUN_STEP=$2\$" /proc/[0-9]*/environ | cut -d / -f 3 | xargs -r kill -KILL 2>/dev/null
}

# what_runs NAME: the tests that run in its pytest processes, its other processes, and the last lines of its log.
what_runs() {
  local name=$1 file pid since what
  for file in "$logs/$name"-*.running; do
    [ -e "$file" ] || continue
    read -r pid since what <"$file" || continue
    [ ! -d "/proc/$pid" ] || echo "running for $(($(date +%s) - since)) s: $what"
  done
  pid=$(pgrep -d, -g "$(cat "$logs/$name.group" 2>/dev/null || echo 0)") || return 0
  ps -o pid=,etimes=,stat=,wchan:20=,args= -p "$pid" | cut -c1-200 | sed 's/^/process: /'
  for file in "$logs/$name.log" "$logs/$name"-*.log; do
    [ ! -s "$file" ] || tail -n 10 "$file" | cut -c1-300 | sed "s|^|${file##*/}: |"
  done
}

# lane FUNCTION: a list of run_step, beside what else runs; report waits for its steps.
lane() {
  "$1" &
  lanes+=" -$!"
}

# One step, here and now.
step() {
  run_step "$@" &
  lanes=" -$!"
  report "$1"
}

# Somebody stops the run: ends every step, and reports which ones those were. They count as failed.
stop_all() {
  trap '' INT TERM
  exec 2>/dev/null # where bash would report each process that is killed here
  local file name tests
  # shellcheck disable=SC2086 # a list
  [ -z "$lanes" ] || kill -KILL -- $lanes 2>/dev/null
  for file in "$logs"/*.group; do
    [ -e "$file" ] || continue
    name=${file##*/} name=${name%.group}
    failed=$((failed + 1))
    tests=$(what_runs "$name" | sed -n 's/^running/    running/p')
    names+="  $name: interrupted after $(($(date +%s) - $(cat "$logs/$name.began"))) s"$'\n'${tests:+$tests$'\n'}
    kill_step "$(cat "$file")" "$$-$name"
  done
  echo "interrupted"
  trap - EXIT
  report_end
  exit 130
}

# A mistake in these scripts ended tests/run: even then the last line is the usual one.
end_early() {
  failed=$((failed + 1))
  names+="  tests/run: it ended before its last step"$'\n'
  report_end
}
