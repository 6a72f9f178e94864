# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus, as Debian has it, on loopback; and the text that it scrapes."""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from harness import TOP, free_port, need, until

SCRAPE = TOP / "deploy/prometheus/scrape.yml"
ALERTS = TOP / "deploy/prometheus/alerts.yml"
SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def listed():
    """Of METRIC_LIST: name -> (type, labels, meaning)."""
    text = (TOP / "daemon/core/metrics.h").read_text()
    text = text[text.index("#define METRIC_LIST(") : text.index("/* The states of rdzv_nodes")].replace("\\\n", " ")
    rows = re.findall(r'M\(\w+,\s+(\w+),\s+(\w+),\s+"([^"]*)",\s+"([^"]*)"\s*\)', text)
    return {name: (kind, labels.split(), meaning) for name, kind, labels, meaning in rows}


def labels_of(name):
    """The label names that a series of this metric has, but `le`."""
    labels = listed()[name][1]
    return {label for label in labels if label != "-"} | (set() if "-" in labels else {"job", "uid"})


def node_states():
    text = (TOP / "daemon/core/metrics.h").read_text().replace("\\\n", " ")
    return re.findall(r'N\(\w+, "(\w+)", "([^"]+)"\)', text)


def buckets():
    """Of BUCKET_LIST: [(word, meaning)]."""
    text = (TOP / "proto/msg.h").read_text()
    text = text[text.index("#define BUCKET_LIST(X)") :].split("\n\n", 1)[0]
    return re.findall(r"X\(\w+, (\w+)\)\s*/\* (.*?) \*/", text)


def parse(text):
    """[(name, {label: value}, number)] of the samples."""
    found = []
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, number = SAMPLE.fullmatch(line).groups()
            found.append((name, dict(LABEL.findall(labels or "")), float(number)))
    return found


def check(text):
    """promtool has nothing to say against it."""
    need("promtool")
    p = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert (p.returncode, p.stdout) == (0, "")


class Prometheus:
    """Scrapes `targets`, {port: token}, every three seconds, which is the time that each has, as scrape.yml does; --with the alerts of alerts.yml."""

    def __init__(self, rdzv, targets):
        need("prometheus")
        jobs = []
        for port, token in targets.items():
            (rdzv.tmp / f"{port}.token").write_text(token + "\n")
            config = SCRAPE.read_text().replace("/etc/prometheus/rdzv.token", str(rdzv.tmp / f"{port}.token")).replace("head1:29400", f"127.0.0.1:{port}")
            assert str(port) in config and ".token" in config
            jobs.append(config[config.index("  - job_name") :].replace("job_name: rdzvd", f"job_name: rdzvd{port}\n    relabel_configs: [{{target_label: job, replacement: rdzvd}}]"))
        (rdzv.tmp / "prometheus.yml").write_text(f"global: {{scrape_interval: 3s, scrape_timeout: 3s, evaluation_interval: 1s}}\nrule_files: [{ALERTS}]\nscrape_configs:\n" + "\n".join(jobs))
        self.port = free_port()
        self.p = rdzv.spawn("prometheus", f"--config.file={rdzv.tmp}/prometheus.yml", f"--storage.tsdb.path={rdzv.tmp}/tsdb", f"--web.listen-address=127.0.0.1:{self.port}")
        self.p.expect("Server is ready", 30)

    def ask(self, path, **params):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(params)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as r:
                return json.load(r)["data"]
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{path} {params}: {e.read().decode()}") from None

    def query(self, expr):
        """[(labels, value)] now."""
        return [(r["metric"], float(r["value"][1])) for r in self.ask("query", query=expr)["result"]]

    def value(self, expr):
        """The only value, or None."""
        got = self.query(expr)
        assert len(got) < 2, (expr, got)
        return got[0][1] if got else None

    def await_value(self, expr, value, timeout=60):
        until(lambda: f"{expr} is {value}, and not {self.query(expr)}: {self.ask('targets')['activeTargets']}", lambda: self.value(expr) == value, timeout)

    def alerts(self):
        return {(a["labels"]["alertname"], a["labels"].get("job")) for a in self.ask("alerts")["alerts"]}

    def stop(self):
        self.p.end(15)
