/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of ranks that all run on one host: they add up each other's memory where it lies.
 *
 * Beneath is a ring of tcp.c. It carries the sums of a few numbers and the broadcasts, and its connections show at once
 * that a rank dies. Spans of buffers that were registered (coll_register) do not travel at all: every rank maps the
 * registered buffers of the others.
 *
 *   ready    "my values are complete": counted in the page of each rank, which all others map
 *   act      A rank waits until all are ready. Then it adds up its part of the span over all ranks, in the order of the
 *            ring, so that the bytes are those of the ring, and writes the sum to every rank.
 *   done     "I read and write nothing more of this collective". When all are done, the span belongs to its rank again.
 *
 * A rank writes to the gradients of other ranks, and never to their weights. A rank that is late could therefore spoil
 * gradients only, and only while its round lasts: the next round begins when every rank of this one is dead or has left
 * its collectives (recover.c).
 *
 * A rank that waits looks a few times, gives its core away, and then sleeps on a futex in the page of rank 0, which the
 * last one to be ready or done wakes. With more ranks than cores it gives the core away at once. While it sleeps it
 * looks every TICK_MS for a failure: a page that has one, a connection that closed, its agent, the deadline. A rank that
 * fails writes the reason to its page, so all know it at once.
 *
 * Ranks are on one host if they have the same boot, the same processes and the same network. They find each other's
 * memory by /proc/PID/fd. If any rank cannot, all use the ring alone. */

#include "agent/trainer/coll/coll.h"

#include "agent/trainer/coll/ring_op.h"
#include "agent/trainer/coll/tcp.h"
#include "agent/trainer/wide.h"
#include "common/mem.h"
#include "common/system/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  WORLD_MAX = 1024,
  BUFFERS_MAX = 4,
  SECRET = 16,
  TEXT_MAX = 400,
  BLOCK = 2048, /* floats that are added up at a time: they stay in the first cache */
  SPINS = 2000,
  YIELDS = 3,
  TICK_MS = 2,
  LINE = 64
};

struct op {
  uint64_t buffer;
  uint64_t at, n;
};

/* What a rank shows the others. It alone writes to it, except to bell and sleepers of rank 0's. */
struct page {
  uint8_t secret[SECRET];
  int32_t lost;
  char text[TEXT_MAX];
  _Atomic uint32_t failed; /* lost and text are written */
  struct {
    int32_t fd; /* -1: it cannot be mapped */
    uint32_t unused;
    uint64_t bytes;
  } buffers[BUFFERS_MAX];
  struct op ops[COLL_TICKETS_MAX]; /* those that are not done */
  _Alignas(LINE) _Atomic uint64_t ready;
  _Alignas(LINE) _Atomic uint64_t done;
  _Alignas(LINE) _Atomic uint32_t bell, sleepers;
};

/* A rank's note for the others, sent with its address. */
struct note {
  uint64_t host;
  int32_t pid, fd;
  uint8_t secret[SECRET];
};
_Static_assert(sizeof(struct note) <= COLL_NOTE, "a note fits");

struct registered {
  struct compute_buf *buf;
  size_t bytes;
  float **base; /* of each rank; [rank]: this rank's own */
};

struct host {
  struct coll base;
  struct coll *ring;
  struct coll_tcp_config cfg;
  struct page **pages;
  struct note *notes;
  int fd; /* of this rank's page */
  bool spin;
  struct registered buffers[BUFFERS_MAX];
  int n_buffers;
  uint64_t begun, acted; /* acted: this rank's `done` */
  uint64_t moved_ms, stop_seen_ms, asked_ms;
  struct err failed;
};

/* Failures. -------------------------------------------------------------------------------------------------------- */

