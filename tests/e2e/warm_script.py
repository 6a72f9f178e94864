# SPDX-License-Identifier: Apache-2.0
"""A worker that writes down what it can observe of its own process. Started by exec and forked from a template, it must see the same."""

import atexit
import builtins
import faulthandler
import gc
import io
import json
import locale
import os
import random
import resource
import signal
import site
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import uuid
import warnings

import warm_library

try:
    import numpy
except ImportError:
    numpy = None

SEEN = {}


def see(name, value):
    SEEN[name] = value


def read(path):
    with open(path) as f:
        return f.read()


def quietly(call, *args):
    try:
        return repr(call(*args))
    except Exception as e:
        return f"{type(e).__name__}: {e}"


def status(name):
    with open("/proc/self/status") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith(name + ":")), None)


def shape(environ):
    """Without what differs from run to run."""
    changing = ("MASTER_PORT", "RDZV_AGENT_SOCKET", "NCCL_RAS_ADDR", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "RDZV_RUN_ID", "XDG_CACHE_HOME")
    seen = [(n, "..." if n in changing else v) for n, v in environ if n not in ("WARM_MODE", "WARM_OUT")]
    return sorted(seen) if "PYENV_DIR" in os.environ else seen  # pyenv's shim is a script of bash, which has an order of its own


def raw_environ():
    with open("/proc/self/environ", "rb") as f:
        return [tuple(os.fsdecode(w).partition("=")[::2]) for w in f.read().split(b"\0") if w]


def describe_stream(stream):
    return [stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.isatty(), stream.fileno(), stream.newlines,
            type(stream.buffer).__name__]


def child_environ():
    code = "import os, json; print(json.dumps(list(os.environ.items())))"
    return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def in_child(kind):
    """What a child of multiprocessing sees of its parent."""
    import multiprocessing

    context = multiprocessing.get_context(kind)
    queue = context.SimpleQueue()
    child = context.Process(target=tell, args=(queue,))
    child.start()
    got = queue.get()
    child.join()
    return [got, child.exitcode]


def tell(queue):
    queue.put([__name__, sys.argv[1:], os.environ["RANK"], os.path.basename(sys.modules["__main__"].__file__ or "")])


def frames():
    return [(f.name, f.lineno, os.path.basename(f.filename)) for f in traceback.extract_stack()]


def depth():
    try:
        return sys._getframe(50).f_code.co_name
    except ValueError as e:
        return str(e)


