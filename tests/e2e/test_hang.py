# SPDX-License-Identifier: Apache-2.0
"""Workers that live and make no progress: found, named, and the job goes on."""

import json
import os
import re
import signal
import subprocess

import pytest
from harness import BUILD, SANITIZED, SLOW, TOP, environ, until

# How long a silence is a hang. A worker that steps twenty times a second may be kept from it for a while on a busy machine.
TIMEOUT = ["--hang-timeout", "2s", "--hang-start-timeout", f"{10 * SLOW}s", "--hang-stacks", "never"]
NEVER_ENDS = "for i in $(seq 100000); do echo line; touch beat.$RANK; sleep 0.05; done"

WORKER = r"""
#include <rdzv.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
/* In the first round the ranks of argv[1] ("0", "01") wait for ever after step 5; the others step on. Later ones end after 10. */
int main(int argc, char **argv) {
  struct rdzv *r;
  if (rdzv_init(&r, 10000)) return fprintf(stderr, "%s\n", rdzv_error(NULL)), 1;
  int hangs = 0;
  for (char *p = argv[1]; *p; p++) hangs |= *p - '0' == rdzv_rank(r);
  for (uint64_t step = 1; rdzv_restart_count(r) == 0 || step <= 10; step++) {
    rdzv_progress(r, step, 500, 1.0, 1.0);
    if (step == 3 && puts("told three times") >= 0) fflush(stdout);
    if (rdzv_restart_count(r) == 0 && hangs && step == 5) pause();
    usleep(50000);
  }
  rdzv_done(r);
  rdzv_finish(r);
}
"""


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    """A program that tells its progress through librdzv."""
    place = tmp_path_factory.mktemp("worker")
    (place / "worker.c").write_text(WORKER)
    flags = ["-fsanitize=address,undefined"] if SANITIZED else []
    cc = ["cc", "-D_GNU_SOURCE", *flags, "-I", TOP / "agent/sdk", "worker.c", BUILD / "agent/sdk/librdzv.a", "-o", "worker"]
    subprocess.run(cc, cwd=place, check=True, timeout=120)
    return place / "worker"


def verdict(rdzv, name="verdict.json"):
    return json.loads((rdzv.tmp / name).read_text())["verdict"]


def test_sdk(rdzv, worker):
    """One that waits for ever after a few steps; the next round ends well."""
    a = rdzv.agent("--standalone", "--nproc", 2, *TIMEOUT, "--verdict-file", "verdict.json", "--", worker, "1")
    m = a.expect(r"rank (\d) \(local 1\) on \S+ pid \d+, made no progress for (\S+) s, after step 5 of 500: its process waits \(state S", 30)
    assert m[1] == "1" and 2.0 <= float(m[2]) < 2 + 5 * SLOW, a
    assert a.exit() == 0 and a.says("restart 1 of 3") and a.says("2 rounds, 1 restart"), a
    v = verdict(rdzv)
    assert (v["cause"], v["rank"], v["step"], v["state"], v["code"]) == ("worker-hung", 1, 5, "S", 67), v
    assert v["idle_ms"] >= 2000, v


def test_all_hang(rdzv, worker):
    """Nobody is different from anybody, and that is said. It ends the job where no restart is left."""
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, *TIMEOUT, "--", worker, "01")
    assert a.exit(40) == 67, a
    assert a.says(r"after step 5 of 500: .*; rank [01] stopped .* \(state S.*; it is not known which rank the others wait for; 0 of 0 restarts"), a


def test_output(rdzv):
    """One that stops printing, behind a shell; what it does is in a file beside its logs."""
    script = f"[ $RANK$RDZV_RESTART_COUNT = 10 ] && echo last && sleep 600; [ $RDZV_RESTART_COUNT = 1 ] && exit 0; {NEVER_ENDS}"
    a = rdzv.agent("--standalone", "--nproc", 2, *TIMEOUT, "--hang-watch", "output", "--log-dir", "logs", "--", "sh", "-c", script)
    assert a.exit(40) == 0, a
    assert a.says(r"rank 1 \(local 1\) .* made no progress for .* s: its process waits .*; it has stopped printing"), a
    found = list((rdzv.tmp / "logs").glob("*/attempt_0/1/hang.txt"))
    assert len(found) == 1, a
    assert re.match(r"pid \d+, that is its child \d+ \(sleep\): state S, in \w+.*, 1 thread\n", found[0].read_text()), found[0].read_text()
    assert a.says(r"  rank 1: pid \d+, that is its child \d+ \(sleep\): state S"), a
    assert a.says(r"  rank 0: pid \d+"), a  # the others are looked at too


