# SPDX-License-Identifier: Apache-2.0
"""agent.conf, the site's defaults: which settings they are, what overrides them, and how a mistake is told."""

import re

from harness import AGENT, BUILD, TOP

EXAMPLE = BUILD / "deploy/manual/agent.conf"


def conf(rdzv, text, mode=0o644):
    file = rdzv.tmp / "agent.conf"
    file.write_text(text)
    file.chmod(mode)
    return {"RDZV_AGENT_CONF": str(file)}


def explain(rdzv, env, *args):
    """{setting: (value, source)}"""
    a = rdzv.agent(*args, "--explain", "--", "true", env=env)
    assert a.exit() == 0, a
    return {name: (value, source) for name, value, source in re.findall(r"^(\S+) (.*?)(?:  # (.*))?$", "\n".join(a.out), re.M)}


def test_a_line_counts_unless_something_stronger_says_otherwise(rdzv):
    env = conf(rdzv, "# ours\nlease = 20s\nmax-restarts = 7 # seven\nstop-timeout = 11s\njoin-timeout = 3m\nhang-watch = output\nrepeat-limit = 4\npty = yes\n")
    at = env["RDZV_AGENT_CONF"]
    said = explain(rdzv, {**env, "PET_MAX_RESTARTS": "5", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "33"}, "--rdzv-conf", "join_timeout=70")
    assert said["lease"] == ("20", f"{at}:2")
    assert said["max-restarts"] == ("5", "PET_MAX_RESTARTS=5")
    assert said["stop-timeout"] == ("33", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=33")
    assert said["join-timeout"] == ("70", "")
    assert said["hang-watch"] == ("output", f"{at}:6")
    assert said["repeat-limit"] == ("4", f"{at}:7")
    assert said["pty"] == ("yes", f"{at}:8") and explain(rdzv, env, "--pty=no")["pty"] == ("no", "")
    assert explain(rdzv, {**env, "RDZV_AGENT_LEASE": "8s"})["lease"] == ("8", "RDZV_AGENT_LEASE=8s")
    assert explain(rdzv, env, "--lease", "9s")["lease"] == ("9", "")
    assert explain(rdzv, {"RDZV_AGENT_CONF": ""})["lease"] == ("5", "")


def test_it_holds_for_a_job_and_not_for_its_workers(rdzv):
    """No note about a default that has no effect here; and a worker finds no option in its environment."""
    a = rdzv.agent("--", "sh", "-c", "env | grep RDZV_AGENT_CONF; exit 3", env=conf(rdzv, "max-restarts = 0\nhang-start-timeout = 2m\n"))
    assert a.exit() == 3 and a.says("0 of 0 restarts used") and not a.says("no effect") and a.out == [], a


def test_other_hosts_are_reached_as_the_site_says(rdzv):
    env = conf(rdzv, "ssh = ssh -p 2222\n")
    said = explain(rdzv, env, "--hosts", "a,b")
    assert said["ssh"] == ("ssh -p 2222", f"{env['RDZV_AGENT_CONF']}:1")


def test_a_mistake_ends_it(rdzv):
    for text, mode, sentence in (
        ("\nleese = 3s\n", 0o644, ":2: unknown option leese: did you mean lease?"),
        ("lease = soon\n", 0o644, ":1: lease=soon: not a time: write 500ms, 30s, 5m or 2h"),
        ("nnodes = 2\n", 0o644, ":1: nnodes cannot be a default for all jobs: remove the line, and give it with each job"),
        ("lease = 9s\n", 0o666, " can be changed by every user, and decides what runs here: chmod o-w "),
    ):
        env = conf(rdzv, text, mode)
        a = rdzv.agent("--", "true", env=env)
        assert a.exit() == 64 and f"{env['RDZV_AGENT_CONF']}{sentence}" in a.err[0], a
        assert rdzv.agent("--version", env=env).exit() == 0
    a = rdzv.agent("--", "true", env={"RDZV_AGENT_CONF": "/nowhere/agent.conf"})
    assert a.exit() == 64 and a.says("RDZV_AGENT_CONF=/nowhere/agent.conf cannot be read: No such file"), a


def test_the_page_shows_such_a_file(rdzv):
    page = (TOP / "deploy/guide/operating.md").read_text()
    text = re.search(r"<!-- begin site conf -->\n```\n(.*?)```", page, re.S)[1]
    env = conf(rdzv, text)
    shown = re.search(r"`lease (\d+)  # /etc/rdzv/agent.conf(:\d+)`", page)
    assert explain(rdzv, env)["lease"] == (shown[1], env["RDZV_AGENT_CONF"] + shown[2])


def test_the_example_is_a_file_that_the_agent_takes(rdzv):
    """As it is, and each of its settings that has a value and not a word for one."""
    text = EXAMPLE.read_text()
    rows = re.findall(r"^#([a-z-]+) = (.*)$", text, re.M)
    assert len(rows) > 20 and {"lease", "ssh", "log-dir"} <= {name for name, _ in rows}
    assert not {"nnodes", "node-rank", "endpoint", "rdzv-id", "hosts", "module", "explain"} & {name for name, _ in rows}
    with_values = "".join(f"{name} = {value}\n" for name, value in rows if not re.search("[A-Z|]", value))
    assert with_values.count("\n") > 15
    for each in (text, with_values):
        said = explain(rdzv, conf(rdzv, each))
        assert said["lease"][0] == "5"
    help = rdzv.spawn(AGENT, "--help")
    assert help.exit() == 0 and help.says("RDZV_AGENT_CONF"), help
