/* `--bench allreduce`: is this cluster as fast as it should be, and are its sums right? Measured with the collectives, the launcher and the
 * network that a training run will use, so that nothing else has to be installed, and in the columns of nccl-tests, so that the
 * figures can be laid beside others (bench_table.h).
 *
 * For each size, on all ranks alike:
 *
 *   warm up    some all-reduces: connections, algorithms and pages are made when they are first used
 *   time       one all-reduce, a barrier, then `iters` all-reduces, each behind the last, without a word in between; the clock stands when
 *              the last one is done. A device is given all of them at once, as a graph that was captured before: what is timed is what it does,
 *              and not how the host says it, which with a communicator that does not block is slow. The two marks by which a late
 *              collective is found stand around all of them where they are small, since there a mark takes as long as a sum
 *   check      known values, one all-reduce, all sums
 *   tell       time, wrong sums, and whether somebody was told to stop, summed over the ranks: one message, and a barrier at that
 *
 * As in nccl-tests sums are made of sums while the time is taken, so values grow there; the check has fresh ones. Rank 0 prints a row when it has it.
 *
 * No wait is without a deadline: the collectives have theirs, and a device that never comes to the end of its queue is given up
 * after as many times --coll-timeout as all-reduces are in it. */

#include "agent/trainer/run/trainer.h"

#include "common/log.h"
#include "common/mem.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
  STAGE_MAX = 1 << 20, /* elements that go to or come from the device at once */
  SPINS = 1000,        /* looks at the device before the processor is given to others in between */
  RANKS_SHOWN = 64,
  ROW_MAX = 1 << 20, /* bytes: up to here all iterations are watched as one */
  GRAPH_MAX = 1000,  /* iterations in a graph; more are made of whole ones */
};

struct bench {
  struct trainer *t;
  const struct bench_opts *o;
  size_t stage_n;
  struct bench_sums sums;
  double busbw;
  uint64_t rows, failed;
  uint64_t rep; /* of the values */
  bool stop;
  bool capture; /* the device is given all iterations at once */
};

/* Who is here: bytes only, so that there is no padding. */
struct card {
  char host[64], device[96], pid[12];
};

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t stage_size(const struct trainer *t) {
  size_t most = (size_t)t->o.bench.max / BENCH_ELEM;
  return most < STAGE_MAX ? most : STAGE_MAX;
}

/* Everything that is queued is done. `steps` all-reduces are in the queue. */
static int settle(struct bench *b, uint64_t steps, struct err *e) {
  struct trainer *t = b->t;
  struct compute_mark mark;
  int rc = compute_record(t->c, &mark, e);
  double limit = (double)(steps + 1) * (double)t->o.coll_timeout_ms / 1000, end = now() + limit;
  for (uint64_t i = 0; rc == 0; i++) {
    rc = compute_done(t->c, mark, e);
    if (rc) return rc < 0 ? trainer_blame(t, TRAINER_SYSTEM, rc) : 0;
    rc = trainer_blame_coll(t, coll_progress(t->coll, e));
    if (i > SPINS) sched_yield();
    if (rc == 0 && now() > end)
      rc = trainer_blame(
          t, TRAINER_SYSTEM,
          err_set(e, -ETIMEDOUT, "%s did not finish what was queued within %.0f s", t->c->device, limit));
  }
  return rc;
}

static int reduce(struct bench *b, uint64_t count, uint64_t times, struct err *e) {
  struct trainer *t = b->t;
  struct coll_ticket ticket;
  struct span all = span_of(t->bench_data, 0, count);
  bool row = t->coll->ops->all_reduce_row && count * BENCH_ELEM <= ROW_MAX && times <= GRAPH_MAX;
  int rc = 0;
  for (uint64_t i = 0; i < (row ? 1 : times) && rc == 0; i++) {
    rc = row ? t->coll->ops->all_reduce_row(t->coll, t->c, all, times, &ticket, e)
             : coll_all_reduce_begin(t->coll, t->c, all, &ticket, e);
    if (rc == 0) rc = coll_wait(t->coll, ticket, e);
  }
  return trainer_blame_coll(t, rc);
}

