# SPDX-License-Identifier: Apache-2.0
"""Workers in C under a real agent, in the cases that rdzv.h states: the documented program, threads, exit, fork, exec, and versions that do not fit."""

import re
import shutil
import socket
import struct
import threading

import pytest

import pages
from harness import BUILD, SANITIZED, TOP, need
from trainer_world import HEAD, HELLO, MAGIC, REFUSED, VERSION, WELCOME

LIBRARY = BUILD / "agent/sdk/librdzv.a"
RELEASE = re.search(r'RDZV_VERSION +"(.*)"', (TOP / pages.SDK / "rdzv.h").read_text())[1]

THREADS = """
#include <pthread.h>
#include <rdzv.h>
#include <stdio.h>

enum { REPORTERS = 4, STEPS = 2000 };

static void *report(void *arg) {
  for (uint64_t step = 1; step <= STEPS; step++)
    if (rdzv_progress(arg, step, STEPS, 1.0 / (double)step, (double)rdzv_rank(arg)) || rdzv_saving(arg, step % 2) || rdzv_saved(arg, step) ||
        rdzv_resumed(arg, step))
      return arg;
  return NULL;
}

int main(void) {
  struct rdzv *r;
  pthread_t threads[REPORTERS];
  void *failed;
  int rc = rdzv_init(&r, 20000), all[2];
  if (rc) return fprintf(stderr, "%s\\n", rdzv_error(NULL)), 1;
  if (rdzv_can_checkpoint(r) || rdzv_can_rejoin(r)) return 2;
  for (int i = 0; i < REPORTERS; i++)
    if (pthread_create(&threads[i], NULL, report, r)) return 3;
  for (int i = 0; i < 300 && !rc; i++) {
    rc = rdzv_exchange(r, "x", &i, sizeof i, all, sizeof all, 20000);
    if (!rc && (all[0] != i || all[1] != i || rdzv_requested(r))) return 4;
  }
  if (rc) fprintf(stderr, "%s\\n", rdzv_error(r));
  for (int i = 0; i < REPORTERS; i++)
    if (pthread_join(threads[i], &failed) || failed) return 5;
  if (rc || rdzv_done(r)) return 6;
  rdzv_finish(r);
  return puts("no race") < 0;
}
"""

# The first argument: the end of rank 0. The other ranks end as they should.
ENDS = """
#include <rdzv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
  struct rdzv *r;
  const char *end = argv[1];
  if (rdzv_init(&r, 20000)) return fprintf(stderr, "%s\\n", rdzv_error(NULL)), 1;
  if (strcmp(end, "after exec") == 0) printf("rank %d again\\n", rdzv_rank(r)), fflush(stdout);
  if (rdzv_can_checkpoint(r) || rdzv_can_rejoin(r) || rdzv_progress(r, 1, 2, 0, 0) || rdzv_barrier(r, "all", 20000))
    return fprintf(stderr, "%s\\n", rdzv_error(r)), 2;
  if (rdzv_rank(r) == 0 && strcmp(end, "exit") == 0) exit(0);
  if (rdzv_rank(r) == 0 && strcmp(end, "fail") == 0) exit(9);
  if (strcmp(end, "exec") == 0) execl(argv[0], argv[0], "after exec", (char *)NULL);
  if (strcmp(end, "fork") == 0) {
    pid_t pid = fork();
    if (pid == 0) {
      int refused = rdzv_barrier(r, "child", 20000) && puts(rdzv_error(r)) >= 0 && !fflush(stdout);
      rdzv_finish(r);
      _exit(!refused || rdzv_init(&r, 20000) || rdzv_store_add(r, "children", 1, NULL, 20000));
    }
    int status;
    int64_t children = 0;
    if (waitpid(pid, &status, 0) != pid || status) return 3;
    if (rdzv_barrier(r, "parents", 20000) || rdzv_store_add(r, "children", 0, &children, 20000)) return 4;
    printf("%d children\\n", (int)children);
  }
  rdzv_done(r);
  rdzv_finish(r);
  return 0;
}
"""


def compile_c(rdzv, code, *more, cc="cc"):
    (rdzv.tmp / "worker.c").write_text(code)
    flags = ["-fsanitize=address,undefined"] if SANITIZED and LIBRARY in more else []
    assert rdzv.spawn(cc, "-g", *flags, "-I", TOP / pages.SDK, "worker.c", *more, "-o", "worker").exit(60) == 0, rdzv
    return rdzv.tmp / "worker"


def sources(root):
    return [f for pattern in pages.SDK_SOURCES for f in sorted(root.glob(pattern))]


def guides_worker():
    return pages.c_block("deploy/guide/worker-in-c.md", "int main")


def test_the_documented_program(rdzv):
    worker = compile_c(rdzv, guides_worker(), LIBRARY)
    a = rdzv.agent("--standalone", "--nproc", 3, "--", worker)
    assert a.exit(30) == 0, a
    for rank in range(3):
        a.expect(rf"rank {rank} of 3 on node 0: all ranks add up to 3$")


