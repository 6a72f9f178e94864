# SPDX-License-Identifier: Apache-2.0
"""/metrics: every metric of the list, and no other; who sees it; and a real Prometheus, which scrapes a thousand jobs and ten thousand nodes, evaluates the
alerts, and answers each query of the dashboard."""

import contextlib
import json
import os
import re
import socket
import subprocess
import time

import pytest

import pages
import prometheus
import sealed
from crowd import Crowd, descriptors
from harness import BUILD, SANITIZED, SLOW, TOP, need, until
from native import Native
from test_http import ask, from_afar, get

PAGE = "deploy/guide/monitoring.md"
DASHBOARD = TOP / "deploy/grafana/rdzv.json"
JOBS, NODES = (100, 500) if SANITIZED else (1000, 10000)
SCRAPE_MS, SCRAPES = 50, 10
MODULE = {"PYTHONPATH": str(TOP / "deploy/python"), "RDZV_LIBRARY": str(BUILD / "agent/sdk/librdzv.so.0"), "PYTHONDONTWRITEBYTECODE": "1"}


def metrics(d, token=None):
    status, text = get(d, "/metrics", token=token)
    assert status == 200, text
    return text


def series(text, name, **labels):
    return [(found, number) for n, found, number in prometheus.parse(text) if n == name and labels.items() <= found.items()]


def value(text, name, **labels):
    ((_, number),) = series(text, name, **labels)
    return number


def check(text):
    """Its metrics are those of the list, with the labels that stand there, and promtool accepts it."""
    listed = prometheus.listed()
    heads = re.findall(r"# HELP (\w+) (.*)\n# TYPE (\w+) (\w+)", text)
    assert [(a, kind, meaning) for a, meaning, b, kind in heads if a == b] == [(n, kind, meaning) for n, (kind, _, meaning) in listed.items() if n in dict(h[:2] for h in heads)]
    for name, labels, _ in prometheus.parse(text):
        family = re.sub("_(bucket|sum|count)$", "", name) if name not in listed else name
        assert set(labels) - {"le"} == prometheus.labels_of(family), (name, labels)
    prometheus.check(text)
    return {h[0] for h in heads}


@pytest.mark.skipif(SANITIZED, reason="Python cannot load a sanitized librdzv")
def test_a_job(rdzv):
    """A worker in Python reports steps, dies once, and all of it is in the metrics."""
    script = """
import os, time
import rdzv
job = rdzv.init()
for step in range(1, 100000):
    job.progress(step, of=100000, loss=1 / step, samples=10)
    time.sleep(0.01)
    if step == 60 and not os.path.exists("once"):
        open("once", "w").close()
        os._exit(3)
    if os.path.exists("go"):
        break
"""
    (rdzv.tmp / "train.py").write_text(script)
    d = rdzv.daemon()
    a = rdzv.agent("--endpoint", d.endpoint, "--nproc", 2, "--rdzv-id", 'a"job', "--", "python3", "train.py", env=MODULE)
    mine = {"job": 'a\\"job', "uid": str(os.geteuid())}
    seen = {}

    def restarted():
        seen["text"] = metrics(d)
        return [number for _, number in series(seen["text"], "rdzv_restarts_total", **mine)] == [1] and series(seen["text"], "rdzv_step", **mine)

    until(lambda: f"round 2 makes steps:\n{a}\n{seen['text']}", restarted, 20)
    text = seen["text"]
    assert check(text) == set(prometheus.listed()), text
    assert value(text, "rdzv_job_state", **mine) == 1 and value(text, "rdzv_round", **mine) == 2
    assert series(text, "rdzv_failures_total", **mine) == [(dict(mine, cause="worker-exit"), 1)]
    assert value(text, "rdzv_nodes", state="running", **mine) == 1
    assert value(text, "rdzv_step", **mine) >= 1 and value(text, "rdzv_progress_age_seconds", **mine) < 5
    assert value(text, "rdzv_recovery_seconds_count", phase="start") == 1
    assert value(text, "rdzv_recovery_seconds_bucket", phase="start", le="+Inf") == 1
    (info, _), = series(text, "rdzv_job_info", **mine)
    assert info["min_nodes"] == info["max_nodes"] == "1" and info["max_restarts"] == "3"
    buckets = {labels["bucket"]: number for labels, number in series(text, "rdzv_job_seconds_total", **mine)}
    assert list(buckets) == [word for word, _ in prometheus.buckets()]
    assert buckets["lost"] > 0 and buckets["productive"] > 0, buckets  # round 2 begins with step 1 again
    until("samples per second are known", lambda: value(metrics(d), "rdzv_samples_per_second", **mine) > 0)
    rdzv.go(a)
    assert value(metrics(d), "rdzv_job_state", state="ended", **mine) == 1
    check(metrics(d))


