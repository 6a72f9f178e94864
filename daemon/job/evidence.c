/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes know of a round's collectives when a hang ends it.
 *
 * Each node knows where its own ranks are. A rank is behind only in comparison with those of other nodes, so the daemon
 * joins what all of them have sent, group by group. NCCL's RAS knows all ranks by itself: its sentence counts if the
 * groups say less. Nothing of it is kept beyond the round, and nothing is allocated in a round that ends otherwise.
 *
 * A group counts for the node that was the first to name it. A node has no more groups than one EVIDENCE can hold, however
 * many it sends, and all jobs of an account have ACCOUNT_GROUPS_MAX. What is beyond is left out. */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

struct group {
  struct collective c; /* its strings are those below */
  char name[GROUP_NAME_MAX + 1], op[OPERATION_MAX + 1], ranks[RANKS_TEXT_MAX + 1];
};

struct hang_evidence {
  struct map groups; /* name -> struct group */
  char silent[RANKS_TEXT_MAX + 1];
  char *text; /* of NCCL's RAS; NULL: none */
};

void job_take_evidence(struct job *j, struct member *m, const struct evidence *e) {
  if (e->round != j->round || strcmp(e->incarnation, j->incarnation) != 0 || !member_in_round(m)) return;
  if (j->state != JOB_RUNNING && j->state != JOB_CHECKPOINTING && j->state != JOB_STOPPING) return;
  if (!j->evidence) {
    j->evidence = xcalloc(1, sizeof *j->evidence);
    map_init(&j->evidence->groups, jobs_random(j->jobs));
  }
  for (size_t i = 0; i < e->n_collectives; i++) {
    const char *name = e->collectives[i].group;
    struct group *g = map_get(&j->evidence->groups, name);
    if (!g) {
      if (j->evidence->groups.count >= JOB_COLLECTIVES_MAX || m->n_groups >= COLLECTIVES_MAX) continue;
      if (j->account && j->account->n_groups >= ACCOUNT_GROUPS_MAX) continue;
      m->n_groups++;
      if (j->account) j->account->n_groups++;
      g = xcalloc(1, sizeof *g);
      snprintf(g->name, sizeof g->name, "%s", name);
      g->c = (struct collective){.group = g->name, .op = g->op, .ranks = g->ranks, .entered = -1};
      map_put(&j->evidence->groups, name, g);
    }
    collective_add(&g->c, &e->collectives[i], g->ranks);
    if (g->c.op != g->op) snprintf(g->op, sizeof g->op, "%s", g->c.op);
    g->c.op = g->op;
    g->c.ranks = g->ranks;
  }
  ranks_merge(j->evidence->silent, e->silent);
  if (e->text[0] && !j->evidence->text) j->evidence->text = xstrdup(e->text);
}

void job_judge_evidence(struct job *j) {
  struct hang_evidence *e = j->evidence;
  bool waited = j->cause.cause == CAUSE_WORKER_HUNG || verdict_is_collective_timeout(&j->cause);
  if (!e || !waited) return;
  struct collective *v = xcalloc(e->groups.count + 1, sizeof *v);
  size_t n = 0;
  bool lacks = false;
  for (struct map_entry *at = NULL; (at = map_next(&e->groups, at));) {
    v[n] = ((const struct group *)at->value)->c;
    lacks |= collective_lacks(&v[n++]);
  }
  struct buf text = BUF_INIT;
  if (lacks || !e->text) collectives_sentence(v, n, e->silent, &text);
  if (!text.len && e->text) buf_puts(&text, e->text);
  free(v);
  if (text.len && (lacks || !j->cause.evidence[0])) {
    struct verdict with = j->cause;
    with.evidence = buf_text(&text);
    verdict_set(&j->cause, &with);
  }
  buf_finish(&text);
}

size_t job_evidence_groups(const struct job *j) {
  return j->evidence ? j->evidence->groups.count : 0;
}

void job_forget_evidence(struct job *j) {
  if (!j->evidence) return;
  if (j->account) j->account->n_groups -= job_evidence_groups(j);
  for (size_t i = 0; i < j->n_members; i++) j->members[i]->n_groups = 0;
  for (struct map_entry *at = NULL; (at = map_next(&j->evidence->groups, at));) free(at->value);
  map_finish(&j->evidence->groups);
  free(j->evidence->text);
  free(j->evidence);
  j->evidence = NULL;
}
