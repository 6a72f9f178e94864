#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PROTOCOL.md's tables of messages are those of proto/msg.h, its state table has every event, and its table of store operations is proto/c10d.h's.

    test_protocol_md.py ROOT            compares; exit 1 and a sentence where they differ
    test_protocol_md.py ROOT --write    writes the tables into PROTOCOL.md
"""
import re
import sys
from pathlib import Path

BEGIN = "<!-- fields: written by tests/unit/test_protocol_md.py --write from proto/msg.h -->\n"
END = "<!-- end of fields -->\n"


def lists_of(header):
    """{struct name: [(kind, args, comment)]} from the *_FIELDS lists."""
    found = {}
    for m in re.finditer(r"#define (\w+)_FIELDS\(F, S\)((?:.*\\\n)*.*)", header):
        fields = []
        for f in re.finditer(r"F\(S, (\w+), ([^()]*)\)\s*(?:/\*(.*?)\*/)?", m[2]):
            if f[1] != "NONE":
                fields.append((f[1], [a.strip(" \\\n") for a in f[2].split(",")], (f[3] or "").strip()))
        same = re.fullmatch(r" (\w+)_FIELDS\(F, S\)", m[2])
        found[m[1]] = found[same[1]] if same else fields
    return found


def messages_of(header):
    block = header[header.index("#define MSG_LIST(M)"):]
    block = block[:block.index("\n\n")]
    return re.findall(r"M\((\w+), (\w+), (\w+)\)\s*(?:/\*(.*?)\*/)?", block)


def words_of(header, name):
    block = header[header.index(f"#define {name.upper()}_LIST(X)"):]
    lines = block.split("\n")
    end = next(i for i, l in enumerate(lines) if not l.endswith("\\"))
    return re.findall(r'X\(\w+, "([^"]+)"\)', "\n".join(lines[:end + 1]))


def constants_of(root):
    headers = [(root / f"proto/{name}.h").read_text() for name in ("msg", "version", "xid")]
    return dict(re.findall(r"^\s+(\w+) = (\d+)(?:,| /\*|$)", "\n".join(headers), re.M))


def type_text(header, kind, args, constants):
    def value(x):
        return {"INT64_MAX": "2^63-1", "TIMEOUT_MAX_MS": "7 days", "NODES_MAX - 1": "65535", "GOODPUT_MAX_MS": "100 years"}.get(x, constants.get(x, x))
    kind = kind.replace("REQ_", "")
    if kind == "INT":
        return f"int {value(args[1])} .. {value(args[2])}"
    if kind in ("STR", "HEX"):
        return f"{'text' if kind == 'STR' else 'hex'} {value(args[1])}"
    if kind == "NUM":
        return "number"
    if kind == "BOOL":
        return "yes/no"
    if kind == "ENUM":
        return "word: " + ", ".join(f"`{w}`" for w in words_of(header, args[1]))
    if kind == "OBJ":
        return f"object {args[1]}"
    return f"list of {args[1]}, at most {value(args[2])}"


def table(header, fields, constants):
    out = ["| field | type | |", "|---|---|---|"]
    for kind, args, comment in fields:
        name = f"**{args[0]}**" if kind.startswith("REQ_") else args[0]
        out.append(f"| {name} | {type_text(header, kind, args, constants)} | {comment.replace('|', chr(92) + '|')} |")
    return "\n".join(out) + "\n"


def sections(header, constants):
    lists = lists_of(header)
    messages = messages_of(header)
    out = []
    for number, (name, struct, direction, comment) in enumerate(messages, 1):
        way = "daemon to agent" if direction == "TO_AGENT" else "to the daemon"
        out.append(f"**{number} {name}**, {way}{': ' + comment.strip() if comment else ''}\n")
        out.append(table(header, lists[struct], constants) if lists[struct] else "No fields.\n")
    for struct in lists:
        if struct not in [m[1] for m in messages]:
            out.append(f"**object {struct}**\n")
            out.append(table(header, lists[struct], constants))
    return "\n".join(out)


FOLLOWS = {"w": "u32", "q": "i64", "k": "key", "e": "expected", "v": "value", "b": "byte", "o": "value if not 0",
           "K": "n, n keys", "P": "n, n (key, value)", "S": "n, n strings", "M": "n strings"}


def store_ops(header):
    """The first cells of the rows that its section must have, from C10D_OP_LIST."""
    rows = []
    for m in re.finditer(r'X\((\w+), (-?\d+), (-?\d+), (-?\d+), "(\w*)", "(\w*)"\)', header):
        numbers = ["-" if n == "-1" else n for n in m.groups()[1:4]]
        sides = [", ".join(FOLLOWS[letter] for letter in m[i]) or "nothing" for i in (5, 6)]
        rows.append([m[1], *numbers, *sides])
    return rows


def check_store(header, doc):
    section = doc[re.search(r"## \d+\. The c10d store", doc).start():]
    found = [[c.strip() for c in line.strip("|").split("|")] for line in section.splitlines()
             if re.match(r"\| [A-Z_]+ \|", line)]
    found = [[*row[:4], *row[5:7]] for row in found if len(row) == 8]
    for want, has in zip(store_ops(header), found):
        if want != has:
            sys.exit(f"PROTOCOL.md, The c10d store, says {has}, proto/c10d.h {want}")
    if len(found) != len(store_ops(header)) or len(found) != 20:
        sys.exit(f"PROTOCOL.md, The c10d store, has {len(found)} operations, proto/c10d.h {len(store_ops(header))}")
    limits = dict(re.findall(r"(C10D_\w+_MAX) = ([\d *]+),", header))
    for name, row in (("KEY", "bytes of a key"), ("VALUE", "bytes of a value in a request"), ("KEYS", "keys of one request"),
                      ("REQUEST", "bytes of one request, of one reply"), ("REPLY", "bytes of one request, of one reply")):
        value = eval(limits[f"C10D_{name}_MAX"])  # a product of numbers
        if f"| {row} | {value} |" not in section:
            sys.exit(f"PROTOCOL.md, The c10d store, does not say that {row} are {value}")


def main():
    root = Path(sys.argv[1])
    header = (root / "proto/msg.h").read_text()
    doc_path = root / "proto/PROTOCOL.md"
    doc = doc_path.read_text()
    before, rest = doc.split(BEGIN)
    _, after = rest.split(END)
    want = before + BEGIN + "\n" + sections(header, constants_of(root)) + "\n" + END + after
    if "--write" in sys.argv:
        doc_path.write_text(want)
    elif want != doc:
        sys.exit("PROTOCOL.md differs from proto/msg.h: run tests/unit/test_protocol_md.py . --write, and look at the rest of the text")
    events = words_of((root / "daemon/job/jobs.h").read_text(), "job_event")
    missing = [e for e in events if not re.search(rf"^\| {re.escape(e)} \|", doc, re.M)]
    if missing or len(events) < 10:
        sys.exit(f"PROTOCOL.md 5 has no row for the events {missing}")
    check_store((root / "proto/c10d.h").read_text(), doc)
    print(f"{len(messages_of(header))} messages, {len(events)} events: as in PROTOCOL.md")


if __name__ == "__main__":
    main()
