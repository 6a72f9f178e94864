# SPDX-License-Identifier: Apache-2.0
"""The front page and the guide: their generated parts are what the programs and benchmarks say, their examples compile, their links lead somewhere, and
their sentences are short.

    python3 tests/e2e/test_readme.py      writes the generated parts anew
"""

import re
import struct
import subprocess

import pytest

import pages
import prometheus
from harness import AGENT, BUILD, RDZVCTL, RDZVD, SANITIZED, TOP

README = "README.md"
OPTIONS = "deploy/guide/options.md"
FROM_TORCHRUN = "deploy/guide/from-torchrun.md"
BENCHMARKS = "deploy/guide/benchmarks.md"
OPERATING = "deploy/guide/operating.md"
WORKER_IN_C = "deploy/guide/worker-in-c.md"
TRAINER_PAGE = "deploy/guide/trainer.md"
MONITORING = "deploy/guide/monitoring.md"
EVENTS = "deploy/guide/events.md"
TRAINER = BUILD / "agent/trainer/rdzv-trainer"
README_LINES, SENTENCE_WORDS = 200, 25


# Generated parts. -------------------------------------------------------------------------------------------------------------------------

def help_of(program):
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    return "```\n" + text.rstrip() + "\n```\n"


def agent_help():
    return help_of(AGENT)


def rdzvd_help():
    return help_of(RDZVD)


def exit_codes():
    """From the one list that the programs are built from."""
    rows = re.findall(r'X\(\w+, (\d+), "([^"]+)"\)', (TOP / pages.EXIT_CODES).read_text())
    assert len(rows) > 5
    return "\n".join(["| code | meaning |", "|---|---|", *(f"| {code} | {text} |" for code, text in rows), ""])


def listed(macro):
    """The entries of that list of common/events/event.h: their text, and their first arguments, without quotes."""
    text = (TOP / pages.EVENT_LIST).read_text()
    body = text[text.index(f"#define {macro}(") :]
    entries = re.split(r"\b[XF]\((?=[A-Z])", re.sub(r"\\\n\s*", "", body[: re.search(r"[^\\]\n", body).start() + 1]))[1:]
    return [(e, [a or b for a, b in re.findall(r'"((?:[^"\\]|\\.)*)"|(\w+)(?=,)', e)]) for e in entries]


def told_by_default():
    words = re.search(r'#define EVENT_FILTER_DEFAULT "([^"]+)"', (TOP / pages.EVENT_LIST).read_text())[1].split(",")
    return lambda name: name.rsplit(".", 1)[1] in words


def events_table():
    keys, told = {f[0]: f[1] for _, f in listed("EVENT_FIELD_LIST")}, told_by_default()
    lines = ["| event | when | fields | by `--on-event` |", "|---|---|---|---|"]
    for text, (_, name, _, when, *_) in listed("EVENT_LIST"):
        own = [f"`{keys[f]}`" for f in re.findall(r"EVENT_HAS\((\w+)\)", text)]
        lines.append(f"| `{name}` | {when} | {', '.join(own)} | {'yes' if told(name) else ''} |")
    assert len(lines) > 20
    return "\n".join(lines) + "\n"


def fields_of_events():
    kinds = {"STR": "text", "INT": "number", "NUM": "number", "BOOL": "yes or no"}
    rows = [f"| `{key}` | {kinds[kind]} | {meaning} |" for _, (_, key, kind, meaning) in listed("EVENT_FIELD_LIST")]
    assert len(rows) > 25
    return "\n".join(["| field | kind | value |", "|---|---|---|", *rows, ""])


