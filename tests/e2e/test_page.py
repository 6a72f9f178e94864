# SPDX-License-Identifier: Apache-2.0
"""The live page in a real Chromium: what happens to a job is seen with the next look at the daemon, by everyone, and what peers call themselves does nothing."""

import contextlib
import importlib.util
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import sealed
from browser import Browser
from harness import BUILD, RDZVCTL, SANITIZED, SLOW, TOP, need, until
from native import Native
from relay import Relay
from test_http import get
from test_odd_nodes import facts, nodes

SOON = 2  # looks after which the page shows what the daemon knows: the second one may come while the first is drawn

WORKER = """
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "rdzv.h"
int main(int argc, char **argv) { /* STEPS, and the rank that stops at step 40 of the first round */
  struct rdzv *r;
  if (rdzv_init(&r, 10000)) return fprintf(stderr, "%s\\n", rdzv_error(NULL)), 1;
  int hangs = rdzv_restart_count(r) == 0 && argc > 2 && rdzv_rank(r) == atoi(argv[2]);
  for (uint64_t step = 1; step <= strtoull(argv[1], NULL, 10); step++) {
    rdzv_progress(r, step, strtoull(argv[1], NULL, 10), 2 + 3 * exp(-(double)step / 200), 1200 + 40 * sin((double)step));
    if (hangs && step == 40) pause();
    usleep(20000);
  }
  rdzv_done(r);
  rdzv_finish(r);
}
"""
SEEN_WAIT = ".alert.wait:not([hidden])"
HANG = ["--hang-timeout", "20s", "--hang-start-timeout", f"{20 * SLOW}s", "--hang-stacks", "never"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory):
    place = tmp_path_factory.mktemp("worker")
    (place / "worker.c").write_text(WORKER)
    flags = ["-fsanitize=address,undefined"] if SANITIZED else []
    cc = ["cc", "-D_GNU_SOURCE", *flags, "-I", TOP / "agent/sdk", "worker.c", BUILD / "agent/sdk/librdzv.a", "-lm", "-o", "worker"]
    subprocess.run(cc, cwd=place, check=True, timeout=120)
    return place / "worker"


@pytest.fixture
def browser(tmp_path):
    (tmp_path / "browser").mkdir()
    with Browser(tmp_path / "browser") as b:
        b.emulate()
        yield b
        assert not [line for line in b.log() if "Content Security Policy" in line or "SEVERE" in line and "favicon" not in line]


def page(d, key=""):
    return f"http://127.0.0.1:{d.port}/{'#' + key if key else ''}"


def agents(rdzv, d, worker, n, *options, steps=100000, rank=None, endpoints=None):
    command = ["--", worker, steps, *([rank] if rank is not None else [])]
    return [
        rdzv.agent("--endpoint", (endpoints or {}).get(i, d.endpoint), "--rdzv-id", "nightly", "--nnodes", n, "--nproc", 2, *options, *command, node=str(i))
        for i in range(n)
    ]


def stop(agents):
    for p in agents:
        p.kill(signal.SIGTERM)
    for p in agents:
        p.exit()


def test_a_job_runs_and_a_worker_is_killed(rdzv, browser, worker):
    d = rdzv.daemon()
    browser.open(page(d))
    browser.shows("No job here yet")
    a = agents(rdzv, d, worker, 2)
    d.expect("starting -> running")
    assert browser.looks_until("nightly", "h1") <= SOON and browser.looks_until("Running", ".badge") <= SOON
    browser.shows("2 up to date", ".sum")
    browser.until("steps are seen to rise", "return parseInt(document.querySelector('.step strong').innerText) > 20")
    browser.until("two curves are drawn", "return document.querySelectorAll('.chart .curve').length === 2")
    assert browser.text(".job-head").startswith("nightly\n") and "round 1 · 2 nodes · 4 workers" in browser.text(".job-head")
    assert browser.js("return document.title") == "nightly: running – rdzv"
    os.kill(rdzv.workers()[3], signal.SIGKILL)
    d.expect("rank 3 .*SIGKILL")
    assert browser.looks_until("rank 3 (local 1)") <= SOON
    browser.shows("was killed by SIGKILL (signal 9)", "main")
    browser.shows("SIGKILL", "#news")  # is read out
    a[0].expect("round 2")
    browser.shows("round 2 · 2 nodes", ".job-head")
    browser.shows("1 of 3 restarts used")
    label = "return document.querySelector('.strip').getAttribute('aria-label') === 'round 1 failed, round 2 under way'"
    browser.until("the rounds are told", label)
    stop(a)
    d.expect("-> ended")
    assert browser.looks_until("Stopped", ".badge") <= SOON and browser.looks_until("exit code 75", ".job-head") <= SOON


