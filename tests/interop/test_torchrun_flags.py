# SPDX-License-Identifier: Apache-2.0
"""A command line of torchrun's, understood by rdzv-agent as torchrun understands it.

Each case is a command line and an environment. torchrun's own parser and what it makes of them (scripts/torchrun_oracle.py: torch.distributed.run, up to
the moment where it would launch) is compared field by field with what `rdzv-agent --explain` prints, for each installed version that has the flags. First
every flag with every value that is worth trying, in every spelling and by its variable; then hundreds of mixtures, from a fixed seed. The parsers of all
versions from 2.9 are in parsers.json: their options, abbreviations, variables and defaults are compared too.

What differs on purpose stands in the guide's table, and here only in the few lines that say so: the number of restarts and the job's
name where none is given, a store's port for one machine alone, and more that is accepted (maps for any local rank, blanks in lists).
"""

import json
import os
import random
import re
import shlex
import subprocess

import pytest

import parsers
from conftest import HERE, NEWEST, PYTHONS, QUIET, Peer
from harness import AGENT, TOP, need

# Nothing of the place where the tests run may decide what is compared.
CLEAN = {k: v for k, v in os.environ.items()
         if not k.startswith(("PET_", "RDZV_", "TORCH", "SLURM_", "PBS_", "PYTHON_EXEC", "JOB_ID", "LSB_", "SGE_"))}
CLEAN["OMP_NUM_THREADS"] = "1"
MIXTURES = 400


# ---- both sides ---------------------------------------------------------------------------------------------------------------------


class Oracle(Peer):
    """torchrun of one installed version."""

    script = HERE / "scripts/torchrun_oracle.py"

    def __init__(self, name):
        super().__init__(PYTHONS[name])
        self.name = name
        self.parser = self.ask(60, parser=True)
        self.flags = {n[2:] for o in self.parser for n in o["names"][:1] if n.startswith("--")}

    def launches(self, argv, env, **how):
        return self.ask(60, argv=[str(a) for a in argv], env={**CLEAN, **QUIET, **env}, cwd=os.getcwd(), **how)


@pytest.fixture(scope="module")
def oracles():
    found = {name: Oracle(name) for name in PYTHONS if PYTHONS[name]}
    yield found
    for o in found.values():
        o.close()


@pytest.fixture(params=PYTHONS)
def oracle(request, oracles):
    need(NEWEST, PYTHONS[request.param])
    return oracles[request.param]


def agent(argv, env, *before):
    return subprocess.run([AGENT, "--explain", *before, *map(str, argv)], env={**CLEAN, **env}, capture_output=True, text=True, timeout=20)


def explained(argv, env):
    done = agent(argv, env)
    assert done.returncode == 0, f"{argv} {env}: {done.stderr}"
    return dict(line.split("  # ")[0].split(" ", 1) for line in done.stdout.splitlines())


def word(text):
    """A value in shell quotes, or - for none."""
    return None if text == "-" else shlex.split(text)[0]


def words(text):
    return [] if text == "-" else shlex.split(text)


def numbers(text):
    return {} if text in ("-", "0") else dict(pair.split(":") for pair in text.split(","))


# ---- the comparison -----------------------------------------------------------------------------------------------------------------