def test_who_asks(rdzv):
    d = rdzv.daemon()
    key = sealed.Key.parse(rdzv.key)
    with Native(d.port) as n:
        n.hello(job="seen")
        n.expect("WELCOME")
        status, head, body = from_afar(d, "/metrics", f"Authorization: Bearer {key.token()}")
        assert status == 200 and "\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n" in head, head
        assert int(re.search(r"Content-Length: (\d+)", head)[1]) == len(body)
        assert series(body, "rdzv_job_state", job="seen") and series(body, "rdzv_recovery_seconds_count")
        check(body)
        status, _, body = from_afar(d, "/metrics", f"Authorization: Bearer {key.derive(4242).token()}")
        assert status == 200 and "seen" not in body and "rdzv_recovery" not in body and value(body, "process_open_fds") > 3
        check(body)
        assert from_afar(d, "/metrics")[0] == 401
        status, head, body = ask(d, f"HEAD /metrics HTTP/1.1\r\nHost: node1\r\nAuthorization: Bearer {key.token()}\r\n\r\n".encode())
        assert status == 200 and body == "" and int(re.search(r"Content-Length: (\d+)", head)[1]) > 1000
    insecure = rdzv.daemon("--insecure")
    assert from_afar(insecure, "/metrics")[0] == 403 and get(insecure, "/metrics")[0] == 200


def test_the_page(rdzv):
    """The commands of the guide, with another port and another folder."""
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    with Native(d.port) as n:
        n.hello(job="seen")
        n.expect("WELCOME")
        look = pages.shell(rdzv, pages.with_changes(pages.block(PAGE, "look"), [("29400", d.port)]))
        assert look.exit() == 0 and 'rdzv_job_state{job="seen",' in look.text, look
        token = pages.shell(rdzv, pages.with_changes(pages.block(PAGE, "token"), [("rdzvctl token", f"rdzvctl --socket {rdzv.tmp}/s token"), ("/etc/prometheus/", f"{rdzv.tmp}/")]))
        assert token.exit() == 0, token
        written = rdzv.tmp / "rdzv.token"
        assert written.stat().st_mode & 0o777 == 0o600
        assert 'job="seen"' in from_afar(d, "/metrics", f"Authorization: Bearer {written.read_text().strip()}")[2]
    config = prometheus.SCRAPE.read_text().replace("/etc/prometheus/rdzv.token", str(written))
    (rdzv.tmp / "scrape.yml").write_text(config)
    need("promtool")
    subprocess.run(["promtool", "check", "config", rdzv.tmp / "scrape.yml"], check=True, timeout=60, capture_output=True)


def cpu_s(p):
    tasks = subprocess.run(f"cat /proc/{p.pid}/task/*/schedstat", shell=True, capture_output=True, text=True, check=True).stdout
    return sum(int(line.split()[0]) for line in tasks.splitlines()) / 1e9


def check_cost(d):
    """Of the loop, the few heartbeats of that time included."""
    began, cpu = time.monotonic(), cpu_s(d)
    for _ in range(SCRAPES):
        metrics(d)
    spent = 1e3 * (cpu_s(d) - cpu) / SCRAPES
    assert SANITIZED or spent <= SCRAPE_MS, f"a scrape takes {spent:.1f} ms of the daemon's processor time, in {time.monotonic() - began:.2f} s for {SCRAPES}"


def dashboard_queries():
    """Of each panel and each variable, as Grafana sends them."""
    board = json.loads(DASHBOARD.read_text())
    exprs = [(p["title"], t["expr"]) for p in board["panels"] for t in p.get("targets", [])]
    assert len(exprs) > 12
    for name, instead in ("$instance", ".*"), ("$job", ".*"), ("$__rate_interval", "20s"), ("$__range", "1m"):
        exprs = [(title, e.replace(name, instead)) for title, e in exprs]
    assert not [e for e in exprs if "$" in e[1]]
    variables = [re.fullmatch(r"label_values\((.*), (\w+)\)", v["definition"]).groups() for v in board["templating"]["list"] if v["type"] == "query"]
    return exprs, variables


def metrics_in(text):
    return set(re.findall(r"\b((?:rdzv|process)_\w+)", text))