def test_a_node_is_cut(rdzv, browser, worker):
    """Nothing passes between a node and its daemon, and no connection ends: the page shows the silence, then the loss."""
    d = rdzv.daemon()
    relay = Relay(d.port)
    a = agents(rdzv, d, worker, 2, "--lease", "6s", endpoints={1: relay.endpoint})
    browser.open(page(d))
    browser.shows("2 up to date", ".sum")
    mended = threading.Event()
    relay.change = lambda unit: mended.wait() and None
    d.expect(r"is lost: it was silent for longer than its lease", 20)
    assert browser.looks_until("was lost") <= SOON
    browser.shows("Forming", ".badge")
    browser.shows("1 of 2 nodes is here", SEEN_WAIT)
    stop(a)
    mended.set()


def test_a_hang_is_made(rdzv, browser, worker):
    """A worker that stops is marked before it counts as hung, and then it is named."""
    d = rdzv.daemon()
    a = agents(rdzv, d, worker, 2, *HANG, rank=3)
    browser.open(page(d))
    browser.shows("round 1", ".job-head")
    browser.until("a cell is marked", "return document.querySelectorAll('.node .behind').length === 1")
    browser.shows("local rank 1 behind at step 40", ".inspector")
    browser.shows("furthest behind: rank 3 (local 1) on", SEEN_WAIT)  # half of the timeout is late
    browser.shows("Running", ".badge.wait")
    d.expect("rank 3 .*made no progress for", 40)
    assert browser.looks_until("made no progress for") <= SOON
    browser.shows("rank 3 (local 1) on")
    browser.shows("round 2 · 2 nodes", ".job-head")
    stop(a)


def progress(n, step, **more):
    n.send("PROGRESS", dict(dict(incarnation=n.incarnation, round=n.round, step=step, of=1000, loss=1.5, samples_per_second=100.0, age_ms=0), **more))


@contextlib.contextmanager
def going_on(n, step):
    """The node makes steps in a thread: a busy browser does not make it slow."""
    ended = threading.Event()

    def go_on():
        for at in itertools.count(step):
            if ended.wait(0.3):
                return
            progress(n, at)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_one_judgement_in_every_view(rdzv, browser):
    """Node 0 stands still and node 1 goes on; then both stand still. The page, /metrics, top and status show the daemon's judgement, and the same numbers."""
    d = rdzv.daemon()
    with Native(d.port) as n, Native(d.port) as m:
        for i, peer in enumerate((n, m)):
            peer.hello(job="frozen", nodes=2, host=f"gpu{i}")
        n.started(), m.started()
        browser.open(page(d))
        for step in range(1, 9):  # the pace: 0.3 s for each step
            progress(n, step), progress(m, step)
            time.sleep(0.3)
        browser.shows("2 up to date", ".sum")
        browser.shows("left", ".step")

        def views():
            metrics = get(d, "/metrics")[1]
            job = json.loads(get(d, "/status")[1])["jobs"][0]
            said = [rdzv.spawn(RDZVCTL, "--endpoint", d.endpoint, verb) for verb in ("top", "status")]
            assert [p.exit() for p in said] == [0, 0], said
            return metrics, job, *("\n".join(p.out) for p in said)

        with going_on(m, 9):
            browser.shows("1 late: gpu0", ".sum", 60)
            browser.shows("1 of 2 nodes has made no progress for", SEEN_WAIT)
            browser.shows("(local 0) on gpu0, at step 8", SEEN_WAIT)
            assert "left" not in browser.text(".step"), "nobody knows how long a node stands still"
            metrics, job, top, text = views()
        assert 'judgement="late"} 1' in metrics and "rdzv_time_left_seconds{" not in metrics, metrics
        assert re.search(r"rdzv_samples_per_second\{[^}]*\} 100\n", metrics), "only node 1 works"
        assert job["progress"]["judgement"] == "late" and job["progress"]["samples_per_second"] == 100 and "left_ms" not in job["progress"], job["progress"]
        assert ", late" in top and "progress: late, step 8 of 1000" in text and "100 samples/s" in text, top + text
        browser.shows("0 samples/s", ".chart + .chart", 60)  # now node 1 is late as well
        metrics, job, top, text = views()
        lost = float(re.search(r'rdzv_job_seconds_total\{[^}]*bucket="lost"\} (\S+)', metrics)[1])
        assert job["goodput"]["lost"] >= lost > 5 and job["goodput"]["stalled"] == job["goodput"]["lost"], (lost, job["goodput"])
        assert "lost: no progress" in text, text
        assert browser.js("return parseFloat(document.querySelector('.time strong').innerText)") <= 100 * job["goodput"]["useful"] + 3, browser.text(".time")


