/* SPDX-License-Identifier: Apache-2.0 */
/* Looks at the files of --hang-watch file:PATH.
 *
 * One job in the pool looks at all files of a node. No second one is queued meanwhile: a file server that does not
 * answer keeps one thread, and the supervisor stops waiting on its own. The job owns what it uses; if its round or
 * owner is gone, it frees itself.
 *
 * A change is a difference between two looks, never a comparison with our clock: a file server has its own. The first
 * look comes before workers start, since a worker may touch its file once and hang. The result of a job that outlived
 * its round is dropped. */

#include "agent/hang/files.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/system/loop.h"
#include "common/buf.h"
#include "common/mem.h"

struct look {
  bool there;
  uint64_t ino, size;
  int64_t sec, nsec;
};

struct look_job {
  uv_work_t work;
  struct hang_files *of; /* NULL: given up */
  bool asked;            /* somebody waits for it */
  uint32_t count;
  char **names;
  struct look *found;
};

struct hang_files {
  uv_loop_t *loop;
  uint32_t count;
  char *name;
  hang_files_looked_fn on_looked;
  void *ctx;
  int64_t rank_base;
  struct look_job *out; /* of this round */
  struct look *last;
  bool *changed;
  bool any; /* `last` is of this round */
};

static bool take_macro(const char **p, const char *macro) {
  size_t n = strlen(macro);
  if (strncmp(*p, macro, n) != 0) return false;
  *p += n;
  return true;
}

char *hang_file_name(const char *name, int64_t rank, uint32_t local_rank) {
  struct buf out = BUF_INIT;
  for (const char *p = name; *p;) {
    if (take_macro(&p, "${local_rank}"))
      buf_printf(&out, "%" PRIu32, local_rank);
    else if (take_macro(&p, "${rank}"))
      buf_printf(&out, "%" PRId64, rank);
    else
      buf_putc(&out, *p++);
  }
  buf_puts(&out, "");
  return buf_steal(&out);
}

/* In the pool. */
static void do_look(uv_work_t *work) {
  struct look_job *j = work->data;
  for (uint32_t i = 0; i < j->count; i++) {
    struct stat st;
    if (stat(j->names[i], &st) == 0)
      j->found[i] = (struct look){true, (uint64_t)st.st_ino, (uint64_t)st.st_size, (int64_t)st.st_mtim.tv_sec,
                                  (int64_t)st.st_mtim.tv_nsec};
  }
}

static void on_done(uv_work_t *work, int status) {
  struct look_job *j = work->data;
  struct hang_files *h = j->of;
  if (h) {
    h->out = NULL;
    for (uint32_t i = 0; i < h->count; i++) {
      const struct look *a = &h->last[i], *b = &j->found[i];
      h->changed[i] = h->any && (a->there != b->there || a->ino != b->ino || a->size != b->size || a->sec != b->sec ||
                                 a->nsec != b->nsec);
      h->last[i] = *b;
    }
    h->any = true;
    if (j->asked) h->on_looked(h->ctx);
  }
  for (uint32_t i = 0; i < j->count; i++) free(j->names[i]);
  free(j->names);
  free(j->found);
  free(j);
}

static void begin_look(struct hang_files *h) {
  struct look_job *j = xcalloc(1, sizeof(*j));
  *j = (struct look_job){.of = h,
                         .count = h->count,
                         .names = xcalloc(h->count, sizeof(char *)),
                         .found = xcalloc(h->count, sizeof(struct look))};
  j->work.data = j;
  for (uint32_t i = 0; i < h->count; i++) j->names[i] = hang_file_name(h->name, h->rank_base + i, i);
  h->out = j;
  loop_work(h->loop, &j->work, do_look, on_done);
}

void hang_files_look(struct hang_files *h) {
  if (!h->out) begin_look(h);
  h->out->asked = true;
}

bool hang_files_changed(const struct hang_files *h, uint32_t local_rank) {
  return h->changed[local_rank];
}

void hang_files_begin(struct hang_files *h, int64_t rank_base) {
  if (h->out) h->out->of = NULL;
  h->out = NULL;
  h->any = false;
  h->rank_base = rank_base;
  memset(h->changed, 0, h->count * sizeof(*h->changed));
  begin_look(h);
}

struct hang_files *hang_files_create(uv_loop_t *loop, uint32_t count, const char *name, hang_files_looked_fn on_looked,
                                     void *ctx) {
  struct hang_files *h = xcalloc(1, sizeof(*h));
  *h = (struct hang_files){.loop = loop,
                           .count = count,
                           .name = xstrdup(name),
                           .on_looked = on_looked,
                           .ctx = ctx,
                           .last = xcalloc(count, sizeof(struct look)),
                           .changed = xcalloc(count, sizeof(bool))};
  return h;
}

void hang_files_destroy(struct hang_files *h) {
  if (!h) return;
  if (h->out) h->out->of = NULL;
  free(h->name);
  free(h->last);
  free(h->changed);
  free(h);
}