static void wake_all(struct host *h) {
  struct page *p = h->pages[0];
  atomic_fetch_add(&p->bell, 1);
  if (atomic_load(&p->sleepers)) syscall(SYS_futex, &p->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void show_failure(struct host *h, int lost, const char *text) {
  struct page *mine = h->pages[h->base.rank];
  mine->lost = lost;
  size_t n = strlen(text) < TEXT_MAX - 1 ? strlen(text) : TEXT_MAX - 1;
  memcpy(mine->text, text, n);
  mine->text[n] = 0;
  atomic_store(&mine->failed, 1);
  wake_all(h);
}

/* The ring has failed with rc. */
static int fail_with_ring(struct host *h, int rc, const struct err *why, struct err *e) {
  if (h->failed.code) return err_set(e, h->failed.code, "%s", h->failed.text);
  bool own = h->ring->lost < 0; /* the agent asked */
  h->failed = *why;
  h->failed.code = rc;
  h->base.lost = h->ring->lost;
  show_failure(h, own ? h->base.rank : h->ring->lost, why->text);
  return err_set(e, rc, "%s", why->text);
}

static int fail(struct host *h, int code, int lost, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static int fail(struct host *h, int code, int lost, struct err *e, const char *fmt, ...) {
  struct err why = ERR_INIT;
  char text[TEXT_MAX];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  for (char *c = text; *c; c++)
    if ((unsigned char)*c < ' ' || *c == 127) *c = '?'; /* as the ring does */
  coll_tcp_give_up(h->ring, code, lost, text, &why);
  return fail_with_ring(h, code, &why, e);
}

static int check_failed(const struct host *h, struct err *e) {
  return h->failed.code ? err_set(e, h->failed.code, "%s", h->failed.text) : 0;
}

static int check_pages(struct host *h, struct err *e) {
  for (int r = 0; r < h->base.world; r++) {
    struct page *p = h->pages[r];
    char text[TEXT_MAX];
    if (r == h->base.rank || !atomic_load(&p->failed)) continue;
    int lost = p->lost >= 0 && p->lost < h->base.world ? p->lost : r;
    memcpy(text, p->text, TEXT_MAX);
    text[TEXT_MAX - 1] = 0;
    return fail(h, -ECONNABORTED, lost, e, "%s", text);
  }
  return 0;
}

/* Waiting. --------------------------------------------------------------------------------------------------------- */

struct awaited {
  bool done; /* else ready */
  uint64_t count;
};

static uint64_t count_of(const struct host *h, const struct awaited *w, int rank) {
  return atomic_load(w->done ? &h->pages[rank]->done : &h->pages[rank]->ready);
}

/* The first rank that is not there, or -1. */
static int missing(const struct host *h, const struct awaited *w) {
  for (int r = 0; r < h->base.world; r++)
    if (count_of(h, w, r) < w->count) return r;
  return -1;
}

static uint64_t deadline(struct host *h) {
  uint64_t at = h->moved_ms + h->cfg.timeout_ms;
  if (!h->cfg.stop || !*h->cfg.stop) return at;
  if (!h->stop_seen_ms) h->stop_seen_ms = monotonic_ms();
  uint64_t from = h->stop_seen_ms > h->moved_ms ? h->stop_seen_ms : h->moved_ms;
  return from + h->cfg.stop_wait_ms < at ? from + h->cfg.stop_wait_ms : at;
}

static int ask_agent(struct host *h, uint64_t now, struct err *e) {
  struct err why = ERR_INIT;
  if (!h->cfg.asked || now - h->asked_ms < COLL_ASK_MS) return 0;
  h->asked_ms = now;
  int rc = h->cfg.asked(h->cfg.asked_ctx, &why);
  if (rc == 0) return 0;
  fail(h, rc, h->base.rank, e, "rank %d leaves: %s", h->base.rank, why.text);
  h->base.lost = -1;
  return rc;
}

/* Once in TICK_MS of a wait: anything that makes it useless? */
static int look_around(struct host *h, const struct awaited *w, struct err *e) {
  struct err why = ERR_INIT;
  uint64_t now = monotonic_ms();
  int rc = check_pages(h, e);
  if (rc == 0) rc = ask_agent(h, now, e);
  if (rc) return rc;
  int seen = coll_tcp_watch(h->ring, &why);
  int who = missing(h, w); /* a rank that has done all may leave, so this is asked afterwards */
  if (who < 0) return 0;
  if (seen > 0) seen = coll_tcp_left(h->ring, &why);
  if (seen < 0) return fail_with_ring(h, seen, &why, e);
  if (now < deadline(h)) return 0;
  return fail(h, -ETIMEDOUT, who, e,
              "lost contact with rank %d: it sent nothing for %.1f s in all-reduce %llu (rank %d waited)", who,
              (double)(now - h->moved_ms) / 1000, (unsigned long long)(w->count - 1), h->base.rank);
}

static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

static int await(struct host *h, struct awaited w, struct err *e) {
  int rc = 0, who = missing(h, &w);
  for (int i = 0; h->spin && i < SPINS && who >= 0; i++) {
    relax();
    if (count_of(h, &w, who) >= w.count) who = missing(h, &w);
  }
  for (int i = 0; i < YIELDS && who >= 0; i++) {
    sched_yield();
    who = missing(h, &w);
  }
  if (who < 0) return 0;
  uint64_t seen = count_of(h, &w, who);
  h->moved_ms = monotonic_ms();
  for (uint64_t looked_ms = 0; rc == 0 && who >= 0;) {
    struct timespec tick = {.tv_nsec = TICK_MS * 1000000L};
    struct page *p = h->pages[0];
    atomic_fetch_add(&p->sleepers, 1);
    uint32_t heard = atomic_load(&p->bell);
    if (missing(h, &w) >= 0) syscall(SYS_futex, &p->bell, FUTEX_WAIT, heard, &tick, NULL, 0);
    atomic_fetch_sub(&p->sleepers, 1);
    int next = missing(h, &w);
    uint64_t now = monotonic_ms();
    if (next != who || (next >= 0 && count_of(h, &w, next) != seen)) h->moved_ms = now;
    who = next;
    seen = who >= 0 ? count_of(h, &w, who) : 0;
    if (who >= 0 && now - looked_ms >= TICK_MS) {
      rc = look_around(h, &w, e);
      looked_ms = now;
    }
  }
  return rc;
}

/* This rank's count is now `count`: wakes the others if it was the last one. */
static void announce(struct host *h, bool done, uint64_t count) {
  struct page *mine = h->pages[h->base.rank];
  struct awaited w = {.done = done, .count = count};
  atomic_store(done ? &mine->done : &mine->ready, count);
  if (missing(h, &w) < 0) wake_all(h);
}

/* Acting. ---------------------------------------------------------------------------------------------------------- */

WIDE_BODY void add_block(float *restrict to, const float *restrict what, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] += what[i];
}
WIDE(void, add, (float *to, const float *what, size_t n), add_block(to, what, n))

/* Part i of a span, of `world`: as ring_op.c cuts it. */
static size_t part_of(const struct op *op, size_t world, size_t i, size_t *at) {
  size_t each = op->n / world, more = op->n % world;
  *at = op->at + i * each + (i < more ? i : more);
  return each + (i < more);
}

/* In the ring a part starts at the rank of its number, and every rank adds its own values to what it gets. */
static void reduce(struct host *h, const struct op *op) {
  size_t world = (size_t)h->base.world, part = (size_t)h->base.rank, at, n = part_of(op, world, part, &at);
  float *const *base = h->buffers[op->buffer].base;
  void (*add)(float *, const float *, size_t) = add_of_this_cpu();
  float sum[BLOCK] __attribute__((aligned(LINE)));
  for (size_t i = 0; i < n; i += BLOCK) {
    size_t m = n - i < BLOCK ? n - i : BLOCK;
    memcpy(sum, base[part] + at + i, m * sizeof *sum);
    for (size_t k = 1; k < world; k++) add(sum, base[(part + k) % world] + at + i, m);
    for (size_t r = 0; r < world; r++) memcpy(base[r] + at + i, sum, m * sizeof *sum);
  }
}

static int check_equal(struct host *h, const struct op *mine, struct err *e) {
  for (int r = 0; r < h->base.world; r++) {
    const struct op *op = &h->pages[r]->ops[h->acted % COLL_TICKETS_MAX];
    if (op->buffer == mine->buffer && op->at == mine->at && op->n == mine->n) continue;
    return fail(h, -EPROTO, r, e, "rank %d is in another collective than rank %d: %llu values and not %llu", r,
                h->base.rank, (unsigned long long)op->n, (unsigned long long)mine->n);
  }
  return 0;
}

/* Does what all ranks are ready for. */
static int act(struct host *h, struct err *e) {
  while (h->acted < h->begun) {
    struct awaited w = {.count = h->acted + 1};
    struct op op = h->pages[h->base.rank]->ops[h->acted % COLL_TICKETS_MAX];
    if (missing(h, &w) >= 0) return 0;
    int rc = check_equal(h, &op, e);
    if (rc) return rc;
    reduce(h, &op);
    announce(h, true, ++h->acted);
  }
  return 0;
}

static int complete(struct host *h, uint64_t upto, struct err *e) {
  int rc = check_failed(h, e);
  while (rc == 0 && h->acted < upto) {
    rc = await(h, (struct awaited){.count = h->acted + 1}, e);
    if (rc == 0) rc = act(h, e);
  }
  return rc ? rc : await(h, (struct awaited){.done = true, .count = upto}, e);
}

/* Operations. ------------------------------------------------------------------------------------------------------ */

/* Tickets of the ring beneath are marked, because the two count by themselves. */
#define OF_RING (UINT64_C(1) << 63)

static int of_ring(struct host *h, int rc, struct err *why, struct coll_ticket *t, struct err *e) {
  if (rc == 0 && t) t->n |= OF_RING;
  if (rc == 0) return 0;
  if (rc == -EINVAL || rc == -ENOTSUP) return err_set(e, rc, "%s", why->text); /* the call was wrong */
  return fail_with_ring(h, rc, why, e);
}

static int registered_as(const struct host *h, struct span s) {
  for (int i = 0; i < h->n_buffers; i++)
    if (h->buffers[i].buf == s.buf && (s.at + s.n) * sizeof(float) <= h->buffers[i].bytes) return i;
  return -1;
}

static int begin(struct host *h, int buffer, struct span s, struct coll_ticket *t, struct err *e) {
  int rc = check_failed(h, e);
  /* The ops of a page are those that some rank may still read. */
  if (rc == 0 && h->begun >= COLL_TICKETS_MAX) rc = complete(h, h->begun + 1 - COLL_TICKETS_MAX, e);
  if (rc) return rc;
  h->pages[h->base.rank]->ops[h->begun % COLL_TICKETS_MAX] =
      (struct op){.buffer = (uint64_t)buffer, .at = s.at, .n = s.n};
  t->n = ++h->begun;
  announce(h, false, h->begun);
  return act(h, e);
}

static int host_all_reduce(struct coll *l, struct compute *c, struct span s, struct coll_ticket *t, struct err *e) {
  struct host *h = (struct host *)l;
  struct err why = ERR_INIT;
  int buffer = registered_as(h, s);
  if (buffer >= 0) return begin(h, buffer, s, t, e);
  return of_ring(h, coll_all_reduce_begin(h->ring, c, s, t, &why), &why, t, e);
}

static int host_wait(struct coll *l, struct coll_ticket t, struct err *e) {
  struct host *h = (struct host *)l;
  struct err why = ERR_INIT;
  if (t.n & OF_RING) return of_ring(h, coll_wait(h->ring, (struct coll_ticket){t.n & ~OF_RING}, &why), &why, NULL, e);
  return complete(h, t.n, e);
}

static int host_progress(struct coll *l, struct err *e) {
  struct host *h = (struct host *)l;
  struct err why = ERR_INIT;
  int rc = check_failed(h, e);
  if (rc == 0) rc = of_ring(h, coll_progress(h->ring, &why), &why, NULL, e);
  if (rc == 0) rc = check_pages(h, e);
  return rc ? rc : act(h, e);
}

static int host_sum(struct coll *l, double *v, size_t n, struct err *e) {
  struct host *h = (struct host *)l;
  struct err why = ERR_INIT;
  return of_ring(h, coll_sum(h->ring, v, n, &why), &why, NULL, e);
}

static int host_broadcast(struct coll *l, void *data, size_t n, int root, struct err *e) {
  struct host *h = (struct host *)l;
  struct err why = ERR_INIT;
  return of_ring(h, coll_broadcast(h->ring, data, n, root, &why), &why, NULL, e);
}

static void host_abort(struct coll *l, const char *why) {
  struct host *h = (struct host *)l;
  if (!h->failed.code) fail(h, -ECONNABORTED, l->rank, NULL, "rank %d gave up: %s", l->rank, why);
}

/* Mapping. --------------------------------------------------------------------------------------------------------- */

static void *map_of(int pid, int fd, size_t bytes) {
  char path[64];
  struct stat st;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  int own = fd >= 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (own < 0) return NULL;
  void *at = MAP_FAILED;
  if (fstat(own, &st) == 0 && (uint64_t)st.st_size >= bytes)
    at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, own, 0);
  close(own);
  return at == MAP_FAILED ? NULL : at;
}

/* True on every rank, or on none: a collective. */
static int agree(struct host *h, bool mine, bool *all, struct err *e) {
  double failed = mine ? 0 : 1;
  int rc = host_sum(&h->base, &failed, 1, e);
  *all = rc == 0 && failed < 0.5;
  return rc;
}

static void unmap_buffer(struct host *h, struct registered *b) {
  for (int r = 0; b->base && r < h->base.world; r++)
    if (b->base[r] && r != h->base.rank) munmap(b->base[r], b->bytes);
  free(b->base);
  *b = (struct registered){0};
}

static bool map_buffers(struct host *h, struct registered *b, int slot) {
  for (int r = 0; r < h->base.world; r++) {
    const struct page *p = h->pages[r];
    if (r == h->base.rank || p->buffers[slot].bytes != b->bytes) continue;
    b->base[r] = map_of(h->notes[r].pid, p->buffers[slot].fd, b->bytes);
  }
  for (int r = 0; r < h->base.world; r++)
    if (!b->base[r]) return false;
  return true;
}

/* If any rank cannot share or map, its spans go through the ring on all. */
static int host_register(struct coll *l, struct compute *c, struct compute_buf *buf, struct err *e) {
  struct host *h = (struct host *)l;
  int slot = h->n_buffers, fd = -1;
  size_t bytes = 0;
  bool ok = false;
  if (slot == BUFFERS_MAX) return 0;
  struct registered *b = &h->buffers[slot];
  struct page *mine = h->pages[l->rank];
  compute_share(c, buf, &fd, &bytes, NULL);
  mine->buffers[slot].fd = fd;
  mine->buffers[slot].bytes = bytes;
  *b = (struct registered){.buf = buf, .bytes = bytes, .base = xcalloc((size_t)l->world, sizeof *b->base)};
  b->base[l->rank] = compute_host(c, (struct span){buf, 0, 1});
  int rc = agree(h, fd >= 0, &ok, e); /* also: all pages are written */
  if (rc == 0 && ok) rc = agree(h, map_buffers(h, b, slot), &ok, e);
  if (rc == 0 && ok)
    h->n_buffers++;
  else
    unmap_buffer(h, b);
  return rc;
}

static void host_destroy(struct coll *l) {
  struct host *h = (struct host *)l;
  for (int i = 0; i < h->n_buffers; i++) unmap_buffer(h, &h->buffers[i]);
  coll_destroy(h->ring);
  for (int r = 0; h->pages && r < l->world; r++)
    if (h->pages[r]) munmap(h->pages[r], sizeof(struct page));
  if (h->fd >= 0) close(h->fd);
  free(h->pages);
  free(h->notes);
  free(h);
}

static const struct coll_ops host_ops = {
    .name = "shared memory",
    .destroy = host_destroy,
    .all_reduce_begin = host_all_reduce,
    .wait = host_wait,
    .progress = host_progress,
    .sum = host_sum,
    .broadcast = host_broadcast,
    .abort = host_abort,
    .register_buf = host_register,
};

/* Meeting. --------------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, const void *data, size_t n) {
  for (const uint8_t *p = data; n > 0; n--, p++) hash = (hash ^ *p) * UINT64_C(1099511628211);
  return hash;
}

/* Equal for processes that see each other and have the same network. 0: unknown. */
static uint64_t host_id(void) {
  static const char *const spaces[] = {"/proc/self/ns/pid", "/proc/self/ns/net", "/proc/self/ns/user"};
  uint64_t hash = UINT64_C(14695981039346656037);
  char boot[64];
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, boot, sizeof boot) : -1;
  if (fd >= 0) close(fd);
  if (n <= 0) return 0;
  hash = mix(hash, boot, (size_t)n);
  for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
    struct stat st;
    if (stat(spaces[i], &st)) return 0;
    hash = mix(hash, &st.st_ino, sizeof st.st_ino);
  }
  return hash;
}

