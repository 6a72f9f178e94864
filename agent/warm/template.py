# SPDX-License-Identifier: Apache-2.0
"""The template: a Python process from which workers are forked, with the modules that they would import.

The guard starts the workers' interpreter with this file as `sitecustomize`, in a zip file in memory. So it runs when the interpreter is complete,
and before it looks at its command line. In a worker, which is forked from here, the function returns, and the interpreter goes on as it would have
without us: sys.argv, sys.path[0], __main__, -m, tracebacks and frames come from the same code of CPython.

  probe:     python -c ...        proves that this Python runs this file, and reads what the script imports; then it becomes, by exec:
  template:  python -u train.py   imports what the last workers imported, then waits for SPAWN
  worker:    a fork of a fork, so that it is the guard's own child. It waits for the guard's word before it does anything

What must not be in a template is found and not guessed. After each import it is looked at what the process has read, opened and started. A module
that read a variable which differs between workers, or left something that would show in a worker, is remembered (check, what_it_keeps). Then the
template starts again without it.

What is worth importing is learned. A worker notes the name and file of each module that it imports, in memory that it shares with the template.
When nothing has happened for a moment the template imports them too, and remembers them in the user's cache folder for the next job.

A template that is not sure gives a worker back: the guard starts it by exec. The files of its modules and of the script are looked at before a
round's first fork."""

import os
import sys

MAGIC = "rdzv-warm 1"
FD = 240  # of the socket to the guard; then come the zip file, the plan, and the master of the terminal that workers have, if they have one
FAULTS_MAX = 20  # modules that are left out; then the template gives up
CACHE_FILES, CACHE_BYTES = 64, 1 << 20
NOTES_BYTES = 1 << 20
LEARN_S = 20.0  # that a round may wait while the template imports what the last one has imported
FRESH_S, FOLLOW_S = 60.0, 0.5  # so long after a fork it looks so often for what the worker has imported, and follows when that has not changed
LOOK_S = 10.0  # how often a template that waits looks whether its files have changed
PATIENCE_S = 5.0  # of a worker that waits for the guard

# Variables that differ from worker to worker or from round to round. A module that reads one at import would keep another worker's value.
PER_WORKER = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE",
              "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
              "ONEAPI_DEVICE_SELECTOR", "NVIDIA_VISIBLE_DEVICES", "NCCL_COMM_ID", "NCCL_HOSTID", "PMI_RANK", "PMIX_RANK", "MPI_LOCALRANKID")
PER_WORKER_PREFIXES = ("RDZV_", "TORCHELASTIC_", "OMPI_COMM_WORLD_", "PET_")
# Read by libraries when they are loaded, where nobody can watch.
READ_BY_LIBRARIES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "VECLIB_", "MALLOC_", "GLIBC_", "LD_", "PYTHON", "LC_", "LANG", "TZ", "LANGUAGE")
# Open files that a fork would share or could not use.
SHARED_FILES = ("socket:", "pipe:", "anon_inode:", "/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/infiniband")
# pyenv and asdf find a version there.
READ_BY_SHIMS = (".python-version", ".tool-versions")
# They look through all variables for names of their own.
READ_BY_PREFIX = ("tqdm.utils", "fsspec.config")
TORCH_SEED = 67280421310721  # of a torch.Generator that nobody has seeded
SETS_VARIABLES = ("dotenv", "environs", "decouple", "gevent", "eventlet")  # modules that a script calls before it imports others


class Fault(Exception):
    """A module that must not be in a template: name, reason."""


class Doubt(Exception):
    """There can be no template: the reason."""


def is_per_worker(name):
    return name in PER_WORKER or name.startswith(PER_WORKER_PREFIXES)


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


def read_file(path, most=1 << 20):
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while most > 0:
            part = os.read(fd, most)
            if not part:
                break
            parts.append(part)
            most -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def identity(path):
    """Another file, or a file that was written to, has another."""
    st = os.stat(path)
    return st.st_mtime_ns, st.st_size, st.st_ino


# The command line. ------------------------------------------------------------------------------------------------------------------------------


def command_of(argv):
    """What argv runs: ("script", file), ("module", name) or ("code", text). The words behind that are the script's own."""
    words = iter(argv[1:])
    for word in words:
        if word == "--" or not word.startswith("-") or word == "-":
            if word in ("-", "--"):
                break
            return "script", word
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            if letter in "mc":
                return {"m": "module", "c": "code"}[letter], letters or next(words, "")
            if letter in "WX":
                value = letters or next(words, "")
                if value.startswith("importtime"):
                    raise Doubt("-X importtime is to show each worker's imports")
                break
            if letter not in "BOPRbdqsux":
                raise Doubt(f"it has no template with -{letter}")
    raise Doubt("the command names no script")


def find_program(word, env):
    """The file that exec runs for that word."""
    if "/" in word:
        return word
    for folder in env.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder, word)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return ""


def changed_by_shim(word, given):
    """What a program between the guard and this interpreter did to the variables: what it set, what it removed. Such a program could do
    something else for each worker, so it is trusted only if it is a shim of pyenv or asdf, which picks a version."""
    path = find_program(word, given)
    if os.path.realpath(path) != os.path.realpath("/proc/self/exe") and os.path.basename(os.path.dirname(path)) != "shims":
        raise Doubt(f"{path or word} is a program that starts the interpreter")
    return {n: v for n, v in os.environ.items() if given.get(n) != v}, {n for n in given if n not in os.environ}


