#compdef @{program}
# Completion of @{program} for zsh. Made from its option table when rdzv was built.

@{zsh-functions}
@{if command}
# The command and what is behind it; options of @{passes-to} where there is no command.
_@{program}_rest() {
  if [[ $words[1] == -* ]]; then
    [[ $line_words[at-CURRENT] == -- ]] || return 1
    words=(@{passes-to} "$words[@]")
    ((CURRENT++))
    _normal
  elif ((CURRENT == 1)); then
    local ret=1
    _files && ret=0
    [[ -n $PREFIX ]] && _command_names -e && ret=0
    return ret
  else
    _normal
  fi
}

@{end}
@{if verbs}
# What the daemon that this line is about says; nothing, soon, where it does not answer.
_@{program}_ask() {
  local i which=()
  for ((i = 2; i < $#words; i++)); do
    case $words[i] in
      (--port|-p|--socket|--endpoint) which+=("$words[i]" "$words[i+1]") ;;
      (--port=*|--socket=*|--endpoint=*|-p?*) which+=("$words[i]") ;;
    esac
  done
  timeout 1 @{program} "$which[@]" "$@" 2>/dev/null
}

_@{program}_hosts() {
  grep -o '"host":"[^"]*"' | cut -d'"' -f4 | sort -u
}

_@{program}_word() {
  local -a found
  case $1 in
    (status|nodes|stop|kill-worker|confirm-dead|logs|top) found=("${(@f)$(_@{program}_ask jobs | sed -n 's/: .*//p')}") ;;
    (drain) found=("${(@f)$(_@{program}_ask status --json | sed 's/"daemon":{[^}]*}//g; s/"drained":.*//' | _@{program}_hosts)}") ;;
    (undrain) found=("${(@f)$(_@{program}_ask status --json | sed 's/.*"drained"://' | _@{program}_hosts)}") ;;
  esac
  found=($found)
  (($#found)) && compadd -a found
}

@{end}
_@{program}() {
  local curcontext=$curcontext state line i ret=1
  local -a verbs
  typeset -A opt_args
@{if verbs}
  verbs=(
@{zsh-verbs}
  )
@{end}
  # Dashes and underscores are the same to @{program}.
  for ((i = 2; i < CURRENT; i++)); do
    [[ $words[i] == -- ]] && break
    [[ $words[i] == --*_* && $words[i] != *=* ]] && words[i]=${words[i]//_/-}
  done
@{if command}
  local -a line_words=("$words[@]")
  local at=$CURRENT
@{end}
  _arguments -s -S @{if command}-A '-*' @{end}-M 'm:_=- r:|[_-]=* r:|=*' \
@{zsh-options}
@{if command}
    '*:::command:_@{program}_rest' && ret=0
@{end}
@{if verbs}
    '1: :->verb' '2: :->word' '3: :' && ret=0
  case $state in
    (verb) _describe -t verbs 'what to do' verbs && ret=0 ;;
    (word) _@{program}_word $line[1] && ret=0 ;;
  esac
@{end}
@{if neither}
    && ret=0
@{end}
  return ret
}

_@{program} "$@"
