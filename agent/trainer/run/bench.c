/* SPDX-License-Identifier: Apache-2.0 */
/* `--bench allreduce`: is this cluster as fast as it should be, and are its sums right? It uses the collectives, the
 * launcher and the network of a training run. Its columns are those of nccl-tests, so the figures can be compared.
 *
 * For each size, all ranks warm up, time `iters` all-reduces in a row behind a barrier, and check sums of known values.
 * A device gets all iterations at once, as a captured graph. So the time is the device's and not that of the host's
 * calls, which are slow with a communicator that does not block. For small sizes one pair of marks for late collectives
 * surrounds all iterations, because a mark takes as long as a sum. */

#include "agent/trainer/run/trainer.h"

#include "common/system/log.h"
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
  STAGE_MAX = 1 << 20, /* elements copied to or from the device at once */
  SPINS = 1000,        /* polls of the device before the first sched_yield */
  RANKS_SHOWN = 64,
  ROW_MAX = 1 << 20, /* bytes: up to this size all iterations are watched as one */
  GRAPH_MAX = 1000,  /* iterations in a graph; more iterations launch it several times */
};

struct bench {
  struct trainer *t;
  const struct bench_opts *o;
  size_t stage_n;
  struct bench_sums sums;
  double busbw;
  uint64_t rows, failed;
  uint64_t rep; /* number of the check, for the values */
  bool stop;
};

/* A rank's card for the table: bytes only, so there is no padding. */
struct card {
  char host[64], device[96], pid[12];
};

static double now_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static size_t stage_size(const struct trainer *t) {
  size_t most = (size_t)t->o.bench.max / BENCH_ELEM;
  return most < STAGE_MAX ? most : STAGE_MAX;
}

/* Waits until the queue, which has `steps` all-reduces in it, is done. */
static int await_queue(struct bench *b, uint64_t steps, struct err *e) {
  struct trainer *t = b->t;
  struct compute_mark mark;
  int rc = compute_record(t->c, &mark, e);
  double limit = (double)(steps + 1) * (double)t->o.coll_timeout_ms / 1000, end = now_seconds() + limit;
  for (uint64_t i = 0; rc == 0; i++) {
    rc = compute_done(t->c, mark, e);
    if (rc) return rc < 0 ? with_exit(t, TRAINER_SYSTEM, rc) : 0;
    rc = with_coll_exit(t, coll_progress(t->coll, e));
    if (i > SPINS) sched_yield();
    if (rc == 0 && now_seconds() > end)
      rc = with_exit(t, TRAINER_SYSTEM,
                     err_set(e, -ETIMEDOUT, "%s did not finish the queued work within %.0f s", t->c->device, limit));
  }
  return rc;
}

static int enqueue_reductions(struct bench *b, uint64_t count, uint64_t times, struct err *e) {
  struct trainer *t = b->t;
  struct coll_ticket ticket;
  struct span all = span_of(t->bench_data, 0, count);
  bool row = t->coll->ops->all_reduce_row && count * BENCH_ELEM <= ROW_MAX && times <= GRAPH_MAX;
  int rc = 0;
  for (uint64_t i = 0; i < (row ? 1 : times) && rc == 0; i++) {
    rc = row ? t->coll->ops->all_reduce_row(t->coll, t->c, all, times, &ticket, e)
             : coll_all_reduce_begin(t->coll, t->c, all, &ticket, e);
    if (rc == 0) rc = coll_wait(t->coll, ticket, e);
    tally_add(&t->tally, row ? times : 1);
  }
  return with_coll_exit(t, rc);
}

static uint64_t iterations_in_graph(const struct bench *b) {
  return b->o->iters < GRAPH_MAX ? (uint64_t)b->o->iters : GRAPH_MAX;
}

struct iterations {
  struct bench *b;
  uint64_t count;
};

static int queue_iterations(void *ctx, struct err *e) {
  struct iterations *i = ctx;
  return enqueue_reductions(i->b, i->count, iterations_in_graph(i->b), e);
}

/* Copies values to the device, or back and compares them, one stage at a time. wrong NULL: to the device. */
static int exchange_values(struct bench *b, uint64_t count, uint64_t *wrong, struct err *e) {
  struct trainer *t = b->t;
  int rc = 0;
  for (uint64_t at = 0; at < count && rc == 0; at += b->stage_n) {
    size_t n = count - at < b->stage_n ? (size_t)(count - at) : b->stage_n;
    struct span host = span_of(t->bench_stage, 0, n), device = span_of(t->bench_data, (size_t)at, n);
    if (!wrong) bench_fill(compute_host(t->c, host), n, at, t->rank, b->rep);
    rc = with_exit(t, TRAINER_SYSTEM, compute_copy(t->c, wrong ? host : device, wrong ? device : host, e));
    if (rc == 0) rc = await_queue(b, 0, e);
    if (rc == 0 && wrong) *wrong += bench_wrong(&b->sums, compute_host(t->c, host), n, at, b->rep);
  }
  return rc;
}