def test_a_job_has_ended(rdzv, browser):
    """A short job on two agents of one host: its nodes and the round's length stay, and nothing is said of its goodput."""
    d = rdzv.daemon()
    a = [rdzv.agent("--endpoint", d.endpoint, "--rdzv-id", "short", "--nnodes", 2, "--", "sleep", "2", node=str(i)) for i in range(2)]
    browser.open(page(d))
    browser.shows("2 nodes", ".job-head")
    names = browser.js("return [...document.querySelectorAll('.node .host')].map((h) => h.innerText)")
    assert len(names) == 2 and names[0] != names[1] and names[0].endswith("· 0"), names
    assert [p.exit() for p in a] == [0, 0]
    browser.shows("Finished", ".badge")
    lasted = lambda: re.search(r"ago, after ([\d.]+ s)", browser.text(".rounds"))
    until("the round's length is shown", lasted)
    first = lasted()[1]
    assert float(first.split()[0]) >= 2, first
    browser.until("an age goes on", "const t = document.querySelector('.facts-line').innerText; const s = parseFloat(t); return s >= 4", timeout=30)
    assert lasted()[1] == first, "the length of a round that has ended changes"
    browser.shows("2 ended", ".sum")
    assert browser.js("return document.querySelectorAll('.node').length") == 2
    assert not browser.text(".time"), "a job of 2 s has no goodput that means anything"


def test_the_list_on_a_narrow_screen(rdzv, browser):
    """Below 860 px each job is a block, and its name has the whole width."""
    d = rdzv.daemon()
    with Native(d.port) as n, Native(d.port) as m:
        n.hello(job="a-name-that-needs-some-room-on-a-screen")
        m.hello(job="other")
        for width in 320, 600, 850, 1280:
            browser.emulate(width=width, still=True)
            browser.open("about:blank")
            browser.open(page(d))
            browser.shows("other", ".jobs")
            row, name = browser.js("const w = (s) => document.querySelector(s).getBoundingClientRect().width; return [w('.jobs tbody tr'), w('.jobs tbody th')]")
            assert name > 0.8 * row if width <= 860 else name < 0.3 * row, (width, row, name)
            assert browser.js("return document.documentElement.scrollWidth") <= width


def test_a_loss_that_falls_far(rdzv, browser):
    """A loss that has fallen to less than a tenth has a logarithmic axis, and another one has not."""
    d = rdzv.daemon()
    with Native(d.port) as n:
        n.hello(job="falls")
        n.started()
        browser.open(page(d))
        scale = "return document.querySelector('.chart .plot').getAttribute('data-scale')"
        for step in range(1, 4):
            progress(n, step, loss=10.0 - step)
            time.sleep(1.1)  # points of the history
        browser.until("a linear axis", scale + " === 'linear'")
        progress(n, 4, loss=0.05)
        browser.until("a logarithmic axis", scale + " === 'logarithmic'")
        browser.until("its ticks are drawn", "return [...document.querySelectorAll('.chart .tick')].some((t) => t.textContent === '0.1')")


HOSTILE = '</script><img src=x onerror="document.title=1">\u202e\u0007"\'&amp;<!-- {{7*7}} ' + "W" * 60


