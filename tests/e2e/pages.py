# SPDX-License-Identifier: Apache-2.0
"""The commands of README.md and of the pages under deploy/, and their generated parts, for the tests that hold them to the programs.

A page has its commands in fenced blocks of the language sh, and above each of them a comment, which does not show where the page is read:

    <!-- test: tests/e2e/test_x.py::test_y a name -->     that test takes the block from the page, by its name, and executes it
    <!-- needs: a GPU -->                                 nobody can execute it here, for want of that

What the commands print stands in blocks of its own, without a language. Commands within sentences, in single backticks, are repeated from such a block, or
executed by a test that takes them from the page as well. tests/e2e/test_commands.py holds all pages to this.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from harness import BUILD, TOP

# What the generated parts of pages are made of, and what examples are compiled from. All such paths stand here and nowhere else.
EXIT_CODES = "common/exit_codes.h"
WORKER_ENV = "agent/workers/env.c"
EVENT_LIST = "common/events/event.h"
OPTION_TABLE = "agent/options/table.c"
TORCH_FLAGS = "agent/options/torch_flags.h"
SDK = "agent/sdk"
SDK_SOURCES = ["agent/sdk/rdzv*.c", "proto/c10d.c", "common/printable.c"]
DATASET_HEADERS = ["agent/trainer/data/data.h", "common/mem.h"]
DATASET_SOURCES = ["common/err.c", "common/mem.c", "common/printable.c"]
PRODUCT = ("agent", "daemon", "common", "proto")  # folders of the programs

# The pages of the guide that tests name.
GUIDE = "deploy/guide"

@dataclass
class Block:
    page: str
    line: int
    lang: str
    text: str
    comment: str  # the one right above it, without its marks; "": none

    @property
    def test(self):
        """(file, function, name), or None."""
        found = re.fullmatch(r"test: (tests/[\w./]+\.py)::(test_\w+)(?: (\S.*))?", self.comment)
        return found and (found[1], found[2], found[3] or "")

    @property
    def needs(self):
        found = re.fullmatch(r"needs: (\S.*)", self.comment)
        return found and found[1]

    @property
    def place(self):
        return f"{self.page}:{self.line}"


def pages():
    return ["README.md", *sorted(str(p.relative_to(TOP)) for p in (TOP / "deploy").rglob("*.md"))]


def blocks(page, text=None):
    """All of a page: fenced ones, and what is indented by four blanks after an empty line, as language "indented"."""
    found, lines = [], (text if text is not None else (TOP / page).read_text()).split("\n")
    i, comment, empty = 0, "", True
    while i < len(lines):
        line, first = lines[i], i + 1
        if re.match(r"\s*```", line):
            indent = len(line) - len(line.lstrip())
            body = []
            i += 1
            while i < len(lines) and not re.match(r"\s*```\s*$", lines[i]):
                body.append(lines[i][indent:])
                i += 1
            found.append(Block(page, first, line.strip()[3:].strip(), "\n".join(body) + "\n", comment))
            comment, empty = "", False
        elif empty and re.match(r"    \S", line):
            body = []
            while i < len(lines) and (lines[i].startswith("    ") or not lines[i].strip()):
                body.append(lines[i][4:])
                i += 1
            i -= 1
            found.append(Block(page, first, "indented", "\n".join(body) + "\n", comment))
            comment, empty = "", True
        else:
            mark = re.match(r"\s*<!--\s*(.*?)\s*-->\s*$", line)
            if mark:
                comment = mark[1]
            elif line.strip():
                comment = ""
            empty = not line.strip()
        i += 1
    return found


def spans(page, text=None):
    """[(line, words)]: what stands in single backticks within sentences and tables; one may go over the end of a line."""
    text = text if text is not None else (TOP / page).read_text()
    blank = lambda m: re.sub(r"[^\n]", " ", m[0])
    text = re.sub(r"^\s*```.*?^\s*```\s*?$", blank, text, flags=re.M | re.S)
    text = re.sub(r"(?<=\n\n)(    .*\n)+", blank, re.sub(r"<!--.*?-->", blank, text, flags=re.S))
    return [(text.count("\n", 0, m.start()) + 1, " ".join(m[1].split())) for m in re.finditer(r"(?<!`)`((?:[^`\n]|\n(?!\s*\n))+)`(?!`)", text)]


def part(name):
    """What tests write into a page: (begin, text, end). Text behind the name in the mark is ignored."""
    return re.compile(rf"(<!-- begin {name}(?:, [^\n]*)? -->\n)(.*?)(<!-- end {name} -->)", re.S)


def generated(page, name):
    """The text of that part of the page."""
    found = part(name).findall((TOP / page).read_text())
    assert len(found) == 1, f"{page} has {len(found)} parts for {name}"
    return found[0][1]


def write_part(page, name, text):
    old = (TOP / page).read_text()
    assert len(part(name).findall(old)) == 1, f"{page} has no part for {name}"
    (TOP / page).write_text(part(name).sub(lambda m: m[1] + text + m[3], old))


def c_block(page, words):
    """The first block of C on the page that has these words."""
    return next(b.text for b in blocks(page) if b.lang == "c" and words in b.text)


def inline(page, words):
    """A command within a sentence of that page, for the test that executes it."""
    assert words in [w for _, w in spans(page)], f"{page} does not say `{words}`"
    return words


def block(page, name):
    """The text of the sh block of that page which is the test's by this name."""
    found = [b for b in blocks(page) if b.lang == "sh" and b.test and b.test[2] == name]
    assert len(found) == 1, f"{page} has {len(found)} sh blocks with a comment <!-- test: FILE::TEST {name} -->"
    return found[0].text


def lines(page, name):
    """Its commands, one string each: continued lines joined, comments gone."""
    joined = re.sub(r"\s*\\\n\s*", " ", block(page, name))
    bare = [re.sub(r"(^|\s)#(\s.*)?$", "", line).strip() for line in joined.split("\n")]
    return [line for line in bare if line]


def with_changes(text, changes):
    """What a test has to change in a command so that it can run here. Each of it must be there, so that the page and the test stay one."""
    for old, new in changes:
        assert old in text, f"{old!r} is not in {text!r}"
        text = text.replace(old, str(new))
    return text


def with_programs(rdzv, more=None):
    """PATH of somebody who has rdzv installed; more: name -> text of a script that is a program there, too."""
    place = rdzv.tmp / "bin"
    if not place.exists():
        place.mkdir()
        for program in ("agent/rdzv-agent", "daemon/rdzvd", "daemon/rdzvctl", "agent/trainer/rdzv-trainer"):
            (place / Path(program).name).symlink_to(BUILD / program)
    for name, text in (more or {}).items():
        new = place / f".{name}"
        new.write_text(text)
        new.chmod(0o755)
        new.replace(place / name) # an earlier command may still run the script
    return {"PATH": f"{place}:{os.environ['PATH']}"}


def shell(rdzv, command, env=None, more=None, **kw):
    """Types a command in the folder of the test."""
    return rdzv.spawn("bash", "-e", "-o", "pipefail", "-c", command, env={**with_programs(rdzv, more), **(env or {})}, **kw)