static struct page *make_page(struct note *n) {
  *n = (struct note){.host = host_id(), .pid = (int32_t)getpid(), .fd = -1};
  if (n->host == 0 || getrandom(n->secret, SECRET, 0) != SECRET) return NULL;
  n->fd = memfd_create("rdzv-trainer", MFD_CLOEXEC);
  if (n->fd < 0 || ftruncate(n->fd, sizeof(struct page))) return NULL;
  struct page *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED, n->fd, 0);
  if (p == MAP_FAILED) return NULL;
  memcpy(p->secret, n->secret, SECRET);
  return p;
}

static bool map_pages(struct host *h) {
  const struct note *mine = &h->notes[h->base.rank];
  for (int r = 0; r < h->base.world; r++) {
    const struct note *n = &h->notes[r];
    if (n->host == 0 || n->host != mine->host) return false;
    if (r != h->base.rank) h->pages[r] = map_of(n->pid, n->fd, sizeof(struct page));
    if (!h->pages[r] || memcmp(h->pages[r]->secret, n->secret, SECRET) != 0) return false;
  }
  return true;
}

static struct host *make_host(const struct coll_tcp_config *cfg, struct coll *ring, const struct note *mine,
                              const uint8_t *notes) {
  struct host *h = xcalloc(1, sizeof *h);
  cpu_set_t cpus;
  h->base = (struct coll){.ops = &host_ops, .rank = cfg->rank, .world = cfg->world, .lost = -1};
  h->ring = ring;
  h->cfg = *cfg;
  h->fd = mine->fd;
  h->spin = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && cfg->world <= CPU_COUNT(&cpus);
  h->pages = xcalloc((size_t)cfg->world, sizeof(struct page *));
  h->notes = xcalloc((size_t)cfg->world, sizeof *h->notes);
  for (int r = 0; r < cfg->world; r++) memcpy(&h->notes[r], notes + (size_t)r * COLL_NOTE, sizeof *h->notes);
  return h;
}

