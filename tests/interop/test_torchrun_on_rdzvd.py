# SPDX-License-Identifier: Apache-2.0
"""Stock torchrun that meets at rdzvd: --rdzv-backend c10d with is_host=0, which makes every agent of it a client."""

from conftest import EVERY_PYTORCH, HERE, QUIET

pytestmark = EVERY_PYTORCH
TORCHRUN = ["-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1, "--rdzv-backend", "c10d", "--rdzv-conf", "is_host=0"]


def pair(pytorch, rdzv, d, run, *args, fail="", **kw):
    out = rdzv.tmp / "out"
    out.mkdir(exist_ok=True)
    argv = [pytorch, *TORCHRUN, "--rdzv-endpoint", d.endpoint, "--rdzv-id", run, "--local-addr", "localhost", *args, HERE / "scripts/light.py", out, fail or "well"]
    both = [rdzv.spawn(*argv, env=QUIET, **kw) for _ in range(2)]
    for p in both:
        assert p.exit(60) == 0, "\n".join(map(str, both))
    return out


def lines(out, name):
    return (out / name).read_text().splitlines()


def test_two_nodes_with_a_restart(pytorch, rdzv):
    out = pair(pytorch, rdzv, rdzv.daemon("--c10d"), "job", "--max-restarts", 2, fail="fail")
    (out / "failed").unlink()
    ranks = [l.split()[0] for p in out.iterdir() for l in lines(out, p.name)]
    assert sorted(ranks) == ["0", "0", "1", "1"]


def test_the_same_command_twice(pytorch, rdzv):
    """What the first run left in its name would end the second one: the daemon forgets it when the second one begins."""
    d = rdzv.daemon("--c10d")
    for n in (1, 2):
        out = pair(pytorch, rdzv, d, "again")
        assert [lines(out, f"again.0.{rank}") for rank in range(2)] == [[f"{rank} 2 {rank} 0 again"] * n for rank in range(2)]
