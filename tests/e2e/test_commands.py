# SPDX-License-Identifier: Apache-2.0
"""Every command of README.md and of the pages under deploy/, in a block or in a sentence, is executed by a test that takes it from the page, or says
what it needs that is not here; and no link between pages is dead."""

import ast
import re

import pytest

import pages
from pages import TOP

# A line that begins so is a command, wherever it stands.
PROGRAMS = """rdzv-agent rdzvd rdzvctl rdzv-trainer torchrun srun sbatch salloc scancel squeue sinfo sacct scontrol mpirun mpiexec mpirun.openmpi mpiexec.hydra qsub qrsh qdel qstat
    bsub bjobs bkill blaunch pbsdsh kubectl helm systemctl systemd-run journalctl apt apt-get dpkg dpkg-buildpackage docker podman apptainer enroot meson ninja pip pip3
    python python3 ssh scp curl sudo export kill cc gcc make git man nvidia-smi tests/run deploy/quickstart pcluster aws sky dstack""".split()
COMMAND = re.compile(r"(\$ )?((sudo |[A-Z_]+=\S* )*(build/\w+/|\./|/usr/s?bin/)?(" + "|".join(map(re.escape, PROGRAMS)) + r")( [^:=]|$)|(tests|deploy)/[\w/.-]+( |$))|\$ \S")


# Within sentences: a program and something for it to do. A lone option or verb of it is a name for that, and what has ... in it is a form.
IN_SENTENCES = re.compile(r"(\$ )?((sudo|[A-Z_]+=\S*) )*(build/\w+/|/usr/s?bin/)?(?P<program>" + "|".join(map(re.escape, PROGRAMS)) + r"|(tests|deploy)/[\w/.-]+) (?P<rest>\S.*)")
VERBS = ("rdzvctl", "systemctl", "scontrol", "kubectl", "podman", "docker", "meson", "apt-get", "helm", "enroot", "apptainer", "git")
# Those that do not stand in a block as well: which test takes them from the page,
TAKEN = {
    "rdzv-agent --help": "tests/e2e/test_inline.py::test_help",
    "rdzvd --help": "tests/e2e/test_inline.py::test_help",
    "rdzv-agent --nproc 4 -- --epochs 3": "tests/e2e/test_inline.py::test_a_command_or_an_option_of_the_trainer",
    "rdzv-agent -- $COMMAND": "tests/e2e/test_inline.py::test_a_command_or_an_option_of_the_trainer",
    "cc -I . -I agent/sdk worker.c agent/sdk/rdzv*.c proto/c10d.c common/printable.c": "tests/e2e/test_inline.py::test_a_worker_with_the_sources",
    "srun rdzv-agent -- ./train": "tests/cluster/test_readme_slurm.py::test_srun",
    "torchrun --standalone --nproc-per-node 4 train.py": "tests/cluster/test_slurm.py::test_lines_of_sites",
    "srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py": "tests/cluster/test_slurm.py::test_lines_of_sites",
    "srun torchrun --nnodes 2 --nproc-per-node 4 --rdzv-id $SLURM_JOB_ID --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py": "tests/cluster/test_slurm.py::test_lines_of_sites",
    "srun bash -c 'torchrun --nnodes 2 --nproc-per-node 4 --node-rank $SLURM_PROCID --master-addr $HEAD --master-port 29500 train.py'": "tests/cluster/test_slurm.py::test_lines_of_sites",
    "srun python -m torch.distributed.run --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 train.py": "tests/cluster/test_slurm.py::test_lines_of_sites",
    "srun --ntasks-per-node 4 python train.py": "tests/cluster/test_slurm.py::test_lines_of_sites",
    "scontrol show partition": "tests/cluster/test_slurm.py::test_looking_at_a_job",
    "scontrol show config": "tests/cluster/test_slurm.py::test_looking_at_a_job",
    "sbatch --requeue=expedite requeue.sbatch": "tests/cluster/test_slurm_faults.py::test_requeue_expedite",
    "ssh node2 true": "tests/cluster/test_ssh.py::test_the_page",
    'rdzv-agent --hostfile "$PBS_NODEFILE" -- ./train.py': "tests/cluster/test_batch.py::test_devices_stay_on_their_host",
    "rdzv-agent --nproc 1 train.py": "tests/interop/test_python_module.py::test_pytorch_by_hand",
    "python -m rdzv.run": "tests/packages/test_wheel.py::test_a_job_under_the_environments_python",
    "pip uninstall rdzv": "tests/packages/test_wheel.py::test_a_job_under_the_environments_python",
    "systemctl status rdzvd": "tests/e2e/test_systemd.py::test_daemon",
    "systemctl restart rdzvd": "tests/e2e/test_systemd.py::test_daemon",
}
# or why nobody executes them.
MAN = "man(1) is on no machine of the tests; tests/e2e/test_manual.py reads what it would show"
NOT_EXECUTED = {
    "man rdzv-agent": MAN, "man rdzvd": MAN, "man rdzvctl": MAN, "man rdzv-trainer": MAN, "man librdzv": MAN, "man 3 rdzv_exchange": MAN, "man 7 rdzv": MAN,
    "mpirun -np 8": "names a way to start agents, which mpi.md has as a block",
    'bsub -J "x[1-9]"': "names LSF's arrays, which it alone makes",
    "pip install nvidia-cublas nvidia-nccl-cu13": "needs a registry of packages", "pip install gpucm": "needs a registry of packages",
    "tests/gpu/run --only pairs": "needs a GPU",
    "python -m torch.distributed.run": "names the habit that python -m rdzv.run serves",
    "systemctl edit rdzv-agent@train": "opens an editor", "systemctl edit rdzvd": "opens an editor",
    "python3 tests/e2e/test_readme.py": "writes pages; the tests compare them", "python3 tests/e2e/test_quickstart.py": "writes a page; the test compares it",
    "python3 tests/interop/test_readme_torch.py": "writes a page; the test compares it",
    "tests/run --only fresh,image": "these are tests: what they run is on pages",
    "tests/run --only fresh-tests": "this is a test: the command of contributing.md",
}


