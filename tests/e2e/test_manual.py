# SPDX-License-Identifier: Apache-2.0
"""The manual pages: clean for the programs that read them, whole beside the tables and the header that they are made of, and true in their
examples."""

import json
import re
import shlex
import subprocess

import pytest

import pages
from harness import AGENT, BUILD, RDZVCTL, RDZVD, TOP, TRAINER, need

PROGRAMS = {"rdzv-agent": AGENT, "rdzvd": RDZVD, "rdzvctl": RDZVCTL, "rdzv-trainer": TRAINER}
PREFIX = {"rdzv-agent": "RDZV_AGENT_", "rdzvd": "RDZVD_", "rdzvctl": "RDZVCTL_", "rdzv-trainer": "RDZV_TRAINER_"}
MAN_PAGES = ["rdzv-agent.1", "rdzvctl.1", "rdzv-trainer.1", "librdzv.3", "rdzv.7", "rdzvd.8"]
FOLDER = BUILD / "deploy/manual"
HEADER = (TOP / pages.SDK / "rdzv.h").read_text()
FUNCTIONS = re.findall(r"^RDZV_API\s+([^;]*?)(\w+)\(([^;]*)\);", HEADER, re.M)  # type, name, arguments
OF_PROGRAMS = [p for p in MAN_PAGES if p.rsplit(".", 1)[0] in PROGRAMS]


def run(*argv, code=0):
    p = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=60)
    assert code is None or p.returncode == code, f"{argv}: {p.returncode}\n{p.stdout}{p.stderr}"
    return p.stdout


@pytest.fixture(scope="module")
def rendered():
    """Name -> text, as a terminal of 80 columns shows it, without bold and underlines."""
    need("mandoc")
    return {name: re.sub(".\b", "", run("mandoc", "-Tascii", "-Owidth=80", FOLDER / name)) for name in MAN_PAGES}


def squeeze(text):
    return " ".join(text.split())


def section(text, name):
    """What stands in a section, up to the next one."""
    return re.search(rf"^{name}\n(.*?)(?=^\S|\Z)", text, re.M | re.S)[1]


def items(text):
    """Heads of a list that stand where option names do, in the left column."""
    return [line[5:] for line in text.splitlines() if re.match(r" {5}\S", line)]


def helped(program):
    """What --help says of each option: name -> (short name, argument, text)."""
    text, found, at = run(PROGRAMS[program], "--help"), {}, None
    for line in text.splitlines():
        if m := re.match(r"  --([a-z0-9-]+)(?:, -(\w))?(?: (\S+))?(?:  +(.*))?$", line):
            at = m[1]
            found[at] = [m[2], m[3], m[4] or ""]
        elif at and re.match(r" {8,}\S", line):
            found[at][2] += " " + line.strip()
        else:
            at = None
    assert len(found) > 8
    return found


@pytest.mark.parametrize("page", MAN_PAGES)
def test_clean(page):
    need("mandoc")
    assert run("mandoc", "-Tlint", "-Wwarning", FOLDER / page, code=None) == ""


@pytest.mark.parametrize("page", MAN_PAGES)
def test_clean_for_groff(page):
    need("groff")
    p = subprocess.run(["groff", "-ww", "-mandoc", "-Tutf8", "-z", FOLDER / page], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0 and p.stderr == ""


@pytest.mark.parametrize("page", MAN_PAGES)
def test_sections(rendered, page):
    found = re.findall(r"^([A-Z].*)$", rendered[page], re.M)[1:]
    wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "ENVIRONMENT", "FILES", "EXIT STATUS", "EXAMPLES", "SEE ALSO"]
    if page == "rdzv.7":
        wanted = [w for w in wanted if w not in ("SYNOPSIS", "OPTIONS")]
    if page == "librdzv.3":
        wanted = ["NAME", "SYNOPSIS", "DESCRIPTION", "RETURN VALUES", "ENVIRONMENT", "SEE ALSO"]
    assert [f for f in found if f not in ("CAVEATS",)] == wanted
    assert f"rdzv {run(AGENT, '--version').split()[1]}" in rendered[page].splitlines()[-1]


@pytest.mark.parametrize("page", OF_PROGRAMS)
def test_options(rendered, page):
    """Each option stands there once, by all its names, with its argument, all of its help, its default and its variable."""
    program = page.rsplit(".", 1)[0]
    options = section(rendered[page], "OPTIONS")
    heads = [h for h in items(options) if h.startswith("-")]
    entries = {}
    for entry in re.split(r"^(?= {5}-)", options, flags=re.M):
        if m := re.match(r" {5}(?:-\w, )?--([a-z0-9-]+)", entry):
            entries[m[1]] = squeeze(entry)
    known = helped(program)
    assert len(heads) == len(known)
    for name, (short, label, text) in known.items():
        also = re.search(r"\(also --([a-z0-9-]+)", text)
        head = (f"-{short}, " if short else "") + f"--{name}" + (f", --{also[1]}" if also else "") + (f" {label}" if label else "")
        default = re.search(r"default: (.*)\)$", squeeze(text))
        said = re.sub(r" \((also --|default: )[^()]*(\([^()]*\))?[^()]*\)$", "", squeeze(text))
        assert entries[name].startswith(head + " ") or entries[name].startswith(head), (head, entries[name])
        assert said in entries[name], (said, entries[name])
        assert not default or f"Default: {default[1]}" in entries[name], entries[name]
        if name not in ("help", "version"):
            assert re.search(rf"Variable: {PREFIX[program]}{name.upper().replace('-', '_')}\b", entries[name]), entries[name]