def test_odd_nodes(rdzv, browser):
    """A host that is unlike the others is listed with its value and that of the others, until it is like them."""
    d = rdzv.daemon()
    with nodes(d, 4, odd=1) as peers:
        browser.open(page(d, "-1/nightly"))
        browser.shows("PCIe width of gpu3 is x8; x16 on 3 of 3 like nodes")
        assert browser.js("return document.querySelector('#h-odd').closest('section').querySelector('li strong').textContent") == "n1"
        assert browser.js("return document.querySelector('#h-odd').closest('section').querySelector('.badge.wait').textContent") == "suspect"
        peers[1].send("FACTS", facts())
        browser.until("it is like the others", "return document.querySelector('#h-odd').closest('section').hidden")


def test_hostile_texts(rdzv, browser):
    """Host names, job names and last words of workers are text, on one line of their own, and nothing else."""
    d = rdzv.daemon()
    with Native(d.port) as n, Native(d.port) as m:
        for peer, name in (n, HOSTILE[:100]), (m, "javascript:alert(1)"):
            peer.hello(job=name, host=HOSTILE[:60])
            peer.started()
        for view in "", "#-1/javascript:alert(1)":
            browser.open("about:blank")
            browser.open(page(d) + view)
            browser.shows("javascript:alert(1)")
            assert "\\u202e" in browser.text() or view
            assert browser.js("return [document.images.length, document.scripts.length, document.querySelectorAll('iframe, object, [onerror]').length]") == [0, 1, 0]
            assert browser.js("return document.documentElement.scrollWidth <= innerWidth")
            assert browser.js("return [...document.querySelectorAll('a')].every((a) => a.protocol === 'http:')")
        browser.open("about:blank")
        browser.open(page(d))
        browser.shows("2 nodes")
        n.report("failed", cause="worker-exit", node_rank=0, rank=0, local_rank=0, host=HOSTILE[:60], pid=1, code=1, error=HOSTILE, text=HOSTILE * 20)
        browser.shows("exited with code 1")
        browser.open("about:blank")
        browser.open(page(d))
        browser.until("the job is listed", "return document.querySelector('.jobs a[href*=onerror]') !== null")
        browser.js("document.querySelector('.jobs a[href*=onerror]').click()")
        browser.shows("exited with code 1", ".alert")
        assert "<img src=x onerror=" in browser.text(".alert") and "\u202e" not in browser.text()
        assert browser.js("return [document.images.length, document.title === '1', document.documentElement.scrollWidth <= innerWidth]") == [0, False, True]


def test_markup_would_do_nothing(rdzv, browser):
    """If text ever became markup, the policy would still keep it from running and from loading anything."""
    d = rdzv.daemon()
    browser.open(page(d))
    browser.shows("No job here yet")
    browser.js("document.getElementById('news').innerHTML = `<img src=x onerror='document.title=1'><style>body{display:none}</style><a href='javascript:document.title=1' id=x>x</a>`; document.getElementById('x').click()")
    browser.js("const s = document.createElement('script'); s.textContent = 'document.title = 1'; document.body.append(s)")
    said = []

    def violations(word="Content Security Policy"):
        said.extend(browser.log())
        return [line for line in said if word in line]

    until(lambda: f"three violations, now {said}", lambda: len(violations()) >= 3)
    assert browser.js("return [document.title === '1', getComputedStyle(document.body).display]") == [False, "block"]
    assert "refused" == browser.js_later("fetch('http://127.0.0.2:9/').then(() => arguments[0]('sent'), () => arguments[0]('refused'))")
    until(lambda: f"one of connect-src, now {said}", lambda: violations("connect-src"))


def test_without_a_script(rdzv, browser):
    """One sentence names the command that shows the same."""
    d = rdzv.daemon()
    browser.cdp("Emulation.setScriptExecutionDisabled", value=True)
    browser.open(page(d))
    note = browser.call("POST", "/element", {"using": "xpath", "value": "//noscript/p[contains(., 'rdzvctl status')]"})
    assert browser.call("GET", f"/element/{next(iter(note.values()))}/displayed")
    browser.cdp("Emulation.setScriptExecutionDisabled", value=False)


