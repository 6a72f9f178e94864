# Completion of @{program} for fish. Made from its option table when rdzv was built.

# The words in front of the cursor that belong to no option. Fails while there is none.
function __@{id}_words
    set -l valued @{fish-valued}
    set -l tokens (commandline -opc)
    set -l plain
    set -e tokens[1]
    while set -q tokens[1]
        switch $tokens[1]
            case --
                set -e tokens[1]
                set -a plain $tokens
                set -q plain[1]; and printf '%s\n' $plain
                return 0
            case '--*=*'
                set -e tokens[1]
            case '-*'
                contains -- (string replace -a _ - -- $tokens[1]) $valued; and set -e tokens[1]
                set -e tokens[1]
            case '*'
@{if command}
                printf '%s\n' $tokens
                return 0
@{end}
@{if verbs}
                set -a plain $tokens[1]
                set -e tokens[1]
@{end}
@{if neither}
                set -e tokens[1]
@{end}
        end
    end
    set -q plain[1]; and printf '%s\n' $plain
end

complete -c @{program} -f
@{if command}
# The command and what is behind it; options of @{passes-to} where there is no command.
function __@{id}_rest
    set -l words (__@{id}_words)
    set -l behind $status
    set -l current (commandline -ct)
    set -l all $words $current
    if test $behind -ne 0; and string match -q -- '-*' $current
        return # an option
    else if test $behind -eq 0; and string match -q -- '-*' $all[1]
        complete -C "@{passes-to} $(string join ' ' -- (string escape -- $words)) $current"
    else if set -q words[1]
        complete -C "$(string join ' ' -- (string escape -- $words)) $current"
    else
        __fish_complete_path "$current"
        test -n "$current"; and complete -C"$current"
    end
end

complete -c @{program} -a '(__@{id}_rest)'
@{fish-options not __%_words >/dev/null}
@{end}
@{if verbs}
# What the daemon that this line is about says; nothing, soon, where it does not answer.
function __@{id}_ask
    set -l tokens (commandline -opc)
    set -l which
    for i in (seq 2 (count $tokens))
        switch $tokens[$i]
            case --port -p --socket --endpoint
                set -a which $tokens[$i] $tokens[(math $i + 1)]
            case '--port=*' '--socket=*' '--endpoint=*' '-p?*'
                set -a which $tokens[$i]
        end
    end
    timeout 1 @{program} $which $argv 2>/dev/null
end

function __@{id}_hosts
    grep -o '"host":"[^"]*"' | string replace -r '"host":"(.*)"' '$1' | sort -u
end

# Candidates for the word behind the verb.
function __@{id}_word
    set -l words (__@{id}_words)
    test (count $words) -eq 1; or return
    switch $words[1]
        case status nodes stop kill-worker confirm-dead logs top
            __@{id}_ask jobs | string replace -rf ': .*' ''
        case drain
            __@{id}_ask status --json | string replace -ar '"daemon":\{[^}]*\}|"drained":.*' '' | __@{id}_hosts
        case undrain
            __@{id}_ask status --json | string replace -r '.*"drained":' '' | __@{id}_hosts
    end
end

@{fish-verbs not __%_words >/dev/null}
complete -c @{program} -n '__@{id}_words >/dev/null' -a '(__@{id}_word)'
@{fish-options true}
@{end}
@{if neither}
@{fish-options true}
@{end}
