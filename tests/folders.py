#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds every include against what meson's `folders` allow.

usage: folders.py SOURCE_ROOT [--left-out FOLDER] [--stamp FILE] [--print] [--dot] [--picture SVG] FOLDER=USED,...:PUBLIC.h,... [...]

A source may include the headers of its own folder, and the public headers of the folders that its folder uses. A public header includes no private one. An empty list of public headers makes all
of them public. The folders must not use each other in a circle, and must use what they say they use. --stamp writes FILE and FILE.d, for ninja. --print prints
the graph, --dot prints it for Graphviz, without the arrows that follow from others.
--picture compares the arrows of a picture that Graphviz has drawn with ours. --left-out names a folder that this build does without: what includes its headers,
or those of the folders below it, is compiled without them, and the picture has more than this build knows.
"""
import html
import pathlib
import re
import shlex
import sys

SOURCES = {".c", ".h", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)


def read_folders(words):
    folders = {}
    for word in words:
        name, rest = word.split("=")
        uses, public = rest.split(":")
        folders[name] = (set(filter(None, uses.split(","))), set(filter(None, public.split(","))))
    return folders


def sources_of(root, folder):
    return sorted(p for p in (root / folder).iterdir() if p.suffix in SOURCES)


def check_includes(root, folders, left_out):
    """(errors, the arrows that includes really make)."""
    errors, arrows = [], {name: set() for name in folders}
    for folder, (uses, _) in folders.items():
        for source in sources_of(root, folder):
            text = source.read_text()
            for m in INCLUDE.finditer(text):
                where = f"{source.relative_to(root)}:{text.count(chr(10), 0, m.start(1)) + 1}"
                other, _, header = m.group(1).rpartition("/")
                if other == folder:
                    public = folders[folder][1]
                    if source.name in public and header not in public:
                        errors.append(f"{where}: the public {source.name} includes the private {header}; make it public too ({folder}/meson.build)")
                    continue
                if left_out and f"{other}/".startswith(f"{left_out}/"):
                    continue
                if other not in folders:
                    errors.append(f"{where} includes {m.group(1)}; name the header from the top, in a folder that meson knows")
                    continue
                arrows[folder].add(other)
                if other not in uses:
                    errors.append(f"{where} includes {m.group(1)}, but {folder} may use only {', '.join(sorted(uses)) or 'itself'} ({folder}/meson.build)")
                elif folders[other][1] and header not in folders[other][1]:
                    errors.append(f"{where} includes {m.group(1)}, which is private to {other} ({other}/meson.build names the public headers)")
        for unused in sorted(uses - arrows[folder]):
            errors.append(f"{folder}/meson.build: {folder} says that it uses {unused}, and includes nothing of it")
    return errors, arrows


def circle(arrows):
    """The names along a circle, or None."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return path[path.index(name):] + [name]
        if name in done:
            return None
        path.append(name)
        found = next(filter(None, (visit(n) for n in sorted(arrows[name]))), None)
        path.pop()
        done.add(name)
        return found

    return next(filter(None, (visit(n) for n in sorted(arrows))), None)


def reach(arrows, name):
    found, todo = set(), list(arrows[name])
    while todo:
        n = todo.pop()
        if n not in found:
            found.add(n)
            todo += arrows[n]
    return found


def essential(arrows):
    """The arrows that do not follow from others."""
    return {a: {b for b in bs if not any(b in reach(arrows, c) for c in bs - {b})} for a, bs in arrows.items()}


def dot(arrows):
    lines = ["digraph folders {", "  rankdir=TB; bgcolor=white; nodesep=0.25; ranksep=0.45;",
             '  node [shape=box style="rounded,filled" fontname="Helvetica" fontsize=12 fillcolor="#eef3fa" color="#5b7fa6" margin="0.12,0.06"];',
             '  edge [color="#8a97a6" arrowsize=0.7];']
    colours = {"agent": "#eef3fa", "daemon": "#fdf1e3", "common": "#eeeeee", "proto": "#e8f5e9", "deploy": "#f3eafa"}
    for name in sorted(arrows):
        lines.append(f'  "{name}" [fillcolor="{colours[name.split("/")[0]]}"];')
    for a, bs in sorted(essential(arrows).items()):
        lines += [f'  "{a}" -> "{b}";' for b in sorted(bs)]
    return "\n".join(lines + ["}"])


def check_picture(path, arrows):
    """Graphviz titles each arrow `a&#45;&gt;b`."""
    titles = (html.unescape(t) for t in re.findall(r"<title>([^<]*)</title>", path.read_text()))
    drawn = {t for t in titles if "->" in t}
    ours = {f"{a}->{b}" for a, bs in essential(arrows).items() for b in bs}
    how = "draw it anew: meson test -C build folders prints the command"
    return [f"{path}: {arrow} is drawn, but no longer so; {how}" for arrow in sorted(drawn - ours)] + [f"{path}: {arrow} is missing; {how}" for arrow in sorted(ours - drawn)]


def main():
    root, words = pathlib.Path(sys.argv[1]), sys.argv[2:]
    stamp = words[words.index("--stamp") + 1] if "--stamp" in words else None
    folders = read_folders(w for w in words if "=" in w)
    left_out = words[words.index("--left-out") + 1] if "--left-out" in words else None
    errors, arrows = check_includes(root, folders, left_out)
    around = circle(arrows)
    if around:
        errors.append("folders include each other in a circle: " + " -> ".join(around))
    if "--picture" in words and not left_out:
        picture = pathlib.Path(words[words.index("--picture") + 1])
        errors += check_picture(picture, arrows)
        shown = " ".join([shlex.quote(sys.argv[0]), shlex.quote(str(root)), "--dot"] + [w for w in words if "=" in w])
        print(f"to draw the picture: python3 {shown} | dot -Tsvg -o {picture}")
    for line in errors:
        print(line, file=sys.stderr)
    if errors:
        sys.exit(1)
    if "--print" in words:
        for name in sorted(arrows):
            print(f"{name}: {' '.join(sorted(arrows[name])) or '-'}")
    if "--dot" in words:
        print(dot(arrows))
    if stamp:
        read = [str((root / name).resolve()) for name in folders]  # changes when a file comes or goes
        read += [str(s.resolve()) for name in folders for s in sources_of(root, name)]
        pathlib.Path(stamp + ".d").write_text(f"{stamp}: {' '.join(read)}\n")
        pathlib.Path(stamp).write_text("")


if __name__ == "__main__":
    main()
