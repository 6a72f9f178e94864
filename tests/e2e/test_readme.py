"""What the README says about options, torchrun's flags and exit codes is what the programs say.

    python3 tests/e2e/test_readme.py      writes those parts of the README anew
"""

import re
import struct
import subprocess
import sys

import pages
from harness import AGENT, BUILD, RDZVD, SANITIZED, TOP

README = TOP / "README.md"
TRAINER = BUILD / "agent/trainer/rdzv-trainer"


def agent_help():
    text = subprocess.run([AGENT, "--help"], capture_output=True, text=True, check=True).stdout
    return "```\n" + text.rstrip() + "\n```\n"


def rdzvd_help():
    text = subprocess.run([RDZVD, "--help"], capture_output=True, text=True, check=True).stdout
    return "```\n" + text.rstrip() + "\n```\n"


def trainer_help():
    text = subprocess.run([TRAINER, "--help"], capture_output=True, text=True, check=True).stdout
    return "```\n" + text.rstrip() + "\n```\n"


def exit_codes():
    """From the one list that the programs are built from."""
    rows = re.findall(r'X\(\w+, (\d+), "([^"]+)"\)', (TOP / "common/exit_codes.h").read_text())
    assert len(rows) > 5
    return "\n".join(["| code | meaning |", "|---|---|", *(f"| {code} | {text} |" for code, text in rows), ""])