def test_by_keys(rdzv, browser):
    """From the list to a job and its nodes and back, with the focus where it was although everything is drawn anew twice a second."""
    d = rdzv.daemon()
    with contextlib.ExitStack() as stack:
        for job in "alpha", "beta":
            for i in range(3):
                n = stack.enter_context(Native(d.port))
                n.hello(job=job, nodes=3, host=f"gpu{i}")
        browser.open(page(d))
        browser.shows("6 nodes", ".facts-line")
        focus = "return document.activeElement.innerText || document.activeElement.getAttribute('aria-label')"
        browser.press("Tab", "Tab")
        assert browser.js(focus) == "alpha"
        browser.press("Tab")
        assert browser.js(focus) == "beta"
        time.sleep(1.2)  # two looks
        assert browser.js(focus) == "beta"
        browser.press("Enter")
        browser.shows("beta", "h1")
        assert browser.js("return document.activeElement.id") == "h-job"
        browser.press("Tab")
        label = "return document.activeElement.getAttribute('aria-label')"
        assert re.match(r"gpu\d, node 0, rank 0", browser.js(label))
        browser.press("Right", "Right")
        there = browser.js(label)
        assert "node 2, rank 2" in there and browser.text(".inspector").startswith(there[:4])
        time.sleep(1.2)
        assert browser.js(label) == there
        browser.press("Home")
        assert "node 0, rank 0" in browser.js(label)
        browser.js("history.back()")
        browser.shows("Jobs", "h1")


def test_others_need_a_token(rdzv, tmp_path):
    """By a name, as from another machine: with the password of Basic, for the page and for its looks. A name that a web page brought here gets nothing."""
    d = rdzv.daemon()
    (tmp_path / "browser").mkdir()
    token = sealed.Key.parse(rdzv.key).token()
    with Native(d.port) as n, Browser(tmp_path / "browser", "--host-resolver-rules=MAP * 127.0.0.1") as b:
        n.hello(job="seen")
        n.started()
        b.open(f"http://anybody:{token}@node1:{d.port}/")
        b.shows("seen", "h1")
        n.finish()
        b.shows("Finished", ".badge")  # later looks have it too
        assert token not in b.text() and token not in b.js("return location.href")
        b.open(f"http://rebound.example:{d.port}/")
        assert "seen" not in b.text() and not b.js("return document.querySelector('main')")


def test_the_daemon_goes_away(rdzv, browser):
    d = rdzv.daemon()
    with Native(d.port) as n:
        n.hello(job="seen")
        n.started()
        browser.open(page(d))
        browser.shows("Live", ".beat")
        browser.shows("seen", "h1")
    d.end()
    browser.shows("The daemon has not answered", "#trouble")
    browser.shows("Not answering", ".beat")
    assert browser.text("h1") == "seen"
    rdzv.daemon(port=d.port)
    browser.shows("Live", ".beat")
    browser.shows("No job here yet")
    browser.until("the trouble is over", "return document.querySelector('#trouble').hidden || !document.querySelector('#trouble').innerText")
    browser.log()  # failed requests are errors to the console


def test_nothing_happens(rdzv, browser):
    """Looks at jobs of which nothing is new are answered with 304, and follow each other half a second later."""
    d = rdzv.daemon()
    browser.open(page(d))
    browser.shows("No job here yet")

    def answers():
        return browser.js("return performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/status')).map((e) => e.responseStatus)")

    until("304", lambda: answers().count(304) >= 2, 15)
    pauses = """const all = performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/status'));
    return all.slice(1).map((e, i) => e.startTime - all[i].responseEnd)"""
    until(lambda: f"looks half a second apart, now {browser.js(pauses)} ms", lambda: len([ms for ms in browser.js(pauses) if 300 < ms < 700]) >= 3, 30)


