/* Holds: what remains of a lost node that may still run workers.
 *
 * Until its lease, counted from its last sign of life, is over, the node may not yet have fenced itself, so until then no new
 * round may be sealed. An obituary, a BYE, or the node's own return in no round ends its hold at once.
 *
 * Of all holds only the last one to end matters for the seal, and it is asked for after every event; so its time is kept, with how many
 * holds end then: ten thousand nodes that were lost together and come back one by one cost one look through all of them, not ten
 * thousand. What has expired is swept when the number has doubled, because a job may live for months and lose a node a day. */

#include "daemon/job/job.h"

#include <stdlib.h>
#include "common/mem.h"
#include "daemon/core/internal.h"

static void find_last(struct job *j) {
  j->hold_ms = j->n_last_holds = 0;
  for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) {
    uint64_t until_ms = *(const uint64_t *)e->value;
    if (until_ms > j->hold_ms) {
      j->hold_ms = until_ms;
      j->n_last_holds = 0;
    }
    j->n_last_holds += until_ms == j->hold_ms;
  }
}

static void sweep(struct job *j) {
  for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) {
    if (*(const uint64_t *)e->value > j->core->now_ms) continue;
    free(e->value);
    map_remove_n(&j->holds, e->key, e->key_len);
  }
  find_last(j);
  j->holds_sweep_at = 2 * j->holds.count + 16;
}

void job_hold_agent(struct job *j, const char *agent, uint64_t until_ms) {
  job_drop_hold(j, agent);
  if (j->holds.count >= j->holds_sweep_at) sweep(j);
  map_put(&j->holds, agent, xmemdup(&until_ms, sizeof until_ms));
  if (until_ms > j->hold_ms) {
    j->hold_ms = until_ms;
    j->n_last_holds = 0;
  }
  j->n_last_holds += until_ms == j->hold_ms;
}

void job_hold(struct job *j, const struct member *m) {
  job_hold_agent(j, m->agent, m->heard_ms + (uint64_t)j->settings.lease_ms);
}

void job_drop_hold(struct job *j, const char *agent) {
  uint64_t *until_ms = map_remove(&j->holds, agent);
  bool last = until_ms && *until_ms == j->hold_ms && --j->n_last_holds == 0;
  free(until_ms);
  if (last) find_last(j);
}

void job_hold_as(struct job *j, const struct job *before) {
  for (struct map_entry *e = NULL; (e = map_next(&before->holds, e));)
    job_hold_agent(j, e->key, *(const uint64_t *)e->value);
}

uint64_t job_hold_until(const struct job *j) {
  return j->hold_ms;
}

void job_finish_holds(struct job *j) {
  for (struct map_entry *e = NULL; (e = map_next(&j->holds, e));) free(e->value);
  map_finish(&j->holds);
}