def test_threads(rdzv):
    """rdzv.h says what threads may call; ThreadSanitizer looks on."""
    need("clang")
    worker = compile_c(rdzv, THREADS, "-fsanitize=thread", "-O1", "-I", TOP, *sources(TOP), "-lpthread", cc="clang")
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--", worker, env={"TSAN_OPTIONS": "halt_on_error=1:exitcode=66"})
    assert a.exit(90) == 0, a
    assert a.text.count("no race") == 2 and not a.says("ThreadSanitizer"), a


def test_exit_without_done(rdzv):
    """The exit code decides."""
    worker = compile_c(rdzv, ENDS, LIBRARY)
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--", worker, "exit")
    assert a.exit(30) == 0, a
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--", worker, "fail")
    assert a.exit(30) == 9 and a.says(r"rank 0 \(local 0\) on \S+ pid \d+, exited with code 9"), a
    rdzv.gone()


def test_exec(rdzv):
    worker = compile_c(rdzv, ENDS, LIBRARY)
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--", worker, "exec")
    assert a.exit(30) == 0, a
    assert a.says("rank 0 again") and a.says("rank 1 again"), a


def test_fork(rdzv):
    worker = compile_c(rdzv, ENDS, LIBRARY)
    a = rdzv.agent("--standalone", "--nproc", 2, "--max-restarts", 0, "--", worker, "fork")
    assert a.exit(30) == 0, a
    assert a.text.count("2 children") == 2, a
    m = a.expect(r'barrier "child": process (\d+) was forked from process (\d+), which has this context; call rdzv_init in the new one')
    assert m[1] != m[2]


# Versions. --------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [VERSION - 1, VERSION + 1])
def test_a_library_of_another_version(rdzv, other):
    """A container has a library of another release than the node: its sources with another version, under the real agent."""
    for place in pages.SDK, "proto", "common":
        shutil.copytree(TOP / place, rdzv.tmp / place)
    for name, old, new in ("wire.h", f"SDK_VERSION = {VERSION}", f"SDK_VERSION = {other}"), ("rdzv.h", f'"{RELEASE}"', '"9.8.7"'):
        path = rdzv.tmp / pages.SDK / name
        text = path.read_text()
        assert text.count(old) == 1, name
        path.write_text(text.replace(old, new))
    worker = compile_c(rdzv, guides_worker(), "-I", rdzv.tmp, *sources(rdzv.tmp))
    a = rdzv.agent("--standalone", "--nproc", 1, "--max-restarts", 0, "--verbose", "--", worker)
    assert a.exit(30) == 1, a
    a.expect(rf"librdzv 9\.8\.7 speaks version {other} of the workers' protocol, and this rdzv-agent version {VERSION}; use librdzv and rdzv-agent of")
    a.expect(rf"the workers' socket: worker process \d+: librdzv 9\.8\.7 speaks version {other} of the workers' protocol, and rdzv-agent {RELEASE} "
             rf"version {VERSION}; install librdzv {RELEASE} where the worker runs$")


@pytest.mark.parametrize("kind", [REFUSED, WELCOME])
@pytest.mark.parametrize("other", [VERSION - 1, VERSION + 1])
def test_an_agent_of_another_version(rdzv, other, kind):
    """An agent of another release refuses in its own words, or greets in its own form; the library names both versions."""
    worker = compile_c(rdzv, guides_worker(), LIBRARY)
    name, heard = f"rdzv-other-{id(rdzv)}", []

    def serve():
        conn, _ = listener.accept()
        with conn:
            heard.append(conn.recv(4096))
            conn.send(HEAD.pack(MAGIC, other, kind) + (struct.pack("<i256s", -71, b"no") if kind == REFUSED else b"\1" * 500))
            conn.recv(4096)

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind("\0" + name)
        listener.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        p = rdzv.spawn(worker, env={"RDZV_AGENT_SOCKET": "@" + name, "RDZV_ROUND": "1", "RDZV_LOCAL_RANK": "0"})
        assert p.exit(20) == 1, p
        thread.join(10)
    p.expect(rf"^hello to the agent: librdzv {RELEASE} speaks version {VERSION} of the workers' protocol, and this rdzv-agent version {other}; "
             "use librdzv and rdzv-agent of one release in the worker's environment and on the node$")
    assert heard[0].startswith(HEAD.pack(MAGIC, VERSION, HELLO) + RELEASE.encode() + b"\0")


def test_the_guides_sentence():
    """As the library writes it."""
    sentence = re.search(r"^hello to the agent: .*", (TOP / "deploy/guide/worker-in-c.md").read_text(), re.M)[0]
    assert f"librdzv {RELEASE} speaks version {VERSION} of the workers' protocol, and this rdzv-agent version {VERSION + 1}; use librdzv" in sentence
    written = re.sub(r'"\s*"', "", (TOP / pages.SDK / "rdzv_agent.c").read_text())
    assert re.search(r'"librdzv " RDZV_VERSION "?( speaks .*?)"', written)[1].replace("%d", str(VERSION)).replace("%u", str(VERSION + 1)) in sentence
