/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of workers and their TCP sockets, as /proc shows them.
 *
 *   begin -> timer -> pool: a look -> sentence -> timer ... until a worker has connected, or the round ends
 *
 * A look reads, once each: the tables of TCP sockets, /proc/PID/stat of all processes, then maps, syscall and fd of the
 * workers and their descendants, STORE_WATCH_MAX at most. A file that cannot be read counts as empty.
 *
 * A look that does not return is given up with its round and frees itself when it does. */

#include "agent/store/watch.h"

#include <dirent.h>
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
  FIRST_MS = 10000, /* after the workers were started */
  AGAIN_MS = 30000,
  SOCKETS_MAX = 65536,
  LINKS_MAX = 4096, /* descriptors of one process */
  MAPS_MAX = 8 * 1024 * 1024,
  DEPTH_MAX = 64, /* of a process below its worker */
  TCP_STATE_ESTABLISHED = 1,
  TCP_STATE_SYN_SENT = 2,
  ADDR_SHOWN_MAX = 127,
};

/* Sockets. --------------------------------------------------------------------------------------------------------- */

struct tcp_socket {
  unsigned long inode;
  unsigned state, peer_port;
};

struct tcp_sockets {
  struct tcp_socket *v;
  size_t n;
};

static void read_sockets(const char *table, struct tcp_sockets *s) {
  FILE *f = fopen(table, "re");
  char line[512];
  if (!f) return;
  while (s->n < SOCKETS_MAX && fgets(line, sizeof(line), f)) {
    struct tcp_socket t = {0};
    if (sscanf(line, " %*d: %*[0-9A-Fa-f]:%*x %*[0-9A-Fa-f]:%x %x %*s %*s %*s %*s %*s %lu", &t.peer_port, &t.state,
               &t.inode) != 3 ||
        !t.inode)
      continue;
    if ((s->n & (s->n - 1)) == 0) s->v = xrealloc(s->v, (s->n ? 2 * s->n : 1) * sizeof(*s->v));
    s->v[s->n++] = t;
  }
  fclose(f);
}

static int by_inode(const void *a, const void *b) {
  const struct tcp_socket *s = a, *t = b;
  return (s->inode > t->inode) - (s->inode < t->inode);
}

static void read_links(pid_t entry, const struct tcp_sockets *s, struct store_process *p) {
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
    if (t) {
      /* Downloads are no search for a store. */
      if (t->state == TCP_STATE_ESTABLISHED) p->connected = true;
      if (t->state == TCP_STATE_SYN_SENT && t->peer_port != 80 && t->peer_port != 443) p->unanswered = true;
    }
  }
  closedir(d);
}

/* A process. ------------------------------------------------------------------------------------------------------- */

