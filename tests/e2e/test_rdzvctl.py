# SPDX-License-Identifier: Apache-2.0
"""rdzvctl: what a daemon knows, and stopping a job."""

import json
import os
import pwd
import stat

from harness import HOST, RDZVCTL, until

WAIT = "while [ ! -e go ]; do sleep 0.02; done"


def test_status_and_jobs(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "ctl")
    ctl = lambda *args: rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "ctl", *args)
    assert stat.S_IMODE(os.stat(rdzv.tmp / "ctl").st_mode) == 0o666
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--rdzv-id", "family", "--", "sh", "-c", WAIT)
    rdzv.await_workers(2)
    d.expect("starting -> running")
    jobs = ctl("jobs")
    assert jobs.exit(5) == 0 and jobs.says("family: running"), jobs
    state = ctl("status")
    assert state.exit(5) == 0 and state.says("family") and state.says("127.0.0.1"), state
    parsed = ctl("status", "--json")
    assert parsed.exit(5) == 0, parsed
    json.loads("\n".join(parsed.out))
    rdzv.go(*agents)


def test_stop(rdzv):
    d = rdzv.daemon("--socket", rdzv.tmp / "ctl")
    agents = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--rdzv-id", "family", "--", "sh", "-c", WAIT)
    rdzv.await_workers(2)
    stop = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "ctl", "stop", "family")
    assert stop.exit(5) == 0, stop
    assert [a.exit(5) for a in agents] == [77, 77], rdzv
    who = "root" if os.geteuid() == 0 else rf"{pwd.getpwuid(os.geteuid()).pw_name} \(uid {os.geteuid()}\)"
    said = rf"an operator stopped the job: rdzvctl stop by {who} from {HOST}"
    for p in *agents, d, rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "ctl", "status", "family"):
        p.expect(said)
    assert not rdzv.workers()


def test_no_daemon_there(rdzv):
    ctl = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "nothing", "status")
    assert ctl.exit(5) == 69 and ctl.says("nothing"), ctl


def test_no_such_job(rdzv):
    rdzv.daemon("--socket", rdzv.tmp / "ctl")
    ctl = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "ctl", "stop", "nobody")
    assert ctl.exit(5) != 0 and ctl.says("nobody"), ctl
    until("it has ended", lambda: not ctl.running)