def test_auto(rdzv):
    """Nobody uses the sdk, and only rank 0 prints, as in most programs: it falls silent when another rank is stopped, and that one is named."""
    one = "while :; do touch tick; sleep 0.02; done"
    zero = "for i in $(seq 100000); do rm -f tick; until [ -e tick ]; do sleep 0.02; done; echo step $i; done"
    script = f"[ $RDZV_RESTART_COUNT = 1 ] && exit 0; if [ $RANK = 1 ]; then {one}; else {zero}; fi"
    a = rdzv.agent("--standalone", "--nproc", 2, *TIMEOUT, "--", "sh", "-c", script)
    a.expect("step 100", 30)
    os.kill(rdzv.workers()[1], signal.SIGSTOP)
    assert a.exit(40) == 0, a
    assert a.says(r"rank 1 \(local 1\) .*: its process is stopped \(state T\), as by SIGSTOP; all workers of this node have stopped printing"), a
    assert not a.says("it is not known"), a


def test_file(rdzv):
    """A file that is not touched any more."""
    script = f"touch beat.$RANK; [ $RANK$RDZV_RESTART_COUNT = 00 ] && exec sleep 600; [ $RDZV_RESTART_COUNT = 1 ] && exit 0; {NEVER_ENDS}"
    watch = f"file:{rdzv.tmp}/beat.${{rank}}"
    a = rdzv.agent("--standalone", "--nproc", 2, *TIMEOUT, "--hang-watch", watch, "--redirects", 3, "--log-dir", "logs", "--", "sh", "-c", script)
    assert a.exit(40) == 0, a
    assert a.says(r"rank 0 \(local 0\) .*: its process waits .*; its file has stopped changing"), a
    assert not a.says("rank 1 stopped"), a


def test_stopped_process_of_another_node(rdzv, worker):
    """SIGSTOP to a worker: both nodes say which one, and it leaves by SIGTERM although it was stopped."""
    d = rdzv.daemon()
    agents = [
        rdzv.agent("--endpoint", d.endpoint, "--nnodes", 2, *TIMEOUT, "--verdict-file", f"v{i}.json", "--", worker, "9", node=str(i)) for i in (0, 1)
    ]
    workers = rdzv.await_workers(2)
    for a in agents:
        a.expect("told three times")
    os.kill(workers[1], signal.SIGSTOP)
    for i, a in enumerate(agents):
        a.expect(r"rank 1 \(local 0\) .* made no progress for .*: its process is stopped \(state T\), as by SIGSTOP", 30)
        assert a.exit(40) == 0, rdzv
        v = verdict(rdzv, f"v{i}.json")
        assert (v["cause"], v["rank"], v["state"]) == ("worker-hung", 1, "T"), v


@pytest.mark.parametrize("nodes", [1, 2])
def test_trainer(rdzv, nodes):
    """One rank of a collective is stopped: all stop at the same step, and the verdict names that one, not its victims."""
    d = rdzv.daemon()
    words = ["--nnodes", nodes, "--nproc", 4 // nodes, "--hang-timeout", "3s", "--hang-stacks", "never", "--"]
    words += ["--layers", "8,8", "--steps", 100, "--throttle", 20, "--report-every", "200ms", "--checkpoint-dir", rdzv.tmp / "ckpt", "--checkpoint-every", 10]
    agents = rdzv.agents(nodes, d.endpoint, *words)
    until(lambda: f"it trains:\n{rdzv}", lambda: any(a.says(r"step \d+ of 100") for a in agents), 30)
    victim = rdzv.workers()[2]
    assert environ(victim)["RDZV_ROUND"] == "1", rdzv
    os.kill(victim, signal.SIGSTOP)
    for a in agents:
        m = a.expect(r"rank (\d) \(local \d\) .*, made no progress for .* s, after step \d+ of 100: its process is (.*)", 40)
        assert m[1] == "2" and m[2].startswith("stopped (state T), as by SIGSTOP"), rdzv
    for a in agents:
        assert a.exit(60) == 0 and a.says("restart 1 of 3") and not a.says("it is not known"), rdzv
