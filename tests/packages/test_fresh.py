# SPDX-License-Identifier: Apache-2.0
"""On machines that have nothing but what Debian 12 ships: the README's first command from a copy of the sources; the packages built there; on a second
one that has never seen the sources, the packages installed by apt, jobs run by hand, and all of it purged again without a trace.

    tests/run --only fresh"""

import os
import re

import pytest

import machine
import pages
from harness import TOP

pytestmark = pytest.mark.fresh

TEXTS = ["/usr/share/man/man8/rdzvd.8.gz", "/usr/share/man/man1/rdzv-agent.1.gz", "/usr/share/man/man1/rdzvctl.1.gz",
         "/usr/share/man/man1/rdzv-trainer.1.gz", "/usr/share/man/man7/rdzv.7.gz", "/usr/share/man/man3/librdzv.3.gz"]


def boot(base, name, tools):
    root = base.parent / name
    tools.run("cp", "-a", "--reflink=auto", base, root)
    return machine.Machine(root)


@pytest.fixture(scope="module")
def workshop(base, tools):
    """The machine with a copy of the sources."""
    m = boot(base, "workshop", tools)
    tools.run(TOP / "deploy/sources", m.root / "home/anna/rdzv")
    m.run("chown -R anna: /home/anna/rdzv")
    yield m
    m.gone()
    m.close()


def test_who_is_not_root_is_told_what_to_install(workshop):
    said = workshop.run("cd rdzv && deploy/quickstart", user="anna", fails=True)
    assert "apt-get install -y --no-install-recommends" in said and "libuv1-dev" in said, said


def test_the_first_command(workshop):
    """As root, in the sources' folder: installs, builds, trains, kills, compares."""
    command = re.search(r"^ *(deploy/quickstart)\b", (TOP / "README.md").read_text(), re.M)[1]
    said = workshop.run(f"cd /home/anna/rdzv && {command}", seconds=400)
    assert "killed by SIGKILL" in said and "the same, byte for byte" in said, said
    workshop.gone()


DEBIAN = "home/anna/rdzv/build/debian"


def test_packages_are_built(workshop):
    """By the page's command, which installs what it needs."""
    workshop.run("cd /home/anna/rdzv && " + pages.block("deploy/packages.md", "build"), seconds=400)
    assert len(list((workshop.root / DEBIAN).glob("*.deb"))) >= 5
    workshop.gone()


@pytest.fixture(scope="module")
def user(base, tools):
    """Another machine, that has never seen the sources."""
    m = boot(base, "user", tools)
    yield m
    m.gone()
    m.close()


def look(m):
    """What is on a machine: path -> what it is, without what apt and dpkg keep for themselves, caches, and what lives."""
    skip = ("var/lib/dpkg", "var/lib/apt", "var/cache", "var/log", "proc", "sys", "dev", "run", "tmp", "root/packages", "etc/ld.so.cache",
            *(f"etc/{name}{end}" for name in ("passwd", "group", "shadow", "gshadow") for end in ("", "-")), "etc/.pwd.lock")
    found = {}
    for at, folders, names in os.walk(m.root):
        rel = os.path.relpath(at, m.root)
        folders[:] = [f for f in folders if os.path.normpath(os.path.join(rel, f)) not in skip]
        for name in folders + names:
            path = os.path.normpath(os.path.join(rel, name))
            if path in skip:
                continue
            file = os.path.join(at, name)
            st = os.lstat(file)
            found[path] = os.readlink(file) if os.path.islink(file) else (st.st_mode, st.st_uid, st.st_gid, st.st_size if not os.path.isdir(file) else 0)
    for name in ("passwd", "group"):
        found[f"etc/{name}"] = (m.root / "etc" / name).read_text()
    return found


def test_packages_are_installed(user, tools):
    """As the page says, in a folder that has them. Nothing runs because it was installed."""
    tools.run("cp", "-r", user.root.parent / "workshop" / DEBIAN, user.root / "root/packages")
    user.before = look(user)
    user.run("cd packages && " + pages.block("deploy/packages.md", "install"))
    user.gone()
    assert not list((user.root / "etc/systemd").rglob("*rdzv*")), "a unit was enabled"


def test_a_job_by_hand(user):
    """As the page says, by a user without rights: a daemon, two agents, the trainer, a look at it."""
    said = user.run(pages.block("deploy/packages.md", "try"), user="anna", alone=True, seconds=120)
    assert re.search(r"try: .*2 nodes, 4 workers", said), said  # rdzvctl's
    assert "job try is done" in said, said
    user.gone()


def test_a_worker_in_c(user, tools):
    """The guide's, compiled against librdzv-dev on that machine."""
    user.run("apt-get install -q --no-install-recommends gcc libc6-dev pkg-config")
    (user.root / "home/anna/worker.c").write_text(tools.worker_in_c())
    user.run("cc worker.c $(pkg-config --cflags --libs rdzv) -o worker && rdzv-agent --standalone --nproc 2 -- ./worker", user="anna", alone=True)
    user.run("apt-get purge -q --autoremove gcc libc6-dev pkg-config && rm /home/anna/worker*")


def test_texts_are_there(user):
    listed = user.run("dpkg -L rdzv-daemon rdzv-agent rdzv-trainer librdzv-dev").splitlines()
    for page in TEXTS:
        assert page in listed and (user.root / page[1:]).stat().st_size > 500, page
    assert [at for at in listed if at.startswith("/usr/share/bash-completion/completions/rdzv")]


def test_the_user_of_the_unit(user):
    """Made where there is what makes such users, and only there; it stays until somebody removes it."""
    assert "no such user" in user.run("id rdzv", fails=True)
    user.run("apt-get install -q --no-install-recommends systemd-standalone-sysusers")
    user.run("cd packages && apt-get install -q --reinstall --no-install-recommends ./rdzv-agent_*.deb")
    assert "(rdzv)" in user.run("id rdzv")
    user.run("userdel rdzv && apt-get purge -q --autoremove systemd-standalone-sysusers")


def test_nothing_is_left_behind(user):
    """The last one: purged by the page's command."""
    user.run(pages.block("deploy/packages.md", "purge"))
    after = look(user)
    assert not user.run("dpkg -l | grep rdzv || true")
    changed = {k: (user.before.get(k), v) for k, v in after.items() if user.before.get(k) != v}
    assert not changed, "left behind, or changed"
    assert set(user.before) <= set(after), "gone"