def worker_environment():
    """From the one list that sets it."""
    text = (TOP / pages.WORKER_ENV).read_text()
    listed = text[text.index("#define ENV_LIST(") : text.index("#define COUNT(")].replace("\\\n", " ")
    entries = re.split(r"\b(?:INT|STR|SPARE|MPI|TOLD)\((?=\")", listed)[1:]
    rows = [(e.split('"')[1], re.findall(r'"((?:[^"\\]|\\.)*)"', e)[-1]) for e in entries]
    assert len(rows) > 30 and all(name.isupper() and not text.isupper() for name, text in rows)
    return "\n".join(["| variable | value |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows), ""])


def torchrun_flags():
    """Every flag of torchrun: how rdzv-agent calls it, and what differs; from the list and the table that it is built from."""
    table = (TOP / pages.OPTION_TABLE).read_text()
    rows = re.findall(r'\{\.name = "([a-z-]+)",(?:\s*\.alias = "([a-z-]+)",)?\s*\.foreign = "([a-z-]+)",(\s*\.foreign_no_env)?', table)
    shared = re.findall(r'\{SHARED\("([a-z-]+)"\),(?:\s*\.alias = "([a-z-]+)",)?(\s*\.foreign_no_env)?', table)
    rows += [(name, alias, name, no_env) for name, alias, no_env in shared]
    ours = {foreign: (name, alias, bool(no_env)) for name, alias, foreign, no_env in rows}
    listed = re.findall(r'\bX\(\s*"([a-z_-]+)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)', (TOP / pages.TORCH_FLAGS).read_text().replace("\\\n", ""))
    assert len(listed) > 30 and set(ours) - {"help"} == {flag for flag, _ in listed} - {"training_script"}
    lines = ["| torchrun | variable | rdzv-agent | what differs |", "|---|---|---|---|"]
    for flag, text in listed:
        text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text)).replace('\\"', '"')
        if flag == "training_script":
            lines.append(f"| script and arguments | | the same | {text} |")
            continue
        name, alias, no_env = ours[flag]
        short = f"`-{alias}`, " if len(alias) == 1 else ""
        variable = "none" if no_env else f"`PET_{flag.upper().replace('-', '_')}`"
        same = "the same" if name == flag else f"the same, or `--{name}`"
        lines.append(f"| {short}`--{flag}` | {variable} | {same} | {text or 'nothing'} |")
    return "\n".join(lines) + "\n"


def steps_on_gpus():
    text = (TOP / "tests/gpu/run").read_text()
    return "```\n" + re.search(r"one line, and a folder with its logs:\n\n(.*?)\n\nPyTorch", text, re.S)[1] + "\n```\n"


def line_of(name, title):
    """Of a benchmark's block, the rest of the line with that title."""
    return next(line[len(title) :].strip() for line in pages.generated(BENCHMARKS, name).splitlines() if re.match(re.escape(title) + r"\s{2,}", line))


def figure(text):
    """'7.9 ms  (6.6 ms .. 9.2 ms)' -> '7.9 ms', '22.6 ms (..)' -> '23 ms'."""
    number, unit = re.match(r"([\d.]+) (\w+)", text).groups()
    return f"{float(number):.0f} {unit}" if float(number) >= 10 else f"{float(number):.2g} {unit}"


def next_step(who):
    """Of two ranks under DistributedDataParallel, after a fault."""
    part = pages.generated(BENCHMARKS, "warm benchmarks").split("\n2 ranks ", 1)[1]
    cells = next(c for c in (re.split(r"\s{2,}", line) for line in part.splitlines()) if c[0] == who)
    seconds = float(cells[3].split()[0])
    return f"{seconds:.2g} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"