def worker_environment():
    """From the one list that sets it."""
    text = (TOP / "agent/workers/env.c").read_text()
    listed = text[text.index("#define ENV_LIST(") : text.index("#define COUNT(")].replace("\\\n", " ")
    entries = re.split(r"\b(?:INT|STR|SPARE|MPI|TOLD)\((?=\")", listed)[1:]
    rows = [(e.split('"')[1], re.findall(r'"((?:[^"\\]|\\.)*)"', e)[-1]) for e in entries]
    assert len(rows) > 30 and all(name.isupper() and not text.isupper() for name, text in rows)
    return "\n".join(["| variable | value |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows), ""])


def torchrun_flags():
    """Every flag of torchrun: how rdzv-agent calls it, and what differs; from the list and the table that it is built from."""
    table = (TOP / "agent/options/table.c").read_text()
    rows = re.findall(r'\{\.name = "([a-z-]+)",(?:\s*\.alias = "([a-z-]+)",)?\s*\.foreign = "([a-z-]+)",(\s*\.foreign_no_env)?', table)
    ours = {foreign: (name, alias, bool(no_env)) for name, alias, foreign, no_env in rows}
    listed = re.findall(r'\bX\(\s*"([a-z_-]+)",\s*((?:"(?:[^"\\]|\\.)*"\s*)+)\)', (TOP / "agent/options/torch_flags.h").read_text().replace("\\\n", ""))
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


PARTS = {
    "options of rdzv-agent": agent_help,
    "options of rdzvd": rdzvd_help,
    "options of rdzv-trainer": trainer_help,
    "exit codes": exit_codes,
    "worker environment": worker_environment,
    "flags of torchrun": torchrun_flags,
    "steps on GPUs": steps_on_gpus,
}


def part(name):
    return re.compile(rf"(<!-- begin {name} -->\n)(.*?)(<!-- end {name} -->)", re.S)


def test_options():
    assert part("options of rdzv-agent").search(README.read_text())[2] == agent_help(), "python3 tests/e2e/test_readme.py mends it"
    assert part("options of rdzvd").search(README.read_text())[2] == rdzvd_help(), "python3 tests/e2e/test_readme.py mends it"
    assert part("options of rdzv-trainer").search(README.read_text())[2] == trainer_help(), "python3 tests/e2e/test_readme.py mends it"


def test_torchrun_flags():
    assert part("flags of torchrun").search(README.read_text())[2] == torchrun_flags(), "python3 tests/e2e/test_readme.py mends it"


def test_exit_codes():
    assert part("exit codes").search(README.read_text())[2] == exit_codes(), "python3 tests/e2e/test_readme.py mends it"


def test_worker_environment():
    assert part("worker environment").search(README.read_text())[2] == worker_environment(), "python3 tests/e2e/test_readme.py mends it"


def test_steps_on_gpus():
    assert part("steps on GPUs").search(README.read_text())[2] == steps_on_gpus(), "python3 tests/e2e/test_readme.py mends it"


def test_worker_in_c(rdzv):
    """The whole worker, compiled in both ways that the README names, alone and in a world of three."""
    code = re.search(r"```c\n(.*?)```", README.read_text(), re.S)[1]
    (rdzv.tmp / "worker.c").write_text(code)
    sources = [*sorted((TOP / "agent/sdk").glob("rdzv*.c")), TOP / "proto/c10d.c"]
    assert rdzv.spawn("cc", "-std=c11", "-I", TOP, "-I", TOP / "agent/sdk", "worker.c", *sources, "-o", "sources").exit(30) == 0, rdzv
    assert rdzv.spawn("./sources").exit(10) == 0, rdzv
    (line,) = pages.lines("README.md", "worker in C")
    changes = [("agent/sdk worker.c", f"{TOP}/agent/sdk worker.c"), ("build/", f"{BUILD}/")]
    if SANITIZED:
        changes.append(("-o worker", "-o worker -fsanitize=address,undefined"))
    assert pages.shell(rdzv, pages.with_changes(line, changes)).exit(60) == 0, rdzv
    assert rdzv.spawn("./worker").exit(10) == 0, rdzv


def test_data_of_ones_own(rdzv):
    """The two functions in place of data.c's, with a main that shows what they read."""
    code = next(c for c in re.findall(r"```c\n(.*?)```", README.read_text(), re.S) if "dataset_open(" in c)
    headers = ["agent/trainer/data/data.h", "common/mem.h", "errno.h", "fcntl.h", "stdio.h", "string.h", "sys/stat.h", "unistd.h"]
    main = """int main(int argc, char **argv) {
      struct dataset d;
      struct err e = ERR_INIT;
      float out[3];
      if (dataset_open(&d, argv[1], NULL, 3, 1, &e)) return puts(e.text), 1;
      for (uint64_t i = 0; i < d.n; i++) dataset_sample(&d, i, out), printf("%g %g %g\\n", out[0], out[1], out[2]);
    }"""
    (rdzv.tmp / "mine.c").write_text("".join(f'#include "{h}"\n' if "/" in h and "sys" not in h else f"#include <{h}>\n" for h in headers) + code + main)
    (rdzv.tmp / "rows").write_bytes(struct.pack("<6f", 1, 2, 3, 4, 5, 6.5))
    sources = [TOP / "common/err.c", TOP / "common/mem.c"]
    assert rdzv.spawn("cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-I", TOP, "mine.c", *sources, "-o", "mine").exit(30) == 0, rdzv
    assert subprocess.check_output([rdzv.tmp / "mine", rdzv.tmp / "rows"], text=True) == "1 2 3\n4 5 6.5\n"
    assert "no rows of 3 floats" in subprocess.run([rdzv.tmp / "mine", "/dev/null"], stdout=subprocess.PIPE, text=True).stdout


def test_files_it_names_exist():
    """Links, and paths in the reading tour."""
    text = README.read_text()
    named = set(re.findall(r"\]\(([^)#:]+)\)", text)) | set(re.findall(r"`((?:common|proto|daemon|agent|tests|deploy)/[\w./-]+)`", text))
    assert len(named) > 10
    assert [n for n in sorted(named) if not (TOP / n).exists() and not (BUILD / n).exists()] == []


if __name__ == "__main__":
    text = README.read_text()
    for name, make in PARTS.items():
        text, n = part(name).subn(lambda m, make=make: m[1] + make() + m[3], text)
        if n != 1:
            sys.exit(f"README.md has {n} parts for {name}")
    README.write_text(text)
