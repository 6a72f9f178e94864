#!/usr/bin/env python3
"""Pure modules stay pure: no forbidden include, no forbidden symbol in their objects.

usage: test_purity.py SOURCE_ROOT BUILD_ROOT

A pure module is a function of (event, time). It may include the headers of other pure modules and of the C library's
plain parts (signal.h too, for the names of signals); clocks, sockets, processes, randomness and the environment come to it as data. Includes are followed through
our own headers. Undefined symbols are read with nm from the objects of these sources in the build directory; one that
is not built yet, or is older than its source, is compiled aside by the command that the build would use.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

# The one list. A pattern is a source or a family of them (core.c, core_state.c); each must match at least one file.
PURE = {
    "common/err.c": (),
    "common/buf.c": (),
    "common/bytes.c": ("abort",),  # on a count that wraps
    "common/map.c": (),
    "common/siphash.c": (),
    "common/store*.c": (),
    "common/opts*.c": (),
    "common/json.c": ("abort",),  # on a value that only our own bug can build
    "common/endpoint.c": (),
    "common/hostlist.c": (),
    "common/exit_codes.c": (),
    "common/mem.c": ("unistd.h", "write", "abort"),  # may say that memory is gone, and end
    "proto/c10d.c": (),
    "proto/c10d_session.c": (),
    "proto/codec*.c": (),
    "proto/fields*.c": (),
    "proto/frame*.c": (),
    "proto/msg*.c": (),
    "proto/nccl.c": (),
    "proto/verdict*.c": (),
    "proto/waiting.c": (),
    "daemon/core*.c": (),
    "daemon/job/job.c": (),
    "daemon/rdzv_*.c": (),
    "daemon/status*.c": (),
    "daemon/ctl/words.c": (),
    "daemon/server/http.c": (),
    "daemon/rdzv*_options.c": (),
    "agent/supervisor*.c": (),
    "agent/env*.c": (),
    "agent/advice.c": (),
    "agent/guard/watch.c": (),
    "agent/store/guests.c": (),
    "agent/cluster*.c": (),
    "agent/devices/numa.c": ("fopen", "fopen64"),  # as devices.c
    "agent/devices/gpus.c": (),
    "agent/nccl/record.c": (),
    "agent/devices/devices.c": ("fopen", "fopen64"),  # reads below the root that it is given
    "agent/failures/error_file.c": (),
    "agent/failures/oom.c": (),
    "agent/failures/verdict_json.c": (),
    "agent/supervisor/usage_error.c": (),
    "agent/options*.c": (),
    "agent/options/command_line.c": (),
    "agent/launch/forwarded_env.c": (),
    "agent/launch/hosts.c": (),
    "agent/launch/controller.c": (),
    "agent/launch/plan.c": (),
    "agent/launch/line_merger.c": (),
    "agent/output/lines.c": (),
    "agent/output/prefix.c": (),
    "agent/trainer/data/idx.c": (),
    "agent/trainer/data/sampler.c": (),
    "agent/trainer/run/slot.c": (),
    "agent/trainer/coll/ring_op.c": (),
    "agent/trainer/run/bench_table.c": (),
    "agent/trainer/checkpoint/codec.c": (),
    "agent/trainer/model/model.c": (),
    "agent/trainer/model/optim.c": (),
    "agent/trainer/gpu/datasheet.c": (),
    "agent/trainer/gpu/board.c": (),
}
# Patterns that need not match anything: parts into which a module may be split.
OPTIONAL = {"daemon/rdzv_*.c"}

FORBIDDEN_INCLUDES = re.compile(
    r"uv\.h|uv/.*|time\.h|unistd\.h|pthread\.h|threads\.h|fcntl\.h|poll\.h|spawn\.h|netdb\.h|ifaddrs\.h|dlfcn\.h"
    r"|semaphore\.h|sched\.h|arpa/.*|net/.*|netinet/.*|linux/.*"
    r"|sys/(socket|time|times|un|epoll|select|mman|random|prctl|resource|stat|file|ioctl|signalfd|timerfd|eventfd)\.h"
    r"|common/(clock|file|log)\.h|proto/conn\.h|agent/(guard|relay|session)\.h"
)
FORBIDDEN_SYMBOLS = re.compile(
    r"uv_\w+|clock(_\w+)?|time|gettimeofday|times|ftime|nanosleep|usleep|sleep|alarm|setitimer|timer_\w+"
    r"|v?fork|_Fork|clone|exec[vl]\w*|posix_spawnp?|system|popen|wait|wait3|wait4|waitid|waitpid|kill|killpg|raise|signal|sigaction"
    r"|socket|socketpair|connect|bind|listen|accept4?|send|sendto|sendmsg|recv|recvfrom|recvmsg|select|p?poll|epoll_\w+"
    r"|getaddrinfo|gethostby\w+|gethostname|getifaddrs|inet_\w+"
    r"|getenv|secure_getenv|setenv|putenv|unsetenv|environ|__environ"
    r"|s?random|s?rand|rand_r|[dlm]rand48|getrandom|getentropy|arc4random\w*"
    r"|open(64|at|at64)?|fopen(64)?|f?read|f?write|pread|pwrite|close|pipe2?|dup[23]?|unlink|rename|stdout|stderr|stdin"
    r"|v?f?printf|__v?f?printf_chk|puts|putchar|perror|exit|_exit|_Exit|abort|pthread_\w+|dlopen|dlsym|log_\w+|boot_ms|monotonic_ms|file_\w+|get(p|pp|u)id"
)


def includes(path):
    for m in re.finditer(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', path.read_text(), re.M):
        yield m.group(1), m.group(2)


def check_includes(root, source, allowed, errors):
    """Follows our own headers, so that a forbidden one cannot come in through a friendly one."""
    todo, seen = [(source, str(source.relative_to(root)))], set()
    while todo:
        path, chain = todo.pop()
        for _, name in includes(path):
            if FORBIDDEN_INCLUDES.fullmatch(name) and name not in allowed:
                errors.append(f"{chain} includes {name}")
            own = root / name
            if own.is_file() and name not in seen:
                seen.add(name)
                todo.append((own, f"{chain} -> {name}"))


def undefined_symbols(obj):
    out = subprocess.run(["nm", "-u", "-P", str(obj)], capture_output=True, text=True, check=True).stdout
    return {line.split()[0].split("@")[0] for line in out.splitlines() if line.strip()}


def object_of(entry, source, aside):
    """The object that compile_commands.json names for a source, up to date; None where the compiler refuses."""
    args, folder = shlex.split(entry["command"]), pathlib.Path(entry["directory"])
    at = args.index("-o") + 1
    built, out = folder / args[at], pathlib.Path(aside) / "aside.o"
    if built.is_file() and built.stat().st_mtime >= source.stat().st_mtime:
        return built
    args[at] = str(out)
    if "-MF" in args:  # the build's own notes of what depends on what are not ours to write
        args[args.index("-MF") + 1] = str(out.with_suffix(".d"))
    return out if subprocess.run(args, cwd=folder).returncode == 0 else None


def check_symbols(rel, obj, allowed, errors):
    for symbol in sorted(undefined_symbols(obj)):
        if FORBIDDEN_SYMBOLS.fullmatch(symbol) and symbol not in allowed:
            errors.append(f"{rel} uses {symbol}()")


def main():
    root, build = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        commands.setdefault((pathlib.Path(entry["directory"]) / entry["file"]).resolve(), []).append(entry)
    errors, n_objects, n_sources = [], 0, 0
    for pattern, allowed in PURE.items():
        sources = sorted(root.glob(pattern))
        if not sources and pattern not in OPTIONAL:
            errors.append(f"{pattern} names no file: mend the list in {pathlib.Path(__file__).name}")
        for source in sources:
            rel = str(source.relative_to(root))
            n_sources += 1
            check_includes(root, source, allowed, errors)
            if source not in commands:
                errors.append(f"{rel} is built by nobody")
            for entry in commands.get(source, []):
                with tempfile.TemporaryDirectory() as aside:
                    obj = object_of(entry, source, aside)
                    if obj:
                        n_objects += 1
                        check_symbols(rel, obj, allowed, errors)
                    else:
                        errors.append(f"{rel} does not compile")
    print(f"{n_sources} pure sources, {n_objects} objects looked at")
    for line in errors:
        print("not pure:", line)
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
