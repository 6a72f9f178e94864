# SPDX-License-Identifier: Apache-2.0
"""Builds of neighbouring releases, for tests of both together: real programs, of sources with planted differences.

older   0.0.9: knows no feature, refuses their messages, knows some fields and words less.
newer   9.0.0: speaks protocol version 2, and 1 too. It has a feature more, with a message in each direction, and fields and words more, everywhere:
        in messages, records of workers, plans of --hosts and lines of the state file.
last    the last release before this commit, where the repository has its tag.

Each program of the pair must do without what the other one lacks. A neighbour that gets what it does not know refuses it, so the tests would see it.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from harness import BUILD, TOP

PROGRAMS = "agent/rdzv-agent", "agent/rdzv-devices", "agent/sdk/librdzv.so.0", "daemon/rdzvd", "daemon/rdzvctl", "daemon/claim/rdzv-claim"
VERSIONS = dict(older="0.0.9", newer="9.0.0")

OLDER = [
    ("proto/version.c", "return own + 1;", 'return "";'),
    ("proto/version.c", "return bits;", "return 0 * bits;"),
    ("proto/msg.c", "if (!is_type(f->type))", "if (!is_type(f->type) || f->type >= MSG_FACTS)"),
    ("proto/msg.h", "  F(S, BOOL, sole) ", "  F(S, LATER_BOOL, sole) "),
    ("proto/msg.h", "  F(S, INT, stayed, ", "  F(S, LATER_INT, stayed, "),
    ("proto/msg.h", "#define MSG_FIELD_NONE(name) ", "#define MSG_FIELD_LATER_BOOL MSG_FIELD_BOOL\n#define MSG_FIELD_LATER_INT MSG_FIELD_INT\n#define MSG_FIELD_NONE(name) "),
    ("proto/msg_tables.c", "#define ROW_NONE(S, member)\n", "#define ROW_NONE(S, member)\n#define ROW_LATER_BOOL(S, member)\n#define ROW_LATER_INT(S, member, lo, hi)\n"),
    ("proto/msg.h", 'X(NODE_LOST, "node-lost")', 'X(NODE_LOST, "node-gone")'),
    ("proto/msg.h", 'X(LEFT, "left")', 'X(LEFT, "went-away")'),
    ("proto/msg.h", 'X(USAGE, "usage")', 'X(USAGE, "misuse")'),
]

NEWER = [
    ("proto/version.h", "PROTO_VERSION = 1,", "PROTO_VERSION = 2,"),
    ("proto/version.h", '  X(PACE, "pace")     /* PACE */', '  X(PACE, "pace") X(TIDINGS, "tidings")'),
    ("proto/msg.c", "[MSG_PACE] = FEATURE_PACE,", "[MSG_PACE] = FEATURE_PACE, [MSG_TIDINGS] = FEATURE_TIDINGS, [MSG_GOSSIP] = FEATURE_TIDINGS,"),
    ("proto/msg.h", "  M(PACE, rank_paces, TO_DAEMON) ", "  M(PACE, rank_paces, TO_DAEMON) M(TIDINGS, tidings, TO_AGENT) M(GOSSIP, gossip, TO_DAEMON) "),
    ("proto/msg.h", "#define notice_msg_FIELDS(F, S)", "#define tidings_FIELDS(F, S) F(S, STR, mood, 20)\n#define gossip_FIELDS(F, S) F(S, STR, mood, 20)\n#define notice_msg_FIELDS(F, S)"),
    *[("proto/msg.h", f"#define {name}_FIELDS(F, S)", f"#define {name}_FIELDS(F, S) F(S, INT, mood, -7, 7)") for name in ("greeting", "hello", "welcome", "start", "settled", "end", "report", "control")],
    ("proto/msg.h", 'X(WORKER_SIGNAL, "worker-signal")', 'X(WORKER_SIGNAL, "worker-slain")'),
    ("proto/msg.h", 'X(LOST, "lost")', 'X(LOST, "vanished")'),
    ("proto/msg.h", 'X(USAGE, "usage")', 'X(USAGE, "misuse")'),
    ("daemon/server/peers.c", "m.greeting.version =", "m.greeting.mood = 3;\n  m.greeting.version ="),
    ("daemon/core/hello.c", "  jobs_send(&c->jobs, m->conn, &welcome);", "  welcome.welcome.mood = 3;\n  jobs_send(&c->jobs, m->conn, &welcome);\n  msg_init(&welcome, MSG_TIDINGS);\n  jobs_send(&c->jobs, m->conn, &welcome);"),
    ("daemon/core/core.c", "  case MSG_BYE:\n", '  case MSG_GOSSIP: job_log(m->job, LOG_INFO, "gossip came"); break;\n  case MSG_BYE:\n'),
    ("agent/supervisor/connection.c", "  h->version = PROTO_VERSION;", "  h->mood = 3;\n  h->version = PROTO_VERSION;"),
    ("agent/supervisor/connection.c", "  sup_progress_repeat(s);\n  send_heartbeat(s);", "  sup_progress_repeat(s);\n  send_heartbeat(s);\n  struct msg gossip;\n  msg_init(&gossip, MSG_GOSSIP);\n  sup_send(s, &gossip);"),
    ("agent/session.c", "  if (m->type == MSG_WELCOME) health_welcome", '  if (m->type == MSG_TIDINGS) {\n    log_info("tidings came");\n    return;\n  }\n  if (m->type == MSG_WELCOME) health_welcome'),
    ("agent/sdk/wire.h", "  SDK_PACE,\n", "  SDK_PACE,\n  SDK_CHEER,\n"),
    ("agent/sdk/wire.h", "  uint32_t local_rank;\n};\n", "  uint32_t local_rank;\n  uint64_t mood;\n};\n"),
    ("agent/sdk/wire.h", "  uint64_t saved_step; /* of the last SAVED here, in this round or before; 0: none */\n", "  uint64_t saved_step, cheers;\n"),
    ("agent/sdk/wire.h", "  double loss, samples_per_second;\n", "  double loss, samples_per_second, mood;\n"),
    ("agent/sdk/server.c", "[SDK_HELLO] = sizeof(struct sdk_hello),", "[SDK_HELLO] = offsetof(struct sdk_hello, mood), [SDK_CHEER] = sizeof(struct sdk_head),"),
    ("agent/sdk/server.c", "[SDK_PROGRESS] = sizeof(struct sdk_progress),", "[SDK_PROGRESS] = offsetof(struct sdk_progress, mood),"),
    ("agent/sdk/server.c", "  w.saved_step = c->of->saved_step;\n", "  w.saved_step = c->of->saved_step;\n  w.cheers = 1;\n"),
    ("agent/sdk/server.c", "  case SDK_HELLO: return", "  case SDK_CHEER: break;\n  case SDK_HELLO: return"),
    ("agent/sdk/rdzv.c", "  if (size < sizeof(r->is))", "  if (size < offsetof(struct sdk_welcome, cheers))"),
    ("agent/sdk/rdzv.c", "    if (type == SDK_WELCOME) return rdzv_take_welcome(r, size);", "    if (type == SDK_WELCOME && size >= sizeof(r->is) && r->record.welcome.cheers) {\n      struct sdk_head cheer = rdzv_head_of(SDK_CHEER);\n      send(r->fd, &cheer, sizeof(cheer), MSG_NOSIGNAL);\n    }\n    if (type == SDK_WELCOME) return rdzv_take_welcome(r, size);"),
    ("agent/launch/plan.c", "  json_print(&text, o);\n  json_decref(o);\n  buf_reserve", '  json_object_set_new(o, "mood", json_true());\n  json_print(&text, o);\n  json_decref(o);\n  buf_reserve'),
    ("daemon/job/state_line.c", '  json_object_set_new(v, "uid",', '  json_object_set_new(v, "mood", json_true());\n  json_object_set_new(v, "uid",'),
    ("daemon/job/state_line.c", "  jobs_save(j->jobs, job_to_json(j));", '  jobs_save(j->jobs, job_to_json(j));\n  jobs_save(j->jobs, json_pack("{s:s}", "event", "mood"));'),
]


def last_release():
    """The tag of the release before this commit; None: there is none."""
    found = subprocess.run(["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^"], cwd=TOP, capture_output=True, text=True)
    return found.stdout.strip() or None


KINDS = ["older", "newer", *(["last"] if last_release() else [])]


def sources(kind):
    """(path, bytes) of the neighbour's files."""
    if kind == "last":
        names = subprocess.run(["git", "ls-tree", "-r", "--name-only", last_release()], cwd=TOP, check=True, capture_output=True, text=True).stdout.split("\n")
        read = lambda name: subprocess.run(["git", "show", f"{last_release()}:{name}"], cwd=TOP, check=True, capture_output=True).stdout
    else:
        names = [str(p.relative_to(TOP)) for top in ("agent", "common", "daemon", "deploy", "proto") for p in sorted((TOP / top).rglob("*")) if p.is_file() and "__pycache__" not in p.parts]
        names += ["meson.build", "NEWS.md", "README.md", "LICENSE", "tests/folders.py", *(f"tests/bench/{p.name}" for p in (TOP / "tests/bench").glob("*.svg"))]
        read = lambda name: (TOP / name).read_bytes()
    return [(name, read(name)) for name in names if name]


