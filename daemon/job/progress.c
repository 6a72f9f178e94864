/* SPDX-License-Identifier: Apache-2.0 */
/* How far the nodes of a round are: the last PROGRESS of each.
 *
 * A node reports its slowest worker, the age of its oldest step, and the workers that are behind the others. So the
 * daemon keeps a few numbers of a node, and a list only for a node in which a worker lags. An age goes on growing here
 * until the next report, since a node whose workers all stand still has nothing to report.
 *
 * Everything is of the current round: a round begins with nothing. */

#include "daemon/job/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

void member_note_progress(struct member *m, const struct progress *p, uint64_t now_ms) {
  if (p->round != m->job->round || strcmp(p->incarnation, m->job->incarnation) != 0) return;
  m->progress.step = p->step;
  m->progress.of = p->of;
  m->progress.loss = p->loss;
  m->progress.samples_per_second = p->samples_per_second;
  m->progress.since_ms = (int64_t)now_ms - p->age_ms;
  m->progress.resumed = p->resumed;
  m->progress.saved = p->saved;
  m->progress.saving_ms = p->saving_ms;
  free(m->progress.laggards);
  m->progress.laggards = NULL;
  if (p->n_laggards) {
    struct laggards *l = xmalloc(sizeof *l + p->n_laggards * sizeof *l->v);
    l->came_ms = now_ms;
    l->n = 0;
    for (size_t i = 0; i < p->n_laggards; i++)
      if (p->laggards[i].local_rank < m->workers) l->v[l->n++] = p->laggards[i];
    m->progress.laggards = l;
  }
  goodput_progress(m, now_ms);
  job_announce_progress(m);
}

void member_clear_progress(struct member *m) {
  m->progress.step = m->progress.resumed = m->progress.saved = -1;
  m->progress.of = m->progress.saving_ms = 0;
  m->progress.since_ms = 0;
  free(m->progress.laggards);
  m->progress.laggards = NULL;
}

static uint64_t age_since(int64_t since_ms, uint64_t now_ms) {
  return since_ms < (int64_t)now_ms ? now_ms - (uint64_t)since_ms : 0;
}

uint64_t member_progress_age_ms(const struct member *m, uint64_t now_ms) {
  return m->progress.step < 0 ? UINT64_MAX : age_since(m->progress.since_ms, now_ms);
}

uint64_t member_worker_age_ms(const struct member *m, int64_t local_rank, uint64_t now_ms) {
  const struct laggards *l = m->progress.laggards;
  if (!l) return member_progress_age_ms(m, now_ms);
  for (size_t i = 0; i < l->n; i++)
    if (l->v[i].local_rank == local_rank) return (uint64_t)l->v[i].age_ms + age_since((int64_t)l->came_ms, now_ms);
  return age_since((int64_t)l->came_ms, now_ms);
}

static int64_t lower(int64_t least, int64_t step) {
  return step >= 0 && (least < 0 || step < least) ? step : least;
}

struct job_steps job_steps(const struct job *j) {
  struct job_steps all = {-1, -1, -1, -1};
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (!member_in_round(m)) continue;
    all.least = lower(all.least, m->progress.step);
    if (m->progress.step > all.most) all.most = m->progress.step;
    all.saved = lower(all.saved, m->progress.saved);
    all.resumed = lower(all.resumed, m->progress.resumed);
  }
  return all;
}
