# SPDX-License-Identifier: Apache-2.0
"""Completions as a user drives them: bash by COMP_WORDS and by keys in a terminal, zsh and tcsh in a terminal, fish by its own complete -C; installed
where `meson install` with ~/.local as its prefix puts them. What is offered for names of options is held against --help for each program and shell."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import time

import pytest

import pages
from harness import AGENT, BUILD, RDZVCTL, RDZVD, SLOW, TRAINER, need, until

FOLDER = BUILD / "deploy/manual"
PROGRAMS = {"rdzv-agent": AGENT, "rdzvd": RDZVD, "rdzvctl": RDZVCTL, "rdzv-trainer": TRAINER}
WAIT = "while [ ! -e go ]; do sleep 0.02; done"

# Splits a line as bash does for completion: "=" and ":" are words of their own.
DRIVE_BASH = r"""
for f in "$1"/rdzv*; do case $f in *.fish | *.tcsh | *.[0-9] | */rdzv-tables* | */_*) ;; *) [ -f "$f" ] && source "$f" ;; esac; done
COMP_LINE=$2 COMP_POINT=${#2}
readarray -t COMP_WORDS <<<"$3"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
how=$(complete -p "${COMP_WORDS[0]}"); how=${how##*-F }
"${how%% *}"
printf '%s\n' "${COMPREPLY[@]}"
"""


def home(tmp_path):
    """An environment of its own, in which the programs of the build are found, and three files."""
    for name in ("my_train.py", "data.gz"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir(exist_ok=True)
    path = ":".join(dict.fromkeys(os.path.dirname(p) for p in PROGRAMS.values()))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RDZV", "XDG_"))}
    return dict(env, HOME=str(tmp_path), PATH=f"{path}:{os.environ['PATH']}", TERM="xterm", LC_ALL="C.UTF-8")


class Bash:
    def __init__(self, tmp_path):
        self.env, self.cwd = home(tmp_path), tmp_path

    def __call__(self, line):
        words = [w for w in re.findall(r"[=:]+|[^\s=:]+", line)] + ([""] if line[-1:] in " =:" and line[-1:] == " " else [])
        p = subprocess.run(["bash", "--norc", "-c", DRIVE_BASH, "-", FOLDER, line, "\n".join(words)], env=self.env, cwd=self.cwd, capture_output=True, text=True, timeout=30)
        assert p.returncode == 0 and p.stderr == "", p.stderr
        return [w for w in p.stdout.split("\n") if w]


class Fish:
    def __init__(self, tmp_path):
        need("fish")
        self.env, self.cwd = home(tmp_path), tmp_path
        folder = tmp_path / ".local/share/fish/vendor_completions.d"
        folder.mkdir(parents=True, exist_ok=True)
        for f in FOLDER.glob("*.fish"):
            shutil.copy(f, folder)

    def __call__(self, line):
        p = subprocess.run(["fish", "-c", "complete -C $argv[1]", line], env=self.env, cwd=self.cwd, capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
        assert p.stderr == "", p.stderr
        return [w.split("\t")[0] for w in p.stdout.split("\n") if w]


class Terminal:
    """A shell that believes somebody types."""

    def __init__(self, argv, env, cwd, setup, ready):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(argv[0], argv, env)
        self.type(setup)
        self.read(ready)

    def type(self, text):
        os.write(self.fd, text.encode())

    def read(self, pattern=None, quiet=0.4):
        """Until the pattern is there, or, without one, nothing has come for a while."""
        got, deadline = "", time.monotonic() + 20 * SLOW
        while time.monotonic() < deadline:
            ready, _, _ = select.select([self.fd], [], [], 0.1 if pattern else quiet)
            if ready:
                got += os.read(self.fd, 65536).decode(errors="replace")
                got = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\a|\x1b[=>]", "", got)
            if pattern and re.search(pattern, got):
                return got
            if not ready and not pattern and got.strip():
                return got
        raise AssertionError(f"{pattern!r} did not come: {got!r}")

    def close(self):
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


class Zsh:
    """Its compadd, wrapped, writes what would be offered to a file; a key lists."""

    def __init__(self, tmp_path):
        need("zsh")
        self.found = tmp_path / "found"
        setup = f"""
PS1=; fpath=({FOLDER} $fpath); autoload -Uz compinit; compinit -u -D; stty -echo
function compadd {{
  if [[ ${{@[1,(i)(-|--)]}} == *-(O|A|D)\\ * ]]; then builtin compadd "$@"; return; fi
  typeset -a __hits; builtin compadd -A __hits "$@"
  local -a prefix; zparseopts -E P:=prefix
  ((${{#__hits}})) && print -rl -- "$IPREFIX$prefix[2]"${{^__hits}} >>{self.found}
  builtin compadd "$@"
}}
list() {{ rm -f {self.found}; zle list-choices; touch {self.found}.done; zle -U ''; BUFFER= }}
zle -N list; bindkey '^I' list; unsetopt list_beep
echo REA''DY
"""
        (tmp_path / "setup.zsh").write_text(setup)
        self.terminal = Terminal(["zsh", "-f", "-i"], home(tmp_path), tmp_path, "source ./setup.zsh\n", "READY")

    def __call__(self, line):
        done = self.found.with_suffix(".done")
        done.unlink(missing_ok=True)
        self.found.unlink(missing_ok=True)
        while select.select([self.terminal.fd], [], [], 0)[0]:  # zsh stops when nobody reads what it prints
            os.read(self.terminal.fd, 65536)
        self.terminal.type(line + "\t")
        until(f"zsh answers {line!r}", done.exists, 20)
        return self.found.read_text().split("\n")[:-1] if self.found.exists() else []


@pytest.fixture(scope="module", params=["bash", "zsh", "fish"])
def shell(request, tmp_path_factory):
    tmp = tmp_path_factory.mktemp(request.param)
    s = {"bash": Bash, "zsh": Zsh, "fish": Fish}[request.param](tmp)
    s.name = request.param
    yield s
    if request.param == "zsh":
        s.terminal.close()


def names(program):
    """All long names of its options, by its own help."""
    text = subprocess.run([PROGRAMS[program], "--help"], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"^  (--[a-z0-9-]+)", text, re.M)) | set(re.findall(r"also\s+(--[a-z0-9-]+)", text))
    assert len(found) > 8
    return found


@pytest.mark.parametrize("program", PROGRAMS)
def test_all_names(shell, program):
    assert {n for n in shell(f"{program} --") if n.startswith("--")} == names(program)


CASES = [
    ("rdzv-agent --nn", {"--nnodes"}),
    ("rdzv-agent --scale-up ", {"now", "next-round"}),
    ("rdzv-agent --scale-up ne", {"next-round"}),
    ("rdzv-agent --store=", {"agent", "worker"}),
    ("rdzv-agent --nproc-per-node g", {"gpu"}),
    ("rdzv-agent --hang-watch o", {"output"}),
    ("rdzv-agent --hang-watch fi", {"file:"}),
    ("rdzv-agent --log-dir fo", {"folder"}),
    ("rdzv-agent --verdict-file my", {"my_train.py"}),
    ("rdzv-agent --last-call ", set()),
    ("rdzv-agent -r 3 --store w", {"worker"}),
    ("rdzv-agent -q --nnodes 2 my_", {"my_train.py"}),
    ("rdzv-agent --nnodes=2 -- my_", {"my_train.py"}),
    ("rdzv-agent --nnodes 2 my_train.py --epochs 3 fol", {"folder"}),
    ("rdzv-agent -- --prec", {"--precision"}),
    ("rdzv-agent --nproc 2 -- --layers 8,4 --device c", {"cpu", "cuda"}),
    ("rdzv-agent --signals-to-handle SIGTERM,SIGI", {"SIGTERM,SIGINT"}),
    ("rdzv-trainer --data da", {"data.gz"}),
    ("rdzv-trainer --data sy", {"synthetic:"}),
    ("rdzv-trainer -b 8 --resume ", {"auto", "none"}),
    ("rdzvd --state-dir fo", {"folder"}),
    ("rdzvctl ", {"status", "jobs", "nodes", "drain", "undrain", "hosts", "stop", "kill-worker", "confirm-dead", "logs", "check", "top", "warm", "key",
                 "token"}),
    ("rdzvctl -p 29400 s", {"status", "stop"}),
    ("rdzvctl kill-worker --signal SIGUSR", {"SIGUSR1", "SIGUSR2"}),
]


@pytest.mark.parametrize("line, want", CASES, ids=[line for line, _ in CASES])
def test_values(shell, line, want):
    found = {f.rstrip("/") for f in shell(line)}
    word = re.split(r"[\s=]", line)[-1]
    if shell.name in ("bash", "zsh") and "," in word and not any("," in f for f in found):
        found = {word[: word.rindex(",") + 1] + f for f in found}
    # Some match in the middle of a word, or not by case, and offer files besides: what begins as the word does counts.
    found = {f.removeprefix(line.split()[-1][: line.split()[-1].find("=") + 1]) for f in found}
    found = {f for f in found if f.startswith(word)}
    if "signals" in line:
        found &= {"SIGTERM,SIGINT"}
    assert found == want


def test_commands(shell):
    """The command, and what that command's own completion knows."""
    assert "rdzvctl" in shell("rdzv-agent --nnodes 2 rdzvc")
    assert "rdzvctl" in shell("rdzv-agent -- rdzvc")
    assert {"status", "stop"} == {f for f in shell("rdzv-agent -- rdzvctl s") if f.startswith("s")}
    assert "--json" in shell("rdzv-agent --nnodes 2 rdzvctl status --j")
    assert "--nnodes" not in shell("rdzv-agent --nproc 2 my_train.py --nn")


def test_underscores(shell):
    if shell.name == "fish":
        return  # it knows a name in one spelling
    assert shell("rdzv-agent --nproc_per_node c") == ["cpu"]
    assert shell("rdzv-agent --nproc_per") in (["--nproc_per_node"], ["--nproc-per-node"])


def test_jobs_and_hosts(shell, rdzv):
    """Of the daemon that the line names, with a job whose name no shell may take for anything else."""
    d = rdzv.daemon("--socket", rdzv.tmp / "ctl")
    job = "$(touch${IFS}pwned)`x`:1"
    agent = rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", job, "--rdzv-conf", "is_host=0", "--", "sh", "-c", WAIT)
    other = rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", "ada@n1:294", "--rdzv-conf", "is_host=0", "--", "sh", "-c", WAIT)
    d.expect("job ada@n1:294.*starting -> running")
    d.expect("job .*touch.*starting -> running")
    line = f"rdzvctl --socket {rdzv.tmp}/ctl "
    plain = lambda found: [f.replace("\\", "") for f in found]
    assert sorted(plain(shell(line + "stop "))) == sorted([job, "ada@n1:294"])
    rest = {"bash": "294", "zsh": "ada@n1:294", "fish": "ada@n1:294"}[shell.name]
    assert plain(shell(line + "status ada@n1:")) == [rest]
    assert len(shell(line + "kill-worker ")) == len(shell(line + "confirm-dead ")) == 2 and shell(line + "jobs ") == []
    assert not list(rdzv.tmp.glob("**/pwned"))
    status = json.loads(subprocess.check_output([RDZVCTL, "--socket", rdzv.tmp / "ctl", "status", "--json"]))
    host = status["jobs"][0]["members"][0]["host"]
    assert shell(line + "undrain ") == []
    assert shell(line + "drain ") == [host]
    subprocess.run([RDZVCTL, "--socket", rdzv.tmp / "ctl", "drain", "elsewhere", "--force"], check=True, capture_output=True)
    assert shell(line + "undrain ") == ["elsewhere"] and shell(line + "drain ") == [host]
    (rdzv.tmp / "go").touch()
    assert agent.exit() == other.exit() == 0, rdzv


def test_no_daemon(shell, tmp_path):
    """Nothing, and no word of complaint."""
    assert shell(f"rdzvctl --socket {tmp_path}/nothing stop ") == []


def test_typed_in_bash(tmp_path):
    """By keys, loaded by bash-completion where it looks for programs without a completion of its own."""
    there = "/usr/share/bash-completion/bash_completion"
    need("bash-completion", os.path.exists(there))
    folder = tmp_path / ".local/share/bash-completion/completions"
    folder.mkdir(parents=True)
    for program in PROGRAMS:
        shutil.copy(FOLDER / program, folder)
    env = dict(home(tmp_path), PS1="", INPUTRC="/dev/null")
    t = Terminal(["bash", "--norc", "-i"], env, tmp_path, f"bind 'set enable-bracketed-paste off'; PS1=; source {there}; echo REA''DY\n", "READY")
    try:
        for line, want in [
            ("rdzv-agent --sca\t", "rdzv-agent --scale-up "),
            ("rdzv-agent --scale-up=ne\t", "--scale-up=next-round "),
            ("rdzv-agent --log-dir fol\t", "--log-dir folder/"),
            ("rdzv-agent --hang-watch file:my\t", "file:my_train.py "),
            ("rdzv-agent -- rdzvctl und\t", "rdzvctl undrain "),
            ("rdzv-agent -- --devi\tc\tp\t", "-- --device cpu "),
            ("rdzv-agent --nnodes 2 my_\t", "--nnodes 2 my_train.py "),
        ]:
            t.type(line)
            t.read(re.escape(want))
            t.type("\x15")
    finally:
        t.close()


def test_typed_in_tcsh(tmp_path):
    """By keys, loaded as --print-completion prints it. Of rdzv-agent alone: tcsh has no folder where it looks for more."""
    need("tcsh")
    script = subprocess.run([AGENT, "--print-completion", "tcsh"], capture_output=True, text=True, check=True).stdout
    (tmp_path / "rc.tcsh").write_text(script)
    assert {f"--{n}" for n in re.search(r"'c@--@\((.*)\)@'", script)[1].split()} == names("rdzv-agent")
    t = Terminal(["tcsh", "-f", "-i"], home(tmp_path), tmp_path, "set prompt=''; unset autologout; source rc.tcsh; echo REA''DY\n", "READY")
    try:
        for line, want in [
            ("rdzv-agent --sca\t", "rdzv-agent --scale-up "),
            ("rdzv-agent --scale-up ne\t", "--scale-up next-round "),
            ("rdzv-agent --store=wo\t", "--store=worker "),
            ("rdzv-agent --nproc_per_node g\t", "--nproc_per_node gpu "),
            ("rdzv-agent -r 3 --log-dir fol\t", "--log-dir folder/"),
            ("rdzv-agent --verdict-file=my\t", "--verdict-file=my_train.py "),
            ("rdzv-agent --signals-to-handle USR\x04", "USR1 USR2"),
            ("rdzv-agent --nnodes 2 my_\t", "--nnodes 2 my_train.py "),
        ]:
            t.type(line)
            t.read(re.escape(want))
            t.type("\x15")
    finally:
        t.close()


INSTALLED = {"bash": "share/bash-completion/completions/rdzv-agent", "zsh": "share/zsh/site-functions/_rdzv-agent", "fish": "share/fish/vendor_completions.d/rdzv-agent.fish",
             "tcsh": "share/rdzv/rdzv-agent.tcsh"}


@pytest.mark.parametrize("name", INSTALLED)
def test_print_completion(name, tmp_path):
    """What `meson install` put beside bin, even in a tree that was moved, or on Debian; and a sentence where it is not."""
    built = FOLDER / INSTALLED[name].rpartition("/")[2]
    agent = tmp_path / "bin/rdzv-agent"
    agent.parent.mkdir()
    shutil.copy(AGENT, agent)
    ask = lambda program: subprocess.run([program, "--nnodes", "2", "--print_completion", name], capture_output=True, text=True, timeout=30)
    p = ask(agent)
    missing = rf"rdzv-agent: {tmp_path}/bin/\.\./{INSTALLED[name]} cannot be read: install the share folder of rdzv with its programs\n"
    assert p.returncode == 71 and re.fullmatch(missing, p.stderr) and not p.stdout, p
    for there in [INSTALLED[name]] + ["share/zsh/vendor-completions/_rdzv-agent"] * (name == "zsh"):
        file = tmp_path / there
        file.parent.mkdir(parents=True)
        file.write_text(f"{there}\n")
        p = ask(agent)
        assert p.returncode == 0 and p.stdout == f"{there}\n" and not p.stderr, p
        file.unlink()
    assert ask(AGENT).stdout == built.read_text()
    want = json.loads(subprocess.check_output(["meson", "introspect", "--installed", BUILD]))[str(built)]
    assert want.endswith("/" + INSTALLED[name])


def test_the_command_of_the_guide(tmp_path):
    subprocess.run(["sh", "-e", "-c", pages.block("deploy/guide/options.md", "print")], env=home(tmp_path), check=True, timeout=30)
    assert (tmp_path / ".local/share/bash-completion/completions/rdzv-agent").read_text() == (FOLDER / "rdzv-agent").read_text()


@pytest.mark.parametrize("program", PROGRAMS)
def test_offered_values_are_accepted(program):
    """Each value that a label names is one that the parser of its option accepts."""
    def accepts(name, value):
        words = ["--explain", f"{name}={value}", "--", "true"] if program == "rdzv-agent" else [f"{name}={value}", "--help"]
        p = subprocess.run([PROGRAMS[program], *words], capture_output=True, text=True, timeout=30)
        return not re.search(f"{name}={value}: (?!no GPU)", p.stderr)

    for name, want in re.findall(r"^    (--\S+).*\) want='(.*)' ;;$", (FOLDER / program).read_text(), re.M):
        words = [w for w in want.split() if not re.search("@|:$", w)]
        assert all(accepts(name, w) for w in words), (name, want)


@pytest.mark.parametrize("program", PROGRAMS)
def test_summaries(program):
    """A completion says in a line what an option is about: so its help begins with that."""
    found = re.findall(r" -l (\S+).* -d '(.*)'$", (FOLDER / f"{program}.fish").read_text(), re.M)
    assert len(found) > 8
    for name, text in found:
        assert len(text) >= 8 and ": " not in text, (name, text)


@pytest.mark.parametrize("program", PROGRAMS)
def test_shellcheck(program):
    need("shellcheck")
    p = subprocess.run(["shellcheck", "-s", "bash", FOLDER / program], capture_output=True, text=True, timeout=60)
    assert p.stdout == "", p.stdout
