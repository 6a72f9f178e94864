/* The control socket's rules.
 *
 * A daemon that was killed leaves its socket behind, so an existing path is no proof of a living one: only a connect
 * tells. A refused one means that nobody listens, the leftover is removed and the name taken again. Two daemons may have
 * the same port on different addresses: the second finds the first alive and must be given another path by --socket.
 *
 * Ports are many, and a machine on which daemons are killed collects leftovers that no daemon of the same port will ever
 * replace. So each new daemon removes those of its own user, wherever one of ours may lie. A socket between bind(2) and
 * listen(2) refuses connections too: so ours is made under another name, and renamed once it listens.
 *
 * Everybody may connect, since the daemon judges by SO_PEERCRED who may what; only where it lies in a folder that is closed to
 * others (XDG_RUNTIME_DIR) nobody else gets there. The folder in /tmp must be ours if it is there already, and nobody else's to write in:
 * in /tmp somebody else may have made that name, or linked it elsewhere, to put his own socket there. bind(2) makes the
 * socket with the mode that umask leaves, so umask is set around it instead of a chmod behind it, which would leave a gap.
 *
 * rdzvctl may run in another session than the daemon (a batch job has no XDG_RUNTIME_DIR, a login shell has one), and as
 * another user, so it looks in all places, and believes only sockets behind which somebody answers. Own daemons and root's come
 * first, and that of the service rdzvd, which has a user of its own; those of others count only where there are none, since anybody can start one. */

#include "daemon/server/control_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/mem.h"

#define TMP_NAME       "control.sock"
#define SERVICE_FOLDER "/run/rdzvd" /* RuntimeDirectory= of rdzvd.service */

static bool is_own_folder(const char *path) {
  struct stat st;
  return path && path[0] == '/' && stat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
         access(path, W_OK | X_OK) == 0;
}

static int make_own_folder(const char *path, struct err *e) {
  mode_t old = umask(022);
  int rc = mkdir(path, 0755) < 0 && errno != EEXIST ? -errno : 0;
  umask(old);
  if (rc < 0) return err_sys(e, rc, "cannot make %s", path);
  struct stat st;
  if (lstat(path, &st) < 0) return err_sys(e, -errno, "%s", path);
  if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
    return err_set(e, -EPERM,
                   "%s is there already and is not a folder that is ours and that nobody else may write to; "
                   "remove it, or use "
                   "--socket",
                   path);
  return 0;
}

int control_socket_place(uint16_t port, char path[CONTROL_PATH_MAX], struct err *e) {
  const char *runtime = getenv("RUNTIME_DIRECTORY"); /* as a service of systemd's */
  if (!is_own_folder(runtime)) runtime = getenv("XDG_RUNTIME_DIR");
  if (is_own_folder(runtime) && strlen(runtime) < CONTROL_PATH_MAX - 24) {
    snprintf(path, CONTROL_PATH_MAX, "%s/rdzvd-%d.sock", runtime, port);
    return 0;
  }
  if (geteuid() == 0 && is_own_folder("/run")) {
    snprintf(path, CONTROL_PATH_MAX, "/run/rdzvd-%d.sock", port);
    return 0;
  }
  char folder[64];
  snprintf(folder, sizeof(folder), "/tmp/rdzvd-%u-%d", (unsigned)geteuid(), port);
  snprintf(path, CONTROL_PATH_MAX, "%s/" TMP_NAME, folder);
  return make_own_folder(folder, e);
}

static int make_address(const char *path, struct sockaddr_un *sa, struct err *e) {
  *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof(sa->sun_path))
    return err_set(e, -ENAMETOOLONG, "%s: the path of a unix socket has at most %zu bytes", path,
                   sizeof(sa->sun_path) - 1);
  snprintf(sa->sun_path, sizeof(sa->sun_path), "%s", path);
  return 0;
}

int control_socket_probe(const char *path) {
  struct sockaddr_un sa;
  int rc = make_address(path, &sa, NULL);
  if (rc < 0) return rc;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -errno;
  if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 && errno != EAGAIN) rc = -errno;
  close(fd);
  return rc;
}

/* Listens at path, which may be there. */
static int listen_there(const char *path, const struct sockaddr_un *sa, struct err *e) {
  struct sockaddr_un first = {.sun_family = AF_UNIX};
  int folder = (int)(strrchr(path, '/') ? strrchr(path, '/') + 1 - path : 0);
  int n = snprintf(first.sun_path, sizeof(first.sun_path), "%.*s.rdzvd-%d", folder, path, (int)getpid());
  if (n >= (int)sizeof(first.sun_path)) first = *sa; /* no room for another name */
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return err_sys(e, -errno, "cannot make a unix socket");
  unlink(first.sun_path);
  mode_t old = umask(0111);
  int rc = bind(fd, (const struct sockaddr *)&first, sizeof(first)) < 0 || listen(fd, SOMAXCONN) < 0 ||
                   rename(first.sun_path, path) < 0
               ? -errno
               : 0;
  umask(old);
  if (rc == 0) return fd;
  unlink(first.sun_path);
  close(fd);
  return err_sys(e, rc, "cannot listen on %s", path);
}

