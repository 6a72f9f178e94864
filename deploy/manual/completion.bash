# Completion of @{program} for bash. Made from its option table when rdzv was built.
#
# bash-completion loads it by itself when the first argument is completed; without that, source this file. bash parts words at
# "=" and ":", so they are put together again before anything is looked at: --nnodes=2, ada@node1:29400.
#
# shellcheck disable=SC2207 # what is to be chosen from has no blanks; files come through mapfile

# What stands behind the option $1, in $want (its words are described in manual.py); fails for one without a value.
_@{id}_wants() {
  case ${1//_/-} in
@{bash-wants}
    *) return 1 ;;
  esac
}

# All words up to the cursor, in $words, with the place of each in COMP_WORDS in $at. $cur is the one at the cursor, as far as it goes, and $head
# what bash will not replace of it.
_@{id}_words() {
  local i word last=
  words=() at=()
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    if ((i > 1)) && [[ $word == [:=]* || $last == [:=]* ]]; then
      words[${#words[@]} - 1]+=$word
    else
      words+=("$word") at+=("$i")
    fi
    last=$word
  done
  cur=${words[${#words[@]} - 1]}
  [[ $last == [:=]* ]] && last=
  head=${cur%"$last"}
}

# Files that begin with $1 in COMPREPLY; -d as $2: folders.
_@{id}_files() {
  local found
  mapfile -t found < <(compgen "${2:--f}" -- "$1")
  COMPREPLY+=("${found[@]}")
  compopt -o filenames 2>/dev/null
}

# One kind of value, $1, of which $2 is written already.
_@{id}_kind() {
  case $1 in
    @file) _@{id}_files "$2" ;;
    @dir) _@{id}_files "$2" -d ;;
    @host) COMPREPLY+=($(compgen -A hostname -- "$2")) ;;
    @signal) COMPREPLY+=($(compgen -A signal -- "$2" | grep '^SIG')) ;;
    *) COMPREPLY+=($(compgen -W "$1" -- "$2")) ;;
  esac
}

