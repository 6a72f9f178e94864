#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of deploy/guide/live-page.md: the page as it is built, in Chromium, with states of made-up jobs.

usage: RDZV_BUILD=build/test/gcc page_pictures.py [FOLDER [STATE...]]

Without a folder the pictures of the guide are drawn anew. The documents have the fields of /status; test_page.py looks at the page with a real daemon.
"""

import http.server
import json
import math
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from browser import Browser
from harness import BUILD, TOP

NOW = int(time.time() * 1000)
MINUTE = 60000


def history(points, every_ms, speed, back=()):
    """Steps, a loss that falls and a speed that trembles; `back` says at which points a round began, and how many steps were lost."""
    noise, step, list_ = random.Random(4), 0, []
    for i in range(points):
        step = step - dict(back).get(i, 0) + round(1.19 * every_ms / 1000)
        loss = 1.9 + 3.3 * math.exp(-step / (0.4 * points * every_ms / 1000)) + noise.gauss(0, 0.03)
        list_.append([NOW - (points - i) * every_ms, step, round(loss, 4), round(speed * (1 + noise.gauss(0, 0.015)), 1)])
    return list_


def goodput(total, **lost):
    lost = {name: lost.get(name, 0) for name in ("forming", "waiting", "starting", "lost", "stopping", "checkpoint")}
    rest = total - sum(lost.values())
    return dict(useful=rest / total, total=total, productive=rest, **lost, rounds=3, longest_wait=lost["waiting"], waited_for="gpu007" if lost["waiting"] else "", steps=True)


LEVELS = ["up to date", "slowing", "late", "stuck"]
LIMITS = dict(slowing_ms=5000, late_ms=10000, stuck_ms=60000)


def judge(age):
    return LEVELS[sum(age >= limit for limit in LIMITS.values())]


def progress(members, points):
    """As daemon/job/goodput.c has it."""
    running = [m for m in members if m["state"] == "running"]
    late = [m for m in running if LEVELS.index(m["judgement"]) >= 2]
    fields = dict(LIMITS, nodes=len(members), away=sum(m["state"] == "away" for m in members), late=len(late), step=points[-1][1], of=50000, step_ms=840.0)
    if running:
        worst = max(running, key=lambda m: m["progress_age_ms"])
        fields.update(judgement=worst["judgement"], age_ms=worst["progress_age_ms"], samples_per_second=sum(m["samples_per_second"] for m in running if m not in late))
    if late:
        behind = next((m for m in late if "laggards" in m), late[0])
        rank = f"rank {behind['first_rank'] + behind['laggards'][0]['local_rank']} (local {behind['laggards'][0]['local_rank']}) on " if "laggards" in behind else ""
        age = f"{fields['age_ms'] // 1000} s" if fields["age_ms"] < 120000 else f"{fields['age_ms'] // 60000} min"
        some = f"{len(late)} of {len(members)} nodes {'has' if len(late) == 1 else 'have'} made no progress for {'' if len(late) == 1 else 'up to '}{age}: {', '.join(m['host'] for m in late)}"
        text = f"No node has made progress for {age}" if len(late) == len(members) else some
        fields.update(sentence=f"{text}; furthest behind: {rank}{behind['host']}, at step {behind['step'] - bool(rank)}")
    elif running:
        fields.update(left_ms=(50000 - fields["step"]) * 840)
    return fields


def member(i, points, workers=8, age=300, behind=(), **more):
    step, loss, speed = points[-1][1:] if points else (0, None, None)
    fields = dict(
        node_rank=i, first_rank=i * workers, host=f"gpu{i + 1:03d}", pid=4000 + i, agent=f"{i:032x}", addr=f"10.0.{i // 200}.{i % 200 + 1}", workers=workers, state="running", heard_ms_ago=137 * i % 900,
        step=step, of=50000, loss=loss, samples_per_second=speed, progress_age_ms=age, judgement=judge(age),
    )  # fmt: skip
    if behind:
        fields.update(laggards=[dict(local_rank=r, step=step - 1, age_ms=age, judgement=judge(age)) for r in behind], others_age_ms=max(400, age - 500), others_judgement=judge(max(400, age - 500)))
    return dict(fields, **more)


def ended(round_, minutes_ago, ran, cause, sentence, nodes=64, text=""):
    at = NOW - int(minutes_ago * MINUTE)
    return dict(wall_ms=at, began_wall_ms=at - int(ran * MINUTE), nodes=nodes, round=round_, charged=True, verdict=dict(cause=cause, round=round_, sentence=sentence, text=text))


KILLED = ended(2, 65, 118, "worker-signal", "rank 131 (local 3) on gpu017, pid 4711, was killed by SIGKILL (signal 9): out of memory, after step 12480 of 50000; 7 other workers died with it or after it")
LOST = ended(1, 183.2, 60, "node-lost", "node 6 (gpu007) was lost: it was silent for longer than its lease")


def job(name="llama-70b", nodes=64, points=None, **more):
    points = points or history(180, 84000, 3400, back=((50, 900), (134, 2100)))
    fields = dict(
        job=name, uid=1000, incarnation="00", state="running", state_for_ms=65 * MINUTE, round=3, nodes=nodes, world_size=8 * nodes, min_nodes=nodes, max_nodes=nodes, restarts_used=2, max_restarts=3,
        restarts_earned=True, round_began_wall_ms=NOW - 65 * MINUTE, daemon=dict(host="gpu001", term=1, in_charge=True, age_ms=240, successors=["gpu002", "gpu003", "gpu004"], claims=False), settings=dict(hang_timeout_ms=0, lease_ms=2000),
        members=[member(i, points) for i in range(nodes)], verdicts=[KILLED, LOST], last_verdict=KILLED["verdict"], history=points,
        goodput=goodput(15130, forming=4, starting=38, lost=312, stopping=9, checkpoint=141, waiting=540),
    )  # fmt: skip
    return dict(fields, **more)


def running():
    return [job()]


def hanging():
    j = job()
    j["members"] = [member(i, j["history"], age=41000, behind=[3] if i == 16 else ()) for i in range(64)]
    return [j]


def failing():
    text = 'Traceback (most recent call last):\n  File "/home/anna/train.py", line 214, in <module>\n    main()\n  File "/home/anna/train.py", line 188, in main\n    loss.backward()\nRuntimeError: CUDA error: an illegal memory access was encountered'
    cause = ended(3, 0, 65, "worker-exit", "rank 131 (local 3) on gpu017, pid 4711, exited with code 1: RuntimeError: CUDA error: an illegal memory access was encountered, after step 15000 of 50000", text=text)
    j = job(state="stopping", state_for_ms=400, ending=cause["verdict"])
    for m in j["members"]:
        m["state"] = "stopped" if m["node_rank"] % 3 else "stopping"
    return [j]


def waiting():
    sentence = "59 of 64 nodes are here after 41 s, giving up in 9 min 19 s (--join-timeout); missing 5: gpu[003,007-009] (never came), gpu012 (lost 41 s ago: its connection closed)"
    j = job(state="forming", state_for_ms=41000, verdicts=[LOST], last_verdict=LOST["verdict"], round=1, restarts_used=1)
    j["waiting"] = dict(sentence=sentence, absent=[dict(hosts="gpu[003,007-009]", why="never-came"), dict(hosts="gpu012", why="lost")])
    j["members"] = [dict(m, state="waiting", node_rank=-1, first_rank=-1) for m in j["members"] if m["host"] not in ("gpu003", "gpu007", "gpu008", "gpu009", "gpu012")]
    return [j]


def large():
    j = job("frontier-1t", 2000)
    for i in (77, 301, 1234):
        j["members"][i] = member(i, j["history"], age=42000, behind=[2])
    j["members"][900]["state"] = "away"
    j["members"][1600].update(progress_age_ms=300000, judgement="stuck")
    return [j]


def many():
    draw = random.Random(7)
    names = ["llama-70b", "nightly", "vit-sweep", "mixtral-ft", "speech-large", "protein-fold", "bert-ablation", "sdxl-distill", "retriever", "toy"]
    jobs = []
    for i in range(100):
        nodes, total, speed = draw.choice([2, 4, 8, 16, 32]), draw.randrange(600, 90000), draw.randrange(200, 9000)
        points = [[at, step, loss, v * (1 + 0.1 * math.sin(i + k / 9))] for k, (at, step, loss, v) in enumerate(history(60, 40000 + 4000 * (i % 90), speed))]
        lost = {name: total * part * draw.random() for name, part in dict(forming=0.004, starting=0.03, lost=0.06, checkpoint=0.03, waiting=0.05).items()}
        j = job(f"{names[i % 10]}-{i:02d}", nodes, points, state_for_ms=draw.randrange(5000, 40000000), goodput=goodput(total, **lost))
        what = draw.random()
        if what < 0.03:
            j.update(state="forming", members=j["members"][:-1], waiting=dict(sentence=f"{nodes - 1} of {nodes} nodes are here after 12 s; missing 1: gpu088 (never came)", absent=[]))
        elif what < 0.06:
            j["members"][0].update(progress_age_ms=800000, judgement="stuck")
        elif what < 0.24:
            j.update(state="ended", ended_wall_ms=NOW - j["state_for_ms"], outcome="success" if what < 0.2 else "failed", code=0 if what < 0.2 else 1)
        if what > 0.35:
            j.update(verdicts=[], last_verdict=None, round=1, restarts_used=0)
        jobs.append(j)
    return jobs


STATES = dict(running=running, hanging=hanging, failing=failing, waiting=waiting, large=large, many=many)
# Of the guide: the file, the state, dark, the height of the window.
PICTURES = [("live-page.png", "running", False, 1180), ("live-page-dark.png", "hanging", True, 560), ("live-page-failed.png", "failing", False, 600), ("live-page-large.png", "large", False, 800), ("live-page-jobs.png", "many", False, 640)]


def document(state):
    jobs = STATES[state]()
    for j in jobs:
        j["progress"] = progress([m for m in j["members"] if m["node_rank"] >= 0] or j["members"], j["history"])
    drained = [dict(host="gpu007", by="anna", since_wall_ms=NOW - 9 * MINUTE), dict(host="gpu033", by="--exclude-after", since_wall_ms=NOW - 120 * MINUTE, job="llama-70b")] if state == "running" else []
    return json.dumps(dict(jobs=jobs, drained=drained, wall_ms=NOW)).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    body = b""

    def do_GET(self):
        is_status = self.path.startswith("/status")
        data = self.body if is_status else (BUILD / "daemon/page/page.html").read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if is_status else "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def shoot(b, url, state, path, width=1280, height=0, dark=False):
    Handler.body = document(state)
    b.emulate(width=width, height=height or 800, dark=dark, still=True)
    b.open("about:blank")
    b.open(url)
    b.until("the page is there", "return document.querySelector('main h1')")
    time.sleep(0.5)
    b.picture(path, full=not height)


def main(folder=None, *states):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/"
    with tempfile.TemporaryDirectory() as place, Browser(Path(place)) as b:
        if folder is None:
            for name, state, dark, height in PICTURES:
                shoot(b, url, state, TOP / "deploy/guide" / name, height=height, dark=dark)
            return
        for state in states or STATES:
            for dark in False, True:
                shoot(b, url, state, Path(folder) / f"{state}{'-dark' * dark}.png", dark=dark)
            shoot(b, url, state, Path(folder) / f"{state}-narrow.png", width=390)


if __name__ == "__main__":
    main(*sys.argv[1:])
