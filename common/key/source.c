/* SPDX-License-Identifier: Apache-2.0 */
/* The words that give a key, and their ranks.
 *
 * Each word that was given has a rank: that of the place where it was found. The highest rank counts, and two words of
 * that rank are a mistake: no order among them could be guessed.
 *
 * The environment is a part of the process's first memory, which /proc/PID/environ shows. So RDZV_KEY is overwritten
 * there, and not only forgotten. */

#include "common/key/source.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pwd.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/ascii.h"
#include "common/key/secret.h"
#include "common/system/clock.h"
#include "common/system/file.h"
#include "common/system/log.h"
#include "common/system/user.h"

/* The environment. ------------------------------------------------------------------------------------------------- */

static const char key_variable[] = "RDZV_KEY=";

void key_env_take(struct key_env *env) {
  *env = (struct key_env){.key = NULL};
  for (char **v = environ; *v; v++) {
    if (strncmp(*v, key_variable, sizeof(key_variable) - 1) != 0) continue;
    char *text = *v + sizeof(key_variable) - 1;
    struct err e = ERR_INIT;
    if (!env->key) env->key = secret_alloc();
    env->key_error = (struct err)ERR_INIT; /* of a variable that is there twice, the last one counts */
    if (key_parse(text, strlen(text), env->key, &e)) {
      err_set(&env->key_error, e.code, "RDZV_KEY: %s", e.text);
      secret_free(env->key);
      env->key = NULL;
    }
    sodium_memzero(text, strlen(text));
  }
  unsetenv("RDZV_KEY");
  env->file = getenv("RDZV_KEY_FILE");
  env->insecure = getenv("RDZV_INSECURE");
}

/* A descriptor. ---------------------------------------------------------------------------------------------------- */

/* Reads to the end. Returns the length. */
static ssize_t read_to_end(int fd, char *text, size_t size, struct err *e) {
  uint64_t end_ms = monotonic_ms() + KEY_FD_WAIT_MS, now;
  size_t len = 0;
  while ((now = monotonic_ms()) < end_ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int ready = poll(&p, 1, (int)(end_ms - now));
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    ssize_t n = ready < 0 || p.revents & POLLNVAL ? -1 : read(fd, text + len, size - len);
    if (ready > 0 && p.revents & POLLNVAL) errno = EBADF;
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return err_sys(e, -errno, "cannot read the key");
    if (n == 0) return (ssize_t)len;
    len += (size_t)n;
    if (len == size) return err_set(e, -EINVAL, "more than a key was written there");
  }
  return err_set(e, -ETIMEDOUT, "the key was not written there within %d s, or the other end stays open",
                 KEY_FD_WAIT_MS / 1000);
}

/* Cuts " 4" off the end: the source that our own programs add. */
static size_t cut_source(const char *text, size_t len, enum key_source *source) {
  while (len && (text[len - 1] == '\n' || text[len - 1] == ' ')) len--;
  *source = KEY_SOURCE_OTHER;
  if (len < 3 || text[len - 2] != ' ' || !ascii_is_digit(text[len - 1])) return len;
  int n = text[len - 1] - '0';
  if (n <= KEY_SOURCE_STATE) *source = (enum key_source)n; /* else it is one of a later release */
  return len - 2;
}

static const char *const given_by[] = {"",          " (default file)",   " (key file)", " (RDZV_KEY)",
                                       " (random)", " (state directory)"};

static int read_fd(int64_t fd, struct key **out, struct key_origin *from, struct err *e) {
  char *text = secret_alloc();
  struct key *key = secret_alloc();
  _Static_assert(KEY_FD_TEXT_MAX + 1 < SECRET_SIZE, "a secret piece holds the text");
  ssize_t n = read_to_end((int)fd, text, KEY_FD_TEXT_MAX + 1, e);
  close((int)fd);
  int rc = n < 0 ? (int)n : 0;
  if (rc == 0) rc = key_parse(text, cut_source(text, (size_t)n, &from->kind), key, e);
  secret_free(text);
  if (rc) {
    secret_free(key);
    return err_wrap(e, "--key-fd %d", (int)fd);
  }
  snprintf(from->text, sizeof(from->text), "--key-fd %d%s", (int)fd, given_by[from->kind]);
  *out = key;
  return 0;
}

