/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of workers and their TCP sockets, as /proc shows them.
 *
 *   begin -> timer -> pool: a look -> sentence -> timer ... until a worker has connected, or the round ends
 *
 * A look reads, once each: the tables of TCP sockets, /proc/PID/stat of all processes, then environ, maps, syscall, fd
 * and the variables in memory (variables.c) of the workers and their descendants, STORE_HINT_PROCESSES_MAX at most. A file
 * that cannot be read counts as empty.
 *
 * A look that does not return is given up with its round and frees itself when it does. */

#include "agent/store/watch.h"
#include "agent/store/variables.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "agent/guard/proctree.h"
#include "common/system/clock.h"
#include "common/system/file.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "common/mem.h"

enum {
  SOCKETS_MAX = 65536,
  LINKS_MAX = 4096, /* descriptors of one process */
  ENVIRON_MAX = 256 * 1024,
  MAPS_MAX = 8 * 1024 * 1024,
  DEPTH_MAX = 64, /* of a process below its worker */
  TCP_STATE_ESTABLISHED = 1,
  TCP_STATE_SYN_SENT = 2,
  TCP_STATE_LISTEN = 10,
};

/* Sockets. --------------------------------------------------------------------------------------------------------- */

struct tcp_socket {
  unsigned long inode;
  unsigned state;
  uint16_t port, peer_port; /* its own, and the other side's */
  char peer[64];            /* in SYN_SENT the other side, with its port */
};

struct tcp_sockets {
  struct tcp_socket *v;
  size_t n;
};

/* "0100007F" or four such words, each in the byte order of this machine, as the kernel prints them. */
static void put_peer(const char *hex, uint16_t port, char *out, size_t size) {
  char shown[INET6_ADDRSTRLEN] = "?";
  uint32_t words[4] = {0};
  bool v6 = strlen(hex) == 32;
  for (size_t i = 0; i < (v6 ? 4 : 1); i++) {
    char word[9] = {0};
    memcpy(word, hex + 8 * i, 8);
    words[i] = (uint32_t)strtoul(word, NULL, 16);
  }
  bool mapped = v6 && words[0] == 0 && words[1] == 0 && words[2] == htonl(0xFFFF);
  inet_ntop(v6 && !mapped ? AF_INET6 : AF_INET, mapped ? &words[3] : words, shown, sizeof(shown));
  snprintf(out, size, v6 && !mapped ? "[%s]:%u" : "%s:%u", shown, (unsigned)port);
}

static void read_sockets(const char *table, struct tcp_sockets *s) {
  FILE *f = fopen(table, "re");
  char line[512], remote[33];
  if (!f) return;
  while (s->n < SOCKETS_MAX && fgets(line, sizeof(line), f)) {
    unsigned local_port, remote_port;
    struct tcp_socket t = {0};
    if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%x %32[0-9A-Fa-f]:%x %x %*s %*s %*s %*s %*s %lu", &local_port, remote,
               &remote_port, &t.state, &t.inode) != 5 ||
        !t.inode || (strlen(remote) != 8 && strlen(remote) != 32))
      continue;
    t.port = (uint16_t)local_port;
    t.peer_port = (uint16_t)remote_port;
    if (t.state == TCP_STATE_SYN_SENT) put_peer(remote, t.peer_port, t.peer, sizeof(t.peer));
    if ((s->n & (s->n - 1)) == 0) s->v = xrealloc(s->v, (s->n ? 2 * s->n : 1) * sizeof(*s->v));
    s->v[s->n++] = t;
  }
  fclose(f);
}

static int by_inode(const void *a, const void *b) {
  const struct tcp_socket *s = a, *t = b;
  return (s->inode > t->inode) - (s->inode < t->inode);
}

static void note_socket(const struct tcp_socket *t, struct store_hint_process *p) {
  if (t->state == TCP_STATE_ESTABLISHED) p->connected = true;
  if (t->state == TCP_STATE_ESTABLISHED && t->peer_port == store_hint_port(p)) p->reached = true;
  if (t->state == TCP_STATE_LISTEN && p->n_listens < STORE_HINT_LISTENS_MAX) p->listens[p->n_listens++] = t->port;
  if (t->state != TCP_STATE_SYN_SENT) return;
  memcpy(p->dials, t->peer, sizeof(p->dials));
  p->dials_port = t->peer_port;
}

static void read_links(pid_t entry, const struct tcp_sockets *s, struct store_hint_process *p) {
  char path[40], to[64];
  snprintf(path, sizeof(path), "/proc/%d/fd", (int)entry);
  DIR *d = opendir(path);
  if (!d) return;
  struct dirent *e;
  for (int i = 0; i < LINKS_MAX && (e = readdir(d)); i++) {
    struct tcp_socket key = {0};
    ssize_t n = readlinkat(dirfd(d), e->d_name, to, sizeof(to) - 1);
    to[n > 0 ? n : 0] = '\0';
    if (sscanf(to, "socket:[%lu]", &key.inode) != 1) continue;
    const struct tcp_socket *t = s->n ? bsearch(&key, s->v, s->n, sizeof(*s->v), by_inode) : NULL;
    if (t) note_socket(t, p);
  }
  closedir(d);
}

