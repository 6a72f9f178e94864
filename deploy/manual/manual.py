#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a manual page, a completion or agent.conf to stdout while rdzv is built.

usage: manual.py TABLES PROGRAM TEMPLATE HEADER

TABLES is what rdzv-tables prints. PROGRAM names the program whose options are meant; "-" is none. HEADER is rdzv.h.

A template is text with places that the tables fill, @{name arguments}. If the text of a place ends with a line break, the line break after the place is dropped.
Lines between @{if ...} and @{end} stay only if that is so. An unknown name, or a function that HEADER does not have, fails the build, so pages cannot describe
things that are gone.
"""
from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

CONF_WIDTH = 100
ZSH_SUMMARY = 72
FISH_SUMMARY = 60


class Option(NamedTuple):
    group: Optional[str]  # a heading has nothing else
    name: str
    alias: Optional[str]
    flag: bool
    repeats: bool
    label: str
    default: Optional[str]
    bounds: str
    help: str
    foreign: Optional[str]
    in_file: bool

    def names(self) -> list[str]:
        """With their dashes."""
        return [f"--{self.name}"] + ([dashed(self.alias)] if self.alias else [])


class Verb(NamedTuple):
    name: str
    words: str
    help: str


class Program:
    def __init__(self, row: dict[str, Any]) -> None:
        self.name: str = row["name"]
        self.id = self.name.replace("-", "_")  # in names of functions
        self.runs_command: bool = row["runs_command"]
        self.passes_to: Optional[str] = row["passes_to"]
        self.env_prefix: Optional[str] = row["env_prefix"]
        self.env_foreign: Optional[str] = row["env_foreign"]
        self.exits_intro: str = row["exits_intro"] or ""
        self.exits: list[tuple[int, str]] = row["exits"]
        self.verbs = [Verb(**v) for v in row["verbs"]]
        self.rows = [Option(**o) for o in row["options"]]
        self.options = [o for o in self.rows if o.name]
        self.valued = [o for o in self.options if not o.flag]


def dashed(name: str) -> str:
    return ("--" if name[1:] else "-") + name


# Manual pages in mdoc(7). ----------------------------------------------------------------------------------------------
#
# roff reads its input in two ways at once: a line that begins with a dot or an apostrophe is a request, and a backslash begins an escape anywhere. So every
# character with a meaning to roff is escaped, and a dot or apostrophe at the beginning of a line gets a mark of no width in front. Dashes, apostrophes and carets
# are escaped because plain ones may be printed as typographic characters, and a user would copy those.
#
# Sentences begin on lines of their own, because roff recognizes the end of a sentence only by a full stop at the end of a line.

ROFF = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})
OPTION = re.compile(r"(--[a-z](?:[a-z0-9]|-(?=[a-z]))*)")


def escape(text: str) -> str:
    return text.translate(ROFF)


def literal(text: str) -> str:
    """Lines between .Bd -literal and .Ed."""
    return "".join((r"\&" if line[:1] in (".", "'") else "") + escape(line) + "\n" for line in text.splitlines())


def macro_word(word: str) -> str:
    """One argument of a macro, quoted if necessary."""
    # "Ar", "Fl" are macros wherever they stand in a line of macros. A lone full stop or bracket is not text either.
    mark = r"\&" if re.fullmatch(r"|[.,:;()\[\]?!|]|[A-Z][a-z].?", word) else ""
    text = mark + escape(word).replace('"', r"\(dq")
    return f'"{text}"' if re.search(r'[ \t"]', word) else text


def is_name(word: str) -> bool:
    """A name, a path, an option: nothing that may be hyphenated."""
    bare = word.lstrip('("`').rstrip('.,;:?!)"`')
    return bare.startswith("-") or bool(re.search("[^a-z']", bare[1:]))


def ends_sentence(word: str) -> bool:
    return bool(re.search(r'(?<!\.)[.?!][)"`]*$', word))


def paragraph(words: str) -> str:
    out, bold = "", False
    for word in words.split():
        if out and not out.endswith("\n"):
            out += " "
        if is_name(word):
            out += r"\%"
        elif word[0] in ".'" and (not out or out.endswith("\n")):
            out += r"\&"
        for i, piece in enumerate(word.split("`")):
            if i:
                bold = not bold
                out += r"\fB" if bold else r"\fR"
            parts = [piece] if bold else OPTION.split(piece)
            out += "".join(rf"\fB{escape(p)}\fR" if i % 2 else escape(p) for i, p in enumerate(parts))
        if ends_sentence(word):
            out += "\n"
    out += r"\fR" if bold else ""
    return out if out.endswith("\n") else out + "\n"


def running_text(text: str) -> str:
    """Each sentence has a line of its own, and an empty line begins a new paragraph. Options (--x) and text between backquotes are bold."""
    return ".Pp\n".join(paragraph(p) for p in re.split(r"\n *\n", text) if p.strip())


def phrase(text: str) -> str:
    """Running text that gets a capital and a full stop."""
    text = text.strip()
    if re.match(r"(?!rdzv)[a-z]+(?![^ ,;:])", text):
        text = text[0].upper() + text[1:]
    return running_text(text if ends_sentence(text) else text + ".")


def listing(items: list[str], how: str = "") -> str:
    return f".Bl -tag -width Ds{how}\n" + "".join(items) + ".El\n"


def facts(p: Program, o: Option) -> str:
    """Default: 30s, from 0 to 24h. Variable: `X_LAST_CALL`, `Y_LAST_CALL`."""
    told = [f"Default: {o.default}"] if o.default else []
    if o.bounds:
        told.append(o.bounds if told else f"Allowed: {o.bounds}")
    text = ", ".join(told) + ". " if told else ""
    if p.env_prefix and not (o.flag and o.name in ("help", "version")):
        variables = [p.env_prefix + o.name] + ([p.env_foreign + o.foreign] if p.env_foreign and o.foreign else [])
        text += "Variable: " + ", ".join(f"`{v.replace('-', '_').upper()}`" for v in variables) + "."
    return f".br\n{running_text(text)}" if text else ""


def man_option(p: Program, o: Option) -> str:
    short = o.alias is not None and len(o.alias) == 1
    names = [f"Fl {o.alias}"] if short else []
    names += [rf"Fl \-{macro_word(name)}" for name in (o.name, o.alias) if name and not (short and name == o.alias)]
    label = f" Ar {macro_word(o.label)}" if o.label else ""
    return f".It {' , '.join(names)}{label}\n{running_text(o.help)}{facts(p, o)}"


def man_options(p: Program) -> str:
    """A subsection for each group, with a list of its options. The first row is a heading."""
    parts = (man_option(p, o) if o.name else f".El\n.Ss {literal(o.group or '')}.Bl -tag -width Ds\n" for o in p.rows)
    return "".join(parts).removeprefix(".El\n") + ".El\n"


def man_verbs(p: Program) -> str:
    return listing([f".It Cm {macro_word(v.name)}{' Ar ' + escape(v.words) if v.words else ''}\n{running_text(v.help)}" for v in p.verbs])


def man_exits(exits: list[tuple[int, str]]) -> str:
    return listing([f".It {code}\n{phrase(text)}" for code, text in exits], " -compact")


# The comments of rdzv.h, so that only it describes its functions. ------------------------------------------------------
#
# A declaration begins with RDZV_API and ends with a semicolon. A comment belongs to the code before it on its line, or else to the code that follows.


class Function(NamedTuple):
    type: str
    arguments: list[str]
    before: str  # the comment in front of it
    behind: str  # the one on its line


def find_function(header: str, name: str) -> Function:
    m = re.search(rf"^RDZV_API\s+([^;()]*?)\s*\b{name}\(([^;]*)\);(?: */\*(.*?)\*/)?", header, re.M | re.S)
    if not m:
        raise KeyError(name)
    arguments = [" ".join(a.split()) for a in m[2].split(",")]
    return Function(m[1], arguments, comment_before(header, m.start()), uncomment(m[3] or ""))


def comment_before(header: str, at: int) -> str:
    m = re.search(r"^/\*((?:(?!\*/).)*)\*/\s*\Z", header[:at], re.M | re.S)
    return uncomment(m[1]) if m else ""


def uncomment(text: str) -> str:
    """Without the stars at the beginning of the lines."""
    return re.sub(r"^ *\*? ?(.*?) *$", r"\1", text, flags=re.M)


def man_comment(text: str) -> str:
    """Paragraphs; lines that are indented by four or more are code."""
    out = ""
    for code, prose in re.findall(r"((?:^    .*\n+)+)|((?:^(?!    ).*\n?)+)", text.strip("\n") + "\n", re.M):
        if code:
            out += f".Bd -literal -offset indent\n{literal(textwrap.dedent(code).rstrip())}.Ed\n"
        elif prose.strip():
            out += (".Pp\n" if out else "") + running_text(prose)
    return out


def man_function(header: str, name: str) -> str:
    """An item of a list: the declaration, and both comments; of +NAME the comment in front of it stands elsewhere."""
    bare = name.lstrip("+")
    f = find_function(header, bare)
    arguments = "".join(f' "{a}"' for a in f.arguments)
    before = "" if name.startswith("+") else man_comment(f.before)
    return f'.It Xo\n.Ft "{f.type}"\n.Fn {bare}{arguments}\n.Xc\n{before}{phrase(f.behind) if f.behind else ""}'


def man_constant(header: str, name: str) -> str:
    m = re.search(rf"\b{name}\s*=\s*([^,]*),(?: */\*(.*?)\*/)?", header, re.S)
    if not m:
        raise KeyError(name)
    return f".It Dv {name} No = {m[1]}\n{phrase(uncomment(m[2])) if m[2] else ''}"


# Completions. ----------------------------------------------------------------------------------------------------------
#
# An option's label is written for people ("N|cpu|gpu|auto", "DIR") and read here (common/opts/opts.h). Words in small letters are values; words in capitals name
# the kind of a value. So a table needs no second list of its values.
#
# Each shell quotes in its own way, and its completion system once more: zsh's _arguments gives a meaning to brackets and colons, also within quotes.
#
# bash shows names only. zsh and fish also show a line about each option.

KINDS = {"FILE": "file", "PATH": "file", "DIR": "dir", "HOST": "host", "ADDRESS": "host", "SIGNAL": "signal"}


class Choice(NamedTuple):
    """One of the alternatives that a label names."""

    kind: str  # "": `word` as it is; "text": a value that cannot be guessed; "file", "dir", "host", "signal"
    word: str  # the word itself, or the beginning of the value ("file:")
    many: bool  # several of them, separated by commas


def choices(label: str) -> list[Choice]:
    found = []
    for one in filter(None, label.split("|")):
        word = re.match("[^A-Z]*", one)[0]  # type: ignore[index]
        rest = one[len(word) :]
        kind = next((k for name, k in KINDS.items() if rest.startswith(name)), "text" if rest else "")
        found.append(Choice(kind, word if rest else word.rstrip("[].,"), one.startswith("HOSTS") or one.rstrip("]").endswith(",...")))
    return found


def known_choices(o: Option) -> list[Choice]:
    """Those that something can be said of: "N|cpu|gpu" has two."""
    return [c for c in choices(o.label) if c.kind != "text" or c.word]


def summary(text: str, most: int) -> str:
    """The first clause, at most that long. "auto: as gpu ..." says no more than "auto", so a colon ends only a longer one."""
    clause = re.match(r".*?(?=[.;](?: |\Z)|(?<=.{13}):(?: |\Z)|\Z)", text, re.S)[0]  # type: ignore[index]
    limit = most - 3
    return clause if len(clause) <= limit else text[:limit].rpartition(" ")[0] + "..."


def bash_want(o: Option) -> str:
    """Words: values, or @file @dir @host @signal, possibly behind a beginning ("file:@file"), with a comma if they are a list."""
    return " ".join(c.word + (f"@{c.kind}" if c.kind not in ("", "text") else "") + ("," if c.many else "") for c in known_choices(o))


def zsh_quote(text: str) -> str:
    return re.sub(r"([][:\\])", r"\\\1", text).replace("'", r"'\''")


def zsh_call(c: Choice) -> str:
    call = {"file": "_files", "dir": "_files -/", "host": "_hosts", "signal": "compadd - SIG${^signals[2,-3]}"}.get(c.kind, " ")
    return f"_sequence {call}" if c.many and c.kind in ("host", "signal") else call


def zsh_needs_function(c: list[Choice]) -> bool:
    """Whether the values are not of one kind, or need more than one word."""
    return bool(c) and (any((o.kind and o.word) or o.kind != c[0].kind for o in c) or c[0].kind == "signal")


def zsh_words(c: list[Choice]) -> str:
    return " ".join(o.word for o in c if not o.kind)


def zsh_option(p: Program, o: Option, name: str) -> str:
    """A specification for _arguments: "--last-call=[summary]:TIME:action", between apostrophes."""
    c = known_choices(o)
    if zsh_needs_function(c):
        action = f"_{p.name}_{o.name}"
    elif zsh_words(c):
        action = f"({zsh_words(c)})"
    else:
        action = zsh_call(c[0]) if c else " "
    start = "*" if o.repeats else f"({' '.join(o.names())})" if o.alias else ""
    value = "" if o.flag else f":{zsh_quote(o.label)}:{action}"
    equals = "" if o.flag else "=" if name.startswith("--") else "+"
    return f"    '{start}{name}{equals}[{zsh_quote(summary(o.help, ZSH_SUMMARY))}]{value}' \\\n"


def zsh_function(p: Program, o: Option) -> str:
    """Beginnings first: behind "file:" only files are wanted."""
    c, out = known_choices(o), f"_{p.name}_{o.name}() {{\n"
    if not zsh_needs_function(c):
        return ""
    for one in c:
        if one.kind and one.word:
            out += f"  if compset -P '{one.word}'; then\n    {'return 1' if one.kind == 'text' else zsh_call(one)}\n    return\n  fi\n"
    out += "  local ret=1\n"
    if words := zsh_words(c):
        out += f"  compadd - {words} && ret=0\n"
    for one in c:
        if one.kind:
            call = f"compadd -S '' - {one.word}" if one.word else zsh_call(one)
            out += f"  {call} && ret=0\n"
    return out + "  return ret\n}\n\n"


def fish_quote(text: str) -> str:
    return "'" + re.sub(r"(['\\])", r"\\\1", text) + "'"


def fish_values(o: Option) -> str:
    """-x: a value must follow, and it is not a file; -r -F: a file."""
    calls = {"dir": "(__fish_complete_directories)", "host": "(__fish_print_hostnames)", "signal": "SIG(kill -l | string split -n ' ')"}
    words = []
    for c in choices(o.label):
        call = calls.get(c.kind, "")
        words.append(c.word or (f"(__fish_append , {call})" if call and c.many else call))
    how = " -r -F" if any(c.kind == "file" for c in choices(o.label)) else " -x"
    said = " ".join(filter(None, words))
    return how + (f" -a {fish_quote(said)}" if said else "")


def fish_lines(p: Program, condition: str, rows: list[tuple[str, str]]) -> str:
    """A complete command for each (arguments, help); "%" in the condition is the program's name in names of functions."""
    when = fish_quote(condition.replace("%", p.id))
    return "".join(f"complete -c {p.name} -n {when} {words} -d {fish_quote(summary(text, FISH_SUMMARY))}\n" for words, text in rows)


