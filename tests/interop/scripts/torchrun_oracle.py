# SPDX-License-Identifier: Apache-2.0
"""torchrun up to the moment where it would launch. It reads questions from stdin and writes answers to stdout, a line of JSON each:

    {"argv": [...], "env": {...}, "cwd": "..."}    what it would launch; null: it refuses. With "launch": true as torch.distributed.launch
    {"parser": true}                               its options (parsers.py)
    {"version": true}                              that of PyTorch
    {"substitute": [...], "local_rank": "0"}       the arguments with macros replaced
"""

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import parsers  # noqa: E402

import torch  # noqa: E402
from torch.distributed import launch, run  # noqa: E402
from torch.distributed.elastic.multiprocessing.api import to_map  # noqa: E402
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint  # noqa: E402
from torch.distributed.elastic.utils import macros  # noqa: E402

STATIC_PORT, PORT = 29500, 29400


class Launch(Exception):
    pass


def elastic_launch(config, entrypoint):
    def go(*args):
        raise Launch(config, entrypoint, list(args))

    return go


run.elastic_launch = elastic_launch


def place(config):
    """Where its nodes would meet: [host, port], or None for one machine alone."""
    if config.rdzv_endpoint == "localhost:0" or (config.rdzv_backend == "c10d" and not config.rdzv_endpoint and config.max_nodes == 1):
        return None
    return list(parse_rendezvous_endpoint(config.rdzv_endpoint, STATIC_PORT if config.rdzv_backend == "static" else PORT))


def told(config, entrypoint, args):
    logs, n = config.logs_specs, config.nproc_per_node
    streams = lambda value: {k: int(v) for k, v in to_map(value, n).items() if v}
    return {
        "nnodes": f"{config.min_nodes}:{config.max_nodes}", "nproc": n, "role": config.role, "max-restarts": config.max_restarts,
        "shutdown-timeout": config.shutdown_timeout, "signals": sorted({s.strip() for s in config.signals_to_handle.split(",")}),
        "virtual-local-rank": bool(config.virtual_local_rank), "numa-binding": config.numa_options.affinity_mode.value if config.numa_options else "none",
        "backend": config.rdzv_backend, "place": place(config), "run-id": config.run_id, "local-addr": config.local_addr or None, "conf": config.rdzv_configs,
        "redirects": streams(logs._redirects), "tee": streams(logs._tee), "local-ranks-filter": None if logs._local_ranks_filter is None else sorted(logs._local_ranks_filter),
        "duplicate-stdout-filters": config.duplicate_stdout_filters, "duplicate-stderr-filters": config.duplicate_stderr_filters,
        "log-line-prefix-template": config.log_line_prefix_template or None,
        "runpy": callable(entrypoint), "command": args if callable(entrypoint) else ["python3" if entrypoint == sys.executable else entrypoint, *args],
    }


def would_launch(argv, env, cwd, parse_args):
    before, run.parse_args = (dict(os.environ), run.parse_args), parse_args
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    try:
        with tempfile.TemporaryDirectory() as tmp:
            tempfile.tempdir = tmp  # of the log directories that it makes
            run.run(run.parse_args(argv))
    except Launch as done:
        return told(*done.args)
    except (SystemExit, ValueError, RuntimeError, AssertionError):
        return None
    finally:
        tempfile.tempdir = None
        os.environ.clear()
        os.environ.update(before[0])
        run.parse_args = before[1]
    raise AssertionError("torchrun did not come to the launch")


def answer(question):
    if "parser" in question:
        return parsers.describe(run.get_args_parser())
    if "version" in question:
        return torch.__version__
    if "substitute" in question:
        return macros.substitute(question["substitute"], question["local_rank"])
    sys.path.append(question["env"].get("PYTHONPATH", ""))
    try:
        return would_launch(question["argv"], question["env"], question["cwd"], launch.parse_args if question.get("launch") else run.parse_args)
    finally:
        sys.path.pop()


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what it prints is not an answer
    answers.write('"ready"\n')
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
