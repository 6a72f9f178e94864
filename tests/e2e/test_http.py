# SPDX-License-Identifier: Apache-2.0
"""Probes and the jobs' status on the daemon's port, and clients that are slow, many, or malformed."""

import base64
import hashlib
import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request

import pytest
import sealed
from harness import RDZVCTL, SLOW, until
from native import Native


def ask(d, request, timeout=10.0):
    """Sends bytes, reads until the other side closes: (status, head, body)."""
    with socket.create_connection(("127.0.0.1", d.port), timeout * SLOW) as s:
        s.sendall(request)
        got = b""
        while data := s.recv(65536):
            got += data
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), body.decode()


def get(d, path, method="GET", token=None, host="127.0.0.1"):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"http://{host}:{d.port}{path}", method=method, headers=headers), timeout=10 * SLOW) as r:
            return r.status, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def test_probes(rdzv):
    d = rdzv.daemon()
    assert get(d, "/healthz") == (200, "ok\n") and get(d, "/readyz") == (200, "ok\n")
    assert get(d, "/healthz", "HEAD") == (200, "")
    assert get(d, "/jobs") == (404, "rdzvd serves /, /status, /metrics, /healthz and /readyz; use rdzvctl for everything else\n")
    status, head, body = ask(d, b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + 100000 * b"x")
    assert status == 405 and "\r\nAllow: GET, HEAD" in head and "GET and HEAD are served" in body
    assert not d.says("healthz HTTP/1.1\" is answered with 200"), d  # probes leave no lines
    d.expect(r'"GET /jobs HTTP/1.1" is answered with 404')
    with Native(d.port) as n:
        n.hello()
        n.expect("WELCOME")


def is_empty(status):
    """A user's who has no job here."""
    fields = json.loads(status)
    return abs(fields.pop("wall_ms") / 1000 - time.time()) < 60 and fields == {"jobs": [], "drained": []}


def from_afar(d, path, *fields):
    """As what another machine, a proxy or a web page sends: no process of this machine speaks for its user."""
    return ask(d, "\r\n".join([f"GET {path} HTTP/1.1", "Host: node1:29400", *fields, "\r\n"]).encode())


def test_status_with_a_token(rdzv):
    """The user of a token sees what rdzvctl status --json shows that user."""
    d = rdzv.daemon("--socket", rdzv.tmp / "s")
    key = sealed.Key.parse(rdzv.key)
    with Native(d.port) as n:
        n.hello(job="seen")
        n.expect("WELCOME")
        status, head, body = from_afar(d, "/status", f"Authorization: Bearer {key.token()}")
        assert status == 200 and "\r\nContent-Type: application/json\r\n" in head, head
        ctl = rdzv.spawn(RDZVCTL, "--socket", rdzv.tmp / "s", "status", "--json")
        assert ctl.exit() == 0, ctl
        shown, asked = json.loads(body), json.loads("\n".join(ctl.out))
        assert [j["job"] for j in shown["jobs"]] == ["seen"] and shown.keys() | {"page"} == asked.keys() and shown["jobs"][0].keys() == asked["jobs"][0].keys()
        status, head, body = ask(d, f"HEAD /status HTTP/1.1\r\nHost: node1\r\nAuthorization: bearer {key.token()}\r\n\r\n".encode())
        assert status == 200 and body == "" and int(re.search(r"Content-Length: (\d+)", head)[1]) > 100
        for query, found in ("?job=seen", 1), ("?job=%73een", 1), ("?job=see", 0), ("?job=seen&uid=77", 0), ("?x", 1):
            status, _, body = from_afar(d, "/status" + query, f"Authorization: Bearer {key.token()}")
            assert status == 200 and len(json.loads(body)["jobs"]) == found, query
        stranger = key.derive(4242)
        status, _, body = from_afar(d, "/status", f"Authorization: Bearer {stranger.token()}")
        assert status == 200 and is_empty(body)
    for secret in key.token(), stranger.token():
        assert secret not in d.text