def fish_option(o: Option) -> str:
    alias = f" -{'l' if o.alias[1:] else 's'} {o.alias}" if o.alias else ""
    return f"-l {o.name}{alias}{'' if o.flag else fish_values(o)}"


def tcsh_option(o: Option) -> str:
    """What follows each name, as a word of its own and behind "="; "?" in a pattern is a dash or an underscore. A value that cannot be guessed is described."""
    known = known_choices(o)
    words = " ".join(c.word for c in known if c.word)
    value = f"({words})" if words else {"file": "f", "dir": "d", "signal": "S"}.get(known[0].kind if known else "", f"x:{o.label}")
    patterns = [name[:2] + name[2:].replace("-", "?") for name in o.names()]
    return "".join(f"  'n@{pat}@{value}@'" + (f" 'c@{pat}=@{value}@'" if pat[2:] else "") + " \\\n" for pat in patterns)


# agent.conf. -----------------------------------------------------------------------------------------------------------


def conf_settings(p: Program) -> str:
    """Every option that may stand in the file, with its help and default, as comments."""
    out = ""
    for o in p.options:
        if o.in_file:
            lines = textwrap.wrap(o.help, CONF_WIDTH, initial_indent="# ", subsequent_indent="# ", break_long_words=False, break_on_hyphens=False)
            out += "\n" + "".join(f"{line}\n" for line in lines) + f"#{o.name} = {'yes' if o.flag else o.default or o.label}\n"
    return out


