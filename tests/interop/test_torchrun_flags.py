# SPDX-License-Identifier: Apache-2.0
"""A command line of torchrun's, understood by rdzv-agent as torchrun understands it.

Each case is a command line and an environment. torchrun's own parser and what it makes of them (torch.distributed.run, up to the moment
where it would launch) is compared field by field with what `rdzv-agent --explain` prints. First every flag with every value that is
worth trying, in every spelling and by its variable; then hundreds of mixtures, from a fixed seed.

What differs on purpose stands in the guide's table, and here only in the few lines that say so: the number of restarts and the job's
name where none is given, a store's port for one machine alone, and more that is accepted (maps for any local rank, blanks in lists).
"""

import contextlib
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

run = pytest.importorskip("torch.distributed.run", reason="torch is not installed")
from torch.distributed.elastic.multiprocessing.api import to_map  # noqa: E402
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint  # noqa: E402

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("RDZV_BUILD", TOP / "build")).resolve()
AGENT = str(BUILD / "agent/rdzv-agent")
# Nothing of the place where the tests run may decide what is compared.
CLEAN = {k: v for k, v in os.environ.items()
         if not k.startswith(("PET_", "RDZV_", "TORCH", "SLURM_", "PBS_", "PYTHON_EXEC", "JOB_ID", "LSB_", "SGE_"))}
CLEAN["OMP_NUM_THREADS"] = "1"
MIXTURES = 400


# ---- both sides ---------------------------------------------------------------------------------------------------------------------


class Launch(Exception):
    pass