static uint64_t in_graph(const struct bench *b) {
  return b->o->iters < GRAPH_MAX ? (uint64_t)b->o->iters : GRAPH_MAX;
}

/* The iterations as one graph; *out stays NULL where there can be none. What a rank that is lost has to say here is said again behind it. */
static int capture(struct bench *b, uint64_t count, struct compute_graph **out, struct err *e) {
  struct trainer *t = b->t;
  struct err why = ERR_INIT;
  *out = NULL;
  if (!b->capture) return 0;
  int rc = compute_capture_begin(t->c, &why);
  if (rc == 0) {
    int called = reduce(b, count, in_graph(b), &why);
    rc = compute_capture_end(t->c, out, called ? NULL : &why);
    if (rc == 0 && called) compute_graph_destroy(t->c, *out);
    if (rc || called) *out = NULL;
    rc = called ? called : rc;
  }
  if (rc == 0) return 0;
  b->capture = false;
  if (t->o.cuda_graph == CUDA_GRAPH_ON)
    return err_set(e, rc, "--cuda-graph on: the iterations cannot be captured: %s", why.text);
  if (t->rank == 0) log_warn("the host gives each all-reduce by itself, and its time counts: %s", why.text);
  return 0;
}

/* From or to the device, a stage at a time. */
static int exchange_values(struct bench *b, uint64_t count, uint64_t *wrong, struct err *e) {
  struct trainer *t = b->t;
  int rc = 0;
  for (uint64_t at = 0; at < count && rc == 0; at += b->stage_n) {
    size_t n = count - at < b->stage_n ? (size_t)(count - at) : b->stage_n;
    struct span host = span_of(t->bench_stage, 0, n), device = span_of(t->bench_data, (size_t)at, n);
    if (!wrong) bench_fill(compute_host(t->c, host), n, at, t->rank, b->rep);
    rc =
        trainer_blame(t, TRAINER_SYSTEM, compute_copy(t->c, wrong ? host : device, wrong ? device : host, e));
    if (rc == 0) rc = settle(b, 0, e);
    if (rc == 0 && wrong) *wrong += bench_wrong(&b->sums, compute_host(t->c, host), n, at, b->rep);
  }
  return rc;
}

static int fill(struct bench *b, uint64_t count, struct err *e) {
  b->rep++;
  return exchange_values(b, count, NULL, e);
}

/* All iterations are queued; how many that are. */
static int iterate(struct bench *b, uint64_t count, struct compute_graph *g, uint64_t *n, struct err *e) {
  uint64_t iters = (uint64_t)b->o->iters, each = in_graph(b);
  int rc = 0;
  *n = iters;
  if (!g) return reduce(b, count, iters, e);
  for (*n = 0; *n < iters && rc == 0; *n += each) rc = compute_launch(b->t->c, g, e);
  return trainer_blame(b->t, TRAINER_SYSTEM, rc);
}

static int take_time(struct bench *b, uint64_t count, double *seconds, struct err *e) {
  uint64_t warmup = (uint64_t)b->o->warmup, n = 0;
  struct compute_graph *g = NULL;
  int rc = reduce(b, count, warmup + 1, e);
  if (rc == 0) rc = settle(b, warmup + 1, e);
  if (rc == 0) rc = trainer_blame(b->t, TRAINER_SYSTEM, capture(b, count, &g, e));
  if (rc == 0 && g) rc = trainer_blame(b->t, TRAINER_SYSTEM, compute_launch(b->t->c, g, e)); /* loads it */
  if (rc == 0) rc = settle(b, in_graph(b), e);
  if (rc == 0) rc = trainer_blame_coll(b->t, coll_barrier(b->t->coll, e));
  double from = now();
  if (rc == 0) rc = iterate(b, count, g, &n, e);
  if (rc == 0) rc = settle(b, n, e);
  *seconds = (now() - from) / (double)(n ? n : 1);
  if (g) compute_graph_destroy(b->t->c, g);
  return rc;
}