# Templates. ------------------------------------------------------------------------------------------------------------

Places = dict[str, Callable[[str], str]]  # a place's text, from the words behind its name


def places_of_all(tables: dict[str, Any], header: str) -> Places:
    return {
        "version": lambda words: tables["version"],
        "all-exit-codes": lambda words: man_exits(tables["exits"]),
        "worker-environment": lambda words: listing([f".It Ev {name}\n{phrase(text)}" for name, text in tables["environment"]]),
        "header-intro": lambda words: man_comment(comment_before(header, header.index("\n#include") + 1)),
        "comment": lambda words: man_comment(find_function(header, words).before),
        # Without its heading, which ends with the first full stop, colon or question mark.
        "comment-rest": lambda words: man_comment(re.split("[.:?]", find_function(header, words).before, maxsplit=1)[1]),
        "functions": lambda words: listing([man_function(header, name) for name in words.split()]),
        "constants": lambda words: listing([man_constant(header, name) for name in words.split()]),
    }


def places_of_program(p: Program) -> Places:
    return {
        "program": lambda words: p.name,
        "id": lambda words: p.id,
        "passes-to": lambda words: p.passes_to or "",
        "options": lambda words: man_options(p),
        "verbs": lambda words: man_verbs(p),
        "exits": lambda words: man_exits(p.exits),
        "exits-intro": lambda words: running_text(p.exits_intro),
        "file-settings": lambda words: conf_settings(p),
        "verb-names": lambda words: " ".join(v.name for v in p.verbs),
        "bash-wants": lambda words: "".join(f"    {' | '.join(o.names())}) want='{bash_want(o)}' ;;\n" for o in p.valued),
        "bash-names": lambda words: " ".join(name for o in p.options for name in o.names()),
        "bash-verbs": lambda words: "".join(f"    {v.name}) what='{v.words}' ;;\n" for v in p.verbs),
        "zsh-options": lambda words: "".join(zsh_option(p, o, name) for o in p.options for name in o.names()),
        "zsh-functions": lambda words: "".join(zsh_function(p, o) for o in p.options),
        "zsh-verbs": lambda words: "".join(f"    '{v.name}:{zsh_quote(summary(v.help, ZSH_SUMMARY))}'\n" for v in p.verbs),
        "tcsh-options": lambda words: "".join(tcsh_option(o) for o in p.valued),
        "tcsh-names": lambda words: " ".join(name[2:] for o in p.options for name in o.names() if name.startswith("--")),
        "fish-options": lambda words: fish_lines(p, words, [(fish_option(o), o.help) for o in p.options]),
        "fish-valued": lambda words: " ".join(name for o in p.valued for name in o.names()),
        "fish-verbs": lambda words: fish_lines(p, words, [(f"-a {v.name}", v.help) for v in p.verbs]),
    }