def is_command(words):
    found = IN_SENTENCES.fullmatch(words)
    if not found or "..." in words:
        return False
    rest = found["rest"].split()
    lone = rest[0].startswith("-") and rest[0] not in ("--help", "--version") or found["program"] in VERBS
    return len(rest) > 1 or not lone


def in_blocks():
    return [" ".join(line.split()) for page in pages.pages() for b in pages.blocks(page) if b.lang == "sh" for line in re.sub(r"\s*\\\n\s*", " ", b.text).split("\n")]


def inline_complaint(page, words, shown):
    if not is_command(words) or words in NOT_EXECUTED or any(f" {words} " in f" {line} " for line in shown):
        return ""
    if words not in TAKEN:
        return f"`{words}` stands in no block, and neither in TAKEN nor in NOT_EXECUTED of tests/e2e/test_commands.py"
    return reads(*TAKEN[words].split("::"), page, words)


def constants(node):
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def with_helpers(tree, function):
    """The function, and all of its file that it names, directly or not: helpers, fixtures."""
    there = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    seen, todo = [], [function]
    while todo:
        node = there.get(todo.pop())
        if node and node not in seen:
            seen.append(node)
            todo += [n.id for n in ast.walk(node) if isinstance(n, ast.Name)] + [n.arg for n in ast.walk(node) if isinstance(n, ast.arg)]
    return seen