static int check(struct bench *b, uint64_t count, uint64_t *wrong, struct err *e) {
  int rc = 0;
  for (int64_t i = 0; i < b->o->check && rc == 0 && *wrong == 0; i++) {
    rc = fill(b, count, e);
    if (rc == 0) rc = reduce(b, count, 1, e);
    if (rc == 0) rc = settle(b, 1, e);
    if (rc == 0) rc = exchange_values(b, count, wrong, e);
  }
  return rc;
}

static void print(const struct buf *text) {
  if (fputs(buf_text(text), stdout) < 0 || fflush(stdout) != 0)
    log_warn("a result could not be printed: %s", strerror(errno));
}

static int metrics_row(struct bench *b, const struct bench_result *r, struct err *e) {
  struct metrics *m = &b->t->metrics;
  metrics_begin(m, "bench");
  metrics_text(m, "bench", "allreduce");
  metrics_uint(m, "size", r->count * BENCH_ELEM);
  metrics_uint(m, "count", r->count);
  metrics_text(m, "type", "float");
  metrics_text(m, "redop", "sum");
  metrics_text(m, "place", "in");
  metrics_real(m, "time_us", r->seconds * 1e6);
  metrics_real(m, "algbw", bench_algbw(r) / 1e9);
  metrics_real(m, "busbw", bench_busbw(r, b->t->world) / 1e9);
  if (r->checked) metrics_uint(m, "wrong", r->wrong);
  metrics_uint(m, "world", (uint64_t)b->t->world);
  return trainer_blame(b->t, TRAINER_FILES, metrics_end(m, e));
}

static int say_row(struct bench *b, const struct bench_result *r, struct err *e) {
  struct buf line = BUF_INIT;
  b->busbw += bench_busbw(r, b->t->world);
  b->failed += r->wrong > 0;
  b->rows++;
  rdzv_progress(b->t->rdzv, b->rows, bench_sizes(b->o), (double)NAN, 0);
  if (b->t->rank != 0) return 0;
  bench_print_row(&line, r, b->t->world);
  print(&line);
  buf_finish(&line);
  return metrics_row(b, r, e);
}

static int one_size(struct bench *b, uint64_t count, struct err *e) {
  struct trainer *t = b->t;
  double mine = 0;
  uint64_t wrong = 0;
  int rc = fill(b, count, e);
  if (rc == 0) rc = take_time(b, count, &mine, e);
  if (rc == 0) rc = check(b, count, &wrong, e);
  bool stop = *t->sigterm || (rdzv_requested(t->rdzv) & RDZV_STOP);
  double all[3] = {mine, (double)wrong, stop ? 1 : 0};
  if (rc == 0) rc = trainer_blame_coll(t, coll_sum(t->coll, all, 3, e));
  if (rc) return rc;
  struct bench_result r = {count, all[0] / t->world, (uint64_t)all[1], b->o->check > 0};
  b->stop = all[2] > 0;
  return say_row(b, &r, e);
}

static int exchange_cards(struct trainer *t, struct card *all, struct err *e) {
  struct card mine = {0};
  if (gethostname(mine.host, sizeof mine.host - 1)) return err_sys(e, -errno, "gethostname");
  snprintf(mine.device, sizeof mine.device, "%s", t->c->device);
  snprintf(mine.pid, sizeof mine.pid, "%d", (int)getpid());
  int rc = rdzv_exchange(t->rdzv, "bench", &mine, sizeof mine, all, (int)t->o.coll_timeout_ms);
  return rc ? err_set(e, rc, "%s", rdzv_error(t->rdzv)) : 0;
}

