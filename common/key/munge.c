/* SPDX-License-Identifier: Apache-2.0 */
/* libmunge's functions by name, as declared in munge.h of MUNGE 0.5.15; its soname is 2 since 2006. */

#include "common/key/munge.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <pwd.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/ascii.h"
#include "common/key/munge_payload.h"
#include "common/mem.h"

enum { OPT_TTL = 4, OPT_SOCKET = 8, OPT_UID_RESTRICTION = 9 };
enum {
  E_SUCCESS = 0,
  E_SOCKET = 6,
  E_TIMEOUT = 7,
  E_BAD_CRED = 8,
  E_CRED_INVALID = 14,
  E_CRED_EXPIRED = 15,
  E_CRED_REWOUND = 16,
  E_CRED_REPLAYED = 17,
  E_CRED_UNAUTHORIZED = 18,
};

static const char service_user[] = "rdzv";

struct munge_ctx;

static struct {
  bool is_open;
  struct munge_ctx *(*create)(void);
  void (*destroy)(struct munge_ctx *);
  int (*get)(struct munge_ctx *, int, ...);
  int (*set)(struct munge_ctx *, int, ...);
  const char *(*why)(struct munge_ctx *);
  const char *(*word)(int);
  int (*encode)(char **, struct munge_ctx *, const void *, int);
  int (*decode)(const char *, struct munge_ctx *, void **, int *, uid_t *, gid_t *);
} lib;

static bool find(void *library, const char *name, void *function) {
  void *found = dlsym(library, name);
  memcpy(function, &found, sizeof(found));
  return found != NULL;
}

static void open_library(void) {
  void *l = dlopen("libmunge.so.2", RTLD_NOW | RTLD_LOCAL);
  lib.is_open = l && find(l, "munge_ctx_create", &lib.create) && find(l, "munge_ctx_destroy", &lib.destroy) &&
                find(l, "munge_ctx_get", &lib.get) && find(l, "munge_ctx_set", &lib.set) &&
                find(l, "munge_ctx_strerror", &lib.why) && find(l, "munge_strerror", &lib.word) &&
                find(l, "munge_encode", &lib.encode) && find(l, "munge_decode", &lib.decode);
}

/* NULL: this machine has no libmunge. */
static struct munge_ctx *create_context(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, open_library);
  struct munge_ctx *c = lib.is_open ? lib.create() : NULL;
  const char *other = c ? getenv("RDZV_MUNGE_SOCKET") : NULL;
  if (other && *other) lib.set(c, OPT_SOCKET, other);
  return c;
}

/* 0 if a program listens there, else -errno. */
static int look_at_socket(const char *path) {
  struct sockaddr_un to = {.sun_family = AF_UNIX};
  size_t n = strlen(path);
  if (n >= sizeof(to.sun_path)) return -ENAMETOOLONG;
  memcpy(to.sun_path, path, n);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -errno;
  int rc = connect(fd, (const struct sockaddr *)&to, sizeof(to)) == 0 ? 0 : -errno;
  close(fd);
  return rc == -EAGAIN ? 0 : rc; /* its queue is full */
}

static int look(void) {
  struct munge_ctx *c = create_context();
  const char *path = NULL;
  int rc = c && lib.get(c, OPT_SOCKET, &path) == E_SUCCESS && path ? look_at_socket(path) : -ENOENT;
  if (c) lib.destroy(c);
  return rc;
}

bool munge_available(void) {
  return look() == 0;
}

bool munge_expected(uint64_t now_ms) {
  static atomic_uint_fast64_t until_ms; /* 0: no munged was seen; UINT64_MAX: the last look has found one */
  int rc = look();
  uint64_t until = rc == 0 ? UINT64_MAX : atomic_load(&until_ms);
  if (rc != 0 && (until == UINT64_MAX || (until == 0 && rc == -ECONNREFUSED))) until = now_ms + MUNGE_AWAY_MS;
  atomic_store(&until_ms, until);
  return now_ms < until;
}