def plant(tree, kind):
    subprocess.run(["deploy/version", "--set", VERSIONS[kind]], cwd=tree, check=True, capture_output=True)
    for name, old, new in dict(older=OLDER, newer=NEWER)[kind]:
        path = tree / name
        text = path.read_text()
        assert text.count(old) == 1, f"{name} has {text.count(old)} times: {old}"
        path.write_text(text.replace(old, new))


def build(kind):
    """A folder with the neighbour's programs, laid out as a build is. Made once for these sources, whoever asks first."""
    top = BUILD.parent / "neighbours"
    top.mkdir(exist_ok=True)
    files = sources(kind)
    digest = hashlib.sha256(repr([(name, hashlib.sha256(text).hexdigest()) for name, text in files]).encode() + Path(__file__).read_bytes()).hexdigest()
    with open(top / f"{kind}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tree, stamp = top / kind, top / f"{kind}.made"
        if stamp.exists() and stamp.read_text() == digest:
            return tree / "build"
        for name, text in files:
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o755 if text.startswith(b"#!") else 0o644
            path.write_bytes(text)
            path.chmod(mode)
        if kind != "last":
            plant(tree, kind)
        shutil.rmtree(tree / "build", ignore_errors=True)
        env = dict(os.environ, RDZV_TESTS="no", CC="ccache gcc" if shutil.which("ccache") else "gcc")
        for command in ["meson", "setup", "build", "--buildtype=debug"], ["ninja", "-C", "build", *targets(tree)]:
            done = subprocess.run(command, cwd=tree, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            assert done.returncode == 0, f"{kind}: {' '.join(map(str, command))}\n{done.stdout[-4000:]}"
        stamp.write_text(digest)
        return tree / "build"


def targets(tree):
    version = re.search(r"^  version: '(.*)',$", (tree / "meson.build").read_text(), re.M)[1]
    return [name.replace(".so.0", ".so." + version) for name in PROGRAMS]