/* A process. ------------------------------------------------------------------------------------------------------- */

static int open_file(pid_t entry, const char *file) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/%s", (int)entry, file);
  return open(path, O_RDONLY | O_CLOEXEC);
}

static void copy_value(const char *at, const char *name, char *out, size_t size) {
  size_t n = strlen(name);
  if (strncmp(at, name, n) == 0) snprintf(out, size, "%s", at + n);
}

static void take_variables(const struct buf *text, struct store_hint_process *p) {
  char own[8] = "";
  p->addr[0] = p->port[0] = '\0';
  for (size_t at = 0; at < text->len; at += strlen(text->data + at) + 1) {
    copy_value(text->data + at, "MASTER_ADDR=", p->addr, sizeof(p->addr));
    copy_value(text->data + at, "MASTER_PORT=", p->port, sizeof(p->port));
    copy_value(text->data + at, "TORCHELASTIC_USE_AGENT_STORE=", own, sizeof(own));
  }
  p->own_store = strcmp(own, "True") != 0;
}

/* First what it began with, then what it has now. */
static void read_environ(const struct proc *k, struct store_hint_process *p) {
  int fd = open_file(k->entry, "environ");
  struct buf text = BUF_INIT;
  ssize_t n = 1;
  while (fd >= 0 && n > 0 && text.len < ENVIRON_MAX)
    if ((n = read(fd, buf_reserve(&text, 4096), 4096)) > 0) buf_commit(&text, (size_t)n);
  if (fd >= 0) close(fd);
  buf_putc(&text, '\0');
  take_variables(&text, p);
  char port[sizeof(p->port)];
  memcpy(port, p->port, sizeof(port));
  buf_clear(&text);
  if (variables_read(k->pid, k->entry, &text)) {
    take_variables(&text, p);
    p->set_inside = strcmp(port, p->port) != 0;
  }
  buf_finish(&text);
}

/* Whether it has mapped one of PyTorch's libraries. */
static bool has_torch(pid_t entry) {
  int fd = open_file(entry, "maps");
  FILE *f = fd < 0 ? NULL : fdopen(fd, "r");
  char line[4096 + 128];
  bool found = false;
  if (!f && fd >= 0) close(fd);
  if (!f) return false;
  for (size_t read = 0; !found && read < MAPS_MAX && fgets(line, sizeof(line), f); read += strlen(line))
    found = strstr(line, "/libtorch") || strstr(line, "/libc10.so");
  fclose(f);
  return found;
}

/* The number of its system call, if the kernel shows it to us; else the function in which it waits. */
static bool is_in_nanosleep(pid_t entry) {
  char path[40], text[256];
  snprintf(path, sizeof(path), "/proc/%d/syscall", (int)entry);
  if (file_read_text(path, text, sizeof(text)) > 0 && text[0] >= '0' && text[0] <= '9') {
    long call = strtol(text, NULL, 10);
    return call == SYS_clock_nanosleep || call == SYS_nanosleep;
  }
  snprintf(path, sizeof(path), "/proc/%d/wchan", (int)entry);
  return file_read_text(path, text, sizeof(text)) > 0 && strstr(text, "nanosleep");
}

static const struct proc *find(const struct proctree *t, pid_t pid) {
  for (size_t i = 0; i < t->n; i++)
    if (t->v[i].pid == pid) return &t->v[i];
  return NULL;
}

/* The local rank of the worker that p is or descends from; count: none. */
static uint32_t worker_of(const struct proctree *t, const struct proc *p, const pid_t *pids, uint32_t count) {
  for (int depth = 0; p && depth < DEPTH_MAX; depth++) {
    for (uint32_t i = 0; i < count; i++)
      if (pids[i] > 0 && pids[i] == p->pid) return i;
    p = find(t, p->ppid);
  }
  return count;
}

static int by_rank(const void *a, const void *b) {
  const struct store_hint_process *p = a, *q = b;
  if (p->rank != q->rank) return p->rank < q->rank ? -1 : 1;
  return (p->pid > q->pid) - (p->pid < q->pid);
}