int key_pipe(const struct key *key, enum key_source source, struct err *e) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) < 0) return err_sys(e, -errno, "cannot open a pipe for the key");
  char *text = secret_alloc();
  key_format(key, text);
  size_t len = strlen(text);
  text[len++] = ' ';
  text[len++] = (char)('0' + (source <= KEY_SOURCE_STATE ? source : KEY_SOURCE_OTHER));
  text[len++] = '\n';
  ssize_t n = write(ends[1], text, len); /* a new pipe holds far more */
  int rc = n == (ssize_t)len ? 0 : -EIO;
  secret_free(text);
  close(ends[1]);
  if (rc == 0) return ends[0];
  close(ends[0]);
  return err_sys(e, rc, "cannot write the key to a pipe");
}

/* Files with keys.
 *
 * The default file is created by the first program that needs it, and eight may be the first at once, on several
 * machines that share a home folder. Each writes a key to a file of a random name and links that file to the right
 * name. The file server lets one link succeed; all read what is there then. A file that is renamed would replace the
 * key that another program already uses. NFS may report a link that succeeded as failed, since a repeated request finds
 * the name taken: the number of links is the truth.
 *
 * A key is refused if other users can read it, or could have put it there. Otherwise a job would look safe and would
 * not be. Group bits are the mask of an access list where systemd passes a credential to a service: root's group may
 * read. A FIFO must not hang the program, so files are opened without waiting.
 *
 * The default file is never a link. A file that a person names may be one: Kubernetes mounts secrets so. */

enum {
  FILE_TEXT_MAX = SECRET_SIZE - 1, /* a key, and blanks around it */
  ASIDE_MAX = 40,
  CREATE_TRIES = 5,
};

static const char make_one[] =
    "give --key-file FILE, a file of mode 600 with 64 hex digits that is the same on all nodes";

/* Reading. --------------------------------------------------------------------------------------------------------- */

static bool is_trusted(uid_t uid) {
  return uid == 0 || user_is_self(uid);
}

static int check_file(const struct stat *st, struct err *e) {
  mode_t open_bits = st->st_mode & 077;
  if (st->st_uid == 0 && st->st_gid == 0) open_bits &= ~(mode_t)S_IRGRP;
  if (!S_ISREG(st->st_mode)) return err_set(e, -EINVAL, "it is not a regular file");
  if (!is_trusted(st->st_uid))
    return err_set(e, -EPERM, "it belongs to uid %u: a key must belong to this user or root", (unsigned)st->st_uid);
  if (open_bits)
    return err_set(
        e, -EPERM,
        "other users have access to it (mode %04o): chmod 600 it, and replace the key if they may have read it",
        (unsigned)st->st_mode & 07777);
  return 0;
}

static int read_key(int fd, struct key **out, struct err *e) {
  struct stat st;
  if (fstat(fd, &st) < 0) return err_sys(e, -errno, "cannot read it");
  int rc = check_file(&st, e);
  if (rc) return rc;
  char *text = secret_alloc();
  struct key *key = secret_alloc();
  size_t len = 0;
  ssize_t n;
  while (rc == 0 && len <= FILE_TEXT_MAX && (n = read(fd, text + len, SECRET_SIZE - len)) != 0) {
    if (n < 0)
      rc = err_sys(e, -errno, "cannot read it");
    else
      len += (size_t)n;
  }
  if (rc == 0 && len > FILE_TEXT_MAX) rc = err_set(e, -EINVAL, "it is larger than a key");
  if (rc == 0 && len == 0)
    rc = err_set(e, -EINVAL, "it is empty: remove it for a new key, or copy the key of the job's other machines");
  if (rc == 0) rc = key_parse(text, len, key, e);
  secret_free(text);
  if (rc)
    secret_free(key);
  else
    *out = key;
  return rc;
}

enum { OPEN_FLAGS = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC };

static int open_named(const char *path, struct err *e) {
  int fd = open(path, OPEN_FLAGS | O_NOFOLLOW);
  if (fd >= 0 || errno != ELOOP) return fd >= 0 ? fd : err_sys(e, -errno, "cannot open it");
  struct stat st;
  if (lstat(path, &st) < 0) return err_sys(e, -errno, "cannot open it");
  if (!is_trusted(st.st_uid))
    return err_set(e, -EPERM, "it is a symbolic link of uid %u: a key must belong to this user or root",
                   (unsigned)st.st_uid);
  fd = open(path, OPEN_FLAGS);
  return fd >= 0 ? fd : err_sys(e, -errno, "cannot open it");
}