def is_off_by_variables(env):
    for name in ("PYTHONVERBOSE", "PYTHONPROFILEIMPORTTIME", "PYTHONINSPECT", "COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        if env.get(name):
            raise Doubt(f"{name} is set")


# Watching. ---------------------------------------------------------------------------------------------------------------------------------------


class Watch:
    """Notes which variables are read, and by which module, which modules are looked for in vain, and which sources of random numbers are seeded by
    chance."""

    def __init__(self, forbidden, random):
        watch = self
        self.plain, self.forbidden, self.hit, self.reader = type(os.environ), forbidden, "", ""
        self.random, self.by_chance, self.missed = random, {}, set()
        if random:
            self.plain_seed = random.Random.seed

            def seed(source, a=None, version=2):
                if a is None:
                    watch.by_chance[id(source)] = source
                else:
                    watch.by_chance.pop(id(source), None)
                return watch.plain_seed(source, a, version)

            self.watched_seed = seed

        class Watched(self.plain):
            __slots__ = ()

            def __getitem__(self, key):
                watch.saw(key)
                return super().__getitem__(key)

            def __contains__(self, key):
                watch.saw(key)
                return super().__contains__(key)

            def __iter__(self):
                watch.saw(None)
                return super().__iter__()

        self.watched = Watched

        # In place of sys.argv. (Another class of sys would notice the reading itself, but type(sys) makes each module, and is types.ModuleType.)
        def watched(method):
            def call(*arguments, **named):
                watch.saw_words()
                return method(*arguments, **named)

            return call

        leave = ("__class__", "__class_getitem__", "__getattribute__", "__hash__", "__init__", "__init_subclass__", "__new__", "__subclasshook__")
        self.watched_list = type("list", (list,), {n: watched(getattr(list, n)) for n in dir(list) if n not in leave and callable(getattr(list, n))})
        self.words = {}

    def find_spec(self, name, path=None, target=None):
        """The last one to be asked for a module."""
        self.missed.add(name.partition(".")[0])
        return None

    def saw_words(self):
        """The first module that looks at the script's own words: the template serves no script with others then."""
        frame = sys._getframe(2)
        self.reader = self.reader or frame.f_globals.get("__name__", "a module")

    def saw(self, key):
        if self.hit or not (key is None or is_per_worker(key) or key in self.forbidden):
            return
        frame = sys._getframe(2)
        while frame and frame.f_globals.get("__name__") in ("os", "_collections_abc", "collections.abc"):
            frame = frame.f_back
        if key is None and frame and frame.f_globals.get("__name__") in READ_BY_PREFIX:
            return
        self.hit = key or "all variables"

    def __enter__(self):
        self.hit = ""
        os.environ.__class__ = self.watched
        for name in ("argv", "orig_argv"):
            if hasattr(sys, name):
                plain = getattr(sys, name)
                self.words[name] = plain, self.watched_list(plain)
                setattr(sys, name, self.words[name][1])
        sys.meta_path.append(self)
        if self.random:
            self.random.Random.seed = self.watched_seed

    def __exit__(self, *unused):
        os.environ.__class__ = self.plain
        while self.words:
            name, (plain, watched) = self.words.popitem()
            if getattr(sys, name) is watched:
                plain[:] = list.copy(watched)
                setattr(sys, name, plain)
            fresh = self.watched_list()
            if sys.getrefcount(watched) > sys.getrefcount(fresh):  # a module keeps it
                self.reader = self.reader or "a module"
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        if self.random:
            self.random.Random.seed = self.plain_seed


def list_fds():
    fds = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            fds[int(name)] = os.readlink("/proc/self/fd/" + name)
        except OSError:
            pass
    return fds


def count_threads():
    return len(os.listdir("/proc/self/task"))


def has_children():
    return bool(read_file(f"/proc/self/task/{os.getpid()}/children"))


def holds_locks():
    mine = f" {os.getpid()} ".encode()
    return mine in read_file("/proc/locks")


def is_costly(name):
    """Not a module of Python's own library, which takes milliseconds."""
    return name.split(".")[0] not in getattr(sys, "stdlib_module_names", ())


def is_poisoned():
    """PyTorch remembers that somebody has asked CUDA for devices, also where there are none, and its forks refuse CUDA then."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    ask = getattr(cuda, "_is_in_bad_fork", None)
    if not ask:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(1 if ask() else 0)
    return os.waitpid(pid, 0)[1] != 0


def settle_threads():
    """OpenBLAS and others end their threads before a fork and make them again when they are needed."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


# What a script does before it imports. --------------------------------------------------------------------------------------------------------


def scan(kind, what, folder):
    """Lines: "import NAME", "from NAME ATTRIBUTE", "needs NAME", "sets NAME" or "sets *", "path" if it changes sys.path, "own MTIME SIZE INODE FILE" for each file that it read. It imports ast, so it runs in the probe, which keeps nothing of it."""
    import ast

    seen, todo, lines = set(), [], []

    def file_of(name):
        for path in (os.path.join(folder, *name.split(".")) + ".py", os.path.join(folder, *name.split("."), "__init__.py")):
            if os.path.isfile(path):
                return path
        return None

    def constant(node):
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    def is_environ(node):
        return (isinstance(node, ast.Attribute) and node.attr in ("environ", "environb")) or (isinstance(node, ast.Name) and node.id == "environ")

    def is_path(node):
        return isinstance(node, ast.Attribute) and node.attr == "path" and isinstance(node.value, ast.Name) and node.value.id == "sys"

    def target(node):
        for leaf in ast.walk(node):
            if isinstance(leaf, ast.Subscript) and is_environ(leaf.value):
                index = leaf.slice.value if leaf.slice.__class__.__name__ == "Index" else leaf.slice
                lines.append("sets " + (constant(index) or "*"))
            if isinstance(leaf, ast.Subscript) and isinstance(leaf.value, ast.Attribute) and leaf.value.attr == "modules":
                lines.append("sets *")
            if is_path(leaf):
                lines.append("path")

    def note(name, inside, attributes=()):
        if not name or name.split(".")[0] in sys.builtin_module_names:
            return
        path = file_of(name) or file_of(name.split(".")[0])
        if path:
            todo.append((path, None))
        elif not inside:
            lines.append("import " + name)
            lines.extend(f"from {name} {a}" for a in attributes if a != "*")
        if name.split(".")[0] in SETS_VARIABLES:
            lines.append("sets *")

    def visit(node, inside):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    note(alias.name, inside)
            elif isinstance(child, ast.ImportFrom):
                if child.level == 0:
                    note(child.module, inside, [alias.name for alias in child.names])
                    for alias in child.names:
                        if file_of(f"{child.module}.{alias.name}"):
                            note(f"{child.module}.{alias.name}", inside)
                else:
                    for alias in child.names:
                        note(((child.module + ".") if child.module else "") + alias.name, True)
            elif isinstance(child, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
                for part in getattr(child, "targets", None) or [child.target]:
                    target(part)
            elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
                name = child.func.attr
                if (name in ("setdefault", "pop") and is_environ(child.func.value)) or name in ("putenv", "unsetenv"):
                    lines.append("sets " + (constant(child.args[0]) if child.args and constant(child.args[0]) else "*"))
                elif name in ("update", "clear", "__setitem__") and is_environ(child.func.value):
                    keys = child.args[0].keys if child.args and isinstance(child.args[0], ast.Dict) else [None] if child.args else []
                    keys = [constant(k) if k else None for k in keys] + [k.arg for k in child.keywords]
                    lines.extend("sets " + (k or "*") for k in keys or [None])
                elif name in ("insert", "append", "extend") and getattr(child.func.value, "attr", "") in ("meta_path", "path_hooks"):
                    lines.append("sets *")
                elif name in ("insert", "remove", "pop", "clear", "reverse") and is_path(child.func.value):
                    lines.append("path")
            inner = inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if isinstance(child, ast.If) and any(isinstance(n, ast.Name) and n.id in ("TYPE_CHECKING",) for n in ast.walk(child.test)):
                inner = True
            visit(child, inner)

    if kind == "code":
        todo.append((None, what.encode()))
    elif kind == "module":
        path = file_of(what + ".__main__") or file_of(what)
        parts = what.split(".")
        todo.extend((p, None) for p in [path] + [file_of(".".join(parts[:i])) for i in range(1, len(parts))] if p)
        if not path:
            lines.append("import " + what.split(".")[0])
    else:
        main = os.path.join(what, "__main__.py")
        todo.append((main if os.path.isdir(what) else what, None))
    while todo and len(seen) < 400:
        path, text = todo.pop(0)
        if path in seen:
            continue
        seen.add(path)
        try:
            if text is None:
                mtime, size, inode = identity(path)
                lines.append(f"own {mtime} {size} {inode} {path}")
                text = read_file(path, 4 << 20)
            tree = ast.parse(text)
            if not seen.difference({path}):  # the script's own first lines
                for statement in tree.body:
                    if isinstance(statement, ast.Import):
                        lines.extend("needs " + alias.name for alias in statement.names)
                    elif isinstance(statement, ast.ImportFrom) and statement.level == 0:
                        lines.append("needs " + statement.module)
            visit(tree, False)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
    return lines


def rest_of(lines, word):
    return [l[len(word) + 1:] for l in lines if l.startswith(word + " ")]


def imports_of(lines):
    return list(dict.fromkeys(rest_of(lines, "import")))


# The cache. --------------------------------------------------------------------------------------------------------------------------------------


class Cache:
    """What is known of a script under an interpreter: one file of text, of the user alone."""

    def __init__(self, env, key):
        base = env.get("XDG_CACHE_HOME") or (env["HOME"] + "/.cache" if env.get("HOME") else "")
        self.folder = base + "/rdzv/warm" if base.startswith("/") else ""
        self.key = key
        number = 0xCBF29CE484222325
        for byte in key.encode(errors="surrogateescape"):
            number = ((number ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        self.path = f"{self.folder}/{number:016x}"
        self.seconds, self.skip, self.modules = 0.0, {}, {}

    def load(self):
        """False: there is nothing that can be trusted."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError):
            return False
        try:
            st = os.fstat(fd)
            if st.st_uid != os.geteuid() or st.st_mode & 0o170022 != 0o100000 or st.st_size > CACHE_BYTES:
                return False
            text = b""
            while len(text) <= CACHE_BYTES:
                part = os.read(fd, CACHE_BYTES)
                if not part:
                    break
                text += part
        except OSError:
            return False
        finally:
            os.close(fd)
        try:
            lines = text.decode(errors="surrogateescape").split("\n")
            if lines[:2] != [MAGIC, "key " + self.key] or lines[-2:] != [f"end {len(lines) - 4}", ""]:
                return False
            skip, modules, seconds = {}, {}, 0.0
            for line in lines[2:-2]:
                word, _, rest = line.partition(" ")
                name, _, value = rest.partition(" ")
                if word == "seconds":
                    seconds = float(name)
                elif word == "skip":
                    skip[name] = value
                elif word == "module":
                    modules[name] = value
        except ValueError:
            return False
        self.seconds, self.skip, self.modules = seconds, skip, modules
        return True

    def save(self):
        if not self.folder:
            return
        body = [f"seconds {self.seconds:.3f}"]
        body += [f"skip {n} {r}" for n, r in self.skip.items()]
        body += [f"module {n} {o}" for n, o in self.modules.items()]
        text = "\n".join([MAGIC, "key " + self.key] + body + [f"end {len(body)}", ""]).encode(errors="surrogateescape")
        if len(text) > CACHE_BYTES or b"\0" in text:
            return
        new = f"{self.path}.{os.getpid()}"
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            st = os.lstat(self.folder)
            if st.st_uid != os.geteuid() or st.st_mode & 0o170022 != 0o040000:
                return
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                write_all(fd, text)
            finally:
                os.close(fd)
            os.rename(new, self.path)
            files = sorted((os.lstat(f"{self.folder}/{n}").st_mtime, n) for n in os.listdir(self.folder))
            for _, name in files[:-CACHE_FILES]:
                os.unlink(f"{self.folder}/{name}")
        except OSError:
            try:
                os.unlink(new)
            except OSError:
                pass


def look_up(kind, what):
    """The folder from which a script imports first, and what is known of it."""
    if kind == "script":
        key = os.path.realpath(what)
        folder = key if os.path.isdir(key) else os.path.dirname(key)
    else:
        folder = os.getcwd()
        key = f"{kind} {what} {folder}" if kind == "module" else "code " + what.replace("\n", "\\n")[:4000]
    return folder, Cache(os.environ, f"{sys.executable} {sys.version_info[:3]} {sys.prefix} {key}".replace("\n", " "))


# The template. -----------------------------------------------------------------------------------------------------------------------------------


class Template:
    def __init__(self, sock, modules, argv, given_argv, given, stage):
        self.sock, self.M, self.argv, self.given_argv, self.given, self.stage = sock, modules, argv, given_argv, given, stage
        self.guard = os.getppid()
        self.kind, self.what = command_of(argv)
        is_off_by_variables(os.environ)
        self.stamps = {}
        self.baseline = set(sys.modules)
        self.at_start = self.what_a_new_one_finds()
        self.added, self.removed = changed_by_shim(given_argv[0], given)
        self.start_env = dict(os.environ)
        for name in list(os.environ):
            if is_per_worker(name):
                del os.environ[name]
        self.env_before, self.path_before, self.cwd, self.began = dict(os.environ), list(sys.path), os.getcwd(), (modules["time"].time(), modules["time"].monotonic())
        self.folder, self.cache = look_up(self.kind, self.what)
        self.known = self.cache.load()
        self.notes = modules["mmap"].mmap(-1, NOTES_BYTES)
        self.notes_read, self.unread = 0, {}

    # Words to the guard. --------------------------------------------------------------------------------------------------------------------

    def tell(self, kind, text):
        self.sock.send(kind.encode() + text.encode(errors="replace")[:150])

    # Imports. -------------------------------------------------------------------------------------------------------------------------------

    def shadows(self):
        """The names that this script's own folder has: a module of such a name is never taken from elsewhere."""
        try:
            return {n.split(".")[0] for n in os.listdir(self.folder)}
        except OSError:
            return set()

    def is_own(self, origin):
        return origin == self.folder or origin.startswith(self.folder.rstrip("/") + "/") and "/site-packages/" not in origin and "/dist-packages/" not in origin

    def check(self, name, fds):
        """Raises Fault if the import of that module left something that a fork would share or lose."""
        if self.watch.hit:
            what = self.watch.hit
            raise Fault(name, f"it reads {what}, which {'the script sets' if what in self.forbidden else 'differs between workers'}")
        for fd, link in list_fds().items():
            if fd not in fds and link.startswith(SHARED_FILES):
                raise Fault(name, f"it opens {link}")
        if has_printed(self.stage, self.M["select"]):
            raise Fault(name, "it prints when it is imported")
        for variable in self.made()[0]:
            if is_per_worker(variable):
                raise Fault(name, f"it sets {variable}, which differs between workers")
        if sys.path[:len(self.path_before)] != self.path_before:  # the script's folder comes in front of it then
            raise Fault(name, "it changes the beginning of sys.path")
        if os.getcwd() != self.cwd:
            raise Fault(name, "it changes the working directory")
        if has_children():
            raise Fault(name, "it starts a process")
        if holds_locks():
            raise Fault(name, "it holds a lock on a file")
        if count_threads() > 1:
            settle_threads()
            if count_threads() > 1:
                raise Fault(name, "it starts a thread")
        for other in self.cache.skip:
            if other in sys.modules:
                raise Fault(name, f"it imports {other}")
        for other in self.own:
            if other in sys.modules and other not in self.baseline:
                raise Fault(name, f"it imports {other}, and the script has a module of that name")

    def made(self):
        """What imports have done to the variables: what they set, what they removed."""
        return {n: v for n, v in os.environ.items() if self.env_before.get(n) != v}, [n for n in self.env_before if n not in os.environ]

    def import_one(self, name, origin):
        """origin: the file that a worker found; None: not known."""
        top = name.split(".")[0]
        if name in sys.modules or top in self.own or name in self.cache.skip or top in self.cache.skip or name == "__main__":
            return
        fds = list_fds()
        with self.watch:
            try:
                __import__(name)
            except Exception:
                self.failed.add(name)
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        self.check(name, fds)
        if "." not in name and is_poisoned():
            raise Fault(name, "it asks CUDA for devices")
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if origin and spec is not None and spec.origin != origin:
            raise Fault(name, f"a worker finds it at {origin}")

    def look_at(self, module, attribute):
        """As "from MODULE import ATTRIBUTE" does, which makes a lazy package import what is behind the name."""
        name = f"{module}:{attribute}"
        if module not in sys.modules or module in self.failed or name in self.cache.skip:
            return
        fds = list_fds()
        with self.watch:
            try:
                getattr(sys.modules[module], attribute)
            except Exception:
                pass
        self.check(name, fds)

    def what_it_keeps(self, module):
        """A value that each worker would have for itself; None. Generator() of torch begins with the same seed in each process, default_rng() of
        NumPy does not."""
        wall, monotonic = self.M["time"].time(), self.M["time"].monotonic()
        temporary = (os.environ.get("TMPDIR") or "/tmp") + "/"
        numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
        types = (numpy.RandomState, numpy.Generator) if numpy else ()
        clock = getattr(sys.modules.get("datetime"), "datetime", None)
        for value in list(getattr(module, "__dict__", {}).values()):
            kind = type(value)  # isinstance would ask the value, and one of torch.distributed warns then
            if kind in types and value is not numpy.mtrand._rand:
                return "a source of random numbers"
            if torch and kind is torch.Generator and value is not torch.default_generator and value.initial_seed() != TORCH_SEED:
                return "a source of random numbers"
            if kind is float and module.__name__ != "logging" and (self.began[0] <= value <= wall or self.began[1] <= value <= monotonic):
                return "the time of its import"
            if kind is int and self.began[0] <= value / 1e9 <= wall:
                return "the time of its import"
            if kind is clock and self.began[0] <= self.seconds_of(value) <= wall:
                return "the time of its import"
            if kind is str and value.startswith(temporary) and self.is_new(value):
                return f"the name {value[:60]}"
        return None

    def seconds_of(self, moment):
        try:
            return moment.timestamp()
        except (OverflowError, OSError, ValueError):
            return 0

    def is_new(self, path):
        try:
            return os.lstat(path).st_ctime >= self.began[0]
        except (OSError, ValueError):
            return False

    def refuse_poison(self, new):
        if is_poisoned():
            for name in new:
                self.cache.modules.pop(name, None)
            self.cache.save()
            raise Doubt("an import asks CUDA for devices, which a fork could not use then")

    def stamp(self):
        """Notes the files of new modules. A module beside the script, or of a name that is there, cannot be in a template, nor can one that would
        draw the same numbers in each worker."""
        for name, module in list(sys.modules.items()):
            if name in self.stamps or name in self.baseline:
                continue
            kept = self.what_it_keeps(module)
            if kept:
                raise Fault(name, f"it keeps {kept}")
            spec = getattr(module, "__spec__", None)
            origin = getattr(spec, "origin", None) if spec is not None else None
            if not isinstance(origin, str) or not origin.startswith("/"):
                self.stamps[name] = None
                continue
            if self.is_own(origin):
                raise Fault(name, "it is beside the script")
            try:
                self.stamps[name] = (origin, *identity(origin))
            except OSError:
                self.stamps[name] = None

    def what_a_new_one_finds(self):
        """What decides, beside the files of modules, what a new process of this command finds: its interpreter, the script's folder, what
        can be imported from the folders of sys.path, and the files that run at its start."""
        site = sys.modules.get("site")
        program = os.path.realpath(find_program(self.given_argv[0], self.given))
        folder = look_up(self.kind, self.what)[0]
        found = {"the interpreter": (program, identity(program)), "the script's folder": folder}
        files = (sys.prefix + "/pyvenv.cfg", *(os.getcwd() + "/" + n for n in READ_BY_SHIMS))
        for path in dict.fromkeys([*sys.path, getattr(site, "USER_SITE", None), *files]):
            if not path or os.path.realpath(path) == folder:
                continue
            try:
                with os.scandir(path) as entries:
                    found[path] = {e.name: identity(e.path) if e.name.endswith(".pth") else 0 for e in entries}
            except NotADirectoryError:
                found[path] = identity(path)
            except OSError:
                found[path] = None
        for name in self.baseline:
            origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
            if isinstance(origin, str) and origin.startswith("/") and os.path.exists(origin):
                found[origin] = identity(origin)
        return found

    def replaced_libraries(self):
        """Files of code that this process has in memory, and that have no name any more."""
        lines = [line for line in read_file("/proc/self/maps", 1 << 24).split(b"\n") if line.endswith(b" (deleted)")]
        return {os.fsdecode(line.split(b" /", 1)[-1]) for line in lines if b"x" in line.split(b" ", 2)[1]}

    def what_changed(self):
        """A module whose file is another one by now; None: there is none."""
        try:
            now = self.what_a_new_one_finds()
        except OSError:
            return "the interpreter"
        names = {n.partition(".")[0] for n in sys.modules} | self.watch.missed

        def that_matter(entries):
            """Of a folder's: those of modules that were imported or looked for, and what runs at a start."""
            return {n: v for n, v in entries.items() if n.endswith((".pth", ".egg-link")) or n.partition(".")[0] in names} if isinstance(entries, dict) else entries

        for name, value in self.at_start.items():
            if that_matter(now.get(name)) != that_matter(value):
                return name
        for library in sorted(self.replaced_libraries() - self.replaced):
            return library
        for name in list(self.stamps):
            stamp = self.stamps.get(name)
            if stamp:
                try:
                    same = stamp[1:] == identity(stamp[0])
                except OSError:
                    same = False
                if not same and not (name == stamp[0] and self.scan_again()):
                    return name
        own = self.shadows()
        if own != self.own:
            for name in sys.modules:
                if name.split(".")[0] in own and name in self.stamps:
                    return name
            self.own = own
        return None

    def scan_again(self):
        """The script, or a file beside it, was edited. False: it does other things before it imports, or imports something else."""
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                write_all(write_end, "\n".join(scan(self.kind, self.what, self.folder)).encode(errors="surrogateescape"))
                os._exit(0)
            finally:
                os._exit(1)
        os.close(write_end)
        text = b"".join(iter(lambda: os.read(read_end, 1 << 16), b""))
        os.close(read_end)
        lines = text.decode(errors="surrogateescape").split("\n") if os.waitpid(pid, 0)[1] == 0 else []
        if [l for l in lines if not l.startswith("own ")] != [l for l in self.lines if not l.startswith("own ")]:
            return False
        for path in [n for n, stamp in self.stamps.items() if stamp and stamp[0] == n]:
            del self.stamps[path]
        self.stamp_own(lines)
        return True

    def stamp_own(self, lines):
        self.lines = lines
        for mtime, size, inode, path in (l.split(" ", 3) for l in rest_of(lines, "own")):
            self.stamps[path] = (path, int(mtime), int(size), int(inode))

    def warm(self, explicit):
        began = self.M["time"].monotonic()
        self.own, self.failed = self.shadows(), set()
        lines = read_scan(self.stage)
        imports, self.forbidden = imports_of(lines), set(rest_of(lines, "sets"))
        self.stamp_own(lines)
        self.tell("B", f"{min(60.0, 2 * self.cache.seconds + 2) if self.known else 20.0:.3f}")
        if "*" in self.forbidden:
            raise Doubt("the script sets variables whose names cannot be told")
        for variable in sorted(self.forbidden):
            if variable.startswith(READ_BY_LIBRARIES):
                raise Doubt(f"the script sets {variable}, which libraries read: set it before rdzv-agent")
        if usercustomize():
            raise Doubt("there is a usercustomize")
        self.watch = Watch(self.forbidden, None if "random" in self.own else __import__("random"))
        self.watch.reader = self.reader
        needs, names = rest_of(lines, "needs"), rest_of(lines, "from")
        if "path" in lines:  # only a worker knows where it finds what it imports
            imports, needs, names = [], [], []
        wanted = {n: None for n in explicit} if explicit else {**dict.fromkeys(imports), **self.cache.modules}
        for name, origin in wanted.items():
            self.import_one(name, origin)
            if name in self.failed and name in needs:
                raise Doubt("")  # the script fails at once
            if explicit and name not in sys.modules and name not in self.cache.skip:
                raise Doubt(f"{name}, which --warm names, cannot be imported")
        for line in () if explicit else names:
            self.look_at(*line.split(" "))
        self.stamp()
        self.refuse_poison(wanted)
        if not self.cache.modules:
            self.cache.modules.update({n: "" for n in wanted if n in sys.modules and n not in self.failed})
        self.cache.seconds = self.M["time"].monotonic() - began
        self.cache.save()

    def again(self, fault):
        """The same process from its beginning, without that module."""
        name, reason = fault.args
        self.cache.skip[name] = reason
        if len(self.cache.skip) > FAULTS_MAX:
            raise Doubt(f"{len(self.cache.skip)} modules cannot be in it, such as {name}: {reason}")
        for part in [n for n in self.cache.modules if n == name or n.startswith(name + ".")]:
            del self.cache.modules[part]
        self.cache.save()
        self.tell("A", f"{name} is left out: {reason}")
        os.chdir(self.cwd)
        restart(self.argv, self.start_env, "again" + self.stage[self.stage.index(":"):])

    # Waiting. -------------------------------------------------------------------------------------------------------------------------------

    def read_notes(self):
        """What the worker has imported since, without what is beside the script. The cache has it at once, for a job that ends soon."""
        end = int.from_bytes(self.notes[:8], "little")
        text = self.notes[8 + self.notes_read:8 + end].decode(errors="surrogateescape")
        self.notes_read = end
        found = {}
        for line in text.split("\n"):
            name, _, origin = line.partition(" ")
            top = name.split(".")[0]
            if origin.startswith("/") and not self.is_own(origin) and top not in self.own and not {name, top}.intersection(self.cache.skip):
                found[name] = origin
        if found:
            self.unread.update(found)
            self.cache.modules.update(found)
            self.cache.save()

    def learn(self):
        """Imports it."""
        began = self.M["time"].monotonic()
        for name, origin in self.unread.items():
            self.import_one(name, origin)
            if name not in sys.modules or name in self.failed:
                self.cache.modules.pop(name, None)
        self.stamp()
        self.refuse_poison(self.unread)
        self.unread = {}
        self.cache.seconds += self.M["time"].monotonic() - began
        self.cache.save()
        self.freeze()
        self.tell_reader()
        self.tell("L", self.summary())

    def tell_reader(self):
        if self.watch.reader:
            self.tell("W", self.watch.reader)

    def freeze(self):
        self.replaced = self.replaced_libraries()
        self.M["gc"].collect()
        self.M["gc"].freeze()

    def wait(self):
        """Returns in each worker, never in the template."""
        select, clock = self.M["select"], self.M["time"].monotonic
        poll = select.poll()
        poll.register(self.sock.fileno(), select.POLLIN)
        self.freeze()
        self.tell_reader()
        self.tell("R", self.summary())
        looked_at, forked_at, changed, batch = 0.0, -FRESH_S, None, b""
        while True:
            ready = poll.poll(int(1000 * (FOLLOW_S if clock() < forked_at + FRESH_S else LOOK_S)))
            self.reap()
            if not ready:
                known = self.notes_read
                self.read_notes()
                if self.unread and self.notes_read == known:
                    self.learn()
                if clock() > looked_at + LOOK_S:
                    changed, looked_at = self.what_changed(), clock()
                if changed:
                    self.begin_anew(changed)
                continue
            data, control, _, _ = self.sock.recvmsg(64, self.M["_socket"].CMSG_SPACE(20), self.M["_socket"].MSG_CMSG_CLOEXEC)
            if not data:
                os._exit(0)
            fds = [int.from_bytes(c[2][i:i + 4], sys.byteorder) for c in control for i in range(0, len(c[2]), 4)]
            if len(data) == 1:  # between two jobs: another stdin, and rounds are counted again
                os.dup2(fds[0], 0)
                os.close(fds[0])
                batch = b""
                self.read_notes()
                if self.unread:
                    self.learn()
                self.notes[:8], self.notes_read = bytes(8), 0
                if changed:
                    self.begin_anew(changed)
                continue
            if data[20:] != batch:  # once for the workers of a round
                batch = data[20:]
                self.read_notes()
                if self.unread:  # once here, instead of once in each worker
                    self.tell("B", str(LEARN_S))
                    self.learn()
                changed = self.what_changed()
            if len(fds) == 5 and not changed and self.fork(data, fds):
                return
            forked_at = clock()
            for fd in fds:
                os.close(fd)

    def begin_anew(self, changed):
        if changed == "the interpreter" or changed.endswith(READ_BY_SHIMS):  # this process is the old one
            raise Doubt(f"{changed} has changed")
        self.tell("A", f"{changed} has changed")
        restart(self.argv, self.start_env, "probe" + self.stage[self.stage.index(":"):])

    def reap(self):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except OSError:
            pass

    def summary(self):
        tops = dict.fromkeys(n.split(".")[0] for n in self.cache.modules if n in sys.modules)
        tops = [t for t in tops if not t.startswith("_") and t not in sys.stdlib_module_names] if hasattr(sys, "stdlib_module_names") else list(tops)
        return f"{len(sys.modules) - len(self.baseline)} {','.join(tops[:6])}"

    # Workers. -------------------------------------------------------------------------------------------------------------------------------

    def fork(self, data, fds):
        """True: this is the worker."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        middle = os.fork()
        if middle:
            return False
        if os.fork():
            os._exit(0)
        self.counted = None
        try:
            return self.become_worker(data, fds)
        except BaseException:
            if self.counted:  # the guard counts on this process, so it becomes a worker in the usual way
                os.execvpe(self.words[0], self.words, self.counted)
            os._exit(70)

    def become_worker(self, data, fds):
        memory, out, err, pair, stdin = fds
        argc, envc, cpus_size, size, record = (int.from_bytes(data[i:i + 4], sys.byteorder) for i in range(0, 20, 4))
        text = b""
        while len(text) < size:
            part = os.pread(memory, size - len(text), len(text))
            if not part:
                os._exit(70)
            text += part
        words = text[cpus_size:].split(b"\0")
        argv, env = [os.fsdecode(w) for w in words[:argc]], words[argc:argc + envc]
        env = [tuple(w.partition(b"=")[::2]) for w in env]
        own = int(self.stage.split(":")[5])  # the first of the script's own words
        if argv[:own] != self.given_argv[:own] or (self.watch.reader and argv != self.given_argv) or self.differs(env):
            os._exit(70)
        self.words = argv
        if cpus_size and "OMP_NUM_THREADS" not in self.given:  # OpenMP has counted the CPUs when it was loaded
            os._exit(70)
        for _ in range(int(PATIENCE_S * 5000)):
            if os.getppid() == self.guard:
                break
            self.M["time"].sleep(0.0002)
        os.write(pair, os.getpid().to_bytes(4, sys.byteorder))
        if os.read(pair, 1) != b"g":
            os._exit(0)
        self.counted = dict(reversed(env))
        os.setsid()
        self.M["prctl"](1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL
        if os.getppid() != self.guard:
            os._exit(0)
        self.sock.close()
        os.dup2(stdin, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if cpus_size:
            try:
                os.sched_setaffinity(0, {8 * i + b for i, byte in enumerate(text[:cpus_size]) for b in range(8) if byte >> b & 1})
            except OSError as e:
                os.write(pair, (-e.errno).to_bytes(4, sys.byteorder, signed=True))
        self.set_environment(env, argv, own)
        self.make_folder()
        for fd in (memory, out, err, stdin, *own_fds(self.stage)[1:]):
            os.close(fd)
        self.refresh()
        if record:
            self.record()
        os.close(pair)
        return True

    def differs(self, env):
        """A variable that libraries read when they are loaded, or that a shim or an import sets, has another value for this worker."""
        changed = {*self.added, *self.removed, *self.made()[0], *self.made()[1]}

        def matters(name):
            return name.startswith(READ_BY_LIBRARIES) or name in changed

        here = {n: v for n, v in self.given.items() if matters(n)}
        there = {}
        for name, value in env:
            name = os.fsdecode(name)
            if matters(name):
                there.setdefault(name, os.fsdecode(value))
        return here != there

    def set_environment(self, env, argv, own):
        """And the script's own words."""
        count = len(self.given_argv) - own
        for name in ("argv", "orig_argv"):
            words = getattr(sys, name, None)
            if words is not None:
                words[len(words) - count:] = argv[own:]
        made, unmade = self.made()
        os.environ.clear()
        for name, value in env:
            name, value = os.fsdecode(name), os.fsdecode(value)
            if name not in os.environ:
                os.environ[name] = value
        os.environ.update(self.added)
        for name in self.removed:
            os.environ.pop(name, None)
        shown = [os.fsencode(self.argv[0])] + [os.fsencode(w) for w in argv[1:]]
        self.M["show"](b"".join(w + b"\0" for w in shown), b"".join(n + b"=" + v + b"\0" for n, v in os.environb.items()))
        os.environ.update(made)
        for name in unmade:
            os.environ.pop(name, None)

    def make_folder(self):
        path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
        for folder in (os.path.dirname(os.path.dirname(path)), os.path.dirname(path)):
            if folder.strip("/"):
                try:
                    os.mkdir(folder)
                except OSError:
                    pass

    def refresh(self):
        """What a process makes at its start, and two processes must not share."""
        modules = sys.modules
        for source in self.watch.by_chance.values():
            source.seed()
        if "numpy.random" in modules:
            modules["numpy.random"].seed()
        if "torch" in modules:
            modules["torch"].default_generator.seed()
        for path in [p for p, finder in sys.path_importer_cache.items() if finder is None]:
            del sys.path_importer_cache[path]  # the folder may be there by now
        import atexit

        atexit.register(self.M["gc"].unfreeze)  # the interpreter's last collection ends what has a finalizer
        if "multiprocessing.process" in modules:
            modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
        if "logging" in modules:
            now = self.M["time"].time_ns() if sys.version_info >= (3, 13) else self.M["time"].time()
            modules["logging"]._startTime = now
        for stream, fd in ((sys.stdout, 1), (sys.stderr, 2)):
            if stream is not None and not stream.write_through:
                stream.reconfigure(line_buffering=os.isatty(fd) or fd == 2)

    def record(self):
        """Notes what this process imports, in the memory that it shares with the template."""
        notes, pid = self.notes, os.getpid()

        def create_module(self, spec):
            if spec.origin and os.getpid() == pid:
                line = f"{spec.name} {spec.origin}\n".encode(errors="surrogateescape")
                at = int.from_bytes(notes[:8], "little")
                if 8 + at + len(line) <= NOTES_BYTES:
                    notes[8 + at:8 + at + len(line)] = line
                    notes[:8] = (at + len(line)).to_bytes(8, "little")

        sys.modules["_frozen_importlib_external"]._LoaderBasics.create_module = create_module


# Beginning. --------------------------------------------------------------------------------------------------------------------------------------


def usercustomize():
    external = sys.modules["_frozen_importlib_external"]
    return external.PathFinder.find_spec("usercustomize") is not None


def restart(argv, env, stage):
    env = dict(env)
    for pid in read_file(f"/proc/self/task/{os.getpid()}/children").split():  # of a module that is left out
        os.kill(int(pid), 9)
        os.waitpid(int(pid), 0)
    forget_output(stage)
    env["RDZV_TEMPLATE"] = stage
    env["PYTHONPATH"] = zip_path(env.get("PYTHONPATH", ""))
    for fd in own_fds(stage):
        os.set_inheritable(fd, True)
    os.execve(sys.executable, argv, env)


def own_fds(stage):
    return range(FD, FD + (4 if stage.split(":")[4] != "0" else 3))


def has_printed(stage, select):
    if os.fstat(1).st_size or os.fstat(2).st_size:
        return True
    if len(own_fds(stage)) < 4:
        return False
    poll = select.poll()
    poll.register(FD + 3, select.POLLIN)
    return bool(poll.poll(0))


def forget_output(stage):
    for fd in (1, 2):
        if not os.isatty(fd):
            os.ftruncate(fd, 0)
            os.lseek(fd, 0, os.SEEK_SET)
    try:
        while len(own_fds(stage)) == 4 and os.read(FD + 3, 1 << 16):
            pass
    except OSError:  # there is no more
        pass


def zip_path(others):
    return f"/proc/self/fd/{FD + 1}" + (":" + others if others else "")


def make_prctl(ctypes):
    libc = ctypes.CDLL(None, use_errno=True)

    def prctl(*words):
        return libc.prctl(*[ctypes.c_ulong(w) for w in words])

    libc.sbrk.restype = ctypes.c_void_p
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)

    class Map(ctypes.Structure):
        _fields_ = [(n, ctypes.c_uint64) for n in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack", "arg_start",
                                                   "arg_end", "env_start", "env_end", "auxv")] + [("auxv_size", ctypes.c_uint32), ("exe_fd", ctypes.c_uint32)]

    def show(words, variables):
        """In /proc/PID/cmdline and environ. Without CONFIG_CHECKPOINT_RESTORE they show the template's."""
        text = words + variables
        at = libc.mmap(None, len(text) + 1, 3, 0x22, -1, 0)  # PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS
        if not at or at == ctypes.c_void_p(-1).value:
            return
        ctypes.memmove(at, text, len(text))
        env_at = at + len(words)
        v = [0] + [int(x) for x in read_file("/proc/self/stat").rpartition(b")")[2].split()[1:]]
        m = Map(start_code=v[23], end_code=v[24], start_stack=v[25], start_data=v[42], end_data=v[43], start_brk=v[44], brk=libc.sbrk(0), arg_start=at,
                arg_end=env_at, env_start=env_at, env_end=at + len(text), auxv=0, auxv_size=0, exe_fd=0xFFFFFFFF)
        libc.prctl(35, 14, ctypes.byref(m), ctypes.c_ulong(ctypes.sizeof(m)), ctypes.c_ulong(0))  # PR_SET_MM, PR_SET_MM_MAP

    return prctl, show


def read_plan(stage):
    """argv and environment as the guard got them, in a memory file; --warm's modules are in the environment."""
    argc, envc, size = (int(n) for n in stage.split(":")[1:4])
    words = [os.fsdecode(w) for w in os.pread(FD + 2, size, 0).split(b"\0")]
    env = {}
    for word in words[argc:argc + envc]:
        name, _, value = word.partition("=")
        env.setdefault(name, value)
    return words[:argc], env


def read_scan(stage):
    return read_file(f"/proc/self/fd/{FD + 2}", 1 << 24)[int(stage.split(":")[3]):].decode(errors="surrogateescape").split("\n")


def probe(argv, given_argv, given, explicit, stage):
    """Decides whether a template is worth its time, and leaves behind the plan what the script does before it imports."""
    kind, what = command_of(given_argv)
    folder, cache = look_up(kind, what)
    lines = scan(kind, what, folder)
    if not explicit and not any(is_costly(n) for n in imports_of(lines)) and not cache.load():
        raise Doubt("")
    is_off_by_variables(os.environ)
    changed_by_shim(given_argv[0], given)
    os.lseek(FD + 2, int(stage.split(":")[3]), os.SEEK_SET)
    write_all(FD + 2, "\n".join(lines).encode(errors="surrogateescape"))
    os.ftruncate(FD + 2, os.lseek(FD + 2, 0, os.SEEK_CUR))
    restart(argv, dict(os.environ), "again" + stage[stage.index(":"):])


def main():
    stage = os.environ.get("RDZV_TEMPLATE")
    if not stage:
        return
    zip_name = f"/proc/self/fd/{FD + 1}"
    sys.path[:] = [p for p in sys.path if p != zip_name]
    sys.path_importer_cache.pop(zip_name, None)
    before = set(sys.modules)
    import _socket
    import select
    import time
    import gc
    import mmap

    sock = _socket.socket(fileno=FD)
    for fd in own_fds(stage):
        os.set_inheritable(fd, False)
    given_argv, given = read_plan(stage)
    explicit = [m for m in given.pop("RDZV_TEMPLATE_MODULES").split(",") if m]
    if "PYTHONPATH" in given:
        os.environ["PYTHONPATH"] = given["PYTHONPATH"]
    else:
        os.environ.pop("PYTHONPATH", None)
    for name in ("RDZV_TEMPLATE", "RDZV_TEMPLATE_MODULES"):
        os.environ.pop(name, None)
    argv0 = os.fsdecode(read_file("/proc/self/cmdline").split(b"\0")[0])
    argv = [argv0] + given_argv[1:]
    end = None
    try:
        if stage.startswith("probe"):
            probe(argv, given_argv, given, explicit, stage)
        import ctypes

        prctl, show = make_prctl(ctypes)
        tools = {"_socket": _socket, "select": select, "time": time, "gc": gc, "mmap": mmap, "prctl": prctl, "show": show}
        for name in set(sys.modules) - before:
            if name not in sys.builtin_module_names:
                del sys.modules[name]
        watch = Watch(set(), None)
        with watch:
            import_real_sitecustomize()
        reader = watch.reader
        if watch.hit:
            raise Doubt(f"sitecustomize reads {watch.hit}, which differs between workers")
        refuse_what_began()
        template = Template(sock, tools, argv, given_argv, given, stage)
        template.reader = reader
        try:
            template.warm(explicit)
            template.wait()
        except Fault as fault:
            template.again(fault)
        if "sitecustomize" not in sys.modules:
            end = ImportError(name="sitecustomize")  # as if there was no such file
    except Doubt as doubt:
        sock.send(b"D" + str(doubt).encode(errors="replace")[:150])
        os._exit(0)
    except Exception as error:
        sock.send(b"D" + f"{type(error).__name__}: {error}".encode(errors="replace")[:150])
        os._exit(0)
    if end:
        raise end


def refuse_what_began():
    """Files of site-packages that end with .pth, and sitecustomize, run before any import of ours: profilers start there."""
    if count_threads() > 1:
        raise Doubt("sitecustomize, or a .pth file, keeps a thread")
    if has_children():
        raise Doubt("sitecustomize, or a .pth file, starts a process")
    for fd, link in list_fds().items():
        if fd not in range(FD, FD + 4) and link.startswith(SHARED_FILES) and not os.get_inheritable(fd):  # else it was open before
            raise Doubt(f"sitecustomize, or a .pth file, opens {link}")


def import_real_sitecustomize():
    """The one that would have run instead of this file."""
    sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        pass


main()