void store_watch_look(const pid_t *pids, uint32_t count, int64_t rank_base, struct store_hint_look *out) {
  struct proctree t = PROCTREE_INIT;
  struct tcp_sockets sockets = {0};
  read_sockets("/proc/net/tcp", &sockets);
  read_sockets("/proc/net/tcp6", &sockets);
  if (sockets.n) qsort(sockets.v, sockets.n, sizeof(*sockets.v), by_inode);
  proctree_descendants(&t, 0);
  out->n = 0;
  out->v = xcalloc(STORE_HINT_PROCESSES_MAX, sizeof(*out->v));
  for (size_t i = 0; i < t.n && out->n < STORE_HINT_PROCESSES_MAX; i++) {
    const struct proc *k = &t.v[i];
    uint32_t local = k->dying ? count : worker_of(&t, k, pids, count);
    if (local == count) continue;
    struct store_hint_process *p = &out->v[out->n++];
    *p = (struct store_hint_process){.rank = rank_base + local, .pid = k->pid, .start = k->start};
    memcpy(p->name, k->name, sizeof(p->name));
    read_environ(k, p);
    p->sleeps = is_in_nanosleep(k->entry);
    p->torch = has_torch(k->entry);
    read_links(k->entry, &sockets, p);
  }
  if (out->n) qsort(out->v, out->n, sizeof(*out->v), by_rank);
  proctree_finish(&t);
  free(sockets.v);
}

/* The watch. ------------------------------------------------------------------------------------------------------- */

struct look {
  uv_work_t work;
  struct store_watch *of; /* NULL: given up */
  pid_t *pids;
  uint32_t count;
  int64_t rank_base;
  struct store_hint_look found;
};

struct store_watch {
  struct store_watch_options o;
  uv_timer_t timer;
  struct look *look; /* on its way through the pool */
  struct store_hint_look before;
  char *addr;
  struct store_hint_given given;
  int64_t rank_base;
  uint64_t begun_ms, said_ms;
};

static void look_free(struct look *l) {
  free(l->found.v);
  free(l->pids);
  free(l);
}

static void do_look(uv_work_t *work) { /* in the pool */
  struct look *l = work->data;
  store_watch_look(l->pids, l->count, l->rank_base, &l->found);
}

static void on_look_due(uv_timer_t *timer);

static void arm(struct store_watch *w, uint64_t elapsed_ms, uint64_t at_ms) {
  uv_update_time(w->o.loop);
  uv_timer_start(&w->timer, on_look_due, at_ms > elapsed_ms ? at_ms - elapsed_ms : 0, 0);
}

static void on_looked(uv_work_t *work, int status) {
  struct look *l = work->data;
  struct store_watch *w = l->of;
  struct buf text = BUF_INIT;
  if (w) {
    w->look = NULL;
    uint64_t elapsed_ms = boot_ms() - w->begun_ms;
    if (!w->o.is_used(w->o.ctx)) {
      if (store_hint_put(&w->given, &w->before, &l->found, elapsed_ms, &text)) {
        log_warn("%s", buf_text(&text));
        w->said_ms = elapsed_ms;
      }
      free(w->before.v);
      w->before = l->found;
      l->found.v = NULL;
      arm(w, elapsed_ms, store_hint_next_ms(elapsed_ms, w->said_ms));
    }
  }
  buf_finish(&text);
  look_free(l);
}

static void on_look_due(uv_timer_t *timer) {
  struct store_watch *w = timer->data;
  if (w->o.is_used(w->o.ctx)) return;
  struct look *l = xcalloc(1, sizeof(*l));
  l->work.data = l;
  l->of = w;
  l->count = w->o.count;
  l->rank_base = w->rank_base;
  l->pids = xcalloc(l->count, sizeof(*l->pids));
  w->o.get_pids(w->o.ctx, l->pids);
  w->look = l;
  loop_work(w->o.loop, &l->work, do_look, on_looked);
}

void store_watch_begin(struct store_watch *w, const struct store_hint_given *given, int64_t rank_base) {
  store_watch_end(w);
  w->addr = xstrdup(given->addr);
  w->given = *given;
  w->given.addr = w->addr;
  w->rank_base = rank_base;
  w->begun_ms = boot_ms();
  w->said_ms = 0;
  arm(w, 0, store_hint_next_ms(0, 0));
  uv_unref((uv_handle_t *)&w->timer);
}

void store_watch_end(struct store_watch *w) {
  uv_timer_stop(&w->timer);
  if (w->look) w->look->of = NULL;
  w->look = NULL;
  free(w->before.v);
  free(w->addr);
  w->before = (struct store_hint_look){0};
  w->addr = NULL;
}

struct store_watch *store_watch_create(const struct store_watch_options *o) {
  struct store_watch *w = xcalloc(1, sizeof(*w));
  w->o = *o;
  uv_timer_init(o->loop, &w->timer);
  w->timer.data = w;
  return w;
}

static void on_closed(uv_handle_t *handle) {
  free(handle->data);
}

void store_watch_destroy(struct store_watch *w) {
  if (!w) return;
  store_watch_end(w);
  uv_close((uv_handle_t *)&w->timer, on_closed);
}