/* A large size takes long, and its row comes only at its end. */
static void log_wait(struct bench *b, uint64_t count, const char *what, uint64_t times) {
  struct trainer *t = b->t;
  tally_begin(&t->tally, times);
  wait_log_begin(t->waits, &t->tally, "all-reduces", "size %llu, %llu of %llu: %s",
                 (unsigned long long)count * BENCH_ELEM, (unsigned long long)b->rows + 1,
                 (unsigned long long)bench_sizes(b->o), what);
}

static int measure_time(struct bench *b, uint64_t count, double *seconds, struct err *e) {
  uint64_t warmup = (uint64_t)b->o->warmup, iters = (uint64_t)b->o->iters, each = iterations_in_graph(b), n = 0;
  log_wait(b, count, "warming up", warmup + 1);
  struct compute_graph *g = NULL;
  int rc = enqueue_reductions(b, count, warmup + 1, e);
  if (rc == 0) rc = await_queue(b, warmup + 1, e);
  if (rc == 0 && b->t->capture != CAPTURE_NEVER) { /* the iterations as one graph; NULL: there is none */
    struct iterations these = {b, count};
    struct err why = ERR_INIT;
    rc = trainer_capture(b->t, "the iterations", queue_iterations, &these, &g, &why);
    if (rc < 0) err_set(e, rc, "%s", why.text);
    if (rc == 1 && b->t->rank == 0) log_warn("the host queues each all-reduce, and its time is included: %s", why.text);
    if (rc == 1) rc = 0;
  }
  if (rc == 0 && g)
    rc = with_exit(b->t, TRAINER_SYSTEM, compute_launch(b->t->c, g, e)); /* the first launch loads the graph */
  if (rc == 0) rc = await_queue(b, each, e);
  log_wait(b, count, "measuring the time", iters);
  if (rc == 0) rc = with_coll_exit(b->t, coll_barrier(b->t->coll, e));
  double from = now_seconds();
  if (rc == 0 && !g) {
    rc = enqueue_reductions(b, count, iters, e);
    n = iters;
  }
  for (; rc == 0 && n < iters; n += each) {
    rc = with_exit(b->t, TRAINER_SYSTEM, compute_launch(b->t->c, g, e));
    tally_add(&b->t->tally, each);
  }
  if (rc == 0) rc = await_queue(b, n, e);
  *seconds = (now_seconds() - from) / (double)(n ? n : 1);
  if (g) compute_graph_destroy(b->t->c, g);
  return rc;
}

static void print_text(const struct buf *text) {
  if (fputs(buf_text(text), stdout) < 0 || fflush(stdout) != 0)
    log_warn("a result could not be printed: %s", strerror(errno));
}

static int measure_size(struct bench *b, uint64_t count, struct err *e) {
  struct trainer *t = b->t;
  double mine = 0;
  uint64_t wrong = 0;
  b->rep++;
  int rc = exchange_values(b, count, NULL, e);
  if (rc == 0) rc = measure_time(b, count, &mine, e);
  log_wait(b, count, "checking the sums", (uint64_t)b->o->check);
  for (int64_t i = 0; i < b->o->check && rc == 0 && wrong == 0; i++) {
    b->rep++;
    rc = exchange_values(b, count, NULL, e);
    if (rc == 0) rc = enqueue_reductions(b, count, 1, e);
    if (rc == 0) rc = await_queue(b, 1, e);
    if (rc == 0) rc = exchange_values(b, count, &wrong, e);
  }
  bool stop = *t->sigterm || (rdzv_requested(t->rdzv) & RDZV_STOP);
  double all[3] = {mine, (double)wrong, stop ? 1 : 0};
  if (rc == 0) rc = with_coll_exit(t, coll_sum(t->coll, all, 3, e));
  wait_log_end(t->waits);
  if (rc) return rc;
  struct bench_result r = {count, all[0] / t->world, (uint64_t)all[1], b->o->check > 0};
  b->stop = all[2] > 0;
  b->busbw += bench_busbw(&r, t->world);
  b->failed += r.wrong > 0;
  b->rows++;
  rdzv_progress(t->rdzv, b->rows, bench_sizes(b->o), (double)NAN, 0);
  if (t->rank != 0) return 0;

  struct buf line = BUF_INIT;
  struct metrics *m = &t->metrics;
  bench_print_row(&line, &r, t->world);
  print_text(&line);
  buf_finish(&line);
  metrics_begin(m, "bench");
  metrics_text(m, "bench", "allreduce");
  metrics_uint(m, "size", r.count * BENCH_ELEM);
  metrics_uint(m, "count", r.count);
  metrics_text(m, "type", "float");
  metrics_text(m, "redop", "sum");
  metrics_text(m, "place", "in");
  metrics_real(m, "time_us", r.seconds * 1e6);
  metrics_real(m, "algbw", bench_algbw(&r) / 1e9);
  metrics_real(m, "busbw", bench_busbw(&r, t->world) / 1e9);
  if (r.checked) metrics_uint(m, "wrong", r.wrong);
  metrics_uint(m, "world", (uint64_t)t->world);
  return with_exit(t, TRAINER_FILES, metrics_end(m, e));
}