def in_place():
    """torchrun's figure, and that of rdzv.torch."""
    milliseconds = [float(re.search(r"([\d.]+) ms", line_of("recover under PyTorch", title))[1]) for title in ("under torchrun", "in place")]
    return tuple(f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms" for ms in milliseconds)


def beside_torchrun():
    """The table of the front page, from the blocks of benchmarks."""
    def ours(name, title):
        return figure(line_of(name, title))

    def theirs(name, title):
        cells = [c for c in re.split(r"\s{2,}", line_of(name, title)) if not c.startswith(("(", "met"))]
        return "not noticed in 60 s" if cells[1] == "not in 60 s" else figure(cells[1])

    def both(name, title):
        return theirs(name, title), ours(name, title)

    assert "its workers live on     0 of 20                                         3 of 3" in pages.generated(BENCHMARKS, "fault benchmarks")
    fault, run = "fault benchmarks", "benchmarks"
    steps = [float(x) for x in line_of("train benchmarks", "4 ranks").split()[:2]]
    rows = [
        ("launch: two agents on one machine, until `/bin/true` is done", *both(run, "launch: two agents, one /bin/true each")),
        ("a worker is killed: until all workers run again", *both(fault, "worker killed: runs")),
        ("a PyTorch worker is killed: until both ranks have done their next step", next_step("under torchrun"), next_step("--warm auto")),
        ("one of four PyTorch ranks is killed, and [the others keep their processes](deploy/guide/in-place.md): until the next step", *in_place()),
        ("an agent is killed with `kill -9`", theirs(fault, "agent killed: runs") + "; its workers live on", ours(fault, "agent killed: runs") + "; none of its workers is left"),
        ("the first agent is killed", "the job fails; its workers live on", ours(fault, "first agent killed: runs") + "; none of its workers is left"),
        ("a node's wire is cut, with a lease of 2 s", *both(fault, "host cut: runs")),
        ("the daemon is killed", "it is part of the first agent", ours(fault, "daemon killed: back") + " until all agents are back; no worker is touched"),
        ("memory of an agent", theirs(run, "memory: agent"),
         f"{ours(run, 'memory: agent')}; its guard {ours(run, 'memory: guard')}, a daemon {ours(run, 'memory: rdzvd')}"),
        ("a small autoencoder on CPUs, four ranks on two cores: steps per second", f"{steps[1]:.0f} with DDP on gloo", f"{steps[0]:.0f} with `rdzv-trainer`"),
    ]
    (version,) = set(re.findall(r"beside torchrun of PyTorch ([\d.]+\d)", (TOP / BENCHMARKS).read_text()))
    return "\n".join([f"| | torchrun (PyTorch {version}) | rdzv |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows), ""])


CAPACITY = [  # title in the block, what it is called here
    ("all but one have joined", "all nodes have joined after"),
    ("worker dies -> all told STOP", "a worker dies: all nodes have STOP after"),
    ("then -> all told START", "then: all nodes have START of the next round after"),
    ("daemon dies -> all are back", "the daemon is killed: all nodes are back after"),
    ("rest, per second", "CPU of the daemon at rest, us per node and second"),
    ("in a running round", "memory of the daemon, KiB per node"),
]


def capacity():
    lines = pages.generated(BENCHMARKS, "scale benchmarks").splitlines()
    sizes = next(re.findall(r"[\d,]+", line) for line in lines if line.startswith("agents "))
    out = ["| nodes | " + " | ".join(sizes) + " |", "|---" * (len(sizes) + 1) + "|"]
    for title, name in CAPACITY:
        cells = re.findall(r"[\d.]+(?: (?:us|ms|s)\b)?", line_of("scale benchmarks", title))[: len(sizes)]
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def metrics():
    rows = [(name, kind, ", ".join(f"`{label}`" for label in labels if label != "-"), meaning) for name, (kind, labels, meaning) in prometheus.listed().items()]
    return "\n".join(["| metric | type | more labels | meaning |", "|---|---|---|---|", *(f"| `{n}` | {k} | {l} | {m} |" for n, k, l, m in rows), ""])


def node_states():
    return "\n".join(["| state | the node |", "|---|---|", *(f"| `{word}` | {meaning} |" for word, meaning in prometheus.node_states()), ""])


def buckets():
    return "\n".join(["| bucket | the time |", "|---|---|", *(f"| `{word}` | {meaning} |" for word, meaning in prometheus.buckets()), ""])


def first_alert():
    return "```yaml\n" + "- alert:".join(prometheus.ALERTS.read_text().split("- alert:")[:2]).rstrip() + "\n```\n"


PARTS = [
    (OPTIONS, "exit codes", exit_codes),
    (OPTIONS, "worker environment", worker_environment),
    (EVENTS, "events", events_table),
    (EVENTS, "fields of events", fields_of_events),
    (OPTIONS, "options of rdzv-agent", agent_help),
    (OPTIONS, "options of rdzvd", rdzvd_help),
    (OPTIONS, "options of rdzvctl", lambda: help_of(RDZVCTL)),
    (OPTIONS, "options of rdzv-trainer", lambda: help_of(TRAINER)),
    (FROM_TORCHRUN, "flags of torchrun", torchrun_flags),
    (BENCHMARKS, "steps on GPUs", steps_on_gpus),
    (OPERATING, "capacity", capacity),
    (MONITORING, "scrape configuration", lambda: "```yaml\n" + prometheus.SCRAPE.read_text() + "```\n"),
    (MONITORING, "first alert", first_alert),
    (MONITORING, "metrics", metrics),
    (MONITORING, "node states", node_states),
    (MONITORING, "buckets", buckets),
    (README, "beside torchrun", beside_torchrun),
]


@pytest.mark.parametrize("page, name, make", PARTS, ids=[name.replace(" ", "-") for _, name, _ in PARTS])
def test_generated(page, name, make):
    assert pages.generated(page, name) == make(), "python3 tests/e2e/test_readme.py writes it anew"


# Examples. --------------------------------------------------------------------------------------------------------------------------------

def test_worker_in_c(rdzv):
    """The whole worker, compiled in both ways that the page names, alone and in a world of three."""
    (rdzv.tmp / "worker.c").write_text(pages.c_block(WORKER_IN_C, "int main"))
    sources = [f for pattern in pages.SDK_SOURCES for f in sorted(TOP.glob(pattern))]
    assert rdzv.spawn("cc", "-std=c11", "-I", TOP, "-I", TOP / pages.SDK, "worker.c", *sources, "-o", "sources").exit(30) == 0, rdzv
    assert rdzv.spawn("./sources").exit(10) == 0, rdzv
    (line,) = pages.lines(WORKER_IN_C, "worker in C")
    changes = [(f"{pages.SDK} worker.c", f"{TOP / pages.SDK} worker.c"), ("build/", f"{BUILD}/")]
    if SANITIZED:
        changes.append(("-o worker", "-o worker -fsanitize=address,undefined"))
    job = pages.shell(rdzv, pages.with_changes(line, changes))
    assert job.exit(60) == 0, rdzv
    said = re.search(r"Each rank prints one line, such as `(.*)`", (TOP / WORKER_IN_C).read_text())[1]
    for rank in range(4):
        assert said.replace("rank 2", f"rank {rank}") in job.text, job
    assert rdzv.spawn("./worker").exit(10) == 0, rdzv


def test_data_of_ones_own(rdzv):
    """The two functions in place of data.c's, with a main that shows what they read."""
    code = pages.c_block(TRAINER_PAGE, "dataset_open(")
    headers = [*pages.DATASET_HEADERS, "errno.h", "fcntl.h", "stdio.h", "string.h", "sys/stat.h", "unistd.h"]
    main = """int main(int argc, char **argv) {
      struct dataset d;
      struct err e = ERR_INIT;
      float out[3];
      if (dataset_open(&d, argv[1], NULL, 3, 1, &e)) return puts(e.text), 1;
      for (uint64_t i = 0; i < d.n; i++) dataset_sample(&d, i, out), printf("%g %g %g\\n", out[0], out[1], out[2]);
    }"""
    (rdzv.tmp / "mine.c").write_text("".join(f'#include "{h}"\n' if h in pages.DATASET_HEADERS else f"#include <{h}>\n" for h in headers) + code + main)
    (rdzv.tmp / "rows").write_bytes(struct.pack("<6f", 1, 2, 3, 4, 5, 6.5))
    sources = [TOP / s for s in pages.DATASET_SOURCES]
    assert rdzv.spawn("cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-I", TOP, "mine.c", *sources, "-o", "mine").exit(30) == 0, rdzv
    assert subprocess.check_output([rdzv.tmp / "mine", rdzv.tmp / "rows"], text=True) == "1 2 3\n4 5 6.5\n"
    assert "no rows of 3 floats" in subprocess.run([rdzv.tmp / "mine", "/dev/null"], stdout=subprocess.PIPE, text=True).stdout


def literals():
    """The strings of the programs, neighbours joined, one a line."""
    text = "\n".join(f.read_text() for folder in pages.PRODUCT for f in sorted((TOP / folder).rglob("*.[ch]")))
    return re.sub(r'"\s*(?:\\\n\s*)?"', "", text)


def test_troubleshooting_quotes_what_is_printed():
    """What stands in backticks in the first column is part of a message of the programs."""
    table, said = pages.generated(OPERATING, "troubleshooting"), literals()
    quoted = [words for line in table.splitlines()[2:] for words in re.findall(r"`([^`]+)`", line.split(" | ")[0])]
    assert len(quoted) > 15
    assert [words for words in quoted if words.strip("()") not in said] == []


# The pages themselves. --------------------------------------------------------------------------------------------------------------------

def guide():
    return [README, *(p for p in pages.pages() if p.startswith(pages.GUIDE))]


def test_the_front_page_is_short():
    assert len((TOP / README).read_text().splitlines()) <= README_LINES


@pytest.mark.parametrize("page", guide())
def test_files_it_names_exist(page):
    """Relative links are test_commands.py's affair; these are paths in backticks."""
    named = set(re.findall(r"`((?:common|proto|daemon|agent|tests|deploy)/[\w./-]+)`", (TOP / page).read_text()))
    assert [n for n in sorted(named) if not (TOP / n).exists() and not (BUILD / n).exists()] == []


def sentences(page):
    """(line, sentence) of a page, without blocks, tables' rules, generated parts and marks; a code span counts as one word."""
    blank = lambda m: re.sub(r"[^\n]", " ", m[0])
    text = re.sub(r"<!-- begin (?!trouble).*?<!-- end [^\n]*", blank, (TOP / page).read_text(), flags=re.S)
    text = re.sub(r"^```.*?^```$", blank, text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", blank, text, flags=re.S)
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]*`", "CODE", text)
    for number, line in enumerate(text.split("\n"), 1):
        cells = line.strip().strip("|").split(" | ") if line.startswith("|") else [re.sub(r"^\s*(?:[-*#]+|\d+\.)\s+", "", line)]
        for cell in cells:
            for sentence in re.split(r"(?<=[.:;!?)])\s+(?=[A-Z*\"(]|CODE)|;\s+|:\s+|\.\s*$", cell.replace("**", "")):
                if sentence and sentence.strip(" -|"):
                    yield number, sentence.strip()


@pytest.mark.parametrize("page", pages.pages())
def test_plain_english(page):
    """Short sentences, and none of the turns that readers stumble over."""
    wrong = []
    for number, sentence in sentences(page):
        if len(sentence.split()) > SENTENCE_WORDS and sentence.count(",") < 5:  # a list of names may be long
            wrong.append(f"{page}:{number}: {len(sentence.split())} words: {sentence}")
        if re.match(r"(Who|Whose|What|Whoever) ", sentence) and not sentence.endswith("?") and len(sentence.split()) > 5:
            wrong.append(f"{page}:{number}: begins with {sentence.split()[0]}: {sentence}")
        if re.search(r"\b(is|are) no [a-z]+(?! (left|longer))|\b(is|are) told\b|\bput aside\b|\bgiven back\b|\banew\b|\bnobody is\b", sentence) and "there is no" not in sentence.lower() and "there are no" not in sentence.lower():
            wrong.append(f"{page}:{number}: say it plainly: {sentence}")
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    for page, name, make in PARTS:
        pages.write_part(page, name, make())
