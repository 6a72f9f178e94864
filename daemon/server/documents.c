/* SPDX-License-Identifier: Apache-2.0 */
/* The documents over HTTP: the core makes the text, and this file adds the head.
 *
 * The page asks for the jobs twice a second, and mostly nothing has happened to jobs that have ended. So /status has an
 * ETag, and a page that has it gets 304 without the work of the answer. The ETag is a hash of the user, the query, the number
 * of events that the core has taken, and of the time in units of DOCUMENT_FRESH_MS: some facts change by time alone. It
 * is a weak one: the ages in two answers that share it differ, and nothing else does. The hash has a key, since the
 * number of events would tell a user what other users' jobs do. */

#include "daemon/server/documents.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/clock.h"
#include "daemon/page/page.h"
#include "daemon/server/server.h"

enum { DOCUMENT_FRESH_MS = 1000 };

int64_t process_count_fds(void) {
  DIR *fds = opendir("/proc/self/fd");
  int64_t n = -1; /* the one that lists them does not count */
  for (const struct dirent *entry; fds && (entry = readdir(fds));) n += entry->d_name[0] != '.';
  if (fds) closedir(fds);
  return n;
}

/* What /proc and the clocks say of this process. */
struct process_facts process_facts(double started_wall_s) {
  struct process_facts f = {.cpu_s = -1,
                            .started_wall_s = started_wall_s,
                            .resident_bytes = -1,
                            .virtual_bytes = -1,
                            .open_fds = -1,
                            .max_fds = -1};
  struct timespec cpu;
  struct rlimit limit;
  struct stat st;
  long long pages, resident;
  FILE *in = fopen("/proc/self/statm", "re");
  if (in && fscanf(in, "%lld %lld", &pages, &resident) == 2) {
    f.virtual_bytes = pages * sysconf(_SC_PAGESIZE);
    f.resident_bytes = resident * sysconf(_SC_PAGESIZE);
  }
  if (in) fclose(in);
  if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu) == 0) f.cpu_s = (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) f.max_fds = (int64_t)limit.rlim_cur;
  f.open_fds = stat("/proc/self/fd", &st) == 0 && st.st_size > 0 ? st.st_size : process_count_fds();
  return f;
}

struct document {
  struct core *core;
  int64_t uid;
  struct buf job; /* of the query: the only job; empty: all */
  int64_t owner;  /* of the query: whose; -1: anybody's */
  bool head;      /* HEAD: without a body */
  struct http_answer answer;
  double started_wall_s;
  struct core_status *status; /* /status: */
};

void documents_init(struct documents *all, struct core *core, uint64_t seed) {
  *all = (struct documents){.core = core, .tags = siphash_key_from(seed), .started_wall_s = (double)wall_ms() / 1000};
}

static bool more_page(void *source, struct buf *body) {
  buf_append(body, page_html, page_html_len);
  return false;
}

static bool more_status(void *source, struct buf *body) {
  struct document *d = source;
  if (!d->status) d->status = core_status_begin(d->core, d->uid, buf_text(&d->job), d->owner);
  enum core_status_piece piece =
      core_status_more(d->status, d->core, server_now_ms(), wall_ms(), CORE_STATUS_BUDGET, body);
  if (piece == CORE_STATUS_REFUSED) {
    d->answer.status = HTTP_UNAVAILABLE;
    d->answer.etag[0] = 0;
  }
  return piece == CORE_STATUS_MORE;
}

static bool more_metrics(void *source, struct buf *body) {
  struct document *d = source;
  struct process_facts facts = process_facts(d->started_wall_s);
  metrics_put(d->core, d->uid, &facts, server_now_ms(), body);
  return false;
}

static void put_head(void *source, struct buf *head, struct buf *body) {
  const struct document *d = source;
  http_put_head(head, &d->answer, body->len);
  if (d->head) buf_clear(body);
}

static void destroy(void *source) {
  struct document *d = source;
  core_status_end(d->status, d->core);
  buf_finish(&d->job);
  free(d);
}

static const char *const types[] = {[HTTP_STATUS] = "application/json",
                                    [HTTP_METRICS] = "text/plain; version=0.0.4; charset=utf-8",
                                    [HTTP_PAGE] = "text/html; charset=utf-8"};
static bool (*const makers[])(void *source, struct buf *body) = {
    [HTTP_STATUS] = more_status, [HTTP_METRICS] = more_metrics, [HTTP_PAGE] = more_page};

void documents_open(struct documents *all, const struct http_request *r, enum http_resource resource, int64_t uid,
                    struct http_answer *a, struct answer_document *out) {
  a->type = types[resource];
  if (resource == HTTP_STATUS) {
    const uint64_t said[] = {(uint64_t)uid, all->changes, server_now_ms() / DOCUMENT_FRESH_MS,
                             siphash(&all->tags, r->query, r->query_len)};
    a->weak = true;
    snprintf(a->etag, sizeof(a->etag), "%016" PRIx64, siphash(&all->tags, said, sizeof(said)));
  } else if (resource == HTTP_PAGE) {
    a->policy = page_policy;
    snprintf(a->etag, sizeof(a->etag), "%s", page_etag);
  }
  if (http_has(r, a->etag)) {
    a->status = HTTP_NOT_MODIFIED;
    return;
  }
  struct document *d = xcalloc(1, sizeof(*d));
  *d = (struct document){
      .core = all->core, .uid = uid, .head = r->head, .answer = *a, .started_wall_s = all->started_wall_s};
  if (resource == HTTP_STATUS) {
    struct buf owner = BUF_INIT;
    if (!http_query(r, "job", &d->job)) buf_clear(&d->job);
    d->owner = http_query(r, "uid", &owner) ? strtoll(buf_text(&owner), NULL, 10) : -1;
    buf_finish(&owner);
  }
  *out = (struct answer_document){
      .uid = uid, .source = d, .more = makers[resource], .put_head = put_head, .destroy = destroy};
}