int control_socket_open(const char *path, struct err *e) {
  struct sockaddr_un sa;
  int rc = make_address(path, &sa, e);
  if (rc < 0) return rc;
  struct stat st;
  if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
    return err_set(e, -EEXIST, "%s is there already and is no socket", path);
  rc = control_socket_probe(path);
  if (rc == 0 || rc == -EACCES)
    return err_set(e, -EADDRINUSE, "%s belongs to another daemon that runs; name another path with --socket",
                   path);
  return listen_there(path, &sa, e);
}

void control_socket_remove(const char *path) {
  unlink(path);
  size_t n = strlen(path), name = strlen("/" TMP_NAME);
  if (strncmp(path, "/tmp/rdzvd-", 11) != 0 || n < name || strcmp(path + n - name, "/" TMP_NAME) != 0) return;
  char folder[CONTROL_PATH_MAX];
  snprintf(folder, sizeof(folder), "%.*s", (int)(n - name), path);
  rmdir(folder);
}

static void add_matches(const char *folder, const char *name, glob_t *g) {
  char pattern[512];
  snprintf(pattern, sizeof(pattern), "%s/%s", folder, name);
  glob(pattern, GLOB_NOSORT | (g->gl_pathc ? GLOB_APPEND : 0), NULL, g);
}

static bool is_known(char **paths, size_t n, const char *path) {
  for (size_t i = 0; i < n; i++)
    if (strcmp(paths[i], path) == 0) return true;
  return false;
}

/* All paths where a socket of this port (0: of any) may lie. */
static void list_places(uint16_t port, glob_t *g) {
  char number[8], name[64], own[64];
  snprintf(number, sizeof(number), "%d", port);
  snprintf(name, sizeof(name), "rdzvd-%s.sock", port ? number : "[0-9]*");
  bool root = geteuid() == 0;
  unsigned uid = geteuid();
  *g = (glob_t){.gl_pathc = 0};
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  if (runtime && runtime[0] == '/') add_matches(runtime, name, g);
  if (root) add_matches("/run/user/*", name, g);
  snprintf(own, sizeof(own), "/run/user/%u", uid);
  add_matches(own, name, g);
  add_matches("/run", name, g);
  add_matches(SERVICE_FOLDER, name, g);
  snprintf(own, sizeof(own), "rdzvd-*-%s/" TMP_NAME, port ? number : "[0-9]*");
  add_matches("/tmp", own, g);
}

bool control_socket_is_service(const char *path) {
  return strncmp(path, SERVICE_FOLDER "/", sizeof(SERVICE_FOLDER)) == 0;
}

/* Ours or root's, or in a folder that only root could make. */
static bool is_close(const char *path) {
  struct stat st;
  if (control_socket_is_service(path)) return true;
  return stat(path, &st) == 0 && (st.st_uid == 0 || st.st_uid == geteuid());
}

static size_t take_living(const glob_t *g, bool close, char **paths, size_t n) {
  for (size_t i = 0; i < g->gl_pathc; i++) {
    const char *path = g->gl_pathv[i];
    if (is_close(path) == close && !is_known(paths, n, path) && control_socket_probe(path) == 0)
      paths[n++] = xstrdup(path);
  }
  return n;
}

size_t control_socket_find(uint16_t port, char ***paths) {
  glob_t g;
  list_places(port, &g);
  *paths = xcalloc(g.gl_pathc + 1, sizeof(**paths));
  bool root = geteuid() == 0;
  size_t n = take_living(&g, true, *paths, 0);
  if (n == 0 || root) n = take_living(&g, false, *paths, n);
  globfree(&g);
  return n;
}

/* Ours, and nobody listens behind it. */
static bool is_leftover(const char *path) {
  struct stat before, after;
  if (lstat(path, &before) < 0 || !S_ISSOCK(before.st_mode) || before.st_uid != geteuid()) return false;
  if (control_socket_probe(path) != -ECONNREFUSED) return false;
  return lstat(path, &after) == 0 && after.st_ino == before.st_ino && after.st_dev == before.st_dev;
}

void control_socket_sweep(void) {
  glob_t g;
  list_places(0, &g);
  for (size_t i = 0; i < g.gl_pathc; i++)
    if (is_leftover(g.gl_pathv[i])) control_socket_remove(g.gl_pathv[i]);
  globfree(&g);
}

void control_socket_free(char **paths, size_t n) {
  for (size_t i = 0; i < n; i++) free(paths[i]);
  free(paths);
}

int control_socket_peer(int fd, pid_t *pid, uid_t *uid, struct err *e) {
  struct ucred peer;
  socklen_t len = sizeof(peer);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0) return err_sys(e, -errno, "SO_PEERCRED");
  *pid = peer.pid;
  *uid = peer.uid;
  return 0;
}