def observe():
    main = sys.modules["__main__"]
    # The command line.
    see("argv", sys.argv)
    see("orig_argv", getattr(sys, "orig_argv", None))
    see("cmdline", read("/proc/self/cmdline").split("\0"))
    see("comm", read("/proc/self/comm"))
    see("exe", os.readlink("/proc/self/exe"))
    see("executable", sys.executable)
    see("flags", repr(sys.flags))
    see("xoptions", dict(sys._xoptions))
    see("warnoptions", sys.warnoptions)
    see("path", sys.path)
    see("path0", sys.path[0])
    see("prefix", [sys.prefix, sys.base_prefix, sys.exec_prefix])
    see("implementation", repr(sys.implementation.cache_tag))
    # The main module.
    see("main names", sorted(n for n in vars(main)))
    see("main file", getattr(main, "__file__", None))
    see("main spec", repr(getattr(main, "__spec__", None) and main.__spec__.name))
    see("main package", repr(getattr(main, "__package__", 0)))
    see("main loader", type(main.__loader__).__name__)
    see("main cached", repr(getattr(main, "__cached__", 0)))
    see("main builtins", main.__builtins__ is builtins)
    see("main doc", main.__doc__)
    see("frames", frames())
    see("depth", depth())
    see("recursion", sys.getrecursionlimit())
    # The environment.
    see("environ", shape(os.environ.items()))
    see("environ type", type(os.environ).__name__)
    see("argv type", [type(sys.argv).__module__, type(sys.argv).__name__])
    modules = {name: m for name, m in sorted(sys.modules.items()) if name.partition(".")[0] in ("sys", "os", "json", "inspect", "types", "decimal")}
    see("module types", {name: [str(type(m)), isinstance(m, types.ModuleType), type(m) is types.ModuleType] for name, m in modules.items()})
    see("raw environ", shape(raw_environ()))
    see("child's environ", sorted(shape(child_environ())))
    # The process.
    see("session", os.getsid(0) == os.getpid())
    see("group", os.getpgid(0) == os.getpid())
    see("parent", read(f"/proc/{os.getppid()}/comm"))
    see("umask", status("Umask"))
    see("nice", os.getpriority(os.PRIO_PROCESS, 0))
    see("scheduler", os.sched_getscheduler(0))
    see("affinity", sorted(os.sched_getaffinity(0)))
    see("limits", [(n, resource.getrlimit(getattr(resource, n))) for n in sorted(dir(resource)) if n.startswith("RLIMIT_")])
    see("cgroup", read("/proc/self/cgroup"))
    see("oom", read("/proc/self/oom_score_adj"))
    see("cwd", os.getcwd())
    see("user", [os.getresuid(), os.getresgid(), os.getgroups()])
    see("threads", status("Threads"))
    see("threads of Python", [threading.current_thread().name, threading.current_thread() is threading.main_thread(), threading.active_count()])
    see("native id", threading.get_native_id() == os.getpid())
    see("dumpable", status("CoreDumping"))
    see("no new privileges", status("NoNewPrivs"))
    see("seccomp", status("Seccomp"))
    see("capabilities", status("CapEff"))
    see("children", read(f"/proc/self/task/{os.getpid()}/children"))
    see("descriptors", sorted((int(n), os.readlink(f"/proc/self/fd/{n}").split(":")[0].rstrip("0123456789")) for n in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{n}")))
    with open(os.devnull) as f:
        see("next descriptor", f.fileno())
    # Signals.
    see("blocked", [status(n) for n in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")])
    see("handlers", {s.name: repr(signal.getsignal(s)).split(" at ")[0] for s in signal.valid_signals() if isinstance(s, signal.Signals)})
    import ctypes

    death = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(death))
    see("parent death signal", death.value)
    see("faulthandler", faulthandler.is_enabled())
    # Streams, locale, warnings.
    for name in ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__"):
        see(name, describe_stream(getattr(sys, name)))
    see("same streams", [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__])
    see("buffer size", [os.fstat(1).st_blksize, io.DEFAULT_BUFFER_SIZE])
    see("locale", [locale.setlocale(locale.LC_ALL, None), locale.getpreferredencoding(False), sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()])
    see("warnings", [(f[0], f[2].__name__, str(f[1]), str(f[3])) for f in warnings.filters])
    see("hooks", [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.unraisablehook is sys.__unraisablehook__])
    see("meta path", [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path])
    see("path hooks", [getattr(f, "__name__", type(f).__name__) for f in sys.path_hooks])
    see("trace", [sys.gettrace(), sys.getprofile(), sys.getswitchinterval()])
    see("gc", [gc.isenabled(), gc.get_threshold(), gc.get_debug()])
    see("own modules", sorted(n for n in sys.modules if n in ("sitecustomize", "usercustomize", "template", "warm_helper")))
    see("site", [site.ENABLE_USER_SITE, "site" in sys.modules])
    see("import beside the script", quietly(lambda: __import__("warm_helper").WHO))
    see("missing module", quietly(__import__, "no_such_module_here"))
    see("a library's random numbers", warm_library.SEEDED.random())
    see("tempfile", [tempfile.gettempdir(), len(os.path.basename(tempfile.mktemp()))])
    see("uuid", [uuid.uuid1().version, uuid.uuid4().version, uuid.getnode()])
    see("multiprocessing fork", in_child("fork"))
    if os.path.basename(main.__file__) != "__main__.py":  # Python's own limit
        see("multiprocessing spawn", in_child("spawn"))
        see("multiprocessing forkserver", in_child("forkserver"))
    see("pipe of a shell", subprocess.run("echo $RANK; cat /proc/$$/comm", shell=True, capture_output=True, text=True).stdout)


def draws():
    """Numbers that no two processes share."""
    out = {"random": random.random(), "random of a library": warm_library.BY_CHANCE.random(), "uuid": str(uuid.uuid4()), "tempfile": tempfile.mktemp()}
    if "multiprocessing.process" in sys.modules:
        out["authkey"] = sys.modules["multiprocessing.process"].current_process().authkey.hex()
    if numpy:
        out["numpy"] = numpy.random.random()
    return out


def write():
    with open(f"{os.environ['WARM_OUT']}/{os.environ['WARM_MODE']}.{os.environ['RANK']}.json", "w") as f:
        json.dump({"seen": SEEN, "draws": DRAWS, "parents": [os.getppid(), os.getpid()], "modules": len(sys.modules)}, f)


if __name__ == "__main__":
    random.seed()
    DRAWS = draws()
    observe()
    write()
    atexit.register(print, "at exit")
    print("to stdout", end="")
    print("to stderr", file=sys.stderr)
    print(" and on")
    end = os.environ["WARM_END"]
    if end == "raise":

        def inner():
            raise ValueError("as told")

        inner()
    elif end == "exit":
        sys.exit(7)
    elif end == "exit text":
        sys.exit("leaving with a text")
    elif end == "signal":
        os.kill(os.getpid(), signal.SIGUSR1)
    elif end == "abort":
        faulthandler.enable()
        sys.stdout.flush()
        os.abort()
    elif end == "interrupt":
        signal.raise_signal(signal.SIGINT)
    elif end == "exception group":
        try:
            raise KeyError("first")
        except KeyError:
            raise RuntimeError("second")