/* Which ranks there are, on which hosts and devices. */
static int say_head(struct bench *b, struct err *e) {
  struct trainer *t = b->t;
  struct card *all = xcalloc((size_t)t->world, sizeof *all);
  struct buf text = BUF_INIT;
  int rc = trainer_blame(t, TRAINER_LOST, exchange_cards(t, all, e));
  buf_printf(&text, "# rdzv-trainer " RDZV_VERSION " --bench allreduce: %d rank%s, %s%s\n", t->world,
             t->world == 1 ? "" : "s", t->coll->ops->name, b->capture ? ", all iterations in one graph" : "");
  for (int i = 0; i < t->world && i < RANKS_SHOWN; i++) {
    const struct card *c = &all[i];
    buf_printf(&text, "#  Rank %3d Pid %6.*s on ", i, (int)strnlen(c->pid, sizeof c->pid), c->pid);
    buf_put_escaped(&text, c->host, strnlen(c->host, sizeof c->host), sizeof c->host);
    buf_puts(&text, " device ");
    buf_put_escaped(&text, c->device, strnlen(c->device, sizeof c->device), sizeof c->device);
    buf_putc(&text, '\n');
  }
  if (t->world > RANKS_SHOWN) buf_printf(&text, "#  and %d more\n", t->world - RANKS_SHOWN);
  bench_print_head(&text, b->o);
  if (rc == 0 && t->rank == 0) print(&text);
  buf_finish(&text);
  free(all);
  return rc;
}

static int say_foot(struct bench *b, struct err *e) {
  struct metrics *m = &b->t->metrics;
  struct buf text = BUF_INIT;
  double mean = b->rows ? b->busbw / (double)b->rows : 0;
  bench_print_foot(&text, b->failed, mean);
  print(&text);
  buf_finish(&text);
  metrics_begin(m, "bench_end");
  metrics_text(m, "bench", "allreduce");
  metrics_uint(m, "sizes", b->rows);
  metrics_uint(m, "failed", b->failed);
  metrics_real(m, "busbw", mean / 1e9);
  metrics_uint(m, "world", (uint64_t)b->t->world);
  return trainer_blame(b->t, TRAINER_FILES, metrics_end(m, e));
}

int trainer_bench_alloc(struct trainer *t, struct err *e) {
  size_t most = (size_t)t->o.bench.max / BENCH_ELEM;
  int rc = compute_alloc(t->c, COMPUTE_GRAD, most, &t->bench_data, e);
  return rc ? rc : compute_alloc(t->c, COMPUTE_STAGE, stage_size(t), &t->bench_stage, e);
}

/* The end, the same on all ranks but for the words. */
static int conclude(struct bench *b, struct err *e) {
  struct trainer *t = b->t;
  int rc = t->rank == 0 ? say_foot(b, e) : 0;
  if (rc == 0) rc = trainer_blame_coll(t, coll_barrier(t->coll, e));
  if (rc) return rc;
  if (b->failed)
    return trainer_blame(
        t, TRAINER_WRONG,
        err_set(e, -EBADMSG,
                "%llu of %llu sizes had wrong sums: do not train on this before the cause is known",
                (unsigned long long)b->failed, (unsigned long long)b->rows));
  if (b->stop) {
    t->exit = TRAINER_STOPPED;
    if (t->rank == 0) log_info("told to stop: the sizes that are left were not measured");
    return 0;
  }
  t->exit = TRAINER_DONE;
  rdzv_done(t->rdzv);
  return 0;
}

int trainer_bench(struct trainer *t, struct err *e) {
  struct bench b = {.t = t,
                    .o = &t->o.bench,
                    .stage_n = stage_size(t),
                    .capture = compute_can_capture(t->c) && t->o.cuda_graph != CUDA_GRAPH_OFF};
  uint64_t count;
  bench_sums_init(&b.sums, t->world);
  if (!b.capture && t->o.cuda_graph == CUDA_GRAPH_ON)
    return trainer_blame(t, TRAINER_USAGE,
                         err_set(e, -EINVAL, "--cuda-graph on: %s captures nothing", t->c->device));
  int rc = trainer_blame_coll(t, coll_register(t->coll, t->c, t->bench_data, e));
  if (rc == 0) rc = say_head(&b, e);
  for (bool more = bench_first(b.o, &count); rc == 0 && more && !b.stop; more = bench_next(b.o, &count))
    rc = one_size(&b, count, e);
  if (rc == 0) rc = conclude(&b, e);
  return rc;
}