@contextlib.contextmanager
def environment(env):
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(CLEAN, **env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def torchrun(argv, env, monkeypatch):
    """What torchrun would launch: (config, command); None where it refuses."""

    def elastic_launch(config, entrypoint):
        def launch(*args):
            raise Launch(config, entrypoint, list(args))

        return launch

    monkeypatch.setattr(run, "elastic_launch", elastic_launch)
    with environment(env), tempfile.TemporaryDirectory() as tmp:
        os.environ["TMPDIR"] = tempfile.tempdir = tmp  # of the log directories that it makes
        try:
            run.run(run.parse_args([str(a) for a in argv]))
        except Launch as done:
            config, entrypoint, args = done.args
            return config, [entrypoint, *args]
        except (SystemExit, ValueError, RuntimeError, AssertionError) as e:
            return None if not isinstance(e, Launch) else pytest.fail(str(e))
        finally:
            tempfile.tempdir = None
    raise AssertionError("torchrun did not come to the launch")


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
    return {} if text in ("-", "0") else {int(k): int(v) for k, v in (pair.split(":") for pair in text.split(","))}


# ---- the comparison -----------------------------------------------------------------------------------------------------------------


def place(config):
    """Where torchrun's nodes would meet: "standalone", or host and port."""
    if config.rdzv_endpoint == "localhost:0" or (config.rdzv_backend == "c10d" and not config.rdzv_endpoint and config.max_nodes == 1):
        return "standalone", None
    host, port = parse_rendezvous_endpoint(config.rdzv_endpoint, 29500 if config.rdzv_backend == "static" else 29400)
    return host, port


def compare_place(config, ours, given):
    host, port = place(config)
    if host != "standalone" and config.max_nodes == 1 and config.rdzv_backend == "static" and "rdzv-endpoint" not in given:
        # --master-port with one node: nobody is to be met, and MASTER_PORT is what was asked for.
        assert ours["endpoint"] == "standalone" and int(ours["store-port"]) == port
    elif host == "standalone":
        assert ours["endpoint"] == "standalone" and ours["store-port"] == "0"
    else:
        assert ours["endpoint"] == (f"[{host}]:{port}" if ":" in host else f"{host}:{port}") and ours["store-port"] == "0"
    alone = ours["endpoint"] == "standalone"
    if config.rdzv_backend == "static" and not alone:
        assert ours["node-rank"] == (str(config.rdzv_configs["rank"]) if "node-rank" in given else "-")
    elif config.rdzv_backend != "static":
        assert ours["node-rank"] == "-" or (alone and ours["node-rank"] == "0")
    if "standalone" in given and given["standalone"]:
        assert word(ours["job"]).startswith("alone-") and re.fullmatch(r"[0-9a-f-]{36}", config.run_id)
    elif given.get("rdzv-id"):
        assert word(ours["job"]) == given["rdzv-id"]
        assert config.run_id == given["rdzv-id"] or host == "standalone"
    assert word(ours["local-addr"]) == (config.local_addr or None)


def compare_conf(config, ours, given):
    conf = config.rdzv_configs
    # How long a node of --rdzv-backend static waits for the others. 900 is what LaunchConfig puts in where nothing is said.
    timeout = conf["timeout"] if given.get("rdzv-backend") != "c10d" and conf["timeout"] != 900 else 600
    assert float(ours["join-timeout"]) == float(conf.get("join_timeout", timeout))
    assert float(ours["last-call"]) == float(conf.get("last_call_timeout", 30))
    hosts = {"1": "always", "true": "always", "0": "never", "no": "never"}.get(str(conf.get("is_host", "")).lower(), "auto")
    assert ours["starts-rdzvd"] == hosts
    if "keep_alive_interval" in conf or "keep_alive_max_attempt" in conf:
        assert float(ours["lease"]) == int(conf.get("keep_alive_interval", 5)) * int(conf.get("keep_alive_max_attempt", 3))


def compare_output(config, ours):
    logs, n = config.logs_specs, config.nproc_per_node
    for name, value in (("redirects", logs._redirects), ("tee", logs._tee)):
        assert numbers(ours[name]) == {k: int(v) for k, v in to_map(value, n).items() if v}, name
    shown = None if ours["local-ranks-filter"] == "-" else {int(r) for r in ours["local-ranks-filter"].split(",")}
    assert shown == logs._local_ranks_filter
    assert words(ours["duplicate-stdout-filters"]) == config.duplicate_stdout_filters
    assert words(ours["duplicate-stderr-filters"]) == config.duplicate_stderr_filters
    assert word(ours["log-line-prefix"]) == config.log_line_prefix_template


def compare_command(command, ours, env):
    got = words(ours["command"])
    if callable(command[0]):
        assert got[0] == env.get("PYTHON_EXEC", "python3") and got[1:3] == ["-u", "-c"]
        assert "runpy.run_path" in got[3] and got[4:] == command[1:]
    else:
        assert got == ["python3" if w == sys.executable and i == 0 else w for i, w in enumerate(command)]


def compare(argv, env, given, monkeypatch):
    """`given`: the flags that are set, by their long names, for what differs where they are not."""
    theirs = torchrun(argv, env, monkeypatch)
    assert theirs, f"torchrun refuses {argv} {env}"
    config, command = theirs
    ours = explained(argv, env)
    try:
        assert ours["nnodes"] == f"{config.min_nodes}:{config.max_nodes}"
        assert int(ours["nproc"]) == config.nproc_per_node
        assert word(ours["role"]) == config.role
        assert int(ours["max-restarts"]) == (config.max_restarts if "max-restarts" in given else 3)
        assert float(ours["stop-timeout"]) == config.shutdown_timeout
        assert set(ours["signals-to-handle"].split(",")) == {s.strip() for s in config.signals_to_handle.split(",")}
        assert ours["virtual-local-rank"] == ("yes" if config.virtual_local_rank else "no")
        assert ours["numa-binding"] == (config.numa_options.affinity_mode.value if config.numa_options else "none")
        compare_place(config, ours, given)
        compare_conf(config, ours, given)
        compare_output(config, ours)
        compare_command(command, ours, env)
    except AssertionError as e:
        raise AssertionError(f"{shlex.join(map(str, argv))}\nwith {env}\n{e}\nours: {ours}\ntheirs: {config}, {command}") from e


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


def parser_flags():
    """Long name -> action, of torchrun's own parser."""
    found = {}
    for action in run.get_args_parser()._actions:
        longs = [s for s in action.option_strings if s.startswith("--")]
        if longs and longs[0] != "--help":
            found[longs[0][2:]] = action
    return found


def test_no_flag_is_left_out():
    """What torchrun's parser knows is what is tried here, what the guide's table is made of, and what rdzv-agent knows."""
    flags = set(parser_flags())
    assert set(FLAGS) | {"logs-specs"} == flags
    listed = re.findall(r'\bX\(\s*"([a-z_-]+)",', (TOP / "agent/options/torch_flags.h").read_text())
    assert set(listed) == flags | {"training_script"} and len(listed) == len(set(listed))
    text = subprocess.run([AGENT, "--help"], capture_output=True, text=True, check=True).stdout
    assert [f for f in sorted(flags) if not re.search(rf"--{f}\b", text)] == []


@pytest.mark.parametrize("name", FLAGS)
def test_one_flag(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    values, needs = FLAGS[name]
    for value in values:
        needed = [w for n, v in needs.items() if n != name for w in option(n, v, "dash")]
        for argv, env in every_spelling(name, value):
            compare([*needed, *argv, "train.py", "a", "--lr", "3"], env, {**needs, name: value}, monkeypatch)


@pytest.mark.parametrize("name", FLAGS)
def test_abbreviated(name, monkeypatch, tmp_path):
    """Where torchrun takes the beginning of a name, so does rdzv-agent."""
    monkeypatch.chdir(tmp_path)
    values, needs = FLAGS[name]
    value = values[0]
    needed = [w for n, v in needs.items() if n != name for w in option(n, v, "dash")]
    taken = 0
    for spelt in {name, name.replace("-", "_")}:
        for n in range(1, len(spelt)):
            argv = [*needed, "--" + spelt[:n], *([] if value is True else [value]), "train.py"]
            if torchrun(argv, {}, monkeypatch):
                taken += 1
                compare(argv, {}, {**needs, name: value}, monkeypatch)
    assert taken or len(name) < 4


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
def test_mixtures(part, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(20260 + part)
    for _ in range(MIXTURES // 8):
        compare(*mixture(rng), monkeypatch)


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
def test_refused_by_both(argv, env, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert torchrun(argv, env, monkeypatch) is None
    done = agent(argv, env)
    assert done.returncode == 64 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done


def test_local_rank_in_arguments():
    """What both put in place of it; rdzv-agent leaves what is the shell's alone."""
    from torch.distributed.elastic.utils import macros

    args = ["--local-rank=${local_rank}", "${local_rank}${local_rank}", "${other}", "plain"]
    done = subprocess.run([AGENT, "--nproc", "1", "--quiet", "--no-python", "echo", *args], env=CLEAN, capture_output=True, text=True, timeout=30)
    assert done.stdout.split() == macros.substitute(args, "0"), done


@pytest.mark.parametrize("conf", ["timeout=5'", "join_timeout=62,timeout=soon", "rank=first", "timeout=0"])
def test_a_value_without_effect(conf, monkeypatch, tmp_path):
    """With --rdzv-backend c10d torchrun never looks at the value of timeout or rank."""
    monkeypatch.chdir(tmp_path)
    for needs in (THERE, HERE):
        given = {**needs, "rdzv-backend": "c10d", "rdzv-conf": conf}
        compare([*(w for n, v in given.items() for w in option(n, v, "dash")), "train.py"], {}, given, monkeypatch)
    key = conf.split(",")[-1].split("=")[0]
    done = agent(["--rdzv-backend", "c10d", "--rdzv-conf", conf, "train.py"], {})
    assert f"--rdzv-conf {key} has no effect: it applies to --rdzv-backend static" in done.stderr, done
    refused = agent(["--nnodes", "2", "--rdzv-backend", "static", "--rdzv-endpoint", "node1:1", "--rdzv-conf", conf, "train.py"], {})
    assert refused.returncode == 64 and key in refused.stderr and len(refused.stderr.splitlines()) == 1, refused


def test_logs_specs_of_an_installed_package(monkeypatch, tmp_path):
    """Python's own list of entry points decides, as for torchrun."""
    monkeypatch.chdir(tmp_path)
    info = tmp_path / "specs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: specs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchrun.logs_specs]\nmine = torch.distributed.elastic.multiprocessing:DefaultLogsSpecs\n")
    env = {"PYTHONPATH": str(tmp_path)}
    monkeypatch.syspath_prepend(str(tmp_path))
    assert torchrun(["--logs-specs", "mine", "x.py"], env, monkeypatch)
    done = agent(["--logs-specs", "mine", "x.py"], env)
    assert done.returncode == 0 and "--logs-specs has no effect" in done.stderr, done
    assert "no package of python3 has" in agent(["--logs-specs", "other", "x.py"], env).stderr


@pytest.mark.parametrize("words", [
    ["x.py", "a"], ["x.py"], ["-m", "pkg.mod", "--lr", "3"], ["--run-path", "x.py", "a"], ["x.py", "--", "a"], ["--nproc-per-node", "2", "x.py", "a"],
])
def test_pass_local_rank(words, monkeypatch, tmp_path):
    """--pass-local-rank is torch.distributed.launch; --use-env is understood by both."""
    launch = pytest.importorskip("torch.distributed.launch")
    monkeypatch.chdir(tmp_path)

    def launched(argv):
        with monkeypatch.context() as m:
            m.setattr(run, "parse_args", launch.parse_args)
            return torchrun(argv, {}, m)[1]

    for ours, theirs in ((["--pass-local-rank"], []), (["--use-env"], ["--use-env"]), (["--use_env"], ["--use_env"]), ([], ["--use-env"])):
        compare_command(launched([*theirs, *words]), explained([*ours, *words], {}), {})
    for refused in (["--pass-local-rank", "--use-env"], ["--pass-local-rank", "--no-python"]):
        assert agent([*refused, "x.py"], {}).returncode == 64
    done = agent(["--pass-local-rank", "python3", "old.py"], {})
    assert done.returncode == 64 and "--local-rank=${local_rank}" in done.stderr, done