def test_dashboard_and_alerts_name_what_there_is():
    """And the dashboard shows every metric but those that have only names, and the time left, which jobs of unknown length have not."""
    listed = set(prometheus.listed())
    families = lambda text: {re.sub("_(bucket|sum|count)$", "", m) if m not in listed else m for m in metrics_in(text)}
    shown = set().union(*(families(e) for _, e in dashboard_queries()[0]))
    assert shown == listed - {"rdzv_job_info", "rdzv_node_odd_facts", "rdzv_round", "rdzv_time_left_seconds", "process_virtual_memory_bytes", "process_start_time_seconds"}
    assert families(prometheus.ALERTS.read_text()) <= listed
    need("promtool")
    subprocess.run(["promtool", "check", "rules", prometheus.ALERTS], check=True, timeout=60, capture_output=True)


def test_prometheus(rdzv):
    """A daemon with a thousand jobs and one with ten thousand nodes."""
    need("prometheus")
    key = sealed.Key.parse(rdzv.key)
    with contextlib.ExitStack() as stack:
        stack.enter_context(descriptors(NODES + 1000))
        many, large = rdzv.daemon(), rdzv.daemon()
        jobs = stack.enter_context(Crowd(rdzv, many, 2 * JOBS, 2, job="many")).join()
        nodes = stack.enter_context(Crowd(rdzv, large, NODES, job="large")).join()
        for crowd in jobs, nodes:
            crowd.tell("progress 7")
        p = prometheus.Prometheus(rdzv, {many.port: key.token(), large.port: key.token()})
        p.await_value("count(up == 1)", 2)
        p.await_value("count(rdzv_step == 7)", JOBS + 1)
        p.await_value('count(rdzv_job_state{state="running"})', JOBS + 1)
        p.await_value('sum(rdzv_nodes{job="large", state="running"})', NODES)
        p.await_value('count(rdzv_job_state{job=~"many-.*"})', JOBS)
        for d in many, large:
            check(metrics(d))
            check_cost(d)
        jobs.tell("kill-worker 0")  # of many-00000: a failure, a recovery, a restart
        nodes.tell("kill-worker 0")
        p.await_value('rdzv_restarts_total{job="many-00000"}', 1)
        p.await_value('rdzv_restarts_total{job="large"}', 1)
        until("both go on", lambda: jobs.states()["running"] == jobs.n and nodes.states()["running"] == nodes.n, 60)
        for crowd in jobs, nodes:
            crowd.tell("progress 9")
        p.await_value("count(rdzv_step == 9)", JOBS + 1)
        failed = lambda: sorted((labels["job"], labels["cause"], n) for labels, n in p.query("rdzv_failures_total"))
        until(lambda: f"two jobs failed: {failed()}", lambda: failed() == [("large", "worker-signal", 1), ("many-00000", "worker-signal", 1)], 30)
        exprs, variables = dashboard_queries()
        for title, expr in exprs:
            if "rdzv_slow_rank" in expr:  # these jobs have no --slow-ranks
                assert p.query(expr) == [], expr
                continue
            until(f"the panel {title} shows something: {expr}", lambda: p.query(expr), 60)
            assert all(v == v for _, v in p.query(expr)) or "histogram" in expr, (title, expr)
        for selector, label in variables:
            assert p.ask(f"label/{label}/values", **{"match[]": selector.replace("$instance", ".*")}), selector
        until(lambda: f"no other alert: {p.alerts()}", lambda: p.alerts() <= {("RdzvJobIsWasteful", None)}, 30)
        check_reader_that_does_not_read(rdzv, many)
        large.kill()
        until("its daemon's absence is an alert", lambda: ("RdzvdIsDown", "rdzvd") in p.alerts(), 60)
        p.stop()


def check_reader_that_does_not_read(rdzv, d):
    """It holds one document, for ten seconds. A user has eight at most; the others wait for none of them."""
    request = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    readers = []
    try:
        for _ in range(9):
            s = socket.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.connect(("127.0.0.1", d.port))
            s.sendall(request)
            readers.append(s)
        readers[8].settimeout(5 * SLOW)
        assert b"503 Service Unavailable" in readers[8].recv(65536)
        d.expect(r"is answered with 503, 8 answers for uid \d+ are being made or read; ask again when one is complete")
        assert get(d, "/healthz")[0] == 200
        with Native(d.port) as n:
            n.hello(job="beside")
            n.started()
        d.expect(r"HTTP: closed: it did not read the answer for 10 s", 15)
        until("its place is free", lambda: get(d, "/metrics")[0] == 200, 15)
    finally:
        for s in readers:
            s.close()
