/* SPDX-License-Identifier: Apache-2.0 */
/* Events. The daemon writes a line about each round that it seals, and about the end of each job, into its state file.
 * So the checker knows without asking the minds how many events of these two kinds there must have been in a life of a
 * daemon. An agent that has not asked for events gets none, and what it writes down is a line of JSON. */

#include "tests/sim/sim.h"

#include <inttypes.h>
#include <string.h>
#include "common/events/event.h"

void check_event_saved(struct sim *s, const char *line) {
  struct sim_daemon *d = &s->d;
  if (!s->config.events) return;
  if (d->seals_told != d->seals)
    sim_violate(s, INV_EVENTS, "%s: %" PRIu32 " rounds were sealed, and %" PRIu32 " events say so", d->name, d->seals,
                d->seals_told);
  if (strstr(line, "{\"event\":\"seal\"")) d->seals++;
  if (strstr(line, "{\"event\":\"end\"")) d->ends++;
}

void check_event_made(struct sim *s, const struct job_effect *fx) {
  struct sim_daemon *d = &s->d;
  if (!s->config.events) sim_violate(s, INV_EVENTS, "%s makes events, and nobody wants them", d->name);
  if (!event_line_is_sound(fx->text, strlen(fx->text))) sim_violate(s, INV_EVENTS, "%s: %s", d->name, fx->text);
  if (fx->value == EVENT_ROUND_SEALED) d->seals_told++;
  if (fx->value == EVENT_JOB_ENDED) d->ends_told++;
}

void check_event_sent(struct sim *s, const struct msg *m) {
  const struct sim_daemon *d = &s->d;
  if (m->type == MSG_EVENT && !s->config.events) sim_violate(s, INV_EVENTS, "an agent gets events unasked");
  if (m->type == MSG_END && s->config.events && d->ends_told < d->ends)
    sim_violate(s, INV_EVENTS, "%s sends END, and no event said that the job is over", d->name);
}

void check_event_written(struct sim *s, const struct sim_agent *a, const char *name, const char *line) {
  if (!s->config.events) sim_violate(s, INV_EVENTS, "%s writes %s, and nobody wants it", a->name, name);
  if (!event_line_is_sound(line, strlen(line))) sim_violate(s, INV_EVENTS, "%s writes %s", a->name, line);
}
