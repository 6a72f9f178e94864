# SPDX-License-Identifier: Apache-2.0
"""--events and --on-event: what happens to a job, once and in order, whoever runs the daemon; and the examples of the guide's page."""

import http.server
import json
import os
import re
import signal
import threading
import time

import pages
import pytest
from harness import BUILD, HOST, free_port, until

PAGE = "deploy/guide/events.md"


def events(rdzv, name="ev"):
    path = rdzv.tmp / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def names(found):
    return [e["name"].removeprefix("rdzv.") for e in found if e["name"] != "rdzv.job.progress"]


def of(found, name):
    return [e["metadata"] for e in found if e["name"] == "rdzv." + name]


def is_sound(found):
    """torchelastic's keys, and flat metadata."""
    for e in found:
        assert list(e) == ["name", "source", "timestamp", "metadata"] and e["source"] in ("AGENT", "WORKER"), e
        assert abs(e["timestamp"] / 1000 - time.time()) < 600, e
        assert e["metadata"]["run_id"] == found[0]["metadata"]["run_id"] and e["metadata"]["message"], e
        assert all(v is None or isinstance(v, (str, int, float, bool)) for v in e["metadata"].values()), e
    return True


def test_each_event_once_in_one_file(rdzv):
    """Two agents share the file, as under srun with a shared folder."""
    d = rdzv.daemon()
    script = """
        [ $RDZV_ROUND = 1 ] && word=started || word=restarted
        until grep -q rdzv.round.$word ev; do sleep 0.02; done
        if [ $RDZV_ROUND$RANK = 11 ]; then echo "cannot go on" >&2; exit 7; fi
        [ $RDZV_ROUND = 2 ] || sleep 300"""
    job = ["--endpoint", d.endpoint, "--nnodes", 2, "--rdzv-id", "j", "--events", "ev", "--", "sh", "-c", script]
    agents = [rdzv.agent(*job, node=str(i)) for i in (0, 1)]
    assert [a.exit() for a in agents] == [0, 0], rdzv
    found = events(rdzv)
    assert is_sound(found) and found[0]["metadata"]["run_id"] == "j"
    assert names(found) == ["node.joined", "node.joined", "round.sealed", "round.started", "round.failed", "round.sealed", "round.restarted", "job.ended"], found
    (failed,) = of(found, "round.failed")
    assert failed["global_rank"] == 1 and failed["exit_code"] == 7 and failed["raw_error"] == "cannot go on" and failed["state"] == "FAILED", failed
    assert failed["hostname"] == HOST and failed["charged"] is True and failed["agent_restarts"] == 1 and failed["round"] == 1, failed
    (ended,) = of(found, "job.ended")
    assert ended["state"] == "SUCCEEDED" and ended["exit_code"] == 0 and ended["round"] == 2, ended
    buckets = [ended["goodput_" + b] for b in ("forming", "waiting", "starting", "productive", "lost", "stopping", "checkpoint")]
    assert abs(sum(buckets) - ended["goodput_total"]) < 0.01 and 0 <= ended["goodput_useful"] <= 1, ended
    assert [e["timestamp"] for e in found] == sorted(e["timestamp"] for e in found)


def test_a_job_that_fails(rdzv):
    a = rdzv.agent("--standalone", "--max-restarts", 0, "--events", "ev", "--", "sh", "-c", "kill -SEGV $$")
    assert a.exit() == 139, a
    found = events(rdzv)
    assert is_sound(found) and names(found)[-2:] == ["round.failed", "job.ended"], found
    assert of(found, "round.failed")[0]["signal"] == "SIGSEGV"
    ended = of(found, "job.ended")[0]
    assert ended["state"] == "FAILED" and ended["exit_code"] == 139 and "was killed by SIGSEGV" in ended["message"], ended


def test_the_writer_is_killed(rdzv):
    """Another agent goes on with the file: it has the loss of the first, the daemon that takes over, and the end."""
    port = rdzv.daemon().port
    job = ["--endpoint", f"127.0.0.1:{port}", "--nnodes", "2:3", "--last-call", "5s", "--rdzv-id", "j", "--events", "ev",
           "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"]
    agents = [rdzv.agent(*job, node=str(i)) for i in range(3)]
    until("the round runs", lambda: "round.started" in names(events(rdzv)))
    agents[0].kill()
    until("it is lost", lambda: "round.restarted" in names(events(rdzv)), 20)
    (rdzv.tmp / "go").touch()
    assert [a.exit() for a in agents[1:]] == [0, 0], rdzv
    found = events(rdzv)
    assert is_sound(found)
    lost = of(found, "node.lost")
    assert len(lost) == 1 and "its agent died" in lost[0]["message"], found
    assert names(found).count("job.ended") == 1 and names(found).count("round.failed") == 1, found
    assert of(found, "round.failed")[0]["cause"] == "node-lost", found