/* Prints the ranks, with their hosts and devices. */
static int print_head(struct bench *b, struct err *e) {
  struct trainer *t = b->t;
  struct card mine = {0};
  struct buf text = BUF_INIT;
  if (gethostname(mine.host, sizeof mine.host - 1))
    return with_exit(t, TRAINER_LOST, err_sys(e, -errno, "gethostname"));
  snprintf(mine.device, sizeof mine.device, "%s", t->c->device);
  snprintf(mine.pid, sizeof mine.pid, "%d", (int)getpid());
  struct card *all = xcalloc((size_t)t->world, sizeof *all);
  int rc = trainer_exchange(t, "bench", &mine, sizeof mine, all, e);
  buf_printf(&text, "# rdzv-trainer " RDZV_VERSION " --bench allreduce: %d rank%s, %s%s\n", t->world,
             t->world == 1 ? "" : "s", t->coll->ops->name,
             t->capture == CAPTURE_NEVER ? "" : ", all iterations in one graph");
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
  if (rc == 0 && t->rank == 0) print_text(&text);
  buf_finish(&text);
  free(all);
  return rc;
}

int trainer_bench_alloc(struct trainer *t, struct err *e) {
  size_t most = (size_t)t->o.bench.max / BENCH_ELEM;
  int rc = compute_alloc(t->c, COMPUTE_GRAD, most, &t->bench_data, e);
  return rc ? rc : compute_alloc(t->c, COMPUTE_STAGE, stage_size(t), &t->bench_stage, e);
}

/* Ends the bench: the same exit on all ranks, and the summary on rank 0. */
static int finish_bench(struct bench *b, struct err *e) {
  struct trainer *t = b->t;
  int rc = 0;
  if (t->rank == 0) {
    struct buf text = BUF_INIT;
    double mean = b->rows ? b->busbw / (double)b->rows : 0;
    bench_print_foot(&text, b->failed, mean);
    print_text(&text);
    buf_finish(&text);
    metrics_begin(&t->metrics, "bench_end");
    metrics_text(&t->metrics, "bench", "allreduce");
    metrics_uint(&t->metrics, "sizes", b->rows);
    metrics_uint(&t->metrics, "failed", b->failed);
    metrics_real(&t->metrics, "busbw", mean / 1e9);
    metrics_uint(&t->metrics, "world", (uint64_t)t->world);
    rc = with_exit(t, TRAINER_FILES, metrics_end(&t->metrics, e));
  }
  if (rc == 0) rc = with_coll_exit(t, coll_barrier(t->coll, e));
  if (rc) return rc;
  if (b->failed)
    return with_exit(t, TRAINER_WRONG,
                     err_set(e, -EBADMSG,
                             "%llu of %llu sizes had wrong sums; find the cause before you train on these machines",
                             (unsigned long long)b->failed, (unsigned long long)b->rows));
  if (b->stop) {
    t->exit = TRAINER_STOPPED;
    if (t->rank == 0) log_info("stopped as requested: the remaining sizes were not measured");
    return 0;
  }
  t->exit = TRAINER_DONE;
  rdzv_done(t->rdzv);
  return 0;
}

int trainer_bench(struct trainer *t, struct err *e) {
  struct bench b = {.t = t, .o = &t->o.bench, .stage_n = stage_size(t)};
  uint64_t count;
  bench_sums_init(&b.sums, t->world);
  int rc = trainer_choose_capture(t, "iterations", e);
  if (rc == 0) rc = print_head(&b, e);
  for (bool more = bench_first(b.o, &count); rc == 0 && more && !b.stop; more = bench_next(b.o, &count))
    rc = measure_size(&b, count, e);
  if (rc == 0) rc = finish_bench(&b, e);
  return rc;
}