/* A file that a person named, which may be a link if it belongs to this user or root. *key: a secret piece of the caller.
 * A sentence begins with the path. */
static int key_file_read(const char *path, struct key **key, struct err *e) {
  struct err local = ERR_INIT;
  int fd = open_named(path, &local), rc = fd < 0 ? fd : read_key(fd, key, &local);
  if (fd >= 0) close(fd);
  return rc ? err_set(e, rc, "%s: %s", path, local.text) : 0;
}

/* The default file: its place. ------------------------------------------------------------------------------------- */

struct default_file {
  char parent[PATH_MAX]; /* created if it is missing, as is `folder`; "": it must be there */
  char folder[PATH_MAX], path[PATH_MAX];
  const char *shown; /* for people */
  enum key_source kind;
};

static int too_long(struct err *e) {
  return err_set(e, -ENAMETOOLONG, "the path of the default key file is too long: %s", make_one);
}

static int set_default_file(struct default_file *p, const char *parent, const char *folder, const char *shown,
                            struct err *e) {
  int n = snprintf(p->folder, PATH_MAX, "%s%s", parent, folder);
  if (n < 0 || n >= PATH_MAX - 8) return too_long(e);
  snprintf(p->parent, PATH_MAX, "%s", *folder ? parent : "");
  n = snprintf(p->path, PATH_MAX, "%s/key", p->folder);
  if (n < 0 || n >= PATH_MAX) return too_long(e);
  p->shown = shown ? shown : p->path;
  return 0;
}

/* The variables hold absolute paths; others are ignored, as their specifications ask. */
static int find_default_file(struct default_file *p, struct err *e) {
  const char *state = getenv("STATE_DIRECTORY"), *config = getenv("XDG_CONFIG_HOME"), *home;
  char text[PATH_MAX];
  p->kind = KEY_SOURCE_HOME;
  if (state && *state == '/') {
    int n = snprintf(text, sizeof(text), "%.*s", (int)strcspn(state, ":"), state); /* the first of several */
    if (n < 0 || (size_t)n >= sizeof(text)) return too_long(e);
    p->kind = KEY_SOURCE_STATE;
    return set_default_file(p, text, "", NULL, e);
  }
  if (config && *config == '/') return set_default_file(p, config, "/rdzv", NULL, e);
  home = getenv("HOME");
  const struct passwd *user = home && *home == '/' ? NULL : getpwuid(geteuid());
  if (user) home = user->pw_dir;
  if (!home || *home != '/')
    return err_set(e, -ENOENT, "uid %u has no home folder for ~/.config/rdzv/key: %s", (unsigned)geteuid(), make_one);
  int n = snprintf(text, sizeof(text), "%s/.config", home);
  if (n < 0 || (size_t)n >= sizeof(text)) return too_long(e);
  return set_default_file(p, text, "/rdzv", "~/.config/rdzv/key", e);
}

/* The default file: creation. -------------------------------------------------------------------------------------- */

