# SPDX-License-Identifier: Apache-2.0
"""Two users at one daemon: jobs with one name, and what one of them does to take the daemon from the other."""

import contextlib
import json
import os
import time

import pytest

from harness import until
from native import Native
from test_rdzvd_control import NOBODY, SOMEBODY, needs_users
from test_rdzvctl_verbs import WAIT, ask, d  # noqa: F401: a fixture

ADA, EVE = SOMEBODY["user"], NOBODY["user"]
FUTURE = dict(incarnation="ffffffffffff-0123456789abcdef", phase="running", node_rank=0, round_nodes=1)


@needs_users
def test_one_name(rdzv, d):
    """Each user's agents meet, and nobody else's; root chooses."""
    os.chmod(rdzv.tmp, 0o777)
    agents = {}
    for who in (SOMEBODY, NOBODY):
        uid = who["user"]
        env = {**who["env"], "RDZV_KEY": rdzv.user_key(uid)}
        agents[uid] = rdzv.agents(2, d.endpoint, "--nnodes", 2, "--rdzv-id", "train", "--", "sh", "-c", WAIT, **{**who, "env": env})
    until("both run", lambda: d.text.count(": starting -> running round=1 nodes=2") == 2)
    assert ask(rdzv, "jobs", **NOBODY).out[0].startswith("train: running"), "she does not learn that there is another"
    p = ask(rdzv, "jobs")
    assert p.code == 0 and p.says(rf"train \(uid {ADA}\): running") and p.says(rf"train \(uid {EVE}\): running"), p
    p = ask(rdzv, "stop", "train")
    assert p.code == 64 and p.says(rf"2 users have a job with the id train: choose one with --user {ADA}, {EVE}|--user {EVE}, {ADA}"), p
    p = ask(rdzv, "stop", "train", "--json")
    assert sorted(json.loads(p.text)["users"]) == sorted([ADA, EVE]), p
    p = ask(rdzv, "stop", "train", "--user", str(ADA), **NOBODY)
    assert p.code == 1 and p.says(f"no job of uid {ADA} has the id train; that user has none here"), p
    p = ask(rdzv, "stop", "train", "--user", "no-such-user")
    assert p.code == 64 and p.says("--user no-such-user: this machine has no such user: give the uid"), p
    p = ask(rdzv, "stop", "train", "--user", "nobody")
    assert p.code == 0, p
    for a in agents[EVE]:
        assert a.exit() == 77, a
    p = ask(rdzv, "status", "train", "--json", "--user", str(ADA))
    assert [j["state"] for j in json.loads(p.text)["jobs"]] == ["running"], p
    (rdzv.tmp / "go").touch()
    for a in agents[ADA]:
        assert a.exit() == 0, a


@needs_users
def test_rdzvctl_of_a_user_at_the_port(rdzv, d):
    """With that user's key, from anywhere; the job is told from where."""
    os.chmod(rdzv.tmp, 0o777)
    key = rdzv.user_key(ADA)
    with Native(d.port, key=key) as a, Native(d.port, key=rdzv.user_key(EVE)) as b:
        a.hello(job="train"), b.hello(job="train")
        a.started(), b.started()
        for uid, code in ((4711, 1), (ADA, 0)):
            with Native(d.port, key=rdzv.user_key(uid)) as n:
                assert n.control("stop", "train")[0] == code
        assert a.expect("STOP").verdict["text"].startswith(f"rdzvctl stop by uid {ADA} from ")
        b.send("HEARTBEAT", None, id=1)
        b.expect("HEARTBEAT_ACK")
        assert "STOP" not in [m.name for m in b.seen]


def test_one_user_does_not_silence_the_events_of_others(rdzv):
    """Eve's jobs have more events than --on-event runs for her in a minute, and than wait. Ada's event, and root's, have their runs at once."""
    d = rdzv.daemon("--on-event", "cat >>hook", "--on-event-names", "all")
    ran = lambda job: f'"run_id":"{job}"' in (rdzv.tmp / "hook").read_text().replace(" ", "")
    with contextlib.ExitStack() as stack:
        for i in range(120):
            stack.enter_context(Native(d.port, key=rdzv.user_key(EVE))).hello(job=f"eve-{i}")
        d.expect(rf"--on-event: 64 events of uid {EVE} wait, since the command runs 4 times at once and 30 times a minute for each user at most; 1 further one is dropped", 20)
        until("Eve's first events run", lambda: (rdzv.tmp / "hook").exists() and ran("eve-0"))
        for job, key in (("ada", {"key": rdzv.user_key(ADA)}), ("roots", {})):
            stack.enter_context(Native(d.port, **key)).hello(job=job)
            until(f"the event of {job} runs", lambda: ran(job))


@pytest.mark.parametrize("keyed", [True, False], ids=["key", "insecure"])
def test_attacks(rdzv, keyed):
    """Ada's job runs on, and her next one is taken."""
    daemon = rdzv.daemon(*(() if keyed else ["--insecure"]))
    keys = {uid: rdzv.user_key(uid) if keyed else None for uid in (ADA, EVE)}

    def peer(uid, **more):
        return Native(daemon.port, key=keys[uid], **more)

    def refused(n):
        return n.expect("REFUSED").text

    with peer(ADA) as ada:
        ada.hello(job="train", uid=ADA, lease_ms=60000)
        ada.started()
        with peer(EVE) as n:  # a run that begins in the year 10889, at the last number
            n.hello(job="train", **{**FUTURE, "round": 499999999, "uid": ADA})
            assert "more than 24 hours after now" in refused(n)
        with peer(EVE) as n:  # and one of now that is as far
            now = f"{int(time.time() * 1000) + 1000:012x}-0123456789abcdef"
            n.hello(job="train", **{**FUTURE, "incarnation": now, "round": 499999999, "uid": ADA})
            assert "names round 499999999, for which its job had no time" in refused(n)
        with peer(EVE) as n:
            n.hello(job="train", want_rank=0, local_addr="224.0.0.1", uid=EVE)
            assert "is not the address of one machine" in refused(n)
        with peer(EVE) as n:  # under another user's job name: a job of her own
            n.hello(job="train", nodes=2, want_rank=0, local_addr="8.8.8.8", uid=EVE)
            assert n.expect("WELCOME").incarnation != ada.incarnation
            assert n.expect("WAITING").here == 1
        with peer(EVE) as n:  # a flood of good ones
            for _ in range(500):
                n.hello(job="flood", nodes=2, uid=EVE)
            assert "this connection sends too many messages" in refused(n)
        ends = []
        for i in range(1030):  # a job each
            n = peer(EVE)
            ends.append(n)
            n.hello(job=f"eve{i}", nodes=2, uid=EVE, lease_ms=60000)  # nobody beats
            while n.recv().name not in ("WELCOME", "REFUSED"):
                pass
            if n.seen[-1].name == "REFUSED":
                break
        whose = f"uid {EVE}" if keyed else "address 127.0.0.1"
        assert 1000 < i < 1030 and f"{whose} has 1024 jobs at this daemon, the limit for one" in n.seen[-1].text
        if keyed:
            with peer(ADA) as n:
                n.hello(job="next", uid=ADA)
                n.started()
        else:
            with peer(ADA) as n:  # without keys an address has a share, and here all peers have the same
                n.hello(job="next", uid=ADA)
                assert "127.0.0.1 has" in refused(n)
        for n in ends:
            n.close()
        assert not [m for m in ada.seen if m.name in ("STALE", "STOP", "REFUSED")]
        assert ada.finish().outcome == "success"
