/* SPDX-License-Identifier: Apache-2.0 */
/* The control socket's rules.
 *
 * A killed daemon leaves its socket behind, so only a connect shows whether a daemon lives. If it is refused, the
 * leftover is removed and the name used again. Two daemons may have the same port on different addresses: the second one
 * finds the first alive, and needs another path from --socket. Each new daemon removes the leftovers of its own user; one
 * that an agent has started for itself does so when it has lived for a second. A socket between bind(2) and listen(2)
 * refuses connections too: so ours is created under another name, and renamed once it listens.
 *
 * Every user may connect, since the daemon decides by SO_PEERCRED who may do what. The folder in /tmp must be ours and
 * writable for us alone: another user may have created that name, or linked it elsewhere, to place a socket there.
 * bind(2) creates the socket with the mode that umask leaves; a chmod afterwards would leave a gap.
 *
 * rdzvctl may run in another session than the daemon (a batch job has no XDG_RUNTIME_DIR, a login shell has one),
 * and as another user, so it looks in all places. Any user can create a socket in /tmp and answer there. So rdzvctl
 * trusts three users: its own, root, and the service's, which is the owner of /run/rdzvd, since only root creates
 * folders in /run. One of them must own the socket and its folder, and the kernel must name one of them as the
 * listener. Others may be able to write to the folder, as to an emptyDir of Kubernetes. Their files are left alone, and
 * a link is not followed. */

#include "daemon/server/control_socket.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/system/file.h"
#include "common/system/user.h"
#include "common/mem.h"

#define TMP_NAME       "control.sock"
#define SERVICE_FOLDER "/run/rdzvd" /* RuntimeDirectory= of rdzvd.service */

enum { FOLDER_MAX = 64, FOREIGN_PROBES_MAX = 16 };

/* The folder is ours, and only we can write to it. */
static bool is_own_folder(const char *path) {
  struct stat st;
  return path && path[0] == '/' && stat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
         !(st.st_mode & 022) && access(path, W_OK | X_OK) == 0;
}

/* In /tmp. If another user has taken the name, the folder gets letters that cannot be guessed. */
static int make_own_folder(char folder[FOLDER_MAX], struct err *e) {
  struct stat st;
  mode_t old = umask(022);
  int rc = mkdir(folder, 0755) < 0 && errno != EEXIST ? -errno : 0;
  bool ours =
      rc == 0 && lstat(folder, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022);
  if (rc == 0 && !ours) {
    strncat(folder, "-XXXXXX", FOLDER_MAX - strlen(folder) - 1);
    if (!mkdtemp(folder) || chmod(folder, 0755) < 0) rc = -errno;
  }
  umask(old);
  return rc < 0 ? err_sys(e, rc, "cannot create %s", folder) : 0;
}

int control_socket_place(uint16_t port, char path[CONTROL_PATH_MAX], struct err *e) {
  const char *runtime = getenv("RUNTIME_DIRECTORY"); /* set by systemd for a service */
  if (!is_own_folder(runtime)) runtime = getenv("XDG_RUNTIME_DIR");
  if (is_own_folder(runtime) && strlen(runtime) < CONTROL_PATH_MAX - 24) {
    snprintf(path, CONTROL_PATH_MAX, "%s/rdzvd-%d.sock", runtime, port);
    return 0;
  }
  if (geteuid() == 0 && is_own_folder("/run")) {
    snprintf(path, CONTROL_PATH_MAX, "/run/rdzvd-%d.sock", port);
    return 0;
  }
  char folder[FOLDER_MAX];
  snprintf(folder, sizeof(folder), "/tmp/rdzvd-%u-%d", (unsigned)geteuid(), port);
  int rc = make_own_folder(folder, e);
  if (rc == 0) snprintf(path, CONTROL_PATH_MAX, "%s/" TMP_NAME, folder);
  return rc;
}

static int make_address(const char *path, struct sockaddr_un *sa, struct err *e) {
  *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
  if (strlen(path) >= sizeof(sa->sun_path))
    return err_set(e, -ENAMETOOLONG, "%s: the path of a unix socket has at most %zu bytes", path,
                   sizeof(sa->sun_path) - 1);
  snprintf(sa->sun_path, sizeof(sa->sun_path), "%s", path);
  return 0;
}

int control_socket_probe(const char *path, uid_t *uid) {
  struct sockaddr_un sa;
  pid_t pid;
  int rc = make_address(path, &sa, NULL);
  *uid = (uid_t)-1;
  if (rc < 0) return rc;
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -errno;
  if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) == 0)
    rc = control_socket_peer(fd, &pid, uid, NULL);
  else if (errno != EAGAIN)
    rc = -errno;
  close(fd);
  return rc;
}