def compare_place(theirs, ours, given):
    several = not theirs["nnodes"].endswith(":1")
    if theirs["place"] and not several and theirs["backend"] == "static" and "rdzv-endpoint" not in given:
        # --master-port with one node: nobody is to be met, and MASTER_PORT is what was asked for.
        assert ours["endpoint"] == "standalone" and int(ours["store-port"]) == theirs["place"][1]
    elif not theirs["place"]:
        assert ours["endpoint"] == "standalone" and ours["store-port"] == "0"
    else:
        host, port = theirs["place"]
        assert ours["endpoint"] == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}") and ours["store-port"] == "0"
    alone = ours["endpoint"] == "standalone"
    if theirs["backend"] == "static" and not alone:
        assert ours["node-rank"] == (str(theirs["conf"]["rank"]) if "node-rank" in given else "-")
    elif theirs["backend"] != "static":
        assert ours["node-rank"] == "-" or (alone and ours["node-rank"] == "0")
    if "standalone" in given and given["standalone"]:
        assert word(ours["job"]).startswith("alone-") and re.fullmatch(r"[0-9a-f-]{36}", theirs["run-id"])
    elif given.get("rdzv-id"):
        assert word(ours["job"]) == given["rdzv-id"]
        assert theirs["run-id"] == given["rdzv-id"] or not theirs["place"]
    assert word(ours["local-addr"]) == theirs["local-addr"]


def compare_conf(theirs, ours, given):
    conf = theirs["conf"]
    # How long a node of --rdzv-backend static waits for the others. 900 is what LaunchConfig puts in where nothing is said.
    timeout = conf["timeout"] if given.get("rdzv-backend") != "c10d" and conf["timeout"] != 900 else 600
    assert float(ours["join-timeout"]) == float(conf.get("join_timeout", timeout))
    assert float(ours["last-call"]) == float(conf.get("last_call_timeout", 30))
    hosts = {"1": "always", "true": "always", "0": "never", "no": "never"}.get(str(conf.get("is_host", "")).lower(), "auto")
    assert ours["starts-rdzvd"] == hosts
    if "keep_alive_interval" in conf or "keep_alive_max_attempt" in conf:
        assert float(ours["lease"]) == int(conf.get("keep_alive_interval", 5)) * int(conf.get("keep_alive_max_attempt", 3))


def compare_output(theirs, ours):
    for name in ("redirects", "tee"):
        assert numbers(ours[name]) == {k: str(v) for k, v in theirs[name].items()}, name
    shown = None if ours["local-ranks-filter"] == "-" else sorted(int(r) for r in ours["local-ranks-filter"].split(","))
    assert shown == theirs["local-ranks-filter"]
    for name in ("duplicate-stdout-filters", "duplicate-stderr-filters"):
        assert words(ours[name]) == theirs[name], name
    assert word(ours["log-line-prefix-template"]) == theirs["log-line-prefix-template"]


def compare_command(theirs, ours, env):
    got = words(ours["command"])
    if theirs["runpy"]:
        assert got[0] == env.get("PYTHON_EXEC", "python3") and got[1:3] == ["-u", "-c"]
        assert "runpy.run_path" in got[3] and got[4:] == theirs["command"]
    else:
        assert got == theirs["command"]


def compare(argv, env, given, oracles):
    """With each version that has the flags. `given`: the flags that are set, by their long names, for what differs where they are not."""
    ours = explained(argv, env)
    for o in oracles.values():
        if not set(given) <= o.flags:
            continue
        theirs = o.launches(argv, env)
        assert theirs, f"torchrun of {o.name} refuses {argv} {env}"
        try:
            assert ours["nnodes"] == theirs["nnodes"]
            assert int(ours["nproc"]) == theirs["nproc"]
            assert word(ours["role"]) == theirs["role"]
            assert int(ours["max-restarts"]) == (theirs["max-restarts"] if "max-restarts" in given else 3)
            assert float(ours["stop-timeout"]) == theirs["shutdown-timeout"]
            assert sorted(ours["signals-to-handle"].split(",")) == theirs["signals"]
            assert ours["virtual-local-rank"] == ("yes" if theirs["virtual-local-rank"] else "no")
            assert ours["numa-binding"] == theirs["numa-binding"]
            compare_place(theirs, ours, given)
            compare_conf(theirs, ours, given)
            compare_output(theirs, ours)
            compare_command(theirs, ours, env)
        except AssertionError as e:
            raise AssertionError(f"{shlex.join(map(str, argv))}\nwith {env}\n{e}\nours: {ours}\n{o.name}: {theirs}") from e


