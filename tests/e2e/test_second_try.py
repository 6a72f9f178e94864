# SPDX-License-Identifier: Apache-2.0
"""tests/run runs a failed test once more, alone. Here in a copy of it, with planted tests that fail the first time or each time."""

import re
import shutil
import subprocess

import pytest

from harness import TOP

PLANTED = '''
import pathlib
import pytest

def fails_once(name):
    seen = pathlib.Path(__file__).parent / name
    first = not seen.exists()
    seen.touch()
    assert not first, f"{name} fails the first time"

'''
ONCE = "def test_once_{0}():\n    fails_once('once{0}')\n\n"
NEVER = "def test_never():\n    assert False, 'fails each time'\n\n"
FINE = "def test_fine():\n    pass\n\n"
SKIPS = "def test_skips_then():\n    pytest.skip('not now') if (pathlib.Path(__file__).parent / 's').exists() else fails_once('s')\n\n"


@pytest.fixture
def copy(tmp_path):
    """The runner without the tests, as if the builds had been made."""
    for path in ("tests/run", "tests/count.py", "deploy/progress.sh"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        shutil.copy(TOP / path, tmp_path / path)
    shutil.copytree(TOP / "tests/steps", tmp_path / "tests/steps")
    (tmp_path / "build/test/gcc").mkdir(parents=True)
    (tmp_path / "build/test/gcc/build.ninja").touch()
    if (TOP / "build/venv").exists():
        (tmp_path / "build/venv").symlink_to((TOP / "build/venv").resolve())
    (tmp_path / "tests/e2e").mkdir()
    (tmp_path / "tests/e2e/conftest.py").write_text(
        f"import sys\nsys.path.insert(0, '{TOP}/tests/e2e')\nimport claims\ndef pytest_runtestloop(session):\n    return claims.run(session, claims.by_file)\n")
    return tmp_path


def plant(copy, name, *tests):
    (copy / f"tests/e2e/test_{name}.py").write_text(PLANTED + "".join(tests))


def run(copy, steps="e2e"):
    """The exit status, what it printed, and the list of tests that passed at the second try: a line for each, and one that says why it failed."""
    done = subprocess.run([copy / "tests/run", "--no-install", "--only", steps], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    listed = re.search(r"^passed at the second try:\n((?:  .*\n)*)", done.stdout, re.M)
    return done.returncode, done.stdout, listed[1].splitlines() if listed else []


def test_a_test_that_passes_then_counts_as_passed_and_is_listed_with_both_outputs(copy):
    plant(copy, "a", FINE, ONCE.format(1))
    plant(copy, "b", FINE)
    rc, text, listed = run(copy)
    assert rc == 0 and text.endswith("\n3 passed, 0 failed, 0 skipped\n"), text
    assert len(listed) == 2, text
    test, first, then = re.fullmatch(r"  e2e: (\S+): first (\S+), then (\S+)", listed[0]).groups()
    assert "once1 fails the first time" in listed[1], text
    assert test == "tests/e2e/test_a.py::test_once_1"
    assert "once1 fails the first time" in (copy / first).read_text()
    assert "1 passed" in (copy / then).read_text()


def test_a_test_that_fails_twice_is_failed(copy):
    plant(copy, "a", FINE, NEVER, ONCE.format(1))
    rc, text, listed = run(copy)
    assert rc == 1 and text.endswith("\n2 passed, 1 failed, 0 skipped\n"), text
    assert len(listed) == 2 and "e2e: tests.e2e.test_a.test_never" in text, text


def test_a_test_that_is_skipped_then_has_not_passed(copy):
    plant(copy, "a", SKIPS)
    rc, text, listed = run(copy)
    assert rc == 1 and listed == [] and "0 passed, 1 failed" in text, text


@pytest.mark.parametrize("n", [3, 4])
def test_more_than_three_of_them_fail_the_run(copy, n):
    for i in range(n):
        plant(copy, f"file{i}", ONCE.format(i))
    rc, text, listed = run(copy)
    assert len(listed) == 2 * n, text
    assert (rc, text.splitlines()[-1]) == ((0, "3 passed, 0 failed, 0 skipped") if n == 3 else (1, "4 passed, 1 failed, 0 skipped")), text
    assert n == 3 or "tests/run: 4 tests passed only at the second try; 3 may" in text, text


def test_a_step_with_many_failed_tests_has_no_second_try(copy):
    plant(copy, "a", *(ONCE.format(i) for i in range(11)))
    rc, text, listed = run(copy)
    assert rc == 1 and listed == [] and text.endswith("\n0 passed, 11 failed, 0 skipped\n"), text


def test_a_file_that_cannot_be_collected_has_no_second_try(copy):
    (copy / "tests/e2e/test_a.py").write_text("import nothing_like_this\n")
    rc, text, listed = run(copy)
    assert rc == 1 and listed == [], text


@pytest.mark.skipif(not shutil.which("meson") or not shutil.which("ninja"), reason="meson or ninja is not installed")
def test_programs_of_meson_have_a_second_try_and_the_simulation_has_none(copy):
    once = copy / "once"
    once.write_text('#!/bin/sh\n[ -e "$1" ] && exit 0\ntouch "$1"\necho "$1 fails the first time"\nexit 1\n')
    once.chmod(0o755)
    (copy / "meson.build").write_text(f"""project('rdzv')
once = find_program('{once}')
test('area/once', once, args: ['{copy}/u'], suite: 'unit')
test('fine', find_program('true'), suite: 'unit')
test('random', once, args: ['{copy}/s'], suite: 'sim')
""")
    subprocess.run(["meson", "setup", copy / "build/test/asan", copy], check=True, capture_output=True, timeout=60)
    rc, text, listed = run(copy, "unit")
    assert rc == 1 and text.endswith("\n  unit: rdzv:sim / random (FAIL, exit status 1, 0 s)\n2 passed, 1 failed, 0 skipped\n") and len(listed) == 2, text
    first, then = re.fullmatch(r"  unit: rdzv:unit / area/once: first (\S+), then (\S+)", listed[0]).groups()
    assert f"{copy}/u fails the first time" in (copy / first).read_text()
    said = (copy / then).read_text()
    assert re.search("^test: +rdzv:unit / area/once$", said, re.M) and "fails the first time" not in said