def test_a_daemon_dies(rdzv):
    """The agent that owns it starts it again: the job and its events go on."""
    a = rdzv.agent("--standalone", "--events", "ev", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done")
    until("the round runs", lambda: "round.started" in names(events(rdzv)))
    (daemon,) = rdzv.daemons()
    os.kill(daemon, signal.SIGKILL)
    until("it is back", lambda: names(events(rdzv))[-1] in ("daemon.returned", "daemon.took_over"))
    rdzv.go(a)
    found = events(rdzv)
    assert is_sound(found)
    assert names(found) == ["node.joined", "round.sealed", "round.started", "daemon.lost", "daemon.returned", "job.ended"], found


def test_a_shared_daemon_has_a_file_of_all_jobs(rdzv):
    """And the agents, which did not ask, write none. A hook of the daemon runs for what it is asked to."""
    d = rdzv.daemon("--events", "ev", "--on-event", 'cat >>"hook.$RDZV_EVENT"', "--on-event-names", "ended,rdzv.node.*")
    for job in ("one", "two"):
        assert rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", job, "--", "true").exit() == 0
    until("both ended", lambda: names(events(rdzv)).count("job.ended") == 2)
    assert [e["metadata"]["run_id"] for e in events(rdzv)] == ["one"] * 4 + ["two"] * 4
    assert all(e["metadata"]["uid"] == os.getuid() for e in events(rdzv))
    until("the hook ran", lambda: len(events(rdzv, "hook.rdzv.job.ended")) == 2 and len(events(rdzv, "hook.rdzv.node.joined")) == 2)
    assert not (rdzv.tmp / "hook.rdzv.round.sealed").exists()
    assert d.end(signal.SIGTERM) == 0, d


def test_progress_of_the_trainer(rdzv):
    """A first step, and then a line a second at most."""
    a = rdzv.agent("--standalone", "--nproc", 2, "--events", "ev", "--", "--steps", 10000000, "--checkpoint-dir", "ck", "--checkpoint-every", "500ms")
    until("it comes forward", lambda: len(of(events(rdzv), "job.progress")) >= 3 and len(of(events(rdzv), "job.saved")) >= 2, 60)
    assert a.end(signal.SIGTERM) == 75, a
    found = events(rdzv)
    assert is_sound(found) and names(found).count("round.first_step") == 1, found
    progress = [e for e in found if e["name"] == "rdzv.job.progress"]
    assert progress and all(b["timestamp"] - a["timestamp"] >= 990 for a, b in zip(progress, progress[1:])), progress
    assert {e["source"] for e in progress} == {"WORKER"} and progress[0]["metadata"]["step"] >= 0 and "loss" in progress[0]["metadata"], progress
    saved = [e["step"] for e in of(found, "job.saved")]
    assert saved == sorted(set(saved)), saved
    first = of(found, "round.first_step")[0]
    assert first["duration_ms"] >= 0 and first["step"] <= progress[-1]["metadata"]["step"], found


def test_a_hook_that_hangs_holds_nobody(rdzv):
    """Not the restarts, and the end for its named time alone; then it is killed."""
    a = rdzv.agent("--standalone", "--on-event", "echo $$ >>pids; exec sleep 300", "--", "sh", "-c", "exit $((2 - RDZV_ROUND > 0 ? 3 : 0))")
    a.expect(r"job alone-\w+ is done: 2 rounds, 1 restart")
    assert a.exit() == 0, a
    done, killed = (a.text.index(words) for words in ("is done: 2 rounds", "the command is killed: the program that started it ends"))
    assert done < killed, a
    assert len(re.findall(r"--on-event \(.*\): the command is killed: the program that started it ends", a.text)) == 2, a
    for pid in (rdzv.tmp / "pids").read_text().split():
        until("the hook is dead", lambda: not os.path.exists(f"/proc/{pid}"))


def test_a_pipe_that_nobody_reads_holds_nobody(rdzv):
    os.mkfifo(rdzv.tmp / "ev")
    a = rdzv.agent("--standalone", "--events", "ev", "--", "true")
    assert a.exit() == 0, a
    a.expect("--events ev cannot be written: no process reads this pipe")
    a.expect("--events ev: 4 events were not written")


def test_stdout(rdzv):
    a = rdzv.agent("--standalone", "--quiet", "--events", "-", "--", "true")
    assert a.exit() == 0, a
    found = [json.loads(line) for line in a.text.splitlines() if line.startswith("{")]
    assert is_sound(found) and names(found) == ["node.joined", "round.sealed", "round.started", "job.ended"], a


def test_a_node_is_refused(rdzv):
    """The job's file says so, and that of the agent: it exits and hears no more of the job."""
    d = rdzv.daemon()
    job = ["--endpoint", d.endpoint, "--nnodes", 2, "--rdzv-id", "j"]
    one = rdzv.agent(*job, "--events", "ev", "--", "true", node="0")
    until("it waits", lambda: names(events(rdzv)) == ["node.joined"])
    two = rdzv.agent(*job, "--events", "ev2", "--max-restarts", 9, "--", "true", node="1")
    assert two.exit() == 72, two
    until("it was refused", lambda: names(events(rdzv)) == ["node.joined", "node.refused"])
    assert "--max-restarts is 9 there and 3 in the job" in of(events(rdzv), "node.refused")[0]["message"], rdzv
    found = events(rdzv, "ev2")
    assert is_sound(found) and names(found) == ["agent.gave_up"] and found[0]["metadata"]["exit_code"] == 72, found
    assert one.end(signal.SIGTERM) == 75, one


@pytest.mark.parametrize("program", ["agent", "daemon"])
def test_a_name_that_is_no_event(rdzv, program):
    start = rdzv.agent if program == "agent" else lambda *args: rdzv.spawn(BUILD / "daemon/rdzvd", "--listen", "127.0.0.1:0", *args)
    p = start("--on-event-names", "failed,endet", *(["--standalone", "--", "true"] if program == "agent" else []))
    assert p.exit() == 64, p
    p.expect(r'"endet" names no event: give names such as rdzv.job.ended')


# The page. --------------------------------------------------------------------------------------------------------------------------------


def test_the_first_lines(rdzv):
    p = pages.shell(rdzv, pages.with_changes(pages.block(PAGE, "file"), [("./train.py", "true"), ("srun ", "")]))
    assert p.exit() == 0, p
    assert names(events(rdzv, "events.json"))[-1] == "job.ended", p


def test_the_daemons_line(rdzv):
    port = free_port()
    d = pages.shell(rdzv, pages.with_changes(pages.block(PAGE, "daemon"), [("/var/log/", ""), ("rdzvd", f"exec rdzvd --listen 127.0.0.1:{port}")]))
    d.expect("listens on")
    assert rdzv.agent("--endpoint", f"127.0.0.1:{port}", "--rdzv-id", "j", "--", "true").exit() == 0
    until("it is written", lambda: names(events(rdzv, "rdzv-events.json"))[-1:] == ["job.ended"])
    assert d.end(signal.SIGTERM) == 0, d


# Stands for sendmail: keeps what it is sent, and to whom.
SENDMAIL = '#!/bin/sh\necho "$@" >sent.args\ncat >sent.mail\n'


def test_a_mail(rdzv):
    p = pages.shell(rdzv, pages.with_changes(pages.block(PAGE, "mail"), [("./train.py", "sh -c 'exit 3'"), ("srun rdzv-agent", "rdzv-agent --max-restarts 0 --on-event-names ended")]),
                    more={"sendmail": SENDMAIL})
    assert p.exit() == 3, p
    head, body = (rdzv.tmp / "sent.mail").read_text().split("\n\n", 1)
    assert (rdzv.tmp / "sent.args").read_text() == "-t\n"
    assert head.startswith("To: ada@example.org\nSubject: job ") and "exited with code 3" in head and head.count("\n") == 1, head
    assert json.loads(body)["name"] == "rdzv.job.ended", body


class Chat(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.got.append((self.path, self.headers["Content-Type"], json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args):
        pass


def test_a_chat(rdzv):
    """The program of the page, saved under the name that its first line says, and its command."""
    source = next(b.text for b in pages.blocks(PAGE) if b.lang == "python")
    (rdzv.tmp / "chat.py").write_text(source)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    server.got = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hook = f"http://127.0.0.1:{server.server_port}/hooks/abc"
    job = pages.with_changes(pages.block(PAGE, "chat"), [("https://chat.example.org/hooks/abc", hook), ("./train.py", "sh -c 'exit $((2 - RDZV_ROUND > 0 ? 3 : 0))'"), ("srun ", "")])
    p = pages.shell(rdzv, job, env={"no_proxy": "*"})
    assert p.exit() == 0, p
    server.shutdown()
    said = [body["text"] for path, kind, body in server.got if path == "/hooks/abc" and kind == "application/json"]
    assert len(said) == 2 and any("exited with code 3" in s for s in said) and any("is done: 1 restart" in s for s in said), (server.got, p.text)


def test_reading_them_in_python(rdzv):
    """The page's lines about lost time, on the events of a job that was restarted."""
    a = rdzv.agent("--standalone", "--events", "events.json", "--", "sh", "-c", "exit $((2 - RDZV_ROUND > 0 ? 3 : 0))")
    assert a.exit() == 0, a
    p = pages.shell(rdzv, pages.block(PAGE, "who failed"))
    assert p.exit() == 0 and re.search(rf"1 {re.escape(HOST)} 0 job alone-\w+, round 1: rank 0", p.text, re.M), p
