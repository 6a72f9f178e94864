# SPDX-License-Identifier: Apache-2.0
"""Progress in the status of a TrainJob: agents with the variables that Kubeflow Trainer gives to its pods, and a server that takes what its API describes.

The server is ours. It has Trainer's path, asks for a token and has a certificate of an authority of its own."""

import http.server
import json
import os
import re
import ssl
import subprocess
import threading

import pytest

import harness
from harness import BUILD, TRAINER, until

JOB = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/train/status"
pytestmark = pytest.mark.skipif(not os.path.exists(TRAINER), reason="wants rdzv-trainer, whose workers report their steps")


def certificate(folder, name):
    """An authority and a key, which is its own certificate; for localhost."""
    crt, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(crt), "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"], check=True, capture_output=True)
    return crt, key


class Trainer:
    """Answers with `answer`: a status, or None to hold whoever asks until the end."""

    def __init__(self, folder):
        self.crt, self.key = certificate(folder, "trainer")
        self.token = folder / "token"
        self.token.write_text("first.token\n")
        self.got, self.answer, self.over = [], 200, threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((self.path, self.headers["Authorization"], self.headers["Content-Type"], json.loads(body)))
                if outer.answer is None:
                    outer.over.wait(120)
                    return
                self.send_response(outer.answer)
                if outer.answer == 307:
                    self.send_header("Location", f"https://localhost:{outer.port}{JOB}")
                self.end_headers()
                self.wfile.write(b'{"message": "Forbidden"}')

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.crt, self.key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def env(self):
        return {"KUBEFLOW_TRAINER_SERVER_URL": f"https://localhost:{self.port}{JOB}", "KUBEFLOW_TRAINER_SERVER_CA_CERT": str(self.crt), "KUBEFLOW_TRAINER_SERVER_TOKEN": str(self.token)}

    def last(self):
        return self.got[-1][3]["trainerStatus"]

    def close(self):
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def trainer(tmp_path):
    if harness.SANITIZED:
        pytest.skip("wants programs without a sanitizer, which libcurl's libraries do not suit")
    if subprocess.run([BUILD / "agent/rdzv-kubeflow", "a", "b", "c"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout.startswith("this rdzv was built without libcurl"):
        pytest.skip("built without libcurl")
    (tmp_path / "trainer").mkdir()
    t = Trainer(tmp_path / "trainer")
    yield t
    t.close()


STEPS = ("--nproc", 1, "--", "--steps", 40, "--throttle", 40)


def test_a_job_reports_its_progress(rdzv, trainer):
    """From its first step to 100 per cent at the end, by the agent of node rank 0 alone, with the token that is there at that time."""
    d = rdzv.daemon()
    agents = [rdzv.agent("--endpoint", d.endpoint, "--nnodes", 2, "--node-rank", i, "--nproc", 1, "--", "--steps", 70, "--throttle", 10, env={**trainer.env, "X": str(i)}) for i in range(2)]
    until(lambda: f"a first report:\n{rdzv}", lambda: trainer.got)
    trainer.token.write_text("second.token\n")
    assert [a.exit(90) for a in agents] == [0, 0], rdzv
    last = trainer.last()
    assert last["progressPercentage"] == 100 and last["estimatedRemainingSeconds"] == 0, last
    metrics = {m["name"]: m["value"] for m in last["metrics"]}
    assert metrics["step"] == metrics["total_steps"] == "70" and float(metrics["loss"]) > 0
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", last["lastUpdatedTime"])
    assert {g[0] for g in trainer.got} == {JOB} and {g[2] for g in trainer.got} == {"application/json"}
    assert trainer.got[0][1] == "Bearer first.token" and trainer.got[-1][1] == "Bearer second.token"
    percents = [g[3]["trainerStatus"]["progressPercentage"] for g in trainer.got]
    assert percents == sorted(percents) and percents[0] < 100, percents
    assert not any(a.says("Kubeflow") for a in agents), rdzv


def test_a_server_that_does_not_answer_holds_nobody(rdzv, trainer):
    """The job ends as ever, with its own exit code, while the request still waits."""
    trainer.answer = None
    a = rdzv.agent(*STEPS, env=trainer.env)
    assert a.exit() == 0 and a.says("job .* is done"), a
    assert len(trainer.got) == 1, trainer.got


@pytest.mark.parametrize("what", ["403", "307", "an authority of another", "no token", "nobody"])
def test_a_report_that_fails_gets_one_line(rdzv, trainer, what):
    """The job goes on, and ends with 0."""
    env = trainer.env
    if what.isdigit():
        trainer.answer = int(what)
        sentence = rf"answered {what}: \{{.*Forbidden"
    elif what == "no token":
        env["KUBEFLOW_TRAINER_SERVER_TOKEN"] = str(rdzv.tmp / "missing")
        sentence = "missing cannot be read: No such file or directory"
    elif what == "nobody":
        env["KUBEFLOW_TRAINER_SERVER_URL"] = f"https://localhost:{harness.free_port()}{JOB}"
        sentence = "https://localhost:.*: .*(connect|refused)"
    else:
        env["KUBEFLOW_TRAINER_SERVER_CA_CERT"] = str(certificate(rdzv.tmp, "other")[0])
        sentence = "https://localhost:.*: .*certificate"
    a = rdzv.agent(*STEPS, env=env)
    assert a.exit() == 0, a
    (line,) = [l for l in a.err if "Kubeflow Trainer" in l]
    assert re.search(f"progress does not reach Kubeflow Trainer: .*{sentence}.*; the job goes on, and the agent tries again", line, re.I), line
    assert what != "307" or len(trainer.got) <= 2, "a first report and a last one: no redirect is followed"


def test_half_of_the_variables(rdzv, trainer):
    for name in "KUBEFLOW_TRAINER_SERVER_TOKEN", "KUBEFLOW_TRAINER_SERVER_CA_CERT":
        a = rdzv.agent(*STEPS, env={k: v for k, v in trainer.env.items() if k != name})
        assert a.exit() == 0 and a.says(f"KUBEFLOW_TRAINER_SERVER_URL is set, but not {name}: progress is not reported to Kubeflow Trainer"), a
    a = rdzv.agent(*STEPS, env={**trainer.env, "KUBEFLOW_TRAINER_SERVER_URL": f"http://localhost:{trainer.port}{JOB}"})
    assert a.exit() == 0 and a.says("KUBEFLOW_TRAINER_SERVER_URL does not begin with https://: progress is not reported"), a
    assert not trainer.got


def test_a_job_that_fails_keeps_its_last_progress(rdzv, trainer):
    """It does not claim 100 per cent."""
    a = rdzv.agent("--nproc", 1, "--max-restarts", 0, "--", "--steps", 100000, "--throttle", 20, env=trainer.env)
    until(lambda: f"a first report:\n{a}", lambda: trainer.got)
    os.kill(rdzv.await_workers(1)[0], 9)
    assert a.exit() == 137, a
    assert trainer.last().get("progressPercentage") == 0, trainer.got