# ---- what is tried ------------------------------------------------------------------------------------------------------------------

# Every flag, values that mean something, and what else must be said for it to be valid.
HERE = {}
THERE = {"nnodes": "2", "rdzv-endpoint": "node1:29401"}
MASTER = {"nnodes": "2", "master-addr": "node1"}
FLAGS = {
    "nnodes": (["1", "2", "1:2", "2:4"], {"rdzv-endpoint": "node1:29401"}),
    "nproc-per-node": (["1", "2", "8", "cpu", "auto"], HERE),
    "rdzv-backend": (["static", "c10d"], THERE),
    "rdzv-endpoint": (["node1:29401", "localhost:29400", "10.0.0.1:5", "[::1]:29402", "node_1.example.org:7"], {"nnodes": "2"}),
    "rdzv-id": (["job1", "none", "a-b_c.d"], THERE),
    "rdzv-conf": (["join_timeout=60", "last_call_timeout=7,join_timeout=61", "is_host=1", "is_host=True", "is_host=0", "is_host=no",
                   "keep_alive_interval=2,keep_alive_max_attempt=4", "keep_alive_interval=3", "timeout=77", "close_timeout=3,read_timeout=5",
                   " join_timeout = 62 , heartbeat_timeout=3", "unknown=1", ""], {**THERE, "rdzv-backend": "c10d"}),
    "standalone": ([True], HERE),
    "max-restarts": (["0", "1", "100"], HERE),
    "monitor-interval": (["0.1", "5", "1e-2"], HERE),
    "start-method": (["spawn", "fork", "forkserver"], HERE),
    "event-log-handler": (["null", "console", "mine"], HERE),
    "role": (["default", "trainer", ""], HERE),
    "module": ([True], HERE),
    "no-python": ([True], HERE),
    "run-path": ([True], HERE),
    "log-dir": (["logs", "/dev/null", ""], HERE),
    "redirects": (["0", "1", "2", "3", "0:1", "0:3,1:1,7:2", "1:0"], {"nproc-per-node": "8"}),
    "tee": (["0", "1", "2", "3", "0:1", "0:3,1:1,7:2", "1:0"], {"nproc-per-node": "8"}),
    "log-line-prefix-template": (["${hostname}:${rank}: ", "[${role_name}${local_rank}]", "$$ $rank", ""], HERE),
    "local-ranks-filter": (["0", "0,1", "3,1", "0, 2", ""], {"nproc-per-node": "4"}),
    "duplicate-stdout-filters": (["apple", "apple,orange", "a,,b,c", "a b", "", ",", "x,,,y"], HERE),
    "duplicate-stderr-filters": (["apple", "apple,orange", "a,,b,c"], HERE),
    "node-rank": (["0", "1"], MASTER),
    "master-addr": (["node1", "10.0.0.1", "[::1]", "localhost"], {"nnodes": "2"}),
    "master-port": (["29501", "1"], {**MASTER, "rdzv-backend": "static"}),
    "local-addr": (["10.0.0.7", "node7", "fd00::7"], THERE),
    "numa-binding": (["node", "socket", "exclusive", "core-complex"], HERE),
    "signals-to-handle": (["SIGTERM", "SIGTERM,SIGUSR1,SIGUSR2", "SIGINT, SIGTERM"], HERE),
    "shutdown-timeout": (["0", "5", "300"], HERE),
    "virtual-local-rank": ([True], HERE),
}
NO_VARIABLE = {"logs-specs", "numa-binding"}
SHORT = {"module": "-m", "redirects": "-r", "tee": "-t"}


def option(name, value, how):
    """The words that say it: how is dash, underscore, dash=, underscore=, short, glued."""
    if how in ("short", "glued") and name in SHORT:
        if value is True:
            return [SHORT[name]]
        return [SHORT[name] + value] if how == "glued" and value else [SHORT[name], value]
    spelt = "--" + (name.replace("-", "_") if how.startswith("underscore") else name)
    if value is True:
        return [spelt]
    return [f"{spelt}={value}"] if how.endswith("=") else [spelt, value]