def test_status_without_one(rdzv):
    d = rdzv.daemon()
    key = sealed.Key.parse(rdzv.key)
    status, head, body = from_afar(d, "/status")
    assert status == 401 and "\r\nWWW-Authenticate: Bearer\r\n" in head and '\r\nWWW-Authenticate: Basic realm="rdzv", charset="UTF-8"\r\n' in head
    assert body == 'this path needs the field "Authorization: Bearer TOKEN", or in a browser TOKEN as the password of any user: rdzvctl token prints yours\n'
    wrong = sealed.Key.random()
    for token in str(key), wrong.token(), wrong.derive(0).token(), "x" * 4000, "", "0" * 64:
        status, _, body = from_afar(d, "/status", f"Authorization: Bearer {token}")
        assert status == 401 and "does not belong to a key of this daemon" in body, token
        assert from_afar(d, "/healthz", f"Authorization: Bearer {token}")[0] == 200
    assert from_afar(d, "/status", "Authorization: Basic eDp5")[0] == 401
    d.expect(r'"GET /status HTTP/1.1" is answered with 401')
    assert str(key) not in d.text
    plain = rdzv.daemon("--insecure")
    status, head, body = from_afar(plain, "/status", f"Authorization: Bearer {key.token()}")
    assert status == 403 and "WWW-Authenticate" not in head and "--insecure" in body and "rdzvctl status" in body


def fields_of(head):
    return dict(line.split(": ", 1) for line in head.split("\r\n")[1:])