# Values as $1 says, of which $2 is written already. $cut is what bash will not replace of $2.
_@{id}_value() {
  local one start ready cut=$3
  for one in $1; do
    if [[ $one == *, ]]; then # a list: what stands behind the last comma
      ready=${2%"${2##*,}"}
      _@{id}_kind "${one%,}" "${2#"$ready"}"
      COMPREPLY=("${COMPREPLY[@]/#/$ready}")
    elif [[ $one == *:* && $2 == "${one%%:*}":* ]]; then
      start=${one%%:*}:
      [[ ${one#"$start"} ]] && _@{id}_kind "${one#"$start"}" "${2#"$start"}"
      COMPREPLY=("${COMPREPLY[@]/#/$start}")
    elif [[ $one == *:* ]]; then
      [[ ${one%%:*}: == "$2"* ]] && COMPREPLY+=("${one%%:*}:") && compopt -o nospace 2>/dev/null
    else
      _@{id}_kind "$one" "$2"
    fi
  done
  COMPREPLY=("${COMPREPLY[@]#"$cut"}")
}

# Names of options, in the spelling that was begun: --nproc_per_node is --nproc-per-node.
_@{id}_names() {
  local names=$1 name
  if [[ $cur == --*_* ]]; then
    for name in $names; do
      [[ $name == --* ]] && name=${name#--} && COMPREPLY+=($(compgen -W "--${name//-/_}" -- "$cur"))
    done
  else
    COMPREPLY=($(compgen -W "$names" -- "$cur"))
  fi
}

# Goes over the options, up to the word at the cursor: $value is the option whose value that is, or empty; $rest the index of the first
# word that belongs to no option, or empty; $plain all of these.
_@{id}_walk() {
  local i=1 n=$((${#words[@]} - 1)) word want letters
  value='' rest='' plain=()
  while ((i < n)); do
    word=${words[i]}
    ((i++))
    case $word in
      --)
        rest=${rest:-$i}
        plain+=("${words[@]:i:n-i}")
        return
        ;;
      --*=*) ;;
      --*)
        if _@{id}_wants "$word"; then
          ((i == n)) && value=$word
          ((i++))
        fi
        ;;
      -?*)
        for ((letters = 1; letters < ${#word}; letters++)); do
          _@{id}_wants "-${word:letters:1}" || continue
          if ((letters == ${#word} - 1)); then
            ((i == n)) && value=$word
            ((i++))
          fi
          break
        done
        ;;
      *)
        rest=${rest:-$((i - 1))}
        plain+=("$word")
@{if command}
        return
@{end}
        ;;
    esac
  done
}

@{if command}
# Completes as if $1 were the command and all from index $2 on its arguments.
_@{id}_other() {
  local from=${at[$2]} how function=''
  COMP_WORDS=("$1" "${COMP_WORDS[@]:from}")
  ((COMP_CWORD -= from - 1))
  COMP_LINE="${COMP_WORDS[*]}"
  COMP_POINT=${#COMP_LINE}
  if ! complete -p "$1" >/dev/null 2>&1; then # bash-completion loads it, under the name that its version has for that
    if declare -F _comp_load >/dev/null; then
      _comp_load "$1"
    elif declare -F _completion_loader >/dev/null; then
      _completion_loader "$1"
    fi
  fi
  how=$(complete -p "$1" 2>/dev/null)
  [[ $how == *' -F '* ]] && function=${how##* -F } && function=${function%% *}
  if [[ $function && $function != _minimal ]]; then
    "$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
  else
    _@{id}_files "$cur"
  fi
}

# The command, or what is behind it.
_@{id}_rest() {
  local n=$((${#words[@]} - 1)) first=${rest:-$((${#words[@]} - 1))}
  if [[ ${words[first - 1]} == -- && ${words[first]} == -* ]]; then
    _@{id}_other @{passes-to} "$first"
  elif ((first < n)); then
    _@{id}_other "${words[first]}" $((first + 1))
  else
    _@{id}_files "$cur"
    [[ $cur ]] && COMPREPLY+=($(compgen -A command -- "$cur"))
  fi
}

@{end}
@{if verbs}
# What the daemon that this line is about says to "$@"; nothing, soon, where it does not answer.
_@{id}_ask() {
  local i which=()
  for ((i = 1; i < ${#words[@]} - 1; i++)); do
    case ${words[i]} in
      --port | -p | --socket | --endpoint) which+=("${words[i]}" "${words[i + 1]}") ;;
      --port=* | --socket=* | --endpoint=* | -p?*) which+=("${words[i]}") ;;
    esac
  done
  timeout 1 @{program} "${which[@]}" "$@" 2>/dev/null
}

_@{id}_hosts() { grep -o '"host":"[^"]*"' | cut -d'"' -f4 | sort -u; }

# The verb, or a word behind it. Names come from the daemon, so they are never expanded, and quoted where the shell would.
_@{id}_rest() {
  local what='' name
  local -a kinds names
  case ${plain[0]:-} in
@{bash-verbs}
  esac
  read -ra kinds <<<"${what//[][]/}"
  if [[ ${#plain[@]} == 0 ]]; then
    read -ra names <<<'@{verb-names}'
  else
    case ${kinds[${#plain[@]} - 1]:-}:${plain[0]} in
      JOB:*) mapfile -t names < <(_@{id}_ask jobs | sed -n 's/: .*//p') ;;
      HOST:drain) mapfile -t names < <(_@{id}_ask status --json | sed 's/"daemon":{[^}]*}//g; s/"drained":.*//' | _@{id}_hosts) ;;
      HOST:undrain) mapfile -t names < <(_@{id}_ask status --json | sed 's/.*"drained"://' | _@{id}_hosts) ;;
    esac
  fi
  for name in "${names[@]}"; do
    [[ $name == "$cur"* ]] && name=${name#"$head"} && COMPREPLY+=("$(printf %q "$name")")
  done
}

@{end}
_@{id}() {
  local cur head value rest words at plain want
  COMPREPLY=()
  _@{id}_words
  _@{id}_walk
  if [[ $value ]]; then
    [[ $value == --* ]] || value=-${value: -1}
    _@{id}_wants "$value" && _@{id}_value "$want" "$cur" "$head"
@{if command}
  elif [[ $rest ]]; then
    _@{id}_rest
@{end}
  elif [[ $cur == --*=* ]]; then
    _@{id}_wants "${cur%%=*}" && _@{id}_value "$want" "${cur#*=}" "${head#*=}"
  elif [[ $cur == -* ]]; then
    _@{id}_names '@{bash-names}'
@{if command}
  else
    _@{id}_rest
@{end}
@{if verbs}
  else
    _@{id}_rest
@{end}
  fi
}

complete -F _@{id} @{program}