/* Whether it has mapped one of PyTorch's libraries. */
static bool has_torch(pid_t entry) {
  char path[40], line[4096 + 128];
  bool found = false;
  snprintf(path, sizeof(path), "/proc/%d/maps", (int)entry);
  FILE *f = fopen(path, "re");
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

/* The local rank of the worker that p is or descends from; count: none. */
static uint32_t worker_of(const struct proctree *t, const struct proc *p, const pid_t *pids, uint32_t count) {
  for (int depth = 0; p && depth < DEPTH_MAX; depth++) {
    for (uint32_t i = 0; i < count; i++)
      if (pids[i] > 0 && pids[i] == p->pid) return i;
    size_t at = 0;
    while (at < t->n && t->v[at].pid != p->ppid) at++;
    p = at < t->n ? &t->v[at] : NULL;
  }
  return count;
}

static int by_rank(const void *a, const void *b) {
  const struct store_process *p = a, *q = b;
  if (p->rank != q->rank) return p->rank < q->rank ? -1 : 1;
  return (p->pid > q->pid) - (p->pid < q->pid);
}

size_t store_watch_look(const pid_t *pids, uint32_t count, int64_t rank_base, struct store_process **out) {
  struct proctree t = PROCTREE_INIT;
  struct tcp_sockets sockets = {0};
  size_t n = 0;
  read_sockets("/proc/net/tcp", &sockets);
  read_sockets("/proc/net/tcp6", &sockets);
  if (sockets.n) qsort(sockets.v, sockets.n, sizeof(*sockets.v), by_inode);
  proctree_descendants(&t, 0, 0);
  *out = xcalloc(STORE_WATCH_MAX, sizeof(**out));
  for (size_t i = 0; i < t.n && n < STORE_WATCH_MAX; i++) {
    const struct proc *k = &t.v[i];
    uint32_t local = k->dying ? count : worker_of(&t, k, pids, count);
    if (local == count) continue;
    struct store_process *p = &(*out)[n++];
    *p = (struct store_process){.rank = rank_base + local, .pid = k->pid};
    memcpy(p->name, k->name, sizeof(p->name));
    p->sleeps = is_in_nanosleep(k->entry);
    p->torch = has_torch(k->entry);
    read_links(k->entry, &sockets, p);
  }
  if (n) qsort(*out, n, sizeof(**out), by_rank);
  proctree_finish(&t);
  free(sockets.v);
  return n;
}

bool store_watch_put(const struct store_watch_round *r, const struct store_process *v, size_t n, uint64_t elapsed_ms,
                     struct buf *out) {
  const struct store_process *first = NULL;
  size_t waiting = 0;
  for (size_t i = 0; i < n; i++) {
    if (!v[i].torch || v[i].connected || !(v[i].sleeps || v[i].unanswered)) continue;
    if (waiting++ == 0) first = &v[i];
  }
  if (!first || (r->world_size == 1 && waiting == 1)) return false;
  buf_puts(out, "no worker has connected to the round's store (MASTER_ADDR=");
  buf_put_escaped(out, r->addr, strlen(r->addr), ADDR_SHOWN_MAX);
  buf_printf(out, " MASTER_PORT=%u) for %llu s, and rank %lld's process %d (", (unsigned)r->port,
             (unsigned long long)elapsed_ms / 1000, (long long)first->rank, (int)first->pid);
  buf_put_escaped(out, first->name, strlen(first->name), sizeof(first->name));
  buf_puts(out, ") has loaded PyTorch, waits and has no connection; if the script sets MASTER_ADDR or MASTER_PORT, or "
                "has an init_method=\"tcp://...\", start the job with --store worker");
  return true;
}

/* The watch. ------------------------------------------------------------------------------------------------------- */

struct look {
  uv_work_t work;
  struct store_watch *of; /* NULL: given up */
  pid_t *pids;
  uint32_t count;
  int64_t rank_base;
  struct store_process *found;
  size_t n;
};

struct store_watch {
  struct store_watch_options o;
  uv_timer_t timer;
  struct look *look; /* on its way through the pool */
  char *addr;
  struct store_watch_round round;
  uint64_t begun_ms;
};

static void do_look(uv_work_t *work) { /* in the pool */
  struct look *l = work->data;
  l->n = store_watch_look(l->pids, l->count, l->rank_base, &l->found);
}

static void on_looked(uv_work_t *work, int status) {
  struct look *l = work->data;
  struct store_watch *w = l->of;
  struct buf text = BUF_INIT;
  if (w) w->look = NULL;
  if (w && !w->o.is_used(w->o.ctx) && store_watch_put(&w->round, l->found, l->n, boot_ms() - w->begun_ms, &text))
    log_warn("%s", buf_text(&text));
  buf_finish(&text);
  free(l->found);
  free(l->pids);
  free(l);
}

static void on_look_due(uv_timer_t *timer) {
  struct store_watch *w = timer->data;
  if (w->o.is_used(w->o.ctx)) {
    uv_timer_stop(timer);
    return;
  }
  if (w->look) return;
  struct look *l = w->look = xcalloc(1, sizeof(*l));
  l->work.data = l;
  l->of = w;
  l->count = w->o.count;
  l->rank_base = w->round.rank_base;
  l->pids = xcalloc(l->count, sizeof(*l->pids));
  w->o.get_pids(w->o.ctx, l->pids);
  loop_work(w->o.loop, &l->work, do_look, on_looked);
}

void store_watch_begin(struct store_watch *w, const struct store_watch_round *round) {
  store_watch_end(w);
  w->addr = xstrdup(round->addr);
  w->round = *round;
  w->round.addr = w->addr;
  w->begun_ms = boot_ms();
  uv_update_time(w->o.loop);
  uv_timer_start(&w->timer, on_look_due, FIRST_MS, AGAIN_MS);
  uv_unref((uv_handle_t *)&w->timer);
}

void store_watch_end(struct store_watch *w) {
  uv_timer_stop(&w->timer);
  if (w->look) w->look->of = NULL;
  w->look = NULL;
  free(w->addr);
  w->addr = NULL;
}

struct store_watch *store_watch_create(const struct store_watch_options *o) {
  struct store_watch *w = xcalloc(1, sizeof(*w));
  w->o = *o;
  uv_timer_init(o->loop, &w->timer);
  w->timer.data = w;
  return w;
}

void store_watch_destroy(struct store_watch *w) {
  if (!w) return;
  store_watch_end(w);
  uv_close((uv_handle_t *)&w->timer, loop_free);
}