int coll_host_create(const struct coll_tcp_config *cfg, struct coll **out, struct err *e) {
  struct note mine;
  uint8_t note[COLL_NOTE] = {0}, *notes = xcalloc((size_t)cfg->world, COLL_NOTE);
  struct page *page = make_page(&mine);
  struct coll_tcp_config with_note = *cfg;
  memcpy(note, &mine, sizeof mine);
  with_note.note = note;
  with_note.notes = notes;
  int rc = coll_tcp_create(&with_note, out, e);
  if (rc) {
    if (page) munmap(page, sizeof *page);
    if (mine.fd >= 0) close(mine.fd);
    free(notes);
    return rc;
  }
  struct host *h = make_host(cfg, *out, &mine, notes);
  h->pages[cfg->rank] = page;
  free(notes);
  bool all = false;
  struct err why = ERR_INIT;
  double failed = page && cfg->world <= WORLD_MAX && map_pages(h) ? 0 : 1;
  rc = coll_sum(h->ring, &failed, 1, &why);
  all = rc == 0 && failed < 0.5;
  if (all) {
    *out = &h->base;
    return 0;
  }
  if (rc == 0) h->ring = NULL; /* it stays, alone */
  if (rc) *out = NULL;
  host_destroy(&h->base);
  return rc ? err_set(e, rc, "%s", why.text) : 0;
}