def reads(path, function, page, name):
    """Why the test does not take the block from the page; "": it does, by all that can be seen from outside."""
    if not (TOP / path).exists():
        return f"{path} does not exist"
    tree = ast.parse((TOP / path).read_text())
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function]
    if len(found) != 1:
        return f"{path} has no {function}"
    imported = {a.name for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names} | {
        n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    if "pages" not in imported:
        return f"{path} does not import pages"
    if page not in constants(tree):
        return f"{path} does not name {page}"
    if not any(name in constants(n) for n in with_helpers(tree, function)):
        return f"{function} in {path} does not name {name!r}"
    return ""


def complaint(b):
    if b.lang in ("bash", "shell", "console", "zsh", "shell-session"):
        return f"the language is sh, not {b.lang}; what commands print stands in a block without a language"
    if b.lang == "sh":
        if b.needs:
            return ""
        if not b.test:
            return "a comment is missing above it: <!-- test: FILE::TEST NAME --> or <!-- needs: WHAT -->"
        path, function, name = b.test
        if not name:
            return "its name is missing: <!-- test: FILE::TEST NAME -->"
        return reads(path, function, b.page, name)
    if b.lang in ("", "indented", "text"):
        found = [line for line in b.text.split("\n") if COMMAND.match(line)]
        if found:
            return f"a command stands in a block that is not sh: {found[0]}"
    return ""


@pytest.mark.parametrize("page", pages.pages())
def test_every_command_is_executed_or_says_what_it_needs(page):
    found = [f"{b.place}: {why}" for b in pages.blocks(page) if (why := complaint(b))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", pages.pages())
def test_so_is_every_command_in_a_sentence(page):
    shown = in_blocks()
    found = [f"{page}:{line}: {why}" for line, words in pages.spans(page) if (why := inline_complaint(page, words, shown))]
    assert not found, "\n".join(found)


def test_what_is_said_of_sentences_is_still_so():
    """No entry of the two lists is for what no page says any more, or what a block has."""
    said, shown = {words for page in pages.pages() for _, words in pages.spans(page)}, in_blocks()
    listed = [*TAKEN, *NOT_EXECUTED]
    assert len(listed) == len(set(listed)) and not [w for w in listed if w not in said], [w for w in listed if w not in said]
    idle = [w for w in listed if not is_command(w) or any(f" {w} " in f" {line} " for line in shown)]
    assert not idle, idle


def test_which_spans_are_commands():
    for words in ("rdzv-agent --nproc 4 -- ./train", "qsub -W depend=afternotok:ID x.pbs", "podman stop -t 60", "man rdzvd", "rdzvd --help", "ssh node2 true",
                  "A=1 srun rdzv-agent", "scontrol show config", "tests/run --only fresh", "sudo systemctl restart rdzvd", "build/agent/rdzv-agent --help"):
        assert is_command(words), words
    for words in ("rdzv-agent", "--nproc 4", "qsub -W", "kill -9", "scontrol requeue", "rdzvctl status", "export A=...", "rdzv-agent --explain ...", "srun", "train.py --lr 0.1", "exit 75"):
        assert not is_command(words), words
    text = "Say `rdzv-agent --nope\n1`, or `x`.\n\n    `srun a b`\n\n```sh\n`srun c d`\n```\n<!-- `srun e f` -->\n"
    assert pages.spans("README.md", text) == [(1, "rdzv-agent --nope 1"), (2, "x")]
    assert "stands in no block" in inline_complaint("README.md", "rdzv-agent --nope 1", ["rdzv-agent --nope 10"])
    assert not inline_complaint("README.md", "rdzv-agent --nope 1", ["srun rdzv-agent --nope 1 -- ./train"])


@pytest.mark.parametrize("page", pages.pages())
def test_names_are_given_once(page):
    names = [b.test[2] for b in pages.blocks(page) if b.lang == "sh" and b.test]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)


def test_what_is_wrong_is_found():
    """The rules themselves, on pages that break them."""
    here = "tests/e2e/test_quickstart.py::test_the_readme_shows_what_it_prints"
    for text, words in (
        ("```sh\nls\n```", "a comment is missing"),
        ("<!-- needs: x -->\n\nwords\n\n```sh\nls\n```", "a comment is missing"),
        ("<!-- test: tests/e2e/test_none.py::test_x a -->\n```sh\nls\n```", "does not exist"),
        ("<!-- test: tests/e2e/test_quickstart.py::test_none a -->\n```sh\nls\n```", "has no test_none"),
        (f"<!-- test: {here} -->\n```sh\nls\n```", "name is missing"),
        (f"<!-- test: {here} another -->\n```sh\nls\n```", "does not name 'another'"),
        ("```bash\nls\n```", "not bash"),
        ("```console\n$ ls\n```", "not console"),
        ("words\n\n    srun rdzv-agent -- ./train\n", "a command stands in a block"),
        ("```\n$ ls\n```", "a command stands in a block"),
        ("```\nkubectl apply -f x\n```", "a command stands in a block"),
        ("```text\nRDZV_AGENT_X=1 rdzv-agent -- ./a\n```", "a command stands in a block"),
        ("    build/agent/rdzv-agent --help\n", "a command stands in a block"),
    ):
        found = [complaint(b) for b in pages.blocks("README.md", text)]
        assert len(found) == 1 and words in found[0], (text, found)
    for text in ("<!-- needs: x -->\n```sh\nls\n```", f"<!-- test: {here} quickstart -->\n```sh\nls\n```", "```\nrdzv-agent: round 1\n```", "    rdzvd: x\n",
                 "- a point\n    that goes on: srun\n", "```yaml\nkind: Job\n```", "```c\nint x;\n```"):
        assert [complaint(b) for b in pages.blocks("README.md", text) if complaint(b)] == [], text


# Links. -----------------------------------------------------------------------------------------------------------------------------------

def anchors(page):
    """As GitHub makes them from headings."""
    text = re.sub(r"```.*?```", "", (TOP / page).read_text(), flags=re.S)
    heads = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", h).replace("`", "") for h in re.findall(r"^#+ +(.*?) *$", text, re.M)]
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}


@pytest.mark.parametrize("page", pages.pages())
def test_links(page):
    text = re.sub(r"```.*?```", "", (TOP / page).read_text(), flags=re.S)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (TOP / page).parent.joinpath(path).resolve() if path else TOP / page
        if not target.exists():
            dead.append(link)
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.relative_to(TOP)):
            dead.append(link)
    assert not dead, dead


def test_every_page_is_found_from_the_readme():
    """By links, over other pages."""
    seen, todo = set(), ["README.md"]
    while todo:
        page = todo.pop()
        if page in seen or not (TOP / page).exists():
            continue
        seen.add(page)
        for link in re.findall(r"\]\(([^)#\s]+\.md)(?:#[^)]*)?\)", (TOP / page).read_text()):
            todo.append(str((TOP / page).parent.joinpath(link).resolve().relative_to(TOP)))
    assert set(pages.pages()) <= seen, sorted(set(pages.pages()) - seen)


def test_the_commands_of_the_clusters():
    """What the README's table says to type on a cluster stands on its page, in a block or in a script that the page names."""
    table = re.search(r"\n## On your cluster\n(.*?)\n## ", (TOP / "README.md").read_text(), re.S)[1]
    rows = [r.split(" | ") for r in re.findall(r"^\| (.*) \|$", table, re.M)][1:]
    assert len(rows) > 7
    for who, command, links in rows:
        command, targets = re.search(r"`([^`]+)`", command), re.findall(r"\((deploy/[^)]+)\)", links)
        if not command or not targets or not (TOP / targets[0]).exists():  # a page that is missing is test_links' affair
            continue
        page = (TOP / targets[0]).read_text()
        scripts = [TOP / "deploy" / s for s in re.findall(r"\]\(([\w./-]+\.(?:sbatch|pbs|sh|lsf))\)", page)]
        told = "\n".join([b.text for b in pages.blocks(targets[0])] + [s.read_text() for s in scripts if s.exists()])
        words = re.sub(r" -- \./train$", "", command[1]).split()
        assert re.search(r"\b.*".join(map(re.escape, words)), told), f"{targets[0]} does not show {command[1]!r}"