def variable(name, value):
    return {"PET_" + name.replace("-", "_").upper(): "1" if value is True else value}


def every_spelling(name, value):
    for how in ("dash", "underscore", "dash=", "underscore=", *(["short", "glued"] if name in SHORT else [])):
        yield option(name, value, how), {}
    if name not in NO_VARIABLE:
        yield [], variable(name, value)


RECORDED = parsers.recorded()
OPTIONS = {}  # name -> each form that it has had
for options in RECORDED.values():
    for o in options:
        OPTIONS.setdefault(o["names"][-1 if len(o["names"][0]) == 2 else 0].lstrip("-"), []).append(o)
POSITIONAL = {"training_script", "training_script_args"}
# Defaults of ours that are not theirs; the guide has the reasons. --shutdown-timeout has theirs, from another place (LaunchConfig).
OWN_DEFAULTS = {"max-restarts": "3", "node-rank": "-", "numa-binding": "none", "shutdown-timeout": "30"}
# What --explain calls it; None: it is part of another line, or has no effect.
LINES = {"nproc-per-node": "nproc", "shutdown-timeout": "stop-timeout", "rdzv-endpoint": "endpoint", "rdzv-id": None, "rdzv-conf": None, "rdzv-backend": None, "module": None,
         "no-python": None, "run-path": None, "standalone": None, "master-addr": None, "master-port": None, "monitor-interval": None, "start-method": None,
         "event-log-handler": None, "logs-specs": None}


def shown_default(name, theirs):
    words = {"rdzv-endpoint": "standalone", "redirects": "-", "tee": "-"}
    plain = "-" if theirs in (None, "", []) else "no" if theirs is False else str(theirs)
    return OWN_DEFAULTS.get(name, words.get(name, plain))


def test_no_flag_is_left_out():
    """What the recorded parsers know is what is tried here, what the guide's table is made of, and what rdzv-agent knows."""
    assert {"2.9.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0"} <= set(RECORDED)
    flags = set(OPTIONS) - POSITIONAL - {"help"}
    assert set(FLAGS) | {"logs-specs", "print-completion"} == flags
    listed = re.findall(r'\bX\(\s*"([a-z_-]+)",', (TOP / "agent/options/torch_flags.h").read_text())
    assert set(listed) == flags | {"training_script"} and len(listed) == len(set(listed))
    text = subprocess.run([AGENT, "--help"], capture_output=True, text=True, check=True).stdout
    assert [f for f in sorted(flags) if not re.search(rf"--{f}\b", text)] == []


def test_the_record_is_the_installed_parser(oracle):
    """Which shells --print-completion knows depends on the installed shtab."""
    version = re.match(r"[\d.]+", oracle.ask(version=True))[0]
    plain = lambda options: [{**o, "choices": None} if "--print-completion" in o["names"] else o for o in options]
    by_name = lambda options: sorted(plain(json.loads(json.dumps(options))), key=lambda o: o["names"])
    assert version in RECORDED, f"record it: {parsers.__doc__}"
    assert by_name(oracle.parser) == by_name(RECORDED[version])


