# shellcheck shell=bash
# Shows how far a long wait is: at a terminal in one live line, which is erased at its end, elsewhere in a line a minute.
#
#   progress_begin WHAT FUNCTION...   from now on a process shows WHAT, the time, and what FUNCTION prints: one line on how far it is
#   progress_end                      ends it and erases the line; nothing else may be printed before
#   run_with_progress LOG WHAT COMMAND...
#                                     runs COMMAND, whose output is appended to LOG and whose last line of output is shown; its exit status
#
# progress.py in this folder is the same for Python.

progress_pid=''
progress_every=60 # seconds between two lines where there is no terminal
progress_live=0
[ ! -t 1 ] || [ "${TERM:-dumb}" = dumb ] || progress_live=1

progress_draw() { # TEXT: in place of the live line, cut to the terminal's width
  local columns
  read -r _ columns < <(stty size </dev/tty 2>/dev/null) || columns=80
  [ "${columns:-0}" -gt 0 ] || columns=80
  printf '\r%s\e[K' "${1:0:columns-1}"
}
progress_erase() { [ $progress_live = 0 ] || printf '\r\e[K'; }

progress_time() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); } # SECONDS

last_line_of() { # FILE: without control characters and colours
  tail -c 4096 "$1" 2>/dev/null | tr '\r' '\n' | sed -e 's/\x1b\[[0-9;]*[A-Za-z]//g' | tr -d '\000-\011\013-\037\177' | grep -v '^ *$' | tail -n 1
}

progress_show() { # WHAT FUNCTION...
  local what=$1 began=$SECONDS next=$((SECONDS + progress_every)) quiet state
  shift
  set +e # a read that times out is no failure
  trap 'exit 0' TERM
  exec {quiet}<> <(:)
  while kill -0 $$ 2>/dev/null; do
    read -rt 1 -u "$quiet" # sleeps without a process that might be left behind
    if [ $progress_live = 1 ]; then
      state=$("$@")
      progress_draw "  $what $(progress_time $((SECONDS - began)))${state:+: $state}"
    elif [ $SECONDS -ge $next ]; then
      next=$((SECONDS + progress_every))
      state=$("$@")
      printf '  %s %s%s\n' "$what" "$(progress_time $((SECONDS - began)))" "${state:+: $state}"
    fi
  done
}

progress_begin() { # WHAT FUNCTION...
  progress_end
  progress_show "$@" &
  progress_pid=$!
}

progress_end() {
  [ -n "$progress_pid" ] || return 0
  kill -TERM "$progress_pid" 2>/dev/null || true
  wait "$progress_pid" 2>/dev/null || true
  progress_pid=''
  progress_erase
}

run_with_progress() { # LOG WHAT COMMAND...
  local log=$1 what=$2 rc=0
  shift 2
  progress_begin "$what" last_line_of "$log"
  "$@" >>"$log" 2>&1 </dev/null || rc=$?
  progress_end
  return $rc
}