def conditions_of(p: Program) -> dict[str, bool]:
    return {"command": p.runs_command, "verbs": bool(p.verbs), "neither": not p.verbs and not p.runs_command}


def fill(template: str, places: Places, conditions: dict[str, bool]) -> str:
    out, on, at = "", True, 0
    for m in re.finditer(r"@\{([^ }]*) ?([^}]*)\}", template):
        name, words = m[1], m[2]
        out += template[at : m.start()] if on else ""
        at = m.end()
        try:
            if name in ("if", "end"):
                on = name == "end" or conditions[words]
            elif on:
                out += places[name](words)
        except KeyError as e:
            sys.exit(f"cannot fill {m[0]}: there is no {e.args[0]}")
        if template[at : at + 1] == "\n" and (name in ("if", "end") or not on or out.endswith("\n")):
            at += 1
    return out + template[at:]


def main() -> None:
    tables_path, program, template, header = sys.argv[1:]
    tables = json.loads(Path(tables_path).read_text(encoding="utf-8"))
    places = places_of_all(tables, Path(header).read_text(encoding="utf-8"))
    conditions: dict[str, bool] = {}
    if program != "-":
        p = Program(tables["programs"][program])
        places.update(places_of_program(p))
        conditions = conditions_of(p)
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    sys.stdout.write(fill(Path(template).read_text(encoding="utf-8"), places, conditions))


if __name__ == "__main__":
    main()