/* -ENOENT: it is not there, and was not to be created. */
static int open_folder(const struct default_file *p, bool create, struct err *e) {
  struct stat st;
  int fd = open(p->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT && create && p->parent[0]) {
    const char *const paths[] = {p->parent, p->folder};
    for (int i = 0; i < 2; i++)
      if (mkdir(paths[i], 0700) < 0 && errno != EEXIST) return err_sys(e, -errno, "cannot create %s", paths[i]);
    fd = open(p->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  if (fd < 0) return err_sys(e, -errno, "cannot open its folder");
  if (fstat(fd, &st) == 0 && is_trusted(st.st_uid) && (st.st_mode & 022) == 0) return fd;
  close(fd);
  return err_set(e, -EPERM, "others can write to its folder (uid %u, mode %04o): chmod go-w %s", (unsigned)st.st_uid,
                 (unsigned)st.st_mode & 07777, p->folder);
}

static int write_aside(int dir, const char *aside, const struct key *key, struct err *e) {
  int fd = openat(dir, aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return err_sys(e, -errno, "cannot create it");
  char *text = secret_alloc();
  key_format(key, text);
  size_t len = strlen(text);
  text[len++] = '\n';
  int rc = file_write_all(fd, text, len);
  secret_free(text);
  if (rc == 0 && fchmod(fd, 0600) < 0) rc = -errno; /* whatever the umask is */
  if (rc == 0 && fsync(fd) < 0 && errno != EINVAL) rc = -errno;
  if (close(fd) < 0 && rc == 0) rc = -errno;
  return rc ? err_sys(e, rc, "cannot write it") : 0;
}

/* True: our file has the name now. False with *rc 0: another program was faster. */
static bool take_name(int dir, const char *aside, int *rc) {
  struct stat st;
  *rc = 0;
  if (linkat(dir, aside, dir, "key", 0) == 0) return true;
  int error = errno;
  if (fstatat(dir, aside, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_nlink == 2) return true;
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK) { /* it knows no links */
    if (renameat2(dir, aside, dir, "key", RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS) error = errno;
  }
  if (error != EEXIST) *rc = -error;
  return false;
}

static int create_file(int dir, bool *created, struct err *e) {
  char name[FILE_RANDOM_SIZE], aside[ASIDE_MAX];
  struct key *key = NULL;
  struct key_origin unused;
  key_random(&key, &unused, "");
  file_random_name(name);
  snprintf(aside, sizeof(aside), ".key.%s", name);
  int rc = write_aside(dir, aside, key, e);
  secret_free(key);
  if (rc == 0) {
    *created = take_name(dir, aside, &rc);
    if (rc) err_sys(e, rc, "cannot create it");
  }
  unlinkat(dir, aside, 0);
  if (rc == 0) (void)fsync(dir); /* a folder that cannot be synced is as good as it gets */
  return rc;
}

/* A file server may still answer "not there" to the reader after another machine created the file. */
static int read_or_create(int dir, bool create, struct key **key, bool *created, struct err *e) {
  for (int i = 0; i < CREATE_TRIES; i++) {
    int fd = openat(dir, "key", OPEN_FLAGS | O_NOFOLLOW);
    if (fd >= 0) {
      int rc = read_key(fd, key, e);
      close(fd);
      return rc;
    }
    if (errno == ELOOP) return err_set(e, -ELOOP, "it is a symbolic link: the default key file must be a file");
    if (errno != ENOENT) return err_sys(e, -errno, "cannot open it");
    if (!create) return 0;
    int rc = create_file(dir, created, e);
    if (rc) return rc;
  }
  return err_set(e, -EAGAIN, "it was created and is not there");
}

int key_find_default(bool create, struct key **key, struct key_origin *from, struct err *e) {
  struct default_file place;
  struct err local = ERR_INIT;
  bool created = false;
  *key = NULL;
  *from = (struct key_origin){.kind = KEY_SOURCE_UNSET};
  int rc = find_default_file(&place, e);
  if (rc) return rc;
  int dir = open_folder(&place, create, &local);
  rc = dir < 0 ? dir : read_or_create(dir, create, key, &created, &local);
  if (dir >= 0) close(dir);
  if (rc && !(rc == -ENOENT && !create))
    return err_set(e, rc, "the key's default file %s: %s; otherwise %s", place.path, local.text, make_one);
  from->kind = place.kind;
  snprintf(from->text, sizeof(from->text), "%s%s", place.shown,
           created ? " (created)"
           : *key  ? ""
                   : " (will be created)");
  return 0;
}

/* Words and ranks. ------------------------------------------------------------------------------------------------- */

enum { CHOICES_MAX = 6, NAME_MAX_LEN = 40 };
struct key_choice {
  enum { CHOICE_FILE, CHOICE_FD, CHOICE_TEXT, CHOICE_INSECURE } kind;
  enum opt_source rank;
  const char *value; /* the path */
  char name[NAME_MAX_LEN];
};
struct key_choices {
  struct key_choice v[CHOICES_MAX];
  size_t n;
};

static struct key_choice *add_choice(struct key_choices *w, int kind, enum opt_source rank, const char *value) {
  struct key_choice *word = &w->v[w->n++];
  *word = (struct key_choice){.kind = kind, .rank = rank, .value = value};
  return word;
}

/* An option, as it was written: "--key-file", "RDZV_AGENT_KEY_FILE", "key-file in agent.conf". */
static void add_option(struct key_choices *w, int kind, enum opt_source rank, const char *value, const char *prefix,
                       const char *name) {
  struct key_choice *word = add_choice(w, kind, rank, value);
  if (rank == OPT_FROM_ENV && prefix)
    snprintf(word->name, NAME_MAX_LEN, "%s%s", prefix, kind == CHOICE_FILE ? "KEY_FILE" : "INSECURE");
  else if (rank == OPT_FROM_FILE)
    snprintf(word->name, NAME_MAX_LEN, "%s in agent.conf", name);
  else
    snprintf(word->name, NAME_MAX_LEN, "--%s", name);
}

static void add_variable(struct key_choices *w, int kind, const char *value, const char *name) {
  snprintf(add_choice(w, kind, OPT_FROM_ENV, value)->name, NAME_MAX_LEN, "%s", name);
}

static int use_choice(const struct key_choice *w, const struct key_options *o, struct key_env *env, struct key **key,
                      struct key_origin *from, struct err *e) {
  switch (w->kind) {
  case CHOICE_INSECURE:
    from->kind = KEY_SOURCE_INSECURE;
    snprintf(from->text, sizeof(from->text), "none (%s)", w->name);
    return 0;
  case CHOICE_FD: return read_fd(o->fd, key, from, e);
  case CHOICE_TEXT:
    if (!env->key) return err_set(e, env->key_error.code, "%s", env->key_error.text);
    from->kind = KEY_SOURCE_ENV;
    snprintf(from->text, sizeof(from->text), "RDZV_KEY");
    *key = env->key;
    env->key = NULL;
    return 0;
  default:
    if (!w->value[0]) return err_set(e, -EINVAL, "%s is empty: give the path of a file with a key", w->name);
    if (key_file_read(w->value, key, e)) return err_wrap(e, "%s", w->name);
    from->kind = KEY_SOURCE_FILE;
    snprintf(from->text, sizeof(from->text), "%s %s", w->name, w->value);
    return 0;
  }
}

int key_find_given(const struct key_options *o, struct key_env *env, struct key **key, struct key_origin *from,
                   struct err *e) {
  struct key_choices words;
  const struct key_choice *word = NULL, *rival = NULL; /* word: the one that counts */
  bool env_insecure = false;
  *from = (struct key_origin){.kind = KEY_SOURCE_UNSET};
  *key = NULL;
  /* A false --insecure overrides the variable. */
  bool counts = env->insecure && env->insecure[0] && o->insecure_from < OPT_FROM_ENV;
  int rc = 0;
  if (counts && parse_bool(env->insecure, &env_insecure, e)) rc = err_wrap(e, "RDZV_INSECURE=%.40s", env->insecure);
  if (rc == 0) {
    words.n = 0;
    if (o->file) add_option(&words, CHOICE_FILE, o->file_from, o->file, o->prefix, "key-file");
    if (o->fd >= 0) add_option(&words, CHOICE_FD, OPT_FROM_ARGV, NULL, o->prefix, "key-fd");
    if (o->insecure) add_option(&words, CHOICE_INSECURE, o->insecure_from, NULL, o->prefix, "insecure");
    if (env->file) add_variable(&words, CHOICE_FILE, env->file, "RDZV_KEY_FILE");
    if (env->key || env->key_error.code) add_variable(&words, CHOICE_TEXT, NULL, "RDZV_KEY");
    if (env_insecure) add_variable(&words, CHOICE_INSECURE, NULL, "RDZV_INSECURE");
    for (const struct key_choice *v = words.v; v < words.v + words.n; v++) {
      if (word && v->rank < word->rank) continue;
      rival = word && v->rank == word->rank ? word : NULL;
      word = v;
    }
    if (rival) rc = err_set(e, -EINVAL, "%s and %s exclude each other: remove one", rival->name, word->name);
  }
  if (rc == 0 && word) rc = use_choice(word, o, env, key, from, e);
  secret_free(env->key);
  env->key = NULL;
  return rc;
}

/* ------------------------------------------------------------------------------------------------------------------ */

void key_say_insecure(void) {
  log_warn("no key (--insecure): any program that reaches the daemon's port may join its jobs and control them");
}

void key_random(struct key **key, struct key_origin *from, const char *text) {
  struct key *k = secret_alloc();
  randombytes_buf(k->bytes, sizeof(k->bytes));
  k->uid = KEY_OWN;
  from->kind = KEY_SOURCE_RANDOM;
  snprintf(from->text, sizeof(from->text), "%s", text);
  *key = k;
}

bool key_may_be_replaced(enum key_source kind) {
  return kind == KEY_SOURCE_HOME || kind == KEY_SOURCE_STATE || kind == KEY_SOURCE_RANDOM;
}