static int explain(struct munge_ctx *c, int code, struct err *e) {
  const char *why = lib.why(c);
  if (!why) why = lib.word(code);
  switch (code) {
  case E_SOCKET:
  case E_TIMEOUT: return err_set(e, -EIO, "munged of this machine does not answer: %s", why);
  case E_CRED_EXPIRED:
    return err_set(e, -EACCES,
                   "the MUNGE credential is older than %d s: the clocks of the two machines differ, or they are "
                   "overloaded",
                   MUNGE_LIFE_S);
  case E_CRED_REWOUND:
    return err_set(e, -EACCES, "the MUNGE credential comes from the future: the clocks of the two machines differ");
  case E_CRED_REPLAYED: return err_set(e, -EACCES, "the MUNGE credential was used before");
  case E_CRED_UNAUTHORIZED: return err_set(e, -EACCES, "the MUNGE credential is for another user");
  default:
    if (code >= E_BAD_CRED && code <= E_CRED_INVALID)
      return err_set(e, -EACCES,
                     "the MUNGE credential cannot be decoded: do both machines have the same /etc/munge/munge.key? "
                     "(%s)",
                     why);
    return err_set(e, -EIO, "MUNGE failed: %s", why);
  }
}

static int no_munge(struct err *e) {
  return err_set(e, -ENOENT, "MUNGE is not installed on this machine");
}

int munge_encode_for(const char *payload, size_t len, int64_t reader, char out[MUNGE_CREDENTIAL_MAX + 1],
                     struct err *e) {
  struct munge_ctx *c = create_context();
  char *made = NULL;
  if (!c) return no_munge(e);
  int code = lib.set(c, OPT_TTL, MUNGE_LIFE_S);
  if (code == E_SUCCESS && reader != MUNGE_ANYBODY) code = lib.set(c, OPT_UID_RESTRICTION, (uid_t)reader);
  if (code == E_SUCCESS) code = lib.encode(&made, c, payload, (int)len);
  size_t n = code == E_SUCCESS ? strlen(made) : 0;
  int rc = code != E_SUCCESS          ? explain(c, code, e)
           : n > MUNGE_CREDENTIAL_MAX ? err_set(e, -EMSGSIZE, "MUNGE made a credential of %zu bytes", n)
                                      : (int)n;
  if (rc > 0) memcpy(out, made, n + 1);
  free(made);
  lib.destroy(c);
  return rc;
}

static int take_payload(const void *found, int n, char *payload, size_t size, struct err *e) {
  if (n < 0 || (size_t)n > size) return err_set(e, -EACCES, "the MUNGE credential carries %d bytes, too many", n);
  if (n) memcpy(payload, found, (size_t)n);
  return n;
}

int munge_decode_from(const char *credential, size_t len, char *payload, size_t size, uint32_t *uid, struct err *e) {
  char text[MUNGE_CREDENTIAL_MAX + 1];
  void *found = NULL;
  int n = 0;
  uid_t who;
  gid_t group;
  if (!len || len > MUNGE_CREDENTIAL_MAX || memchr(credential, '\0', len))
    return err_set(e, -EACCES, "this is not a MUNGE credential");
  memcpy(text, credential, len);
  text[len] = '\0';
  struct munge_ctx *c = create_context();
  if (!c) return no_munge(e);
  int code = lib.decode(text, c, &found, &n, &who, &group);
  int rc = code == E_SUCCESS ? take_payload(found, n, payload, size, e) : explain(c, code, e);
  if (rc >= 0) *uid = who;
  if (found && n > 0) sodium_memzero(found, (size_t)n);
  free(found);
  lib.destroy(c);
  return rc;
}

int munge_user_find(const char *name, int64_t *uid, struct err *e) {
  static const size_t room_size = 16 * 1024;
  struct passwd room, *entry = NULL;
  char *strings = xmalloc(room_size), *end = NULL;
  getpwnam_r(name ? name : service_user, &room, strings, room_size, &entry);
  free(strings); /* the uid is not among them */
  *uid = entry ? (int64_t)entry->pw_uid : MUNGE_NO_USER;
  if (entry || !name) return 0;
  unsigned long n = ascii_is_digit(*name) ? strtoul(name, &end, 10) : UINT32_MAX;
  if (n >= UINT32_MAX || *end) return err_set(e, -EINVAL, "--munge-user %s: this machine has no such user", name);
  *uid = (int64_t)n;
  return 0;
}
