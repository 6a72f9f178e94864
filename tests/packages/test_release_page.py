# SPDX-License-Identifier: Apache-2.0
"""The commands of the page on releases that take seconds, in a copy of the sources; test_release.py has the long one. And the files below .github."""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import pages
from harness import TOP, VERSION, need

PAGE = "deploy/guide/releases.md"
GITHUB = TOP / ".github"


@pytest.fixture
def copy(tmp_path, tools):
    tools.run(TOP / "deploy/sources", tmp_path / "rdzv")
    return tmp_path / "rdzv"


def test_the_version(copy, tools):
    (command,) = pages.lines(PAGE, "set")
    tools.run("sh", "-c", command, cwd=copy)
    new = command.split()[-1]
    done = subprocess.run([copy / "deploy/version"], capture_output=True, text=True)
    assert new != VERSION and done.stderr.splitlines()[0] == f'deploy/version: NEWS.md: there is no section "## {new} (unreleased)" or "## {new} (YYYY-MM-DD)"', done
    assert f"version: '{new}'" in (copy / "meson.build").read_text()


def test_the_abi(copy, tools):
    """The description is renewed after a function was added, and not after one was removed."""
    need("abidw")
    (command,) = pages.lines(PAGE, "abi")
    abi, header, source, functions = (copy / "agent/sdk" / name for name in ("librdzv.abi", "rdzv.h", "rdzv.c", "librdzv.map"))
    before = abi.read_text(), header.read_text(), functions.read_text()
    header.write_text(before[1].replace("struct rdzv;\n", "struct rdzv;\nRDZV_API int rdzv_more(void);\n", 1))
    source.write_text(source.read_text() + "\nint rdzv_more(void) {\n  return 0;\n}\n")
    functions.write_text(before[2] + "RDZV_0.2 {\nglobal:\n  rdzv_more;\n} RDZV_0.1;\n")
    tools.run("sh", "-c", command, cwd=copy)
    assert "name='rdzv_more' version='RDZV_0.2'" in abi.read_text() and "rdzv_more" not in before[0]
    functions.write_text(before[2].replace(" rdzv_saving;", ""))
    done = subprocess.run(["sh", "-c", command], cwd=copy, capture_output=True, text=True)
    assert done.returncode != 0 and "the ABI of librdzv.so.0 is broken" in done.stderr, done


def test_the_messages(copy, tools):
    """Described again after an optional field was added, and not after a required one was."""
    (command,) = pages.lines(PAGE, "wire")
    wire, header = copy / "proto/wire.txt", copy / "proto/msg.h"
    before, field = header.read_text(), "#define bye_FIELDS(F, S) F(S, STR, text, TEXT_MAX)"
    assert field in before
    header.write_text(before.replace(field, f"{field} F(S, INT, mood, 0, 7)"))
    tools.run("sh", "-c", command, cwd=copy)
    assert "field bye.mood int 0 .. 7\n" in wire.read_text()
    header.write_text(before.replace(field, f"{field} F(S, INT, mood, 0, 7) F(S, REQ_INT, wish, 0, 7)"))
    done = subprocess.run(["sh", "-c", command], cwd=copy, capture_output=True, text=True)
    assert done.returncode == 1 and "bye.wish is new and required: an older peer does not send it; make it optional" in done.stderr, done
    assert "wish" not in wire.read_text()


def test_the_sums(tmp_path, tools):
    (tmp_path / "rdzv.whl").write_text("a wheel")
    (tmp_path / "SHA256SUMS").write_text(f"{hashlib.sha256(b'a wheel').hexdigest()}  rdzv.whl\n{64 * '0'}  another.whl\n")
    (command,) = pages.lines(PAGE, "sums")
    assert "rdzv.whl: OK" in tools.run("sh", "-c", command, cwd=tmp_path)
    (tmp_path / "rdzv.whl").write_text("another")
    assert subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True).returncode == 1


def test_what_the_workflows_run():
    """The tests as CI has them, and the release; each action by the commit of a version, and no more rights than they need."""
    flows = {f.stem: yaml.safe_load(f.read_text()) for f in (GITHUB / "workflows").iterdir()}
    steps = {name: [s for job in flow["jobs"].values() for s in job["steps"]] for name, flow in flows.items()}
    assert ".ci/run" in [s.get("run") for s in steps["tests"]]
    (release,) = [s["run"] for s in steps["release"] if "deploy/release" in s.get("run", "")]
    for word in re.findall(r"--[a-z-]+", release):
        assert word in subprocess.run([TOP / "deploy/release", "--help"], capture_output=True, text=True).stdout
    assert any(s.get("uses", "").startswith("actions/attest-build-provenance@") for s in steps["release"])
    for name, flow in flows.items():
        assert flow["permissions"] == {"contents": "read"}
        assert all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", s["uses"]) for s in steps[name] if "uses" in s)


def test_owners_and_forms():
    """Owners are of files that there are; the forms' questions are answered by programs that there are; links of SECURITY.md and NEWS.md lead somewhere."""
    for line in (GITHUB / "CODEOWNERS").read_text().splitlines():
        if line and not line.startswith(("#", "*")):
            assert list(TOP.glob(line.split()[0].strip("/"))), line
    for file in (GITHUB / "SECURITY.md", TOP / "NEWS.md"):
        links = re.findall(r"\]\(([^)#]+)(?:#([\w-]+))?\)", file.read_text())
        assert links
        for target, anchor in links:
            page = (file.parent / target).resolve()
            assert page.exists(), target
            assert not anchor or anchor in {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"(?m)^#+ (.*)$", page.read_text())}, anchor
    assert {f.name for f in (GITHUB / "ISSUE_TEMPLATE").iterdir()} == {"bug.yml", "question.yml", "wish.yml", "config.yml"}


def test_the_workflow_has_the_tags():
    """tests/e2e/neighbours.py builds the last release by its tag, and goes without if there is none."""
    assert "          fetch-depth: 0\n" in (GITHUB / "workflows/tests.yml").read_text()


@pytest.mark.parametrize("planted", ["run: [.ci/run", "runs-on: ubuntu-1", "${{ nobody.knows }}"])
def test_a_mistake_in_a_workflow_is_found(planted, tmp_path):
    """The step format would fail."""
    actionlint = shutil.which("actionlint") or Path(sys.executable).parent / "actionlint"
    need("actionlint", Path(actionlint).exists())
    flow = (GITHUB / "workflows/tests.yml").read_text()
    bad = {"run: [.ci/run": flow.replace("run: .ci/run", planted), "runs-on: ubuntu-1": flow.replace("runs-on: ubuntu-24.04", planted), "${{ nobody.knows }}": flow.replace("${{ github.ref }}", planted)}[planted]
    assert bad != flow
    (tmp_path / "bad.yml").write_text(bad)
    assert subprocess.run([actionlint, GITHUB / "workflows/tests.yml"], capture_output=True).returncode == 0
    assert subprocess.run([actionlint, tmp_path / "bad.yml"], capture_output=True).returncode != 0