def test_torchruns_variables(rendered):
    flags = set(re.findall(r"`(PET_[A-Z_]+)` \|", pages.generated("deploy/guide/from-torchrun.md", "flags of torchrun")))
    assert len(flags) > 20
    assert flags - set(re.findall(r"PET_[A-Z_]+", section(rendered["rdzv-agent.1"], "OPTIONS"))) == set()


@pytest.mark.parametrize("page", OF_PROGRAMS)
def test_exit_status(rendered, page):
    text = run(PROGRAMS[page.rsplit(".", 1)[0]], "--help")
    codes = dict(re.findall(r"^ {1,4}(\d+)  (.*)", text[text.index("Exit status:") :], re.M))
    there = section(rendered[page], "EXIT STATUS")
    assert [h.split()[0] for h in items(there) if h[0].isdigit()] == list(codes)
    for text in codes.values():
        assert squeeze(text)[1:] in squeeze(there)


def test_all_exit_codes(rendered):
    rows = re.findall(r'X\(\w+, (\d+), "([^"]+)"\)', (TOP / pages.EXIT_CODES).read_text())
    there = section(rendered["rdzv.7"], "EXIT STATUS")
    assert len(rows) > 10 and [h.split()[0] for h in items(there) if h[0].isdigit()] == [code for code, _ in rows]
    for _, text in rows:
        assert text[1:] in squeeze(there)


def test_worker_environment(rendered):
    """Beside the guide's table, which test_readme.py holds against the list that sets it."""
    table = pages.generated("deploy/guide/options.md", "worker environment")
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.M)
    there = section(rendered["rdzv.7"], "ENVIRONMENT")
    heads = [h.split()[0] for h in items(there)]
    assert len(rows) > 30
    for name, text in rows:
        assert heads.count(name) == 1, name
        assert squeeze(text.replace("`", ""))[1:] in squeeze(there), name


def test_every_function(rendered):
    page = squeeze(rendered["librdzv.3"])
    assert len(FUNCTIONS) > 40
    for kind, name, arguments in FUNCTIONS:
        squeezed = squeeze(kind).replace(" *", " *")
        assert page.count(f"{squeezed} {name}({squeeze(arguments)})") == 1, (kind, name, arguments)


def test_every_constant(rendered):
    constants = re.findall(r"\b(RDZV_\w+)\s*=\s*([^,\n]+)", HEADER)
    heads = items(rendered["librdzv.3"])
    assert len(constants) > 9
    for name, value in constants:
        assert heads.count(f"{name} = {value}") == 1, name


def test_every_comment_of_the_header(rendered):
    """Nothing that the header says of its functions is left out: every sentence of it stands in the page."""
    page = re.sub(r"[^\w]+", " ", rendered["librdzv.3"])
    body = HEADER[HEADER.index("struct rdzv;") :]
    for comment in re.findall(r"/\*(.*?)\*/", body, re.S):
        text = re.sub(r"^ *\* ?", "", comment, flags=re.M)
        for paragraph in re.split(r"\n *\n", text):
            words = re.sub(r"[^\w]+", " ", paragraph).split()
            assert " ".join(words[4:]) in page, paragraph


def test_pages_that_are_named_exist():
    for page in MAN_PAGES:
        for name, chapter in re.findall(r"^\.Xr (\S+) (\d)", (FOLDER / page).read_text(), re.M):
            ours = name.startswith(("rdzv", "librdzv"))
            assert not ours or f"{name}.{chapter}" in MAN_PAGES, f"{page} names {name}({chapter})"


def examples():
    """Commands of ours in literal blocks."""
    for page in MAN_PAGES:
        for block in re.findall(r"^\.Bd -literal.*?\n(.*?)^\.Ed", (FOLDER / page).read_text(), re.M | re.S):
            text = block.replace("\\-", "-").replace("\\e\n", " ")
            for line in text.splitlines():
                if line.split()[:1] and line.split()[0] in PROGRAMS:
                    yield page, line


def test_examples():
    """Options and words are understood; nothing is run."""
    found = list(examples())
    assert len(found) > 12
    for page, line in found:
        program, *words = shlex.split(line)
        if program == "rdzv-agent":
            said = run(AGENT, "--explain", *words, code=None)
            assert re.search("^nnodes ", said, re.M) or "--nproc gpu" in line, (line, said)
            if "--" in words and words[words.index("--") + 1].startswith("-"):
                run(TRAINER, *words[words.index("--") + 1 :], "--help")
        else:
            run(PROGRAMS[program], *words, "--help")


def test_installed():
    """Where man and the shells look, below the prefix, without a step for root."""
    where = json.loads(run("meson", "introspect", "--installed", BUILD))
    prefix = next(o["value"] for o in json.loads(run("meson", "introspect", "--buildoptions", BUILD)) if o["name"] == "prefix")
    places = {to.removeprefix(prefix + "/") for to in where.values()}
    for page in MAN_PAGES:
        assert f"share/man/man{page[-1]}/{page}" in places
    for program in PROGRAMS:
        assert f"share/bash-completion/completions/{program}" in places
        assert f"share/zsh/site-functions/_{program}" in places
        assert f"share/fish/vendor_completions.d/{program}.fish" in places
    assert not any("rdzv-tables" in p for p in places)
