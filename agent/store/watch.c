/* SPDX-License-Identifier: Apache-2.0 */
/* The processes of workers, as /proc shows them.
 *
 *   begin -> timer -> pool: a look -> sentence -> timer ... until a worker has connected, or the round ends
 *
 * A look reads, once each: /proc/PID/stat of all processes, then maps and syscall of the workers and their descendants,
 * LOOKED_MAX at most. A file that cannot be read counts as empty.
 *
 * A look that does not return is given up with its round and frees itself when it does. */

#include "agent/store/watch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include "agent/guard/proctree.h"
#include "common/system/clock.h"
#include "common/system/file.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "common/mem.h"

enum {
  FIRST_MS = 10000, /* after the workers were started */
  AGAIN_MS = 30000,
  LOOKED_MAX = 512,
  MAPS_MAX = 8 * 1024 * 1024,
  DEPTH_MAX = 64, /* of a process below its worker */
  ADDR_SHOWN_MAX = 127,
};

/* A process. ------------------------------------------------------------------------------------------------------- */

/* Whether it has mapped one of PyTorch's libraries. */
static bool has_torch(pid_t pid) {
  char path[40], line[4096 + 128];
  bool found = false;
  snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
  FILE *f = fopen(path, "re");
  if (!f) return false;
  for (size_t read = 0; !found && read < MAPS_MAX && fgets(line, sizeof(line), f); read += strlen(line))
    found = strstr(line, "/libtorch") || strstr(line, "/libc10.so");
  fclose(f);
  return found;
}

/* The number of its system call, if the kernel shows it to us; else the function in which it waits. */
static bool is_in_nanosleep(pid_t pid) {
  char path[40], text[256];
  snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
  if (file_read_text(path, text, sizeof(text)) > 0 && text[0] >= '0' && text[0] <= '9') {
    long call = strtol(text, NULL, 10);
    return call == SYS_clock_nanosleep || call == SYS_nanosleep;
  }
  snprintf(path, sizeof(path), "/proc/%d/wchan", (int)pid);
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

size_t store_watch_look(const pid_t *pids, uint32_t count, int64_t rank_base, struct store_waiter *first) {
  struct proctree t = PROCTREE_INIT;
  size_t n = 0, looked = 0;
  proctree_descendants(&t, 0, 0);
  for (size_t i = 0; i < t.n && looked < LOOKED_MAX; i++) {
    const struct proc *k = &t.v[i];
    uint32_t local = k->dying ? count : worker_of(&t, k, pids, count);
    looked += local < count;
    if (local == count || !is_in_nanosleep(k->pid) || !has_torch(k->pid)) continue;
    if (n++ && first->rank <= rank_base + local) continue;
    *first = (struct store_waiter){.rank = rank_base + local, .pid = k->pid};
    memcpy(first->name, k->name, sizeof(first->name));
  }
  proctree_finish(&t);
  return n;
}

bool store_watch_put(const struct store_watch_round *r, const struct store_waiter *first, size_t n, uint64_t elapsed_ms,
                     struct buf *out) {
  if (!n || (r->world_size == 1 && n == 1)) return false;
  buf_puts(out, "no worker has connected to the round's store (MASTER_ADDR=");
  buf_put_escaped(out, r->addr, strlen(r->addr), ADDR_SHOWN_MAX);
  buf_printf(out, " MASTER_PORT=%u) for %llu s, and rank %lld's process %d (", (unsigned)r->port,
             (unsigned long long)elapsed_ms / 1000, (long long)first->rank, (int)first->pid);
  buf_put_escaped(out, first->name, strlen(first->name), sizeof(first->name));
  buf_puts(out, ") has loaded PyTorch and waits; if the script sets MASTER_ADDR or MASTER_PORT, or "
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
  struct store_waiter first;
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
  l->n = store_watch_look(l->pids, l->count, l->rank_base, &l->first);
}

static void on_looked(uv_work_t *work, int status) {
  struct look *l = work->data;
  struct store_watch *w = l->of;
  struct buf text = BUF_INIT;
  if (w) w->look = NULL;
  if (w && !w->o.is_used(w->o.ctx) && store_watch_put(&w->round, &l->first, l->n, boot_ms() - w->begun_ms, &text))
    log_warn("%s", buf_text(&text));
  buf_finish(&text);
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
