# SPDX-License-Identifier: Apache-2.0
"""The fields of messages, read from the lists in proto/msg.h: a new field of text is in every test that uses them."""

import copy
import re
from pathlib import Path

_text = re.sub(r"/\*.*?\*/", "", (Path(__file__).resolve().parents[2] / "proto/msg.h").read_text(), flags=re.S).replace("\\\n", " ")
_structs = {}
for _name, _body in re.findall(r"^#define (\w+)_FIELDS\(F, S\)(.*)$", _text, re.M):
    _same = re.fullmatch(r"\s*(\w+)_FIELDS\(F, S\)\s*", _body)  # the list of another message
    _structs[_name] = _structs[_same[1]] if _same else [tuple(w.strip() for w in item.split(",")) for item in re.findall(r"F\(S, ([^)]*)\)", _body)]
MESSAGES = {name: (struct, direction) for name, struct, direction in re.findall(r"M\((\w+), (\w+), (TO_\w+)\)", _text)}


def _paths(struct, kinds):
    for kind, name, *more in _structs[struct]:
        if kind.removeprefix("REQ_") in kinds:
            yield (name,)
        elif kind == "OBJ":
            yield from ((name, *rest) for rest in _paths(more[0], kinds))
        elif kind == "LIST":
            yield from ((name, 0, *rest) for rest in _paths(more[0], kinds))


def text_fields(message, kinds=("STR", "HEX", "ENUM")):
    """Where a message has text: ("reports", 0, "what", "host") is that of its first report."""
    return list(_paths(MESSAGES[message][0], kinds))


def put(fields, path, value):
    """A copy of the fields that has the value there."""
    at = out = copy.deepcopy(fields)
    for here, below in zip(path, path[1:]):
        if isinstance(here, int):
            while len(at) <= here:
                at.append({})
        else:
            at.setdefault(here, [] if isinstance(below, int) else {})
        at = at[here]
    at[path[-1]] = value
    return out
