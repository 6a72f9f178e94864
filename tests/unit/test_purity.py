#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pure libraries stay pure: no forbidden include, no forbidden symbol in their objects.

usage: test_purity.py SOURCE_ROOT BUILD_ROOT LIBRARY...

A pure module is a function of (event, time). Clocks, sockets, processes, randomness and the environment come to it as data. meson's list `pure` names
the libraries. Includes are followed through our own headers. nm reads the undefined symbols from the objects of these sources in the build directory.
An object that is not built yet, or is older than its source, is compiled aside by the command that the build would use.
"""
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

# What a pure source may use all the same, and why.
ALLOWED = {
    "common/bytes.c": {"abort"},  # on a count that wraps
    "common/endpoint.c": {"arpa/inet.h", "inet_pton"},  # reads a number
    "common/json.c": {"abort"},  # on a value that only our own bug can build
    "common/mem.c": {"unistd.h", "write", "abort"},  # memory is gone: one line, and the end
    "agent/devices/scan.c": {"fopen", "fopen64", "fread", "unistd.h"},  # reads below the root that it is given; unistd.h: access
    "agent/devices/numa.c": {"sched.h"},  # its sets of CPUs
    "daemon/job/claim.c": {"time.h"},  # for the calendar
}

FORBIDDEN_INCLUDES = re.compile(
    r"uv\.h|uv/.*|time\.h|unistd\.h|pthread\.h|threads\.h|fcntl\.h|poll\.h|spawn\.h|netdb\.h|ifaddrs\.h|dlfcn\.h"
    r"|semaphore\.h|sched\.h|arpa/.*|net/.*|netinet/.*|linux/.*"
    r"|sys/(socket|time|times|un|epoll|select|mman|random|prctl|resource|stat|file|ioctl|signalfd|timerfd|eventfd)\.h"
    r"|common/(clock|file|log)\.h|common/net/.*|agent/(guard/guard|output/relay|session)\.h"
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
    pure = set(sys.argv[3:])
    sources, known = set(), set()
    for target in json.loads((build / "meson-info/intro-targets.json").read_text()):
        if target["name"] in pure and target["type"] == "static library":
            known.add(target["name"])
            sources |= {pathlib.Path(s).resolve() for group in target["target_sources"] for s in group.get("sources", [])}
    errors = [f"{name} is not a static library" for name in sorted(pure - known)]
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        commands.setdefault((pathlib.Path(entry["directory"]) / entry["file"]).resolve(), []).append(entry)
    n_objects = 0
    for source in sorted(sources):
        rel = str(source.relative_to(root))
        allowed = ALLOWED.get(rel, set())
        check_includes(root, source, allowed, errors)
        for entry in commands.get(source, []):
            with tempfile.TemporaryDirectory() as aside:
                obj = object_of(entry, source, aside)
                if obj:
                    n_objects += 1
                    check_symbols(rel, obj, allowed, errors)
                else:
                    errors.append(f"{rel} does not compile")
    errors += [f"{rel} is in no pure library: mend the list ALLOWED" for rel in ALLOWED if root / rel not in sources]
    print(f"{len(pure)} pure libraries, {len(sources)} sources, {n_objects} objects")
    for line in errors:
        print("not pure:", line)
    sys.exit(1 if errors or not n_objects else 0)


if __name__ == "__main__":
    main()