int control_socket_open(const char *path, struct err *e) {
  struct sockaddr_un sa;
  int rc = make_address(path, &sa, e);
  if (rc < 0) return rc;
  struct stat st;
  if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) return err_set(e, -EEXIST, "%s exists and is not a socket", path);
  uid_t uid;
  rc = control_socket_probe(path, &uid);
  if (rc == 0 || rc == -EACCES)
    return err_set(e, -EADDRINUSE, "%s belongs to another running daemon; choose another path with --socket", path);
  /* Listens at path, replacing what is there. */
  struct sockaddr_un first = {.sun_family = AF_UNIX};
  int folder = (int)(strrchr(path, '/') ? strrchr(path, '/') + 1 - path : 0);
  char name[FILE_RANDOM_SIZE];
  file_random_name(name);
  int n = snprintf(first.sun_path, sizeof(first.sun_path), "%.*s.rdzvd-%s", folder, path, name);
  if (n >= (int)sizeof(first.sun_path)) first = sa; /* no room for another name */
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return err_sys(e, -errno, "cannot create a unix socket");
  unlink(first.sun_path);
  mode_t old = umask(0111);
  rc = bind(fd, (const struct sockaddr *)&first, sizeof(first)) < 0 || listen(fd, SOMAXCONN) < 0 ||
               rename(first.sun_path, path) < 0
           ? -errno
           : 0;
  umask(old);
  if (rc == 0) return fd;
  unlink(first.sun_path);
  close(fd);
  return err_sys(e, rc, "cannot listen on %s", path);
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
  char pattern[PATH_MAX + 64];
  snprintf(pattern, sizeof(pattern), "%s/%s", folder, name);
  glob(pattern, g->gl_pathc ? GLOB_APPEND : 0, NULL, g); /* sorted: a page of several daemons does not dance */
}

/* All paths where a socket of this port (0: of any port) may be. */
static void list_places(uint16_t port, glob_t *g) {
  char number[8], name[64], own[64];
  snprintf(number, sizeof(number), "%d", port);
  snprintf(name, sizeof(name), "rdzvd-%s.sock", port ? number : "[0-9]*");
  bool root = geteuid() == 0;
  unsigned uid = geteuid();
  *g = (glob_t){.gl_pathc = 0};
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  char full[PATH_MAX];
  if (runtime && runtime[0] == '/' && realpath(runtime, full)) add_matches(full, name, g);
  if (root) add_matches("/run/user/*", name, g);
  snprintf(own, sizeof(own), "/run/user/%u", uid);
  add_matches(own, name, g);
  add_matches("/run", name, g);
  add_matches(SERVICE_FOLDER, name, g);
  snprintf(own, sizeof(own), "rdzvd-*-%s/" TMP_NAME, port ? number : "[0-9]*");
  add_matches("/tmp", own, g);
  snprintf(own, sizeof(own), "rdzvd-*-%s-*/" TMP_NAME, port ? number : "[0-9]*");
  add_matches("/tmp", own, g);
}

bool control_socket_trusts(uid_t uid) {
  struct stat st;
  if (uid == 0 || user_is_self(uid)) return true;
  return lstat(SERVICE_FOLDER, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid;
}

/* Only a user whom we trust can have put it there. */
static bool is_placed_well(const char *path) {
  char folder[CONTROL_PATH_MAX];
  struct stat st;
  size_t n = (size_t)(strrchr(path, '/') - path);
  if (n == 0 || n >= sizeof(folder)) return false;
  memcpy(folder, path, n);
  folder[n] = '\0';
  if (lstat(folder, &st) < 0 || !S_ISDIR(st.st_mode)) return false;
  return control_socket_trusts(st.st_uid) && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) &&
         control_socket_trusts(st.st_uid);
}

size_t control_socket_find(uint16_t port, char ***paths, struct control_foreign *foreign) {
  glob_t g;
  size_t n = 0;
  list_places(port, &g);
  *paths = xcalloc(g.gl_pathc + 1, sizeof(**paths));
  for (size_t i = 0; i < g.gl_pathc; i++) {
    const char *path = g.gl_pathv[i];
    uid_t uid;
    bool known = false;
    for (size_t k = 0; k < n; k++) known |= !strcmp((*paths)[k], path);
    if (known || !is_placed_well(path) || control_socket_probe(path, &uid) < 0) continue;
    if (uid == (uid_t)-1 || control_socket_trusts(uid)) (*paths)[n++] = xstrdup(path);
  }
  *foreign = (struct control_foreign){.uid = 0};
  if (n == 0) {
    /* Finds one foreign socket for the report, with few probes: a machine may be full of other users' sockets. */
    int left = FOREIGN_PROBES_MAX;
    for (size_t i = 0; i < g.gl_pathc && left > 0 && !foreign->path[0]; i++) {
      struct stat st;
      if (is_placed_well(g.gl_pathv[i]) || strlen(g.gl_pathv[i]) >= sizeof(foreign->path)) continue;
      uid_t uid;
      left--;
      if (lstat(g.gl_pathv[i], &st) < 0 || !S_ISSOCK(st.st_mode) || control_socket_probe(g.gl_pathv[i], &uid) < 0)
        continue;
      snprintf(foreign->path, sizeof(foreign->path), "%s", g.gl_pathv[i]);
      foreign->uid = uid == (uid_t)-1 ? st.st_uid : uid;
    }
  }
  globfree(&g);
  return n;
}

/* The socket and its folder are ours, and no daemon listens on it. In a folder of another user, or behind a link of one,
 * the name could be another socket of ours by the time that it is removed. */
static bool is_leftover(const char *path) {
  struct stat before, after;
  if (!is_placed_well(path)) return false;
  if (lstat(path, &before) < 0 || !S_ISSOCK(before.st_mode) || before.st_uid != geteuid()) return false;
  uid_t uid;
  if (control_socket_probe(path, &uid) != -ECONNREFUSED) return false;
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
