#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Joins the live page into one document, and writes it as C with the hashes that its Content-Security-Policy names.

usage: embed.py OUT.c OUT.html PAGE.html FILE.css FILE.js...

PAGE.html has one line that is the word STYLE and one that is the word SCRIPT; FILE.css and the scripts, in their order, take these places. The scripts are one script in strict mode, and share their
names.
"""
import base64
import hashlib
import pathlib
import re
import sys


def source(path):
    """Without its licence line, which the document has once."""
    return re.sub(r"\A(<!--|/\*|//) SPDX-License-Identifier[^\n]*\n", "", pathlib.Path(path).read_text())


def hash_of(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def policy(**sources):
    listed = {"default-src": "'none'", **sources, "base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'"}
    return "; ".join(f"{name.replace('_', '-')} {value}" for name, value in listed.items())


def c_text(name, text):
    return f'const char {name}[] = "{text}";\n'


def c_bytes(name, data):
    rows = (data[i : i + 24] for i in range(0, len(data), 24))
    numbers = "\n".join(" ".join(f"{b}," for b in row) for row in rows)
    return f"const unsigned char {name}[] = {{\n{numbers}\n}};\nconst size_t {name}_len = sizeof({name});\n"


def put(template, word, tag, text):
    if "</" + tag in text.lower():
        sys.exit(f"embed.py: the text of <{tag}> contains its end")
    found = template.count(f"\n{word}\n")
    if found != 1:
        sys.exit(f"embed.py: the page has {found} lines {word}; it needs one")
    return template.replace(f"\n{word}\n", f"\n<{tag}>{text}</{tag}>\n")


def main(out_c, out_html, page, css, *scripts):
    style = "\n" + source(css)
    script = "\n'use strict';\n{\n" + "\n".join(source(path) for path in scripts) + "}\n"
    html = put(put(pathlib.Path(page).read_text(), "STYLE", "style", style), "SCRIPT", "script", script)
    data = html.encode()
    pathlib.Path(out_html).write_bytes(data)
    pathlib.Path(out_c).write_text(
        "/* Made by daemon/page/embed.py. */\n"
        '#include "daemon/page/page.h"\n'
        + c_bytes("page_html", data)
        + c_text("page_etag", hashlib.sha256(data).hexdigest()[:20])
        + c_text("page_policy", policy(script_src=hash_of(script), style_src=hash_of(style), connect_src="'self'", img_src="data:"))
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