def test_two_thousand_nodes(rdzv, browser):
    """The grid, and how long it takes: to make, to send and to draw."""
    nodes = 2000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < nodes + 500:
        pytest.skip(f"{hard} descriptors are too few")
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    d = rdzv.daemon("--insecure")
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        peers = []
        for i in range(nodes):
            peers.append(stack.enter_context(Native(d.port, timeout=60)))
            peers[-1].hello(job="large", nodes=nodes, workers=8, host=f"gpu{i:04d}", lease_ms=600000)
            peers[-1].expect("WELCOME")
        for n in peers:
            n.started()
        for n in peers:
            n.send("PROGRESS", dict(incarnation=n.incarnation, round=n.round, step=5, of=10, loss=1.5, samples_per_second=7.0, age_ms=100))
        browser.open(page(d))
        browser.shows("2,000", ".sum", 60)
        assert browser.js("return document.querySelectorAll('.node').length") == nodes
        assert browser.js("return document.querySelector('.nodes').offsetHeight") < 600
        late = peers[1234]
        late.send("PROGRESS", dict(incarnation=late.incarnation, round=late.round, step=4, of=10, age_ms=100, laggards=[dict(local_rank=3, step=3, age_ms=3000)]))
        name = browser.until("a node is marked", "const n = document.querySelector('.node.lags'); return n && n.getAttribute('aria-label')", timeout=30)
        assert "1 worker behind" in name
        # Looks go on, and drawing one keeps the browser from nothing else for long.
        looks, tasks = browser.js_later(
            """const done = arguments[0], began = performance.now(), looks = [], tasks = [];
            new PerformanceObserver((l) => { looks.push(...l.getEntries().filter((e) => e.name.includes('/status')).map((e) => e.responseEnd)); }).observe({ type: 'resource' });
            new PerformanceObserver((l) => { tasks.push(...l.getEntries().map((e) => [e.startTime, e.duration])); }).observe({ type: 'longtask' });
            const timer = setInterval(() => {
              if (looks.length < 6 && performance.now() < began + 25000) return;
              clearInterval(timer);
              done([looks, tasks]);
            }, 100);"""
        )
        # Others run beside the browser in some of them. Tasks of less than 50 ms are not told.
        longest = [max(took) for a, b in zip(looks, looks[1:]) if (took := [ms for at, ms in tasks if a - 50 <= at < b - 50])]
        assert len(looks) >= 2 and min(longest, default=0) < 300 * SLOW, f"looks at {nodes} nodes at {looks} ms; their longest tasks took {longest} ms"


# Everyone. --------------------------------------------------------------------------------------------------------------------------------

def axe():
    found = importlib.util.find_spec("axe_playwright_python")  # ships the script; nothing of it is imported
    need("PyPI's axe-playwright-python", found is not None)
    return (Path(found.submodule_search_locations[0]) / "axe.min.js").read_text()


def violations(b, script):
    b.cdp("Runtime.evaluate", expression=script)
    found = b.js_later("axe.run(document, {resultTypes: ['violations']}).then((r) => arguments[0](r.violations), (e) => arguments[0]([{id: String(e), nodes: []}]))")
    return [f"{v['id']}: {v.get('help')}: " + "; ".join(n["html"][:120] + " " + n.get("failureSummary", "") for n in v["nodes"][:3]) for v in found]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_accessibility(rdzv, browser, worker, dark):
    """The list, a job that runs, one that has failed, and one that waits, by axe-core; and on a narrow screen nothing is cut off."""
    script = axe()
    d = rdzv.daemon()
    a = agents(rdzv, d, worker, 2)
    browser.emulate(dark=dark, still=True)
    with Native(d.port) as n, Native(d.port) as failed:
        n.hello(job="waiting", nodes=2, host="gpu7", lease_ms=60000)
        once = dict(min_nodes=1, max_nodes=1, max_restarts=0, last_call_ms=0, join_timeout_ms=60000, stop_timeout_ms=1000, lease_ms=60000)
        failed.hello(job="failed", host="gpu8", settings=once)
        failed.started()
        failed.report("failed", cause="worker-exit", node_rank=0, rank=0, local_rank=0, host="gpu8", pid=7, code=3, text="Traceback\nValueError: boom")
        failed.expect("STOP")
        failed.report("stopped")
        failed.expect("END")
        a[0].expect("round 1")
        views = {"": "3 nodes", "0/nightly": "up to date", "-1/waiting": "Waiting for nodes", "-1/failed": "The job failed with exit code 3"}
        for key, text in views.items():
            browser.open("about:blank")
            browser.open(page(d, key))
            browser.shows(text, "main")
            assert violations(browser, script) == [], key
            browser.emulate(width=360, dark=dark, still=True)
            browser.until(f"{key} fits", "return document.documentElement.scrollWidth <= 360")
            browser.emulate(dark=dark, still=True)
    stop(a)
