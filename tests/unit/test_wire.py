#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The messages of this tree and those of the last release understand each other (PROTOCOL.md 11). proto/wire.txt describes the latter.

    test_wire.py ROOT            compares; exit 1 and a sentence for each change that an older or newer neighbour would misread
    test_wire.py ROOT --write    describes this tree, as a step of a release; refuses if it does not fit the old description

A release that must break with the one before raises PROTO_VERSION and PROTO_OLDEST: then nothing is compared.
"""
import re
import sys
from pathlib import Path

from test_protocol_md import constants_of, lists_of, messages_of, type_text, words_of

# How a sentence ends if no comparison of lists can show whether it was heeded.
BY_HAND = "and say so with --write"


def open_lists(root):
    """Those whose unknown words read as another one."""
    return set(re.findall(r"^OPEN_WORDS\((\w+),", (root / "proto/msg_tables.c").read_text(), re.M))


def describe(root):
    """A line per message, field and word; its first blank-separated words name it."""
    header = (root / "proto/msg.h").read_text()
    lists, constants = lists_of(header), constants_of(root)
    messages = messages_of(header)
    needs = dict(re.findall(r"\[MSG_(\w+)\] = FEATURE_(\w+)", (root / "proto/msg.c").read_text()))
    lines = [f"version {constants['PROTO_VERSION']} {constants['PROTO_OLDEST']}"]
    for number, (name, _, direction, _) in enumerate(messages, 1):
        lines.append(f"message {number} {name} {direction}" + (f" needs {needs[name]}" if name in needs else ""))
    words = set()
    for struct, fields in lists.items():
        for kind, args, _ in fields:
            required = " required" if kind.startswith("REQ_") else ""
            text = f"word of {args[1]}" if kind == "ENUM" else " ".join(type_text(header, kind, args, constants).split())
            if kind == "ENUM":
                words.add(args[1])
            lines.append(f"field {struct}.{args[0]} {text}{required}")
    for name in sorted(words):
        lines += [f"word {name} {i} {word}" for i, word in enumerate(words_of(header, name))]
    return lines


def parse(lines):
    entries = {}
    for line in lines:
        kind, rest = line.split(" ", 1)
        parts = rest.split(" ", 2 if kind == "word" else 1)
        key = (kind, *parts[:-1]) if kind != "version" else (kind,)
        entries[key] = parts[-1] if kind != "version" else rest
    return entries


def broken(old_lines, new_lines, open_to_words):
    """Sentences: what a neighbour with the old description would misread, or would be misread by."""
    old, new = parse(old_lines), parse(new_lines)
    if int(new["version",].split()[1]) > int(old["version",].split()[0]):
        return []  # the older one is refused
    found = []
    objects = {key[1].split(".")[0] for key in old if key[0] == "field"}
    for key in {**old, **new}:
        was, now = old.get(key), new.get(key)
        kind, name = key[0], key[1] if len(key) > 1 else ""
        if was == now or kind == "version":
            continue
        if kind == "message" and was is None:
            if " needs " not in now:
                found.append(f"message {name} {now} is new, and proto/msg.c names no feature for it: an older peer would close the connection")
        elif kind == "message":
            found.append(f"message {name} was {was} and is {now or 'gone'}: keep its number, name and direction")
        elif kind == "field" and was is None:
            if " required" in now and name.split(".")[0] in objects:
                found.append(f"{name} is new and required: an older peer does not send it; make it optional")
            elif name.startswith("settings."):
                found.append(f"{name} is new: all nodes of a job must agree, and an older node or state line lacks it; compare it only with those that have it, {BY_HAND}")
        elif kind == "field" and now is None:
            reads = "refuses a message without it" if " required" in was else "reads it as zero"
            found.append(f"{name} is gone, and an older peer {reads}: keep it for a release, and keep sending it")
        elif kind == "field":
            found.append(f"{name} was \"{was}\" and is \"{now}\": an older peer refuses what it does not allow; add a field instead")
        elif was is None:
            if name not in open_to_words:
                found.append(f"word {now} of {name} is new: an older peer refuses it; send it only to a peer that has said a feature, {BY_HAND}")
        else:
            found.append(f"word {key[2]} of {name} was {was} and is {now or 'gone'}: words keep their place")
    return found


def main(root, write):
    path, new = root / "proto/wire.txt", describe(root)
    found = broken(path.read_text().splitlines(), new, open_lists(root)) if path.exists() else []
    for sentence in found:
        print(sentence, file=sys.stderr)
    if write and not [s for s in found if not s.endswith(BY_HAND)]:
        path.write_text("\n".join(new) + "\n")
        return 0
    if not found:
        print(f"{len(new)} lines fit proto/wire.txt")
    return 1 if found else 0


def self_test(lines, open_to_words):
    """The comparison sees what it is for."""
    assert not [line for line in lines if line.startswith("field ") and re.search(r"\b[A-Z]+_[A-Z]", line.replace("INT64_MAX", ""))], "each limit is a number here"
    assert {"cause", "absence"} <= open_to_words and "phase" not in open_to_words, open_to_words
    compare = lambda old, new: broken(old, new, open_to_words)

    def edit(old, new):
        assert any(old in line for line in lines), old
        return [line.replace(old, new, 1) if old in line else line for line in lines]

    assert not compare(lines, lines)
    assert not compare(lines, lines + ["message 99 TIDINGS TO_AGENT needs TIDINGS", "field hello.mood int 0 .. 7", "word cause 99 worker-melted", "field tidings.mood int 0 .. 7 required"])
    assert not compare(edit("version 1 1", "version 2 1"), edit("version 1 1", "version 3 3"))
    for spoilt in (
        lines + ["message 99 TIDINGS TO_AGENT"], lines + ["field hello.mood text 9 required"], lines + ["word phase 99 dozing"], lines + ["field settings.mood int 0 .. 7"],
        [line for line in lines if not line.startswith("field hello.job ")],
        edit("field hello.features ", "field hello.abilities "), [line for line in lines if " 7 START " not in f" {line}"],
        edit("field hello.job text 128", "field hello.job text 256"), edit("word phase 1 starting", "word phase 1 begins"),
        edit("message 7 START TO_AGENT", "message 7 BEGIN TO_AGENT"),
    ):
        assert compare(lines, spoilt), set(spoilt) ^ set(lines)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    self_test(describe(root), open_lists(root))
    sys.exit(main(root, "--write" in sys.argv[2:]))
