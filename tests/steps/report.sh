# shellcheck shell=bash
# Prints one line per step as it ends, what failed in it, and at the end the sum. Reads what runner.sh leaves in $logs.

passed=0 failed=0 skipped=0
names='' # of what failed, for the end
took=''  # how long each step took, and how much CPU, for the end
twice=() # what passed only at its second try, for the end
twice_max=3

bold='' red='' green='' yellow='' plain=''
if [ -t 1 ]; then bold=$'\e[1m' red=$'\e[31m' green=$'\e[32m' yellow=$'\e[33m' plain=$'\e[0m'; fi

line() { # colour word step seconds text
  printf '%s%-5s%s %-9s %6s  %s\n' "$1" "$2" "$plain" "$3" "$4" "$5"
}

# report NAME...: prints each of these steps when it ends. Until then a live line shows which ones run; where there is no terminal, a line a minute.
report() {
  local left=() still name shown=$SECONDS alive
  for name; do ! wanted "$name" || left+=("$name"); done
  while [ ${#left[@]} -gt 0 ]; do
    alive=0
    # shellcheck disable=SC2086 # a list
    ! kill -0 -- $lanes 2>/dev/null || alive=1
    still=()
    for name in "${left[@]}"; do
      if [ -e "$logs/$name.result" ]; then
        report_one "$name"
      elif [ $alive = 0 ] || [ "$(seconds_left 1)" -lt -120 ]; then
        echo "no result, because its shell is gone, or its processes outlive SIGKILL" >>"$logs/$name.log"
        put_result "$name" "1 0"
        report_one "$name"
      else
        still+=("$name")
      fi
    done
    left=("${still[@]}")
    if [ ${#left[@]} -gt 0 ] && [ $((SECONDS - shown)) -ge $((progress_live ? 1 : 60)) ]; then
      shown=$SECONDS
      report_running "${left[@]}"
    fi
    [ ${#left[@]} = 0 ] || sleep 0.2
  done
}

# The steps that run and, at a terminal, what the first of them is doing.
report_running() {
  local name text='' doing=''
  for name; do
    [ -e "$logs/$name.group" ] || continue
    text+="${text:+, }$name for $(($(date +%s) - $(cat "$logs/$name.began"))) s"
    [ -n "$doing" ] || [ $progress_live = 0 ] || doing=$(doing_now "$name")
  done
  if [ -z "$text" ]; then return; fi
  if [ $progress_live = 1 ]; then
    progress_draw "      $(progress_time $SECONDS): $text${doing:+; $doing}"
  else
    echo "      after $((SECONDS / 60)) min: $text"
  fi
}

# The test that one of its pytest processes is in, or else the last line of its log.
doing_now() { # NAME
  local file pid since what
  for file in "$logs/$1"-*.running; do
    if [ -e "$file" ] && read -r pid since what <"$file" && [ -d "/proc/$pid" ]; then
      echo "${what##*/}"
      return
    fi
  done
  last_line_of "$logs/$1.log"
}

report_one() {
  local name=$1 how rest secs log=$logs/$1.log told=$logs/$1.failed p=0 f=0 s=0 text why='' test first second cause
  progress_erase
  read -r how secs rest <"$logs/$name.result"
  case $how in
    needs)
      skipped=$((skipped + 1))
      line "$yellow" skip "$name" '' "needs the step $secs, which did not succeed or is not in --only"
      return
      ;;
    never)
      failed=$((failed + 1))
      line "$red" FAIL "$name" '' "not begun within the deadline of the whole run"
      names+="  $name: not begun within the deadline of the whole run"$'\n'
      return
      ;;
    late) why="not done within its deadline of $secs s" secs=$rest how=1 ;;
  esac
  took+="$secs $name $(awk -F '[ms ]+' '{ cpu += 60 * ($1 + $3) + $2 + $4 } END { if (NR) printf "%.0f", cpu }' "$logs/$name.cpu" 2>/dev/null)"$'\n'
  while IFS=$'\t' read -r test first second cause; do
    twice+=("  $name: $test: first $first, then $second"$'\n'"      $cause")
  done < <(cat "$logs/$name.second" 2>/dev/null)
  [ -s "$logs/$name.counts" ] && read -r p f s <"$logs/$name.counts"
  if [ "$how" = 77 ] && [ $ci = 1 ]; then echo "skipped, which --ci does not allow" >>"$log"; how=1; fi
  if [ "$how" = 77 ]; then
    skipped=$((skipped + 1))
    line "$yellow" skip "$name" "$secs s" "$(tail -n 1 "$log")"
    return
  fi
  [ -z "$why" ] || f=$((f + 1)) # the step itself, beside its tests
  [ "$how" = 0 ] || [ "$f" -gt 0 ] || f=1
  [ $((p + f + s)) -gt 0 ] || p=1
  passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
  text="$p passed"
  [ "$f" = 0 ] || text+=", $f failed"
  [ "$s" = 0 ] || text+=", $s skipped"
  if [ "$f" = 0 ]; then
    [ "$text" != "1 passed" ] || text=''
    line "$green" ok "$name" "$secs s" "$text"
    # What a step wants read although it passed: skipped tests and their reasons, benchmark tables.
    [ ! -s "$logs/$name.show" ] || sed 's/^/      /' "$logs/$name.show"
    return
  fi
  line "$red" FAIL "$name" "$secs s" "$text: ${why:+$why; }${log#"$top"/}"
  if [ -n "$why" ]; then
    sed 's/^/    | /' "$logs/$name.late"
    names+="  $name: $why"$'\n'
  fi
  # What failed and what it printed, if that is known, or else the end of the log.
  if [ -s "$told" ]; then
    sed 's/^/    | /' "$told"
    names+=$(sed -n "s/^[^ ].*/  $name: &/p" "$told")$'\n'
  elif [ -z "$why" ]; then
    sed -E '/^\[[0-9]+\/[0-9]+\] (Compiling|Linking|Generating)|^Compiler for C supports/d' "$log" | tail -n 200 | sed 's/^/    | /'
    names+="  $name: ${log#"$top"/}"$'\n'
  fi
}

report_end() {
  progress_end
  progress_erase
  printf '%stook:%s %s\n' "$bold" "$plain" "$(sort -rn <<<"$took" | awk 'NF { printf "%s%s %.0f s%s", sep, $2, $1, $3 == "" ? "" : " (CPU " $3 " s)"; sep = ", " }')"
  printf '%s%d min %d s; logs in build/test-logs%s\n' "$bold" $((SECONDS / 60)) $((SECONDS % 60)) "$plain"
  [ ${#twice[@]} = 0 ] || printf '%s\n' "${yellow}passed at the second try:$plain" "${twice[@]}"
  if [ ${#twice[@]} -gt $twice_max ]; then
    failed=$((failed + 1))
    names+="  tests/run: ${#twice[@]} tests passed only at the second try; $twice_max may"$'\n'
  fi
  [ -z "$names" ] || printf '%sfailed:%s\n%s' "$red" "$plain" "$names"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ $failed = 0 ]
}