def test_documents(rdzv):
    """The page and the jobs carry what protects them, and are not sent again to a browser that has them."""
    d = rdzv.daemon()
    basic = base64.b64encode(f"anybody:{sealed.Key.parse(rdzv.key).token()}".encode()).decode()
    answers = {}
    for path in "/", "/status":
        assert from_afar(d, path)[0] == 401
        status, head, body = from_afar(d, path, f"Authorization: Basic {basic}")
        fields = answers[path] = fields_of(head)
        assert status == 200 and fields["X-Content-Type-Options"] == "nosniff" and fields["Referrer-Policy"] == "no-referrer"
        policy = fields["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
        # The hashes are those of what is there.
        for tag in "style", "script":
            text = re.search(f"<{tag}>(.*?)</{tag}>", body, re.S)
            if text:
                digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
                assert f"{tag}-src 'sha256-{digest}'" in policy, path
        assert ("<script>" in body) == (path == "/") and not re.search(r'(src|href)="?(https?:)?//', body)
    assert answers["/"]["ETag"][0] == '"' and answers["/"]["Cache-Control"] == "private, no-cache"
    assert answers["/status"]["Cache-Control"] == "no-store"
    status, head, body = from_afar(d, "/", f"Authorization: Basic {basic}", f"If-None-Match: {answers['/']['ETag']}")
    assert status == 304 and body == "" and fields_of(head)["ETag"] == answers["/"]["ETag"]
    assert from_afar(d, "/", f"If-None-Match: {answers['/']['ETag']}")[0] == 401
    assert from_afar(d, "/status", "Authorization: Basic eDp5")[0] == 401


def test_etag_of_the_jobs(rdzv):
    """Nothing happens: 304, for a while. A node comes: 200. Two users never share an ETag."""
    d = rdzv.daemon()
    key = sealed.Key.parse(rdzv.key)
    mine, others = (f"Authorization: Bearer {k.token()}" for k in (key, key.derive(4242)))

    def tag(*fields):
        status, head, _ = from_afar(d, "/status", *fields)
        return status, fields_of(head)["ETag"]

    def same():  # the tag changes every 5 s too
        first = tag(mine)[1]
        return first.startswith('W/"') and tag(mine, f"If-None-Match: {first}") == (304, first) and (first, tag(others))

    seen, (status, strange) = until("nothing happened", same, 2)
    assert status == 200 and strange != seen
    with Native(d.port) as n:
        n.hello(job="new")
        n.expect("WELCOME")
        status, after = tag(mine, f"If-None-Match: {seen}")
        assert status == 200 and after != seen


@pytest.mark.parametrize("options", [[], ["--insecure"]])
def test_status_of_a_process(rdzv, options):
    """On the daemon's machine the process decides, with a key and without: root sees all, another user sees nothing of others."""
    d = rdzv.daemon(*options)
    with Native(d.port) as n:
        n.hello(job="seen")
        n.expect("WELCOME")
        status, text = get(d, "/status")
        assert status == 200 and [j["job"] for j in json.loads(text)["jobs"]] == ["seen"]
        assert json.loads(get(d, "/status", host="localhost")[1])["jobs"]
        assert from_afar(d, "/status")[0] == (403 if options else 401)
        assert ask(d, b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-For: 10.0.0.9\r\n\r\n")[0] != 200
        if os.geteuid() != 0:
            return
        script = f"import urllib.request as u; print(u.urlopen('http://{d.endpoint}/status').read().decode())"
        other = rdzv.spawn("/usr/bin/python3", "-c", script, user=65534, group=65534, extra_groups=[])
        assert other.exit() == 0 and is_empty("\n".join(other.out)), other


def test_refused(rdzv):
    d = rdzv.daemon()
    whole = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    assert ask(d, whole + whole)[0] == 400  # pipelining
    assert ask(d, b"GET /healthz HTTP/3.9\r\n\r\n")[0] == 505
    assert ask(d, b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 100000)[0] == 431
    assert ask(d, b"GET /\x1b[31m HTTP/1.0\r\n\r\n")[0] == 400
    d.expect(r"GET /\\x1b\[31m")  # escaped in the log
    assert get(d, "/healthz") == (200, "ok\n")


def test_slow_clients(rdzv):
    """A request may come in many pieces; one that does not end is answered after ten seconds, and nobody waits for it meanwhile."""
    d = rdzv.daemon()
    began = time.monotonic()
    slow = [socket.create_connection(("127.0.0.1", d.port)) for _ in range(50)]
    for s in slow:
        s.sendall(b"GET /heal")
    with socket.create_connection(("127.0.0.1", d.port)) as s:
        for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n":
            s.sendall(bytes([byte]))
            time.sleep(0.002)
        assert s.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert get(d, "/readyz") == (200, "ok\n")
    slow[0].close()  # in the middle of it
    slow[1].settimeout(15 * SLOW)
    assert slow[1].recv(100).startswith(b"HTTP/1.1 408 Request Timeout")
    assert 9 < time.monotonic() - began
    for s in slow:
        s.close()
    assert get(d, "/healthz") == (200, "ok\n")


def test_ready_depends_on_the_state_folder(rdzv, small_disk):
    d = rdzv.daemon("--state-dir", small_disk / "state", "--socket", rdzv.tmp / "s")
    held = []

    def seal(job):
        held.append(Native(d.port))
        held[-1].hello(job=job)
        held[-1].started()

    seal("before")
    assert get(d, "/readyz") == (200, "ok\n")
    fill = os.open(small_disk / "fill", os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.write(fill, bytes(4096))
    except OSError:
        pass
    for i in range(100):
        if get(d, "/readyz")[0] != 200:
            break
        seal(f"job-{i}")
    status, text = get(d, "/readyz", token=sealed.Key.parse(rdzv.key).token())
    assert status == 503 and text.startswith("not ready: --state-dir: ") and "no space left" in text.lower(), text
    assert from_afar(d, "/readyz")[::2] == (503, "not ready\n")
    assert get(d, "/healthz") == (200, "ok\n")
    os.close(fill)
    os.unlink(small_disk / "fill")
    # Nothing happens to any job; it is tried again all the same.
    until("it is ready again", lambda: get(d, "/readyz") == (200, "ok\n"), 12)
    d.expect("state: everything is on the disk again")
    assert f'"job":"job-{i - 1}"' in (small_disk / "state/rdzvd.state").read_text()
    for n in held:
        n.close()
    d.end(signal.SIGTERM)
