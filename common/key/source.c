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
#include <poll.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include "common/ascii.h"
#include "common/key/file.h"
#include "common/key/secret.h"
#include "common/system/log.h"

/* The environment. ------------------------------------------------------------------------------------------------- */

static const char key_variable[] = "RDZV_KEY=";

static void take_text(struct key_env *env, char *text) {
  size_t len = strlen(text);
  struct err e = ERR_INIT;
  struct key *key = secret_alloc();
  secret_free(env->key); /* of a variable that is there twice, the last one counts */
  env->key = NULL;
  env->key_error = (struct err)ERR_INIT;
  if (key_parse(text, len, key, &e)) {
    err_set(&env->key_error, e.code, "RDZV_KEY: %s", e.text);
    secret_free(key);
  } else {
    env->key = key;
  }
  sodium_memzero(text, len);
}

void key_env_take(struct key_env *env) {
  *env = (struct key_env){.key = NULL};
  for (char **v = environ; *v; v++)
    if (strncmp(*v, key_variable, sizeof(key_variable) - 1) == 0) take_text(env, *v + sizeof(key_variable) - 1);
  unsetenv("RDZV_KEY");
  env->file = getenv("RDZV_KEY_FILE");
  env->insecure = getenv("RDZV_INSECURE");
}

/* A descriptor. ---------------------------------------------------------------------------------------------------- */

static int64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Reads to the end. Returns the length. */
static ssize_t read_to_end(int fd, char *text, size_t size, struct err *e) {
  int64_t end_ms = now_ms() + KEY_FD_WAIT_MS, left_ms;
  size_t len = 0;
  while ((left_ms = end_ms - now_ms()) > 0) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int ready = poll(&p, 1, (int)left_ms);
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
  if (n > KEY_SOURCE_STATE) return len;
  *source = (enum key_source)n;
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

/* The word that counts; NULL: none. */
static int choose(const struct key_choices *w, const struct key_choice **out, struct err *e) {
  const struct key_choice *best = NULL, *rival = NULL;
  for (const struct key_choice *v = w->v; v < w->v + w->n; v++) {
    if (best && v->rank < best->rank) continue;
    rival = best && v->rank == best->rank ? best : NULL;
    best = v;
  }
  *out = best;
  return rival ? err_set(e, -EINVAL, "%s and %s exclude each other: remove one", rival->name, best->name) : 0;
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

/* A false --insecure overrides the variable. */
static int read_insecure(const struct key_options *o, const struct key_env *env, bool *on, struct err *e) {
  *on = false;
  if (!env->insecure || !env->insecure[0] || o->insecure_from >= OPT_FROM_ENV) return 0;
  return parse_bool(env->insecure, on, e) ? err_wrap(e, "RDZV_INSECURE=%.40s", env->insecure) : 0;
}

int key_find_given(const struct key_options *o, struct key_env *env, struct key **key, struct key_origin *from,
                   struct err *e) {
  struct key_choices words;
  const struct key_choice *word = NULL;
  bool env_insecure;
  *from = (struct key_origin){.kind = KEY_SOURCE_UNSET};
  *key = NULL;
  int rc = read_insecure(o, env, &env_insecure, e);
  if (rc == 0) {
    words.n = 0;
    if (o->file) add_option(&words, CHOICE_FILE, o->file_from, o->file, o->prefix, "key-file");
    if (o->fd >= 0) add_option(&words, CHOICE_FD, OPT_FROM_ARGV, NULL, o->prefix, "key-fd");
    if (o->insecure) add_option(&words, CHOICE_INSECURE, o->insecure_from, NULL, o->prefix, "insecure");
    if (env->file) add_variable(&words, CHOICE_FILE, env->file, "RDZV_KEY_FILE");
    if (env->key || env->key_error.code) add_variable(&words, CHOICE_TEXT, NULL, "RDZV_KEY");
    if (env_insecure) add_variable(&words, CHOICE_INSECURE, NULL, "RDZV_INSECURE");
    rc = choose(&words, &word, e);
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

int key_random(struct key **key, struct key_origin *from, const char *text, struct err *e) {
  struct key *k = secret_alloc();
  if (getrandom(k->bytes, sizeof(k->bytes), 0) != (ssize_t)sizeof(k->bytes)) {
    secret_free(k);
    return err_sys(e, -errno, "no random numbers for a key");
  }
  k->uid = KEY_OWN;
  from->kind = KEY_SOURCE_RANDOM;
  snprintf(from->text, sizeof(from->text), "%s", text);
  *key = k;
  return 0;
}

bool key_may_be_replaced(enum key_source kind) {
  return kind == KEY_SOURCE_HOME || kind == KEY_SOURCE_STATE || kind == KEY_SOURCE_RANDOM;
}
