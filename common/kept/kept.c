/* SPDX-License-Identifier: Apache-2.0 */
#include "common/kept/kept.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { PLACES = 2, PLACE_MAX = 80, SEEN_MAX = 64 };

/* The folder is ours, and only we can write to it. */
static bool is_own(const char *path) {
  struct stat st;
  return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 022);
}

/* The i-th place; false: it cannot be one. */
static bool place_of(int i, char out[PLACE_MAX]) {
  const char *runtime = getenv("XDG_RUNTIME_DIR");
  if (i == 1) return snprintf(out, PLACE_MAX, "/tmp/rdzv-warm-%u", (unsigned)geteuid()) < PLACE_MAX;
  return runtime && *runtime == '/' && is_own(runtime) && snprintf(out, PLACE_MAX, "%s/rdzv-warm", runtime) < PLACE_MAX;
}

static struct sockaddr_un address_of(const char *place, pid_t pid) {
  struct sockaddr_un sa = {.sun_family = AF_UNIX};
  snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/%d", place, (int)pid);
  return sa;
}

int kept_listen(pid_t pid, struct err *e) {
  char place[PLACE_MAX];
  if (!place_of(0, place)) place_of(1, place);
  if (mkdir(place, 0700) && errno != EEXIST) return err_sys(e, -errno, "cannot create %s", place);
  if (!is_own(place)) return err_set(e, -EPERM, "%s is not a folder that only this user can write to", place);
  struct sockaddr_un sa = address_of(place, pid);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return err_sys(e, -errno, "cannot create a unix socket");
  struct sockaddr_un first = sa; /* a socket that does not listen yet looks like a dead guard's */
  strncat(first.sun_path, ".new", sizeof(first.sun_path) - strlen(first.sun_path) - 1);
  unlink(first.sun_path);
  if (bind(fd, (struct sockaddr *)&first, sizeof(first)) == 0 && listen(fd, KEPT_MAX) == 0 &&
      rename(first.sun_path, sa.sun_path) == 0)
    return fd;
  int rc = err_sys(e, -errno, "cannot listen on %s", sa.sun_path);
  unlink(first.sun_path);
  close(fd);
  return rc;
}

bool kept_is_known(pid_t pid) {
  char place[PLACE_MAX];
  struct stat st;
  bool known = false;
  for (int i = 0; i < PLACES; i++)
    known = known || (place_of(i, place) && lstat(address_of(place, pid).sun_path, &st) == 0);
  return known;
}

void kept_forget(pid_t pid) {
  char place[PLACE_MAX];
  for (int i = 0; i < PLACES; i++)
    if (place_of(i, place) && is_own(place)) unlink(address_of(place, pid).sun_path);
}

static bool send_question(int fd, enum kept_question question, const char *text, int input) {
  char letter = (char)question;
  struct iovec iov[] = {{&letter, 1}, {(void *)(uintptr_t)text, text ? strlen(text) : 0}};
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control = {0};
  struct msghdr m = {.msg_iov = iov, .msg_iovlen = 2};
  if (input >= 0) {
    m.msg_control = control.bytes;
    m.msg_controllen = sizeof(control.bytes);
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    *h = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(h), &input, sizeof(int));
  }
  return sendmsg(fd, &m, MSG_NOSIGNAL) >= 0;
}

static bool read_answer(int fd, struct kept_facts *facts, int *page) {
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control;
  struct iovec iov = {facts, sizeof(*facts)};
  /* Room for one descriptor, and no more. */
  struct msghdr m = {
      .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_LEN(sizeof(int))};
  int came = -1;
  if (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, KEPT_ANSWER_MS) <= 0) return false;
  ssize_t n = recvmsg(fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  struct cmsghdr *h = n < 0 ? NULL : CMSG_FIRSTHDR(&m);
  if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) memcpy(&came, CMSG_DATA(h), sizeof(int));
  bool good = n == (ssize_t)sizeof(*facts) && facts->size == sizeof(*facts) && facts->pid > 0;
  if (came >= 0 && (!good || !page)) close(came);
  if (page) *page = good ? came : -1;
  facts->command[KEPT_COMMAND_MAX - 1] = '\0';
  return good;
}

/* The connection to the guard at that place, if the kernel names this user as its owner. */
static int connect_to(const char *place, pid_t pid) {
  struct ucred peer;
  socklen_t len = sizeof(peer);
  struct sockaddr_un sa = address_of(place, pid);
  if (!is_own(place)) return -ENOENT;
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), rc = 0;
  if (fd < 0) return -errno;
  if (connect(fd, (struct sockaddr *)&sa, sizeof(sa))) rc = -errno;
  if (rc == -ECONNREFUSED) unlink(sa.sun_path); /* it is dead */
  if (!rc && (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) || peer.uid != geteuid())) rc = -ENOENT;
  if (!rc) {
    kill(pid, SIGCONT); /* it may be stopped */
    return fd;
  }
  close(fd);
  return rc;
}

int kept_ask(pid_t pid, enum kept_question question, const char *text, int input, struct kept_facts *facts, int *page) {
  char place[PLACE_MAX];
  for (int i = 0; i < PLACES; i++) {
    int fd = place_of(i, place) ? connect_to(place, pid) : -1;
    if (fd < 0) continue;
    if (send_question(fd, question, text, input) && read_answer(fd, facts, page)) return fd;
    close(fd);
  }
  return -ENOENT;
}

static int by_age(const void *a, const void *b) {
  const struct kept_facts *x = a, *y = b;
  return (x->age_ms < y->age_ms) - (x->age_ms > y->age_ms);
}

size_t kept_list(struct kept_facts *out, size_t max) {
  char place[PLACE_MAX];
  size_t n = 0;
  for (int i = 0; i < PLACES; i++) {
    DIR *d = place_of(i, place) && is_own(place) ? opendir(place) : NULL;
    const struct dirent *entry;
    for (int seen = 0; d && n < max && seen < SEEN_MAX && (entry = readdir(d)); seen++) {
      pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
      int fd = pid > 0 ? kept_ask(pid, KEPT_LOOK, NULL, -1, &out[n], NULL) : -1;
      if (fd < 0) continue;
      close(fd);
      n++;
    }
    if (d) closedir(d);
  }
  qsort(out, n, sizeof(*out), by_age);
  return n;
}

uint64_t kept_memory_of(pid_t pid) {
  char name[40];
  unsigned long long pages = 0;
  snprintf(name, sizeof(name), "/proc/%d/statm", (int)pid);
  FILE *f = fopen(name, "re");
  if (f && fscanf(f, "%*u %llu", &pages) != 1) pages = 0;
  if (f) fclose(f);
  return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}