@pytest.mark.parametrize("name", FLAGS)
def test_one_flag(name, oracles, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    values, needs = FLAGS[name]
    for value in values:
        needed = [w for n, v in needs.items() if n != name for w in option(n, v, "dash")]
        for argv, env in every_spelling(name, value):
            compare([*needed, *argv, "train.py", "a", "--lr", "3"], env, {**needs, name: value}, oracles)


def answers(argv, env, spelt, name):
    """What --explain prints, whatever the option was called."""
    done = agent(argv, env)
    plain = re.sub("  # .*|(?<=alone-)[0-9a-f]+", "", done.stdout)  # without sources, and the random name
    return done.returncode, plain, done.stderr.replace(f"{spelt} ", f"{name} ")


@pytest.mark.parametrize("name", sorted(set(OPTIONS) - POSITIONAL - {"help", "print-completion"}))
def test_of_every_version(name, monkeypatch, tmp_path):
    """Each name, abbreviation and variable that a version from 2.9 on accepts does what the whole name does, and each default is ours, but for OWN_DEFAULTS."""
    monkeypatch.chdir(tmp_path)
    values, needs = FLAGS.get(name, (["default"], HERE))
    value = values[-1 if name == "rdzv-backend" else 0]
    needed = [w for n, v in needs.items() if n != name for w in option(n, v, "dash")]
    whole = f"--{name}"
    behind = [*([] if value is True else [value]), "train.py"]
    want = answers([*needed, whole, *behind], {}, whole, whole)
    assert want[0] == 0 or name == "logs-specs", want
    abbreviations = set()
    for options in RECORDED.values():
        parser = parsers.rebuild(options)
        ((whole_names, variable),) = [(o["names"], o["variable"]) for o in options if whole in o["names"]] or [([], None)]
        abbreviations |= {n[:i] for n in whole_names for i in range(2, len(n) + 1) if parsers.find(parser, n[:i]) == whole_names[0]}
        if variable and whole_names:
            code, out, err = answers([*needed, "train.py"], {variable: "1" if value is True else value}, variable, whole)
            assert (code, out) == want[:2], (variable, err)
    assert len(abbreviations) > 2 or name == "role"
    for spelt in sorted(abbreviations):
        assert answers([*needed, spelt, *behind], {}, spelt, whole) == want, spelt
    if LINES.get(name, name):
        ours = explained(["train.py"], {})[LINES.get(name, name)].strip("'")
        assert {",".join(sorted(shown_default(name, o["default"]).split(","))) for o in OPTIONS[name]} == {",".join(sorted(ours.split(",")))}


def mixture(rng):
    """A valid command line of many flags: (argv, env, what is given)."""
    given = {}
    for name in rng.sample(sorted(FLAGS), rng.randint(0, 12)):
        given[name] = rng.choice(FLAGS[name][0])
    if rng.random() < 0.8:
        given.pop("standalone", None)
    if given.get("standalone") and not given.get("nnodes", "1").startswith("1"):
        del given["nnodes"]
    if "node-rank" in given and given.get("nnodes", "1") in ("1", "1:2") and given["node-rank"] != "0":
        given["nnodes"] = "2"
        given.pop("standalone", None)
    many = given.get("nnodes", "1") != "1" and not given.get("standalone")
    c10d = given.get("rdzv-backend") == "c10d"
    if many and "rdzv-endpoint" not in given and (c10d or "master-addr" not in given):
        given["rdzv-endpoint"] = rng.choice(FLAGS["rdzv-endpoint"][0])
    if "module" in given and "no-python" in given:
        del given["no-python"]
    if given.get("standalone") and given.get("nnodes") == "1:2":
        given["nnodes"] = "1"  # with 1:2 torchrun waits --last-call for a second node that cannot come; here it is one
    argv, env = [], {}
    for name in rng.sample(sorted(given), len(given)):
        if name not in NO_VARIABLE and rng.random() < 0.3:
            env.update(variable(name, given[name]))
            if rng.random() < 0.3 and given[name] is not True:  # the command line wins
                env.update(variable(name, rng.choice(FLAGS[name][0])))
                argv += option(name, given[name], "dash")
        else:
            argv += option(name, given[name], rng.choice(["dash", "underscore", "dash=", "underscore=", "short", "glued"]))
    if rng.random() < 0.3:
        env["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "11"
    if rng.random() < 0.2:
        env["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "[${role_name} ${rank}]"
    if rng.random() < 0.2:
        env["PYTHON_EXEC"] = "/opt/python"
    env.update(rng.choice([{}, {"PET_UNKNOWN": "x"}, {"PET_LOGS_SPECS": "x", "PET_NUMA_BINDING": "y"}]))
    argv += rng.choice([[], [], ["--"]]) + ["dir/train.py"]
    argv += rng.choice([[], ["a", "--nnodes", "9"], ["-m", "", "it's"], ["--", "x"], ["x", "--", "y"]])
    return argv, env, given


@pytest.mark.parametrize("part", range(8))
def test_mixtures(part, oracles, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(20260 + part)
    for _ in range(MIXTURES // 8):
        compare(*mixture(rng), oracles)


@pytest.mark.parametrize("argv, env", [
    (["--nnodes", "0", "x.py"], {}),
    (["--nnodes", "2:1", "x.py"], {}),
    (["--nnodes", "1:2:3", "x.py"], {}),
    (["--nnodes", "two", "x.py"], {}),
    (["--nproc-per-node", "two", "x.py"], {}),
    (["--nproc-per-node", "gpu", "x.py"], {"CUDA_VISIBLE_DEVICES": ""}),
    (["--nproc-per-node", "xpu", "x.py"], {}),
    (["--max-restarts", "-1", "x.py"], {}),
    (["--max-restarts", "1.5", "x.py"], {}),
    (["--monitor-interval", "often", "x.py"], {}),
    (["--start-method", "thread", "x.py"], {}),
    (["--redirects", "4", "x.py"], {}),
    (["-t", "0:4", "x.py"], {}),
    (["-r", "0:1,", "x.py"], {}),
    (["-r", "", "x.py"], {}),
    (["--local-ranks-filter", "0,x", "x.py"], {}),
    (["--numa-binding", "near", "x.py"], {}),
    (["--shutdown-timeout", "-3", "x.py"], {}),
    (["--shutdown-timeout", "soon", "x.py"], {}),
    (["--master-port", "x", "x.py"], {}),
    (["--node-rank", "x", "x.py"], {}),
    (["--rdzv-conf", "join_timeout", "x.py"], {}),
    (["--rdzv-conf", "=1", "x.py"], {}),
    (["--logs-specs", "no_such_specs", "x.py"], {}),
    (["--logs_specs=", "x.py"], {}),
    (["--no-python", "-m", "x.py"], {}),
    (["-m"], {}),
    (["--run-path"], {}),
    (["--frobnicate", "x.py"], {}),
    (["-z", "x.py"], {}),
    (["--rdzv", "x", "x.py"], {}),
    (["x.py"], {"PET_NNODES": "two"}),
    (["x.py"], {"PET_MAX_RESTARTS": ""}),
    (["x.py"], {"PET_STANDALONE": "maybe"}),
    (["x.py"], {"PET_STANDALONE": ""}),
    (["x.py"], {"PET_TEE": "5"}),
    (["x.py"], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "soon"}),
], ids=lambda v: " ".join(v) if isinstance(v, list) else ",".join(f"{k}={w}" for k, w in v.items()))
def test_refused_by_all(argv, env, oracles, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert [name for name, o in oracles.items() if o.launches(argv, env)] == []
    done = agent(argv, env)
    assert done.returncode == 64 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done


def test_the_prefix_of_lines(rdzv):
    """--log-line-prefix-template, where torchrun has it: the same lines, with every name, a dollar, and what is no name."""
    oracle = PYTHONS["newest-pytorch"]
    need(NEWEST, oracle)
    words = ["--standalone", "--nproc-per-node", 2, "--role", "trainer", "--tee", 3, "--log-line-prefix-template",
             "${hostname}|$role_name|${local_rank}|$rank|$$|${other}|$| ", "--no-python", "sh", "-c", "echo out; echo err >&2"]
    theirs = rdzv.spawn(oracle, "-m", "torch.distributed.run", *words, env=QUIET)
    ours = rdzv.spawn(AGENT, *words)
    assert theirs.exit(60) == 0 and ours.exit(60) == 0, rdzv
    lines = lambda stream: sorted(l for l in stream if "|trainer|" in l)
    assert lines(ours.out) == lines(theirs.out) and len(lines(ours.out)) == 2
    assert lines(ours.err) == lines(theirs.err) and len(lines(ours.err)) == 2


def test_local_rank_in_arguments(oracle):
    """What both put in place of it; rdzv-agent leaves what is the shell's alone."""
    args = ["--local-rank=${local_rank}", "${local_rank}${local_rank}", "${other}", "plain"]
    done = subprocess.run([AGENT, "--nproc", "1", "--quiet", "--no-python", "echo", *args], env=CLEAN, capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == oracle.ask(substitute=args, local_rank="0"), done


@pytest.mark.parametrize("conf", ["timeout=5'", "join_timeout=62,timeout=soon", "rank=first", "timeout=0"])
def test_a_value_without_effect(conf, oracles, monkeypatch, tmp_path):
    """With --rdzv-backend c10d torchrun never looks at the value of timeout or rank."""
    monkeypatch.chdir(tmp_path)
    for needs in (THERE, HERE):
        given = {**needs, "rdzv-backend": "c10d", "rdzv-conf": conf}
        compare([*(w for n, v in given.items() for w in option(n, v, "dash")), "train.py"], {}, given, oracles)
    key = conf.split(",")[-1].split("=")[0]
    done = agent(["--rdzv-backend", "c10d", "--rdzv-conf", conf, "train.py"], {})
    assert f"--rdzv-conf {key} has no effect: it applies to --rdzv-backend static" in done.stderr, done
    refused = agent(["--nnodes", "2", "--rdzv-backend", "static", "--rdzv-endpoint", "node1:1", "--rdzv-conf", conf, "train.py"], {})
    assert refused.returncode == 64 and key in refused.stderr and len(refused.stderr.splitlines()) == 1, refused


def test_logs_specs_of_an_installed_package(oracle, monkeypatch, tmp_path):
    """Python's own list of entry points decides, as for torchrun."""
    monkeypatch.chdir(tmp_path)
    info = tmp_path / "specs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchrun.logs_specs]\nmine = torch.distributed.elastic.multiprocessing:DefaultLogsSpecs\n")
    env = {"PYTHONPATH": str(tmp_path)}
    assert oracle.launches(["--logs-specs", "mine", "x.py"], env)
    done = agent(["--logs-specs", "mine", "x.py"], env)
    assert done.returncode == 0 and "--logs-specs has no effect" in done.stderr, done
    assert "no package of python3 has" in agent(["--logs-specs", "other", "x.py"], env).stderr


@pytest.mark.parametrize("words", [
    ["x.py", "a"], ["x.py"], ["-m", "pkg.mod", "--lr", "3"], ["--run-path", "x.py", "a"], ["x.py", "--", "a"], ["--nproc-per-node", "2", "x.py", "a"],
])
def test_pass_local_rank(words, oracle, monkeypatch, tmp_path):
    """--pass-local-rank is torch.distributed.launch; --use-env is understood by both."""
    monkeypatch.chdir(tmp_path)
    for ours, theirs in ((["--pass-local-rank"], []), (["--use-env"], ["--use-env"]), (["--use_env"], ["--use_env"]), ([], ["--use-env"])):
        compare_command(oracle.launches([*theirs, *words], {}, launch=True), explained([*ours, *words], {}), {})
    for refused in (["--pass-local-rank", "--use-env"], ["--pass-local-rank", "--no-python"]):
        assert agent([*refused, "x.py"], {}).returncode == 64
    done = agent(["--pass-local-rank", "python3", "old.py"], {})
    assert done.returncode == 64 and "--local-rank=${local_rank}" in done.stderr, done
