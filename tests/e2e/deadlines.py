"""Every test has a deadline, which is a bound for hangs and not a timing: 300 s, or what the test's marker deadline(SECONDS) says.

Setup, call and teardown each have that long. A test that passes its deadline fails: the report shows where each thread stood and which processes
the test had started. The next test runs then. The alarm raises an exception in the main thread; it is repeated, because a test's own clean-up may
hang too. A thread that never comes back to Python cannot be interrupted so: then faulthandler writes every stack and ends this pytest process.

RDZV_TEST_RUNNING=FILE (tests/run sets it) holds the process, the test and the phase that run now, and later faulthandler's stacks. With it SIGTERM
means that the step has passed its own deadline: the test that runs fails in the same way, and the tests after it do not run.
"""

import contextlib
import faulthandler
import os
import re
import signal
import sys
import threading
import time
import traceback

import pytest

import harness

SECONDS, AGAIN, HARD = 300, 30, 120


def descendants():
    """A line for each process below this one: state, where the kernel has it wait, and its command."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(harness.stat(name)[1], []).append(name)
    found, stack = [], [str(os.getpid())]
    while stack:
        stack += reversed(below := children.get(stack.pop(), []))
        found += below
    lines = []
    for pid in found:
        where = ""
        with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan") as f:
            where = f.read()
        lines.append(f"  {harness.stat(pid)[0]} {where:<24} {harness.describe(pid)[:300]}\n")
    return "".join(lines) or "  none\n"


def stacks(main):
    """Where each thread stands, without pytest's own frames; main is the frame of the main thread, which a signal handler has on top."""
    names = {t.ident: t.name for t in threading.enumerate()}
    frames = {**sys._current_frames(), threading.main_thread().ident: main}
    ours = lambda frame: [f for f in traceback.extract_stack(frame) if not re.search(r"/_pytest/|/pluggy/|/pytest/|<frozen", f.filename)]
    return "".join(f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_list(ours(frame)))}" for ident, frame in frames.items())


class Deadlines:
    def __init__(self):
        self.session, self.what, self.seconds = None, "", 0
        path = os.environ.get("RDZV_TEST_RUNNING")
        self.running = open(path, "w") if path else None
        signal.signal(signal.SIGALRM, self.on_alarm)
        if path:
            signal.signal(signal.SIGTERM, self.on_term)

    def fail(self, why, frame):
        pytest.fail(f"{self.what}: {why}\n{stacks(frame)}processes that it had started:\n{descendants()}", pytrace=False)

    def on_alarm(self, signo, frame):
        if self.what:
            self.fail(f"not done within its deadline of {self.seconds} s", frame)

    def on_term(self, signo, frame):
        if self.session:
            self.session.shouldstop = "the step has passed its deadline"
        if self.what:
            self.fail("stopped, because the step has passed its deadline", frame)

    def note(self, what, seconds):
        """Writes down what runs, and has faulthandler end the process after so many seconds."""
        if self.running:
            self.running.seek(0)
            self.running.truncate()
            self.running.write(f"{os.getpid()} {int(time.time())} {what}\n")
            self.running.flush()
            faulthandler.dump_traceback_later(seconds, exit=True, file=self.running)

    @contextlib.contextmanager
    def within(self, item, phase=""):
        marker = item.get_closest_marker("deadline")
        seconds = (marker.args[0] if marker else SECONDS) * harness.SLOW
        self.note(item.nodeid + phase, seconds + HARD)
        self.what, self.seconds = item.nodeid + phase, seconds
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.what = ""
            self.note("between two tests", SECONDS)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session):
        self.session = session
        self.note("the collection of tests", SECONDS)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self, item):
        with self.within(item, " (setup)"):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        with self.within(item):
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self, item):
        with self.within(item, " (teardown)"):
            yield


def configure(config):
    """A suite's pytest_configure calls this. One pytest may run several suites."""
    if config.pluginmanager.has_plugin("deadlines"):
        return
    config.addinivalue_line("markers", "deadline(seconds): the bound for hangs of a test that may take longer than minutes")
    config.pluginmanager.register(Deadlines(), "deadlines")
